"""What the command prints for the demo session, byte for byte."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.cli.logs import demo
from tests.paths import FIXTURES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Result

DEMO = FIXTURES / "cli" / "demo"
UPDATE = "SESSIONSTORE_UPDATE_GOLDEN"

CASES = {
    "show.txt": ("show", "demo-0198c0de"),
    "show-full.txt": ("show", "demo-0198c0de", "--full", "--reasoning", "--all"),
    "show-turn-2.txt": ("show", "demo-0198c0de", "--turn", "2", "--hide-results", "--redact"),
    "show-40.txt": ("show", "demo-0198c0de"),
    "export.md": ("export", "demo-0198c0de", "--format", "md"),
    "export-redacted.md": ("export", "demo-0198c0de", "--format", "md", "--redact", "--hide-results", "--all"),
    "stats.txt": ("stats", "demo-0198c0de"),
}


def test_the_fixture_is_the_log_that_the_tests_make() -> None:
    """The stored log and the code that made it do not drift apart."""
    assert (DEMO / "session.jsonl").read_bytes() == demo().text()


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_output_is_the_golden_one(name: str, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """Show and export print exactly what was looked at and found good."""
    if name.endswith("-40.txt"):
        monkeypatch.setenv("COLUMNS", "40")
    result = run(*CASES[name])
    assert result.code == 0
    assert result.err == ""
    if os.environ.get(UPDATE):
        (DEMO / name).write_text(result.out, encoding="utf-8")
    assert result.out == (DEMO / name).read_text(encoding="utf-8")


def test_narrow_output_fits(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """In 40 columns no line is wider than 40 cells, wide characters counted twice."""
    from rich.cells import cell_len

    monkeypatch.setenv("COLUMNS", "40")
    for arguments in (("show", "demo-0198c0de", "--full"), ("ls",), ("ls", "--full")):
        for line in run(*arguments).out.splitlines():
            assert cell_len(line) <= 40, line

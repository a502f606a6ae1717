"""Command lines that are wrong: 64, and nothing is done."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sessionstore.cli import main
from tests.cli.logs import START

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Result

DEMO = "demo-0198c0de"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--root", "", "ls"), ("ls", "--root", ""), ("fork", DEMO, "--id", ""), ("repair", DEMO, "--cwd", ""),
        ("ls", "--cwd", ""), ("show", ""),
    ],
)  # fmt: skip
def test_an_empty_text_is_a_mistake(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """An empty variable of a script is neither the current folder nor a bad log."""
    monkeypatch.chdir(tmp_path)
    found = run(*arguments)
    assert (found.code, found.out) == (64, "")
    assert "empty" in found.err


def test_the_current_folder_may_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a root, and as the working directory of a session whose header is lost."""
    directory = tmp_path / "_no-cwd" / "s"
    directory.mkdir(parents=True)
    end = {"type": "turn/end", "seq": 0, "time": START, "data": {"turn": 1, "reason": {"kind": "completed"}}}
    (directory / "session.jsonl").write_text("broken\n" + json.dumps(end, separators=(",", ":")) + "\n", "ascii")
    monkeypatch.chdir(tmp_path)
    assert main(["--root", ".", "repair", "s", "--cwd", ".", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["cwd"] == str(tmp_path)


def test_a_root_below_a_home_that_nobody_has_is_a_mistake(run: Callable[..., Result]) -> None:
    """A shell passes such a name on as it is; the error says how a folder of that name is written."""
    found = run("--root", "~nobody-of-that-name/x", "ls")
    assert (found.code, found.out) == (64, "")
    assert "./~nobody-of-that-name/x" in found.err

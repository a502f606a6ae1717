"""What the tests of the command line share: a root with a session, and a way to run the command in this process."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from sessionstore.cli import main
from tests.cli.logs import demo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Result(NamedTuple):
    """What a run of the command gave."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times are printed in UTC, without colour, unwrapped; no setting of the user gets in."""
    monkeypatch.setenv("TZ", "UTC")
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "SESSIONSTORE_ROOT"):
        monkeypatch.delenv(name, raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with the demo session."""
    folder = tmp_path / "root"
    demo().save(folder)
    return folder


@pytest.fixture
def run(root: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run the command on *root* in this process."""

    def run_(*arguments: str) -> Result:
        code = main(["--root", str(root), *arguments])
        captured = capsys.readouterr()
        return Result(int(code), captured.out, captured.err)

    return run_

"""Where an export may write, and what it never touches."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sessionstore.cli import main
from sessionstore.cli.codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Result

DEMO = "demo-0198c0de"


@pytest.mark.parametrize("name", ["session.jsonl", "session.lock", "notes.md"])
def test_export_never_writes_among_the_sessions(run: Callable[..., Result], root: Path, name: str) -> None:
    """Not over the log with --force either, nor beside it; directly below the root it may."""
    (log,) = root.glob("*/*/session.jsonl")
    before = log.read_bytes()
    result = run("export", DEMO, "--format", "md", "-o", str(log.with_name(name)), "--force")
    assert (result.code, log.read_bytes()) == (ExitCode.USAGE, before)
    assert os.listdir(log.parent) == ["session.jsonl"]
    assert run("export", DEMO, "--format", "md", "-o", str(root / "notes.md")).code == 0


def test_export_knows_a_root_by_every_name(
    run: Callable[..., Result], root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Below the home directory, relative or behind a link: the log is not overwritten."""
    (log,) = root.glob("*/*/session.jsonl")
    before = log.read_bytes()
    monkeypatch.chdir(root.parent)
    monkeypatch.setenv("HOME", str(root.parent))
    (root.parent / "linked").symlink_to(root)
    for name in ("~/root", "root", "./linked", str(root.parent / "linked")):
        assert run("--root", name, "export", DEMO, "--format", "md", "-o", str(log), "--force").code == ExitCode.USAGE
        monkeypatch.setenv("SESSIONSTORE_ROOT", name)
        assert main(["export", DEMO, "--format", "md", "-o", str(log), "--force"]) == ExitCode.USAGE
    assert "lies among the sessions" in capsys.readouterr().err
    assert log.read_bytes() == before


def test_export_writes_into_a_pipe_and_leaves_it(run: Callable[..., Result], tmp_path: Path) -> None:
    """What is no file is written to, never replaced by one: /dev/null stays what it is."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert run("export", DEMO, "--format", "md", "-o", str(pipe), "--force").code == 0
        assert os.read(reader, 100).startswith(b"# Fix the hanging test")
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_an_export_behind_links_that_go_in_circles_is_an_error_with_a_name(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    """Where the file would be cannot be found out; it is one line and no traceback."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    result = run("export", DEMO, "--format", "md", "-o", str(tmp_path / "a" / "notes.md"))
    assert (result.code, result.err.count("\n")) == (ExitCode.STORAGE, 1)

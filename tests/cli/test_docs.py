"""docs/cli.md says what the command really does."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import click
import pytest

from sessionstore.cli.app import app
from sessionstore.cli.codes import ExitCode
from sessionstore.transcript.secrets import PATTERNS
from tests.cli.docs import BLOCK, PAGE, SETTINGS, make_root, output

if TYPE_CHECKING:
    from pathlib import Path

PAGE_TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = list(BLOCK.finditer(PAGE_TEXT))


@pytest.mark.parametrize("number", range(len(BLOCKS)), ids=lambda number: BLOCKS[number]["arguments"])
def test_every_block_is_the_real_output(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page shows is what the command prints; `python -m tests.cli.docs` writes it anew."""
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    time.tzset()
    found = BLOCKS[number]
    assert output(make_root(tmp_path), found["arguments"]) == found["output"]


def commands(group: click.Group, path: str = "") -> list[str]:
    """The names of all commands that do something."""
    names: list[str] = []
    for name, command in group.commands.items():
        names += commands(command, f"{path}{name} ") if isinstance(command, click.Group) else [f"{path}{name}"]
    return names


def test_every_command_has_its_help_on_the_page() -> None:
    """A new command cannot be forgotten."""
    shown = {found["arguments"] for found in BLOCKS}
    assert {f"{name} --help" for name in commands(app)} <= shown


def test_every_exit_code_is_listed() -> None:
    """The table and the enumeration agree."""
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE_TEXT, re.MULTILINE)}
    assert listed == {int(code) for code in ExitCode}


def test_every_kind_of_secret_is_listed() -> None:
    """The page names what --redact looks for."""
    listed = PAGE_TEXT.split("What `--redact` looks for:", 1)[1].split("\n\n")[1]
    assert re.findall(r"^\* ([^:\n]+)", listed, re.MULTILINE) == [name for name, _ in PATTERNS]

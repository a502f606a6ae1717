"""The parts of docs/cli.md that are real output: ``python -m tests.cli.docs`` writes them anew.

A block begins with ``<!-- run: arguments -->`` and holds what the command prints, in 100 columns, for the demo session
under the id ``0198c0de-7a11-7e57-8000-00000000cafe``.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import tempfile
import time
from pathlib import Path

from sessionstore.cli import main
from tests.cli.logs import demo
from tests.paths import REPO

PAGE = REPO / "docs" / "cli.md"
ID = "0198c0de-7a11-7e57-8000-00000000cafe"
BLOCK = re.compile(r"(<!-- run: (?P<arguments>[^\n]*) -->\n```[a-z]*\n)(?P<output>.*?)(\n```\n)", re.DOTALL)
SETTINGS = {"TZ": "UTC", "COLUMNS": "100", "NO_COLOR": "1"}


def make_root(folder: Path) -> Path:
    """A root with the session that the page shows."""
    log = demo()
    log.header["id"] = ID
    log.save(folder)
    return folder


def output(root: Path, arguments: str) -> str:
    """What the command prints, and its exit code where that is not 0."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["--root", str(root), *shlex.split(arguments)])
    text = out.getvalue().replace(str(root), "~/.local/share/sessionstore/sessions")
    return "\n".join(line.rstrip() for line in text.rstrip("\n").split("\n")) + (
        f"\n[exit code {code}]" if code else ""
    )


def rewritten(page: str, root: Path) -> str:
    """*page* with every block as it has to be."""
    return BLOCK.sub(lambda found: f"{found[1]}{output(root, found['arguments'])}\n```\n", page)


if __name__ == "__main__":
    os.environ.update(SETTINGS)
    time.tzset()
    with tempfile.TemporaryDirectory() as folder_name:
        PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), make_root(Path(folder_name))), encoding="utf-8")

"""The ``sessionstore`` command.

Needs the extra ``cli`` (click, rich, platformdirs); without it the command says how to
install it.  Everything it does to a session, it does through the public API.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_PARTS = ("click", "rich", "platformdirs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with *arguments* (default: those of the process); its exit code."""
    try:
        from sessionstore.cli.app import run  # noqa: PLC0415  # the extra may be missing
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _PARTS:
            raise
        sys.stderr.write(
            f"The sessionstore command needs its extra ({missing} is not installed):\n\n"
            '    pip install "sessionstore[cli]"\n'
        )
        return 64
    return run(arguments)

"""The command line as a whole: the group of commands, and what becomes of errors."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sessionstore.cli.codes import ExitCode, code_of
from sessionstore.cli.commands.completion import completion
from sessionstore.cli.commands.du import du
from sessionstore.cli.commands.export import export
from sessionstore.cli.commands.fork import fork
from sessionstore.cli.commands.listing import ls
from sessionstore.cli.commands.paths import path
from sessionstore.cli.commands.repair import repair
from sessionstore.cli.commands.show import show
from sessionstore.cli.commands.stats import stats
from sessionstore.cli.commands.tail import tail
from sessionstore.cli.commands.trash import rm, trash
from sessionstore.cli.commands.verify import verify
from sessionstore.cli.context import example, root_option
from sessionstore.cli.terminal import complain
from sessionstore.errors import SessionStoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["app", "run"]


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=example(
        "sessionstore ls", "sessionstore show 0198c0de", "sessionstore export 0198c0de --format html -o run.html"
    ),
)
@click.version_option(package_name="sessionstore")
@root_option
def app() -> None:
    """Look at the sessions of an agent: what happened, what it cost, what broke.

    An ID may be shortened while it stays unambiguous. Nothing here changes a session but fork, repair, rm
    and trash, and those say so.
    """


for _command in (ls, show, tail, stats, du, verify, repair, fork, export, path, rm, trash, completion):
    app.add_command(_command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code.  Prints every error that has a name as one line."""
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # An encoding that lacks a character must not end the command, and lone surrogates fit in none.
            stream.reconfigure(errors="backslashreplace")
    try:
        result = app.main(
            args=None if arguments is None else list(arguments), prog_name="sessionstore", standalone_mode=False
        )
        sys.stdout.flush()
    except click.UsageError as error:
        error.show()
        return ExitCode.USAGE
    except click.ClickException as error:
        error.show()
        return ExitCode.FAILED
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except (BrokenPipeError, SystemExit):  # click itself exits, with code 1, when a pipe is closed
        _leave_pipe()
        return ExitCode.OK
    except (SessionStoreError, OSError) as error:
        complain(str(error))
        return code_of(error)
    return result if isinstance(result, int) else ExitCode.OK


def _open_standard_streams() -> None:
    """Open those that whoever started us has closed: the next file opened, a log, would be taken for one of them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - until the end


def _leave_pipe() -> None:
    """Whoever read our output has enough: leave without a second error when the interpreter flushes."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

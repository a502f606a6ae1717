"""Writing to a terminal, a pipe or a file.

Text from a log never reaches a terminal as it is (``visible``); styles are rich's own,
so NO_COLOR, FORCE_COLOR and TERM=dumb mean what they mean everywhere.  Where the output
is no terminal and COLUMNS is not set, lines are not wrapped: the reader's tool decides.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from rich.console import Console
from rich.text import Text

from sessionstore.transcript.visible import visible

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from sessionstore.transcript.text import Line, Style

__all__ = [
    "UNWRAPPED",
    "complain",
    "emit_json",
    "json_text",
    "out",
    "print_lines",
    "safe_json",
    "tracked",
    "waiting",
    "write_text",
]

_T = TypeVar("_T")

UNWRAPPED: Final = 10_000
"""The width when nothing says how wide the output is."""

_STYLES: Final[dict[Style, str]] = {
    "plain": "",
    "title": "bold",
    "turn": "bold cyan",
    "user": "bold blue",
    "assistant": "bold magenta",
    "tool": "bold",
    "dim": "dim",
    "warn": "yellow",
    "error": "bold red",
    "ok": "green",
    "rule": "dim",
}
# What JSON leaves as it is and a terminal or a reader of right-to-left text would act on.
_RAW_CONTROLS: Final = re.compile(
    "[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f\ud800-\udfff]"
)
_MANY: Final = 20_000
_SIZE: Final = re.compile(r"0{0,9}[1-9][0-9]{0,8}")


def _width(stream_is_tty: bool) -> int | None:
    columns = os.environ.get("COLUMNS", "")
    if _SIZE.fullmatch(columns):
        return max(20, int(columns))
    return None if stream_is_tty else UNWRAPPED


def _settings() -> dict[str, str]:
    """The environment without sizes that are none: rich would fail over some and print nothing for others."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in {"COLUMNS", "LINES"} or _SIZE.fullmatch(value) is not None
    }


class _Console(Console):
    """A console that leaves a closed pipe to whoever runs the command; rich would exit by itself, with code 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def out() -> Console:
    """The console of standard output."""
    return _Console(
        file=sys.stdout,
        width=_width(sys.stdout.isatty()),
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=False,
        _environ=_settings(),
    )


def _err() -> Console:
    return Console(file=sys.stderr, markup=False, emoji=False, highlight=False, _environ=_settings())


def complain(message: str, *, style: str = "red") -> None:
    """One message to standard error, made safe."""
    _err().print(Text(f"sessionstore: {visible(message)}", style=style), soft_wrap=True)


def write_text(text: str) -> None:
    """Text to standard output as it is; it must be safe already where that is a terminal."""
    sys.stdout.write(text)


def print_lines(lines: Iterable[Line], console: Console | None = None) -> None:
    """Print *lines*, wrapped to the width, the tail of each at the right edge."""
    console = console or out()
    for line in lines:
        _print_line(line, console)


def _print_line(line: Line, console: Console) -> None:
    width = console.width
    text = Text(line.text, style=_STYLES[line.style])
    if width >= UNWRAPPED:
        tail = f"  {line.tail}" if line.tail else ""
        row = Text(" " * line.indent) + text + Text(tail)
        row.rstrip()
        console.print(row, soft_wrap=True)
        return
    indent = min(line.indent, width // 4)
    room = width - indent - (len(line.tail) + 1 if line.tail else 0)
    for number, part in enumerate(text.wrap(console, max(8, room), tab_size=4) or [Text("")]):
        row = Text(" " * indent) + part
        if line.tail and number == 0:
            row.append(" " * max(1, width - row.cell_len - len(line.tail)))
            row.append(line.tail, style="dim")
        else:
            row.rstrip()
        console.print(row, soft_wrap=True, end="\n")


def json_text(value: object, *, indent: int | None = 2) -> str:
    """*value* (JSON values or Structs) as JSON text in which nothing acts on a terminal; every JSON parser reads it."""
    plain = msgspec.to_builtins(value)
    separators = (",", ":") if indent is None else None
    return safe_json(json.dumps(plain, ensure_ascii=False, indent=indent, separators=separators))


def safe_json(text: str) -> str:
    """JSON text as it was written, but for characters that a terminal would act on: they become escapes."""
    return _RAW_CONTROLS.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def emit_json(value: object) -> None:
    """*value* as indented JSON to standard output."""
    write_text(json_text(value) + "\n")


@contextlib.contextmanager
def waiting(what: str) -> Generator[None]:
    """Show that something is going on, on standard error, only where that is a terminal."""
    console = _err()
    if not console.is_terminal:
        yield
        return
    with console.status(Text(what), spinner="dots"):
        yield


def tracked(events: Iterable[_T], total: int, what: str, *, many: int = _MANY) -> Iterator[_T]:
    """Hand *events* through; from *many* on with a progress bar on standard error, if that is a terminal."""
    console = _err()
    if total < many or not console.is_terminal:
        yield from events
        return
    from rich.progress import (  # noqa: PLC0415  # slow to import, seldom needed
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        for number, event in enumerate(events):
            if number % 2048 == 0 or many < _MANY:
                progress.update(task, completed=number)
            yield event

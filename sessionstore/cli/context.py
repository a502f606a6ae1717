"""What every command needs: where the sessions are, a store over them, and the session meant by an id."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import platformdirs

from sessionstore import SessionInfo, SessionNotFoundError, SessionStore, SessionStoreError
from sessionstore.cli.terminal import complain, tracked, waiting
from sessionstore.recovery.findings import Verdict
from sessionstore.transcript.redact import hide_results, redact
from sessionstore.transcript.visible import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sessionstore import Event, Inspection
    from sessionstore.transcript.model import Transcript

__all__ = [
    "complete_ids",
    "contents_options",
    "default_root",
    "example",
    "followed",
    "inspect_session",
    "json_option",
    "load_transcript",
    "not_empty",
    "open_store",
    "resolve",
    "root_of",
    "root_option",
    "run_async",
    "session_argument",
    "short_ids",
]

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])
_ROOT: Final = "sessionstore.root"
_READABLE: Final = frozenset({Verdict.CLEAN, Verdict.INTERRUPTED, Verdict.TORN})


def default_root() -> Path:
    """Where sessions are when nothing says where."""
    return platformdirs.user_data_path("sessionstore", appauthor=False) / "sessions"


def not_empty(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """The callback of an option whose empty text is a mistake, of a variable that was not set, say.

    Raises:
        click.BadParameter: it is empty.
    """
    if value == "":
        raise click.BadParameter("it is empty")
    return value


class _Folder(click.Path):
    """A folder.  An empty name would be the current one, which nobody means."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if value == "":
            self.fail("it is empty; the current folder is '.'", param, ctx)
        return super().convert(value, param, ctx)


def _note_root(context: click.Context, _parameter: click.Parameter, value: Path | None) -> None:
    if value is not None:
        context.meta[_ROOT] = value


def root_option(function: _F) -> _F:
    """``--root``, which may stand before and after the name of a command."""
    return click.option(
        "--root",
        type=_Folder(file_okay=False, path_type=Path),
        callback=_note_root,
        expose_value=False,
        help="Folder of the sessions (else $SESSIONSTORE_ROOT, else the user's data folder).",
    )(function)


def root_of(context: click.Context) -> Path:
    """The folder of the sessions; ``~`` is expanded, as the store does."""
    named = context.meta.get(_ROOT) or os.environ.get("SESSIONSTORE_ROOT") or default_root()
    return Path(os.path.expanduser(named))  # noqa: PTH111 - the store says what it thinks of a home that nobody has


def json_option(function: _F) -> _F:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="JSON for scripts.")(function)


def contents_options(function: _F) -> _F:
    """The options of every command that prints what a session holds."""
    function = click.option("--redact", "secrets", is_flag=True, help="Take out what looks like a secret.")(function)
    return click.option("--hide-results", is_flag=True, help="Leave out what tools returned.")(function)


def example(*lines: str) -> str:
    """The epilog of a help text."""
    return "\b\nExample:\n" + "\n".join(f"  $ {line}" if not line.startswith(" ") else line for line in lines)


def open_store(context: click.Context) -> SessionStore:
    """A store over the sessions.  ``async with`` it.

    Raises:
        click.UsageError: their folder cannot be named so.
    """
    try:
        return SessionStore(root_of(context))
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def run_async(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a command's coroutine."""
    return asyncio.run(coroutine)


def complete_ids(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Ids that begin with *incomplete*, for the shell."""

    async def ids() -> list[str]:
        async with open_store(context) as store:
            page = await store.list()
            return sorted({row.id for row in page.sessions if row.id.startswith(incomplete)})

    try:
        return asyncio.run(ids())
    except (SessionStoreError, OSError):
        return []  # a shell that completes has no place for an error


def session_argument(function: _F) -> _F:
    """The argument ``ID``."""
    return click.argument("session_id", metavar="ID", shell_complete=complete_ids)(function)


async def resolve(store: SessionStore, wanted: str) -> SessionInfo:
    """The session that *wanted*, an id or the unambiguous beginning of one, means.

    Raises:
        SessionNotFoundError: no id begins so.
        click.UsageError: several do.
    """
    if not wanted:
        raise click.UsageError("an id is not empty")
    page = await store.list()
    found = {row.id: row for row in page.sessions if row.id.startswith(wanted)}
    if wanted in found:
        return found[wanted]
    if not found:
        raise SessionNotFoundError(wanted)
    if len(found) > 1:
        some = ", ".join(one_line(key) for key in sorted(found)[:5]) + (", …" if len(found) > 5 else "")
        raise click.UsageError(f"{one_line(wanted)!r} is the beginning of {len(found)} ids: {some}")
    return next(iter(found.values()))


def short_ids(ids: Sequence[str], shortest: int = 8) -> dict[str, str]:
    """Each id cut to what still tells it from all others, and to no less than *shortest* characters."""
    ordered = sorted(set(ids))
    shared = [_common(first, second) for first, second in pairwise(ordered)]
    lengths = [max(before, after) + 1 for before, after in zip([0, *shared], [*shared, 0], strict=True)]
    return {key: key[: max(shortest, length)] for key, length in zip(ordered, lengths, strict=False)}


def _common(first: str, second: str) -> int:
    length = 0
    for mine, theirs in zip(first, second, strict=False):
        if mine != theirs:
            break
        length += 1
    return length


async def inspect_session(store: SessionStore, wanted: str) -> Inspection:
    """The session that *wanted* means, as it is; what is wrong with it goes to standard error."""
    info = await resolve(store, wanted)
    with waiting(f"Reading {one_line(info.id)}"):
        inspection = await store.inspect(info.id)
    if inspection.verdict not in _READABLE:
        first = f": {inspection.findings[0].describe()}" if inspection.findings else ""
        complain(
            f"session {info.id} is {inspection.verdict}{first}; showing what could be read "
            f"(`sessionstore verify {info.id}` says more)",
            style="yellow",
        )
    return inspection


def followed(inspection: Inspection, what: str, *, quiet: bool = False) -> Iterator[Event]:
    """The events of *inspection*, with progress where there are many; *quiet* while they go to the same terminal."""
    return iter(inspection.events) if quiet else tracked(inspection.events, len(inspection.events), what)


def load_transcript(inspection: Inspection, *, secrets: bool, results: bool) -> Transcript:
    """The transcript of a session, without *secrets* and without tool *results* as asked."""
    from sessionstore.transcript.build import build_transcript  # noqa: PLC0415

    bad = inspection.verdict not in (Verdict.CLEAN, Verdict.INTERRUPTED)
    transcript = build_transcript(
        inspection.id,
        followed(inspection, "Building"),
        header=inspection.header,
        verdict=str(inspection.verdict),
        findings=[finding.describe() for finding in inspection.findings] if bad else (),
    )
    if results:
        hide_results(transcript)
    if secrets:
        redact(transcript)
    return transcript

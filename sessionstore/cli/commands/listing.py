"""``sessionstore ls``."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import click
import msgspec
from rich.table import Table
from rich.text import Text

from sessionstore import ANY, SessionInfo, SessionStore, SessionStoreError
from sessionstore.backends.base import AnyCwd, make_page
from sessionstore.cli.context import example, json_option, not_empty, open_store, root_option, run_async, short_ids
from sessionstore.cli.terminal import complain, emit_json, out, tracked
from sessionstore.transcript.stats import count
from sessionstore.transcript.units import moment, size
from sessionstore.transcript.visible import one_line

if TYPE_CHECKING:
    from sessionstore import Page

__all__ = ["ls"]

_STATUS = {"ok": "", "live": "green", "empty": "dim"}
_WIDE = 90


@click.command(
    short_help="List sessions, newest activity first.",
    epilog=example("sessionstore ls --cwd . --limit 10", "sessionstore ls --json | jq '.sessions[].id'"),
)
@click.option("--cwd", metavar="DIR", callback=not_empty, help="Only sessions of this working directory.")
@click.option("--no-cwd", is_flag=True, help="Only sessions without a working directory.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Rows on a page.")
@click.option("--all", "everything", is_flag=True, help="All rows, without pages.")
@click.option("--after", metavar="POSITION", help="The next page: what the page before printed.")
@click.option("--full", is_flag=True, help="Read sessions whose title, turns and events are not known yet.")
@json_option
@root_option
@click.pass_context
def ls(
    context: click.Context, *, cwd: str | None, no_cwd: bool, limit: int, everything: bool, after: str | None, full: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """List sessions, newest activity first.

    A session that cannot be read is a row with its status, never the end of the list. Title, turns and events
    come from an index that is written when a session ends; --full reads those that have none.
    """
    wanted = None if no_cwd else ANY if cwd is None else os.path.abspath(cwd)  # noqa: PTH100  # links are not followed
    position = _position(after)

    async def work() -> tuple[Page, dict[str, str]]:
        async with open_store(context) as store:
            page = await _page(store, wanted, None if everything else limit, position)
            others = page.next or wanted is not ANY or position
            known = [row.id for row in ((await store.list()) if others else page).sessions]
            short = short_ids(known)
            if full:
                rows = [
                    await _fill(store, row) for row in tracked(page.sessions, len(page.sessions), "Reading", many=5)
                ]
                page = msgspec.structs.replace(page, sessions=tuple(rows))
            return page, short

    page, short = run_async(work())
    token = None if page.next is None else f"{page.next[0]}:{page.next[1]}"
    if as_json:
        emit_json({"sessions": page.sessions, "next": token})
        return
    if not page.sessions:
        complain(_nothing(wanted, len(short)), style="yellow")
        return
    _print(page, short)
    if token is not None:
        complain(f"there are more: sessionstore ls --after {token}", style="dim")


async def _page(
    store: SessionStore, cwd: str | AnyCwd | None, limit: int | None, after: tuple[int, str] | None
) -> Page:
    """One page of the list; of a working directory under all the ways in which headers spell it."""
    spelled: set[str | AnyCwd | None] = {cwd}
    if isinstance(cwd, str):
        rows = (await store.list()).sessions
        spelled |= {row.cwd for row in rows if row.cwd is not None and _plain(row.cwd) == cwd}
    pages = [await store.list(cwd=each, limit=limit, after=after) for each in spelled]
    if len(pages) == 1:
        return pages[0]
    # A session without a header belongs to its folder, which two spellings may share.
    unique = {row.location or row.id: row for page in pages for row in page.sessions}
    page = make_page(unique.values(), limit=limit, after=None)
    if page.next is None and page.sessions and any(each.next for each in pages):
        return msgspec.structs.replace(page, next=(page.sessions[-1].last_time or 0, page.sessions[-1].id))
    return page


def _plain(cwd: str) -> str:
    return os.path.normpath(cwd)


def _nothing(wanted: str | AnyCwd | None, there_are: int) -> str:
    """Why the list is empty: the filter, the position, or the root."""
    if there_are and isinstance(wanted, str):
        return f"no sessions of {one_line(wanted)}; {there_are} with another working directory or none"
    if there_are and wanted is None:
        return f"no sessions without a working directory; {there_are} with one"
    if there_are:
        return f"no sessions behind this position; {there_are} in all"
    return "no sessions here; --root or SESSIONSTORE_ROOT says where to look"


def _position(token: str | None) -> tuple[int, str] | None:
    if token is None:
        return None
    time, colon, session_id = token.partition(":")
    try:
        return (int(time), session_id) if colon else _bad_position(token)
    except ValueError:
        return _bad_position(token)


def _bad_position(token: str) -> tuple[int, str]:
    raise click.UsageError(f"--after takes what an earlier page printed, not {one_line(token)!r}")


async def _fill(store: SessionStore, row: SessionInfo) -> SessionInfo:
    if row.events is not None or row.status not in ("ok", "live"):
        return row
    try:
        inspection = await store.inspect(row.id)
    except SessionStoreError:
        return row  # its status says what it can; one session never stops a listing
    stats = count(row.id, inspection.events, inspection.header)
    return msgspec.structs.replace(row, title=stats.title or None, turns=stats.turns, events=stats.events)


def _project(row: SessionInfo) -> str:
    if row.cwd is None:
        return "-"
    return one_line(re.split(r"[/\\]", row.cwd.rstrip("/\\"))[-1] or row.cwd, 40)


def _state(row: SessionInfo) -> Text:
    return Text(row.status, style=_STATUS.get(row.status, "bold red"))


def _moment(row: SessionInfo) -> str:
    return ("~" if row.approximate else "") + moment(row.last_time, seconds=False)


def _print(page: Page, short: dict[str, str]) -> None:
    console = out()
    if console.width < _WIDE:
        for row in page.sessions:
            _print_narrow(row, short)
        return
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for name in ("PROJECT", "ID", "TITLE"):
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    for name in ("TURNS", "EVENTS", "SIZE"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("LAST ACTIVITY", no_wrap=True)
    table.add_column("STATUS", no_wrap=True)
    for row in page.sessions:
        title = one_line(row.title or "", 60) or one_line(row.detail or "", 60)
        table.add_row(
            _project(row),
            one_line(short.get(row.id, row.id)),
            title,
            "-" if row.turns is None else str(row.turns),
            "-" if row.events is None else str(row.events),
            size(row.bytes),
            _moment(row),
            _state(row),
        )
    console.print(table)


def _print_narrow(row: SessionInfo, short: dict[str, str]) -> None:
    """Two lines for a session, where a table would be nothing but ellipses."""
    console = out()
    head = Text(one_line(short.get(row.id, row.id)), style="bold")
    head.append(f"  {_moment(row)}  ", style="dim")
    head.append_text(_state(row))
    facts = [_project(row), size(row.bytes)]
    if row.turns is not None:
        facts.append(f"{row.turns} turns")
    title = one_line(row.title or row.detail or "", 200)
    console.print(head, no_wrap=True, overflow="ellipsis", crop=True)
    console.print(Text("  " + " · ".join([*facts, title] if title else facts)), no_wrap=True, overflow="ellipsis")

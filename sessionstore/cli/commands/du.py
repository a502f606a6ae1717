"""``sessionstore du``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct
from rich.table import Table

from sessionstore.backends.files import OsFiles
from sessionstore.backends.jsonl.backend import JsonlBackend
from sessionstore.backends.jsonl.leftovers import find_leftovers
from sessionstore.cli.context import example, json_option, open_store, root_of, root_option, run_async
from sessionstore.cli.terminal import emit_json, out, write_text
from sessionstore.transcript.units import plural, size
from sessionstore.transcript.visible import one_line

if TYPE_CHECKING:
    from sessionstore import SessionInfo

__all__ = ["Usage", "du"]


class Usage(Struct, rename="camel"):
    """Space in bytes: ``logs`` the logs, ``beside`` what lies beside them (quarantine, copies of damaged logs, index)."""

    name: str
    sessions: int = 0
    logs: int = 0
    beside: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.logs + self.beside


@click.command(short_help="Show what takes the space.", epilog=example("sessionstore du --sessions --limit 10"))
@click.option("--sessions", is_flag=True, help="One row for each session, not for each project.")
@click.option("--limit", type=click.IntRange(min=1), default=30, show_default=True, help="Rows shown.")
@json_option
@root_option
@click.pass_context
def du(context: click.Context, *, sessions: bool, limit: int, as_json: bool) -> None:
    """Show what takes the space, largest first: by project or by session; the trash; what crashes left."""

    async def work() -> tuple[list[SessionInfo], int, int]:
        async with open_store(context) as store:
            page = await store.list()
            held = list(await store.trash())
            return list(page.sessions), len(held), sum(entry.bytes for entry in held)

    rows, in_trash, trash_bytes = run_async(work())
    left, left_bytes = _left_behind(root_of(context), rows)
    usages: dict[str, Usage] = {}
    for row in rows:
        name = row.id if sessions else row.cwd if row.cwd is not None else "(no working directory)"
        usage = usages.setdefault(name, Usage(name))
        usage.sessions += 1
        usage.logs += row.bytes
        usage.beside += _beside(row)
    ordered = sorted(usages.values(), key=lambda usage: (-usage.total, usage.name))
    if as_json:
        trash = {"sessions": in_trash, "bytes": trash_bytes}
        leftovers = {"files": left, "bytes": left_bytes}
        total = sum(usage.total for usage in ordered)
        emit_json({"rows": ordered, "total": total, "trash": trash, "leftovers": leftovers})
        return
    _print(ordered, limit, (in_trash, trash_bytes), by_session=sessions)
    if left:
        write_text(
            f"left behind by crashes, or being made now: {size(left_bytes)} in {plural(left, 'file')} "
            "(`sessionstore trash empty` removes what nobody is making)\n"
        )


def _beside(row: SessionInfo) -> int:
    """Bytes of the other files in the session's directory."""
    if row.location is None:
        return 0
    log = Path(row.location)
    if not log.name.startswith("session.jsonl"):
        return 0  # not a directory of one session
    total = 0
    try:
        with os.scandir(log.parent) as entries:
            for entry in entries:
                if entry.name != log.name and entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_size
    except OSError:
        return total  # moved away or unreadable: the listing said so already
    return total


def _left_behind(root: Path, rows: list[SessionInfo]) -> tuple[int, int]:
    """How many temporary files lie where no session is, and how many bytes they have."""
    sessions = {Path(row.location).parent for row in rows if row.location is not None}
    found = find_leftovers(OsFiles(), JsonlBackend(root).root)  # made absolute as the store does
    orphans = [each for each in found if Path(each.paths.directory) not in sessions]
    return sum(each.count for each in orphans), sum(each.bytes for each in orphans)


def _print(ordered: list[Usage], limit: int, trash: tuple[int, int], *, by_session: bool) -> None:
    console = out()
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False, show_footer=True)
    total = Usage("", sum(u.sessions for u in ordered), sum(u.logs for u in ordered), sum(u.beside for u in ordered))
    table.add_column("SIZE", size(total.total), justify="right", no_wrap=True)
    if not by_session:
        table.add_column("SESSIONS", str(total.sessions), justify="right", no_wrap=True)
    table.add_column("BESIDE LOGS", size(total.beside), justify="right", no_wrap=True)
    table.add_column("SESSION" if by_session else "PROJECT", "total", overflow="fold")
    for usage in ordered[:limit]:
        cells = [size(usage.total), str(usage.sessions), size(usage.beside), one_line(usage.name)]
        table.add_row(*(cells[:1] + cells[2:] if by_session else cells))
    console.print(table)
    if len(ordered) > limit:
        console.print(f"and {len(ordered) - limit} more rows (--limit)")
    if trash[0]:
        console.print(f"trash: {size(trash[1])} in {trash[0]} session{'s' if trash[0] != 1 else ''}")

"""``sessionstore rm`` and ``sessionstore trash``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.table import Table

from sessionstore.cli.context import complete_ids, example, json_option, open_store, resolve, root_option, run_async
from sessionstore.cli.terminal import complain, emit_json, out, write_text
from sessionstore.errors import SessionNotFoundError
from sessionstore.transcript.units import moment, plural, size
from sessionstore.transcript.visible import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessionstore import SessionStore, TrashEntry

__all__ = ["rm", "trash"]


@click.command(
    short_help="Move sessions to the trash.",
    epilog=example("sessionstore rm 0198c0de", "sessionstore trash restore 0198c0de"),
)
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_ids)
@json_option
@root_option
@click.pass_context
def rm(context: click.Context, *, ids: tuple[str, ...], as_json: bool) -> None:
    """Move sessions to the trash. A session that somebody is writing is refused."""

    async def work() -> list[TrashEntry]:
        async with open_store(context) as store:
            found = list(dict.fromkeys([(await resolve(store, wanted)).id for wanted in ids]))
            return [await store.delete(session_id) for session_id in found]

    entries = run_async(work())
    if as_json:
        emit_json(entries)
        return
    for entry in entries:
        write_text(f"{one_line(entry.id)}: moved to the trash ({size(entry.bytes)}, key {one_line(entry.key)})\n")


@click.group(short_help="List, restore, empty the trash.", epilog=example("sessionstore trash ls"))
@root_option
def trash() -> None:
    """See, bring back, or remove for good what rm moved away."""


@trash.command("ls", epilog=example("sessionstore trash ls --json"))
@json_option
@root_option
@click.pass_context
def _trash_ls(context: click.Context, *, as_json: bool) -> None:
    """List what is in the trash, newest first."""

    async def work() -> Sequence[TrashEntry]:
        async with open_store(context) as store:
            return list(await store.trash())

    entries = run_async(work())
    if as_json:
        emit_json(entries)
        return
    if not entries:
        complain("the trash is empty", style="yellow")
        return
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    table.add_column("ID", overflow="fold")
    table.add_column("DELETED", no_wrap=True)
    table.add_column("SIZE", justify="right", no_wrap=True)
    table.add_column("KEY", overflow="fold")
    for entry in entries:
        table.add_row(
            one_line(entry.id), moment(entry.deleted_at, seconds=False), size(entry.bytes), one_line(entry.key)
        )
    out().print(table)


@trash.command("restore", epilog=example("sessionstore trash restore 0198c0de"))
@click.argument("key", metavar="ID|KEY")
@root_option
@click.pass_context
def _trash_restore(context: click.Context, *, key: str) -> None:
    """Bring a session back. Of several with one id, the one deleted last, unless its KEY is given."""

    async def work() -> str:
        async with open_store(context) as store:
            entry = await _find(store, key)
            await store.restore(entry)
            return entry.id

    write_text(f"{one_line(run_async(work()))}: restored\n")


async def _find(store: SessionStore, wanted: str) -> TrashEntry:
    entries = list(await store.trash())  # newest first
    for match in (
        [entry for entry in entries if entry.key == wanted],
        [entry for entry in entries if entry.id == wanted],
        [entry for entry in entries if entry.id.startswith(wanted)],
    ):
        if len({entry.id for entry in match}) > 1:
            raise click.UsageError(f"{one_line(wanted)!r} is the beginning of several ids in the trash")
        if match:
            return match[0]
    raise SessionNotFoundError(wanted, where="the trash", in_trash=True)


@trash.command("empty", epilog=example("sessionstore trash empty --yes"))
@click.option("--yes", is_flag=True, help="Do not ask.")
@root_option
@click.pass_context
def _trash_empty(context: click.Context, *, yes: bool) -> None:
    """Remove everything in the trash for good, and with it what crashes left half made and nobody is making."""

    async def held() -> Sequence[TrashEntry]:
        async with open_store(context) as store:
            return list(await store.trash())

    async def work() -> int:
        async with open_store(context) as store:
            return await store.empty_trash()

    if not yes:
        entries = run_async(held())
        what = f"{plural(len(entries), 'session')} ({size(sum(entry.bytes for entry in entries))})"
        click.confirm(f"Remove {what} for good?", abort=True, err=True)
    write_text(f"{plural(run_async(work()), 'session')} removed for good\n")

"""``sessionstore tail``."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from sessionstore.cli.commands.show import raw_lines
from sessionstore.cli.context import (
    contents_options,
    example,
    inspect_session,
    load_transcript,
    open_store,
    root_option,
    run_async,
    session_argument,
)
from sessionstore.cli.live import LivePrinter
from sessionstore.cli.terminal import out, print_lines, write_text
from sessionstore.follow import follow
from sessionstore.transcript.text import View, entry_lines

if TYPE_CHECKING:
    from sessionstore import Inspection, SessionStore

__all__ = ["tail"]


@click.command(short_help="Show the end of a session, and follow it.", epilog=example("sessionstore tail -f 0198c0de"))
@session_argument
@click.option("-f", "--follow", "following", is_flag=True, help="Go on with what is written from now on, until Ctrl-C.")
@click.option(
    "-n",
    "count",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Entries (raw: events) to begin with.",
)
@click.option("--raw", is_flag=True, help="Events, one JSON object per line.")
@click.option("--full", is_flag=True, help="Unfold arguments and results of tools.")
@contents_options
@root_option
@click.pass_context
def tail(
    context: click.Context, *, session_id: str, following: bool, count: int, raw: bool, full: bool, secrets: bool,
    hide_results: bool,
) -> None:  # fmt: skip
    """Show the end of a session, and with -f what another process is writing to it.

    Takes no lock and never gets in a writer's way. Text appears while the model is still writing it, except with
    --redact, which has to see a message whole.
    """

    async def work() -> None:
        async with open_store(context) as store:
            inspection = await inspect_session(store, session_id)
            if raw:
                start = max(0, inspection.durable_seq - count) if following else max(0, len(inspection.events) - count)
                shown = inspection.events[start : inspection.durable_seq] if following else inspection.events[start:]
                for line in raw_lines(shown, secrets=secrets, results=hide_results):
                    write_text(line + "\n")
            else:
                _print_end(inspection, count, full=full, secrets=secrets, results=hide_results)
            if following:
                await _follow(store, inspection, raw=raw, full=full, secrets=secrets, results=hide_results)

    run_async(work())


def _print_end(inspection: Inspection, count: int, *, full: bool, secrets: bool, results: bool) -> None:
    transcript = load_transcript(inspection, secrets=secrets, results=results)
    view = View(full=full)
    ends = {seq: turn for turn in transcript.turns for seq in (turn.seq, turn.end_seq) if seq is not None}
    shown = [entry for entry in transcript.entries if not entry.has("minor")]
    console = out()
    for entry in shown[len(shown) - count :] if count < len(shown) else shown:
        print_lines(entry_lines(entry, view, ends.get(entry.seq)), console)


async def _follow(
    store: SessionStore, inspection: Inspection, *, raw: bool, full: bool, secrets: bool, results: bool
) -> None:
    printer = LivePrinter(inspection, View(full=full), secrets=secrets, results=results)
    out().file.flush()
    async with aclosing(follow(store, inspection.id, inspection.durable_seq)) as events:
        async for event in events:
            if raw:
                for line in raw_lines([event], secrets=secrets, results=results):
                    write_text(line + "\n")
            else:
                printer.feed(event)
            out().file.flush()

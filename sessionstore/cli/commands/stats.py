"""``sessionstore stats``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from sessionstore.cli.context import (
    example,
    followed,
    inspect_session,
    json_option,
    open_store,
    root_option,
    run_async,
    session_argument,
)
from sessionstore.cli.terminal import emit_json, out
from sessionstore.transcript.stats import Stats, count
from sessionstore.transcript.units import duration, moment, size, tokens
from sessionstore.transcript.visible import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from sessionstore import Inspection

__all__ = ["stats"]

_TURNS = 30


@click.command(
    short_help="Count turns, tokens, time, tools, bytes.",
    epilog=example("sessionstore stats 0198c0de", "sessionstore stats 0198c0de --json | jq .usage"),
)
@session_argument
@click.option("--all", "everything", is_flag=True, help=f"All turns, not only the last {_TURNS}.")
@json_option
@root_option
@click.pass_context
def stats(context: click.Context, *, session_id: str, everything: bool, as_json: bool) -> None:
    """Count turns, steps, tokens, time, tools and bytes of a session.

    The tokens of a step are the sum of the usage that was streamed, all attempts included, and the usage of its
    message only where none was. Bytes are those of the events' JSON, unpacked.
    """

    async def work() -> Inspection:
        async with open_store(context) as store:
            return await inspect_session(store, session_id)

    inspection = run_async(work())
    found = count(inspection.id, followed(inspection, "Counting"), inspection.header)
    if as_json:
        emit_json(found)
        return
    console = out()
    _print_totals(console, found)
    _print_turns(console, found, everything=everything)
    _print_tools(console, found)
    _print_types(console, found)


def _print_totals(console: Console, found: Stats) -> None:
    usage = found.usage
    rows = [
        ("Session", one_line(found.id)),
        ("Title", one_line(found.title, 200) or "-"),
        ("Model", one_line(", ".join(found.models), 200) or "-"),
        ("Time", f"{moment(found.first_time)} to {moment(found.last_time)}"),
        ("Turns", f"{found.turns} ({duration(found.duration)} in all)"),
        ("Steps", str(found.steps)),
        ("Events", str(found.events)),
        ("Tool calls", f"{found.tool_calls}" + (f" ({found.tool_failures} failed)" if found.tool_failures else "")),
        ("Tokens in", f"{usage.total_input} ({usage.cache_read} from cache, {usage.cache_write} written to it)"),
        ("Tokens out", f"{usage.output}" + (f" ({usage.reasoning} reasoning)" if usage.reasoning else "")),
    ]
    for name, value in rows:
        console.print(Text(f"{name:<11}", style="dim") + Text(value), soft_wrap=True)


def _table(title: str, *columns: str) -> Table:
    table = Table(
        box=None, pad_edge=False, title=title, title_justify="left", title_style="bold", header_style="dim", show_edge=False
    )  # fmt: skip
    table.add_column(columns[0], overflow="fold")
    for name in columns[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _print_turns(console: Console, found: Stats, *, everything: bool) -> None:
    if not found.per_turn:
        return
    shown = found.per_turn if everything else found.per_turn[-_TURNS:]
    more = f" (the last {_TURNS} of {len(found.per_turn)})" if len(shown) < len(found.per_turn) else ""
    table = _table(f"Turns{more}", "TURN", "TIME", "STEPS", "TOOLS", "IN", "OUT", "ENDED")
    for turn in shown:
        style = "" if turn.ended == "completed" else "yellow"
        table.add_row(
            str(turn.number),
            duration(turn.duration),
            str(turn.steps),
            f"{turn.tools}" + (f" ({turn.failures}!)" if turn.failures else ""),
            tokens(turn.usage.total_input),
            tokens(turn.usage.output),
            Text(one_line(turn.ended, 20), style=style),
        )
    console.print()
    console.print(table)


def _print_tools(console: Console, found: Stats) -> None:
    if not found.tools:
        return
    table = _table("Tools", "TOOL", "CALLS", "FAILED", "NO RESULT", "TIME")
    for tool in found.tools:
        failed = Text(str(tool.failed), style="red" if tool.failed else "")
        table.add_row(one_line(tool.name, 60), str(tool.calls), failed, str(tool.unanswered), duration(tool.time))
    console.print()
    console.print(table)


def _print_types(console: Console, found: Stats) -> None:
    total = sum(row.bytes for row in found.types) or 1
    table = _table("Bytes by event type", "TYPE", "EVENTS", "BYTES", "SHARE")
    for row in found.types:
        table.add_row(one_line(row.type, 60), str(row.events), size(row.bytes), f"{100 * row.bytes / total:.1f} %")
    console.print()
    console.print(table)

"""``sessionstore show``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from sessionstore.cli.context import (
    contents_options,
    example,
    followed,
    inspect_session,
    json_option,
    load_transcript,
    open_store,
    root_option,
    run_async,
    session_argument,
)
from sessionstore.cli.terminal import emit_json, json_text, print_lines, safe_json, write_text
from sessionstore.errors import InvalidEventError
from sessionstore.transcript.access import lookup
from sessionstore.transcript.redact import public_events
from sessionstore.transcript.text import View, render_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sessionstore import Event, Inspection

__all__ = ["raw_lines", "show"]


@click.command(
    short_help="Show a session as a conversation.", epilog=example("sessionstore show 0198c0de --turn 3 --full")
)
@session_argument
@click.option("--turn", "turns", type=int, multiple=True, metavar="N", help="Only this turn (may be repeated).")
@click.option("--full", is_flag=True, help="Unfold arguments and results of tools.")
@click.option("--reasoning", is_flag=True, help="Unfold the model's reasoning.")
@click.option("--all", "minor", is_flag=True, help="Show minor events too (headers, hooks, titles, ...).")
@click.option("--raw", is_flag=True, help="The events as they are stored, one JSON object per line.")
@json_option
@contents_options
@root_option
@click.pass_context
def show(
    context: click.Context, *, session_id: str, turns: tuple[int, ...], full: bool, reasoning: bool, minor: bool, raw: bool,
    as_json: bool, secrets: bool, hide_results: bool,
) -> None:  # fmt: skip
    """Show a session as a conversation: who said what, which tools ran, what was interrupted or recovered.

    The number at the right of an entry is its event's seq.
    """
    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other")

    async def work() -> Inspection:
        async with open_store(context) as store:
            return await inspect_session(store, session_id)

    inspection = run_async(work())
    if raw:
        events = followed(inspection, "Reading", quiet=sys.stdout.isatty())
        for line in raw_lines(_of_turns(events, turns) if turns else events, secrets=secrets, results=hide_results):
            write_text(line + "\n")
        return
    transcript = load_transcript(inspection, secrets=secrets, results=hide_results)
    known = {turn.number for turn in transcript.turns}
    missing = sorted(set(turns) - known)
    if missing:
        raise click.UsageError(f"there is no turn {missing[0]}; the session has {len(known)}")
    if as_json:
        if turns:
            transcript.turns = [turn for turn in transcript.turns if turn.number in turns]
            transcript.entries = [entry for entry in transcript.entries if entry.turn in turns]
        emit_json(transcript)
        return
    print_lines(render_text(transcript, View(turns=set(turns) or None, full=full, reasoning=reasoning, minor=minor)))


def raw_lines(events: Iterable[Event], *, secrets: bool, results: bool) -> Iterable[str]:
    """Events as JSON, one per line: the stored bytes, unless something is taken out or a terminal has to be kept safe."""
    if secrets or results:
        for value in public_events(events, secrets=secrets, results=results):
            yield json_text(value, indent=None)
        return
    terminal = sys.stdout.isatty()
    for event in events:
        line = event.to_json().decode("utf-8", "backslashreplace")
        yield safe_json(line) if terminal else line


def _of_turns(events: Iterable[Event], turns: tuple[int, ...]) -> Iterable[Event]:
    inside = False
    for event in events:
        if event.type == "turn/start":
            inside = _turn_number(event) in turns
        if inside:
            yield event
        if event.type == "turn/end":
            inside = False


def _turn_number(event: Event) -> object:
    try:
        return lookup(event.to_dict(), "data", "turn")
    except InvalidEventError:
        return None

"""``sessionstore fork``."""

from __future__ import annotations

import click

from sessionstore.cli.context import (
    example,
    json_option,
    not_empty,
    open_store,
    resolve,
    root_option,
    run_async,
    session_argument,
)
from sessionstore.cli.terminal import emit_json, write_text

__all__ = ["fork"]


@click.command(
    short_help="Make a session from the beginning of another.", epilog=example("sessionstore fork 0198c0de --at 412")
)
@session_argument
@click.option(
    "--at", "boundary", type=click.IntRange(min=0), metavar="SEQ", help="The last event to copy (default: all)."
)
@click.option(
    "--id", "child_id", metavar="NEW", callback=not_empty, help="The id of the new session (default: a new one)."
)
@json_option
@root_option
@click.pass_context
def fork(context: click.Context, *, session_id: str, boundary: int | None, child_id: str | None, as_json: bool) -> None:
    """Make a new session out of the beginning of another; print its id.

    The seq of an event stands at its right in `show`. A turn that is open at SEQ is refused: choose the seq of a
    turn's end.
    """

    async def work() -> tuple[str, str, int]:
        async with open_store(context) as store:
            parent = (await resolve(store, session_id)).id
            child = await store.fork(parent, boundary, child_id)
            return parent, child.id, child.seq

    parent, child, events = run_async(work())
    if as_json:
        emit_json({"id": child, "parent": parent, "events": events})
    else:
        write_text(f"{child}\n")

"""``sessionstore path``."""

from __future__ import annotations

import click

from sessionstore.cli.context import example, open_store, resolve, root_option, run_async, session_argument
from sessionstore.cli.terminal import write_text
from sessionstore.errors import StorageError
from sessionstore.transcript.visible import visible

__all__ = ["path"]


@click.command(short_help="Print where a log is.", epilog=example("less $(sessionstore path 0198c0de)"))
@session_argument
@root_option
@click.pass_context
def path(context: click.Context, *, session_id: str) -> None:
    """Print where the log of a session is."""

    async def work() -> str:
        async with open_store(context) as store:
            info = await resolve(store, session_id)
            if info.location is None:
                raise StorageError("say where the session is", session_id=info.id)
            return info.location

    write_text(f"{visible(run_async(work()))}\n")

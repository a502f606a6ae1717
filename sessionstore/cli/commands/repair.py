"""``sessionstore repair``."""

from __future__ import annotations

import click

from sessionstore.cli.context import example, open_store, resolve, root_option, run_async, session_argument

__all__ = ["repair"]


@click.command(
    short_help="Plan and carry out a repair.",
    epilog=example("sessionstore repair 0198c0de", "sessionstore repair 0198c0de --apply"),
)
@session_argument
@click.option("--apply", "apply_", is_flag=True, help="Carry the plan out; else it is only shown.")
@root_option
@click.pass_context
def repair(context: click.Context, *, session_id: str, apply_: bool) -> int:
    """Plan the repair of a damaged session, and carry it out when asked to."""

    async def work() -> int:
        async with open_store(context) as store:
            await resolve(store, session_id)
            raise click.ClickException(
                "this version cannot repair damaged logs yet; `sessionstore verify` says what is wrong"
            )

    del apply_
    return run_async(work())

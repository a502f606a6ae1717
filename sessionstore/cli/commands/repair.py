"""``sessionstore repair``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click
from rich.text import Text

from sessionstore.cli.commands.verify import finding_dict
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
from sessionstore.cli.terminal import emit_json, out, waiting
from sessionstore.transcript.visible import visible

if TYPE_CHECKING:
    from sessionstore import SalvageReport

__all__ = ["repair"]


@click.command(
    short_help="Plan and carry out a repair.",
    epilog=example("sessionstore repair 0198c0de", "sessionstore repair 0198c0de --apply"),
)
@session_argument
@click.option("--apply", "apply_", is_flag=True, help="Carry the plan out; else it is only shown.")
@click.option(
    "--cwd", metavar="DIR", callback=not_empty, help="The working directory of a session whose header is lost."
)
@json_option
@root_option
@click.pass_context
def repair(context: click.Context, *, session_id: str, apply_: bool, cwd: str | None, as_json: bool) -> int:
    """Plan the repair of a damaged session, and carry it out with --apply.

    Without --apply nothing is written. Nothing is ever thrown away: the damaged log is kept beside the repaired one.

    \b
    Exit code: 0 nothing to do, or repaired
               1 it would close an interrupted or torn log, as the next resume does
               2 it would repair a damaged or invalid log
               3 it cannot be repaired
    """  # noqa: D301  # click looks for the control character
    wanted = None if cwd is None else os.path.abspath(cwd)  # noqa: PTH100  # links are not followed

    async def work() -> SalvageReport:
        async with open_store(context) as store:
            found = (await resolve(store, session_id)).id
            with waiting("Repairing" if apply_ else "Planning"):
                return await store.repair(found, dry_run=not apply_, cwd=wanted)

    report = run_async(work())
    if as_json:
        emit_json(_row(report))
    else:
        console = out()
        for line in report.describe().split("\n"):
            console.print(Text(visible(line)), soft_wrap=True)
        if report.dry_run and report.changed:
            console.print(Text("run it again with --apply to carry it out", style="dim"))
    return report.exit_code


def _row(report: SalvageReport) -> dict[str, object]:
    return {
        "id": report.id,
        "dryRun": report.dry_run,
        "verdict": str(report.verdict),
        "exitCode": report.exit_code,
        "changed": report.changed,
        "refusal": report.refusal,
        "header": report.header_fate,
        "cwd": report.cwd,
        "events": report.events,
        "kept": report.kept,
        "made": [{"seq": made.seq, "type": made.type, "reason": made.reason} for made in report.made],
        "quarantined": [{"offset": q.offset, "length": q.length, "reason": q.reason} for q in report.quarantined],
        "forks": [{"id": f.id, "divergence": f.divergence, "events": f.events} for f in report.forks],
        "original": report.original,
        "location": report.location,
        "findings": [finding_dict(finding) for finding in report.findings],
    }

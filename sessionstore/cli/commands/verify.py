"""``sessionstore verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import click
from msgspec import Struct
from rich.text import Text

from sessionstore import SessionStore, SessionStoreError, Verdict
from sessionstore.cli.codes import ExitCode
from sessionstore.cli.context import complete_ids, example, json_option, open_store, resolve, root_option, run_async
from sessionstore.cli.terminal import emit_json, out, tracked
from sessionstore.transcript.visible import one_line

if TYPE_CHECKING:
    from sessionstore import Inspection

__all__ = ["Report", "verify"]

_CODES: Final = {
    Verdict.CLEAN: ExitCode.OK,
    Verdict.INTERRUPTED: ExitCode.MENDS_ITSELF,
    Verdict.TORN: ExitCode.MENDS_ITSELF,
    Verdict.DAMAGED: ExitCode.DAMAGED,
    Verdict.INVALID: ExitCode.DAMAGED,
    Verdict.UNSUPPORTED: ExitCode.UNREADABLE,
    Verdict.EMPTY: ExitCode.UNREADABLE,
}
_ADVICE: Final = {
    Verdict.INTERRUPTED: "the next resume closes the open turn",
    Verdict.TORN: "the next resume cuts the torn tail, keeps it aside, and closes the open turn",
    Verdict.DAMAGED: "`sessionstore repair` plans a repair",
    Verdict.INVALID: "`sessionstore repair` plans a repair; export still shows what is there",
    Verdict.UNSUPPORTED: "another version of the library reads it",
    Verdict.EMPTY: "nothing was ever completed here; `sessionstore rm` moves it away",
}


class Report(Struct, rename="camel"):
    """What was found out about one session; ``verdict`` is ``unreadable`` where it could not be read at all."""

    id: str
    verdict: str
    exit_code: int
    writer: Literal["live", "none", "unknown"] = "unknown"
    events: int = 0
    advice: str = ""
    location: str | None = None
    findings: list[dict[str, object]] = []


@click.command(
    short_help="Check sessions completely.",
    epilog=example("sessionstore verify --all --quiet", "sessionstore verify 0198c0de --json"),
)
@click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=complete_ids)
@click.option("--all", "everything", is_flag=True, help="Every session below the root.")
@click.option("-q", "--quiet", is_flag=True, help="Only sessions with something to say.")
@json_option
@root_option
@click.pass_context
def verify(context: click.Context, *, ids: tuple[str, ...], everything: bool, quiet: bool, as_json: bool) -> int:
    """Read sessions completely and say what is wrong with them. Changes nothing.

    \b
    Exit code: 0 clean, or a turn that a live writer has open
               1 interrupted or torn: the next resume mends it
               2 damaged or invalid: a repair can mend it
               3 not repairable, unsupported, empty or unreadable
    Of several sessions, the highest.
    """  # noqa: D301  # click looks for the control character
    if everything == bool(ids):
        raise click.UsageError("name sessions, or give --all")

    async def work() -> list[Report]:
        async with open_store(context) as store:
            if everything:
                found = sorted({row.id for row in (await store.list()).sessions})
            else:
                found = [(await resolve(store, wanted)).id for wanted in ids]
            return [await _check(store, key) for key in tracked(found, len(found), "Reading", many=5)]

    reports = run_async(work())
    shown = [report for report in reports if not quiet or report.exit_code or report.findings]
    if as_json:
        emit_json(shown)
    else:
        for report in shown:
            _print(report)
    return max((report.exit_code for report in reports), default=0)


async def _check(store: SessionStore, session_id: str) -> Report:
    try:
        inspection = await store.inspect(session_id)
    except SessionStoreError as error:
        return Report(id=session_id, verdict="unreadable", exit_code=ExitCode.UNREADABLE, advice=str(error))
    return _report(inspection)


def _report(inspection: Inspection) -> Report:
    verdict = inspection.verdict
    live = inspection.writer == "live" and verdict is Verdict.INTERRUPTED
    return Report(
        id=inspection.id,
        verdict=str(verdict),
        exit_code=ExitCode.OK if live else _CODES[verdict],
        writer=inspection.writer,
        events=inspection.durable_seq,
        advice="a live writer has a turn open" if live else _ADVICE.get(verdict, ""),
        location=inspection.location,
        findings=[
            {
                "kind": str(finding.kind),
                "line": finding.line,
                "offset": finding.offset,
                "length": finding.length,
                "expectedSeq": finding.expected_seq,
                "actualSeq": finding.actual_seq,
                "path": finding.path,
                "message": finding.message,
            }
            for finding in inspection.findings
        ],
    )


def _print(report: Report) -> None:
    console = out()
    style = {0: "green", 1: "yellow"}.get(report.exit_code, "bold red")
    head = Text(one_line(report.id) + ": ")
    head.append(report.verdict, style=style)
    head.append(f", {report.events} events" if report.verdict != "unreadable" else "")
    head.append(f"; {one_line(report.advice)}" if report.advice else "")
    console.print(head, soft_wrap=True)
    if report.location is not None and report.exit_code:
        console.print(Text(f"  {one_line(report.location)}", style="dim"), soft_wrap=True)
    for finding in report.findings:
        console.print(
            Text(f"  line {finding['line']}, byte {finding['offset']}: {one_line(str(finding['message']))}"),
            soft_wrap=True,
        )

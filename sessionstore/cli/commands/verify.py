"""``sessionstore verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.text import Text

from sessionstore.cli.codes import ExitCode
from sessionstore.cli.context import complete_ids, example, json_option, open_store, resolve, root_option, run_async
from sessionstore.cli.terminal import emit_json, out, tracked
from sessionstore.errors import SessionStoreError
from sessionstore.transcript.visible import one_line, visible

if TYPE_CHECKING:
    from sessionstore import Finding, SessionStore, VerifyReport

__all__ = ["finding_dict", "verify"]


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

    async def work() -> int:
        async with open_store(context) as store:
            if everything:
                found = sorted({row.id for row in (await store.list()).sessions})
            else:
                found = [(await resolve(store, wanted)).id for wanted in ids]
            worst = 0
            rows: list[dict[str, object]] = []
            for session_id in tracked(found, len(found), "Reading", many=5):
                row = await _check(store, session_id)
                code = int(str(row["exitCode"]))
                worst = max(worst, code)
                if quiet and not code and not row["findings"] and not row["deviations"]:
                    continue
                if as_json:
                    rows.append(row)
                else:
                    _print(row, code)
            if as_json:
                emit_json(rows)
            return worst

    return run_async(work())


async def _check(store: SessionStore, session_id: str) -> dict[str, object]:
    try:
        return _row(await store.verify(session_id))
    except SessionStoreError as error:
        return {
            "id": session_id,
            "verdict": "unreadable",
            "exitCode": int(ExitCode.UNREADABLE),
            "writer": "unknown",
            "events": 0,
            "advice": "",
            "location": None,
            "findings": [],
            "deviations": [],
            "text": [str(error)],
        }


def _row(report: VerifyReport) -> dict[str, object]:
    return {
        "id": report.id,
        "verdict": str(report.verdict),
        "exitCode": report.exit_code,
        "writer": report.writer,
        "events": report.events,
        "advice": report.advice,
        "location": report.location,
        "repairable": report.repairable,
        "findings": [finding_dict(finding) for finding in report.findings],
        "deviations": [{"seq": d.seq, "type": d.type, "reason": d.reason, "path": d.path} for d in report.deviations],
        "text": report.describe().split("\n")[1:],
    }


def finding_dict(finding: Finding) -> dict[str, object]:
    """A finding under the names of the log, for scripts."""
    return {
        "kind": str(finding.kind),
        "line": finding.line,
        "offset": finding.offset,
        "length": finding.length,
        "expectedSeq": finding.expected_seq,
        "actualSeq": finding.actual_seq,
        "path": finding.path,
        "message": finding.message,
    }


def _print(row: dict[str, object], code: int) -> None:
    console = out()
    head = Text(one_line(str(row["id"])) + ": ")
    head.append(str(row["verdict"]), style={0: "green", 1: "yellow"}.get(code, "bold red"))
    head.append(f", {row['events']} events" if row["location"] is not None else "")
    head.append(f"; {one_line(str(row['advice']))}" if row["advice"] else "")
    console.print(head, soft_wrap=True)
    if row["location"] is not None and code:
        console.print(Text(f"  {one_line(str(row['location']))}", style="dim"), soft_wrap=True)
    lines = row["text"]
    for line in lines if isinstance(lines, list) else []:
        console.print(Text(f"  {visible(str(line))}"), soft_wrap=True)

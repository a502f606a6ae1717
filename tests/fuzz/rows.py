"""Which rows of the damage table a salvage went through: so that a fuzzer that never reaches one is noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sessionstore.chunks import ROW_TYPES, line_type
from sessionstore.recovery.findings import Kind, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessionstore.recovery.salvage_plan import SalvagePlan
    from sessionstore.recovery.scan import ScanResult

__all__ = ["ROWS", "rows_of"]

ROWS: Final = (
    "strip: byte order mark", "strip: carriage returns", "strip: blank lines", "strip: NULs around a record",
    "fused records", "torn prefix before a whole record", "exact repeat", "seq that does not continue",
    "out of order", "rewind over closers", "row that overlaps", "two writers", "hole: recovery/lost",
    "hole: assistant/message", "hole: tool/result", "hole: turn/start", "hole: turn/end", "hole: step/start",
    "hole: step/end", "hole: user/message for a replace", "event that breaks a rule", "orphaned result",
    "more lost than is filled in", "header found elsewhere", "header rebuilt", "header lost, no id",
    "closers", "nothing to do",
)  # fmt: skip
"""Every row, those of the holes by what is made."""

_REASONS: Final = (
    ("only repeats", "exact repeat"),
    ("does not continue", "seq that does not continue"),
    ("overtaken by", "rewind over closers"),
    ("breaks a rule", "event that breaks a rule"),
    ("that it answers is lost", "orphaned result"),
)
_REFUSALS: Final = (
    ("events are missing at", "more lost than is filled in"),
    ("events are lost", "more lost than is filled in"),
    ("header is lost", "header lost, no id"),
    ("neither a header", "header lost, no id"),
)


def rows_of(scan: ScanResult, plan: SalvagePlan, text: bytes) -> set[str]:
    """The rows that this plan shows."""
    if plan.refusal is not None:
        return {row for part, row in _REFUSALS if part in plan.refusal}
    if plan.empty:
        return {"nothing to do"}
    return set(_found(scan, plan, text))


def _found(scan: ScanResult, plan: SalvagePlan, text: bytes) -> Iterator[str]:
    kinds = {finding.kind for finding in scan.findings}
    shown = set(plan.lines)
    if text.startswith(b"\xef\xbb\xbf") and plan.header_fate == "kept":
        yield "strip: byte order mark"
    if Kind.CARRIAGE_RETURN in kinds and scan.verdict is Verdict.DAMAGED:
        yield "strip: carriage returns"
    if Kind.BLANK_LINE in kinds and scan.verdict is Verdict.DAMAGED:
        yield "strip: blank lines"
    if b"\0" in text and any(line[:1] == b"\0" and line.strip(b"\0") in shown for line in text.split(b"\n")):
        yield "strip: NULs around a record"
    for each in plan.quarantined:
        for part, row in _REASONS:
            if part in each.reason:
                yield row
    if Kind.FUSED in kinds:
        yield from _fused(text, shown)
    if plan.forks:
        yield "two writers"
    yield from _order(plan, text)
    if plan.header_fate != "kept":
        yield "header found elsewhere" if plan.header_fate == "found" else "header rebuilt"
    for event in plan.made:
        yield "closers" if "open at the end" in event.reason else f"hole: {_made(event.type)}"


def _made(type_: str) -> str:
    return "user/message for a replace" if type_ == "user/message" else type_


def _fused(text: bytes, shown: set[bytes]) -> Iterator[str]:
    for line in text.split(b"\n"):
        if line in shown:
            continue
        at = line.find(b'}{"type":')
        if at > 0 and line[: at + 1] in shown:
            yield "fused records"
        start = line.rfind(b'{"type":')
        if start > 0 and line[start:] in shown:
            yield "fused records" if line[:start] in shown else "torn prefix before a whole record"


def _order(plan: SalvagePlan, text: bytes) -> Iterator[str]:
    """Whether lines were put back by seq, and whether a row lost the part that was there already."""
    places = {line.strip(b"\r\0 "): at for at, line in enumerate(text.split(b"\n"))}
    last = -1
    for line in plan.lines[1:]:
        at = places.get(line)
        if at is None:
            if line_type(line) in ROW_TYPES:
                yield "row that overlaps"
            continue
        if at < last:
            yield "out of order"
            return
        last = at

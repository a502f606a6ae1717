"""What ``verify`` says about a stored session: the verdict on its bytes, and whether a repair can mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from sessionstore.backends.base import WriterPresence
from sessionstore.errors import InvalidEventError
from sessionstore.recovery.findings import Finding, Kind, Verdict
from sessionstore.vocabulary import PAYLOADS, validate_payload

if TYPE_CHECKING:
    from sessionstore.backends.base import SalvageReport, Stored
    from sessionstore.eventlog import EventLog

__all__ = ["MAX_DEVIATIONS", "Deviation", "VerifyReport", "find_deviations", "verify_stored"]

MAX_DEVIATIONS: Final = 100
"""How many deviating events a report lists; ``deviating`` counts all of them."""

_DELTAS: Final = "assistant/chunk"
_BETTER: Final = "the next resume cuts the torn end, keeps it aside, and closes the open turn"


class Deviation(Struct, frozen=True):
    """An event that is carried as it is although ``append`` would refuse its shape: which one, and what is odd."""

    seq: int
    type: str
    reason: str
    path: str | None = None


class VerifyReport(Struct, frozen=True, kw_only=True):
    """What was found out about one stored session; nothing was changed.

    *events* counts the events accepted before the first defect.  *findings* are positions in the (decompressed)
    log.  *repairable* is ``None`` where no repair is needed; *refusal* says why one is not possible.
    *intact_after* counts intact events behind a torn end, which ``on_damage="salvage"`` keeps.  *deviations* are
    events that load and are carried as they are although their shape is not what ``append`` enforces; *deviating*
    counts them all.
    """

    id: str
    verdict: Verdict
    writer: WriterPresence
    events: int
    findings: tuple[Finding, ...] = ()
    repairable: bool | None = None
    refusal: str | None = None
    intact_after: int = 0
    deviations: tuple[Deviation, ...] = ()
    deviating: int = 0
    location: str | None = None

    @property
    def exit_code(self) -> int:
        """0: clean, or a live writer's open turn; 1: a resume mends it; 2: a repair can; 3: nothing can."""
        if self.verdict is Verdict.CLEAN:
            return 0
        if self.verdict is Verdict.INTERRUPTED:
            return 0 if self.writer == "live" else 1
        if self.verdict is Verdict.TORN:
            return 1
        return 2 if self.repairable else 3

    @property
    def advice(self) -> str:
        """What to do, as the rest of a sentence; empty for a clean log."""
        match self.verdict:
            case Verdict.CLEAN:
                return ""
            case Verdict.INTERRUPTED:
                return (
                    "a live writer has a turn open" if self.writer == "live" else "the next resume closes the open turn"
                )
            case Verdict.TORN:
                more = f"; a repair would keep {self.intact_after} intact events behind it" if self.intact_after else ""
                return _BETTER + more
            case Verdict.UNSUPPORTED:
                return "another version of the library reads it"
            case Verdict.EMPTY:
                if any(finding.kind == Kind.UNTERMINATED for finding in self.findings):
                    return "no header line was ever completed; look at its bytes before you delete it"
                return "nothing was ever completed here; it can be deleted"
            case _:
                return "a repair can mend it" if self.repairable else f"not repairable: {self.refusal}"

    def describe(self) -> str:
        """The report as lines for a person, without event contents."""
        head = f"session {self.id!r}: {self.verdict}, {self.events} events"
        lines = [f"{head}; {self.advice}" if self.advice else head]
        lines += [finding.describe() for finding in self.findings]
        lines += [
            f"seq {d.seq}: {d.type} is carried as it is: {d.reason}" + (f" at {d.path}" if d.path else "")
            for d in self.deviations
        ]
        if self.deviating > len(self.deviations):
            lines.append(f"and {self.deviating - len(self.deviations)} more of these")
        return "\n".join(lines)


def verify_stored(session_id: str, stored: Stored, salvage: SalvageReport | None) -> VerifyReport:
    """The report on what was read; *salvage* is the dry run of a repair, where one was asked for."""
    scan = stored.scan
    deviations, count = find_deviations(scan.log)
    return VerifyReport(
        id=session_id,
        verdict=scan.verdict,
        writer=stored.writer,
        events=len(scan.log),
        findings=scan.findings,
        repairable=None if salvage is None else salvage.refusal is None,
        refusal=None if salvage is None else salvage.refusal,
        intact_after=scan.intact_after,
        deviations=deviations,
        deviating=count,
        location=stored.location,
    )


def find_deviations(log: EventLog) -> tuple[tuple[Deviation, ...], int]:
    """The first events of *log* that ``append`` would refuse the shape of, and how many there are."""
    found: list[Deviation] = []
    count = 0
    for event in log.events():
        if event.type not in PAYLOADS or (event.type == _DELTAS and event._delta is not None):
            continue
        try:
            validate_payload(event.type, event.data_json)
        except InvalidEventError as error:
            count += 1
            if len(found) < MAX_DEVIATIONS:
                found.append(Deviation(event.seq, event.type, error.reason, error.path))
    return tuple(found), count

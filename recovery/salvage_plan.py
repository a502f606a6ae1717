"""What a salvage is going to do, as values: the plan that a dry run shows and a backend carries out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from sessionstore.header import Header
from sessionstore.recovery.findings import Finding, Verdict
from sessionstore.recovery.format import RECOVERY_LOST

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["HeaderFate", "MadeEvent", "Quarantined", "SalvageFork", "SalvagePlan", "describe_plan"]

HeaderFate = Literal["kept", "found", "rebuilt"]
"""What becomes of the header: it stood where it belongs, stood elsewhere in the log, or was lost and is made anew."""


class Quarantined(Struct, frozen=True):
    """Bytes of the damaged log that are not part of the repaired one: where, how many, and why.

    Offsets count bytes of the (decompressed) damaged original, which is kept whole.
    """

    offset: int
    length: int
    reason: str


class MadeEvent(Struct, frozen=True):
    """An event that takes the place of a lost one: its seq, its type, and why it is there."""

    seq: int
    type: str
    reason: str


class SalvageFork(Struct, frozen=True, kw_only=True):
    """A second history that was found in the log, and that becomes a session of its own.

    It shares the events below *divergence* with the repaired log.  *lines* are its storage lines without newlines,
    header first.
    """

    id: str
    divergence: int
    events: int
    made: tuple[MadeEvent, ...]
    lines: tuple[bytes, ...] = ()


class SalvagePlan(Struct, frozen=True, kw_only=True):
    """The repaired log, and what it costs.

    *verdict* and *findings* are those of the damaged log.  *lines* are the storage lines of the repaired log without
    newlines, header first; empty when *refusal* says why the log cannot be repaired, or when nothing has to be done.
    *events* is how many events the repaired log holds, *kept* how many of them come from the damaged one.  *made*
    lists the others in order, closers included; *quarantined* what is left out.  *forks* are published before the
    repaired log takes the place of the damaged one.
    """

    verdict: Verdict
    findings: tuple[Finding, ...]
    refusal: str | None = None
    header: Header | None = None
    header_fate: HeaderFate = "kept"
    lines: tuple[bytes, ...] = ()
    events: int = 0
    kept: int = 0
    made: tuple[MadeEvent, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    forks: tuple[SalvageFork, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.refusal is None and not self.lines

    def describe(self) -> Iterator[str]:
        """The plan as sentences for a person, without event contents."""
        return describe_plan(
            refusal=self.refusal,
            empty=self.empty,
            header_fate=self.header_fate,
            events=self.events,
            kept=self.kept,
            made=self.made,
            quarantined=self.quarantined,
            forks=self.forks,
        )


def describe_plan(
    *,
    refusal: str | None,
    empty: bool,
    header_fate: HeaderFate,
    events: int,
    kept: int,
    made: tuple[MadeEvent, ...],
    quarantined: tuple[Quarantined, ...],
    forks: tuple[SalvageFork, ...],
    limit: int = 20,
) -> Iterator[str]:
    """What a plan or a report says, at most *limit* lines of each list."""
    if refusal is not None:
        yield f"not repairable: {refusal}"
        return
    if empty:
        yield "nothing to repair"
        return
    lost = sum(event.type == RECOVERY_LOST for event in made)
    yield f"{events} events: {kept} kept as they are, {len(made) - lost} made anew, {lost} marked as lost"
    if header_fate == "found":
        yield "the header stood elsewhere in the log and is put first"
    elif header_fate == "rebuilt":
        yield "the header is lost and is made anew, marked as rebuilt"
    for fork in forks:
        yield f"a second history from seq {fork.divergence} on becomes the session {fork.id!r} ({fork.events} events)"
    yield from _listed(_runs(made), limit)
    yield from _listed([f"byte {q.offset}, {q.length} bytes left out: {q.reason}" for q in quarantined], limit)


def _runs(made: tuple[MadeEvent, ...]) -> list[str]:
    """One sentence for each run of equal events: a hole of a thousand is one thing to say."""
    shown: list[str] = []
    start = 0
    for index, event in enumerate(made):
        following = made[index + 1] if index + 1 < len(made) else None
        same = following is not None and (following.type, following.reason) == (event.type, event.reason)
        if same and following is not None and following.seq == event.seq + 1:
            continue
        first = made[start].seq
        where = f"seq {first}" if first == event.seq else f"seq {first} to {event.seq}"
        what = "marked as lost" if event.type == RECOVERY_LOST else f"{event.type} made anew"
        shown.append(f"{where}: {what}: {event.reason}")
        start = index + 1
    return shown


def _listed(sentences: list[str], limit: int) -> Iterator[str]:
    yield from sentences[:limit]
    if len(sentences) > limit:
        yield f"and {len(sentences) - limit} more of these"

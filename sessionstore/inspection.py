"""Looking at a session without changing anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from sessionstore.backends.base import WriterPresence
from sessionstore.eventlog import Events
from sessionstore.events import Event
from sessionstore.header import Header
from sessionstore.history import DerivedMessage, History
from sessionstore.progress import last_turn
from sessionstore.recovery.findings import Finding, Verdict
from sessionstore.recovery.plan import plan_repair
from sessionstore.session import Session

if TYPE_CHECKING:
    from sessionstore.backends.base import Stored
    from sessionstore.clock import Clock
    from sessionstore.stored import StoredSession

__all__ = ["InspectedSurface", "Inspection", "inspect_live", "inspect_stored"]


class InspectedSurface(Struct, frozen=True):
    """The seqs of the model-visible history, in order, and how many replacements made it."""

    nodes: tuple[int, ...]
    replace_generation: int


class Inspection(Struct, frozen=True, kw_only=True):
    """A session as it was at one moment; nothing was written, no lock was taken.

    For a session of this process: as it is in memory.  For a stored one: what a resume would give, made in
    memory (*closers* are the events it would append), or as it is while somebody writes (*writer* is
    ``"live"``; no closers then).  A log that a resume refuses is shown as far as it was accepted;
    *verdict* and *findings* say what is the matter.  *header* is ``None`` where there is none to read.
    *durable_seq* counts the events that were stored.
    """

    id: str
    header: Header | None
    events: Events
    surface: InspectedSurface
    verdict: Verdict
    findings: tuple[Finding, ...]
    writer: WriterPresence
    closers: tuple[Event, ...]
    location: str | None
    durable_seq: int
    _derive: Callable[[], list[DerivedMessage]]

    def derive_messages(self) -> list[DerivedMessage]:
        """The model's message history, as a fresh list."""
        return self._derive()


class _Messages:
    """The history at one moment, derived when it is asked for, and once."""

    def __init__(self, session_id: str, events: Events, surface: InspectedSurface) -> None:
        self._of = (session_id, events, surface)
        self._history = History(session_id, events.__getitem__)

    def __call__(self) -> list[DerivedMessage]:
        surface = self._of[2]
        return self._history.messages(surface.nodes, surface.replace_generation)

    def __reduce__(self) -> tuple[object, ...]:
        return (_Messages, self._of)  # what was derived already may hold mappings that do not travel


def inspect_live(session: StoredSession, location: str | None) -> Inspection:
    """The inspection of a session that is open in this process."""
    events = session.events
    surface = InspectedSurface(tuple(session.surface.nodes), session.surface.replace_generation)
    return Inspection(
        id=session.id,
        header=session.header,
        events=events,
        surface=surface,
        verdict=Verdict.INTERRUPTED if last_turn(session._log)[1] else Verdict.CLEAN,
        findings=(),
        writer="live",
        closers=(),
        location=location,
        durable_seq=session.durable_seq,
        _derive=_Messages(session.id, events, surface),
    )


def inspect_stored(session_id: str, stored: Stored, clock: Clock) -> Inspection:
    """The inspection of what a backend has read."""
    scan = stored.scan
    resumable = scan.verdict in {Verdict.CLEAN, Verdict.INTERRUPTED, Verdict.TORN}
    closers = plan_repair(scan).closers if resumable and stored.writer != "live" else ()
    durable_seq = len(scan.log)
    # A session of its own, which nobody else sees: the log of a scan belongs to whoever asked for it.
    header = Session(session_id).header if scan.header is None else scan.header
    session = Session._adopt(header, scan.log, scan.surface, closers=closers, clock=clock)
    events = session.events
    surface = InspectedSurface(tuple(session.surface.nodes), session.surface.replace_generation)
    return Inspection(
        id=session_id,
        header=scan.header,
        events=events,
        surface=surface,
        verdict=scan.verdict,
        findings=scan.findings,
        writer=stored.writer,
        closers=closers,
        location=stored.location,
        durable_seq=durable_seq,
        _derive=_Messages(header.id, events, surface),
    )

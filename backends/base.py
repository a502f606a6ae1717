"""The narrow protocol that the store drives.

The store decides *when* something is written and in what order; a backend knows
*where* and *how*.  Nothing in the store knows about files, so SQLite, PostgreSQL
or an object store can follow by implementing :class:`Backend` and :class:`Writer`
and passing the contract suite.

All methods are coroutines.  A backend does its blocking work through
:func:`sessionstore.settle.settle`, one worker call per operation, so that the
event loop is never blocked and a cancelled caller still waits for a write in
progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct, structs

from sessionstore.errors import DamagedLogError, UnsupportedFormatError
from sessionstore.events import Event
from sessionstore.recovery.findings import Finding, Verdict
from sessionstore.recovery.salvage_plan import (
    HeaderFate,
    MadeEvent,
    Quarantined,
    SalvageFork,
    SalvagePlan,
    describe_plan,
)
from sessionstore.recovery.scan import ScanResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sessionstore.header import Header
    from sessionstore.recovery.plan import RepairPlan

__all__ = [
    "ANY",
    "AnyCwd",
    "Backend",
    "Batch",
    "Page",
    "RepairReport",
    "SalvageReport",
    "SessionInfo",
    "SessionStatus",
    "Stored",
    "TrashEntry",
    "Writer",
    "WriterPresence",
    "check_seq",
    "make_page",
    "refuse_unsupported",
    "stored_events",
]

WriterPresence = Literal["live", "none", "unknown"]
SessionStatus = Literal["ok", "live", "damaged", "unsupported", "unreadable", "empty"]


class AnyCwd:
    """The type of :data:`ANY`: a listing that does not filter by working directory (``None`` means "has no cwd")."""

    def __repr__(self) -> str:
        return "ANY"


ANY = AnyCwd()


class Batch(Struct, frozen=True):
    """Consecutive events to be written together.

    ``parts`` hold storage lines without their newline.  Each part is one write of
    its own, and everything before it is on the disk before it is written: a
    ``turn/end`` is always the first line of its part, so that one found on disk
    proves that all bytes before it were durable.

    ``whole()`` yields the storage lines of the session from seq 0 to ``next_seq``,
    for a log that has to be published again because its file vanished.
    """

    first_seq: int
    next_seq: int
    parts: tuple[tuple[bytes, ...], ...]
    whole: Callable[[], Iterable[bytes]]


class Stored(Struct):
    """What a backend read of one session.

    ``torn`` is the backend's own note of what has to be cut (``None``: nothing); the store hands it back
    to :meth:`Writer.repair` unlooked at.  ``location`` says where, for messages.  ``revision`` changes
    whenever the stored log does.
    """

    scan: ScanResult
    torn: object | None
    location: str | None
    writer: WriterPresence
    revision: object


class SalvageReport(Struct, frozen=True, kw_only=True):
    """What a repair of a damaged session did, or with *dry_run* would do.

    *verdict* and *findings* are those of the log as it was found.  *changed* says whether the stored log was (or
    would be) replaced; *refusal* why it cannot be repaired (nothing was changed then).  The repaired log holds
    *events* events: *kept* of the damaged one and those in *made*, closers included.  *quarantined* are the bytes
    that were left out; the whole damaged log (of a torn one: what was cut) is kept at *original*.  *forks* are second histories that became
    sessions of their own.  *location* is where the repaired log is; *cwd* what its header says.
    """

    id: str
    dry_run: bool
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    changed: bool = False
    refusal: str | None = None
    header_fate: HeaderFate = "kept"
    cwd: str | None = None
    events: int = 0
    kept: int = 0
    made: tuple[MadeEvent, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    forks: tuple[SalvageFork, ...] = ()
    original: str | None = None
    location: str | None = None

    @classmethod
    def of(
        cls, session_id: str, plan: SalvagePlan, *, dry_run: bool, original: str | None, location: str | None
    ) -> SalvageReport:
        """The report of a *plan*; the lines that a plan holds are not kept in memory by its report."""
        return cls(
            id=session_id,
            dry_run=dry_run,
            verdict=plan.verdict,
            findings=plan.findings,
            changed=plan.refusal is None and not plan.empty,
            refusal=plan.refusal,
            header_fate=plan.header_fate,
            cwd=None if plan.header is None else plan.header.cwd,
            events=plan.events,
            kept=plan.kept,
            made=plan.made,
            quarantined=plan.quarantined,
            forks=tuple(structs.replace(fork, lines=()) for fork in plan.forks),
            original=original,
            location=location,
        )

    @property
    def exit_code(self) -> int:
        """0: the log is good now; 3: it cannot be repaired; of a dry run, what ``verify`` says: 1 or 2 too."""
        if self.refusal is not None:
            return 3
        if not self.dry_run or not self.changed:
            return 0
        return 1 if self.verdict in {Verdict.INTERRUPTED, Verdict.TORN} else 2

    def describe(self) -> str:
        """The report as lines for a person, without event contents."""
        lines = [f"session {self.id!r} is {self.verdict}"]
        lines += describe_plan(
            refusal=self.refusal,
            empty=not self.changed,
            header_fate=self.header_fate,
            events=self.events,
            kept=self.kept,
            made=self.made,
            quarantined=self.quarantined,
            forks=self.forks,
        )
        if self.original is not None:
            lines.append(f"what was there is kept as {self.original}")
        if self.dry_run and self.changed:
            lines.append("nothing was written: this is a dry run")
        return "\n".join(lines)


class RepairReport(Struct, frozen=True):
    """What a resume changed: shown to the user by the host.

    ``cut_bytes`` bytes from byte ``cut_at`` on were cut; ``quarantine`` is where they are kept (``None`` when
    they were blank or nothing was cut); ``closers`` are the synthetic events appended; ``intact_after`` counts
    intact events that stood behind the cut.  ``salvage`` is the report on the repair of a damaged log that came
    before, with ``on_damage="salvage"``.
    """

    cut_at: int | None = None
    cut_bytes: int = 0
    quarantine: str | None = None
    closers: tuple[Event, ...] = ()
    intact_after: int = 0
    salvage: SalvageReport | None = None

    @property
    def changed(self) -> bool:
        """Whether anything on the disk was changed."""
        return self.cut_at is not None or bool(self.closers) or (self.salvage is not None and self.salvage.changed)


class SessionInfo(Struct, frozen=True, kw_only=True, gc=False):
    """One row of a listing, from header and tail alone.

    ``created_at`` and ``last_time`` are epoch ms; ``approximate`` says that ``last_time`` is the storage's
    modification time because the last event was out of reach; ``bytes`` is the stored size.  ``title``,
    ``turns`` and ``events`` come from a rebuildable index and are ``None`` where there is none.
    ``detail`` explains a status other than ``ok`` and ``live``.
    """

    id: str
    status: SessionStatus
    cwd: str | None = None
    created_at: int | None = None
    last_time: int | None = None
    bytes: int = 0
    approximate: bool = False
    title: str | None = None
    turns: int | None = None
    events: int | None = None
    detail: str | None = None
    location: str | None = None


class Page(Struct, frozen=True):
    """Rows, newest activity first; ``next`` is passed as ``after`` to get the following page (``None``: the last)."""

    sessions: tuple[SessionInfo, ...]
    next: tuple[int, str] | None = None

    def __iter__(self) -> Iterator[SessionInfo]:
        """The rows, in order."""
        return iter(self.sessions)

    def __len__(self) -> int:
        return len(self.sessions)


class TrashEntry(Struct, frozen=True):
    """A deleted session: ``key`` names it for ``restore``, ``deleted_at`` is epoch ms, ``location`` where it lies."""

    key: str
    id: str
    deleted_at: int
    bytes: int
    location: str | None = None


class Writer(Protocol):
    """The writing side of one session.  Calls never overlap; the store sees to it."""

    @property
    def next_seq(self) -> int:
        """The seq the next batch must start with: everything below it is stored (with ``sync=True``: durable).

        Set by the work itself, not after the await: when the caller was cancelled, or its event loop ended while
        a write ran in a worker, this alone tells whether that batch was stored.
        """
        ...

    async def append(self, batch: Batch, *, sync: bool) -> None:
        """Write *batch*, all or nothing; with *sync* it is durable on return.

        The first append of a new session takes the lock and publishes header and batch so that both become
        visible at once, never overwriting anything.  A batch without events publishes the header alone.

        On an error the stored log is back at its durable length, or will be put back there before the next
        write; the same batch may then be given again.

        Raises:
            SessionExistsError: the id was published by somebody else meanwhile.
            SessionLockedError: somebody else holds the session.
            ConcurrentWriteError: the stored log is not as this writer left it.
            StorageError: the storage refused (an :class:`ExceptionGroup` of two when putting it back failed too).
        """
        ...

    async def sync(self) -> None:
        """Make everything appended with ``sync=False`` durable.  Raises as :meth:`append`."""
        ...

    async def repair(self, stored: Stored, plan: RepairPlan) -> RepairReport:
        """Carry out *plan*: keep the cut bytes aside, cut, append the closers; durable on return.

        So is, with an empty plan too, whatever was stored before: its writer may have died before its sync.

        Raises:
            StorageError: nothing was changed, or a repeat will finish the job.
        """
        ...

    def append_now(self, batch: Batch) -> None:
        """Write *batch* without an event loop: the last act of an interpreter that exits.  Raises as append."""
        ...

    async def close(self) -> None:
        """Release the lock and every descriptor.  Idempotent."""
        ...

    def after_fork(self) -> None:
        """Called in a forked child: drop inherited descriptors without releasing the parent's lock."""
        ...


class Backend(Protocol):
    """A place where sessions are stored.  Ids are any non-empty str; no id reaches outside the backend's own place."""

    async def prepare(self, header: Header) -> None:
        """Check early that *header*'s session could be created; write nothing.

        Raises:
            SessionExistsError: the id is taken (in any project).
            StorageError: the place cannot be written.
        """
        ...

    def writer(self, header: Header) -> Writer:
        """A writer for a session that is not stored yet.  No I/O."""
        ...

    async def open(self, session_id: str) -> tuple[Writer, Stored]:
        """Take the lock of a stored session, then read it.  On any error the lock is released again.

        Raises:
            SessionNotFoundError, DuplicateSessionError, SessionLockedError, StorageError.
        """
        ...

    async def read(self, session_id: str) -> Stored:
        """Read a stored session without lock and without writing.

        With a live writer an unterminated tail is no finding.

        Raises:
            SessionNotFoundError, DuplicateSessionError, StorageError.
        """
        ...

    async def read_from(self, session_id: str, seq: int) -> Sequence[Event]:
        """The stored events with ``event.seq >= seq``; empty past the end.

        These are exactly the events that :meth:`read` shows, from *seq* on; no closers.

        Raises:
            TypeError, ValueError: *seq* is not a non-negative int.
            DamagedLogError: the log is damaged or empty, so that no one can say which events it holds.
            UnsupportedFormatError: another format version.
            As :meth:`read`.
        """
        ...

    async def salvage(self, session_id: str, *, dry_run: bool, cwd: str | None) -> SalvageReport:
        """Repair a log that a resume refuses, or that holds intact events behind a torn end; under its lock.

        Second histories are published first, then the damaged log is kept aside, then the repaired one takes its
        place in one step.  A crash anywhere leaves a log that the same call repairs.  With *dry_run* nothing is
        written and no lock taken.  *cwd* is used where the header is lost.

        Raises:
            SessionNotFoundError, DuplicateSessionError, SessionLockedError, StorageError.
            InvalidEventError: *cwd* is not an absolute path.
            ConcurrentWriteError: the log changed while it was repaired; it was left alone.
        """
        ...

    async def list(
        self, *, cwd: str | AnyCwd | None = ANY, limit: int | None = None, after: tuple[int, str] | None = None
    ) -> Page:
        """One page of sessions, newest activity first.  A bad session is a row with a status, never an exception.

        Raises:
            ValueError: *limit* is below 1.
            StorageError: the place as a whole cannot be read.
        """
        ...

    async def delete(self, session_id: str) -> TrashEntry:
        """Move a session to the trash.

        Raises:
            SessionNotFoundError, SessionLockedError (somebody holds it), StorageError.
        """
        ...

    async def trash(self) -> Sequence[TrashEntry]:
        """What the trash holds, newest first."""
        ...

    async def restore(self, entry: TrashEntry) -> None:
        """Bring a deleted session back.

        Raises:
            SessionNotFoundError: not in the trash (any more).
            SessionExistsError: a session of that id is stored again.
        """
        ...

    async def empty_trash(self) -> int:
        """Remove everything in the trash for good, and what crashes left unfinished; the number of sessions removed."""
        ...

    def locate(self, session_id: str, cwd: str | None) -> str | None:
        """Where the session is, or would be, stored (a path for files); ``None`` when there is no such thing."""
        ...

    async def write_index(self, session_id: str, *, title: str | None, turns: int, events: int) -> None:
        """Note what a listing may show beside header and tail.  Never needed, never trusted; errors are swallowed."""
        ...

    async def aclose(self) -> None:
        """Release what the backend itself holds.  Idempotent."""
        ...


def check_seq(seq: object) -> int:
    """*seq* as the argument of ``read_from``.

    Raises:
        TypeError: it is not an int (a bool and a float are none).
        ValueError: it is negative.
    """
    if not isinstance(seq, int) or isinstance(seq, bool):
        raise TypeError(f"seq is an int, got {type(seq).__name__}")
    if seq < 0:
        raise ValueError(f"seq is 0 or more, got {seq}")
    return seq


def make_page(rows: Iterable[SessionInfo], *, limit: int | None, after: tuple[int, str] | None) -> Page:
    """Sort *rows* by activity (newest first; ties by id) and cut one page out of them.

    The position is (activity, id), so a page does not shift when sessions appear or vanish in front of it.

    Raises:
        ValueError: *limit* is below 1.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"a page holds at least 1 session, got limit={limit}")
    ordered = sorted(rows, key=_position)
    if after is not None:
        place = (-after[0], after[1])
        ordered = [row for row in ordered if _position(row) > place]
    if limit is None or len(ordered) <= limit:
        return Page(tuple(ordered))
    last = ordered[limit - 1]
    return Page(tuple(ordered[:limit]), (last.last_time or 0, last.id))


def _position(row: SessionInfo) -> tuple[int, str]:
    return (-(row.last_time or 0), row.id)


def stored_events(stored: Stored, session_id: str, seq: int) -> Sequence[Event]:
    """The answer of ``read_from`` out of a whole read.

    Raises:
        DamagedLogError, UnsupportedFormatError: as ``Backend.read_from`` says.
    """
    scan = stored.scan
    if scan.verdict in {Verdict.DAMAGED, Verdict.EMPTY}:
        raise DamagedLogError(session_id, path=stored.location, verdict=scan.verdict, findings=scan.findings)
    refuse_unsupported(stored, session_id)
    return scan.log.events(seq)


def refuse_unsupported(stored: Stored, session_id: str) -> None:
    """Let a log pass that this version reads.

    Raises:
        UnsupportedFormatError: it is for another; names the session and the place, which the scan does not know.
    """
    found = stored.scan.unsupported
    if found is not None:
        path = stored.location
        raise UnsupportedFormatError(
            found.reason, direction=found.direction, session_id=session_id, path=path
        ) from found

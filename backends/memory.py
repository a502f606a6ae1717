"""Sessions in memory: the reference backend, and the model that tests compare others with.

A session is the same bytes as a JSONL log, read by the same scanner.  Nothing
survives the process; "durable" means "in the dictionary".  Locks are local to the
backend object, so two stores that share one backend behave like two processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from sessionstore.backends.base import (
    ANY,
    AnyCwd,
    Batch,
    Page,
    RepairReport,
    SalvageReport,
    SessionInfo,
    SessionStatus,
    Stored,
    TrashEntry,
    Writer,
    check_seq,
    make_page,
    stored_events,
)
from sessionstore.clock import Clock, system_clock
from sessionstore.errors import (
    ConcurrentWriteError,
    InvalidEventError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
)
from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.salvage import salvage
from sessionstore.recovery.scan import LogScanner, ScanResult, scan_log
from sessionstore.settle import settle

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sessionstore.events import Event
    from sessionstore.header import Header
    from sessionstore.recovery.plan import RepairPlan
    from sessionstore.vocabulary import EventTypes

__all__ = ["MemoryBackend"]

_STATUS: dict[Verdict, SessionStatus] = {
    Verdict.DAMAGED: "damaged",
    Verdict.INVALID: "damaged",
    Verdict.UNSUPPORTED: "unsupported",
    Verdict.EMPTY: "empty",
}


class _Log:
    """The stored bytes of one session; ``revision`` grows with every change."""

    __slots__ = ("data", "index", "revision")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.revision = 0
        self.index: tuple[int, str | None, int, int] | None = None

    def put(self, data: bytes) -> None:
        self.data = data
        self.revision += 1


class _Cut(Struct, frozen=True):
    """The torn marker: what was scanned ended at ``size``."""

    revision: int


class MemoryBackend:
    """Keeps sessions in a dictionary.  Implements :class:`sessionstore.backends.base.Backend`.

    ``quarantine`` holds the bytes that repairs cut, and the logs that salvage replaced, by name.
    """

    def __init__(self, *, clock: Clock = system_clock, types: EventTypes | None = None) -> None:
        self.quarantine: dict[str, bytes] = {}
        self._clock = clock
        self._types = types
        self._logs: dict[str, _Log] = {}
        self._held: set[str] = set()
        self._trash: dict[str, tuple[TrashEntry, _Log]] = {}

    # What tests do behind the back of a store.

    def stored_bytes(self, session_id: str) -> bytes:
        """The log of a session as a JSONL file would hold it.  Raises :class:`SessionNotFoundError`."""
        return self._find(session_id).data

    def put_bytes(self, session_id: str, data: bytes) -> None:
        """Replace, or create, the log of a session as a foreign writer would: without the lock."""
        log = self._logs.get(session_id)
        if log is None:
            self._logs[session_id] = _Log(data)
        else:
            log.put(data)

    # The protocol.

    async def prepare(self, header: Header) -> None:
        """See :class:`sessionstore.backends.base.Backend`."""
        if header.id in self._logs:
            raise SessionExistsError(header.id)

    def writer(self, header: Header) -> Writer:
        """See :class:`sessionstore.backends.base.Backend`."""
        return _MemoryWriter(self, header.id, header)

    async def open(self, session_id: str) -> tuple[Writer, Stored]:
        """See :class:`sessionstore.backends.base.Backend`."""
        self._find(session_id)
        self._hold(session_id)
        try:
            stored = await settle(lambda: self._read(session_id, own=True))
            writer = _MemoryWriter(self, session_id, stored.scan.header)
            writer.adopt(self._find(session_id), len(stored.scan.log))
            return writer, stored
        except BaseException:
            self._held.discard(session_id)
            raise

    async def read(self, session_id: str) -> Stored:
        """See :class:`sessionstore.backends.base.Backend`."""
        return await settle(self._read, session_id)

    async def read_from(self, session_id: str, seq: int) -> Sequence[Event]:
        """See :class:`sessionstore.backends.base.Backend`."""
        check_seq(seq)
        return stored_events(await settle(self._read, session_id), session_id, seq)

    async def salvage(self, session_id: str, *, dry_run: bool, cwd: str | None) -> SalvageReport:
        """See :class:`sessionstore.backends.base.Backend`.

        The damaged log is kept in ``quarantine``.
        """
        log = self._find(session_id)
        if not dry_run:
            self._hold(session_id)
        try:
            data, revision = log.data, log.revision
            plan = await settle(lambda: salvage(data, session_id=session_id, cwd=cwd))
            if dry_run or plan.refusal is not None or plan.empty:
                return SalvageReport.of(session_id, plan, dry_run=dry_run, original=None, location=None)
            if self._logs.get(session_id) is not log or log.revision != revision:
                raise ConcurrentWriteError(
                    session_id, path="memory", expected=f"revision {revision}", found=f"revision {log.revision}"
                )
            for fork in plan.forks:
                self._logs.setdefault(fork.id, _Log(_join(fork.lines)))
            repaired = _join(plan.lines)
            original = None
            if not repaired.startswith(data):
                original = f"{session_id}.damaged-{self._clock()}"
                self.quarantine[original] = data
            log.put(repaired)
            return SalvageReport.of(session_id, plan, dry_run=False, original=original, location=None)
        finally:
            if not dry_run:
                self._held.discard(session_id)

    async def list(
        self, *, cwd: str | AnyCwd | None = ANY, limit: int | None = None, after: tuple[int, str] | None = None
    ) -> Page:
        """See :class:`sessionstore.backends.base.Backend`."""

        def rows() -> Page:
            found = (self._info(session_id) for session_id in list(self._logs))
            return make_page(
                (row for row in found if row is not None and (isinstance(cwd, AnyCwd) or row.cwd == cwd)),
                limit=limit,
                after=after,
            )

        return await settle(rows)

    async def delete(self, session_id: str) -> TrashEntry:
        """See :class:`sessionstore.backends.base.Backend`."""
        log = self._find(session_id)
        self._hold(session_id)
        try:
            now = self._clock()
            key = next(key for n in range(len(self._trash) + 1) if (key := f"{now}-{n}") not in self._trash)
            entry = TrashEntry(key, session_id, now, len(log.data))
            self._trash[key] = (entry, self._logs.pop(session_id))
            return entry
        finally:
            self._held.discard(session_id)

    async def trash(self) -> Sequence[TrashEntry]:
        """See :class:`sessionstore.backends.base.Backend`."""
        return sorted((entry for entry, _ in self._trash.values()), key=lambda e: (-e.deleted_at, e.key))

    async def restore(self, entry: TrashEntry) -> None:
        """See :class:`sessionstore.backends.base.Backend`."""
        kept = self._trash.get(entry.key)
        if kept is None:
            raise SessionNotFoundError(entry.id, where="the trash", in_trash=True)
        if kept[0].id in self._logs:
            raise SessionExistsError(kept[0].id)
        self._logs[kept[0].id] = kept[1]
        del self._trash[entry.key]

    async def empty_trash(self) -> int:
        """See :class:`sessionstore.backends.base.Backend`."""
        count = len(self._trash)
        self._trash.clear()
        return count

    def locate(self, session_id: str, cwd: str | None) -> str | None:  # noqa: ARG002 - nothing here has a place
        """See :class:`sessionstore.backends.base.Backend`."""
        return None

    async def write_index(self, session_id: str, *, title: str | None, turns: int, events: int) -> None:
        """See :class:`sessionstore.backends.base.Backend`."""
        log = self._logs.get(session_id)
        if log is not None:
            log.index = (log.revision, title, turns, events)

    async def aclose(self) -> None:
        """See :class:`sessionstore.backends.base.Backend`."""
        return

    # Shared with the writer.

    def _find(self, session_id: str) -> _Log:
        log = self._logs.get(session_id)
        if log is None:
            raise SessionNotFoundError(session_id, where="memory")
        return log

    def _hold(self, session_id: str) -> None:
        if session_id in self._held:
            raise SessionLockedError(session_id, detail="another writer of this backend holds it")
        self._held.add(session_id)

    def _read(self, session_id: str, *, own: bool = False) -> Stored:
        """Scan a session.  *own*: whoever holds it is the caller, who wants to know what a crash left."""
        log = self._find(session_id)
        data, revision = log.data, log.revision
        live = not own and session_id in self._held
        scanner = LogScanner(types=self._types)
        scanner.feed(data)
        scan = scanner.finish(live=live)
        torn = _Cut(revision) if scan.verdict is Verdict.TORN else None
        return Stored(scan, torn, None, "live" if live else "none", (id(log), revision))

    def _info(self, session_id: str) -> SessionInfo | None:
        log = self._logs.get(session_id)
        if log is None:
            return None
        scan = scan_log(log.data, types=self._types)
        status = _STATUS.get(scan.verdict, "ok")
        index = log.index if log.index is not None and log.index[0] == log.revision else None
        header = scan.header
        return SessionInfo(
            id=session_id,
            status="live" if status == "ok" and session_id in self._held else status,
            cwd=None if header is None else header.cwd,
            created_at=None if header is None else header.created_at,
            last_time=_last_time(scan),
            bytes=len(log.data),
            title=index and index[1],
            turns=index and index[2],
            events=index and index[3],
            detail=scan.findings[0].describe() if status != "ok" and scan.findings else None,
        )


def _last_time(scan: ScanResult) -> int | None:
    if len(scan.log):
        return scan.log.event(len(scan.log) - 1).time
    return None if scan.header is None else scan.header.created_at


class _MemoryWriter:
    """The writing side of one session in memory."""

    def __init__(self, backend: MemoryBackend, session_id: str, header: Header | None) -> None:
        self._backend = backend
        self._header = header
        self._id = session_id
        self._log: _Log | None = None
        self._revision = 0
        self._next_seq = 0
        self._holds = False

    @property
    def next_seq(self) -> int:
        return self._next_seq

    async def append(self, batch: Batch, *, sync: bool) -> None:  # noqa: ARG002 - nothing is more durable than the rest
        self.append_now(batch)

    def append_now(self, batch: Batch) -> None:
        """Write without an event loop.  Raises as :meth:`append`."""
        if batch.first_seq != self._next_seq:
            raise ValueError(f"the next batch starts with seq {self._next_seq}, not {batch.first_seq}")
        if any(b"\n" in line for part in batch.parts for line in part):
            raise InvalidEventError("a line to be stored holds a line break", session_id=self._id)
        stored = self._backend._logs.get(self._id)
        if self._log is None or stored is None:
            self._publish(batch, stored)
            return
        self._check(stored)
        lines = [line for part in batch.parts for line in part]
        self._put(stored, stored.data + _join(lines), batch.next_seq)

    async def sync(self) -> None:
        return

    async def repair(self, stored: Stored, plan: RepairPlan) -> RepairReport:
        log = self._backend._find(self._id)
        self._check(log)
        data, quarantine, cut_at = log.data, None, plan.truncate_to
        if stored.torn is not None and cut_at is not None:
            cut = data[cut_at:]
            data = data[:cut_at]
            if cut.strip(b"\0 \t\r\n"):
                quarantine = f"{self._id}.cut-{cut_at}"
                self._backend.quarantine[quarantine] = cut
        data += _join([event.to_json() for event in plan.closers])
        if data != log.data:
            self._put(log, data, len(stored.scan.log) + len(plan.closers))
        return RepairReport(
            cut_at=cut_at,
            cut_bytes=plan.cut_length,
            quarantine=quarantine,
            closers=plan.closers,
            intact_after=stored.scan.intact_after,
        )

    async def close(self) -> None:
        if self._holds:
            self._holds = False
            self._backend._held.discard(self._id)

    def after_fork(self) -> None:
        # The child's dictionary is a copy of its own; what its writer must not do is free a lock it never took.
        self._holds = False

    # Used by the backend and above.

    def adopt(self, log: _Log, next_seq: int) -> None:
        """Go on with a log that is stored already; the backend took the lock."""
        self._log, self._revision, self._next_seq, self._holds = log, log.revision, next_seq, True

    def _publish(self, batch: Batch, stored: _Log | None) -> None:
        if stored is not None:
            raise SessionExistsError(self._id)
        if not self._holds:
            self._backend._hold(self._id)
            self._holds = True
        if self._header is None:  # a log whose header was never read cannot be made again
            raise SessionNotFoundError(self._id, where="memory")
        log = _Log(b"")
        self._backend._logs[self._id] = log
        self._put(log, _join([self._header.to_json(), *batch.whole()]), batch.next_seq)

    def _put(self, log: _Log, data: bytes, next_seq: int) -> None:
        log.put(data)
        self.adopt(log, next_seq)

    def _check(self, stored: _Log) -> None:
        if stored is not self._log or stored.revision != self._revision:
            raise ConcurrentWriteError(
                self._id, path="memory", expected=f"revision {self._revision}", found=f"revision {stored.revision}"
            )


def _join(lines: Iterable[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)

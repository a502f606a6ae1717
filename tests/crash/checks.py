"""Whether an image of a disk keeps what a store had promised by the moment it died."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sessionstore import (
    DamagedLogError,
    SessionNotFoundError,
    SessionStore,
    StorageError,
    StoredSession,
    interrupted_turn_closers,
)
from sessionstore.backends.jsonl.frames import FrameReader
from sessionstore.backends.paths import LOG_NAMES, session_paths
from sessionstore.events import Event
from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.scan import scan_log
from tests.crash.promises import CWD, ROOT, BrokenPromiseError, Outcome, Promise, Setup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessionstore.eventlog import Events
    from sessionstore.inspection import Inspection
    from tests.crash.disk import Disk

__all__ = ["check"]

_BLANKS: Final = b"\0 \t\r\n"


async def check(disk: Disk, promises: Sequence[Promise], setup: Setup, *, thorough: bool = True) -> list[Outcome]:
    """What became of each session on the disk.

    Every session is resumed twice, written to, and cut off from power once more.  *thorough*: it is inspected, read
    from a seq and listed as well.

    Raises:
        BrokenPromiseError: a promise is broken.
    """
    store = setup.open(disk)
    outcomes: list[Outcome] = [await _Checked(disk, store, promise, thorough=thorough).go() for promise in promises]
    if thorough:
        page = await store.list()
        if any(row.status not in {"ok", "damaged", "unreadable", "empty"} for row in page.sessions):
            raise BrokenPromiseError("listing", f"{[row.status for row in page.sessions]}")
    await store.aclose()
    return outcomes


class _Checked:
    """One session on one image."""

    def __init__(self, disk: Disk, store: SessionStore, promise: Promise, *, thorough: bool) -> None:
        self._disk = disk
        self._store = store
        self._promise = promise
        self._thorough = thorough

    async def go(self) -> Outcome:
        """All checks; what the session was found as."""
        promise = self._promise
        if promise.places != {"home"}:
            await self._bring_home()
        tree = self._disk.tree()
        path = self._path(tree)
        raw = None if path is None else tree[path]
        if raw is None:
            await self._begin_anew()
            return "absent"
        seen = await self._inspect() if self._thorough else None
        try:
            session = await self._store.resume(promise.id, on_damage="salvage" if promise.unmended else "raise")
        except DamagedLogError:
            return await self._refused(await self._store.inspect(promise.id))
        lines = _texts(session)
        as_appended = self._compare(lines, session)
        if seen is not None and seen != lines and not promise.unmended:
            raise BrokenPromiseError("resume", "resume and inspect do not agree")
        await self._resume_again(session, raw)
        return _outcome(session) if as_appended else "unnoticed"

    async def _bring_home(self) -> None:
        """Restore the session if it is in the trash, where it may be."""
        promise = self._promise
        buried = [entry for entry in await self._store.trash() if entry.id == promise.id]
        at_home = self._path(self._disk.tree()) is not None
        if at_home and buried:
            raise BrokenPromiseError("trash", "the session is at home and in the trash")
        if at_home and "home" not in promise.places:
            raise BrokenPromiseError("trash", "the session is back from the trash")
        if buried:
            try:
                await self._store.restore(buried[0])
            except StorageError:
                if "nowhere" not in promise.places:  # else it was being removed for good
                    raise

    async def _begin_anew(self) -> None:
        """The session is not there; it must not have to be, and nothing is in the way of a new one of that id."""
        promise = self._promise
        if promise.exists and "nowhere" not in promise.places:
            raise BrokenPromiseError("lost", f"the session is gone, {promise.acked} events with it")
        try:
            await self._store.inspect(promise.id)
        except SessionNotFoundError:
            pass
        else:
            raise BrokenPromiseError("half published", "no log, and yet it can be inspected")
        session = await self._store.create(promise.id, cwd=CWD)
        await self._go_on(session)

    async def _inspect(self) -> list[bytes] | None:
        """What is seen without a lock; ``None`` where that is refused."""
        seen = await self._store.inspect(self._promise.id)
        if seen.verdict not in {Verdict.CLEAN, Verdict.INTERRUPTED, Verdict.TORN}:
            return None
        lines = [event.to_json() for event in seen.events]
        middle = seen.durable_seq // 2
        suffix = [event.to_json() for event in await self._store.read_from(self._promise.id, middle)]
        if suffix != lines[middle : seen.durable_seq]:
            raise BrokenPromiseError("read_from", f"{len(suffix)} events from {middle} on of {seen.durable_seq}")
        return lines

    def _compare(self, lines: list[bytes], session: StoredSession) -> bool:
        """Whether there are so many of the events given out as there must be, and else only the closers of these.

        An event that nobody appended, but that a stale text completed, is no broken promise.
        """
        promise = self._promise
        count = _common(lines, promise.lines)
        if count < promise.acked:
            raise BrokenPromiseError("lost", f"{promise.acked} events were durable, {count} are there")
        if count < promise.first:
            raise BrokenPromiseError("half published", f"{count} of {promise.first} events are visible")
        if promise.header is not None and session.header.to_json() != promise.header:
            raise BrokenPromiseError("header", "another header than the one written")
        if session.durable_seq != session.seq or session.seq != len(lines):
            raise BrokenPromiseError("resume", f"{session.durable_seq} of {session.seq} events are durable")
        as_appended = lines[count:] == closers_of(promise.lines[:count])
        if not as_appended and promise.doubt == "none":
            raise BrokenPromiseError("invented", f"{len(lines) - count} events after {count} that nobody appended")
        return as_appended

    async def _refused(self, seen: Inspection) -> Outcome:
        """A log that is refused where that cannot be helped: nothing acknowledged is lost, and it can be salvaged."""
        promise = self._promise
        lines = [event.to_json() for event in seen.events]
        if promise.doubt == "none" or (promise.doubt == "stale text" and seen.verdict is not Verdict.INVALID):
            first = seen.findings[0].describe() if seen.findings else ""
            raise BrokenPromiseError(
                "damaged", f"{seen.verdict}, {len(lines)} events, {promise.acked} durable: {first}"
            )
        if _common(lines, promise.lines) < promise.acked:
            raise BrokenPromiseError("lost", f"{promise.acked} events were durable, {len(lines)} are shown")
        try:
            session = await self._store.resume(promise.id, on_damage="salvage")
        except DamagedLogError:
            return "not repairable"
        if _common(_texts(session), promise.lines) < promise.acked:
            raise BrokenPromiseError("lost", "salvage lost what was durable")
        await self._go_on(session)
        return "invalid" if seen.verdict is Verdict.INVALID else "damaged"

    async def _resume_again(self, session: StoredSession, raw: bytes) -> None:
        """The first resume kept what it cut; the second one changes nothing."""
        report = session.recovery
        if report is None:
            raise BrokenPromiseError("resume", "no report")
        if report.cut_at is not None:
            cut = raw[report.cut_at : report.cut_at + report.cut_bytes]
            if report.quarantine is None and cut.strip(_BLANKS):
                raise BrokenPromiseError("quarantine", "bytes were cut and not kept")
            if report.quarantine is not None and self._disk.tree()[report.quarantine] != cut:
                raise BrokenPromiseError("quarantine", "other bytes were kept than were cut")
        await session.dispose()
        before = self._files()
        again = await self._store.resume(self._promise.id)
        if again.recovery is None or again.recovery.changed or _rows(again.events) != _rows(session.events):
            raise BrokenPromiseError("resume", "the second resume found something to repair")
        if self._files() != before:
            raise BrokenPromiseError("resume", "the second resume changed something on the disk")
        kept = {data for path, data in before.items() if ".jsonl.cut-" in path}
        if not kept.issuperset(self._promise.kept):
            raise BrokenPromiseError("quarantine", "bytes that a repair cut are gone")
        originals = [data for path, data in before.items() if ".damaged-" in path]
        if self._promise.original is not None and originals != [self._promise.original]:
            raise BrokenPromiseError("quarantine", f"{len(originals)} copies of the damaged log are kept")
        await self._go_on(again)

    async def _go_on(self, session: StoredSession) -> None:
        """The session accepts events, and they survive a power cut once they are flushed."""
        count = session.seq + 2
        turn = {"turn": 1000}
        session.append("turn/start", {**turn, "trigger": {"kind": "message", "source": {"kind": "user"}}})
        session.append("turn/end", {**turn, "reason": {"kind": "completed"}})
        if await session.flush() != count:
            raise BrokenPromiseError("going on", "the session does not take events")
        await session.dispose()
        tree = self._disk.strictest().tree()
        path = self._path(tree)
        scan = scan_log(b"" if path is None else _decoded(path, tree[path] or b""))
        if scan.verdict is not Verdict.CLEAN or len(scan.log) != count or _rows(scan.events) != _rows(session.events):
            raise BrokenPromiseError("going on", f"after flush and a power cut: {scan.verdict}, {len(scan.log)} events")

    def _path(self, tree: dict[str, bytes | None]) -> str | None:
        """The session's log."""
        paths = session_paths(ROOT, self._promise.id, CWD)
        return next((path for each in LOG_NAMES if (path := paths.log(each)) in tree), None)

    def _files(self) -> dict[str, bytes | None]:
        return {path: data for path, data in self._disk.tree().items() if not path.endswith((".lock", ".index"))}


def closers_of(lines: tuple[bytes, ...]) -> list[bytes]:
    """The lines of the closers of a log of *lines*."""
    found = _closers.get(lines)
    if found is None:
        events = [Event.from_json(line) for line in lines]
        found = _closers[lines] = [event.to_json() for event in interrupted_turn_closers(events)]
    return found


_closers: dict[tuple[bytes, ...], list[bytes]] = {}


def _common(lines: Sequence[bytes], others: Sequence[bytes]) -> int:
    """How many lines both begin with."""
    count = 0
    for line, other in zip(lines, others, strict=False):
        if line != other:
            break
        count += 1
    return count


def _texts(session: StoredSession) -> list[bytes]:
    return [event.to_json() for event in session.events]


def _rows(events: Events) -> list[bytes]:
    """The storage lines of a whole log."""
    return list(events._log.lines(0, len(events)))


def _outcome(session: StoredSession) -> Outcome:
    report = session.recovery
    if report is not None and report.cut_at is not None:
        return "torn"
    return "interrupted" if report is not None and report.closers else "clean"


def _decoded(path: str, data: bytes) -> bytes:
    if not path.endswith("zstd"):
        return data
    reader = FrameReader()
    return b"".join([*reader.feed(data), *reader.finish()])

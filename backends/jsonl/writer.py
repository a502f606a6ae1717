"""The writer of one session's log: :class:`sessionstore.backends.base.Writer` for JSONL files.

Every method does its work in one hop to a worker thread.  What a step may meet is
decided here (publish, append, publish again); how a file is written and put back is
in ``logfile.py``, how it is published in ``publish.py``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from sessionstore.backends.base import RepairReport
from sessionstore.backends.files import ensure_directories, storage_errors
from sessionstore.backends.jsonl.frames import encode_frame
from sessionstore.backends.jsonl.lock import SessionLock, lock_path
from sessionstore.backends.jsonl.logfile import LogFile
from sessionstore.backends.jsonl.publish import Publisher
from sessionstore.backends.jsonl.quarantine import keep_bytes
from sessionstore.backends.paths import LOG_NAMES
from sessionstore.errors import (
    ConcurrentWriteError,
    InvalidEventError,
    SessionExistsError,
    StorageError,
    StoreClosedError,
)
from sessionstore.recovery.format import TURN_END
from sessionstore.settle import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from sessionstore.backends.base import Batch, Stored
    from sessionstore.backends.files import Files, FileStat, Identity
    from sessionstore.backends.paths import Compression, SessionPaths
    from sessionstore.events import Event
    from sessionstore.header import Header
    from sessionstore.recovery.plan import RepairPlan

__all__ = ["JsonlWriter", "TornTail"]

_REPUBLISHED_CHUNK: Final = 1024 * 1024  # bytes of text that go into one write when a whole log is published again


class TornTail(Struct, frozen=True):
    """The torn marker of this backend (``Stored.torn``): cut the file at byte *cut_at*, then write *salvage* again.

    ``salvage`` are complete decoded lines, each with its newline, that stood in a compressed frame which has to be
    cut (``b""`` for an uncompressed log, where lines stay where they are).
    """

    cut_at: int
    salvage: bytes = b""


class JsonlWriter:
    """Writes the log of one session: a new one, or with :meth:`resumed` one that is stored already."""

    def __init__(
        self,
        files: Files,
        paths: SessionPaths,
        header: Header,
        *,
        now: Callable[[], int],
        compression: Compression = "none",
        lock_dir: str | None = None,
    ) -> None:
        """A writer for a session that is not stored yet; *now* gives epoch ms.  No I/O."""
        self._files = files
        self._paths = paths
        self._header = header
        self._now = now
        self._compression: Compression = compression
        self._lock_dir = lock_dir
        self._path = paths.log(compression)
        others = tuple(paths.log(other) for other in LOG_NAMES if other != compression)
        self._publisher = Publisher(files, self._path, taken_by=others)
        self._lock: SessionLock | None = None
        self._log: LogFile | None = None
        self._next_seq = 0
        self._whole: Callable[[], Iterable[bytes]] | None = None
        self._refusal: str | None = None
        self._pid = os.getpid()

    @classmethod
    def resumed(
        cls,
        files: Files,
        paths: SessionPaths,
        header: Header,
        *,
        now: Callable[[], int],
        compression: Compression,
        lock: SessionLock,
        found: FileStat,
        next_seq: int,
        lock_dir: str | None = None,
    ) -> JsonlWriter:
        """A writer for a stored log that was scanned under *lock*, which it takes over.

        *found* is what the scanned file was (its length must be what was scanned), *next_seq* the number of events
        that are kept.  Call :meth:`repair` before anything else, also with an empty plan: the bytes that were found
        may be in the page cache only.
        """
        writer = cls(files, paths, header, now=now, compression=compression, lock_dir=lock_dir)
        writer._lock = lock
        writer._log = writer._log_file(found.identity, found.size, fresh=False)
        writer._next_seq = next_seq
        return writer

    @property
    def next_seq(self) -> int:
        """The seq the next batch must start with."""
        return self._next_seq

    @property
    def path(self) -> str:
        """The log, whether it is published yet or not."""
        return self._path

    async def append(self, batch: Batch, *, sync: bool) -> None:
        """See :class:`sessionstore.backends.base.Writer`."""
        await settle(self._append, batch, sync)

    def append_now(self, batch: Batch) -> None:
        """See :class:`sessionstore.backends.base.Writer`."""
        self._append(batch, sync=True)

    async def sync(self) -> None:
        """See :class:`sessionstore.backends.base.Writer`."""
        await settle(self._sync)

    async def repair(self, stored: Stored, plan: RepairPlan) -> RepairReport:
        """See :class:`sessionstore.backends.base.Writer`."""
        return await settle(self.mend, stored, plan)

    async def close(self) -> None:
        """See :class:`sessionstore.backends.base.Writer`."""
        if self._refusal is None:
            self._refusal = "the session was disposed"
        if self._lock is not None:
            await settle(self._lock.release)

    def after_fork(self) -> None:
        """See :class:`sessionstore.backends.base.Writer`."""
        self._refusal = "the session belongs to the process that forked this one"
        if self._lock is not None:
            self._lock.after_fork()

    def publish_whole(self, lines: Iterable[bytes]) -> None:
        """Publish the session with all of *lines* at once and release its lock; for a session nobody has open.

        Blocking.  Raises as :meth:`append`.
        """
        try:
            self._acquire()
            self._published(self._all_parts(lines))
        except FileExistsError as error:
            raise SessionExistsError(self._header.id, where=error.filename or self._path) from error
        finally:
            if self._lock is not None:
                self._lock.release()

    def _append(self, batch: Batch, sync: bool) -> None:
        self._check_usable()
        if batch.first_seq != self._next_seq:
            raise ValueError(f"the next batch starts with seq {self._next_seq}, not {batch.first_seq}")
        parts = [self._encode(part) for part in batch.parts if part]
        log = self._log
        if log is None:
            self._publish(parts)
        else:
            self._unless_vanished(lambda: log.append(parts, sync=sync), batch.whole)
        self._next_seq = batch.next_seq
        self._whole = batch.whole

    def _sync(self) -> None:
        self._check_usable()
        log = self._log
        if log is not None:
            self._unless_vanished(log.sync, self._whole)

    def mend(self, stored: Stored, plan: RepairPlan) -> RepairReport:
        """:meth:`repair`, blocking."""
        self._check_usable()
        log = self._log
        if log is None:
            raise ValueError("a session that is not stored has nothing to repair")
        closers = [self._encode(part) for part in _closer_parts(plan.closers)]
        if plan.truncate_to is None:
            self._unless_vanished(lambda: log.append(closers, sync=True), None)
            report = RepairReport(closers=plan.closers)
        else:
            torn = stored.torn if isinstance(stored.torn, TornTail) else TornTail(plan.truncate_to)
            report = self._cut(log, torn, closers, plan, stored.scan.intact_after)
        self._next_seq += len(plan.closers)
        return report

    def _cut(
        self, log: LogFile, torn: TornTail, closers: list[bytes], plan: RepairPlan, intact_after: int
    ) -> RepairReport:
        cut_bytes = log.size - torn.cut_at
        quarantine: str | None = None

        def keep(fd: int, start: int, stop: int) -> None:
            nonlocal quarantine
            with self._errors("keep the torn end of", hint="nothing was changed; inspect() and fork() still work"):
                quarantine = keep_bytes(self._files, fd, self._paths.directory, start, stop, session_id=self._header.id)

        salvage = [self._frame(torn.salvage)] if torn.salvage else []
        self._unless_vanished(lambda: log.replace_tail(torn.cut_at, keep, [*salvage, *closers]), None)
        return RepairReport(
            cut_at=torn.cut_at,
            cut_bytes=cut_bytes,
            quarantine=quarantine,
            closers=plan.closers,
            intact_after=intact_after,
        )

    def _unless_vanished(self, write: Callable[[], None], whole: Callable[[], Iterable[bytes]] | None) -> None:
        """Do *write* on the log we know; where it vanished, publish *whole* again instead."""
        if self._lock is None or not self._lock.still_there():
            # Somebody removed it, and then a new lock file could be anybody's: take it like the first time.
            if self._lock is not None:
                self._lock.release()
            self._acquire()
        if self._publisher.unfinished is None:
            try:
                write()
            except FileNotFoundError as error:
                if whole is None:
                    raise self._error("find", error) from error
            else:
                return
        if whole is not None:
            self._publish_again(whole)

    def _publish(self, parts: list[bytes]) -> None:
        self._acquire()
        try:
            self._log = self._published([self._encode((self._header.to_json(),)), *parts])
        except FileExistsError as error:
            if self._lock is not None:
                self._lock.release()  # that session is not ours
            raise SessionExistsError(self._header.id, where=error.filename or self._path) from error

    def _publish_again(self, whole: Callable[[], Iterable[bytes]]) -> None:
        self._acquire()
        try:
            self._log = self._published(self._all_parts(whole()))
        except FileExistsError as error:
            raise ConcurrentWriteError(
                self._header.id,
                path=self._path,
                expected="the file that this session has been writing",
                found="another file in its place",
            ) from error

    def _published(self, chunks: Iterable[bytes]) -> LogFile:
        """Publish *chunks*; ``FileExistsError`` comes as it is, any other ``OSError`` as :class:`StorageError`."""
        try:
            published = self._publisher.publish(chunks)
        except FileExistsError:
            raise
        except OSError as error:
            raise self._error("publish", error) from error
        except ExceptionGroup as group:
            errors = [self._error("publish", each) for each in group.exceptions if isinstance(each, OSError)]
            raise ExceptionGroup(group.message, errors) from group
        return self._log_file(published.identity, published.size, fresh=True)

    def _log_file(self, identity: Identity, size: int, *, fresh: bool) -> LogFile:
        return LogFile(
            self._files,
            self._path,
            self._header.id,
            identity=identity,
            size=size,
            fresh=fresh,
            root=self._paths.root,
        )

    def _acquire(self) -> None:
        """Make the directories that are missing and take the lock, unless it is held."""
        for root, directory in ((self._paths.root, self._paths.directory), (self._lock_dir, self._lock_dir)):
            if root is not None and directory is not None:
                with storage_errors("make the directory", path=directory, session_id=self._header.id):
                    ensure_directories(self._files, root, directory)
        if self._lock is None:
            path = lock_path(self._files, self._paths, self._lock_dir)
            self._lock = SessionLock(self._files, path, self._header.id, now=self._now)
        self._lock.acquire()

    def _encode(self, lines: Sequence[bytes]) -> bytes:
        """What *lines* are on disk, as one write."""
        text = b"\n".join([*lines, b""])
        if text.count(b"\n") != len(lines):
            raise InvalidEventError("a line to be stored holds a line break", session_id=self._header.id)
        return self._frame(text)

    def _frame(self, text: bytes) -> bytes:
        return encode_frame(text) if self._compression == "zstd" else text

    def _all_parts(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """The whole log, header first, in writes of about a megabyte of text."""
        yield self._encode((self._header.to_json(),))
        part: list[bytes] = []
        size = 0
        for line in lines:
            part.append(line)
            size += len(line)
            if size >= _REPUBLISHED_CHUNK:
                yield self._encode(part)
                part, size = [], 0
        if part:
            yield self._encode(part)

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            self.after_fork()
        if self._refusal is not None:
            raise StoreClosedError(self._refusal, session_id=self._header.id)

    def _error(self, action: str, error: OSError) -> StorageError:
        return StorageError(action, path=self._path, os_error=error, session_id=self._header.id)

    def _errors(self, action: str, *, hint: str | None = None) -> AbstractContextManager[None]:
        return storage_errors(action, path=self._path, session_id=self._header.id, hint=hint)


def _closer_parts(closers: Sequence[Event]) -> list[list[bytes]]:
    """The lines of *closers*; a turn/end begins a part, so that all before it is durable when it is written."""
    parts: list[list[bytes]] = []
    for closer in closers:
        if not parts or closer.type == TURN_END:
            parts.append([])
        parts[-1].append(closer.to_json())
    return parts

"""Sessions as JSON lines below one root directory: the backend that the store uses by default.

Every public method is one hop to a worker thread; what happens there is in the
modules beside this one.  Nothing is remembered about what is on the disk but how far
a log was scanned, so any number of processes may use the same root.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from sessionstore.backends.base import ANY, AnyCwd, Page, SalvageReport, Stored, check_seq, make_page, stored_events
from sessionstore.backends.files import Files, OsFiles, ensure_directories, read_chunks, storage_errors
from sessionstore.backends.jsonl.frames import salvaged
from sessionstore.backends.jsonl.index import Checkpoint, Index, load_index, save_index
from sessionstore.backends.jsonl.leftovers import remove_leftovers
from sessionstore.backends.jsonl.listing import list_sessions, look_closer
from sessionstore.backends.jsonl.lock import SessionLock, lock_path, probe
from sessionstore.backends.jsonl.lookup import check_directory, find_session, warn_of_mixed_root
from sessionstore.backends.jsonl.publish import remove_temp_names
from sessionstore.backends.jsonl.reading import Reading, open_log, read_log, read_suffix, unchanged
from sessionstore.backends.jsonl.salvaging import salvage_session
from sessionstore.backends.jsonl.trash import bury, empty_trash, find_buried, home_of, list_trash, unbury
from sessionstore.backends.jsonl.writer import JsonlWriter, TornTail
from sessionstore.backends.paths import session_paths
from sessionstore.clock import Clock, system_clock
from sessionstore.errors import (
    DuplicateSessionError,
    SessionExistsError,
    SessionNotFoundError,
    SessionStoreError,
    StorageError,
)
from sessionstore.header import make_header
from sessionstore.recovery.findings import Verdict
from sessionstore.settle import settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessionstore.backends.base import TrashEntry, Writer, WriterPresence
    from sessionstore.backends.jsonl.lookup import Found
    from sessionstore.backends.paths import Compression
    from sessionstore.events import Event
    from sessionstore.header import Header
    from sessionstore.vocabulary import EventTypes

__all__ = ["JsonlBackend"]

_MAX_CHECKPOINTS: Final = 1024
_READS: Final = 4
"""How often a log that changes while it is read is read before its defects are believed."""

_SURE: Final = frozenset({Verdict.CLEAN, Verdict.INTERRUPTED})
_MAX_TITLE: Final = 1000
_NO_LINKS: Final = "a symbolic link stands between the root and the log; links are not followed for writing"


class _Opened(NamedTuple):
    writer: JsonlWriter
    stored: Stored
    lock: SessionLock


class JsonlBackend:
    """Keeps each session in a directory of its own below *root*.  Implements :class:`sessionstore.backends.base.Backend`.

    Args:
        root: the directory; ``~`` is expanded and the path made absolute once, here.  It is made at the first write.
        compression: the encoding of new sessions; stored ones keep theirs.
        lock_dir: where the locks are when the root's file system has no working ones; the same for all programs.
        files: the operating system, or a double of it.
        clock: gives epoch ms, for notes and the trash.
        types: Structs of the events that are read.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        compression: Compression = "none",
        lock_dir: str | os.PathLike[str] | None = None,
        files: Files | None = None,
        clock: Clock = system_clock,
        types: EventTypes | None = None,
    ) -> None:
        """No I/O.

        Raises:
            ValueError: *root* or *lock_dir* is empty or no name for a directory, or there is no such *compression*.
            TypeError: *root* or *lock_dir* is neither a str nor a path.
            StorageError: one of them is relative and the current directory is gone.
        """
        if compression not in ("none", "zstd"):
            raise ValueError(f'compression is "none" or "zstd", got {compression!r}')
        self.root = _absolute(root)
        self._compression: Compression = compression
        self._lock_dir = None if lock_dir is None else _absolute(lock_dir)
        self._files = OsFiles() if files is None else files
        self._clock = clock
        self._types = types
        self._checkpoints: OrderedDict[str, Checkpoint] = OrderedDict()
        self._looked_for_mix = False

    # Writing

    async def prepare(self, header: Header) -> None:
        """See :class:`sessionstore.backends.base.Backend`."""
        await settle(self._prepare, header)

    def writer(self, header: Header) -> Writer:
        """See :class:`sessionstore.backends.base.Backend`."""
        return JsonlWriter(
            self._files,
            session_paths(self.root, header.id, header.cwd),
            header,
            now=self._clock,
            compression=self._compression,
            lock_dir=self._lock_dir,
        )

    async def open(self, session_id: str) -> tuple[Writer, Stored]:
        """See :class:`sessionstore.backends.base.Backend`."""
        opened = await settle(self._open, session_id, abandoned=lambda opened: opened.lock.release())
        return opened.writer, opened.stored

    def _prepare(self, header: Header) -> None:
        try:
            found = find_session(self._files, self.root, header.id)
        except SessionNotFoundError:
            pass
        except DuplicateSessionError as error:
            raise SessionExistsError(header.id, where=error.paths[0]) from error
        else:
            raise SessionExistsError(header.id, where=found.log)
        directory = session_paths(self.root, header.id, header.cwd).directory
        with storage_errors("store a session in", path=self.root, session_id=header.id):
            check_directory(self._files, directory, self.root)
        if self._lock_dir is not None:
            with storage_errors("keep locks in", path=self._lock_dir, session_id=header.id):
                check_directory(self._files, self._lock_dir, self._lock_dir)
        if not self._looked_for_mix:
            self._looked_for_mix = True
            warn_of_mixed_root(self._files, self.root, self._compression)

    def _open(self, session_id: str) -> _Opened:
        found = find_session(self._files, self.root, session_id)
        lock = self._locked(found, session_id)
        try:
            # Only what is there under the lock counts: it may have been deleted, or compressed, meanwhile.
            found = find_session(self._files, self.root, session_id)
            with contextlib.suppress(OSError):  # of a predecessor that crashed; in nobody's way
                remove_temp_names(self._files, found.paths.directory)
            reading = self._scan(found, session_id, live=False)
            header = reading.scan.header or make_header(session_id, created_at=0)  # a log without one is refused
            writer = self._resumed(found, header, reading, lock)
            return _Opened(writer, self._stored(found, reading, "none", session_id), lock)
        except BaseException:
            lock.release()
            raise

    def _resumed(self, found: Found, header: Header, reading: Reading, lock: SessionLock) -> JsonlWriter:
        return JsonlWriter.resumed(
            self._files,
            found.paths,
            header,
            now=self._clock,
            compression=found.compression,
            lock=lock,
            found=reading.stat,
            next_seq=len(reading.scan.log),
            lock_dir=self._lock_dir,
        )

    def _locked(self, found: Found, session_id: str) -> SessionLock:
        """The lock of a stored session, taken."""
        if found.linked:
            raise StorageError("write to", path=found.log, session_id=session_id, hint=_NO_LINKS)
        if self._lock_dir is not None:
            with storage_errors("make the directory", path=self._lock_dir, session_id=session_id):
                ensure_directories(self._files, self._lock_dir, self._lock_dir)
        path = lock_path(self._files, found.paths, self._lock_dir)
        lock = SessionLock(self._files, path, session_id, now=self._clock)
        try:
            lock.acquire()
        except StorageError as error:
            if isinstance(error.os_error, FileNotFoundError):
                raise SessionNotFoundError(session_id, where=self.root) from error
            raise
        return lock

    # Reading

    async def read(self, session_id: str) -> Stored:
        """See :class:`sessionstore.backends.base.Backend`."""
        return await settle(self._read, session_id)

    async def read_from(self, session_id: str, seq: int) -> Sequence[Event]:
        """See :class:`sessionstore.backends.base.Backend`.

        Of an uncompressed log that this backend has scanned before, or whose index says how far it was scanned,
        only the end is read: what is returned, and what was written since.
        """
        return await settle(self._read_from, session_id, check_seq(seq))

    def _read(self, session_id: str, attempt: int = 1) -> Stored:
        found = find_session(self._files, self.root, session_id)
        lock = lock_path(self._files, found.paths, self._lock_dir)
        presence = probe(self._files, lock)
        try:
            reading = self._scan(found, session_id, live=presence == "live")
        except StorageError as error:
            if isinstance(error.os_error, FileNotFoundError) and attempt < _READS:
                return self._read(session_id, attempt + 1)  # moved to the trash, or from there: look again
            raise
        if reading.scan.verdict not in _SURE and attempt < _READS:
            # What looks like a defect may be a writer at work, who came after the probe or went before this one.
            came = presence != "live" and probe(self._files, lock) == "live"
            if came or not unchanged(self._files, found, reading):
                return self._read(session_id, attempt + 1)
        return self._stored(found, reading, presence, session_id)

    def _scan(self, found: Found, session_id: str, *, live: bool) -> Reading:
        reading = read_log(self._files, found, session_id, types=self._types, live=live)
        if reading.checkpoint is not None:
            self._remember(session_id, reading.checkpoint)
        return reading

    def _stored(self, found: Found, reading: Reading, presence: WriterPresence, session_id: str) -> Stored:
        torn = self._torn(found, reading, session_id) if reading.scan.verdict is Verdict.TORN else None
        stat = reading.stat
        revision = (stat.device, stat.inode, stat.size, stat.mtime_ns)
        return Stored(reading.scan, torn, found.log, presence, revision)

    def _torn(self, found: Found, reading: Reading, session_id: str) -> TornTail:
        """Where a repair has to cut.  Whole lines in a compressed frame that has to go are written again."""
        safe = reading.scan.safe_offset
        if reading.frames is None:
            return TornTail(safe)
        end = reading.frames.end_before(safe)
        if end.decoded == safe:
            return TornTail(end.compressed)
        with open_log(self._files, found, session_id) as (fd, _):
            tail = b"".join(read_chunks(self._files, fd, end.compressed, reading.stat.size))
        return TornTail(end.compressed, salvaged(tail, safe - end.decoded))

    def _read_from(self, session_id: str, seq: int) -> Sequence[Event]:
        found = find_session(self._files, self.root, session_id)
        known = self._known(found, session_id)
        if known is not None:
            suffix = read_suffix(self._files, found, session_id, seq, known=known, types=self._types)
            if suffix is not None:
                self._remember(session_id, suffix[1])
                return suffix[0]
        return stored_events(self._read(session_id), session_id, seq)

    # Repairing

    async def salvage(self, session_id: str, *, dry_run: bool, cwd: str | None) -> SalvageReport:
        """See :class:`sessionstore.backends.base.Backend`."""
        return await settle(salvage_session, self, session_id, cwd, dry_run)

    # How far logs were scanned

    def _known(self, found: Found, session_id: str) -> Checkpoint | None:
        if found.compression != "none":
            return None
        known = self._checkpoints.get(session_id)
        if known is None:
            index = load_index(self._files, found.paths.directory)
            known = None if index is None else index.checkpoint
        return known if known is not None and known.fits(found.stat) else None

    def _remember(self, session_id: str, checkpoint: Checkpoint) -> None:
        self._checkpoints[session_id] = checkpoint
        while len(self._checkpoints) > _MAX_CHECKPOINTS:
            with contextlib.suppress(KeyError):  # another worker was faster
                self._checkpoints.popitem(last=False)

    async def write_index(self, session_id: str, *, title: str | None, turns: int, events: int) -> None:
        """See :class:`sessionstore.backends.base.Backend`."""
        with contextlib.suppress(SessionStoreError, OSError):
            await settle(self._write_index, session_id, title, turns, events)

    def _write_index(self, session_id: str, title: str | None, turns: int, events: int) -> None:
        found = find_session(self._files, self.root, session_id)
        if found.linked:
            return
        log = found.stat
        index = Index(
            device=log.device,
            inode=log.inode,
            size=log.size,
            mtime_ns=str(log.mtime_ns),
            # A lone surrogate has no UTF-8; a title is for people.
            title=None if title is None else title[:_MAX_TITLE].encode("utf-8", "replace").decode(),
            turns=turns,
            events=events,
            checkpoint=self._known(found, session_id),
        )
        save_index(self._files, found.paths.directory, index)

    # Listing and deleting

    async def list(
        self, *, cwd: str | AnyCwd | None = ANY, limit: int | None = None, after: tuple[int, str] | None = None
    ) -> Page:
        """See :class:`sessionstore.backends.base.Backend`."""
        return await settle(self._list, cwd, limit, after)

    def _list(self, cwd: str | AnyCwd | None, limit: int | None, after: tuple[int, str] | None) -> Page:
        rows = list_sessions(self._files, self.root, cwd=cwd, lock_dir=self._lock_dir)
        return look_closer(self._files, make_page(rows, limit=limit, after=after))

    async def delete(self, session_id: str) -> TrashEntry:
        """See :class:`sessionstore.backends.base.Backend`."""
        return await settle(self._delete, session_id)

    def _delete(self, session_id: str) -> TrashEntry:
        found = find_session(self._files, self.root, session_id, any_encoding=True)
        lock = self._locked(found, session_id)
        try:
            found = find_session(self._files, self.root, session_id, any_encoding=True)
            return bury(self._files, self.root, found, session_id, self._clock())
        finally:
            lock.release()

    async def trash(self) -> Sequence[TrashEntry]:
        """See :class:`sessionstore.backends.base.Backend`."""
        return await settle(lambda: [buried.entry for buried in list_trash(self._files, self.root)])

    async def restore(self, entry: TrashEntry) -> None:
        """See :class:`sessionstore.backends.base.Backend`."""
        await settle(self._restore, entry)

    def _restore(self, entry: TrashEntry) -> None:
        buried = find_buried(self._files, self.root, entry)
        try:
            there = find_session(self._files, self.root, buried.entry.id, any_encoding=True)
        except SessionNotFoundError:
            unbury(self._files, self.root, buried, home_of(self._files, buried))
        else:
            raise SessionExistsError(buried.entry.id, where=there.log)

    async def empty_trash(self) -> int:
        """See :class:`sessionstore.backends.base.Backend`."""
        return await settle(self._empty_trash)

    def _empty_trash(self) -> int:
        removed = empty_trash(self._files, self.root)
        remove_leftovers(self._files, self.root, self._lock_dir, self._clock)
        return removed

    # The rest

    def locate(self, session_id: str, cwd: str | None) -> str | None:
        """The path of the log that a new session of that id and *cwd* would have.  No I/O.

        Raises:
            InvalidEventError: the id is empty.
        """
        return session_paths(self.root, session_id, cwd).log(self._compression)

    async def aclose(self) -> None:
        """See :class:`sessionstore.backends.base.Backend`."""
        self._checkpoints.clear()


def _absolute(path: object) -> str:
    text: object = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str):
        raise TypeError(f"a directory is a str or a Path, got {type(path).__name__}")
    if not text or "\0" in text:
        raise ValueError(f"a directory is wanted, got {text!r}")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ValueError(f"no file system has a directory of that name: {text!r}") from error
    home = os.path.expanduser(text)
    if home.startswith("~"):
        raise ValueError(f"nobody has the home directory of {text!r}; a directory of that name is ./{text}")
    if os.path.isabs(home):
        return os.path.normpath(home)
    with storage_errors("find the current directory, for the relative path", path=text):
        return os.path.normpath(os.path.join(os.getcwd(), home))

"""The writing side of one log file that exists: append, and put everything back when that fails.

What is known of the file: its identity, and how far it is durable.  It is opened
anew for every batch and must still be that file, with that length; after every
write its length must be what it should be.  Otherwise somebody writes without the
lock: then nothing more is done to the file, because any cut could take bytes of his.

On a failure the file goes back to the length it had.  Where that fails too, the
bytes that may be in the file are remembered, and the next call removes them before
it writes.  A failed sync is never repeated: the system may have dropped the pages
and call the next sync a success.  The file is cut to what is durable and written
again, for which the bytes accepted without sync are kept in memory.
"""

from __future__ import annotations

import contextlib
import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

from msgspec import Struct

from sessionstore.backends.files import read_chunks, storage_errors
from sessionstore.backends.jsonl.publish import directories_up, remove_temp_names
from sessionstore.errors import ConcurrentWriteError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from contextlib import AbstractContextManager

    from sessionstore.backends.files import Files, FileStat, Identity

__all__ = ["MAX_UNSYNCED", "LogFile"]

MAX_UNSYNCED: Final = 8 * 1024 * 1024
"""Most bytes that are kept for being written again; beyond it even a write without sync is synced."""


class _Attempt(Struct, frozen=True):
    """Bytes of ours that may stand behind the durable length, and how many of them the system said it took."""

    data: bytes
    taken: int


class LogFile:
    """One log file, written by the holder of its lock.  Blocking; calls never overlap.

    ``FileNotFoundError`` from a method means that the file vanished; every other ``OSError`` becomes a
    :class:`StorageError`, and two of them an ``ExceptionGroup`` when putting the file back failed as well.
    """

    def __init__(
        self, files: Files, path: str, session_id: str, *, identity: Identity, size: int, fresh: bool, root: str
    ) -> None:
        """A file of *size* bytes.  *fresh*: just published by us; else its bytes and names may not be durable yet."""
        self.path = path
        self._files = files
        self._session_id = session_id
        self._identity = identity
        self._root = root
        self._trusted = fresh
        self._durable = size
        self._unsynced: list[bytes] = []  # accepted, and not known to be durable
        self._unsynced_in_file = True
        self._attempt: _Attempt | None = None  # what a failure left behind the durable length

    @property
    def size(self) -> int:
        """How long the file has to be now, in bytes."""
        return self._durable + (_total(self._unsynced) if self._unsynced_in_file else 0)

    def append(self, parts: Sequence[bytes], *, sync: bool) -> None:
        """Write each of *parts*, all or none; with *sync* each is durable before the next one is written.

        Raises:
            FileNotFoundError: the file vanished.
            ConcurrentWriteError, StorageError, ExceptionGroup: as :meth:`sessionstore.backends.base.Writer.append`.
        """
        with self._opened() as (fd, found):
            self._prepare(fd, found)
            self._write(fd, parts, sync=sync or _total(self._unsynced) + _total(parts) > MAX_UNSYNCED)

    def sync(self) -> None:
        """Make everything accepted so far durable.  Raises as :meth:`append`."""
        if self._unsynced or self._attempt is not None or not self._trusted:
            self.append((), sync=True)

    def replace_tail(self, cut_at: int, keep: Callable[[int, int, int], None], parts: Sequence[bytes]) -> None:
        """Call ``keep(fd, cut_at, size)``, cut the file there, append *parts*; durable on return.

        Nothing is changed when *keep* raises.  Raises as :meth:`append`.
        """
        with self._opened() as (fd, found):
            self._prepare(fd, found)
            keep(fd, cut_at, self.size)
            with self._errors("cut the torn end of"):
                self._check_size(fd, self.size)
                self._files.truncate(fd, cut_at)
                self._durable = cut_at
                self._files.sync(fd)
            self._write(fd, parts, sync=True)

    @contextmanager
    def _opened(self) -> Generator[tuple[int, FileStat]]:
        """A descriptor of the file, which is still the one we know and has no second name, and what it is now."""
        try:
            fd = self._files.open_append(self.path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._error("open", error) from error
        try:
            yield fd, self._check_identity(fd)
        finally:
            # What had to be durable has been synced by now; a failing close takes nothing back.
            with contextlib.suppress(OSError):
                self._files.close(fd)

    def _check_identity(self, fd: int) -> FileStat:
        with self._errors("look at"):
            found = self._files.fstat(fd)
            if found.kind != "file" or found.identity != self._identity:
                raise self._foreign("the file that this session has been writing", "another file in its place")
            if found.links > 1:
                remove_temp_names(self._files, os.path.dirname(self.path), of=found)
                found = self._files.fstat(fd)
        if found.links == 0:
            raise FileNotFoundError(errno.ENOENT, "removed", self.path)
        if found.links > 1:
            raise StorageError(
                "write to",
                path=self.path,
                session_id=self._session_id,
                hint=f"the file has {found.links} names (hard links) and a write would change them all; "
                "replace it by a copy of itself",
            )
        return found

    def _prepare(self, fd: int, found: FileStat) -> None:
        """Put back what an earlier failure left, or check the length; make what a predecessor wrote durable."""
        if self._attempt is None:
            if found.size != self.size:
                raise self._foreign(f"{self.size} bytes", f"{found.size} bytes")
        else:
            with self._errors("restore the durable length of"):
                self._cut_back(fd, self._durable, self._attempt)
            self._attempt = None
        if not self._trusted:
            # Whoever wrote this may have crashed a moment later: it is in the page cache, and maybe only there.
            # The same holds for the names of the file and of its directories.
            with self._errors("sync"):
                self._files.sync(fd)
                for directory in directories_up(self.path, self._root):
                    self._files.sync_directory(directory)
            self._trusted = True

    def _write(self, fd: int, parts: Sequence[bytes], *, sync: bool) -> None:
        """Write what has to be written again, then *parts*; when that fails, put the file back."""
        start = self.size
        first = self._durable
        accepted = first + _total(self._unsynced)
        in_file = list(self._unsynced) if self._unsynced_in_file else []
        again = [] if self._unsynced_in_file else list(self._unsynced)
        run = _Run(self._files, fd, start)
        try:
            for data in again:
                self._put(run, data)
            for data in parts:
                if sync and (self._unsynced or run.end > accepted):
                    self._sync(run, accepted)
                self._put(run, data)
            if sync and (self._unsynced or run.end > accepted):
                self._sync(run, accepted)
        except OSError as error:
            # After a failed sync nothing counts that was not synced before; a failed write spoils only itself.
            target = self._durable if run.syncing else max(self._durable, start)
            ours = b"".join([*in_file, *again, *parts])
            self._put_back(fd, target, _Attempt(ours[target - first :], run.end - target), error)
        if sync:
            self._durable = run.end
        else:
            self._unsynced.extend(parts)
        self._unsynced_in_file = True

    def _put(self, run: _Run, data: bytes) -> None:
        run.write(data)
        self._check_size(run.fd, run.end)

    def _sync(self, run: _Run, accepted: int) -> None:
        run.sync()
        self._durable, self._unsynced, self._unsynced_in_file = accepted, [], True

    def _put_back(self, fd: int, target: int, attempt: _Attempt, error: OSError) -> NoReturn:
        """Cut the file to *target*, which is the durable length or, after a failed write, the length before it."""
        failure = self._error("append to", error)
        try:
            self._cut_back(fd, target, attempt)
        except OSError as second:
            self._remember(target, attempt)
            restore = self._error("restore the durable length of", second)
            raise ExceptionGroup("a write failed, and so did putting the file back", [failure, restore]) from error
        except ConcurrentWriteError as foreign:
            raise foreign from error
        raise failure from error

    def _cut_back(self, fd: int, target: int, attempt: _Attempt) -> None:
        """Cut the file to *target* if everything behind it is *attempt*, and sync.  Raises ``OSError`` as it comes."""
        size = self._files.fstat(fd).size
        if size < target or not self._is_ours(fd, target, size, attempt):
            raise self._foreign(f"its first {target} bytes and then only bytes of this session", f"{size} bytes")
        if size > target:
            self._files.truncate(fd, target)
        self._files.sync(fd)
        if target > self._durable:  # the unsynced bytes stood, and are durable now
            self._durable, self._unsynced = target, []
        self._unsynced_in_file = not self._unsynced

    def _remember(self, target: int, attempt: _Attempt) -> None:
        """Keep what may be in the file behind the durable length, for the next call to remove."""
        standing = b"".join(self._unsynced) if target > self._durable else b""
        self._attempt = _Attempt(standing + attempt.data, len(standing) + attempt.taken)
        self._unsynced_in_file = not self._unsynced

    def _is_ours(self, fd: int, start: int, size: int, attempt: _Attempt) -> bool:
        """Whether the bytes from *start* to *size* are the beginning of *attempt*, or blocks of it read back as NULs."""
        if size - start == attempt.taken:
            return True  # as many as the system took from us; they may be unreadable now
        if size - start > len(attempt.data):
            return False
        at = 0
        for piece in read_chunks(self._files, fd, start, size):
            ours = attempt.data[at : at + len(piece)]
            if piece != ours and any(a not in (0, b) for a, b in zip(piece, ours, strict=True)):
                return False
            at += len(piece)
        return at == size - start

    def _check_size(self, fd: int, expected: int) -> None:
        size = self._files.fstat(fd).size
        if size != expected:
            raise self._foreign(f"{expected} bytes", f"{size} bytes")

    def _foreign(self, expected: str, found: str) -> ConcurrentWriteError:
        return ConcurrentWriteError(self._session_id, path=self.path, expected=expected, found=found)

    def _error(self, action: str, error: OSError) -> StorageError:
        return StorageError(action, path=self.path, os_error=error, session_id=self._session_id)

    def _errors(self, action: str) -> AbstractContextManager[None]:
        return storage_errors(action, path=self.path, session_id=self._session_id)


class _Run:
    """The writes of one call: where the file ends by what the system said, and whether a sync is what fails."""

    def __init__(self, files: Files, fd: int, start: int) -> None:
        self.fd = fd
        self.end = start
        self.syncing = False
        self._files = files

    def write(self, data: bytes) -> None:
        """Write all of *data*; ``end`` counts every byte taken, also when a later one is refused."""
        rest = memoryview(data)
        while rest:
            taken = self._files.write(self.fd, rest)
            if taken <= 0:
                raise OSError(errno.EIO, "the system took no bytes")
            self.end += taken
            rest = rest[taken:]

    def sync(self) -> None:
        self.syncing = True
        self._files.sync(self.fd)
        self.syncing = False


def _total(parts: Sequence[bytes]) -> int:
    return sum(map(len, parts))

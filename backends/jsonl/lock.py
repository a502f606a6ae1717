"""One writer per session: an OS lock on ``session.lock``, held until the writer is disposed.

The lock is ``flock`` as the filelock library takes it, on a descriptor of ours
(``filelock.lock_descriptor``; a ``filelock.FileLock`` on the same file conflicts with
it).  There is no fallback to a lock by existence: a crashed holder's lock is free at
once and a live one is never stolen.  The file stays where it is, because removing it
would split those who wait across two files; what it holds is a note about the holder,
for messages only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import time
import weakref
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from sessionstore.backends.files import storage_errors, write_all
from sessionstore.backends.paths import lock_name
from sessionstore.errors import SessionLockedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessionstore.backends.base import WriterPresence
    from sessionstore.backends.files import Files, Identity
    from sessionstore.backends.paths import SessionPaths

__all__ = ["RETRY_MS", "Holder", "SessionLock", "lock_path", "probe", "read_holder"]

RETRY_MS: Final = 250
"""How long acquiring goes on trying, in milliseconds: a reader's momentary probe never makes a writer fail."""

_PAUSE: Final = 0.01  # seconds between two tries
_MAX_NOTE: Final = 4096
_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_HINT: Final = (
    "this file system has no working locks; set lock_dir to a directory on a local file system "
    "(all programs that use these sessions must set the same)"
)


class Holder(Struct, frozen=True, omit_defaults=True):
    """The note of a lock's holder; ``since`` is epoch ms.  ``program`` has no arguments: they carry secrets."""

    pid: int
    host: str | None = None
    program: str | None = None
    since: int | None = None


class SessionLock:
    """The lock of one session for one writer.  Two of them conflict, in one process too.

    Not thread safe: calls never overlap.  An instance that is dropped without :meth:`release` frees the lock.
    """

    def __init__(
        self, files: Files, path: str, session_id: str, *, now: Callable[[], int], retry_ms: int = RETRY_MS
    ) -> None:
        """*now* gives epoch ms for the note; *path* is what :func:`lock_path` returned.  No I/O."""
        self.path = path
        self._files = files
        self._session_id = session_id
        self._now = now
        self._retry = retry_ms / 1000
        self._fd: int | None = None
        self._identity: Identity | None = None
        self._finalizer: weakref.finalize[[Files, int], SessionLock] | None = None

    @property
    def held(self) -> bool:
        """Whether :meth:`acquire` succeeded and neither :meth:`release` nor :meth:`after_fork` was called."""
        return self._fd is not None

    def acquire(self) -> None:
        """Take the lock, trying for 250 ms; nothing happens when it is held already.  Blocks: call it in a worker.

        Makes the lock file, but no directory.

        Raises:
            SessionLockedError: somebody else holds it; says who.
            StorageError: the file cannot be opened (``os_error`` is a ``FileNotFoundError`` when its directory is
                not there), or the file system has no locks (``hint`` names ``lock_dir``).
        """
        if self._fd is not None:
            return
        deadline = time.monotonic() + self._retry
        while True:
            fd = self._try()
            if fd is not None:
                break
            if time.monotonic() >= deadline:
                raise self._refusal()
            time.sleep(_PAUSE)
        self._fd = fd
        self._finalizer = weakref.finalize(self, _close_quietly, self._files, fd)
        self._finalizer.atexit = False  # the last batch may still be written at exit; the system frees the lock
        try:
            self._write_note(fd)
        except BaseException:  # the caller's clock may raise: nobody would release this lock then
            self.release()
            raise

    def still_there(self) -> bool:
        """Whether the lock is held and its file is still the one at the path: else another writer can take it.

        Raises:
            StorageError: that cannot be found out.
        """
        if self._fd is None or not self._is_open(self._fd):
            return False
        with storage_errors("look at the lock", path=self.path, session_id=self._session_id):
            try:
                return self._files.stat(self.path).identity == self._identity
            except FileNotFoundError:
                return False

    def release(self) -> None:
        """Free the lock; idempotent.  The file stays, the note is removed.  Never raises."""
        fd = self._forget()
        if fd is None or not self._is_open(fd):
            return
        with contextlib.suppress(OSError):
            if self._is_ours_alone(fd):
                self._files.truncate(fd, 0)
        # A child that was forked without telling us has a copy of the descriptor: closing ours would not free it.
        with contextlib.suppress(OSError):
            self._files.unlock(fd)
        _close_quietly(self._files, fd)

    def after_fork(self) -> None:
        """In a forked child: drop the copy of the descriptor.  The lock itself stays the parent's."""
        fd = self._forget()
        if fd is not None and self._is_open(fd):
            _close_quietly(self._files, fd)

    def _is_open(self, fd: int) -> bool:
        """Whether *fd* is still our descriptor: a program may close all it knows nothing of, and reuse the number."""
        try:
            return self._files.fstat(fd).identity == self._identity
        except OSError as error:
            return error.errno != errno.EBADF  # any other answer comes from the file system, about a file that is open

    def _forget(self) -> int | None:
        fd, self._fd = self._fd, None
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None
        return fd

    def _try(self) -> int | None:
        """The locked descriptor, or ``None`` when somebody else holds the lock or the file is being replaced."""
        with storage_errors("open the lock", path=self.path, session_id=self._session_id):
            fd = self._files.open_lock(self.path)
        try:
            if self._lock(fd) and self._is_at_path(fd):
                return fd
        except BaseException:
            _close_quietly(self._files, fd)
            raise
        _close_quietly(self._files, fd)
        return None

    def _lock(self, fd: int) -> bool:
        try:
            return self._files.lock(fd)
        except OSError as error:
            hint = _HINT if error.errno in _NO_LOCKS else None
            raise StorageError(
                "lock", path=self.path, os_error=error, session_id=self._session_id, hint=hint
            ) from error

    def _is_at_path(self, fd: int) -> bool:
        """Whether the file locked is the one others will open: it may have been moved to the trash meanwhile."""
        with storage_errors("open the lock", path=self.path, session_id=self._session_id):
            mine = self._files.fstat(fd)
            if mine.kind != "file":
                raise OSError(0, f"it is not a file but {mine.noun}")
            try:
                found = self._files.stat(self.path)
            except FileNotFoundError:
                return False
            self._identity = mine.identity
            return found.identity == mine.identity

    def _write_note(self, fd: int) -> None:
        holder = Holder(os.getpid(), socket.gethostname(), _program(), self._now())
        # A full disk keeps nobody from holding a lock: the note is for messages only.
        with contextlib.suppress(OSError):
            if self._is_ours_alone(fd):
                self._files.truncate(fd, 0)
                write_all(self._files, fd, msgspec.json.encode(holder))

    def _is_ours_alone(self, fd: int) -> bool:
        """Whether the lock file has no second name: a hard link put in its place must not cost the other file a byte."""
        return self._files.fstat(fd).links <= 1

    def _refusal(self) -> SessionLockedError:
        holder = read_holder(self._files, self.path)
        if holder is None:
            return SessionLockedError(self._session_id)
        ours = (holder.pid, holder.host) == (os.getpid(), socket.gethostname())
        return SessionLockedError(
            self._session_id,
            pid=holder.pid,
            host=holder.host,
            program=holder.program,
            since=holder.since,
            detail="it is open in this process, in another store or one that was not closed" if ours else None,
        )


def lock_path(files: Files, paths: SessionPaths, lock_dir: str | None) -> str:
    """Where the lock of a session is: beside its log, or in *lock_dir* under a name that no other session has.

    The name in *lock_dir* is made from the resolved path, so that a root reached in two ways has one lock.
    """
    if lock_dir is None:
        return paths.lock
    return os.path.join(lock_dir, lock_name(files.real_path(paths.directory)))


def probe(files: Files, path: str) -> WriterPresence:
    """Whether somebody holds the lock at *path*, by a momentary shared lock on a read-only descriptor.

    Writes nothing and creates nothing; ``unknown`` where that cannot be found out.  Never raises.
    """
    try:
        fd = files.open_read(path)
    except FileNotFoundError:
        return "none"
    except OSError:
        return "unknown"
    try:
        if not files.lock(fd, shared=True):
            return "live"
        files.unlock(fd)
    except OSError:
        return "unknown"
    else:
        return "none"
    finally:
        _close_quietly(files, fd)


def read_holder(files: Files, path: str) -> Holder | None:
    """The note in the lock file at *path*, which is about the present holder only while somebody holds the lock."""
    try:
        fd = files.open_read(path)
    except OSError:
        return None
    try:
        return msgspec.json.decode(files.pread(fd, _MAX_NOTE, 0), type=Holder)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    finally:
        _close_quietly(files, fd)


def _program() -> str | None:
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return (name or os.path.basename(sys.executable)).encode("utf-8", "replace").decode() or None


def _close_quietly(files: Files, fd: int) -> None:
    with contextlib.suppress(OSError):
        files.close(fd)

"""The one seam through which the backends reach the operating system.

:class:`Files` lists every file operation that a backend may do; :class:`OsFiles`
does them.  A test puts a double in its place that fails before any single call,
or that knows which bytes and which names a power cut would leave.  So each method
is one system call (where it is two, the second one only tightens a mode), nothing
is buffered, and no method hides a failure.

Files are made 0600 and directories 0700 whatever the umask is, and no method
follows a symbolic link in the last component of a path.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat as modes
import sys
from typing import TYPE_CHECKING, Final, Literal, Protocol

from msgspec import Struct

from sessionstore.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "CHUNK",
    "FileKind",
    "FileStat",
    "Files",
    "Identity",
    "OsFiles",
    "ensure_directories",
    "read_chunks",
    "storage_errors",
    "write_all",
]

CHUNK: Final = 1024 * 1024
"""Bytes read or written at a time where a whole file passes through."""

FileKind = Literal["file", "directory", "link", "other"]
Identity = tuple[int, int]
"""Device and inode: what makes two paths the same file."""

_NOUNS: Final[dict[FileKind, str]] = {
    "file": "a file",
    "directory": "a directory",
    "link": "a symbolic link",
    "other": "a pipe, a socket or a device",
}
_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
_COMMON: Final = os.O_NOFOLLOW | os.O_CLOEXEC
_ACCESS_OF_LINKS: Final = os.access in os.supports_follow_symlinks
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | _COMMON
# What a file system answers that cannot sync a directory: there is nothing more that could be done.
_NO_DIRECTORY_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
_NO_MODES: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
_NO_FULL_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY})


class FileStat(Struct, frozen=True, gc=False):
    """What is asked of a file: ``size`` in bytes, ``mtime_ns`` in nanoseconds since the epoch."""

    kind: FileKind
    device: int
    inode: int
    links: int
    size: int
    mtime_ns: int

    @property
    def identity(self) -> Identity:
        """Device and inode."""
        return (self.device, self.inode)

    @property
    def noun(self) -> str:
        """What it is, in words."""
        return _NOUNS[self.kind]


class Files(Protocol):
    """The file operations of the backends.  Every method raises the ``OSError`` that the system reports."""

    def open_read(self, path: str) -> int:
        """Open for reading: a descriptor."""
        ...

    def open_append(self, path: str) -> int:
        """Open an existing file for reading, and for writing at its end."""
        ...

    def open_lock(self, path: str) -> int:
        """Open for reading and writing, creating an empty file when there is none."""
        ...

    def create(self, path: str) -> int:
        """Create for reading, and for writing at its end; ``FileExistsError`` when the name is taken."""
        ...

    def close(self, fd: int) -> None:
        """Close; the descriptor is gone even when this raises."""
        ...

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Up to *length* bytes at *offset*; maybe fewer, ``b""`` only at the end."""
        ...

    def write(self, fd: int, data: memoryview) -> int:
        """Write once, at the end; how many bytes were taken, maybe fewer than given."""
        ...

    def truncate(self, fd: int, length: int) -> None:
        """Cut to *length* bytes."""
        ...

    def sync(self, fd: int) -> None:
        """Return when the bytes and the length of the file survive a power cut."""
        ...

    def fstat(self, fd: int) -> FileStat:
        """What is known of an open file."""
        ...

    def stat(self, path: str, *, follow: bool = False) -> FileStat:
        """What is known of a name; a symbolic link is reported as such unless *follow*."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is such a name, as far as can be told; a symbolic link is one.  Never raises ``OSError``."""
        ...

    def mkdir(self, path: str) -> None:
        """Make one directory."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return when the names in *path* survive a power cut."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give *source* a second name; ``FileExistsError`` when *target* is taken."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename; a file at *target* is replaced."""
        ...

    def unlink(self, path: str) -> None:
        """Remove the name of a file."""
        ...

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, in no order."""
        ...

    def writable(self, path: str) -> bool:
        """Whether names can be made in the directory *path*, as far as can be told without trying."""
        ...

    def real_path(self, path: str) -> str:
        """*path* with every symbolic link resolved, as far as it exists."""
        ...

    def lock(self, fd: int, *, shared: bool = False) -> bool:
        """Lock the open file at once; ``False`` when somebody else's lock is in the way.

        The lock belongs to the open file: two descriptors in one process conflict, a forked child's copy does not.
        """
        ...

    def unlock(self, fd: int) -> None:
        """Release the lock of the open file."""
        ...


class OsFiles:
    """The file operations of the operating system (Linux and macOS)."""

    def open_read(self, path: str) -> int:
        """See :class:`Files`."""
        # O_NONBLOCK: a pipe put in the place of a file must not hang the reader.
        return os.open(path, _READ)

    def open_append(self, path: str) -> int:
        """See :class:`Files`."""
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | _COMMON)

    def open_lock(self, path: str) -> int:
        """See :class:`Files`."""
        try:
            return _tightened(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _COMMON, _FILE_MODE))
        except FileExistsError:
            return os.open(path, os.O_RDWR | os.O_NONBLOCK | _COMMON)

    def create(self, path: str) -> int:
        """See :class:`Files`."""
        return _tightened(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | _COMMON, _FILE_MODE))

    def close(self, fd: int) -> None:
        """See :class:`Files`."""
        os.close(fd)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """See :class:`Files`."""
        return os.pread(fd, length, offset)

    def write(self, fd: int, data: memoryview) -> int:
        """See :class:`Files`."""
        return os.write(fd, data)

    def truncate(self, fd: int, length: int) -> None:
        """See :class:`Files`."""
        os.ftruncate(fd, length)

    def sync(self, fd: int) -> None:
        """See :class:`Files`; on macOS ``fsync`` alone leaves the bytes in the drive's cache."""
        if sys.platform != "darwin" or not _full_sync(fd):
            os.fsync(fd)

    def fstat(self, fd: int) -> FileStat:
        """See :class:`Files`."""
        return _file_stat(os.fstat(fd))

    def stat(self, path: str, *, follow: bool = False) -> FileStat:
        """See :class:`Files`."""
        return _file_stat(os.stat(path, follow_symlinks=follow))

    def exists(self, path: str) -> bool:
        """See :class:`Files`."""
        return os.access(path, os.F_OK, follow_symlinks=not _ACCESS_OF_LINKS)

    def mkdir(self, path: str) -> None:
        """See :class:`Files`."""
        os.mkdir(path, _DIRECTORY_MODE)
        if os.stat(path, follow_symlinks=False).st_mode & 0o777 != _DIRECTORY_MODE:
            _set_mode(path, _DIRECTORY_MODE)

    def sync_directory(self, path: str) -> None:
        """See :class:`Files`."""
        # The root may be reached through a symbolic link, so this one open follows.
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(fd)
        except OSError as error:
            if error.errno not in _NO_DIRECTORY_SYNC:
                raise
        finally:
            os.close(fd)

    def link(self, source: str, target: str) -> None:
        """See :class:`Files`."""
        os.link(source, target, follow_symlinks=False)

    def rename(self, source: str, target: str) -> None:
        """See :class:`Files`."""
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        """See :class:`Files`."""
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        """See :class:`Files`."""
        os.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        """See :class:`Files`."""
        return os.listdir(path)

    def writable(self, path: str) -> bool:
        """See :class:`Files`."""
        return os.access(path, os.W_OK | os.X_OK)

    def real_path(self, path: str) -> str:
        """See :class:`Files`."""
        return os.path.realpath(path)

    def lock(self, fd: int, *, shared: bool = False) -> bool:
        """See :class:`Files`."""
        return _lock_shared(fd) if shared else _lock_exclusive(fd)

    def unlock(self, fd: int) -> None:
        """See :class:`Files`."""
        _unlock(fd)


if sys.platform == "darwin":

    def _full_sync(fd: int) -> bool:
        """Sync through the drive's cache; whether this file system can."""
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
            return False
        return True


def _lock_exclusive(fd: int) -> bool:
    # The library knows which errors mean "held" on which file system; imported when first needed.
    from filelock import lock_descriptor  # noqa: PLC0415

    return lock_descriptor(fd, blocking=False)


def _unlock(fd: int) -> None:
    from filelock import unlock_descriptor  # noqa: PLC0415  # as above

    unlock_descriptor(fd)


def _lock_shared(fd: int) -> bool:
    # filelock has no shared lock on a descriptor.
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _tightened(fd: int) -> int:
    """*fd*, a file just made: readable and writable by its owner even under a umask that forbids it."""
    try:
        if modes.S_IMODE(os.fstat(fd).st_mode) != _FILE_MODE:
            _set_mode(fd, _FILE_MODE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _set_mode(target: int | str, mode: int) -> None:
    try:
        os.chmod(target, mode)
    except OSError as error:
        if error.errno not in _NO_MODES:  # a file system without modes: the mount decides who may read
            raise


def _file_stat(found: os.stat_result) -> FileStat:
    kind: FileKind = "other"
    if modes.S_ISREG(found.st_mode):
        kind = "file"
    elif modes.S_ISDIR(found.st_mode):
        kind = "directory"
    elif modes.S_ISLNK(found.st_mode):
        kind = "link"
    return FileStat(kind, found.st_dev, found.st_ino, found.st_nlink, found.st_size, found.st_mtime_ns)


class storage_errors:  # noqa: N801 - it stands where a function of contextlib would
    """Turn an ``OSError`` of the block into the :class:`StorageError` that says "cannot *action* *path*".

    A class, because every batch passes through several of them and a generator costs three times as much.
    """

    __slots__ = ("_action", "_hint", "_path", "_session_id")

    def __init__(self, action: str, *, path: str, session_id: str | None = None, hint: str | None = None) -> None:
        self._action = action
        self._path = path
        self._session_id = session_id
        self._hint = hint

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            raise StorageError(
                self._action, path=self._path, os_error=error, session_id=self._session_id, hint=self._hint
            ) from error


def write_all(files: Files, fd: int, data: bytes) -> None:
    """Write every byte of *data* at the end, going on after a short write.  Raises ``OSError``."""
    rest = memoryview(data)
    while rest:
        taken = files.write(fd, rest)
        if taken <= 0:
            # The kernel never says so for a file; going round for ever on such an answer would be worse.
            raise OSError(errno.EIO, "the system took no bytes")
        rest = rest[taken:]


def read_chunks(
    files: Files, fd: int, start: int = 0, stop: int | None = None, *, chunk: int = CHUNK
) -> Iterator[bytes]:
    """The bytes from *start* to *stop* (``None``: the end), in pieces; ends early where the file does."""
    while stop is None or start < stop:
        wanted = chunk if stop is None else min(chunk, stop - start)
        piece = files.pread(fd, wanted, start)
        if not piece:
            return
        yield piece
        start += len(piece)


def ensure_directories(files: Files, root: str, directory: str) -> None:
    """Make *directory*, which is *root* or lies below it, and what is missing above it; the names are durable.

    Below the root a symbolic link is not taken for a directory.  Raises ``OSError``.
    """
    missing: list[str] = []
    path = directory
    while not _is_directory(files, path, follow=len(path) <= len(root)):
        missing.append(path)
        parent = os.path.dirname(path)
        if parent == path:
            break
        path = parent
    # The deepest one found may have been made a moment before a crash that came before the sync of its name.
    # Its parent may be out of our reach (/home); then somebody else made it.
    with contextlib.suppress(PermissionError):
        files.sync_directory(os.path.dirname(path))
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            files.mkdir(each)
        files.sync_directory(os.path.dirname(each))
    for each in missing:
        if len(each) > len(root):
            _is_directory(files, each, follow=False)


def _is_directory(files: Files, path: str, *, follow: bool) -> bool:
    try:
        found = files.stat(path, follow=follow)
    except FileNotFoundError:
        return False
    if found.kind != "directory":
        reason = "a symbolic link, which is not followed for writing" if found.kind == "link" else "not a directory"
        raise NotADirectoryError(errno.ENOTDIR, reason, path)
    return True

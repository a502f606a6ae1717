"""Roots with sessions in them, written as files, and file systems that count or refuse."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from sessionstore.backends.files import OsFiles
from sessionstore.backends.jsonl.frames import encode_frame
from sessionstore.backends.paths import LOG_NAMES, session_paths
from tests.recovery import logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessionstore.backends.paths import Compression


def put(root: str, session_id: str, data: bytes, *, cwd: str | None = "/srv/project", name: str | None = None) -> str:
    """Write *data* as the log of a session; its path."""
    directory = session_paths(root, session_id, cwd).directory
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, name or LOG_NAMES["none"])
    with open(path, "wb") as file:
        file.write(data)
    return path


def log(session_id: str = "s1", lines: list[bytes] | None = None, **changes: Any) -> bytes:
    """A log whose header names that session."""
    return logs.header(id=session_id, **changes) + b"".join(logs.closed_log()[1:] if lines is None else lines)


def framed(text: bytes, *, every: int | None = None) -> bytes:
    """The text as a compressed log: the header's frame, then frames of *every* so many bytes."""
    head, newline, rest = text.partition(b"\n")
    step = every or max(len(rest), 1)
    return b"".join(
        encode_frame(each) for each in [head + newline, *(rest[i : i + step] for i in range(0, len(rest), step))]
    )


def stored(root: str, session_id: str, text: bytes, compression: Compression) -> str:
    """Write *text* in an encoding; the path of the log."""
    data = text if compression == "none" else framed(text)
    return put(root, session_id, data, name=LOG_NAMES[compression])


class CountingFiles(OsFiles):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        self.read = 0

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        data = super().pread(fd, length, offset)
        self.read += len(data)
        return data


class ReadOnlyFiles(OsFiles):
    """A file system that was mounted read-only."""

    def _refuse(self, *_: object, **__: object) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    open_append = open_lock = create = mkdir = link = rename = unlink = rmdir = truncate = write = sync = _refuse

    def writable(self, path: str) -> bool:
        return False


class DeniedFiles(OsFiles):
    """Refuses some paths: what a user without rights sees, also when the tests run as root."""

    def __init__(self, denied: Callable[[str], bool]) -> None:
        self.denied = denied

    def _check(self, path: str) -> None:
        if self.denied(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    def open_read(self, path: str) -> int:
        self._check(path)
        self._check(os.path.dirname(path))
        return super().open_read(path)

    def listdir(self, path: str) -> list[str]:
        self._check(path)
        return super().listdir(path)

    def stat(self, path: str, *, follow: bool = False) -> Any:
        self._check(os.path.dirname(path))
        return super().stat(path, follow=follow)


class FailingFiles(OsFiles):
    """Fails the call number *at* of those that change something; the number of such calls is ``calls``."""

    CHANGES = (
        "open_lock",
        "create",
        "write",
        "truncate",
        "sync",
        "mkdir",
        "sync_directory",
        "link",
        "rename",
        "unlink",
        "rmdir",
    )

    def __init__(self, at: int = 0) -> None:
        self.calls = 0
        for name in self.CHANGES:
            setattr(self, name, self._counted(getattr(self, name), at))

    def _counted(self, call: Callable[..., Any], at: int) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == at:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(*arguments, **named)

        return counted

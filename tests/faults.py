"""A :class:`Files` that fails where a test says: real files below, faults in front of any single call."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from sessionstore.backends.files import FileStat, OsFiles

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FaultyFiles"]


class FaultyFiles(OsFiles):
    """Counts every call and lets a test fail, shorten or watch any of them.

    ``calls`` names them in order; ``before`` is called with the name and the number of each before it is done.
    ``room`` is how many bytes the disk still takes: the write that does not fit is short, the next one is ENOSPC.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.room: int | None = None
        self.most_per_write: int | None = None
        self.before: Callable[[str, int], None] = lambda _name, _number: None
        self._faults: list[tuple[str, int, list[int]]] = []
        self._numbers: range | None = None

    def fail(self, name: str, code: int = errno.EIO, *, skip: int = 0, times: int = 1) -> None:
        """Let the next *times* calls of *name* fail, after *skip* that work."""
        self._faults.append((name, code, [skip, times]))

    def fail_numbers(self, numbers: range) -> None:
        """Let the calls with these numbers fail (0 is the first), whatever they are."""
        self._numbers = numbers

    def heal(self) -> None:
        """No more faults."""
        self._faults.clear()
        self._numbers = None
        self.room = None

    def _call(self, name: str) -> None:
        number = len(self.calls)
        self.calls.append(name)
        self.before(name, number)
        if self._numbers is not None and number in self._numbers:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        for wanted, code, left in self._faults:
            if wanted != name or left[1] == 0:
                continue
            if left[0]:
                left[0] -= 1
                continue
            left[1] -= 1
            raise OSError(code, os.strerror(code))

    def open_read(self, path: str) -> int:
        self._call("open_read")
        return super().open_read(path)

    def open_append(self, path: str) -> int:
        self._call("open_append")
        return super().open_append(path)

    def open_lock(self, path: str) -> int:
        self._call("open_lock")
        return super().open_lock(path)

    def create(self, path: str) -> int:
        self._call("create")
        return super().create(path)

    def close(self, fd: int) -> None:
        try:
            self._call("close")
        finally:
            super().close(fd)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        self._call("pread")
        return super().pread(fd, min(length, 7) if self.most_per_write else length, offset)

    def write(self, fd: int, data: memoryview) -> int:
        self._call("write")
        taken = len(data) if self.most_per_write is None else min(len(data), self.most_per_write)
        if self.room is not None:
            if self.room == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            taken = min(taken, self.room)
            self.room -= taken
        return super().write(fd, data[:taken])

    def truncate(self, fd: int, length: int) -> None:
        self._call("truncate")
        super().truncate(fd, length)

    def sync(self, fd: int) -> None:
        self._call("sync")
        # The disk of a test is not cut off, so its time is not spent.

    def fstat(self, fd: int) -> FileStat:
        self._call("fstat")
        return super().fstat(fd)

    def stat(self, path: str, *, follow: bool = False) -> FileStat:
        self._call("stat")
        return super().stat(path, follow=follow)

    def mkdir(self, path: str) -> None:
        self._call("mkdir")
        super().mkdir(path)

    def sync_directory(self, path: str) -> None:
        self._call("sync_directory")
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        os.close(fd)

    def link(self, source: str, target: str) -> None:
        self._call("link")
        super().link(source, target)

    def rename(self, source: str, target: str) -> None:
        self._call("rename")
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._call("unlink")
        super().unlink(path)

    def rmdir(self, path: str) -> None:
        self._call("rmdir")
        super().rmdir(path)

    def listdir(self, path: str) -> list[str]:
        self._call("listdir")
        return super().listdir(path)

    def lock(self, fd: int, *, shared: bool = False) -> bool:
        self._call("lock")
        return super().lock(fd, shared=shared)

    def unlock(self, fd: int) -> None:
        self._call("unlock")
        super().unlock(fd)

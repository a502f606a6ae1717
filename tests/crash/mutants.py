"""Disks on which one call of the protocol does nothing: an enumeration that finds nothing wrong on them is worth nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.crash.disk import Disk

if TYPE_CHECKING:
    from sessionstore.backends.files import FileStat

__all__ = ["MUTANTS", "NoBarrier", "NoDirectorySync", "NoFileSync", "NoInheritedSync"]


class NoFileSync(Disk):
    """Nothing that is in a file is ever made durable."""

    def sync(self, fd: int) -> None:
        self._begin("sync")


class NoDirectorySync(Disk):
    """No name is ever made durable."""

    def sync_directory(self, path: str) -> None:
        self._begin("sync_directory", path)


class NoBarrier(Disk):
    """A batch is durable in the end, but what stands before its ``turn/end`` is not when that is written."""

    _owed: int | None = None

    def sync(self, fd: int) -> None:
        self._begin("sync")
        self._owed = fd

    def _pay(self) -> None:
        fd, self._owed = self._owed, None
        if fd is not None and fd in self._open:
            self._make_durable(self._node(fd))

    def write(self, fd: int, data: memoryview) -> int:
        if self._owed != fd:
            self._pay()
        self._owed = None  # the write comes at once: nothing in front of it is synced first
        return super().write(fd, data)

    def fstat(self, fd: int) -> FileStat:
        self._pay()
        return super().fstat(fd)

    def close(self, fd: int) -> None:
        self._pay()
        super().close(fd)


class NoInheritedSync(Disk):
    """What an earlier process wrote is never synced: only files into which this one wrote are."""

    def __init__(self, block: int = 128) -> None:
        super().__init__(block)
        self._written: set[int] = set()

    def write(self, fd: int, data: memoryview) -> int:
        self._written.add(self._node(fd).inode)
        return super().write(fd, data)

    def sync(self, fd: int) -> None:
        if self._node(fd).inode in self._written:
            super().sync(fd)
        else:
            self._begin("sync")


MUTANTS: Final[dict[str, type[Disk]]] = {
    "no fsync of a file": NoFileSync,
    "no fsync of a directory": NoDirectorySync,
    "no fsync before a turn/end": NoBarrier,
    "no fsync of what a killed process wrote": NoInheritedSync,
}

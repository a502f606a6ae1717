"""A disk in memory that knows which bytes and which names are durable, and every image that a power cut could leave.

:class:`Disk` is the ``Files`` of the backends.  What it models, and no more gently than a real disk:

* A file keeps its synced bytes.  Everything else is in blocks, and each of them may be found as it was written, as it
  was before, as zeros, or as stale bytes (what lay there before, or another file's text), independently of the others.
* The length is any that the file had since the last sync, or any between those.
* A name that was made, moved or removed since the last sync of its directory may be there or not, each on its own.
  A rename is one step: it is found done or not done, as every journal promises.
* A sync that fails may drop the pages: the next sync succeeds without them, and reads go on showing them.
"""

from __future__ import annotations

import errno
import hashlib
import os
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct, field

from sessionstore.backends.files import FileStat
from tests.crash.blocks import Node

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Directory", "Disk", "Fault"]

ROOT: Final = 1


class Fault(Struct, frozen=True):
    """How an operation fails: with *code*; a write takes half first when *short*; a sync drops pages when *lies*.

    *done*: a link or a rename is made all the same, as where the answer of a server is lost.
    """

    code: int
    short: bool = False
    lies: bool = False
    done: bool = False


class Directory(Struct):
    """A directory: the names that a reader sees, and those that are durable."""

    inode: int
    names: dict[str, int] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)


Change = tuple[int, str, int | None]
"""Directory, name, what it names from then on (``None``: nothing)."""


class _Open(Struct):
    inode: int
    lock: Literal["shared", "exclusive"] | None = None


class Disk:
    """The :class:`sessionstore.backends.files.Files` that remembers what is durable.

    ``before(name, path)`` is called before every operation.  ``fault(number, name)`` may make it fail.
    """

    def __init__(self, block: int = 128) -> None:
        self.block = block
        self.nodes: dict[int, Node | Directory] = {ROOT: Directory(ROOT)}
        self.pending: list[tuple[Change, ...]] = []  # changes of names that are not durable
        self.version = 0  # of what a power cut could leave
        self.operations = 0
        self.before: Callable[[str, str], None] | None = None
        self.fault: Callable[[int, str], Fault | None] | None = None
        self._open: dict[int, _Open] = {}
        self._next_fd = 3
        self._next_inode = ROOT + 1
        self._clock = 1

    def clone(self) -> Disk:
        """The same disk after every process died and nothing else happened: no descriptors, no locks."""
        twin = type(self)(self.block)
        for inode, node in self.nodes.items():
            if isinstance(node, Node):
                twin.nodes[inode] = node.clone()
            else:
                twin.nodes[inode] = Directory(inode, dict(node.names), dict(node.durable))
        twin.pending = list(self.pending)
        twin._next_inode, twin._clock = self._next_inode, self._clock
        return twin

    def image(self, applied: set[int], contents: dict[int, bytes]) -> Disk:
        """The disk after a power cut: of the pending changes of names only *applied*, of uncertain files *contents*."""
        twin = Disk(self.block)
        names = {inode: dict(node.durable) for inode, node in self.nodes.items() if isinstance(node, Directory)}
        for number, changes in enumerate(self.pending):
            if number in applied:
                for directory, name, inode in changes:
                    _set(names[directory], name, inode)
        todo, top = [ROOT], ROOT
        while todo:
            inode = todo.pop()
            top = max(top, inode)
            node = self.nodes[inode]
            if isinstance(node, Directory):
                found = names[inode]
                twin.nodes[inode] = Directory(inode, dict(found), dict(found))
                todo += found.values()
            elif inode not in twin.nodes:
                data = contents[inode] if inode in contents else bytes(node.data)
                twin.nodes[inode] = Node(inode, node.mtime, bytearray(data), data)
        # The numbers of lost files are given out again, as a real file system does.
        twin._next_inode, twin._clock = top + 1, self._clock
        return twin

    def strictest(self) -> Disk:
        """The image in which nothing survived that was not synced."""
        return self.image(set(), {i: n.disk for i, n in self.nodes.items() if isinstance(n, Node) and n.uncertain})

    def tree(self) -> dict[str, bytes | None]:
        """Every path and what is in it (``None``: a directory)."""
        found: dict[str, bytes | None] = {}
        todo = [("", ROOT)]
        while todo:
            path, inode = todo.pop()
            node = self.nodes[inode]
            if isinstance(node, Node):
                found[path] = bytes(node.data)
            else:
                found[path] = None
                todo += [(f"{path}/{name}", each) for name, each in node.names.items()]
        return found

    def digest(self) -> bytes:
        """Of all that a reader could find, but for the notes in lock files and the random part of names."""
        parts: list[bytes] = []
        for path, data in self.tree().items():
            name, _, _ = path.partition("tmp-")
            parts.append(name.encode() + b"\0" + (b"/" if data is None else b"" if name.endswith(".lock") else data))
        return hashlib.blake2b(b"\1".join(sorted(parts)), digest_size=16).digest()

    # --- what the double itself does --------------------------------------------------------------------------

    def _begin(self, name: str, path: str = "") -> Fault | None:
        if self.before is not None:
            self.before(name, path)
        self.operations += 1
        fault = None if self.fault is None else self.fault(self.operations, name)
        if fault is not None and name not in {"write", "sync"} and not fault.done:
            raise OSError(fault.code, os.strerror(fault.code), path or None)
        return fault

    def _walk(self, path: str) -> tuple[Directory, str, int | None]:
        """The directory of *path*, the last name, and what it names."""
        *way, last = [part for part in path.split("/") if part] or [""]
        here = self.nodes[ROOT]
        for part in way:
            if not isinstance(here, Directory):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
            if part not in here.names:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            here = self.nodes[here.names[part]]
        if not isinstance(here, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return here, last, here.names.get(last) if last else ROOT

    def _find(self, path: str) -> Node | Directory:
        _, _, inode = self._walk(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self.nodes[inode]

    def _directory(self, path: str) -> Directory:
        found = self._find(path)
        if not isinstance(found, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return found

    def _change(self, *changes: Change) -> None:
        for directory, name, inode in changes:
            node = self.nodes[directory]
            if isinstance(node, Directory):
                _set(node.names, name, inode)
        self.pending.append(changes)
        self.version += 1

    def _made(self, directory: Directory, name: str, node: Node | Directory) -> None:
        self.nodes[node.inode] = node
        self._next_inode += 1
        self._change((directory.inode, name, node.inode))

    def _descriptor(self, inode: int) -> int:
        self._next_fd += 1
        self._open[self._next_fd] = _Open(inode)
        return self._next_fd

    def _node(self, fd: int) -> Node:
        node = self.nodes[self._entry(fd).inode]
        if not isinstance(node, Node):
            raise IsADirectoryError(errno.EISDIR, "a directory")
        return node

    def _entry(self, fd: int) -> _Open:
        if fd not in self._open:
            raise OSError(errno.EBADF, "bad descriptor")
        return self._open[fd]

    def _stat(self, node: Node | Directory) -> FileStat:
        if isinstance(node, Directory):
            return FileStat("directory", 1, node.inode, 2, 0, 0)
        links = sum(
            inode == node.inode
            for each in self.nodes.values()
            if isinstance(each, Directory)
            for inode in each.names.values()
        )
        return FileStat("file", 1, node.inode, links, len(node.data), node.mtime)

    # --- Files: descriptors -----------------------------------------------------------------------------------

    def open_read(self, path: str) -> int:
        self._begin("open_read", path)
        return self._descriptor(self._find(path).inode)

    open_append = open_read

    def open_lock(self, path: str) -> int:
        self._begin("open_lock", path)
        directory, name, inode = self._walk(path)
        if inode is None:
            inode = self._next_inode
            self._made(directory, name, Node(inode))
        return self._descriptor(inode)

    def create(self, path: str) -> int:
        self._begin("create", path)
        directory, name, inode = self._walk(path)
        if inode is not None:
            raise FileExistsError(errno.EEXIST, "exists", path)
        self._made(directory, name, Node(self._next_inode))
        return self._descriptor(self._next_inode - 1)

    def close(self, fd: int) -> None:
        self._entry(fd)
        self._open.pop(fd)
        self._begin("close")

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        self._begin("pread")
        return bytes(self._node(fd).data[offset : offset + length])

    def write(self, fd: int, data: memoryview) -> int:
        fault = self._begin("write")
        if fault is not None and not (fault.short and len(data) > 1):
            raise OSError(fault.code, os.strerror(fault.code))
        piece = bytes(data if fault is None else data[: len(data) // 2])
        node, size = self._node(fd), self.block
        start = len(node.data)
        node.data += piece
        for block in range(start // size, (start + len(piece) - 1) // size + 1):
            first = max(0, start - block * size)
            node.dirty[block] = min(first, node.dirty.get(block, size), node.lost.pop(block, size))
        self._touch(node)
        return len(piece)

    def truncate(self, fd: int, length: int) -> None:
        self._begin("truncate")
        node, size = self._node(fd), self.block
        if length > len(node.data):
            raise OSError(errno.EINVAL, "the double does not make files longer")
        for block in range(length // size, -(-len(node.data) // size)):
            node.ghosts[block] = bytes(node.data[block * size : (block + 1) * size])
            if block * size < length and block in node.lost:
                node.dirty[block] = node.lost.pop(block)  # the page was touched: it will be written again
        if length < len(node.data):
            del node.data[length:]
            self._touch(node)

    def _touch(self, node: Node) -> None:
        if not node.lengths:
            node.lengths.append(len(node.disk))
        node.lengths.append(len(node.data))
        self._clock += 1
        node.mtime = self._clock
        self.version += 1

    def sync(self, fd: int) -> None:
        fault = self._begin("sync")
        node = self._node(fd)
        if fault is not None:
            if fault.lies:
                for block, first in node.dirty.items():
                    node.lost[block] = min(first, node.lost.get(block, self.block))
                node.dirty.clear()
            raise OSError(fault.code, os.strerror(fault.code))
        self._make_durable(node)

    def _make_durable(self, node: Node) -> None:
        if not node.uncertain:
            return
        size = self.block
        node.lost = {block: first for block, first in node.lost.items() if block * size < len(node.data)}
        disk = bytearray(node.data)
        for block, first in node.lost.items():
            start, stop = block * size + first, min((block + 1) * size, len(disk))
            disk[start:stop] = node.disk[start:stop].ljust(stop - start, b"\0")
        node.disk = bytes(disk)
        node.dirty.clear()
        node.lengths.clear()
        self.version += 1

    def fstat(self, fd: int) -> FileStat:
        self._begin("fstat")
        return self._stat(self.nodes[self._entry(fd).inode])

    # --- Files: names -----------------------------------------------------------------------------------------

    def stat(self, path: str, *, follow: bool = False) -> FileStat:
        self._begin("stat", path)
        return self._stat(self._find(path))

    def exists(self, path: str) -> bool:
        try:
            self._find(path)
        except OSError:
            return False
        return True

    def mkdir(self, path: str) -> None:
        self._begin("mkdir", path)
        directory, name, inode = self._walk(path)
        if inode is not None:
            raise FileExistsError(errno.EEXIST, "exists", path)
        self._made(directory, name, Directory(self._next_inode))

    def sync_directory(self, path: str) -> None:
        self._begin("sync_directory", path)
        self._make_names_durable(self._directory(path))

    def _make_names_durable(self, directory: Directory) -> None:
        wanted: set[tuple[int, str]] = set()
        kept: list[tuple[Change, ...]] = []
        done: list[tuple[Change, ...]] = []
        for changes in reversed(self.pending):
            # A rename is one step: where one of its names is made durable, so is the other, and all before it.
            if any(place == directory.inode or (place, name) in wanted for place, name, _ in changes):
                wanted.update((place, name) for place, name, _ in changes)
                done.append(changes)
            else:
                kept.append(changes)
        for changes in reversed(done):
            for place, name, inode in changes:
                node = self.nodes[place]
                if isinstance(node, Directory):
                    _set(node.durable, name, inode)
        self.pending = kept[::-1]
        self.version += bool(done)

    def link(self, source: str, target: str) -> None:
        fault = self._begin("link", target)
        inode = self._find(source).inode
        directory, name, there = self._walk(target)
        if there is not None:
            raise FileExistsError(errno.EEXIST, "exists", target)
        self._change((directory.inode, name, inode))
        _report(fault)

    def rename(self, source: str, target: str) -> None:
        fault = self._begin("rename", target)
        moved = self._find(source)
        old, old_name, _ = self._walk(source)
        new, new_name, there = self._walk(target)
        if there is not None and isinstance(in_the_way := self.nodes[there], Directory) and in_the_way.names:
            raise OSError(errno.ENOTEMPTY, "not empty", target)
        self._change((old.inode, old_name, None), (new.inode, new_name, moved.inode))
        _report(fault)

    def unlink(self, path: str) -> None:
        self._begin("unlink", path)
        if isinstance(self._find(path), Directory):
            raise IsADirectoryError(errno.EISDIR, "a directory", path)
        directory, name, _ = self._walk(path)
        self._change((directory.inode, name, None))

    def rmdir(self, path: str) -> None:
        self._begin("rmdir", path)
        if self._directory(path).names:
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        directory, name, _ = self._walk(path)
        self._change((directory.inode, name, None))

    def listdir(self, path: str) -> list[str]:
        self._begin("listdir", path)
        return list(self._directory(path).names)

    def writable(self, path: str) -> bool:
        return isinstance(self._find(path), Directory)

    def real_path(self, path: str) -> str:
        return os.path.normpath(path)

    # --- Files: locks -----------------------------------------------------------------------------------------

    def lock(self, fd: int, *, shared: bool = False) -> bool:
        self._begin("lock")
        mine = self._entry(fd)
        for entry in self._open.values():
            held = entry.lock if entry.inode == mine.inode and entry is not mine else None
            if held == "exclusive" or (held is not None and not shared):
                return False
        mine.lock = "shared" if shared else "exclusive"
        return True

    def unlock(self, fd: int) -> None:
        self._begin("unlock")
        self._entry(fd).lock = None


def _report(fault: Fault | None) -> None:
    """Say that what was done was not."""
    if fault is not None:
        raise OSError(fault.code, os.strerror(fault.code))


def _set(names: dict[str, int], name: str, inode: int | None) -> None:
    if inode is None:
        names.pop(name, None)
    else:
        names[name] = inode

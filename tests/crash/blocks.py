"""A file in blocks: which of its bytes are durable, and what a power cut could make of the others."""

from __future__ import annotations

import random
from typing import Final, Literal

from msgspec import Struct, field

__all__ = ["Content", "Node", "content_of"]

Content = Literal["new", "old", "zero", "garbage", "text", "ended"]
"""What an unsynced block is found as; ``text`` is that of another log, ``ended`` such a text with a ``turn/end``."""

_FOREIGN: Final = (
    b'{"type":"user/message","seq":9041,"time":1700000000001,"data":{"content":[],"role":"user","id":"x"}}\n'
    b'{"type":"plugin/note","seq":9042,"time":1700000000002,"data":{"text":"another session"}}\n'
)
_ENDED: Final = b'{"type":"turn/end","seq":9043,"time":1700000000003,"data":{"turn":9,"reason":{"kind":"completed"}}}\n'
_GARBAGE: Final = bytes(random.Random(7).randbytes(509)).replace(b"\n", b"\xff") + b"\n" + b'\0"\\'


class Node(Struct):
    """A file: what a reader sees (*data*), what is durable (*disk*), and which blocks of the former are not.

    ``dirty`` and ``lost`` map a block to the first byte in it that is not durable; the lost ones were dropped by a
    failed sync.  ``lengths`` are those since the last sync, ``ghosts`` what blocks held before they were cut off.
    """

    inode: int
    mtime: int = 0
    data: bytearray = field(default_factory=bytearray)
    disk: bytes = b""
    dirty: dict[int, int] = field(default_factory=dict)
    lost: dict[int, int] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=list)
    ghosts: dict[int, bytes] = field(default_factory=dict)

    @property
    def uncertain(self) -> bool:
        """Whether a power cut could show anything else than what a reader sees."""
        return bool(self.dirty or self.lost or self.lengths)

    def clone(self) -> Node:
        return Node(
            self.inode, self.mtime, bytearray(self.data), self.disk,
            dict(self.dirty), dict(self.lost), list(self.lengths), dict(self.ghosts),
        )  # fmt: skip


def content_of(node: Node, size: int, length: int, blocks: dict[int, Content]) -> bytes:
    """What is found in the file of blocks of *size* bytes, cut or filled to *length*; *blocks* say what is not new."""
    durable = bytearray(node.disk)
    found = bytearray()
    for block in range(-(-length // size)):
        start, stop = block * size, (block + 1) * size
        first = min(node.dirty.get(block, size), node.lost.get(block, size))
        old = bytes(durable[start:stop]).ljust(size, b"\0")
        if first == size:
            found += old  # durable, or cut off and not yet given up
            continue
        # Of the bytes in front of *first* both copies tell the same, as far as they go.
        fixed = bytes(max(node.data[start : start + first], durable[start : start + first], key=len))
        whole = _block(blocks.get(block, "new"), old, bytes(node.data[start:stop]), node.ghosts.get(block), start)
        found += fixed.ljust(first, b"\0") + whole.ljust(size, b"\0")[first:size]
    return bytes(found[:length]).ljust(length, b"\0")


def _block(choice: Content, old: bytes, new: bytes, ghost: bytes | None, offset: int) -> bytes:
    match choice:
        case "new":
            return new
        case "old":
            return old
        case "zero":
            return b""
        case "garbage":
            return _tile(_GARBAGE, offset, len(old)) if ghost is None else ghost
        case "text":
            return _tile(_FOREIGN, offset, len(old))
        case "ended":
            return _tile(_ENDED + _FOREIGN, offset, len(old))


def _tile(text: bytes, offset: int, length: int) -> bytes:
    at = offset % len(text)
    return (text[at:] + text * (1 + length // len(text)))[:length]

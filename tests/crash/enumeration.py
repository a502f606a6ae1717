"""Every image that a power cut could leave of a :class:`tests.crash.disk.Disk`, and the moments at which it can come.

Where the images are few they are all tried.  Where the product of the choices explodes, these always are: everything
survived, nothing did, each block alone lost, zeroed and stale, each length, every change of names alone kept and
alone lost; the rest is drawn by a seed.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from tests.crash.blocks import Content, Node, content_of
from tests.crash.disk import Directory, Disk

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

__all__ = ["Choice", "images"]

FOUND: Final[tuple[Content, ...]] = ("new", "old", "zero", "garbage", "text")
_ENDED_SHARE: Final = 0.05  # of the drawn images: a stale block that holds another log's turn/end


class Variant(Struct, frozen=True):
    """One file: its length, and what its uncertain blocks are found as (``new`` where nothing is said)."""

    length: int
    blocks: tuple[tuple[int, Content], ...] = ()

    def __str__(self) -> str:
        return f"{self.length} bytes" + "".join(f", block {block} {content}" for block, content in self.blocks)


class Choice(Struct, frozen=True):
    """One image: which of the pending changes of names are there, and what the uncertain files hold."""

    names: frozenset[int]
    files: tuple[tuple[int, Variant], ...] = ()

    def stale(self, disk: Disk) -> Literal["nothing", "text", "end"]:
        """Whether a stale block holds text of a log (it may complete a line, which nobody notices without checksums).

        ``end``: of another log, with a ``turn/end`` in it, which nobody can tell from damage.
        """
        found: Literal["nothing", "text"] = "nothing"
        for inode, variant in self.files:
            node = disk.nodes[inode]
            for block, content in variant.blocks:
                if content == "ended":
                    return "end"
                if content == "text" or (content == "garbage" and isinstance(node, Node) and block in node.ghosts):
                    found = "text"
        return found

    def __str__(self) -> str:
        files = "; ".join(f"file {inode}: {variant}" for inode, variant in self.files)
        return f"names {sorted(self.names)}; {files or 'all bytes'}"

    def of(self, disk: Disk) -> Disk:
        """The image."""
        contents: dict[int, bytes] = {}
        for inode, variant in self.files:
            node = disk.nodes[inode]
            if isinstance(node, Node):
                contents[inode] = content_of(node, disk.block, variant.length, dict(variant.blocks))
        return disk.image(set(self.names), contents)


def images(disk: Disk, rng: random.Random, limit: int) -> Iterator[Choice]:
    """At most *limit* images of *disk* (each more than once, maybe); all of them if they are that few."""
    names = list(_names(disk, rng))
    files: dict[int, list[Variant]] = {}
    all_there = len(names) <= limit
    for inode, node in _uncertain(disk):
        every = _every_variant(node, disk.block, limit)
        all_there = all_there and every is not None
        files[inode] = list(_variants(node, disk.block, rng)) if every is None else every
    if all_there and len(names) * math.prod(map(len, files.values())) <= limit:
        for subset in names:
            for variants in itertools.product(*files.values()):
                yield Choice(subset, tuple(zip(files, variants, strict=True)))
        return
    certain = list(_certain(names, files))
    if len(certain) > limit:
        # The first two of each subset of names (all bytes, no bytes) say most.
        certain = certain[: limit // 3] + rng.sample(certain[limit // 3 :], limit - limit // 3)
    yield from certain
    for _ in range(limit - len(certain)):
        yield Choice(rng.choice(names), tuple((inode, _draw(disk, inode, rng)) for inode in files))


def _certain(names: list[frozenset[int]], files: dict[int, list[Variant]]) -> Iterator[Choice]:
    survivors = tuple((inode, variants[0]) for inode, variants in files.items())
    nothing = tuple((inode, variants[1]) for inode, variants in files.items() if len(variants) > 1)
    for subset in names:
        yield Choice(subset, survivors)
        yield Choice(subset, nothing)
    for inode, variants in files.items():
        for variant in variants[2:]:
            for subset, others in ((names[0], survivors), (names[-1], nothing)):
                yield Choice(subset, (*(other for other in others if other[0] != inode), (inode, variant)))


def _uncertain(disk: Disk) -> Iterator[tuple[int, Node]]:
    """The files whose content is uncertain and matters; the note in a lock file is for messages only."""
    locks: set[int] = set()
    for node in disk.nodes.values():
        if isinstance(node, Directory):
            locks.update(inode for name, inode in node.names.items() if name.endswith(".lock"))
    for inode, node in disk.nodes.items():
        if isinstance(node, Node) and node.uncertain and inode not in locks:
            yield inode, node


def _names(disk: Disk, rng: random.Random) -> Iterator[frozenset[int]]:
    """Subsets of the pending changes: first all of them, last none."""
    count = len(disk.pending)
    everything = range(count)
    if count <= 5:
        for size in range(count, -1, -1):
            yield from map(frozenset, itertools.combinations(everything, size))
        return
    yield frozenset(everything)
    for one in everything:
        yield frozenset(everything) - {one}
        yield frozenset({one})
        yield frozenset(range(one))
    for _ in range(16):
        yield frozenset(one for one in everything if rng.random() < 0.5)
    yield frozenset()


def _every_variant(node: Node, size: int, limit: int) -> list[Variant] | None:
    """All that a file can be found as, in the order of :func:`_variants`; ``None`` where that is too much."""
    blocks = sorted({*node.dirty, *node.lost})
    lengths = sorted({*_lengths(node), *_inner(node, size)})
    if len(FOUND) ** len(blocks) * len(lengths) > limit:
        return None
    found = [Variant(len(node.data)), Variant(len(node.disk), _all(blocks, "old"))]
    for length in lengths:
        contents = itertools.product(FOUND, repeat=len(blocks))
        found += [Variant(length, tuple(zip(blocks, each, strict=True))) for each in contents]
    return found


def _lengths(node: Node) -> list[int]:
    return sorted({len(node.disk), len(node.data), *node.lengths})


def _inner(node: Node, size: int) -> range:
    """The ends of blocks between the lengths that the file had."""
    lengths = _lengths(node)
    return range((lengths[0] // size + 1) * size, lengths[-1], size)


def _variants(node: Node, size: int, rng: random.Random) -> Iterator[Variant]:
    """What is always tried of a file; first all of it as it was written, then nothing of it."""
    blocks = sorted({*node.dirty, *node.lost})
    lengths = _lengths(node)
    written, none = Variant(len(node.data)), _all(blocks, "old")
    yield written
    yield Variant(len(node.disk), none)
    yield Variant(len(node.data), none)
    for length in lengths:
        yield Variant(length)
    for content in FOUND[2:]:
        yield Variant(len(node.data), _all(blocks, content))
        for half in (0, 1):
            yield Variant(len(node.data), _all(blocks[half::2], content))
    for length in _inner(node, size):
        yield Variant(length)
    for _ in range(8):  # a killed process leaves a write cut anywhere
        yield Variant(rng.randint(lengths[0], lengths[-1]))
    for block in blocks:
        for content in FOUND[1:]:
            yield Variant(len(node.data), ((block, content),))


def _all(blocks: Sequence[int], content: Content) -> tuple[tuple[int, Content], ...]:
    return tuple((block, content) for block in blocks)


def _draw(disk: Disk, inode: int, rng: random.Random) -> Variant:
    node = disk.nodes[inode]
    if not isinstance(node, Node):
        raise TypeError("a directory has no bytes")
    blocks = sorted({*node.dirty, *node.lost})
    longest = max(len(node.data), *node.lengths, len(node.disk))
    length = rng.choice((longest, longest, len(node.data), rng.randint(min(node.lengths or [longest]), longest)))
    survive = rng.choice((0.3, 0.6, 0.9))
    kinds: tuple[Content, ...] = ("ended", *FOUND[1:]) if rng.random() < _ENDED_SHARE else FOUND[1:]
    found: tuple[tuple[int, Content], ...] = tuple(
        (block, rng.choice(kinds)) for block in blocks if rng.random() > survive
    )
    return Variant(length, found)

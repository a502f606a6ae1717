"""What happens to whole histories: counters, writers, recoveries, headers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from sessionstore.chunks import encode_row, parse_row
from tests.fuzz.mutators import SEQ, Scene, duplicate_lines, mutator, pick_block, pick_line
from tests.fuzz.sources import split_lines, stale_closers
from tests.recovery import logs

if TYPE_CHECKING:
    import random

__all__ = ["STRANGERS"]

STRANGERS: Final = frozenset({"splice_stranger", "interleave", "two_writers"})
"""The mutators that bring in lines of other logs."""

_ROW: Final = re.compile(rb'\{"type":"(?:text|reasoning|tool-call)-chunks"')


# Seqs


@mutator
def far_seq(scene: Scene, data: bytes) -> bytes:
    """A record claims a seq far away."""
    found = list(SEQ.finditer(data))
    if not found:
        return data
    match = scene.rng.choice(found)
    seq = scene.rng.choice((b"1000000000", b"9007199254740991", b"99", b"1100", b"0", b"150000"))
    return data[: match.start()] + seq + data[match.end() :]


@mutator
def shifted_seqs(scene: Scene, data: bytes) -> bytes:
    """From some line on, all records count from another number."""
    lines = split_lines(data)
    start = pick_line(scene, lines)
    by = scene.rng.choice((-7, -3, -2, -1, 1, 2, 5, 400, 1200))

    def moved(match: re.Match[bytes]) -> bytes:
        return b"%d" % max(int(match[0]) + by, 0)

    return b"".join([*lines[:start], *(SEQ.sub(moved, line, count=1) for line in lines[start:])])


@mutator
def row_overlap(scene: Scene, data: bytes) -> bytes:
    """A packed row begins before the end of what is there, or repeats its middle."""
    lines = split_lines(data)
    at = [index for index, line in enumerate(lines) if _ROW.match(line)]
    if not at:
        return duplicate_lines(scene, data)
    index = scene.rng.choice(at)
    try:
        row = parse_row(lines[index].rstrip(b"\r\n"))
    except Exception:  # noqa: BLE001 - damaged before
        return data
    first = scene.rng.randint(0, len(row) - 1)
    last = scene.rng.randint(first + 1, len(row))
    if scene.rng.random() < 0.5:
        kept = [encode_row(row.slice(0, last)), encode_row(row.slice(first, len(row)))]
    else:
        kept = [lines[index].rstrip(b"\n"), encode_row(row.slice(first, last))]
    return b"".join([*lines[:index], *(line + b"\n" for line in kept), *lines[index + 1 :]])


# Histories


@mutator
def rewind(scene: Scene, data: bytes) -> bytes:
    """A recovery closed the turn, and then the real events came all the same."""
    lines = split_lines(data)
    at = scene.rng.randint(1, max(len(lines), 1))
    return b"".join([*lines[:at], *stale_closers(lines[:at]), *lines[at:]])


@mutator
def two_writers(scene: Scene, data: bytes) -> bytes:
    """Another writer went on from the same event: one behind the other, or line by line."""
    original, rng = scene.original, scene.rng
    if not original.branch:
        return interleave(scene, data)
    shared, own, branch = original.lines[: original.fork], original.lines[original.fork :], original.branch
    dice = rng.random()
    if dice < 0.4:
        return b"".join([*shared, *own, *branch])
    if dice < 0.7:
        return b"".join([*shared, *branch, *own])
    return b"".join([*shared, *_merge(rng, own, branch)])


@mutator
def interleave(scene: Scene, data: bytes) -> bytes:
    """Two logs in one file."""
    other = scene.other.lines[scene.rng.choice((0, 0, 1)) :]
    if scene.rng.random() < 0.4:
        return data + b"".join(other)
    lines = split_lines(data)
    return b"".join([*lines[:1], *_merge(scene.rng, lines[1:], other)])


def _merge(rng: random.Random, a: list[bytes], b: list[bytes]) -> list[bytes]:
    merged: list[bytes] = []
    a, b = a[::-1], b[::-1]
    turn = rng.random() < 0.5
    while a or b:
        source = (a if turn else b) or a or b
        count = min(rng.choice((1, 1, 2, 4)), len(source))
        merged += [source.pop() for _ in range(count)]
        turn = not turn
    return merged


@mutator
def old_snapshot(scene: Scene, data: bytes) -> bytes:
    """The end of the log was lost, and later lines were written all the same."""
    lines = split_lines(data)
    start, stop = pick_block(scene, lines)
    return b"".join([*lines[:start], *lines[stop:], *lines[start:stop]])


# Headers


@mutator
def header_change(scene: Scene, data: bytes) -> bytes:
    """The header is gone, doubled, of another session or version, or odd."""
    lines = split_lines(data)
    odd: list[Any] = [
        [], [lines[0], lines[0]] if lines else [], [logs.header(version=1)], [logs.header(version="0")],
        [logs.header(id="other")], [logs.header(createdAt=-5)], [logs.header(cwd="not/absolute")], [b"{}\n"],
        [logs.header(sandboxMode="on")], [logs.header(future={"a": [1]})], [logs.header(id="../x\x00y")],
        [logs.header().replace(b'"version":0', b'"version":1e400')],
    ]  # fmt: skip
    return b"".join([*scene.rng.choice(odd), *lines[1:]])

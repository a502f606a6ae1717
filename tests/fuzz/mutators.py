"""What happens to logs: each mutator takes the bytes of one and gives them back damaged."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Struct

from sessionstore.chunks import encode_row, parse_row
from tests.fuzz.sources import Original, split_lines, stale_closers
from tests.recovery import logs

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MILD", "MUTATORS", "Mutation", "Scene"]


class Scene(Struct, frozen=True):
    """What a mutator may use: dice, the log before the damage, and a stranger's log."""

    rng: random.Random
    original: Original
    other: Original


Mutation: TypeAlias = "Callable[[Scene, bytes], bytes]"

MUTATORS: Final[dict[str, Mutation]] = {}

MILD: Final[dict[str, frozenset[str]]] = {
    "cut_tail": frozenset({"clean", "interrupted", "torn", "empty"}),
    "nul_tail": frozenset({"torn"}),
    "crlf": frozenset({"clean", "interrupted"}),
    "blank_lines": frozenset({"clean", "interrupted"}),
    "torn_append": frozenset({"torn"}),
}
"""What a valid log may be called at most after these, where nothing else happened to it."""

_HUGE: Final = (
    b"99999999999999999999", b"1e400", b"-1", b"1.5", b"-0", b"9007199254740991", b"9007199254740992", b"1e2",
    b"NaN", b"-Infinity", b"0" * 30, b"1" * 400, b"2.0", b"1e-7", b"4294967295",
)  # fmt: skip
_BAD_UTF8: Final = (b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf0\x9f\x8e", b"\xc0\xaf", b"\x80", b"\xfe\xff")
_NUMBER: Final = re.compile(rb"(?<=[:,\[])-?[0-9]+")
_SEQ: Final = re.compile(rb'(?<="seq":)[0-9]+|(?<="seq0":)[0-9]+')
_ROW: Final = re.compile(rb'\{"type":"(?:text|reasoning|tool-call)-chunks"')


def _mutator(function: Mutation) -> Mutation:
    MUTATORS[function.__name__] = function
    return function


def _at(scene: Scene, data: bytes) -> int:
    """A place in the data: anywhere, or near a line end."""
    rng = scene.rng
    at = rng.randint(0, len(data))
    if rng.random() < 0.3:
        near = data.find(b"\n", at)
        at = min(max(near + rng.randint(-2, 2), 0), len(data)) if near >= 0 else at
    return at


def _range(scene: Scene, data: bytes, most: int = 4096) -> tuple[int, int]:
    start = _at(scene, data)
    rng = scene.rng
    stop = _at(scene, data) if rng.random() < 0.4 else start + rng.choice((1, 2, 8, 30, 100, 512, 1000))
    start, stop = min(start, stop), max(start, stop)
    return start, min(stop, start + most, len(data))


def _pick(scene: Scene, lines: list[bytes]) -> int:
    """The index of a line, seldom that of the header."""
    if len(lines) < 2 or scene.rng.random() < 0.05:
        return 0
    return scene.rng.randrange(1, len(lines))


def _block(scene: Scene, lines: list[bytes]) -> tuple[int, int]:
    start = _pick(scene, lines)
    return start, min(start + scene.rng.choice((1, 1, 1, 2, 3, 5, 20)), len(lines))


# Bytes


@_mutator
def flip_bits(scene: Scene, data: bytes) -> bytes:
    """One to three bits are wrong."""
    out = bytearray(data)
    for _ in range(scene.rng.choice((1, 1, 1, 2, 3))):
        if out:
            out[scene.rng.randrange(len(out))] ^= 1 << scene.rng.randrange(8)
    return bytes(out)


@_mutator
def flip_digit(scene: Scene, data: bytes) -> bytes:
    """A digit of a seq is another one: nothing but the sequence tells."""
    found = list(_SEQ.finditer(data))
    if not found:
        return data
    match = scene.rng.choice(found)
    at = scene.rng.randrange(match.start(), match.end())
    return data[:at] + b"%d" % scene.rng.randrange(10) + data[at + 1 :]


@_mutator
def set_bytes(scene: Scene, data: bytes) -> bytes:
    """A few bytes are random ones."""
    start, stop = _range(scene, data, 40)
    return data[:start] + scene.rng.randbytes(stop - start) + data[stop:]


@_mutator
def cut_tail(scene: Scene, data: bytes) -> bytes:
    """The end is missing."""
    return data[: _at(scene, data)]


@_mutator
def cut_head(scene: Scene, data: bytes) -> bytes:
    """The beginning is missing."""
    return data[min(_at(scene, data), _at(scene, data)) :]


@_mutator
def cut_middle(scene: Scene, data: bytes) -> bytes:
    """Bytes in the middle are missing."""
    start, stop = _range(scene, data)
    return data[:start] + data[stop:]


@_mutator
def splice(scene: Scene, data: bytes) -> bytes:
    """Bytes of the same log stand elsewhere once more."""
    start, stop = _range(scene, data, 600)
    at = _at(scene, data)
    return data[:at] + data[start:stop] + data[at:]


@_mutator
def splice_stranger(scene: Scene, data: bytes) -> bytes:
    """Bytes of another log stand in this one."""
    other = b"".join(scene.other.lines)
    start, stop = _range(scene, other, 600)
    at = _at(scene, data)
    return data[:at] + other[start:stop] + data[at:]


@_mutator
def stale_block(scene: Scene, data: bytes) -> bytes:
    """A block of the disk holds what was written elsewhere."""
    size = scene.rng.choice((64, 512, 512, 4096))
    blocks = max(len(data) // size, 1)
    to, source = scene.rng.randrange(blocks) * size, scene.rng.randrange(blocks) * size
    return data[:to] + data[source : source + min(size, len(data) - to)] + data[to + size :]


@_mutator
def nul_run(scene: Scene, data: bytes) -> bytes:
    """NULs instead of bytes, or between them."""
    start, stop = _range(scene, data)
    dice = scene.rng.random()
    if dice < 0.3:
        size = scene.rng.choice((64, 512, 512))
        start = start // size * size
        stop = min(start + size, len(data))
    elif dice < 0.6:
        return data[:start] + bytes(stop - start) + data[start:]
    return data[:start] + bytes(stop - start) + data[stop:]


@_mutator
def nul_tail(scene: Scene, data: bytes) -> bytes:
    """The log ends in NULs."""
    return data + bytes(scene.rng.choice((1, 3, 100, 412, 512)))


@_mutator
def bad_utf8(scene: Scene, data: bytes) -> bytes:
    """Bytes that no text holds."""
    at = _at(scene, data)
    return data[:at] + scene.rng.choice(_BAD_UTF8) + data[at + scene.rng.randint(0, 2) :]


@_mutator
def huge_number(scene: Scene, data: bytes) -> bytes:
    """A number that is none of ours."""
    found = list(_NUMBER.finditer(data))
    if not found:
        return data
    match = scene.rng.choice(found)
    return data[: match.start()] + scene.rng.choice(_HUGE) + data[match.end() :]


@_mutator
def lone_surrogate(scene: Scene, data: bytes) -> bytes:
    """Half of a pair, escaped, inside strings or not."""
    at = _at(scene, data)
    quote = data.find(b'"', at)
    at = quote if quote >= 0 and scene.rng.random() < 0.7 else at
    return data[:at] + scene.rng.choice((b"\\ud800", b"\\udfff\\ud800", b"\\u00")) + data[at:]


@_mutator
def raw_newline(scene: Scene, data: bytes) -> bytes:
    """A line end where none belongs."""
    at = _at(scene, data)
    return data[:at] + scene.rng.choice((b"\n", b"\n\n", b"\r", b"\r\n")) + data[at:]


@_mutator
def byte_order_mark(scene: Scene, data: bytes) -> bytes:
    """An editor was here."""
    if scene.rng.random() < 0.8:
        return b"\xef\xbb\xbf" + data
    at = _at(scene, data)
    return data[:at] + b"\xef\xbb\xbf" + data[at:]


# Lines


@_mutator
def crlf(scene: Scene, data: bytes) -> bytes:
    """Line ends of another system, on all lines or some."""
    if scene.rng.random() < 0.5:
        return data.replace(b"\n", b"\r\n")
    return b"".join(line[:-1] + b"\r\n" if line.endswith(b"\n") and scene.rng.random() < 0.4 else line
                    for line in split_lines(data))  # fmt: skip


@_mutator
def blank_lines(scene: Scene, data: bytes) -> bytes:
    """Empty lines between the others."""
    lines = split_lines(data)
    for _ in range(scene.rng.randint(1, 3)):
        lines.insert(scene.rng.randint(0, len(lines)), scene.rng.choice((b"\n", b"  \n", b"\t\r\n", b"\n\n\n")))
    return b"".join(lines)


@_mutator
def duplicate_lines(scene: Scene, data: bytes) -> bytes:
    """A retry wrote lines again."""
    lines = split_lines(data)
    start, stop = _block(scene, lines)
    at = stop if scene.rng.random() < 0.7 else scene.rng.randint(0, len(lines))
    return b"".join([*lines[:at], *lines[start:stop], *lines[at:]])


@_mutator
def swap_lines(scene: Scene, data: bytes) -> bytes:
    """Two lines have changed places."""
    lines = split_lines(data)
    a = _pick(scene, lines)
    b = min(a + 1, len(lines) - 1) if scene.rng.random() < 0.6 else _pick(scene, lines)
    if lines:
        lines[a], lines[b] = lines[b], lines[a]
    return b"".join(lines)


@_mutator
def move_block(scene: Scene, data: bytes) -> bytes:
    """Lines stand elsewhere than they were written."""
    lines = split_lines(data)
    start, stop = _block(scene, lines)
    block = lines[start:stop]
    del lines[start:stop]
    at = scene.rng.randint(0, len(lines))
    return b"".join([*lines[:at], *block, *lines[at:]])


@_mutator
def drop_lines(scene: Scene, data: bytes) -> bytes:
    """Lines are gone and left no bytes."""
    lines = split_lines(data)
    start, stop = _block(scene, lines)
    return b"".join(lines[:start] + lines[stop:])


@_mutator
def garble_lines(scene: Scene, data: bytes) -> bytes:
    """Lines are gone, and bytes in their place say how many."""
    lines = split_lines(data)
    start, stop = _block(scene, lines)
    lost = sum(map(len, lines[start:stop]))
    junk = scene.rng.choice((b"#" * max(lost - 1, 0) + b"\n", bytes(lost), scene.rng.randbytes(min(lost, 4000))))
    return b"".join([*lines[:start], junk, *lines[stop:]])


@_mutator
def fuse_lines(scene: Scene, data: bytes) -> bytes:
    """A line end is lost."""
    ends = [at for at, byte in enumerate(data) if byte == 10] if len(data) < 20_000 else [data.find(b"\n")]
    if not ends:
        return data
    at = scene.rng.choice(ends)
    return data[:at] + data[at + 1 :]


@_mutator
def torn_then_whole(scene: Scene, data: bytes) -> bytes:
    """A torn prefix of a line, then the whole line, on one line or two."""
    lines = split_lines(data)
    at = _pick(scene, lines)
    if not lines:
        return data
    torn = lines[at][: scene.rng.randint(0, len(lines[at]))] + scene.rng.choice((b"", b"", b"\n"))
    return b"".join([*lines[:at], torn, *lines[at:]])


@_mutator
def torn_append(scene: Scene, data: bytes) -> bytes:
    """The write of one more line was cut short."""
    line = logs.user(10**6, "never finished").rstrip(b"\n")
    return data + line[: scene.rng.randint(1, len(line))]


@_mutator
def junk_line(scene: Scene, data: bytes) -> bytes:
    """A line that is no record."""
    lines = split_lines(data)
    junk = scene.rng.choice((b"garbage", b"{}", b"[]", b"null", b'"', b"{" * 300, b'{"seq":', b'{"type":"x","seq":3}',
                             b"}{" * 100, b'{"type":"x","seq":' * 20, b'"' * 99, b"0"))  # fmt: skip
    at = scene.rng.randint(0, len(lines))
    return b"".join([*lines[:at], junk + b"\n", *lines[at:]])


@_mutator
def deep_nesting(scene: Scene, data: bytes) -> bytes:
    """A value deeper than anybody needs: closed or not, at its limit or beyond, in a record or not."""
    depth = scene.rng.choice((100, 1000, 5000, 9_990, 10_001, 20_000))
    if scene.rng.random() < 0.98:
        depth = min(depth, 100 if scene.rng.random() < 0.97 else 1000)
    opening, closing = scene.rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    value = opening * depth + b"1" + closing * (depth if scene.rng.random() < 0.7 else 0)
    lines = split_lines(data)
    at = _pick(scene, lines)
    if scene.rng.random() < 0.5:
        seq = scene.rng.randint(0, len(lines))
        value = b'{"type":"my/plugin","seq":%d,"time":1,"data":%b}' % (seq, value)
    return b"".join([*lines[:at], value + b"\n", *lines[at + scene.rng.randint(0, 1) :]])


# Seqs


@_mutator
def far_seq(scene: Scene, data: bytes) -> bytes:
    """A record claims a seq far away."""
    found = list(_SEQ.finditer(data))
    if not found:
        return data
    match = scene.rng.choice(found)
    seq = scene.rng.choice((b"1000000000", b"9007199254740991", b"99", b"1100", b"0", b"150000"))
    return data[: match.start()] + seq + data[match.end() :]


@_mutator
def shifted_seqs(scene: Scene, data: bytes) -> bytes:
    """From some line on, all records count from another number."""
    lines = split_lines(data)
    start = _pick(scene, lines)
    by = scene.rng.choice((-7, -3, -2, -1, 1, 2, 5, 400, 1200))

    def moved(match: re.Match[bytes]) -> bytes:
        return b"%d" % max(int(match[0]) + by, 0)

    return b"".join([*lines[:start], *(_SEQ.sub(moved, line, count=1) for line in lines[start:])])


@_mutator
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


@_mutator
def rewind(scene: Scene, data: bytes) -> bytes:
    """A recovery closed the turn, and then the real events came all the same."""
    lines = split_lines(data)
    at = scene.rng.randint(1, max(len(lines), 1))
    return b"".join([*lines[:at], *stale_closers(lines[:at]), *lines[at:]])


@_mutator
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


@_mutator
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


@_mutator
def old_snapshot(scene: Scene, data: bytes) -> bytes:
    """The end of the log was lost, and later lines were written all the same."""
    lines = split_lines(data)
    start, stop = _block(scene, lines)
    return b"".join([*lines[:start], *lines[stop:], *lines[start:stop]])


# Headers


@_mutator
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

"""What happens to logs: each mutator takes the bytes of one and gives them back damaged."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from tests.fuzz.sources import Original, split_lines
from tests.recovery import logs

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MILD", "MUTATORS", "SEQ", "Mutation", "Scene", "mutator", "pick_block", "pick_line"]


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
SEQ: Final = re.compile(rb'(?<="seq":)[0-9]+|(?<="seq0":)[0-9]+')


def mutator(function: Mutation) -> Mutation:
    """Register a function as a mutator under its name."""
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


def pick_line(scene: Scene, lines: list[bytes]) -> int:
    """The index of a line, seldom that of the header."""
    if len(lines) < 2 or scene.rng.random() < 0.05:
        return 0
    return scene.rng.randrange(1, len(lines))


def pick_block(scene: Scene, lines: list[bytes]) -> tuple[int, int]:
    """The indices where a few lines begin and end."""
    start = pick_line(scene, lines)
    return start, min(start + scene.rng.choice((1, 1, 1, 2, 3, 5, 20)), len(lines))


# Bytes


@mutator
def flip_bits(scene: Scene, data: bytes) -> bytes:
    """One to three bits are wrong."""
    out = bytearray(data)
    for _ in range(scene.rng.choice((1, 1, 1, 2, 3))):
        if out:
            out[scene.rng.randrange(len(out))] ^= 1 << scene.rng.randrange(8)
    return bytes(out)


@mutator
def flip_digit(scene: Scene, data: bytes) -> bytes:
    """A digit of a seq is another one: nothing but the sequence tells."""
    found = list(SEQ.finditer(data))
    if not found:
        return data
    match = scene.rng.choice(found)
    at = scene.rng.randrange(match.start(), match.end())
    return data[:at] + b"%d" % scene.rng.randrange(10) + data[at + 1 :]


@mutator
def set_bytes(scene: Scene, data: bytes) -> bytes:
    """A few bytes are random ones."""
    start, stop = _range(scene, data, 40)
    return data[:start] + scene.rng.randbytes(stop - start) + data[stop:]


@mutator
def cut_tail(scene: Scene, data: bytes) -> bytes:
    """The end is missing."""
    return data[: _at(scene, data)]


@mutator
def cut_head(scene: Scene, data: bytes) -> bytes:
    """The beginning is missing."""
    return data[min(_at(scene, data), _at(scene, data)) :]


@mutator
def cut_middle(scene: Scene, data: bytes) -> bytes:
    """Bytes in the middle are missing."""
    start, stop = _range(scene, data)
    return data[:start] + data[stop:]


@mutator
def splice(scene: Scene, data: bytes) -> bytes:
    """Bytes of the same log stand elsewhere once more."""
    start, stop = _range(scene, data, 600)
    at = _at(scene, data)
    return data[:at] + data[start:stop] + data[at:]


@mutator
def splice_stranger(scene: Scene, data: bytes) -> bytes:
    """Bytes of another log stand in this one."""
    other = b"".join(scene.other.lines)
    start, stop = _range(scene, other, 600)
    at = _at(scene, data)
    return data[:at] + other[start:stop] + data[at:]


@mutator
def stale_block(scene: Scene, data: bytes) -> bytes:
    """A block of the disk holds what was written elsewhere."""
    size = scene.rng.choice((64, 512, 512, 4096))
    blocks = max(len(data) // size, 1)
    to, source = scene.rng.randrange(blocks) * size, scene.rng.randrange(blocks) * size
    return data[:to] + data[source : source + min(size, len(data) - to)] + data[to + size :]


@mutator
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


@mutator
def nul_tail(scene: Scene, data: bytes) -> bytes:
    """The log ends in NULs."""
    return data + bytes(scene.rng.choice((1, 3, 100, 412, 512)))


@mutator
def bad_utf8(scene: Scene, data: bytes) -> bytes:
    """Bytes that no text holds."""
    at = _at(scene, data)
    return data[:at] + scene.rng.choice(_BAD_UTF8) + data[at + scene.rng.randint(0, 2) :]


@mutator
def huge_number(scene: Scene, data: bytes) -> bytes:
    """A number that is none of ours."""
    found = list(_NUMBER.finditer(data))
    if not found:
        return data
    match = scene.rng.choice(found)
    return data[: match.start()] + scene.rng.choice(_HUGE) + data[match.end() :]


@mutator
def lone_surrogate(scene: Scene, data: bytes) -> bytes:
    """Half of a pair, escaped, inside strings or not."""
    at = _at(scene, data)
    quote = data.find(b'"', at)
    at = quote if quote >= 0 and scene.rng.random() < 0.7 else at
    return data[:at] + scene.rng.choice((b"\\ud800", b"\\udfff\\ud800", b"\\u00")) + data[at:]


@mutator
def raw_newline(scene: Scene, data: bytes) -> bytes:
    """A line end where none belongs."""
    at = _at(scene, data)
    return data[:at] + scene.rng.choice((b"\n", b"\n\n", b"\r", b"\r\n")) + data[at:]


@mutator
def byte_order_mark(scene: Scene, data: bytes) -> bytes:
    """An editor was here."""
    if scene.rng.random() < 0.8:
        return b"\xef\xbb\xbf" + data
    at = _at(scene, data)
    return data[:at] + b"\xef\xbb\xbf" + data[at:]


# Lines


@mutator
def crlf(scene: Scene, data: bytes) -> bytes:
    """Line ends of another system, on all lines or some."""
    if scene.rng.random() < 0.5:
        return data.replace(b"\n", b"\r\n")
    return b"".join(line[:-1] + b"\r\n" if line.endswith(b"\n") and scene.rng.random() < 0.4 else line
                    for line in split_lines(data))  # fmt: skip


@mutator
def blank_lines(scene: Scene, data: bytes) -> bytes:
    """Empty lines between the others."""
    lines = split_lines(data)
    for _ in range(scene.rng.randint(1, 3)):
        lines.insert(scene.rng.randint(0, len(lines)), scene.rng.choice((b"\n", b"  \n", b"\t\r\n", b"\n\n\n")))
    return b"".join(lines)


@mutator
def duplicate_lines(scene: Scene, data: bytes) -> bytes:
    """A retry wrote lines again."""
    lines = split_lines(data)
    start, stop = pick_block(scene, lines)
    at = stop if scene.rng.random() < 0.7 else scene.rng.randint(0, len(lines))
    return b"".join([*lines[:at], *lines[start:stop], *lines[at:]])


@mutator
def swap_lines(scene: Scene, data: bytes) -> bytes:
    """Two lines have changed places."""
    lines = split_lines(data)
    a = pick_line(scene, lines)
    b = min(a + 1, len(lines) - 1) if scene.rng.random() < 0.6 else pick_line(scene, lines)
    if lines:
        lines[a], lines[b] = lines[b], lines[a]
    return b"".join(lines)


@mutator
def move_block(scene: Scene, data: bytes) -> bytes:
    """Lines stand elsewhere than they were written."""
    lines = split_lines(data)
    start, stop = pick_block(scene, lines)
    block = lines[start:stop]
    del lines[start:stop]
    at = scene.rng.randint(0, len(lines))
    return b"".join([*lines[:at], *block, *lines[at:]])


@mutator
def drop_lines(scene: Scene, data: bytes) -> bytes:
    """Lines are gone and left no bytes."""
    lines = split_lines(data)
    start, stop = pick_block(scene, lines)
    return b"".join(lines[:start] + lines[stop:])


@mutator
def garble_lines(scene: Scene, data: bytes) -> bytes:
    """Lines are gone, and bytes in their place say how many."""
    lines = split_lines(data)
    start, stop = pick_block(scene, lines)
    lost = sum(map(len, lines[start:stop]))
    junk = scene.rng.choice((b"#" * max(lost - 1, 0) + b"\n", bytes(lost), scene.rng.randbytes(min(lost, 4000))))
    return b"".join([*lines[:start], junk, *lines[stop:]])


@mutator
def fuse_lines(scene: Scene, data: bytes) -> bytes:
    """A line end is lost."""
    ends = [at for at, byte in enumerate(data) if byte == 10] if len(data) < 20_000 else [data.find(b"\n")]
    if not ends:
        return data
    at = scene.rng.choice(ends)
    return data[:at] + data[at + 1 :]


@mutator
def torn_then_whole(scene: Scene, data: bytes) -> bytes:
    """A torn prefix of a line, then the whole line, on one line or two."""
    lines = split_lines(data)
    at = pick_line(scene, lines)
    if not lines:
        return data
    torn = lines[at][: scene.rng.randint(0, len(lines[at]))] + scene.rng.choice((b"", b"", b"\n"))
    return b"".join([*lines[:at], torn, *lines[at:]])


@mutator
def torn_append(scene: Scene, data: bytes) -> bytes:
    """The write of one more line was cut short."""
    line = logs.user(10**6, "never finished").rstrip(b"\n")
    return data + line[: scene.rng.randint(1, len(line))]


@mutator
def junk_line(scene: Scene, data: bytes) -> bytes:
    """A line that is no record."""
    lines = split_lines(data)
    junk = scene.rng.choice((b"garbage", b"{}", b"[]", b"null", b'"', b"{" * 300, b'{"seq":', b'{"type":"x","seq":3}',
                             b"}{" * 100, b'{"type":"x","seq":' * 20, b'"' * 99, b"0"))  # fmt: skip
    at = scene.rng.randint(0, len(lines))
    return b"".join([*lines[:at], junk + b"\n", *lines[at:]])


@mutator
def deep_nesting(scene: Scene, data: bytes) -> bytes:
    """A value deeper than anybody needs: closed or not, at its limit or beyond, in a record or not."""
    depth = scene.rng.choice((100, 1000, 5000, 9_990, 10_001, 20_000))
    if scene.rng.random() < 0.98:
        depth = min(depth, 100 if scene.rng.random() < 0.97 else 1000)
    opening, closing = scene.rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    value = opening * depth + b"1" + closing * (depth if scene.rng.random() < 0.7 else 0)
    lines = split_lines(data)
    at = pick_line(scene, lines)
    if scene.rng.random() < 0.5:
        seq = scene.rng.randint(0, len(lines))
        value = b'{"type":"my/plugin","seq":%d,"time":1,"data":%b}' % (seq, value)
    return b"".join([*lines[:at], value + b"\n", *lines[at + scene.rng.randint(0, 1) :]])

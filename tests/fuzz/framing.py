"""The same logs as Zstandard frames, and what happens to frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import zstandard

from tests.fuzz.sources import split_lines

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

__all__ = ["FRAME_MUTATORS", "framed", "unframed"]

Frames: TypeAlias = "list[bytes]"
FrameMutation: TypeAlias = "Callable[[random.Random, Frames], Frames]"

FRAME_MUTATORS: Final[dict[str, FrameMutation]] = {}

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
# One for all: making a compressor costs more than using it.
_compress = zstandard.ZstdCompressor(level=1, write_checksum=True).compress
_decompress = zstandard.ZstdDecompressor().decompress


def _mutator(function: FrameMutation) -> FrameMutation:
    FRAME_MUTATORS[function.__name__] = function
    return function


def framed(rng: random.Random, data: bytes) -> Frames:
    """A frame for the first line, then one for each batch."""
    lines = split_lines(data)
    frames = [_compress(line) for line in lines[:1]]
    at = 1
    while at < len(lines):
        stop = at + rng.choice((1, 2, 4, 8))
        frames.append(_compress(b"".join(lines[at:stop])))
        at = stop
    return frames


def _pick(rng: random.Random, frames: Frames) -> int:
    return 0 if len(frames) < 2 or rng.random() < 0.1 else rng.randrange(1, len(frames))


@_mutator
def frame_flip(rng: random.Random, frames: Frames) -> Frames:
    """A bit of a frame is wrong: in its header, a block, or the checksum."""
    at = _pick(rng, frames)
    out = bytearray(frames[at])
    out[rng.randrange(min(len(out), 12)) if rng.random() < 0.5 else rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return [*frames[:at], bytes(out), *frames[at + 1 :]]


@_mutator
def frame_drop(rng: random.Random, frames: Frames) -> Frames:
    """A frame is gone."""
    at = _pick(rng, frames)
    return frames[:at] + frames[at + 1 :]


@_mutator
def frame_duplicate(rng: random.Random, frames: Frames) -> Frames:
    """A frame was written twice."""
    at = _pick(rng, frames)
    to = at if rng.random() < 0.6 else rng.randint(0, len(frames))
    return [*frames[:to], frames[at], *frames[to:]]


@_mutator
def frame_swap(rng: random.Random, frames: Frames) -> Frames:
    """Two frames have changed places."""
    a, b = _pick(rng, frames), _pick(rng, frames)
    out = list(frames)
    out[a], out[b] = out[b], out[a]
    return out


@_mutator
def frame_truncate(rng: random.Random, frames: Frames) -> Frames:
    """A frame was cut short; seldom others follow it."""
    at = _pick(rng, frames)
    cut = frames[at][: rng.randrange(len(frames[at]))]
    return [*frames[:at], cut, *(frames[at + 1 :] if rng.random() < 0.5 else [])]


@_mutator
def frame_garbage(rng: random.Random, frames: Frames) -> Frames:
    """Bytes between frames that begin none, or seem to."""
    at = rng.randint(0, len(frames))
    garbage = rng.choice((b"\0" * 512, rng.randbytes(rng.randint(1, 60)), _MAGIC, _MAGIC * 40, b"{}\n", b"\x28\xb5",
                          _MAGIC + b"\x20\x05abc", _MAGIC + b"\xe0" + b"\xff" * 8))  # fmt: skip
    return [*frames[:at], garbage, *frames[at:]]


@_mutator
def frame_bomb(rng: random.Random, frames: Frames) -> Frames:
    """A small frame that decodes to much, or says so."""
    at = rng.randint(0, len(frames))
    size = 1 << 20 if rng.random() < 0.02 else 1 << 12
    bomb = rng.choice((_compress(bytes(size)), _compress(b""), _compress(b"\n" * (size // 9)), _compress(b"[" * (size // 16)),
                       _MAGIC + b"\xa0" + b"\xff\xff\xff\x7f" + b"\x03\x00\x00"))  # fmt: skip
    return [*frames[:at], bomb, *frames[at:]]


@_mutator
def frame_skippable(rng: random.Random, frames: Frames) -> Frames:
    """A skippable frame, which holds nothing."""
    at = rng.randint(0, len(frames))
    size = rng.choice((0, 5, 100))
    return [*frames[:at], b"\x53\x2a\x4d\x18" + size.to_bytes(4, "little") + rng.randbytes(size), *frames[at:]]


@_mutator
def frame_tail(rng: random.Random, frames: Frames) -> Frames:
    """The file ends anywhere, or in NULs."""
    data = b"".join(frames)
    if rng.random() < 0.3:
        return [*frames, bytes(rng.choice((1, 512, 4096)))]
    cut = rng.randint(0, len(data))
    kept: Frames = []
    for frame in frames:
        kept.append(frame[:cut])
        cut -= len(kept[-1])
    return [frame for frame in kept if frame]


@_mutator
def frame_split(rng: random.Random, frames: Frames) -> Frames:
    """The lines of a frame are divided among two in the middle of a line."""
    at = _pick(rng, frames)
    try:
        if zstandard.get_frame_parameters(frames[at]).content_size > 1 << 22:
            return frames  # it only says so
        text = unframed(frames[at])
    except zstandard.ZstdError:
        return frames  # damaged before
    cut = rng.randint(0, len(text))
    return [*frames[:at], _compress(text[:cut]), _compress(text[cut:]), *frames[at + 1 :]]


def unframed(frame: bytes) -> bytes:
    """What an intact frame decodes to."""
    return bytes(_decompress(frame))

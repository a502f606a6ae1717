"""Inputs by number: the same seed and number give the same bytes, in any process and in any order."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Final

from msgspec import Struct

from tests.fuzz.checks import Known, Sample, merged
from tests.fuzz.framing import FRAME_MUTATORS, framed, unframed
from tests.fuzz.histories import STRANGERS
from tests.fuzz.mutators import MILD, MUTATORS, Scene
from tests.fuzz.sources import Original, pool

__all__ = ["BLOCK", "Input", "make_input"]

BLOCK: Final = 1000
"""So many inputs share a pool of logs."""

_POOL: Final = 80
_NAMES: Final = tuple(MUTATORS)
_FRAME_NAMES: Final = tuple(FRAME_MUTATORS)


class Input(Struct):
    """A sample, how it came to be, and its number."""

    seed: int
    number: int
    source: str
    mutators: tuple[str, ...]
    sample: Sample


@lru_cache(maxsize=2)
def _pool(seed: int, block: int) -> list[Original]:
    return pool(random.Random(f"{seed}/{block}"), _POOL)


def make_input(seed: int, number: int) -> Input:
    """The input of that number."""
    rng = random.Random(f"{seed}:{number}")
    originals = _pool(seed, number // BLOCK)
    scene = Scene(rng, rng.choice(originals), rng.choice(originals))
    zstd = rng.random() < 0.14
    data = b"".join(scene.original.lines)
    names = [] if zstd and rng.random() < 0.7 else [rng.choice(_NAMES) for _ in range(_count(rng))]
    for name in names:
        data = MUTATORS[name](scene, data)
    mild = MILD.get(names[0]) if len(names) == 1 and not zstd and scene.original.sound else None
    sample = Sample(data, zstd, _known(scene, names), _cuts(rng, len(data)), allowed=mild, folds=rng.random() < 0.1)
    if rng.random() < 0.7:
        sample.session_id = "s1" if rng.random() < 0.9 else "another"
    if zstd:
        names += _frame(rng, sample)
    return Input(seed, number, scene.original.name, tuple(names), sample)


def _count(rng: random.Random) -> int:
    return rng.choice((1, 1, 1, 1, 1, 1, 2, 2, 3, 5))


def _cuts(rng: random.Random, size: int) -> list[int]:
    """Where the bytes are divided; ``[-1]``: everywhere."""
    if size < 1500 and rng.random() < 0.02:
        return [-1]
    return [rng.randint(0, size) for _ in range(rng.choice((1, 2, 3, 9)))]


def _known(scene: Scene, names: list[str]) -> Known:
    logs = [scene.original, scene.other] if STRANGERS.intersection(names) else [scene.original]
    if len(logs) == 1:
        return Known(logs[0].seqs, logs[0].faults, logs[0].sound, mixed=bool(logs[0].branch))
    return merged(Known(log.seqs, log.faults, log.sound) for log in logs)


def _frame(rng: random.Random, sample: Sample) -> list[str]:
    """Compress the sample and damage the frames."""
    frames = framed(rng, sample.data)
    before = set(frames)
    names = [rng.choice(_FRAME_NAMES) for _ in range(rng.choice((1, 1, 2)))] if frames else []
    for name in names:
        if frames:
            frames = [frame for frame in FRAME_MUTATORS[name](rng, frames) if frame]
    sample.data = b"".join(frames)
    if "frame_skippable" not in names:  # one that is damaged may claim what follows it
        sample.frames = [unframed(frame) for frame in frames if frame in before]
    sample.cuts = _cuts(rng, len(sample.data))
    return names

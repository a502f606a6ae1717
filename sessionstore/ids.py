"""Ids for sessions and messages: unique, and in the order in which they were made."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sessionstore.clock import system_clock

if TYPE_CHECKING:
    from sessionstore.clock import Clock

__all__ = ["TimeOrderedIds"]


class TimeOrderedIds:
    """Makes UUIDs of version 7: 48 bits of epoch ms, then a counter, then randomness.

    Ids of one instance are strictly increasing as strings, also within one millisecond and when the clock
    steps back (the latest time seen goes on counting); ids of different processes differ by 62 random bits.
    """

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._last = 0  # 48 bits of time and 12 of counter, as one number

    def __call__(self) -> str:
        """Return the next id, as 36 lower-case characters."""
        self._last = max(self._last + 1, (self._clock() & 0xFFFF_FFFF_FFFF) << 12)
        time, count = self._last >> 12, self._last & 0xFFF
        rest = int.from_bytes(os.urandom(8)) >> 2
        digits = f"{time:012x}7{count:03x}{0x8000_0000_0000_0000 | rest:016x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

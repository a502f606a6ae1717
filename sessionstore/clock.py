"""The one place of the model that reads a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from sessionstore.errors import InvalidEventError
from sessionstore.lossless import MAX_SAFE

__all__ = ["Clock", "checked", "not_a_time", "system_clock"]

Clock: TypeAlias = Callable[[], int]
"""Returns the time as epoch milliseconds."""


def system_clock() -> int:
    """Return the wall clock as epoch ms.  It may step backwards: events are ordered by seq, never by time."""
    return time.time_ns() // 1_000_000


def checked(clock: Clock) -> Clock:
    """*clock*, but what is no time raises :class:`InvalidEventError`: ids, notes and names are made of times."""

    def read() -> int:
        now: object = clock()
        if type(now) is int and -MAX_SAFE <= now <= MAX_SAFE:
            return now
        raise not_a_time(now)

    return read


def not_a_time(value: object) -> InvalidEventError:
    """What to raise for a clock that returned *value*."""
    return InvalidEventError(f"the clock returned {type(value).__name__}, expected epoch ms as a safe integer")

"""The one place of the model that reads a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Clock", "system_clock"]

Clock: TypeAlias = Callable[[], int]
"""Returns the time as epoch milliseconds."""


def system_clock() -> int:
    """Return the wall clock as epoch ms.  It may step backwards: events are ordered by seq, never by time."""
    return time.time_ns() // 1_000_000

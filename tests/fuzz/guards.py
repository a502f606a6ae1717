"""No hang, no memory without bound: work is counted where that can be done, and a watchdog waits for real hangs."""

from __future__ import annotations

import signal
import sys
import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FrameType

__all__ = ["HangError", "count_calls", "peak_memory", "watchdog"]

CALLS: Final = (20_000, 60)
"""Function calls that an input may cost: at most so many, and so many more for each byte."""

MEMORY: Final = (8 << 20, 1500)
"""Bytes that may be held: the same way.  A lost byte can stand for an event marked as lost, with its line."""


class HangError(Exception):
    """An input took longer than any input of its size may."""


@contextmanager
def watchdog(seconds: float) -> Generator[None]:
    """Raise :class:`HangError` in the block after so many seconds of processor time."""

    def bark(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise HangError(f"more than {seconds:.1f} s of processor time")

    before = signal.signal(signal.SIGVTALRM, bark)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def count_calls(function: Callable[[], object]) -> int:
    """How many calls of functions, ours and built-in ones, *function* makes."""
    calls = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        del frame, argument
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


def peak_memory(function: Callable[[], object]) -> int:
    """The most bytes that were held at once while *function* ran."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

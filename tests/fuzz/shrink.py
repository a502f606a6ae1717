"""Makes a failing input small: lines go first, then stretches of bytes, as long as the same rule breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fuzz.sources import split_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["shrink"]


def shrink(data: bytes, fails: Callable[[bytes], bool], *, tries: int = 600) -> bytes:
    """The smallest data found with *tries* attempts for which *fails* still says so."""
    budget = [tries]

    def still(parts: Sequence[bytes]) -> bool:
        budget[0] -= 1
        return budget[0] >= 0 and fails(b"".join(parts))

    parts = _reduce(split_lines(data), still)
    size = 64
    while size and budget[0] > 0:
        data = b"".join(parts)
        if len(data) // size < 400:
            parts = _reduce([data[at : at + size] for at in range(0, len(data), size)], still)
        size //= 4
    return b"".join(parts)


def _reduce(parts: list[bytes], still: Callable[[Sequence[bytes]], bool]) -> list[bytes]:
    """Leave out runs of parts, long ones first."""
    length = max(len(parts) // 2, 1)
    while True:
        at = 0
        while at < len(parts):
            fewer = parts[:at] + parts[at + length :]
            if still(fewer):
                parts = fewer
            else:
                at += length
        if length == 1:
            return parts
        length //= 2

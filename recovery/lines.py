"""Bytes that arrive in any pieces, as whole lines."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

__all__ = ["EMPTINESS", "LineSplitter", "Overlong", "is_nul"]

EMPTINESS: Final = b"\0\n \t\r"
"""Bytes that hold nothing: what a file system leaves where nothing was written, and blanks."""


def is_nul(piece: bytes) -> bool:
    """Whether these bytes are NULs and nothing else."""
    # Counting is many times faster than to strip them.
    return not piece or (piece[0] == piece[-1] == 0 and piece.count(0) == len(piece))


class Overlong(Struct, frozen=True):
    """A line that was too long to be kept: its length in bytes, and whether it held only NULs and blanks."""

    length: int
    blank: bool


class LineSplitter:
    """Splits at the byte 0x0A and at nothing else.

    Each byte is searched once, and no more than one line of *max_line* bytes is held.  NULs at the end of what has
    no end yet are only counted: a file may claim any number of them that no disk holds.
    """

    def __init__(self, max_line: int) -> None:
        self._max_line = max_line
        # The line that has no end yet: its bytes, or their number once they are too many to be kept.
        self._pending = bytearray()
        self._nuls = 0  # behind them
        self._dropped = 0
        self._dropped_blank = True

    def split(self, data: bytes) -> tuple[Overlong | None, list[bytes]]:
        """The lines that *data*, at most ``max_line`` bytes, completes, without their ends.

        Where the first of them was too long, it is given as the first item instead.
        """
        lines = data.split(b"\n")
        tail = lines.pop()
        overlong: Overlong | None = None
        if lines and (self._pending or self._nuls or self._dropped):
            self._keep(lines[0])
            if self._dropped:
                overlong = Overlong(self._dropped, self._dropped_blank)
                del lines[0]
            else:
                lines[0] = bytes(self._pending) + bytes(self._nuls)
            self.clear()
        if tail:
            self._keep(tail)
        return overlong, lines

    @property
    def rest(self) -> Overlong:
        """What follows the last line end: how many bytes, and whether they are NULs and blanks only."""
        if self._dropped:
            return Overlong(self._dropped, self._dropped_blank)
        return Overlong(len(self._pending) + self._nuls, not self._pending.strip(EMPTINESS))

    def clear(self) -> None:
        """Forget what follows the last line end."""
        self._pending = bytearray()
        self._nuls = 0
        self._dropped = 0

    def _keep(self, piece: bytes) -> None:
        if not self._dropped and len(self._pending) + self._nuls + len(piece) <= self._max_line:
            if is_nul(piece):
                self._nuls += len(piece)
                return
            if self._nuls:
                self._pending += bytes(self._nuls)
                self._nuls = 0
            self._pending += piece
            return
        before = self.rest
        self._dropped_blank = before.blank and not piece.strip(EMPTINESS)
        self._dropped = before.length + len(piece)
        self._pending = bytearray()
        self._nuls = 0

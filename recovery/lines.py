"""Bytes that arrive in any pieces, as whole lines."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

__all__ = ["EMPTINESS", "LineSplitter", "Overlong"]

EMPTINESS: Final = b"\0\n \t\r"
"""Bytes that hold nothing: what a file system leaves where nothing was written, and blanks."""


class Overlong(Struct, frozen=True):
    """A line that was too long to be kept: its length in bytes, and whether it held only NULs and blanks."""

    length: int
    blank: bool


class LineSplitter:
    """Splits at the byte 0x0A and at nothing else.

    Each byte is searched once, and no more than one line of *max_line* bytes is held.
    """

    def __init__(self, max_line: int) -> None:
        self._max_line = max_line
        # The line that has no end yet: its bytes, or their number once they are too many to be kept.
        self._pending = bytearray()
        self._dropped = 0
        self._dropped_blank = True

    def split(self, data: bytes) -> tuple[Overlong | None, list[bytes]]:
        """The lines that *data*, at most ``max_line`` bytes, completes, without their ends.

        Where the first of them was too long, it is given as the first item instead.
        """
        lines = data.split(b"\n")
        tail = lines.pop()
        overlong: Overlong | None = None
        if lines and (self._pending or self._dropped):
            self._keep(lines[0])
            if self._dropped:
                overlong = Overlong(self._dropped, self._dropped_blank)
                del lines[0]
            else:
                lines[0] = bytes(self._pending)
            self.clear()
        if tail:
            self._keep(tail)
        return overlong, lines

    @property
    def rest(self) -> Overlong:
        """What follows the last line end: how many bytes, and whether they are NULs and blanks only."""
        if self._dropped:
            return Overlong(self._dropped, self._dropped_blank)
        return Overlong(len(self._pending), not self._pending.strip(EMPTINESS))

    def clear(self) -> None:
        """Forget what follows the last line end."""
        self._pending = bytearray()
        self._dropped = 0

    def _keep(self, piece: bytes) -> None:
        if not self._dropped and len(self._pending) + len(piece) <= self._max_line:
            self._pending += piece
            return
        before = self.rest
        self._dropped_blank = before.blank and not piece.strip(EMPTINESS)
        self._dropped = before.length + len(piece)
        self._pending = bytearray()

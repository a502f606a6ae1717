"""A whole log in memory, for a repair: never out of proportion to the file that it comes from.

A scan holds one line at a time.  A repair looks at all records at once, so it holds
the text, and notes of every line.  A compressed file of a hundred kilobytes can stand
for gigabytes of text, and a file of short lines for many more notes than bytes.  A
sparse file can claim any size: of a long stretch of NULs only the beginning is held.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from sessionstore.backends.files import CHUNK, FileStat, read_chunks
from sessionstore.backends.jsonl.frames import FrameReader
from sessionstore.backends.jsonl.reading import open_log
from sessionstore.recovery.lines import is_nul

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sessionstore.backends.files import Files
    from sessionstore.backends.jsonl.lookup import Found
    from sessionstore.recovery.salvage_plan import Quarantined, SalvagePlan

__all__ = ["COST_OF_A_LINE", "FREE", "PER_BYTE", "TooLargeError", "WholeLog", "begins_with", "read_decoded", "room_for"]

FREE: Final = 512 * 1024 * 1024
"""Most bytes of text that a repair takes of any log, however small its file; a line counts as more, see below."""

PER_BYTE: Final = 100
"""A large file may stand for that many bytes of text for each of its own: several times what logs compress to."""

COST_OF_A_LINE: Final = 400
"""What each line counts beside its bytes: about what is noted of it."""


# Two megabytes of a stretch are held: more bytes than there are events that a repair may make anew for lost ones.
_HELD: Final = 2 * CHUNK
_BLOCK: Final = 64 * 1024


class TooLargeError(Exception):
    """The log would take more memory than a repair may."""


class WholeLog(Struct, frozen=True):
    """The decompressed bytes of a log, but for the most of long stretches of NULs.

    *weights* are where frames that cannot be decoded left a mark in *data*, and how many bytes were lost with each;
    *stat* is what the file was.  *gaps* are where NULs were left out of *data*, and how many up to there.
    """

    data: bytes
    weights: list[tuple[int, int]]
    stat: FileStat
    gaps: tuple[list[int], list[int]]

    def restore(self, plan: SalvagePlan) -> SalvagePlan:
        """A plan that was made of *data*, with the offsets and lengths that the log itself has."""
        if not self.gaps[0]:
            return plan
        return structs.replace(plan, quarantined=tuple(self._restored(each) for each in plan.quarantined))

    def _restored(self, stretch: Quarantined) -> Quarantined:
        start, stop = (self._offset(at) for at in (stretch.offset, stretch.offset + stretch.length))
        return structs.replace(stretch, offset=start, length=stop - start)

    def _offset(self, at: int) -> int:
        index = bisect_right(self.gaps[0], at)
        return at + (self.gaps[1][index - 1] if index else 0)


def room_for(size: int) -> int:
    """The most that the text of a log file of *size* bytes may come to, in bytes and :data:`COST_OF_A_LINE`."""
    return max(FREE, PER_BYTE * size)


def read_decoded(files: Files, found: Found, session_id: str, *, expected: int = 0) -> WholeLog:
    """The decompressed bytes of a log.

    *expected* is how many bytes an earlier reading of a compressed log found: where those are too many nothing is
    read again.

    Raises:
        TooLargeError: the text comes to more than :func:`room_for` what the file holds beside blocks of NULs.
        StorageError: the log cannot be read.
    """
    with open_log(files, found, session_id) as (fd, stat):
        frames = FrameReader() if found.compression == "zstd" else None
        room = _Room(files, fd, stat.size)
        room.check(0 if frames is None else expected, 0)
        parts: list[bytes] = []
        gaps: list[tuple[int, int]] = []
        length = lines = nuls = 0
        for part in _decoded(read_chunks(files, fd, 0, stat.size), frames):
            nuls = nuls + len(part) if is_nul(part) else 0
            if nuls - len(part) >= _HELD:
                gaps.append((length, len(part)))
                continue
            length += len(part)
            lines += part.count(b"\n")
            room.check(length, lines)
            parts.append(part)
    defects = () if frames is None else frames.defects
    weights = [(_held(gaps, defect.decoded), defect.length) for defect in defects if not defect.blank]
    return WholeLog(b"".join(parts), weights, stat, ([at for at, _ in gaps], [*accumulate(n for _, n in gaps)]))


def _held(gaps: list[tuple[int, int]], offset: int) -> int:
    """Where what stood at *offset* stands when the NULs of *gaps* are left out; it is none of them."""
    for at, left_out in gaps:
        if at >= offset:
            break
        offset -= left_out
    return offset


class _Room:
    """What a log may take; how much of a large one is no stretch of NULs is looked up once that matters."""

    def __init__(self, files: Files, fd: int, size: int) -> None:
        self._files = files
        self._fd = fd
        self._size = size
        self._room: int | None = None

    def check(self, length: int, lines: int) -> None:
        """Raise :class:`TooLargeError` where that many bytes of text in that many lines are too much."""
        cost = length + COST_OF_A_LINE * lines
        if cost <= FREE:
            return
        if self._room is None:
            blocks = read_chunks(self._files, self._fd, 0, self._size, chunk=_BLOCK)
            self._room = room_for(sum(len(block.strip(b"\0")) for block in blocks if not is_nul(block)))
        if cost > self._room:
            raise TooLargeError(_too_large(length, lines, self._room, self._size))


def begins_with(files: Files, found: Found, session_id: str, lines: Iterable[bytes]) -> bool:
    """Whether the log begins with exactly these *lines*; no more of it than that is decoded.

    Raises:
        StorageError: the log cannot be read.
    """
    wanted = b"".join(line + b"\n" for line in lines)
    with open_log(files, found, session_id) as (fd, stat):
        frames = FrameReader() if found.compression == "zstd" else None
        at = 0
        for part in _decoded(read_chunks(files, fd, 0, stat.size), frames):
            step = min(len(part), len(wanted) - at)
            if part[:step] != wanted[at : at + step]:
                return False
            at += step
            if at == len(wanted):
                return True
    return at == len(wanted)


def _decoded(pieces: Iterable[bytes], frames: FrameReader | None) -> Iterator[bytes]:
    if frames is None:
        yield from pieces
        return
    for piece in pieces:
        yield from frames.feed(piece)
    yield from frames.finish()


def _too_large(length: int, lines: int, room: int, size: int) -> str:
    what = f"more than {length:,} bytes of text" + (f" in {lines:,} lines" if lines else "")
    return (
        f"its file of {size:,} bytes holds {what}, out of proportion to any log of a session, and a repair has to "
        f"hold all of it in memory; at most {room:,} bytes are taken, {COST_OF_A_LINE} more counted for each line"
    )

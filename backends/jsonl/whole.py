"""A whole log in memory, for a repair: never out of proportion to the file that it comes from.

A scan holds one line at a time.  A repair looks at all records at once, so it holds
the text, and notes of every line.  A compressed file of a hundred kilobytes can stand
for gigabytes of text, and a file of short lines for many more notes than bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sessionstore.backends.files import read_chunks
from sessionstore.backends.jsonl.frames import FrameReader
from sessionstore.backends.jsonl.reading import open_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sessionstore.backends.files import Files, FileStat
    from sessionstore.backends.jsonl.lookup import Found

__all__ = ["COST_OF_A_LINE", "FREE", "PER_BYTE", "TooLargeError", "begins_with", "read_decoded", "room_for"]

FREE: Final = 512 * 1024 * 1024
"""Most bytes of text that a repair takes of any log, however small its file; a line counts as more, see below."""

PER_BYTE: Final = 100
"""A large file may stand for that many bytes of text for each of its own: several times what logs compress to."""

COST_OF_A_LINE: Final = 400
"""What each line counts beside its bytes: about what is noted of it."""


class TooLargeError(Exception):
    """The log would take more memory than a repair may."""


def room_for(size: int) -> int:
    """The most that the text of a log file of *size* bytes may come to, in bytes and :data:`COST_OF_A_LINE`."""
    return max(FREE, PER_BYTE * size)


def read_decoded(
    files: Files, found: Found, session_id: str, *, expected: int = 0
) -> tuple[bytes, list[tuple[int, int]], FileStat]:
    """The decompressed bytes of a log, what was lost with frames that cannot be decoded, and the log's stat.

    *expected* is how many bytes an earlier reading found: where those are too many nothing is read again.

    Raises:
        TooLargeError: the text comes to more than :func:`room_for` the file.
        StorageError: the log cannot be read.
    """
    with open_log(files, found, session_id) as (fd, stat):
        frames = FrameReader() if found.compression == "zstd" else None
        room = room_for(stat.size)
        _check(expected, 0, room, stat.size)
        parts: list[bytes] = []
        length = lines = 0
        for part in _decoded(read_chunks(files, fd, 0, stat.size), frames):
            length += len(part)
            lines += part.count(b"\n")
            _check(length, lines, room, stat.size)
            parts.append(part)
    defects = () if frames is None else frames.defects
    return b"".join(parts), [(defect.decoded, defect.length) for defect in defects if not defect.blank], stat


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


def _check(length: int, lines: int, room: int, size: int) -> None:
    if length + COST_OF_A_LINE * lines <= room:
        return
    what = f"more than {length:,} bytes of text" + (f" in {lines:,} lines" if lines else "")
    raise TooLargeError(
        f"its file of {size:,} bytes holds {what}, out of proportion to any log of a session, and a repair has to "
        f"hold all of it in memory; at most {room:,} bytes are taken, {COST_OF_A_LINE} more counted for each line"
    )

"""What the first line of a log says, read for a list: cheaply where it is as usual, with care where it is not."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from sessionstore.backends.base import SessionStatus
from sessionstore.backends.jsonl.frames import FrameReader, gather
from sessionstore.backends.paths import LOG_NAMES, Compression
from sessionstore.errors import UnsupportedFormatError
from sessionstore.lossless import MAX_SAFE
from sessionstore.recovery.lines import is_nul
from sessionstore.recovery.records import BLANKS, Defect, read_header

if TYPE_CHECKING:
    from sessionstore.backends.files import Files, FileStat
    from sessionstore.header import Header

__all__ = ["FRAME_LIMIT", "MAX_HEADER", "WHOLE", "Head", "LogView", "header_of", "read_head"]

MAX_HEADER: Final = 1024 * 1024
"""The longest header line that a listing reads; such a session still opens by its id."""

WHOLE: Final = 4096
"""Bytes that are read first; a log of no more is read in this one call."""

FRAME_LIMIT: Final = 16 * 1024 * 1024
"""Most decoded bytes of one frame in a listing: 64 KiB of zeros can decode to far more than anyone wants to wait for."""

_PIECE: Final = 64 * 1024
# Most bytes of a log without a header that are read to find nothing in them: a few milliseconds.
_MAX_BLANK: Final = 16 * 1024 * 1024
_EMPTINESS: Final = b"\0\n" + BLANKS


class LogView:
    """An open log as it was when it was opened: *stat*, and any of its bytes, the first of which are read once."""

    __slots__ = ("_fd", "_files", "compression", "first", "stat")

    def __init__(self, files: Files, fd: int, stat: FileStat, compression: Compression) -> None:
        self._files = files
        self._fd = fd
        self.first = files.pread(fd, WHOLE, 0)
        self.compression = compression
        self.stat = stat

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from *start* to *stop*; fewer where the file ends early.  Raises ``OSError``."""
        if stop <= len(self.first):
            return self.first[start:stop]
        parts: list[bytes] = []
        while start < stop:
            piece = self._files.pread(self._fd, stop - start, start)
            if not piece:
                break
            parts.append(piece)
            start += len(piece)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Head(Struct, gc=False):
    """What the first line says; *id* is ``None`` where there is no header to read.

    *end* is the byte of the file behind the line (0 where that is unknown: in a compressed log).
    """

    status: SessionStatus
    id: str | None = None
    cwd: str | None = None
    created_at: int | None = None
    detail: str | None = None
    end: int = 0


_Count = Annotated[int, Meta(ge=0, le=MAX_SAFE)]
_Text = Annotated[str, Meta(min_length=1)]


class _Plain(Struct, gc=False, rename="camel", forbid_unknown_fields=True):
    """A header that keeps every rule of :func:`sessionstore.header.parse_header`, but for what is checked below."""

    type: Literal["session"]
    version: Literal[0]
    id: _Text
    created_at: _Count
    cwd: _Text | UnsetType = UNSET
    parent_session: _Text | UnsetType = UNSET
    seed_length: _Count | UnsetType = UNSET
    origin: _Text | UnsetType = UNSET
    delegation_depth: _Count | UnsetType = UNSET
    agent_preset: _Text | UnsetType = UNSET


_plain: Final = msgspec.json.Decoder(_Plain).decode
_NEGATIVE_ZERO: Final = re.compile(rb"[\s:]-0")


def read_head(log: LogView) -> Head:
    """Read the header of an open log.  Raises ``OSError``, and :class:`StorageError` without zstandard."""
    line, end, emptiness = _first_line(log)
    if line is None:
        if emptiness and (end >= log.stat.size or _is_blank(log)):
            return Head("empty", detail="no header line was ever completed")
        if emptiness:
            return Head("damaged", detail="the log begins with NUL bytes or blanks")
        return Head("unreadable", detail=f"no end of the header line in the first {end} bytes")
    head = _plain_head(line)
    if head is None:
        head = _careful_head(line)
    head.end = end
    return head


def _plain_head(line: bytes) -> Head | None:
    """The head of a line that is as our own writers write it; ``None`` leaves the word to the careful reader."""
    try:
        found = _plain(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    cwd = None if isinstance(found.cwd, UnsetType) else found.cwd
    if cwd is not None and not cwd.startswith("/"):
        return None
    if b"-0" in line and _NEGATIVE_ZERO.search(line) is not None:
        return None
    return Head("ok", found.id, cwd, found.created_at)


def _careful_head(line: bytes) -> Head:
    try:
        header = read_header(line)
    except UnsupportedFormatError as error:
        return Head("unsupported", detail=error.reason)
    except Defect as defect:
        return Head("damaged", detail=defect.message)
    return Head("ok", header.id, header.cwd, header.created_at)


def _is_blank(log: LogView) -> bool:
    """Whether a log of NULs and blanks, to begin with, holds nothing else; not looked up where it is a long one."""
    if log.stat.size > _MAX_BLANK:
        return False
    pieces = (log.read(start, start + _PIECE) for start in range(0, log.stat.size, _PIECE))
    # In a compressed log a blank is as good as any other byte that begins no frame.
    return all(is_nul(piece) or (log.compression == "none" and not piece.strip(_EMPTINESS)) for piece in pieces)


def header_of(files: Files, directory: str) -> Header | None:
    """The header of the log in *directory*; ``None`` when there is none to read.  Raises ``OSError``."""
    for compression, name in LOG_NAMES.items():
        try:
            fd = files.open_read(os.path.join(directory, name))
        except FileNotFoundError:
            continue
        try:
            line, _, _ = _first_line(LogView(files, fd, files.fstat(fd), compression))
        finally:
            files.close(fd)
        try:
            return None if line is None else read_header(line)
        except (UnsupportedFormatError, Defect):
            return None
    return None


def _first_line(log: LogView) -> tuple[bytes | None, int, bool]:
    """The first line that is not blank, where it ends, and whether nothing but emptiness was seen.

    ``None`` for a line without end, with the number of bytes looked at; such a line at the end of the file counts
    as emptiness: it was never completed.
    """
    if log.compression == "none":
        end = log.first.find(b"\n")
        if end > 0 and log.first.startswith(b"{"):  # as usual
            return log.first[:end].rstrip(b"\r"), end + 1, False
    seen, taken, limit = b"", 0, min(log.stat.size, MAX_HEADER)
    frames = FrameReader(limit=FRAME_LIMIT) if log.compression == "zstd" else None
    while taken < limit:
        # Nearly every header is short: a small piece first.
        piece = log.read(taken, min(limit, taken + _PIECE if taken else WHOLE))
        if not piece:
            break
        taken += len(piece)
        # A few bytes may hold many frames that decode to a lot: no more of them than a header may need.
        seen += piece if frames is None else gather(frames.feed(piece), MAX_HEADER)
        at_end = taken >= limit
        if frames is not None and at_end and b"\n" not in seen:
            seen += gather(frames.finish(), MAX_HEADER)
        skipped = len(seen) - len(seen.lstrip(b"\n" + BLANKS))
        end = seen.find(b"\n", skipped)
        if end >= 0:
            return seen[skipped:end].rstrip(b"\r"), end + 1 if frames is None else 0, False
        if frames is not None and len(seen) >= MAX_HEADER:
            break
    return None, taken, taken >= log.stat.size or not seen.strip(_EMPTINESS)

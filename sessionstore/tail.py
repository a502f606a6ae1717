"""The end of a log file that somebody else is writing, read behind a byte cursor.

Only whole lines (compressed: whole frames) are taken, and the cursor stands behind the
last of them.  What follows it is read again each time it has changed, never kept:
a torn line may be cut and another one written in its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sessionstore.backends.files import storage_errors
from sessionstore.backends.jsonl.frames import FrameDefect, FrameReader, gather
from sessionstore.chunks import decode_storage_record
from sessionstore.errors import SessionNotFoundError
from sessionstore.events import Event
from sessionstore.recovery.format import MAX_LINE
from sessionstore.recovery.lines import EMPTINESS
from sessionstore.recovery.records import Defect, read_record

if TYPE_CHECKING:
    from sessionstore.backends.files import Files, FileStat
    from sessionstore.vocabulary import EventTypes

__all__ = ["LogTail", "TailError"]

_SLICE: Final = 1024 * 1024
"""Bytes read at a time; more only where one line or frame is longer."""

_DECODED: Final = 64 * 1024 * 1024
"""Decoded bytes taken at a time, or the one frame that holds more: a megabyte of the file may decode to gigabytes."""

_GUARD: Final = 512
"""Bytes in front of the cursor that must still be what was read: if not, the log was cut and written again."""

_PATIENCE: Final = 10
"""How many looks in a row a log may be missing (moved, or being published again) before it counts as deleted."""


class TailError(Exception):
    """The log cannot be followed any further; the text says why."""


class _Decoded(NamedTuple):
    """The text behind the cursor, how many bytes of the file it takes, what is wrong behind it, whether to go on."""

    text: bytes
    used: int
    broken: str | None
    more: bool


class LogTail:
    """Reads what is appended to one log file.  Blocks: every method is called in a worker."""

    def __init__(
        self, files: Files, path: str, session_id: str, *, compressed: bool, types: EventTypes | None = None
    ) -> None:
        self._files = files
        self._path = path
        self._session_id = session_id
        self._compressed = compressed
        self._types = types
        self._fd = -1
        self._offset = 0
        self._next_seq = 0
        self._headed = False
        self._carry = b""  # of a compressed log whose frames do not end with a line: the beginning of the next one
        self._guard = b""
        self._seen: FileStat | None = None
        self._missing = 0
        self._bad: tuple[str, FileStat] | None = None

    def open(self, offset: int, next_seq: int, *, headed: bool = True) -> None:
        """Open the log; reading begins at *offset*, where the event *next_seq* is expected.

        *headed* says that the header lies before it.

        A compressed log is begun at its start instead: an offset in its text says nothing about the file.

        Raises:
            StorageError: it cannot be opened.
        """
        with storage_errors("read", path=self._path, session_id=self._session_id):
            self._fd = self._files.open_read(self._path)
            if not self._compressed:
                self._offset, self._next_seq, self._headed = offset, next_seq, headed
            self._remember()

    def close(self) -> None:
        """Close the log.  Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._files.close(fd)

    def poll(self) -> list[Event]:
        """The next events, at most about one slice of them; after the log was cut, events may come again.

        Raises:
            TailError: there is a bad line, or another file in the log's place.
            SessionNotFoundError: the log was deleted.
            StorageError: it cannot be read.
        """
        with storage_errors("read", path=self._path, session_id=self._session_id):
            now = self._look()
            if now is None or now == self._seen:
                return []
            if now.size < self._offset or not self._is_guarded():
                self._offset, self._next_seq, self._headed, self._guard, self._carry = 0, 0, False, b"", b""
            return self._read(now)

    def _look(self) -> FileStat | None:
        """The log's stat; ``None`` while it is not there."""
        try:
            there = self._files.stat(self._path)
        except FileNotFoundError:
            self._missing += 1
            if self._missing >= _PATIENCE:
                raise SessionNotFoundError(self._session_id, where=self._path) from None
            return None
        self._missing = 0
        mine = self._files.fstat(self._fd)
        if there.identity != mine.identity:
            raise TailError("another log stands in the place of the one that was followed (a salvage does that)")
        return mine

    def _read(self, now: FileStat) -> list[Event]:
        """Take what is whole behind the cursor, and move it."""
        length = _SLICE
        while True:
            data = self._bytes(self._offset, min(length, now.size - self._offset))
            text, used, broken, more = self._decode(data)
            complete = self._offset + len(data) >= now.size and not more
            if used or complete or broken:
                break
            if length > MAX_LINE:
                broken = "a line longer than the format allows"
                break
            length *= 2
        before = (self._next_seq, self._headed)
        events, taken, problem = self._parse(text)
        if not self._compressed:
            self._offset += taken
            self._remember()
        elif problem is not None:
            # A frame is taken whole or not at all: its events come again, and are known then.
            self._next_seq, self._headed = before
        else:
            self._offset += used
            self._carry = text[taken:]
            self._remember()
            if len(self._carry) > MAX_LINE:
                problem = "a line longer than the format allows"
        problem = problem or broken
        # All of it was taken, or what is left is half a line: there is nothing to do until the file changes.
        self._seen = now if complete and problem is None else None
        if problem is not None:
            self._doubt(problem, now)
        return events

    def _doubt(self, problem: str, now: FileStat) -> None:
        known, self._bad = self._bad, (problem, now)
        if known == self._bad:  # the first look may have met a writer at work
            raise TailError(f"{problem} (byte {self._offset} of {self._path})")

    def _decode(self, data: bytes) -> _Decoded:
        """What can be taken of *data*, the bytes behind the cursor."""
        if not self._compressed:
            end = data.rfind(b"\n") + 1
            return _Decoded(data[:end], end, None, False)
        reader = FrameReader()
        text = gather(reader.feed(data), _DECODED)
        more = len(text) >= _DECODED  # the next look goes on behind these frames
        if not more:
            text += b"".join(reader.finish())
        end_of_good = reader.defects[0].decoded if reader.defects else reader.decoded
        end_frame = reader.end_before(end_of_good)
        # NULs at the end are what a power cut leaves: the next writer cuts them, as he cuts a torn frame.
        bad = next((each for each in reader.defects if not _is_torn(each, len(data))), None)
        broken = None if bad is None else f"a compressed frame is broken ({bad.kind})"
        return _Decoded(self._carry + text[: end_frame.decoded], end_frame.compressed, broken, more)

    def _parse(self, text: bytes) -> tuple[list[Event], int, str | None]:
        """The events of whole lines, how many bytes they take, and what is wrong with the line behind them."""
        events: list[Event] = []
        taken = 0
        for line in text.split(b"\n")[:-1]:
            bare = line.strip(EMPTINESS)
            if bare and not self._headed:
                self._headed = True
            elif bare:
                problem = self._take(bare, events)
                if problem is not None:
                    return events, taken, problem
            taken += len(line) + 1
        return events, taken, None

    def _take(self, line: bytes, events: list[Event]) -> str | None:
        try:
            record = read_record(line)
        except Defect as defect:
            return f"event {self._next_seq} should stand here: {defect.message}"
        if record.seq != self._next_seq:
            return f"expected event {self._next_seq}, found {record.seq}"
        if record.event is not None:
            typed = self._types is not None and record.problem is None
            events.append(Event.from_json(line, self._types) if typed else record.event)
        else:
            events.extend(decode_storage_record(line, self._types))
        self._next_seq += record.count
        return None

    def _bytes(self, offset: int, length: int) -> bytes:
        parts: list[bytes] = []
        while length > 0:
            piece = self._files.pread(self._fd, length, offset)
            if not piece:
                break
            parts.append(piece)
            offset += len(piece)
            length -= len(piece)
        return b"".join(parts)

    def _remember(self) -> None:
        start = max(0, self._offset - _GUARD)
        self._guard = self._bytes(start, self._offset - start)

    def _is_guarded(self) -> bool:
        return self._bytes(self._offset - len(self._guard), len(self._guard)) == self._guard


def _is_torn(defect: FrameDefect, size: int) -> bool:
    return defect.kind == "torn" or (defect.blank and defect.offset + defect.length == size)

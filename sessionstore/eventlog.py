"""The log in memory: append-only, run-compressed, lazy.

The log holds what the disk holds: one ``bytes`` object per storage line, and the
first seq of each.  A run of token deltas is one packed row; its members become
:class:`Event` objects only when somebody looks at them.  The run that is being
streamed is kept open as two lists until it ends or is written.  So memory is what
the log weighs on disk, and a resumed session of a million events is a few
thousand objects.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

from sessionstore.chunks import MIN_RUN, ROW_TYPES, Row, encode_row, line_type, parse_row
from sessionstore.events import DeltaKey, Event
from sessionstore.lossless import MAX_SAFE

if TYPE_CHECKING:
    from sessionstore.vocabulary import EventTypes

__all__ = ["EventLog", "Events"]


class EventLog:
    """An append-only sequence of events, kept as storage lines.  ``len(log)`` is the next seq."""

    __slots__ = ("_cached", "_gaps", "_key", "_last_time", "_length", "_lines", "_sealed",
                 "_starts", "_strings", "_time0", "types")  # fmt: skip

    def __init__(self, types: EventTypes | None = None) -> None:
        self.types = types
        self._lines: list[bytes] = []
        self._starts = array("q")  # first seq of each line
        self._length = 0
        # Seq of the first event that is in no line yet.  Its own field, not a difference of two others: a worker
        # thread may read lines below it while the loop appends.
        self._sealed = 0
        # The open run: the deltas that are not a line yet.
        self._key: DeltaKey | None = None
        self._time0 = 0
        self._last_time = 0
        self._gaps: list[int] = []
        self._strings: list[str] = []
        # The row looked at last: iteration and nearby lookups decode each row once.
        self._cached: tuple[int, Row | None] = (-1, None)

    def __len__(self) -> int:
        return self._length

    @property
    def open_key(self) -> DeltaKey | None:
        """What the deltas of the open run share; ``None`` where no run is open."""
        return self._key

    @property
    def line_count(self) -> int:
        """How many storage lines the log has, the open run not counted."""
        return len(self._lines)

    def append_line(self, line: bytes, count: int = 1) -> None:
        """Append a storage line (no newline) that holds *count* events, the first of which has seq ``len(self)``."""
        if self._key is not None:
            self.seal()
        self._lines.append(line)
        self._starts.append(self._length)
        self._length += count
        self._sealed = self._length

    def extend(self, lines: list[bytes], starts: list[int], length: int) -> None:
        """Append storage lines whose first seqs are *starts*; the log then has *length* events.  What a scan does."""
        if self._key is not None:
            self.seal()
        self._lines += lines
        self._starts.extend(starts)
        self._length = self._sealed = length

    def append_delta(self, key: DeltaKey, string: str, time: int) -> None:
        """Append one delta: to the open run where it continues it, else to a new one."""
        gap = time - self._last_time
        if self._key is not None and (key is self._key or key == self._key) and -MAX_SAFE <= gap <= MAX_SAFE:
            self._gaps.append(gap)
            self._strings.append(string)
        else:
            self.seal()
            self._key, self._time0, self._strings = key, time, [string]
        self._last_time = time
        self._length += 1

    def seal(self) -> None:
        """End the open run: from now on it is one packed row, or single lines where it is too short for one."""
        key = self._key
        if key is None:
            return
        row = Row(key, self._sealed, self._time0, self._gaps, self._strings)
        self._key, self._gaps, self._strings = None, [], []
        if len(row) >= MIN_RUN:
            self._starts.append(row.seq0)
            self._lines.append(encode_row(row))
        else:
            for event in row.events():
                self._starts.append(event.seq)
                self._lines.append(event.to_json())
        self._sealed = self._length

    def event(self, seq: int) -> Event:
        """The event with that *seq*, which must be in the log (0 <= seq < len)."""
        if seq >= self._sealed:
            k = seq - self._sealed
            time = self._time0 + sum(self._gaps[:k])
            return Event("assistant/chunk", seq, time, None, self._key, self._strings[k])
        at = bisect_right(self._starts, seq) - 1
        row = self._row(at)
        if row is not None:
            return next(row.events(seq - row.seq0, seq - row.seq0 + 1))
        return Event.stored(self._lines[at], seq, self.types)

    def events(self, start: int = 0, stop: int | None = None) -> Events:
        """An immutable view of the events from seq *start* up to *stop* (default: the log as it is now).  O(1)."""
        length = self._length
        stop = length if stop is None else min(stop, length)
        return Events(self, range(min(start, stop), stop))

    def iterate(self, start: int, stop: int) -> Iterator[Event]:
        """The events from seq *start* up to *stop*, decoding each row once.  The log may grow meanwhile."""
        seq = start
        while seq < stop:
            if seq >= self._sealed:
                yield self.event(seq)
                seq += 1
                continue
            at = bisect_right(self._starts, seq) - 1
            row = self._row(at)
            if row is None:
                yield Event.stored(self._lines[at], seq, self.types)
                seq += 1
            else:
                first = seq - row.seq0
                last = min(len(row), stop - row.seq0)
                yield from row.events(first, last)
                seq = row.seq0 + last

    def lines(self, start: int, stop: int) -> Iterator[bytes]:
        """Storage lines for exactly the events from seq *start* up to *stop*; a row is split where it sticks out.

        Seals the open run if the range reaches into it.
        """
        if start >= stop:
            return
        if stop > self._sealed:
            self.seal()
        at = bisect_right(self._starts, start) - 1
        seq = start
        while seq < stop:
            end = self._end(at)
            if self._starts[at] >= start and end <= stop:
                yield self._lines[at]
            else:
                row = self._row(at)
                if row is None:  # a line of one event is inside the range or not; it cannot stick out
                    yield self._lines[at]
                else:
                    part = row.slice(seq - row.seq0, min(stop, end) - row.seq0)
                    if len(part) >= MIN_RUN:
                        yield encode_row(part)
                    else:
                        yield from (event.to_json() for event in part.events())
            seq = end
            at += 1

    def slice_lines(self, first: int, last: int) -> list[bytes]:
        """The storage lines with index *first* up to *last*."""
        return self._lines[first:last]

    def line_index(self, seq: int) -> int:
        """The index of the storage line that holds the event with that *seq*."""
        return bisect_right(self._starts, seq) - 1

    def line_start(self, index: int) -> int:
        """The first seq of the storage line with that *index* (past the end: that of the first event in no line)."""
        return self._starts[index] if index < len(self._starts) else self._sealed

    def find_last(self, type_: str) -> Event | None:
        """The last event of that *type_* (not a delta), searching backwards line by line."""
        quick = b'{"type":"%b"' % type_.encode()
        for at in range(len(self._lines) - 1, -1, -1):
            line = self._lines[at]
            if line.startswith(b'{"type":"') and line.find(b"\\", 0, line.find(b",")) < 0:
                if not line.startswith(quick):
                    continue
            elif line_type(line) != type_:
                continue
            return Event.stored(line, self._starts[at], self.types)
        return None

    def _end(self, at: int) -> int:
        return self.line_start(at + 1)

    def _row(self, at: int) -> Row | None:
        """The row at line *at*, ``None`` where the line is a single event."""
        line = self._lines[at]
        cached_at, cached_row = self._cached  # one object, so that another thread sees both or neither
        if at == cached_at:
            return cached_row
        if self._end(at) - self._starts[at] == 1 and not _looks_like_row(line):
            return None
        row = parse_row(line)
        self._cached = (at, row)
        return row


def _looks_like_row(line: bytes) -> bool:
    """Whether a line of one event is a packed row of one member."""
    return b"-chunks" in line and line_type(line) in ROW_TYPES


class Events(Sequence[Event]):
    """An immutable view of consecutive events; the log may grow behind it, the view does not.

    Length and slicing are O(1), indexing is O(log n), iteration decodes each packed row once.
    """

    __slots__ = ("_log", "_range")

    def __init__(self, log: EventLog, seqs: range) -> None:
        self._log = log
        self._range = seqs

    def __len__(self) -> int:
        return len(self._range)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Events: ...
    def __getitem__(self, index: int | slice) -> Event | Events:
        if isinstance(index, slice):
            return Events(self._log, self._range[index])
        return self._log.event(self._range[index])

    def __iter__(self) -> Iterator[Event]:
        seqs = self._range
        if seqs.step == 1:
            return self._log.iterate(seqs.start, seqs.stop)
        return (self._log.event(seq) for seq in seqs)

    def __contains__(self, value: object) -> bool:
        return isinstance(value, Event) and value.seq in self._range and self._log.event(value.seq) == value

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Events) and other._log is self._log and other._range == self._range:
            return True
        if not isinstance(other, (Events, list, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have no hash

    def __repr__(self) -> str:
        return f"<Events {len(self)}>"

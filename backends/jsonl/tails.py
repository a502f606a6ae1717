"""What the end of a log shows: the time of the last event, and what keeps the log from being resumed.

A list looks at the last few kilobytes first.  Only where they are not plainly in
order, or hold no whole line, does it look at the last 64 KiB with care.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from sessionstore.backends.jsonl.frames import FrameReader, gather
from sessionstore.backends.jsonl.heads import FRAME_LIMIT, WHOLE
from sessionstore.chunks import ROW_TYPES, parse_row
from sessionstore.errors import InvalidEventError
from sessionstore.lossless import MAX_SAFE
from sessionstore.measure import measure_row
from sessionstore.recovery.format import TURN_END
from sessionstore.recovery.records import BLANKS, Defect, ends_in_turn_end, read_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessionstore.backends.jsonl.heads import LogView

__all__ = ["TAIL", "Tail", "read_tail"]

TAIL: Final = 64 * 1024
"""The most bytes looked at from the end of a log."""

_NEAR: Final = (1024, 16 * 1024, TAIL)
"""How much of the end is looked at, step by step; a log that is read in one call is looked at whole."""

_MAX_TRIES: Final = 64
"""How many beginnings of a frame are tried: the bytes of one may stand inside another by chance."""

_MAGIC: Final = b"\x28\xb5\x2f\xfd"


class Tail(Struct, gc=False):
    """When the last event happened, and a defect that is damage.

    *out_of_reach* says that the last event is not among the bytes looked at.
    """

    time: int | None = None
    damage: str | None = None
    out_of_reach: bool = False


class _Line(Struct, gc=False):
    type: str
    seq: int = -1


class _Place(Struct, gc=False):
    seq: int
    time: int


_line: Final = msgspec.json.Decoder(_Line).decode
_places: Final = msgspec.json.Decoder(_Place).decode_lines


def read_tail(log: LogView, head_end: int, *, closely: bool = False) -> Tail:
    """Judge the end of a log whose header line ends at byte *head_end*.

    That is the last 64 KiB if *closely*, else as few of them as plainly show a last event in order.

    Raises:
        OSError: the log cannot be read.
        StorageError: it is compressed and the ``zstandard`` package is not there.
    """
    reaches = (TAIL,) if closely or log.stat.size <= WHOLE else _NEAR
    return _read_lines(log, head_end, reaches) if log.compression == "none" else _read_frames(log, reaches)


def _read_lines(log: LogView, head_end: int, reaches: Sequence[int]) -> Tail:
    data, expected = b"", None
    for reach in reaches:
        start = max(head_end, log.stat.size - reach)
        expected = 0 if start == head_end else None
        data = log.read(start, log.stat.size)
        if expected is None:
            data = data.partition(b"\n")[2]
        time = _plain_time(data, expected)
        if time is not None:
            return Tail(time)
        if expected == 0:
            break
    tail = _judge(data, expected)
    tail.out_of_reach = tail.time is None and expected is None
    return tail


def _read_frames(log: LogView, reaches: Sequence[int]) -> Tail:
    size, tail = log.stat.size, Tail()
    for reach in reaches:
        if size <= reach:
            text = _all_frames(log.read(0, size))
            return Tail(out_of_reach=True) if text is None else _judge(text, 0)
        tail = _judge_last_frame(log.read(size - reach, size), reach if reach < TAIL else None)
        if tail.time is not None:
            break
    tail.out_of_reach = tail.time is None
    return tail


def _all_frames(data: bytes) -> bytes | None:
    """What a whole log decodes to behind its header line; ``None`` when that is too much to look at."""
    reader = FrameReader(limit=FRAME_LIMIT)
    decoded = gather(itertools.chain(reader.feed(data), reader.finish()), FRAME_LIMIT)
    return None if len(decoded) >= FRAME_LIMIT else decoded.lstrip(b"\n" + BLANKS).partition(b"\n")[2]


def _judge_last_frame(data: bytes, reach: int | None) -> Tail:
    """Look at the last intact frame that begins in *data* and holds an event, and at what follows it.

    With a *reach*, at no more than so many bytes of what they decode to, and only if they are plainly in order.
    """
    at, decoded = len(data), 0
    for _ in range(_MAX_TRIES):
        at = data.rfind(_MAGIC, 0, at)
        if at < 0 or decoded > FRAME_LIMIT:
            break
        reader = FrameReader(limit=FRAME_LIMIT)
        text = gather(reader.feed(data[at:]), FRAME_LIMIT)
        decoded += len(text)
        if reach is not None:
            time = _plain_time(text[-reach:].partition(b"\n")[2], None) if reader.frames else None
            return Tail(time)
        # Our own frames begin with a line.  Somebody else's may begin within one, so that is no defect.
        first, newline, rest = text.partition(b"\n")
        tail = _judge(text if newline and _measure(first) else rest, None)
        if reader.frames and tail.time is not None:
            return tail
    return Tail()


def _plain_time(text: bytes, expected: int | None) -> int | None:
    """The time of the last event of *text* if that is lines as our own writers write them, in sequence, else ``None``.

    *expected* is the seq that the first one has to have; where it is not known, one line alone is in no sequence.
    """
    try:
        if not text.endswith(b"\n") or not (text.isascii() or text.decode()):
            return None
        # A packed row says so in its type, where a letter may be an escape.
        if b"-chunks" in text or (b"\\" in text and b"\\u" in text):
            return _time_of_rows(text.split(b"\n")[:-1], expected)
        found = _places(text)
        first, last = found[0].seq, found[-1]
        good = (
            first >= 0
            and expected in {None, first}
            and len(found) == text.count(b"\n") > (expected is None)
            and [each.seq for each in found] == list(range(first, first + len(found)))
            and -MAX_SAFE <= last.time <= MAX_SAFE
        )
    except Exception:  # noqa: BLE001 - not as our own writers write it
        return None
    return last.time if good else None


def _time_of_rows(lines: list[bytes], expected: int | None) -> int | None:
    for line in lines:
        found = _measure(line)
        if found is None or expected not in {None, found[0]}:
            return None
        expected = found[0] + found[1]
    return _time(lines[-1]) if len(lines) > 1 else None


def _judge(data: bytes, expected: int | None) -> Tail:
    """What a scan would say of whole lines from the end of a log, the first of which has the *expected* seq."""
    last: bytes | None = None
    defect: str | None = None
    for line in data.split(b"\n")[:-1]:
        if not line.strip(BLANKS):
            continue
        found = _measure(line)
        if defect is None and (found is None or (expected is not None and found[0] != expected)):
            defect = "a defect near the end, with a turn/end after it"
        if defect is not None and (found[2] if found is not None else ends_in_turn_end(line)):
            return Tail(_time(last), defect)
        if defect is None and found is not None:
            expected, last = found[0] + found[1], line
    return Tail(_time(last))


def _measure(line: bytes) -> tuple[int, int, bool] | None:
    """First seq, number of events and whether it is a ``turn/end``; ``None`` for a line that is no record."""
    try:
        if b"-chunks" in line[:40]:
            return (*measure_row(line), False)
        found = _line(line)
        if found.seq >= 0 and found.type not in ROW_TYPES and (line.isascii() or line.decode()):
            return found.seq, 1, found.type == TURN_END
    except Exception:  # noqa: BLE001, S110 - not as our own writers write it: the careful way says what it is
        pass
    try:
        record = read_record(line.rstrip(b"\r"))
    except Defect:
        return None
    return record.seq, record.count, record.is_turn_end


def _time(line: bytes | None) -> int | None:
    """When the last event of a line happened."""
    if line is None:
        return None
    try:
        event = read_record(line.rstrip(b"\r")).event
        return parse_row(line).times()[-1] if event is None else event.time
    except (InvalidEventError, Defect):
        return None

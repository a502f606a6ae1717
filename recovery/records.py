"""One line of a log, read without hurry: what it is, or what is the matter with it.

The scanner has a faster way for the lines that our own writers produce
(:mod:`sessionstore.recovery.fast`); everything that is unusual in any way comes
here, and here is what the fast way has to agree with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from sessionstore.chunks import ROW_TYPES, parse_row
from sessionstore.errors import InvalidEventError
from sessionstore.events import Event
from sessionstore.header import Header, parse_header
from sessionstore.lossless import MAX_SAFE, Json, decode
from sessionstore.recovery.findings import Kind
from sessionstore.recovery.format import HEADER_TYPE, TURN_END
from sessionstore.recovery.lines import EMPTINESS

__all__ = ["BLANKS", "BOM", "Defect", "Record", "ends_in_turn_end", "read_header", "read_intact", "read_record"]

BLANKS: Final = b" \t\r"
"""Bytes that make up a blank line."""

BOM: Final = b"\xef\xbb\xbf"

_RECORD_START: Final = re.compile(rb'\{"type":"[^"\\]{1,200}","seq0?":[0-9]')
_TURN_END_START: Final = b'{"type":"%b"' % TURN_END.encode()


class Defect(Exception):  # noqa: N818 - it is found, not made by a mistake
    """The line is not a record: what kind of defect it is, and one sentence on it."""

    def __init__(self, kind: Kind, message: str, *, path: str | None = None) -> None:
        self.kind = kind
        self.message = message
        self.path = path
        super().__init__(message)


class Record(Struct, frozen=True):
    """A line that stands for *count* events from *seq* on.

    ``event`` is the event of a line that is not a packed row.  ``problem`` tells that its envelope, apart from
    the seq, breaks the rules: it has a place in the log and can only be shown as it is.
    """

    seq: int
    count: int
    event: Event | None = None
    problem: InvalidEventError | None = None

    @property
    def is_turn_end(self) -> bool:
        """Whether the line proves, by the order of writes, that everything before it was durable."""
        return self.problem is None and self.event is not None and self.event.type == TURN_END


def read_record(line: bytes) -> Record:
    """Read a line that is not blank.

    Raises:
        Defect: it is not UTF-8, not JSON, not an object, not a valid row, or has no seq.
    """
    value = _read_object(line)
    type_ = value.get("type")
    if isinstance(type_, str) and type_ in ROW_TYPES:
        try:
            row = parse_row(line)
        except InvalidEventError as error:
            raise Defect(Kind.BAD_ROW, f"a packed row that breaks the rules: {error.reason}", path=error.path) from None
        return Record(row.seq0, len(row))
    seq = _whole(value.get("seq"))
    if seq is None or not 0 <= seq <= MAX_SAFE:
        if type_ == HEADER_TYPE:
            raise Defect(Kind.EXTRA_HEADER, "a second header line: two logs were joined, or the header is misplaced")
        raise Defect(Kind.NOT_A_RECORD, "a JSON object without a valid seq is not an event", path="$.seq")
    try:
        return Record(seq, 1, Event.from_json(line))
    except InvalidEventError as error:
        return Record(seq, 1, Event.stored(line, seq), error)


def read_intact(line: bytes) -> Record | None:
    """The record that the line is, NULs and blanks around it aside; ``None`` where there is none."""
    try:
        record = read_record(line.strip(EMPTINESS))
    except Defect:
        return None
    return record if record.problem is None else None


def ends_in_turn_end(line: bytes) -> bool:
    """Whether a whole ``turn/end`` stands at the end of a line that is not a record itself.

    A record fused behind other bytes, or behind NULs, proves as much as one on a line of its own: bytes before
    it were durable once.  Inside a JSON string its quotes would be escaped, and inside another object it would
    be followed by that object's end.
    """
    line = line.strip(EMPTINESS)
    at = line.rfind(_TURN_END_START)
    if at < 0:
        return False
    record = read_intact(line[at:])
    return record is not None and record.is_turn_end


def read_header(line: bytes) -> Header:
    """Read the first line of a log.

    Raises:
        UnsupportedFormatError: another format version, or a retired form.
        Defect: it is not a header.
    """
    try:
        return parse_header(line)
    except InvalidEventError as error:
        broken = error
    if line.startswith(BOM):
        raise Defect(Kind.BYTE_ORDER_MARK, "the log begins with a byte order mark")
    if b"\0" in line:
        raise Defect(Kind.NUL_BLOCK, "NUL bytes in the header line")
    if read_intact(line) is not None:
        raise Defect(Kind.NO_HEADER, "the log begins with an event: the header line is lost")
    raise Defect(Kind.BAD_HEADER, f"the first line is not a valid header: {broken.reason}", path=broken.path)


def _read_object(line: bytes) -> Mapping[str, Json]:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        if b"\0" in line:
            raise Defect(Kind.NUL_BLOCK, "a block of NUL bytes") from None
        raise Defect(Kind.BAD_UTF8, f"not UTF-8 from byte {error.start} of the line on") from None
    try:
        value = decode(line, exact=False)
    except InvalidEventError as error:
        raise _not_json(line, error.reason) from None
    if not isinstance(value, Mapping):
        raise Defect(Kind.NOT_A_RECORD, "JSON, but not an object")
    return value


def _not_json(line: bytes, reason: str) -> Defect:
    if b"\0" in line:
        return Defect(Kind.NUL_BLOCK, "a block of NUL bytes")
    if _RECORD_START.search(line, 1) is not None:
        return Defect(Kind.FUSED, "two records on one line: a line end was lost, or a torn line was written on")
    return Defect(Kind.BAD_JSON, reason)


def _whole(value: Json) -> int | None:
    """An integer as JSON means it: ``1.0`` is one, ``true`` is not."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None

"""Whole records in damaged bytes.

Everything that is still a record is found, on a line of its own or inside a line
that is broken, and everything else is noted as junk with its place.  What the
records mean together is decided elsewhere.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from sessionstore.chunks import ROW_TYPES, line_type
from sessionstore.errors import InvalidEventError, UnsupportedFormatError
from sessionstore.events import Event
from sessionstore.header import Header, parse_header
from sessionstore.measure import measure_row
from sessionstore.recovery.findings import Kind
from sessionstore.recovery.format import MAX_LINE
from sessionstore.recovery.lines import EMPTINESS
from sessionstore.recovery.records import BOM, Defect, read_record
from sessionstore.recovery.salvage_plan import Quarantined

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Found", "FoundHeader", "Junk", "Piece", "find_records"]

_BLANK_RUN: Final = re.compile(rb"[ \t\r\n]+")
_ROW_HEAD: Final = re.compile(rb'\{"type":"(?:text|reasoning|tool-call)-chunks"')
# Where a record may begin inside a broken line: as our writer writes it, or behind an end of object.  Inside a JSON
# string the quotes would be escaped.
_START: Final = re.compile(rb'\{"type":"[^"\\]{1,200}","seq0?":[0-9]|(?<=[}\0])\{')
# The parts of JSON text that say where an object ends.  Possessive: no part is looked at twice.
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]]', re.DOTALL)
# What keeps hostile lines linear: how often each byte of a broken line may be looked at, what a look costs at least
# (in bytes), and how many objects without an end are followed to the end of the line.
_LOOKS: Final = 4
_LEAST: Final = 128
_ENDLESS: Final = 8


class Piece(Struct, gc=False):
    """A record of *count* events from *seq* on, with its place in the damaged log.

    ``type`` is that of the event or row.  ``loose``: it was found inside a broken line, which proves less.
    ``problem`` says what keeps it from being an event, although it has a seq.
    """

    seq: int
    count: int
    type: str
    line: bytes
    offset: int
    length: int
    loose: bool = False
    problem: str | None = None

    @property
    def next(self) -> int:
        """The seq that follows."""
        return self.seq + self.count

    @property
    def end(self) -> int:
        """The byte behind it."""
        return self.offset + self.length


class FoundHeader(NamedTuple):
    """A line that is a valid header, and where it stood."""

    header: Header
    offset: int
    length: int


class Junk:
    """The stretches of the log that are no part of any record, and how many bytes were lost with them.

    *weights* tells the true length of stretches that are shorter here than they were: a compressed frame that
    cannot be decoded leaves a mark of one byte.
    """

    def __init__(self, weights: Sequence[tuple[int, int]] = ()) -> None:
        self.stretches: list[Quarantined] = []
        self._weights = dict(weights)
        self._offsets: list[int] | None = None
        self._sums: list[int] = []

    def add(self, offset: int, length: int, reason: str) -> None:
        """Note a stretch.  They may come in any order."""
        if length > 0:
            self.stretches.append(Quarantined(offset, length, reason))
            self._offsets = None

    def lost_between(self, start: int, stop: int) -> int:
        """How many bytes were lost from *start* to *stop*."""
        if self._offsets is None:
            self.stretches.sort(key=lambda each: each.offset)
            weights = [max(each.length, self._weights.get(each.offset, 0)) for each in self.stretches]
            self._offsets = [each.offset for each in self.stretches]
            self._sums = list(accumulate(weights, initial=0))
        first, last = bisect_left(self._offsets, start), bisect_left(self._offsets, stop)
        return self._sums[max(first, last)] - self._sums[first]


class Found(Struct):
    """What a damaged log still holds.

    ``pieces`` stand in the order of the file.  ``header`` is the first line's, ``strays`` are header lines elsewhere;
    ``foreign`` tells why the first line's header is not for this version.
    """

    pieces: list[Piece]
    junk: Junk
    header: FoundHeader | None = None
    strays: list[FoundHeader] = []
    foreign: UnsupportedFormatError | None = None


def find_records(data: bytes, *, weights: Sequence[tuple[int, int]] = ()) -> Found:
    """Find every record in *data*, in linear time."""
    found = Found([], Junk(weights))
    first = True
    for start, stop in _lines(data):
        line = data[start:stop]
        body = line.strip(EMPTINESS)
        offset = start + line.find(body[:1]) if body else start
        if first and body.startswith(BOM):
            body = body.removeprefix(BOM).strip(EMPTINESS)
            offset = start + line.find(BOM) + len(BOM)
            offset += line[offset - start :].find(body[:1]) if body else 0
        if not body:
            found.junk.add(start, stop - start, "NUL bytes")
            continue
        _note_nuls(found.junk, line, start, offset, len(body))
        if stop - start > MAX_LINE:
            found.junk.add(offset, len(body), "a line beyond the limit of the format")
        else:
            _read_line(found, body, offset, first=first)
        first = False
    return found


def _lines(data: bytes) -> Iterator[tuple[int, int]]:
    """Where the lines that hold anything begin and end; runs of blanks cost nothing."""
    at, size = 0, len(data)
    while at < size:
        blank = _BLANK_RUN.match(data, at)
        if blank is not None:
            at = blank.end()
            continue
        stop = data.find(b"\n", at)
        stop = size if stop < 0 else stop
        yield at, stop
        at = stop + 1


def _note_nuls(junk: Junk, line: bytes, start: int, offset: int, length: int) -> None:
    """Blocks of NULs around a record are lost bytes; blanks are none."""
    before, after = offset - start, offset - start + length
    if b"\0" in line[:before]:
        junk.add(start, before, "NUL bytes")
    if b"\0" in line[after:]:
        junk.add(start + after, len(line) - after, "NUL bytes")


def _read_line(found: Found, body: bytes, offset: int, *, first: bool) -> None:
    try:
        found.pieces.append(_read(body, offset))
    except Defect as defect:
        if (first or defect.kind is Kind.EXTRA_HEADER) and _take_header(found, body, offset, first=first):
            return
        _search(found, body, offset, defect)


def _read(body: bytes, offset: int, *, loose: bool = False) -> Piece:
    """The record that *body* is.  Raises :class:`Defect`."""
    try:
        if _ROW_HEAD.match(body) is not None:
            body.decode()
            seq, count = measure_row(body)
            return Piece(seq, count, body[9 : body.find(b'"', 9)].decode(), body, offset, len(body), loose)
        event = Event.from_json(body)
        if event.type not in ROW_TYPES:
            return Piece(event.seq, 1, event.type, body, offset, len(body), loose)
    except (InvalidEventError, UnicodeDecodeError):
        pass  # the careful way says what it is
    record = read_record(body)
    kind = line_type(body) or "" if record.event is None else record.event.type
    problem = None if record.problem is None else record.problem.reason
    return Piece(record.seq, record.count, kind, body, offset, len(body), loose, problem)


def _take_header(found: Found, body: bytes, offset: int, *, first: bool) -> bool:
    try:
        header = FoundHeader(parse_header(body), offset, len(body))
    except InvalidEventError:
        return False
    except UnsupportedFormatError as error:
        if first:
            found.foreign = error
        return first
    if first:
        found.header = header
    else:
        found.strays.append(header)
    return True


def _search(found: Found, body: bytes, offset: int, defect: Defect) -> None:
    """Find the whole records inside a line that is none; the rest of it is junk."""
    budget = _LOOKS * len(body) + 64 * _LEAST
    endless = 0
    at = done = 0
    while budget > 0 and endless < _ENDLESS:
        start = _START.search(body, at) if at else None
        if at and start is None:
            break
        at = start.start() if start is not None else 0
        stop = _object_end(body, at)
        if stop is None:
            endless += 1
            stop = len(body)
        budget -= max(stop - at, _LEAST)
        if stop - at < len(body) and _read_part(found, body[at:stop], offset + at):
            found.junk.add(offset + done, at - done, defect.message)
            done = at = stop
        else:
            at += 1
    found.junk.add(offset + done, len(body) - done, defect.message)


def _read_part(found: Found, part: bytes, offset: int) -> bool:
    try:
        piece = _read(part, offset, loose=True)
    except Defect as defect:
        return defect.kind is Kind.EXTRA_HEADER and _take_header(found, part, offset, first=False)
    found.pieces.append(piece)
    return True


def _object_end(body: bytes, start: int) -> int | None:
    """Where the JSON object that begins at *start* ends; ``None`` when it does not."""
    if body[start : start + 1] != b"{":
        return None
    depth = 0
    for token in _TOKEN.finditer(body, start):
        mark = body[token.start()]
        if mark in b"{[":
            depth += 1
        elif mark in b"}]":
            depth -= 1
            if depth <= 0:
                return token.end()
    return None

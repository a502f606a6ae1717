"""What a scan found: the verdict on a whole log, and the positions that led to it."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Final

from msgspec import Struct

__all__ = ["FINDINGS_PER_KIND", "Finding", "Findings", "Kind", "Verdict"]

FINDINGS_PER_KIND: Final = 100
"""How many findings of one kind a scan lists one by one; a single further one counts the rest."""


class Verdict(StrEnum):
    """What a log is, as a whole; ``recovery.md`` has the table."""

    CLEAN = "clean"
    """Every byte is accounted for and no turn is open."""
    INTERRUPTED = "interrupted"
    """Every byte is good; the last turn is open and gets closers."""
    TORN = "torn"
    """What follows the safe offset is what a crash leaves: cut, kept aside, closed."""
    DAMAGED = "damaged"
    """A defect stands before a ``turn/end``: bytes that were durable are bad.  Refused."""
    INVALID = "invalid"
    """Intact lines in sequence, but an event breaks a rule that a seed must keep.  Refused."""
    UNSUPPORTED = "unsupported"
    """Intact, but of another format version or in a retired form.  Refused."""
    EMPTY = "empty"
    """Nothing was ever completed here: no bytes, blanks or NULs, or an unterminated first line."""


class Kind(StrEnum):
    """What one finding is about."""

    BLANK_LINE = "blank-line"
    """An empty line: loses nothing, stops nothing."""
    CARRIAGE_RETURN = "carriage-return"
    """A line that ends in ``\\r\\n``: loses nothing, stops nothing."""
    UNTERMINATED = "unterminated"
    """The last line has no newline: the write of it never finished, whatever it holds."""
    BLANK_TAIL = "blank-tail"
    """The log ends in NULs and blanks: space that the file system had reserved and never filled."""
    NUL_BLOCK = "nul-block"
    """A line holds NUL bytes: a block that was never written, or was lost."""
    BAD_UTF8 = "bad-utf8"
    BAD_JSON = "bad-json"
    FUSED = "fused"
    """A line holds one whole record and more bytes behind or before it."""
    NOT_A_RECORD = "not-a-record"
    """JSON, but not an event or a packed row."""
    BAD_ROW = "bad-row"
    """A packed row that breaks the strict rules of rows; it is dropped whole."""
    SEQ_GAP = "seq-gap"
    SEQ_REPEAT = "seq-repeat"
    """The seq of the event before it again."""
    SEQ_REWIND = "seq-rewind"
    """A seq that was already used further back."""
    TOO_LONG = "too-long"
    """A line beyond the limit of the format."""
    BYTE_ORDER_MARK = "byte-order-mark"
    NO_HEADER = "no-header"
    BAD_HEADER = "bad-header"
    EXTRA_HEADER = "extra-header"
    """A second header line."""
    INVALID_EVENT = "invalid-event"
    """An intact event that breaks a rule that a seed must keep."""
    UNSUPPORTED = "unsupported"


class Finding(Struct, frozen=True, kw_only=True):
    """One position in a log and what is the matter there.

    ``line`` counts from 1 with the header as line 1; ``offset`` and ``length`` are bytes of the (decompressed)
    log; ``expected_seq`` and ``actual_seq`` are given where seqs are the point; ``path`` is the JSON path in
    the record.  ``message`` is one sentence without event contents.
    """

    kind: Kind
    line: int
    offset: int
    length: int
    message: str
    expected_seq: int | None = None
    actual_seq: int | None = None
    path: str | None = None

    def describe(self) -> str:
        """The finding as one line for a person: where, and what."""
        return f"line {self.line}, byte {self.offset}: {self.message}"


class Findings:
    """What is found on a walk through a log, in order, with a bound on how much that can be.

    ``line`` is the number of lines behind the walker and ``offset`` where the one before it begins.
    """

    def __init__(self) -> None:
        self.line = 0
        self.offset = 0
        self._kept: list[Finding] = []
        self._counts: Counter[Kind] = Counter()
        self._first_left_out: dict[Kind, Finding] = {}

    def pass_line(self, length: int) -> None:
        """Go on behind a line of *length* bytes and its newline."""
        self.line += 1
        self.offset += length + 1

    def note(
        self,
        kind: Kind,
        message: str,
        *,
        length: int,
        skip: int = 0,
        expected: int | None = None,
        actual: int | None = None,
        path: str | None = None,
    ) -> None:
        """Note a finding of *length* bytes in the line at hand, *skip* bytes behind its beginning."""
        self._counts[kind] += 1
        if self._counts[kind] > FINDINGS_PER_KIND and kind in self._first_left_out:
            return
        finding = Finding(
            kind=kind,
            line=self.line + 1,
            offset=self.offset + skip,
            length=length,
            message=message,
            expected_seq=expected,
            actual_seq=actual,
            path=path,
        )
        if self._counts[kind] <= FINDINGS_PER_KIND:
            self._kept.append(finding)
        else:
            self._first_left_out[kind] = finding

    def result(self) -> tuple[Finding, ...]:
        """What was found; the last finding of a kind may stand for many."""
        rest: list[Finding] = []
        for kind, first in self._first_left_out.items():
            more = self._counts[kind] - FINDINGS_PER_KIND
            message = f"{kind}: {more} of these from here on"
            rest.append(Finding(kind=kind, line=first.line, offset=first.offset, length=first.length, message=message))
        return tuple(sorted([*self._kept, *rest], key=lambda finding: finding.offset))

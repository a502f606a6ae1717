"""What stands behind the first defect of a log, and what it proves.

Nothing there is accepted any more.  Two questions are answered: is there a
``turn/end``, which proves that the bytes before it were durable once, so that the
defect is damage and not what a crash left; and how much is still intact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionstore.recovery.findings import Kind
from sessionstore.recovery.lines import EMPTINESS
from sessionstore.recovery.records import Defect, ends_in_turn_end, read_record

if TYPE_CHECKING:
    from sessionstore.eventlog import EventLog
    from sessionstore.recovery.findings import Findings
    from sessionstore.recovery.records import Record

__all__ = ["Aftermath", "note_jump"]


class Aftermath:
    """The lines from the first defect on.

    ``blank`` says that nothing but NULs and blanks was among them, ``turn_end`` that a ``turn/end`` was, and
    ``intact`` counts intact events that *log* (what was accepted before) does not hold.
    """

    def __init__(self, log: EventLog, findings: Findings) -> None:
        self.blank = True
        self.turn_end = False
        self.intact = 0
        self._log = log
        self._findings = findings
        self._next: int | None = None

    def look(self, lines: list[bytes], start: int) -> int:
        """Look at the lines from index *start* on; returns the index behind the last."""
        for index in range(start, len(lines)):
            line = lines[index]
            body = line.strip(EMPTINESS)
            if body:
                record: Record | None = None
                try:
                    record = read_record(body)
                except Defect as defect:
                    self._findings.note(defect.kind, defect.message, length=len(line), path=defect.path)
                if record is not None and self._next is not None and self._next != record.seq:
                    note_jump(self._findings, record, self._next, len(line))
                self.weigh(line, record)
            self._findings.pass_line(len(line))
        return len(lines)

    def weigh(self, line: bytes, record: Record | None) -> None:
        """Take a line into account that is *record*, or no record."""
        if self.blank and line.strip(EMPTINESS):
            self.blank = False
        if record is None:
            self.turn_end = self.turn_end or ends_in_turn_end(line)
            return
        self._next = record.seq + record.count
        self.turn_end = self.turn_end or record.is_turn_end
        if record.problem is None and not self._is_repeat(line, record):
            self.intact += record.count

    def _is_repeat(self, line: bytes, record: Record) -> bool:
        """Whether the line only says again what the log already holds."""
        if record.seq >= len(self._log):
            return False
        at = self._log.line_index(record.seq)
        return self._log.slice_lines(at, at + 1) == [line.strip(EMPTINESS)]


def note_jump(findings: Findings, record: Record, expected: int, length: int) -> None:
    """Note that a line of *length* bytes holds another seq than the next one."""
    if record.seq > expected:
        kind, what = Kind.SEQ_GAP, f"{record.seq - expected} events are missing"
    elif record.seq == expected - 1:
        kind, what = Kind.SEQ_REPEAT, "the seq before it again"
    else:
        kind, what = Kind.SEQ_REWIND, f"the log goes back by {expected - record.seq}"
    message = f"expected seq {expected}, found {record.seq}: {what}"
    findings.note(kind, message, length=length, expected=expected, actual=record.seq)

"""What a log's bytes say: one pass, any chunking, no I/O.

The scanner splits bytes into lines, accepts lines while they continue the log,
and stops accepting at the first defect.  From there on it only looks for what
decides between *torn* and *damaged* (a ``turn/end`` that proves the bytes before
it were durable) and counts what is still intact.  It reports; the caller decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from sessionstore.errors import InvalidEventError, UnsupportedFormatError
from sessionstore.eventlog import EventLog
from sessionstore.header import Header, parse_header
from sessionstore.recovery.aftermath import Aftermath, note_jump
from sessionstore.recovery.closers import payload_of, turn_number
from sessionstore.recovery.fast import Readers, read_plain
from sessionstore.recovery.findings import FINDINGS_PER_KIND, Finding, Findings, Kind, Verdict
from sessionstore.recovery.format import MAX_LINE, TURN_END, TURN_START
from sessionstore.recovery.lines import EMPTINESS, LineSplitter, Overlong
from sessionstore.recovery.records import (
    BLANKS,
    BOM,
    Defect,
    Record,
    read_header,
    read_intact,
    read_record,
)
from sessionstore.seeds import check_seed_event
from sessionstore.surface import Surface
from sessionstore.vocabulary import PAYLOADS

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessionstore.eventlog import Events
    from sessionstore.events import Event
    from sessionstore.vocabulary import EventTypes

__all__ = ["LogScanner", "ScanResult", "scan_log"]

_CHUNK: Final = 1 << 20


class ScanResult(Struct, kw_only=True):
    """What a log is.

    ``log`` and ``surface`` hold the accepted events: all of them, or those before the first defect.
    ``safe_offset`` is the end of the last accepted line and ``size`` the number of bytes seen, both in
    (decompressed) bytes.  ``cut_is_blank`` says that only NULs and blanks lie between the two.  ``open_turn`` is
    the number of the turn open at the end, ``open_turn_seq`` the seq of its start.  ``intact_after`` counts intact
    events behind the first defect.  ``header`` is ``None`` when it is lost or another version's, and
    ``unsupported`` says why a log is unsupported.
    """

    verdict: Verdict
    header: Header | None
    header_line: bytes | None
    log: EventLog
    surface: Surface
    findings: tuple[Finding, ...]
    safe_offset: int
    size: int
    cut_is_blank: bool
    open_turn: int | None
    open_turn_seq: int | None
    intact_after: int
    unsupported: UnsupportedFormatError | None

    @property
    def events(self) -> Events:
        """The accepted events, decoded when looked at."""
        return self.log.events()


def scan_log(data: bytes | memoryview, *, types: EventTypes | None = None) -> ScanResult:
    """Scan a whole log.  Any bytes at all give a result; only what is not bytes raises, a TypeError."""
    scanner = LogScanner(types=types)
    scanner.feed(data)
    return scanner.finish()


def _finished(lines: list[bytes], start: int) -> int:
    del start
    return len(lines)


class LogScanner:
    """Scans a log that arrives in pieces.  How it is cut into pieces makes no difference to the result.

    *types* is given to the events for their typed view.  *max_line* is the longest line accepted, in bytes
    without its newline: no more than one such line is ever held beside the result.
    """

    def __init__(self, *, types: EventTypes | None = None, max_line: int = MAX_LINE) -> None:
        self._max_line = max_line
        self._size = 0
        self._splitter = LineSplitter(max_line)
        self._stage: Callable[[list[bytes], int], int] = self._read_first
        self._header: Header | None = None
        self._header_line: bytes | None = None
        self._header_bad = False
        self._log = EventLog(types)
        self._surface = Surface()
        self._readers = Readers(self._surface)
        self._findings = Findings()
        self._aftermath = Aftermath(self._log, self._findings)
        self._safe_offset = 0
        self._unsupported: UnsupportedFormatError | None = None
        self._foreign = False
        self._invalid = 0
        self._torn = False

    @property
    def size(self) -> int:
        """How many bytes were fed so far."""
        return self._size

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the log.  The scanner keeps no reference to *chunk*."""
        if not isinstance(chunk, bytes | bytearray | memoryview):
            raise TypeError(f"a log is bytes, got {type(chunk).__name__}; a file is opened with mode 'rb'")
        step = min(_CHUNK, self._max_line)
        if len(chunk) <= step:
            self._feed(bytes(chunk))
            return
        view = memoryview(chunk).cast("B")
        for start in range(0, len(view), step):
            self._feed(bytes(view[start : start + step]))

    def finish(self, *, live: bool = False) -> ScanResult:
        """The result.  With a *live* writer at work, a last line without an end is no finding.  Call it once."""
        if not live and not self._foreign:
            self._read_tail()
        verdict = self._verdict()
        self._stage = _finished  # a method of ours would be a cycle, and keep a log that nobody else holds
        return ScanResult(
            verdict=verdict,
            header=self._header,
            header_line=self._header_line,
            log=self._log,
            surface=self._surface,
            findings=self._findings.result(),
            safe_offset=self._safe_offset,
            size=self._size,
            cut_is_blank=self._aftermath.blank,
            open_turn=self._readers.open_turn,
            open_turn_seq=self._readers.open_turn_seq,
            intact_after=self._aftermath.intact,
            unsupported=self._unsupported,
        )

    def _feed(self, data: bytes) -> None:
        self._size += len(data)
        overlong, lines = self._splitter.split(data)
        if overlong is not None:
            self._skip_line(overlong)
        start = 0
        while start < len(lines):
            start = self._stage(lines, start)

    def _skip_line(self, line: Overlong) -> None:
        """Pass over a line that was too long to be kept."""
        if not self._foreign:
            message = f"a line of {line.length} bytes, the limit is {self._max_line}"
            self._findings.note(Kind.TOO_LONG, message, length=line.length)
            if self._stage == self._read_first:
                self._header_bad = True
            self._torn = True
            self._aftermath.blank = self._aftermath.blank and line.blank
            self._stage = self._aftermath.look
        self._findings.pass_line(line.length)

    # Stages: each takes lines from an index on and returns the index of the first line that it leaves to the next.

    def _read_first(self, lines: list[bytes], start: int) -> int:
        line = lines[start]
        body = line.rstrip(b"\r")
        if not body.strip(EMPTINESS):
            # Not before the header is there does it matter whether this is a blank line or a hole.
            if b"\0" in body:
                self._findings.note(Kind.NUL_BLOCK, "a line of NUL bytes before the header", length=len(line))
                self._header_bad = True
            else:
                self._findings.note(Kind.BLANK_LINE, "a blank line before the header", length=len(line))
            self._pass(line)
            return start + 1
        self._stage = self._accept
        try:
            self._header = read_header(body)
        except UnsupportedFormatError as error:
            self._refuse_header(error, line)
            return len(lines)
        except Defect as defect:
            self._header_bad = True
            self._findings.note(defect.kind, defect.message, length=len(line), path=defect.path)
            if defect.kind is Kind.NO_HEADER:
                return start
            if defect.kind in (Kind.BYTE_ORDER_MARK, Kind.NUL_BLOCK):
                self._read_wrapped_header(body, line)
        self._header_line = body
        self._accepted(line, body)
        return start + 1 if not self._foreign else len(lines)

    def _read_wrapped_header(self, body: bytes, line: bytes) -> None:
        """What a header behind a byte order mark or NULs says; the log is damaged in any case."""
        try:
            self._header = parse_header(body.removeprefix(BOM).strip(EMPTINESS))
        except InvalidEventError:
            return
        except UnsupportedFormatError as error:
            self._refuse_header(error, line)

    def _refuse_header(self, error: UnsupportedFormatError, line: bytes) -> None:
        self._foreign = True
        self._unsupported = error
        self._findings.note(Kind.UNSUPPORTED, error.reason, length=len(line))
        self._stage = self._ignore

    def _ignore(self, lines: list[bytes], start: int) -> int:
        """Nothing more is read of another version's log."""
        del start
        return len(lines)

    def _accept(self, lines: list[bytes], start: int) -> int:
        """The hot loop: what a usual line costs is what a load costs."""
        log = self._log
        taken: list[bytes] = []
        starts: list[int] = []
        take, start_at = taken.append, starts.append
        reader_of = self._readers.by_token.get
        expected = len(log)
        offset = self._findings.offset
        first = self._findings.line - start
        for index in range(start, len(lines)):
            line = body = lines[index]
            if not line.endswith(b"}"):
                body = line.rstrip(b"\r")
            try:
                count = 0
                if body.isascii() or body.decode():
                    count = reader_of(body[9 : body.find(b'"', 9)], read_plain)(body, expected)
            except Exception:  # noqa: BLE001 - not the usual line: the careful way says what it is
                count = 0
            if count:
                take(body)
                start_at(expected)
                expected += count
                if body is line:
                    offset += len(line) + 1
                    continue
            log.extend(taken, starts, expected)
            taken.clear()
            starts.clear()
            self._findings.offset = offset
            self._findings.line = first + index
            if count:
                self._accepted(line, body)
            else:
                self._accept_carefully(line, body)
            if self._torn:
                return index + 1
            offset = self._findings.offset
            expected = len(log)
        log.extend(taken, starts, expected)
        self._findings.offset = self._safe_offset = offset
        self._findings.line = first + len(lines)
        return len(lines)

    def _accept_carefully(self, line: bytes, body: bytes) -> None:
        """Accept a line of which the fast way was not sure, or find the first defect.  *body* ends before any CR."""
        self._safe_offset = self._findings.offset
        if not body.strip(BLANKS):
            self._findings.note(Kind.BLANK_LINE, "a blank line; nothing is lost", length=len(line))
            self._pass(line)
            return
        expected = len(self._log)
        try:
            record = read_record(body)
        except Defect as defect:
            self._findings.note(defect.kind, defect.message, length=len(line), path=defect.path, expected=expected)
            # Behind NULs there may be a whole record: it proves and counts like any other.
            self._stop_accepting(line, read_intact(line) if defect.kind is Kind.NUL_BLOCK else None)
            return
        if record.seq != expected:
            note_jump(self._findings, record, expected, len(line))
            self._stop_accepting(line, record)
            return
        if record.event is not None:
            self._admit(record.event, record.problem, line)
        self._log.append_line(body, record.count)
        self._accepted(line, body)

    def _accepted(self, line: bytes, body: bytes) -> None:
        if len(body) != len(line):
            message = "the line ends in a carriage return; nothing is lost"
            extra = len(line) - len(body)
            self._findings.note(Kind.CARRIAGE_RETURN, message, skip=len(body), length=extra)
        self._pass(line)

    def _pass(self, line: bytes) -> None:
        self._findings.pass_line(len(line))
        self._safe_offset = self._findings.offset

    def _admit(self, event: Event, problem: InvalidEventError | None, line: bytes) -> None:
        """Check the event of an intact line against the rules for seeds.  It enters the log in any case.

        An event that breaks a rule takes its place on the surface all the same if the surface's own rules let it,
        so that one bad message does not make every later replacement look bad, too.
        """
        errors: list[InvalidEventError | UnsupportedFormatError] = [] if problem is None else [problem]
        if problem is None:
            try:
                check_seed_event(event)
            except (InvalidEventError, UnsupportedFormatError) as error:
                errors.append(error)
            try:
                # A check can cost as much as the event that is replaced: failing ones must not add up.
                if self._invalid < FINDINGS_PER_KIND:
                    self._surface.commit(self._surface.check(event, self._log.event))
            except (InvalidEventError, UnsupportedFormatError) as error:
                errors.append(error)
            self._note_turn(event)
        if errors:
            self._note_error(event, errors[0], line)

    def _note_error(self, event: Event, first: InvalidEventError | UnsupportedFormatError, line: bytes) -> None:
        if isinstance(first, UnsupportedFormatError):
            self._unsupported = self._unsupported or first
            self._findings.note(Kind.UNSUPPORTED, first.reason, length=len(line), actual=event.seq)
        else:
            self._invalid += 1
            name = event.type if event.type in PAYLOADS else "event"
            where = f" at {first.path}" if first.path else ""
            message = f"{name} (seq {event.seq}) breaks a rule: {first.reason}{where}"
            self._findings.note(Kind.INVALID_EVENT, message, length=len(line), actual=event.seq, path=first.path)

    def _note_turn(self, event: Event) -> None:
        if event.type == TURN_START:
            self._readers.turn_start(event.seq, turn_number(payload_of(event)))
        elif event.type == TURN_END:
            self._readers.turn_end()

    def _stop_accepting(self, line: bytes, record: Record | None) -> None:
        """The line is the first defect."""
        self._torn = True
        self._stage = self._aftermath.look
        self._aftermath.weigh(line, record)
        self._findings.pass_line(len(line))

    # The end

    def _read_tail(self) -> None:
        rest = self._splitter.rest
        if not rest.length:
            return
        if rest.blank:
            self._findings.note(
                Kind.BLANK_TAIL, f"the log ends in {rest.length} NUL or blank bytes", length=rest.length
            )
        else:
            message = f"the last line has no end: the write of its {rest.length} bytes was cut short"
            self._findings.note(Kind.UNTERMINATED, message, length=rest.length)
        self._torn = True
        self._aftermath.blank = self._aftermath.blank and rest.blank

    def _verdict(self) -> Verdict:
        if self._foreign:
            return Verdict.UNSUPPORTED
        if self._stage == self._read_first or (self._header_line is None and not self._header_bad):
            return Verdict.EMPTY
        if self._header_bad or self._aftermath.turn_end:
            return Verdict.DAMAGED
        if self._unsupported is not None:
            return Verdict.UNSUPPORTED
        if self._invalid > 0:
            return Verdict.INVALID
        if self._torn:
            return Verdict.TORN
        return Verdict.CLEAN if self._readers.open_turn is None else Verdict.INTERRUPTED

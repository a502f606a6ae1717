"""Reading a log: streamed through the scanner, and from a seq on.

Both look at the file as long as it was when it was opened, so a writer at work does
not keep a reader busy.  A file that was changed under the reader in another way
than by growing (a repair cut it, a failed write was taken back) may show defects
that it does not have; the caller asks :func:`unchanged` and reads again.
"""

from __future__ import annotations

import contextlib
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from sessionstore.backends.files import FileStat, Identity, read_chunks, storage_errors
from sessionstore.backends.jsonl.frames import FrameReader
from sessionstore.backends.jsonl.index import Checkpoint, tail_digest
from sessionstore.backends.paths import is_at_home, session_paths
from sessionstore.chunks import parse_row
from sessionstore.errors import InvalidEventError, UnsupportedFormatError
from sessionstore.events import Event
from sessionstore.recovery.findings import Finding, Kind, Verdict
from sessionstore.recovery.records import BLANKS, Defect, Record, read_record
from sessionstore.recovery.scan import LogScanner, ScanResult
from sessionstore.seeds import check_seed_event
from sessionstore.vocabulary import SURFACE_TYPES

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from sessionstore.backends.files import Files
    from sessionstore.backends.jsonl.lookup import Found
    from sessionstore.vocabulary import EventTypes

__all__ = ["Pauses", "Reading", "open_log", "read_log", "read_suffix", "unchanged"]

_PIECE: Final = 64 * 1024
"""Bytes scanned between two looks at the clock: about a millisecond of work."""

_WORK: Final = 0.003
"""Seconds of work between two pauses."""

_PAUSE: Final = 5e-5
"""Seconds.  A thread that waits for the GIL needs about so long to wake up; a pause of 0 is over before."""

_BLOCK: Final = 64 * 1024
_WHOLE: Final = 1024 * 1024
_GOOD: Final = frozenset({Verdict.CLEAN, Verdict.INTERRUPTED, Verdict.TORN})


class Pauses:
    """Call it often in a worker: every few milliseconds it lets the event loop's thread have the GIL."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self) -> None:
        """Pause if it is time to."""
        if time.monotonic() - self._last > _WORK:
            time.sleep(_PAUSE)
            self._last = time.monotonic()


class Reading(Struct):
    """One scan of a log file: *stat* is what it was when it was opened.

    *frames* knows where the frames of a compressed log end.  *checkpoint* is where a later read of the same log
    may begin, if the log allows one.
    """

    scan: ScanResult
    stat: FileStat
    frames: FrameReader | None = None
    checkpoint: Checkpoint | None = None


@contextmanager
def open_log(files: Files, found: Found, session_id: str) -> Generator[tuple[int, FileStat]]:
    """The log's descriptor and stat.  Raises :class:`StorageError` for whatever goes wrong while it is open."""
    with storage_errors("read", path=found.log, session_id=session_id):
        if found.stat.kind == "link":
            raise OSError(0, "it is a symbolic link, which is not followed")
        fd = files.open_read(found.log)
        try:
            stat = files.fstat(fd)
            if stat.kind != "file":
                raise OSError(0, f"it is not a file but {stat.noun}")
            yield fd, stat
        finally:
            with contextlib.suppress(OSError):
                files.close(fd)


def read_log(
    files: Files, found: Found, session_id: str, *, types: EventTypes | None = None, live: bool = False
) -> Reading:
    """Scan the whole log, never holding more of it than the result and one piece.  Blocks: call it in a worker.

    With a *live* writer an unterminated end is no finding.

    Raises:
        StorageError: the file cannot be read, or is compressed and the ``zstandard`` package is not there.
    """
    scanner = LogScanner(types=types)
    frames = FrameReader() if found.compression == "zstd" else None
    pause = Pauses()
    with open_log(files, found, session_id) as (fd, stat):
        for piece in _decoded(read_chunks(files, fd, 0, stat.size, chunk=_PIECE), frames, live=live):
            scanner.feed(piece)
            pause()
        scan = _check_place(files, found, session_id, scanner.finish(live=live))
        checkpoint = None
        if frames is None and scan.verdict in _GOOD:
            digest = tail_digest(files, fd, scan.safe_offset)
            checkpoint = Checkpoint(*stat.identity, scan.safe_offset, len(scan.log), digest)
    return Reading(scan, stat, frames, checkpoint)


def _decoded(pieces: Iterable[bytes], frames: FrameReader | None, *, live: bool) -> Iterator[bytes | memoryview]:
    """The text of a log in small pieces: *pieces* as they are, or what *frames* makes of them."""
    if frames is None:
        yield from pieces
        return
    for piece in pieces:
        for part in frames.feed(piece):
            yield from _slices(part)
    if not live:
        for part in frames.finish():
            yield from _slices(part)


def _slices(part: bytes) -> Iterator[memoryview]:
    view = memoryview(part)
    for start in range(0, len(view), _PIECE):
        yield view[start : start + _PIECE]


def unchanged(files: Files, found: Found, reading: Reading) -> bool:
    """Whether the log is still, to all appearance, what was read."""
    try:
        return files.stat(found.log) == reading.stat
    except OSError:
        return False


def _check_place(files: Files, found: Found, session_id: str, scan: ScanResult) -> ScanResult:
    """The scan, as damaged where the header belongs to another session or to another place."""
    header = scan.header
    if header is None or scan.verdict is Verdict.UNSUPPORTED:
        return scan
    if header.id != session_id:
        message, path = f"the header names session {header.id!r}, looked for {session_id!r}", "$.id"
    else:
        paths = session_paths(found.paths.root, header.id, header.cwd)
        if is_at_home(found.paths, header.id, header.cwd) or _is_same(
            files, paths.log(found.compression), found.stat.identity
        ):
            return scan
        message, path = f"the header's cwd belongs to {paths.project}, the log lies in {found.paths.project}", "$.cwd"
    length = len(scan.header_line or b"")
    finding = Finding(kind=Kind.BAD_HEADER, line=1, offset=0, length=length, message=message, path=path)
    return structs.replace(scan, verdict=Verdict.DAMAGED, findings=(finding, *scan.findings))


def _is_same(files: Files, path: str, identity: Identity) -> bool:
    """Whether *path* is another spelling of the same file: a file system that ignores case, a linked project."""
    try:
        return files.stat(path).identity == identity
    except OSError:
        return False


# From a seq on


class _NotSureError(Exception):
    """The log is not as a log that only grew would be: a whole scan has to say what it holds."""


def read_suffix(
    files: Files, found: Found, session_id: str, seq: int, *, known: Checkpoint, types: EventTypes | None = None
) -> tuple[list[Event], Checkpoint] | None:
    """The events from *seq* on of an uncompressed log whose beginning was scanned up to *known*.

    Reads what is returned, the blocks around it, and what was written since *known*.  Also returns the new end, for
    the next call.  ``None`` when only a whole scan can tell: the log was replaced, or has anything unusual behind
    the place where reading began.  What is returned is exactly what a whole scan would give.

    Raises:
        StorageError: the file cannot be read.
    """
    with open_log(files, found, session_id) as (fd, stat):
        if not known.fits(stat) or tail_digest(files, fd, known.offset) != known.digest:
            return None
        try:
            # Never from the checkpoint itself: that the line in front of it ends there, and with that seq, is checked.
            start = _find_line(files, fd, min(seq, known.next_seq - 1), known)
            records, end = _read_records(files, fd, start, stat.size, known=known)
            digest = tail_digest(files, fd, end.offset)
        except _NotSureError:
            return None
    return [event for line, record in records for event in _events(line, record, seq, types)], structs.replace(
        end, digest=digest
    )


def _find_line(files: Files, fd: int, seq: int, known: Checkpoint) -> int:
    """The offset of the last line in front of *known* that begins at or before *seq*; blocks are read backwards.

    The lines there were scanned and follow each other, so the first one found that begins early enough is it.
    """
    stop, carry, size = known.offset, b"", _BLOCK
    while stop > 0:
        start = max(0, stop - size)
        block = _read_exactly(files, fd, start, stop) + carry
        # What stands in front of the first newline belongs to a line that begins in an earlier block.
        first = block.find(b"\n") + 1 if start else 0
        at = _last_beginning(block, first, seq) if first or not start else None
        if at is not None:
            return start + at
        if known.offset - start > max(_WHOLE, known.offset // 8):
            break  # a large part is wanted: the scanner is faster, and its events are made when looked at
        carry = block[:first] if first else block
        size = _BLOCK if first else size * 2  # a line of many blocks is not copied once for each of them
        stop = start
    raise _NotSureError


def _last_beginning(block: bytes, first: int, seq: int) -> int | None:
    """Where in the lines of *block* from index *first* on the last one begins whose seq is not above *seq*."""
    end = len(block)
    while end > first:
        begin = max(block.rfind(b"\n", first, end - 1) + 1, first)
        line = block[begin : end - 1].rstrip(BLANKS)
        if line and _record(line).seq <= seq:
            return begin
        end = begin
    return None


def _read_records(
    files: Files, fd: int, start: int, size: int, *, known: Checkpoint
) -> tuple[list[tuple[bytes, Record]], Checkpoint]:
    """The records from *start* to the last newline before *size*, and the place behind them."""
    found: list[tuple[bytes, Record]] = []
    offset = start
    expected: int | None = None
    for line in _lines(files, fd, start, size):
        record = _record(line)
        if expected is not None and record.seq != expected:
            raise _NotSureError
        if offset >= known.offset:
            _check_new(record)
        found.append((line, record))
        expected = record.seq + record.count
        before, offset = offset, offset + len(line) + 1
        if before < known.offset <= offset and (offset, expected) != (known.offset, known.next_seq):
            raise _NotSureError
    if expected is None:
        raise _NotSureError
    return found, structs.replace(known, offset=offset, next_seq=expected)


def _lines(files: Files, fd: int, start: int, size: int) -> Iterator[bytes]:
    """The whole lines from *start* on, without their newlines; what follows the last newline is left out."""
    parts: list[bytes] = []
    pause = Pauses()
    for piece in read_chunks(files, fd, start, size, chunk=_PIECE):
        head, newline, rest = piece.rpartition(b"\n")
        parts.append(head if newline else rest)
        if newline:
            yield from b"".join(parts).split(b"\n")
            parts = [rest]
        pause()


def _record(line: bytes) -> Record:
    try:
        return read_record(line)
    except Defect:
        raise _NotSureError from None


def _check_new(record: Record) -> None:
    """A line that no scan has seen must be one that no scan would object to."""
    event = record.event
    if record.problem is not None:
        raise _NotSureError
    if event is None:
        return
    try:
        check_seed_event(event)
        marked = event.surface_op is not None or event.source_event_seqs is not None
    except (InvalidEventError, UnsupportedFormatError):
        raise _NotSureError from None
    if marked and event.type not in SURFACE_TYPES:
        raise _NotSureError


def _events(line: bytes, record: Record, seq: int, types: EventTypes | None) -> Iterator[Event]:
    if record.seq + record.count <= seq:
        return
    if record.event is None:
        yield from parse_row(line).events(max(0, seq - record.seq))
    else:
        yield Event.from_json(line.rstrip(b"\r"), types)


def _read_exactly(files: Files, fd: int, start: int, stop: int) -> bytes:
    data = b"".join(read_chunks(files, fd, start, stop))
    if len(data) != stop - start:
        raise _NotSureError
    return data

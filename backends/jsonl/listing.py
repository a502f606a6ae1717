"""One row per session, from the header line and the last 64 KiB of its log.

The cost grows with the number of sessions, never with their size, and one bad
session costs the list nothing: whatever is wrong with it becomes its status.  A
session that can be opened by its id is in the list, and one that is in the list as
``ok`` shows nothing, in header and tail, that would keep it from being opened.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct, structs

from sessionstore.backends.base import AnyCwd, SessionInfo, SessionStatus
from sessionstore.backends.files import FileStat, read_chunks
from sessionstore.backends.jsonl.frames import FrameReader
from sessionstore.backends.jsonl.index import load_index
from sessionstore.backends.jsonl.lock import lock_path, probe
from sessionstore.backends.jsonl.lookup import project_directories
from sessionstore.backends.jsonl.reading import Pauses
from sessionstore.backends.paths import (
    LOCK_NAME,
    LOG_NAMES,
    Compression,
    SessionPaths,
    decode_segment,
    encode_id,
    project_name,
    session_paths,
)
from sessionstore.chunks import ROW_TYPES, measure_row, parse_row
from sessionstore.errors import InvalidEventError, StorageError, UnsupportedFormatError
from sessionstore.header import Header
from sessionstore.recovery.format import TURN_END
from sessionstore.recovery.records import BLANKS, Defect, ends_in_turn_end, read_header, read_record

if TYPE_CHECKING:
    from sessionstore.backends.files import Files

__all__ = ["MAX_HEADER", "TAIL", "header_of", "list_sessions"]

TAIL: Final = 64 * 1024
"""Bytes looked at from the end of a log."""

_HEAD: Final = 4096

MAX_HEADER: Final = 1024 * 1024
"""The longest header line that a listing reads; such a session still opens by its id."""

_FRAME_LIMIT: Final = 16 * 1024 * 1024
"""Most decoded bytes of one frame in a listing: 64 KiB of zeros can decode to far more than anyone wants to wait for."""

_MAX_TRIES: Final = 64
"""How many beginnings of a frame are tried: the bytes of one may stand inside another by chance."""

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_EMPTINESS: Final = b"\0\n" + BLANKS


def list_sessions(files: Files, root: str, *, cwd: str | AnyCwd | None, lock_dir: str | None) -> list[SessionInfo]:
    """A row for every session below *root*, in no order.  Blocks: call it in a worker.

    Filtered by the *cwd* of the header; a session whose header cannot be read belongs to its project directory.

    Raises:
        StorageError: the root cannot be listed.
    """
    rows: list[tuple[str, SessionInfo]] = []
    pause = Pauses()
    for project in project_directories(files, root):
        directory = os.path.join(root, project)
        try:
            names = files.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            rows.append((project, _unreadable(project, error, directory)))
            continue
        for name in names:
            row = _list_one(files, SessionPaths(root, directory, *_places(directory, name)), lock_dir)
            if row is not None:
                rows.append((project, row))
            pause()
    counts = Counter(row.id for _, row in rows)
    return [_unique(row, counts[row.id]) for project, row in rows if _matches(row, project, cwd)]


def _places(project: str, name: str) -> tuple[str, str]:
    directory = os.path.join(project, name)
    return directory, os.path.join(directory, LOCK_NAME)


def _matches(row: SessionInfo, project: str, cwd: str | AnyCwd | None) -> bool:
    if isinstance(cwd, AnyCwd):
        return True
    if row.created_at is None:  # no header
        return project == project_name(cwd)
    return row.cwd == cwd


def _unique(row: SessionInfo, count: int) -> SessionInfo:
    """An id that is stored twice cannot be opened: each row of it says so."""
    if count == 1:
        return row
    return structs.replace(row, status="damaged", detail=f"this id is stored {count} times")


def _unreadable(session_id: str, error: Exception, location: str) -> SessionInfo:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return SessionInfo(id=session_id, status="unreadable", detail=reason, location=location)


def _list_one(files: Files, paths: SessionPaths, lock_dir: str | None) -> SessionInfo | None:
    """The row of one directory; ``None`` when there is no session in it."""
    segment = os.path.basename(paths.directory)
    session_id = decode_segment(segment) or segment
    try:
        names = files.listdir(paths.directory)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return _unreadable(session_id, error, paths.directory)
    logs: list[Compression] = [compression for compression, name in LOG_NAMES.items() if name in names]
    if not logs:
        return None
    try:
        row = _read_row(files, paths, session_id, logs[0])
    except FileNotFoundError:  # moved to the trash meanwhile
        return None
    except (OSError, StorageError) as error:
        return _unreadable(session_id, error, paths.log(logs[0]))
    if len(logs) > 1:
        return structs.replace(row, status="damaged", detail="two logs, one compressed and one not")
    if row.status not in {"ok", "damaged"} or not (lock_dir or LOCK_NAME in names):
        return row
    live = probe(files, lock_path(files, paths, lock_dir)) == "live"
    return structs.replace(row, status="live") if live else row


def _read_row(files: Files, paths: SessionPaths, session_id: str, compression: Compression) -> SessionInfo:
    log = paths.log(compression)
    fd = files.open_read(log)
    try:
        stat = files.fstat(fd)
        if stat.kind != "file":
            raise OSError(0, f"the log is not a file but a {stat.kind}")
        head = _read_head(files, fd, stat, compression)
        tail = _Tail()
        if head.header is not None:
            tail = _read_tail(files, fd, stat, compression, head)
    finally:
        files.close(fd)
    header = head.header
    status, detail = head.status, head.detail
    if header is not None:
        session_id = _own_id(session_id, paths, header)
        misplaced = _misplaced(files, paths, session_id, header, stat)
        if misplaced is not None or tail.damage is not None:
            status, detail = "damaged", misplaced or tail.damage
    last_time, approximate = tail.time, False
    if last_time is None and header is not None and not tail.out_of_reach:
        last_time = header.created_at
    if last_time is None:
        last_time, approximate = stat.mtime_ns // 1_000_000, True
    index = load_index(files, paths.directory)
    if index is not None and not index.describes(stat):
        index = None
    return SessionInfo(
        id=session_id,
        status=status,
        cwd=None if header is None else header.cwd,
        created_at=None if header is None else header.created_at,
        last_time=last_time,
        bytes=stat.size,
        approximate=approximate,
        title=None if index is None else index.title,
        turns=None if index is None else index.turns,
        events=None if index is None else index.events,
        detail=detail,
        location=log,
    )


def _own_id(session_id: str, paths: SessionPaths, header: Header) -> str:
    """The id to open the session by: the header's where the directory's name was shortened from it."""
    return header.id if encode_id(header.id) == os.path.basename(paths.directory) else session_id


def _misplaced(files: Files, paths: SessionPaths, session_id: str, header: Header, stat: FileStat) -> str | None:
    if header.id != session_id:
        return f"the header names session {header.id!r}"
    own = session_paths(paths.root, header.id, header.cwd)
    if own.project == paths.project:
        return None
    for name in LOG_NAMES.values():
        try:
            if files.stat(os.path.join(own.directory, name)).identity == stat.identity:
                return None
        except OSError:
            continue
    return f"the header's cwd belongs to {own.project}"


# The head


def header_of(files: Files, directory: str) -> Header | None:
    """The header of the log in *directory*; ``None`` when there is none to read.  Raises ``OSError``."""
    for compression, name in LOG_NAMES.items():
        try:
            fd = files.open_read(os.path.join(directory, name))
        except FileNotFoundError:
            continue
        try:
            return _read_head(files, fd, files.fstat(fd), compression).header
        finally:
            files.close(fd)
    return None


class _Head(Struct):
    """What the first line says; *end* is the byte of the file after it (0 where that is unknown)."""

    status: SessionStatus
    header: Header | None = None
    detail: str | None = None
    end: int = 0


def _read_head(files: Files, fd: int, stat: FileStat, compression: Compression) -> _Head:
    line, end, emptiness = _first_line(files, fd, stat, compression)
    if line is None:
        if emptiness and end >= stat.size:
            return _Head("empty", detail="no header line was ever completed")
        if emptiness:
            return _Head("damaged", detail="the log begins with NUL bytes or blanks")
        return _Head("unreadable", detail=f"no end of the header line in the first {end} bytes")
    try:
        return _Head("ok", read_header(line), end=end)
    except UnsupportedFormatError as error:
        return _Head("unsupported", detail=error.reason)
    except Defect as defect:
        return _Head("damaged", detail=defect.message)


def _first_line(files: Files, fd: int, stat: FileStat, compression: Compression) -> tuple[bytes | None, int, bool]:
    """The first line that is not blank, where it ends, and whether nothing but emptiness was seen.

    ``None`` for a line without end, with the number of bytes looked at; such a line at the end of the file counts
    as emptiness: it was never completed.
    """
    seen, taken, limit = b"", 0, min(stat.size, MAX_HEADER)
    frames = FrameReader(limit=_FRAME_LIMIT) if compression == "zstd" else None
    while taken < limit:
        # Nearly every header is short: a small piece first.
        piece = files.pread(fd, min(TAIL if taken else _HEAD, limit - taken), taken)
        if not piece:
            break
        taken += len(piece)
        seen += piece if frames is None else b"".join(frames.feed(piece))
        at_end = taken >= limit
        if frames is not None and at_end and b"\n" not in seen:
            seen += b"".join(frames.finish())
        skipped = len(seen) - len(seen.lstrip(b"\n" + BLANKS))
        end = seen.find(b"\n", skipped)
        if end >= 0:
            return seen[skipped:end].rstrip(b"\r"), end + 1 if frames is None else 0, False
    return None, taken, taken >= stat.size or not seen.strip(_EMPTINESS)


# The tail


class _Tail(Struct):
    """What the end of a log shows: the time of the last event, and what keeps the log from being resumed."""

    time: int | None = None
    damage: str | None = None
    out_of_reach: bool = False


class _Line(Struct, gc=False):
    type: str
    seq: int = -1


_line: Final = msgspec.json.Decoder(_Line)


def _read_tail(files: Files, fd: int, stat: FileStat, compression: Compression, head: _Head) -> _Tail:
    start = max(head.end, stat.size - TAIL)
    data = b"".join(read_chunks(files, fd, start, stat.size))
    if compression == "none":
        whole = start == head.end
        tail = _judge(data, 0) if whole else _judge(data.partition(b"\n")[2], None)
    else:
        whole = start == 0
        tail = _judge(_all_frames(data), 0) if whole else _judge_last_frame(data)
    tail.out_of_reach = tail.time is None and not whole
    return tail


def _all_frames(data: bytes) -> bytes:
    """What a whole log decodes to behind its header line."""
    reader = FrameReader(limit=_FRAME_LIMIT)
    decoded = b"".join([*reader.feed(data), *reader.finish()])
    return decoded.lstrip(b"\n" + BLANKS).partition(b"\n")[2]


def _judge_last_frame(data: bytes) -> _Tail:
    """Look at the last intact frame that begins in *data* and holds an event, and at what follows it."""
    at, decoded = len(data), 0
    for _ in range(_MAX_TRIES):
        at = data.rfind(_MAGIC, 0, at)
        if at < 0 or decoded > _FRAME_LIMIT:
            break
        reader = FrameReader(limit=_FRAME_LIMIT)
        text = b"".join(reader.feed(data[at:]))
        decoded += len(text)
        # Our own frames begin with a line.  Somebody else's may begin within one, so that is no defect.
        first, newline, rest = text.partition(b"\n")
        tail = _judge(text if newline and _measure(first) else rest, None)
        if reader.frames and tail.time is not None:
            return tail
    return _Tail()


def _judge(data: bytes, expected: int | None) -> _Tail:
    """What a scan would say of whole lines from the end of a log, the first of which has the *expected* seq."""
    lines = data.split(b"\n")[:-1]
    if _is_plain(lines, expected):
        return _Tail(_time(lines[-1]))
    last: bytes | None = None
    defect: str | None = None
    for line in lines:
        if not line.strip(BLANKS):
            continue
        found = _measure(line)
        if defect is None and (found is None or (expected is not None and found[0] != expected)):
            defect = "a defect near the end, with a turn/end after it"
        if defect is not None and (found[2] if found is not None else ends_in_turn_end(line)):
            return _Tail(_time(last), defect)
        if defect is None and found is not None:
            expected, last = found[0] + found[1], line
    return _Tail(_time(last))


def _is_plain(lines: list[bytes], expected: int | None) -> bool:
    """Whether these are lines as our own writers write them, in sequence: one decode for all of them."""
    text = b"\n".join(lines)
    try:
        found = _line.decode_lines(text)
        if not found or len(found) != len(lines) or not (text.isascii() or text.decode()):
            return False
        for each, line in zip(found, lines, strict=True):
            seq, count = measure_row(line) if each.type in ROW_TYPES else (each.seq, 1)
            if seq < 0 or expected not in {None, seq}:
                return False
            expected = seq + count
    except Exception:  # noqa: BLE001 - not as our own writers write it
        return False
    return True


def _measure(line: bytes) -> tuple[int, int, bool] | None:
    """First seq, number of events and whether it is a ``turn/end``; ``None`` for a line that is no record."""
    try:
        if b"-chunks" in line[:40]:
            return (*measure_row(line), False)
        found = _line.decode(line)
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

"""Carrying out the repair of a damaged log, under its lock.

The order makes every crash harmless.  Second histories are published first: a
repeat finds them published.  Then the damaged log is copied aside: a repeat finds the
copy.  Then the repaired log is written whole beside it, synced, and renamed into its
place, so that at every moment the log's name is either the damaged log or the
repaired one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from sessionstore.backends.base import SalvageReport
from sessionstore.backends.files import Files, ensure_directories, read_chunks, storage_errors, write_all
from sessionstore.backends.jsonl.frames import encode_frame
from sessionstore.backends.jsonl.heads import header_of
from sessionstore.backends.jsonl.lookup import find_session
from sessionstore.backends.jsonl.publish import make_durable, remove_temp_names
from sessionstore.backends.jsonl.reading import open_log
from sessionstore.backends.jsonl.whole import TooLargeError, begins_with, read_decoded
from sessionstore.backends.jsonl.writer import JsonlWriter
from sessionstore.backends.paths import NO_CWD, decode_segment, is_at_home, project_name, session_paths, temp_name
from sessionstore.errors import (
    ConcurrentWriteError,
    InvalidEventError,
    SessionExistsError,
    SessionStoreError,
    StorageError,
)
from sessionstore.header import parse_header
from sessionstore.lossless import decode, encode
from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.salvage import salvage
from sessionstore.recovery.salvage_plan import SalvagePlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sessionstore.backends.files import FileStat
    from sessionstore.backends.jsonl.lookup import Found
    from sessionstore.backends.jsonl.reading import Reading
    from sessionstore.backends.paths import Compression, SessionPaths
    from sessionstore.recovery.salvage_plan import SalvageFork

__all__ = ["Place", "carry_out", "move_home", "own_paths", "plan_repair_of"]

_CHUNK: Final = 1024 * 1024
_MAX_SIBLINGS: Final = 1000
_MAX_NAMES: Final = 1000
_MENDED_BY_RESUME: Final = frozenset({Verdict.INTERRUPTED, Verdict.TORN})
_ADVICE: Final = (
    "what stands before the damage can be inspected, and forked up to any event where no turn is open; "
    "then the session can be deleted"
)


class Place(Struct, frozen=True):
    """Where and with what a repair works."""

    files: Files
    root: str
    lock_dir: str | None
    now: Callable[[], int]


def plan_repair_of(
    place: Place, found: Found, session_id: str, reading: Reading, *, cwd: str | None
) -> tuple[SalvagePlan, FileStat]:
    """The plan for a log that was scanned, and the stat of what was planned for.

    Raises:
        StorageError: the log cannot be read.
        InvalidEventError: *cwd* is not an absolute path.
    """
    if reading.scan.verdict in {Verdict.CLEAN, Verdict.UNSUPPORTED, Verdict.EMPTY}:
        return salvage(b"", scan=reading.scan), reading.stat
    try:
        log = read_decoded(place.files, found, session_id, expected=reading.scan.size)
    except TooLargeError as error:
        return _refused(reading, str(error)), reading.stat
    own_id = decode_segment(os.path.basename(found.paths.directory)) or session_id
    if cwd is None and reading.scan.header is None:
        cwd = _cwd_of_siblings(place.files, found.paths)
    plan = salvage(log.data, session_id=own_id, cwd=cwd, scan=reading.scan, weights=log.weights)
    return log.restore(plan), log.stat


def _refused(reading: Reading, reason: str) -> SalvagePlan:
    scan = reading.scan
    advice = "a resume needs no such room and mends it" if scan.verdict in _MENDED_BY_RESUME else _ADVICE
    return SalvagePlan(verdict=scan.verdict, findings=scan.findings, refusal=f"{reason}; {advice}", header=scan.header)


def _cwd_of_siblings(files: Files, paths: SessionPaths) -> str | None:
    """The working directory that another session of the same project directory names."""
    project = os.path.basename(paths.project)
    if project == NO_CWD:
        return None
    with contextlib.suppress(OSError, SessionStoreError):
        for name in sorted(files.listdir(paths.project))[:_MAX_SIBLINGS]:
            directory = os.path.join(paths.project, name)
            with contextlib.suppress(OSError, SessionStoreError):
                header = None if directory == paths.directory else header_of(files, directory)
                if header is not None and header.cwd is not None and project_name(header.cwd) == project:
                    return header.cwd
    return None


def own_paths(place: Place, found: Found, plan: SalvagePlan) -> SessionPaths:
    """Where the repaired session belongs: where it is, unless its header says another place."""
    if plan.header is None or plan.refusal is not None:
        return found.paths
    own = session_paths(place.root, plan.header.id, plan.header.cwd)
    if is_at_home(found.paths, plan.header.id, plan.header.cwd):
        return found.paths
    with contextlib.suppress(OSError):
        if place.files.stat(own.directory) == place.files.stat(found.paths.directory):
            return found.paths  # the same directory, spelled in another way
    return own


def move_home(place: Place, found: Found, target: SessionPaths, session_id: str) -> None:
    """Move the session's directory to where it belongs; its log is still the damaged one.

    Raises:
        SessionExistsError: that place is taken.
        StorageError: the system refused.
    """
    files = place.files
    with storage_errors("move the session to", path=target.directory, session_id=session_id):
        ensure_directories(files, place.root, target.project)
        try:
            files.stat(target.directory)
        except FileNotFoundError:
            files.rename(found.paths.directory, target.directory)
            files.sync_directory(target.project)
            files.sync_directory(found.paths.project)
        else:
            raise SessionExistsError(session_id, where=target.directory)


def carry_out(place: Place, found: Found, session_id: str, plan: SalvagePlan, stat: FileStat) -> SalvageReport:
    """Do what *plan* says to the log, which was *stat* when it was read.  The session's lock is held.

    Raises:
        ConcurrentWriteError: the log is not what was planned for; it was left alone.
        StorageError: the system refused; a repeat finishes the job.
    """
    files, directory = place.files, found.paths.directory
    with storage_errors("repair", path=found.log, session_id=session_id):
        remove_temp_names(files, directory)
        forks = [_publish_fork(place, fork, found.compression) for fork in plan.forks]
        original = _keep_original(place, found, stat, session_id)
        temp = os.path.join(directory, temp_name(secrets.token_hex(8)))
        try:
            _write(files, temp, _parts(plan.lines, found.compression))
            _check_unchanged(files, found, stat, session_id)
            files.rename(temp, found.log)
        except BaseException:
            with contextlib.suppress(OSError):
                files.unlink(temp)
            raise
        files.sync_directory(directory)
    report = SalvageReport.of(session_id, plan, dry_run=False, original=original, location=found.log)
    named = [structs.replace(fork, id=own_id) for fork, own_id in zip(report.forks, forks, strict=True)]
    return structs.replace(report, forks=tuple(named))


def _check_unchanged(files: Files, found: Found, stat: FileStat, session_id: str) -> None:
    now = files.stat(found.log)
    # Not the number of names: a second one, left by a publication that crashed, has been removed by now.
    if (now.identity, now.size, now.mtime_ns) != (stat.identity, stat.size, stat.mtime_ns):
        raise ConcurrentWriteError(
            session_id, path=found.log, expected=f"{stat.size} bytes", found=f"{now.size} bytes, or another file"
        )


def _write(files: Files, path: str, parts: Iterator[bytes]) -> None:
    fd = files.create(path)
    try:
        for part in parts:
            write_all(files, fd, part)
        files.sync(fd)
    finally:
        files.close(fd)


def _parts(lines: Sequence[bytes], compression: Compression) -> Iterator[bytes]:
    """The log in writes of about a megabyte of text, the header in one of its own."""
    yield _encoded(lines[:1], compression)
    part: list[bytes] = []
    size = 0
    for line in lines[1:]:
        part.append(line)
        size += len(line)
        if size >= _CHUNK:
            yield _encoded(part, compression)
            part, size = [], 0
    if part:
        yield _encoded(part, compression)


def _encoded(lines: Sequence[bytes], compression: Compression) -> bytes:
    text = b"".join(line + b"\n" for line in lines)
    return encode_frame(text) if compression == "zstd" else text


# The damaged original


def _keep_original(place: Place, found: Found, stat: FileStat, session_id: str) -> str:
    """Copy the damaged log aside, durable on return; a copy that an earlier try left is taken as it is."""
    files, directory = place.files, found.paths.directory
    prefix = os.path.basename(found.log) + ".damaged-"
    for name in sorted(files.listdir(directory)):
        path = os.path.join(directory, name)
        if name.startswith(prefix) and _is_copy(files, found, path, stat):
            files.sync_directory(directory)
            return path
    moment = place.now()
    path = next(
        path for n in range(_MAX_NAMES) if not _exists(files, path := os.path.join(directory, f"{prefix}{moment + n}"))
    )
    temp = os.path.join(directory, temp_name(secrets.token_hex(8)))
    try:
        with (
            open_log(files, found, session_id) as (fd, _),
            # The inner one: a full disk is not a log that cannot be read.
            storage_errors("keep a copy of the damaged log as", path=path, session_id=session_id),
        ):
            _write(files, temp, read_chunks(files, fd, 0, stat.size))
        files.rename(temp, path)
    except BaseException:
        with contextlib.suppress(OSError):
            files.unlink(temp)
        raise
    files.sync_directory(directory)
    return path


def _exists(files: Files, path: str) -> bool:
    try:
        files.stat(path)
    except FileNotFoundError:
        return False
    return True


def _is_copy(files: Files, found: Found, path: str, stat: FileStat) -> bool:
    """Whether *path* holds the bytes of the log, durable now."""
    try:
        there = files.stat(path)
        if there.kind != "file" or there.size != stat.size or there.identity == stat.identity:
            return False
        fds = [files.open_read(found.log), files.open_read(path)]
    except OSError:
        return False
    try:
        pairs = zip(*(read_chunks(files, fd, 0, stat.size) for fd in fds), strict=False)
        if any(a != b for a, b in pairs):
            return False
        files.sync(fds[1])
        return True
    finally:
        for fd in fds:
            files.close(fd)


# Second histories


def _publish_fork(place: Place, fork: SalvageFork, compression: Compression) -> str:
    """Publish a fork and return the id that it got: another one than planned where that is somebody else's."""
    for n in range(1, _MAX_NAMES):
        own_id = fork.id if n == 1 else f"{fork.id}~{n}"
        lines = _with_id(fork.lines, own_id)
        header = parse_header(lines[0])
        writer = JsonlWriter(
            place.files,
            session_paths(place.root, header.id, header.cwd),
            header,
            now=place.now,
            compression=compression,
            lock_dir=place.lock_dir,
        )
        try:
            writer.publish_whole(lines[1:])
        except SessionExistsError:
            if _is_published(place, own_id, lines):
                return own_id
        else:
            return own_id
    raise StorageError("publish a second history of", session_id=fork.id, hint="its names are all taken")


def _with_id(lines: tuple[bytes, ...], own_id: str) -> tuple[bytes, ...]:
    value = decode(lines[0])
    if not isinstance(value, dict) or value.get("id") == own_id:
        return lines
    return (encode({**value, "id": own_id}), *lines[1:])


def _is_published(place: Place, session_id: str, lines: tuple[bytes, ...]) -> bool:
    """Whether the stored session is that very fork, maybe with more behind it; then it is durable.  Raises OSError."""
    try:
        found = find_session(place.files, place.root, session_id)
        if not begins_with(place.files, found, session_id, lines):
            return False
    except (SessionStoreError, InvalidEventError):
        return False
    make_durable(place.files, place.root, found.log)
    return True

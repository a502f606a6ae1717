"""Forks: a new session that begins with the events of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionstore.errors import DamagedLogError, ForkError, SessionExistsError, SessionNotFoundError, SessionStoreError
from sessionstore.header import Header, child_header, make_header
from sessionstore.inspection import inspect_stored
from sessionstore.opening import refuse_bad_log
from sessionstore.progress import last_turn
from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.scan import LogScanner, ScanResult
from sessionstore.settle import settle
from sessionstore.stored import StoredSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessionstore.backends.base import Backend, Stored
    from sessionstore.clock import Clock
    from sessionstore.eventlog import EventLog
    from sessionstore.options import Options
    from sessionstore.registry import Registry
    from sessionstore.session import Session
    from sessionstore.vocabulary import EventTypes

__all__ = ["copy_prefix", "fork_session", "id_is_taken", "read_source"]

_BLOCK = 1024  # lines given to the scanner together


async def fork_session(
    registry: Registry, backend: Backend, options: Options, source: Session | str, *, boundary: int | None, child: str
) -> StoredSession:
    """The work of :meth:`SessionStore.fork` once the child's id is held.  Raises as it does."""
    now = options.clock()
    try:
        await backend.prepare(make_header(child, created_at=now))
    except SessionExistsError as error:
        raise id_is_taken(child) from error
    live = registry.live.get(source) if isinstance(source, str) else source
    stored = None
    if live is None:
        stored = await read_source(backend, str(source), has_boundary=boundary is not None, clock=options.clock)
        parent, log = _header_of(stored, str(source)), stored.scan.log
    elif isinstance(source, str) or registry.is_open(live):
        parent, log = live.header, live._log
    else:
        raise ForkError("SESSION_NOT_LIVE", "it is not open in this store", session_id=source.id)
    try:
        header, scan = await copy_prefix(log, parent, child, boundary, created_at=now, types=options.types)
    except DamagedLogError:
        if stored is not None:
            # Names lines and bytes of the log that there is, not of the copy that nobody has seen.
            refuse_bad_log(str(source), stored)
        raise
    session = StoredSession._adopt(header, scan.log, scan.surface, clock=options.clock)
    if session.seq:
        session._untake(0)  # nothing of it is stored yet
    await registry.guard(session)
    registry.open(session, backend.writer(header))
    try:
        await session._behind.publish()
    except BaseException as error:
        await session._behind.close(write=False)
        registry.drop(session)
        if isinstance(error, SessionExistsError):
            raise id_is_taken(child) from error
        raise
    return session


def id_is_taken(child: str) -> ForkError:
    """The refusal of a fork whose child's id is taken."""
    return ForkError("SESSION_ALREADY_EXISTS", "the child's id is taken", session_id=child)


async def read_source(backend: Backend, session_id: str, *, has_boundary: bool, clock: Clock) -> Stored:
    """A stored session that is to be forked, read as an inspection reads it.  Its header is there.

    Raises:
        ForkError: ``SESSION_NOT_FOUND``.
        DamagedLogError, UnsupportedFormatError: it cannot be copied; up to a boundary before the damage it can.
        DuplicateSessionError, StorageError.
    """
    try:
        stored = await backend.read(session_id)
    except SessionNotFoundError as error:
        raise ForkError("SESSION_NOT_FOUND", "there is no such session", session_id=session_id) from error
    scan = stored.scan
    if scan.header is None or not has_boundary or scan.verdict not in {Verdict.DAMAGED, Verdict.INVALID}:
        refuse_bad_log(session_id, stored)
    _header_of(stored, session_id)
    await settle(inspect_stored, session_id, stored, clock)  # puts the closers into the log
    return stored


def _header_of(stored: Stored, session_id: str) -> Header:
    """The header of what was read.  Raises SessionStoreError, though no verdict that may be forked lacks one."""
    if stored.scan.header is None:
        raise SessionStoreError(f"session {session_id!r} was read without a header")
    return stored.scan.header


async def copy_prefix(
    log: EventLog, parent: Header, child_id: str, boundary: int | None, *, created_at: int, types: EventTypes
) -> tuple[Header, ScanResult]:
    """Header and content of a fork that holds the events of *log* up to seq *boundary*, both included.

    Raises:
        ForkError: ``INVALID_BOUNDARY`` or ``OPEN_TURN``.
        DamagedLogError: the events do not make a log.
    """
    length = len(log) if boundary is None else _length(log, boundary, parent.id)
    number, is_open = last_turn(log, length) if length else (0, False)
    if is_open:
        raise ForkError(
            "OPEN_TURN", f"turn {number} is open at seq {length - 1}, fork at a turn/end", session_id=parent.id
        )
    header = child_header(parent, child_id, created_at=created_at, seed_length=length)
    # The copy goes through the scanner like any log that is read: what a fork accepts, a resume accepts.
    scan = await settle(_scan, header, list(log.lines(0, length)), types)
    if scan.verdict is not Verdict.CLEAN or len(scan.log) != length:
        raise DamagedLogError(parent.id, path=None, verdict=scan.verdict, findings=scan.findings)
    return header, scan


def _length(log: EventLog, boundary: object, source_id: str) -> int:
    if not isinstance(boundary, int) or isinstance(boundary, bool):
        raise ForkError("INVALID_BOUNDARY", f"a boundary is an int, got {boundary!r}", session_id=source_id)
    if not 0 <= boundary < len(log):
        held = f"it holds seq 0 to {len(log) - 1}" if len(log) else "it holds no events"
        raise ForkError("INVALID_BOUNDARY", f"there is no seq {boundary}, {held}", session_id=source_id)
    return boundary + 1


def _scan(header: Header, lines: Sequence[bytes], types: EventTypes) -> ScanResult:
    scanner = LogScanner(types=types)
    scanner.feed(header.to_json() + b"\n")
    for start in range(0, len(lines), _BLOCK):
        scanner.feed(b"\n".join(lines[start : start + _BLOCK]) + b"\n")
    return scanner.finish()

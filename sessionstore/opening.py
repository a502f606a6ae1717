"""How a session comes into being: recovered from storage, or copied out of another.

These functions do not know which sessions are open; :class:`SessionStore` sees to that.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from sessionstore.backends.base import RepairReport, SalvageReport, Writer
from sessionstore.errors import (
    DamagedLogError,
    ForkError,
    SessionNotFoundError,
    SessionStoreError,
    UnsupportedFormatError,
)
from sessionstore.events import Event
from sessionstore.header import Header, child_header
from sessionstore.inspection import inspect_stored
from sessionstore.progress import last_turn
from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.plan import plan_repair
from sessionstore.recovery.scan import LogScanner, ScanResult
from sessionstore.settle import settle
from sessionstore.tasks import finish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessionstore.backends.base import Backend, Stored
    from sessionstore.clock import Clock
    from sessionstore.eventlog import EventLog
    from sessionstore.vocabulary import EventTypes

__all__ = ["Recovered", "copy_prefix", "id_is_taken", "read_source", "recover", "refuse_bad_log", "salvage_damaged"]

_logger = logging.getLogger("sessionstore")
_BLOCK = 1024  # lines given to the scanner together


class Recovered(Struct, frozen=True):
    """A stored session, locked and repaired: *closers* are on the disk and not yet in the log of *scan*."""

    writer: Writer
    header: Header
    scan: ScanResult
    closers: tuple[Event, ...]
    report: RepairReport


def refuse_bad_log(session_id: str, stored: Stored) -> None:
    """Let a log pass that is clean, interrupted or torn.

    Raises:
        UnsupportedFormatError: it is intact, but not for this version.
        DamagedLogError: it is damaged, invalid or empty.
    """
    scan = stored.scan
    if scan.unsupported is not None:
        raise UnsupportedFormatError(
            scan.unsupported.reason,
            direction=scan.unsupported.direction,
            session_id=session_id,
            path=stored.location,
        ) from scan.unsupported
    if scan.verdict not in {Verdict.CLEAN, Verdict.INTERRUPTED, Verdict.TORN}:
        raise DamagedLogError(session_id, path=stored.location, verdict=scan.verdict, findings=scan.findings)


async def salvage_damaged(backend: Backend, session_id: str) -> SalvageReport | None:
    """Repair a log that a resume would refuse or cut intact events of; ``None`` where there was nothing to save.

    Raises:
        As ``Backend.salvage``.
    """
    stored = await backend.read(session_id)
    if stored.writer == "live" or stored.scan.verdict in {Verdict.CLEAN, Verdict.INTERRUPTED}:
        return None
    if stored.scan.verdict is Verdict.TORN:
        planned = await backend.salvage(session_id, dry_run=True, cwd=None)
        if planned.kept <= len(stored.scan.log):
            return None  # a plain cut loses nothing
    report = await finish(backend.salvage(session_id, dry_run=False, cwd=None))
    if report.changed:
        _logger.warning(
            "session %s: the log was %s and was salvaged: %d events kept, %d made anew; the damaged log is kept as %s",
            session_id, report.verdict, report.kept, len(report.made), report.original,
        )  # fmt: skip
    return report


async def recover(backend: Backend, session_id: str, *, salvage: SalvageReport | None = None) -> Recovered:
    """Lock, read, judge and repair a stored session.  On any failure nothing stays locked.

    *salvage* is what was done to the log before, for the report.

    Raises:
        SessionNotFoundError, DuplicateSessionError, SessionLockedError, StorageError.
        DamagedLogError, UnsupportedFormatError: as :func:`refuse_bad_log`.
    """
    writer, stored = await backend.open(session_id)
    try:
        refuse_bad_log(session_id, stored)
        header = stored.scan.header
        if header is None:  # no verdict that passes lacks one
            raise SessionStoreError(f"session {session_id!r} was read without a header")
        plan = await settle(plan_repair, stored.scan)  # a long open turn is a long read
        nothing_to_do = plan.empty and stored.torn is None
        report = RepairReport() if nothing_to_do else await writer.repair(stored, plan)
        if salvage is not None and salvage.changed:
            report = structs.replace(report, salvage=salvage)
    except BaseException:
        await _release(writer, session_id)
        raise
    if report.intact_after:
        _logger.warning(
            "session %s: %d intact events stood behind the torn end and were cut with it (kept in %s)",
            session_id, report.intact_after, report.quarantine,
        )  # fmt: skip
    elif report.changed:
        _logger.info(
            "session %s: recovered: %d bytes cut, %d closing events added",
            session_id, report.cut_bytes, len(report.closers),
        )  # fmt: skip
    return Recovered(writer, header, stored.scan, plan.closers, report)


async def _release(writer: Writer, session_id: str) -> None:
    try:
        await writer.close()
    except Exception:  # what went wrong before is what the caller has to know
        _logger.exception("session %s: its lock could not be released", session_id)


def id_is_taken(child: str) -> ForkError:
    """The refusal of a fork whose child's id is taken."""
    return ForkError("SESSION_ALREADY_EXISTS", "the child's id is taken", session_id=child)


async def read_source(
    backend: Backend, session_id: str, *, has_boundary: bool, clock: Clock
) -> tuple[Header, EventLog]:
    """Header and log of a stored session that is to be forked, read as an inspection reads it.

    Raises:
        ForkError: ``SESSION_NOT_FOUND``.
        DamagedLogError, UnsupportedFormatError: it cannot be copied; up to a boundary before the damage it can.
        DuplicateSessionError, StorageError.
    """
    try:
        stored = await backend.read(session_id)
    except SessionNotFoundError as error:
        raise ForkError("SESSION_NOT_FOUND", "there is no such session", session_id=session_id) from error
    header = stored.scan.header
    if header is None or not has_boundary or stored.scan.verdict not in {Verdict.DAMAGED, Verdict.INVALID}:
        refuse_bad_log(session_id, stored)
    if header is None:  # no verdict that passes lacks one
        raise SessionStoreError(f"session {session_id!r} was read without a header")
    await settle(inspect_stored, session_id, stored, clock)  # puts the closers into the log
    return header, stored.scan.log


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
        raise ForkError("OPEN_TURN", f"turn {number} is open at seq {length - 1}", session_id=parent.id)
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

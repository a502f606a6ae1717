"""How a stored session is opened: locked, read, judged and repaired.

These functions do not know which sessions are open; :class:`SessionStore` sees to that.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, structs

from sessionstore.backends.base import RepairReport, SalvageReport, Writer, refuse_unsupported
from sessionstore.errors import DamagedLogError, SessionStoreError
from sessionstore.events import Event
from sessionstore.header import Header
from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.plan import plan_repair
from sessionstore.recovery.scan import ScanResult
from sessionstore.settle import settle
from sessionstore.stored import StoredSession
from sessionstore.tasks import finish

if TYPE_CHECKING:
    from sessionstore.backends.base import Backend, Stored
    from sessionstore.options import Options
    from sessionstore.registry import Registry

__all__ = ["OnDamage", "Recovered", "recover", "refuse_bad_log", "resume_session", "salvage_damaged"]

OnDamage = Literal["raise", "salvage"]
"""What a resume does with a damaged log: refuse it, or repair it first."""

_logger = logging.getLogger("sessionstore")


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
    refuse_unsupported(stored, session_id)
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
            "session %r: the log was %s and was salvaged: %d events kept, %d made anew; the damaged log is kept as %s",
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
        # Also where there is nothing to mend: what a killed process wrote last may be in the page cache only, and
        # from now on it counts as durable.
        report = await writer.repair(stored, plan)
        if salvage is not None and salvage.changed:
            report = structs.replace(report, salvage=salvage)
    except BaseException:
        await _release(writer, session_id)
        raise
    if report.intact_after:
        _logger.warning(
            "session %r: %d intact events stood behind the torn end and were cut with it (kept in %s)",
            session_id, report.intact_after, report.quarantine,
        )  # fmt: skip
    elif report.changed:
        _logger.info(
            "session %r: recovered: %d bytes cut, %d closing events added",
            session_id, report.cut_bytes, len(report.closers),
        )  # fmt: skip
    return Recovered(writer, header, stored.scan, plan.closers, report)


async def _release(writer: Writer, session_id: str) -> None:
    try:
        await writer.close()
    except Exception:  # what went wrong before is what the caller has to know
        _logger.exception("session %r: its lock could not be released", session_id)


async def resume_session(
    registry: Registry, backend: Backend, options: Options, session_id: str, *, on_damage: OnDamage
) -> StoredSession:
    """The work of :meth:`SessionStore.resume` once the id is held.  Raises as it does."""
    salvage = await salvage_damaged(backend, session_id) if on_damage == "salvage" else None
    found = await recover(backend, session_id, salvage=salvage)
    try:
        log, surface = found.scan.log, found.scan.surface
        session = StoredSession._adopt(found.header, log, surface, closers=found.closers, clock=options.clock)
        await registry.guard(session)
        return registry.open(session, found.writer, report=found.report)
    except BaseException:
        await _release(found.writer, session_id)
        raise

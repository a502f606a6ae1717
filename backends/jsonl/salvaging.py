"""The repair of a stored session from end to end: find it, lock it, plan, carry out, or only say what would be done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from sessionstore.backends.base import SalvageReport
from sessionstore.backends.files import FileStat
from sessionstore.backends.jsonl.lock import SessionLock, lock_path, probe
from sessionstore.backends.jsonl.lookup import Found, find_session
from sessionstore.backends.jsonl.reading import Reading, unchanged
from sessionstore.backends.jsonl.repairing import Place, carry_out, move_home, own_paths, plan_repair_of
from sessionstore.backends.paths import SessionPaths
from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.plan import plan_repair
from sessionstore.recovery.salvage_plan import SalvagePlan

if TYPE_CHECKING:
    from sessionstore.backends.jsonl.backend import JsonlBackend

__all__ = ["salvage_session"]

_READS: Final = 4
"""How often a log that changes while it is read is read for a dry run."""

_MENDED_BY_RESUME: Final = frozenset({Verdict.INTERRUPTED, Verdict.TORN})


class _Planned(Struct):
    """A plan, what it was made for, and where the session belongs."""

    found: Found
    reading: Reading
    plan: SalvagePlan
    stat: FileStat
    home: SessionPaths

    @property
    def moves(self) -> bool:
        return self.home.directory != self.found.paths.directory


def salvage_session(backend: JsonlBackend, session_id: str, cwd: str | None, dry_run: bool) -> SalvageReport:
    """See :meth:`sessionstore.backends.base.Backend.salvage`.  Blocking."""
    place = Place(backend._files, backend.root, backend._lock_dir, backend._clock)
    if dry_run:
        return _dry_run(backend, place, session_id, cwd)
    planned, report = _locked_repair(backend, place, session_id, cwd, may_move=True)
    if report is not None or planned.plan.header is None:
        return report or _nothing(planned, session_id)
    # It was moved to where it belongs; the lock there is another one.  Look again.
    again, report = _locked_repair(backend, place, planned.plan.header.id, cwd, may_move=False)
    report = report or _nothing(again, session_id)
    return structs.replace(report, verdict=planned.plan.verdict, findings=planned.plan.findings, changed=True)


def _nothing(planned: _Planned, session_id: str) -> SalvageReport:
    return SalvageReport.of(session_id, planned.plan, dry_run=False, original=None, location=planned.found.log)


def _plan(backend: JsonlBackend, place: Place, session_id: str, cwd: str | None, *, live: bool) -> _Planned:
    found = find_session(place.files, place.root, session_id)
    reading = backend._scan(found, session_id, live=live)
    plan, stat = plan_repair_of(place, found, session_id, reading, cwd=cwd)
    return _Planned(found, reading, plan, stat, own_paths(place, found, plan))


def _dry_run(backend: JsonlBackend, place: Place, session_id: str, cwd: str | None) -> SalvageReport:
    """What a repair would do to a log, once it holds still while it is read."""
    found = find_session(place.files, place.root, session_id)
    presence = probe(place.files, lock_path(place.files, found.paths, place.lock_dir))
    planned = _plan(backend, place, session_id, cwd, live=presence == "live")
    for _ in range(_READS - 1):
        if planned.stat == planned.reading.stat and unchanged(place.files, planned.found, planned.reading):
            break
        planned = _plan(backend, place, session_id, cwd, live=presence == "live")
    location = planned.home.log(planned.found.compression)
    report = SalvageReport.of(session_id, planned.plan, dry_run=True, original=None, location=location)
    waits = presence == "live" and planned.plan.verdict is Verdict.INTERRUPTED
    return structs.replace(report, changed=(report.changed or planned.moves) and not waits)


def _locked_repair(
    backend: JsonlBackend, place: Place, session_id: str, cwd: str | None, *, may_move: bool
) -> tuple[_Planned, SalvageReport | None]:
    """Plan and repair under the lock; no report when all that was done is that the session was moved."""
    lock = backend._locked(find_session(place.files, place.root, session_id), session_id)
    try:
        planned = _plan(backend, place, session_id, cwd, live=False)
        if planned.moves and may_move:
            move_home(place, planned.found, planned.home, session_id)
            return planned, None
        return planned, _repair(backend, place, session_id, planned, lock)
    finally:
        lock.release()


def _repair(
    backend: JsonlBackend, place: Place, session_id: str, planned: _Planned, lock: SessionLock
) -> SalvageReport:
    found, plan, scan = planned.found, planned.plan, planned.reading.scan
    if plan.refusal is not None or plan.empty:
        return _nothing(planned, session_id)
    if scan.header is None or scan.verdict not in _MENDED_BY_RESUME or plan.kept > len(scan.log):
        return carry_out(place, found, session_id, plan, planned.stat)
    # What a resume does is enough.
    stored = backend._stored(found, planned.reading, "none", session_id)
    done = backend._resumed(found, scan.header, planned.reading, lock).mend(stored, plan_repair(scan))
    return SalvageReport.of(session_id, plan, dry_run=False, original=done.quarantine, location=found.log)

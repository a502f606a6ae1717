"""What a resume does to a log before the session goes on: planned here, carried out by a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from sessionstore.events import Event
from sessionstore.recovery.closers import interrupted_turn_closers
from sessionstore.recovery.findings import Verdict

if TYPE_CHECKING:
    from sessionstore.recovery.scan import ScanResult

__all__ = ["RepairPlan", "plan_repair"]

_RESUMABLE = (Verdict.CLEAN, Verdict.INTERRUPTED, Verdict.TORN)


class RepairPlan(Struct, frozen=True, kw_only=True):
    """Cut *cut_length* bytes from *truncate_to* on (``None``: nothing is cut), then append *closers*.

    Offsets count bytes of the decompressed log.  ``truncate_to`` may equal the size of what was scanned: the
    source then ends in a compressed frame of which no bytes came out.  ``cut_is_blank`` says that the cut
    bytes are only NULs and blanks, which nobody needs to keep.
    """

    truncate_to: int | None = None
    cut_length: int = 0
    cut_is_blank: bool = False
    closers: tuple[Event, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.truncate_to is None and not self.closers


def plan_repair(scan: ScanResult) -> RepairPlan:
    """Plan what makes the scanned log clean; empty for a clean one.

    The plan follows from the log alone, and a log to which it was applied gets an empty one.

    Raises:
        ValueError: the verdict is one that a resume refuses (damaged, invalid, unsupported, empty).
    """
    if scan.verdict not in _RESUMABLE:
        raise ValueError(f"a log that is {scan.verdict} is not resumed, so there is no plan for it")
    closers = () if scan.open_turn_seq is None else tuple(interrupted_turn_closers(scan.log.events(scan.open_turn_seq)))
    if scan.verdict is not Verdict.TORN:
        return RepairPlan(closers=closers)
    return RepairPlan(
        truncate_to=scan.safe_offset,
        cut_length=scan.size - scan.safe_offset,
        cut_is_blank=scan.cut_is_blank,
        closers=closers,
    )

"""What must hold of every salvage, whatever the bytes were.  Tests and the fuzzer use the same checker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sessionstore.chunks import parse_row
from sessionstore.events import Event
from sessionstore.recovery.closers import interrupted_turn_closers, payload_of
from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.lines import EMPTINESS
from sessionstore.recovery.records import BOM, Defect, read_record
from sessionstore.recovery.salvage import salvage
from sessionstore.recovery.scan import ScanResult, scan_log
from sessionstore.surface import fold_surface
from sessionstore.vocabulary import SURFACE_TYPES

if TYPE_CHECKING:
    from sessionstore.recovery.salvage_plan import SalvagePlan

__all__ = ["check_salvaged", "history_faults", "joined"]

Fault = tuple[str, str]


def joined(lines: Iterable[bytes]) -> bytes:
    """Storage lines as the bytes of a log."""
    return b"".join(line + b"\n" for line in lines)


def check_salvaged(original_events: Sequence[Event] | None, damaged_bytes: bytes, result: SalvagePlan) -> None:
    """Check a plan that :func:`salvage` made for *damaged_bytes*.

    *original_events* are those of the log before the damage; without them nothing can be said about history and
    survival.  Raises ``AssertionError`` with the rule that is broken.
    """
    if result.refusal is not None:
        assert not result.lines, "a refusal plans nothing"
        assert not result.forks
        return
    if result.empty:
        assert scan_log(damaged_bytes).verdict is Verdict.CLEAN, "only a clean log needs nothing"
        return
    scan = _check_log(result.lines, result.events)
    _check_counts(result, scan)
    for fork in result.forks:
        fork_scan = _check_log(fork.lines, fork.events)
        assert fork_scan.header is not None
        assert fork_scan.header.id == fork.id
    _check_nothing_vanishes(damaged_bytes, result, scan)
    if original_events is not None:
        if not _has_strangers(original_events, scan, result):
            _check_history(original_events, scan)
        _check_survivors(original_events, damaged_bytes, result, scan)


def _check_log(lines: Sequence[bytes], events: int) -> ScanResult:
    data = joined(lines)
    scan = scan_log(data)
    assert scan.verdict is Verdict.CLEAN, f"the result is {scan.verdict}: {scan.findings[:3]}"
    assert not scan.findings
    assert len(scan.log) == events
    fold_surface(scan.events)
    assert salvage(data).empty, "a second repair changes nothing"
    return scan


def _check_counts(result: SalvagePlan, scan: ScanResult) -> None:
    made = {event.seq: event for event in result.made}
    assert len(made) == len(result.made), "each seq is made once"
    assert result.kept + len(made) == result.events
    for seq, each in made.items():
        assert scan.log.event(seq).type == each.type


def _check_nothing_vanishes(damaged: bytes, result: SalvagePlan, scan: ScanResult) -> None:
    """Every line is in the result or in a fork, or its bytes are listed as left out."""
    shown = {line for lines in (result.lines, *(fork.lines for fork in result.forks)) for line in lines}
    out = sorted((q.offset, q.offset + q.length) for q in result.quarantined)
    rows = set(range(len(scan.log)))
    offset = 0
    for line in damaged.split(b"\n"):
        body = line.removeprefix(BOM).strip(EMPTINESS) if not offset else line.strip(EMPTINESS)
        if body and body not in shown and not any(a < offset + len(line) and b > offset for a, b in out):
            # A row or a fused line whose parts were kept: all its records must be there.
            assert _parts_are_there(body, shown, rows), f"the line at byte {offset} vanished"
        offset += len(line) + 1


def _parts_are_there(body: bytes, shown: set[bytes], seqs: set[int]) -> bool:
    try:
        record = read_record(body)
    except Defect:
        return any(line in body for line in shown)
    return set(range(record.seq, record.seq + record.count)) <= seqs


def _has_strangers(original: Sequence[Event], scan: ScanResult, result: SalvagePlan) -> bool:
    """Whether the result holds an event that was never written: a flipped bit inside a string is seen by nobody."""
    made = {event.seq for event in result.made}
    known = {event.to_json() for event in original}
    return any(event.seq not in made and event.to_json() not in known for event in scan.events)


def _check_history(original: Sequence[Event], scan: ScanResult) -> None:
    before = history_faults([*original, *interrupted_turn_closers(original)])
    now = history_faults(scan.events)
    worse = now - before
    assert not worse, f"the history is worse for a provider: {worse}"


def history_faults(events: Iterable[Event]) -> Counter[Fault]:
    """Calls without an answer and answers without a call, in the history that a model sees."""
    listed = {event.seq: event for event in events if event.type in SURFACE_TYPES}
    faults: Counter[Fault] = Counter()
    waiting: list[str] = []
    for seq in fold_surface(_with_fillers(listed)).nodes:
        event = listed[seq]
        data = payload_of(event)
        if event.type == "assistant/message":
            faults.update(("unanswered", call) for call in waiting)
            waiting = list(_calls(data))
        elif event.type == "tool/result":
            call = _answered(data)
            if call in waiting:
                waiting.remove(call)
            else:
                faults[("orphan", call)] += 1
    faults.update(("unanswered", call) for call in waiting)
    return faults


def _with_fillers(listed: Mapping[int, Event]) -> Iterable[Event]:
    for seq in range(max(listed, default=-1) + 1):
        yield listed.get(seq) or Event.from_dict({"type": "x", "seq": seq, "time": 0, "data": None})


def _calls(data: Mapping[str, Any]) -> Iterable[str]:
    message = data.get("message", data)
    content = message.get("content") if isinstance(message, Mapping) else None
    for block in content if isinstance(content, list) else ():
        if isinstance(block, Mapping) and block.get("type") == "tool-call":
            yield str(block.get("id"))


def _answered(data: Mapping[str, Any]) -> str:
    message = data.get("message")
    source = message.get("source") if isinstance(message, Mapping) else data
    return str(source.get("callId")) if isinstance(source, Mapping) else ""


def _check_survivors(original: Sequence[Event], damaged: bytes, result: SalvagePlan, scan: ScanResult) -> None:
    """An event whose line is untouched, and whose seq no other intact line claims, is there under its seq."""
    claims: dict[int, set[bytes]] = {}
    order: list[int] = []
    for line in damaged.split(b"\n"):
        for seq, body in _members(line.strip(EMPTINESS)):
            claims.setdefault(seq, set()).add(body)
            order.append(seq)
    alone = {seq for before, seq, after in _neighbours(order) if before != seq - 1 and after != seq + 1}
    garbled = any("its seq does not continue" in each.reason for each in result.quarantined)
    made = {event.seq: event for event in result.made}
    for event in original:
        text = event.to_json()
        if claims.get(event.seq) != {text}:
            continue
        if garbled and event.seq in alone:
            continue  # stands in another's place: nobody can tell it from a record with a garbled seq
        assert event.seq < len(scan.log), f"seq {event.seq} ({event.type}) is gone"
        if scan.log.event(event.seq).to_json() != text:
            assert event.seq in made
            # Only what breaks a rule of the surface or of the history may lose its place.
            assert event.type in SURFACE_TYPES, f"seq {event.seq} ({event.type}) lost its place: {made[event.seq]}"


def _neighbours(order: list[int]) -> Iterable[tuple[int, int, int]]:
    return zip([-2, *order], order, [*order[1:], -2], strict=False)


def _members(body: bytes) -> Iterable[tuple[int, bytes]]:
    if not body:
        return
    try:
        record = read_record(body)
    except Defect:
        return
    if record.event is not None:
        yield record.seq, body
        return
    for event in parse_row(body).events():
        yield event.seq, event.to_json()

"""What holds for every log, however it is cut, damaged or handed over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from sessionstore.invariants import InvariantTrace
from sessionstore.recovery.closers import interrupted_turn_closers
from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.plan import plan_repair
from sessionstore.recovery.scan import LogScanner, ScanResult, scan_log
from tests.recovery import logs
from tests.recovery.strategies import chunkings, damaged_bytes, log_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

GOOD = {Verdict.CLEAN, Verdict.INTERRUPTED}


def feed(pieces: Iterable[bytes], *, max_line: int) -> ScanResult:
    """Scan a log that arrives in pieces."""
    scanner = LogScanner(max_line=max_line)
    for piece in pieces:
        scanner.feed(piece)
    return scanner.finish()


def summary(result: ScanResult) -> tuple[object, ...]:
    """Everything that a scan says, comparable."""
    return (
        result.verdict,
        result.findings,
        result.safe_offset,
        result.size,
        result.cut_is_blank,
        (result.open_turn, result.open_turn_seq),
        result.intact_after,
        result.header_line,
        tuple(result.log.lines(0, len(result.log))),
        tuple(result.surface.nodes),
    )


def repaired(data: bytes) -> bytes:
    """The log after its repair plan was carried out."""
    plan = plan_repair(scan_log(data))
    kept = data if plan.truncate_to is None else data[: plan.truncate_to]
    return kept + b"".join(event.to_json() + b"\n" for event in plan.closers)


@given(log_lines())
def test_a_valid_log_scans_clean_or_interrupted_and_keeps_its_bytes(lines: list[bytes]) -> None:
    """Every byte is accounted for, and what was read goes out as it came in."""
    result = scan_log(b"".join(lines))
    assert result.verdict in GOOD
    assert result.findings == ()
    assert result.safe_offset == result.size
    assert [line + b"\n" for line in result.log.lines(0, len(result.log))] == lines[1:]


@given(st.data())
def test_any_chunking_scans_like_the_whole(data: st.DataObject) -> None:
    """How the bytes arrive makes no difference, for damaged logs neither, nor where a line is too long."""
    log = data.draw(damaged_bytes() | log_lines().map(b"".join))
    limit = data.draw(st.sampled_from([1 << 20, 300, 60]))
    whole = feed([log], max_line=limit)
    assert summary(feed(data.draw(chunkings(log)), max_line=limit)) == summary(whole)
    assert summary(feed((bytes([byte]) for byte in log), max_line=limit)) == summary(whole)


@given(st.data())
def test_every_prefix_that_holds_the_header_scans_to_a_prefix(data: st.DataObject) -> None:
    """A log cut anywhere behind its header line is never damaged, and loses no whole line."""
    lines = data.draw(log_lines())
    log = b"".join(lines)
    whole = list(scan_log(log).events)
    for cut in data.draw(st.lists(st.integers(len(lines[0]), len(log)), max_size=8)):
        result = scan_log(log[:cut])
        assert result.verdict in {*GOOD, Verdict.TORN}
        assert list(result.events) == whole[: len(result.events)]
        assert result.safe_offset == log.rfind(b"\n", 0, cut) + 1
        assert (result.verdict is Verdict.TORN) == (result.safe_offset != cut)


@given(damaged_bytes())
def test_scanning_up_to_the_safe_offset_is_a_fixed_point(data: bytes) -> None:
    """What is kept of a torn log scans as good, to the same events."""
    result = scan_log(data)
    if result.verdict is Verdict.TORN:
        again = scan_log(data[: result.safe_offset])
        assert again.verdict in GOOD
        assert again.safe_offset == again.size == result.safe_offset
        assert list(again.events) == list(result.events)


@given(damaged_bytes())
def test_a_repaired_log_is_clean_and_its_repair_is_empty(data: bytes) -> None:
    """Repair ends what was open, and the second repair has nothing to do."""
    result = scan_log(data)
    if result.verdict in {*GOOD, Verdict.TORN}:
        mended = repaired(data)
        again = scan_log(mended)
        assert again.verdict is Verdict.CLEAN
        assert list(again.events)[: len(result.events)] == list(result.events)
        assert plan_repair(again).empty
        assert repaired(mended) == mended


@given(st.integers(0, 400), st.sampled_from([logs.interrupted_log, logs.closed_log]))
def test_a_repaired_log_satisfies_the_invariants(cut: int, make: object) -> None:
    """Closers stand where the invariants of an agent's log want them."""
    lines: list[bytes] = make()  # type: ignore[operator]
    log = b"".join(lines)
    mended = repaired(log[: max(len(lines[0]), len(log) - 7 * cut)])
    trace = InvariantTrace("strict")
    trace.replay(scan_log(mended).events)


@given(st.data())
def test_one_lost_byte_never_makes_a_hole(data: st.DataObject) -> None:
    """Whatever happens to one byte, the events read are a gapless beginning of what was there, or one was altered."""
    lines = data.draw(log_lines())
    log = b"".join(lines)
    at = data.draw(st.integers(0, len(log) - 1))
    result = scan_log(log[:at] + log[at + 1 :])
    assert [event.seq for event in result.events] == list(range(len(result.events)))


@given(st.binary(max_size=300) | damaged_bytes())
def test_any_bytes_give_a_result(data: bytes) -> None:
    """No input raises, and the offsets of what is found lie inside the input."""
    result = scan_log(data)
    assert isinstance(result.verdict, Verdict)
    assert 0 <= result.safe_offset <= result.size == len(data)
    places = [(finding.line, finding.offset) for finding in result.findings]
    assert places == sorted(places)
    for finding in result.findings:
        assert 0 <= finding.offset <= finding.offset + finding.length <= len(data)
        line_start = data.rfind(b"\n", 0, finding.offset) + 1
        assert finding.line == data.count(b"\n", 0, line_start) + 1


@given(log_lines())
def test_closers_need_no_more_than_the_open_turn(lines: list[bytes]) -> None:
    """Looking at the whole log or at the open turn alone gives the same closers."""
    result = scan_log(b"".join(lines))
    closers = interrupted_turn_closers(result.events)
    if result.open_turn_seq is None:
        assert closers == []
    else:
        assert closers == interrupted_turn_closers(result.log.events(result.open_turn_seq))
        assert closers[-1].type == "turn/end"

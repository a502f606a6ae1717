"""What must hold whatever the bytes are: a sample goes through scan, the plan of a resume, and salvage.

Nothing here asks the salvage what it did when the bytes can tell: which lines are
untouched, which seqs are claimed, and what a provider would say are found out anew.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from sessionstore.backends.jsonl.frames import FrameReader
from sessionstore.chunks import ROW_TYPES, line_type, parse_row
from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.lines import EMPTINESS
from sessionstore.recovery.plan import RepairPlan, plan_repair
from sessionstore.recovery.records import BOM, Defect, read_record
from sessionstore.recovery.salvage import salvage
from sessionstore.recovery.scan import LogScanner, ScanResult, scan_log
from sessionstore.surface import fold_surface
from sessionstore.vocabulary import SURFACE_TYPES
from tests.fuzz.history import Faults, history_faults
from tests.fuzz.rows import rows_of

if TYPE_CHECKING:
    from sessionstore.recovery.salvage_plan import SalvagePlan

__all__ = ["Known", "Outcome", "Sample", "check", "decoded", "joined", "merged"]

RESUMABLE: Final = frozenset({Verdict.CLEAN, Verdict.INTERRUPTED, Verdict.TORN})
_RECORD: Final = re.compile(r'\A\{|\{"type":"|(?<=[}\0])\{')
_scan_json = json.JSONDecoder().raw_decode
_INTERNAL: Final = "what is left does not make a log"


class Known(Struct):
    """What is known of the logs that a sample was made of: their lines with their seqs, and the faults they had.

    ``mixed``: there was more than one history.
    """

    lines: Mapping[bytes, tuple[int, int]]
    faults: Faults
    sound: bool
    mixed: bool = False


class Sample(Struct):
    """One input.  *allowed* are the verdicts that it may get at most; ``None``: any."""

    data: bytes
    zstd: bool
    known: Known
    cuts: list[int]
    session_id: str | None = None
    allowed: frozenset[str] | None = None
    frames: list[bytes] = []
    folds: bool = False


class Outcome(Struct):
    """What became of a sample: the verdict, the rows of the damage table that it reached, and a refusal's reason."""

    verdict: Verdict
    rows: set[str]
    refusal: str | None


def joined(lines: Iterable[bytes]) -> bytes:
    """Storage lines as the bytes of a log."""
    return b"".join([line + b"\n" for line in lines])


def check(sample: Sample) -> Outcome:
    """Put a sample through everything.  Raises AssertionError with the rule that is broken."""
    text, weights = decoded(sample) if sample.zstd else (sample.data, [])
    scan = _check_scan(sample, text)
    if scan.verdict in RESUMABLE:
        _check_resume(text, scan, plan_repair(scan))
    else:
        _check_no_plan(scan)
    plan = salvage(text, session_id=sample.session_id, cwd="/srv/project", scan=scan, weights=weights)
    rows = rows_of(scan, plan, text)
    if plan.refusal is not None:
        assert not plan.lines, "a refusal plans nothing"
        assert not plan.forks, "a refusal plans nothing"
        assert _INTERNAL not in plan.refusal, f"the salvage made no log: {plan.refusal}"
    elif plan.empty:
        assert scan.verdict is Verdict.CLEAN, "only a clean log needs nothing"
    else:
        _check_plan(sample, text, scan, plan)
    return Outcome(scan.verdict, rows, plan.refusal)


def decoded(sample: Sample) -> tuple[bytes, list[tuple[int, int]]]:
    """The text of a compressed sample and its lost bytes, the same in pieces and at once."""
    reader = FrameReader()
    text = b"".join([*reader.feed(sample.data), *reader.finish()])
    pieces = FrameReader()
    parts: list[bytes] = []
    for part in _pieces(sample.data, sample.cuts):
        parts += pieces.feed(part)
    parts += pieces.finish()
    assert b"".join(parts) == text, "frames decode to something else in pieces"
    assert pieces.defects == reader.defects, "frames have other defects in pieces"
    for content in sample.frames:
        assert content in text, "an untouched frame is not decoded"
    return text, [(defect.decoded, defect.length) for defect in reader.defects if not defect.blank]


def _pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    if cuts == [-1]:
        return [data[at : at + 1] for at in range(len(data))]
    points = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(points)]


def _check_scan(sample: Sample, text: bytes) -> ScanResult:
    scan = scan_log(text)
    scanner = LogScanner()
    for piece in _pieces(text, sample.cuts):
        scanner.feed(piece)
    other = scanner.finish()
    for name in ("verdict", "findings", "safe_offset", "size", "cut_is_blank", "open_turn", "open_turn_seq",
                 "intact_after", "header_line"):  # fmt: skip
        assert getattr(scan, name) == getattr(other, name), f"{name} differs in pieces"
    assert len(scan.log) == len(other.log)
    assert scan.log.slice_lines(0, scan.log.line_count) == other.log.slice_lines(0, other.log.line_count)
    assert scan.surface.nodes == other.surface.nodes
    assert scan.size == len(text)
    assert 0 <= scan.safe_offset <= scan.size
    if sample.allowed is not None:
        assert scan.verdict in sample.allowed, f"a mild accident makes a log {scan.verdict}: {scan.findings[:2]}"
    if sample.folds and scan.verdict in RESUMABLE:
        assert list(fold_surface(scan.events).nodes) == list(scan.surface.nodes)
    return scan


def _check_no_plan(scan: ScanResult) -> None:
    try:
        plan_repair(scan)
    except ValueError:
        return
    raise AssertionError(f"a log that is {scan.verdict} has a plan for a resume")


def _check_resume(text: bytes, scan: ScanResult, plan: RepairPlan) -> None:
    if plan.empty:
        assert scan.verdict is Verdict.CLEAN
        return
    kept = text if plan.truncate_to is None else text[: plan.truncate_to]
    after = scan_log(kept + joined(closer.to_json() for closer in plan.closers))
    assert after.verdict is Verdict.CLEAN, f"resume leaves a log {after.verdict}: {after.findings[:2]}"
    assert plan_repair(after).empty, "a second resume changes something"
    assert len(after.log) == len(scan.log) + len(plan.closers)
    lines = scan.log.line_count
    assert after.log.slice_lines(0, lines) == scan.log.slice_lines(0, lines), "resume changed an event"


def _check_plan(sample: Sample, text: bytes, scan: ScanResult, plan: SalvagePlan) -> None:
    data = joined(plan.lines)
    after = scan_log(data)
    assert after.verdict is Verdict.CLEAN, f"salvage leaves a log {after.verdict}: {after.findings[:2]}"
    assert not after.findings
    assert len(after.log) == plan.events == plan.kept + len(plan.made)
    assert salvage(data, scan=after).empty, "a second salvage changes something"
    if sample.folds:
        assert list(fold_surface(after.events).nodes) == list(after.surface.nodes)
        assert list(plan.describe())
    if scan.verdict is Verdict.INTERRUPTED and not scan.findings and plan.header_fate == "kept" and _is_plain(text):
        assert data.startswith(text), "salvage changed more than a resume does"
    assert _contained(plan, len(text)), "what is quarantined lies outside of the log"
    for fork in plan.forks:
        other = scan_log(joined(fork.lines))
        assert other.verdict is Verdict.CLEAN, f"a fork is {other.verdict}"
        assert other.header is not None
        assert other.header.id == fork.id
        assert len(other.log) == fork.events
    if sample.known.sound:
        _check_survivors(sample.known, text, plan, after)
        _check_history(sample.known, plan, after)


def _is_plain(text: bytes) -> bool:
    """Whether no line has blanks around it, which a salvage strips and a resume leaves alone."""
    return (
        not text.startswith(b" ")
        and b"\n " not in text
        and b" \n" not in text
        and b"\r" not in text
        and b"\t" not in text
    )


def _contained(plan: SalvagePlan, size: int) -> bool:
    return all(each.offset >= 0 and each.length > 0 and each.offset + each.length <= size for each in plan.quarantined)


def _check_history(known: Known, plan: SalvagePlan, after: ScanResult) -> None:
    """No fault that the logs did not have.  With an event that was never written nothing can be said.

    Nor where lines of two logs happen to make one that is in order: nothing in it shows that it is not one.
    """
    if known.mixed and plan.verdict is Verdict.INTERRUPTED:
        return
    made = {event.seq for event in plan.made}
    seq = 0
    for line in plan.lines[1:]:
        place = known.lines.get(line)
        if place is not None and place[0] == seq:
            seq += place[1]
        elif line_type(line) in ROW_TYPES:
            seq += len(parse_row(line))
        elif seq in made or line.startswith(b'{"type":"assistant/chunk"'):
            seq += 1
        else:
            return
    now = history_faults(after.events, after.surface.nodes)
    worse, better = now - known.faults, known.faults - now
    # Where a call had no answer before and another one's is lost, nobody can tell which one the place was for.
    cured = sum(count for (kind, _), count in better.items() if kind == "unanswered")
    lost = sum(count for (kind, _), count in worse.items() if kind == "unanswered")
    if 0 < lost <= cured and lost == sum(worse.values()):
        return
    assert not worse, f"the history is worse for a provider: {dict(worse)}"


def _check_survivors(known: Known, text: bytes, plan: SalvagePlan, after: ScanResult) -> None:
    """An event whose line is untouched, and whose seq no other intact line claims, is there under its seq."""
    kept = dict.fromkeys(plan.lines)
    claims, places = _claims(known, text)
    for body, offsets in places.items():
        if body in kept:
            continue
        first, count = known.lines[body]
        for seq in range(first, first + count):
            if claims[seq] is not None and not _is_taken_for_garbled(first, offsets, plan, claims):
                _check_survivor(seq, _member(body, seq, first, count), offsets, plan, after)


def _claims(known: Known, text: bytes) -> tuple[dict[int, bytes | None], dict[bytes, list[int]]]:
    """Which line claims a seq (``None``: different ones), and where the untouched lines stand."""
    claims: dict[int, bytes | None] = {}
    places: dict[bytes, list[int]] = {}
    offset = 0
    for line in text.split(b"\n"):
        body = line.strip(EMPTINESS)
        if not offset:
            body = body.removeprefix(BOM).strip(EMPTINESS)
        if body:
            place = known.lines.get(body)
            if place is not None:
                places.setdefault(body, []).append(offset + line.find(body))
            else:
                place = _place(body)
            if place is not None:
                _claim(claims, body, *place)
            else:
                for part in _whole_records(body):
                    _claim(claims, part, *(_place(part) or (0, 0)))
        offset += len(line) + 1
    return claims, places


def _place(body: bytes) -> tuple[int, int] | None:
    try:
        record = read_record(body)
    except Defect:
        return None
    return record.seq, record.count


def _whole_records(body: bytes) -> Iterator[bytes]:
    """The JSON objects in a line that is no record: a whole one claims its seq like any other."""
    text = body.decode("utf-8", "surrogateescape")
    for match in _RECORD.finditer(text):
        try:
            _, stop = _scan_json(text, match.start())
        except (ValueError, RecursionError):
            continue
        yield text[match.start() : stop].encode("utf-8", "surrogateescape")


def _claim(claims: dict[int, bytes | None], body: bytes, first: int, count: int) -> None:
    for seq in range(first, first + count):
        claim = claims.get(seq, body)
        if claim is not body and claim is not None and claim != body:
            there = _place(claim)
            same = there is not None and _member(claim, seq, *there) == _member(body, seq, first, count)
            claim = body if same else None
        claims[seq] = claim


def _member(body: bytes, seq: int, first: int, count: int) -> bytes:
    """The event line of *seq* in a line that may be a row."""
    if count == 1 and line_type(body) not in ROW_TYPES:
        return body
    return next(iter(parse_row(body).slice(seq - first, seq - first + 1).events())).to_json()


def _check_survivor(seq: int, line: bytes, offsets: list[int], plan: SalvagePlan, after: ScanResult) -> None:
    offset = offsets[0]
    assert seq < len(after.log), f"seq {seq} is gone: its line at byte {offset} is untouched"
    now = after.log.event(seq)
    if now.to_json() == line:
        return
    reasons = [each.reason for each in plan.quarantined if each.offset in offsets]
    if not reasons and any(line in fork.lines for fork in plan.forks):
        return  # this copy is in the other history, and one that was not untouched did not fit into the first
    assert reasons, f"the untouched line of seq {seq} at byte {offset} vanished without a word"
    where = f"seq {seq} at byte {offset} is untouched and lost its place to {now.type} ({reasons[0]})"
    record = read_record(line)
    assert record.event is not None and record.event.type in SURFACE_TYPES, where  # noqa: PT018
    assert seq in {each.seq for each in plan.made}, where
    _check_needed(seq, line, after, where)


def _is_taken_for_garbled(seq: int, offsets: list[int], plan: SalvagePlan, claims: Mapping[int, object]) -> bool:
    garbled = any(each.offset in offsets and "does not continue" in each.reason for each in plan.quarantined)
    return garbled and _may_be_garbled(seq, claims)


def _may_be_garbled(seq: int, claims: Mapping[int, object]) -> bool:
    """Whether a single wrong digit explains the seq: nobody can tell such a record from one that was moved."""
    digits = str(seq)
    others = (int(digits[:at] + digit + digits[at + 1 :]) for at in range(len(digits)) for digit in "0123456789")
    return any(other not in claims for other in others)


def _check_needed(seq: int, line: bytes, after: ScanResult, where: str) -> None:
    """That the event lost its place was necessary: with it, the log would break a rule."""
    lines = [event.to_json() for event in after.events]
    lines[seq] = line
    header = after.header_line or b""
    other = scan_log(joined([header, *lines]))
    if other.verdict is not Verdict.CLEAN:
        return
    before = history_faults(after.events, after.surface.nodes)
    worse = history_faults(other.events, other.surface.nodes) - before
    assert worse, f"{where} without need"


def merged(logs: Iterable[Known]) -> Known:
    """What is known of several logs in one."""
    lines: dict[bytes, tuple[int, int]] = {}
    faults: Faults = Counter()
    sound = True
    for each in logs:
        lines.update(each.lines)
        faults |= each.faults
        sound = sound and each.sound
    return Known(lines, faults, sound, mixed=True)

"""Saving what can be saved of a damaged log: the plan, made from its bytes alone.

Nothing is invented and nothing is thrown away silently.  What holds of the result, in
this order: it scans clean; its surface folds; its history is no worse for a model
provider than before the damage; every intact event keeps its seq.  The steps are in
the modules beside this one: records are found, put in order, and made whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from sessionstore.errors import InvalidEventError
from sessionstore.events import Event
from sessionstore.header import Header, child_header, make_header, parse_header
from sessionstore.lossless import decode, encode
from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.salvage_branches import (
    Part,
    Path,
    choose_path,
    drop_garbled,
    overtaken,
    string_together,
    unpack,
)
from sessionstore.recovery.salvage_fill import MAX_LOST_WITHOUT_BYTES, Mended, RefusedError, mend
from sessionstore.recovery.salvage_find import Found, FoundHeader, Junk, Piece, find_records
from sessionstore.recovery.salvage_plan import HeaderFate, Quarantined, SalvageFork, SalvagePlan
from sessionstore.recovery.scan import LogScanner, ScanResult, scan_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["MAX_FORKS", "salvage"]

MAX_FORKS: Final = 16
"""How many second histories become sessions; the bytes of further ones are kept aside like all others."""

_REBUILT: Final = "rebuilt"
_REPEATED: Final = "it only repeats what stands elsewhere in the log"
_GARBLED: Final = "its seq does not continue the log, and it stands where another seq is missing"
_OVERTAKEN: Final = "it breaks a rule, and an intact event has its seq"
_STALE: Final = "closing events of an earlier recovery, overtaken by the real ones"
_NO_LOG: Final = "a second history that does not make a log of its own"
_LONE: Final = "a single event of a seq that another one holds; it continues nothing"


def salvage(
    data: bytes,
    *,
    session_id: str | None = None,
    cwd: str | None = None,
    scan: ScanResult | None = None,
    weights: Sequence[tuple[int, int]] = (),
) -> SalvagePlan:
    """Plan the repair of the log *data*.  Any bytes at all give a plan or a refusal, in linear time.

    The plan follows from the arguments alone.  A clean log gets an empty plan, and so does every log that a plan
    made.

    Args:
        data: the log, decompressed.
        session_id: the session's id; the header's by default.  A header that names another one is made anew.
        cwd: the working directory, where the header is lost.
        scan: the scan of *data*, where there is one already; its verdict is that of the plan.
        weights: for bytes of *data* that stand for more lost ones: their offset, and how many were lost.

    Raises:
        InvalidEventError: *cwd* is not an absolute path.
    """
    scan = scan_log(data) if scan is None else scan
    refusal = _refusal(scan)
    if refusal is not None or scan.verdict is Verdict.CLEAN:
        whole = 0 if refusal is not None else len(scan.log)
        return SalvagePlan(
            verdict=scan.verdict,
            findings=scan.findings,
            refusal=refusal,
            header=scan.header,
            events=whole,
            kept=whole,
        )
    try:
        return _plan(find_records(data, weights=weights), scan, session_id, cwd)
    except RefusedError as error:
        return SalvagePlan(verdict=scan.verdict, findings=scan.findings, refusal=str(error), header=scan.header)


def _refusal(scan: ScanResult) -> str | None:
    if scan.verdict is Verdict.UNSUPPORTED or scan.unsupported is not None:
        return "another version reads it" if scan.unsupported is None else scan.unsupported.reason
    if scan.verdict is Verdict.EMPTY:
        return "nothing was ever completed in it"
    return None


def _plan(found: Found, scan: ScanResult, session_id: str | None, cwd: str | None) -> SalvagePlan:
    if found.foreign is not None:
        raise RefusedError(found.foreign.reason)
    extra: list[Quarantined] = []
    strung = string_together(_without_overtaken(found))
    extra += [_aside(piece, _REPEATED) for piece in strung.repeats]
    for segment in drop_garbled(strung):
        _lose(found.junk, segment.pieces, _GARBLED)
    path, rest = choose_path(strung.segments)
    _drop_far_end(path, found.junk)
    branches = _branches(path, rest, found.junk)
    pieces = unpack(path)
    header, fate, begin = _header(found, session_id, cwd, pieces)
    extra += [
        Quarantined(each.offset, each.length, "a second header line")
        for each in found.strays
        if fate != "found" or each.header is not header
    ]
    if found.header is not None and fate != "kept":
        extra.append(Quarantined(found.header.offset, found.header.length, "a header that names another session"))
    mixed = len(path) > 1 or bool(rest) or strung.crossed
    mended = mend(pieces, found.junk, created_at=header.created_at, begin=begin, mixed=mixed)
    forks: list[SalvageFork] = []
    aside = {each.offset for each in mended.quarantined}
    for branch in branches:
        fork, left_out = _fork(branch, found.junk, header)
        extra += [each for each in left_out if each.offset not in aside]
        if fork is None:
            for part in branch.own:
                _lose(found.junk, part.segment.cut(part.start, part.stop), _NO_LOG)
        else:
            forks.append(fork)
    lines = _checked(header, mended)
    stretches = [*found.junk.stretches, *extra, *mended.quarantined]
    return SalvagePlan(
        verdict=scan.verdict,
        findings=scan.findings,
        header=header,
        header_fate=fate,
        lines=lines,
        events=mended.events,
        kept=mended.kept,
        made=tuple(mended.made),
        quarantined=tuple(sorted(set(stretches), key=lambda each: (each.offset, each.length))),
        forks=tuple(forks),
    )


def _without_overtaken(found: Found) -> list[Piece]:
    broken = overtaken(found.pieces)
    for piece in broken:
        found.junk.add(piece.offset, piece.length, f"{_OVERTAKEN}: {piece.problem}")
    gone = {piece.offset for piece in broken}
    return [piece for piece in found.pieces if piece.offset not in gone]


def _drop_far_end(path: Path, junk: Junk) -> None:
    """Leave out a single last event so far behind the others that its seq can only be garbled."""
    if len(path) > 1 and path[-1].is_lone:
        piece, before = path[-1].segment.pieces[0], path[-2]
        last = before.segment.piece_at(before.stop - 1)
        lost = 0 if last is None else junk.lost_between(last.end, piece.offset)
        if piece.seq - before.stop > max(lost, MAX_LOST_WITHOUT_BYTES):
            path.pop()
            _lose(junk, [piece], _GARBLED)


class _Branch(Struct):
    """A second history: the beginning it shares with the first, and its own parts."""

    shared: Path
    own: list[Part]


def _branches(path: Path, rest: list[Part], junk: Junk) -> list[_Branch]:
    """The other histories: each shares the beginning of *path* and goes on with parts that are not in it."""
    branches: list[_Branch] = []
    for part in rest:
        if part.is_stale or part.is_lone or len(branches) == MAX_FORKS:
            _lose(junk, part.segment.cut(part.start, part.stop), _STALE if part.is_stale else _LONE)
        elif branches and branches[-1].own[-1].stop == part.start:
            branches[-1].own.append(part)
        else:
            branches.append(_Branch([_until(each, part.start) for each in path if each.start < part.start], [part]))
    return branches


def _until(part: Part, stop: int) -> Part:
    return Part(part.segment, part.start, min(part.stop, stop))


def _lose(junk: Junk, pieces: Iterable[Piece], reason: str) -> None:
    for piece in pieces:
        junk.add(piece.offset, piece.length, reason)


def _aside(piece: Piece, reason: str) -> Quarantined:
    return Quarantined(piece.offset, piece.length, reason)


def _fork(branch: _Branch, junk: Junk, parent: Header) -> tuple[SalvageFork | None, list[Quarantined]]:
    """The session that a second history becomes, and what is left out of it.

    There is none where that would be no log, or hold nothing of its own.
    """
    own = branch.own[0]
    first = own.segment.piece_at(own.start)
    created_at = parent.created_at if first is None else max(Event.stored(first.line, first.seq).time, 0)
    try:
        header = child_header(parent, f"{parent.id}~{own.start}", created_at=created_at, seed_length=own.start)
        pieces = unpack([*branch.shared, *branch.own])
        mended = mend(pieces, junk, created_at=parent.created_at, begin=0, mixed=True)
        lines = _checked(header, mended)
    except (RefusedError, InvalidEventError):
        return None, []
    made = {event.seq for event in mended.made}
    if all(seq in made for part in branch.own for seq in range(part.start, part.stop)):
        return None, []
    fork = SalvageFork(id=header.id, divergence=own.start, events=mended.events, made=tuple(mended.made), lines=lines)
    return fork, mended.quarantined


def _header(
    found: Found, session_id: str | None, cwd: str | None, pieces: list[Piece]
) -> tuple[Header, HeaderFate, int]:
    """The header, what became of it, and the byte behind it."""
    first = found.header
    if first is not None and session_id in (None, first.header.id):
        return first.header, "kept", first.offset + first.length + 1
    stray = next((each for each in found.strays if session_id in (None, each.header.id)), None)
    if stray is not None:
        return stray.header, "found", 0
    if first is not None and session_id is not None:
        return _renamed(first, session_id), "rebuilt", first.offset + first.length + 1
    if session_id is None:
        raise RefusedError("the header is lost, and with it the session's id")
    if not pieces:
        raise RefusedError("neither a header nor an event is left")
    created_at = max(Event.stored(pieces[0].line, pieces[0].seq).time, 0)
    plain = make_header(session_id, created_at=created_at, cwd=cwd)
    return parse_header(encode({**plain.to_dict(), _REBUILT: True})), "rebuilt", 0


def _renamed(first: FoundHeader, session_id: str) -> Header:
    """The same header with the id under which the session is stored."""
    value = decode(first.header.to_json())
    return parse_header(encode({**(value if isinstance(value, dict) else {}), "id": session_id, _REBUILT: True}))


def _checked(header: Header, mended: Mended) -> tuple[bytes, ...]:
    """The lines of the repaired log, of which a scan must say that they are clean."""
    scanner = LogScanner()
    lines = (header.to_json(), *mended.lines)
    for start in range(0, len(lines), 1024):
        scanner.feed(b"\n".join(lines[start : start + 1024]) + b"\n")
    result = scanner.finish()
    if result.unsupported is not None:
        raise RefusedError(result.unsupported.reason)
    if result.verdict is not Verdict.CLEAN or len(result.log) != mended.events:
        shown = result.findings[0].describe() if result.findings else result.verdict
        raise RefusedError(f"what is left does not make a log: {shown}")
    return lines

"""Which of the found records follow each other: one history, or several that share a beginning.

Records are first strung together in the order of the file (:func:`string_together`):
one belongs to the segment whose next seq it has.  Segments that do not overlap are
parts of one history, put in order by seq.  Where they overlap, the path with the most
events is the history (:func:`choose_path`), and the others are told apart:
a record whose seq was garbled, closers that real events overtook, or another writer.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from typing import Final, TypeAlias

from msgspec import Struct

from sessionstore.chunks import MIN_RUN, ROW_TYPES, encode_row, parse_row, read_delta
from sessionstore.events import DeltaKey, Event
from sessionstore.recovery.closers import payload_of
from sessionstore.recovery.format import TURN_END
from sessionstore.recovery.salvage_find import Piece

__all__ = [
    "Part",
    "Path",
    "Segment",
    "Strung",
    "choose_path",
    "drop_garbled",
    "overtaken",
    "split",
    "string_together",
    "unpack",
]

_SEARCHED: Final = 8
"""How many segments a row that overlaps is compared with."""


class Segment:
    """Records that continue each other.  ``order`` is the place of its first record among all records."""

    __slots__ = ("end", "order", "pieces", "real_end", "starts")

    def __init__(self, piece: Piece, order: int) -> None:
        self.pieces = [piece]
        self.starts = [piece.seq]
        self.order = order
        self.end = piece.next
        self.real_end = piece.next  # without the closers of an earlier recovery at the end; see mark_closers

    @property
    def start(self) -> int:
        """The first seq."""
        return self.pieces[0].seq

    def add(self, piece: Piece) -> None:
        """Put a record at the end."""
        self.pieces.append(piece)
        self.starts.append(piece.seq)
        self.end = self.real_end = piece.next

    def piece_at(self, seq: int) -> Piece | None:
        """The record that holds *seq*."""
        at = bisect_right(self.starts, seq) - 1
        return self.pieces[at] if at >= 0 and seq < self.pieces[at].next else None

    def cut(self, start: int, stop: int) -> list[Piece]:
        """The records from seq *start* to *stop*; a packed row is split where it sticks out."""
        found: list[Piece] = []
        for at in range(max(bisect_right(self.starts, start) - 1, 0), len(self.pieces)):
            piece = self.pieces[at]
            if piece.seq >= stop:
                break
            if piece.next > start:
                found += split(piece, max(start, piece.seq), min(stop, piece.next))
        return found

    def mark_closers(self) -> None:
        """Find the closers that end the segment: real events may come in their place."""
        at = len(self.pieces) - 1
        last = self.pieces[at]
        if last.type != TURN_END or b'"interrupted"' not in last.line:
            return
        event = Event.stored(last.line, last.seq)
        reason = payload_of(event).get("reason")
        if not isinstance(reason, dict) or reason.get("kind") != "interrupted":
            return
        at -= 1
        if at >= 0 and self.pieces[at].type == "step/end" and _time(self.pieces[at]) == event.time:
            at -= 1
        while at >= 0 and self.pieces[at].type == "tool/result" and _is_closer(self.pieces[at], event.time):
            at -= 1
        self.real_end = self.pieces[at].next if at >= 0 else self.start


class Part(Struct, frozen=True):
    """The records of *segment* from seq *start* to *stop*."""

    segment: Segment
    start: int
    stop: int

    @property
    def is_stale(self) -> bool:
        """Whether all of it are closers."""
        return self.start >= self.segment.real_end

    @property
    def is_lone(self) -> bool:
        """Whether it is one record that continues nothing."""
        return len(self.segment.pieces) == 1 and self.start == self.segment.start


Path: TypeAlias = "list[Part]"
"""One history: parts in the order of seqs, with holes between them."""


class Strung(Struct):
    """The segments, and the records that are in none because they only repeat others.

    ``homes`` gives for each of ``pieces`` the segment it went to (``None``: repeated).  ``crossed``: a row overlapped
    what was there, so somebody else may have written it.
    """

    segments: list[Segment]
    repeats: list[Piece]
    homes: list[Segment | None]
    pieces: list[Piece]
    crossed: bool = False


def overtaken(pieces: list[Piece]) -> list[Piece]:
    """The records that are no events and have a seq that an intact one has: they must not stand in its way."""
    broken = [piece for piece in pieces if piece.problem is not None]
    if not broken:
        return []
    starts = sorted(piece.seq for piece in pieces if piece.problem is None)
    ends = sorted(piece.next for piece in pieces if piece.problem is None)
    # The intact ones that begin before the next seq, less those that end before this one.
    return [piece for piece in broken if bisect_left(starts, piece.next) > bisect_right(ends, piece.seq)]


def string_together(pieces: list[Piece]) -> Strung:
    """Put every record into the segment that it continues, or begin a new one with it."""
    strung = Strung([], [], [], pieces)
    waiting: dict[int, list[Segment]] = {}  # by next seq; the one written last at the end
    seen: set[bytes] = set()
    for order, piece in enumerate(pieces):
        candidates = waiting.get(piece.seq)
        segment = candidates.pop() if candidates else None
        rest = [piece]
        if segment is None:
            if piece.line in seen:
                rest = []
            else:
                segment = _overlapped(strung.segments, piece)
                if segment is not None:
                    strung.crossed = True
                    waiting[segment.end].remove(segment)
                    rest = split(piece, segment.end, piece.next) if piece.next > segment.end else []
        if segment is None and rest:
            segment = Segment(piece, order)
            strung.segments.append(segment)
        elif segment is not None:
            for each in rest:
                segment.add(each)
        if segment is not None:
            waiting.setdefault(segment.end, []).append(segment)
        if not rest:
            strung.repeats.append(piece)
        seen.add(piece.line)
        strung.homes.append(segment if rest else None)
    for segment in strung.segments:
        segment.mark_closers()
    return strung


def _overlapped(segments: list[Segment], piece: Piece) -> Segment | None:
    """The segment that holds the first seq of *piece* already, as a delta of the same run."""
    key = _row_key(piece)
    if key is None:
        return None
    for segment in segments[: -_SEARCHED - 1 : -1]:
        if segment.start <= piece.seq < segment.end:
            there = segment.piece_at(piece.seq)
            if there is not None and _row_key(there) == key:
                return segment
    return None


def _row_key(piece: Piece) -> DeltaKey | None:
    """What the deltas of a row, or a single delta, share with those of their run."""
    if piece.type in ROW_TYPES:
        return parse_row(piece.line).key
    delta = read_delta(Event.stored(piece.line, piece.seq)) if piece.type == "assistant/chunk" else None
    return None if delta is None else delta[0]


def split(piece: Piece, start: int, stop: int) -> list[Piece]:
    """The members of *piece* from seq *start* to *stop*, as records; the record itself where that is all of it."""
    if (start, stop) == (piece.seq, piece.next):
        return [piece]
    part = parse_row(piece.line).slice(start - piece.seq, stop - piece.seq)
    if len(part) >= MIN_RUN:
        return [Piece(start, len(part), piece.type, encode_row(part), piece.offset, piece.length)]
    return [Piece(event.seq, 1, event.type, event.to_json(), piece.offset, piece.length) for event in part.events()]


def unpack(path: Path) -> list[Piece]:
    """The records of a path, in order."""
    return [piece for part in path for piece in part.segment.cut(part.start, part.stop)]


def drop_garbled(strung: Strung) -> list[Segment]:
    """Take out the segments of one record that stand in the place of the record that is missing there.

    Such a record's seq is what was damaged: it must neither fork the log nor leave a hole of a billion events.
    It stays where its seq continues another record and nothing else has it, where a copy of it bears it out, and,
    if it is a row, where it holds a seq that nothing else has.
    """
    if len(strung.segments) < 2:
        return []
    covered = _Cover(strung.segments)
    repeated = {piece.line for piece in strung.repeats}  # twice the same digit is wrong less often than once
    garbled: list[Segment] = []
    before = 0
    ahead = _next_of_many(strung)
    for order, segment in enumerate(strung.homes):
        if segment is None:
            continue
        if len(segment.pieces) > 1:
            before = strung.pieces[order].next
        elif segment.pieces[0].line in repeated:
            continue
        elif ahead[order] is not None and _is_garbled(segment, before, ahead[order] or 0, covered):
            garbled.append(segment)
    gone = set(map(id, garbled))
    strung.segments = [segment for segment in strung.segments if id(segment) not in gone]
    return garbled


def _next_of_many(strung: Strung) -> list[int | None]:
    """For each record the seq of the next one in the file that is not alone in its segment."""
    ahead: list[int | None] = [None] * len(strung.homes)
    following: int | None = None
    for order in range(len(strung.homes) - 1, -1, -1):
        ahead[order] = following
        segment = strung.homes[order]
        if segment is not None and len(segment.pieces) > 1:
            following = strung.pieces[order].seq
    return ahead


def _is_garbled(segment: Segment, before: int, after: int, covered: _Cover) -> bool:
    piece = segment.pieces[0]
    room = before < after and not covered.touches(before, after, but=segment)
    if not room or before <= piece.seq < after:
        return False
    sides = covered.sides(segment)
    if sides == 2:
        return False
    # Where nobody else has its seq it may as well be a record that was moved, unless one digit explains it.
    return _one_digit_off(piece.seq, before, after - piece.count + 1) or not (
        sides == 1 or covered.has_place_for(segment)
    )


def _one_digit_off(seq: int, before: int, after: int) -> bool:
    """Whether a change of one digit makes *seq* one of the missing ones."""
    digits = str(seq)
    return any(
        before <= int(digits[:at] + digit + digits[at + 1 :]) < after
        for at in range(len(digits))
        for digit in "0123456789"
    )


class _Cover:
    """Which seqs the segments hold."""

    def __init__(self, segments: list[Segment]) -> None:
        self._starts = sorted(segment.start for segment in segments)
        self._ends = sorted(segment.end for segment in segments)
        self._start_set = set(self._starts)
        self._end_set = set(self._ends)
        self._alone = _held_once(self._starts, self._ends)

    def touches(self, start: int, stop: int, *, but: Segment) -> bool:
        """Whether a segment other than *but* holds one of the seqs from *start* to *stop*."""
        # All segments, less those that begin behind the range and those that end before it.
        count = bisect_left(self._starts, stop) - bisect_right(self._ends, start)
        own = 1 if but.start < stop and but.end > start else 0
        return count - own > 0

    def sides(self, segment: Segment) -> int:
        """On how many sides it continues another or is continued; 0 where another has its seqs."""
        if self.touches(segment.start, segment.end, but=segment):
            return 0
        return (segment.start == 0 or segment.start in self._end_set) + (segment.end in self._start_set)

    def has_place_for(self, segment: Segment) -> bool:
        """Whether it stands in a hole in front of others, or a part of it does."""
        last = self._ends[-1] if self._ends[-1] != segment.end else self._ends[-2]
        following = bisect_left(self._alone, segment.start)
        return segment.end < last and following < len(self._alone) and self._alone[following] < segment.end


def _held_once(starts: list[int], ends: list[int]) -> list[int]:
    """Where the stretches of seqs begin that one segment alone holds; *starts* and *ends* are sorted."""
    found: list[int] = []
    opened = closed = 0
    for edge in sorted({*starts, *ends}):
        opened, closed = bisect_right(starts, edge, opened), bisect_right(ends, edge, closed)
        if opened - closed == 1:
            found.append(edge)
    return found


class _Best(Struct):
    """The best history that ends in a segment: how many events it has before it, and through which segment."""

    before: int
    previous: int | None
    total: int


def choose_path(segments: list[Segment]) -> tuple[Path, list[Part]]:
    """The history with the most events, and the parts of segments that are not in it.

    Where one segment begins inside another, the other is left at that seq.  Closers of an earlier recovery do not
    count as events against real ones.  Ties: the later last ``turn/end``, then what stands first in the file.
    """
    if not segments:
        return [], []
    ordered = sorted(segments, key=lambda segment: (segment.start, segment.order))
    best = _weigh(ordered)
    last = max(range(len(ordered)), key=lambda k: (best[k].total, _last_turn_end(ordered[k]), -ordered[k].order))
    path: Path = []
    stop: int | None = None
    at: int | None = last
    while at is not None:
        segment = ordered[at]
        path.append(Part(segment, segment.start, segment.end if stop is None else min(segment.end, stop)))
        stop = segment.start
        at = best[at].previous
    path.reverse()
    taken = {id(part.segment): part for part in path}
    rest: list[Part] = []
    for segment in ordered:
        part = taken.get(id(segment))
        if part is None:
            rest.append(Part(segment, segment.start, segment.end))
        elif part.stop < segment.end:
            rest.append(Part(segment, part.stop, segment.end))
    rest.sort(key=lambda part: (part.start, part.segment.order))
    return path, rest


def _weigh(ordered: list[Segment]) -> list[_Best]:
    """For each segment the best history that ends in it; in n log n steps."""
    best: list[_Best] = []
    active: list[tuple[int, int, int]] = []  # those that reach further: (-(events before - start), order, index)
    ending: list[tuple[int, int]] = []  # the same by their end
    ended: tuple[int, int | None] = (0, None)  # most events of a history that ended, and where
    group: list[int] = []
    for index, segment in enumerate(ordered):
        if group and ordered[group[0]].start != segment.start:
            _enter(group, ordered, best, active, ending)
            group = []
        while ending and ending[0][0] <= segment.start:
            _, gone = heapq.heappop(ending)
            total = best[gone].before + ordered[gone].end - ordered[gone].start
            if total > ended[0]:
                ended = (total, gone)
        while active and ordered[active[0][2]].end <= segment.start:
            heapq.heappop(active)
        before, previous = ended
        if active and segment.start - active[0][0] > before:
            before, previous = segment.start - active[0][0], active[0][2]
        best.append(_Best(before, previous, before + segment.real_end - segment.start))
        group.append(index)
    return best


def _enter(
    group: list[int],
    ordered: list[Segment],
    best: list[_Best],
    active: list[tuple[int, int, int]],
    ending: list[tuple[int, int]],
) -> None:
    for index in group:
        segment = ordered[index]
        heapq.heappush(active, (segment.start - best[index].before, segment.order, index))
        heapq.heappush(ending, (segment.end, index))


def _last_turn_end(segment: Segment) -> int:
    for piece in reversed(segment.pieces):
        if piece.type == TURN_END:
            return _time(piece)
    return -(2**60)


def _time(piece: Piece) -> int:
    return Event.stored(piece.line, piece.seq).time


def _is_closer(piece: Piece, time: int) -> bool:
    event = Event.stored(piece.line, piece.seq)
    message = payload_of(event).get("message")
    own_id = message.get("id") if isinstance(message, dict) else None
    return event.time == time and isinstance(own_id, str) and own_id.startswith("interrupted-tool-result-")

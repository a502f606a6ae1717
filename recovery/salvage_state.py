"""What a repaired log looks like at one point of its making, and what the records behind that point need."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from sessionstore.chunks import ROW_TYPES, parse_row
from sessionstore.errors import InvalidEventError
from sessionstore.events import Event, Replace
from sessionstore.lossless import Json
from sessionstore.recovery.closers import OpenWork, PendingCall, payload_of
from sessionstore.recovery.format import TURN_END, TURN_START
from sessionstore.recovery.salvage_made import Origin
from sessionstore.vocabulary import SURFACE_TYPES

if TYPE_CHECKING:
    from sessionstore.recovery.salvage_find import Piece

__all__ = ["Ahead", "Dialogue", "Progress", "Prospect", "call_of", "calls_of", "number"]

_IN_STEP: Final = frozenset({"step/end", "assistant/chunk", "assistant/message", "tool/call", "tool/result"})
_STOPS: Final = frozenset({"assistant/message", "step/start", "step/end", TURN_START, TURN_END})
_MAX_CALLS: Final = 64
"""How many recorded calls a message that is made anew may ask for."""

_FAR: Final = 256
"""How many records behind a hole are looked at for the turn and step that they are in."""


class Dialogue:
    """Which messages of a log ask for which calls, and which results answer them."""

    def __init__(self) -> None:
        self.calls: dict[int, list[str]] = {}
        self.answers: dict[int, str] = {}
        self.touched: set[int] = set()
        """Those that damage may have parted: the others were like that before."""

    def unmatched(self, nodes: Iterable[int]) -> set[int]:
        """The messages with a call that is not answered before the next message, and answers that nobody waits for.

        *nodes* are the seqs of the surface.
        """
        found: set[int] = set()
        waiting: list[str] = []
        asked_at = 0
        for seq in nodes:
            if seq in self.calls:
                if waiting:
                    found.add(asked_at)
                waiting, asked_at = list(self.calls[seq]), seq
            elif seq in self.answers:
                if self.answers[seq] in waiting:
                    waiting.remove(self.answers[seq])
                else:
                    found.add(seq)
        if waiting:
            found.add(asked_at)
        return found & self.touched


class Progress:
    """Follows the repaired log: open turn and step, unanswered calls, what the step has streamed so far.

    ``dirty`` says that something was lost since the last intact ``turn/start``.
    """

    def __init__(self, created_at: int) -> None:
        self._time = created_at
        self._row: Piece | None = None  # the row added last, while nobody has asked for its time
        self.work = OpenWork()
        self.origin = Origin()
        self.dialogue = Dialogue()
        self.calls: dict[str, PendingCall] = {}
        self.asked_at = 0  # the seq of the message that asked for them
        self.asked_turn = 1
        self.doubt: set[str] = set()
        self.suspects: dict[str, None] | None = None  # calls that no result is to come for, once somebody looked
        self.blocks: dict[int, Json] = {}
        self.streamed: list[range] = []
        self.has_message = False
        self.dirty = False

    @property
    def time(self) -> int:
        """The time of the last event."""
        if self._row is not None:
            self._time = parse_row(self._row.line).times()[-1]
            self._row = None
        return self._time

    def stream(self, piece: Piece) -> None:
        """A packed row was added."""
        self._row = piece
        self.streamed.append(range(piece.seq, piece.next))

    def lose(self) -> None:
        """Something was lost here."""
        self.dirty = True
        self.dialogue.touched.add(self.asked_at)

    def observe(self, event: Event) -> None:
        """An event was added."""
        if self.dirty:
            self.dialogue.touched.add(event.seq)
        self._time, self._row = event.time, None
        self.work.observe(event)
        match event.type:
            case "turn/start":
                self.calls, self.suspects = {}, None
                self.doubt = set()
                self._begin_step()
            case "turn/end":  # the calls stay open: a provider sees no turns, so an answer behind it still is one
                self._begin_step()
            case "step/start":
                self._begin_step()
            case "assistant/chunk":
                self._note_chunk(event)
            case "assistant/message":
                self._note_message(event.seq, payload_of(event))
            case "tool/call":
                call_id = payload_of(event).get("callId")
                if isinstance(call_id, str) and call_id in self.calls:
                    self.calls[call_id].call_seq = event.seq
            case "tool/result":
                call_id = call_of(payload_of(event)) or ""
                self.dialogue.answers[event.seq] = call_id
                self.calls.pop(call_id, None)
            case "request/header":
                header = payload_of(event).get("header")
                self.origin.observe(header.get("config") if isinstance(header, Mapping) else None)
            case "request/context":
                self.origin.observe(payload_of(event))
            case _:
                pass

    def sources(self) -> list[int]:
        """The seqs of what the step has streamed."""
        return [seq for seqs in self.streamed for seq in seqs]

    def suspect(self, ahead: Ahead, seq: int) -> dict[str, None]:
        """The unanswered calls for which no result is to come from *seq* on.

        All calls of a message are looked at once; what is to come for the others comes, or is rejected.
        """
        if self.suspects is None:
            self.suspects = {call_id: None for call_id in self.calls if not ahead.answers(call_id, seq)}
            self.doubt.update(self.calls)
        return self.suspects

    def _begin_step(self) -> None:
        self.blocks, self.streamed, self.has_message = {}, [], False

    def _note_chunk(self, event: Event) -> None:
        self.streamed.append(range(event.seq, event.seq + 1))
        if b'"block-end"' not in event.to_json():
            return
        chunk = payload_of(event).get("chunk")
        if not isinstance(chunk, Mapping) or chunk.get("type") != "block-end":
            return
        block, index = chunk.get("block"), number(chunk.get("index"))
        # Nobody could answer a call without an id.
        if isinstance(block, Mapping) and (block.get("type") != "tool-call" or _has_id(block)):
            self.blocks[len(self.blocks) if index is None else index] = block

    def _note_message(self, seq: int, data: Mapping[str, Json]) -> None:
        self.asked_at = seq
        step = number(data.get("step"))
        self.has_message = True
        self.blocks, self.streamed = {}, []
        message = data.get("message", data)
        self.origin.observe(message.get("source") if isinstance(message, Mapping) else None)
        place = step if step is not None else self.work.step or 1
        self.asked_turn = number(data.get("turn")) or self.work.turn or 1
        self.dialogue.calls[seq] = calls_of(data)
        self.calls = {call_id: PendingCall(call_id, place) for call_id in self.dialogue.calls[seq]}
        self.suspects = None


class Prospect(Struct):
    """What the records right behind a hole say.

    ``turn`` and ``step`` are those that must be open in front of them (``None``: none); ``known`` tells whether they
    say so at all.  ``calls`` are the payloads of calls recorded before the next message of the step, and ``ends``
    whether the step ends before there is such a message.
    """

    known: bool = False
    turn: int | None = None
    step: int | None = None
    calls: list[Mapping[str, Json]] = []
    ends: bool = False


class Ahead:
    """What is known beforehand of all the records: which results, replacements and boundaries are still to come."""

    def __init__(self, pieces: Sequence[Piece], distrusted: AbstractSet[int] = frozenset()) -> None:
        """*distrusted* are the seqs of replacements that will not stand."""
        self._pieces = pieces
        self._distrusted = distrusted
        self.named: dict[int, Event | None] = {}
        """Seqs that a replacement names, with the replacement where that is a tool result."""
        self._results: dict[str, list[int]] = {}
        self._holes: list[int] = []  # the records behind a hole
        self._rooms: list[int] = []  # those behind a hole in which an answer can stand
        self._stops: list[int] = []  # the records at which a step or its message ends
        self._calls: list[int] = []
        self._moves: list[int] = []  # the records at which no answer can come any more
        self._payloads: dict[int, Mapping[str, Json]] = {}
        self._breaks: list[int] = []
        self._cited: set[int] = set()
        ranges: list[tuple[int, int]] = []
        spans: dict[int, tuple[int, int]] = {}
        holes: list[tuple[int, int, int]] = []
        expected = 0
        for index, piece in enumerate(pieces):
            if piece.seq != expected:
                holes.append((index, expected, piece.seq))
            expected = piece.next
            if piece.type in _STOPS:
                self._stops.append(index)
            elif piece.type == "tool/call":
                self._calls.append(index)
            if piece.type in (TURN_START, TURN_END, "assistant/message"):
                self._moves.append(index)
            if piece.type in (TURN_START, "assistant/message"):
                self._breaks.append(piece.seq)
            if piece.type in SURFACE_TYPES and b'"replace"' in piece.line:
                self._note_replacement(Event.stored(piece.line, piece.seq), ranges, spans)
            if piece.type == "tool/result":
                call_id = call_of(payload_of(Event.stored(piece.line, piece.seq)))
                self._results.setdefault(call_id or "", []).append(piece.seq)
        self._starts, self._ends = _merged(ranges)
        self._holes = [index for index, _, _ in holes]
        self._rooms = [index for index, start, stop in holes if self._has_room(start, stop)]

    def _has_room(self, start: int, stop: int) -> bool:
        """Whether what is made anew between *start* and *stop* can stay in the history."""
        while start < stop:
            at = bisect_left(self._ends, start)
            if at < len(self._starts) and self._starts[at] <= start:
                start = self._ends[at] + 1  # a replacement takes it out again
            elif start in self.named:
                start += 1
            else:
                return True
        return False

    def _note_replacement(self, event: Event, ranges: list[tuple[int, int]], spans: dict[int, tuple[int, int]]) -> None:
        try:
            op, cited = event.surface_op, event.source_event_seqs or ()
        except InvalidEventError:
            return
        if not isinstance(op, Replace) or max(op.start, op.end) >= event.seq or event.seq in self._distrusted:
            return
        is_result = event.type == "tool/result"
        for seq in (op.start, op.end):
            self.named.setdefault(seq, event if is_result else None)
        # A node that is a replacement itself stands where the replaced ones stood.
        first, last = spans.get(op.start, (op.start, 0))[0], spans.get(op.end, (0, op.end))[1]
        spans[event.seq] = min(first, last), max(first, last)
        if not is_result:
            ranges.append(spans[event.seq])
            self._cited.update(cited)

    def is_replaced(self, seq: int) -> bool:
        """Whether a later replacement takes the place of what stands at *seq*."""
        at = bisect_left(self._ends, seq)
        return at < len(self._starts) and self._starts[at] <= seq

    def is_passed_over(self, seq: int) -> bool:
        """Whether a later replacement says that there was no message at *seq*: it cites every one that it replaces."""
        return seq not in self._cited and seq not in self.named and self.is_replaced(seq)

    def is_under(self, start: int, stop: int) -> bool:
        """Whether a later replacement takes the place of what stands on both sides of the hole from *start* to *stop*."""
        at = bisect_left(self._ends, stop)
        return at < len(self._starts) and self._starts[at] < start

    def answers(self, call_id: str, seq: int) -> bool:
        """Whether a result of that call is still to come from *seq* on, before history moves on."""
        results = self._results.get(call_id, [])
        at = bisect_left(results, seq)
        if at == len(results):
            return False
        until = bisect_left(self._breaks, seq)
        return until == len(self._breaks) or results[at] < self._breaks[until]

    def is_moot(self, call_id: str, seq: int) -> bool:
        """Whether a later replacement takes the next result of that call from *seq* on out of the history."""
        results = self._results.get(call_id, [])
        at = bisect_left(results, seq)
        return at < len(results) and self.is_replaced(results[at])

    def can_answer(self, call_id: str, seq: int, index: int) -> bool:
        """Whether a result of that call is to come from *seq* on and to stay, or a hole or the end has room for one.

        *index* is that of the record from which on holes count.
        """
        if self.is_moot(call_id, seq):
            return False
        return self.answers(call_id, seq) or self._following(self._rooms, index) <= self._following(self._moves, index)

    def look(self, index: int, known_calls: Mapping[str, PendingCall]) -> Prospect:
        """What the records from *index* on say, up to the next hole; calls are followed beyond it."""
        found = Prospect()
        hole = self._following(self._holes, index + 1)
        for at in range(index, min(hole, index + _FAR)):
            _place(found, self._pieces[at])
            if found.known:
                break
        stop = self._following(self._stops, index)
        first = bisect_left(self._calls, index)
        if first == len(self._calls) or self._calls[first] >= min(hole, stop):
            # The next hole may have held the message.
            found.ends = stop < hole and self._pieces[stop].type != "assistant/message"
            return found
        for at in self._calls[first : first + _MAX_CALLS]:
            if at >= stop:
                break
            data = self._call(at)
            if data and data.get("callId") not in known_calls and not self.is_replaced(self._pieces[at].seq):
                found.calls.append(data)
        found.ends = stop < len(self._pieces) and self._pieces[stop].type != "assistant/message"
        return found

    def _call(self, index: int) -> Mapping[str, Json]:
        """The payload of a recorded call; empty where it has no name, so that nobody can ask for it."""
        data = self._payloads.get(index)
        if data is None:
            data = payload_of(Event.stored(self._pieces[index].line, self._pieces[index].seq))
            if not all(isinstance(data.get(key), str) for key in ("callId", "name", "arguments")):
                data = {}
            self._payloads[index] = data
        return data

    def _following(self, indices: Sequence[int], index: int) -> int:
        """The first of the sorted *indices* that is not before *index*; past the end: the number of records."""
        at = bisect_left(indices, index)
        return indices[at] if at < len(indices) else len(self._pieces)


def _place(found: Prospect, piece: Piece) -> None:
    """What *piece* says about the turn and step it is in."""
    if piece.type in ROW_TYPES:
        key = parse_row(piece.line).key
        found.known, found.turn, found.step = True, number(key.turn), number(key.step)
    elif piece.type == TURN_START:
        found.known = True
    elif piece.type in _IN_STEP or piece.type in (TURN_END, "step/start"):
        data = payload_of(Event.stored(piece.line, piece.seq))
        found.turn = number(data.get("turn"))
        found.known = found.turn is not None
        found.step = number(data.get("step")) if piece.type in _IN_STEP else None


def _merged(ranges: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    starts: list[int] = []
    ends: list[int] = []
    for start, end in sorted(ranges):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return starts, ends


def calls_of(data: Mapping[str, Json]) -> list[str]:
    """The ids of the calls that the payload of an ``assistant/message`` asks for."""
    message = data.get("message", data)
    content = message.get("content") if isinstance(message, Mapping) else None
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    found = [block.get("id") for block in blocks if block.get("type") == "tool-call"]
    return [call_id for call_id in found if isinstance(call_id, str)]


def _has_id(block: Mapping[str, Json]) -> bool:
    return isinstance(block.get("id"), str) and block.get("id") != ""


def call_of(data: Mapping[str, Json]) -> str | None:
    """The id of the call that the payload of a ``tool/result`` answers."""
    message = data.get("message")
    source = message.get("source") if isinstance(message, Mapping) else data
    call_id = source.get("callId") if isinstance(source, Mapping) else None
    return call_id if isinstance(call_id, str) else None


def number(value: Json) -> int | None:
    """*value* as an integer, if it is one."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None

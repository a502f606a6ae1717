"""One history made whole: events that break its rules are taken out, and holes are filled.

Records are placed in order, each at its seq.  What was lost between two of them is
made anew as far as the log still says what it was: answers to calls, messages that
can be assembled, turn and step boundaries, nodes that a replacement needs.  All else
becomes ``recovery/lost``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from sessionstore.chunks import ROW_TYPES
from sessionstore.errors import InvalidEventError, UnsupportedFormatError
from sessionstore.events import Event
from sessionstore.recovery.closers import PendingCall, payload_of
from sessionstore.recovery.format import TURN_END, TURN_START
from sessionstore.recovery.salvage_made import (
    Need,
    boundary,
    fitting,
    lost_event,
    lost_message,
    lost_result,
    made_assistant,
    made_result,
)
from sessionstore.recovery.salvage_plan import MadeEvent, Quarantined
from sessionstore.recovery.salvage_state import Ahead, Progress, call_of
from sessionstore.seeds import check_seed_event
from sessionstore.surface import Change, Surface

if TYPE_CHECKING:
    from sessionstore.lossless import Json
    from sessionstore.recovery.salvage_find import Junk, Piece

__all__ = ["MAX_LOST", "MAX_LOST_WITHOUT_BYTES", "Mended", "RefusedError", "mend"]

MAX_LOST: Final = 100_000
"""Most events that are made anew or marked as lost in one log."""

MAX_LOST_WITHOUT_BYTES: Final = 1_000
"""Most of them where no bytes are missing, so that nothing but a number says that there were events."""

_ROUNDS: Final = 8
_TRUSTING_ROUNDS: Final = 3
_UNANSWERED: Final = "its call was not answered in what is left"
_UNANSWERED_LEFT: Final = "a call that it asks for is not answered in what is left"


class RefusedError(Exception):
    """The log cannot be repaired; the message says why."""


class Mended(Struct):
    """A history made whole: its storage lines without header, and what it cost."""

    lines: list[bytes]
    events: int
    kept: int
    made: list[MadeEvent]
    quarantined: list[Quarantined]


class _Gap(Struct, frozen=True):
    """A hole: the seqs from *start* to *stop*, the bytes that were there, and why it is one."""

    start: int
    stop: int
    offset: int
    length: int
    reason: str


def mend(pieces: Sequence[Piece], junk: Junk, *, created_at: int, begin: int, mixed: bool = False) -> Mended:
    """Make a history of *pieces*, which are in the order of their seqs and do not overlap.

    *created_at* is the time of what comes before the first event, *begin* the byte behind the header.  *mixed* says
    that the pieces may come from more than one writer, so that calls and answers can be apart without any hole.

    Raises:
        RefusedError: more is lost than may be filled, or an event is of a retired form.
    """
    # A replacement that does not stand takes nothing out of the history, so holes under it must be filled after all;
    # and only a history that is complete tells which calls and answers have lost each other.
    known = _Lesson(set(), set())
    everything = {piece.seq for piece in pieces if b'"replace"' in piece.line}
    count = 0
    while True:
        mender = _Mender(pieces, junk, created_at, begin, known, mixed=mixed)
        mended = mender.run()
        unmatched = mender.unmatched()
        count += 1
        if count == _ROUNDS:
            return mended
        if not mender.fallen <= known.distrusted:
            known.distrusted |= mender.fallen if count < _TRUSTING_ROUNDS else everything
        elif not unmatched <= known.refused:
            known.refused |= unmatched
        else:
            return mended


class _Lesson(Struct):
    """What the rounds before told: replacements that do not stand, messages and answers that lost each other."""

    distrusted: set[int]
    refused: set[int]


class _Mender:
    def __init__(
        self, pieces: Sequence[Piece], junk: Junk, created_at: int, begin: int, lesson: _Lesson, *, mixed: bool
    ) -> None:
        self.fallen: set[int] = set()
        self._distrusted = lesson.distrusted
        self._refused = lesson.refused
        self._pieces = pieces
        self._junk = junk
        self._at = begin  # the byte behind the last record
        self._mixed = mixed
        self._ahead: Ahead | None = Ahead(pieces, self._distrusted) if mixed else None
        self._state = Progress(created_at)
        self._state.dirty = mixed
        self._surface = Surface()
        self._nodes: dict[int, Event] = {}
        self._result = Mended([], 0, 0, [], [])
        self._without_bytes = 0
        self._lost = 0

    def run(self) -> Mended:
        """Place every record, fill every hole, close what is open."""
        for index, piece in enumerate(self._pieces):
            expected = self._result.events
            if piece.seq > expected:
                self._fill(self._gap_before(piece, expected), index)
            elif self._junk.lost_between(self._at, piece.offset):
                self._state.lose()  # no seq is missing, but what was lost may have had one of those
            self._place(piece, index)
        for closer in self._closers():
            self._add(closer, "the turn was open at the end of the log")
        return self._result

    def unmatched(self) -> set[int]:
        """The seqs of messages and answers that a provider would object to, and that are not sure to be so of old."""
        return self._state.dialogue.unmatched(self._surface.nodes)

    # Placing

    def _place(self, piece: Piece, index: int) -> None:
        if piece.type in ROW_TYPES:
            self._state.stream(piece)
            self._keep(piece)
            return
        try:
            event = Event.from_json(piece.line)
            change = self._check(event)
        except InvalidEventError as error:
            where = f" at {error.path}" if error.path else ""
            self._reject(piece, index, f"it breaks a rule: {error.reason}{where}")
            return
        refused = event.seq in self._refused
        if event.type == "tool/result" and (refused or (event.surface_op == "append" and self._is_orphan(event))):
            self._reject(piece, index, "the call that it answers is lost")
            return
        if event.type == "assistant/message" and refused:
            self._reject(piece, index, _UNANSWERED_LEFT, remake=False)
            return
        if event.type == TURN_START:
            self._state.dirty = self._mixed
        self._commit(event, change)
        self._keep(piece)

    def _check(self, event: Event) -> Change | None:
        """What the event does to the surface; raises what a scan would find wrong with it."""
        try:
            check_seed_event(event)
            return self._surface.check(event, self._nodes.__getitem__)
        except UnsupportedFormatError as error:
            raise RefusedError(error.reason) from error

    def _is_orphan(self, event: Event) -> bool:
        """Whether the damage took the call of this result away; where nothing is lost it was like that before."""
        if not self._state.dirty or call_of(payload_of(event)) in self._state.calls:
            return False
        return self._ahead is None or not self._ahead.is_replaced(event.seq)

    def _commit(self, event: Event, change: Change | None) -> None:
        if change is not None:
            for seq in self._surface.nodes[change.first : change.stop]:
                del self._nodes[seq]
            self._nodes[event.seq] = event
        self._surface.commit(change)
        self._state.observe(event)

    def _keep(self, piece: Piece) -> None:
        self._pass(piece)
        self._result.lines.append(piece.line)
        self._result.events += piece.count
        self._result.kept += piece.count

    def _pass(self, piece: Piece) -> None:
        """Go on behind the record and its line end."""
        self._at = max(self._at, piece.end + (not piece.loose))

    def _reject(self, piece: Piece, index: int, reason: str, *, remake: bool = True) -> None:
        if b'"replace"' in piece.line:
            self.fallen.add(piece.seq)
        if piece.type == "tool/result" and self._state.suspects is not None:
            self._state.suspects[call_of(payload_of(Event.stored(piece.line, piece.seq))) or ""] = None
        self._result.quarantined.append(Quarantined(piece.offset, piece.length, reason))
        gap = _Gap(piece.seq, piece.next, piece.offset, piece.length, reason)
        self._pass(piece)
        self._count(gap, piece.length)
        self._fill(gap, index + 1, remake=remake)

    def _add(self, event: Event, reason: str) -> None:
        self._commit(event, self._surface.check(event, self._nodes.__getitem__))
        self._result.lines.append(event.to_json())
        self._result.events += 1
        self._result.made.append(MadeEvent(event.seq, event.type, reason))

    # Holes

    def _gap_before(self, piece: Piece, expected: int) -> _Gap:
        length = max(piece.offset - self._at, 0)
        lost = self._junk.lost_between(self._at, piece.offset)
        gap = _Gap(expected, piece.seq, min(self._at, piece.offset), length, "lost with damaged bytes")
        if not lost:
            gap = _Gap(expected, piece.seq, self._at, 0, "missing from the log")
        self._count(gap, lost)
        return gap

    def _count(self, gap: _Gap, lost: int) -> None:
        """Count what is lost against the limits."""
        count = gap.stop - gap.start
        self._lost += count
        self._without_bytes += count if count > lost else 0
        if self._without_bytes > MAX_LOST_WITHOUT_BYTES:
            raise RefusedError(
                f"{count} events are missing at seq {gap.start} where {lost} bytes were lost; "
                f"at most {MAX_LOST_WITHOUT_BYTES} are filled in without a lost byte for each"
            )
        if self._lost > MAX_LOST:
            raise RefusedError(f"more than {MAX_LOST} events are lost, seen at seq {gap.start}")

    def _fill(self, gap: _Gap, index: int, *, remake: bool = True) -> None:
        if self._ahead is None:
            self._ahead = Ahead(self._pieces, self._distrusted)
        self._state.lose()
        named = [seq for seq in range(gap.start, gap.stop) if seq in self._ahead.named]
        room = gap.stop - gap.start - len(named)
        before, after = self._needs(gap, index, self._ahead) if remake else ([], [])
        before, after = fitting(before, after, room)
        for seq in range(gap.start, gap.stop):
            if seq in self._ahead.named:
                self._put(seq, gap, self._node(self._ahead.named[seq]))
                continue
            if before:
                self._put(seq, gap, before.pop(0))
            elif room <= len(after) and after:
                self._put(seq, gap, after.pop(0))
            else:
                self._put(seq, gap, None)
            room -= 1
        self._state.suspect(self._ahead, gap.stop)  # also for a message that was made here

    def _put(self, seq: int, gap: _Gap, need: Need | None) -> None:
        event = None if need is None else need.make(seq)
        if need is None or event is None or not self._is_good(event):
            event, reason = lost_event(seq, self._state.time, gap.reason, gap.offset, gap.length), gap.reason
        else:
            reason = f"{need.reason}; {gap.reason}"
        self._add(event, reason)

    def _is_good(self, event: Event) -> bool:
        try:
            self._check(event)
        except (InvalidEventError, RefusedError):
            return False
        if event.seq in self._refused and event.type in ("assistant/message", "tool/result"):
            return False
        return event.type != "tool/result" or not self._is_orphan(event)

    def _node(self, replacement: Event | None) -> Need:
        def make(seq: int) -> Event | None:
            if replacement is None:
                return lost_message(seq, self._state.time)
            return lost_result(seq, self._state.time, replacement)

        return Need(0, make, "a later replacement names it")

    # What a hole has to hold

    def _needs(self, gap: _Gap, index: int, ahead: Ahead) -> tuple[list[Need], list[Need]]:
        """What has to stand at the beginning of the hole, and what at its end."""
        state = self._state
        turn, step = state.work.turn, state.work.step
        found = ahead.look(index, state.calls)
        moves = found.known and (found.turn, found.step) != (turn, step)
        ends_turn = found.known and turn is not None and found.turn != turn
        ends_step = step is not None and (ends_turn or (moves and found.step != step))
        before: list[Need] = []
        after: list[Need] = []
        silent = ahead.is_under(gap.start, gap.stop)
        calls = [call for call in found.calls if ahead.can_answer(str(call.get("callId")), gap.stop, index + 1)]
        if turn is not None or state.calls:
            before += self._lost_answers(gap, ahead, turn or state.asked_turn)
        if turn is not None and step is not None and not silent:
            ends = ends_step or found.ends
            before += self._lost_message(gap, ahead, [] if ends_step else calls, (turn, step), ends=ends)
        if ends_step and turn is not None and step is not None:
            before.append(self._boundary("step/end", turn, step))
        if ends_turn and turn is not None:
            before.append(self._boundary(TURN_END, turn))
        if moves and found.turn is not None and found.turn != turn:
            after.append(self._boundary(TURN_START, found.turn))
        if moves and found.turn is not None and found.step is not None:
            after.append(self._boundary("step/start", found.turn, found.step))
            if calls and not silent:
                after += self._message(gap, ahead, [], calls, (found.turn, found.step))
        return before, after

    def _lost_answers(self, gap: _Gap, ahead: Ahead, turn: int) -> list[Need]:
        """The answers to calls that are not to come any more, as long as the calls stay in the history."""
        state = self._state
        suspects = state.suspect(ahead, gap.stop)
        if ahead.is_replaced(state.asked_at):
            return []
        needs: list[Need] = []
        answered: list[str] = []
        for call_id in suspects:
            if call_id not in state.calls:
                answered.append(call_id)
            elif len(needs) < gap.stop - gap.start:
                needs.append(self._answer(state.calls[call_id], turn))
            else:
                break
        for call_id in answered:
            del suspects[call_id]
        return needs

    def _lost_message(
        self, gap: _Gap, ahead: Ahead, calls: list[Mapping[str, Json]], place: tuple[int, int], *, ends: bool
    ) -> list[Need]:
        """The message of the open step, if it was lost here."""
        state = self._state
        if len(state.calls) > len(state.suspect(ahead, gap.stop)):
            return []  # the calls of the message before it are still being answered
        blocks = [state.blocks[key] for key in sorted(state.blocks)] if ends or calls else []
        if not calls and (not blocks or state.has_message):
            return []
        return self._message(gap, ahead, blocks, calls, place)

    def _message(
        self, gap: _Gap, ahead: Ahead, blocks: list[Json], calls: list[Mapping[str, Json]], place: tuple[int, int]
    ) -> list[Need]:
        state = self._state
        turn, step = place
        asked: dict[Json, None] = {  # in order
            block.get("id"): None
            for block in blocks
            if isinstance(block, Mapping) and block.get("type") == "tool-call" and isinstance(block.get("id"), str)
        }
        if any(ahead.is_moot(str(call_id), gap.stop) for call_id in asked):
            return []  # the message that asked was replaced together with the answers
        content = list(blocks)
        for call in calls:
            if call.get("callId") not in asked:
                name, arguments = call.get("name"), call.get("arguments")
                content.append({"type": "tool-call", "id": call.get("callId"), "name": name, "arguments": arguments})
                asked[call.get("callId")] = None

        def make(seq: int) -> Event:
            return made_assistant(
                seq, state.time, content, state.sources() if blocks else [], turn=turn, step=step, origin=state.origin
            )

        what = "assembled from the blocks that were streamed" if blocks else "the calls that it asked for are recorded"
        needs = [Need(1, make, what)]
        recorded = {str(call.get("callId")) for call in calls}
        lost = [
            call_id
            for call_id in asked
            if isinstance(call_id, str) and call_id not in recorded and not ahead.answers(call_id, gap.stop)
        ]
        return [*needs, *(self._answer(PendingCall(call_id, step), turn) for call_id in lost)]

    def _answer(self, call: PendingCall, turn: int) -> Need:
        return Need(0, lambda seq: made_result(seq, self._state.time, call, turn=turn), _UNANSWERED)

    def _boundary(self, type_: str, turn: int, step: int | None = None) -> Need:
        state = self._state

        def make(seq: int) -> Event | None:
            # No turn begins or ends between a call and its answer.
            ahead = self._ahead if type_ in (TURN_START, TURN_END) else None
            if ahead is not None and any(ahead.answers(call_id, seq) for call_id in state.calls):
                return None
            return boundary(type_, seq, state.time, turn, step)

        # Without its beginning a turn is not closed at the end of the log.
        return Need(2 if type_ == TURN_START else 3, make, "what stands around it says so")

    # The end

    def _closers(self) -> Iterator[Event]:
        work, state = self._state.work, self._state
        turn, step = work.turn, work.step
        calls = {call.call_id: call for call in work.pending}
        if state.dirty:  # those too whose step or turn ended: here it is the damage that ended it
            # If the message that asked was replaced, its answers were lost with what was replaced.
            calls = dict(state.calls) if state.asked_at in self._nodes else {}
        for call in calls.values() if turn is not None or state.dirty else ():
            doubt = call.call_id in state.doubt
            yield made_result(self._result.events, state.time, call, turn=turn or state.asked_turn, doubt=doubt)
        if turn is None:
            return
        if step is not None:
            yield boundary("step/end", self._result.events, state.time, turn, step)
        yield boundary(TURN_END, self._result.events, state.time, turn)

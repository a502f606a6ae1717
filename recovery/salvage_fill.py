"""One history made whole: events that break its rules are taken out, and holes are filled.

Records are placed in order, each at its seq.  What was lost between two of them is
made anew as far as the log still says what it was: answers to calls, messages that
can be assembled, turn and step boundaries, nodes that a replacement needs.  All else
becomes ``recovery/lost``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from sessionstore.chunks import ROW_TYPES
from sessionstore.errors import InvalidEventError, UnsupportedFormatError
from sessionstore.events import Event
from sessionstore.recovery.closers import payload_of
from sessionstore.recovery.format import TURN_END, TURN_START
from sessionstore.recovery.salvage_made import (
    Need,
    boundary,
    fitting,
    lost_event,
    lost_message,
    lost_result,
    made_result,
)
from sessionstore.recovery.salvage_needs import Gap, Needs
from sessionstore.recovery.salvage_plan import MadeEvent, Quarantined
from sessionstore.recovery.salvage_state import Ahead, Progress, call_of
from sessionstore.seeds import check_seed_event
from sessionstore.surface import Change, Surface
from sessionstore.vocabulary import SURFACE_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sessionstore.recovery.salvage_find import Junk, Piece

__all__ = ["MAX_LOST", "MAX_LOST_WITHOUT_BYTES", "Mended", "RefusedError", "mend"]

MAX_LOST: Final = 100_000
"""Most events that are made anew or marked as lost in one log."""

MAX_LOST_WITHOUT_BYTES: Final = 1_000
"""Most of them where no bytes are missing, so that nothing but a number says that there were events."""

_ROUNDS: Final = 8
_TRUSTING_ROUNDS: Final = 3
_SECOND_LOOKS: Final = 8
"""How many messages and answers that were left out are tried once more at the end."""

_ORPHANED: Final = "the call that it answers is lost"
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


def mend(pieces: Sequence[Piece], junk: Junk, *, created_at: int, begin: int, mixed: bool = False) -> Mended:
    """Make a history of *pieces*, which are in the order of their seqs and do not overlap.

    *created_at* is the time of what comes before the first event, *begin* the byte behind the header.  *mixed* says
    that the pieces may come from more than one writer, so that calls and answers can be apart without any hole.

    Raises:
        RefusedError: more is lost than may be filled, or an event is of a retired form.
    """
    # A replacement that does not stand takes nothing out of the history, so holes under it must be filled after all;
    # and only a history that is complete tells which calls and answers have lost each other.
    known = _Lesson(set(), set(), set())

    def attempt() -> tuple[_Mender, Mended]:
        mender = _Mender(pieces, junk, created_at, begin, known, mixed=mixed)
        return mender, mender.run()

    everything = {piece.seq for piece in pieces if b'"replace"' in piece.line}
    count = 0
    while True:
        mender, mended = attempt()
        unmatched = mender.unmatched()
        count += 1
        if count == _ROUNDS:
            break
        if not mender.fallen <= known.distrusted:
            known.distrusted |= mender.fallen if count < _TRUSTING_ROUNDS else everything
        elif not unmatched <= known.refused:
            known.refused |= unmatched
        else:
            break
    return _second_look(attempt, known, mender, mended)


def _second_look(
    attempt: Callable[[], tuple[_Mender, Mended]], known: _Lesson, mender: _Mender, mended: Mended
) -> Mended:
    """Let in what was left out in between, while a replacement lay fallen that stands now and covers it."""
    known.refused |= mender.parted
    parted = sorted(mender.parted)[-_SECOND_LOOKS:] if known.distrusted else []
    for seq in (*reversed(parted), *parted):  # twice, because one may need another
        if seq in known.admitted:
            continue
        known.admitted.add(seq)
        try:
            again, result = attempt()
        except RefusedError:  # what is there already is a history
            known.admitted.remove(seq)
            continue
        if result.kept > mended.kept and again.fallen <= mender.fallen and again.unmatched() <= mender.unmatched():
            mender, mended = again, result
        else:
            known.admitted.remove(seq)
    return mended


class _Lesson(Struct):
    """What the rounds before told: replacements that do not stand, messages and answers that lost each other.

    ``admitted`` are those that may stand all the same.
    """

    distrusted: set[int]
    refused: set[int]
    admitted: set[int]


class _Mender:
    def __init__(
        self, pieces: Sequence[Piece], junk: Junk, created_at: int, begin: int, lesson: _Lesson, *, mixed: bool
    ) -> None:
        self.fallen: set[int] = set()
        self.parted: set[int] = set()  # messages and answers that were left out because they lost each other
        self._admitted = lesson.admitted
        self._distrusted = lesson.distrusted
        self._refused = lesson.refused
        self._pieces = pieces
        self._junk = junk
        self._at = begin  # the byte behind the last record
        self._mixed = mixed
        self._ahead: Ahead | None = None
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
        if event.seq not in self._admitted and self._is_parted(event):
            self.parted.add(event.seq)
            answer = event.type == "tool/result"
            self._reject(piece, index, _ORPHANED if answer else _UNANSWERED_LEFT, remake=answer)
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

    def _is_parted(self, event: Event) -> bool:
        """Whether it is an answer without its call, or a message with a call that is not answered."""
        refused = event.seq in self._refused
        if event.type == "tool/result":
            return refused or (event.surface_op == "append" and self._is_orphan(event))
        return refused and event.type == "assistant/message"

    def _is_orphan(self, event: Event) -> bool:
        """Whether the damage took the call of this result away; where nothing is lost it was like that before."""
        if not self._state.dirty or call_of(payload_of(event)) in self._state.calls:
            return False
        return not self._known_ahead().is_replaced(event.seq)

    def _known_ahead(self) -> Ahead:
        """What is to come; looked at only when something is lost."""
        if self._ahead is None:
            self._ahead = Ahead(self._pieces, self._distrusted)
        return self._ahead

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
        gap = Gap(piece.seq, piece.next, piece.offset, piece.length, reason)
        self._pass(piece)
        self._count(gap, piece.length)
        self._fill(gap, index + 1, remake=remake)

    def _add(self, event: Event, reason: str) -> None:
        self._commit(event, self._surface.check(event, self._nodes.__getitem__))
        self._result.lines.append(event.to_json())
        self._result.events += 1
        self._result.made.append(MadeEvent(event.seq, event.type, reason))

    # Holes

    def _gap_before(self, piece: Piece, expected: int) -> Gap:
        length = max(piece.offset - self._at, 0)
        lost = self._junk.lost_between(self._at, piece.offset)
        gap = Gap(expected, piece.seq, min(self._at, piece.offset), length, "lost with damaged bytes")
        if not lost:
            gap = Gap(expected, piece.seq, self._at, 0, "missing from the log")
        self._count(gap, lost)
        return gap

    def _count(self, gap: Gap, lost: int) -> None:
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

    def _fill(self, gap: Gap, index: int, *, remake: bool = True) -> None:
        self._state.lose()
        ahead = self._known_ahead()
        named = [seq for seq in range(gap.start, gap.stop) if seq in ahead.named]
        room = gap.stop - gap.start - len(named)
        before, after = Needs(self._state, ahead).of(gap, index) if remake else ([], [])
        before, after = fitting(before, after, room)
        for seq in range(gap.start, gap.stop):
            if seq in ahead.named:
                self._put(seq, gap, self._node(ahead.named[seq]))
                continue
            if before:
                self._put(seq, gap, before.pop(0))
            elif room <= len(after) and after:
                self._put(seq, gap, after.pop(0))
            else:
                self._put(seq, gap, None)
            room -= 1
        self._state.suspect(ahead, gap.stop)  # also for a message that was made here

    def _put(self, seq: int, gap: Gap, need: Need | None) -> None:
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
        if event.type in SURFACE_TYPES and self._known_ahead().is_passed_over(event.seq):
            return False
        return event.type != "tool/result" or not self._is_orphan(event)

    def _node(self, replacement: Event | None) -> Need:
        def make(seq: int) -> Event | None:
            if replacement is None:
                return lost_message(seq, self._state.time)
            return lost_result(seq, self._state.time, replacement)

        return Need(0, make, "a later replacement names it")

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

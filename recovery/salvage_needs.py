"""What a hole has to hold: told from what stands before it and from what is to come behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from sessionstore.recovery.closers import PendingCall
from sessionstore.recovery.format import TURN_END, TURN_START
from sessionstore.recovery.salvage_made import Need, boundary, made_assistant, made_result

if TYPE_CHECKING:
    from sessionstore.events import Event
    from sessionstore.lossless import Json
    from sessionstore.recovery.salvage_state import Ahead, Progress

__all__ = ["Gap", "Needs"]

_UNANSWERED: Final = "its call was not answered in what is left"


class Gap(Struct, frozen=True):
    """A hole: the seqs from *start* to *stop*, the bytes that were there, and why it is one."""

    start: int
    stop: int
    offset: int
    length: int
    reason: str


class Needs:
    """Says what a hole has to hold, where the repaired log has come as far as *state* and *ahead* is what follows."""

    def __init__(self, state: Progress, ahead: Ahead) -> None:
        self._state = state
        self._ahead = ahead

    def of(self, gap: Gap, index: int) -> tuple[list[Need], list[Need]]:
        """What has to stand at the beginning of the hole in front of record *index*, and what at its end."""
        state, ahead = self._state, self._ahead
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
            before += self._lost_answers(gap, turn or state.asked_turn)
        if turn is not None and step is not None and not silent:
            ends = ends_step or found.ends
            before += self._lost_message(gap, [] if ends_step else calls, (turn, step), ends=ends)
        if ends_step and turn is not None and step is not None:
            before.append(self._boundary("step/end", turn, step))
        if ends_turn and turn is not None:
            before.append(self._boundary(TURN_END, turn))
        if moves and found.turn is not None and found.turn != turn:
            after.append(self._boundary(TURN_START, found.turn))
        if moves and found.turn is not None and found.step is not None:
            after.append(self._boundary("step/start", found.turn, found.step))
            if calls and not silent:
                after += self._message(gap, [], calls, (found.turn, found.step))
        return before, after

    def _lost_answers(self, gap: Gap, turn: int) -> list[Need]:
        """The answers to calls that are not to come any more, as long as the calls stay in the history."""
        state = self._state
        suspects = state.suspect(self._ahead, gap.stop)
        if self._ahead.is_replaced(state.asked_at):
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
        self, gap: Gap, calls: list[Mapping[str, Json]], place: tuple[int, int], *, ends: bool
    ) -> list[Need]:
        """The message of the open step, if it was lost here."""
        state = self._state
        if len(state.calls) > len(state.suspect(self._ahead, gap.stop)):
            return []  # the calls of the message before it are still being answered
        blocks = [state.blocks[key] for key in sorted(state.blocks)] if ends or calls else []
        if not calls and (not blocks or state.has_message):
            return []
        return self._message(gap, blocks, calls, place)

    def _message(
        self, gap: Gap, blocks: list[Json], calls: list[Mapping[str, Json]], place: tuple[int, int]
    ) -> list[Need]:
        state = self._state
        turn, step = place
        asked: dict[Json, None] = {  # in order
            block.get("id"): None for block in blocks if isinstance(block, Mapping) and block.get("type") == "tool-call"
        }
        if any(self._ahead.is_moot(str(call_id), gap.stop) for call_id in asked):
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
            if isinstance(call_id, str) and call_id not in recorded and not self._ahead.answers(call_id, gap.stop)
        ]
        return [*needs, *(self._answer(PendingCall(call_id, step), turn) for call_id in lost)]

    def _answer(self, call: PendingCall, turn: int) -> Need:
        return Need(0, lambda seq: made_result(seq, self._state.time, call, turn=turn), _UNANSWERED)

    def _boundary(self, type_: str, turn: int, step: int | None = None) -> Need:
        state = self._state

        def make(seq: int) -> Event | None:
            # No turn begins or ends between a call and its answer.
            is_turn = type_ in (TURN_START, TURN_END)
            if is_turn and any(self._ahead.answers(call_id, seq) for call_id in state.calls):
                return None
            return boundary(type_, seq, state.time, turn, step)

        # Without its beginning a turn is not closed at the end of the log.
        return Need(2 if type_ == TURN_START else 3, make, "what stands around it says so")

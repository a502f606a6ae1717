"""The opt-in checker of how turns, steps and tool calls enclose each other.

A trace follows one log.  :meth:`InvariantTrace.check` decides about a candidate
without changing anything, so that a refused or vetoed event leaves no mark;
:meth:`InvariantTrace.commit` moves the trace on once the event is in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from sessionstore.errors import InvalidEventError, InvariantError
from sessionstore.events import Replace, check_event
from sessionstore.lossless import decode

if TYPE_CHECKING:
    from sessionstore.events import Event

__all__ = ["InvariantMode", "InvariantTrace"]

InvariantMode: TypeAlias = Literal["execution", "strict"]

_STEP_SCOPED: Final = frozenset({"step/end", "assistant/chunk", "assistant/message", "tool/call"})
_TURN_SCOPED: Final = frozenset({"steering/message", "todo/write", "request/header", "request/context"})
_NOT_STARTED: Final = "TOOL_NOT_STARTED"


class _Place(Struct, gc=False):
    turn: int | float | None = None
    step: int | float | None = None


_place: Final = msgspec.json.Decoder(_Place).decode


class InvariantTrace:
    """Where one log stands: the open turn, the open step and the calls of that step.

    ``mode`` says what may stand between turns.  In ``"execution"`` messages of the user and types that the table of
    rules does not name may; in ``"strict"`` every event but the boundaries of turns and ``recovery/lost`` needs an
    open turn.
    """

    __slots__ = ("_calls", "_last_seq", "_last_step", "_last_turn", "_step", "_strict", "_turn")

    def __init__(self, mode: InvariantMode = "execution") -> None:
        if mode not in ("execution", "strict"):
            raise ValueError(f"mode is 'execution' or 'strict', not {mode!r}")
        self._strict = mode == "strict"
        self._last_seq = -1
        self._last_turn = 0
        self._turn: int | None = None
        self._last_step = 0
        self._step: int | None = None
        # Of the open step: how many results each call id still owes.  An id at 0 has had its result.
        self._calls: dict[str, int] = {}

    @property
    def mode(self) -> InvariantMode:
        """What may stand between turns."""
        return "strict" if self._strict else "execution"

    def check(self, event: Event) -> None:
        """Decide whether ``event`` may come next.  Changes nothing.

        Raises:
            InvariantError: it may not; the message says which rule it breaks.
        """
        delta = check_event(event)._delta
        if delta is not None:  # a token of a packed run: its place is known without rendering and reading its JSON
            self.check_chunk(delta.turn, delta.step, event.seq)
            return
        reason = self._objection(event)
        if reason is not None:
            raise InvariantError(reason, event_type=event.type, seq=event.seq)

    def commit(self, event: Event) -> None:
        """Move on past ``event``, which :meth:`check` has accepted."""
        self._last_seq = check_event(event).seq
        kind = event.type
        if kind == "assistant/chunk":
            return
        if kind == "turn/start":
            self._turn = _numbers(event)[0]
            self._last_step = 0
        elif kind == "turn/end":
            self._last_turn = self._last_turn if self._turn is None else self._turn
            self._turn = None
        elif kind == "step/start":
            self._step = _numbers(event)[1]
            self._calls = {}
        elif kind == "step/end":
            self._last_step = self._last_step if self._step is None else self._step
            self._step = None
        elif kind == "tool/call":
            call = _call_id(_payload(event))
            if call is not None:
                self._calls[call] = self._calls.get(call, 0) + 1
        elif kind == "tool/result" and not isinstance(event.surface_op, Replace):
            call = _result_id(_payload(event))
            if call is not None:
                self._calls[call] = max(0, self._calls.get(call, 0) - 1)

    def replay(self, events: Iterable[Event]) -> None:
        """Check and commit ``events``, one by one: a seed, or what a log holds.

        Raises:
            InvariantError: at the first event that may not come next; the trace stands before it.
        """
        for event in events:
            self.check(event)
            self.commit(event)

    def check_chunk(self, turn: float, step: float, seq: int) -> None:
        """:meth:`check` for an ``assistant/chunk`` of which only the place is known, or for the first of a run.

        A run of chunks that share turn and step stands or falls together, and changes nothing that the next event is
        judged by but the seq: one call answers for the run, and :meth:`commit_chunk` with its last seq ends it.

        Raises:
            InvariantError: (``turn``, ``step``) is not the open pair, or ``seq`` does not increase.
        """
        if turn == self._turn and step == self._step and seq > self._last_seq:
            return
        reason = self._seq_objection(seq) or self._step_objection(turn, step)
        if reason is not None:
            raise InvariantError(reason, event_type="assistant/chunk", seq=seq)

    def commit_chunk(self, seq: int) -> None:
        """Move on past the chunk, or run of chunks, that ends at ``seq``."""
        self._last_seq = seq

    def _objection(self, event: Event) -> str | None:
        out_of_order = self._seq_objection(event.seq)
        if out_of_order is not None:
            return out_of_order
        kind = event.type
        if kind == "turn/start":
            return self._turn_start_objection(_numbers(event)[0])
        if kind == "turn/end":
            return self._turn_end_objection(_numbers(event)[0])
        if kind == "step/start":
            return self._step_start_objection(*_numbers(event))
        if kind in _STEP_SCOPED:
            return self._step_objection(*_numbers(event)) or self._call_objection(event)
        if kind == "tool/result" and not isinstance(event.surface_op, Replace):
            return self._step_objection(*_numbers(event)) or self._result_objection(event)
        needs_turn = self._strict or kind in _TURN_SCOPED or kind == "tool/result"
        if needs_turn and self._turn is None and kind != "recovery/lost":
            return "no turn is open"
        return None

    def _seq_objection(self, seq: int) -> str | None:
        return None if seq > self._last_seq else f"the seq does not increase: the last one was {self._last_seq}"

    def _turn_start_objection(self, turn: int | None) -> str | None:
        if self._turn is not None:
            return f"turn {self._turn} is still open"
        if turn != self._last_turn + 1:
            return f"expected turn {self._last_turn + 1}, {_named('turn', turn)}"
        return None

    def _turn_end_objection(self, turn: int | None) -> str | None:
        if self._turn is None:
            return "no turn is open"
        if turn != self._turn:
            return f"turn {self._turn} is open, {_named('turn', turn)}"
        if self._step is not None:
            return f"step {self._step} is still open"
        return None

    def _step_start_objection(self, turn: int | None, step: int | None) -> str | None:
        if self._turn is None:
            return "no turn is open"
        if turn != self._turn:
            return f"turn {self._turn} is open, {_named('turn', turn)}"
        if self._step is not None:
            return f"step {self._step} is still open"
        if step != self._last_step + 1:
            return f"expected step {self._last_step + 1}, {_named('step', step)}"
        return None

    def _step_objection(self, turn: float | None, step: float | None) -> str | None:
        if self._turn is None or self._step is None:
            return "no step is open"
        if turn != self._turn:
            return f"turn {self._turn} is open, {_named('turn', turn)}"
        if step != self._step:
            return f"step {self._step} is open, {_named('step', step)}"
        return None

    def _call_objection(self, event: Event) -> str | None:
        if event.type == "tool/call" and _call_id(_payload(event)) is None:
            return "the event names no call"
        return None

    def _result_objection(self, event: Event) -> str | None:
        payload = _payload(event)
        call = _result_id(payload)
        if call is None:
            return "the event names no call"
        owed = self._calls.get(call)
        if owed == 0:
            return "its call already has a result"
        error = payload.get("error")
        if owed is None and not (isinstance(error, Mapping) and error.get("code") == _NOT_STARTED):
            return f"its call has no tool/call in this step, and its error is not {_NOT_STARTED}"
        return None


def _named(what: str, number: float | None) -> str:
    return f"the event names no {what}" if number is None else f"the event names {what} {number}"


def _numbers(event: Event) -> tuple[int | None, int | None]:
    """The turn and step that an event names; ``None`` for one that it does not name."""
    text = event.data_json
    try:
        place = _place(text)
    except msgspec.DecodeError:
        payload = _payload(event)
        return _integer(payload.get("turn")), _integer(payload.get("step"))
    return _integer(place.turn), _integer(place.step)


def _integer(value: object) -> int | None:
    """An integer as JSON means it: ``1.0`` is one, ``true`` is not."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _payload(event: Event) -> Mapping[str, object]:
    """The payload as plain JSON; empty where it is no object or cannot be read without loss."""
    try:
        payload = decode(event.data_json)
    except InvalidEventError:
        return {}
    return payload if isinstance(payload, Mapping) else {}


def _call_id(payload: Mapping[str, object]) -> str | None:
    call = payload.get("callId")
    return call if isinstance(call, str) else None


def _result_id(payload: Mapping[str, object]) -> str | None:
    """The call that a result answers; results without a message are of an old form and name it themselves."""
    message = payload.get("message")
    if not isinstance(message, Mapping):
        return _call_id(payload)
    source = message.get("source")
    return _call_id(source) if isinstance(source, Mapping) else None

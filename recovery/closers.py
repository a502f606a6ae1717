"""Synthetic events that end the work which a crash interrupted.

A crashed turn is closed, never cut: it can hold hours of real work.  What is
appended follows from the log alone, so that two readers of the same bytes close
them alike, and closing a closed log adds nothing.  The recorder closes calls of a
live turn with the same function, so that a model sees one wording for one fact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from sessionstore.errors import InvalidEventError
from sessionstore.events import Event, only_events
from sessionstore.lossless import Json, decode, encode
from sessionstore.recovery.format import TURN_END, TURN_START

__all__ = [
    "TOOL_NOT_STARTED",
    "TOOL_OUTCOME_UNKNOWN",
    "OpenWork",
    "PendingCall",
    "interrupted_turn_closers",
    "payload_of",
    "turn_number",
    "unanswered_result",
]

TOOL_NOT_STARTED: Final = "TOOL_NOT_STARTED"
"""Error code of a call that was asked for and never recorded as started: it may be retried."""

TOOL_OUTCOME_UNKNOWN: Final = "TOOL_OUTCOME_UNKNOWN"
"""Error code of a call that was recorded as started and has no recorded result: it may have run."""

_NOT_STARTED_TEXT: Final = (
    "The session was interrupted before this tool call was recorded as started: it never started. "
    "It may be retried if it is still needed."
)
_UNKNOWN_TEXT: Final = (
    "The session was interrupted after this tool call was recorded as started and before a result was stored: "
    "its outcome is unknown. Retry it only if it is read-only or idempotent; otherwise verify the state it may "
    "have changed first, or ask the user."
)


class PendingCall(Struct):
    """A tool call that an assistant message asked for and that has no result yet.

    ``step`` is the step of the message; ``call_seq`` the seq of its ``tool/call``, ``None`` while none was recorded.
    """

    call_id: str
    step: int
    call_seq: int | None = None


class OpenWork:
    """What is open at the end of a log: the turn, the step and the unanswered calls, in order."""

    def __init__(self) -> None:
        self.turn: int | None = None
        self.step: int | None = None
        self._pending: dict[str, PendingCall] = {}

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The calls without a result, in the order in which they were asked for."""
        return tuple(self._pending.values())

    def observe(self, event: Event) -> None:
        """Take the next event of the log into account.  Payloads that do not fit are passed over."""
        if event.type not in _WATCHED:
            return
        data = payload_of(event)
        match event.type:
            case "turn/start":
                self.turn, self.step = turn_number(data), None
                self._pending.clear()
            case "turn/end":
                self.turn = self.step = None
                self._pending.clear()
            case "step/start":
                step = _integer(data.get("step"))
                self.step = 1 if step is None else step
            case "step/end":
                self.step = None
                self._pending.clear()
            case "assistant/message":
                self._ask(data)
            case "tool/call":
                self._start(data.get("callId"), event.seq)
            case _:
                self._answer(data)

    def _ask(self, data: Mapping[str, Json]) -> None:
        step = _integer(data.get("step"))
        if step is None:
            step = 1 if self.step is None else self.step
        for call_id in _requested_calls(data):
            self._pending[call_id] = PendingCall(call_id, step)

    def _start(self, call_id: Json, seq: int) -> None:
        pending = self._pending.get(call_id) if isinstance(call_id, str) else None
        if pending is not None:
            pending.call_seq = seq

    def _answer(self, data: Mapping[str, Json]) -> None:
        message = data.get("message")
        source = message.get("source") if isinstance(message, Mapping) else data  # logs without identity: flat
        call_id = source.get("callId") if isinstance(source, Mapping) else None
        if isinstance(call_id, str):
            self._pending.pop(call_id, None)


_WATCHED: Final = frozenset(
    {TURN_START, TURN_END, "step/start", "step/end", "assistant/message", "tool/call", "tool/result"}
)


def interrupted_turn_closers(events: Iterable[Event], *, time: int | None = None) -> list[Event]:
    """The events that close the turn left open at the end of *events*; none when no turn is open.

    *events* need not reach back further than the open turn's ``turn/start``.  *time* (epoch ms) is the time
    of the closers: by default that of the last event, so that the result depends on the log alone.
    """
    work = OpenWork()
    last: Event | None = None
    for last in only_events(events):
        work.observe(last)
    if last is None or work.turn is None:
        return []
    return list(_closers(work, work.turn, last.seq + 1, last.time if time is None else time))


def unanswered_result(call: PendingCall, *, turn: int, seq: int) -> tuple[dict[str, Json], tuple[int, ...] | None]:
    """Payload and ``sourceEventSeqs`` of the ``tool/result`` with the given *seq* that answers *call* as failed.

    It says what is known and no more: a recorded call has an unknown outcome, an unrecorded one never started.
    """
    started = call.call_seq is not None
    name, code, text = (
        ("ToolOutcomeUnknownError", TOOL_OUTCOME_UNKNOWN, _UNKNOWN_TEXT)
        if started
        else ("ToolNotStartedError", TOOL_NOT_STARTED, _NOT_STARTED_TEXT)
    )
    message: dict[str, Json] = {
        "id": f"interrupted-tool-result-{call.call_id}-{seq}",
        "role": "user",
        "source": {"kind": "tool", "callId": call.call_id},
        "content": [
            {
                "type": "tool-result",
                "toolCallId": call.call_id,
                "isError": True,
                "content": [{"type": "text", "text": text}],
            }
        ],
    }
    data: dict[str, Json] = {
        "turn": turn,
        "step": call.step,
        "message": message,
        "error": {"name": name, "code": code},
    }
    return data, None if call.call_seq is None else (call.call_seq,)


def turn_number(data: Mapping[str, Json]) -> int:
    """The number in the payload of a ``turn/start``; 1 where it is unreadable, because a turn is open all the same."""
    turn = _integer(data.get("turn"))
    return 1 if turn is None else turn


def _closers(work: OpenWork, turn: int, seq: int, time: int) -> Iterator[Event]:
    for call in work.pending:
        data, sources = unanswered_result(call, turn=turn, seq=seq)
        # Closers have surfaceOp before sourceEventSeqs, unlike live events: recovery.md, Closers.
        surface: dict[str, Json] = {"surfaceOp": "append"}
        if sources is not None:
            surface["sourceEventSeqs"] = list(sources)
        yield _event("tool/result", seq, time, data, surface)
        seq += 1
    if work.step is not None:
        yield _event("step/end", seq, time, {"turn": turn, "step": work.step})
        seq += 1
    yield _event(TURN_END, seq, time, {"turn": turn, "reason": {"kind": "interrupted"}})


def _event(type_: str, seq: int, time: int, data: dict[str, Json], rest: Mapping[str, Json] | None = None) -> Event:
    return Event.from_json(encode({"type": type_, "seq": seq, "time": time, "data": data, **(rest or {})}))


def payload_of(event: Event) -> Mapping[str, Json]:
    """The raw payload, whatever its shape and its numbers: closers do not depend on a typed view that may refuse it."""
    try:
        value = decode(event.to_json(), exact=False)
    except InvalidEventError:
        return {}
    data = value.get("data") if isinstance(value, Mapping) else None
    return data if isinstance(data, Mapping) else {}


def _requested_calls(data: Mapping[str, Json]) -> Iterator[str]:
    message = data.get("message")
    content = message.get("content") if isinstance(message, Mapping) else data.get("content")
    if not isinstance(content, list):
        return
    for block in content:
        if isinstance(block, Mapping) and block.get("type") == "tool-call":
            call_id = block.get("id")
            if isinstance(call_id, str) and call_id:  # without an id it cannot be answered: no log takes such a result
                yield call_id


def _integer(value: Json) -> int | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None

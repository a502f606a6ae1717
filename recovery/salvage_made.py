"""Events that take the place of lost ones: made of what the log still holds, and saying so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct

from sessionstore.events import Event
from sessionstore.lossless import Json, decode, encode
from sessionstore.recovery.closers import PendingCall, unanswered_result
from sessionstore.recovery.format import RECOVERY_LOST, TURN_END, TURN_START

__all__ = [
    "Need",
    "Origin",
    "boundary",
    "fitting",
    "lost_event",
    "lost_message",
    "lost_result",
    "made_assistant",
    "made_result",
]

_LOST_TEXT: Final = "The content of this message was lost when the session's log was damaged."
_LOST_RESULT_TEXT: Final = "The content of this tool result was lost when the session's log was damaged."


class Origin:
    """What the log says about where its assistant messages come from; the latest word counts."""

    def __init__(self) -> None:
        self.provider = "unknown"
        self.model = "unknown"

    def observe(self, source: Json) -> None:
        """Take the ``config`` of a request header, or the source of a message, into account."""
        if isinstance(source, Mapping):
            provider, model = source.get("provider"), source.get("model")
            if isinstance(provider, str) and isinstance(model, str) and provider and model:
                self.provider, self.model = provider, model


def lost_event(seq: int, time: int, reason: str, offset: int, length: int) -> Event:
    """A ``recovery/lost``: a seq whose event is gone.  Its bytes were the *length* at *offset*, if any are left."""
    data: dict[str, Json] = {"reason": reason, "offset": offset, "length": length}
    return _event(RECOVERY_LOST, seq, time, data, {"ignorable": True})


def lost_message(seq: int, time: int) -> Event:
    """A message for a lost node of the surface that a later replacement names."""
    data: dict[str, Json] = {
        "id": f"recovered-message-{seq}",
        "role": "user",
        "content": [{"type": "text", "text": _LOST_TEXT}],
        "source": {"kind": "plugin", "plugin": "recovery"},
    }
    return _event("user/message", seq, time, data, {"surfaceOp": "append"})


def lost_result(seq: int, time: int, replacement: Event) -> Event | None:
    """The tool result that *replacement* takes the place of: the same but for what it says.  ``None`` if it is odd."""
    data = decode(replacement.data_json, exact=False)
    if not isinstance(data, dict):
        return None
    content: list[Json] = [{"type": "text", "text": _LOST_RESULT_TEXT}]
    message = data.get("message")
    if message is None:
        data["content"] = content
    else:
        blocks = message.get("content") if isinstance(message, dict) else None
        block = blocks[0] if isinstance(blocks, list) and len(blocks) == 1 else None
        if not isinstance(block, dict):
            return None
        block["content"] = content
    return _event("tool/result", seq, time, data, {"surfaceOp": "append"})


def boundary(type_: str, seq: int, time: int, turn: int, step: int | None = None) -> Event:
    """The start or end of a turn or step."""
    data: dict[str, Json] = {"turn": turn}
    if type_ == TURN_END:
        data["reason"] = {"kind": "interrupted"}
    elif type_ != TURN_START:
        data["step"] = step
    return _event(type_, seq, time, data)


def made_assistant(
    seq: int, time: int, blocks: Iterable[Json], sources: list[int], *, turn: int, step: int, origin: Origin
) -> Event:
    """The assistant message that *blocks* were assembled for."""
    message: dict[str, Json] = {
        "role": "assistant",
        "content": list(blocks),
        "source": {"kind": "model", "provider": origin.provider, "model": origin.model},
        "id": f"recovered-assistant-message-{seq}",
    }
    rest: dict[str, Json] = {"sourceEventSeqs": sources, "surfaceOp": "append"} if sources else {"surfaceOp": "append"}
    return _event("assistant/message", seq, time, {"turn": turn, "step": step, "message": message}, rest)


def made_result(seq: int, time: int, call: PendingCall, *, turn: int, doubt: bool = True) -> Event:
    """The answer to a call whose result is lost.  In *doubt* even a call of which no start is recorded may have run."""
    known = call.call_seq is not None
    shown = PendingCall(call.call_id, call.step, call.call_seq if known or not doubt else 0)
    data, sources = unanswered_result(shown, turn=turn, seq=seq)
    rest: dict[str, Json] = {"surfaceOp": "append"}
    if known and sources is not None:
        rest["sourceEventSeqs"] = list(sources)
    return _event("tool/result", seq, time, data, rest)


def _event(type_: str, seq: int, time: int, data: Json, rest: Mapping[str, Json] | None = None) -> Event:
    return Event.from_json(encode({"type": type_, "seq": seq, "time": time, "data": data, **(rest or {})}))


class Need(Struct, frozen=True):
    """An event that a hole has to hold.  Of too many, those of the lowest *rank* are made."""

    rank: int
    make: Callable[[int], Event | None]
    reason: str


def fitting(before: list[Need], after: list[Need], room: int) -> tuple[list[Need], list[Need]]:
    """As many needs as there is room for: answers first, then messages, then boundaries."""
    excess = len(before) + len(after) - room
    if excess <= 0:
        return before, after
    ranked = sorted([*before, *after], key=lambda need: need.rank)
    kept = set(map(id, ranked[: max(room, 0)]))
    return [need for need in before if id(need) in kept], [need for need in after if id(need) in kept]

"""Small builders of events, as plain dicts and as Events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sessionstore.chunks import decode_storage_record, pack_chunk_runs
from sessionstore.events import Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sessionstore import StoredSession
    from sessionstore.session import Session

USER = {"kind": "user"}
MODEL = {"kind": "model", "provider": "p", "model": "m"}


def event(type: str, seq: int, data: Any, *, time: int = 1000, **envelope: Any) -> Event:
    """One event from its parts."""
    return Event.from_dict({"type": type, "seq": seq, "time": time, "data": data, **envelope})


def text(
    seq: int, text: object, *, time: object = 1000, turn: object = 1, step: object = 1, index: object = 0
) -> dict[str, Any]:
    """A text delta."""
    chunk = {"type": "text-delta", "index": index, "text": text}
    return {"type": "assistant/chunk", "seq": seq, "time": time, "data": {"turn": turn, "step": step, "chunk": chunk}}


def reasoning(seq: int, text: str, *, time: int = 1000) -> dict[str, Any]:
    """A reasoning delta."""
    chunk = {"type": "reasoning-delta", "index": 0, "text": text}
    return {"type": "assistant/chunk", "seq": seq, "time": time, "data": {"turn": 1, "step": 1, "chunk": chunk}}


def args(seq: int, delta: str, *, id: object = "c1", name: object = ..., time: int = 1000) -> dict[str, Any]:
    """A tool-call delta; without *name* the field is absent."""
    chunk = {"type": "tool-call-delta", "index": 0, "id": id}
    if name is not ...:
        chunk["name"] = name
    chunk["argumentsDelta"] = delta
    return {"type": "assistant/chunk", "seq": seq, "time": time, "data": {"turn": 1, "step": 1, "chunk": chunk}}


def events(*dicts: dict[str, Any]) -> list[Event]:
    """Dicts as events."""
    return [Event.from_dict(d) for d in dicts]


def packed(*dicts: dict[str, Any]) -> list[dict[str, Any]]:
    """The storage records that the encoder makes of the events."""
    return [json.loads(line) for line in pack_chunk_runs(events(*dicts))]


def unpacked(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events that the decoder makes of storage records."""
    return [e.to_dict() for record in records for e in decode_storage_record(json.dumps(record).encode())]


# --- messages and whole turns ------------------------------------------------------------------------------------


def user_message(id: str = "u1", text: str = "hi") -> dict[str, Any]:
    """A user message."""
    return {"content": [{"type": "text", "text": text}], "source": dict(USER), "role": "user", "id": id}


def assistant_message(id: str = "a1", content: Sequence[dict[str, Any]] | None = None) -> dict[str, Any]:
    """An assistant message."""
    blocks = [{"type": "text", "text": "hello"}] if content is None else list(content)
    return {"role": "assistant", "content": blocks, "source": dict(MODEL), "id": id}


def tool_call(id: str = "c1", name: str = "shell") -> dict[str, Any]:
    """A tool-call block."""
    return {"type": "tool-call", "id": id, "name": name, "arguments": "{}"}


def tool_message(call_id: str = "c1", id: str | None = None, text: str = "done") -> dict[str, Any]:
    """A tool result message."""
    block = {"type": "tool-result", "toolCallId": call_id, "content": [{"type": "text", "text": text}]}
    return {
        "source": {"kind": "tool", "callId": call_id},
        "content": [block],
        "role": "user",
        "id": id or f"r-{call_id}",
    }


def turn_start(turn: int = 1) -> dict[str, Any]:
    """The payload of a turn/start."""
    return {"turn": turn, "trigger": {"kind": "message", "source": dict(USER)}}


def turn_end(turn: int = 1, kind: str = "completed") -> dict[str, Any]:
    """The payload of a turn/end."""
    return {"turn": turn, "reason": {"kind": kind}}


def _surface(extra: dict[str, Any]) -> dict[str, Any]:
    return {"surface_op": "append", **extra}


def say(session: Session, id: str = "u1", text: str = "hi", **extra: Any) -> Event:
    """Append a user message to the surface."""
    return session.append("user/message", user_message(id, text), **_surface(extra))


def answer(session: Session, id: str = "a1", content: Sequence[dict[str, Any]] | None = None, **extra: Any) -> Event:
    """Append an assistant message to the surface."""
    data = {"turn": 1, "step": 1, "message": assistant_message(id, content)}
    return session.append("assistant/message", data, **_surface(extra))


def result(session: Session, call_id: str = "c1", text: str = "done", **extra: Any) -> Event:
    """Append a tool result to the surface."""
    data = {"turn": 1, "step": 1, "message": tool_message(call_id, text=text)}
    return session.append("tool/result", data, **_surface(extra))


def closed_turn(session: Session, turn: int = 1) -> None:
    """Append a whole small turn."""
    session.append("turn/start", turn_start(turn))
    say(session, f"u{turn}")
    session.append("step/start", {"turn": turn, "step": 1})
    session.append(
        "assistant/message",
        {"turn": turn, "step": 1, "message": assistant_message(f"a{turn}")},
        surface_op="append",
    )
    session.append("step/end", {"turn": turn, "step": 1})
    session.append("turn/end", turn_end(turn))


def nodes(session: Session) -> tuple[int, ...]:
    """The surface's nodes."""
    return session.surface.nodes


def dicts(session: Session) -> list[dict[str, Any]]:
    """A session's events as plain dicts: a seed."""
    return [e.to_dict() for e in session.events]


async def goes_on(session: StoredSession) -> None:
    """One more event is taken and stored, and the log is sound."""
    before = session.seq
    session.append("test/after", {})
    assert await session.flush() == before + 1

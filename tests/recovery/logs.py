"""Logs of our own making, and the verbs that damage them."""

from __future__ import annotations

import json
from typing import Any

HEADER: dict[str, Any] = {
    "type": "session",
    "version": 0,
    "id": "s1",
    "createdAt": 1_700_000_000_000,
    "cwd": "/srv/project",
    "delegationDepth": 0,
}


def line(value: object) -> bytes:
    """One line of JSON as our writer makes it, with its newline."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace") + b"\n"


def header(**changes: Any) -> bytes:
    """The header line; ``None`` leaves a key out."""
    return line({k: v for k, v in {**HEADER, **changes}.items() if v is not None})


def event(type_: str, seq: int, data: Any, *, time: int | None = None, **rest: Any) -> bytes:
    """One event line."""
    time = 1_700_000_000_000 + seq if time is None else time
    return line({"type": type_, "seq": seq, "time": time, "data": data, **rest})


def row(seq0: int, texts: list[str], /, *, kind: str = "text-chunks", **changes: Any) -> bytes:
    """A packed row of text or reasoning deltas."""
    data: dict[str, Any] = {"turn": 1, "step": 1, "index": 0, "dt": [1] * (len(texts) - 1), "texts": texts}
    data.update(changes)
    return line({"type": kind, "seq0": seq0, "time0": 1_700_000_000_000 + seq0, "data": data})


def tool_row(seq0: int, args: list[str], /, **changes: Any) -> bytes:
    """A packed row of tool-call deltas."""
    data: dict[str, Any] = {
        "turn": 1,
        "step": 1,
        "index": 1,
        "dt": [0] * (len(args) - 1),
        "id": "c1",
        "name": "sh",
        "args": args,
    }
    data.update(changes)
    return line({"type": "tool-call-chunks", "seq0": seq0, "time0": 1_700_000_000_000 + seq0, "data": data})


def user(seq: int, text: str = "hi", **rest: Any) -> bytes:
    """A user message on the surface."""
    data = {"content": [{"type": "text", "text": text}], "source": {"kind": "user"}, "role": "user", "id": f"m{seq}"}
    return event("user/message", seq, data, **_surface(rest))


def assistant(seq: int, *, calls: tuple[str, ...] = (), turn: int = 1, step: int = 1, **rest: Any) -> bytes:
    """An assistant message on the surface that asks for *calls*."""
    content: list[Any] = [{"type": "text", "text": "ok"}]
    content += [{"type": "tool-call", "id": call, "name": "sh", "arguments": "{}"} for call in calls]
    source = {"kind": "model", "provider": "p", "model": "m"}
    message = {"role": "assistant", "content": content, "source": source, "id": f"a{seq}"}
    return event("assistant/message", seq, {"turn": turn, "step": step, "message": message}, **_surface(rest))


def call(seq: int, call_id: str, *, turn: int = 1, step: int = 1) -> bytes:
    """A recorded start of a tool."""
    return event("tool/call", seq, {"turn": turn, "step": step, "callId": call_id, "name": "sh", "arguments": "{}"})


def result(seq: int, call_id: str, *, turn: int = 1, step: int = 1, text: str = "done", **rest: Any) -> bytes:
    """The answer to a tool call."""
    block = {"type": "tool-result", "toolCallId": call_id, "content": [{"type": "text", "text": text}]}
    message = {"source": {"kind": "tool", "callId": call_id}, "content": [block], "role": "user", "id": f"r{seq}"}
    return event("tool/result", seq, {"turn": turn, "step": step, "message": message}, **_surface(rest))


def _surface(rest: dict[str, Any]) -> dict[str, Any]:
    return {"surfaceOp": "append", **rest} if "surfaceOp" not in rest else rest


def turn_start(seq: int, turn: int = 1) -> bytes:
    """The start of a turn."""
    return event("turn/start", seq, {"turn": turn, "trigger": {"kind": "message", "source": {"kind": "user"}}})


def turn_end(seq: int, turn: int = 1) -> bytes:
    """The end of a turn."""
    return event("turn/end", seq, {"turn": turn, "reason": {"kind": "completed"}})


def step(which: str, seq: int, turn: int = 1, step: int = 1) -> bytes:
    """``step/start`` or ``step/end``."""
    return event(f"step/{which}", seq, {"turn": turn, "step": step})


def first_turn() -> list[bytes]:
    """A whole turn with a packed row of each kind, a message that cites it and an answered call: seqs 0 to 16."""
    return [
        turn_start(0),
        user(1, "Grüße, 世界 \u2028 🎉"),
        step("start", 2),
        row(3, ["think", "", " é"], kind="reasoning-chunks"),
        row(6, ["o", "k", " 世"]),
        tool_row(9, ["{", "}", ""]),
        assistant(12, calls=("c1",), sourceEventSeqs=list(range(3, 12))),
        call(13, "c1"),
        result(14, "c1", sourceEventSeqs=[13]),
        step("end", 15),
        turn_end(16),
    ]


def second_turn() -> list[bytes]:
    """A second turn of single lines: seqs 17 to 22."""
    return [
        turn_start(17, 2),
        user(18, "again"),
        step("start", 19, turn=2),
        assistant(20, turn=2),
        step("end", 21, turn=2),
        turn_end(22, 2),
    ]


def open_turn() -> list[bytes]:
    """A second turn that a crash interrupted with one call recorded and one not: seqs 17 to 21."""
    return [
        turn_start(17, 2),
        user(18, "again"),
        step("start", 19, turn=2),
        assistant(20, turn=2, calls=("c2", "c3")),
        call(21, "c2", turn=2),
    ]


def closed_log() -> list[bytes]:
    """The lines of a clean log of two turns, header first."""
    return [header(), *first_turn(), *second_turn()]


def interrupted_log() -> list[bytes]:
    """The lines of a log whose second turn is open, header first."""
    return [header(), *first_turn(), *open_turn()]


# Damage verbs: each takes whole bytes or lines and returns new ones.


def shrink(data: bytes, by: int) -> bytes:
    """Cut the last *by* bytes."""
    return data[: len(data) - by]


def set_byte(data: bytes, at: int, value: int) -> bytes:
    """Overwrite one byte."""
    return data[:at] + bytes([value]) + data[at + 1 :]


def drop_line(lines: list[bytes], index: int) -> list[bytes]:
    """Lose one line."""
    return lines[:index] + lines[index + 1 :]


def repeat_line(lines: list[bytes], index: int) -> list[bytes]:
    """Write one line twice."""
    return lines[: index + 1] + lines[index:]


def join(lines: list[bytes], index: int) -> list[bytes]:
    """Lose the line end between a line and the next."""
    return [*lines[:index], lines[index].rstrip(b"\n") + lines[index + 1], *lines[index + 2 :]]


def insert(lines: list[bytes], index: int, garbage: bytes) -> list[bytes]:
    """Put bytes of their own line before line *index*."""
    return [*lines[:index], garbage, *lines[index:]]


def zero(data: bytes, start: int, stop: int) -> bytes:
    """A block that was never written."""
    return data[:start] + bytes(stop - start) + data[stop:]

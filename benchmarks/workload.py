"""The workload that every comparison uses: the turns of a streaming agent, the same as the reference's benchmark.

Per turn: ``turn/start``, a 30-word ``user/message``, five steps, ``turn/end``; per step 240 reasoning, 240 text
and 40 tool-call deltas of one word each, an ``assistant/message`` of 200 words and one call that cites all its
deltas, ``tool/call``, a 300-word ``tool/result``, ``step/end``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sessionstore.lossless import Json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["EVENTS_PER_TURN", "Step", "turns"]

WORDS: Final = ("the", "of", "and", "to", "in", "is", "that", "for", "it", "was", "with", "be")
EVENTS_PER_TURN: Final = 3 + 5 * (520 + 5)

Call = tuple[str, dict[str, Json], bool]
Step = tuple[list[Call], list[Call]]


class _Words:
    """The generator of the reference's benchmark, which computes in floating point: both sides write the same bytes."""

    def __init__(self) -> None:
        self._state = 12345

    def next(self) -> str:
        self._state = int(float(self._state) * 1103515245.0 + 12345.0) & 0x7FFFFFFF
        return " " + WORDS[self._state % len(WORDS)]

    def many(self, count: int) -> str:
        return "".join(self.next() for _ in range(count))


def turns() -> Iterator[tuple[Call, Call, list[Step], Call]]:
    """Turn after turn, without end: its start, its user message, its steps, its end.

    A call is ``(type, data, surface)``.  A step is its calls before and after the deltas' message is known: the
    message, call, result and end stand in the second list, and the message cites the deltas of the first.
    """
    words, turn = _Words(), 0
    while True:
        first = turn * EVENTS_PER_TURN
        turn += 1
        user = _message(
            f"m{first + 1}", "user", {"kind": "user"}, [{"type": "text", "text": "please do " + words.many(30)}]
        )
        steps = [_step(words, turn, step, first + 2 + 525 * step - 4) for step in range(1, 6)]
        end: dict[str, Json] = {"turn": turn, "reason": {"kind": "completed"}}
        yield ("turn/start", {"turn": turn}, False), ("user/message", user, True), steps, ("turn/end", end, False)


def _message(id_: str, role: str, source: Mapping[str, Json], content: list[Json]) -> dict[str, Json]:
    return {"id": id_, "role": role, "source": source, "content": content}


def _step(words: _Words, turn: int, step: int, seq: int) -> Step:
    """The calls of a step whose message has that *seq*."""
    at: dict[str, Json] = {"turn": turn, "step": step}
    call = f"c{turn}-{step}"
    first: list[Call] = [("step/start", at, False)]
    for kind, index in (("reasoning-delta", 0), ("text-delta", 1)):
        for _ in range(240):
            chunk: dict[str, Json] = {"type": kind, "index": index, "text": words.next()}
            first.append(("assistant/chunk", {"turn": turn, "step": step, "chunk": chunk}, False))
    for _ in range(40):
        chunk = {"type": "tool-call-delta", "index": 2, "id": call, "name": "bash", "argumentsDelta": words.next()}
        first.append(("assistant/chunk", {"turn": turn, "step": step, "chunk": chunk}, False))
    blocks: list[Json] = [
        {"type": "text", "text": words.many(200)},
        {"type": "tool-call", "id": call, "name": "bash", "arguments": "{}"},
    ]
    answer = _message(f"a{seq}", "assistant", {"kind": "model", "provider": "p", "model": "m"}, blocks)
    result: list[Json] = [
        {"type": "tool-result", "toolCallId": call, "content": [{"type": "text", "text": words.many(300)}]}
    ]
    reply = _message(f"r{seq + 2}", "user", {"kind": "tool", "callId": call}, result)
    usage: dict[str, Json] = {"inputTokens": 100, "outputTokens": 200}
    return first, [
        ("assistant/message", {**at, "message": answer, "usage": usage}, True),
        ("tool/call", {**at, "callId": call, "name": "bash", "arguments": "{}"}, False),
        ("tool/result", {**at, "message": reply}, True),
        ("step/end", at, False),
    ]

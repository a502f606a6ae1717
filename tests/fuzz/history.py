"""What a model provider would object to in a history: told from the events alone, independently of the salvage."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from sessionstore.lossless import decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sessionstore.events import Event

__all__ = ["Faults", "history_faults"]

Faults: TypeAlias = "Counter[tuple[str, str]]"

_decode = msgspec.json.Decoder().decode


def history_faults(events: Sequence[Event], nodes: Iterable[int]) -> Faults:
    """Calls without an answer before the next model message, and answers that no open call asked for.

    *events* are indexed by seq; *nodes* are the seqs of the surface, in order.
    """
    faults: Faults = Counter()
    waiting: list[str] = []
    for seq in nodes:
        event = events[seq]
        if event.type == "assistant/message":
            faults.update(("unanswered", call) for call in waiting)
            waiting = [str(block.get("id")) for block in _content(_data(event)) if block.get("type") == "tool-call"]
        elif event.type == "tool/result":
            call = _answered(_data(event))
            if call in waiting:
                waiting.remove(call)
            else:
                faults[("orphan", call)] += 1
    faults.update(("unanswered", call) for call in waiting)
    return faults


def _data(event: Event) -> Mapping[str, Any]:
    line = event.to_json()
    value: Any
    try:
        value = _decode(line)
    except (msgspec.DecodeError, RecursionError):
        value = decode(line, exact=False)
    data = value.get("data")
    return data if isinstance(data, dict) else {}


def _content(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    message = data.get("message", data)
    content = message.get("content") if isinstance(message, dict) else None
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _answered(data: Mapping[str, Any]) -> str:
    message = data.get("message")
    source = message.get("source") if isinstance(message, dict) else data
    return str(source.get("callId")) if isinstance(source, dict) else ""

"""Token deltas on their way to a message.

Needed only where no ``assistant/message`` followed: a step that broke off, or one
that is still being written.  Everything else takes the message, which is authoritative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionstore.transcript.access import integer, mapping, text
from sessionstore.transcript.content import failure_text
from sessionstore.transcript.model import Fragment

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Stream", "StreamedCall"]


class StreamedCall:
    """A tool call as far as it was streamed."""

    __slots__ = ("arguments", "call_id", "name")

    def __init__(self, call_id: str, name: str) -> None:
        self.call_id = call_id
        self.name = name
        self.arguments: list[str] = []


class Stream:
    """The blocks of the current model attempt of one step."""

    __slots__ = ("_blocks", "_finished", "failure", "first_seq", "first_time")

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[str, list[str]] | StreamedCall] = {}
        self._finished = False
        self.failure = ""
        self.first_seq: int | None = None
        self.first_time = 0

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def feed(self, chunk: Mapping[str, object], seq: int, time: int) -> None:
        """Take one chunk.  The first delta after a finish starts another attempt: the failed one is dropped."""
        kind = text(chunk.get("type"))
        if kind == "finish":
            self._finished = True
            self.failure = failure_text(mapping(chunk.get("reason")).get("failure"))
            return
        if kind == "usage":
            return
        self._begin(seq, time)
        index = integer(chunk.get("index")) or 0
        if kind == "tool-call-delta":
            self._call(index, chunk)
        elif kind in ("text-delta", "reasoning-delta"):
            self.delta(index, kind.removesuffix("-delta"), text(chunk.get("text")), seq, time)
        elif kind == "block-end":
            self._whole(index, mapping(chunk.get("block")))

    def delta(self, index: int, kind: str, said: str, seq: int, time: int) -> None:
        """Take a text or reasoning delta."""
        self._begin(seq, time)
        block = self._blocks.get(index)
        if isinstance(block, tuple) and block[0] == kind:
            block[1].append(said)
        else:
            self._blocks[index] = (kind, [said])

    def _begin(self, seq: int, time: int) -> None:
        if self._finished:
            self.clear()
        if self.first_seq is None:
            self.first_seq, self.first_time = seq, time

    def _call(self, index: int, chunk: Mapping[str, object]) -> None:
        block = self._blocks.get(index)
        if not isinstance(block, StreamedCall):
            block = self._blocks[index] = StreamedCall(text(chunk.get("id")), "")
        block.name = text(chunk.get("name")) or block.name
        block.arguments.append(text(chunk.get("argumentsDelta")))

    def _whole(self, index: int, block: Mapping[str, object]) -> None:
        kind = text(block.get("type"))
        if kind in ("text", "reasoning"):
            self._blocks[index] = (kind, [text(block.get("text"))])
        elif kind == "tool-call":
            call = StreamedCall(text(block.get("id")), text(block.get("name")))
            call.arguments.append(text(block.get("arguments")))
            self._blocks[index] = call

    def clear(self) -> None:
        """Forget everything: the message has arrived, or the step is over."""
        self._blocks.clear()
        self._finished = False
        self.failure = ""
        self.first_seq = None

    def fragments(self) -> tuple[Fragment, ...]:
        """Text and reasoning so far, in block order."""
        found: list[Fragment] = []
        for _, block in sorted(self._blocks.items()):
            if isinstance(block, tuple):
                kind, pieces = block
                found.append(Fragment("reasoning" if kind == "reasoning" else "text", "".join(pieces)))
        return tuple(found)

    def calls(self) -> list[StreamedCall]:
        """Tool calls so far, in block order."""
        return [block for _, block in sorted(self._blocks.items()) if isinstance(block, StreamedCall)]

"""A stand-in for a language model: it reads the history, and streams its answer as token deltas."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING

from sessionstore import (
    BlockEnd,
    BlockStart,
    FinishChunk,
    Stop,
    TextBlock,
    TextDelta,
    TokenUsage,
    ToolCallBlock,
    ToolCallDelta,
    ToolCallsFinish,
    ToolResultBlock,
    UsageChunk,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from sessionstore.messages import ContentBlock, StreamChunk

PROVIDER, MODEL = "scripted", "shopping-1"


def text_of(message: object) -> str:
    """What a message says, tool results included."""
    texts: list[str] = []
    for block in getattr(message, "content", ()):
        parts = block.content if isinstance(block, ToolResultBlock) else (block,)
        texts.extend(part.text for part in parts if isinstance(part, TextBlock))
    return " ".join(texts)


def answer(history: Sequence[object]) -> list[ContentBlock]:
    """The script: what the model says, and the tool that it asks for, given the history."""
    asked = re.findall(r"[Pp]ut (\w+) on", " ".join(text_of(m) for m in history if getattr(m, "role", "") == "user"))
    item = asked[-1] if asked else None
    last = history[-1]
    results = [b for m in history[-2:] for b in getattr(m, "content", ()) if isinstance(b, ToolResultBlock)]
    call_id = f"call-{len(history)}"

    def call(name: str, **arguments: str) -> ToolCallBlock:
        return ToolCallBlock(id=call_id, name=name, arguments=json.dumps(arguments))

    if item is None:
        return [TextBlock(text="Tell me what to put on the list: 'Put milk on the list.'")]
    if not results:
        add = call("run-shell", command=f"sh add-item.sh {item}")
        return [TextBlock(text=f"I will add {item} to the list."), add]
    if results[-1].is_error:
        look = call("read-file", path="shopping.txt")
        return [TextBlock(text="I cannot know whether that command did its work, so I look before I repeat it."), look]
    lines = text_of(last).split()
    if lines.count(item) == 1:
        return [TextBlock(text=f"Done: {item} is on the list, once.")]
    return [TextBlock(text=f"Done: {text_of(last)}.")]


async def stream(history: Sequence[object]) -> AsyncIterator[StreamChunk]:
    """Stream an answer: a few characters at a time, each block closed by its whole, then usage and finish."""
    blocks = answer(history)
    for index, block in enumerate(blocks):
        tool = isinstance(block, ToolCallBlock)
        yield BlockStart(index=index, block_type="tool-call" if tool else "text")
        whole = block.arguments if isinstance(block, ToolCallBlock) else getattr(block, "text", "")
        for token in re.findall(r".{1,6}", whole):
            await asyncio.sleep(0.005)
            if isinstance(block, ToolCallBlock):
                yield ToolCallDelta(index=index, id=block.id, name=block.name, arguments_delta=token)
            else:
                yield TextDelta(index=index, text=token)
        yield BlockEnd(index=index, block=block)
    yield UsageChunk(usage=TokenUsage(input_tokens=10 * len(history), output_tokens=20))
    yield FinishChunk(reason=ToolCallsFinish() if isinstance(blocks[-1], ToolCallBlock) else Stop())

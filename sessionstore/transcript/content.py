"""Messages and content blocks as fragments of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionstore.transcript.access import boolean, integer, items, lookup, mapping, text
from sessionstore.transcript.model import Fragment, Usage

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ToolOutcome", "failure_text", "fragments", "read_result", "read_usage", "speaker"]


def fragments(content: object) -> tuple[Fragment, ...]:
    """The blocks of *content* that are shown as text; tool calls are not among them."""
    found = (_fragment(mapping(block)) for block in items(content))
    return tuple(fragment for fragment in found if fragment is not None)


def _fragment(block: Mapping[str, object]) -> Fragment | None:
    kind = text(block.get("type"), "?")
    if kind == "text":
        return Fragment("text", text(block.get("text")))
    if kind == "reasoning":
        return Fragment("reasoning", text(block.get("text")))
    if kind == "image":
        return Fragment("image", _image(mapping(block.get("attachment"))))
    if kind in ("tool-call", "tool-result"):
        return None
    return Fragment("other", f"[{kind} block]")


def _image(attachment: Mapping[str, object]) -> str:
    width, height, size = (integer(attachment.get(key)) for key in ("width", "height", "bytes"))
    parts = [text(attachment.get("name")), text(attachment.get("mediaType"), "image")]
    if width is not None and height is not None:
        parts.append(f"{width} by {height}")
    if size is not None:
        parts.append(f"{size} bytes")
    return "[" + ", ".join(part for part in parts if part) + "]"


def speaker(source: object) -> str:
    """Who a message's source names: a model, a plugin, or the kind itself."""
    source = mapping(source)
    kind = text(source.get("kind"))
    if kind == "model":
        return text(source.get("model"), "assistant")
    if kind == "plugin":
        return text(source.get("plugin"), "plugin")
    return kind


class ToolOutcome:
    """What a ``tool/result`` payload says, in today's or the older flat form."""

    __slots__ = ("call_id", "content", "error", "failed", "recovered")

    def __init__(self, data: Mapping[str, object]) -> None:
        message = mapping(data.get("message"))
        blocks = [mapping(block) for block in items(message.get("content"))]
        block = next((b for b in blocks if b.get("type") == "tool-result"), data)
        self.call_id = text(block.get("toolCallId")) or text(data.get("callId"))
        self.content = fragments(block.get("content"))
        self.failed = boolean(block.get("isError"))
        self.error = text(lookup(data, "error", "code")) or text(lookup(data, "error", "name")) or None
        self.recovered = text(message.get("id")).startswith("interrupted-tool-result-")


def read_result(data: Mapping[str, object]) -> ToolOutcome:
    """Read a ``tool/result`` payload."""
    return ToolOutcome(data)


def read_usage(value: object) -> Usage | None:
    """A ``TokenUsage`` object, ``None`` where there is none.  Negative counts are read as 0."""
    usage = mapping(value)
    if not usage:
        return None

    def count(key: str) -> int:
        return max(0, integer(usage.get(key)) or 0)

    return Usage(
        input=count("inputTokens"),
        output=count("outputTokens"),
        cache_read=count("cacheReadTokens"),
        cache_write=count("cacheWriteTokens"),
        reasoning=count("reasoningTokens"),
    )


def failure_text(value: object) -> str:
    """An ``LlmFailure`` (or the older plain message) as one sentence."""
    failure = mapping(value)
    parts = [text(failure.get("message")) or text(failure.get("reason"))]
    code, status = text(failure.get("code")), integer(failure.get("status"))
    extra = ", ".join(part for part in (code, f"HTTP {status}" if status is not None else "") if part)
    if extra:
        parts.append(f"({extra})")
    return " ".join(part for part in parts if part)

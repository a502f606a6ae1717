"""Messages, content blocks, sources and stream chunks: the values inside event payloads.

All are frozen Structs: fields are snake_case here and camelCase on disk, sequences are
tuples, an optional field that is absent is ``None`` (and ``None`` is written as absent:
JSON ``null`` is no value of these fields).  Constructors do not validate, msgspec's way;
:meth:`Session.append` does.

Unions whose kinds plugins and newer releases extend are *open*: a kind that is not known
here is read as :class:`Unknown`, which keeps its JSON.  Stream chunks are closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias, TypeVar, cast

from msgspec import Meta, Struct

from sessionstore.lossless import Json
from sessionstore.opaque import JsonHolder, Opaque, OpenVariant, Unknown, json_fields

if TYPE_CHECKING:
    _T = TypeVar("_T")
    Maybe: TypeAlias = _T | None
else:

    class Maybe:
        """``Maybe[T]``: an optional field.  Type checkers see ``T | None``, msgspec sees ``T`` and so refuses null."""

        def __class_getitem__(cls, item: object) -> object:
            return item


__all__ = [
    "AbortedFinish",
    "AssistantMessage",
    "BlockEnd",
    "BlockField",
    "BlockStart",
    "ContentBlock",
    "ErrorFinish",
    "FinishChunk",
    "FinishReason",
    "ImageAttachment",
    "ImageBlock",
    "ImageDimensions",
    "Kind",
    "LlmFailure",
    "MaxTokensFinish",
    "Maybe",
    "Message",
    "MessageSource",
    "ModelSource",
    "NonEmpty",
    "PluginSource",
    "ReasoningBlock",
    "ReasoningDelta",
    "SourceField",
    "Stop",
    "StreamChunk",
    "TextBlock",
    "TextDelta",
    "TokenUsage",
    "ToolCallBlock",
    "ToolCallDelta",
    "ToolCallsFinish",
    "ToolResultBlock",
    "ToolResultMessage",
    "ToolSource",
    "Unknown",
    "UsageChunk",
    "UserMessage",
    "UserSource",
    "role_is_stated",
]

NonEmpty = Annotated[str, Meta(min_length=1)]
"""A string that the format wants non-empty."""


class _Value(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Base of the plain value Structs."""


class _Block(OpenVariant, frozen=True, kw_only=True, tag_field="type"):
    """Base of the content blocks."""


class Kind(OpenVariant, frozen=True, kw_only=True, tag_field="kind"):
    """Base of the variants that a ``kind`` field tells apart."""


class _Chunk(_Value, frozen=True, kw_only=True, tag_field="type"):
    """Base of the stream chunks, a closed union."""


# Content blocks


class TextBlock(_Block, frozen=True, kw_only=True, tag="text"):
    """Text, as the model wrote it or is to read it."""

    text: str


class ReasoningBlock(_Block, frozen=True, kw_only=True, tag="reasoning"):
    """The model's reasoning."""

    text: str


class ToolCallBlock(_Block, frozen=True, kw_only=True, tag="tool-call"):
    """A call that the model asks for; ``arguments`` is the JSON text that it wrote, unparsed."""

    id: str
    name: str
    arguments: str


class ToolResultBlock(_Block, frozen=True, kw_only=True, tag="tool-result"):
    """What one tool call gave back to the model."""

    tool_call_id: str
    content: tuple[BlockField, ...]
    is_error: Maybe[bool] = None


class ImageDimensions(_Value, frozen=True, kw_only=True):
    """A size in pixels."""

    width: int
    height: int


class ImageAttachment(_Value, frozen=True, kw_only=True):
    """An image kept outside the log; ``bytes`` is its size, ``width`` and ``height`` are pixels."""

    attachment_id: str
    media_type: Literal["image/png", "image/jpeg", "image/webp", "image/gif"]
    bytes: int
    width: int
    height: int
    name: Maybe[str] = None
    original_dimensions: Maybe[ImageDimensions] = None


class ImageBlock(_Block, frozen=True, kw_only=True, tag="image"):
    """An image (written by newer releases of the reference only)."""

    attachment: ImageAttachment


ContentBlock: TypeAlias = TextBlock | ReasoningBlock | ToolCallBlock | ToolResultBlock | ImageBlock | Unknown


# Message sources


class UserSource(Kind, frozen=True, kw_only=True, tag="user"):
    """The human at the keyboard."""


class PluginSource(Kind, frozen=True, kw_only=True, tag="plugin"):
    """Context that a plugin injected."""

    plugin: str


@json_fields("replay_state")
class ModelSource(JsonHolder, Kind, frozen=True, kw_only=True, tag="model"):
    """The model that wrote the message; ``replay_state`` is the provider adapter's own JSON."""

    provider: NonEmpty
    model: NonEmpty
    replay_state: Opaque[Json] = None


class ToolSource(Kind, frozen=True, kw_only=True, tag="tool"):
    """The tool call that the message answers."""

    call_id: NonEmpty


MessageSource: TypeAlias = UserSource | PluginSource | ModelSource | ToolSource | Unknown

if TYPE_CHECKING:
    BlockField: TypeAlias = ContentBlock
    SourceField: TypeAlias = MessageSource
    _ModelSource: TypeAlias = ModelSource
    _ToolSource: TypeAlias = ToolSource
    _OneToolResult: TypeAlias = tuple[ToolResultBlock]
else:
    # What msgspec decodes: unions without Unknown, whose place the slow path of `shapes` fills.  msgspec accepts
    # a lone tagged Struct without its tag, so the fields that allow one kind only are read as unions too, and
    # `vocabulary` checks which kind came.
    BlockField = TextBlock | ReasoningBlock | ToolCallBlock | ToolResultBlock | ImageBlock
    SourceField = UserSource | PluginSource | ModelSource | ToolSource
    _ModelSource = _ToolSource = SourceField
    _OneToolResult = tuple[BlockField, ...]


# Messages

# Equal to "user" and "assistant", but objects of their own: a decoded message that holds one of these had no role.
_USER: Final = cast("Literal['user']", str(b"user", "ascii"))
_ASSISTANT: Final = cast("Literal['assistant']", str(b"assistant", "ascii"))


class Message(Struct, frozen=True, kw_only=True, gc=False):
    """A message of any role, as plugins log them; ``id`` is unique (a UUID when this library makes it)."""

    id: NonEmpty
    role: Literal["system", "user", "assistant"]
    source: SourceField
    content: tuple[BlockField, ...]


class UserMessage(Struct, frozen=True, kw_only=True, gc=False):
    """A prompt, injected context or a steering message: what the model reads as the user's."""

    id: NonEmpty
    role: Literal["user"] = _USER
    source: SourceField
    content: tuple[BlockField, ...]


class AssistantMessage(Struct, frozen=True, kw_only=True, gc=False):
    """What the model answered in one step."""

    id: NonEmpty
    role: Literal["assistant"] = _ASSISTANT
    source: _ModelSource
    content: tuple[BlockField, ...]


class ToolResultMessage(Struct, frozen=True, kw_only=True, gc=False):
    """The answer to one tool call: exactly one tool-result block, for the call that ``source`` names."""

    id: NonEmpty
    role: Literal["user"] = _USER
    source: _ToolSource
    content: _OneToolResult


def role_is_stated(message: UserMessage | AssistantMessage | ToolResultMessage) -> bool:
    """Whether a freshly decoded message had a ``role``; a message that was constructed may have the default."""
    return message.role is not _USER and message.role is not _ASSISTANT


# Accounting, failures, finish reasons


class TokenUsage(_Value, frozen=True, kw_only=True):
    """Token counts of one model call; input and cache counts are disjoint (their sum is billed as input)."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: Maybe[int] = None
    cache_write_tokens: Maybe[int] = None
    reasoning_tokens: Maybe[int] = None


class LlmFailure(_Value, frozen=True, kw_only=True):
    """Why a model call failed; ``code`` is stable (``RATE_LIMIT``, ``QUOTA``, …), ``status`` an HTTP status."""

    message: str
    code: str
    status: Maybe[int | float] = None
    provider_retry_after_ms: Maybe[int | float] = None
    request_id: Maybe[str] = None


class Stop(Kind, frozen=True, kw_only=True, tag="stop"):
    """The model was done."""


class ToolCallsFinish(Kind, frozen=True, kw_only=True, tag="tool-calls"):
    """The model wants tools to run."""


class MaxTokensFinish(Kind, frozen=True, kw_only=True, tag="max-tokens"):
    """The output limit was reached."""


class AbortedFinish(Kind, frozen=True, kw_only=True, tag="aborted"):
    """The call was cancelled."""

    failure: LlmFailure


class ErrorFinish(Kind, frozen=True, kw_only=True, tag="error"):
    """The call failed."""

    failure: LlmFailure


FinishReason: TypeAlias = Stop | ToolCallsFinish | MaxTokensFinish | AbortedFinish | ErrorFinish | Unknown

if TYPE_CHECKING:
    _FinishField: TypeAlias = FinishReason
else:
    _FinishField = Stop | ToolCallsFinish | MaxTokensFinish | AbortedFinish | ErrorFinish


# Stream chunks


class BlockStart(_Chunk, frozen=True, kw_only=True, tag="block-start"):
    """Block number ``index`` of the answer begins; ``block_type`` is the type it will have."""

    index: int
    block_type: str


class TextDelta(_Chunk, frozen=True, kw_only=True, tag="text-delta"):
    """The next piece of a text block."""

    index: int
    text: str


class ReasoningDelta(_Chunk, frozen=True, kw_only=True, tag="reasoning-delta"):
    """The next piece of a reasoning block."""

    index: int
    text: str


class ToolCallDelta(_Chunk, frozen=True, kw_only=True, tag="tool-call-delta"):
    """The next piece of a tool call's arguments."""

    index: int
    id: str
    name: Maybe[str] = None
    arguments_delta: str


class BlockEnd(_Chunk, frozen=True, kw_only=True, tag="block-end"):
    """Block number ``index`` is complete; ``block`` is the authoritative whole."""

    index: int
    block: BlockField


class UsageChunk(_Chunk, frozen=True, kw_only=True, tag="usage"):
    """The call's token counts; comes before the finish."""

    usage: TokenUsage


@json_fields("replay_state")
class FinishChunk(JsonHolder, _Chunk, frozen=True, kw_only=True, tag="finish"):
    """The stream ended; ``replay_state`` is the provider adapter's own JSON."""

    reason: _FinishField
    replay_state: Opaque[Json] = None


StreamChunk: TypeAlias = BlockStart | TextDelta | ReasoningDelta | ToolCallDelta | BlockEnd | UsageChunk | FinishChunk

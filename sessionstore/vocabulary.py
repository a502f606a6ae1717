"""The registry of event types, and how a payload becomes a Struct and a Struct a payload.

``decode_payload`` gives the typed view of a payload, ``validate_payload`` says whether an
append may log it; the two agree on every shape, so what append accepts can be read back.
msgspec does the work where it can, :mod:`sessionstore.shapes` where it cannot.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec
from msgspec import UNSET, Struct, UnsetType

from sessionstore.errors import InvalidEventError
from sessionstore.lossless import decode, encode
from sessionstore.messages import ModelSource, ToolResultBlock, ToolSource, UserMessage, role_is_stated
from sessionstore.opaque import UNREADABLE, json_text, plain
from sessionstore.payloads import (
    AbortCause,
    Aborted,
    AdapterDefaults,
    AssistantChunk,
    AssistantMessageEvent,
    Blocked,
    Completed,
    Disposed,
    EndSeed,
    EpochHeader,
    Errored,
    InjectionTrigger,
    Interrupted,
    LlmCallConfig,
    MaxTokens,
    MessageTrigger,
    RecoveryLost,
    RequestContext,
    RequestHeader,
    RetryTrigger,
    SteeringMessage,
    StepEnd,
    StepStart,
    TodoItem,
    TodoWrite,
    ToolCall,
    ToolError,
    ToolResult,
    ToolSchema,
    TurnEnd,
    TurnEndReason,
    TurnStart,
    TurnTrigger,
)
from sessionstore.shapes import build

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sessionstore.messages import ContentBlock

__all__ = [
    "PAYLOADS",
    "RESERVED_FOR_ROWS",
    "RETIRED_TYPES",
    "ROW_NAMES",
    "SURFACE_TYPES",
    "TYPE_OF",
    "AbortCause",
    "Aborted",
    "AdapterDefaults",
    "AssistantChunk",
    "AssistantMessageEvent",
    "Blocked",
    "Completed",
    "Disposed",
    "EndSeed",
    "EpochHeader",
    "Errored",
    "EventTypes",
    "InjectionTrigger",
    "Interrupted",
    "LlmCallConfig",
    "MaxTokens",
    "MessageTrigger",
    "RecoveryLost",
    "RequestContext",
    "RequestHeader",
    "RetryTrigger",
    "SteeringMessage",
    "StepEnd",
    "StepStart",
    "TodoItem",
    "TodoWrite",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "ToolSchema",
    "TurnEnd",
    "TurnEndReason",
    "TurnStart",
    "TurnTrigger",
    "decode_payload",
    "encode_payload",
    "is_typed",
    "retired_form",
    "validate_payload",
]

PAYLOADS: Final[Mapping[str, type[Struct]]] = MappingProxyType(
    {
        "turn/start": TurnStart,
        "turn/end": TurnEnd,
        "step/start": StepStart,
        "step/end": StepEnd,
        "user/message": UserMessage,
        "assistant/chunk": AssistantChunk,
        "assistant/message": AssistantMessageEvent,
        "tool/call": ToolCall,
        "tool/result": ToolResult,
        "steering/message": SteeringMessage,
        "todo/write": TodoWrite,
        "request/header": RequestHeader,
        "request/context": RequestContext,
        "session/end-seed": EndSeed,
        "recovery/lost": RecoveryLost,
    }
)
"""The payload Struct of each core event type."""

TYPE_OF: Final[Mapping[type[Struct], str]] = MappingProxyType({cls: name for name, cls in PAYLOADS.items()})
"""The event type of each payload Struct."""

RETIRED_TYPES: Final = frozenset({"request/header-delta", "mode/set"})
"""Types of old logs that no reader of this version can replay."""

ROW_NAMES: Final = frozenset({"text-chunks", "reasoning-chunks", "tool-call-chunks"})
"""What packed rows have in the place of a type: a line of such a type is read as a row, so no event may have it."""

SURFACE_TYPES: Final = frozenset({"user/message", "assistant/message", "tool/result", "steering/message"})
"""The types whose events produce messages."""


_decoders: Final[dict[str, Callable[[bytes], Struct]]] = {}


def _make_decoder(type: str) -> Callable[[bytes], Struct] | None:
    # Each when it is first needed: making them all would be a quarter of the import.
    if type in PAYLOADS:
        _decoders[type] = msgspec.json.Decoder(PAYLOADS[type]).decode
    return _decoders.get(type)


_encode: Final = msgspec.json.Encoder().encode


class EventTypes:
    """The plugin event types that one store reads as Structs.

    A registered Struct is a typed view only: payloads that do not fit it are carried as they are.
    """

    def __init__(self, types: Mapping[str, type[Struct]] | None = None) -> None:
        self._types: dict[str, tuple[type[Struct], Callable[[bytes], Struct]]] = {}
        self._names: dict[type[Struct], str] = {}
        for name, struct in ({} if types is None else types).items():
            self.register(name, struct)

    def register(self, type: str, struct: type[Struct]) -> None:
        """Read payloads of events of *type* as *struct*, and let ``append`` take instances of *struct*.

        Raises:
            ValueError: *type* is a core type or registered already, *struct* belongs to another type or is not
                frozen.
            TypeError: *type* is not a str, or *struct* not a Struct class.
        """
        if not isinstance(type, str):
            raise TypeError(f"an event type is a str, got {type.__class__.__name__}")
        if not _is_struct(struct):
            raise TypeError(f"payloads are read as a class made from msgspec.Struct, got {struct!r}")
        if not type or type in PAYLOADS or type in RETIRED_TYPES or type in ROW_NAMES or type in self._types:
            raise ValueError(f"event type {type!r} is taken; a plugin's types begin with its own name")
        if struct in TYPE_OF or struct in self._names:
            raise ValueError(f"{struct.__name__} is the payload of another event type")
        if not struct.__struct_config__.frozen:
            raise ValueError(f"{struct.__name__} must be declared frozen=True: events are immutable")
        self._types[type] = (struct, msgspec.json.Decoder(struct).decode)
        self._names[struct] = type

    def __contains__(self, type: object) -> bool:
        return type in self._types

    def type_of(self, struct: type[Struct]) -> str | None:
        """The event type that *struct* was registered for, ``None`` when it was not."""
        return self._names.get(struct)

    def decode(self, type: str, raw: bytes) -> Struct:
        """The payload *raw* of a registered *type* as its Struct.

        Raises:
            InvalidEventError: it does not fit.
        """
        struct, decoder = self._types[type]
        try:
            return decoder(raw)
        except UNREADABLE:  # lone surrogates and deep nesting need the careful reader; the rest fails there again
            pass
        value = decode(raw)
        try:
            return msgspec.convert(value, struct)
        except UNREADABLE as error:
            place = _PLACE.search(str(error))
        # Not raised from that error: msgspec quotes what it finds in the place of a tag or of one of a few strings.
        raise InvalidEventError(
            f"the payload does not fit {struct.__name__}", event_type=type, path=place[1] if place else None
        )


_PLACE: Final = re.compile(r" - at `(\$[^`]*)`\Z")


def _is_struct(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Struct)


def is_typed(type: str, types: EventTypes | None = None) -> bool:
    """Whether payloads of *type* have a Struct: core types, and those registered in *types*."""
    return type in PAYLOADS or (types is not None and type in types)


def decode_payload(type: str, raw: bytes, types: EventTypes | None = None) -> Struct:
    """Return the payload with JSON text *raw* as the Struct of its event type.

    Raises:
        InvalidEventError: it does not have the type's shape (``path`` says where), or the type has no Struct.
    """
    decoder = _decoders.get(type) or _make_decoder(type)
    if decoder is None:
        if types is None or type not in types:
            raise InvalidEventError("no Struct is known for this event type", event_type=type)
        return types.decode(type, raw)
    payload: Struct | None
    try:
        payload = decoder(raw)
    except UNREADABLE:  # it may quote the payload: what is raised below must not carry it along as its context
        payload = None
    if payload is None:  # unusual or wrong: the careful way tells them apart
        payload = build(PAYLOADS[type], raw, type)
    relation = _RELATIONS.get(type)
    if relation is not None:
        relation(payload)
    return payload


def validate_payload(type: str, raw: bytes, types: EventTypes | None = None) -> Struct | UnsetType:
    """Check what append enforces on the payload with JSON text *raw*, and return its typed view.

    ``UNSET`` is returned for types without a Struct and for plugin payloads that do not fit theirs: both are
    carried as they are.

    Raises:
        InvalidEventError: a retired form, a packed row's name, or a core type's payload of another shape; ``path``
            says where.
    """
    if type in PAYLOADS:
        retired = retired_form(type, raw)
        if retired is None:
            return decode_payload(type, raw)
        raise InvalidEventError(retired, event_type=type, path="$.reason")
    if type in RETIRED_TYPES:
        raise InvalidEventError(_RETIRED, event_type=type)
    if type in ROW_NAMES:
        raise InvalidEventError(RESERVED_FOR_ROWS, event_type=type)
    if types is not None and type in types:
        try:
            return types.decode(type, raw)
        except InvalidEventError:
            pass
    return UNSET


def encode_payload(value: Struct, types: EventTypes | None = None) -> tuple[str, bytes, Struct | UnsetType]:
    """Return the event type, the JSON text and the checked typed view of a payload Struct.

    Raises:
        InvalidEventError: *value* is no payload Struct, not lossless JSON, or not of its type's shape.
    """
    name = TYPE_OF.get(type(value))
    if name is None and types is not None:
        name = types.type_of(type(value))
    if name is None:
        raise InvalidEventError(f"{type(value).__name__} is not the payload of an event type")
    try:
        raw = _encode(value)
        # What msgspec coerced does not read back equal.  Line ends and bytes that are not UTF-8 can only come
        # from a Raw; -0.0 equals 0.0.
        if b"\n" not in raw and b"-0.0" not in raw and (raw.isascii() or raw.decode()):
            payload = decode_payload(name, raw, types)
            if payload == value:
                return name, raw, payload
    except Exception:  # noqa: BLE001, S110 - whatever it was, the careful writer names it
        pass
    raw = encode(plain(value), what=name)
    return name, raw, validate_payload(name, raw, types)


RESERVED_FOR_ROWS: Final = "the name of a packed row, which no event may have as its type"
_RETIRED: Final = "a retired form of old logs, which this version neither reads nor writes"


class _Reason(Struct, gc=False):
    reason: str


_reason: Final = msgspec.json.Decoder(_Reason).decode


def retired_form(type: str, raw: bytes) -> str | None:
    """Say why the payload with JSON text *raw* is of a retired form; ``None`` when it is not."""
    if type in RETIRED_TYPES:
        return _RETIRED
    if type != "request/header":
        return None
    try:
        reason = _reason(raw).reason
    except UNREADABLE:
        value = decode(raw, exact=False)
        if not isinstance(value, dict) or value.get("reason") != "fallback":
            return None
        reason = "fallback"
    return _RETIRED if reason == "fallback" else None


# What the shapes alone do not say: one function per type, run after every decode.


def _refuse(path: str, reason: str, type: str) -> NoReturn:
    raise InvalidEventError(reason, event_type=type, path=path)


def _check_user_message(payload: UserMessage) -> None:
    if not role_is_stated(payload):
        _refuse("$", "'role' is missing", "user/message")


def _check_steering_message(payload: SteeringMessage) -> None:
    if not role_is_stated(payload.message):
        _refuse("$.message", "'role' is missing", "steering/message")


def _check_assistant_message(payload: AssistantMessageEvent) -> None:
    message, name = payload.message, "assistant/message"
    if not role_is_stated(message):
        _refuse("$.message", "'role' is missing", name)
    if not isinstance(message.source, ModelSource):
        _refuse("$.message.source.kind", "expected 'model'", name)
    if payload.interrupted is False:
        _refuse("$.interrupted", "true or absent", name)


def _check_tool_result(payload: ToolResult) -> None:
    message, name = payload.message, "tool/result"
    if not role_is_stated(message):
        _refuse("$.message", "'role' is missing", name)
    if not isinstance(message.source, ToolSource):
        _refuse("$.message.source.kind", "expected 'tool'", name)
    blocks: tuple[ContentBlock, ...] = message.content
    if len(blocks) != 1 or not isinstance(blocks[0], ToolResultBlock):
        _refuse("$.message.content", "expected exactly one tool-result block", name)
    if blocks[0].tool_call_id != message.source.call_id:
        _refuse("$.message.content[0].toolCallId", "not the call that the source names", name)


def _check_turn_end(payload: TurnEnd) -> None:
    reason, name = payload.reason, "turn/end"
    if isinstance(reason, Errored) and reason.error is None:
        if reason.step is None:
            _refuse("$.reason", "an error needs 'step', or 'error'", name)
        if reason.failure is None and reason.message is None:
            _refuse("$.reason", "an error needs 'failure', 'message' or 'error'", name)
    elif isinstance(reason, Aborted):
        cause = reason.reason
        if cause is not None and cause.kind == "hook" and cause.reason is None:
            _refuse("$.reason.reason", "'reason' is missing", name)


def _check_request_header(payload: RequestHeader) -> None:
    marked = payload.header.adapter_defaults
    if marked is None:
        return
    config, path = payload.header.config, "$.header.adapterDefaults"
    if marked.reasoning_effort is False or marked.max_tokens is False:
        _refuse(path, "true or absent", "request/header")
    if marked.reasoning_effort and config.reasoning_effort is None:
        _refuse(f"{path}.reasoningEffort", "marks a config field that is not there", "request/header")
    if marked.max_tokens and json_text(config, "max_tokens") is None:
        _refuse(f"{path}.maxTokens", "marks a config field that is not there", "request/header")


_RELATIONS: Final[Mapping[str, Callable[..., None]]] = MappingProxyType(
    {
        "user/message": _check_user_message,
        "steering/message": _check_steering_message,
        "assistant/message": _check_assistant_message,
        "tool/result": _check_tool_result,
        "turn/end": _check_turn_end,
        "request/header": _check_request_header,
    }
)

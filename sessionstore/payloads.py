"""The payloads of the core events: one frozen Struct per event type, and what they consist of.

Both the shapes that this library writes and those of newer releases of the reference
under the same format version fit.  Fields that no Struct names are not looked at; they
are in the event's JSON.  Users import these names from :mod:`sessionstore`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct

from sessionstore.lossless import Json
from sessionstore.messages import (
    AssistantMessage,
    Kind,
    LlmFailure,
    Maybe,
    NonEmpty,
    SourceField,
    StreamChunk,
    TokenUsage,
    ToolResultMessage,
    UserMessage,
)
from sessionstore.opaque import UNREADABLE, JsonHolder, Opaque, Unknown, json_fields, read_json

__all__ = [
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
]


class _Payload(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Base of the payload Structs."""


# What starts and ends a turn


class MessageTrigger(Kind, frozen=True, kw_only=True, tag="message"):
    """A message started the turn."""

    source: SourceField


class RetryTrigger(Kind, frozen=True, kw_only=True, tag="retry"):
    """The turn repeats a failed one."""


class InjectionTrigger(Kind, frozen=True, kw_only=True, tag="injection"):
    """Context that was injected between turns started the turn."""

    source: SourceField


class Completed(Kind, frozen=True, kw_only=True, tag="completed"):
    """The model was done."""


class AbortCause(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Who aborted: ``user``, ``parent``, ``hook`` (with its ``reason``), ``disposed`` or ``legacy``."""

    kind: NonEmpty
    reason: Maybe[str] = None


class Aborted(Kind, frozen=True, kw_only=True, tag="aborted"):
    """The turn was cancelled; ``reason`` is recorded by newer releases of the reference."""

    reason: Maybe[AbortCause] = None


class Errored(Kind, frozen=True, kw_only=True, tag="error"):
    """The turn failed: ``step`` with ``failure`` or ``message`` (and ``code``); newer releases write ``error``."""

    step: Maybe[int] = None
    failure: Maybe[LlmFailure] = None
    message: Maybe[str] = None
    code: Maybe[str] = None
    error: Maybe[LlmFailure] = None


class Disposed(Kind, frozen=True, kw_only=True, tag="disposed"):
    """The session was disposed while the turn ran."""


class Blocked(Kind, frozen=True, kw_only=True, tag="blocked"):
    """A hook refused the prompt (newer releases of the reference)."""


class MaxTokens(Kind, frozen=True, kw_only=True, tag="max-tokens"):
    """The model's output limit ended the turn."""


class Interrupted(Kind, frozen=True, kw_only=True, tag="interrupted"):
    """Recovery closed a turn that a crash had left open."""


TurnTrigger: TypeAlias = MessageTrigger | RetryTrigger | InjectionTrigger | Unknown
TurnEndReason: TypeAlias = Completed | Aborted | Errored | Disposed | Blocked | MaxTokens | Interrupted | Unknown

if TYPE_CHECKING:
    _TriggerField: TypeAlias = TurnTrigger
    _ReasonField: TypeAlias = TurnEndReason
else:
    # As in `messages`: without Unknown, which msgspec cannot tell by a tag.
    _TriggerField = MessageTrigger | RetryTrigger | InjectionTrigger
    _ReasonField = Completed | Aborted | Errored | Disposed | Blocked | MaxTokens | Interrupted


# Turns, steps, messages, tools


class TurnStart(_Payload, frozen=True, kw_only=True):
    """Turn number ``turn`` begins; newer releases of the reference record no trigger."""

    turn: int
    trigger: Maybe[_TriggerField] = None


class TurnEnd(_Payload, frozen=True, kw_only=True):
    """Turn number ``turn`` ended."""

    turn: int
    reason: _ReasonField


class StepStart(_Payload, frozen=True, kw_only=True):
    """A step begins: one model call and the tools that it asks for."""

    turn: int
    step: int


class StepEnd(_Payload, frozen=True, kw_only=True):
    """The step ended."""

    turn: int
    step: int


class AssistantChunk(_Payload, frozen=True, kw_only=True):
    """One piece of the model's stream, as it arrived."""

    turn: int
    step: int
    chunk: StreamChunk


class AssistantMessageEvent(_Payload, frozen=True, kw_only=True):
    """The assembled answer of a step; ``interrupted`` is ``True`` or absent."""

    turn: int
    step: int
    message: AssistantMessage
    usage: Maybe[TokenUsage] = None
    interrupted: Maybe[bool] = None


class ToolCall(_Payload, frozen=True, kw_only=True):
    """A tool is about to run; ``arguments`` is the JSON text as the model wrote it."""

    turn: int
    step: int
    call_id: str
    name: str
    arguments: str


class ToolError(_Payload, frozen=True, kw_only=True):
    """The identity of a tool's failure."""

    name: str
    code: str


@json_fields("meta")
class ToolResult(JsonHolder, _Payload, frozen=True, kw_only=True):
    """What a tool call gave back; ``meta`` is the tool's own JSON."""

    turn: int
    step: int
    message: ToolResultMessage
    error: Maybe[ToolError] = None
    meta: Opaque[Json] = None


class SteeringMessage(_Payload, frozen=True, kw_only=True):
    """A message put into a running turn between steps."""

    turn: int
    message: UserMessage


class TodoItem(_Payload, frozen=True, kw_only=True):
    """One entry of the to-do list."""

    content: str
    status: Literal["pending", "in_progress", "completed"]


class TodoWrite(_Payload, frozen=True, kw_only=True):
    """The whole to-do list; the latest one counts."""

    todos: tuple[TodoItem, ...]


# Request state


@json_fields("parameters")
class ToolSchema(JsonHolder, _Payload, frozen=True, kw_only=True):
    """A tool as the model sees it; ``parameters`` is a JSON schema."""

    name: str
    description: str
    parameters: Opaque[Mapping[str, Json]]


_read_schemas: Final = msgspec.json.Decoder(tuple[ToolSchema, ...]).decode


def _tools(raw: Raw) -> object:
    try:
        return _read_schemas(raw)
    except UNREADABLE:  # not tool schemas: the reader gets what is there
        return read_json(raw)


@json_fields("temperature", "max_tokens", "stop")
class LlmCallConfig(JsonHolder, _Payload, frozen=True, kw_only=True):
    """How the model is called.

    Only ``provider``, ``model`` and ``reasoning_effort`` are checked: the others are what the log says.
    """

    provider: NonEmpty
    model: NonEmpty
    reasoning_effort: Maybe[NonEmpty] = None
    temperature: Opaque[float | None] = None
    max_tokens: Opaque[int | None] = None
    stop: Opaque[tuple[str, ...] | None] = None


class AdapterDefaults(_Payload, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which config fields the provider adapter filled in: ``True`` or absent."""

    reasoning_effort: Maybe[bool] = None
    max_tokens: Maybe[bool] = None


@json_fields("system", tools=_tools)
class EpochHeader(JsonHolder, _Payload, frozen=True, kw_only=True):
    """What a model request consists of besides its messages.

    ``system`` and ``tools`` are not checked: where the log holds something else than a string or tool schemas,
    they are that value as read-only JSON.
    """

    config: LlmCallConfig
    adapter_defaults: Maybe[AdapterDefaults] = None
    system: Opaque[str | None] = None
    tools: Opaque[tuple[ToolSchema, ...] | None] = None


class RequestHeader(_Payload, frozen=True, kw_only=True):
    """The full header of the next request."""

    header: EpochHeader
    reason: Literal["initial", "resume", "change"]


class RequestContext(_Payload, frozen=True, kw_only=True):
    """The context capacity of the route that a request took, in tokens."""

    provider: str
    model: str
    context_window: Maybe[int | float] = None


class EndSeed(_Payload, frozen=True, kw_only=True):
    """The end of a seed (newer releases of the reference)."""


class RecoveryLost(_Payload, frozen=True, kw_only=True):
    """Stands where repair could not read an event; ``offset`` and ``length`` are bytes of the damaged original."""

    reason: str
    offset: int
    length: int

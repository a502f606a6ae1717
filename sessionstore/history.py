"""What the model sees: messages, request header and context, derived from events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from msgspec.structs import replace

from sessionstore.errors import InvalidEventError
from sessionstore.events import Replace, check_event, only_events
from sessionstore.legacy import legacy_message, legacy_message_id
from sessionstore.lossless import Json, decode, encode, freeze, json_equal
from sessionstore.messages import AssistantMessage, ToolResultMessage, UserMessage
from sessionstore.opaque import json_text, plain
from sessionstore.vocabulary import (
    SURFACE_TYPES,
    AdapterDefaults,
    AssistantMessageEvent,
    EpochHeader,
    LlmCallConfig,
    RequestContext,
    RequestHeader,
    SteeringMessage,
    ToolResult,
    decode_payload,
)

if TYPE_CHECKING:
    from sessionstore.events import Event

__all__ = [
    "DerivedMessage",
    "EventAt",
    "History",
    "canonical_header",
    "derive_event_message",
    "fold_request_context",
    "fold_request_header",
    "headers_equal",
]

DerivedMessage: TypeAlias = UserMessage | AssistantMessage | ToolResultMessage | Mapping[str, Json]
"""A message of the history: a Struct, or read-only JSON where a log holds a message that fits none."""

EventAt: TypeAlias = Callable[[int], "Event"]
"""Returns the event with a given seq."""


def derive_event_message(
    event: Event, session_id: str | None = None, event_at: EventAt | None = None
) -> DerivedMessage | None:
    """Return the message that one event stands for, ``None`` where it stands for none.

    *session_id* names messages of old logs, which have no id; *event_at* finds what such a message replaces,
    whose id it takes.

    Raises:
        InvalidEventError: the event's text holds a number that cannot be read without loss.
    """
    message = _message(check_event(event), session_id, event_at)
    content = message.get("content") if isinstance(message, Mapping) else getattr(message, "content", None)
    if event.type == "assistant/message" and not content:
        return None  # it exists to carry usage
    return message


def _message(event: Event, session_id: str | None, event_at: EventAt | None) -> DerivedMessage | None:
    if event.type not in SURFACE_TYPES:
        return None
    data = event.data
    if isinstance(data, UserMessage):
        return data
    if isinstance(data, (SteeringMessage, ToolResult, AssistantMessageEvent)):
        return data.message
    if not isinstance(data, Mapping):
        return None
    old = legacy_message(event.type, data)
    if old is not None:
        return _typed(event.type, {"id": _legacy_id(event, session_id or "", event_at), **old})
    message = data if event.type == "user/message" else data.get("message")
    return _typed(event.type, message) if isinstance(message, Mapping) else None


_WRAPPED: Final[Mapping[str, bytes]] = {
    "user/message": b"%b",
    "steering/message": b'{"turn":0,"message":%b}',
    "assistant/message": b'{"turn":0,"step":0,"message":%b}',
    "tool/result": b'{"turn":0,"step":0,"message":%b}',
}


def _typed(event_type: str, message: Mapping[str, Json]) -> DerivedMessage:
    """The Struct of a message whose payload has none, if the message by itself is well-formed."""
    value = cast("dict[str, Json]", plain(message))
    try:
        payload = decode_payload(event_type, _WRAPPED[event_type] % encode(value))
    except InvalidEventError:
        frozen = freeze(value)
        return frozen if isinstance(frozen, Mapping) else message
    if isinstance(payload, (SteeringMessage, ToolResult, AssistantMessageEvent)):
        return payload.message
    return payload if isinstance(payload, UserMessage) else message


def _legacy_id(event: Event, session_id: str, event_at: EventAt | None) -> str:
    """The id of a message without one: that of the one message it replaces, else one made from its seq."""
    while True:
        replaced = _replaced(event, event_at)
        if replaced is None:
            return legacy_message_id(session_id, event.seq)
        if not isinstance(replaced.data, Mapping) or legacy_message(replaced.type, replaced.data) is None:
            break
        event = replaced
    message = _message(replaced, session_id, event_at)
    found = message.get("id") if isinstance(message, Mapping) else getattr(message, "id", None)
    return found if isinstance(found, str) else legacy_message_id(session_id, event.seq)


def _replaced(event: Event, event_at: EventAt | None) -> Event | None:
    op = event.surface_op
    if event_at is None or not isinstance(op, Replace) or op.start != op.end or not 0 <= op.start < event.seq:
        return None
    return event_at(op.start)


class History:
    """The derived messages of one session, kept up to date: each surface node is projected once."""

    def __init__(self, session_id: str, event_at: EventAt) -> None:
        self._session_id = session_id
        self._event_at = event_at
        self._projected: dict[int, DerivedMessage | None] = {}
        self._messages: list[DerivedMessage] = []
        self._nodes = 0
        self._generation = 0

    def messages(self, nodes: Sequence[int], replace_generation: int) -> list[DerivedMessage]:
        """Return the messages of *nodes* as a fresh list; the messages are shared.

        *replace_generation* counts replacements: while it stays, *nodes* has only grown at its end.
        """
        if replace_generation != self._generation or len(nodes) < self._nodes:
            self._projected = {seq: self._projected[seq] for seq in nodes if seq in self._projected}
            self._messages, self._nodes, self._generation = [], 0, replace_generation
        for seq in nodes[self._nodes :]:
            if seq not in self._projected:
                self._projected[seq] = self._derive(self._event_at(seq))
            message = self._projected[seq]
            if message is not None:
                self._messages.append(message)
            self._nodes += 1
        return list(self._messages)

    def project(self, event: Event) -> DerivedMessage | None:
        """Return the message that *event* stands for: the history's own object where it is one of its nodes."""
        message = self._derive(event)
        shared = self._projected.get(event.seq)
        return shared if message == shared else message

    def _derive(self, event: Event) -> DerivedMessage | None:
        return derive_event_message(event, self._session_id, self._event_at)


# Request header and context


def fold_request_header(events: Iterable[Event], start: EpochHeader | None = None) -> EpochHeader | None:
    """Return the request header in force after *events*, in canonical form; *start* is the one before them.

    The last ``request/header`` event decides; one without provider and model leaves no header.
    """
    header = start
    for event in only_events(events):
        if event.type == "request/header":
            data = event.data
            found = data.header if isinstance(data, RequestHeader) else _odd_header(data)
            header = None if found is None else canonical_header(found)
    return header


def canonical_header(header: EpochHeader) -> EpochHeader:
    """Return *header* without what says nothing: an empty system prompt, no tools, no marker that is true."""
    empty = [name for name, kind in (("system", str), ("tools", (str, list))) if _says_nothing(header, name, kind)]
    marked = header.adapter_defaults
    if marked is not None and not (marked.reasoning_effort or marked.max_tokens):
        empty.append("adapter_defaults")
    return replace(header, **dict.fromkeys(empty)) if empty else header


def _says_nothing(header: EpochHeader, name: str, kinds: type | tuple[type, ...]) -> bool:
    raw = json_text(header, name)
    if raw is None:
        return False
    value = decode(raw)
    return not isinstance(value, kinds) or not value


def headers_equal(a: EpochHeader, b: EpochHeader) -> bool:
    """Whether two headers ask for the same request: config, markers, system and tools, field by field.

    Both are compared in canonical form.  An absent stop list differs from an empty one; tools compare in order
    by their JSON text, so the order of keys inside a tool counts: the model reads that text.
    """
    a, b = canonical_header(a), canonical_header(b)
    mine, theirs = a.config, b.config
    return (
        (mine.provider, mine.model, mine.reasoning_effort) == (theirs.provider, theirs.model, theirs.reasoning_effort)
        and all(_same_setting(mine, theirs, name) for name in ("temperature", "max_tokens", "stop"))
        and _markers(a) == _markers(b)
        and all(_compact(a, name) == _compact(b, name) for name in ("system", "tools"))
    )


def _same_setting(a: LlmCallConfig, b: LlmCallConfig, name: str) -> bool:
    mine, theirs = json_text(a, name), json_text(b, name)
    if mine is None or theirs is None:
        return mine is theirs
    x, y = decode(mine), decode(theirs)
    if isinstance(x, float) or isinstance(y, float):  # a temperature of 1 is one of 1.0
        return x == y and not isinstance(x, bool) and not isinstance(y, bool)
    return json_equal(x, y)


def _markers(header: EpochHeader) -> tuple[bool, bool]:
    marked = header.adapter_defaults
    return (False, False) if marked is None else (bool(marked.reasoning_effort), bool(marked.max_tokens))


def _compact(header: EpochHeader, name: str) -> bytes | None:
    raw = json_text(header, name)
    return None if raw is None else encode(decode(raw))


def _odd_header(data: object) -> EpochHeader | None:
    """What can be used of a header that append would refuse and a seed carries."""
    header = _mapping(_mapping(data).get("header"))
    config = _mapping(header.get("config"))
    provider, model, effort = config.get("provider"), config.get("model"), config.get("reasoningEffort")
    if not (isinstance(provider, str) and provider and isinstance(model, str) and model):
        return None
    marked = _mapping(header.get("adapterDefaults"))
    settings = {name: config.get(key) for name, key in _SETTINGS.items()}
    return EpochHeader(
        config=LlmCallConfig(
            provider=provider,
            model=model,
            reasoning_effort=effort if isinstance(effort, str) and effort else None,
            **cast("dict[str, Any]", settings),
        ),
        adapter_defaults=AdapterDefaults(
            reasoning_effort=marked.get("reasoningEffort") is True or None,
            max_tokens=marked.get("maxTokens") is True or None,
        ),
        **cast("dict[str, Any]", {name: header.get(name) for name in ("system", "tools")}),
    )


_SETTINGS: Final = {"temperature": "temperature", "max_tokens": "maxTokens", "stop": "stop"}


def _mapping(value: object) -> Mapping[str, Json]:
    return cast("Mapping[str, Json]", value) if isinstance(value, Mapping) else {}


def fold_request_context(events: Iterable[Event], start: RequestContext | None = None) -> RequestContext | None:
    """Return the request context in force after *events*; *start* is the one before them.

    The last ``request/context`` event decides; one that is not of that shape leaves no context.
    """
    context = start
    for event in only_events(events):
        if event.type == "request/context":
            data = event.data
            context = data if isinstance(data, RequestContext) else None
    return context

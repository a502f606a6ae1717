"""What a seed refuses, that it carries everything else, and that it accepts whatever append accepts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given

from sessionstore.errors import InvalidEventError, UnsupportedFormatError
from sessionstore.events import Event
from sessionstore.lossless import encode
from sessionstore.seeds import check_seed_event
from sessionstore.vocabulary import SURFACE_TYPES
from tests.payload_cases import EXAMPLES, RESULT, TYPED_PAYLOADS, JsonDict


def event(name: str, data: object, *, marked: bool | None = None) -> Event:
    """An event of a log, on the surface when its type belongs there."""
    tail = b',"surfaceOp":"append"' if (name in SURFACE_TYPES if marked is None else marked) else b""
    raw = data if isinstance(data, bytes) else encode(data)
    return Event.from_json(b'{"type":%b,"seq":7,"time":0,"data":%b%b}' % (encode(name), raw, tail))


def put(value: JsonDict, path: str, new: object) -> JsonDict:
    """A copy of *value* with *new* at the dotted *path*; ``...`` removes what is there."""
    changed = copy.deepcopy(value)
    at: Any = changed
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in steps:
        at = at[step]
    if new is ...:
        del at[last]
    else:
        at[last] = new
    return changed


@pytest.mark.slow
@given(TYPED_PAYLOADS)
def test_a_seed_takes_every_payload_that_append_takes(case: tuple[str, JsonDict]) -> None:
    """Load is never stricter than append, whatever the payload."""
    check_seed_event(event(*case))


REFUSED: list[tuple[str, str, object, str]] = [
    ("user/message", "id", ..., "$.id"),
    ("user/message", "id", "", "$.id"),
    ("user/message", "id", 1, "$.id"),
    ("user/message", "role", "assistant", "$.role"),
    ("user/message", "role", ..., "$.role"),
    ("user/message", "source", ..., "$.source"),
    ("user/message", "source", [], "$.source"),
    ("user/message", "source", {}, "$.source.kind"),
    ("user/message", "source", {"kind": ""}, "$.source.kind"),
    ("user/message", "content", "hi", "$.content"),
    ("user/message", "content", ..., "$.content"),
    ("steering/message", "message", ..., "$.message"),
    ("steering/message", "message.id", ..., "$.message.id"),
    ("steering/message", "message.role", "system", "$.message.role"),
    ("assistant/message", "message", [], "$.message"),
    ("assistant/message", "message.role", "user", "$.message.role"),
    ("assistant/message", "message.source", {"kind": "user"}, "$.message.source.kind"),
    ("assistant/message", "message.source.provider", ..., "$.message.source.provider"),
    ("assistant/message", "message.source.model", "", "$.message.source.model"),
    ("assistant/message", "message.content", {}, "$.message.content"),
    ("tool/result", "message.source", {"kind": "user"}, "$.message.source.kind"),
    ("tool/result", "message.source", {"kind": "tool"}, "$.message.source.callId"),
    ("tool/result", "message.content", [], "$.message.content"),
    ("tool/result", "message.content", RESULT["content"] * 2, "$.message.content"),
    ("tool/result", "message.content.0", {"type": "text", "text": "t"}, "$.message.content"),
    ("tool/result", "message.content.0", "t", "$.message.content"),
    ("tool/result", "message.content.0.toolCallId", "other", "$.message.content[0].toolCallId"),
    ("request/header", "header", ..., "$.header"),
    ("request/header", "header.config", [], "$.header.config"),
    ("request/header", "header.config.provider", ..., "$.header.config.provider"),
    ("request/header", "header.config.provider", "", "$.header.config.provider"),
    ("request/header", "header.config.model", 1, "$.header.config.model"),
]


@pytest.mark.parametrize(("name", "path", "new", "where"), REFUSED)
def test_what_cannot_be_replayed_is_refused(name: str, path: str, new: object, where: str) -> None:
    """Each rule by itself, with type, seq and path in the error."""
    with pytest.raises(InvalidEventError) as caught:
        check_seed_event(event(name, put(EXAMPLES[name], path, new)))
    assert (caught.value.event_type, caught.value.seq, caught.value.path) == (name, 7, where)


@pytest.mark.parametrize("name", [*sorted(SURFACE_TYPES), "request/header"])
@pytest.mark.parametrize("data", [None, [], "x", 1, {}])
def test_payloads_that_hold_no_message_or_header_are_refused(name: str, data: object) -> None:
    """Anything but an object with the right things in it."""
    with pytest.raises(InvalidEventError):
        check_seed_event(event(name, data))


CARRIED: list[tuple[str, str, object]] = [
    # Deviations from what append enforces that do not keep a log from being replayed.
    ("turn/start", "turn", "one"),
    ("turn/end", "reason", {"kind": "error"}),
    ("step/start", "step", ...),
    ("assistant/chunk", "chunk", {"type": "audio-delta"}),
    ("tool/call", "arguments", {}),
    ("todo/write", "todos", "all"),
    ("request/context", "contextWindow", None),
    ("user/message", "content", [1, None, {"no": "type"}]),
    ("user/message", "source", {"kind": "plugin"}),
    ("assistant/message", "turn", ...),
    ("assistant/message", "usage", None),
    ("assistant/message", "interrupted", False),
    ("assistant/message", "message.content", ["x"]),
    ("tool/result", "error", "E"),
    ("tool/result", "message.content.0.content", "text"),
    ("tool/result", "message.content.0.isError", 1),
    ("request/header", "reason", "because"),
    ("request/header", "header.config.reasoningEffort", ""),
    ("request/header", "header.adapterDefaults", {"maxTokens": True}),
    ("session/end-seed", "any", 1),
    ("recovery/lost", "offset", "x"),
]


@pytest.mark.parametrize(("name", "path", "new"), CARRIED)
def test_other_deviations_are_carried_as_read_only_json(name: str, path: str, new: object) -> None:
    """Reading is liberal: the event stays, and its data is a mapping where it fits no Struct."""
    data = put(EXAMPLES[name], path, new)
    seen = event(name, data)
    check_seed_event(seen)
    assert seen.data_json == encode(data)
    if name != "session/end-seed":
        assert hasattr(seen.data, "keys")


@pytest.mark.parametrize("name", ["request/header-delta", "mode/set"])
def test_retired_types_are_unsupported(name: str) -> None:
    """Not damaged, not invalid: written by an old version."""
    with pytest.raises(UnsupportedFormatError) as caught:
        check_seed_event(event(name, {}))
    assert caught.value.direction == "retired"


def test_a_fallback_header_is_unsupported_even_without_a_provider() -> None:
    """The retired form is recognised before its contents are judged."""
    with pytest.raises(UnsupportedFormatError) as caught:
        check_seed_event(event("request/header", {"header": {}, "reason": "fallback"}))
    assert caught.value.direction == "retired"


@pytest.mark.parametrize("name", ["context/message", "prompt/blocked"])
def test_old_surface_types_are_unsupported_with_a_marker_and_carried_without(name: str) -> None:
    """Where they stood on the surface, the history cannot be derived any more."""
    check_seed_event(event(name, {"content": [], "source": {"kind": "user"}}, marked=False))
    with pytest.raises(UnsupportedFormatError):
        check_seed_event(event(name, {"content": [], "source": {"kind": "user"}}, marked=True))
    odd = Event.from_json(b'{"type":%b,"seq":7,"time":0,"data":{},"surfaceOp":7}' % encode(name))
    with pytest.raises(UnsupportedFormatError):
        check_seed_event(odd)


def test_numbers_that_only_a_reader_would_refuse_do_not_matter() -> None:
    """Text of a log is kept: -0.0 in a field that nobody checks is no reason to refuse a session."""
    for source in (b'{"kind":"user","x":-0.0}', b'{"kind":"from-the-future","x":-0.0}'):
        check_seed_event(event("user/message", b'{"id":"m","role":"user","content":[],"source":%b}' % source))


def test_lone_surrogates_and_depth_do_not_matter() -> None:
    """What msgspec cannot read is judged by the same rules."""
    check_seed_event(event("user/message", put(EXAMPLES["user/message"], "content.0.text", "\ud83d")))
    deep: object = 1
    for _ in range(3000):
        deep = [deep]
    check_seed_event(event("user/message", {**EXAMPLES["user/message"], "deep": deep}))
    with pytest.raises(InvalidEventError):
        check_seed_event(event("user/message", {**EXAMPLES["user/message"], "id": "", "deep": deep}))


def test_types_that_nobody_knows_are_not_looked_at() -> None:
    """Plugin events are their plugins' affair."""
    check_seed_event(event("compact/start", None))
    check_seed_event(event("", [1]))

"""Payloads and Structs: what fits, what is refused and where, and that the fast and the careful way agree."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore.errors import InvalidEventError
from sessionstore.lossless import decode, encode
from sessionstore.messages import (
    BlockEnd,
    FinishChunk,
    TextBlock,
    TextDelta,
    TokenUsage,
    ToolResultBlock,
    Unknown,
    UserMessage,
    UserSource,
)
from sessionstore.opaque import UNREADABLE, plain
from sessionstore.shapes import MAX_BLOCK_DEPTH, build
from sessionstore.vocabulary import (
    PAYLOADS,
    SURFACE_TYPES,
    TYPE_OF,
    AssistantChunk,
    AssistantMessageEvent,
    EventTypes,
    RequestHeader,
    StepStart,
    TodoItem,
    TodoWrite,
    ToolResult,
    TurnEnd,
    TurnStart,
    decode_payload,
    encode_payload,
    is_typed,
    retired_form,
    validate_payload,
)
from tests.paths import NO_REAL_LOGS, REAL_LOGS
from tests.payload_cases import ASSISTANT, EXAMPLES, RESULT, TYPED_PAYLOADS, USER, JsonDict


def refused(event_type: str, value: object) -> InvalidEventError:
    """The error with which both append and the typed view refuse *value*."""
    raw = encode(value)
    with pytest.raises(InvalidEventError) as appended:
        validate_payload(event_type, raw)
    with pytest.raises(InvalidEventError):
        decode_payload(event_type, raw)
    return appended.value


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


# Properties


@pytest.mark.slow
@given(TYPED_PAYLOADS)
def test_every_payload_reads_as_its_struct_and_the_struct_writes_a_payload_that_reads_the_same(
    case: tuple[str, JsonDict],
) -> None:
    """Decode -> encode -> decode is the identity on Structs of every type, unknown kinds included."""
    name, value = case
    payload = decode_payload(name, encode(value))
    assert type(payload) is PAYLOADS[name]
    written_type, raw, again = encode_payload(payload)
    assert (written_type, again) == (name, payload)
    assert decode_payload(name, raw) == payload


@pytest.mark.slow
@given(TYPED_PAYLOADS)
def test_the_careful_reader_builds_what_the_fast_decoder_builds(case: tuple[str, JsonDict]) -> None:
    """Where msgspec takes a payload, the careful reader gives an equal Struct."""
    name, value = case
    raw = encode(value)
    try:
        fast = msgspec.json.decode(raw, type=PAYLOADS[name])
    except UNREADABLE:
        fast = None  # a kind of an open union that msgspec does not know
    careful = build(PAYLOADS[name], raw, name)
    assert fast is None or careful == fast


@pytest.mark.slow
@given(TYPED_PAYLOADS, st.data())
def test_fast_and_careful_reader_refuse_the_same_mutations(case: tuple[str, JsonDict], data: st.DataObject) -> None:
    """A payload with one value removed or replaced: msgspec never takes what the careful reader refuses."""
    name, value = case
    places = list(_places(value))
    if not places:
        return
    owner, key = data.draw(st.sampled_from(places))
    if data.draw(st.booleans()):
        owner[key] = data.draw(st.sampled_from([None, True, 0, -1, 0.5, "", "x", [], {}, [None]]))
    else:
        del owner[key]
    raw = encode(value)
    try:
        careful: object = build(PAYLOADS[name], raw, name)
    except InvalidEventError:
        careful = None
    try:
        fast: object = msgspec.json.decode(raw, type=PAYLOADS[name])
    except UNREADABLE:
        fast = None
    if fast is not None:
        assert careful == fast


def _places(value: object) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    work = [value]
    while work:
        item = work.pop()
        if isinstance(item, (dict, list)):
            keys = list(item) if isinstance(item, dict) else list(range(len(item)))
            found.extend((item, key) for key in keys)
            work.extend(item[key] for key in keys)
    return found


@pytest.mark.slow
@given(TYPED_PAYLOADS)
def test_payload_structs_are_values(case: tuple[str, JsonDict]) -> None:
    """Structs hash, compare and survive pickling and copying; a copy of the JSON gives an equal Struct."""
    name, value = case
    payload = decode_payload(name, encode(value))
    twin = decode_payload(name, encode(copy.deepcopy(value)))
    assert payload == twin
    assert hash(payload) == hash(twin)
    assert pickle.loads(pickle.dumps(payload)) == payload
    assert copy.deepcopy(payload) == payload


@pytest.mark.slow
@given(TYPED_PAYLOADS)
def test_plain_undoes_what_a_struct_does(case: tuple[str, JsonDict]) -> None:
    """``plain`` of a Struct is the payload again, but for fields that no Struct names."""
    name, value = case
    payload = decode_payload(name, encode(value))
    again = plain(payload)
    assert isinstance(again, dict)
    assert decode_payload(name, encode(again)) == payload
    assert again.keys() <= value.keys()


# The registry


def test_the_registry_maps_types_and_structs_both_ways() -> None:
    """Every type has one Struct and every Struct one type; the surface types are among them."""
    assert {TYPE_OF[struct] for struct in PAYLOADS.values()} == set(PAYLOADS)
    assert set(PAYLOADS) >= SURFACE_TYPES
    assert EXAMPLES.keys() == PAYLOADS.keys()


@pytest.mark.parametrize("name", PAYLOADS)
def test_one_example_of_each_type_is_accepted(name: str) -> None:
    """The plain example of every type passes append's check and is what the typed view shows."""
    raw = encode(EXAMPLES[name])
    assert validate_payload(name, raw) == decode_payload(name, raw)


@pytest.mark.parametrize("name", PAYLOADS)
@pytest.mark.parametrize("value", [None, True, 1, "x", [], [{}]])
def test_a_payload_that_is_no_object_is_refused(name: str, value: object) -> None:
    """Core payloads are objects; the error names the type and the root path."""
    error = refused(name, value)
    assert (error.event_type, error.path) == (name, "$")


# Shapes of both ages

ERROR = {"message": "m", "code": "RATE_LIMIT", "status": 429, "providerRetryAfterMs": 1.5, "requestId": "r"}

ACCEPTED: list[tuple[str, JsonDict]] = [
    ("turn/start", {"turn": 1}),
    ("turn/start", {"turn": 1, "trigger": {"kind": "retry"}}),
    ("turn/start", {"turn": 1, "trigger": {"kind": "cron", "at": [1]}}),
    ("turn/end", {"turn": 1, "reason": {"kind": "aborted"}}),
    ("turn/end", {"turn": 1, "reason": {"kind": "aborted", "reason": {"kind": "user"}}}),
    ("turn/end", {"turn": 1, "reason": {"kind": "aborted", "reason": {"kind": "hook", "reason": "no"}}}),
    ("turn/end", {"turn": 1, "reason": {"kind": "aborted", "reason": {"kind": "legacy"}}}),
    ("turn/end", {"turn": 1, "reason": {"kind": "error", "step": 2, "failure": ERROR}}),
    ("turn/end", {"turn": 1, "reason": {"kind": "error", "step": 2, "message": "m"}}),
    ("turn/end", {"turn": 1, "reason": {"kind": "error", "step": 2, "message": "m", "code": "c"}}),
    ("turn/end", {"turn": 1, "reason": {"kind": "error", "error": ERROR}}),
    ("turn/end", {"turn": 1, "reason": {"kind": "blocked"}}),
    ("turn/end", {"turn": 1, "reason": {"kind": "disposed"}}),
    ("turn/end", {"turn": 1, "reason": {"kind": "rejected", "reason": "r"}}),
    ("step/start", {"turn": 1, "step": 1, "anything": {"else": None}}),
    ("assistant/message", {"turn": 1, "step": 1, "message": ASSISTANT, "interrupted": True}),
    ("assistant/message", {"turn": 1, "step": 1, "message": {**ASSISTANT, "content": []}}),
    ("tool/result", {"turn": 1, "step": 1, "message": RESULT, "error": {"name": "E", "code": "C"}, "meta": None}),
    ("request/context", {"provider": "p", "model": "m"}),
    ("request/context", {"provider": "p", "model": "m", "contextWindow": 1.5}),
    ("todo/write", {"todos": []}),
    ("user/message", {**USER, "content": []}),
    ("user/message", {**USER, "source": {"kind": "goal", "goalId": "g", "revision": 1}}),
    ("user/message", {**USER, "source": {"kind": "plugin", "plugin": "p", "form": 7}}),
    ("user/message", {**USER, "content": [{"type": "video", "url": None}]}),
]


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_shapes_of_both_ages_are_accepted(name: str, value: JsonDict) -> None:
    """Forms that only one age of the reference writes fit the same Struct."""
    assert type(validate_payload(name, encode(value))) is PAYLOADS[name]


REFUSED: list[tuple[str, str, object, str]] = [
    # type, path to change in the example, new value, path in the error
    ("turn/start", "turn", ..., "$"),
    ("turn/start", "turn", True, "$.turn"),
    ("turn/start", "turn", "1", "$.turn"),
    ("turn/start", "turn", 1.5, "$.turn"),
    ("turn/start", "trigger", None, "$.trigger"),
    ("turn/start", "trigger", {}, "$.trigger"),
    ("turn/start", "trigger", {"kind": ""}, "$.trigger.kind"),
    ("turn/start", "trigger", {"kind": 1}, "$.trigger.kind"),
    ("turn/start", "trigger", {"kind": "injection"}, "$.trigger"),
    ("turn/start", "trigger.source", "user", "$.trigger.source"),
    ("turn/end", "reason", ..., "$"),
    ("turn/end", "reason", "completed", "$.reason"),
    ("turn/end", "reason", {"kind": "error"}, "$.reason"),
    ("turn/end", "reason", {"kind": "error", "step": 1}, "$.reason"),
    ("turn/end", "reason", {"kind": "error", "message": "m"}, "$.reason"),
    ("turn/end", "reason", {"kind": "error", "error": {"message": "m"}}, "$.reason.error"),
    (
        "turn/end",
        "reason",
        {"kind": "error", "step": 1, "failure": {**ERROR, "status": "4"}},
        "$.reason.failure.status",
    ),
    ("turn/end", "reason", {"kind": "aborted", "reason": "user"}, "$.reason.reason"),
    ("turn/end", "reason", {"kind": "aborted", "reason": {"kind": "hook"}}, "$.reason.reason"),
    ("step/start", "step", None, "$.step"),
    ("step/end", "step", ..., "$"),
    ("user/message", "id", ..., "$"),
    ("user/message", "id", "", "$.id"),
    ("user/message", "id", 7, "$.id"),
    ("user/message", "role", ..., "$"),
    ("user/message", "role", "assistant", "$.role"),
    ("user/message", "role", "system", "$.role"),
    ("user/message", "source", ..., "$"),
    ("user/message", "source", {}, "$.source"),
    ("user/message", "source", {"kind": ""}, "$.source.kind"),
    ("user/message", "source", {"kind": "plugin"}, "$.source"),
    ("user/message", "content", "hi", "$.content"),
    ("user/message", "content", {}, "$.content"),
    ("user/message", "content.0", "hi", "$.content[0]"),
    ("user/message", "content.0", {"text": "hi"}, "$.content[0]"),
    ("user/message", "content.0.text", ..., "$.content[0]"),
    (
        "user/message",
        "content.0",
        {"type": "tool-call", "id": "c", "name": "n", "arguments": {}},
        "$.content[0].arguments",
    ),
    ("user/message", "content.0", {"type": "image", "attachment": {}}, "$.content[0].attachment"),
    ("steering/message", "message.role", ..., "$.message"),
    ("steering/message", "message.id", "", "$.message.id"),
    ("assistant/chunk", "chunk", {"type": "audio-delta", "index": 0}, "$.chunk.type"),
    ("assistant/chunk", "chunk", {"index": 0}, "$.chunk"),
    ("assistant/chunk", "chunk.text", ..., "$.chunk"),
    ("assistant/chunk", "chunk.index", "0", "$.chunk.index"),
    ("assistant/chunk", "chunk", {"type": "finish", "reason": "stop"}, "$.chunk.reason"),
    ("assistant/chunk", "chunk", {"type": "usage", "usage": {"inputTokens": 1}}, "$.chunk.usage"),
    ("assistant/message", "message", ..., "$"),
    ("assistant/message", "message.role", ..., "$.message"),
    ("assistant/message", "message.role", "user", "$.message.role"),
    ("assistant/message", "message.source", {"kind": "user"}, "$.message.source.kind"),
    ("assistant/message", "message.source", {"kind": "robot"}, "$.message.source.kind"),
    ("assistant/message", "message.source.provider", "", "$.message.source.provider"),
    ("assistant/message", "message.source.model", ..., "$.message.source"),
    ("assistant/message", "usage", None, "$.usage"),
    ("assistant/message", "usage.cacheReadTokens", "1", "$.usage.cacheReadTokens"),
    ("assistant/message", "interrupted", False, "$.interrupted"),
    ("tool/call", "arguments", {}, "$.arguments"),
    ("tool/call", "callId", ..., "$"),
    ("tool/result", "message.role", ..., "$.message"),
    ("tool/result", "message.source", {"kind": "user"}, "$.message.source.kind"),
    ("tool/result", "message.source.callId", "", "$.message.source.callId"),
    ("tool/result", "message.content", [], "$.message.content"),
    ("tool/result", "message.content", RESULT["content"] * 2, "$.message.content"),
    ("tool/result", "message.content.0", {"type": "text", "text": "ok"}, "$.message.content"),
    ("tool/result", "message.content.0", {"type": "other"}, "$.message.content"),
    ("tool/result", "message.content.0.toolCallId", "c2", "$.message.content[0].toolCallId"),
    ("tool/result", "message.content.0.isError", 1, "$.message.content[0].isError"),
    ("tool/result", "error", {"name": "E"}, "$.error"),
    ("todo/write", "todos.0.status", "done", "$.todos[0].status"),
    ("todo/write", "todos", None, "$.todos"),
    ("request/header", "reason", "because", "$.reason"),
    ("request/header", "header.config", ..., "$.header"),
    ("request/header", "header.config.provider", "", "$.header.config.provider"),
    ("request/header", "header.config.model", ..., "$.header.config"),
    ("request/header", "header.config.reasoningEffort", "", "$.header.config.reasoningEffort"),
    ("request/header", "header.config.reasoningEffort", None, "$.header.config.reasoningEffort"),
    ("request/header", "header.adapterDefaults", [], "$.header.adapterDefaults"),
    ("request/header", "header.adapterDefaults", {"other": True}, "$.header.adapterDefaults"),
    ("request/header", "header.adapterDefaults", {"maxTokens": 1}, "$.header.adapterDefaults.maxTokens"),
    ("request/header", "header.adapterDefaults", {"maxTokens": False}, "$.header.adapterDefaults"),
    ("request/header", "header.adapterDefaults", {"maxTokens": True}, "$.header.adapterDefaults.maxTokens"),
    ("request/header", "header.adapterDefaults", {"reasoningEffort": True}, "$.header.adapterDefaults.reasoningEffort"),
    ("request/context", "contextWindow", None, "$.contextWindow"),
    ("request/context", "contextWindow", True, "$.contextWindow"),
    ("request/context", "provider", ..., "$"),
    ("recovery/lost", "offset", "0", "$.offset"),
]


@pytest.mark.parametrize(("name", "path", "new", "where"), REFUSED)
def test_another_shape_is_refused_with_the_path_to_it(name: str, path: str, new: object, where: str) -> None:
    """One change to a good payload: refused on append and as a typed view, and the error says where."""
    error = refused(name, put(EXAMPLES[name], path, new))
    assert (error.event_type, error.path) == (name, where)


def test_errors_name_kinds_and_never_contents() -> None:
    """An error message must be safe to log: it holds no value of the event."""
    error = refused("user/message", {**USER, "id": {"secret-key": "secret-value"}})
    assert "secret" not in str(error)
    assert "secret" not in str(refused("assistant/chunk", put(EXAMPLES["assistant/chunk"], "chunk.type", "secret")))


@pytest.mark.parametrize("field", ["system", "tools", "messagePrefix"])
@pytest.mark.parametrize("value", [None, 1, "", "{{tools}}", [], [1], {"a": {}}])
def test_what_a_request_holds_besides_its_config_is_not_looked_at(field: str, value: object) -> None:
    """System, tools and the old message prefix are carried whatever they are."""
    payload = validate_payload("request/header", encode(put(EXAMPLES["request/header"], f"header.{field}", value)))
    assert isinstance(payload, RequestHeader)
    if field != "messagePrefix":
        assert encode(plain(getattr(payload.header, field))) == encode(value)


@pytest.mark.parametrize("field", ["temperature", "maxTokens", "stop", "other"])
def test_settings_of_the_call_are_not_looked_at(field: str) -> None:
    """Of the config only provider, model and reasoning effort are checked."""
    raw = encode(put(EXAMPLES["request/header"], f"header.config.{field}", {"odd": [1]}))
    assert isinstance(validate_payload("request/header", raw), RequestHeader)


# Open unions

UNKNOWN: list[tuple[str, str]] = [
    ("turn/start", "trigger"),
    ("turn/end", "reason"),
    ("user/message", "source"),
    ("user/message", "content.0"),
]


@pytest.mark.parametrize(("name", "path"), UNKNOWN)
def test_unknown_kinds_of_open_unions_keep_their_json(name: str, path: str) -> None:
    """An unknown kind is an Unknown with its kind and its JSON text, whatever else it holds."""
    odd = {"z": [1, {"k": None}], "kind": "from-the-future", "type": "from-the-future"}
    payload = decode_payload(name, encode(put(EXAMPLES[name], path, odd)))
    found: Any = payload
    for step in path.split("."):
        found = found[int(step)] if step.isdigit() else getattr(found, step)
    assert found == Unknown(kind="from-the-future", json=encode(odd))
    assert encode_payload(payload)[1] == encode_payload(payload)[1]
    assert decode(encode_payload(payload)[1]) == plain(payload)


def test_unknown_kinds_inside_chunks_are_open_although_chunks_are_closed() -> None:
    """A block or finish reason that is not known passes inside a known chunk."""
    chunk = {"type": "block-end", "index": 0, "block": {"type": "hologram"}}
    payload = decode_payload("assistant/chunk", encode({"turn": 1, "step": 1, "chunk": chunk}))
    assert isinstance(payload, AssistantChunk)
    assert isinstance(payload.chunk, BlockEnd)
    assert payload.chunk.block == Unknown(kind="hologram", json=b'{"type":"hologram"}')
    chunk = {"type": "finish", "reason": {"kind": "bored"}, "replayState": {"a": [1]}}
    payload = decode_payload("assistant/chunk", encode({"turn": 1, "step": 1, "chunk": chunk}))
    assert isinstance(payload, AssistantChunk)
    assert isinstance(payload.chunk, FinishChunk)
    assert payload.chunk.replay_state == {"a": (1,)}


# What msgspec does not read


def test_integral_floats_are_integers_where_an_integer_is_wanted() -> None:
    """``1.0`` and ``1e3`` are read as ints; ``1.5`` is not."""
    payload = decode_payload("step/start", b'{"turn":1.0,"step":1e3}')
    assert payload == StepStart(turn=1, step=1000)
    assert isinstance(payload, StepStart)
    assert type(payload.step) is int
    usage = {"turn": 1, "step": 1, "message": ASSISTANT, "usage": {"inputTokens": 2.0, "outputTokens": 1}}
    assert isinstance(validate_payload("assistant/message", encode(usage)), AssistantMessageEvent)


def test_integers_of_any_size_are_read() -> None:
    """A turn past 64 bits is still an int."""
    assert decode_payload("step/start", b'{"turn":%d,"step":1}' % 10**30) == StepStart(turn=10**30, step=1)


def test_lone_surrogates_are_data() -> None:
    """A lone surrogate in any string, known field or not, does not keep a payload from being typed."""
    value = put(USER, "content.0.text", "a\ud83d")
    payload = validate_payload("user/message", encode({**value, "other": "\udc00"}))
    assert isinstance(payload, UserMessage)
    assert payload.content == (TextBlock(text="a\ud83d"),)
    name, raw, again = encode_payload(payload)
    assert (name, again) == ("user/message", payload)
    assert b"\\ud83d" in raw


def test_deep_json_in_fields_that_are_not_looked_at_does_not_matter() -> None:
    """5,000 levels inside ``meta`` are carried, and can be read."""
    deep: object = "end"
    for _ in range(5000):
        deep = [deep]
    payload = validate_payload("tool/result", encode({**EXAMPLES["tool/result"], "meta": deep}))
    assert isinstance(payload, ToolResult)
    meta: Any = payload.meta
    while isinstance(meta, tuple):
        (meta,) = meta
    assert meta == "end"


def test_tool_results_nested_very_deep_are_kept_without_being_typed() -> None:
    """The careful reader keeps blocks past its limit as Unknown, so that no stack overflows; the JSON is all there."""
    block: JsonDict = {"type": "text", "text": "end"}
    for _ in range(700):
        block = {"type": "tool-result", "toolCallId": "c", "content": [block]}
    raw = encode({**USER, "content": [block]})
    payload = build(UserMessage, raw, "user/message")
    found, depth = payload.content[0], 0
    while isinstance(found, ToolResultBlock):
        found, depth = found.content[0], depth + 1
    assert depth == MAX_BLOCK_DEPTH
    assert isinstance(found, Unknown)
    assert validate_payload("user/message", raw) is not msgspec.UNSET
    assert encode_payload(payload)[1].count(b"tool-result") == 700


def test_text_that_is_not_json_is_refused() -> None:
    """Garbage gives the documented error, not msgspec's."""
    for raw in (b"", b"{", b"\xff", b'{"turn":NaN,"step":1}', b"[" * 20_000):
        with pytest.raises(InvalidEventError) as caught:
            decode_payload("step/start", raw)
        assert caught.value.event_type == "step/start"


def test_duplicate_keys_the_last_wins() -> None:
    """As everywhere in JSON here."""
    assert decode_payload("step/start", b'{"turn":1,"step":1,"turn":2}') == StepStart(turn=2, step=1)
    assert decode_payload("step/start", b'{"turn":"x","step":1,"turn":2}') == StepStart(turn=2, step=1)


def test_numbers_stay_as_they_are_where_any_number_is_wanted() -> None:
    """The careful reader does not turn a capacity into something else."""
    raw = b'{"provider":"\\ud800","model":"m","contextWindow":%b}'
    for number, value in ((b"5", 5), (b"0.5", 0.5)):
        assert decode_payload("request/context", raw % number).context_window == value  # type: ignore[attr-defined]


class Odd(msgspec.Struct):
    """A shape that no event has."""

    x: float


def test_a_shape_that_the_careful_reader_does_not_know_is_refused() -> None:
    """Rather a refusal than an unchecked value, should a Struct ever get a field of a new kind."""
    with pytest.raises(InvalidEventError):
        build(Odd, b'{"x":0.5}', "odd")


# Retired forms and unknown types


@pytest.mark.parametrize("name", ["request/header-delta", "mode/set"])
def test_retired_types_are_refused_whatever_they_hold(name: str) -> None:
    """Their logs cannot be replayed, so nothing of the kind may be appended."""
    with pytest.raises(InvalidEventError, match="retired"):
        validate_payload(name, b"{}")
    assert retired_form(name, b"null") is not None


@pytest.mark.parametrize("spelled", [b'"fallback"', b'"\\u0066allback"'])
def test_a_fallback_header_is_a_retired_form(spelled: bytes) -> None:
    """However the reason is spelled; a surrogate elsewhere does not hide it."""
    for other in (b"1", b'"\\ud800"'):
        raw = b'{"header":{"config":{"provider":"p","model":"m"}},"x":%b,"reason":%b}' % (other, spelled)
        with pytest.raises(InvalidEventError, match="retired"):
            validate_payload("request/header", raw)


def test_types_without_a_struct_are_carried() -> None:
    """Append takes any payload of an unknown type; asking for its Struct is an error."""
    assert validate_payload("compact/start", b"[1]") is msgspec.UNSET
    assert not is_typed("compact/start")
    assert is_typed("turn/start")
    with pytest.raises(InvalidEventError):
        decode_payload("compact/start", b"{}")


# Plugin types


class Compact(msgspec.Struct, frozen=True):
    """A plugin's payload."""

    turn: int
    note: str = ""


class Mutable(msgspec.Struct):
    """Not fit for an event."""


def test_a_registered_type_is_read_and_appended_as_its_struct() -> None:
    """Registration gives the typed view and lets append take the Struct, for one registry only."""
    types = EventTypes({"compact/start": Compact})
    assert "compact/start" in types
    assert "compact/end" not in types
    assert decode_payload("compact/start", b'{"turn":1}', types) == Compact(turn=1)
    assert encode_payload(Compact(turn=1, note="\ud800"), types) == (
        "compact/start",
        b'{"turn":1,"note":"\\ud800"}',
        Compact(turn=1, note="\ud800"),
    )
    with pytest.raises(InvalidEventError):
        encode_payload(Compact(turn=1), EventTypes())


def test_payloads_of_registered_types_that_do_not_fit_are_carried() -> None:
    """A plugin's shape is a view: append does not enforce it."""
    types = EventTypes({"compact/start": Compact})
    assert validate_payload("compact/start", b'{"turn":"x"}', types) is msgspec.UNSET
    with pytest.raises(InvalidEventError):
        decode_payload("compact/start", b'{"turn":"x"}', types)


@pytest.mark.parametrize(
    ("name", "struct"),
    [
        ("turn/start", Compact),
        ("", Compact),
        ("mode/set", Compact),
        ("a/b", TurnStart),
        ("a/b", Mutable),
        ("c/d", Compact),
    ],
)
def test_registrations_that_would_confuse_are_refused(name: str, struct: type[msgspec.Struct]) -> None:
    """Core types, taken types and Structs, and mutable Structs cannot be registered."""
    types = EventTypes({"compact/start": Compact})
    with pytest.raises(ValueError, match=r"taken|payload of another|frozen"):
        types.register(name, struct)


# Appending Structs


def test_structs_are_written_compactly_with_absent_optionals_left_out() -> None:
    """What append writes for a Struct is the format's own spelling."""
    chunk = AssistantChunk(turn=1, step=1, chunk=TextDelta(index=0, text="Hel"))
    assert encode_payload(chunk)[:2] == (
        "assistant/chunk",
        b'{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"Hel"}}',
    )
    message = UserMessage(id="m", source=UserSource(), content=(TextBlock(text="é\u2028"),))
    assert json.loads(encode_payload(message)[1]) == {
        "id": "m",
        "role": "user",
        "source": {"kind": "user"},
        "content": [{"type": "text", "text": "é\u2028"}],
    }


BAD: Any = {"nan": float("nan"), "set": {1}, "bytes": b"x", "zero": -0.0}


@pytest.mark.parametrize(
    "payload",
    [
        TodoWrite(todos=BAD["set"]),
        TodoWrite(todos=({"content": 1},)),  # type: ignore[arg-type]
        TodoWrite(todos=(TodoItem(content=BAD["bytes"], status="pending"),)),
        StepStart(turn=BAD["nan"], step=1),
        StepStart(turn=True, step=1),
        StepStart(turn=None, step=1),  # type: ignore[arg-type]
        AssistantMessageEvent(turn=1, step=1, message="x"),  # type: ignore[arg-type]
        ToolResult(turn=1, step=1, message="x", meta=msgspec.Raw(b'"\xff"')),  # type: ignore[arg-type]
        TokenUsage(input_tokens=1, output_tokens=1),
    ],
)
def test_structs_that_hold_the_wrong_things_are_refused(payload: msgspec.Struct) -> None:
    """Constructors do not validate; append does, and msgspec's coercions do not get past it."""
    with pytest.raises(InvalidEventError):
        encode_payload(payload)


def test_a_list_in_place_of_a_tuple_is_taken() -> None:
    """A list is the same JSON; the view has a tuple."""
    todos: Any = [TodoItem(content="a", status="pending")]
    _, raw, view = encode_payload(TodoWrite(todos=todos))
    assert raw == b'{"todos":[{"content":"a","status":"pending"}]}'
    assert view == TodoWrite(todos=tuple(todos))


@pytest.mark.parametrize("text", [b'{"a":\n1}', b'{"a":"\xff"}', b"-0.0", b"{", b'"\\ud800"'])
def test_raw_json_in_a_struct_cannot_break_the_line(text: bytes) -> None:
    """A Raw that msgspec would copy as it is, is checked: no line end, no broken UTF-8, no lossy number gets in."""
    good = decode_payload("tool/result", encode(EXAMPLES["tool/result"]))
    payload = msgspec.structs.replace(good, meta=msgspec.Raw(text))
    try:
        _, raw, _ = encode_payload(payload)
    except InvalidEventError:
        return
    assert b"\n" not in raw
    assert raw.decode()
    assert validate_payload("tool/result", raw) is not msgspec.UNSET


# Real logs


@pytest.mark.slow
@pytest.mark.skipif(not REAL_LOGS.is_dir(), reason=NO_REAL_LOGS)
def test_core_events_of_real_logs_fit_their_structs_or_are_of_the_old_shapes() -> None:
    """Every payload that the reference wrote fits, but for messages without identity and headers without provider."""
    counts = {"fit": 0, "old": 0}
    for path in sorted(REAL_LOGS.glob("*/*.jsonl")):
        for line in path.read_bytes().split(b"\n"):
            value: Any = json.loads(line) if line else {}
            name = value.get("type")
            if name not in PAYLOADS:
                continue
            try:
                payload = validate_payload(name, encode(value["data"]))
            except InvalidEventError as error:
                counts["old"] += 1
                assert error.path in {"$", "$.header.config"}, path
            else:
                counts["fit"] += 1
                assert decode(encode(plain(payload))).keys() <= value["data"].keys()  # type: ignore[union-attr]
    assert counts["fit"] > 40 * counts["old"] > 0


def test_turn_end_reason_structs_show_what_the_log_says() -> None:
    """A failed turn of a newer release reads the same way as one of ours."""
    payload = decode_payload("turn/end", encode({"turn": 1, "reason": {"kind": "error", "error": ERROR}}))
    assert isinstance(payload, TurnEnd)
    assert payload.reason.error.code == "RATE_LIMIT"  # type: ignore[union-attr]

"""Message Structs in a user's hands: construction, absence, immutability, and fields that hold others' JSON."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given

from sessionstore.errors import InvalidEventError
from sessionstore.lossless import encode, freeze
from sessionstore.messages import (
    AssistantMessage,
    ImageAttachment,
    Message,
    ModelSource,
    PluginSource,
    ReasoningBlock,
    TextBlock,
    ToolCallDelta,
    ToolResultBlock,
    ToolResultMessage,
    ToolSource,
    Unknown,
    UserMessage,
    UserSource,
    role_is_stated,
)
from sessionstore.opaque import json_text, plain
from sessionstore.vocabulary import EpochHeader, LlmCallConfig, ToolResult, ToolSchema
from tests.payload_cases import ANY_JSON

MESSAGE = ToolResultMessage(
    id="m", source=ToolSource(call_id="c"), content=(ToolResultBlock(tool_call_id="c", content=()),)
)


def result(**fields: Any) -> ToolResult:
    """A tool result with the given optional fields."""
    return ToolResult(turn=1, step=1, message=MESSAGE, **fields)


def test_messages_know_their_role_and_write_it() -> None:
    """A constructed message need not be told its role, and its JSON has it."""
    user = UserMessage(id="m", source=UserSource(), content=())
    assert user.role == "user"
    assert user == UserMessage(id="m", role="user", source=UserSource(), content=())
    assistant = AssistantMessage(id="m", source=ModelSource(provider="p", model="m"), content=())
    assert b'"role":"assistant"' in msgspec.json.encode(assistant)
    assert b'"role":"user"' in msgspec.json.encode(user)


@pytest.mark.parametrize(("text", "stated"), [(b'"role":"user",', True), (b'"role":"\\u0075ser",', True), (b"", False)])
def test_a_decoded_message_tells_whether_its_role_was_there(text: bytes, stated: bool) -> None:
    """The default serves constructors only: a role that the log lacks is noticed."""
    raw = b'{"id":"m",%b"source":{"kind":"user"},"content":[]}' % text
    assert role_is_stated(msgspec.json.decode(raw, type=UserMessage)) is stated


def test_absent_optional_fields_are_none_and_are_not_written() -> None:
    """None means absent on both sides."""
    delta = ToolCallDelta(index=0, id="c", arguments_delta="")
    assert delta.name is None
    assert msgspec.json.encode(delta) == b'{"type":"tool-call-delta","index":0,"id":"c","argumentsDelta":""}'
    assert msgspec.json.encode(delta) == msgspec.json.encode(
        ToolCallDelta(index=0, id="c", name=None, arguments_delta="")
    )


def test_null_is_no_value_of_an_optional_field() -> None:
    """On disk an absent field is left out, so null is another shape."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(
            b'{"type":"tool-result","toolCallId":"c","content":[],"isError":null}', type=ToolResultBlock
        )


@pytest.mark.parametrize(
    "value", [UserSource(), PluginSource(plugin="p"), TextBlock(text="t"), MESSAGE, Unknown(kind="k", json=b"{}")]
)
def test_structs_are_frozen_and_hashable(value: msgspec.Struct) -> None:
    """Nothing of a message can be assigned to, and it can be a key."""
    for name in value.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(value, name, None)
    assert len({value, copy.deepcopy(value)}) == 1


def test_positional_arguments_are_refused() -> None:
    """Fields are given by name, so that a new optional field never shifts the others."""
    with pytest.raises(TypeError):
        TextBlock("t")  # type: ignore[call-arg]


def test_blocks_of_the_same_text_but_another_type_differ() -> None:
    """The type of a block is part of its value."""
    text: msgspec.Struct = TextBlock(text="t")
    assert text != ReasoningBlock(text="t")


def test_messages_of_any_role_have_a_struct() -> None:
    """Plugins log system messages, too."""
    raw = b'{"id":"m","role":"system","source":{"kind":"plugin","plugin":"p"},"content":[]}'
    assert msgspec.json.decode(raw, type=Message).role == "system"


def test_fields_named_like_python_types_are_spelled_as_on_disk() -> None:
    """An attachment's size is called bytes in the format."""
    image = ImageAttachment(attachment_id="sha256:0", media_type="image/png", bytes=3, width=1, height=2)
    assert b'"mediaType":"image/png","bytes":3' in msgspec.json.encode(image)


# Fields that hold others' JSON


@given(ANY_JSON)
def test_opaque_fields_give_back_what_was_put_in_as_read_only_json(value: Any) -> None:
    """Any JSON value goes in as it is and comes out frozen; None is absence."""
    made = result(meta=value)
    assert made.meta == freeze(value)
    assert json_text(made, "meta") == (None if value is None else encode(value))


def test_opaque_fields_are_detached_from_the_callers_object() -> None:
    """What the caller does to its object afterwards is not seen, and what is read cannot be changed."""
    meta = {"list": [1]}
    made = result(meta=meta)
    meta["list"].append(2)
    seen: Any = made.meta
    assert seen == {"list": (1,)}
    with pytest.raises(TypeError):
        seen["list"] = ()


def test_structs_with_opaque_fields_compare_hash_pickle_and_copy() -> None:
    """They are values like the others; equality is that of the JSON text."""
    a, b = result(meta={"x": [1]}), result(meta={"x": [1]})
    assert a == b
    assert hash(a) == hash(b)
    assert a != result(meta={"x": [2]})
    assert pickle.loads(pickle.dumps(a)).meta == a.meta
    assert copy.deepcopy(a) == a
    assert msgspec.structs.replace(a, turn=2).meta == a.meta
    match a:
        case ToolResult(meta={"x": (1,)}):
            pass
        case _:
            pytest.fail("opaque fields take part in match statements")


def test_what_was_read_from_one_struct_can_be_given_to_another() -> None:
    """Read-only mappings, tuples and Structs are taken where JSON is."""
    first = result(meta={"a": [{"b": None}]})
    assert result(meta=first.meta) == first
    assert result(meta=TextBlock(text="t")).meta == {"type": "text", "text": "t"}
    assert result(meta=[Unknown(kind="k", json=b'{"kind":"k"}')]).meta == ({"kind": "k"},)


@pytest.mark.parametrize("value", [float("nan"), -0.0, {1}, b"x", {1: 2}, object(), [float("inf")], {"a": {2}}])
def test_opaque_fields_refuse_what_is_not_lossless_json(value: Any) -> None:
    """The same rule as for whole payloads, already in the constructor."""
    with pytest.raises(InvalidEventError):
        result(meta=value)


def test_a_cycle_is_refused_even_behind_read_only_views() -> None:
    """Nothing endless gets in."""
    loop: list[object] = []
    loop.append({"x": (loop,)})
    with pytest.raises(InvalidEventError):
        result(meta=loop)
    with pytest.raises(InvalidEventError):
        plain(loop)


class Row(msgspec.Struct, array_like=True):
    """A Struct that msgspec writes as a list."""

    x: int


def test_structs_that_are_written_as_lists_are_no_json_here() -> None:
    """They are refused like any other object."""
    with pytest.raises(InvalidEventError):
        result(meta=[Row(1)])


def test_opaque_fields_can_be_looked_at_on_the_class() -> None:
    """Documentation tools and doctest do that."""
    assert ToolResult.meta is ToolResult.__dict__["meta"]


def test_shared_parts_are_no_cycle() -> None:
    """A value that is used twice is written twice."""
    part = {"p": 1}
    assert result(meta=[part, part, (part,)]).meta == ({"p": 1}, {"p": 1}, ({"p": 1},))


@pytest.mark.parametrize("text", [b"[]", b"{", b"1"])
def test_an_unknown_that_holds_no_object_cannot_be_written(text: bytes) -> None:
    """A member of an open union is an object: a host cannot smuggle in anything else."""
    with pytest.raises(InvalidEventError):
        plain({"x": Unknown(kind="k", json=text)})


def test_a_request_header_is_built_from_structs_or_plain_values() -> None:
    """Tool schemas come back as Structs when they are that, else as the JSON that is there."""
    schema = ToolSchema(name="bash", description="run", parameters={"type": "object"})
    config = LlmCallConfig(provider="p", model="m", temperature=0.5, max_tokens=10, stop=("a",))
    made = EpochHeader(config=config, system="be brief", tools=(schema,))
    assert made.tools == (schema,)
    assert made.system == "be brief"
    assert (made.config.temperature, made.config.max_tokens, made.config.stop) == (0.5, 10, ("a",))
    assert made == EpochHeader(config=config, system="be brief", tools=plain((schema,)))  # type: ignore[arg-type]
    odd: Any = "{{tools}}"
    assert EpochHeader(config=config, tools=odd).tools == odd
    assert schema.parameters == {"type": "object"}

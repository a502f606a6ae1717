"""Messages of old logs: which payloads are taken for old ones, and as what they are seen."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sessionstore.events import Event
from sessionstore.history import derive_event_message
from sessionstore.legacy import legacy_message, legacy_message_id
from sessionstore.messages import (
    AssistantMessage,
    ModelSource,
    PluginSource,
    TextBlock,
    ToolResultBlock,
    ToolResultMessage,
    ToolSource,
    UserMessage,
)
from sessionstore.seeds import check_seed_event
from tests.payload_cases import EXAMPLES

TEXT = [{"type": "text", "text": "hi"}]
OLD: dict[str, dict[str, Any]] = {
    "user/message": {"content": TEXT, "source": {"kind": "plugin", "plugin": "p"}},
    "steering/message": {"turn": 1, "content": TEXT, "source": {"kind": "plugin", "plugin": "p"}},
    "assistant/message": {
        "turn": 1,
        "step": 1,
        "content": TEXT,
        "provenance": {"provider": "p", "model": "m", "replayState": {"a": 1}},
        "usage": {"inputTokens": 1, "outputTokens": 1},
    },
    "tool/result": {"turn": 1, "step": 1, "callId": "c", "content": TEXT, "isError": False, "meta": {"k": -0.5}},
}
SEEN: dict[str, object] = {
    "user/message": UserMessage(
        id="legacy-message:S:4", source=PluginSource(plugin="p"), content=(TextBlock(text="hi"),)
    ),
    "assistant/message": AssistantMessage(
        id="legacy-message:S:4",
        source=ModelSource(provider="p", model="m", replay_state={"a": 1}),
        content=(TextBlock(text="hi"),),
    ),
    "tool/result": ToolResultMessage(
        id="legacy-message:S:4",
        source=ToolSource(call_id="c"),
        content=(ToolResultBlock(tool_call_id="c", content=(TextBlock(text="hi"),), is_error=False),),
    ),
}
SEEN["steering/message"] = SEEN["user/message"]


def event(type_: str, data: object, seq: int = 4, op: object = "append", sources: object = None) -> Event:
    """A surface event."""
    value: dict[str, Any] = {"type": type_, "seq": seq, "time": 0, "data": data}
    if sources is not None:
        value["sourceEventSeqs"] = sources
    value["surfaceOp"] = op
    return Event.from_dict(value)


@pytest.mark.parametrize("name", OLD)
def test_an_old_message_is_seen_in_todays_shape_with_a_stable_id(name: str) -> None:
    """The id names session and seq; provenance becomes the model source; the bytes stay as they are."""
    old = event(name, OLD[name])
    before = old.to_json()
    assert derive_event_message(old, "S") == SEEN[name]
    assert old.to_json() == before
    check_seed_event(old)


@pytest.mark.parametrize("name", OLD)
def test_todays_payloads_are_never_taken_for_old_ones(name: str) -> None:
    """A payload with a message has an identity, or is broken; it is not upgraded."""
    assert legacy_message(name, EXAMPLES[name]) is None
    assert legacy_message(name, {**OLD[name], "message": {}}) is None


@pytest.mark.parametrize("name", OLD)
@pytest.mark.parametrize("missing", ["content", "source", "provenance", "callId"])
def test_an_old_message_without_its_fields_is_broken_and_not_old(name: str, missing: str) -> None:
    """Each field that an old message always has must be there."""
    data = copy.deepcopy(OLD[name])
    if missing in data:
        del data[missing]
        assert legacy_message(name, data) is None


@pytest.mark.parametrize("field", ["id", "role"])
def test_a_user_message_that_lost_one_half_of_its_identity_is_broken(field: str) -> None:
    """Neither a lone id nor a lone role makes an old message."""
    assert legacy_message("user/message", {**OLD["user/message"], field: "user"}) is None


def test_other_types_and_values_are_no_messages() -> None:
    """Only the message-producing types have an old shape."""
    assert legacy_message("context/message", OLD["user/message"]) is None
    others: tuple[Any, ...] = (None, [], "x", 1)
    for value in others:
        assert legacy_message("user/message", value) is None


def test_an_old_message_that_fits_no_struct_is_read_only_json() -> None:
    """An upgraded message of an unusual shape is a mapping with the same fields."""
    data = {**OLD["user/message"], "content": [{"type": "text"}]}
    message: Any = derive_event_message(event("user/message", data), "S")
    assert message["id"] == legacy_message_id("S", 4)
    assert message["content"] == ({"type": "text"},)
    with pytest.raises(TypeError):
        message["id"] = "other"


# Replacements


def log(*events: Event) -> Any:
    """Looks events up by seq."""
    by_seq = {item.seq: item for item in events}
    return by_seq.__getitem__


def replacement(start: int, end: int, seq: int, name: str = "tool/result") -> Event:
    """An old-shaped event that replaces the nodes from *start* to *end*."""
    return event(name, OLD[name], seq, {"op": "replace", "start": start, "end": end}, list(range(start, end + 1)))


def test_a_replacement_takes_the_id_of_what_it_replaces() -> None:
    """Through a chain of replacements the first id stays, whether it was made up or real."""
    first, second, third = event("tool/result", OLD["tool/result"], 3), replacement(3, 3, 5), replacement(5, 5, 9)
    message: Any = derive_event_message(third, "S", log(first, second, third))
    assert message.id == "legacy-message:S:3"
    first = event("tool/result", EXAMPLES["tool/result"], 3)
    message = derive_event_message(third, "S", log(first, second, third))
    assert message.id == "m3"


def test_a_replacement_of_several_nodes_has_an_id_of_its_own() -> None:
    """A summary stands for many messages: there is no one id to take."""
    summary = replacement(2, 3, 5, "user/message")
    nodes = [event("user/message", OLD["user/message"], seq) for seq in (2, 3)]
    message: Any = derive_event_message(summary, "S", log(*nodes, summary))
    assert message.id == "legacy-message:S:5"


@pytest.mark.parametrize("start", [5, 6])
def test_a_replacement_of_what_does_not_come_before_it_ends(start: int) -> None:
    """A broken log cannot make the search for an id endless."""
    broken = replacement(start, start, 5)
    message: Any = derive_event_message(broken, "S", log(broken, event("tool/result", OLD["tool/result"], 6)))
    assert message.id == "legacy-message:S:5"


def test_very_long_chains_of_replacements_are_followed() -> None:
    """Two thousand replacements of one result do not exhaust the stack."""
    chain = [event("tool/result", OLD["tool/result"], 0)]
    chain.extend(replacement(seq - 1, seq - 1, seq) for seq in range(1, 2000))
    message: Any = derive_event_message(chain[-1], "S", chain.__getitem__)
    assert message.id == "legacy-message:S:0"

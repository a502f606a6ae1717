"""Conformance, theme D: what a seed and a header may be."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from sessionstore.errors import InvalidEventError, SessionStoreError, UnsupportedFormatError
from sessionstore.events import Event
from sessionstore.header import make_header, parse_header
from sessionstore.lossless import MAX_SAFE
from sessionstore.session import Session
from tests.conformance.build import (
    assistant_message,
    closed_turn,
    dicts,
    tool_message,
    turn_start,
    user_message,
)


def seed_of(*payloads: tuple[str, Any]) -> list[dict[str, Any]]:
    """A seed of these events; message-producing types get their marker."""
    seed: list[dict[str, Any]] = []
    for seq, (type_, data) in enumerate(payloads):
        item = {"type": type_, "seq": seq, "time": 1, "data": data}
        if type_ in {"user/message", "assistant/message", "tool/result", "steering/message"}:
            item["surfaceOp"] = "append"
        seed.append(item)
    return seed


def refused(seed: Any, index: int) -> SessionStoreError:
    """The error that a seed is refused with; it names the index."""
    with pytest.raises(SessionStoreError) as caught:
        Session("s", seed)
    assert getattr(caught.value, "seq", index) == index, str(caught.value)
    return caught.value


def test_a_well_formed_seed_is_accepted() -> None:
    """The events of a session, as events or as plain dicts, are a seed."""
    session = Session("s")
    closed_turn(session)
    assert Session("s", dicts(session)).events == session.events


def without(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A copy of *data* without *keys*."""
    return {k: v for k, v in data.items() if k not in keys}


@pytest.mark.parametrize("config", [{"model": "m"}, {"provider": "p"}, {}, {"provider": "", "model": "m"}], ids=repr)
def test_a_request_header_without_provider_and_model_is_refused(config: dict[str, str]) -> None:
    """Nobody can replay a request whose model is unknown; the seed's index is named."""
    seed = seed_of(
        ("turn/start", turn_start()), ("request/header", {"header": {"config": config}, "reason": "initial"})
    )
    error = refused(seed, 1)
    assert isinstance(error, InvalidEventError)


@pytest.mark.parametrize("missing", ["provider", "model"])
def test_an_assistant_message_without_provider_or_model_is_refused(missing: str) -> None:
    """An assistant message says which model it is from."""
    message = assistant_message()
    del message["source"][missing]
    refused(seed_of(("assistant/message", {"turn": 1, "step": 1, "message": message})), 0)


def _assistant(**changes: Any) -> tuple[str, Any]:
    return "assistant/message", {"turn": 1, "step": 1, "message": {**assistant_message(), **changes}}


def _tool(**changes: Any) -> tuple[str, Any]:
    return "tool/result", {"turn": 1, "step": 1, "message": {**tool_message(), **changes}}


def _steering(**changes: Any) -> tuple[str, Any]:
    return "steering/message", {"turn": 1, "message": {**user_message(), **changes}}


BLOCK = tool_message()["content"][0]
BAD_MESSAGES: dict[str, tuple[str, Any]] = {
    "user without id": ("user/message", {**without(user_message(), "id"), "more": 1}),
    "user with an empty id": ("user/message", {**user_message(), "id": ""}),
    "user with another role": ("user/message", {**user_message(), "role": "assistant"}),
    "user without source": ("user/message", without(user_message(), "source") | {"source": None}),
    "user with a source that names no kind": ("user/message", {**user_message(), "source": {}}),
    "user with content that is no list": ("user/message", {**user_message(), "content": "hi"}),
    "user that is no object": ("user/message", "hi"),
    "steering with another role": _steering(role="assistant"),
    "steering without id": _steering(id=None),
    "assistant with another role": _assistant(role="user"),
    "assistant from a user": _assistant(source={"kind": "user"}),
    "assistant with content that is no list": _assistant(content={}),
    "assistant without message": ("assistant/message", {"turn": 1, "step": 1, "message": None}),
    "tool result with another role": _tool(role="assistant"),
    "tool result from a user": _tool(source={"kind": "user"}),
    "tool result without callId": _tool(source={"kind": "tool"}),
    "tool result with two blocks": _tool(content=[BLOCK, BLOCK]),
    "tool result without block": _tool(content=[]),
    "tool result with a text block": _tool(content=[{"type": "text", "text": "x"}]),
    "tool result of another call": _tool(content=[{**BLOCK, "toolCallId": "c2"}]),
}


@pytest.mark.parametrize("entry", BAD_MESSAGES.values(), ids=BAD_MESSAGES.keys())
def test_a_message_that_cannot_be_replayed_is_refused(entry: tuple[str, Any]) -> None:
    """Identity, role, source and content are checked per type, at append and in seeds alike."""
    type_, data = entry
    refused(seed_of(("turn/start", turn_start()), (type_, data)), 1)
    with pytest.raises(InvalidEventError):
        Session("s").append(type_, data, surface_op="append")


def test_blocks_that_plugins_own_are_not_looked_into() -> None:
    """An unknown kind of block, or unknown fields in a known one, is somebody's data."""
    blocks = [{"type": "chart", "points": [1, 2]}, {"type": "text", "text": "x", "note": {"a": 1}}]
    seed = seed_of(("user/message", {**user_message(), "content": blocks}))
    session = Session("s", seed)
    assert session.events[0].to_dict()["data"] == {**user_message(), "content": blocks}


def test_a_seed_of_events_is_shared_and_still_validated() -> None:
    """Events are values, so a seed of them needs no copy; a bad one among them is found all the same."""
    session = Session("s")
    closed_turn(session)
    events = list(session.events)
    assert Session("s", events).events == session.events
    events[1] = Event.from_dict({"type": "user/message", "seq": 1, "time": 1, "data": {}, "surfaceOp": "append"})
    refused(events, 1)


class Shell:
    """An object that is neither an event nor a mapping."""

    type, seq, time, data = "my/event", 0, 1, 1


@pytest.mark.parametrize(
    "item",
    [
        pytest.param({"type": "my/event", "seq": 1, "time": 1, "data": object()}, id="not lossless"),
        pytest.param({"type": "my/event", "seq": 1, "time": 1, "data": float("nan")}, id="NaN"),
        pytest.param({"type": "my/event", "seq": 2, "time": 1, "data": 1}, id="gap"),
        pytest.param({"type": "my/event", "seq": 0, "time": 1, "data": 1}, id="repeat"),
        pytest.param({"type": "user/message", "seq": 1, "time": 1, "data": user_message()}, id="marker missing"),
        pytest.param(
            {"type": "user/message", "seq": 1, "time": 1, "data": user_message(), "surfaceOp": object()},
            id="marker is no JSON",
        ),
        pytest.param(
            {"type": "user/message", "seq": 1, "time": 1, "data": user_message(), "surfaceOp": ["append"]},
            id="odd marker",
        ),
        pytest.param(Shell(), id="odd shell"),
        pytest.param(None, id="null"),
        pytest.param([], id="list"),
    ],
)
def test_a_bad_entry_refuses_the_seed_by_its_index(item: Any) -> None:
    """Lossless, contiguous, marked: one entry that is not so constructs nothing, and its index is named."""
    seed = [{"type": "turn/start", "seq": 0, "time": 1, "data": turn_start()}, item]
    with pytest.raises((InvalidEventError, TypeError)) as caught:
        Session("s", seed)
    assert "1" in str(caught.value)


def test_any_mapping_is_a_shell() -> None:
    """A seed entry may be any mapping, read-only ones included."""
    item: Any = MappingProxyType({"type": "my/event", "seq": 0, "time": 1, "data": {"a": 1}})
    assert Session("s", [item]).events[0].to_dict() == dict(item)


@pytest.mark.parametrize(
    "change",
    [
        {"type": 5},
        {"type": None},
        {"seq": "0"},
        {"seq": 0.5},
        {"seq": -1},
        {"seq": True},
        {"time": "1"},
        {"time": 0.5},
        {"time": MAX_SAFE + 1},
        {"data": ...},
    ],
    ids=repr,
)
def test_a_broken_envelope_is_refused(change: dict[str, Any]) -> None:
    """Type, seq, time and data are there and of their kinds."""
    item = {"type": "my/event", "seq": 0, "time": 1, "data": 1, **change}
    with pytest.raises(InvalidEventError):
        Session("s", [{k: v for k, v in item.items() if v is not ...}])


def test_an_unknown_envelope_key_is_kept() -> None:
    """A field of a newer writer must not cost the user the log."""
    item: Any = {"type": "my/event", "seq": 0, "time": 1, "data": 1, "ignorable": True, "later": {"a": 1}}
    assert Session("s", [item]).events[0].to_dict() == item


def test_a_negative_time_is_accepted() -> None:
    """A clock before 1970 is odd, and no reason to lose a session."""
    item: Any = {"type": "my/event", "seq": 0, "time": -5, "data": 1}
    assert Session("s", [item]).events[0].time == -5


class Once(dict[str, Any]):
    """A mapping that counts how often each key is read."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.reads: dict[str, int] = {}

    def __getitem__(self, key: str) -> Any:
        self.reads[key] = self.reads.get(key, 0) + 1
        return super().__getitem__(key)


def test_each_entry_of_a_seed_is_read_once() -> None:
    """An entry is turned into bytes in one pass; an iterator is walked once."""
    item = Once(type="my/event", seq=0, time=1, data={"a": 1})
    given = iter([item])
    session = Session("s", given)
    assert max(item.reads.values(), default=0) <= 1
    assert list(given) == []
    item["data"] = 5
    assert session.events[0].to_dict()["data"] == {"a": 1}


@pytest.mark.parametrize(
    "operation",
    [{"op": "replace", "start": 5, "end": 5}, {"op": "replace", "start": 0, "end": 5}, "nonsense"],
    ids=repr,
)
def test_a_surface_failure_is_reported_with_its_index(operation: Any) -> None:
    """A replacement of what is not there names the entry, not just the rule."""
    seed = seed_of(("user/message", user_message("u1")), ("user/message", user_message("u2")))
    seed[1] |= {"surfaceOp": operation, "sourceEventSeqs": [0]}
    error = refused(seed, 1)
    assert "1" in str(error)


def test_later_changes_of_a_seed_are_invisible() -> None:
    """Plain dicts given as a seed are detached."""
    seed = seed_of(("user/message", user_message("u1")))
    session = Session("s", seed)
    seed[0]["data"]["content"][0]["text"] = "changed"
    seed.append({})
    assert session.seq == 1
    assert session.derive_messages()[0].content[0].text == "hi"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "entry",
    [
        ("request/header-delta", {"delta": {}}),
        ("mode/set", {"mode": "plan"}),
        ("request/header", {"header": {"config": {"provider": "p", "model": "m"}}, "reason": "fallback"}),
    ],
    ids=lambda e: e[0],
)
def test_retired_forms_are_refused_as_unsupported(entry: tuple[str, Any]) -> None:
    """Old forms are no damage: the error says that the format is retired, at append and in seeds."""
    with pytest.raises(UnsupportedFormatError) as caught:
        Session("s", seed_of(entry))
    assert caught.value.direction == "retired"
    with pytest.raises((UnsupportedFormatError, InvalidEventError)):
        Session("s").append(*entry)


# --- headers ---------------------------------------------------------------------------------------------------


def test_an_explicit_header_is_detached_and_immutable() -> None:
    """A header given as a dict is read once; the session's header cannot be written to."""
    given = {"type": "session", "version": 0, "id": "s", "createdAt": 5, "cwd": "/srv", "delegationDepth": 0}
    session = Session("s", header=given)  # type: ignore[arg-type]
    given["cwd"] = "/other"
    assert session.header.cwd == "/srv"
    with pytest.raises(AttributeError):
        session.header.cwd = "/x"  # type: ignore[misc]


@pytest.mark.parametrize(
    "change",
    [
        {"id": "other"},
        {"id": ""},
        {"id": 5},
        {"createdAt": -1},
        {"createdAt": 0.5},
        {"createdAt": "1"},
        {"createdAt": -0.0},
        {"createdAt": MAX_SAFE + 1},
        {"cwd": "relative/path"},
        {"cwd": ""},
        {"cwd": 5},
        {"cwd": None},
        {"parentSession": 5},
        {"seedLength": -1},
        {"seedLength": 0.5},
        {"delegationDepth": "0"},
        {"delegationDepth": 0.5},
        {"delegationDepth": -1},
        {"delegationDepth": -0.0},
        {"agentPreset": 5},
        {"note": object()},
    ],
    ids=repr,
)
def test_a_bad_header_is_refused(change: dict[str, Any]) -> None:
    """Another id, a relative cwd, a negative or fractional number, what is no JSON."""
    given = {"type": "session", "version": 0, "id": "s", "createdAt": 5, "delegationDepth": 0, **change}
    with pytest.raises(InvalidEventError):
        Session("s", header=given)


def test_a_header_that_is_no_header_is_refused() -> None:
    """A list, a string or some other object is no header."""
    for given in ([], "header", 5, object()):
        with pytest.raises((InvalidEventError, TypeError)):
            Session("s", header=given)  # type: ignore[arg-type]


def test_a_bare_session_makes_up_a_header() -> None:
    """Without one, a session has a header of the current version with its id and the time."""
    session = Session("s", clock=lambda: 77)
    assert (session.header.id, session.header.version, session.header.created_at) == ("s", 0, 77)
    assert session.header.delegation_depth == 0


def test_cwd_parent_depth_and_origin_reach_the_header_line() -> None:
    """Everything that a header can say is on its line, in order; what is absent is absent."""
    header = make_header(
        "s",
        created_at=5,
        cwd="/srv",
        parent_session="p",
        seed_length=3,
        origin="subagent",
        delegation_depth=2,
        agent_preset="x",
    )
    assert header.to_json() == (
        b'{"type":"session","version":0,"id":"s","createdAt":5,"cwd":"/srv","parentSession":"p","seedLength":3,'
        b'"origin":"subagent","delegationDepth":2,"agentPreset":"x"}'
    )
    bare = make_header("s", created_at=5)
    assert bare.to_json() == b'{"type":"session","version":0,"id":"s","createdAt":5,"delegationDepth":0}'
    assert parse_header(header.to_json()) == header


def test_unknown_header_keys_are_kept() -> None:
    """A header goes out as it came in."""
    line = b'{"id":"s","version":0,"type":"session","createdAt":5,"future":{"a":[1.50]}}'
    header = parse_header(line)
    assert header.to_json() == line
    assert header.delegation_depth == 0

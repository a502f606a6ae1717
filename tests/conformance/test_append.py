"""Conformance, theme C: what append takes, refuses and keeps, and what is derived from it."""

from __future__ import annotations

from typing import Any

import pytest

from sessionstore.errors import InvalidEventError
from sessionstore.session import Session
from tests.conformance.build import (
    MODEL,
    USER,
    answer,
    assistant_message,
    closed_turn,
    dicts,
    result,
    say,
    tool_call,
    turn_start,
    user_message,
)


def test_the_surface_view_is_one_stable_read_only_object() -> None:
    """`session.surface` is the same object for ever, follows the log, and cannot be written to."""
    session = Session("s")
    view = session.surface
    say(session)
    assert session.surface is view
    assert view.nodes == (0,)
    assert isinstance(view.nodes, tuple)
    with pytest.raises(AttributeError):
        view.nodes = ()  # type: ignore[misc]
    with pytest.raises(AttributeError):
        view.replace_generation = 5  # type: ignore[misc]


def test_history_derives_from_the_log() -> None:
    """Messages come in the order of the surface, and only from message-producing events."""
    session = Session("s")
    closed_turn(session)
    assert [m.id for m in session.derive_messages()] == ["u1", "a1"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "reason",
    [
        {"kind": "completed"},
        {"kind": "max-tokens"},
        {"kind": "aborted"},
        {"kind": "aborted", "reason": {"kind": "user"}},
        {"kind": "aborted", "reason": {"kind": "hook", "reason": "no"}},
        {"kind": "disposed"},
        {"kind": "blocked"},
        {"kind": "interrupted"},
        {"kind": "error", "step": 1, "message": "x", "code": "E"},
        {"kind": "error", "step": 1, "failure": {"message": "x", "code": "RATE_LIMIT", "status": 429}},
        {"kind": "error", "error": {"message": "x", "code": "UNKNOWN"}},
        {"kind": "rejected", "reason": "later kinds pass"},
    ],
    ids=lambda r: "-".join(map(str, r)) + "-" + r["kind"],
)
def test_every_reason_of_a_turn_end_round_trips(reason: dict[str, Any]) -> None:
    """Both generations of reasons, and kinds that nobody knows yet, come back as they went in."""
    session = Session("s")
    session.append("turn/start", turn_start())
    event = session.append("turn/end", {"turn": 1, "reason": reason})
    assert event.to_dict()["data"] == {"turn": 1, "reason": reason}
    again = Session("s", dicts(session))
    assert again.events == session.events
    assert again.events[1].data == event.data


def test_injected_and_steering_messages_derive_as_plain_user_content() -> None:
    """A plugin's message and a steering message stand in the history as they are."""
    session = Session("s")
    injected = {**user_message("p1"), "source": {"kind": "plugin", "plugin": "memory"}}
    session.append("user/message", injected, surface_op="append")
    session.append("steering/message", {"turn": 1, "message": user_message("s1")}, surface_op="append")
    first, second = session.derive_messages()
    assert (first.id, first.role, second.id, second.role) == ("p1", "user", "s1", "user")  # type: ignore[union-attr]


def test_history_and_projection_give_the_same_message_object() -> None:
    """`derive_event_message` of a node is the very message in the history."""
    session = Session("s")
    event = say(session)
    (message,) = session.derive_messages()
    assert session.derive_event_message(event) is message


def test_replay_from_a_seed_is_identical() -> None:
    """Events, surface and history of a replay equal the original's, in every form of the seed."""
    session = Session("s")
    closed_turn(session)
    for seed in (session.events, list(session.events), dicts(session)):
        again = Session("s", seed)
        assert again.events == session.events
        assert [e.to_json() for e in again.events] == [e.to_json() for e in session.events]
        assert again.surface.nodes == session.surface.nodes
        assert again.derive_messages() == session.derive_messages()


def test_an_empty_seed_and_no_seed_are_the_same_log() -> None:
    """Nothing is written to mark a seed: `first_live_seq` tells, in this process only."""
    assert Session("s", []).seq == Session("s").seq == 0
    session = Session("s")
    closed_turn(session)
    assert Session("s", session.events).first_live_seq == session.seq
    assert session.first_live_seq == 0


def test_a_derived_message_cannot_be_changed() -> None:
    """Neither a message nor anything inside it can be written to."""
    session = Session("s")
    say(session)
    (message,) = session.derive_messages()
    with pytest.raises(AttributeError):
        message.id = "other"  # type: ignore[union-attr,misc]
    with pytest.raises((AttributeError, TypeError)):
        message.content[0].text = "other"  # type: ignore[union-attr,misc]
    assert isinstance(message.content, tuple)  # type: ignore[union-attr]
    session.derive_messages().clear()
    assert len(session.derive_messages()) == 1


def _cycle() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "bad",
    [
        lambda: 0,
        object(),
        {1: 2},
        {1, 2},
        float("inf"),
        float("nan"),
        -0.0,
        [1, object()],
        {"a": {"b": len}},
        _cycle(),
        b"",
    ],
    ids=[
        "function",
        "object",
        "int key",
        "set",
        "inf",
        "nan",
        "-0.0",
        "list with bad element",
        "nested function",
        "cycle",
        "bytes",
    ],
)
def test_data_that_is_not_json_is_refused_and_the_log_stays_empty(bad: Any) -> None:
    """A refused append leaves nothing behind and uses no seq."""
    session = Session("s")
    for data in (bad, {"x": bad}):
        with pytest.raises(InvalidEventError):
            session.append("my/event", data)
    assert session.seq == 0
    assert list(session.events) == []
    assert session.append("my/event", {}).seq == 0


def test_a_surface_type_without_its_marker_is_refused() -> None:
    """All four message-producing types need a surface operation."""
    session = Session("s")
    for type_, data in (
        ("user/message", user_message()),
        ("assistant/message", {"turn": 1, "step": 1, "message": assistant_message()}),
        ("steering/message", {"turn": 1, "message": user_message()}),
    ):
        with pytest.raises(InvalidEventError, match="surface"):
            session.append(type_, data)
    assert session.seq == 0


def test_nested_lists_and_dicts_are_accepted() -> None:
    """Plain containers of plain values, to any shape."""
    data = {"a": [[], {}, [{"b": [None, True, 1, 1.5, ""]}]], "": {"": []}}
    assert Session("s").append("my/event", data).to_dict()["data"] == data


def test_later_changes_by_the_caller_are_invisible() -> None:
    """The payload is detached when it is appended."""
    data = user_message()
    session = Session("s")
    event = session.append("user/message", data, surface_op="append")
    before = event.to_json()
    data["content"][0]["text"] = "changed"
    data["content"].append({"type": "text", "text": "more"})
    data["id"] = "other"
    assert event.to_json() == before
    assert session.events[0].to_json() == before
    assert session.derive_messages()[0].id == "u1"  # type: ignore[union-attr]


def test_later_changes_of_sources_and_operation_are_invisible() -> None:
    """So are the keyword arguments."""
    session = Session("s")
    say(session, "u1")
    operation = {"op": "replace", "start": 0, "end": 0}
    sources = [0]
    event = say(session, "u2", surface_op=operation, source_event_seqs=sources)
    operation["start"] = 7
    sources.append(9)
    assert event.to_dict()["surfaceOp"] == {"op": "replace", "start": 0, "end": 0}
    assert event.source_event_seqs == (0,)


@pytest.mark.parametrize(
    "operation",
    [
        object(),
        "prepend",
        "",
        5,
        [],
        {"op": "replace", "start": -1, "end": 0},
        {"op": "replace", "start": 0.5, "end": 0},
        {"op": "replace", "start": 0},
        {"op": "replace", "start": 0, "end": 0, "more": 1},
        {"op": "append"},
        {"op": object(), "start": 0, "end": 0},
    ],
    ids=repr,
)
def test_a_surface_operation_of_no_known_shape_is_refused(operation: Any) -> None:
    """Anything but `"append"` and a replacement of exactly three keys is refused before the event exists."""
    session = Session("s")
    say(session, "u1")
    with pytest.raises(InvalidEventError):
        say(session, "u2", surface_op=operation, source_event_seqs=[0])
    assert session.seq == 1
    assert session.surface.nodes == (0,)


@pytest.mark.parametrize("sources", [[-1], [0.5], ["0"], [None], [object()], [True], 0, "00"], ids=repr)
def test_sources_of_no_known_shape_are_refused(sources: Any) -> None:
    """Sources are a list of non-negative integers, nothing else."""
    session = Session("s")
    say(session, "u1")
    with pytest.raises((InvalidEventError, TypeError)):
        say(session, "u2", source_event_seqs=sources)
    assert session.seq == 1


def test_metadata_on_log_only_types_is_refused_at_append_and_in_seeds() -> None:
    """Only message-producing events are on the surface or cite sources."""
    session = Session("s")
    say(session)
    refused: tuple[dict[str, Any], ...] = ({"surface_op": "append"}, {"source_event_seqs": [0]})
    for extra in refused:
        with pytest.raises(InvalidEventError):
            session.append("turn/start", turn_start(), **extra)
    for extra in ({"surfaceOp": "append"}, {"sourceEventSeqs": [0]}):
        seed = [*dicts(session), {"type": "turn/start", "seq": 1, "time": 1, "data": turn_start(), **extra}]
        with pytest.raises(InvalidEventError):
            Session("s", seed)


def test_seeded_and_appended_events_are_immutable() -> None:
    """Attributes, payloads and whatever is inside them cannot be written to."""
    session = Session("s")
    say(session)
    session.append("my/event", {"a": {"b": [1]}})
    for events in (session.events, Session("s", dicts(session)).events):
        with pytest.raises(AttributeError):
            events[0].seq = 5  # type: ignore[misc]
        with pytest.raises(AttributeError):
            events[0].data.id = "x"  # type: ignore[union-attr]
        data: Any = events[1].data
        with pytest.raises(TypeError):
            data["a"] = 1
        with pytest.raises(TypeError):
            data["a"]["b"] = 1
        assert data["a"]["b"] == (1,)


def test_deeply_nested_restored_data_is_read_only_too() -> None:
    """Freezing does not recurse: thousands of levels are no problem."""
    value: Any = 0
    for _ in range(3000):
        value = {"n": [value]}
    session = Session("s")
    session.append("my/event", value)
    data: Any = Session("s", session.events).events[0].data
    for _ in range(3000):
        with pytest.raises(TypeError):
            data["n"] = 1
        (data,) = data["n"]
    assert data == 0


def test_snapshots_of_events_are_cached_and_never_grow() -> None:
    """Two looks without an append between them are one object; an old one stays as long as it was."""
    session = Session("s")
    say(session, "u1")
    first = session.events
    assert session.events is first
    say(session, "u2")
    assert len(first) == 1
    assert len(session.events) == 2
    with pytest.raises(TypeError):
        first[0] = None  # type: ignore[index]
    with pytest.raises(IndexError):
        first[1]


def _header(**config: Any) -> dict[str, Any]:
    return {"header": {"config": {"provider": "p", "model": "m", **config}}, "reason": "initial"}


def test_a_reasoning_effort_round_trips() -> None:
    """Any non-empty string is somebody's effort level."""
    session = Session("s")
    session.append("request/header", _header(reasoningEffort="ultra"))
    header = session.request_header()
    assert header is not None
    assert header.config.reasoning_effort == "ultra"
    again = Session("s", session.events).request_header()
    assert again == header


@pytest.mark.parametrize("effort", ["", 1, None, True, []], ids=repr)
def test_a_bad_reasoning_effort_is_refused(effort: Any) -> None:
    """An empty or non-string effort is refused at append."""
    session = Session("s")
    with pytest.raises(InvalidEventError):
        session.append("request/header", _header(reasoningEffort=effort))
    assert session.seq == 0


def test_adapter_default_markers_round_trip() -> None:
    """Markers name fields that the adapter filled in."""
    data = _header(reasoningEffort="high", maxTokens=100)
    data["header"]["adapterDefaults"] = {"reasoningEffort": True, "maxTokens": True}
    session = Session("s")
    event = session.append("request/header", data)
    assert event.to_dict()["data"] == data
    assert Session("s", session.events).request_header() == session.request_header()


@pytest.mark.parametrize(
    "markers",
    [5, [], {"reasoningEffort": False}, {"reasoningEffort": 1}, {"maxTokens": True}, {"other": True}],
    ids=repr,
)
def test_a_bad_adapter_default_marker_is_refused(markers: Any) -> None:
    """A marker is `true`, of a known name, and marks a field that is there."""
    data = _header(reasoningEffort="high")
    data["header"]["adapterDefaults"] = markers
    with pytest.raises(InvalidEventError):
        Session("s").append("request/header", data)


def test_the_todo_list_is_a_snapshot_and_the_last_write_wins() -> None:
    """A todo/write is never on the surface, survives replay, and the last one is the list."""
    todos = [{"content": "a", "status": "pending"}]
    session = Session("s")
    session.append("todo/write", {"todos": todos})
    todos[0]["status"] = "completed"
    session.append("todo/write", {"todos": todos})
    again = Session("s", dicts(session))
    for one in (session, again):
        data = [e.to_dict()["data"] for e in one.events]
        assert data == [{"todos": [{"content": "a", "status": s}]} for s in ("pending", "completed")]
        assert one.surface.nodes == ()


def test_tool_results_and_answers_keep_their_sources() -> None:
    """The events that a message derives from are kept in order, and absent means unrecorded."""
    session = Session("s")
    say(session)
    event = answer(session, content=[tool_call()], source_event_seqs=[0])
    assert event.source_event_seqs == (0,)
    assert result(session, source_event_seqs=[1]).source_event_seqs == (1,)
    assert session.events[0].source_event_seqs is None
    assert MODEL["kind"] == "model"
    assert USER["kind"] == "user"

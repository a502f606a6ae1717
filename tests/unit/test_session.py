"""The session model: append, seeds, views, observers and checkers."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from sessionstore.errors import InvalidEventError, UnsupportedFormatError, WrongThreadError
from sessionstore.events import Event, Replace
from sessionstore.lossless import MAX_SAFE, Json
from sessionstore.messages import TextDelta
from sessionstore.session import Session
from sessionstore.vocabulary import AssistantChunk, EventTypes, StepStart, TurnEnd, TurnStart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def user(text: str = "hi", id: str = "u1") -> dict[str, Json]:
    """The payload of a user message."""
    return {"id": id, "role": "user", "content": [{"type": "text", "text": text}], "source": {"kind": "user"}}


def assistant(text: str = "yo", id: str = "a1") -> dict[str, Json]:
    """The payload of an assistant message."""
    content: list[Json] = [{"type": "text", "text": text}] if text else []
    source: dict[str, Json] = {"kind": "model", "provider": "p", "model": "m"}
    return {"turn": 1, "step": 1, "message": {"id": id, "role": "assistant", "content": content, "source": source}}


def chunk(text: Any = "x", **changes: Any) -> dict[str, Json]:
    """The payload of a text delta."""
    return {"turn": 1, "step": 1, "chunk": {"type": "text-delta", "index": 0, "text": text, **changes}}


def session(**options: Any) -> Session:
    """A session whose clock counts from 100."""
    times = iter(range(100, 1_000_000))
    return Session("s", clock=lambda: next(times), **options)


def fill(s: Session) -> None:
    """One short turn."""
    s.append("turn/start", {"turn": 1, "trigger": {"kind": "message", "source": {"kind": "user"}}})
    s.append("user/message", user(), surface_op="append")
    s.append("step/start", {"turn": 1, "step": 1})
    for word in ("a", "b", "c"):
        s.append("assistant/chunk", chunk(word))
    s.append("assistant/message", assistant(), surface_op="append", source_event_seqs=[3, 4, 5])
    s.append("step/end", {"turn": 1, "step": 1})
    s.append("turn/end", {"turn": 1, "reason": {"kind": "completed"}})


def test_append_returns_the_logged_event() -> None:
    """Seqs count from 0, times come from the clock, and the event read back is the one returned."""
    s = session()
    first = s.append("turn/start", {"turn": 1})
    second = s.append("assistant/chunk", chunk())
    assert [first.seq, second.seq, s.seq] == [0, 1, 2]
    assert [first.time, second.time] == [100, 101] or first.time < second.time
    assert list(s.events) == [first, second]
    assert first.to_json() == b'{"type":"turn/start","seq":0,"time":%d,"data":{"turn":1}}' % first.time


def test_both_forms_of_append_log_the_same() -> None:
    """A Struct and a dict of the same payload give equal events."""
    pairs: list[tuple[Struct, str, Json]] = [
        (TurnStart(turn=1), "turn/start", {"turn": 1}),
        (StepStart(turn=1, step=1), "step/start", {"turn": 1, "step": 1}),
        (AssistantChunk(turn=1, step=1, chunk=TextDelta(index=0, text="é")), "assistant/chunk", chunk("é")),
    ]
    for struct, type_, data in pairs:
        a, b = Session("s", clock=lambda: 7), Session("s", clock=lambda: 7)
        assert a.append(struct) == b.append(type_, data)
        assert a.append(struct).data == struct


def test_a_wide_live_log_equals_its_replay() -> None:
    """Replaying the events of a session gives an equal log, surface and history."""
    s = session()
    fill(s)
    for seed in (list(s.events), [event.to_dict() for event in s.events]):
        again = Session("s", seed=seed, header=s.header)
        assert list(again.events) == list(s.events)
        assert [e.to_json() for e in again.events] == [e.to_json() for e in s.events]
        assert again.surface.nodes == s.surface.nodes == (1, 6)
        assert again.derive_messages() == s.derive_messages()
        assert again.first_live_seq == len(s.events)
    assert s.first_live_seq == 0


BAD_DATA: list[object] = [
    b"x",
    {1},
    float("nan"),
    float("inf"),
    -0.0,
    object(),
    len,
    {"a": [1, {"b": object()}]},
    {1: 2},
]


@pytest.mark.parametrize("bad", BAD_DATA, ids=repr)
def test_data_that_is_not_json_is_refused_and_uses_no_seq(bad: object) -> None:
    """A refused append leaves log and seq as they were."""
    s = session()
    for type_, data in (("my/type", bad), ("tool/result", {"turn": 1, "step": 1, "meta": bad}), ("assistant/chunk", {**chunk(), "x": bad})):  # fmt: skip
        with pytest.raises(InvalidEventError) as error:
            s.append(type_, data)
        assert error.value.event_type == type_
    assert s.seq == 0
    assert len(s.events) == 0
    assert s.append("my/type", 1).seq == 0


def test_the_payload_is_detached() -> None:
    """What the caller does to its object afterwards is not seen by the log."""
    s = session()
    data: dict[str, Any] = {"a": [1]}
    event = s.append("my/type", data)
    data["a"].append(2)
    data["b"] = 1
    assert event.data == s.events[0].data == {"a": (1,)}


def test_derived_messages_cannot_reach_the_log() -> None:
    """Messages are immutable, and the list is the caller's own."""
    s = session()
    fill(s)
    messages = s.derive_messages()
    with pytest.raises(AttributeError):
        messages[0].id = "other"  # type: ignore[union-attr,misc]
    messages.clear()
    assert len(s.derive_messages()) == 2


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({}, "$.surfaceOp"),
        ({"surface_op": "add"}, "$.surfaceOp"),
        ({"surface_op": {"op": "replace", "start": -1, "end": 0}}, "$.surfaceOp.start"),
        ({"surface_op": {"op": "replace", "start": 0, "end": 0, "x": 1}}, "$.surfaceOp"),
        ({"surface_op": "append", "source_event_seqs": [-1]}, "$.sourceEventSeqs[0]"),
        ({"surface_op": "append", "source_event_seqs": ["0"]}, "$.sourceEventSeqs[0]"),
        ({"surface_op": "append", "source_event_seqs": [0, 0]}, "$.sourceEventSeqs[1]"),
        ({"surface_op": "append", "source_event_seqs": [5]}, "$.sourceEventSeqs[0]"),
        ({"surface_op": "append", "source_event_seqs": []}, "$.sourceEventSeqs"),
        ({"surface_op": "append", "source_event_seqs": "01"}, "$.sourceEventSeqs"),
        ({"surface_op": object()}, "$.surfaceOp"),
    ],
)
def test_bad_surface_metadata_is_refused(options: dict[str, Any], path: str) -> None:
    """Every malformed operation or source list names its place and changes nothing."""
    s = session()
    s.append("turn/start", {"turn": 1})
    with pytest.raises(InvalidEventError) as error:
        s.append("user/message", user(), **options)
    assert error.value.path == path
    assert s.seq == 1
    assert s.surface.nodes == ()


def test_log_only_types_carry_no_surface_metadata() -> None:
    """A marker on any other type is refused, by append and in seeds, deltas included."""
    refused: tuple[dict[str, Any], ...] = ({"surface_op": "append"}, {"source_event_seqs": [0]})
    for options in refused:
        s = session()
        s.append("my/type", 1)
        for type_, data in (("turn/start", {"turn": 1}), ("assistant/chunk", chunk()), ("my/type", 1)):
            with pytest.raises(InvalidEventError):
                s.append(type_, data, **options)
    with pytest.raises(InvalidEventError, match="seed event 0"):
        Session("s", seed=[{"type": "a", "seq": 0, "time": 0, "data": 1, "surfaceOp": "append"}])


def test_replace_and_its_generation() -> None:
    """A replacement takes the place of its range and counts."""
    s = session()
    for n in range(4):
        s.append("user/message", user(id=f"u{n}"), surface_op="append")
    s.append("user/message", user(id="sum"), surface_op=Replace(1, 2), source_event_seqs=[1, 2])
    assert s.surface.nodes == (0, 4, 3)
    assert s.surface.replace_generation == 1
    assert [m.id for m in s.derive_messages()] == ["u0", "sum", "u3"]  # type: ignore[union-attr]
    view = s.surface
    s.append("user/message", user(id="last"), surface_op="append")
    assert view is s.surface
    assert view.nodes == (0, 4, 3, 5)


def test_retired_forms_are_refused() -> None:
    """Forms that old logs used are neither written nor replayed."""
    s = session()
    header: dict[str, Json] = {"config": {"provider": "p", "model": "m"}}
    retired: tuple[tuple[str, dict[str, Json]], ...] = (
        ("request/header-delta", {}),
        ("mode/set", {}),
        ("request/header", {"header": header, "reason": "fallback"}),
    )
    for type_, data in retired:
        with pytest.raises(InvalidEventError):
            s.append(type_, data)
        with pytest.raises(UnsupportedFormatError):
            Session("s", seed=[{"type": type_, "seq": 0, "time": 0, "data": data}])
    assert s.seq == 0


def test_checkers_veto_before_anything_changes() -> None:
    """A veto leaves log, surface and seq; the next append gets the same seq; removing a checker ends it."""
    s = session()
    seen: list[Event] = []

    def veto(event: Event) -> None:
        seen.append(event)
        raise PermissionError("no")

    remove = s.check(veto)
    acts: tuple[Callable[[], Event], ...] = (
        lambda: s.append("user/message", user(), surface_op="append"),
        lambda: s.append("assistant/chunk", chunk()),
    )
    for act in acts:
        with pytest.raises(PermissionError):
            act()
    assert [event.seq for event in seen] == [0, 0]
    assert (s.seq, s.surface.nodes) == (0, ())
    remove()
    remove()
    assert s.append("user/message", user(), surface_op="append").seq == 0


def test_observers_see_committed_events_in_order_and_are_contained(caplog: pytest.LogCaptureFixture) -> None:
    """An observer that raises is logged; later observers still run; append returns."""
    s = session()
    seen: list[tuple[str, int]] = []

    def failing(event: Event) -> None:
        seen.append(("a", event.seq))
        raise RuntimeError("sk-secret is my own")

    def counting(event: Event) -> None:
        assert s.seq == event.seq + 1
        seen.append(("b", event.seq))

    s.observe(failing)
    remove = s.observe(counting)
    with caplog.at_level(logging.WARNING, "sessionstore"):
        s.append("my/type", 1)
        s.append("assistant/chunk", chunk())
    assert seen == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    remove()
    s.append("my/type", 1)
    assert seen[-1] == ("a", 2)


def test_observers_let_exits_through() -> None:
    """KeyboardInterrupt is not contained; the event is committed all the same."""
    s = session()

    def interrupted(event: Event) -> None:
        raise KeyboardInterrupt

    remove = s.observe(interrupted)
    with pytest.raises(KeyboardInterrupt):
        s.append("my/type", 1)
    remove()
    assert s.append("my/type", 2).seq == 1


@pytest.mark.parametrize("where", ["check", "observe"])
def test_re_entrant_appends_are_refused(where: str) -> None:
    """An append from inside a checker or observer is refused; another session may be appended to."""
    s, other = session(), session()
    errors: list[Exception] = []

    def reenter(event: Event) -> None:
        other.append("my/type", 1)
        for data in (1, chunk()):
            try:
                s.append("my/type" if data == 1 else "assistant/chunk", data)
            except InvalidEventError as error:
                errors.append(error)

    getattr(s, where)(reenter)
    s.append("my/type", 0)
    s.append("assistant/chunk", chunk())
    assert len(errors) == 4
    assert (s.seq, other.seq) == (2, 2)


def test_an_observer_added_while_publishing_waits() -> None:
    """The list of observers is settled before an event is published."""
    s = session()
    seen: list[int] = []

    def add(event: Event) -> None:
        s.observe(lambda later: seen.append(later.seq))

    remove = s.observe(add)
    s.append("my/type", 1)
    remove()
    s.append("my/type", 1)
    assert seen == [1]


def test_callbacks_are_callables() -> None:
    """Registering something else is told at once."""
    for register in (session().observe, session().check):
        with pytest.raises(TypeError):
            register(1)  # type: ignore[arg-type]


def test_one_thread() -> None:
    """A session that a store opened refuses appends from another thread, deltas included."""
    s = session()
    s._owner = threading.get_ident()
    s.append("my/type", 1)
    errors: list[Exception] = []

    def work() -> None:
        acts: tuple[Callable[[], Event], ...] = (
            lambda: s.append("my/type", 1),
            lambda: s.append("assistant/chunk", chunk()),
        )
        for act in acts:
            try:
                act()
            except WrongThreadError as error:
                errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(errors) == 2
    assert s.seq == 1


@pytest.mark.parametrize("call", [
    lambda s: s.append(1, {}), lambda s: s.append(None, {}), lambda s: s.append(object(), {}), lambda s: s.append(b"a", 1),
])  # fmt: skip
def test_a_type_is_a_string(call: Callable[[Session], object]) -> None:
    """Anything else than a string or a payload Struct is the documented error."""
    s = session()
    with pytest.raises((InvalidEventError, TypeError)):
        call(s)
    assert s.seq == 0


def test_append_needs_a_payload() -> None:
    """A type without data, or a Struct with data, is a mistake of the caller."""
    s = session()
    with pytest.raises(TypeError):
        s.append("my/type")  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        s.append(TurnStart(turn=1), {})  # type: ignore[call-overload]
    with pytest.raises(InvalidEventError):
        s.append(TextDelta(index=0, text="x"))
    assert s.seq == 0


def test_the_clock_is_checked() -> None:
    """A clock that returns anything but a safe integer is refused; one that steps back is fine."""
    for bad in (1.5, "1", None, True, MAX_SAFE + 1):
        s = Session("s", clock=lambda bad=bad: bad, header={"type": "session", "version": 0, "id": "s", "createdAt": 0})  # type: ignore[misc]
        for type_, data in (("my/type", 1), ("assistant/chunk", chunk())):
            with pytest.raises(InvalidEventError, match="clock"):
                s.append(type_, data)
        assert s.seq == 0
    times = iter([100, 101, 99, 99, -5])
    s = Session("s", clock=lambda: next(times))
    assert [s.append("assistant/chunk", chunk()).time for _ in range(4)] == [101, 99, 99, -5]
    assert [e.time for e in s.events] == [101, 99, 99, -5]


def test_registered_types_are_structs() -> None:
    """A plugin's registered type reads as its Struct and may be appended as one."""

    class Note(Struct, frozen=True):
        text: str

    types = EventTypes()
    types.register("my/note", Note)
    s = session(types=types)
    assert s.append(Note("a")).data == Note("a")
    assert s.append("my/note", {"text": "b"}).data == Note("b")
    assert s.append("my/note", {"other": 1}).data == {"other": 1}
    assert [e.data for e in s.events] == [Note("a"), Note("b"), {"other": 1}]
    with pytest.raises(InvalidEventError):
        session().append(Note("a"))


@pytest.mark.parametrize("bad", [
    {"seq": 0, "time": 0, "data": 1}, {"type": 1, "seq": 0, "time": 0, "data": 1}, {"type": "a", "seq": 1, "time": 0, "data": 1},
    {"type": "a", "seq": "0", "time": 0, "data": 1}, {"type": "a", "seq": 0.5, "time": 0, "data": 1}, {"type": "a", "seq": -1, "time": 0, "data": 1},
    {"type": "a", "seq": 0, "time": "0", "data": 1}, {"type": "a", "seq": 0, "time": 0.5, "data": 1}, {"type": "a", "seq": 0, "time": 0},
    {"type": "a", "seq": 0, "time": 0, "data": {1}}, {"type": "user/message", "seq": 0, "time": 0, "data": user()}, 7, None, [],
    {"type": "user/message", "seq": 0, "time": 0, "data": {**user(), "id": ""}, "surfaceOp": "append"},
])  # fmt: skip
def test_bad_seeds_construct_nothing(bad: Any) -> None:
    """A seed with a broken envelope, seq, surface or message is refused, naming its index."""
    with pytest.raises(InvalidEventError) as error:
        Session("s", seed=[bad])
    assert "seed event 0" in str(error.value)


def test_seeds_are_not_published_and_may_end_in_an_open_turn() -> None:
    """An open turn in a seed is legal; live appends go on from there."""
    s = Session("s", seed=[{"type": "turn/start", "seq": 0, "time": 5, "data": {"turn": 1}}])
    assert (s.first_live_seq, s.seq) == (1, 1)
    assert s.append("step/start", {"turn": 1, "step": 1}).seq == 1


def test_deviations_that_seeds_do_not_refuse_are_carried() -> None:
    """A core event of another shape is a read-only mapping, byte for byte."""
    line: dict[str, Json] = {"type": "turn/end", "seq": 0, "time": 0, "data": {"turn": "one"}}
    s = Session("s", seed=[line])
    assert s.events[0].data == {"turn": "one"}
    assert s.events[0].to_dict() == line


def test_headers() -> None:
    """A bare session has a header; a given one must be of that id."""
    s = session()
    assert (s.id, s.header.id, s.header.version) == ("s", "s", 0)
    given = Session("s", header={"type": "session", "version": 0, "id": "s", "createdAt": 5, "cwd": "/a", "x": 1})
    assert (given.header.cwd, given.header.created_at) == ("/a", 5)
    with pytest.raises(InvalidEventError):
        Session("t", header=given.header)
    with pytest.raises(InvalidEventError):
        Session("", clock=lambda: 1)
    with pytest.raises(InvalidEventError):
        Session(7)  # type: ignore[arg-type]


def test_request_header_and_context_follow_the_log() -> None:
    """None before the first, the last one after; incremental and from a seed."""
    s = session()
    assert s.request_header() is None
    assert s.request_context() is None
    for model in ("m1", "m2"):
        config: dict[str, Json] = {"provider": "p", "model": model}
        s.append("request/header", {"header": {"config": config, "system": "", "tools": []}, "reason": "change"})
        s.append("request/context", {"provider": "p", "model": model, "contextWindow": 10})
    again = Session("s", seed=list(s.events))
    for one in (s, again):
        header, context = one.request_header(), one.request_context()
        assert header is not None
        assert header.config.model == "m2"
        assert header.system is None
        assert context is not None
        assert context.model == "m2"


def test_an_end_reason_of_any_kind_round_trips() -> None:
    """Known and unknown reasons come back as they were logged."""
    s = session()
    reasons: list[Mapping[str, Json]] = [
        {"kind": "completed"}, {"kind": "aborted"}, {"kind": "aborted", "reason": {"kind": "user"}}, {"kind": "max-tokens"},
        {"kind": "error", "step": 1, "message": "m"}, {"kind": "interrupted"}, {"kind": "from-a-plugin", "x": 1},
    ]  # fmt: skip
    for turn, reason in enumerate(reasons):
        event = s.append("turn/end", {"turn": turn, "reason": reason})
        assert isinstance(event.data, TurnEnd)
        assert event.to_dict()["data"] == {"turn": turn, "reason": reason}


TOKENS = st.one_of(
    st.builds(chunk, st.text(st.characters(exclude_categories=()), max_size=4)),
    st.builds(lambda t, i: chunk(t, index=i), st.text(max_size=2), st.integers(0, 2)),
    st.just({"turn": 1, "step": 1, "chunk": {"type": "reasoning-delta", "index": 0, "text": "r"}}),
    st.builds(
        lambda i, n: {"turn": 1, "step": 1, "chunk": {"type": "tool-call-delta", "index": 1, "id": i, **n, "argumentsDelta": "{"}},
        st.sampled_from(["c1", "c2"]), st.sampled_from([{}, {"name": "sh"}]),
    ),
    st.just({"turn": 1, "step": 1, "chunk": {"type": "text-delta", "index": 0, "text": "x", "extra": 1}}),
    st.just({"turn": 1, "step": 1, "chunk": {"type": "block-start", "index": 0, "blockType": "text"}}),
)  # fmt: skip


@given(st.lists(TOKENS, max_size=12))
def test_the_delta_path_agrees_with_the_general_path(tokens: list[dict[str, Json]]) -> None:
    """Deltas taken by the fast path are the very events that the general path would have logged."""
    s = Session("s", clock=lambda: 5)
    slow = Session("s", clock=lambda: 5)
    for token in tokens:
        event = s.append("assistant/chunk", token)
        # An unknown key in the envelope's payload keeps the general path; here it is asked directly.
        assert event == slow._append("assistant/chunk", *encoded(token), None, None)
    assert list(s.events) == list(slow.events)


def encoded(token: dict[str, Json]) -> tuple[bytes, Any]:
    """What the general path makes of a payload."""
    from sessionstore.lossless import encode
    from sessionstore.vocabulary import validate_payload

    raw = encode(token)
    return raw, validate_payload("assistant/chunk", raw)


@pytest.mark.parametrize("bad", [
    chunk(7), chunk(None), {**chunk(), "turn": True}, {**chunk(), "turn": 1.5}, {**chunk(), "step": "1"}, chunk(index=None),
    chunk(index=True), {"turn": 1, "step": 1}, {"turn": 1, "step": 1, "chunk": {"type": "unknown"}}, {"turn": 1, "step": 1, "chunk": []},
    {"turn": 1, "step": 1, "chunk": {"type": "tool-call-delta", "index": 0, "argumentsDelta": "x"}},
    {"turn": 1, "step": 1, "chunk": {"type": "tool-call-delta", "index": 0, "id": 1, "argumentsDelta": "x"}}, None, 1, "x", [],
])  # fmt: skip
def test_malformed_chunks_are_refused(bad: Any) -> None:
    """The fast path takes nothing that the shape rules refuse, also when it would continue a run."""
    s = session()
    s.append("assistant/chunk", chunk())
    with pytest.raises(InvalidEventError):
        s.append("assistant/chunk", bad)
    assert s.seq == 1


def test_what_a_store_takes() -> None:
    """Lines are taken once, in order, in portions; what is put back is taken again."""
    s = session()
    fill(s)
    first = s._take(100)
    assert first is not None
    seq, lines = first
    assert seq == 0
    assert len(lines) >= 1
    rest = []
    while (taken := s._take(10**6)) is not None:
        rest.append(taken)
    assert [b"text-chunks" in line for _, ls in rest for line in ls].count(True) == 1
    s._untake(rest[0][0])
    assert s._take(10**6) == rest[0]
    s.append("assistant/chunk", chunk())
    again = s._take(1)
    assert again is not None
    assert again[0] == 9


def test_a_run_never_crosses_two_takes() -> None:
    """Taking ends the open run: each part is packed on its own, and the log is the same."""
    s = session()
    for n in range(10):
        s.append("assistant/chunk", chunk(str(n)))
        if n == 4:
            s._take(10**6)
    s._take(10**6)
    assert [e.data.chunk.text for e in s.events] == [str(n) for n in range(10)]  # type: ignore[union-attr]
    assert s._log.line_count == 2

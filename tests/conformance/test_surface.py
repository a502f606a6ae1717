"""Conformance, theme G: the surface, its sources and its replacements."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore.errors import InvalidEventError
from sessionstore.events import Event, Replace
from sessionstore.session import Session
from sessionstore.surface import fold_surface
from sessionstore.vocabulary import SURFACE_TYPES
from tests.conformance.build import (
    answer,
    dicts,
    event,
    nodes,
    result,
    say,
    tool_call,
    tool_message,
    turn_start,
    user_message,
)


def replace(start: int, end: int) -> dict[str, Any]:
    """A replacement, as it is spelled on disk."""
    return {"op": "replace", "start": start, "end": end}


def three() -> Session:
    """A session with three nodes: 0, 1, 2."""
    session = Session("s")
    for id_ in ("u1", "u2", "u3"):
        say(session, id_)
    return session


def refused(session: Session, **extra: Any) -> str:
    """Append a replacement that is refused; the surface must not move.  Its message."""
    before = (session.seq, session.surface.nodes, session.surface.replace_generation)
    with pytest.raises(InvalidEventError) as caught:
        say(session, "new", **extra)
    assert (session.seq, session.surface.nodes, session.surface.replace_generation) == before
    return str(caught.value)


def test_sources_may_be_absent_or_name_any_earlier_events() -> None:
    """Order is free and kept; log-only events may be cited too."""
    session = Session("s")
    session.append("turn/start", turn_start())
    say(session, "u1")
    assert say(session, "u2", source_event_seqs=[1, 0]).source_event_seqs == (1, 0)
    assert say(session, "u3").source_event_seqs is None
    assert say(session, "u4", surface_op=replace(1, 2), source_event_seqs=[2, 1, 0]).source_event_seqs == (2, 1, 0)


def test_empty_sources_are_for_assistant_messages_only() -> None:
    """An empty list says that the provider's stream was empty; nothing else has a stream."""
    session = Session("s")
    assert answer(session, source_event_seqs=[]).source_event_seqs == ()
    with pytest.raises(InvalidEventError, match="empty"):
        say(session, source_event_seqs=[])


def test_sources_on_a_log_only_event_are_refused() -> None:
    """A turn boundary derives from nothing."""
    session = three()
    with pytest.raises(InvalidEventError):
        session.append("turn/start", turn_start(), source_event_seqs=[0])


@pytest.mark.parametrize(
    "sources",
    [[], [0, 0], ["0"], [None], [0.5], [-1], [3], [7]],
    ids=["empty", "duplicate", "string", "null", "fraction", "negative", "itself", "future"],
)
def test_bad_sources_are_refused(sources: Any) -> None:
    """Sources are distinct, earlier, non-negative integers."""
    refused(three(), source_event_seqs=sources)


def test_sources_in_a_seed_that_are_no_list_or_skip_a_seq_are_refused() -> None:
    """A seed obeys the rules that append obeys."""
    for bad in ("0", {"0": 0}, [0, None], [5]):
        seed = dicts(three())
        seed[2]["sourceEventSeqs"] = bad
        with pytest.raises(InvalidEventError):
            Session("s", seed)
    gap = dicts(three())
    gap[2]["seq"] = 3
    with pytest.raises(InvalidEventError):
        fold_surface([Event.from_dict(e) for e in gap])


def test_a_replacement_cites_everything_that_it_shadows() -> None:
    """Incomplete coverage is refused and names what is missing; more than that is welcome."""
    assert "1" in refused(three(), surface_op=replace(0, 2), source_event_seqs=[0, 2])
    refused(three(), surface_op=replace(0, 0))
    session = three()
    say(session, "new", surface_op=replace(1, 1), source_event_seqs=[0, 1])
    assert nodes(session) == (0, 3, 2)


def test_a_replacement_takes_the_place_of_its_range_only() -> None:
    """A single node, a range, the head, the middle: order is kept, the generation counts."""
    session = three()
    say(session, "n1", surface_op=Replace(1, 1), source_event_seqs=[1])
    assert nodes(session) == (0, 3, 2)
    say(session, "n2", surface_op=replace(0, 3), source_event_seqs=[0, 3])
    assert nodes(session) == (4, 2)
    say(session, "u4")
    assert nodes(session) == (4, 2, 5)
    assert session.surface.replace_generation == 2


def test_positions_count_not_numbers() -> None:
    """After a replacement a larger seq may stand before a smaller one."""
    session = three()
    say(session, "n1", surface_op=replace(0, 0), source_event_seqs=[0])
    assert nodes(session) == (3, 1, 2)
    say(session, "n2", surface_op=replace(3, 1), source_event_seqs=[3, 1])
    assert nodes(session) == (4, 2)
    refused(session, surface_op=replace(2, 4), source_event_seqs=[2, 4])


@pytest.mark.parametrize(
    ("operation", "word"),
    [(replace(7, 2), "start"), (replace(0, 7), "end"), (replace(2, 0), "after"), (replace(3, 3), "start")],
    ids=["start missing", "end missing", "start after end", "itself"],
)
def test_a_replacement_of_what_is_not_there_is_refused(operation: dict[str, Any], word: str) -> None:
    """Start, end and their order are checked in that order."""
    assert word in refused(three(), surface_op=operation, source_event_seqs=[0, 1, 2])


def test_the_checks_come_in_their_order() -> None:
    """Start before end before order before sources before coverage."""
    assert "start" in refused(three(), surface_op=replace(7, 8), source_event_seqs=[9])
    assert "end" in refused(three(), surface_op=replace(0, 8), source_event_seqs=[9])
    assert "after" in refused(three(), surface_op=replace(1, 0), source_event_seqs=[9])
    assert "cited twice" in refused(three(), surface_op=replace(0, 2), source_event_seqs=[0, 0, 9])
    assert "earlier" in refused(three(), surface_op=replace(0, 2), source_event_seqs=[0, 9])


# --- the tool-result rule ----------------------------------------------------------------------------------------


def with_result() -> Session:
    """0 user, 1 assistant with a call, 2 its result."""
    session = Session("s")
    say(session)
    answer(session, content=[tool_call()])
    result(session)
    return session


def rewrite(session: Session, data: dict[str, Any], start: int = 2, end: int = 2) -> Event:
    """Replace a result by *data*."""
    sources = list(range(start, end + 1))
    return session.append("tool/result", data, surface_op=replace(start, end), source_event_seqs=sources)


def payload(**changes: Any) -> dict[str, Any]:
    """The payload of a result with a pruned text."""
    return {"turn": 1, "step": 1, "message": tool_message(text="pruned"), **changes}


def test_a_tool_result_may_change_its_content() -> None:
    """Pruning keeps the message and changes what the block says."""
    session = with_result()
    rewrite(session, payload())
    assert nodes(session) == (0, 1, 3)
    (block,) = session.derive_messages()[-1].content  # type: ignore[union-attr]
    assert block.content[0].text == "pruned"  # type: ignore[union-attr]


def test_a_tool_result_replaces_exactly_one_tool_result() -> None:
    """Not several nodes, and not another type."""
    session = with_result()
    with pytest.raises(InvalidEventError):
        rewrite(session, payload(), 1, 2)
    with pytest.raises(InvalidEventError):
        rewrite(session, payload(), 1, 1)
    result(session, "c2")
    with pytest.raises(InvalidEventError, match="one node"):
        rewrite(session, payload(), 2, 3)
    assert nodes(session) == (0, 1, 2, 3)


def _message(**changes: Any) -> dict[str, Any]:
    return payload(message={**tool_message(text="pruned"), **changes})


def _block(**changes: Any) -> dict[str, Any]:
    return _message(content=[{**tool_message(text="pruned")["content"][0], **changes}])


@pytest.mark.parametrize(
    "data",
    [
        payload(turn=2),
        payload(step=2),
        payload(error={"name": "E", "code": "C"}),
        payload(meta={"a": 1}),
        _message(id="other"),
        _message(extra=1),
        _block(isError=True),
        _block(extra=1),
        {"turn": 1, "step": 1, "message": tool_message("c2", id="r-c1")},
    ],
    ids=["turn", "step", "error", "meta", "message id", "message key", "isError", "block key", "call"],
)
def test_a_tool_result_may_change_nothing_else(data: dict[str, Any]) -> None:
    """Turn, step, identity, call, error flag and metadata stay as they are."""
    session = with_result()
    with pytest.raises(InvalidEventError):
        rewrite(session, data)
    assert nodes(session) == (0, 1, 2)


META = {"a": [1, {"b": 2}], "c": "x"}


@pytest.mark.parametrize(
    ("meta", "accepted"),
    [
        ({"c": "x", "a": [1, {"b": 2}]}, True),
        ({"a": [1, {"b": 3}], "c": "x"}, False),
        ({"a": 1, "c": "x"}, False),
        ({"a": [1, {"b": 2}], "d": "x"}, False),
        ({"a": [1, {"b": 2}]}, False),
        ({"a": [1, {"b": 2}], "c": "x", "d": 1}, False),
        ({"a": [1, {"b": 2.0}], "c": "x"}, False),
        ({"a": [True, {"b": 2}], "c": "x"}, False),
    ],
    ids=["key order", "element", "scalar for array", "key names", "fewer keys", "more keys", "2.0 for 2", "true for 1"],
)
def test_what_may_not_change_is_compared_by_structure(meta: Any, accepted: bool) -> None:
    """Key order does not matter; a drifted element, another kind or another key does."""
    session = Session("s")
    say(session)
    answer(session, content=[tool_call()])
    session.append("tool/result", payload(message=tool_message(), meta=META), surface_op="append")
    if accepted:
        rewrite(session, payload(meta=meta))
        assert nodes(session) == (0, 1, 3)
    else:
        with pytest.raises(InvalidEventError):
            rewrite(session, payload(meta=meta))


# --- folding -----------------------------------------------------------------------------------------------------


def test_the_fold_lists_replacements_and_the_session_keeps_only_nodes() -> None:
    """`fold_surface` tells the whole story; a live session keeps the state and a counter."""
    session = three()
    say(session, "n1", surface_op=replace(0, 1), source_event_seqs=[0, 1])
    say(session, "n2", surface_op=replace(3, 2), source_event_seqs=[3, 2])
    fold = fold_surface(session.events)
    assert fold.nodes == session.surface.nodes == (4,)
    assert [(r.seq, r.start, r.end, r.shadowed_seqs) for r in fold.replacements] == [
        (3, 0, 1, (0, 1)),
        (4, 3, 2, (3, 2)),
    ]
    assert not hasattr(session.surface, "replacements")


def test_an_empty_and_a_log_only_log_have_no_nodes() -> None:
    """Nothing message-producing, nothing on the surface."""
    session = Session("s")
    assert fold_surface(session.events).nodes == ()
    session.append("turn/start", turn_start())
    assert fold_surface(session.events).nodes == session.surface.nodes == ()
    assert session.derive_messages() == []


def test_the_fold_refuses_a_missing_and_a_misplaced_marker() -> None:
    """An eligible event without a marker, and a marker on a log-only type."""
    with pytest.raises(InvalidEventError):
        fold_surface([event("user/message", 0, user_message())])
    with pytest.raises(InvalidEventError):
        fold_surface([event("turn/start", 0, turn_start(), surfaceOp="append")])


@st.composite
def operations(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """Random appends and replacements, some of them impossible."""
    out: list[tuple[str, Any]] = []
    for _ in range(draw(st.integers(0, 14))):
        if draw(st.booleans()):
            out.append(("append", draw(st.sampled_from(["message", "log-only"]))))
        else:
            out.append(("replace", (draw(st.integers(0, 12)), draw(st.integers(0, 12)))))
    return out


@given(operations())
def test_the_incremental_surface_equals_the_fold(program: list[tuple[str, Any]]) -> None:
    """After every step, accepted or refused, state and failure are those of a fold of the whole log."""
    session = Session("s")
    for number, (kind, what) in enumerate(program):
        before = (session.surface.nodes, session.surface.replace_generation)
        if kind == "append":
            if what == "message":
                say(session, f"u{number}")
            else:
                session.append("my/event", {})
        else:
            start, end = what
            cited = list(session.surface.nodes) or None
            try:
                say(session, f"u{number}", surface_op=replace(start, end), source_event_seqs=cited)
            except InvalidEventError as refusal:
                assert (session.surface.nodes, session.surface.replace_generation) == before
                extra: dict[str, Any] = {} if cited is None else {"sourceEventSeqs": cited}
                candidate = event(
                    "user/message",
                    session.seq,
                    user_message(f"u{number}"),
                    surfaceOp=replace(start, end),
                    **extra,
                )
                with pytest.raises(InvalidEventError) as folded:
                    fold_surface([*session.events, candidate])
                assert folded.value.reason == refusal.reason
        fold = fold_surface(session.events)
        assert fold.nodes == session.surface.nodes
        assert len(fold.replacements) == session.surface.replace_generation
    assert Session("s", session.events).surface.nodes == session.surface.nodes


def test_derivation_follows_the_surface() -> None:
    """Log-only events are skipped, replaced messages gone, empty assistant messages left out."""
    session = Session("s")
    session.append("turn/start", turn_start())
    say(session, "u1")
    session.append("steering/message", {"turn": 1, "message": user_message("s1")}, surface_op="append")
    answer(session, "a1", content=[])
    answer(session, "a2")
    say(session, "sum", surface_op=replace(1, 2), source_event_seqs=[1, 2])
    assert nodes(session) == (5, 3, 4)
    assert [m.id for m in session.derive_messages()] == ["sum", "a2"]  # type: ignore[union-attr]


def test_an_event_keeps_its_sources_and_its_operation() -> None:
    """Surface events show both fields; log-only events have neither, in memory and in JSON."""
    session = three()
    session.append("turn/start", turn_start())
    replaced = say(session, "n", surface_op=replace(0, 0), source_event_seqs=[0])
    plain, log_only = session.events[1], session.events[3]
    assert (replaced.surface_op, replaced.source_event_seqs) == (Replace(0, 0), (0,))
    assert (plain.surface_op, plain.source_event_seqs) == ("append", None)
    assert (log_only.surface_op, log_only.source_event_seqs) == (None, None)
    assert list(replaced.to_dict())[4:] == ["sourceEventSeqs", "surfaceOp"]
    assert set(log_only.to_dict()) == {"type", "seq", "time", "data"}


def test_surface_events_are_told_by_type_and_marker() -> None:
    """The eligible types are listed, and an event says whether it joined or replaced."""
    assert {"user/message", "assistant/message", "tool/result", "steering/message"} == SURFACE_TYPES
    session = three()
    joined, log_only = session.events[0], session.append("turn/start", turn_start())
    replaced = say(session, "n", surface_op=replace(0, 0), source_event_seqs=[0])
    assert joined.surface_op == "append"
    assert isinstance(replaced.surface_op, Replace)
    assert log_only.surface_op is None
    assert event("user/message", 0, user_message()).surface_op is None


def test_the_generation_is_current_whenever_it_is_read() -> None:
    """Reading the counter needs no read of the nodes before it."""
    session = three()
    say(session, "n", surface_op=replace(0, 0), source_event_seqs=[0])
    assert session.surface.replace_generation == 1
    assert Session("s", session.events).surface.replace_generation == 1

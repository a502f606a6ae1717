"""Conformance, theme H: the cache of derived messages and the properties of a log."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sessionstore.history import derive_event_message
from sessionstore.session import Session
from tests.conformance.build import answer, closed_turn, dicts, result, say, tool_call, turn_end, turn_start


def scratch(session: Session) -> list[Any]:
    """The history derived from nothing but the log."""
    return Session(session.id, dicts(session)).derive_messages()


def test_the_cache_equals_a_scratch_replay_while_it_grows() -> None:
    """After every append the cached history is what a fresh session derives."""
    session = Session("s")
    for k in range(5):
        say(session, f"u{k}")
        assert session.derive_messages() == scratch(session)
        answer(session, f"a{k}", content=[] if k % 2 else None)
        assert session.derive_messages() == scratch(session)


def test_a_replacement_rebuilds_the_cache() -> None:
    """The history after a replacement has the new message in the old place."""
    session = Session("s")
    for k in range(3):
        say(session, f"u{k}")
    before = session.derive_messages()
    say(session, "new", surface_op={"op": "replace", "start": 1, "end": 1}, source_event_seqs=[1])
    after = session.derive_messages()
    assert [m.id for m in after] == ["u0", "new", "u2"]  # type: ignore[union-attr]
    assert after == scratch(session)
    assert [m.id for m in before] == ["u0", "u1", "u2"]  # type: ignore[union-attr]


def test_every_call_returns_a_fresh_list_of_shared_messages() -> None:
    """The list is the caller's; the messages are everybody's."""
    session = Session("s")
    say(session)
    first, second = session.derive_messages(), session.derive_messages()
    assert first is not second
    assert first[0] is second[0]


def test_the_projection_of_an_event_is_its_node_in_the_history() -> None:
    """Pure and cached form agree; boundaries, deltas and empty answers project to nothing."""
    session = Session("s")
    closed_turn(session)
    empty = answer(session, "empty", content=[])
    projected = [derive_event_message(e, session.id) for e in session.events]
    assert [m for m in projected if m is not None] == session.derive_messages()
    assert derive_event_message(empty) is None
    assert session.derive_event_message(empty) is None
    assert session.derive_event_message(session.events[0]) is None


@st.composite
def programs(draw: st.DrawFn) -> list[str]:
    """Random kinds of appends."""
    kinds = ["user", "assistant", "empty", "call", "plugin", "chunk", "replace", "turn"]
    return draw(st.lists(st.sampled_from(kinds), max_size=20))


def run(program: list[str], *, log_only: bool = True) -> Session:
    """Carry out a program; without *log_only* events that no model sees are left out."""
    session = Session("s", clock=lambda: 1000)
    turn = 0
    for number, kind in enumerate(program):
        nodes = session.surface.nodes
        if kind == "user":
            say(session, f"m{number}")
        elif kind in {"assistant", "empty"}:
            answer(session, f"m{number}", content=[] if kind == "empty" else None)
        elif kind == "call":
            answer(session, f"m{number}", content=[tool_call(f"c{number}")])
            result(session, f"c{number}")
        elif kind == "replace" and nodes:
            operation = {"op": "replace", "start": nodes[0], "end": nodes[-1]}
            say(session, f"m{number}", surface_op=operation, source_event_seqs=list(nodes))
        elif log_only and kind == "plugin":
            session.append("my/event", {"n": number})
        elif log_only and kind == "chunk":
            for word in ("a", "b", "c", "d")[: 1 + number % 4]:
                chunk = {"type": "text-delta", "index": 0, "text": word}
                session.append("assistant/chunk", {"turn": 1, "step": 1, "chunk": chunk})
        elif log_only and kind == "turn":
            turn += 1
            session.append("turn/start", turn_start(turn))
            session.append("turn/end", turn_end(turn))
    return session


@given(programs())
def test_derivation_is_deterministic(program: list[str]) -> None:
    """The same program gives the same log, surface and history."""
    one, two = run(program), run(program)
    assert one.events == two.events
    assert one.surface.nodes == two.surface.nodes
    assert one.derive_messages() == two.derive_messages()


@given(programs())
def test_seqs_count_from_zero(program: list[str]) -> None:
    """The seq of an event is its index, whatever was appended."""
    session = run(program)
    assert [e.seq for e in session.events] == list(range(session.seq))


@given(programs())
def test_a_replay_is_identical(program: list[str]) -> None:
    """A session made of another's events is the same session, and seeding adds nothing."""
    session = run(program)
    again = Session("s", dicts(session))
    assert [e.to_json() for e in again.events] == [e.to_json() for e in session.events]
    assert again.derive_messages() == session.derive_messages()
    assert again.seq == session.seq
    twice = Session("s", again.events)
    assert twice.events == session.events


@given(programs())
def test_a_log_that_ends_in_a_seed_marker_seeds_as_it_is(program: list[str]) -> None:
    """A marker of a newer writer is an event as any other; seeding such a log again adds nothing."""
    seed = dicts(run(program))
    seed.append({"type": "session/end-seed", "seq": len(seed), "time": 1000, "data": {}})
    session = Session("s", seed)
    assert dicts(session) == seed
    assert dicts(Session("s", session.events)) == seed


@given(programs())
def test_log_only_events_never_matter(program: list[str]) -> None:
    """The history is the same with and without everything that no model sees."""
    with_all, without = run(program), run(program, log_only=False)
    assert with_all.derive_messages() == without.derive_messages()


@given(programs())
def test_every_derived_message_has_a_known_role_and_is_frozen(program: list[str]) -> None:
    """A provider gets user and assistant messages, and nobody can change them."""
    for message in run(program).derive_messages():
        assert message.role in {"user", "assistant"}  # type: ignore[union-attr]
        assert type(message).__struct_config__.frozen  # type: ignore[union-attr]
        assert isinstance(message.content, tuple)  # type: ignore[union-attr]

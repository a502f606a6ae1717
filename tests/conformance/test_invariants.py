"""Conformance, theme J: the companion that checks how turns, steps and calls enclose each other."""

from __future__ import annotations

from typing import Any

import pytest

from sessionstore.errors import InvariantError
from sessionstore.invariants import InvariantTrace
from sessionstore.session import Session
from tests.conformance.build import (
    USER,
    assistant_message,
    closed_turn,
    event,
    text,
    tool_call,
    tool_message,
    turn_end,
    turn_start,
    user_message,
)

PLACE = {"turn": 1, "step": 1}


def log(*entries: tuple[str, Any]) -> list[Any]:
    """Events of these types and payloads; message-producing types are appended to the surface."""
    surface = {"user/message", "assistant/message", "tool/result", "steering/message"}
    marker: dict[str, Any] = {"surfaceOp": "append"}
    return [
        event(type_, seq, data, **(marker if type_ in surface else {})) for seq, (type_, data) in enumerate(entries)
    ]


TURN = ("turn/start", turn_start())
STEP = ("step/start", PLACE)
ASK = ("assistant/message", {**PLACE, "message": assistant_message(content=[tool_call()])})
CALL = ("tool/call", {**PLACE, "callId": "c1", "name": "shell", "arguments": "{}"})
RESULT = ("tool/result", {**PLACE, "message": tool_message()})
STEP_END = ("step/end", PLACE)
TURN_END = ("turn/end", turn_end())
USER_MESSAGE = ("user/message", user_message())
NOT_STARTED = ("tool/result", {**PLACE, "message": tool_message(), "error": {"name": "E", "code": "TOOL_NOT_STARTED"}})
UNKNOWN = ("tool/result", {**PLACE, "message": tool_message(), "error": {"name": "E", "code": "TOOL_OUTCOME_UNKNOWN"}})
DELTA = ("assistant/chunk", text(0, "x")["data"])


def accepted(*entries: tuple[str, Any], mode: Any = "execution") -> None:
    """The whole log passes."""
    InvariantTrace(mode).replay(log(*entries))


def rejected(*entries: tuple[str, Any], mode: Any = "execution") -> InvariantError:
    """Everything but the last event passes; the last one's error."""
    *good, bad = log(*entries)
    trace = InvariantTrace(mode)
    trace.replay(good)
    with pytest.raises(InvariantError) as caught:
        trace.check(bad)
    assert caught.value.seq == bad.seq
    assert caught.value.event_type == bad.type
    return caught.value


def test_a_well_formed_log_is_accepted() -> None:
    """Turns, steps, deltas, calls and results in their places, in both modes."""
    entries = (TURN, USER_MESSAGE, STEP, DELTA, ASK, CALL, RESULT, STEP_END, TURN_END)
    accepted(*entries)
    accepted(*entries, mode="strict")


def attach(session: Session, trace: InvariantTrace) -> None:
    """Check before, commit after."""
    session.check(trace.check)
    session.observe(trace.commit)


def test_a_veto_by_another_checker_does_not_move_the_trace() -> None:
    """The trace moves when the event is in the log, not when it was looked at."""
    session, trace = Session("s"), InvariantTrace()
    attach(session, trace)

    def veto(candidate: Any) -> None:
        raise PermissionError(candidate.type)

    remove = session.check(veto)
    with pytest.raises(PermissionError):
        session.append("turn/start", turn_start())
    remove()
    session.append("turn/start", turn_start())
    with pytest.raises(InvariantError):
        session.append("turn/start", turn_start(2))
    assert session.seq == 1


def test_an_observer_that_raises_does_not_stop_the_trace() -> None:
    """A failing observer is contained; what was committed counts."""
    session, trace = Session("s"), InvariantTrace()

    def fail(observed: Any) -> None:
        raise RuntimeError(observed.type)

    session.observe(fail)
    attach(session, trace)
    session.append("turn/start", turn_start())
    session.append("turn/end", turn_end())
    session.append("turn/start", turn_start(2))
    assert session.seq == 3


def test_a_seq_that_does_not_increase_is_rejected() -> None:
    """The same event twice, or an earlier one."""
    trace = InvariantTrace()
    first, second = log(TURN, USER_MESSAGE)
    trace.replay([first, second])
    for again in (first, second):
        with pytest.raises(InvariantError, match="seq"):
            trace.check(again)


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param((TURN, ("turn/start", turn_start(2))), id="nested turn"),
        pytest.param((TURN, ("turn/end", turn_end(2))), id="wrong end number"),
        pytest.param((TURN, TURN_END, ("turn/start", turn_start(3))), id="turn 3 after 1"),
        pytest.param((("turn/start", turn_start(2)),), id="first turn is 2"),
        pytest.param((TURN, STEP, TURN_END), id="turn ends with an open step"),
        pytest.param((("turn/end", turn_end()),), id="end without start"),
        pytest.param((STEP,), id="step without turn"),
        pytest.param((TURN, STEP, ("step/start", {"turn": 1, "step": 2})), id="nested step"),
        pytest.param((TURN, ("step/start", {"turn": 1, "step": 2})), id="first step is 2"),
        pytest.param((TURN, ("step/start", {"turn": 2, "step": 1})), id="step of another turn"),
        pytest.param((TURN, STEP, STEP_END, STEP), id="step 1 again"),
        pytest.param((TURN, STEP, ("step/end", {"turn": 1, "step": 2})), id="end of another step"),
        pytest.param((TURN, DELTA), id="delta without step"),
        pytest.param((TURN, ASK), id="answer without step"),
        pytest.param((TURN, CALL), id="call without step"),
        pytest.param((TURN, STEP, ("tool/call", {**CALL[1], "step": 2})), id="call in another step"),
        pytest.param((TURN, STEP, ("assistant/chunk", text(0, "x", step=2)["data"])), id="delta of another step"),
        pytest.param((("steering/message", {"turn": 1, "message": user_message()}),), id="steering outside a turn"),
        pytest.param((("todo/write", {"todos": []}),), id="todo outside a turn"),
        pytest.param((("request/context", {"provider": "p", "model": "m", "contextWindow": 1}),), id="context outside"),
        pytest.param((TURN, RESULT), id="result without step"),
        pytest.param((TURN, STEP, ASK, RESULT), id="result without call"),
        pytest.param((TURN, STEP, ASK, UNKNOWN), id="unknown outcome without call"),
        pytest.param((TURN, STEP, ASK, CALL, RESULT, RESULT), id="second result"),
        pytest.param((TURN, STEP, ASK, NOT_STARTED, NOT_STARTED), id="second not-started result"),
    ],
)
def test_what_breaks_numbering_or_enclosure_is_rejected(entries: tuple[tuple[str, Any], ...]) -> None:
    """Turns and steps count by one and nest; step-scoped events name the open step; one result per call."""
    rejected(*entries)


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param((USER_MESSAGE, TURN, TURN_END, USER_MESSAGE), id="context between turns"),
        pytest.param((("my/event", {}), TURN, TURN_END, ("my/event", {})), id="unknown event outside a turn"),
        pytest.param((TURN, TURN_END, ("turn/start", turn_start(2)), ("turn/end", turn_end(2))), id="two turns"),
        pytest.param((TURN, STEP, ASK, STEP_END, TURN_END), id="unanswered call at step end"),
        pytest.param((TURN, STEP, ASK, NOT_STARTED, STEP_END, TURN_END), id="not-started result without call"),
        pytest.param((TURN, STEP, ASK, CALL, UNKNOWN, STEP_END, TURN_END), id="unknown outcome of a call"),
        pytest.param((TURN, STEP, ASK, ASK, STEP_END, TURN_END), id="several answers in a step"),
        pytest.param((TURN, TURN_END), id="turn without step"),
        pytest.param((("session/end-seed", {}), TURN, ("session/end-seed", {}), STEP), id="end-seed anywhere"),
        pytest.param((TURN, ("turn/end", turn_end(kind="anything"))), id="any end reason"),
    ],
)
def test_what_is_allowed_is_allowed(entries: tuple[tuple[str, Any], ...]) -> None:
    """The rules forbid nothing that real agents do."""
    accepted(*entries)


def test_results_may_come_in_any_order() -> None:
    """Two calls, answered the other way round."""
    second_call = ("tool/call", {**CALL[1], "callId": "c2"})
    second_result = ("tool/result", {**PLACE, "message": tool_message("c2")})
    accepted(TURN, STEP, ASK, CALL, second_call, second_result, RESULT, STEP_END, TURN_END)


def test_a_result_in_a_later_step_does_not_answer_an_earlier_call() -> None:
    """Calls belong to their step."""
    later = ("tool/result", {"turn": 1, "step": 2, "message": tool_message()})
    rejected(TURN, STEP, ASK, CALL, STEP_END, ("step/start", {"turn": 1, "step": 2}), later)


def test_a_replacement_of_a_result_needs_a_turn_and_no_step() -> None:
    """A pruner may run anywhere inside a turn, and nowhere else."""
    before = log(TURN, STEP, ASK, CALL, RESULT, STEP_END)
    pruned = event(
        "tool/result",
        6,
        {**PLACE, "message": tool_message(text="pruned")},
        surfaceOp={"op": "replace", "start": 4, "end": 4},
        sourceEventSeqs=[4],
    )
    trace = InvariantTrace()
    trace.replay([*before, pruned])
    outside = InvariantTrace()
    outside.replay([*before, event("turn/end", 6, turn_end())])
    with pytest.raises(InvariantError):
        outside.check(
            event("tool/result", 7, pruned.to_dict()["data"], surfaceOp={"op": "replace", "start": 4, "end": 4})
        )


def test_strict_mode_wants_a_turn_around_everything() -> None:
    """Messages and plugin events need an open turn; recovery/lost does not."""
    for entry in (USER_MESSAGE, ("my/event", {}), ("context/message", {"content": [], "source": dict(USER)})):
        rejected(entry, mode="strict")
        rejected(TURN, TURN_END, entry, mode="strict")
        accepted(TURN, entry, mode="strict")
    accepted(("recovery/lost", {"reason": "x", "offset": 0, "length": 1}), mode="strict")


def test_traces_of_two_sessions_are_independent() -> None:
    """Each session has its own trace, replayed over its seed."""
    first, second = Session("a"), Session("b")
    closed_turn(first)
    seeded = Session("a", first.events)
    trace = InvariantTrace()
    trace.replay(seeded.events)
    attach(seeded, trace)
    attach(second, InvariantTrace())
    seeded.append("turn/start", turn_start(2))
    second.append("turn/start", turn_start(1))
    with pytest.raises(InvariantError):
        second.append("turn/start", turn_start(2))


def test_a_removed_trace_checks_no_more() -> None:
    """The functions that `check` and `observe` return take the companion off."""
    session, trace = Session("s"), InvariantTrace()
    removers = [session.check(trace.check), session.observe(trace.commit)]
    session.append("turn/start", turn_start())
    for remove in removers:
        remove()
    session.append("turn/start", turn_start(7))
    assert session.seq == 2

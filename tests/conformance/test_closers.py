"""Conformance, theme K: the events that close what a crash interrupted."""

from __future__ import annotations

from typing import Any

import pytest

from sessionstore.recovery.closers import interrupted_turn_closers
from sessionstore.session import Session
from tests.conformance.build import answer, closed_turn, dicts, result, say, tool_call, turn_start

PLACE = {"turn": 1, "step": 1}


def open_turn(*, step: bool = True) -> Session:
    """A session in the middle of a turn."""
    session = Session("s", clock=iter(range(1000, 2000)).__next__)
    session.append("turn/start", turn_start())
    say(session)
    if step:
        session.append("step/start", PLACE)
    return session


def record(session: Session, call_id: str) -> int:
    """Append the tool/call; its seq."""
    data = {**PLACE, "callId": call_id, "name": "shell", "arguments": "{}"}
    return session.append("tool/call", data).seq


def closers(session: Session) -> list[dict[str, Any]]:
    """The closers as plain dicts; a log with them is balanced, and needs no more."""
    found = interrupted_turn_closers(session.events)
    closed = Session("s", [*session.events, *found])
    assert interrupted_turn_closers(closed.events) == []
    assert interrupted_turn_closers(session.events) == found
    return [event.to_dict() for event in found]


def test_balanced_and_empty_logs_need_nothing() -> None:
    """No open turn, no closers."""
    session = Session("s")
    assert closers(session) == []
    closed_turn(session)
    assert closers(session) == []
    say(session, "between")
    assert closers(session) == []


def test_an_open_turn_is_ended() -> None:
    """Without a step, only the turn; with one, the step first."""
    (end,) = closers(open_turn(step=False))
    assert (end["type"], end["data"]) == ("turn/end", {"turn": 1, "reason": {"kind": "interrupted"}})
    step_end, end = closers(open_turn())
    assert (step_end["type"], step_end["data"]) == ("step/end", PLACE)
    assert end["type"] == "turn/end"


def test_closers_continue_the_log_and_reuse_its_last_time() -> None:
    """Seqs go on, time stands still: two readers of the same bytes close them alike."""
    session = open_turn()
    found = closers(session)
    assert [e["seq"] for e in found] == [session.seq, session.seq + 1]
    assert {e["time"] for e in found} == {session.events[-1].time}


def test_a_call_that_was_never_recorded_never_started() -> None:
    """The model asked, nothing was recorded: safe to retry, and it says so."""
    session = open_turn()
    answer(session, content=[tool_call("c1")])
    answered = closers(session)[0]
    assert answered["type"] == "tool/result"
    assert answered["surfaceOp"] == "append"
    assert "sourceEventSeqs" not in answered
    assert answered["data"]["error"] == {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"}
    message = answered["data"]["message"]
    assert message["id"] == f"interrupted-tool-result-c1-{session.seq}"
    assert (message["role"], message["source"]) == ("user", {"kind": "tool", "callId": "c1"})
    (block,) = message["content"]
    assert (block["type"], block["toolCallId"], block["isError"]) == ("tool-result", "c1", True)
    assert "retried" in block["content"][0]["text"]


def test_a_recorded_call_has_an_unknown_outcome() -> None:
    """It may have run: the result says so, is on the surface, and cites the call."""
    session = open_turn()
    answer(session, content=[tool_call("c1")])
    call = record(session, "c1")
    answered = closers(session)[0]
    assert list(answered) == ["type", "seq", "time", "data", "surfaceOp", "sourceEventSeqs"]
    assert answered["sourceEventSeqs"] == [call]
    assert answered["data"]["error"] == {"name": "ToolOutcomeUnknownError", "code": "TOOL_OUTCOME_UNKNOWN"}
    assert "unknown" in answered["data"]["message"]["content"][0]["content"][0]["text"]


@pytest.mark.parametrize("recorded", [True, False])
def test_an_answered_call_gets_no_result(recorded: bool) -> None:
    """Recorded or not, what has a result has one."""
    session = open_turn()
    answer(session, content=[tool_call("c1")])
    if recorded:
        record(session, "c1")
    result(session, "c1")
    assert [e["type"] for e in closers(session)] == ["step/end", "turn/end"]


def test_a_call_of_a_closed_step_gets_no_result() -> None:
    """What a closed step left open stays as it is."""
    session = open_turn()
    answer(session, content=[tool_call("c1")])
    session.append("step/end", PLACE)
    assert [e["type"] for e in closers(session)] == ["turn/end"]


def test_only_the_calls_of_the_open_turn_are_answered() -> None:
    """An earlier turn's unanswered calls are history."""
    session = open_turn()
    answer(session, content=[tool_call("old")])
    session.append("step/end", PLACE)
    session.append("turn/end", {"turn": 1, "reason": {"kind": "aborted"}})
    session.append("turn/start", turn_start(2))
    session.append("step/start", {"turn": 2, "step": 1})
    answer(session, "a2", content=[tool_call("new")])
    found = closers(session)
    assert [e["data"]["message"]["source"]["callId"] for e in found if e["type"] == "tool/result"] == ["new"]
    assert found[-1]["data"]["turn"] == 2


def test_several_calls_are_answered_in_the_order_of_the_log() -> None:
    """Each by what is known of it, in the order in which they were asked for."""
    session = open_turn()
    answer(session, content=[tool_call("c1"), tool_call("c2"), tool_call("c3")])
    call = record(session, "c2")
    found = closers(session)
    results = [e for e in found if e["type"] == "tool/result"]
    assert [e["data"]["message"]["source"]["callId"] for e in results] == ["c1", "c2", "c3"]
    assert [e["data"]["error"]["code"] for e in results] == [
        "TOOL_NOT_STARTED",
        "TOOL_OUTCOME_UNKNOWN",
        "TOOL_NOT_STARTED",
    ]
    assert [e.get("sourceEventSeqs") for e in results] == [None, [call], None]
    assert [e["seq"] for e in found] == list(range(session.seq, session.seq + 5))


def test_a_call_that_no_message_asked_for_is_ignored() -> None:
    """An orphan has no place in the history where its result could stand."""
    session = open_turn()
    record(session, "orphan")
    assert [e["type"] for e in closers(session)] == ["step/end", "turn/end"]


def test_real_events_are_never_removed() -> None:
    """Closers come after everything that is there."""
    session = open_turn()
    answer(session, content=[tool_call()])
    before = dicts(session)
    closed = Session("s", [*session.events, *interrupted_turn_closers(session.events)])
    assert dicts(closed)[: len(before)] == before
    history = [block for m in closed.derive_messages() for block in m.content]  # type: ignore[union-attr]
    assert sum(1 for block in history if type(block).__name__ == "ToolResultBlock") == 1

"""Closers: what ends the work that a crash interrupted, and the plan that appends them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from sessionstore.events import Event
from sessionstore.recovery.closers import OpenWork, PendingCall, interrupted_turn_closers, unanswered_result
from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.plan import RepairPlan, plan_repair
from sessionstore.recovery.scan import scan_log
from tests.recovery import logs
from tests.recovery.logs import assistant, call, closed_log, header, interrupted_log, result, step, turn_end, turn_start

if TYPE_CHECKING:
    from collections.abc import Iterable


def closers(lines: Iterable[bytes], **options: int) -> list[dict[str, Any]]:
    """The closers of the events on these lines, as plain values."""
    events = [Event.from_json(line.rstrip(b"\n")) for line in lines]
    return [json.loads(event.to_json()) for event in interrupted_turn_closers(events, **options)]


def types(lines: Iterable[bytes]) -> list[str]:
    """The types of the closers."""
    return [event["type"] for event in closers(lines)]


def answered(lines: Iterable[bytes]) -> list[tuple[str, str]]:
    """For each result among the closers: which call, and which code."""
    found = [event["data"] for event in closers(lines) if event["type"] == "tool/result"]
    return [(data["message"]["source"]["callId"], data["error"]["code"]) for data in found]


def test_a_balanced_log_and_an_empty_one_need_nothing() -> None:
    """Without an open turn there is nothing to close."""
    assert closers([]) == []
    assert closers([turn_start(0), turn_end(1)]) == []
    assert closers([turn_start(0), turn_end(1), logs.user(2), assistant(3, calls=("c",))]) == []


def test_an_open_turn_without_a_step_gets_its_end() -> None:
    """The end says that the turn was interrupted, at the time of the last real event, with the next seq."""
    assert closers([turn_start(0, 4), logs.user(1)]) == [
        {
            "type": "turn/end",
            "seq": 2,
            "time": 1_700_000_000_001,
            "data": {"turn": 4, "reason": {"kind": "interrupted"}},
        }
    ]


def test_an_open_step_is_ended_before_its_turn() -> None:
    """Steps close inside their turn."""
    found = closers([turn_start(0), step("start", 1, step=3)])
    assert [(event["type"], event["seq"], event["data"]) for event in found] == [
        ("step/end", 2, {"turn": 1, "step": 3}),
        ("turn/end", 3, {"turn": 1, "reason": {"kind": "interrupted"}}),
    ]
    assert types([turn_start(0), step("start", 1), step("end", 2)]) == ["turn/end"]


def test_a_call_that_was_only_asked_for_never_started() -> None:
    """An unrecorded call may be retried, and the result says so; the bytes are exactly these."""
    events = [Event.from_json(line[:-1]) for line in (turn_start(0), step("start", 1), assistant(2, calls=("c9",)))]
    first = interrupted_turn_closers(events)[0].to_json().decode()
    text = json.loads(first)["data"]["message"]["content"][0]["content"][0]["text"]
    assert "never started" in text
    assert "may be retried" in text
    assert first == (
        '{"type":"tool/result","seq":3,"time":1700000000002,"data":{"turn":1,"step":1,"message":'
        '{"id":"interrupted-tool-result-c9-3","role":"user","source":{"kind":"tool","callId":"c9"},"content":'
        '[{"type":"tool-result","toolCallId":"c9","isError":true,"content":[{"type":"text","text":"' + text + '"}]}]},'
        '"error":{"name":"ToolNotStartedError","code":"TOOL_NOT_STARTED"}},"surfaceOp":"append"}'
    )


def test_a_recorded_call_has_an_unknown_outcome() -> None:
    """A call that was recorded may have run: the result cites it and warns; sources come after the surface marker."""
    found = closers([turn_start(0), step("start", 1), assistant(2, calls=("c",)), call(3, "c")])[0]
    assert list(found) == ["type", "seq", "time", "data", "surfaceOp", "sourceEventSeqs"]
    assert found["sourceEventSeqs"] == [3]
    assert found["data"]["error"] == {"name": "ToolOutcomeUnknownError", "code": "TOOL_OUTCOME_UNKNOWN"}
    text = found["data"]["message"]["content"][0]["content"][0]["text"]
    for word in ("unknown", "read-only or idempotent", "verify", "ask the user"):
        assert word in text


def test_an_answered_call_gets_no_second_result() -> None:
    """A result takes its call off the list."""
    lines = [turn_start(0), step("start", 1), assistant(2, calls=("a", "b")), call(3, "a"), result(4, "a")]
    assert answered(lines) == [("b", "TOOL_NOT_STARTED")]


def test_calls_of_a_closed_step_are_past() -> None:
    """An unanswered call at the end of its step was left so on purpose."""
    lines = [turn_start(0), step("start", 1), assistant(2, calls=("a",)), step("end", 3), step("start", 4, step=2)]
    assert types(lines) == ["step/end", "turn/end"]


@pytest.mark.parametrize("boundary", [turn_end(3), turn_start(3, 2)])
def test_only_the_open_turns_calls_are_answered(boundary: bytes) -> None:
    """Both turn boundaries clear what was pending."""
    lines = [turn_start(0), step("start", 1), assistant(2, calls=("a",)), boundary, turn_start(4, 3)]
    assert types(lines) == ["turn/end"]


def test_several_calls_are_answered_in_log_order_each_with_its_step() -> None:
    """The order is that of the requests; a call asked for twice keeps its place and its latest record."""
    lines = [
        turn_start(0),
        step("start", 1),
        assistant(2, calls=("b", "a", "c")),
        call(3, "c"),
        call(4, "b"),
        assistant(5, calls=("a", "d"), step=2),
    ]
    assert answered(lines) == [
        ("b", "TOOL_OUTCOME_UNKNOWN"),
        ("a", "TOOL_NOT_STARTED"),
        ("c", "TOOL_OUTCOME_UNKNOWN"),
        ("d", "TOOL_NOT_STARTED"),
    ]
    assert [event["data"].get("step") for event in closers(lines)] == [1, 2, 1, 2, 1, None]
    assert [event["seq"] for event in closers(lines)] == [6, 7, 8, 9, 10, 11]


def test_a_call_that_no_message_asked_for_is_ignored() -> None:
    """A tool/call alone is a plugin's own affair."""
    assert types([turn_start(0), call(1, "orphan")]) == ["turn/end"]


def test_old_messages_without_identity_count_too() -> None:
    """The flat forms of old logs ask for calls and answer them."""
    block = {"type": "tool-call", "id": "c", "name": "sh", "arguments": "{}"}
    data = {"turn": 1, "step": 1, "content": [block, {**block, "id": "d"}], "provenance": {}}
    old = logs.event("assistant/message", 1, data, surfaceOp="append")
    done = logs.event("tool/result", 2, {"turn": 1, "step": 1, "callId": "c", "content": []}, surfaceOp="append")
    assert answered([turn_start(0), old, done]) == [("d", "TOOL_NOT_STARTED")]


@pytest.mark.parametrize("data", [None, [], {}, {"turn": "x"}, {"turn": True}, {"turn": 1.5}])
def test_a_turn_with_an_unreadable_number_is_closed_all_the_same(data: Any) -> None:
    """Odd payloads never raise; an open turn is open."""
    lines = [logs.event("turn/start", 0, data), logs.event("step/start", 1, data)]
    lines += [logs.event(t, 2, data) for t in ("assistant/message", "tool/call", "tool/result")]
    assert [event["data"]["turn"] for event in closers(lines)] == [1, 1]


def test_integral_floats_are_integers() -> None:
    """A turn number spelled 2.0 is 2."""
    assert closers([logs.event("turn/start", 0, {"turn": 2.0})])[0]["data"]["turn"] == 2


def test_odd_call_ids_survive() -> None:
    """An id with a lone surrogate or quotes is answered under that very id."""
    odd = '\ud83d"\n'
    found = closers([turn_start(0), step("start", 1), assistant(2, calls=(odd,))])[0]
    assert found["data"]["message"]["source"]["callId"] == odd


def test_the_recorder_stamps_its_own_time() -> None:
    """With a time of its own every closer carries that."""
    found = closers([turn_start(0), step("start", 1), assistant(2, calls=("c",))], time=7)
    assert {event["time"] for event in found} == {7}


def test_open_work_is_known_while_it_happens() -> None:
    """A live turn asks the same tracker that recovery uses, and the same function for the result."""
    work = OpenWork()
    for line in (turn_start(0, 3), step("start", 1, step=2), assistant(2, calls=("c",), step=2), call(3, "c")):
        work.observe(Event.from_json(line[:-1]))
    assert (work.turn, work.step) == (3, 2)
    assert work.pending == (PendingCall("c", 2, 3),)
    data, sources = unanswered_result(work.pending[0], turn=3, seq=9)
    assert (sources, data["turn"], data["step"]) == ((3,), 3, 2)


# Plans


def test_a_clean_log_needs_no_plan() -> None:
    """Nothing is cut and nothing added."""
    plan = plan_repair(scan_log(b"".join(closed_log())))
    assert plan == RepairPlan()
    assert plan.empty


def test_an_interrupted_log_gets_its_closers_only() -> None:
    """A good log with an open turn is not cut."""
    plan = plan_repair(scan_log(b"".join(interrupted_log())))
    assert (plan.truncate_to, plan.cut_length, plan.empty) == (None, 0, False)
    assert [event.type for event in plan.closers] == ["tool/result", "tool/result", "step/end", "turn/end"]
    assert [event.seq for event in plan.closers] == [22, 23, 24, 25]


def test_a_torn_log_is_cut_at_the_safe_offset_and_closed() -> None:
    """Everything behind the safe offset goes, and its length is told."""
    good = b"".join(interrupted_log())
    plan = plan_repair(scan_log(good + b"bad\n" + logs.event("x", 22, 1) + b"{"))
    assert plan.truncate_to == len(good)
    assert plan.cut_length == len(b"bad\n" + logs.event("x", 22, 1) + b"{")
    assert not plan.cut_is_blank
    assert [event.seq for event in plan.closers] == [22, 23, 24, 25]


def test_a_blank_tail_is_cut_without_closers_when_no_turn_is_open() -> None:
    """NULs behind a closed log are only cut, and said to be blank."""
    plan = plan_repair(scan_log(b"".join(closed_log()) + b"\0" * 512))
    assert (plan.cut_length, plan.cut_is_blank, plan.closers) == (512, True, ())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        header() + b"bad\n" + turn_end(0),
        header() + logs.event("x", 0, 1, surfaceOp="append"),
        header(version=9),
    ],
)
def test_what_a_resume_refuses_has_no_plan(data: bytes) -> None:
    """A plan for a log that must not be touched would be a mistake of the caller."""
    scan = scan_log(data)
    assert scan.verdict in {Verdict.EMPTY, Verdict.DAMAGED, Verdict.INVALID, Verdict.UNSUPPORTED}
    with pytest.raises(ValueError, match=scan.verdict):
        plan_repair(scan)

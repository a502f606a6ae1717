"""What fuzzing found in the salvage, made small: calls and answers stay together whatever was lost between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionstore.recovery.salvage import salvage
from sessionstore.recovery.scan import scan_log
from tests.fuzz.checks import joined
from tests.fuzz.history import history_faults
from tests.recovery import logs

if TYPE_CHECKING:
    from sessionstore.recovery.salvage_plan import SalvagePlan

BEGIN = [logs.header(), logs.turn_start(0), logs.step("start", 1)]


def repaired(lines: list[bytes]) -> SalvagePlan:
    """The plan for these lines, which leaves no call without an answer and no answer without a call."""
    plan = salvage(b"".join(lines), session_id="s1")
    assert plan.refusal is None
    scan = scan_log(joined(plan.lines))
    assert not history_faults(scan.events, scan.surface.nodes)
    return plan


def types(plan: SalvagePlan) -> dict[int, str]:
    """What was made anew, by seq."""
    return {event.seq: event.type for event in plan.made}


def test_an_answer_behind_the_end_of_its_turn() -> None:
    """A result whose seq was garbled stays where it claims to be: the turn/end before it does not make it an orphan."""
    moved = logs.result(5, "c").replace(b'"seq":5', b'"seq":7')
    plan = repaired([*BEGIN, logs.assistant(2, calls=("c",)), logs.call(3, "c"), logs.event("my/plugin", 4, None), moved, logs.turn_end(6)])  # fmt: skip
    assert moved.rstrip(b"\n") in plan.lines
    assert plan.kept == 7


def test_no_turn_is_begun_between_a_call_and_its_answer() -> None:
    """A message made anew for a recorded call is not parted from the answer by a turn/start made anew."""
    answer = logs.result(9, "c", turn=2)
    plan = repaired([logs.header(), logs.call(1, "c", turn=2), answer])
    assert answer.rstrip(b"\n") in plan.lines
    assert types(plan)[0] == "assistant/message"


def test_answers_that_were_replaced_need_no_message() -> None:
    """No message is made anew for a call whose answer a summary took out of the history together with it."""
    op = {"op": "replace", "start": 5, "end": 7}
    summary = logs.user(9, "summary", surfaceOp=op, sourceEventSeqs=[5, 7])
    plan = repaired([*BEGIN, logs.call(6, "c"), logs.result(7, "c", sourceEventSeqs=[6]), logs.step("end", 8), summary])
    assert "assistant/message" not in types(plan).values()
    assert types(plan)[5] == "user/message"


def test_every_lost_answer_finds_its_room() -> None:
    """Two answers lost one after the other are both made anew, each in its place."""
    bad = [logs.result(seq, f"c{seq}").replace(b'"time"', b'"tyme"') for seq in (4, 5)]
    plan = repaired([*BEGIN, logs.assistant(2, calls=("c4", "c5")), logs.call(3, "c4"), *bad, logs.step("end", 6)])
    assert types(plan)[4] == types(plan)[5] == "tool/result"


def test_the_beginning_of_a_turn_comes_first() -> None:
    """Where there is room for one boundary, the lost turn is begun, so that its calls are answered at the end."""
    lines = [logs.header(), logs.turn_start(0), logs.user(1), b"#" * 90 + b"\n", logs.user(3),
             logs.step("start", 4, turn=2), logs.assistant(5, calls=("c",), turn=2), logs.call(6, "c", turn=2)]  # fmt: skip
    plan = repaired(lines)
    assert types(plan)[2] == "turn/start"
    assert list(types(plan).values())[1:] == ["tool/result", "step/end", "turn/end"]


def test_an_answer_that_another_writer_never_gave() -> None:
    """Of two writers' histories the longer one stays, and an answer whose call the other one made is left out."""
    shared = [*BEGIN, logs.event("my/plugin", 2, 0)]
    asked = [logs.assistant(3, calls=("c",)), logs.call(4, "c")]
    other = [logs.assistant(3), logs.event("my/plugin", 4, 1), logs.event("my/plugin", 5, 2)]
    late = [logs.result(6, "c"), logs.step("end", 7), logs.turn_end(8)]
    plan = repaired([*shared, *asked, *other, *late])
    assert types(plan)[6] == "recovery/lost"


def test_a_call_whose_step_another_writer_ended() -> None:
    """At the end of a mixed log the calls of the last message are answered, although a step/end cleared them."""
    first = [*BEGIN, logs.assistant(2, calls=("c",)), logs.call(3, "c"), logs.result(4, "c")]
    second = [logs.step("end", 4, turn=2), logs.step("start", 5, turn=2), logs.event("my/plugin", 6, 0)]
    plan = repaired([*first, *second])
    assert "tool/result" in types(plan).values()


def test_calls_of_a_replaced_message_are_not_answered_at_the_end() -> None:
    """Where a summary took the message that asked out of the history, an answer at the end would be an orphan."""
    op = {"op": "replace", "start": 2, "end": 5}
    summary = logs.user(6, "summary", surfaceOp=op, sourceEventSeqs=[2, 5])
    plan = repaired([*BEGIN, logs.assistant(2, calls=("c",)), logs.call(3, "c"), summary])
    assert "tool/result" not in types(plan).values()
    assert list(types(plan).values())[-2:] == ["step/end", "turn/end"]


def test_a_message_made_far_from_its_turn_is_answered() -> None:
    """Two holes before a recorded call: the message made in the first is answered before a turn is begun in the second."""
    bad = b'{"type":"my/plugin","seq":0,"time":"x"}\n'
    plan = repaired([bad, logs.call(8, "c"), logs.step("end", 10)])
    assert "tool/result" in types(plan).values() or "assistant/message" not in types(plan).values()


def test_a_strangers_event_in_the_place_of_a_lost_one() -> None:
    """No seq is missing, but between broken bytes stands another log's event where the call was asked for."""
    stranger = b'{"type":"st' + b"\n" + logs.event("my/plugin", 2, "of another log") + b'te"}}' + b"\n"
    plan = repaired([*BEGIN, stranger, logs.call(3, "c"), logs.result(4, "c"), logs.step("end", 5), logs.turn_end(6)])
    assert types(plan)[4] == "recovery/lost"


def test_a_call_that_a_summary_took_away_is_not_asked_for_again() -> None:
    """The only lost seq behind a call is a node that the summary names, so nothing could answer a message made anew."""
    op = {"op": "replace", "start": 2, "end": 4}
    summary = logs.user(6, "summary", surfaceOp=op, sourceEventSeqs=[2, 4])
    plan = repaired([logs.call(3, "c"), logs.step("end", 5), summary, logs.turn_end(7), logs.turn_start(8, 2)])
    assert "assistant/message" not in types(plan).values()
    assert types(plan)[2] == types(plan)[4] == "user/message"


def test_a_message_is_not_made_anew_where_its_answer_would_be_replaced() -> None:
    """A hole that a summary covers is no room for an answer, whatever it names."""
    op = {"op": "replace", "start": 4, "end": 8}
    summary = logs.user(9, "summary", surfaceOp=op, sourceEventSeqs=[4, 8])
    plan = repaired([*BEGIN, logs.call(3, "c"), logs.user(4), logs.user(8), summary, logs.step("end", 10), logs.turn_end(11)])  # fmt: skip
    assert "assistant/message" not in types(plan).values()


def test_an_answer_that_another_writer_replaced() -> None:
    """Another writer's summary takes the answer out of the history, so the message that asked for it goes too."""
    op = {"op": "replace", "start": 3, "end": 3}
    other = [logs.event("my/plugin", 2, 0), logs.user(3)]
    asked = [logs.assistant(2, calls=("c",)), logs.result(3, "c")]
    summary = logs.user(5, "summary", surfaceOp=op, sourceEventSeqs=[3])
    plan = repaired([*BEGIN, *other, *asked, logs.step("end", 4), summary, logs.turn_end(6)])
    assert types(plan)[2] == "recovery/lost"


def test_an_answer_behind_a_summary_of_its_message() -> None:
    """The message that asked was replaced before its answer came, so the answer would be one that nobody asked for."""
    op = {"op": "replace", "start": 3, "end": 3}
    summary = logs.user(4, "summary", surfaceOp=op, sourceEventSeqs=[3])
    plan = repaired([logs.assistant(3, calls=("c",)), summary, logs.result(5, "c")])
    assert types(plan)[5] == "recovery/lost"


def test_a_message_under_a_summary_that_begins_with_a_summary() -> None:
    """A summary stands where the replaced messages stood, and so does the beginning of what the next one replaces."""
    first = logs.user(7, "summary", surfaceOp={"op": "replace", "start": 1, "end": 1}, sourceEventSeqs=[1])
    second = logs.user(8, "summary", surfaceOp={"op": "replace", "start": 7, "end": 5}, sourceEventSeqs=[7, 3, 5])
    message = logs.assistant(3, calls=("c",))
    asides = [logs.event("my/plugin", 4, 0), logs.event("my/plugin", 6, 0)]
    plan = repaired([message, *asides, first, second, logs.turn_end(9)])
    assert message.rstrip(b"\n") in plan.lines


def test_only_the_last_message_is_answered_at_the_end() -> None:
    """A call of a message that was replaced waits for nothing, although the end of its step is lost."""
    op = {"op": "replace", "start": 8, "end": 9}
    summary = logs.user(10, "summary", surfaceOp=op, sourceEventSeqs=[8, 9])
    plan = repaired(
        [logs.assistant(8, calls=("c",)), summary, logs.step("start", 11, step=2), logs.assistant(17, step=2)]
    )
    assert "tool/result" not in types(plan).values()


def test_an_answer_under_a_summary_stays_where_no_seq_is_missing() -> None:
    """Bytes are lost but no seq: the answer whose call is gone is in nobody's way, as a summary replaced it."""
    op = {"op": "replace", "start": 3, "end": 3}
    summary = logs.user(4, "summary", surfaceOp=op, sourceEventSeqs=[3])
    plan = repaired([*BEGIN, b"\xff\n", logs.event("my/plugin", 2, 0), logs.result(3, "c"), summary, logs.turn_end(5)])
    assert not plan.made


def test_a_row_that_sticks_out_of_a_broken_event_stays() -> None:
    """A broken event claims the first seq of a whole row: the row has the place, and no fork is made for the other."""
    row = logs.row(9, ["a", "b", "c"])
    broken = b'{"type":"step/end","seq":9,"tyme":1,"data":{"turn":1,"step":1}}\n'
    before, behind = ([logs.event("my/plugin", seq, None) for seq in seqs] for seqs in (range(2, 9), (17, 18)))
    plan = repaired([*BEGIN, *before, broken, row, *behind])
    assert row.rstrip(b"\n") in plan.lines
    assert not plan.forks


def test_a_second_history_of_broken_events_alone_is_no_session() -> None:
    """What another writer left may hold no whole event: it is kept with the damaged log, not published as a fork."""
    ours = [logs.event("my/plugin", seq, "ours") for seq in (2, 3, 4, 5)]
    broken = [b'{"type":"my/plugin","seq":%d,"tyme":1,"data":null}\n' % seq for seq in (2, 3)]
    plan = repaired([*BEGIN, *broken, *ours])
    assert plan.kept == 6
    assert not plan.forks


def test_broken_events_do_not_stand_in_the_way_of_an_intact_row() -> None:
    """Three broken events claim seqs inside a whole row: the row stays, and none of them makes a hole or a fork."""
    broken = [b'{"type":"step/end","seq":%d,"tyme":1,"data":{"turn":1,"step":1}}\n' % seq for seq in (2, 3, 4)]
    row = logs.row(2, ["a", "b", "c"])
    plan = repaired([*BEGIN, broken[0], row, *broken[1:], logs.step("end", 5), logs.turn_end(6)])
    assert row.rstrip(b"\n") in plan.lines
    assert plan.kept == 7


def test_a_record_that_stands_in_its_place_as_well_is_not_garbled() -> None:
    """A copy of the last event was put in front of all others, where another is missing: it keeps its seq."""
    last = logs.event("my/plugin", 8, "x")
    plan = repaired([logs.header(), last, *[logs.event("my/plugin", seq, None) for seq in (4, 5)], last])
    assert last.rstrip(b"\n") in plan.lines
    assert plan.kept == 3


def test_a_row_that_is_spelled_in_another_way_stays_whole() -> None:
    """Blanks inside a packed row change nothing: it was taken for an event and lost."""
    row = logs.row(2, ["a", "b", "c"]).replace(b'{"type"', b'{\r"type"')
    plan = repaired([*BEGIN, b"#\n", row, logs.step("end", 5), logs.turn_end(6)])
    assert row.rstrip(b"\n") in plan.lines
    assert plan.kept == 7


def test_a_row_is_garbled_only_if_it_fits_where_it_would_belong() -> None:
    """One digit off lies a hole of one event, and the row has three: so its first seq is right, and its middle is kept."""
    row = logs.row(3, ["a", "b", "c"])
    alone = [logs.event("my/plugin", seq, None) for seq in (2, 3)]
    plan = repaired([*BEGIN, *alone, row, logs.event("my/plugin", 5, None), logs.event("my/plugin", 6, None)])
    assert b'"text":"b"' in b"".join(plan.lines) or b'"text":"b"' in b"".join(
        line for fork in plan.forks for line in fork.lines
    )


def test_what_is_left_out_of_a_fork_is_told() -> None:
    """An orphaned answer in a second history is left out of the fork, and the plan says where it stood."""
    ours = [logs.event("my/plugin", seq, "ours") for seq in (2, 3, 4, 5)]
    answer = logs.result(2, "c")
    theirs = [answer, logs.event("my/plugin", 3, "theirs")]
    lines = [*BEGIN, *theirs, b"#\n", *ours]
    plan = repaired(lines)
    at = b"".join(lines).find(answer)
    assert plan.forks
    assert at in {each.offset for each in plan.quarantined}


def test_a_streamed_call_without_an_id_is_not_asked_for() -> None:
    """The message made anew leaves out a call that no answer could name."""
    block = {"type": "tool-call", "name": "sh", "arguments": "{}"}
    chunk = {"type": "block-end", "index": 0, "block": block}
    end = logs.event("assistant/chunk", 2, {"turn": 1, "step": 1, "chunk": chunk})
    plan = repaired([*BEGIN, end, logs.step("end", 5), logs.turn_end(6)])
    assert end.rstrip(b"\n") in plan.lines
    assert "tool/result" not in types(plan).values()

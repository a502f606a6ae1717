"""The opt-in invariants: the table of rules, an obvious model, purity, and what real logs obey."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore.chunks import decode_storage_record
from sessionstore.errors import InvariantError
from sessionstore.events import Event
from sessionstore.invariants import InvariantMode, InvariantTrace
from tests.paths import NO_REAL_LOGS, REAL_LOGS

MODES: tuple[InvariantMode, InvariantMode] = ("execution", "strict")
SURFACE = ("user/message", "assistant/message", "tool/result", "steering/message")


def event(seq: int, type_: str, data: Any = None, *, replaces: int | None = None) -> Event:
    """An event; ``data`` is its whole payload."""
    value: dict[str, Any] = {"type": type_, "seq": seq, "time": 0, "data": {} if data is None else data}
    if replaces is not None:
        value["surfaceOp"] = {"op": "replace", "start": replaces, "end": replaces}
    elif type_ in SURFACE:
        value["surfaceOp"] = "append"
    return Event.from_dict(value)


def place(turn: Any, step: Any = None, **more: Any) -> dict[str, Any]:
    """A payload that names a turn, and a step where one is given."""
    return {"turn": turn, **({} if step is None else {"step": step}), **more}


def call(turn: int, step: int, call_id: str = "c") -> tuple[str, Any]:
    """A tool call."""
    return "tool/call", place(turn, step, callId=call_id, name="n", arguments="{}")


def result(turn: int, step: int, call_id: str = "c", code: str | None = None) -> tuple[str, Any]:
    """A tool result, an error where it has a code."""
    block = {"type": "tool-result", "toolCallId": call_id, "content": [], "isError": code is not None}
    body = {"source": {"kind": "tool", "callId": call_id}, "content": [block], "role": "user", "id": "m"}
    error = {} if code is None else {"error": {"name": "E", "code": code}}
    return "tool/result", place(turn, step, message=body, **error)


def start(turn: int, step: int | None = None) -> tuple[str, Any]:
    """The start of a turn, or of a step."""
    return ("turn/start" if step is None else "step/start"), place(turn, step)


def end(turn: int, step: int | None = None) -> tuple[str, Any]:
    """The end of a turn, or of a step."""
    return ("turn/end" if step is None else "step/end"), place(turn, step)


def chunk(turn: int, step: int) -> tuple[str, Any]:
    """A token."""
    return "assistant/chunk", place(turn, step, chunk={"type": "text-delta", "index": 0, "text": "x"})


def message(turn: int, step: int) -> tuple[str, Any]:
    """What the model said."""
    return "assistant/message", place(turn, step)


def log(*entries: tuple[str, Any]) -> list[Event]:
    """Events at consecutive seqs."""
    return [event(seq, type_, data) for seq, (type_, data) in enumerate(entries)]


def replayed(*entries: tuple[str, Any], mode: InvariantMode = "execution") -> InvariantTrace:
    """A trace past ``entries``, which are all accepted."""
    trace = InvariantTrace(mode)
    trace.replay(log(*entries))
    return trace


def refusal(trace: InvariantTrace, seq: int, type_: str, data: Any = None, *, replaces: int | None = None) -> str:
    """Why the trace does not take an event."""
    with pytest.raises(InvariantError) as caught:
        trace.check(event(seq, type_, data, replaces=replaces))
    assert (caught.value.event_type, caught.value.seq) == (type_, seq)
    return caught.value.reason


def state(trace: InvariantTrace) -> dict[str, Any]:
    """All that a trace knows, detached."""
    names = InvariantTrace.__slots__
    return {name: dict(value) if isinstance(value := getattr(trace, name), dict) else value for name in names}


# --- an obvious model: every question is answered from the whole log


def _open(entries: list[tuple[str, Any]], what: str) -> Any:
    """The payload of the last ``what``/start that has no end after it."""
    for type_, data in reversed(entries):
        if type_ == f"{what}/end":
            return None
        if type_ == f"{what}/start":
            return data
    return None


def _here(entries: list[tuple[str, Any]], what: str) -> list[tuple[str, Any]]:
    """What stands after the last ``what``/start."""
    for index in range(len(entries), 0, -1):
        if entries[index - 1][0] == f"{what}/start":
            return entries[index:]
    return []


def _legal_result(entries: list[tuple[str, Any]], data: Any) -> bool:
    wanted = data["message"]["source"]["callId"]
    mine = _here(entries, "step")
    calls = sum(type_ == "tool/call" and found["callId"] == wanted for type_, found in mine)
    results = sum(type_ == "tool/result" and found["message"]["source"]["callId"] == wanted for type_, found in mine)
    if calls == 0 and results == 0:
        return bool(data.get("error", {}).get("code") == "TOOL_NOT_STARTED")
    return bool(results < calls)


def legal(entries: list[tuple[str, Any]], type_: str, data: Any, mode: str) -> bool:
    """Whether an event may come next: the table of section 7, line by line."""
    turn, step = _open(entries, "turn"), _open(entries, "step")
    if type_ == "turn/start":
        return turn is None and data["turn"] == 1 + sum(t == "turn/end" for t, _ in entries)
    if type_ == "turn/end":
        return turn is not None and data["turn"] == turn["turn"] and step is None
    if type_ == "step/start":
        number = 1 + sum(t == "step/end" for t, _ in _here(entries, "turn"))
        fits: bool = turn is not None and data["turn"] == turn["turn"] and data["step"] == number
        return fits and step is None
    if type_ in {"step/end", "assistant/chunk", "assistant/message", "tool/call", "tool/result"}:
        named: bool = (
            turn is not None and step is not None and (data["turn"], data["step"]) == (step["turn"], step["step"])
        )
        return named if type_ != "tool/result" else named and _legal_result(entries, data)
    if type_ in {"steering/message", "todo/write", "request/header", "request/context"}:
        return turn is not None
    return type_ == "recovery/lost" or turn is not None or mode == "execution"


numbers = st.integers(1, 3)
kinds = st.one_of(
    st.sampled_from(["user/message", "x/y", "context/message", "recovery/lost", "session/end-seed"]).map(
        lambda type_: (type_, {})
    ),
    st.sampled_from(["steering/message", "todo/write", "request/header", "request/context"]).map(
        lambda type_: (type_, {"turn": 1})
    ),
    *[
        st.builds(build, numbers, numbers)
        for build in (start, end, chunk, call, result, partial(result, code="TOOL_NOT_STARTED"))
    ],
    numbers.map(start),
    numbers.map(end),
)
# A walk that mostly goes forward: 0 takes the next boundary that fits, so that logs get somewhere.
programs = st.lists(st.integers(0, 5).map(lambda _: None) | kinds, max_size=30)


def next_boundary(entries: list[tuple[str, Any]]) -> tuple[str, Any]:
    """A boundary that is legal here: into turn and step, a call, its result, and out again."""
    turn, step = _open(entries, "turn"), _open(entries, "step")
    if turn is None:
        return start(1 + sum(t == "turn/end" for t, _ in entries))
    if step is not None:
        here = [type_ for type_, _ in _here(entries, "step")]
        if "tool/call" not in here:
            return call(step["turn"], step["step"])
        return end(step["turn"], step["step"])
    steps = sum(t == "step/end" for t, _ in _here(entries, "turn"))
    return end(turn["turn"]) if steps > 1 else start(turn["turn"], steps + 1)


@given(programs, st.sampled_from(MODES))
def test_the_trace_agrees_with_the_table(program: list[tuple[str, Any] | None], mode: InvariantMode) -> None:
    """Any mix of good and bad events is judged as the model judges, and a refused one leaves no mark."""
    trace = InvariantTrace(mode)
    entries: list[tuple[str, Any]] = []
    for step in program:
        type_, data = next_boundary(entries) if step is None else step
        candidate = event(len(entries), type_, data)
        before = state(trace)
        if not legal(entries, type_, data, mode):
            refusal(trace, len(entries), type_, data)
            assert state(trace) == before
            continue
        trace.check(candidate)
        assert state(trace) == before
        trace.commit(candidate)
        entries.append((type_, data))
    twin = InvariantTrace(mode)
    twin.replay(log(*entries))
    assert state(twin) == state(trace)


# --- turns


def test_a_well_formed_log_is_accepted() -> None:
    """Turns, steps, calls and results in their usual order."""
    entries = [
        start(1),
        ("user/message", {}),
        ("request/header", {}),
        ("request/context", {}),
        start(1, 1),
        chunk(1, 1),
        message(1, 1),
        message(1, 1),
        call(1, 1, "a"),
        call(1, 1, "b"),
        result(1, 1, "b"),
        result(1, 1, "a", "EXIT_1"),
        end(1, 1),
        ("steering/message", place(1)),
        ("todo/write", {}),
        start(1, 2),
        end(1, 2),
        end(1),
        start(2),
        end(2),
    ]
    for mode in MODES:
        replayed(*entries, mode=mode)


def test_turns_are_numbered_from_one() -> None:
    """The next turn is one more than the last closed one, whatever number a log begins with."""
    assert "expected turn 1" in refusal(InvariantTrace(), 0, *start(2))
    assert "expected turn 1" in refusal(InvariantTrace(), 0, *start(0))
    trace = replayed(start(1), end(1))
    assert refusal(trace, 2, *start(3)) == "expected turn 2, the event names turn 3"
    assert "expected turn 2" in refusal(trace, 2, *start(1))
    trace.check(event(2, *start(2)))


def test_turns_do_not_nest() -> None:
    """A turn starts when none is open, and the open one ends."""
    trace = replayed(start(1))
    assert "turn 1 is still open" in refusal(trace, 1, *start(2))
    assert "turn 1 is open" in refusal(trace, 1, *end(2))
    assert "no turn is open" in refusal(InvariantTrace(), 0, *end(1))


def test_a_turn_ends_after_its_step() -> None:
    """An open step keeps its turn open."""
    assert "step 1 is still open" in refusal(replayed(start(1), start(1, 1)), 2, *end(1))


@pytest.mark.parametrize("turn", [..., None, "1", True, 1.5, [1], {}])
@pytest.mark.parametrize("type_", ["turn/start", "turn/end", "step/start", "step/end", "assistant/message"])
def test_a_payload_that_names_no_turn_is_refused(type_: str, turn: Any) -> None:
    """Whatever stands where the number should be, there is an InvariantError and nothing else."""
    data = {"step": 1} if turn is ... else {"turn": turn, "step": 1}
    for trace in (InvariantTrace(), replayed(start(1)), replayed(start(1), start(1, 1))):
        refusal(trace, 9, type_, data)
    payloads: list[Any] = [None, 7, [], "text"]
    for payload in payloads:
        value = Event.from_dict({"type": type_, "seq": 9, "time": 0, "data": payload})
        with pytest.raises(InvariantError):
            InvariantTrace().check(value)


def test_an_integral_float_is_the_number_it_spells() -> None:
    """A log of another writer may say 1.0."""
    line = b'{"type":"%b","seq":%d,"time":0,"data":{"turn":1.0,"step":1e0}}'
    types = (b"turn/start", b"step/start", b"assistant/chunk", b"step/end", b"turn/end")
    InvariantTrace().replay(Event.from_json(line % (type_, seq)) for seq, type_ in enumerate(types))


def test_a_payload_that_is_hard_to_read_still_names_its_turn() -> None:
    """A lone surrogate or a number past a double beside it does not hide the turn."""
    for odd in (b'"\\ud83d"', b"1" * 400):
        line = b'{"type":"turn/start","seq":0,"time":0,"data":{"more":%b,"turn":1}}' % odd
        InvariantTrace().check(Event.from_json(line))


# --- steps


def test_steps_are_numbered_from_one_in_each_turn() -> None:
    """The next step is one more than the last closed one of the same turn."""
    trace = replayed(start(1))
    assert "expected step 1" in refusal(trace, 1, *start(1, 2))
    trace = replayed(start(1), start(1, 1), end(1, 1))
    assert "expected step 2" in refusal(trace, 3, *start(1, 1))
    assert "expected step 2" in refusal(trace, 3, *start(1, 3))
    trace.check(event(3, *start(1, 2)))
    trace = replayed(start(1), start(1, 1), end(1, 1), end(1), start(2))
    assert "expected step 1" in refusal(trace, 5, *start(2, 2))
    trace.check(event(5, *start(2, 1)))


def test_a_step_starts_in_the_open_turn_when_none_is_open() -> None:
    """Steps neither nest nor stand outside."""
    assert "no turn is open" in refusal(InvariantTrace(), 0, *start(1, 1))
    assert "turn 1 is open" in refusal(replayed(start(1)), 1, *start(2, 1))
    assert "step 1 is still open" in refusal(replayed(start(1), start(1, 1)), 2, *start(1, 2))


@pytest.mark.parametrize("entry", [end, chunk, call, result, message])
def test_what_happens_in_a_step_names_the_open_one(entry: Any) -> None:
    """Turn and step must both be those that are open."""
    assert "no step is open" in refusal(InvariantTrace(), 0, *entry(1, 1))
    assert "no step is open" in refusal(replayed(start(1)), 1, *entry(1, 1))
    trace = replayed(start(1), start(1, 1))
    assert "turn 1 is open" in refusal(trace, 2, *entry(2, 1))
    assert "step 1 is open" in refusal(trace, 2, *entry(1, 2))
    assert "no step is open" in refusal(replayed(start(1), start(1, 1), end(1, 1)), 3, *entry(1, 1))


# --- calls and results


def test_a_result_needs_its_call_in_this_step() -> None:
    """A result in a later step does not answer an earlier call."""
    assert "no tool/call in this step" in refusal(replayed(start(1), start(1, 1)), 2, *result(1, 1))
    assert "no tool/call" in refusal(replayed(start(1), start(1, 1)), 2, *result(1, 1, code="TOOL_OUTCOME_UNKNOWN"))
    later = replayed(start(1), start(1, 1), call(1, 1), end(1, 1), start(1, 2))
    assert "no tool/call in this step" in refusal(later, 5, *result(1, 2))
    other = replayed(start(1), start(1, 1), call(1, 1, "other"))
    assert "no tool/call in this step" in refusal(other, 3, *result(1, 1))


def test_a_call_that_never_started_has_a_result_without_it() -> None:
    """What crash repair writes for a call that was asked for and not recorded."""
    trace = replayed(start(1), start(1, 1), result(1, 1, code="TOOL_NOT_STARTED"))
    assert "already has a result" in refusal(trace, 3, *result(1, 1, code="TOOL_NOT_STARTED"))
    assert "already has a result" in refusal(trace, 3, *result(1, 1))
    replayed(start(1), start(1, 1), call(1, 1), result(1, 1, code="TOOL_NOT_STARTED"))


def test_a_call_has_one_result() -> None:
    """A second result is refused; the same id called twice has two."""
    trace = replayed(start(1), start(1, 1), call(1, 1), result(1, 1))
    assert "already has a result" in refusal(trace, 4, *result(1, 1))
    trace = replayed(start(1), start(1, 1), call(1, 1), call(1, 1), result(1, 1), result(1, 1))
    assert "already has a result" in refusal(trace, 6, *result(1, 1))
    replayed(start(1), start(1, 1), call(1, 1), result(1, 1), end(1, 1), start(1, 2), call(1, 2), result(1, 2))


def test_a_replacement_of_a_result_needs_an_open_turn_only() -> None:
    """A pruner rewrites an old result from any place within a turn, in either mode."""
    before = (start(1), start(1, 1), call(1, 1), result(1, 1), end(1, 1), end(1))
    for mode in MODES:
        trace = replayed(*before, mode=mode)
        assert refusal(trace, 6, *result(1, 1), replaces=3) == "no turn is open"
        trace = replayed(*before, start(2), mode=mode)
        rewrite = event(7, *result(1, 1), replaces=3)
        trace.check(rewrite)
        known = state(trace)
        trace.commit(rewrite)
        assert state(trace) == known | {"_last_seq": 7}


def test_a_replacement_answers_no_call() -> None:
    """Rewriting a result within its step leaves the count of results alone."""
    trace = replayed(start(1), start(1, 1), call(1, 1), result(1, 1), call(1, 1))
    trace.commit(event(5, *result(1, 1), replaces=3))
    trace.check(event(6, *result(1, 1)))


def test_unanswered_calls_and_empty_turns_are_allowed() -> None:
    """A step may end with open calls, a turn may have no step."""
    replayed(start(1), start(1, 1), call(1, 1), end(1, 1), end(1), start(2), end(2))


def test_events_without_a_call_id_are_refused() -> None:
    """A call or result that names no call cannot be followed."""
    trace = replayed(start(1), start(1, 1))
    odd: list[Any] = [{}, {"callId": 7}, {"callId": None}]
    for more in odd:
        assert "names no call" in refusal(trace, 2, "tool/call", place(1, 1, **more))
        assert "names no call" in refusal(trace, 2, "tool/result", place(1, 1, **more))
        assert "names no call" in refusal(trace, 2, "tool/result", place(1, 1, message={"source": more}))
    messages: list[Any] = [None, [], {}, {"source": "tool"}]
    for odd_message in messages:
        assert "names no call" in refusal(trace, 2, "tool/result", place(1, 1, message=odd_message))


def test_results_of_the_old_form_name_their_call_themselves() -> None:
    """A result without a message is followed like any other."""
    trace = replayed(start(1), start(1, 1), call(1, 1), ("tool/result", place(1, 1, callId="c", content=[])))
    assert "already has a result" in refusal(trace, 4, "tool/result", place(1, 1, callId="c", content=[]))


# --- between turns


@pytest.mark.parametrize("type_", ["steering/message", "todo/write", "request/header", "request/context"])
def test_what_belongs_to_a_turn_needs_one(type_: str) -> None:
    """In both modes, before the first turn and between two."""
    for mode in MODES:
        assert refusal(InvariantTrace(mode), 0, type_) == "no turn is open"
        assert refusal(replayed(start(1), end(1), mode=mode), 2, type_) == "no turn is open"
        replayed(start(1), (type_, {}), mode=mode)


@pytest.mark.parametrize(
    "type_", ["user/message", "context/message", "prompt/blocked", "session/end-seed", "plugin/event", "turn", ""]
)
def test_the_modes_differ_between_turns(type_: str) -> None:
    """Execution mode lets messages and unknown types stand outside a turn, strict mode does not."""
    replayed((type_, {}), start(1), (type_, {}), start(1, 1), (type_, {}), end(1, 1), end(1), (type_, {}))
    assert refusal(InvariantTrace("strict"), 0, type_) == "no turn is open"
    replayed(start(1), (type_, {}), start(1, 1), (type_, {}), end(1, 1), end(1), mode="strict")


def test_the_note_of_a_repair_stands_anywhere() -> None:
    """recovery/lost marks a hole wherever that is."""
    lost = ("recovery/lost", {"reason": "r", "offset": 0, "length": 1})
    for mode in MODES:
        replayed(lost, start(1), lost, start(1, 1), lost, end(1, 1), end(1), lost, mode=mode)


# --- the trace itself


def test_a_seq_increases() -> None:
    """An event at or before the last one is refused; where a log begins is no concern here."""
    trace = InvariantTrace()
    trace.commit(event(5, *start(1)))
    for seq in (0, 4, 5):
        assert "does not increase: the last one was 5" in refusal(trace, seq, "x/y")
    trace.check(event(6, "x/y"))


def test_a_vetoed_event_leaves_no_mark() -> None:
    """Checked and not committed is as if it never was."""
    trace = replayed(start(1), start(1, 1))
    before = state(trace)
    for entry in (chunk(1, 1), call(1, 1), end(1, 1)):
        trace.check(event(2, *entry))
        assert state(trace) == before
    trace.check(event(2, *call(1, 1)))
    trace.commit(event(2, *call(1, 1)))
    trace.check(event(3, *result(1, 1)))


def test_a_replay_stops_at_the_first_offender() -> None:
    """The trace stands before the event that it does not take."""
    trace = InvariantTrace()
    with pytest.raises(InvariantError) as caught:
        trace.replay(log(start(1), start(3), end(1)))
    assert (caught.value.seq, caught.value.event_type) == (1, "turn/start")
    trace.check(event(1, *end(1)))


def test_traces_are_independent() -> None:
    """One trace per session, and none knows another."""
    replayed(start(1))
    InvariantTrace().check(event(0, *start(1)))


def test_a_run_of_chunks_is_one_check() -> None:
    """The short form accepts and refuses what the long form does, and ends a run at its last seq."""
    trace = replayed(start(1), start(1, 1))
    trace.check_chunk(1, 1, 2)
    trace.commit_chunk(1001)
    assert "does not increase: the last one was 1001" in refusal(trace, 1001, *chunk(1, 1))
    trace.check_chunk(1, 1, 1002)
    for where in ((trace, 1, 2, 1002), (trace, 2, 1, 1002), (trace, 1, 1, 1001), (InvariantTrace(), 1, 1, 0)):
        one, turn, step, seq = where
        with pytest.raises(InvariantError) as caught:
            one.check_chunk(turn, step, seq)
        assert caught.value.reason == refusal(one, seq, *chunk(turn, step))


def test_the_members_of_a_packed_run_are_judged_like_any_chunk() -> None:
    """A delta that was never a line of its own is accepted and refused as if it had been one."""
    row = (
        b'{"type":"text-chunks","seq0":2,"time0":0,"data":{"turn":1.0,"step":1,"index":0,"dt":[0,0],'
        b'"texts":["a","b","c"]}}'
    )
    members = decode_storage_record(row)
    trace = replayed(start(1), start(1, 1))
    trace.replay(members)
    assert "does not increase: the last one was 4" in refusal(trace, 4, *chunk(1, 1))
    for other in (InvariantTrace(), replayed(start(1)), replayed(start(1), start(1, 1), end(1, 1), start(1, 2))):
        with pytest.raises(InvariantError):
            other.check(members[-1])


def test_an_unknown_mode_is_refused() -> None:
    """A misspelt mode is a programming error, not a mode without rules."""
    with pytest.raises(ValueError, match="strict"):
        InvariantTrace("loose")  # type: ignore[arg-type]
    assert [InvariantTrace(mode).mode for mode in MODES] == list(MODES)


def test_messages_hold_no_contents() -> None:
    """What an event says does not end up in an error."""
    trace = replayed(start(1), start(1, 1))
    assert "s3cret" not in refusal(trace, 2, *result(1, 1, "s3cret"))


# --- real logs


def manifest() -> list[dict[str, str]]:
    """The rows of the real logs' manifest, by column."""
    lines = (REAL_LOGS / "manifest.tsv").read_text(encoding="utf-8").splitlines()
    return [dict(zip(lines[0].split("\t"), line.split("\t"), strict=True)) for line in lines[1:]]


def first_offender(events: list[Event], mode: InvariantMode) -> str:
    """The seq and type of the first event that a mode refuses, as the manifest spells it."""
    try:
        InvariantTrace(mode).replay(events)
    except InvariantError as error:
        return f"{error.seq} {error.event_type}"
    return "None"


@pytest.mark.slow
@pytest.mark.skipif(not REAL_LOGS.is_dir(), reason=NO_REAL_LOGS)
def test_real_logs_obey_what_their_manifest_says() -> None:
    """Both modes name the first offending event of every real log that has one."""
    rows = manifest()
    assert len(rows) > 100
    for row in rows:
        lines = (REAL_LOGS / row["file"]).read_bytes().split(b"\n")[1:]
        events = [event for line in lines if line for event in decode_storage_record(line)]
        assert len(events) == int(row["events"]), row["file"]
        for mode in MODES:
            expected = " ".join(row[f"{mode}_invariant"].split()[:2])
            assert first_offender(events, mode) == expected, (row["file"], mode)

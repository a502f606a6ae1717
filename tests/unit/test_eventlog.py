"""The log in memory: a plain list of events is the model that it has to agree with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore.chunks import decode_storage_record, pack_chunk_runs
from sessionstore.eventlog import EventLog
from sessionstore.events import DeltaKey, Event

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYS = [
    DeltaKey("text-delta", 1, 1, 0),
    DeltaKey("reasoning-delta", 1, 1, 0),
    DeltaKey("tool-call-delta", 1, 1, 1, "c"),
]


def other(seq: int) -> Event:
    """An event that is no delta."""
    return Event.from_dict({"type": "x/y", "seq": seq, "time": seq, "data": {"n": seq}})


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, int]]:
    """What is done to a log: deltas of one of three runs, other events, seals."""
    step = st.tuples(st.sampled_from(["delta", "delta", "delta", "line", "seal"]), st.integers(0, 2))
    return draw(st.lists(step, max_size=40))


def build(program: Sequence[tuple[str, int]]) -> tuple[EventLog, list[Event]]:
    """Run a program on a log and on a list."""
    log, model = EventLog(), list[Event]()
    key = KEYS[0]
    for act, n in program:
        seq = len(model)
        if act == "delta":
            key = KEYS[n] if seq % 5 == 0 else key
            log.append_delta(key, str(seq), seq * 3)
            model.append(Event("assistant/chunk", seq, seq * 3, None, key, str(seq)))
        elif act == "line":
            log.append_line(other(seq).to_json())
            model.append(other(seq))
        else:
            log.seal()
    return log, model


@given(programs())
def test_the_log_is_the_list_of_its_events(program: list[tuple[str, int]]) -> None:
    """Length, iteration, indexing from both ends and containment agree with a list."""
    log, model = build(program)
    events = log.events()
    assert len(log) == len(events) == len(model)
    assert list(events) == model
    for seq in range(len(model)):
        assert events[seq] == model[seq]
        assert events[seq - len(model)] == model[seq - len(model)]
        assert model[seq] in events
    assert other(10_000) not in events
    with pytest.raises(IndexError):
        events[len(model)]


@given(programs(), st.data())
def test_slices_and_lines_of_any_range(program: list[tuple[str, int]], data: st.DataObject) -> None:
    """Any slice is the list's slice, and the storage lines of any range hold exactly its events."""
    log, model = build(program)
    start = data.draw(st.integers(-3, len(model) + 3))
    stop = data.draw(st.integers(-3, len(model) + 3))
    step = data.draw(st.sampled_from([1, 2, -1]))
    assert list(log.events()[start:stop:step]) == model[start:stop:step]
    low, high = sorted((max(0, min(start, len(model))), max(0, min(stop, len(model)))))
    assert [e for line in log.lines(low, high) for e in decode_storage_record(line)] == model[low:high]
    assert list(log.events(low, high)) == model[low:high]


@given(programs(), programs())
def test_a_snapshot_does_not_grow(first: list[tuple[str, int]], second: list[tuple[str, int]]) -> None:
    """A view taken earlier shows the same events whatever is appended or sealed later."""
    log, model = build(first)
    view = log.events()
    for act, n in second:
        if act == "delta":
            log.append_delta(KEYS[n], "late", 1)
        elif act == "line":
            log.append_line(other(len(log)).to_json())
        else:
            log.seal()
    assert list(view) == model


@given(programs())
def test_storage_lines_are_what_the_encoder_writes(program: list[tuple[str, int]]) -> None:
    """Without seals in between, the lines are those of the canonical encoder; with them, each part's."""
    log, model = build([step for step in program if step[0] != "seal"])
    assert list(log.lines(0, len(model))) == pack_chunk_runs(model)


def test_a_row_of_one_member_is_expanded() -> None:
    """A stored row with a single member is read as its event."""
    log = EventLog()
    row = b'{"type":"text-chunks","seq0":0,"time0":5,"data":{"turn":1,"step":1,"index":0,"dt":[],"texts":["x"]}}'
    log.append_line(row)
    assert log.event(0).type == "assistant/chunk"
    assert [event.seq for event in log.events()] == [0]
    assert list(log.lines(0, 1)) == [row]


def test_the_last_event_of_a_type_is_found() -> None:
    """Searching backwards finds it whatever its spelling, and nothing where there is none."""
    log = EventLog()
    log.append_line(b'{"type":"a","seq":0,"time":1,"data":1}')
    log.append_line(b'{"seq":1,"time":1,"data":2,"type":"b"}')
    log.append_line(b'{"type":"\\u0061b","seq":2,"time":1,"data":3}')
    log.append_line(b'{"type":"abc","seq":3,"time":1,"data":4}')
    assert [event.seq if (event := log.find_last(t)) else None for t in ("a", "b", "ab", "abc", "zz")] == [
        0,
        1,
        2,
        3,
        None,
    ]


def test_a_packed_log_keeps_no_object_per_event() -> None:
    """A log of a hundred thousand packed deltas weighs what it weighs on disk, a few bytes per token."""
    log = EventLog()
    for seq in range(100_000):
        log.append_delta(KEYS[0], " word", seq)
        if seq % 1000 == 999:
            log.seal()
    assert log.line_count == 100
    assert sum(len(line) for line in log.slice_lines(0, 100)) < 100_000 * 12


def test_iterating_decodes_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at every event of a packed log decodes as many rows as there are."""
    from sessionstore import chunks, eventlog

    calls = 0
    real = chunks.parse_row

    def counting(line: bytes) -> object:
        nonlocal calls
        calls += 1
        return real(line)

    log, _ = build([("delta", 0)] * 30 + [("seal", 0)] + [("delta", 0)] * 30 + [("seal", 0)])
    monkeypatch.setattr(eventlog, "parse_row", counting)
    assert len(list(log.events())) == 60
    assert calls == log.line_count == 2

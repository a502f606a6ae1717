"""Conformance, theme A: runs of deltas and packed rows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore.chunks import decode_storage_record, pack_chunk_runs
from sessionstore.errors import InvalidEventError
from sessionstore.lossless import MAX_SAFE
from tests.conformance.build import args, event, events, packed, reasoning, text, unpacked

HALF = MAX_SAFE // 2


def test_a_text_run_becomes_one_row_and_comes_back() -> None:
    """Three or more text deltas are one row, and the row is the same events."""
    run = [text(0, "a", time=10), text(1, "", time=15), text(2, "c", time=15)]
    assert packed(*run) == [
        {
            "type": "text-chunks",
            "seq0": 0,
            "time0": 10,
            "data": {"turn": 1, "step": 1, "index": 0, "dt": [5, 0], "texts": ["a", "", "c"]},
        }
    ]
    assert unpacked(packed(*run)) == run


def test_reasoning_and_tool_call_runs_use_their_own_tags() -> None:
    """Each kind of delta has its own row type, and tool calls keep id and name."""
    run = [reasoning(0, "x"), reasoning(1, "y"), reasoning(2, "z")]
    calls = [args(3, "{"), args(4, '"a"'), args(5, "}")]
    named = [args(6, "1", name="sh"), args(7, "2", name="sh"), args(8, "3", name="sh")]
    rows = packed(*run, *calls, *named)
    assert [row["type"] for row in rows] == ["reasoning-chunks", "tool-call-chunks", "tool-call-chunks"]
    assert rows[1]["data"] == {"turn": 1, "step": 1, "index": 0, "dt": [0, 0], "id": "c1", "args": ["{", '"a"', "}"]}
    assert list(rows[2]["data"]) == ["turn", "step", "index", "dt", "id", "name", "args"]
    assert unpacked(rows) == [*run, *calls, *named]


def test_a_tool_call_run_without_a_name_keeps_it_absent() -> None:
    """No name in the deltas, no name in the row, no name after decoding."""
    run = [args(0, "1"), args(1, "2"), args(2, "3")]
    (row,) = packed(*run)
    assert "name" not in row["data"]
    assert all("name" not in e["data"]["chunk"] for e in unpacked([row]))


@pytest.mark.parametrize("length", [1, 2])
def test_a_run_of_one_or_two_stays_verbatim(length: int) -> None:
    """Packing starts at three."""
    run = [text(k, "x") for k in range(length)]
    assert packed(*run) == run


def test_other_events_stay_verbatim_and_split_runs() -> None:
    """A boundary chunk or any other event between deltas is kept as it is and ends the run."""
    end = {
        "type": "assistant/chunk",
        "seq": 3,
        "time": 1,
        "data": {
            "turn": 1,
            "step": 1,
            "chunk": {"type": "block-end", "index": 0, "block": {"type": "text", "text": ""}},
        },
    }
    other = {"type": "my/event", "seq": 7, "time": 1, "data": {"x": 1}}
    stream = [
        *(text(k, "x") for k in range(3)),
        end,
        *(text(k, "y") for k in range(4, 7)),
        other,
        text(8, "z"),
        text(9, "z"),
    ]
    records = packed(*stream)
    assert [r["type"] for r in records] == ["text-chunks", "assistant/chunk", "text-chunks", "my/event"] + [
        "assistant/chunk"
    ] * 2
    assert records[1] == end
    assert records[3] == other
    assert unpacked(records) == stream


@pytest.mark.parametrize(
    "second",
    [
        [text(4, "x"), text(5, "x"), text(6, "x")],
        [reasoning(3, "x"), reasoning(4, "x"), reasoning(5, "x")],
        [text(k, "x", index=1) for k in (3, 4, 5)],
        [text(k, "x", step=2) for k in (3, 4, 5)],
        [text(k, "x", turn=2) for k in (3, 4, 5)],
    ],
    ids=["seq gap", "kind", "index", "step", "turn"],
)
def test_a_run_splits_where_its_key_changes(second: list[dict[str, Any]]) -> None:
    """A seq gap, another kind, index, step or turn begins a new row."""
    first = [text(0, "x"), text(1, "x"), text(2, "x")]
    records = packed(*first, *second)
    assert len(records) == 2
    assert unpacked(records) == [*first, *second]


@pytest.mark.parametrize(
    "second",
    [
        [args(k, "x", id="c2") for k in (3, 4, 5)],
        [args(k, "x", name="sh") for k in (3, 4, 5)],
    ],
    ids=["id", "name appears"],
)
def test_a_tool_call_run_splits_on_id_and_on_the_presence_of_a_name(second: list[dict[str, Any]]) -> None:
    """Another call, or a name that appears or disappears, begins a new row."""
    first = [args(0, "x"), args(1, "x"), args(2, "x")]
    for run in (
        [*first, *second],
        [*[{**e, "seq": k} for k, e in enumerate(second)], *[{**e, "seq": 3 + e["seq"]} for e in first]],
    ):
        records = packed(*run)
        assert len(records) == 2
        assert unpacked(records) == run


def _with(change: dict[str, Any], where: str) -> dict[str, Any]:
    odd = text(1, "x")
    target = {"event": odd, "data": odd["data"], "chunk": odd["data"]["chunk"]}[where]
    target.update(change)
    return odd


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(_with({"note": 1}, "event"), id="extra envelope field"),
        pytest.param(_with({"text": 5}, "chunk"), id="text is no string"),
        pytest.param({**text(1, "x"), "data": [1]}, id="data is no object"),
        pytest.param(_with({"more": 1}, "data"), id="extra key in data"),
        pytest.param(_with({"turn": "1"}, "data"), id="turn is no number"),
        pytest.param(_with({"chunk": "x"}, "data"), id="chunk is no object"),
        pytest.param(_with({"index": "0"}, "chunk"), id="index is no number"),
        pytest.param(_with({"more": 1}, "chunk"), id="extra key in chunk"),
        pytest.param(args(1, "x", id=5), id="id is no string"),
        pytest.param(args(1, "x", name=5), id="name is no string"),
    ],
)
def test_an_unusual_delta_stays_verbatim(odd: dict[str, Any]) -> None:
    """Anything odd about a delta costs its compression, never its data."""
    around = [text(0, "a"), odd, text(2, "b")]
    lines = pack_chunk_runs(events(*around))
    assert [json.loads(line) for line in lines] == around
    assert lines[1] == events(odd)[0].to_json()


def test_a_fractional_time_is_no_event() -> None:
    """Times are integers here, so a fractional one never reaches the encoder: it is refused at the border."""
    with pytest.raises(InvalidEventError):
        events(text(0, "x", time=10.5))


def test_a_gap_that_is_not_exact_splits_the_run() -> None:
    """Two safe times can lie further apart than the safe integers; both come back exactly."""
    run = [text(0, "a", time=-MAX_SAFE), text(1, "b", time=-MAX_SAFE), text(2, "c", time=-MAX_SAFE)]
    run += [text(k, "d", time=MAX_SAFE) for k in (3, 4, 5)]
    records = packed(*run)
    assert len(records) == 2
    assert unpacked(records) == run


def test_what_is_no_row_is_one_event_or_refused() -> None:
    """A storage record that is not a row is read as the event it is; no object, no event."""
    assert unpacked([{"type": "my/chunks", "seq": 0, "time": 1, "data": None}])[0]["type"] == "my/chunks"
    for line in (b'"text-chunks"', b"null", b"[1]"):
        with pytest.raises(InvalidEventError):
            decode_storage_record(line)


def test_a_clock_that_stepped_back_is_kept() -> None:
    """Gaps may be negative."""
    run = [text(0, "a", time=1000), text(1, "b", time=400), text(2, "c", time=900)]
    (row,) = packed(*run)
    assert row["data"]["dt"] == [-600, 500]
    assert unpacked([row]) == run


def _row(**changes: Any) -> dict[str, Any]:
    data: dict[str, Any] = {"turn": 1, "step": 1, "index": 0, "dt": [1, 1], "texts": ["a", "b", "c"]}
    row: dict[str, Any] = {"type": "text-chunks", "seq0": 0, "time0": 1000, "data": data}
    for key, value in changes.items():
        (row if key in row or key.startswith("envelope") else data)[key] = value
    return row


def _tool_row(**changes: Any) -> dict[str, Any]:
    data = {"turn": 1, "step": 1, "index": 0, "dt": [1], "id": "c1", "args": ["a", "b"], **changes}
    return {"type": "tool-call-chunks", "seq0": 0, "time0": 1, "data": {k: v for k, v in data.items() if v is not ...}}


BAD_ROWS = {
    "data is no object": _row(data=[1]),
    "extra envelope key": _row(envelope_note=1),
    "negative seq0": _row(seq0=-1),
    "time0 is not finite": _row(time0=None),
    "time0 is fractional": _row(time0=0.5),
    "payload under the wrong key": {
        **_row(),
        "data": {"turn": 1, "step": 1, "index": 0, "dt": [1], "args": ["a", "b"]},
    },
    "extra payload key": _row(extra=1),
    "a member is no string": _row(texts=["a", 2, "c"]),
    "no members": _row(texts=[], dt=[]),
    "one gap too few": _row(dt=[1]),
    "one gap too many": _row(dt=[1, 1, 1]),
    "a gap is not finite": _row(dt=[1, None]),
    "a gap is fractional": _row(dt=[1, 0.5]),
    "a seq leaves the safe range": _row(seq0=MAX_SAFE - 1),
    "a time leaves the safe range": _row(time0=MAX_SAFE, dt=[1, 1]),
    "a time leaves the safe range and returns": _row(time0=MAX_SAFE, dt=[1, -1]),
    "turn is no number": _row(turn="1"),
    "tool row without id": _tool_row(id=...),
    "id is no string": _tool_row(id=5),
    "name is no string": _tool_row(name=5),
}


@pytest.mark.parametrize("row", BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_a_malformed_row_is_refused(row: dict[str, Any]) -> None:
    """Rows are read strictly: exact keys, strings, one gap fewer than members, everything in the safe integers."""
    with pytest.raises(InvalidEventError):
        decode_storage_record(json.dumps(row).encode())


def test_a_row_of_an_infinite_gap_is_refused() -> None:
    """A number that no double holds is no gap."""
    with pytest.raises(InvalidEventError):
        decode_storage_record(json.dumps(_row()).replace("[1, 1]", "[1, 1e999]").encode())


def test_rows_of_one_and_two_members_are_read() -> None:
    """The decoder takes shorter rows than the encoder writes."""
    assert len(unpacked([_row(dt=[], texts=["a"])])) == 1
    assert len(unpacked([_tool_row()])) == 2


TIMES = st.integers(-MAX_SAFE, MAX_SAFE) | st.integers(0, 50)


@st.composite
def batches(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Random batches: mostly deltas, with changes of key, odd times and other events between."""
    out: list[dict[str, Any]] = []
    for seq in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["text", "text", "text", "reasoning", "args", "other"]))
        string = draw(st.text(max_size=4) | st.sampled_from(["\ud83d", "\udc00x", '"\\\n', ""]))
        time = draw(TIMES)
        if kind == "text":
            out.append(text(seq, string, time=time, index=draw(st.integers(0, 1))))
        elif kind == "reasoning":
            out.append(reasoning(seq, string, time=time))
        elif kind == "args":
            out.append(args(seq, string, time=time, name=draw(st.sampled_from([..., "sh"]))))
        else:
            out.append({"type": "my/event", "seq": seq, "time": time, "data": string})
    return out


@given(batches())
def test_encode_then_decode_is_the_identity(batch: list[dict[str, Any]]) -> None:
    """Every batch comes back event by event, whatever was packed, over the full range of times."""
    originals = events(*batch)
    lines = pack_chunk_runs(originals)
    back = [e for line in lines for e in decode_storage_record(line)]
    assert back == originals
    assert [e.to_json() for e in back] == [e.to_json() for e in originals]


def test_the_encoder_takes_events_of_a_live_log_and_of_bytes_alike() -> None:
    """An event read from a line packs like one that was appended."""
    line = event("assistant/chunk", 0, text(0, "a")["data"]).to_json()
    run = [decode_storage_record(line.replace(b'"seq":0', b'"seq":%d' % k))[0] for k in range(3)]
    assert len(pack_chunk_runs(run)) == 1

"""Packed rows: what is packed, what is not, and that it all comes back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore.chunks import decode_storage_record, encode_row, pack_chunk_runs, parse_row
from sessionstore.errors import InvalidEventError
from sessionstore.events import Event
from sessionstore.lossless import MAX_SAFE, Json
from sessionstore.measure import measure_row

SAFE = st.integers(-MAX_SAFE, MAX_SAFE)


def delta(seq: int, text: str = "x", *, time: int = 5, kind: str = "text-delta", **fields: Any) -> dict[str, Json]:
    """The plain dict of one delta event; *fields* override turn, step, index, id and name."""
    chunk: dict[str, Json] = {"type": kind, "index": fields.get("index", 0)}
    if kind == "tool-call-delta":
        chunk["id"] = fields.get("id", "c")
        if "name" in fields:
            chunk["name"] = fields["name"]
        chunk["argumentsDelta"] = text
    else:
        chunk["text"] = text
    data: dict[str, Json] = {"turn": fields.get("turn", 1), "step": fields.get("step", 1), "chunk": chunk}
    return {"type": "assistant/chunk", "seq": seq, "time": time, "data": data}


def pack(*events: dict[str, Json]) -> list[bytes]:
    """The storage lines of plain events."""
    return pack_chunk_runs(Event.from_dict(event) for event in events)


def unpack(lines: list[bytes]) -> list[dict[str, Json]]:
    """The plain events of storage lines."""
    return [event.to_dict() for line in lines for event in decode_storage_record(line)]


def test_a_text_run_becomes_one_row_and_comes_back() -> None:
    """Three deltas are one line of the documented shape, and unpack to the same events."""
    events = [delta(7, "a", time=10), delta(8, "", time=8), delta(9, "\u2028é", time=8)]
    lines = pack(*events)
    assert lines == [
        '{"type":"text-chunks","seq0":7,"time0":10,"data":{"turn":1,"step":1,"index":0,"dt":[-2,0],'
        '"texts":["a","","\u2028é"]}}'.encode()
    ]
    assert unpack(lines) == events


@pytest.mark.parametrize(
    ("kind", "fields", "row"),
    [
        ("reasoning-delta", {}, b'{"type":"reasoning-chunks","seq0":0,"time0":5,"data":{"turn":1,"step":1,"index":0,"dt":[0,0],"texts":["x","x","x"]}}'),
        ("tool-call-delta", {"name": "sh"}, b'{"type":"tool-call-chunks","seq0":0,"time0":5,"data":{"turn":1,"step":1,"index":0,"dt":[0,0],"id":"c","name":"sh","args":["x","x","x"]}}'),
        ("tool-call-delta", {}, b'{"type":"tool-call-chunks","seq0":0,"time0":5,"data":{"turn":1,"step":1,"index":0,"dt":[0,0],"id":"c","args":["x","x","x"]}}'),
    ],
)  # fmt: skip
def test_each_kind_has_its_own_row(kind: str, fields: dict[str, Any], row: bytes) -> None:
    """Reasoning and tool calls use tags of their own; a missing name stays missing."""
    events = [delta(seq, kind=kind, **fields) for seq in range(3)]
    assert pack(*events) == [row]
    assert unpack([row]) == events


@pytest.mark.parametrize("count", [1, 2])
def test_short_runs_stay_verbatim(count: int) -> None:
    """Runs of one or two deltas are single lines, byte for byte."""
    events = [Event.from_dict(delta(seq)) for seq in range(count)]
    assert pack_chunk_runs(events) == [event.to_json() for event in events]


def test_rows_of_one_and_two_members_are_read() -> None:
    """The decoder takes shorter rows than the encoder writes."""
    row = b'{"type":"text-chunks","seq0":4,"time0":5,"data":{"turn":1,"step":1,"index":0,"dt":[],"texts":["x"]}}'
    assert unpack([row]) == [delta(4)]


BREAKS = {
    "seq gap": delta(4),
    "kind": delta(3, kind="reasoning-delta"),
    "turn": delta(3, turn=2),
    "step": delta(3, step=2),
    "index": delta(3, index=1),
    "unsafe gap": delta(3, time=-MAX_SAFE),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_run_breaks(name: str) -> None:
    """A run ends where anything that its members share changes."""
    after: dict[str, Json] = BREAKS[name]
    events = [*(delta(seq) for seq in range(3)), after]
    lines = pack(*events)
    assert [b"-chunks" in line for line in lines] == [True, False]
    assert unpack(lines) == events


@pytest.mark.parametrize("fields", [{"id": "d", "name": "a"}, {"name": "b"}, {}])
def test_a_tool_run_breaks_on_id_and_name(fields: dict[str, Any]) -> None:
    """Another id, another name, or a name that disappears ends the run; so does one that appears."""
    first = [delta(seq, kind="tool-call-delta", name="a") for seq in range(3)]
    second = [delta(seq, kind="tool-call-delta", **fields) for seq in range(3, 6)]
    assert len(pack(*first, *second)) == 2
    again = [{**event, "seq": (seq + 3) % 6} for seq, event in enumerate([*first, *second])]
    assert len(pack(*again[3:], *again[:3])) == 2


def test_other_events_stay_between_runs() -> None:
    """Boundary chunks and other events split runs and go as they are."""
    start: dict[str, Json] = {"type": "assistant/chunk", "seq": 3, "time": 5,
             "data": {"turn": 1, "step": 1, "chunk": {"type": "block-start", "index": 0, "blockType": "text"}}}  # fmt: skip
    events = [*(delta(seq) for seq in range(3)), start, *(delta(seq) for seq in range(4, 7))]
    lines = pack(*events)
    assert [b"-chunks" in line for line in lines] == [True, False, True]
    assert unpack(lines) == events


def edit(path: str, value: Json, event: dict[str, Json] | None = None) -> dict[str, Json]:
    """A delta with one value set, by a path such as data.chunk.text."""
    edited: dict[str, Any] = json.loads(json.dumps(event or delta(1)))
    target = edited
    *steps, last = path.split(".")
    for step in steps:
        target = target[step]
    target[last] = value
    return edited


ODD = {
    "extra envelope field": edit("extra", 1),
    "extra data field": edit("data.extra", 1),
    "extra chunk field": edit("data.chunk.extra", 1),
    "non-string text": edit("data.chunk.text", 1),
    "non-object data": edit("data", [1]),
    "non-numeric turn": edit("data.turn", "1"),
    "fractional turn": edit("data.turn", 1.5),
    "boolean step": edit("data.step", True),
    "non-object chunk": edit("data.chunk", "x"),
    "non-numeric index": edit("data.chunk.index", None),
    "non-string id": edit("data.chunk.id", 1, delta(1, kind="tool-call-delta")),
    "non-string name": edit("data.chunk.name", 1, delta(1, kind="tool-call-delta")),
    "text beside arguments": edit("data.chunk.text", "x", delta(1, kind="tool-call-delta")),
}


@pytest.mark.parametrize("name", ODD)
def test_an_unknown_shape_costs_compression_never_data(name: str) -> None:
    """A delta with anything unusual in it is written verbatim and splits its run."""
    odd = ODD[name]
    events = [delta(0), odd, delta(2), delta(3), delta(4)]
    lines = pack(*events)
    assert [json.loads(line) for line in lines[:2]] == [delta(0), odd]
    assert len(lines) == 3


@pytest.mark.parametrize(
    "line",
    [
        b'{"seq":1,"type":"assistant/chunk","time":5,"data":{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"x"}}}',
        b'{"type":"assistant/chunk","seq":1,"time":5,"data":{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"\\u0078"}}}',
        b'{"type":"assistant/chunk","seq":1, "time":5,"data":{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"x"}}}',
        b'{"type":"assistant/chunk","seq":1,"time":5.0,"data":{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"x"}}}',
    ],
    ids=["key order", "escape", "space", "integral float"],
)  # fmt: skip
def test_bytes_that_packing_would_change_stay(line: bytes) -> None:
    """A line read from a log that is spelled in another way is never packed."""
    events = [Event.from_dict(delta(0)), Event.from_json(line), *(Event.from_dict(delta(seq)) for seq in (2, 3, 4))]
    assert pack_chunk_runs(events)[1] == line


def test_lone_surrogates_are_packed() -> None:
    """A token that ends in half a character is a delta like any other, and stays a string of its own."""
    events = [delta(0, "\ud83d"), delta(1, "\ude00"), delta(2, "a")]
    (line,) = pack(*events)
    assert b'["\\ud83d","\\ude00","a"]' in line
    assert unpack([line]) == events


ROW: dict[str, Json] = {
    "type": "tool-call-chunks", "seq0": 3, "time0": 9,
    "data": {"turn": 1, "step": 1, "index": 0, "dt": [1], "id": "c", "name": "n", "args": ["a", "b"]},
}  # fmt: skip

BAD_ROWS = {
    "non-object data": edit("data", [], ROW),
    "extra envelope key": edit("seq", 3, ROW),
    "negative seq0": edit("seq0", -1, ROW),
    "fractional seq0": edit("seq0", 1.5, ROW),
    "boolean seq0": edit("seq0", True, ROW),
    "time0 is no number": edit("time0", None, ROW),
    "fractional time0": edit("time0", 0.5, ROW),
    "wrong payload key": edit("data.texts", ["a"], ROW),
    "non-string member": edit("data.args", ["a", 1], ROW),
    "members are no list": edit("data.args", "ab", ROW),
    "empty members": edit("data.args", [], ROW),
    "too few gaps": edit("data.dt", [], ROW),
    "too many gaps": edit("data.dt", [1, 1], ROW),
    "gap is no number": edit("data.dt", ["1"], ROW),
    "gap is null": edit("data.dt", [None], ROW),
    "fractional gap": edit("data.dt", [0.5], ROW),
    "seq leaves the safe range": edit("seq0", MAX_SAFE, ROW),
    "time leaves the safe range": edit("time0", MAX_SAFE, ROW),
    "time leaves the safe range downwards": edit("data.dt", [-MAX_SAFE - 10], ROW),
    "non-numeric turn": edit("data.turn", "1", ROW),
    "boolean index": edit("data.index", False, ROW),
    "non-string id": edit("data.id", 1, ROW),
    "non-string name": edit("data.name", None, ROW),
    "text row with id": edit("type", "text-chunks", ROW),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_malformed_rows_are_refused(name: str) -> None:
    """Every deviation from the exact shape is an error, on both readers."""
    line = json.dumps(BAD_ROWS[name]).encode()
    for read in (decode_storage_record, measure_row, parse_row):
        with pytest.raises(InvalidEventError):
            read(line)


def test_a_tool_row_needs_an_id() -> None:
    """The id may not be missing, the name may."""
    data: dict[str, Any] = dict(ROW["data"])  # type: ignore[arg-type]
    del data["name"]
    assert measure_row(json.dumps({**ROW, "data": data}).encode()) == (3, 2)
    del data["id"]
    with pytest.raises(InvalidEventError):
        measure_row(json.dumps({**ROW, "data": data}).encode())


def test_rows_in_any_spelling_are_read() -> None:
    """Key order, spaces and integral floats do not matter to the reader."""
    plain = json.dumps(ROW, separators=(",", ":")).encode()
    odd = json.dumps(dict(reversed(list({**ROW, "seq0": 3.0, "time0": 9.0}.items()))), indent=1).encode()
    assert unpack([odd]) == unpack([plain])
    assert measure_row(odd) == measure_row(plain) == (3, 2)


@pytest.mark.parametrize("raw", [b"null", b'"x"', b"[]", b"1", b"{}", b""])
def test_what_is_no_record_is_refused(raw: bytes) -> None:
    """A storage line is an event or a row; anything else is the documented error."""
    with pytest.raises(InvalidEventError):
        decode_storage_record(raw)


@st.composite
def logs(draw: st.DrawFn) -> list[dict[str, Json]]:
    """Consecutive events, mostly deltas that like to continue a run."""
    events: list[dict[str, Json]] = []
    for seq in range(draw(st.integers(0, 20))):
        time = draw(st.sampled_from([0, 1, 5]) | SAFE)
        text = draw(st.text(st.characters(exclude_categories=()), max_size=3).filter(lambda t: "\ud83d\ude00" not in t))
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        kind = draw(st.sampled_from(["text-delta", "text-delta", "reasoning-delta", "tool-call-delta"]))
        fields: dict[str, Any] = {
            "index": draw(st.sampled_from([0, 0, 0, 1])),
            "turn": draw(st.sampled_from([1, 1, 2])),
        }
        if kind == "tool-call-delta" and draw(st.booleans()):
            fields["name"] = draw(st.sampled_from(["a", "b"]))
        events.append(delta(seq, text, time=time, kind=kind, **fields))
    return events


@given(logs())
def test_packing_and_unpacking_is_the_identity(events: list[dict[str, Json]]) -> None:
    """Whatever the events, over the full range of times: what is packed comes back, and packs to the same bytes."""
    lines = pack(*events)
    assert unpack(lines) == events
    again = [event for line in lines for event in decode_storage_record(line)]
    assert pack_chunk_runs(again) == lines


@given(logs(), st.data())
def test_a_slice_of_a_row_is_the_row_of_the_slice(events: list[dict[str, Json]], data: st.DataObject) -> None:
    """Splitting a packed row gives the rows of its parts."""
    for line in pack(*events):
        if b"-chunks" not in line:
            continue
        row = parse_row(line)
        at = data.draw(st.integers(1, len(row) - 1))
        parts = [row.slice(0, at), row.slice(at, len(row))]
        assert [e for part in parts for e in part.events()] == list(row.events())
        assert [measure_row(encode_row(part))[1] for part in parts] == [at, len(row) - at]

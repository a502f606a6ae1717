"""Events are values that keep their JSON."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from sessionstore.errors import InvalidEventError
from sessionstore.events import DeltaKey, Event, Replace
from sessionstore.vocabulary import AssistantChunk, TurnStart

LINE = b'{"type":"turn/start","seq":3,"time":-5,"data":{"turn":1,"extra":[1,1.0]},"x":null}'


def test_bytes_go_out_as_they_came() -> None:
    """Unknown fields, key order, spaces and number spelling survive."""
    for line in (LINE, b'{ "time":1e3,"data":{"b":1.50,"a":1E2},"seq":2.0,"type":"my/type","zz":"\\u0061" }'):
        event = Event.from_json(line)
        assert event.to_json() == line
        assert event.to_dict() == json.loads(line)


def test_fields() -> None:
    """The envelope is read at once, the payload is a view."""
    event = Event.from_json(LINE)
    assert (event.type, event.seq, event.time) == ("turn/start", 3, -5)
    assert event.data == TurnStart(turn=1)
    assert event.data is event.data
    assert event.data_json == b'{"turn":1,"extra":[1,1.0]}'
    assert event.surface_op is None
    assert event.source_event_seqs is None


def test_integral_floats_are_integers() -> None:
    """1.0 and 1e3 are integers where an integer is wanted, true is not."""
    event = Event.from_json(b'{"type":"a","seq":2.0,"time":1e3,"data":null}')
    assert (event.seq, event.time) == (2, 1000)
    assert type(event.seq) is int


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b'{"seq":0,"time":0,"data":1}',
        b'{"type":"a","time":0,"data":1}',
        b'{"type":"a","seq":0,"data":1}',
        b'{"type":"a","seq":0,"time":0}',
        b'{"type":1,"seq":0,"time":0,"data":1}',
        b'{"type":"a","seq":"0","time":0,"data":1}',
        b'{"type":"a","seq":true,"time":0,"data":1}',
        b'{"type":"a","seq":0.5,"time":0,"data":1}',
        b'{"type":"a","seq":-1,"time":0,"data":1}',
        b'{"type":"a","seq":9007199254740992,"time":0,"data":1}',
        b'{"type":"a","seq":0,"time":9007199254740992,"data":1}',
        b'{"type":"a","seq":0,"time":null,"data":1}',
        b'{"type":"a","seq":0,"time":0,"data":"\xff"}',
        b'{"type":"a","seq":0,"time":0,"data":1}x',
    ],
)
def test_a_broken_envelope_is_the_documented_error(line: bytes) -> None:
    """Anything else than an object with type, seq, time and data is refused."""
    with pytest.raises(InvalidEventError):
        Event.from_json(line)


def test_other_types_and_misfits_are_read_only_json() -> None:
    """Unknown types, and core types whose payload does not fit, are mappings that cannot be changed."""
    for line in (b'{"type":"my/type","seq":0,"time":0,"data":{"a":[{"b":1}]}}', b'{"type":"turn/start","seq":0,"time":0,"data":{"a":[{"b":1}]}}'):  # fmt: skip
        data = Event.from_json(line).data
        assert data == {"a": ({"b": 1},)}
        with pytest.raises(TypeError):
            data["a"] = 1  # type: ignore[index]
        with pytest.raises(TypeError):
            data["a"][0]["b"] = 1  # type: ignore[index]


def test_a_null_payload_is_a_value() -> None:
    """Data may be any JSON, null included."""
    assert Event.from_json(b'{"type":"my/type","seq":0,"time":0,"data":null}').data is None


def test_numbers_that_cannot_be_read_fail_when_read() -> None:
    """A log with -0.0 or a number past a double loads; reading the value is the error."""
    for number in (b"-0.0", b"1e999"):
        event = Event.from_json(b'{"type":"my/type","seq":0,"time":0,"data":[%b]}' % number)
        assert number in event.to_json()
        with pytest.raises(InvalidEventError):
            _ = event.data
        with pytest.raises(InvalidEventError):
            event.to_dict()


def test_big_integers_are_exact() -> None:
    """Integers past 64 bits come back as the integers that they are."""
    event = Event.from_json(b'{"type":"my/type","seq":0,"time":0,"data":{"n":123456789012345678901234567890}}')
    assert event.to_dict()["data"] == {"n": 123456789012345678901234567890}


def test_surface_fields() -> None:
    """Surface operation and sources are parsed where present, and an odd value is an error when read."""
    base = b'{"type":"user/message","seq":9,"time":0,"data":{},"surfaceOp":%b,"sourceEventSeqs":%b}'
    event = Event.from_json(base % (b'{"op":"replace","start":1,"end":2.0}', b"[1,2.0]"))
    assert event.surface_op == Replace(1, 2)
    assert event.source_event_seqs == (1, 2)
    assert Event.from_json(base % (b'"append"', b"[]")).surface_op == "append"
    for op in (b'"add"', b'{"op":"replace","start":1}', b'{"op":"replace","start":1,"end":2,"x":3}', b"null"):
        with pytest.raises(InvalidEventError):
            _ = Event.from_json(base % (op, b"[1]")).surface_op
    for seqs in (b"1", b'["1"]', b"[true]", b"[1.5]"):
        with pytest.raises(InvalidEventError):
            _ = Event.from_json(base % (b'"append"', seqs)).source_event_seqs


def test_equality_is_that_of_the_json_values() -> None:
    """Key order does not count, 1 and 1.0 and true differ."""
    a = Event.from_json(b'{"type":"a","seq":0,"time":0,"data":{"x":1,"y":2}}')
    b = Event.from_json(b'{"data":{"y":2,"x":1},"time":0,"seq":0,"type":"a"}')
    assert a == b
    assert hash(a) == hash(b)
    for other in (b"1.0", b"true", b"2"):
        assert a != Event.from_json(b'{"type":"a","seq":0,"time":0,"data":{"x":%b,"y":2}}' % other)
    assert a != Event.from_json(b'{"type":"a","seq":0,"time":0,"data":{"x":1,"y":2},"z":1}')
    assert a != a.to_dict()


def test_a_delta_equals_the_line_that_it_stands_for() -> None:
    """A member of a packed row and the same event on a line of its own are one value."""
    member = Event("assistant/chunk", 4, 5, None, DeltaKey("text-delta", 1, 2, 0), "hé\ud83d")
    line = '{"type":"assistant/chunk","seq":4,"time":5,"data":{"turn":1,"step":2,"chunk":{"type":"text-delta","index":0,"text":"hé\\ud83d"}}}'.encode()  # fmt: skip
    assert member.to_json() == line
    assert member == Event.from_json(line)
    assert isinstance(member.data, AssistantChunk)
    assert Event.from_json(line).data == member.data


def test_an_event_cannot_be_changed() -> None:
    """No attribute can be set or deleted, and copies are the event itself."""
    event = Event.from_json(LINE)
    for name in ("type", "seq", "data", "new"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(event, name, 1)
    assert copy.copy(event) is event
    assert copy.deepcopy(event) is event
    assert pickle.loads(pickle.dumps(event)) == event


def test_the_representation_keeps_contents_out() -> None:
    """What ends up in logs and tracebacks names the event, and shows nothing of it."""
    event = Event.from_json(b'{"type":"my/type","seq":0,"time":1,"data":"sk-secret"}')
    assert repr(event) == "Event(type='my/type', seq=0, time=1)"


def test_from_dict_detaches() -> None:
    """Changing the dict afterwards does not change the event."""
    data = {"n": [1]}
    event = Event.from_dict({"type": "a/b", "seq": 0, "time": 0, "data": data})
    data["n"].append(2)
    assert event.to_dict()["data"] == {"n": [1]}
    with pytest.raises(InvalidEventError):
        Event.from_dict([1])  # type: ignore[arg-type]
    with pytest.raises(InvalidEventError):
        Event.from_dict({"type": "a/b", "seq": 0, "time": 0, "data": {1, 2}})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "text", ["\u2028\u2029\u0085", "\r\x0b\x0c\x1c", "\udce4\udcbd", "".join(map(chr, range(256)))]
)
def test_no_text_breaks_a_line(text: str) -> None:
    """An event is one line whatever its text, and comes back exactly."""
    event = Event.from_dict({"type": "a/b", "seq": 0, "time": 0, "data": text})
    assert b"\n" not in event.to_json()
    assert event.data == text

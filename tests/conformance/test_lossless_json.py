"""Conformance, theme B: what is lossless JSON and what is not."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import json
import types
import uuid
from dataclasses import dataclass
from typing import Any

import pytest

from sessionstore.errors import InvalidEventError
from sessionstore.lossless import MAX_DEPTH, decode, encode, json_equal
from sessionstore.session import Session


@dataclass
class Point:
    """An object that json would not take, and msgspec would."""

    x: int = 1


class Colour(enum.Enum):
    """An enum whose members are no JSON."""

    RED = object()


class Level(enum.IntEnum):
    """An enum whose members are plain integers."""

    LOW = 3


@pytest.mark.parametrize(
    "value",
    [None, True, False, 0, 1, -1, 2**53, 10**40, 0.5, -2.5, 1e300, "", "a", "\u2028\n\x00", "\ud83d", "é", "😀"],
)
def test_every_scalar_comes_back(value: Any) -> None:
    """Null, booleans, integers of any size, finite floats and any string survive."""
    assert json_equal(decode(encode(value)), value)


@pytest.mark.parametrize(
    "value",
    [-0.0, float("nan"), float("inf"), float("-inf"), lambda: 0, object(), ..., 1j, b"x", bytearray(b"x")],
    ids=repr,
)
def test_a_scalar_without_a_json_form_is_refused(value: Any) -> None:
    """-0.0, NaN, the infinities, functions, bytes and other objects are refused, wherever they stand."""
    for place in (value, [value], {"a": value}):
        with pytest.raises(InvalidEventError):
            encode(place)


def test_containers_are_detached_recursively() -> None:
    """What was encoded does not change with the caller's objects."""
    inner = {"b": [1]}
    session = Session("s")
    event = session.append("my/event", {"a": inner, "l": [inner]})
    inner["b"].append(2)
    assert event.to_dict()["data"] == {"a": {"b": [1]}, "l": [{"b": [1]}]}


def test_a_shared_reference_is_duplicated() -> None:
    """One object in two places becomes two values; that is no cycle."""
    shared: list[int] = [1]
    value = decode(encode({"a": shared, "b": shared}))
    assert value == {"a": [1], "b": [1]}
    assert isinstance(value, dict)
    assert value["a"] is not value["b"]


@pytest.mark.parametrize(
    "value",
    [
        (1, (2, 3)),
        collections.OrderedDict(a=1),
        collections.defaultdict(int, a=1),
        type("Strange", (str,), {})("x"),
        Level.LOW,
    ],
    ids=["tuple", "OrderedDict", "defaultdict", "str subclass", "IntEnum"],
)
def test_containers_and_scalars_that_are_plain_inside_are_accepted(value: Any) -> None:
    """Tuples, dict subclasses and str or int subclasses say what their plain form says."""
    assert json.loads(encode(value)) == json.loads(json.dumps(value))


class CountingDict(dict[str, int]):
    """A dict that counts how often it is walked."""

    walks = 0

    def items(self) -> Any:
        """Count, then do what a dict does."""
        self.walks += 1
        return super().items()


def test_a_container_cannot_show_two_faces() -> None:
    """What was checked is what is stored: the payload is read once, into bytes, before anything else looks at it."""
    data = {"a": CountingDict(x=1)}
    session = Session("s")
    event = session.append("my/event", data)
    assert data["a"].walks <= 1
    data["a"]["x"] = 2
    assert event.to_dict()["data"] == {"a": {"x": 1}}


def nested(levels: int) -> Any:
    """Lists in lists."""
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def test_five_thousand_levels_work() -> None:
    """Deep nesting needs no deep stack, neither in nor out."""
    raw = encode(nested(5000))
    assert raw == b"[" * 5000 + b"0" + b"]" * 5000
    value = decode(raw)
    for _ in range(5000):
        assert isinstance(value, list)
        (value,) = value
    assert value == 0


def test_twenty_thousand_levels_are_refused() -> None:
    """The limit is a limit in both directions."""
    assert MAX_DEPTH < 20_000
    with pytest.raises(InvalidEventError, match="deeper"):
        encode(nested(20_000))
    with pytest.raises(InvalidEventError, match="deeper"):
        decode(b"[" * 20_000 + b"]" * 20_000)


@pytest.mark.parametrize(
    "value",
    [
        Point(),
        {1, 2},
        frozenset(),
        collections.deque([1]),
        range(3),
        iter([1]),
        datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        datetime.date(2026, 1, 1),
        uuid.UUID(int=1),
        decimal.Decimal(1),
        Colour.RED,
        Point,
        types.SimpleNamespace(a=1),
        memoryview(b"x"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_objects_that_are_no_json_are_refused_not_coerced(value: Any) -> None:
    """Classes, sets, dates, UUIDs, decimals, dataclasses: each is refused, with the path to it."""
    with pytest.raises(InvalidEventError) as caught:
        encode({"a": [0, value]}, what="my/event")
    assert caught.value.path == "$.a[1]"
    assert caught.value.event_type == "my/event"


@pytest.mark.parametrize("key", [1, None, True, 1.5, b"k", ("a",)], ids=repr)
def test_a_key_that_is_no_string_is_refused(key: Any) -> None:
    """No key is turned into a string silently."""
    with pytest.raises(InvalidEventError, match="key"):
        encode({"a": {key: 1}})


def test_a_cycle_is_refused() -> None:
    """A container inside itself is an error, through lists, dicts, and both."""
    a: list[Any] = []
    a.append(a)
    b: dict[str, Any] = {"x": []}
    b["x"].append(b)
    for value in (a, b):
        with pytest.raises(InvalidEventError, match="contains itself"):
            encode(value)


def test_a_key_called_proto_is_data() -> None:
    """`__proto__`, `__class__` and the like are keys as any other."""
    value = {"__proto__": {"a": 1}, "__class__": "x", "constructor": None}
    assert decode(encode(value)) == value
    assert Session("s").append("my/event", value).to_dict()["data"] == value


class Explosive(dict[str, int]):
    """A dict that cannot be read."""

    reads = 0

    def items(self) -> Any:
        """Fail, and count it."""
        Explosive.reads += 1
        raise RuntimeError("no")


def test_a_container_that_raises_while_it_is_read_changes_nothing() -> None:
    """Whatever a hostile container does, either its plain content is taken or nothing is logged."""
    session = Session("s")
    try:
        event = session.append("my/event", {"a": Explosive(x=1)})
    except (InvalidEventError, RuntimeError):
        assert session.seq == 0
    else:
        assert event.to_dict()["data"] == {"a": {"x": 1}}
    assert Explosive.reads <= 1


def test_the_error_names_type_and_path_never_the_value() -> None:
    """`$.message.content[0].meta.when` says where; the value itself stays out of messages."""
    data = {"message": {"content": [{"meta": {"when": datetime.date(2026, 1, 1)}}]}}
    with pytest.raises(InvalidEventError) as caught:
        Session("s").append("my/event", data)
    assert caught.value.path == "$.message.content[0].meta.when"
    assert "my/event" in str(caught.value)
    assert "2026" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "lossless"),
    [
        (1, True),
        ("x", True),
        (None, True),
        ([{"a": []}], True),
        ({}, True),
        (object(), False),
        ([{1}], False),
        ({"a": float("nan")}, False),
    ],
    ids=repr,
)
def test_encode_tells_lossless_from_lossy(value: Any, lossless: bool) -> None:
    """The check is usable by itself: encode returns bytes, or raises, and nothing else."""
    try:
        encode(value)
    except InvalidEventError:
        assert not lossless
    else:
        assert lossless


def test_integers_of_up_to_4300_digits() -> None:
    """Python's own limit is the limit of the log, both ways."""
    most = 10**4299
    assert decode(encode(most)) == most
    with pytest.raises(InvalidEventError, match="4300"):
        encode(most * 10)

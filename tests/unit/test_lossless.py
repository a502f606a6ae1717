"""What may enter a log, and that it comes back as it went in."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore.errors import InvalidEventError
from sessionstore.lossless import MAX_DEPTH, Json, decode, encode, freeze, json_equal

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: str(x) != "-0.0")
TEXT = st.text(st.characters(exclude_categories=()))  # surrogates included
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)


def joined(value: Json) -> Json:
    """The value with every surrogate pair the character that it means."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    if isinstance(value, list):
        return [joined(v) for v in value]
    if isinstance(value, dict):
        return {str(joined(k)): joined(v) for k, v in value.items()}
    return value


@given(VALUES)
def test_what_is_encoded_comes_back_as_the_same_value(value: Json) -> None:
    """Encoding and decoding is the identity on every accepted value, types of numbers included."""
    assert json_equal(decode(encode(value)), joined(value))


@given(VALUES)
def test_one_value_is_one_line(value: Json) -> None:
    """No newline, no raw control character and no invalid UTF-8 ever stands in the text."""
    raw = encode(value)
    raw.decode()
    assert not any(byte < 0x20 for byte in raw)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("\ud83d", rb'"\ud83d"'),
        ("\udc00a", rb'"\udc00a"'),
        ("\ud83d\ude00", '"😀"'.encode()),
        ("\u2028\u2029\u0085\x7f/é", '"\u2028\u2029\u0085\x7f/é"'.encode()),
        ("\x00\x08\x0c\n\r\t\x1f", rb'"\u0000\b\f\n\r\t\u001f"'),
        ({"__proto__": 1}, b'{"__proto__":1}'),
        (1.0, b"1.0"),
        (True, b"true"),
        (2**70, b"1180591620717411303424"),
        ((1, (2,)), b"[1,[2]]"),
        (OrderedDict(b=1, a=2), b'{"b":1,"a":2}'),
    ],
)
def test_the_text_is_exact(value: object, text: bytes) -> None:
    """Surrogates are escaped in lower case, everything else is unescaped UTF-8 with compact separators."""
    assert encode(value) == text


class Plain(enum.Enum):
    """An enum whose members are no JSON values."""

    A = "a"


class Text(enum.StrEnum):
    """An enum whose members are plain strings."""

    A = "a"


@dataclasses.dataclass
class Data:
    """What a serialiser would silently turn into an object."""

    a: int = 1


CYCLE: list[object] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    "bad",
    [
        float("nan"),
        float("inf"),
        float("-inf"),
        -0.0,
        b"bytes",
        bytearray(b"x"),
        {1, 2},
        frozenset(),
        dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        dt.timedelta(1),
        decimal.Decimal("1.5"),
        decimal.Decimal("NaN"),
        uuid.UUID(int=0),
        Fraction(1, 2),
        Plain.A,
        Data(),
        object(),
        len,
        1j,
        CYCLE,
        10**5000,
        range(3),
    ],
    ids=lambda bad: type(bad).__name__,
)
def test_values_that_json_would_change_are_refused_with_their_path(bad: object) -> None:
    """Each refused value is refused at the top and deep inside, and the error says where."""
    for value, path in ((bad, "$"), ({"message": {"content": [{"meta": {"when": bad}}]}}, "$.message.content[0]")):
        with pytest.raises(InvalidEventError) as error:
            encode(value, what="tool/result")
        assert error.value.path is not None
        assert error.value.path.startswith(path)
        assert error.value.event_type == "tool/result"


@pytest.mark.parametrize("key", [1, None, 1.5, True, b"k", (1,)])
def test_keys_are_strings(key: object) -> None:
    """A key that is no string is refused instead of turned into one."""
    with pytest.raises(InvalidEventError, match="key"):
        encode({"a": {key: 1}})


def test_string_subclasses_and_string_enums_are_their_text() -> None:
    """An enum member that is a string is written as that string."""
    assert encode({"a": Text.A, Text.A: 1}) == b'{"a":1}'
    assert encode([Text.A]) == b'["a"]'


def nested(levels: int) -> list[object]:
    """Lists inside each other, *levels* of them."""
    value: list[object] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize("levels", [900, 5_000, MAX_DEPTH])
def test_deep_values_are_read_back(levels: int) -> None:
    """Nesting far beyond the interpreter's stack is accepted, and comes back."""
    raw = encode(nested(levels))
    assert raw == b"[" * levels + b"]" * levels
    assert encode(decode(raw)) == raw


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 20_000])
def test_nesting_has_a_limit(levels: int) -> None:
    """Deeper values are refused on the way in, and a text that deep on the way out."""
    with pytest.raises(InvalidEventError, match="nested"):
        encode(nested(levels))
    with pytest.raises(InvalidEventError, match="nested"):
        decode(b"[" * (levels + 1) + b"]" * (levels + 1))


def test_shared_references_are_no_cycle() -> None:
    """One object in two places is written twice."""
    shared = {"a": 1}
    assert encode([shared, (shared, shared)]) == b'[{"a":1},[{"a":1},{"a":1}]]'


@pytest.mark.parametrize(
    "raw",
    [b"", b"nul", b"NaN", b"Infinity", b"-0.0", b"-0e1", b"1e400", b"[1,]", b"{,}", b'{"a"}', b"01", b"1.", b"+1", b"[1 2]",
     b'"\x01"', b'"\xff"', b"1 2", b"[", b'{"a":1', b"1" * 5000, b"\xef\xbb\xbf1", b"[-0.0]", b'["\\ud800",]', b'{1:"\\ud800"}'],
)  # fmt: skip
def test_what_is_not_json_or_not_exact_is_refused(raw: bytes) -> None:
    """Text that is not JSON, or holds a number that would change, raises the documented error."""
    with pytest.raises(InvalidEventError):
        decode(raw)


@given(st.binary())
def test_any_bytes_give_a_value_or_the_documented_error(raw: bytes) -> None:
    """Nothing but InvalidEventError comes out of the reader."""
    with contextlib.suppress(InvalidEventError):
        decode(raw)


@given(VALUES)
def test_the_careful_reader_reads_the_same(value: Json) -> None:
    """A lone surrogate beside it, which sends the text to the careful reader, changes nothing about a value."""
    text = encode(value)
    assert json_equal(decode(b'[ %b , "\\ud800" ]' % text), [joined(value), "\ud800"])


def test_duplicate_keys_and_spaces() -> None:
    """The last of two equal keys wins, in both readers."""
    assert decode(b'{"a":1,"a":2}') == {"a": 2}
    assert decode(b' { "a" : 1 , "a" : "\\udc00" } ') == {"a": "\udc00"}


@given(VALUES)
def test_frozen_values_are_equal_and_cannot_be_changed(value: Json) -> None:
    """A frozen value is the same value, without a mutable container in it."""
    frozen = freeze(value)
    assert json_equal(frozen, value)
    todo = [frozen]
    while todo:
        item = todo.pop()
        assert not isinstance(item, (dict, list))
        if isinstance(item, tuple):
            todo.extend(item)
        elif isinstance(item, Mapping):
            todo.extend(item.values())


@pytest.mark.parametrize(
    ("a", "b"), [(1, 1.0), (1, True), (0, False), ([1], [True]), ({"a": 1}, {"a": 1.0}), (None, 0)]
)
def test_equality_tells_types_apart(a: Json, b: Json) -> None:
    """1, 1.0 and true are three values."""
    assert not json_equal(a, b)
    assert json_equal(a, a)


def test_equality_ignores_key_order() -> None:
    """Objects are equal whatever the order of their keys."""
    assert json_equal({"a": 1, "b": [2]}, {"b": (2,), "a": 1})


def test_errors_never_show_contents() -> None:
    """Neither values nor odd keys appear in a message."""
    secret = "sk-very-secret"
    for value in ({secret + " key": object()}, {"a": {secret, "b"}}, [secret, float("nan")]):
        with pytest.raises(InvalidEventError) as error:
            encode(value)
        assert secret not in str(error.value)

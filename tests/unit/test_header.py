"""Headers: what they hold, what is refused, and that their bytes go out as they came."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore.errors import InvalidEventError, UnsupportedFormatError
from sessionstore.header import Header, check_header_id, child_header, make_header, parse_header
from sessionstore.lossless import MAX_SAFE, decode, encode
from tests.paths import NO_REAL_LOGS, REAL_LOGS

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAIN = b'{"type":"session","version":0,"id":"s","createdAt":5,"cwd":"/w","delegationDepth":0}'

counts = st.integers(0, MAX_SAFE)
anything = st.characters(exclude_categories=())  # lone surrogates included
names = st.text(anything, min_size=1)
paths = st.one_of(
    st.text().map("/{}".format), st.text().map("C:\\{}".format), st.text().map("z:/{}".format), st.just("\\\\host\\dir")
)
metadata = st.fixed_dictionaries(
    {"created_at": counts},
    optional={
        "cwd": paths,
        "parent_session": names,
        "seed_length": counts,
        "origin": st.just("subagent"),
        "delegation_depth": counts,
        "agent_preset": names,
    },
)


def line(**changes: object) -> bytes:
    """A header line with some values changed; ``...`` takes a key out."""
    value = {"type": "session", "version": 0, "id": "s", "createdAt": 5, "delegationDepth": 0} | changes
    return encode({key: item for key, item in value.items() if item is not ...})


def raw_line(key: str, text: str) -> bytes:
    """A header line whose ``key`` is spelled exactly ``text``."""
    return line(**{key: "?"}).replace(b'"?"', text.encode("utf-8", "surrogatepass"))


# --- headers made here


@given(names, metadata)
def test_what_is_made_is_written_and_read_back(id: str, values: Mapping[str, Any]) -> None:
    """A made header and its parsed line are equal, hash alike, and write the same bytes."""
    made = make_header(id, **values)
    parsed = parse_header(made.to_json())
    assert parsed == made
    assert hash(parsed) == hash(made)
    assert parsed.to_json() == made.to_json()
    assert parsed.to_dict() == made.to_dict()
    assert not parsed.extra


@given(names, metadata)
def test_pickle_and_copy_keep_a_header(id: str, values: Mapping[str, Any]) -> None:
    """A header survives pickling and copying, bytes included."""
    header = parse_header(make_header(id, **values).to_json() + b" ")
    for twin in (pickle.loads(pickle.dumps(header)), copy.copy(header), copy.deepcopy(header)):
        assert twin == header
        assert twin.to_json() == header.to_json()


def test_a_made_header_is_written_in_the_order_of_the_format() -> None:
    """The keys stand in the fixed order."""
    full = make_header(
        "s",
        created_at=1,
        cwd="/w",
        parent_session="p",
        seed_length=2,
        origin="subagent",
        delegation_depth=3,
        agent_preset="a",
    )
    assert full.to_json() == (
        b'{"type":"session","version":0,"id":"s","createdAt":1,"cwd":"/w","parentSession":"p","seedLength":2,'
        b'"origin":"subagent","delegationDepth":3,"agentPreset":"a"}'
    )


def test_absent_optionals_are_left_out_and_the_depth_is_always_written() -> None:
    """A minimal header has four values and its type."""
    assert make_header("s", created_at=0).to_json() == (
        b'{"type":"session","version":0,"id":"s","createdAt":0,"delegationDepth":0}'
    )


def test_a_header_cannot_be_changed() -> None:
    """Assigning to a field raises."""
    header = make_header("s", created_at=1)
    with pytest.raises(AttributeError):
        header.cwd = "/elsewhere"  # type: ignore[misc]


def test_the_dict_is_fresh() -> None:
    """Changing the dict that a header gave does not change the header."""
    header = parse_header(line(later={"a": [1]}))
    header.to_dict()["id"] = "other"
    header.to_dict()["later"]["a"].append(2)  # type: ignore[index,call-overload,union-attr]
    assert header.to_dict()["id"] == "s"
    assert header.to_dict()["later"] == {"a": [1]}


def test_integral_floats_are_the_integers_they_spell() -> None:
    """A time of 5.0 is written as 5."""
    assert make_header("s", created_at=5.0) == make_header("s", created_at=5)  # type: ignore[arg-type]
    assert b'"createdAt":5,' in make_header("s", created_at=5.0).to_json()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "key", "value"),
    [
        (field, key, value)
        for field, key in [
            ("created_at", "createdAt"),
            ("seed_length", "seedLength"),
            ("delegation_depth", "delegationDepth"),
        ]
        for value in (-1, 0.5, -0.0, MAX_SAFE + 1, True, "1", float("nan"), float("inf"), [1])
    ]
    + [
        (field, key, value)
        for field, key in [
            ("id", "id"),
            ("cwd", "cwd"),
            ("parent_session", "parentSession"),
            ("origin", "origin"),
            ("agent_preset", "agentPreset"),
        ]
        for value in ("", 7, True, b"bytes", ["/w"], {"a": 1})
    ]
    + [("created_at", "createdAt", None), ("id", "id", None), ("delegation_depth", "delegationDepth", None)]
    + [("cwd", "cwd", value) for value in ("w", "./w", "../w", "~/w", "C:", "C:w", "\\w", "file:///w", " /w")]
    + [("origin", "origin", "user")],
)
def test_a_bad_value_is_refused_with_its_path(field: str, key: str, value: object) -> None:
    """make_header names the value that it refuses, by its name on disk."""
    values: dict[str, Any] = {"id": "s", "created_at": 1} | {field: value}
    with pytest.raises(InvalidEventError) as caught:
        make_header(values.pop("id"), **values)
    assert caught.value.path == f"$.{key}"


def test_the_constructor_checks_too() -> None:
    """No header exists that breaks the rules, however it was made."""
    with pytest.raises(InvalidEventError, match="absolute"):
        Header(id="s", created_at=1, cwd="relative")
    with pytest.raises(UnsupportedFormatError):
        Header(id="s", created_at=1, version=1)
    with pytest.raises(InvalidEventError, match="2\\*\\*53"):
        msgspec.structs.replace(make_header("s", created_at=1), created_at=-1)


def test_a_loaded_header_cannot_be_replaced_behind_its_text() -> None:
    """A changed field would contradict the bytes that go out."""
    with pytest.raises(InvalidEventError, match="make_header"):
        msgspec.structs.replace(parse_header(PLAIN), cwd="/elsewhere")
    assert msgspec.structs.replace(make_header("s", created_at=1), cwd="/elsewhere").cwd == "/elsewhere"


def test_a_long_value_is_cut_in_the_message() -> None:
    """An error message stays short and the whole value is not in it."""
    with pytest.raises(InvalidEventError) as caught:
        make_header("s", created_at=1, cwd="x" * 5000)
    assert len(str(caught.value)) < 200


# --- headers read from a log


@pytest.mark.parametrize(
    "text",
    [
        b'{"id":"s","version":0,"createdAt":5,"type":"session"}',
        b' { "type" : "session", "version":0,"id":"s","createdAt":5e0,"delegationDepth":0.0 } ',
        b'{"type":"session","version":0.0,"id":"\\u0073","createdAt":5.0,"delegationDepth":0}\r',
        b'{"type":"session","version":0,"id":"x","id":"s","createdAt":5}',
    ],
)
def test_loaded_bytes_go_out_as_they_came(text: bytes) -> None:
    """Key order, spaces, number spelling and a missing depth do not matter for the value and are kept in the bytes."""
    header = parse_header(text)
    assert header == make_header("s", created_at=5)
    assert header.to_json() == text
    assert type(header.created_at) is int
    assert header.delegation_depth == 0


def test_unknown_keys_are_kept_and_readable() -> None:
    """What a newer writer put into a header is there, read-only, in the bytes and the dict."""
    text = line(later={"a": [1, {"b": None}]}, __proto__=1.0)
    header = parse_header(text)
    assert header.to_json() == text
    assert header.extra == {"later": {"a": (1, {"b": None})}, "__proto__": 1.0}
    assert header.to_dict() == decode(text)
    with pytest.raises(TypeError):
        header.extra["later"] = 1  # type: ignore[index]


def test_unknown_keys_count_in_equality() -> None:
    """Headers differ when their unknown keys do, by JSON value, and not by key order."""
    one = parse_header(line(a=1, b={"x": 1, "y": 2}))
    same = parse_header(line(b={"y": 2, "x": 1}, a=1))
    assert one == same
    assert not one != same  # noqa: SIM202 - the other operator is what is tried
    assert hash(one) == hash(same)
    others: list[object] = [parse_header(line(a=1.0, b={"x": 1, "y": 2})), parse_header(line()), one.to_dict(), None]
    for other in others:
        assert one != other
        assert not one == other  # noqa: SIM201 - the other operator is what is tried


def test_a_windows_path_is_absolute_everywhere() -> None:
    """Logs travel: a drive or a share is as good as a slash."""
    for cwd in ("C:\\work\\agent", "d:/x", "\\\\server\\share", "/"):
        assert parse_header(line(cwd=cwd)).cwd == cwd


def test_a_lone_surrogate_in_an_id_is_kept() -> None:
    """An id that is not well-formed Unicode stays distinct."""
    header = parse_header(line(id="a\ud83d"))
    assert header.id == "a\ud83d"
    assert b"\\ud83d" in make_header("a\ud83d", created_at=1).to_json()


def test_an_unknown_origin_is_carried_when_loaded() -> None:
    """A newer origin in a log costs nothing, although none can be made here."""
    assert parse_header(line(origin="workflow")).origin == "workflow"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (key, text)
        for key in ("createdAt", "seedLength", "delegationDepth")
        for text in ("-0", "-1", "0.5", "9007199254740992", "1e16", "1e300", "true", "null", '"1"', "[1]", "{}")
    ]
    + [
        (key, text)
        for key in ("id", "cwd", "parentSession", "origin", "agentPreset")
        for text in ("null", "1", "true", '""', '["a"]')
    ]
    + [("cwd", '"relative"'), ("cwd", '"C:x"')],
)
def test_a_bad_value_in_a_log_is_refused_with_its_path(key: str, text: str) -> None:
    """parse_header names the value that it refuses."""
    with pytest.raises(InvalidEventError) as caught:
        parse_header(raw_line(key, text))
    assert caught.value.path == f"$.{key}"


@pytest.mark.parametrize("text", ["-0.0", "-0e5", "1e999", "NaN"])
def test_a_number_that_cannot_be_read_is_refused(text: str) -> None:
    """A header with a number that loses on reading is no header."""
    with pytest.raises(InvalidEventError):
        parse_header(raw_line("createdAt", text))


def test_a_negative_zero_in_an_unknown_key_is_no_concern() -> None:
    """Only the values that this version reads are judged."""
    text = raw_line("later", '{"createdAt":-0}')
    assert parse_header(text).to_json() == text
    deep = raw_line("later", "[" * 5000 + "-0" + "]" * 5000)
    assert parse_header(deep).to_json() == deep


@pytest.mark.parametrize("key", ["id", "createdAt"])
def test_a_missing_value_is_refused_with_its_path(key: str) -> None:
    """An id and a time belong into every header."""
    with pytest.raises(InvalidEventError, match="missing") as caught:
        parse_header(line(**{key: ...}))
    assert caught.value.path == f"$.{key}"


@pytest.mark.parametrize(
    ("text", "direction"),
    [("1", "newer"), ("3", "newer"), ("3.0", "newer"), ("1e20", "newer"), ("-1", "older"), ("-1.0", "older")],
)
def test_another_version_is_unsupported_and_says_which_way(text: str, direction: str) -> None:
    """A foreign version is refused as such, and a newer one asks for an upgrade."""
    with pytest.raises(UnsupportedFormatError) as caught:
        parse_header(raw_line("version", text))
    assert caught.value.direction == direction
    assert caught.value.session_id == "s"
    assert ("written by a newer version: upgrade" in str(caught.value)) == (direction == "newer")


@pytest.mark.parametrize("text", ['"3"', '"0"', "null", "true", "0.5", "-0", "[0]", "{}"])
def test_a_version_that_is_no_number_is_said_to_be_none(text: str) -> None:
    """Nobody is asked to upgrade for a version that no program is known to write; the log is unsupported all the same."""
    with pytest.raises(UnsupportedFormatError, match="not a whole number") as caught:
        parse_header(raw_line("version", text))
    assert caught.value.direction == "newer"
    assert caught.value.session_id == "s"
    assert "upgrade" not in str(caught.value)


def test_a_header_without_a_version_is_unsupported() -> None:
    """A header that names no version is intact, and not ours to read."""
    with pytest.raises(UnsupportedFormatError) as caught:
        parse_header(line(version=...))
    assert caught.value.direction == "older"


def test_the_version_comes_before_everything_else() -> None:
    """Nothing of a future header is judged, not even its type."""
    for text in (
        b'{"version":7}',
        b'{"type":"log","version":7,"id":9,"cwd":"here"}',
        line(version=7, createdAt=-1, sandboxMode="x", id=...),
    ):
        with pytest.raises(UnsupportedFormatError, match="format version 7") as caught:
            parse_header(text)
        assert caught.value.direction == "newer"


@pytest.mark.parametrize("key", ["sandboxMode", "approvalPolicy"])
def test_a_retired_key_is_unsupported(key: str) -> None:
    """The two old keys make a header of a retired form, whatever else is wrong with it."""
    with pytest.raises(UnsupportedFormatError, match=key) as caught:
        parse_header(line(**{key: None, "createdAt": -1}))
    assert caught.value.direction == "retired"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b'"session"',
        b"0",
        b"{",
        PLAIN[:-5],
        b"\xef\xbb\xbf" + PLAIN,
        PLAIN.replace(b"/w", b"/\xff"),
        b"\0" * 40,
        b"{}",
        b'{"type":"turn/start","seq":0,"time":0,"data":{"turn":1}}',
        b'{"type":"turn/start","seq":0,"time":0,"data":{},"version":3}',
        b'{"type":"log","version":0,"id":"s","createdAt":5}',
    ],
)
def test_what_is_no_header_is_damage_and_not_another_version(text: bytes) -> None:
    """A torn line, another record or another kind of value is refused as invalid."""
    with pytest.raises(InvalidEventError):
        parse_header(text)


@given(st.binary(max_size=60) | st.text(anything).map(lambda text: raw_line("id", text)))
def test_any_line_gives_a_header_or_a_documented_error(text: bytes) -> None:
    """No other exception comes out of parse_header."""
    try:
        header = parse_header(text)
    except (InvalidEventError, UnsupportedFormatError):
        return
    assert header.to_json() == text


# --- ids and forks


def test_an_id_that_does_not_match_is_refused() -> None:
    """A header found under another session's name is not used."""
    header = make_header("s", created_at=1)
    check_header_id(header, "s")
    with pytest.raises(InvalidEventError, match="names session 's'") as caught:
        check_header_id(header, "t")
    assert caught.value.session_id == "t"


def test_a_child_inherits_directory_and_depth() -> None:
    """A fork is a sibling of its parent: same place, same depth, its own origin."""
    parent = make_header("p", created_at=1, cwd="/w", delegation_depth=2, origin="subagent", agent_preset="a")
    child = child_header(parent, "c", created_at=9, seed_length=4)
    assert child == make_header("c", created_at=9, cwd="/w", parent_session="p", seed_length=4, delegation_depth=2)


def test_a_child_of_a_loaded_header_is_written_fresh() -> None:
    """Unknown keys describe the parent and are not inherited."""
    child = child_header(parse_header(line(later=1, cwd="/w")), "c", created_at=9, seed_length=0)
    assert child.to_json() == (
        b'{"type":"session","version":0,"id":"c","createdAt":9,"cwd":"/w","parentSession":"s","seedLength":0,'
        b'"delegationDepth":0}'
    )
    with pytest.raises(InvalidEventError):
        child_header(make_header("p", created_at=1), "c", created_at=9, seed_length=-1)


def test_the_representation_is_short() -> None:
    """A loaded header shows its values once and its absent ones not at all."""
    assert repr(parse_header(PLAIN)) == "Header(version=0, id='s', created_at=5, cwd='/w', delegation_depth=0)"


@pytest.mark.skipif(not REAL_LOGS.is_dir(), reason=NO_REAL_LOGS)
def test_real_headers_go_out_as_they_came() -> None:
    """Every header of a real log loads with its bytes, or names no version and is unsupported."""
    read = 0
    for path in sorted(REAL_LOGS.glob("*/*.jsonl")):
        text = path.read_bytes().split(b"\n", 1)[0]
        if b'"version"' not in text:
            with pytest.raises(UnsupportedFormatError):
                parse_header(text)
            continue
        header = parse_header(text)
        assert header.to_json() == text
        made = Header(**{field: getattr(header, field) for field in Header.__struct_fields__ if field != "text"})
        assert made == header or header.extra
        assert b'"delegationDepth"' not in text or header.extra or made.to_json() == text
        read += 1
    assert read > 100

"""The quick looks of a list at a header and at a tail say what the careful ones say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sessionstore.backends.jsonl.heads import _careful_head, _plain_head
from sessionstore.backends.jsonl.tails import _judge, _plain_time
from tests.recovery import logs

HEADER = logs.header()[:-1]
NUMBERS: st.SearchStrategy[Any] = st.sampled_from([0, 1, -1, 2**53 - 1, 2**53, 1.5, True, None, "1", [], {}])
TEXTS: st.SearchStrategy[Any] = st.sampled_from(
    ["", "x", "/x", "C:\\x", "\\\\h", "x/y", "é", "\ud800", None, 1, "subagent"]
)
KEYS = {
    "type": st.sampled_from(["session", "event", None]),
    "version": NUMBERS,
    "id": TEXTS,
    "createdAt": NUMBERS,
    "cwd": TEXTS,
    "parentSession": TEXTS,
    "seedLength": NUMBERS,
    "origin": TEXTS,
    "delegationDepth": NUMBERS,
    "agentPreset": TEXTS,
    "sandboxMode": TEXTS,
    "future": NUMBERS,
}


@st.composite
def header_lines(draw: st.DrawFn) -> bytes:
    """Header lines with any values, keys left out and keys added, and bytes that were changed."""
    header: dict[str, Any] = json.loads(HEADER)
    for key in draw(st.lists(st.sampled_from(sorted(KEYS)), max_size=3)):
        header[key] = draw(KEYS[key])
    for key in draw(st.lists(st.sampled_from(sorted(header)), max_size=1)):
        del header[key]
    line = json.dumps(header, separators=draw(st.sampled_from([(",", ":"), (", ", ": ")]))).encode()
    at, junk = draw(st.integers(0, len(line))), draw(st.sampled_from([b"", b"", b"\0", b"\xff", b" ", b'"', b"-"]))
    return line[:at] + junk + line[at:]


@pytest.mark.slow
@given(line=header_lines())
@example(line=HEADER)
@example(line=HEADER.replace(b'"createdAt":', b'"createdAt":-0,"createdAt":'))
@example(line=HEADER.replace(b'"delegationDepth":0', b'"delegationDepth": -0'))
@example(line=HEADER.replace(b'"s1"', b'"s-0"'))
@example(line=HEADER.replace(b"/srv/project", b"srv"))
def test_a_quick_look_at_a_header_is_right_or_none(line: bytes) -> None:
    """What the quick reader takes, the careful one takes and says the same of."""
    quick = _plain_head(line)
    assert quick is None or quick == _careful_head(line)


def test_the_quick_look_takes_our_own_headers() -> None:
    """A header as we write it does not need the careful reader, whatever its id looks like."""
    for line in (HEADER, HEADER.replace(b'"s1"', b'"0198-0af0-00"'), HEADER.replace(b'"s1"', b'"\xc3\xa9"')):
        assert _plain_head(line) is not None


LINES = [
    logs.turn_start(0),
    logs.user(1),
    logs.row(2, ["a", "b", "c"]),
    logs.event("my/x", 5, {"text": "\\u0041 \u00e9"}),
    logs.turn_end(6),
    logs.turn_start(7),
]


@pytest.mark.slow
@given(
    lines=st.lists(st.sampled_from([*LINES, b"\n", b"{}\n", b"#\n", b"\0\n", LINES[0].replace(b"}\n", b"}\r\n")])),
    start=st.integers(0, 6),
    rest=st.sampled_from([b"", b"x", b"\0"]),
    expected=st.sampled_from([None, 0]),
)
@example(lines=[], start=0, rest=b"", expected=0)
@example(lines=[], start=5, rest=b"", expected=None)
def test_a_quick_look_at_a_tail_is_right_or_none(
    lines: list[bytes], start: int, rest: bytes, expected: int | None
) -> None:
    """Where the quick reader gives the time of the last event, the careful one gives it too and sees no damage."""
    text = b"".join([*LINES[start:], *lines]) + rest
    quick = _plain_time(text, expected)
    careful = _judge(text, expected)
    assert quick is None or (quick, None) == (careful.time, careful.damage)


def test_the_quick_look_takes_our_own_lines() -> None:
    """Lines as we write them, packed rows among them, do not need the careful reader; one line alone does."""
    text = b"".join(LINES)
    assert _plain_time(text, 0) == _plain_time(text, None) == _judge(text, 0).time
    assert _plain_time(b"".join(LINES[4:]), None) is not None
    assert _plain_time(LINES[-1], None) is None
    assert _plain_time(b"", 0) is None

"""The fast ways agree with the slow, obvious ones: what they take is right, and what they do not is left to the others."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sessionstore.chunks import parse_row
from sessionstore.errors import InvalidEventError
from sessionstore.measure import measure_row
from sessionstore.recovery.fast import _good_sources, _is_range
from tests.recovery import logs

TEXTS = st.text(st.sampled_from('a," \\/[]{}:\n\té\u2028\U0001f600')) | st.text()
ITEMS = TEXTS | st.sampled_from([None, 1, True, [], ["a"], {"a": "b"}, 0.5])
GAPS = st.integers(0, 12) | st.sampled_from(
    [-1, 2**31 - 1, 2**31, 10**9, 10**10, 2**53, 0.0, 1.5, "1", None, [1], True]
)


@st.composite
def rows(draw: st.DrawFn) -> bytes:
    """Rows whose members, gaps and spelling are anything that JSON allows, and some that it does not."""
    row = json.loads(logs.row(draw(st.integers(0, 3)), ["x"]))
    data = row["data"]
    data["texts"] = draw(st.lists(TEXTS, max_size=6) | st.lists(ITEMS, max_size=6))
    data["dt"] = draw(st.lists(st.integers(0, 12), max_size=6) | st.lists(GAPS, max_size=6))
    if draw(st.booleans()):
        data["dt"] = [0] * max(0, len(data["texts"]) - 1)
    ascii_only, separators = draw(st.booleans()), draw(st.sampled_from([(",", ":"), (" ,", ": ")]))
    line = json.dumps(row, ensure_ascii=ascii_only, separators=separators).encode("utf-8", "surrogatepass")
    at, junk = (
        draw(st.integers(0, len(line))),
        draw(st.sampled_from([b"", b"", b"", b"\\", b'"', b",", b"\0", b"\xff"])),
    )
    return line[:at] + junk + line[at:]


def texts_row(texts: bytes, dt: bytes = b"[0]") -> bytes:
    """A row with these texts and gaps, as bytes."""
    return b'{"type":"text-chunks","seq0":0,"time0":0,"data":{"turn":1,"step":1,"index":0,"dt":%b,"texts":%b}}' % (
        dt,
        texts,
    )


@pytest.mark.slow
@given(line=rows())
@example(line=texts_row(rb'[",",1,"y"]', b"[0,0]"))
@example(line=texts_row(rb'[",","y"]'))
@example(line=texts_row(rb'["\\",1,"\\"]', b"[0,0]"))
@example(line=texts_row(rb'["\\\"",",\""]'))
@example(line=texts_row(rb'["a",["b"]]'))
@example(line=texts_row(rb'["\ud800","b"]'))
@example(line=texts_row(b'["\xed\xa0\x80","b"]'))
@example(line=texts_row(b'["a","b"]', b"[[0]]"))
@example(line=texts_row(b'["a"]', b"[]"))
@example(line=texts_row(b'["a"]', b"[ ]"))
def test_measuring_a_row_is_reading_it(line: bytes) -> None:
    """The measure of a line is that of the row that it is, and there is none where the line is no row."""
    try:
        line.decode()
        row = parse_row(line)
    except (InvalidEventError, UnicodeDecodeError):
        with pytest.raises((InvalidEventError, UnicodeDecodeError)):
            measure_row(line)
    else:
        assert measure_row(line) == (row.seq0, len(row))


NUMBERS = st.integers(0, 5000) | st.sampled_from([-1, 999, 1000, 1001, 2**53, 2**70])


@st.composite
def cited(draw: st.DrawFn) -> list[int]:
    """Ranges, and ranges with a number changed, doubled or left out, and any numbers."""
    first, count = draw(st.integers(0, 3000)), draw(st.integers(0, 1200))
    seqs = list(range(first, first + count))
    if draw(st.booleans()) and seqs:
        seqs[draw(st.integers(0, len(seqs) - 1))] = draw(NUMBERS)
    if draw(st.booleans()):
        seqs = draw(st.lists(NUMBERS, max_size=5))
    return seqs


@pytest.mark.slow
@given(seqs=cited(), seq=st.integers(0, 5000), spaced=st.booleans())
@example(seqs=[1000, 1000], seq=2000, spaced=False)
@example(seqs=[1000, 1001], seq=1001, spaced=False)
@example(seqs=[999, 1000], seq=2000, spaced=False)
def test_cited_seqs_are_good_if_they_are_different_and_earlier(seqs: list[int], seq: int, spaced: bool) -> None:
    """The text of the citation is judged as its numbers would be; an odd spelling may be left to the careful way."""
    text = json.dumps(seqs, separators=(", " if spaced else ",", ":")).encode()
    good = bool(seqs) and len(set(seqs)) == len(seqs) and all(0 <= each < seq for each in seqs)
    assert _good_sources(text, seq) == good


@pytest.mark.parametrize(("first", "count"), [(1000, 1), (1999, 2), (9_998, 5), (123_456, 2500)])
def test_the_text_of_a_range(first: int, count: int) -> None:
    """Ranges within a block, over its end, over a new digit and over several blocks; and no other text is one."""
    text = json.dumps(list(range(first, first + count)), separators=(",", ":")).encode()
    assert _is_range(text, first, first + count)
    for at in {0, 1, len(text) // 2, len(text) - 2} - {0}:
        assert not _is_range(text[:at] + b"x" + text[at + 1 :], first, first + count)
        assert not _is_range(text[:at] + text[at + 1 :], first, first + count)
    assert not _is_range(text + b" ", first, first + count)

"""Numbers as people read them."""

from __future__ import annotations

from datetime import UTC

import pytest

from sessionstore.transcript.units import clock, duration, moment, plural, size, tokens


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "-"), (0, "0 ms"), (999, "999 ms"), (1000, "1.0 s"), (59_949, "59.9 s"), (60_000, "1 min 00 s"),
        (3_599_999, "59 min 59 s"), (3_600_000, "1 h 00 min"), (172_799_000, "47 h 59 min"), (172_800_000, "2 d 00 h"),
    ],
)  # fmt: skip
def test_durations(ms: int | None, text: str) -> None:
    """The unit that fits, two units from a minute on."""
    assert duration(ms) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (27_664_820, "27.7 MB"), (99_949, "99.9 kB"), (99_960, "100 kB"),
        (999_499, "999 kB"), (999_500, "1.0 MB"), (5 * 10**12, "5.0 TB"), (5 * 10**15, "5000 TB"),
    ],
)  # fmt: skip
def test_sizes(count: int, text: str) -> None:
    """Three figures and a unit; rounding never gives 1000 of one."""
    assert size(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (999_949, "999.9k"), (999_950, "1.0M"), (12_345_678, "12.3M")],
)
def test_tokens(count: int, text: str) -> None:
    """Short above a thousand."""
    assert tokens(count) == text


def test_times_outside_the_calendar_are_shown_as_numbers() -> None:
    """Any safe integer is a legal time."""
    assert moment(0, UTC) == "1970-01-01 00:00:00"
    assert moment(-1000, UTC) == "1969-12-31 23:59:59"
    assert moment(None) == "-"
    assert moment(2**53 - 1, UTC) == f"{2**53 - 1} ms"
    assert clock(2**53 - 1, UTC) == f"{2**53 - 1} ms"
    assert clock(61_000, UTC) == "00:01:01"


def test_plurals() -> None:
    """One turn, two turns."""
    assert plural(1, "turn") == "1 turn"
    assert plural(2, "turn") == "2 turns"
    assert plural(2, "entry", "entries") == "2 entries"
    assert plural(12_345, "event") == "12\u2009345 events"

"""Logs that the reference implementation recorded: read, judged as its manifest says, and given back byte for byte."""

from __future__ import annotations

import csv
import random
from typing import TYPE_CHECKING

import pytest

from sessionstore.chunks import pack_chunk_runs
from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.scan import scan_log
from tests.paths import NO_REAL_LOGS, REAL_LOGS
from tests.recovery.test_fixtures import check_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not REAL_LOGS.is_dir(), reason=NO_REAL_LOGS)


def manifest() -> list[dict[str, str]]:
    """One row per log; empty where the logs are not there."""
    if not REAL_LOGS.is_dir():
        return []
    with (REAL_LOGS / "manifest.tsv").open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


ROWS = manifest()
SOUND = [row for row in ROWS if row["sound"] == "yes"]
OTHERS = [row for row in ROWS if row["sound"] != "yes"]


def name(row: dict[str, str]) -> str:
    """The row's file, as the name of its test."""
    return row["file"]


@pytest.mark.parametrize("row", SOUND, ids=name)
def test_a_sound_log_is_good_and_goes_out_as_it_came_in(row: dict[str, str]) -> None:
    """Every byte is accounted for; stored lines, and packing all events anew, give back the very bytes."""
    data = (REAL_LOGS / row["file"]).read_bytes()
    result = scan_log(data)
    assert result.verdict is (Verdict.CLEAN if row["open"] == "bal" else Verdict.INTERRUPTED)
    assert result.findings == ()
    assert len(result.events) == int(row["events"])
    assert result.header_line is not None
    assert b"".join(line + b"\n" for line in (result.header_line, *result.log.lines(0, len(result.log)))) == data
    if row["packed_rows"] != "0":
        assert b"".join(line + b"\n" for line in (result.header_line, *pack_chunk_runs(result.events))) == data


@pytest.mark.parametrize("row", OTHERS, ids=name)
def test_another_log_is_judged_by_its_flags(row: dict[str, str]) -> None:
    """A foreign version is unsupported, a broken order refused with its line; old messages and depths load."""
    result = scan_log((REAL_LOGS / row["file"]).read_bytes())
    flags = row["flags"].split(",")
    if "hdr:noversion" in flags:
        assert result.verdict is Verdict.UNSUPPORTED
        assert result.unsupported is not None
    elif "surface" in flags:
        assert result.verdict in {Verdict.DAMAGED, Verdict.INVALID}
        assert result.findings[0].line > 1
    else:
        assert result.verdict in {Verdict.CLEAN, Verdict.INTERRUPTED}
        assert result.findings == ()


def sampled_cuts(data: bytes, seed: str) -> Iterator[int]:
    """Cuts behind the header: some anywhere, some next to a line end."""
    header_end = data.find(b"\n") + 1
    chance = random.Random(seed)
    for _ in range(12):
        cut = chance.randrange(header_end, len(data) + 1)
        yield cut
        end = data.find(b"\n", cut)
        yield from (at for at in (end, end + 1) if header_end <= at <= len(data))


@pytest.mark.parametrize("row", SOUND[::6], ids=name)
def test_prefixes_of_a_sound_log_scan_to_prefixes(row: dict[str, str]) -> None:
    """A crash at any byte loses no whole line and is never taken for damage."""
    data = (REAL_LOGS / row["file"]).read_bytes()
    whole = list(scan_log(data).log.lines(0, int(row["events"])))
    for cut in sampled_cuts(data, row["file"]):
        check_prefix(scan_log(data[:cut]), data, cut, whole, cut)

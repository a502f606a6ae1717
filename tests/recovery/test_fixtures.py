"""The logs below fixtures/ scan as their expectations say, and their prefixes as the rule for prefixes says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.plan import plan_repair
from sessionstore.recovery.scan import LogScanner, ScanResult, scan_log
from tests.paths import FIXTURES

CASES = sorted(path.parent.name for path in FIXTURES.glob("*/expect.json"))
RESUMABLE = {Verdict.CLEAN, Verdict.INTERRUPTED, Verdict.TORN}


def load(case: str) -> tuple[bytes, dict[str, Any]]:
    """The log of a case and what is expected of it."""
    folder = FIXTURES / case
    return (folder / "session.jsonl").read_bytes(), json.loads((folder / "expect.json").read_bytes())


def test_there_are_fixtures() -> None:
    """The folder is found: an empty list would pass every other test here."""
    assert len(CASES) >= 40


@pytest.mark.parametrize("case", CASES)
def test_a_fixture_scans_as_expected(case: str) -> None:
    """Verdict, events, offsets and every finding are as written down."""
    data, expect = load(case)
    result = scan_log(data)
    assert result.verdict == expect["verdict"]
    assert (len(result.events), result.safe_offset, result.size) == (
        expect["events"],
        expect["safe_offset"],
        expect["size"],
    )
    assert (result.open_turn, result.intact_after) == (expect["open_turn"], expect["intact_after"])
    found = [{"kind": f.kind, "line": f.line, "offset": f.offset, "length": f.length} for f in result.findings]
    assert found == [{k: v for k, v in f.items() if k != "says"} for f in expect["findings"]]
    for finding, wanted in zip(result.findings, expect["findings"], strict=True):
        assert finding.message.startswith(wanted["says"])
    if expect["cut_is_blank"] is not None:
        assert result.cut_is_blank == expect["cut_is_blank"]
    if "nodes" in expect:
        assert result.surface.nodes == expect["nodes"]
    if result.verdict in RESUMABLE:
        assert [event.type for event in plan_repair(result).closers] == expect["closers"]


@pytest.mark.parametrize("case", CASES)
def test_a_fixture_scans_alike_byte_by_byte(case: str) -> None:
    """Fed one byte at a time, a fixture gives the same findings."""
    data, _ = load(case)
    scanner = LogScanner()
    for byte in data:
        scanner.feed(bytes([byte]))
    result, whole = scanner.finish(), scan_log(data)
    assert (result.verdict, result.findings, result.safe_offset) == (whole.verdict, whole.findings, whole.safe_offset)


QUICK = {"closed", "interrupted-with-calls", "replaced-surface"}


def prefix_cases() -> list[object]:
    """The cases that can be cut anywhere; most of them only in the slow run."""
    cases = [case for case in CASES if load(case)[1]["verdict"] in RESUMABLE]
    return [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in cases]


@pytest.mark.parametrize("case", prefix_cases())
def test_every_prefix_of_a_fixture_scans_to_a_prefix(case: str) -> None:
    """A log that could be resumed can be resumed from every cut behind its header, with every whole line kept."""
    data, expect = load(case)
    header_end = data.find(b"\n") + 1
    whole = list(scan_log(data).log.lines(0, expect["events"]))
    for cut in range(header_end, len(data)):
        check_prefix(scan_log(data[:cut]), data, cut, whole, min(expect["safe_offset"], cut))


def check_prefix(result: ScanResult, data: bytes, cut: int, whole: list[bytes], limit: int) -> None:
    """A cut log is never damaged, keeps its whole lines, and is torn exactly when a line was cut."""
    assert result.verdict in RESUMABLE, cut
    kept = list(result.log.lines(0, len(result.log)))
    assert kept == whole[: len(kept)]
    assert result.safe_offset == data.rfind(b"\n", 0, limit) + 1
    assert (result.verdict is Verdict.TORN) == (result.safe_offset != cut)

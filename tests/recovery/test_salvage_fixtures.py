"""The damaged logs below fixtures/salvage-* are repaired to the very bytes that lie beside them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sessionstore.recovery.salvage import salvage
from tests.paths import FIXTURES
from tests.recovery.salvage_checker import check_salvaged, joined

if TYPE_CHECKING:
    from pathlib import Path

CASES = sorted(path.parent for path in FIXTURES.glob("salvage-*/plan.json"))


def test_there_are_fixtures() -> None:
    """The folders are found: an empty list would pass every other test here."""
    assert len(CASES) >= 14


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_a_damaged_log_is_repaired_to_the_expected_bytes(folder: Path) -> None:
    """The repaired log, its forks, what was made anew and what was left out are as written down."""
    data = (folder / "session.jsonl").read_bytes()
    expect = json.loads((folder / "plan.json").read_bytes())
    plan = salvage(data, session_id="s1", cwd="/srv/project")
    check_salvaged(None, data, plan)
    assert plan.refusal == expect["refusal"]
    assert (plan.header_fate, plan.events, plan.kept) == (expect["header"], expect["events"], expect["kept"])
    assert [{"seq": event.seq, "type": event.type} for event in plan.made] == expect["made"]
    assert [{"offset": each.offset, "length": each.length} for each in plan.quarantined] == expect["quarantined"]
    forks = [{"id": fork.id, "divergence": fork.divergence, "events": fork.events} for fork in plan.forks]
    assert forks == expect["forks"]
    if plan.lines:
        assert joined(plan.lines) == (folder / "repaired.jsonl").read_bytes()
    for fork in plan.forks:
        assert joined(fork.lines) == (folder / f"fork-{fork.divergence}.jsonl").read_bytes()

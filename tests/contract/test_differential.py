"""The same random program on two backends: whatever one shows, the other shows."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessionstore.errors import DamagedLogError
from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.plan import RepairPlan, plan_repair
from sessionstore.recovery.records import read_record
from tests.contract.kits import kit_names, make_kit
from tests.contract.programs import batch, header, store
from tests.recovery.strategies import log_lines

if TYPE_CHECKING:
    from sessionstore.backends.base import Backend
    from tests.contract.kits import Kit

OTHERS = [name for name in kit_names() if name != "memory"]


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[bytes], list[int], list[str]]:
    """The lines of a session, where its batches end, and what happens after each."""
    lines = [line.rstrip(b"\n") for line in draw(log_lines())[1:]]
    cuts = sorted(draw(st.sets(st.integers(0, len(lines)), max_size=6)) | {len(lines)})
    steps = st.sampled_from(["go on", "reopen", "crash", "torn", "delete and restore"])
    return lines, cuts, draw(st.lists(steps, min_size=len(cuts), max_size=len(cuts)))


async def _run(kit: Kit, lines: list[bytes], cuts: list[int], steps: list[str]) -> list[object]:
    """Carry out a program and note what can be seen after every step."""
    seen: list[object] = []
    backend = kit.open()
    writer = backend.writer(header())
    done: list[bytes] = []
    start = 0
    for stop, step in zip(cuts, steps, strict=True):
        more = lines[start:stop]
        if done and more and read_record(more[0]).seq != sum(read_record(line).count for line in done):
            break  # a repair has closed the turn that the rest belongs to
        done += more
        await writer.append(batch(done, len(done) - len(more)), sync=True)
        if step != "go on":
            await writer.close()
        if step == "torn":
            kit.damage_tail("s1")
        seen.append(await _look(kit.open()))
        seen.append(await _look(backend))
        if step == "delete and restore":
            await backend.restore(await backend.delete("s1"))
        if step in {"crash", "torn"}:
            writer, stored = await kit.open().open("s1")
            report = await writer.repair(stored, plan_repair(stored.scan))
            done += [event.to_json() for event in report.closers]
            seen.append((report.closers, report.cut_at is None, report.quarantine is None))
        elif step != "go on":
            writer, stored = await kit.open().open("s1")
            await writer.repair(stored, RepairPlan())  # nothing is closed: the turn goes on
        start = stop
    await writer.close()
    seen.append(await _look(kit.open()))
    return seen


async def _look(backend: Backend) -> list[object]:
    scan = (await backend.read("s1")).scan
    lines = list(scan.log.lines(0, len(scan.log)))
    seen: list[object] = [
        scan.verdict,
        scan.header,
        lines,
        list(scan.surface.nodes),
        scan.open_turn,
        scan.open_turn_seq,
    ]
    for seq in range(len(scan.log) + 2):
        seen.append([event.to_json() for event in await backend.read_from("s1", seq)])
        assert seen[-1] == [event.to_json() for event in scan.events[seq:]]
    (row,) = (await backend.list()).sessions
    return [*seen, row.status, row.cwd, row.created_at, row.last_time]


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS)
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=25)
@given(program=programs())
async def test_two_backends_show_the_same(other: str, program: tuple[list[bytes], list[int], list[str]]) -> None:
    """Random batches, reopenings, crashes, torn ends and deletions look the same on both backends at every step."""
    with tempfile.TemporaryDirectory() as place:
        model = await _run(make_kit("memory", Path(place)), *program)
        assert await _run(make_kit(other, Path(place)), *program) == model


@pytest.mark.parametrize("name", kit_names())
async def test_damage_looks_the_same(name: str, tmp_path: Path) -> None:
    """A damaged log has the same verdict and events on every backend, and ``read_from`` refuses it on all."""
    kit = make_kit(name, tmp_path)
    await store(kit.open())
    kit.damage_middle("s1")
    scan = (await kit.open().read("s1")).scan
    assert (scan.verdict, len(scan.log), scan.findings[0].line) == (Verdict.DAMAGED, 0, 2)
    with pytest.raises(DamagedLogError):
        await kit.open().read_from("s1", 0)

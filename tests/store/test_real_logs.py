"""Logs that the reference implementation recorded, through the whole store: resumed, replayed, cut anywhere."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest

from sessionstore import SessionStore, fold_surface, scan_log
from sessionstore.backends.memory import MemoryBackend
from sessionstore.invariants import InvariantTrace
from sessionstore.recovery.findings import Verdict
from tests.paths import NO_REAL_LOGS, REAL_LOGS

pytestmark = pytest.mark.skipif(not REAL_LOGS.is_dir(), reason=NO_REAL_LOGS)


def rows(*, sound: bool) -> list[dict[str, str]]:
    """The manifest's rows; empty where the logs are not there."""
    if not REAL_LOGS.is_dir():
        return []
    with (REAL_LOGS / "manifest.tsv").open(newline="") as file:
        return [row for row in csv.DictReader(file, delimiter="\t") if (row["sound"] == "yes") is sound]


def name(row: dict[str, str]) -> str:
    """The row's file, as the name of its test."""
    return row["file"]


@pytest.mark.parametrize("row", rows(sound=True), ids=name)
async def test_a_sound_log_replayed_live_comes_back_equal(row: dict[str, str], tmp_path: Path) -> None:
    """Every event appended again to a new session, at its own time, gives an equal log, surface and history."""
    data = (REAL_LOGS / row["file"]).read_bytes()
    original = scan_log(data)
    assert original.header is not None
    now = 0
    async with SessionStore(tmp_path, clock=lambda: now) as store:
        live = await store.create("replay")
        for event in original.events:
            now = event.time
            op, sources = event.surface_op, event.source_event_seqs
            live.append(event.type, event.to_dict()["data"], surface_op=op, source_event_seqs=sources)
        assert await live.flush() == len(original.log)
    if not len(original.log):
        assert not list(tmp_path.rglob("session.jsonl"))  # without an event there is no session on the disk
        return
    stored = scan_log((next(tmp_path.rglob("session.jsonl"))).read_bytes())
    assert stored.findings == ()
    assert [e.to_dict() for e in stored.events] == [e.to_dict() for e in original.events]
    assert tuple(stored.surface.nodes) == tuple(original.surface.nodes) == fold_surface(original.events).nodes
    assert [e.data_json for e in stored.events] == [e.data_json for e in original.events]


@pytest.mark.parametrize("row", rows(sound=True), ids=name)
async def test_a_sound_log_resumes_and_goes_on(row: dict[str, str]) -> None:
    """It folds the same whole and step by step, keeps the execution invariant, and takes a further turn."""
    data = (REAL_LOGS / row["file"]).read_bytes()
    backend = MemoryBackend()
    scan = scan_log(data)
    assert scan.header is not None
    backend.put_bytes(scan.header.id, data)
    async with SessionStore(backend=backend) as store:
        session = await store.resume(scan.header.id)
        assert list(session.events[: len(scan.log)]) == list(scan.events)
        InvariantTrace("execution").replay(session.events)
        assert session.surface.nodes == fold_surface(session.events).nodes
        assert session.derive_messages() == [
            m for seq in session.surface.nodes if (m := session.derive_event_message(session.events[seq])) is not None
        ]
        async with session.turn() as turn:
            turn.user("go on")
    after = scan_log(backend.stored_bytes(scan.header.id))
    assert (after.verdict, after.findings) == (Verdict.CLEAN, ())


PREFIXED = rows(sound=True)[::26]


@pytest.mark.slow
@pytest.mark.parametrize("row", PREFIXED, ids=name)
async def test_every_byte_prefix_resumes_and_goes_on(row: dict[str, str]) -> None:
    """Cut behind the header at any byte, a log resumes with a prefix of its events and takes a closed turn."""
    data = (REAL_LOGS / row["file"]).read_bytes()[:40_000]
    whole = list(scan_log(data).events)
    header_end = data.find(b"\n") + 1
    last = -1
    for cut in range(header_end, len(data) + 1):
        scan = scan_log(data[:cut])
        assert scan.header is not None
        kept = len(scan.log)
        assert kept >= last
        # Every cut is scanned; each kind of cut (a new last line, its first, middle and last bytes) is resumed.
        if kept == last and cut % 17 and data[cut : cut + 1] != b"\n":
            continue
        last = kept
        backend = MemoryBackend()
        backend.put_bytes(scan.header.id, data[:cut])
        async with SessionStore(backend=backend) as store:
            session = await store.resume(scan.header.id)
            assert list(session.events[:kept]) == whole[:kept]
            async with session.turn() as turn:
                turn.user("go on")
        after = scan_log(backend.stored_bytes(scan.header.id))
        assert (after.verdict, after.findings) == (Verdict.CLEAN, ())


@pytest.mark.parametrize("row", [r for r in rows(sound=False) if "legacy-msgs" in r["flags"] and "surface" not in r["flags"]], ids=name)  # fmt: skip
async def test_old_messages_load_and_have_ids(row: dict[str, str], tmp_path: Path) -> None:
    """A log of messages without identity resumes; each derived message has the documented id, no byte changes."""
    data = (REAL_LOGS / row["file"]).read_bytes()
    backend = MemoryBackend()
    scan = scan_log(data)
    assert scan.header is not None
    backend.put_bytes(scan.header.id, data)
    async with SessionStore(backend=backend) as store:
        session = await store.resume(scan.header.id)
        ids = [message.id for message in session.derive_messages()]  # type: ignore[union-attr]
        assert len(set(ids)) == len(ids)
        assert any(id.startswith(f"legacy-message:{session.id}:") for id in ids)
    assert backend.stored_bytes(scan.header.id).startswith(data)


async def test_the_layout_of_the_reference_is_found(tmp_path: Path) -> None:
    """A reference log put where the reference puts it is listed, inspected and resumed from there."""
    row = next(row for row in rows(sound=True) if row["open"] == "bal")
    source = REAL_LOGS / row["file"]
    header = scan_log(source.read_bytes()).header
    assert header is not None
    async with SessionStore(tmp_path) as store:
        place = store.locate(header.id, header.cwd)
        assert place is not None
        Path(place).parent.mkdir(parents=True)
        shutil.copy(source, place)
        assert [info.id for info in (await store.list()).sessions] == [header.id]
        assert (await store.inspect(header.id)).verdict is Verdict.CLEAN
        session = await store.resume(header.id)
        assert session.seq == int(row["events"])
    assert Path(place).read_bytes() == source.read_bytes()

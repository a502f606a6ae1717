"""What every backend does with a session that is being written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sessionstore.backends.base import Batch
from sessionstore.errors import (
    InvalidEventError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    SessionStoreError,
)
from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.plan import plan_repair
from tests.contract.programs import CLOSED, OPEN, batch, events, header, ids, store, write
from tests.recovery import logs

if TYPE_CHECKING:
    from tests.contract.kits import Kit

ODD_IDS = [
    "../x", "../../etc/passwd", "a/b", "a\\b", "/abs", "C:foo", ".", "..", "...", "a\0b", "~", "~~", "~002E", "a~002Fb",
    "A", "a", "é", "世界", "🎉", "\ud800", "\udc00\ud800", "x" * 300, "世" * 100, " ", "\n", "-", "--a--", ".trash",
    "_no-cwd", "session.jsonl", "con", "a" * 160 + "~~" + "0" * 32,
]  # fmt: skip


@pytest.mark.parametrize("every", [None, 1, 3])
async def test_what_was_appended_is_read_back(kit: Kit, every: int | None) -> None:
    """A session written in batches of any size reads back with the same header and the same events."""
    writer = await write(kit.open(), header(), CLOSED, every=every)
    await writer.close()
    stored = await kit.open().read("s1")
    assert stored.scan.header == header()
    assert list(stored.scan.events) == events(CLOSED)
    assert stored.scan.verdict is Verdict.CLEAN
    assert stored.torn is None
    assert not stored.scan.findings


async def test_stored_lines_come_back_byte_for_byte(kit: Kit) -> None:
    """Packed rows stay packed and single lines single: storage rewrites nothing."""
    await store(kit.open())
    log = (await kit.open().read("s1")).scan.log
    assert list(log.lines(0, len(log))) == CLOSED


async def test_header_fields_survive(kit: Kit) -> None:
    """Lineage, depth, origin and preset of a header come back as they went in."""
    head = await store(
        kit.open(), parent_session="p", seed_length=3, delegation_depth=2, origin="subagent", agent_preset="x"
    )
    assert (await kit.open().read("s1")).scan.header == head


async def test_batch_without_events_publishes_the_header(kit: Kit) -> None:
    """A session can be made to exist before its first event, and goes on from there."""
    backend = kit.open()
    writer = await write(backend, header(), [])
    assert (await backend.read("s1")).scan.header == header()
    assert writer.next_seq == 0
    await writer.append(batch(CLOSED), sync=True)
    await writer.close()
    assert list((await kit.open().read("s1")).scan.events) == events(CLOSED)


async def test_session_without_a_write_is_nowhere(kit: Kit) -> None:
    """A writer that never wrote leaves nothing: no row, no session, and the id stays free."""
    backend = kit.open()
    await backend.prepare(header())
    await backend.writer(header()).close()
    assert await ids(kit.open()) == []
    with pytest.raises(SessionNotFoundError):
        await backend.read("s1")
    with pytest.raises(SessionNotFoundError):
        await backend.open("s1")
    await backend.prepare(header())


async def test_taken_id_is_refused(kit: Kit) -> None:
    """An id that is stored is refused early, and again at the first write; what is stored stays as it was."""
    await store(kit.open())
    backend = kit.open()
    for cwd in ("/srv/project", "/elsewhere", None):
        with pytest.raises(SessionExistsError):
            await backend.prepare(header(cwd=cwd))
    writer = backend.writer(header())
    with pytest.raises(SessionExistsError):
        await writer.append(batch(OPEN), sync=True)
    await writer.close()
    assert list((await backend.read("s1")).scan.events) == events(CLOSED)
    reopened, _ = await backend.open("s1")
    await reopened.close()


async def test_batch_must_continue_the_log(kit: Kit) -> None:
    """A batch with a gap or a repeat is refused and nothing of it is stored."""
    backend = kit.open()
    writer = await write(backend, header(), CLOSED[:3])
    for start in (0, 2, 4):
        with pytest.raises(ValueError, match="seq"):
            await writer.append(batch(CLOSED, start, start + 1), sync=True)
    assert writer.next_seq == 3
    await writer.append(batch(CLOSED, 3), sync=True)
    await writer.close()
    assert list((await backend.read("s1")).scan.events) == events(CLOSED)


async def test_line_break_in_a_line_never_reaches_storage(kit: Kit) -> None:
    """A line that holds a line break would be two lines on disk: it is refused, and the session goes on."""
    backend = kit.open()
    writer = await write(backend, header(), CLOSED[:1])
    broken = Batch(1, 2, ((logs.user(1)[:20] + b"\n" + logs.user(1)[20:-1],),), lambda: iter(CLOSED[:1]))
    with pytest.raises(InvalidEventError):
        await writer.append(broken, sync=True)
    await writer.append(batch(CLOSED, 1), sync=True)
    await writer.close()
    assert list((await backend.read("s1")).scan.events) == events(CLOSED)


@pytest.mark.slow
async def test_one_writer_at_a_time(kit: Kit) -> None:
    """A session that is held cannot be opened, by the same backend or another; afterwards it can."""
    backend = kit.open()
    writer = await write(backend, header(), CLOSED)
    for other in (backend, kit.open()):
        with pytest.raises(SessionLockedError):
            await other.open("s1")
    await writer.close()
    await writer.close()  # idempotent
    reopened, stored = await kit.open().open("s1")
    assert reopened.next_seq == len(events(CLOSED))
    assert list(stored.scan.events) == events(CLOSED)
    with pytest.raises(SessionLockedError):
        await backend.open("s1")
    await reopened.close()


@pytest.mark.slow
async def test_two_creators_of_one_id(kit: Kit) -> None:
    """Of two writers that create one id, one wins and the other is told; nothing is mixed."""
    writers = [kit.open().writer(header()) for _ in range(2)]
    await writers[0].append(batch(CLOSED, 0, 1), sync=True)
    with pytest.raises((SessionExistsError, SessionLockedError)):
        await writers[1].append(batch(OPEN), sync=True)
    await writers[1].close()
    await writers[0].append(batch(CLOSED, 1), sync=True)
    await writers[0].close()
    assert list((await kit.open().read("s1")).scan.events) == events(CLOSED)


async def test_resumed_session_goes_on(kit: Kit) -> None:
    """What a second writer appends stands behind what the first one wrote."""
    await store(kit.open(), lines=CLOSED[:11])
    writer, stored = await kit.open().open("s1")
    await writer.repair(stored, plan_repair(stored.scan))
    assert writer.next_seq == len(stored.scan.log)
    await writer.append(batch(CLOSED, 11), sync=True)
    await writer.close()
    assert list((await kit.open().read("s1")).scan.events) == events(CLOSED)


async def test_open_turn_gets_closers(kit: Kit) -> None:
    """A repair appends the planned closers, after which the log is clean and a second plan is empty."""
    await store(kit.open(), lines=OPEN)
    writer, stored = await kit.open().open("s1")
    assert stored.scan.verdict is Verdict.INTERRUPTED
    plan = plan_repair(stored.scan)
    report = await writer.repair(stored, plan)
    await writer.close()
    assert report.closers == plan.closers
    assert report.cut_at is None
    again = await kit.open().read("s1")
    assert again.scan.verdict is Verdict.CLEAN
    assert list(again.scan.events) == [*events(OPEN), *plan.closers]
    assert plan_repair(again.scan).empty


async def test_torn_end_is_cut_and_kept(kit: Kit) -> None:
    """A torn end is cut, its bytes are kept, the closers follow, and the session goes on."""
    await store(kit.open(), lines=OPEN)
    kit.damage_tail("s1")
    writer, stored = await kit.open().open("s1")
    assert stored.scan.verdict is Verdict.TORN
    assert stored.torn is not None
    assert list(stored.scan.events) == events(OPEN)
    report = await writer.repair(stored, plan_repair(stored.scan))
    assert report.cut_bytes > 0
    assert report.quarantine is not None
    closed = [*events(OPEN), *report.closers]
    more = [logs.turn_start(len(closed), 3)[:-1], logs.turn_end(len(closed) + 1, 3)[:-1]]
    whole = [*(event.to_json() for event in closed), *more]
    await writer.append(batch(whole, len(closed)), sync=True)
    await writer.close()
    again = await kit.open().read("s1")
    assert again.scan.verdict is Verdict.CLEAN
    assert not again.scan.findings
    assert list(again.scan.events) == events(whole)


async def test_opening_alone_changes_nothing(kit: Kit) -> None:
    """Reading, and opening without a repair, leave the stored bytes as they are: the revision says so."""
    await store(kit.open(), lines=OPEN)
    kit.damage_tail("s1")
    before = (await kit.open().read("s1")).revision
    writer, stored = await kit.open().open("s1")
    await writer.close()
    assert stored.revision == before
    assert (await kit.open().read("s1")).revision == before


async def test_revision_changes_with_the_log(kit: Kit) -> None:
    """An append and a repair change the revision; another session's do not."""
    backend = kit.open()
    await store(backend, "other")
    writer = await write(backend, header(), OPEN[:3])
    first = (await backend.read("s1")).revision
    other = (await backend.read("other")).revision
    await writer.append(batch(OPEN, 3), sync=True)
    second = (await backend.read("s1")).revision
    await writer.close()
    writer, stored = await backend.open("s1")
    await writer.repair(stored, plan_repair(stored.scan))
    await writer.close()
    third = (await backend.read("s1")).revision
    assert len({first, second, third}) == 3
    assert (await backend.read("other")).revision == other


async def test_damaged_log_is_handed_over_unchanged(kit: Kit) -> None:
    """A damaged log is opened with its findings, for the store to refuse; closing frees the lock."""
    await store(kit.open())
    kit.damage_middle("s1")
    before = (await kit.open().read("s1")).revision
    writer, stored = await kit.open().open("s1")
    assert stored.scan.verdict is Verdict.DAMAGED
    assert stored.scan.findings
    await writer.close()
    assert (await kit.open().read("s1")).revision == before
    writer, _ = await kit.open().open("s1")
    await writer.close()


async def test_empty_log_is_handed_over(kit: Kit) -> None:
    """A log that was never completed is no reason to fail in another way than its verdict says."""
    await store(kit.open())
    kit.damage_all("s1")
    writer, stored = await kit.open().open("s1")
    await writer.close()
    assert stored.scan.verdict is Verdict.EMPTY


async def test_writes_without_sync_become_durable_by_sync(kit: Kit) -> None:
    """Batches written without sync are read at once, and a sync afterwards is no error."""
    backend = kit.open()
    writer = backend.writer(header())
    for start in range(0, len(CLOSED), 4):
        await writer.append(batch(CLOSED, start, min(start + 4, len(CLOSED))), sync=False)
    assert list((await backend.read("s1")).scan.events) == events(CLOSED)
    await writer.sync()
    await writer.close()
    assert list((await backend.read("s1")).scan.events) == events(CLOSED)


async def test_last_gasp_without_a_loop(kit: Kit) -> None:
    """The synchronous append of an exiting interpreter stores like any other."""
    backend = kit.open()
    writer = backend.writer(header())
    await asyncio.to_thread(writer.append_now, batch(CLOSED, 0, 5))
    await asyncio.to_thread(writer.append_now, batch(CLOSED, 5))
    await writer.close()
    assert list((await backend.read("s1")).scan.events) == events(CLOSED)


async def test_sessions_do_not_mix(kit: Kit) -> None:
    """Sessions written at the same time hold what was appended to each."""
    backend = kit.open()
    kinds = {f"s{n}": (CLOSED, OPEN)[n % 2] for n in range(6)}
    writers = await asyncio.gather(*(write(backend, header(id), lines, every=2) for id, lines in kinds.items()))
    await asyncio.gather(*(writer.close() for writer in writers))
    for id, lines in kinds.items():
        assert list((await backend.read(id)).scan.events) == events(lines)


async def test_cancelled_append_has_settled(kit: Kit) -> None:
    """When a cancelled append returns, the batch was stored or it was not, and ``next_seq`` says which."""
    backend = kit.open()
    writer = await write(backend, header(), CLOSED[:1])
    task = asyncio.ensure_future(writer.append(batch(CLOSED, 1), sync=True))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    if writer.next_seq == 1:
        await writer.append(batch(CLOSED, 1), sync=True)
    assert writer.next_seq == len(events(CLOSED))
    await writer.close()
    assert list((await backend.read("s1")).scan.events) == events(CLOSED)


async def test_cancelled_open_holds_nothing(kit: Kit) -> None:
    """A cancelled open leaves the session free."""
    await store(kit.open())
    for _ in range(3):
        task = asyncio.ensure_future(kit.open().open("s1"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():  # it was faster
            await task.result()[0].close()
    writer, _ = await kit.open().open("s1")
    await writer.close()


@pytest.mark.slow
async def test_any_id_is_an_id(kit: Kit) -> None:
    """Ids that look like paths, escapes or nothing at all are sessions of their own, in every operation."""
    backend = kit.open()
    for n, id in enumerate(ODD_IDS):
        await store(backend, id, [logs.event("my/plugin", 0, {"n": n})[:-1]], cwd=("/srv/project", None)[n % 2])
    assert sorted(await ids(backend)) == sorted(ODD_IDS)
    for n, id in enumerate(ODD_IDS):
        stored = await kit.open().read(id)
        assert stored.scan.verdict is Verdict.CLEAN, id
        assert [event.to_dict()["data"] for event in stored.scan.events] == [{"n": n}]
        writer, _ = await backend.open(id)
        await writer.close()
    for id in ODD_IDS:
        entry = await backend.delete(id)
        assert entry.id == id
        await backend.restore(entry)
    assert sorted(await ids(backend)) == sorted(ODD_IDS)


@pytest.mark.parametrize("id", ["", "no such", "../../../etc/passwd", "..", "a\0b"])
async def test_unknown_ids_are_not_found(kit: Kit, id: str) -> None:
    """An id that is not stored is refused as such by every operation, whatever it looks like."""
    backend = kit.open()
    await store(backend)
    for operation in (backend.read(id), backend.open(id), backend.delete(id), backend.read_from(id, 0)):
        with pytest.raises(SessionStoreError) as caught:
            await operation
        assert isinstance(caught.value, (SessionNotFoundError, InvalidEventError))


async def test_closing_a_backend_is_idempotent(kit: Kit) -> None:
    """A backend may be closed twice; what it stored stays."""
    backend = kit.open()
    await store(backend)
    await backend.aclose()
    await backend.aclose()
    assert await ids(kit.open()) == ["s1"]

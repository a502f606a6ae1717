"""Forks, inspections, reading, listing and deleting through the store."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from sessionstore import (
    DamagedLogError,
    ForkError,
    Session,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
    UnsupportedFormatError,
    Verdict,
    scan_log,
)
from tests.store.fakes import FlakyBackend, no_space
from tests.store.test_lifecycle import HEADER, fill, store_over

if TYPE_CHECKING:
    from sessionstore import SessionStore, StoredSession

USER = {"content": [], "source": {"kind": "user"}, "role": "user", "id": "m"}


def turn(session: StoredSession, number: int) -> None:
    """Append a whole turn of four events."""
    session.append("turn/start", {"turn": number})
    session.append("user/message", USER, surface_op="append")
    session.append("todo/write", {"todos": []})
    session.append("turn/end", {"turn": number, "reason": {"kind": "completed"}})


async def code_of(store: SessionStore, *args: Any) -> str:
    """The code with which a fork is refused."""
    with pytest.raises(ForkError) as caught:
        await store.fork(*args)
    return caught.value.code


# --- fork -----------------------------------------------------------------------------------------------------


async def test_a_fork_holds_the_prefix_and_knows_where_it_comes_from() -> None:
    """The default boundary is the last event; header and events are on the disk when fork returns."""
    backend = FlakyBackend()
    async with store_over(backend) as store:
        parent = await store.create("p", cwd="/srv", delegation_depth=2, agent_preset="a", origin="subagent")
        turn(parent, 1)
        fill(parent)
        child = await store.fork(parent, child_id="c")
        assert child.durable_seq == child.seq == child.first_live_seq == 5
        assert list(child.events) == list(parent.events)
        assert child.derive_messages() == parent.derive_messages() != []
        header = child.header
        assert (header.parent_session, header.seed_length, header.cwd) == ("p", 5, "/srv")
        assert (header.delegation_depth, header.agent_preset, header.origin) == (2, None, None)
        scan = scan_log(backend.stored_bytes("c"))
        assert (scan.verdict, len(scan.events), scan.header) == (Verdict.CLEAN, 5, header)
        fill(parent)
        fill(child, 2)
        assert (parent.seq, child.seq) == (6, 7)


async def test_an_earlier_boundary_copies_that_far_and_included() -> None:
    """Also while the source has an open turn further on."""
    async with store_over(FlakyBackend()) as store:
        parent = await store.create("p")
        turn(parent, 1)
        fill(parent)
        parent.append("turn/start", {"turn": 2})
        assert [event.seq for event in (await store.fork(parent, 3)).events] == [0, 1, 2, 3]
        assert (await store.fork(parent, 4)).seq == 5


async def test_a_fork_of_nothing_is_a_stored_session_with_a_parent() -> None:
    """An empty source gives an empty child, which can be resumed."""
    backend = FlakyBackend()
    async with store_over(backend) as store:
        child = await store.fork(await store.create("p"), child_id="c")
        assert (child.seq, child.header.seed_length) == (0, 0)
        await child.dispose()
        assert (await store.resume("c")).header.parent_session == "p"


async def test_forks_of_forks_need_nobody() -> None:
    """Each is whole: the parents can be deleted."""
    backend = FlakyBackend()
    async with store_over(backend) as store:
        parent = await store.create("p")
        turn(parent, 1)
        child = await store.fork(parent, child_id="c")
        grandchild = await store.fork(child, child_id="g")
        for session in (parent, child, grandchild):
            await session.dispose()
        await store.delete("p")
        await store.delete("c")
        assert (await store.resume("g")).seq == 4


async def test_a_stored_source_is_read_as_an_inspection_reads_it() -> None:
    """Torn bytes are left out and an open turn is closed in the child; the source is not touched."""
    backend = FlakyBackend()
    data = HEADER + b'{"type":"turn/start","seq":0,"time":5,"data":{"turn":1}}\n{"type":'
    backend.put_bytes("s", data)
    async with store_over(backend) as store:
        child = await store.fork("s", child_id="c")
        assert [event.type for event in child.events] == ["turn/start", "turn/end"]
        assert backend.stored_bytes("s") == data
        assert await code_of(store, "s", 0) == "OPEN_TURN"


async def test_a_live_source_given_by_id_is_copied_from_memory() -> None:
    """What waits to be written is copied too."""
    async with store_over(FlakyBackend()) as store:
        fill(await store.create("p"), 2)
        assert (await store.fork("p")).seq == 2


@pytest.mark.parametrize("boundary", [-1, 4, 100, 1.0, True, "1"])
async def test_a_boundary_that_is_no_existing_seq_is_refused(boundary: Any) -> None:
    """No slice that quietly returns everything, and no child."""
    async with store_over(FlakyBackend()) as store:
        parent = await store.create("p")
        turn(parent, 1)
        assert await code_of(store, parent, boundary, "c") == "INVALID_BOUNDARY"
        await store.create("c")


@pytest.mark.parametrize("boundary", [0, 1, 2])
async def test_a_boundary_inside_a_turn_is_refused(boundary: int) -> None:
    """At every position but the turn's end."""
    async with store_over(FlakyBackend()) as store:
        parent = await store.create("p")
        turn(parent, 1)
        assert await code_of(store, parent, boundary) == "OPEN_TURN"
        turn(parent, 2)
        assert await code_of(store, parent, boundary + 4) == "OPEN_TURN"


async def test_the_codes_come_in_their_order() -> None:
    """The child's id first, then the source, then the boundary, then the turn."""
    async with store_over(FlakyBackend()) as store:
        parent = await store.create("p")
        parent.append("turn/start", {"turn": 1})
        gone = await store.create("gone")
        await gone.dispose()
        assert await code_of(store, "missing", 99, "p") == "SESSION_ALREADY_EXISTS"
        await parent.flush()
        other = store_over(store._backend)  # type: ignore[arg-type]
        assert await code_of(other, "missing", 99, "p") == "SESSION_ALREADY_EXISTS"
        assert await code_of(store, "missing", 99) == "SESSION_NOT_FOUND"
        assert await code_of(store, gone, 99) == "SESSION_NOT_LIVE"
        assert await code_of(store, Session("p"), 99) == "SESSION_NOT_LIVE"
        assert await code_of(other, parent, 99) == "SESSION_NOT_LIVE"
        assert await code_of(store, parent, 99) == "INVALID_BOUNDARY"
        assert await code_of(store, parent, 0) == "OPEN_TURN"
        await other.aclose()


async def test_a_stale_object_of_a_reopened_session_is_refused() -> None:
    """The object that was replaced does not speak for the session any more."""
    async with store_over(FlakyBackend()) as store:
        stale = await store.create("p")
        fill(stale)
        await stale.dispose()
        fresh = await store.resume("p")
        assert await code_of(store, stale) == "SESSION_NOT_LIVE"
        assert (await store.fork(fresh)).seq == 1


async def test_a_fork_that_cannot_be_published_leaves_nothing() -> None:
    """The error is the disk's; the child's id is free, nothing is listed, nothing stays locked."""
    backend = FlakyBackend()
    async with store_over(backend) as store:
        parent = await store.create("p")
        fill(parent)
        await parent.flush()
        backend.failure = no_space()
        with pytest.raises(StorageError):
            await store.fork(parent, child_id="c")
        backend.failure = None
        assert [info.id for info in (await store.list()).sessions] == ["p"]
        assert (backend.held, backend.closed_writers) == ({"p"}, 1)
        assert (await store.fork(parent, child_id="c")).durable_seq == 1


async def test_a_damaged_log_can_be_forked_before_its_damage_only() -> None:
    """Whoever says where gets the intact part; without a boundary the damage is not passed over."""
    backend = FlakyBackend()
    start = b'{"type":"turn/start","seq":0,"time":5,"data":{"turn":1}}\n'
    end = b'{"type":"turn/end","seq":1,"time":5,"data":{"turn":1,"reason":{"kind":"completed"}}}\n'
    later = end.replace(b'"seq":1', b'"seq":3')
    backend.put_bytes("s", HEADER + start + end + b"garbage\n" + later)
    async with store_over(backend) as store:
        with pytest.raises(DamagedLogError):
            await store.fork("s")
        assert (await store.fork("s", 1)).seq == 2
        assert await code_of(store, "s", 2) == "INVALID_BOUNDARY"


async def test_a_log_of_another_version_is_not_forked() -> None:
    """Nobody can say what its events mean."""
    backend = FlakyBackend()
    backend.put_bytes("s", HEADER.replace(b'"version":0', b'"version":7'))
    async with store_over(backend) as store:
        for boundary in (None, 0):
            with pytest.raises(UnsupportedFormatError):
                await store.fork("s", boundary)


async def test_a_source_of_a_wrong_type_is_a_plain_mistake() -> None:
    """A session or an id, nothing else."""
    async with store_over(FlakyBackend()) as store:
        with pytest.raises(TypeError, match="a session or an id"):
            await store.fork(5)  # type: ignore[arg-type]


async def test_a_cancelled_fork_leaves_no_open_session() -> None:
    """The child may be on the disk, whole; nobody in this process holds it."""
    backend = FlakyBackend()
    async with store_over(backend) as store:
        parent = await store.create("p")
        fill(parent)
        await parent.flush()
        backend.gate = asyncio.Event()
        fork = asyncio.create_task(store.fork(parent, child_id="c"))
        while backend.entered < 2:
            await asyncio.sleep(0)
        fork.cancel()
        await asyncio.sleep(0)
        backend.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await fork
        assert backend.held == {"p"}
        assert (await store.resume("c")).seq == 1


# --- inspect and read_from ------------------------------------------------------------------------------------


async def test_a_live_session_is_inspected_as_it_is_in_memory() -> None:
    """Without closers, with what waits, and as a snapshot that does not grow."""
    async with store_over(FlakyBackend()) as store:
        session = await store.create("s")
        session.append("turn/start", {"turn": 1})
        session.append("user/message", USER, surface_op="append")
        seen = await store.inspect("s")
        assert (len(seen.events), seen.surface.nodes, seen.writer) == (2, (1,), "live")
        assert (seen.verdict, seen.closers, seen.durable_seq) == (Verdict.INTERRUPTED, (), 0)
        assert seen.derive_messages() == session.derive_messages() != []
        session.append("user/message", {**USER, "id": "n"}, surface_op="append")
        assert (len(seen.events), seen.surface.nodes, len(seen.derive_messages())) == (2, (1,), 1)


async def test_an_inspection_travels_to_another_process() -> None:
    """Pickled it says the same, of a live session and of a stored one, after its history was asked for too."""
    backend = FlakyBackend()
    async with store_over(backend) as store:
        session = await store.create("s")
        session.append("turn/start", {"turn": 1})
        session.append("user/message", USER, surface_op="append")
        live = await store.inspect("s")
        await session.dispose()
        stored = await store.inspect("s")
    for seen in (live, stored):
        for _ in range(2):
            back = pickle.loads(pickle.dumps(seen))
            assert back.derive_messages() == seen.derive_messages() == session.derive_messages() != []
            assert list(back.events) == list(seen.events)
            fields = set(seen.__struct_fields__) - {"_derive"}
            assert all(getattr(back, name) == getattr(seen, name) for name in fields)


async def test_a_stored_session_is_inspected_as_a_resume_would_give_it() -> None:
    """Balanced in memory, nothing written, no lock taken; the same events that the resume then has."""
    backend = FlakyBackend()
    data = HEADER + b'{"type":"turn/start","seq":0,"time":5,"data":{"turn":1}}\n{"type":'
    backend.put_bytes("s", data)
    async with store_over(backend) as store:
        seen = await store.inspect("s")
        assert (seen.verdict, seen.writer, seen.durable_seq) == (Verdict.TORN, "none", 1)
        assert [event.type for event in seen.closers] == ["turn/end"]
        assert len(seen.findings) == 1
        assert seen.header is not None
        assert (backend.stored_bytes("s"), backend.held) == (data, set())
        assert list((await store.resume("s")).events) == list(seen.events)


async def test_with_a_live_writer_elsewhere_there_are_no_closers() -> None:
    """An open turn is at work, not interrupted."""
    backend = FlakyBackend()
    async with store_over(backend) as store, store_over(backend) as other:
        session = await store.create("s")
        session.append("turn/start", {"turn": 1})
        await session.flush()
        seen = await other.inspect("s")
        assert (seen.writer, seen.closers, len(seen.events)) == ("live", (), 1)


async def test_reading_from_a_seq_gives_what_is_stored() -> None:
    """No closers and nothing that still waits; past the end nothing; bad arguments are mistakes."""
    backend = FlakyBackend()
    async with store_over(backend) as store:
        session = await store.create("s")
        with pytest.raises(SessionNotFoundError):
            await store.read_from("s", 0)
        session.append("turn/start", {"turn": 1})
        fill(session, 2)
        await session.flush()
        fill(session)
        assert [event.seq for event in await store.read_from("s", 1)] == [1, 2]
        assert list(await store.read_from("s", 99)) == []
        with pytest.raises(ValueError, match="0 or more"):
            await store.read_from("s", -1)
        with pytest.raises(TypeError):
            await store.read_from("s", 1.0)  # type: ignore[arg-type]
        with pytest.raises(SessionNotFoundError):
            await store.read_from("missing", 0)


# --- list and delete ------------------------------------------------------------------------------------------


async def test_listing_shows_stored_sessions_with_what_dispose_noted() -> None:
    """Title, turns and event count come from the index that dispose wrote; an unwritten session is not listed."""
    async with store_over(FlakyBackend()) as store:
        await store.create("unwritten")
        async with await store.create("s", cwd="/srv") as session:
            turn(session, 1)
            session.append("session/title", {"title": "old"})
            session.append("session/title", {"title": "new"})
            turn(session, 2)
        (info,) = (await store.list(cwd="/srv")).sessions
        assert (info.id, info.title, info.turns, info.events, info.status) == ("s", "new", 2, 10, "ok")
        assert (await store.list(cwd=None)).sessions == ()
        assert store.locate("s") is None


async def test_delete_restore_and_empty_the_trash() -> None:
    """Two steps to be gone for good, and a way back from the first."""
    async with store_over(FlakyBackend()) as store:
        session = await store.create("s")
        fill(session)
        with pytest.raises(SessionLockedError):
            await store.delete("s")
        await session.dispose()
        entry = await store.delete("s")
        assert list(await store.trash()) == [entry]
        with pytest.raises(SessionNotFoundError):
            await store.resume("s")
        blocker = await store.create("s")
        with pytest.raises(SessionExistsError):
            await store.restore(entry)
        await blocker.dispose()
        await store.restore(entry)
        assert (await store.inspect("s")).durable_seq == 1
        await store.delete("s")
        assert await store.empty_trash() == 1
        assert list(await store.trash()) == []

"""Creating, resuming, disposing and closing: who owns an id, and what remains when something fails."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from sessionstore import (
    DamagedLogError,
    InvalidEventError,
    InvariantError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    SessionStore,
    StorageError,
    StoreClosedError,
    UnsupportedFormatError,
    Verdict,
    WrongThreadError,
    scan_log,
)
from tests.store.fakes import FlakyBackend, no_space, run

if TYPE_CHECKING:
    from sessionstore import StoredSession
    from sessionstore.lossless import Json

HEADER = b'{"type":"session","version":0,"id":"s","createdAt":1,"delegationDepth":0}\n'


def store_over(backend: FlakyBackend, **options: Any) -> SessionStore:
    """A store with a steady clock."""
    return SessionStore(backend=backend, clock=lambda: 7, **options)


def fill(session: StoredSession, count: int = 1) -> None:
    """Append *count* small events."""
    for _ in range(count):
        session.append("test/event", {"n": session.seq})


def stored_numbers(backend: FlakyBackend, session_id: str = "s") -> list[int]:
    """What the test events in the stored log say; the log must be clean."""
    scan = scan_log(backend.stored_bytes(session_id))
    assert scan.verdict is Verdict.CLEAN
    return [event.to_dict()["data"]["n"] for event in scan.events]  # type: ignore[call-overload,index,misc]


# --- create ---------------------------------------------------------------------------------------------------


async def test_nothing_is_stored_before_the_first_event() -> None:
    """Create reserves the id and writes nothing; an unused session leaves nothing behind, its id is free again."""
    backend = FlakyBackend()
    async with store_over(backend) as store:
        session = await store.create("s")
        with pytest.raises(SessionNotFoundError):
            await store.resume("missing")
        await session.flush()
        await session.dispose()
        assert (await store.list()).sessions == ()
        again = await store.create("s")
        fill(again)
    assert stored_numbers(backend) == [0]


async def test_an_id_that_is_open_or_stored_is_taken() -> None:
    """Both in memory and in storage, and the refusal leaves the session that has it alone."""
    backend = FlakyBackend()
    async with store_over(backend) as store:
        session = await store.create("s")
        with pytest.raises(SessionExistsError):
            await store.create("s")
        fill(session)
        await session.dispose()
        with pytest.raises(SessionExistsError):
            await store.create("s")
    assert stored_numbers(backend) == [0]


async def test_of_two_concurrent_creates_one_gets_the_id() -> None:
    """The id is reserved before anything is awaited."""
    async with store_over(FlakyBackend()) as store:
        results = await asyncio.gather(store.create("s"), store.create("s"), return_exceptions=True)
        assert [type(result).__name__ for result in results] == ["StoredSession", "SessionExistsError"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"created_at": 1.5},
        {"cwd": "relative"},
        {"delegation_depth": -1},
        {"origin": "other"},
        {"seed": [{"type": "x"}]},
    ],
    ids=str,
)
async def test_a_bad_header_or_seed_leaves_the_id_free(wrong: dict[str, Any]) -> None:
    """A refused create constructs nothing."""
    async with store_over(FlakyBackend()) as store:
        with pytest.raises(InvalidEventError):
            await store.create("s", **wrong)
        await store.create("s")


async def test_an_unwritable_place_is_told_early_and_leaves_the_id_free() -> None:
    """Create asks the backend before it gives out a session."""
    backend = FlakyBackend()
    async with store_over(backend) as store:
        backend.prepare_failure = no_space("create")
        with pytest.raises(StorageError):
            await store.create("s")
        backend.prepare_failure = None
        await store.create("s")


async def test_a_cancelled_create_leaves_the_id_free() -> None:
    """Nobody has the session, so nobody has the id."""
    async with store_over(FlakyBackend()) as store:
        task = asyncio.create_task(store.create("s"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.create("s")


async def test_header_values_reach_the_log_and_come_back() -> None:
    """What create is told survives a resume unchanged."""
    backend = FlakyBackend()
    values = {
        "cwd": "/srv", "created_at": 5, "parent_session": "p", "seed_length": 0, "origin": "subagent",
        "delegation_depth": 2, "agent_preset": "a",
    }  # fmt: skip
    async with store_over(backend) as store:
        session = await store.create("s", **values)  # type: ignore[arg-type]
        fill(session)
        header = session.header
    async with store_over(backend) as store:
        assert (await store.resume("s")).header == header
    assert {name: getattr(header, name) for name in values} == values


async def test_a_seed_is_written_with_the_first_batch() -> None:
    """It waits like events do, and is no live event."""
    backend = FlakyBackend()
    seed: list[dict[str, Json]] = [{"type": "test/event", "seq": n, "time": 1, "data": {"n": n}} for n in range(3)]
    async with store_over(backend) as store:
        session = await store.create("s", seed=seed)
        assert (session.first_live_seq, session.durable_seq) == (3, 0)
        assert backend.calls == []
        fill(session)
        assert await session.flush() == 4
    assert stored_numbers(backend) == [0, 1, 2, 3]
    assert len(backend.calls) == 1


async def test_an_id_published_by_somebody_else_meanwhile_keeps_the_events_in_memory() -> None:
    """Flush says so; the events can still be forked under another id."""
    backend = FlakyBackend()
    first, second = store_over(backend), store_over(backend)
    mine, theirs = await first.create("s"), await second.create("s")
    fill(theirs)
    await theirs.flush()
    fill(mine, 2)
    with pytest.raises(SessionExistsError):
        await mine.flush()
    assert isinstance(mine.persistence_error, SessionExistsError)
    child = await first.fork(mine, child_id="t")
    assert child.durable_seq == 2
    with pytest.raises(SessionExistsError):
        await first.aclose()
    await second.aclose()
    assert stored_numbers(backend, "s") == [0]
    assert stored_numbers(backend, "t") == [0, 1]


# --- resume ---------------------------------------------------------------------------------------------------


async def test_a_resumed_session_goes_on_where_the_log_ends() -> None:
    """Nothing is written again, the seq continues."""
    backend = FlakyBackend()
    async with store_over(backend) as store:
        fill(await store.create("s"), 3)
    async with store_over(backend) as store:
        session = await store.resume("s")
        assert (session.seq, session.first_live_seq, session.durable_seq) == (3, 3, 3)
        assert session.recovery is not None
        assert not session.recovery.changed
        fill(session)
    assert stored_numbers(backend) == [0, 1, 2, 3]
    assert [(call.first_seq, call.next_seq) for call in backend.calls] == [(0, 3), (3, 4)]


async def test_a_resume_repairs_before_it_gives_out_the_session() -> None:
    """Torn bytes are cut and an open turn is closed on the disk, and the report says so."""
    backend = FlakyBackend()
    start = b'{"type":"turn/start","seq":0,"time":5,"data":{"turn":1}}\n'
    backend.put_bytes("s", HEADER + start + b'{"type":"x')
    async with store_over(backend) as store:
        session = await store.resume("s")
        assert [event.type for event in session.events] == ["turn/start", "turn/end"]
        assert session.recovery is not None
        assert (session.recovery.cut_at, session.recovery.cut_bytes) == (len(HEADER + start), 10)
        assert [event.type for event in session.recovery.closers] == ["turn/end"]
        assert session.durable_seq == session.seq == 2
        fill(session)
    scan = scan_log(backend.stored_bytes("s"))
    assert (scan.verdict, len(scan.events)) == (Verdict.CLEAN, 3)


END = b'{"type":"turn/end","seq":1,"time":5,"data":{"turn":1,"reason":{"kind":"completed"}}}\n'
REFUSED = {
    "damaged": (HEADER + b"garbage\n" + END, DamagedLogError),
    "invalid": (HEADER + b'{"type":"user/message","seq":0,"time":1,"data":{},"surfaceOp":"append"}\n', DamagedLogError),
    "unsupported": (HEADER.replace(b'"version":0', b'"version":7'), UnsupportedFormatError),
    "empty": (b"", DamagedLogError),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_a_bad_log_is_refused_unchanged_and_unlocked(kind: str) -> None:
    """The verdict and the findings are in the error; nothing is written, nothing stays locked."""
    data, error_type = REFUSED[kind]
    backend = FlakyBackend()
    backend.put_bytes("s", data)
    async with store_over(backend) as store:
        with pytest.raises(error_type):
            await store.resume("s")
        with pytest.raises(error_type) as caught:  # nothing stayed locked
            await store.resume("s")
        if isinstance(caught.value, DamagedLogError):
            assert caught.value.verdict == kind
        else:
            assert isinstance(caught.value, UnsupportedFormatError)
            assert caught.value.direction == "newer"
        assert backend.held == set()
        assert backend.stored_bytes("s") == data
        inspection = await store.inspect("s")
        assert inspection.verdict == kind


async def test_a_repair_that_fails_leaves_nothing_locked() -> None:
    """The next resume, once there is space, does the job."""
    backend = FlakyBackend()
    backend.put_bytes("s", HEADER + b'{"type":"x')
    async with store_over(backend) as store:
        backend.failure = no_space("repair")
        with pytest.raises(StorageError):
            await store.resume("s")
        assert backend.held == set()
        backend.failure = None
        assert (await store.resume("s")).seq == 0


async def test_an_open_session_is_never_repaired_underneath_its_owner() -> None:
    """Neither by a second resume in this store, nor by another store, nor while it is still unwritten."""
    backend = FlakyBackend()
    async with store_over(backend) as store, store_over(backend) as other:
        session = await store.create("s")
        with pytest.raises(SessionLockedError):
            await store.resume("s")
        session.append("turn/start", {"turn": 1})
        await session.flush()
        before = backend.stored_bytes("s")
        for rival in (store, other):
            with pytest.raises(SessionLockedError):
                await rival.resume("s")
            with pytest.raises(SessionLockedError):
                await rival.delete("s")
        assert backend.stored_bytes("s") == before
        await session.dispose()
        assert (await other.resume("s")).seq == 2


async def test_of_two_concurrent_resumes_one_gets_the_session() -> None:
    """The other one is told who has it."""
    backend = FlakyBackend()
    async with store_over(backend) as store:
        fill(await store.create("s"))
    async with store_over(backend) as store:
        results = await asyncio.gather(store.resume("s"), store.resume("s"), return_exceptions=True)
        assert sorted(type(result).__name__ for result in results) == ["SessionLockedError", "StoredSession"]


async def test_invariants_are_checked_on_what_a_log_already_holds() -> None:
    """A store that enforces them refuses a log that breaks them, unlocked; one that does not opens it."""
    backend = FlakyBackend()
    async with store_over(backend) as store:
        fill(await store.create("s"))
    async with store_over(backend, invariants="strict") as store:
        with pytest.raises(InvariantError):
            await store.resume("s")
        assert backend.held == set()
    async with store_over(backend, invariants="execution") as store:
        session = await store.resume("s")
        with pytest.raises(InvariantError):
            session.append("turn/end", {"turn": 1, "reason": {"kind": "completed"}})
        assert session.seq == 1


async def test_checkers_of_the_store_are_in_front_of_every_session() -> None:
    """What raises vetoes the append."""

    def checker(event: Any) -> None:
        if event.type == "bad":
            raise ValueError("no")

    async with store_over(FlakyBackend(), checkers=[checker]) as store:
        session = await store.create("s")
        with pytest.raises(ValueError, match="no"):
            session.append("bad", {})
        fill(session)
        assert session.seq == 1


# --- dispose and close ----------------------------------------------------------------------------------------


async def test_dispose_writes_everything_and_releases_the_lock() -> None:
    """Afterwards the session can be read but not used, and its id is free to be resumed."""
    backend = FlakyBackend()
    async with store_over(backend) as store:
        async with await store.create("s") as session:
            fill(session, 2)
        assert stored_numbers(backend) == [0, 1]
        assert backend.held == set()
        assert session.disposed
        assert len(session.events) == 2
        with pytest.raises(StoreClosedError):
            fill(session)
        with pytest.raises(StoreClosedError):
            await session.flush()
        await session.dispose()
        await store.dispose(session)
        await store.resume("s")


async def test_concurrent_disposals_share_one_outcome() -> None:
    """Everybody who asks while it runs is told what failed; whoever asks later, nothing."""
    backend = FlakyBackend()
    async with store_over(backend) as store:
        session = await store.create("s")
        fill(session)
        error = backend.failure = no_space()
        results = await asyncio.gather(session.dispose(), store.dispose(session), return_exceptions=True)
        assert list(results) == [error, error]
        await session.dispose()
        assert backend.closed_writers == 1


async def test_all_failures_of_a_close_are_reported_together() -> None:
    """Flush errors, close errors and the backend's own; every lock is released."""
    backend = FlakyBackend()
    store = store_over(backend)
    for name in ("a", "b"):
        session = await store.create(name)
        fill(session)
        await session.flush()
        fill(session)
    backend.failure = no_space()
    backend.close_failure = no_space("close")
    backend.aclose_failure = no_space("close the backend")
    with pytest.raises(ExceptionGroup) as caught:
        await store.aclose()
    assert list(caught.value.exceptions) == [
        backend.failure, backend.close_failure, backend.failure, backend.close_failure, backend.aclose_failure,
    ]  # fmt: skip
    assert backend.held == set()
    await store.aclose()


async def test_closing_disposes_first_and_closes_the_backend_last() -> None:
    """The order in which things end."""
    backend = FlakyBackend()
    async with store_over(backend) as store:
        fill(await store.create("s"))
    assert backend.events == ["writer closed", "backend closed"]
    with pytest.raises(StoreClosedError):
        await store.create("t")
    with pytest.raises(StoreClosedError):
        await store.inspect("s")


async def test_closing_waits_for_a_resume_in_flight_and_leaves_nothing_locked() -> None:
    """The resume is refused, its lock is released, and the close ends after it."""
    backend = FlakyBackend()
    async with store_over(backend) as store:
        fill(await store.create("s"))
    store = store_over(backend)
    resume = asyncio.create_task(store.resume("s"))
    await asyncio.sleep(0)
    await store.aclose()
    assert resume.done()
    with pytest.raises(StoreClosedError):
        await resume
    assert backend.held == set()


async def test_closing_during_a_create_gives_out_no_session() -> None:
    """The create is refused and the close does not miss it."""
    store = store_over(FlakyBackend())
    create = asyncio.create_task(store.create("s"))
    await asyncio.sleep(0)
    await store.aclose()
    with pytest.raises(StoreClosedError):
        await create


async def test_an_exception_through_the_store_still_flushes() -> None:
    """Leaving by an exception, a cancellation or a KeyboardInterrupt writes like any exit."""
    for error in (ValueError("x"), asyncio.CancelledError(), KeyboardInterrupt()):
        backend = FlakyBackend()
        with suppress(ValueError, asyncio.CancelledError, KeyboardInterrupt):
            async with store_over(backend) as store:
                fill(await store.create("s"), 2)
                raise error
        assert stored_numbers(backend) == [0, 1]


@pytest.mark.slow
def test_cancelled_anywhere_nothing_is_lost_or_doubled_or_left_locked() -> None:
    """A program that is cancelled at any of its awaits has, after its exit, everything it had appended."""

    async def program(backend: FlakyBackend, appended: list[int]) -> None:
        async with store_over(backend) as store:
            session = await store.create("s")
            for round_ in range(3):
                fill(session, 2)
                appended.append(session.seq)
                await session.flush()
                if round_ == 1:
                    await session.dispose()
                    session = await store.resume("s")
            child = await store.fork(session, child_id="t")
            fill(child)
            await asyncio.gather(session.flush(), child.flush())
            await session.dispose()

    async def main(cancel_after: int) -> bool:
        backend, appended = FlakyBackend(), [0]
        task = asyncio.create_task(program(backend, appended))
        for _ in range(cancel_after):
            await asyncio.sleep(0)
        finished = task.done()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert backend.held == set()
        if appended[-1]:
            assert stored_numbers(backend, "s") == list(range(appended[-1]))
        return finished

    steps = 0
    while not run(main(steps)):
        steps += 1
    assert steps > 30


# --- place ----------------------------------------------------------------------------------------------------


async def test_a_session_refuses_other_threads() -> None:
    """Append and flush from another thread raise; call_soon_threadsafe is the way."""
    async with store_over(FlakyBackend()) as store:
        session = await store.create("s")
        caught: list[BaseException] = []

        def elsewhere() -> None:
            for act in (lambda: fill(session), lambda: asyncio.run(session.flush())):
                try:
                    act()
                except WrongThreadError as error:
                    caught.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert len(caught) == 2
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        loop.call_soon_threadsafe(fill, session)
        loop.call_soon_threadsafe(done.set_result, None)
        await done
        assert session.seq == 1


def test_a_store_belongs_to_one_event_loop() -> None:
    """A second loop gets a clear error instead of a store that hangs."""
    store = store_over(FlakyBackend())
    with asyncio.Runner() as first, asyncio.Runner() as second:
        session = first.run(store.create("s"))
        with pytest.raises(RuntimeError, match="another event loop"):
            second.run(store.create("t"))
        with pytest.raises(RuntimeError, match="another event loop"):
            second.run(session.flush())
        first.run(store.aclose())


async def test_a_session_of_another_store_is_not_disposed() -> None:
    """Each store ends its own."""
    async with store_over(FlakyBackend()) as store, store_over(FlakyBackend()) as other:
        session = await store.create("s")
        with pytest.raises(ValueError, match="not one of this store"):
            await other.dispose(session)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, TypeError),
        ({"root": "x", "backend": FlakyBackend()}, TypeError),
        ({"backend": FlakyBackend(), "compression": "zstd"}, ValueError),
        ({"backend": FlakyBackend(), "lock_dir": "/tmp"}, ValueError),
        ({"backend": FlakyBackend(), "durability": "always"}, ValueError),
        ({"backend": FlakyBackend(), "batch_window_ms": -1}, ValueError),
        ({"backend": FlakyBackend(), "batch_window_ms": "200"}, TypeError),
        ({"backend": FlakyBackend(), "batch_window_ms": float("nan")}, ValueError),
        ({"backend": FlakyBackend(), "batch_bytes": 0}, ValueError),
        ({"backend": FlakyBackend(), "batch_bytes": True}, TypeError),
        ({"backend": FlakyBackend(), "max_pending_bytes": 1.5}, TypeError),
        ({"backend": FlakyBackend(), "clock": 5}, TypeError),
        ({"backend": FlakyBackend(), "new_id": "x"}, TypeError),
        ({"backend": FlakyBackend(), "invariants": "loose"}, ValueError),
        ({"backend": FlakyBackend(), "checkers": 5}, TypeError),
        ({"backend": FlakyBackend(), "checkers": [5]}, TypeError),
        ({"backend": FlakyBackend(), "on_error": 5}, TypeError),
        ({"backend": FlakyBackend(), "types": {}}, TypeError),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value.__name__,
)
def test_a_wrong_option_is_refused_where_it_is_given(options: dict[str, Any], error: type[Exception]) -> None:
    """The constructor says what is wrong, nothing later does."""
    with pytest.raises(error):
        SessionStore(**options)


async def test_on_error_is_told_which_session_failed() -> None:
    """Once per episode, with the session and the error."""
    told: list[tuple[StoredSession, Exception]] = []
    backend = FlakyBackend()

    def on_error(session: StoredSession, error: Exception) -> None:
        told.append((session, error))

    async with store_over(backend, on_error=on_error) as store:
        session = await store.create("s")
        fill(session)
        error = backend.failure = no_space()
        for _ in range(2):
            with pytest.raises(StorageError):
                await session.flush()
        backend.failure = None
        await session.flush()
        assert told == [(session, error)]
        assert session.persistence_error is None


async def test_stats_count_what_was_written_and_what_waits() -> None:
    """Numbers for whoever asks; nothing is sent anywhere."""
    async with store_over(FlakyBackend()) as store:
        session = await store.create("s")
        fill(session, 3)
        waiting = store.stats()
        assert waiting.pending_bytes > 0
        assert (waiting.open_sessions, waiting.batches, waiting.events) == (1, 0, 0)
        await session.flush()
        stats = store.stats()
        assert stats.pending_bytes == 0
        assert (stats.batches, stats.events, stats.flushes, stats.failures) == (1, 3, 1, 0)
        assert stats.bytes == sum(len(line) + 1 for line in session._log.lines(0, 3))

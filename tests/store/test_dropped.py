"""Stores that a program let go of without closing them: their events are written, and their sessions are free."""

from __future__ import annotations

import asyncio
import gc
import os
from typing import TYPE_CHECKING

import pytest

from sessionstore import SessionLockedError, SessionStore, scan_log
from sessionstore import exit as exit_hooks
from tests.store.fakes import FlakyBackend, no_space

if TYPE_CHECKING:
    from pathlib import Path

    from sessionstore import StoredSession


def fill(session: StoredSession, count: int) -> None:
    """Append *count* events."""
    for _ in range(count):
        session.append("test/event", {"n": session.seq})


async def left_open(root: Path, flushed: int, waiting: int = 0) -> None:
    """A store that is never closed, with a session of which some events are stored and some wait."""
    session = await SessionStore(root, batch_window_ms=60_000).create("s")
    fill(session, flushed)
    await session.flush()
    fill(session, waiting)


async def events_of(root: Path) -> int:
    """How many events a resume finds."""
    async with SessionStore(root) as store:
        return (await store.resume("s")).seq


async def test_a_store_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    """Its session can be opened again in the same process once the garbage is collected."""
    await left_open(tmp_path, 2)
    gc.collect()
    assert await events_of(tmp_path) == 2


def test_what_waited_in_a_store_that_is_gone_is_written(tmp_path: Path) -> None:
    """Nobody else can write these events any more; a new process, or this one, finds them."""
    asyncio.run(left_open(tmp_path, 1, 3))
    gc.collect()
    assert asyncio.run(events_of(tmp_path)) == 4


async def test_events_that_wait_for_their_window_keep_a_store_alive(tmp_path: Path) -> None:
    """While the loop still has to write them, the session is not gone, and nobody else gets it."""
    await left_open(tmp_path, 1, 3)
    gc.collect()
    with pytest.raises(SessionLockedError):
        await events_of(tmp_path)


async def test_a_session_keeps_its_store(tmp_path: Path) -> None:
    """Who holds only the session goes on with it, and it stays locked."""
    session = await SessionStore(tmp_path).create("s")
    fill(session, 1)
    await session.flush()
    gc.collect()
    with pytest.raises(SessionLockedError):
        await events_of(tmp_path)
    fill(session, 1)
    await session.dispose()
    assert await events_of(tmp_path) == 2


async def test_a_store_keeps_its_sessions(tmp_path: Path) -> None:
    """A session that was let go of stays open until its store is closed."""
    async with SessionStore(tmp_path) as store:
        fill(await store.create("s"), 1)
        gc.collect()
        assert (await store.inspect("s")).writer == "live"
        with pytest.raises(SessionLockedError):
            await store.resume("s")
    assert await events_of(tmp_path) == 1


def test_what_cannot_be_written_now_is_tried_again_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk costs no event while there is another chance."""
    monkeypatch.setattr(exit_hooks, "_open", {})
    backend = FlakyBackend()

    async def main() -> None:
        fill(await SessionStore(backend=backend).create("s"), 3)
        backend.failure = no_space()

    asyncio.run(main())
    gc.collect()
    assert backend.at_exit == 1
    backend.failure = None
    exit_hooks._at_exit()
    assert backend.at_exit == 2
    assert backend.stored_bytes("s").count(b"test/event") == 3


def test_a_write_whose_loop_was_closed_is_not_repeated() -> None:
    """The batch that hung in it, and what came after, are written once."""
    backend = FlakyBackend()

    async def main() -> None:
        session = await SessionStore(backend=backend, batch_window_ms=0).create("s")
        backend.gate = asyncio.Event()
        fill(session, 2)
        while not backend.entered:
            await asyncio.sleep(0)
        fill(session, 2)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    backend.gate = None
    gc.collect()
    assert [event.to_dict()["data"] for event in scan_log(backend.stored_bytes("s")).events] == [
        {"n": n} for n in range(4)
    ]


def test_nothing_is_left_to_do_at_exit_for_a_store_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not written twice, and not kept."""
    monkeypatch.setattr(exit_hooks, "_open", {})
    backend = FlakyBackend()

    async def main() -> None:
        fill(await SessionStore(backend=backend).create("s"), 3)

    asyncio.run(main())
    gc.collect()
    assert (backend.at_exit, exit_hooks._open) == (1, {})


async def test_a_second_open_in_one_process_is_told_so(tmp_path: Path) -> None:
    """The pid alone would send people looking for another process."""
    async with SessionStore(tmp_path) as first, SessionStore(tmp_path) as second:
        session = await first.create("s")
        fill(session, 1)
        await session.flush()
        for store in (first, second):
            with pytest.raises(SessionLockedError, match="this process") as caught:
                await store.resume("s")
            assert caught.value.pid == os.getpid()
            assert "dispose" in str(caught.value)

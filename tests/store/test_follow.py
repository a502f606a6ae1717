"""Following a session through the store."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from sessionstore import SessionNotFoundError, SessionStore, StoreClosedError
from sessionstore.backends.memory import MemoryBackend


async def test_a_store_follows_what_another_writes() -> None:
    """Events come in order, from the seq asked for, and later ones as they are flushed."""
    backend = MemoryBackend()
    async with SessionStore(backend=backend) as writing, SessionStore(backend=backend) as reading:
        session = await writing.create("s")
        for n in range(3):
            session.append("my/note", {"n": n})
        await session.flush()
        seen: list[int] = []
        async with aclosing(reading.follow("s", 1, max_wait=0.01)) as events:
            async for event in events:
                seen.append(event.seq)
                if event.seq == 2:
                    session.append("my/note", {"n": 3})
                    await session.flush()
                if event.seq == 3:
                    break
        assert seen == [1, 2, 3]


async def test_a_follower_does_not_keep_its_store_open() -> None:
    """A store closes while an iterator of its own waits for events."""
    backend = MemoryBackend()
    async with SessionStore(backend=backend) as store:
        session = await store.create("s")
        session.append("my/note", 1)
        await session.flush()
        events = store.follow("s")
        assert (await anext(events)).seq == 0
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await events.aclose()


async def test_what_cannot_be_followed_is_told() -> None:
    """A missing session, a bad seq, a closed store: the documented errors, at the first event asked for."""
    store = SessionStore(backend=MemoryBackend())
    with pytest.raises(SessionNotFoundError):
        await anext(store.follow("none"))
    with pytest.raises(ValueError, match="seq"):
        await anext(store.follow("none", -1))
    with pytest.raises(TypeError):
        await anext(store.follow("none", 1.5))  # type: ignore[arg-type]
    await store.aclose()
    with pytest.raises(StoreClosedError):
        await anext(store.follow("none"))

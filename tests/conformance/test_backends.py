"""Conformance, theme M: what every backend does, through the store and by itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from sessionstore import InvalidEventError, SessionNotFoundError
from sessionstore.backends.base import Batch
from sessionstore.header import make_header
from tests.conformance.build import answer, closed_turn, say, tool_call, turn_start

if TYPE_CHECKING:
    from sessionstore import SessionStore, StoredSession
    from tests.conformance.places import Place

PLACE = {"turn": 1, "step": 1}


async def interrupted(store: SessionStore, *, recorded: bool | None = None) -> StoredSession:
    """A stored session in the middle of a turn; with *recorded*, a call is asked for, or recorded too."""
    session = await store.create("s")
    session.append("turn/start", turn_start())
    say(session)
    session.append("step/start", PLACE)
    if recorded is not None:
        answer(session, content=[tool_call("c1")])
    if recorded:
        session.append("tool/call", {**PLACE, "callId": "c1", "name": "shell", "arguments": "{}"})
    await session.flush()
    return session


async def crash(place: Place, session: StoredSession) -> None:
    """What is on the disk survives; the process, its lock and its memory do not."""
    data = place.read(session.id)
    await session.dispose()
    place.write(session.id, data)


async def test_what_was_appended_is_what_is_loaded(place: Place) -> None:
    """Header and every event, byte for byte."""
    async with place.store() as store:
        session = await store.create("s", cwd="/srv")
        closed_turn(session)
        session.append("my/event", {"text": "\u2028 \ud83d é", "n": 10**30, "f": 1.5})
        header, lines = session.header, [e.to_json() for e in session.events]
    async with place.store() as store:
        again = await store.resume("s")
        assert again.header == header
        assert [e.to_json() for e in again.events] == lines
        assert again.recovery is not None
        assert not again.recovery.changed


async def test_a_fractional_creation_time_is_refused_and_the_id_stays_free(place: Place) -> None:
    """Nothing is begun that could not be read back."""
    async with place.store() as store:
        with pytest.raises(InvalidEventError):
            await store.create("s", created_at=1.5)  # type: ignore[arg-type]
        say(await store.create("s", created_at=2))


async def test_an_interrupted_turn_is_kept_and_closed(place: Place) -> None:
    """Inspect shows the closed turn and changes nothing; resume writes it; the session goes on and reloads."""
    async with place.store() as store:
        session = await interrupted(store)
        stored = [e.to_json() for e in session.events]
        await crash(place, session)
    async with place.store() as store:
        backend: Any = place.backend()
        before = (await backend.read("s")).revision, place.read("s")
        seen = await store.inspect("s")
        assert [e.type for e in seen.events][-2:] == ["step/end", "turn/end"]
        assert ((await backend.read("s")).revision, place.read("s")) == before
        again = await store.resume("s")
        assert (await backend.read("s")).revision != before[0]
        assert place.read("s").startswith(before[1])
        assert [e.to_json() for e in again.events][: len(stored)] == stored
        assert again.events == seen.events
        closed_turn(again, 2)
    async with place.store() as store:
        last = await store.resume("s")
        assert last.recovery is not None
        assert not last.recovery.changed
        assert last.seq == len(stored) + 2 + 6


@pytest.mark.parametrize(("recorded", "code"), [(False, "TOOL_NOT_STARTED"), (True, "TOOL_OUTCOME_UNKNOWN")])
async def test_an_unanswered_call_is_answered_by_what_is_known(place: Place, recorded: bool, code: str) -> None:
    """Never recorded: may be retried. Recorded: may have run. The history pairs the result with its call."""
    async with place.store() as store:
        await crash(place, await interrupted(store, recorded=recorded))
    async with place.store() as store:
        session = await store.resume("s")
        assert session.recovery is not None
        data: Any = session.recovery.closers[0].to_dict()["data"]
        assert data["error"]["code"] == code
        asked, answered = session.derive_messages()[-2:]
        assert asked.content[0].id == "c1"  # type: ignore[union-attr]
        assert answered.content[0].tool_call_id == "c1"  # type: ignore[union-attr]
        assert answered.content[0].is_error is True  # type: ignore[union-attr]


async def test_a_session_without_events_is_nowhere(place: Place) -> None:
    """Neither listed here nor by another process, and free to be created again."""
    async with place.store() as store:
        await store.create("s")
        assert (await store.list()).sessions == ()
        async with place.store() as other:
            assert (await other.list()).sessions == ()
            with pytest.raises(SessionNotFoundError):
                await other.inspect("s")


async def test_a_cancelled_read_leaves_the_store_usable(place: Place) -> None:
    """A reader that is cancelled before it starts, or while it runs, raises CancelledError and disturbs nobody."""
    async with place.store() as store:
        session = await store.create("s")
        closed_turn(session)
        await session.flush()
        await session.dispose()
        for read in (store.inspect("s"), store.read_from("s", 0), store.list()):
            task = asyncio.ensure_future(read)
            await asyncio.sleep(0)
            task.cancel("enough")
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await store.inspect("s")).events == session.events


async def test_read_from_gives_the_stored_suffix(place: Place) -> None:
    """Exactly the events from a seq on; nothing past the end; no closers; errors for what is no seq."""
    async with place.store() as store:
        session = await interrupted(store)
        for seq in range(4):
            assert list(await store.read_from("s", seq)) == list(session.events[seq:])
        assert list(await store.read_from("s", 99)) == []
        say(session, "still waiting")
        assert len(await store.read_from("s", 0)) == 3
        with pytest.raises(SessionNotFoundError):
            await store.read_from("nobody", 0)
        for bad in (-1, 0.5, "0", None, True):
            with pytest.raises((ValueError, TypeError)):
                await store.read_from("s", bad)  # type: ignore[arg-type]


async def test_a_revision_changes_with_every_append_and_only_then(place: Place) -> None:
    """Two reads of the same log have the same revision."""
    backend = place.backend()
    async with place.store() as store:
        session = await interrupted(store)
        first = (await backend.read("s")).revision
        assert (await backend.read("s")).revision == first
        assert (await place.backend().read("s")).revision == first
        say(session, "more")
        await session.flush()
        assert (await backend.read("s")).revision != first


async def test_a_batch_that_does_not_continue_is_refused(place: Place) -> None:
    """A writer takes the next seq and no other, and what it refused is not stored."""
    writer = place.backend().writer(make_header("s", created_at=1))
    lines = [b'{"type":"my/event","seq":%d,"time":1,"data":{}}' % seq for seq in range(3)]
    await writer.append(Batch(0, 1, ((lines[0],),), lambda: lines[:1]), sync=True)
    with pytest.raises(ValueError, match="seq 1"):
        await writer.append(Batch(2, 3, ((lines[2],),), lambda: lines), sync=True)
    assert writer.next_seq == 1
    await writer.append(Batch(1, 2, ((lines[1],),), lambda: lines[:2]), sync=True)
    await writer.close()
    assert place.read("s").count(b"my/event") == 2


BAD: list[Any] = [
    float("nan"),
    float("inf"),
    -0.0,
    {1: 2},
    {1, 2},
    b"x",
    object(),
    len,
    [object()],
    {"a": {"b": float("nan")}},
    (1, {2}),
    1j,
]


@pytest.mark.parametrize("value", BAD, ids=repr)
async def test_what_is_no_json_never_reaches_a_backend(place: Place, value: Any) -> None:
    """Refused at append, with nothing stored and the seq free."""
    async with place.store() as store:
        session = await store.create("s")
        with pytest.raises(InvalidEventError):
            session.append("my/event", value)
        assert session.append("my/event", {"fine": True}).seq == 0
        assert await session.flush() == 1
    assert place.read("s").count(b'"seq":') == 1


GOOD: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    10**25,
    "",
    "\x00\n\u2028",
    "\ud83d",
    [],
    {},
    [[]],
    {"": None},
    (1, (2,)),
    {"__proto__": 1},
]


@pytest.mark.parametrize("value", GOOD, ids=repr)
async def test_what_is_json_comes_back(place: Place, value: Any) -> None:
    """Every kind of value, through the disk."""
    async with place.store() as store:
        session = await store.create("s")
        event = session.append("my/event", value)
    async with place.store() as store:
        assert (await store.resume("s")).events[0] == event

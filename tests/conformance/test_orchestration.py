"""Conformance, theme N: who owns a session, and what loading it means."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from sessionstore import (
    DamagedLogError,
    InvalidEventError,
    Session,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    SessionStoreError,
    UnsupportedFormatError,
)
from tests.conformance.build import closed_turn, dicts, say, turn_start, user_message

if TYPE_CHECKING:
    from tests.conformance.places import Place

HEADER = b'{"type":"session","version":0,"id":"s","createdAt":1,"delegationDepth":0}\n'


def log(*events: dict[str, Any], header: bytes = HEADER) -> bytes:
    """A log by hand."""
    return header + b"".join(json.dumps(e, separators=(",", ":")).encode() + b"\n" for e in events)


async def test_a_live_session_is_seen_as_it_is_in_memory(place: Place) -> None:
    """Looking at an open session shows events that still wait, and its open turn stays open."""
    async with place.store() as store:
        session = await store.create("s")
        session.append("turn/start", turn_start())
        await session.flush()
        say(session, "waiting")
        seen = await store.inspect("s")
        assert seen.events == session.events
        assert seen.writer == "live"
        assert seen.closers == ()
        assert [e.type for e in session.events] == ["turn/start", "user/message"]


@pytest.mark.slow
async def test_no_repair_while_somebody_owns_the_session(place: Place) -> None:
    """Another store may look, and may not resume; nothing is changed underneath the owner."""
    async with place.store() as store, place.store() as other:
        session = await store.create("s")
        session.append("turn/start", turn_start())
        await session.flush()
        before = place.read("s")
        with pytest.raises(SessionLockedError):
            await other.resume("s")
        with pytest.raises(SessionLockedError):
            await store.resume("s")
        seen = await other.inspect("s")
        assert (seen.writer, seen.closers) == ("live", ())
        assert place.read("s") == before
        say(session)
        assert await session.flush() == 2


@pytest.mark.slow
async def test_of_two_resumes_at_once_one_has_it(place: Place) -> None:
    """In one store, and in two."""
    async with place.store() as store:
        closed_turn(await store.create("s"))
    async with place.store() as one, place.store() as two:
        results = await asyncio.gather(
            one.resume("s"), one.resume("s"), two.resume("s"), two.resume("s"), return_exceptions=True
        )
        winners = [r for r in results if not isinstance(r, BaseException)]
        assert len(winners) == 1
        assert all(isinstance(r, SessionLockedError) for r in results if isinstance(r, BaseException))
        say(winners[0])
        assert await winners[0].flush() == 7


async def test_an_unpublished_session_cannot_be_resumed(place: Place) -> None:
    """What is nowhere stored is not found, by anybody but its owner."""
    async with place.store() as store, place.store() as other:
        await store.create("s")
        with pytest.raises(SessionNotFoundError):
            await other.resume("s")
        with pytest.raises((SessionNotFoundError, SessionLockedError)):
            await store.resume("s")


async def test_lineage_round_trips(place: Place) -> None:
    """Seed length, delegation depth and parent survive resumes unchanged."""
    async with place.store() as store:
        parent = await store.create("p", delegation_depth=3)
        closed_turn(parent)
        header = (await store.fork(parent, child_id="c")).header
    for _ in range(2):
        async with place.store() as store:
            child = await store.resume("c")
            assert child.header == header
            say(child, f"more {child.seq}")
    assert (header.seed_length, header.delegation_depth, header.parent_session) == (6, 3, "p")


async def test_what_waits_to_be_written_cannot_be_changed(place: Place) -> None:
    """Between append and flush the caller's objects may change; the log does not."""
    async with place.store() as store:
        session = await store.create("s")
        data = user_message(text="before")
        session.append("user/message", data, surface_op="append")
        data["content"][0]["text"] = "after"
        data["id"] = "other"
        await session.flush()
        assert b"before" in place.read("s")
        assert b"after" not in place.read("s")


async def test_loaded_and_inspected_messages_are_immutable(place: Place) -> None:
    """Nobody can change what another reader sees."""
    async with place.store() as store:
        closed_turn(await store.create("s"))
    async with place.store() as store:
        for view in (await store.inspect("s"), await store.resume("s")):
            (first, _) = view.derive_messages()
            with pytest.raises(AttributeError):
                first.id = "x"  # type: ignore[union-attr,misc]
            view.derive_messages().clear()
            assert len(view.derive_messages()) == 2


async def test_logs_from_before_identities_are_resumed(place: Place) -> None:
    """Flat messages of old logs load, get a stable id, keep their bytes, and the session goes on."""
    old = log(
        {"type": "turn/start", "seq": 0, "time": 1, "data": {"turn": 1}},
        {
            "type": "user/message",
            "seq": 1,
            "time": 1,
            "data": {"content": [{"type": "text", "text": "hi"}], "source": {"kind": "user"}},
            "surfaceOp": "append",
        },
        {"type": "step/start", "seq": 2, "time": 1, "data": {"turn": 1, "step": 1}},
        {
            "type": "assistant/message",
            "seq": 3,
            "time": 1,
            "data": {
                "turn": 1,
                "step": 1,
                "content": [{"type": "text", "text": "yes"}],
                "provenance": {"provider": "p", "model": "m"},
            },
            "surfaceOp": "append",
        },
        {"type": "step/end", "seq": 4, "time": 1, "data": {"turn": 1, "step": 1}},
        {"type": "turn/end", "seq": 5, "time": 1, "data": {"turn": 1, "reason": {"kind": "completed"}}},
    )
    place.write("s", old)
    async with place.store() as store:
        session = await store.resume("s")
        one, two = session.derive_messages()
        assert (one.id, two.id) == ("legacy-message:s:1", "legacy-message:s:3")  # type: ignore[union-attr]
        assert two.source.provider == "p"  # type: ignore[union-attr]
        closed_turn(session, 2)
    assert place.read("s").startswith(old)


async def test_logs_of_before_the_loop_had_steps_are_resumed(place: Place) -> None:
    """A turn whose messages stand in no step is a turn."""
    old = log(
        {"type": "turn/start", "seq": 0, "time": 1, "data": {"turn": 1}},
        {"type": "user/message", "seq": 1, "time": 1, "data": user_message(), "surfaceOp": "append"},
        {"type": "turn/end", "seq": 2, "time": 1, "data": {"turn": 1, "reason": {"kind": "completed"}}},
    )
    place.write("s", old)
    async with place.store() as store:
        session = await store.resume("s")
        assert session.seq == 3
        assert len(session.derive_messages()) == 1


@pytest.mark.parametrize(
    "change",
    [{"id": ""}, {"id": None}, {"role": "assistant"}, {"source": {}}, {"content": "hi"}],
    ids=repr,
)
async def test_malformed_stored_messages_are_refused(place: Place, change: dict[str, Any]) -> None:
    """The error names line and seq; nothing is changed; a look is still possible."""
    data = log(
        {"type": "user/message", "seq": 0, "time": 1, "data": {**user_message(), **change}, "surfaceOp": "append"}
    )
    place.write("s", data)
    async with place.store() as store:
        with pytest.raises(DamagedLogError) as caught:
            await store.resume("s")
        assert caught.value.verdict == "invalid"
        assert "line 2" in str(caught.value)
        assert place.read("s") == data
        assert (await store.inspect("s")).verdict == "invalid"
        assert len(await store.read_from("s", 0)) == 1


async def test_an_empty_flush_writes_nothing(place: Place) -> None:
    """A session without events stays lazy, however often it is flushed."""
    async with place.store() as store:
        session = await store.create("s")
        assert await session.flush() == 0
        assert (await store.list()).sessions == ()
        say(session)
        assert await session.flush() == 1
        stored = place.read("s")
        assert await session.flush() == 1
        assert place.read("s") == stored


async def test_a_seed_is_stored_once(place: Place) -> None:
    """A fork, and a session created from a seed, have each seed event on the disk exactly once."""
    seed = Session("x")
    closed_turn(seed)
    async with place.store() as store:
        session = await store.create("s", seed=dicts(seed))
        say(session, "live")
        child = await store.fork(session, child_id="c")
        say(child, "live too")
    for id_, events in (("s", 7), ("c", 8)):
        lines = place.read(id_).splitlines()[1:]
        assert [json.loads(line)["seq"] for line in lines] == list(range(events))


async def test_a_resumed_session_goes_on_where_it_was(place: Place) -> None:
    """Its events are not appended again; the next seq follows; what was on the disk is not rewritten."""
    async with place.store() as store:
        closed_turn(await store.create("s"))
    before = place.read("s")
    async with place.store() as store:
        session = await store.resume("s")
        assert (session.seq, session.first_live_seq, session.durable_seq) == (6, 6, 6)
        await session.flush()
        assert place.read("s") == before
        assert say(session, "next").seq == 6
    assert place.read("s").startswith(before)


async def test_a_stored_id_is_taken_and_an_abandoned_one_is_free(place: Place) -> None:
    """An id that was reserved and never written can be used again."""
    async with place.store() as store:
        abandoned = await store.create("s")
        await abandoned.dispose()
        session = await store.create("s")
        say(session)
        await session.dispose()
        assert b"user/message" in place.read("s")
        with pytest.raises(SessionExistsError):
            await store.create("s")
    async with place.store() as store:
        with pytest.raises(SessionExistsError):
            await store.create("s")


async def test_disposing_drains_before_it_releases(place: Place) -> None:
    """When dispose returns, everything is stored and somebody else may have the session."""
    async with place.store() as store, place.store() as other:
        session = await store.create("s")
        for k in range(20):
            say(session, f"u{k}")
        await asyncio.gather(session.dispose(), session.dispose())
        assert session.durable_seq == 20
        assert (await other.resume("s")).seq == 20


async def test_a_seed_for_a_stored_id_is_refused(place: Place) -> None:
    """A log is continued by resuming it: a seed for a taken id is refused, whether it matches or not."""
    async with place.store() as store:
        session = await store.create("s", cwd="/srv")
        closed_turn(session)
        seed = dicts(session)
        await session.dispose()
        for cwd in ("/srv", "/other", None):
            with pytest.raises(SessionExistsError):
                await store.create("s", cwd=cwd, seed=seed)
            with pytest.raises(SessionExistsError):
                await store.create("s", cwd=cwd, seed=seed[:1])


async def test_a_missing_id_is_not_found(place: Place) -> None:
    """Whatever is asked of it."""
    async with place.store() as store:
        for call in (store.resume, store.inspect, store.delete):
            with pytest.raises(SessionNotFoundError) as caught:
                await call("nobody")
            assert caught.value.session_id == "nobody"


@pytest.mark.parametrize(("version", "direction"), [(1, "newer"), (99, "newer"), (-1, "older")])
async def test_another_version_is_refused_with_its_direction(place: Place, version: int, direction: str) -> None:
    """Before anything else of the header is looked at, and nothing is changed."""
    data = log(header=b'{"version":%d,"type":"session","future":true,"id":"s"}\n' % version)
    place.write("s", data)
    async with place.store() as store:
        with pytest.raises(UnsupportedFormatError) as caught:
            await store.resume("s")
        assert caught.value.direction == direction
        assert place.read("s") == data


async def test_an_unknown_event_type_is_carried(place: Place) -> None:
    """Here no type is refused, with or without the mark that a reader may skip it."""
    data = log(
        {"type": "later/one", "seq": 0, "time": 1, "data": {"a": [1]}},
        {"type": "later/two", "seq": 1, "time": 1, "data": None, "ignorable": True},
    )
    place.write("s", data)
    async with place.store() as store:
        session = await store.resume("s")
        assert [e.type for e in session.events] == ["later/one", "later/two"]
        assert session.events[1].to_dict()["ignorable"] is True
    assert place.read("s") == data


async def test_a_torn_tail_is_cut_and_an_open_turn_closed(place: Place) -> None:
    """A resume repairs both at once and says so."""
    data = log({"type": "turn/start", "seq": 0, "time": 7, "data": turn_start()})
    place.write("s", data + b'{"type":"user/mess')
    async with place.store() as store:
        session = await store.resume("s")
        report = session.recovery
        assert report is not None
        assert (report.cut_at, report.cut_bytes) == (len(data), 18)
        assert report.quarantine is not None
        assert [e.type for e in report.closers] == ["turn/end"]
        assert report.closers[0].time == 7
        assert place.read("s").startswith(data)
        say(session)
        assert await session.flush() == 3


async def test_a_first_flush_stores_everything_from_the_first_event(place: Place) -> None:
    """Nothing was stored, so everything is."""
    async with place.store(batch_window_ms=60_000) as store:
        session = await store.create("s")
        closed_turn(session)
        assert session.durable_seq == 0
        assert await session.flush() == 6
        assert len(place.read("s").splitlines()) == 7


async def test_retired_events_are_refused_at_append_and_load(place: Place) -> None:
    """Deltas of the request header and mode events are of the past, in a log as in a call."""
    for type_, payload in (("request/header-delta", {}), ("mode/set", {"mode": "plan"})):
        data = log({"type": type_, "seq": 0, "time": 1, "data": payload})
        place.write(f"old-{type_[:4]}", data.replace(b'"id":"s"', b'"id":"old-%s"' % type_[:4].encode()))
        async with place.store() as store:
            with pytest.raises(UnsupportedFormatError):
                await store.resume(f"old-{type_[:4]}")
            session = await store.create()
            with pytest.raises((InvalidEventError, SessionStoreError)):
                session.append(type_, payload)

"""Conformance, theme E: sessions of a store, observers, checkers, and how they end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from sessionstore import (
    InvalidEventError,
    Session,
    SessionExistsError,
    SessionLockedError,
    StoreClosedError,
)
from tests.conformance.build import closed_turn, nodes, say, turn_end, turn_start

if TYPE_CHECKING:
    from sessionstore import Event
    from tests.conformance.places import Place


async def test_create_gives_a_session_and_events_reach_observers(place: Place) -> None:
    """A created session is open at once; every event reaches every observer once, in order."""
    async with place.store() as store:
        session = await store.create("s")
        seen: list[tuple[str, int]] = []
        session.observe(lambda event: seen.append(("one", event.seq)))
        session.observe(lambda event: seen.append(("two", event.seq)))
        closed_turn(session)
        assert seen == [(name, seq) for seq in range(6) for name in ("one", "two")]
        assert store.stats().open_sessions == 1


async def test_a_taken_id_is_refused_and_a_seed_is_supported(place: Place) -> None:
    """An id is taken once it is open, and once it is stored."""
    original = Session("x")
    closed_turn(original)
    async with place.store() as store:
        seeded = await store.create("s", seed=original.events)
        assert seeded.events == original.events
        with pytest.raises((SessionExistsError, SessionLockedError)):
            await store.create("s")
        await seeded.dispose()
        with pytest.raises(SessionExistsError):
            await store.create("s")


@pytest.mark.slow
async def test_a_session_that_comes_too_late_cannot_overwrite(place: Place) -> None:
    """Two stores reserve one id; the first to write has it, the other's events stay in memory."""
    async with place.store() as first:
        one = await first.create("s")
        second = place.store()
        two = await second.create("s")
        say(one, "mine")
        await one.flush()
        say(two, "theirs")
        with pytest.raises((SessionExistsError, SessionLockedError)):
            await two.flush()
        assert two.seq == 1
        with pytest.raises((SessionExistsError, SessionLockedError)):
            await second.aclose()
        assert b"mine" in place.read("s")
        assert b"theirs" not in place.read("s")


async def test_a_session_object_belongs_to_one_store(place: Place) -> None:
    """A store ends only its own sessions."""
    async with place.store() as one, place.store() as two:
        session = await one.create("s")
        with pytest.raises(ValueError, match="store"):
            await two.dispose(session)
        assert not session.disposed


async def test_a_bare_create_makes_a_current_header(place: Place) -> None:
    """Without arguments the id is new and unique, the time is now, the version current."""
    async with place.store(clock=lambda: 77) as store:
        one, two = await store.create(), await store.create()
        assert one.id != two.id
        assert (one.header.version, one.header.created_at, one.header.delegation_depth) == (0, 77, 0)


async def test_metadata_reaches_the_stored_header(place: Place) -> None:
    """Cwd, parent, depth and origin are read back."""
    async with place.store() as store:
        session = await store.create(
            "s", cwd="/srv/project", parent_session="p", delegation_depth=2, origin="subagent", agent_preset="x"
        )
        say(session)
        header = session.header
    async with place.store() as store:
        again = await store.resume("s")
        assert again.header == header
        assert (header.cwd, header.parent_session, header.delegation_depth) == ("/srv/project", "p", 2)


@pytest.mark.parametrize(
    "bad",
    [
        {"cwd": "relative"},
        {"cwd": ""},
        {"created_at": 0.5},
        {"created_at": -1},
        {"created_at": "now"},
        {"delegation_depth": -1},
        {"delegation_depth": 0.5},
        {"seed_length": -1},
        {"parent_session": 5},
        {"origin": "somebody"},
        {"agent_preset": object()},
    ],
    ids=repr,
)
async def test_bad_metadata_is_refused_and_the_id_stays_free(place: Place, bad: dict[str, Any]) -> None:
    """A header that could not be read back is never begun."""
    async with place.store() as store:
        with pytest.raises((InvalidEventError, TypeError)):
            await store.create("s", **bad)
        session = await store.create("s")
        say(session)
        assert await session.flush() == 1


async def test_sessions_end_with_their_store(place: Place) -> None:
    """After the store is closed its sessions are flushed, disposed, and take nothing more."""
    async with place.store() as store:
        session = await store.create("s")
        say(session)
    assert session.disposed
    assert session.durable_seq == 1
    with pytest.raises(StoreClosedError):
        say(session, "late")
    with pytest.raises(StoreClosedError):
        await store.create()
    assert session.seq == 1


async def test_a_create_that_fails_leaves_nothing_behind(place: Place) -> None:
    """A seed that is refused frees the id again."""
    async with place.store() as store:
        with pytest.raises(InvalidEventError):
            await store.create("s", seed=[{"type": "x", "seq": 5, "time": 1, "data": 1}])
        assert store.stats().open_sessions == 0
        await store.create("s")


async def test_failing_observers_are_contained_in_order(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Each failure is logged, later observers still run, and append returns normally."""
    async with place.store() as store:
        session = await store.create("s")
        seen: list[str] = []

        def fail(name: str) -> Any:
            def observer(event: Event) -> None:
                seen.append(name)
                raise RuntimeError(name)

            return observer

        session.observe(fail("first"))
        session.observe(fail("second"))
        session.observe(lambda event: seen.append("third"))
        with caplog.at_level(logging.WARNING, logger="sessionstore"):
            event = say(session, text="the content")
        assert event.seq == 0
        assert seen == ["first", "second", "third"]
        failures = [record.exc_info[1] for record in caplog.records if record.exc_info]
        assert [str(failure) for failure in failures] == ["first", "second"]
        assert "the content" not in "".join(record.getMessage() for record in caplog.records)


async def test_only_exceptions_are_contained(place: Place) -> None:
    """An observer that raises KeyboardInterrupt is heard; the event is in the log all the same."""
    async with place.store() as store:
        session = await store.create("s")

        def interrupt(event: Event) -> None:
            raise KeyboardInterrupt

        remove = session.observe(interrupt)
        with pytest.raises(KeyboardInterrupt):
            say(session)
        remove()
        assert session.seq == 1
        say(session, "u2")
        assert await session.flush() == 2


async def test_a_checker_sees_the_finished_event_and_may_veto(place: Place) -> None:
    """The candidate is complete and immutable; a veto leaves log and seq as they were."""

    class VetoError(Exception):
        """No."""

    seen: list[tuple[int, str]] = []

    def checker(event: Event) -> None:
        seen.append((event.seq, event.type))
        with pytest.raises(AttributeError):
            event.seq = 9  # type: ignore[misc]
        if event.type == "my/forbidden":
            raise VetoError

    async with place.store(checkers=[checker]) as store:
        session = await store.create("s")
        with pytest.raises(VetoError):
            session.append("my/forbidden", {})
        assert session.seq == 0
        assert session.append("my/allowed", {}).seq == 0
        assert seen == [(0, "my/forbidden"), (0, "my/allowed")]


async def test_a_vetoed_message_moves_neither_nodes_nor_generation(place: Place) -> None:
    """The surface is as it was, for a message and for a replacement."""
    async with place.store() as store:
        session = await store.create("s")
        say(session, "u1")

        def veto(event: Event) -> None:
            raise PermissionError(event.type)

        remove = session.check(veto)
        with pytest.raises(PermissionError):
            say(session, "u2")
        with pytest.raises(PermissionError):
            say(session, "u2", surface_op={"op": "replace", "start": 0, "end": 0}, source_event_seqs=[0])
        assert (nodes(session), session.surface.replace_generation, session.seq) == ((0,), 0, 1)
        remove()
        assert say(session, "u2").seq == 1


async def test_the_observers_of_an_event_are_those_of_its_commit(place: Place) -> None:
    """An observer that comes or goes while an event is published counts from the next event on."""
    async with place.store() as store:
        session = await store.create("s")
        seen: list[str] = []

        def late(event: Event) -> None:
            seen.append(f"late {event.seq}")

        def first(event: Event) -> None:
            seen.append(f"first {event.seq}")
            if event.seq == 0:
                session.observe(late)
                remove_second()

        session.observe(first)
        remove_second = session.observe(lambda event: seen.append(f"second {event.seq}"))
        say(session, "u1")
        say(session, "u2")
        assert seen == ["first 0", "second 0", "first 1", "late 1"]


async def test_an_observer_cannot_append_to_its_own_session(place: Place) -> None:
    """A re-entrant append is refused, contained, and does not reorder what the others see; another session is open."""
    async with place.store() as store:
        session, other = await store.create("s"), await store.create("other")
        seen: list[int] = []
        refusals: list[str] = []

        def reenter(event: Event) -> None:
            try:
                session.append("my/echo", {})
            except InvalidEventError as error:
                refusals.append(error.reason)
                raise
            finally:
                other.append("my/echo", {"of": event.seq})

        session.observe(reenter)
        session.observe(lambda event: seen.append(event.seq))
        say(session, "u1")
        say(session, "u2")
        assert seen == [0, 1]
        assert len(refusals) == 2
        assert session.seq == 2
        assert other.seq == 2


async def test_a_session_disposed_by_an_observer_ends_after_the_event(place: Place) -> None:
    """Ending from inside an observer waits for the publication to end; the event is stored."""
    import asyncio

    async with place.store() as store:
        session = await store.create("s")
        seen: list[str] = []
        endings: list[asyncio.Task[None]] = []

        def end(event: Event) -> None:
            seen.append("ends")
            endings.append(asyncio.ensure_future(session.dispose()))

        session.observe(end)
        session.observe(lambda event: seen.append("still told"))
        say(session)
        assert seen == ["ends", "still told"]
        await asyncio.gather(*endings)
        assert session.disposed
        assert session.durable_seq == 1


async def test_an_observer_that_is_a_coroutine_function_is_refused_or_reported(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Observers are plain functions: what an async one returns is never awaited silently."""

    async def observer(event: Event) -> None:
        raise AssertionError("never run")

    async with place.store() as store:
        session = await store.create("s")
        try:
            session.observe(observer)
        except TypeError:
            return
        with caplog.at_level(logging.WARNING, logger="sessionstore"), pytest.warns(RuntimeWarning):
            say(session)
            import gc

            gc.collect()
        assert session.seq == 1


async def test_removing_twice_is_harmless(place: Place) -> None:
    """The function that takes an observer off may be called again."""
    async with place.store() as store:
        session = await store.create("s")
        seen: list[int] = []
        remove = session.observe(lambda event: seen.append(event.seq))
        remove()
        remove()
        say(session)
        assert seen == []


async def test_a_turn_survives_its_session(place: Place) -> None:
    """What was appended through one store is read through the next."""
    async with place.store() as store:
        session = await store.create("s")
        session.append("turn/start", turn_start())
        session.append("turn/end", turn_end())
        stored = list(session.events)
    async with place.store() as store:
        assert list((await store.resume("s")).events) == stored

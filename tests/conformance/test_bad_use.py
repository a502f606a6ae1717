"""Bad use of a session: its recorder, observers and checkers, clocks and makers of ids.

It costs nothing: the session goes on and what is stored is sound.
"""

from __future__ import annotations

import asyncio
import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from sessionstore import (
    AssistantChunk,
    ForkError,
    InvalidEventError,
    InvariantError,
    Session,
    SessionExistsError,
    SessionLockedError,
    SessionStore,
    StoreClosedError,
    TextBlock,
    TextDelta,
    TurnStart,
)
from sessionstore.backends.memory import MemoryBackend
from tests.conformance.build import MODEL, goes_on, tool_call

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sessionstore import Event, Step, StoredSession, Turn
    from tests.conformance.places import Place


# --- the recorder -------------------------------------------------------------------------------------------------


def asking(*call_ids: str) -> dict[str, Any]:
    """An assistant message that asks for tools."""
    return {"content": [tool_call(call_id) for call_id in call_ids], "source": MODEL}


NO_REASONS = [None, 0, "completed", [], {}, {"kind": 1}, {"kind": "aborted", "reason": "x"}, {"kind": b"x"}, object()]


@pytest.mark.parametrize("reason", NO_REASONS, ids=repr)
async def test_a_turn_cannot_be_given_an_end_that_cannot_be_written(place: Place, reason: Any) -> None:
    """Such a reason is refused when it is given; at the end of the turn it would leave the turn open for ever."""
    async with place.store() as store:
        session = await store.create("s")
        async with session.turn() as turn:
            with pytest.raises(InvalidEventError, match="turn/end"):
                turn.end(reason)
        assert session.events[-1].to_dict()["data"] == {"turn": 1, "reason": {"kind": "completed"}}
        async with session.turn() as turn:
            assert turn.number == 2
        await goes_on(session)


OUTSIDE: dict[str, Callable[[Turn, Step], object]] = {
    "user": lambda turn, step: turn.user("x"),
    "steer": lambda turn, step: turn.steer("x"),
    "end": lambda turn, step: turn.end({"kind": "blocked"}),
    "step": lambda turn, step: turn.step().__aenter__(),
    "chunk": lambda turn, step: step.chunk(TextDelta(index=0, text="x")),
    "chunk as a dict": lambda turn, step: step.chunk({"type": "text-delta", "index": 0, "text": "x"}),
    "message": lambda turn, step: step.message(asking()),
    "call": lambda turn, step: step.call("c1", "sh", "{}"),
    "result": lambda turn, step: step.result("c1", "x"),
}


@pytest.mark.parametrize("left", [False, True], ids=["not entered", "left"])
@pytest.mark.parametrize("method", OUTSIDE)
async def test_a_turn_and_a_step_record_only_between_their_brackets(method: str, left: bool) -> None:
    """Before they are entered, and after they were left, they refuse: an event there would be in no turn, or in another."""
    async with SessionStore(backend=MemoryBackend()) as store:
        session = await store.create("s")
        turn = session.turn()
        step = turn.step()
        if left:
            async with turn, step:
                step.message(asking("c1"))
        before = session.seq
        with pytest.raises(InvariantError, match="use it inside"):
            done = OUTSIDE[method](turn, step)
            if asyncio.iscoroutine(done):
                await done
        assert session.seq == before
        await goes_on(session)


@pytest.mark.parametrize(
    "content", [TextBlock(text="lost"), TurnStart(turn=1), {}, {"text": "lost"}, None, 5, [5]], ids=repr
)
async def test_what_is_no_message_is_not_written_as_an_empty_one(content: Any) -> None:
    """A block where blocks are expected, say: its text would be in the log and in no history."""
    async with SessionStore(backend=MemoryBackend()) as store:
        session = await store.create("s")
        with pytest.raises(InvalidEventError, match="content"):
            session.inject(content)
        async with session.turn() as turn:
            for say in (turn.user, turn.steer, turn.inject):
                with pytest.raises(InvalidEventError, match="content"):
                    say(content)
        assert session.surface.nodes == ()
        await goes_on(session)


@pytest.mark.parametrize("id", ["", 0, b"x", [], False], ids=repr)
async def test_a_wrong_id_is_not_replaced_by_another(id: Any) -> None:
    """Who names a message and gets another name would look for it in vain."""
    async with SessionStore(backend=MemoryBackend()) as store:
        session = await store.create("s")
        async with session.turn() as turn, turn.step() as step:
            step.message(asking("c1"))
            for say in (turn.user, turn.inject, session.inject):
                with pytest.raises(InvalidEventError, match=r"\$\.id"):
                    say("x", id=id)
            with pytest.raises(InvalidEventError, match=r"\$\.message\.id"):
                step.result("c1", "x", id=id)
        await goes_on(session)


@pytest.mark.parametrize("is_error", [0, 1, "no", "", [], object()], ids=repr)
async def test_a_result_is_an_error_or_is_not(is_error: Any) -> None:
    """Only True and False say which; 0 is not taken for one of them."""
    async with SessionStore(backend=MemoryBackend()) as store:
        session = await store.create("s")
        async with session.turn() as turn, turn.step() as step:
            step.message(asking("c1"))
            with pytest.raises(InvalidEventError, match="isError"):
                step.result("c1", "x", is_error=is_error)
        await goes_on(session)


@pytest.mark.parametrize("call_id", [None, 0, b"c1", [], {}, ("c1",)], ids=repr)
async def test_a_result_for_what_is_no_call(call_id: Any) -> None:
    """Whatever stands in the place of a call's id, the call with that id is not open."""
    async with SessionStore(backend=MemoryBackend()) as store:
        session = await store.create("s")
        async with session.turn() as turn, turn.step() as step:
            step.message(asking("c1"))
            with pytest.raises(InvariantError, match="not open in this step"):
                step.result(call_id, "x")
        await goes_on(session)


async def test_a_session_disposed_inside_its_turn_says_so_once(place: Place) -> None:
    """Neither closing the turn nor flushing is possible; one error is enough.  The resume closes the turn."""
    async with place.store() as store:
        session = await store.create("s")
        with pytest.raises(StoreClosedError):
            async with session.turn() as turn, turn.step() as step:
                step.message(asking("c1"))
                await session.dispose()
        resumed = await store.resume("s")
        assert [event.type for event in resumed.events[-3:]] == ["tool/result", "step/end", "turn/end"]
        await goes_on(resumed)


async def test_a_call_without_an_id_keeps_no_turn_open(place: Place) -> None:
    """No log takes a result for it, so none is made: the step ends, a crash in it is closed, and both read as sound."""
    async with place.store() as store:
        session = await store.create("s")
        async with session.turn() as turn, turn.step() as step:
            step.message(asking("", "c1"))
            await step.call("", "sh", "{}")
        assert [event.type for event in session.events[-3:]] == ["tool/result", "step/end", "turn/end"]
        session.append("turn/start", {"turn": 2})
        session.append("step/start", {"turn": 2, "step": 1})
        message = {"role": "assistant", "id": "a2", **asking("", "c2")}
        session.append("assistant/message", {"turn": 2, "step": 1, "message": message}, surface_op="append")
        await session.dispose()
        resumed = await store.resume("s")
        assert resumed.recovery is not None
        assert [closer.type for closer in resumed.recovery.closers] == ["tool/result", "step/end", "turn/end"]
        await goes_on(resumed)
        await resumed.dispose()
        assert (await store.verify("s")).verdict == "clean"


# --- what the host gives to the store -----------------------------------------------------------------------------


class Faulty:
    """A clock that can be made to raise."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __call__(self) -> int:
        """1000, or the error."""
        if self.error is not None:
            raise self.error
        return 1000


async def test_a_clock_that_raises_leaves_no_lock_behind(tmp_path: Path) -> None:
    """The note in the lock file has a time; when there is none, the lock is not kept by nobody."""
    clock = Faulty()
    async with SessionStore(tmp_path, clock=clock) as store:
        session = await store.create("s")
        session.append("test/event", {})
        await session.dispose()
        clock.error = LookupError("no time")
        with pytest.raises(LookupError) as caught:
            await store.resume("s")
        with pytest.raises(LookupError):
            await store.delete("s")
        clock.error = None
        resumed = await store.resume("s")  # while the traceback still holds whatever it holds
        assert caught.traceback
        await goes_on(resumed)
        with pytest.raises(SessionLockedError):
            await store.delete("s")


async def test_a_session_is_one_object(place: Place) -> None:
    """A copy would append to the same log and know nothing of what the other has stored; events can be copied."""
    async with place.store() as store:
        session = await store.create("s")
        await goes_on(session)
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            for one in (session, Session("bare")):
                with pytest.raises(TypeError, match=r"cannot be copied"):
                    duplicate(one)
        assert Session("s", pickle.loads(pickle.dumps(session.events))).events == session.events
        assert repr(session) == "<StoredSession 's', 1 events>"
        await goes_on(session)


def vetoing(session: StoredSession, *types: str) -> Callable[[], None]:
    """Let a checker veto events of these types that hold the word "unwanted"."""

    def veto(event: Event) -> None:
        if event.type in types and b"unwanted" in event.to_json():
            raise LookupError("vetoed")

    return session.check(veto)


@pytest.mark.parametrize("strict", [None, "strict"])
async def test_a_veto_of_one_event_keeps_nothing_else_open(strict: Any) -> None:
    """An injected message, or a result, that a checker refuses is told; the others are written, step and turn end."""
    async with SessionStore(backend=MemoryBackend(), invariants=strict) as store:
        session = await store.create("s")
        vetoing(session, "user/message", "tool/result")
        with pytest.raises(LookupError):
            session.inject("unwanted")
        with pytest.raises(LookupError) as caught:
            async with session.turn() as turn, turn.step() as step:
                step.message(asking("c1", "unwanted call", "c2"))
                await step.call("c1", "sh", "{}")
                turn.inject("unwanted")
                turn.inject("good")
                step.result("c1", "x")
        assert "vetoed" in caught.value.__notes__[0]  # two were refused: the second is a note on the first
        assert [event.type for event in session.events][-5:] == [
            "tool/result",
            "tool/result",
            "step/end",
            "user/message",
            "turn/end",
        ]
        last: Any = session.derive_messages()[-1]
        assert last.content == (TextBlock(text="good"),)
        async with session.turn() as turn:
            turn.user("next")


# --- observers, checkers and other functions of the host ------------------------------------------------------------


async def never_run(event: object) -> None:
    """A coroutine function where a plain one is wanted."""


def test_nobody_awaits_a_function_of_the_host() -> None:
    """An async checker would veto nothing, an async clock tell no time: they are refused where they are given."""
    session = Session("s")
    for register in (session.observe, session.check):
        with pytest.raises(TypeError, match="coroutine function"):
            register(never_run)
    for option in ("clock", "new_id", "on_error"):
        options: dict[str, Any] = {option: never_run}
        with pytest.raises(TypeError, match=f"{option} .*coroutine function"):
            SessionStore(backend=MemoryBackend(), **options)
    with pytest.raises(TypeError, match="coroutine function"):
        SessionStore(backend=MemoryBackend(), checkers=[never_run])


async def test_ten_thousand_observers_and_one_that_disposes(place: Place) -> None:
    """All are told of every event; what one of them starts runs after append has returned, and loses nothing."""
    async with place.store() as store:
        session = await store.create("s")
        seen: list[int] = []
        for _ in range(10_000):
            session.observe(lambda event: seen.append(event.seq))
        tasks: list[asyncio.Task[None]] = []
        session.observe(lambda event: tasks.append(asyncio.get_running_loop().create_task(session.dispose())))
        session.append("test/event", {})
        session.append("test/event", {})
        await asyncio.gather(*tasks)
        assert len(seen) == 20_000
        with pytest.raises(StoreClosedError, match="disposed"):
            session.append("test/event", {})
        resumed = await store.resume("s")
        assert resumed.seq == 2
        await goes_on(resumed)


async def test_a_flush_started_by_an_observer_covers_its_event() -> None:
    """The event is in the log when observers see it."""
    async with SessionStore(backend=MemoryBackend()) as store:
        session = await store.create("s")
        tasks: list[asyncio.Task[int]] = []
        session.observe(lambda event: tasks.append(asyncio.get_running_loop().create_task(session.flush())))
        event = session.append("test/event", {})
        assert await tasks[0] == event.seq + 1
        await asyncio.gather(*tasks)


class Stop(BaseException):
    """What is no Exception ends the program, unless somebody knows better."""


def stop(event: object) -> None:
    """An observer or checker that ends the program."""
    raise Stop


async def test_what_ends_the_program_passes_through_and_leaves_a_whole_session(place: Place) -> None:
    """Out of a checker nothing was appended, out of an observer the event was; in both cases the session goes on."""
    async with place.store() as store:
        session = await store.create("s")
        delta = AssistantChunk(turn=1, step=1, chunk=TextDelta(index=0, text="x"))
        for event in (TurnStart(turn=1), delta, delta):
            for register, appended in ((session.check, 0), (session.observe, 1)):
                before, remove = session.seq, register(stop)
                with pytest.raises(Stop):
                    session.append(event)
                remove()
                assert session.seq == before + appended
                await goes_on(session)
        await session.dispose()
        assert (await store.verify("s")).events == session.seq


@pytest.mark.parametrize("time", [None, "1", 1.5, True, 2**53, -(2**53)], ids=repr)
async def test_a_clock_that_tells_no_time(time: Any) -> None:
    """Nothing is appended or created at no time; what is there is written all the same."""
    now: list[Any] = [1000]
    async with SessionStore(backend=MemoryBackend(), clock=lambda: now[0]) as store:
        session = await store.create("s")
        session.append("test/event", {})
        now[0] = time
        with pytest.raises(InvalidEventError, match=r"the clock returned .*, expected epoch ms"):
            session.append("test/event", {})
        with pytest.raises(InvalidEventError, match="the clock returned"):
            await store.create("new")
        with pytest.raises(InvalidEventError, match="the clock returned"):
            await store.fork("s")
        assert await session.flush() == 1
        now[0] = 1001
        await goes_on(session)


@pytest.mark.parametrize("id", [b"x", 0, "", [], {}], ids=repr)
async def test_a_maker_of_ids_that_makes_none(id: Any) -> None:
    """What it makes is checked like what a caller gives, in headers, in forks and in messages."""
    ids: list[Any] = ["s"]
    async with SessionStore(backend=MemoryBackend(), new_id=lambda: ids[0]) as store:
        session = await store.create()
        await goes_on(session)
        ids[0] = id
        with pytest.raises(InvalidEventError, match=r"\$\.id"):
            await store.create()
        with pytest.raises((InvalidEventError, TypeError), match="id"):
            await store.fork(session)
        with pytest.raises(InvalidEventError, match=r"\$\.id"):
            session.inject("x")
        await goes_on(session)


async def test_a_maker_of_ids_that_repeats_itself(place: Place) -> None:
    """The second session of an id is refused, whoever chose it."""
    async with place.store(new_id=lambda: "s") as store:
        session = await store.create()
        with pytest.raises(SessionExistsError):
            await store.create()
        with pytest.raises(ForkError, match="SESSION_ALREADY_EXISTS"):
            await store.fork(session)
        await goes_on(session)


async def test_what_is_deleted_before_1970_can_be_restored(tmp_path: Path) -> None:
    """A clock that is far off, or a made one, must not hide what lies in the trash."""
    async with SessionStore(tmp_path, clock=lambda: -5) as store:
        session = await store.create("s", created_at=0)
        await goes_on(session)
        await session.dispose()
        deleted = await store.delete("s")
        assert await store.trash() == [deleted]
        await store.restore(deleted)
        await goes_on(await store.resume("s"))

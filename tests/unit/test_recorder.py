"""The recorder: every turn and step is closed on every path, and no call stays unanswered."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore import (
    AssistantMessage,
    FinishChunk,
    InvariantError,
    MaxTokensFinish,
    ModelSource,
    PendingLimitError,
    PluginSource,
    RetryTrigger,
    Stop,
    StorageError,
    StoreClosedError,
    StoredSession,
    TextBlock,
    TextDelta,
    TokenUsage,
    ToolCallBlock,
    UserMessage,
    UserSource,
    WrongThreadError,
    interrupted_turn_closers,
)
from sessionstore.invariants import InvariantTrace
from sessionstore.progress import last_turn
from tests.store.fakes import FlakyBackend, no_space, run
from tests.store.test_lifecycle import store_over

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sessionstore import Step, Turn

MODEL = {"kind": "model", "provider": "p", "model": "m"}


def record(
    scenario: Callable[[StoredSession], Awaitable[object]], backend: FlakyBackend | None = None, **options: Any
) -> StoredSession:
    """Run *scenario* on a fresh session; ids are m1, m2 and so on."""

    async def main() -> StoredSession:
        numbers = itertools.count(1)
        ids = options.pop("new_id", lambda: f"m{next(numbers)}")
        store = store_over(backend or FlakyBackend(), new_id=ids, **options)
        session = await store.create("s")
        try:
            await scenario(session)
        finally:
            with suppress(Exception):
                await store.aclose()
        return session

    return run(main())


def types_of(session: StoredSession) -> list[str]:
    """The event types in the log."""
    return [event.type for event in session.events]


def data_of(session: StoredSession, type_: str) -> list[Any]:
    """The payloads of the events of that type."""
    return [event.to_dict()["data"] for event in session.events if event.type == type_]


def asks(*call_ids: str) -> dict[str, Any]:
    """An assistant message that asks for tools."""
    blocks = [{"type": "tool-call", "id": call_id, "name": "sh", "arguments": "{}"} for call_id in call_ids]
    return {"content": blocks, "source": MODEL}


# --- a whole turn ---------------------------------------------------------------------------------------------


def test_a_whole_turn_as_it_is_written() -> None:
    """Numbers, sources and key order, as real logs have them."""

    async def scenario(session: StoredSession) -> None:
        async with session.turn() as turn:
            turn.user("hello")
            async with turn.step() as step:
                assert await step.request() == 3
                for text in ("a", "b", "c"):
                    step.chunk(TextDelta(index=0, text=text))
                step.message(asks("c1"), usage={"inputTokens": 1, "outputTokens": 2})
                call = await step.call("c1", "sh", "{}")
                assert session.durable_seq == call.seq + 1
                step.result("c1", "done", meta={"ms": 5})
        assert session.durable_seq == session.seq

    session = record(scenario)
    lines = [event.to_json().decode() for event in session.events]
    assert [line.replace('"time":7', '"time":0') for line in lines] == [
        '{"type":"turn/start","seq":0,"time":0,"data":{"turn":1,"trigger":{"kind":"message","source":{"kind":"user"}}}}',
        (
            '{"type":"user/message","seq":1,"time":0,"data":{"content":[{"type":"text","text":"hello"}],'
            '"source":{"kind":"user"},"role":"user","id":"m1"},"surfaceOp":"append"}'
        ),
        '{"type":"step/start","seq":2,"time":0,"data":{"turn":1,"step":1}}',
        *[
            f'{{"type":"assistant/chunk","seq":{seq},"time":0,"data":{{"turn":1,"step":1,'
            f'"chunk":{{"type":"text-delta","index":0,"text":"{text}"}}}}}}'
            for seq, text in ((3, "a"), (4, "b"), (5, "c"))
        ],
        (
            '{"type":"assistant/message","seq":6,"time":0,"data":{"turn":1,"step":1,"message":{"role":"assistant",'
            '"content":[{"type":"tool-call","id":"c1","name":"sh","arguments":"{}"}],'
            '"source":{"kind":"model","provider":"p","model":"m"},"id":"m2"},'
            '"usage":{"inputTokens":1,"outputTokens":2}},"sourceEventSeqs":[3,4,5],"surfaceOp":"append"}'
        ),
        '{"type":"tool/call","seq":7,"time":0,"data":{"turn":1,"step":1,"callId":"c1","name":"sh","arguments":"{}"}}',
        (
            '{"type":"tool/result","seq":8,"time":0,"data":{"turn":1,"step":1,"message":{"source":{"kind":"tool",'
            '"callId":"c1"},"content":[{"type":"tool-result","toolCallId":"c1","content":[{"type":"text","text":"done"}]}],'
            '"role":"user","id":"m3"},"meta":{"ms":5}},"sourceEventSeqs":[7],"surfaceOp":"append"}'
        ),
        '{"type":"step/end","seq":9,"time":0,"data":{"turn":1,"step":1}}',
        '{"type":"turn/end","seq":10,"time":0,"data":{"turn":1,"reason":{"kind":"completed"}}}',
    ]


def test_structs_and_mappings_say_the_same() -> None:
    """Everything may be given typed."""

    async def typed(session: StoredSession) -> None:
        async with session.turn(trigger=RetryTrigger()) as turn:
            turn.user(UserMessage(id="u", source=UserSource(), content=(TextBlock(text="x"),)))
            async with turn.step() as step:
                step.chunk(FinishChunk(reason=Stop()))
                block = ToolCallBlock(id="c", name="sh", arguments="{}")
                message = AssistantMessage(id="a", source=ModelSource(provider="p", model="m"), content=(block,))
                step.message(message, usage=TokenUsage(input_tokens=1, output_tokens=2))
                await step.call("c", "sh", {"a": 1})
                step.result("c", [TextBlock(text="r")], error={"name": "E", "code": "X"}, id="r")
            turn.inject("n", source=PluginSource(plugin="p"), id="i")

    async def plain(session: StoredSession) -> None:
        async with session.turn(trigger={"kind": "retry"}) as turn:
            turn.user([{"type": "text", "text": "x"}], source={"kind": "user"}, id="u")
            async with turn.step() as step:
                step.chunk({"type": "finish", "reason": {"kind": "stop"}})
                call = {"type": "tool-call", "id": "c", "name": "sh", "arguments": "{}"}
                message = {"id": "a", "role": "assistant", "source": MODEL, "content": [call]}
                step.message(message, usage={"inputTokens": 1, "outputTokens": 2})
                await step.call("c", "sh", '{"a":1}')
                step.result("c", "r", is_error=True, error={"name": "E", "code": "X"}, id="r")
            turn.inject(
                {"content": [{"type": "text", "text": "n"}], "source": {"kind": "plugin", "plugin": "p"}}, id="i"
            )

    assert list(record(typed).events) == list(record(plain).events)


def test_numbers_come_from_the_log() -> None:
    """Turns written by somebody else are counted, steps begin at 1 in every turn, also after a resume."""

    async def main() -> None:
        backend = FlakyBackend()
        async with store_over(backend) as store:
            session = await store.create("s")
            session.append("turn/start", {"turn": 7})
            session.append("turn/end", {"turn": 7, "reason": {"kind": "completed"}})
            async with session.turn() as turn:
                assert turn.number == 8
                for expected in (1, 2):
                    async with turn.step() as step:
                        assert step.number == expected
                session.append("step/start", {"turn": 8, "step": 3})
                session.append("step/end", {"turn": 8, "step": 3})
                async with turn.step() as step:
                    assert step.number == 4
        async with store_over(backend) as store:
            session = await store.resume("s")
            async with session.turn() as turn, turn.step() as step:
                assert (turn.number, step.number) == (9, 1)

    run(main())


def test_a_turn_whose_number_cannot_be_read_still_took_one() -> None:
    """Logs of other writers may hold it; the next number is not used twice."""

    async def main() -> None:
        seed: list[dict[str, Any]] = [
            {"type": kind, "seq": seq, "time": 1, "data": {"turn": turn}}
            for seq, (kind, turn) in enumerate(
                [("turn/start", 2.0), ("turn/end", 2), ("turn/start", "?"), ("turn/end", "?")]
            )
        ]
        async with store_over(FlakyBackend()) as store:
            session = await store.create("s", seed=seed)
            assert last_turn(session._log) == (3, False)
            assert last_turn(session._log, 3) == (3, True)
            assert last_turn(session._log, 1) == (2, True)
            async with session.turn() as turn:
                assert turn.number == 4

    run(main())


def test_a_turn_in_a_turn_and_a_step_in_a_step_are_refused() -> None:
    """One at a time, whoever opened the first; the refusal leaves it open."""

    async def scenario(session: StoredSession) -> None:
        async with session.turn() as turn:
            with pytest.raises(InvariantError):
                await session.turn().__aenter__()
            async with turn.step():
                with pytest.raises(InvariantError):
                    await turn.step().__aenter__()
        with pytest.raises(InvariantError):
            await turn.step().__aenter__()
        session.append("turn/start", {"turn": 2})
        with pytest.raises(InvariantError):
            await session.turn().__aenter__()

    assert types_of(record(scenario)) == ["turn/start", "step/start", "step/end", "turn/end", "turn/start"]


def test_what_somebody_else_closed_is_not_closed_again() -> None:
    """A host that appends step/end or turn/end itself is not contradicted."""

    async def scenario(session: StoredSession) -> None:
        async with session.turn() as turn, turn.step():
            session.append("step/end", {"turn": 1, "step": 1})
            session.append("turn/end", {"turn": 1, "reason": {"kind": "blocked"}})

    assert types_of(record(scenario)) == ["turn/start", "step/start", "step/end", "turn/end"]


# --- how it ends ----------------------------------------------------------------------------------------------


def finish(kind: str) -> dict[str, Any]:
    """The last chunk of a stream."""
    return {"type": "finish", "reason": {"kind": kind}}


ERROR = {"kind": "error", "step": 1, "message": "broken", "code": "ValueError"}


@pytest.mark.parametrize(
    ("finishes", "error", "reason"),
    [
        ([], None, {"kind": "completed"}),
        (["stop"], None, {"kind": "completed"}),
        (["max-tokens"], None, {"kind": "max-tokens"}),
        (["max-tokens", "stop"], None, {"kind": "completed"}),
        (["max-tokens"], ValueError("broken"), ERROR),
        ([], ValueError("broken"), ERROR),
        ([], ValueError("x" * 9999), {**ERROR, "message": "x" * 2000}),
        ([], asyncio.CancelledError(), {"kind": "aborted"}),
        (["max-tokens"], asyncio.CancelledError(), {"kind": "aborted"}),
        ([], KeyboardInterrupt(), {"kind": "aborted"}),
    ],
    ids=str,
)
def test_the_reason_of_an_end(finishes: list[str], error: BaseException | None, reason: dict[str, Any]) -> None:
    """max-tokens beats only completed; what was raised goes on as it was."""

    async def scenario(session: StoredSession) -> None:
        async def work() -> None:
            async with session.turn() as turn, turn.step() as step:
                for kind in finishes:
                    step.chunk(finish(kind))
                if error is not None:
                    raise error

        if error is None:
            await work()
            return
        try:
            await work()
        except type(error) as caught:
            assert caught is error
            assert session.durable_seq == session.seq
        else:
            pytest.fail("swallowed")

    session = record(scenario)
    assert types_of(session)[-2:] == ["step/end", "turn/end"]
    assert data_of(session, "turn/end") == [{"turn": 1, "reason": reason}]


def test_a_typed_finish_is_seen_too() -> None:
    """However the chunk was given."""

    async def scenario(session: StoredSession) -> None:
        async with session.turn() as turn, turn.step() as step:
            step.chunk(FinishChunk(reason=MaxTokensFinish()))

    assert data_of(record(scenario), "turn/end")[0]["reason"] == {"kind": "max-tokens"}


def test_a_host_can_say_why_a_turn_ends() -> None:
    """A reason of its own, unless an exception has another."""

    async def scenario(session: StoredSession) -> None:
        async with session.turn() as turn:
            turn.end({"kind": "blocked"})
        with suppress(ValueError):
            async with session.turn() as turn:
                turn.end({"kind": "blocked"})
                raise ValueError

    reasons = [data["reason"]["kind"] for data in data_of(record(scenario), "turn/end")]
    assert reasons == ["blocked", "error"]


def test_an_exception_that_cannot_say_what_it_is_still_ends_the_turn() -> None:
    """Its class name does."""

    class Odd(Exception):  # noqa: N818 - a user's own
        def __str__(self) -> str:
            raise RuntimeError

    async def scenario(session: StoredSession) -> None:
        with suppress(Odd):
            async with session.turn():
                raise Odd

    assert data_of(record(scenario), "turn/end")[0]["reason"]["message"] == "Odd"


# --- calls ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, ValueError(), asyncio.CancelledError()], ids=repr)
@pytest.mark.parametrize("recorded", range(3))
@pytest.mark.parametrize("answered", range(3))
def test_every_unanswered_call_is_answered(recorded: int, answered: int, error: BaseException | None) -> None:
    """With 0, 1 or 2 of 2 calls recorded and answered: the same shape as the repair after a crash would give."""
    ids = ["c1", "c2"]

    async def scenario(session: StoredSession) -> None:
        with suppress(ValueError, asyncio.CancelledError):
            async with session.turn() as turn, turn.step() as step:
                step.message(asks(*ids))
                for call_id in ids[:recorded]:
                    await step.call(call_id, "sh", "{}")
                for call_id in ids[:answered]:
                    step.result(call_id, "ok")
                crashed.extend(interrupted_turn_closers(session.events))
                if error is not None:
                    raise error

    crashed: list[Any] = []
    session = record(scenario)
    results = [event for event in session.events if event.type == "tool/result"]
    assert len(results) == 2
    expected = [event for event in crashed if event.type == "tool/result"]
    assert [event.to_dict() for event in results[answered:]] == [event.to_dict() for event in expected]
    codes = [data.get("error", {}).get("code") for data in data_of(session, "tool/result")]
    rest = ["TOOL_OUTCOME_UNKNOWN" if index < recorded else "TOOL_NOT_STARTED" for index in range(answered, 2)]
    assert codes == [None] * answered + rest
    assert interrupted_turn_closers(session.events) == []


def test_a_call_whose_flush_fails_must_not_run() -> None:
    """The error is raised to whoever would run the tool; the call is answered at the end of the step all the same."""
    backend = FlakyBackend()
    ran = []

    async def scenario(session: StoredSession) -> None:
        with suppress(StorageError):
            async with session.turn() as turn, turn.step() as step:
                step.message(asks("c1"))
                backend.failures = [no_space()]
                await step.call("c1", "sh", "{}")
                ran.append("the tool")

    session = record(scenario, backend)
    assert ran == []
    assert [data["error"]["code"] for data in data_of(session, "tool/result")] == ["TOOL_OUTCOME_UNKNOWN"]
    assert data_of(session, "turn/end")[0]["reason"]["kind"] == "error"


def test_a_second_or_an_unasked_result_is_refused() -> None:
    """A provider would refuse the history; a call that was recorded without being asked for is the host's affair."""

    async def scenario(session: StoredSession) -> None:
        async with session.turn() as turn, turn.step() as step:
            step.message(asks("c1"))
            step.result("c1", "early: it failed before it started", is_error=True)
            for call_id in ("c1", "never"):
                with pytest.raises(InvariantError):
                    step.result(call_id, "x")
            await step.call("own", "sh", "{}")
            step.result("own", "x")
            with pytest.raises(InvariantError):
                step.result("own", "x")

    assert len(data_of(record(scenario), "tool/result")) == 2


# --- injections -----------------------------------------------------------------------------------------------


def texts(session: StoredSession) -> list[str]:
    """Messages and results in the order of the log."""
    found = []
    for event in session.events:
        data: Any = event.to_dict()["data"]
        message = data if event.type == "user/message" else data.get("message", {})
        if event.type in {"user/message", "steering/message"}:
            found.append(message["content"][0]["text"])
        elif event.type == "tool/result":
            found.append(f"result {message['source']['callId']}")
    return found


def test_injected_messages_wait_for_the_last_result_of_the_batch() -> None:
    """In the order in which they came, whichever call they came between."""

    async def scenario(session: StoredSession) -> None:
        async with session.turn() as turn, turn.step() as step:
            turn.inject("before")
            step.message(asks("c1", "c2"))
            session.inject("1")
            await step.call("c2", "sh", "{}")
            turn.steer("2")
            step.result("c2", "ok")
            turn.inject("3")
            await step.call("c1", "sh", "{}")
            step.result("c1", "ok")
            turn.inject("after")

    session = record(scenario, invariants="strict")
    assert texts(session) == ["before", "result c2", "result c1", "1", "2", "3", "after"]
    assert data_of(session, "steering/message")[0]["turn"] == 1


def test_held_messages_are_written_when_the_step_is_interrupted() -> None:
    """After the results that the recorder makes up, before the turn closes."""

    async def scenario(session: StoredSession) -> None:
        with suppress(ValueError):
            async with session.turn() as turn, turn.step() as step:
                step.message(asks("c1"))
                turn.inject("late")
                raise ValueError

    session = record(scenario)
    assert types_of(session)[-4:] == ["tool/result", "user/message", "step/end", "turn/end"]


def test_held_messages_are_written_when_somebody_else_closed_the_step() -> None:
    """Nothing waits past the end of a turn."""

    async def scenario(session: StoredSession) -> None:
        async with session.turn() as turn, turn.step() as step:
            step.message(asks("c1"))
            turn.inject("late")
            session.append("step/end", {"turn": 1, "step": 1})

    assert types_of(record(scenario))[-3:] == ["step/end", "user/message", "turn/end"]


def test_an_idle_injection_stands_between_turns() -> None:
    """One event, where messages may stand between turns."""

    async def scenario(session: StoredSession) -> None:
        session.inject("idle", source={"kind": "plugin", "plugin": "bash"})

    assert types_of(record(scenario)) == types_of(record(scenario, invariants="execution")) == ["user/message"]


def test_an_idle_injection_gets_a_turn_of_its_own_in_strict_mode() -> None:
    """One that takes its number from the log and names the message's source."""

    async def scenario(session: StoredSession) -> None:
        session.inject("idle", source={"kind": "plugin", "plugin": "bash"})
        async with session.turn() as turn:
            assert turn.number == 2

    session = record(scenario, invariants="strict")
    assert types_of(session) == ["turn/start", "user/message", "turn/end", "turn/start", "turn/end"]
    trigger = {"kind": "injection", "source": {"kind": "plugin", "plugin": "bash"}}
    assert data_of(session, "turn/start")[0] == {"turn": 1, "trigger": trigger}


def test_what_is_injected_is_detached_and_refused_at_once_when_it_is_no_message() -> None:
    """A held message cannot fail or change later, when nobody is there to hear of it."""

    async def scenario(session: StoredSession) -> None:
        content = [{"type": "text", "text": "as it was"}]
        async with session.turn() as turn, turn.step() as step:
            step.message(asks("c1"))
            turn.inject(content)
            content[0]["text"] = "changed"
            for bad in ({"content": 5}, {"content": [], "source": {"kind": ""}}, {"content": [], "role": "system"}):
                with pytest.raises(Exception, match="user/message"):
                    turn.inject(bad)
            step.result("c1", "ok")

    assert texts(record(scenario)) == ["result c1", "as it was"]


# --- failures on the way out ----------------------------------------------------------------------------------


def test_a_flush_that_fails_at_the_end_of_a_turn_is_raised() -> None:
    """Never written as an event; the events are kept."""
    backend = FlakyBackend()

    async def scenario(session: StoredSession) -> None:
        turn = session.turn()
        await turn.__aenter__()
        backend.failure = no_space()
        with pytest.raises(StorageError):
            await turn.__aexit__(None, None, None)
        assert session.persistence_error is backend.failure
        assert types_of(session) == ["turn/start", "turn/end"]
        backend.failure = None
        assert await session.flush() == 2

    record(scenario, backend)


def test_the_exception_that_ends_a_turn_wins_over_the_flush() -> None:
    """What the disk said is a note on it."""
    backend = FlakyBackend()

    async def scenario(session: StoredSession) -> None:
        original = ValueError("the real one")
        with pytest.raises(ValueError, match="the real one") as caught:
            async with session.turn():
                backend.failure = no_space()
                raise original
        assert caught.value is original
        assert "No space left" in caught.value.__notes__[0]

    record(scenario, backend)


def test_a_turn_of_a_disposed_session_raises_what_append_raises() -> None:
    """It cannot be closed any more; the next resume closes it."""

    async def scenario(session: StoredSession) -> None:
        turn = session.turn()
        await turn.__aenter__()
        await session.dispose()
        with pytest.raises((ExceptionGroup, StoreClosedError)):
            await turn.__aexit__(None, None, None)

    assert types_of(record(scenario)) == ["turn/start"]


def test_a_full_queue_is_flushed_to_close_a_turn() -> None:
    """The limit on pending bytes does not leave a turn open when the disk is there."""

    async def scenario(session: StoredSession) -> None:
        async with session.turn() as turn:
            with pytest.raises(PendingLimitError):
                for _ in range(1000):
                    turn.user("x" * 50)

    session = record(scenario, max_pending_bytes=2000)
    assert types_of(session)[-1] == "turn/end"


@pytest.mark.parametrize(
    ("size", "source_size"), [(50, 0), (5000, 0), (50, 5000), *((50, size) for size in range(1000, 2000, 50))]
)
def test_an_injection_that_finds_no_room_leaves_no_turn_open(size: int, source_size: int) -> None:
    """In strict mode a message is a turn of its own: all of it or nothing, where it would fit alone too.

    Its source stands in the turn twice.
    """
    backend = FlakyBackend()

    async def scenario(session: StoredSession) -> None:
        backend.failure = no_space()
        with pytest.raises(PendingLimitError):
            for _ in range(1000):
                session.inject("x" * size, source={"kind": "plugin", "plugin": "p", "note": "x" * source_size})
        assert len(session.events) % 3 == 0
        backend.failure = None
        await session.flush()
        session.inject("x")

    session = record(scenario, backend, max_pending_bytes=4000, invariants="strict")
    assert types_of(session)[-3:] == ["turn/start", "user/message", "turn/end"]
    assert not last_turn(session._log)[1]


def test_an_injection_from_another_thread_touches_nothing() -> None:
    """It raises what append raises, also where a turn of its own needs room, and leaves the loop's timers alone."""

    async def scenario(session: StoredSession) -> None:
        with pytest.raises(WrongThreadError):
            await asyncio.to_thread(session.inject, "x")
        assert session._behind._timer is None

    assert types_of(record(scenario, invariants="strict")) == []


def test_a_session_that_no_store_made_says_so() -> None:
    """What needs a store says what to do; what does not works."""
    session = StoredSession("x")
    session.append("test/event", {"n": 1})
    acts: tuple[Callable[[], Any], ...] = (
        session.turn, lambda: session.inject("x"), lambda: session.durable_seq, lambda: session.recovery,
        lambda: session.persistence_error, lambda: run(session.flush()), lambda: run(session.dispose()),
        lambda: session.disposed,
    )  # fmt: skip
    for act in acts:
        with pytest.raises(TypeError, match="has no store: create, resume and fork"):
            act()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        session.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_a_cancellation_during_the_last_flush_is_not_swallowed() -> None:
    """The turn is closed in the log before, and written anyway."""
    backend = FlakyBackend()

    async def scenario(session: StoredSession) -> None:
        backend.gate = asyncio.Event()

        async def work() -> None:
            async with session.turn():
                pass

        task = asyncio.create_task(work())
        while not backend.entered:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        backend.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert session.durable_seq == 2

    record(scenario, backend)


# --- any program ----------------------------------------------------------------------------------------------

ACTIONS = st.lists(
    st.sampled_from(["ask", "call", "result", "inject", "steer", "chunk", "raise", "cancel"]), max_size=12
)


@pytest.mark.slow
@given(st.lists(st.lists(ACTIONS, max_size=3), min_size=1, max_size=3))
def test_whatever_a_program_does_the_log_keeps_the_strict_rules(program: list[list[list[str]]]) -> None:
    """Turns of steps of random actions: strict invariants hold, nothing is open, every message was written."""
    injected = 0

    async def act(session: StoredSession, turn: Turn, step: Step, actions: list[str]) -> None:
        nonlocal injected
        asked: list[str] = []
        called: set[str] = set()
        for number, action in enumerate(actions):
            if action == "ask":
                asked.append(f"c{turn.number}-{step.number}-{number}")
                step.message(asks(asked[-1]))
            elif action == "call" and asked and asked[-1] not in called:
                called.add(asked[-1])
                await step.call(asked[-1], "sh", "{}")
            elif action == "result" and asked and asked[-1] in called:
                step.result(asked.pop(), "ok")
            elif action == "inject":
                injected += 1
                session.inject("n")
            elif action == "steer":
                turn.steer("s")
            elif action == "chunk":
                step.chunk(TextDelta(index=0, text="t"))
            elif action == "raise":
                raise ValueError
            elif action == "cancel":
                raise asyncio.CancelledError

    async def scenario(session: StoredSession) -> None:
        nonlocal injected
        for steps in program:
            with suppress(ValueError, asyncio.CancelledError):
                async with session.turn() as turn:
                    for actions in steps:
                        async with turn.step() as step:
                            await act(session, turn, step, actions)
            injected += 1
            session.inject("idle")
            assert last_turn(session._log)[1] is False

    session = record(scenario, invariants="strict")
    InvariantTrace("strict").replay(session.events)
    assert interrupted_turn_closers(session.events) == []
    assert len(data_of(session, "user/message")) == injected
    requested = [block["id"] for data in data_of(session, "assistant/message") for block in data["message"]["content"]]
    answered = [data["message"]["source"]["callId"] for data in data_of(session, "tool/result")]
    assert sorted(requested) == sorted(answered)

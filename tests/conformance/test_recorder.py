"""Conformance, theme T: the recorder makes requests and calls durable before they happen."""

from __future__ import annotations

import asyncio
import errno
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from sessionstore import InvariantTrace, SessionStore, StorageError, StoreClosedError
from sessionstore.backends.memory import MemoryBackend
from sessionstore.recovery.scan import scan_log
from sessionstore.tasks import finish
from tests.conformance.build import MODEL, tool_call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sessionstore import StoredSession
    from sessionstore.backends.base import Batch, Writer
    from sessionstore.header import Header


class Disk(MemoryBackend):
    """A memory backend whose writes fail while ``broken`` is set, and wait while there is a closed ``gate``."""

    broken = False
    gate: asyncio.Event | None = None
    waiting: asyncio.Event

    def writer(self, header: Header) -> Writer:
        """A writer that looks at ``broken`` and ``gate`` first; a write settles whatever happens to its caller."""
        writer: Any = super().writer(header)
        append = writer.append

        async def write(batch: Batch, sync: bool) -> None:
            if self.gate is not None:
                self.waiting.set()
                await self.gate.wait()
            await append(batch, sync=sync)

        async def guarded(batch: Batch, *, sync: bool) -> None:
            if self.broken:
                raise StorageError("write", os_error=OSError(errno.ENOSPC, "No space left on device"))
            await finish(write(batch, sync))

        writer.append = guarded
        return writer  # type: ignore[no-any-return]


@pytest.fixture
def disk() -> Disk:
    """An empty disk that works."""
    return Disk()


@pytest.fixture
async def session(disk: Disk) -> AsyncIterator[StoredSession]:
    """A session that is written only when somebody flushes."""
    async with SessionStore(backend=disk, batch_window_ms=60_000) as store:
        yield await store.create("s")


def stored(disk: Disk) -> list[str]:
    """The types on the disk."""
    return [e.type for e in scan_log(disk.stored_bytes("s")).events] if "s" in disk._logs else []


def ask(step: Any, *calls: str) -> None:
    """The model answers with tool calls."""
    step.message({"content": [tool_call(call) for call in calls], "source": MODEL})


def codes(session: StoredSession) -> list[str | None]:
    """The error codes of the results, in order; None for a plain result."""
    found: list[str | None] = []
    for event in session.events:
        if event.type == "tool/result":
            data: Any = event.to_dict()["data"]
            found.append(data.get("error", {}).get("code"))
    return found


def check_balanced(session: StoredSession) -> None:
    """Every call has a result, and turns and steps are closed."""
    InvariantTrace().replay(session.events)
    blocks: list[Any] = [block for m in session.derive_messages() for block in m.content]  # type: ignore[union-attr]
    asked = [b.id for b in blocks if type(b).__name__ == "ToolCallBlock"]
    answered = [b.tool_call_id for b in blocks if type(b).__name__ == "ToolResultBlock"]
    assert sorted(asked) == sorted(answered)
    assert session.events[-1].type == "turn/end"


async def test_the_request_is_on_the_disk_before_the_model_is_called(disk: Disk, session: StoredSession) -> None:
    """When `step.request` returns, the prompt is stored."""
    async with session.turn() as turn:
        turn.user("hi")
        async with turn.step() as step:
            assert stored(disk) == []
            assert await step.request() == 3
            assert stored(disk) == ["turn/start", "user/message", "step/start"]


async def test_a_request_that_cannot_be_stored_is_not_made(disk: Disk, session: StoredSession) -> None:
    """The flush's error reaches the loop before the model is called; the turn says error and goes to disk later."""
    disk.broken = True
    called = False
    with pytest.raises(StorageError):
        async with session.turn() as turn:
            turn.user("hi")
            async with turn.step() as step:
                await step.request()
                called = True
    assert not called
    check_balanced(session)
    disk.broken = False
    assert await session.flush() == session.seq
    assert "StorageError" not in {e.type for e in session.events}


async def test_a_disposed_session_records_nothing(session: StoredSession) -> None:
    """No live session, no flush and no call."""
    await session.dispose()
    with pytest.raises(StoreClosedError):
        async with session.turn():
            pass
    assert session.seq == 0


async def test_the_call_is_on_the_disk_before_the_tool_runs(disk: Disk, session: StoredSession) -> None:
    """When `step.call` returns, and not before, the tool may run."""
    async with session.turn() as turn, turn.step() as step:
        ask(step, "c1")
        await step.call("c1", "shell", {"command": "ls"})
        assert stored(disk)[-1] == "tool/call"
        step.result("c1", "done")
    check_balanced(session)
    assert codes(session) == [None]


async def test_a_call_that_cannot_be_stored_does_not_run(disk: Disk, session: StoredSession) -> None:
    """`step.call` raises, the tool does not run, and the call has a result all the same."""
    ran = False
    with pytest.raises(StorageError):
        async with session.turn() as turn, turn.step() as step:
            ask(step, "c1")
            disk.broken = True
            await step.call("c1", "shell", "{}")
            ran = True
    assert not ran
    check_balanced(session)
    disk.broken = False
    await session.flush()
    assert stored(disk) == [e.type for e in session.events]


async def test_a_cancellation_while_a_call_is_stored_gives_the_canonical_result(
    disk: Disk, session: StoredSession
) -> None:
    """The tool did not run; its result is the one that a crash would give, and the turn is aborted."""
    ran = False

    async def agent() -> None:
        nonlocal ran
        async with session.turn() as turn, turn.step() as step:
            ask(step, "c1", "c2")
            await step.call("c1", "shell", "{}")
            ran = True

    disk.gate, disk.waiting = asyncio.Event(), asyncio.Event()
    task = asyncio.ensure_future(agent())
    await disk.waiting.wait()
    task.cancel()
    disk.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not ran
    check_balanced(session)
    data: Any = session.events[-1].to_dict()["data"]
    assert data["reason"] == {"kind": "aborted"}
    assert codes(session) == ["TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"]


async def test_a_tool_that_raises_leaves_an_unknown_outcome(session: StoredSession) -> None:
    """It started and nobody knows how far it came; what was never started may be retried."""
    with pytest.raises(ZeroDivisionError):
        async with session.turn() as turn, turn.step() as step:
            ask(step, "c1", "c2")
            await step.call("c1", "shell", "{}")
            raise ZeroDivisionError("the tool")
    assert codes(session) == ["TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"]
    check_balanced(session)
    data: Any = session.events[-1].to_dict()["data"]
    assert data["reason"] == {"kind": "error", "step": 1, "message": "the tool", "code": "ZeroDivisionError"}


async def test_calls_made_by_a_tool_are_covered_by_its_own(disk: Disk, session: StoredSession) -> None:
    """A tool that dispatches others does so after its own call is on the disk; their events need no flush of their own."""
    async with session.turn() as turn, turn.step() as step:
        ask(step, "c1")
        await step.call("c1", "code", "{}")
        before = len(stored(disk))
        dispatch = {"parentCallId": "c1", "subCallId": "c1.1", "name": "read", "arguments": {}}
        session.append("tool/code-dispatch-start", dispatch)
        session.append("tool/code-dispatch", {**dispatch, "isError": False, "content": []})
        assert len(stored(disk)) == before
        step.result("c1", "done")
    assert stored(disk) == [e.type for e in session.events]


async def test_the_end_of_a_turn_is_on_the_disk(disk: Disk, session: StoredSession) -> None:
    """Leaving a turn flushes, its steps included."""
    async with session.turn() as turn:
        turn.user("hi")
        async with turn.step() as step:
            step.message({"content": [{"type": "text", "text": "ho"}], "source": MODEL})
        async with turn.step() as step:
            step.message({"content": [{"type": "text", "text": "hu"}], "source": MODEL})
    assert session.durable_seq == session.seq
    assert stored(disk) == [e.type for e in session.events]
    check_balanced(session)


async def test_recording_leaves_nothing_on_the_session_behind(session: StoredSession) -> None:
    """After a turn the session is as before: plain appends work, and another turn follows."""
    for number in (1, 2):
        async with session.turn() as turn:
            turn.user("hi")
        session.append("session/title", {"title": str(number)})
    assert [e.type for e in session.events].count("turn/start") == 2
    numbers: list[Any] = [e.to_dict()["data"] for e in session.events if e.type == "turn/start"]
    assert [n["turn"] for n in numbers] == [1, 2]


async def test_messages_injected_while_tools_run_wait_for_the_last_result(session: StoredSession) -> None:
    """Held back in order until every result of the batch is in."""
    async with session.turn() as turn, turn.step() as step:
        ask(step, "c1", "c2")
        await step.call("c1", "shell", "{}")
        session.inject("first")
        step.result("c1", "done")
        session.inject("second")
        await step.call("c2", "shell", "{}")
        step.result("c2", "done")
    types = [e.type for e in session.events]
    assert types[-6:] == ["tool/call", "tool/result", "user/message", "user/message", "step/end", "turn/end"]
    texts: list[Any] = [m.content[0].text for m in session.derive_messages()[-2:]]  # type: ignore[union-attr]
    assert texts == ["first", "second"]
    check_balanced(session)


CHILD = """
import asyncio, os, signal, sys
from sessionstore import SessionStore

async def main():
    async with SessionStore(sys.argv[1], batch_window_ms=60_000) as store:
        session = await store.create("s")
        async with session.turn() as turn:
            turn.user("the request")
            async with turn.step() as step:
                await step.request()
                if sys.argv[2] == "model":
                    os.kill(os.getpid(), signal.SIGKILL)
                call = {"type": "tool-call", "id": "c1", "name": "shell", "arguments": "{}"}
                source = {"kind": "model", "provider": "p", "model": "m"}
                step.message({"content": [call, {**call, "id": "c2"}], "source": source})
                await step.call("c1", "shell", "{}")
                os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("where", ["model", "tool"])
async def test_a_process_killed_inside_a_call_left_its_intent_on_the_disk(tmp_path: Path, where: str) -> None:
    """Killed while the model is asked: the whole request is there. While a tool runs: its outcome is unknown."""
    killed = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), where], check=False)
    assert killed.returncode == -signal.SIGKILL
    async with SessionStore(tmp_path) as store:
        session = await store.resume("s")
        types = [e.type for e in session.events]
        assert types[:3] == ["turn/start", "user/message", "step/start"]
        (first, *rest) = session.derive_messages()
        assert first.content[0].text == "the request"  # type: ignore[union-attr]
        assert len(rest) == (0 if where == "model" else 3)
        assert codes(session) == ([] if where == "model" else ["TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"])
        check_balanced(session)

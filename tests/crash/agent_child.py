"""An agent that tells its parent everything until it dies: the child of ``killing.py`` and ``power.py``.

Run as ``python -m tests.crash.agent_child PLAN`` with PLAN as JSON (:class:`Plan`).  It writes lines to stdout,
each with one system call, so that what was written before a SIGKILL is there to be read after it:

    R count            a session was resumed: it kept *count* events, the closers follow
    E seq digest       an event was appended; the digest is of its JSON text
    A count time       every event with a seq below *count* is on the disk, as a flush or durable_seq said;
                       *time* is the system's monotonic clock when it was said
    B name / F name    a file operation begins / has finished
    T call / U call    a tool runs / its result was appended
    W                  the turns of the plan are done, the last one is open; nothing more happens
    X error            the store refused, as it must when the disk is gone; nothing more happens
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import sys
import time
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
from msgspec import Struct

from sessionstore import SessionStore, SessionStoreError, StoredSession
from sessionstore.backends.files import OsFiles
from sessionstore.backends.jsonl.backend import JsonlBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    from sessionstore.events import Event

__all__ = ["CWD", "SOURCE", "Plan", "SelfKill", "digest"]

T = TypeVar("T")

CWD = "/srv/project"
SOURCE = {"kind": "model", "provider": "scripted", "model": "m"}


class SelfKill(Struct, frozen=True):
    """Die at the *nth* file operation called *name* (or ``any``): before it, after it, or with half of a write done."""

    name: str
    nth: int
    at: Literal["before", "half", "after"] = "before"


class Plan(Struct, frozen=True, kw_only=True):
    """What a child does.  *text* is how many characters its tools return, *turns* how many turns it begins.

    With *slow_tool* its tools are processes, of which that one (1 is the first) and all later ones take for ever.
    With *lie_about_sync* nothing is synced: a harness that then finds nothing wrong finds nothing at all.
    """

    root: str
    session: str
    resume: bool = False
    compression: Literal["none", "zstd"] = "none"
    window_ms: float = 20
    text: int = 40
    slow_tool: int = 0
    turns: int = 1_000_000
    seed: int = 0
    kill: SelfKill | None = None
    lie_about_sync: bool = False


def digest(event: Event) -> str:
    """What identifies an event and all its content."""
    return hashlib.sha256(event.to_json()).hexdigest()[:24]


def report(*words: object) -> None:
    """One line to the parent, in one write."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def acknowledge(count: int) -> None:
    """Report that *count* events are on the disk."""
    report("A", count, time.monotonic())


class ReportingFiles(OsFiles):
    """The files of the operating system; says what it is about to do, and may die in the middle of it."""

    def __init__(self, kill: SelfKill | None, *, lie_about_sync: bool) -> None:
        self._kill = kill
        self._lie = lie_about_sync
        self._seen = 0

    def _tell(self, name: str, work: Callable[[], T], half: Callable[[], object] | None = None) -> T:
        kill = self._kill
        at: str | None = None
        if kill is not None and kill.name in {name, "any"}:
            self._seen += 1
            at = kill.at if self._seen == kill.nth else None
        report("B", name)
        if at == "half" and half is not None:
            half()
        if at in {"before", "half"}:
            os.kill(os.getpid(), signal.SIGKILL)
        result = work()
        if at == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        report("F", name)
        return result

    def open_append(self, path: str) -> int:
        return self._tell("open_append", lambda: super(ReportingFiles, self).open_append(path))

    def open_lock(self, path: str) -> int:
        return self._tell("open_lock", lambda: super(ReportingFiles, self).open_lock(path))

    def create(self, path: str) -> int:
        return self._tell("create", lambda: super(ReportingFiles, self).create(path))

    def write(self, fd: int, data: memoryview) -> int:
        whole = super().write
        return self._tell("write", lambda: whole(fd, data), lambda: whole(fd, data[: len(data) // 2]))

    def truncate(self, fd: int, length: int) -> None:
        self._tell("truncate", lambda: super(ReportingFiles, self).truncate(fd, length))

    def sync(self, fd: int) -> None:
        self._tell("sync", lambda: None if self._lie else super(ReportingFiles, self).sync(fd))

    def mkdir(self, path: str) -> None:
        self._tell("mkdir", lambda: super(ReportingFiles, self).mkdir(path))

    def sync_directory(self, path: str) -> None:
        # One name for it: the sync inside is this one's.
        self._tell("sync_directory", lambda: super(ReportingFiles, self).sync_directory(path))

    def link(self, source: str, target: str) -> None:
        self._tell("link", lambda: super(ReportingFiles, self).link(source, target))

    def rename(self, source: str, target: str) -> None:
        self._tell("rename", lambda: super(ReportingFiles, self).rename(source, target))

    def unlink(self, path: str) -> None:
        self._tell("unlink", lambda: super(ReportingFiles, self).unlink(path))

    def lock(self, fd: int, *, shared: bool = False) -> bool:
        return self._tell("lock", lambda: super(ReportingFiles, self).lock(fd, shared=shared))


class Agent:
    """A scripted agent: streams, calls tools, flushes where an agent has to, and reports what it was promised."""

    def __init__(self, session: StoredSession, plan: Plan) -> None:
        self.session = session
        self.plan = plan
        self.rng = random.Random(plan.seed)
        self.calls = 0
        self.tools = 0
        session.observe(self._appended)

    def _appended(self, event: Event) -> None:
        report("E", event.seq, digest(event))
        acknowledge(self.session.durable_seq)

    async def turn(self, *, leave_open: bool) -> None:
        """A turn of two steps, the first of which calls two tools."""
        async with self.session.turn() as turn:
            turn.user(f"prompt {self.rng.random()}")
            async with turn.step() as step:
                acknowledge(await step.request())
                await self._stream(step.chunk)
                ids = [f"call-{os.getpid()}-{self.calls + n}" for n in range(2)]
                self.calls += 2
                blocks = [{"type": "tool-call", "id": id, "name": "look", "arguments": "{}"} for id in ids]
                step.message({"content": blocks, "source": SOURCE})
                for id in ids:
                    await step.call(id, "look", "{}")
                    acknowledge(self.session.durable_seq)
                    await self._run_tool(id)
                    step.result(id, self.rng.randbytes(self.plan.text // 2).hex())
                    report("U", id)
            async with turn.step() as step:
                acknowledge(await step.request())
                await self._stream(step.chunk)
                if leave_open:
                    report("W")
                    await asyncio.Event().wait()
                step.message({"content": [{"type": "text", "text": "done"}], "source": SOURCE})
        acknowledge(self.session.durable_seq)

    async def _stream(self, chunk: Callable[[dict[str, object]], object]) -> None:
        chunk({"type": "block-start", "index": 0, "blockType": "text"})
        for _ in range(12):
            chunk({"type": "text-delta", "index": 0, "text": f"{self.rng.random()} "})
            await asyncio.sleep(0)
        await asyncio.sleep(min(self.plan.window_ms, 20) / 2000)  # sometimes the window closes in here, sometimes not

    async def _run_tool(self, id: str) -> None:
        self.tools += 1
        if not self.plan.slow_tool:
            report("T", id)
            return
        # The tool itself says that it runs: whoever reads that knows that a side effect may have happened.
        seconds = 0 if self.tools < self.plan.slow_tool else 600
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", f"echo 'T {id}'; exec sleep {seconds}", stdout=1
        )
        await process.wait()


async def run(plan: Plan) -> None:
    """Carry out *plan*."""
    files = ReportingFiles(plan.kill, lie_about_sync=plan.lie_about_sync)
    backend = JsonlBackend(plan.root, compression=plan.compression, files=files)
    store = SessionStore(backend=backend, batch_window_ms=plan.window_ms)
    try:
        if plan.resume:
            session = await store.resume(plan.session)
            closers = session.recovery.closers if session.recovery is not None else ()
            report("R", session.seq - len(closers))
            for event in closers:
                report("E", event.seq, digest(event))
            acknowledge(session.durable_seq)
        else:
            session = await store.create(plan.session, cwd=CWD)
        agent = Agent(session, plan)
        for number in range(1, plan.turns + 1):
            await agent.turn(leave_open=number == plan.turns)
    except (SessionStoreError, ExceptionGroup) as error:
        report("X", type(error).__name__)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(msgspec.json.decode(sys.argv[1], type=Plan)))

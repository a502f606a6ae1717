"""Cancelled at every await, on real files: acknowledged is durable, nothing is lost, doubled, half written or held."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import pytest

from sessionstore import SessionStore, Verdict
from sessionstore.backends.jsonl.backend import JsonlBackend
from tests.faults import FaultyFiles

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator
    from pathlib import Path

    from sessionstore import StoredSession

pytestmark = pytest.mark.crash


Work = Callable[[], Coroutine[Any, Any, None]]
WAYS = ["awaits", *(pytest.param(way, marks=pytest.mark.slow) for way in ("calls", "calls, all tasks"))]


class CancelledAt:
    """Runs a coroutine as the body of a task, and cancels that task at the awaits whose numbers are in *at*.

    ``awaits`` counts how often the coroutine gave control to the loop: that is where a cancellation can arrive.
    """

    def __init__(self, work: Coroutine[Any, Any, None], at: range) -> None:
        self._work = work
        self._at = at
        self.awaits = 0

    def __await__(self) -> Generator[Any, Any, None]:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        step: Callable[[], Any] = lambda: self._work.send(None)  # noqa: E731 - replaced by a throw where one arrives
        while True:
            try:
                awaited = step()
            except StopIteration:
                return
            if self.awaits in self._at:
                loop.call_soon(task.cancel)
            self.awaits += 1
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001 - handed on to where it belongs
                step = self._throwing(error)
            else:
                step = lambda: self._work.send(None)  # noqa: E731

    def _throwing(self, error: BaseException) -> Callable[[], Any]:
        return lambda: self._work.throw(error)


class BusyFiles(FaultyFiles):
    """Knows whether a worker is inside a call that changes something."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.busy = 0

    def _do(self, work: Callable[[], Any]) -> Any:
        with self._lock:
            self.busy += 1
        try:
            return work()
        finally:
            with self._lock:
                self.busy -= 1

    def write(self, fd: int, data: memoryview) -> int:
        result: int = self._do(lambda: super(BusyFiles, self).write(fd, data))
        return result

    def sync(self, fd: int) -> None:
        self._do(lambda: super(BusyFiles, self).sync(fd))

    def truncate(self, fd: int, length: int) -> None:
        self._do(lambda: super(BusyFiles, self).truncate(fd, length))

    def rename(self, source: str, target: str) -> None:
        self._do(lambda: super(BusyFiles, self).rename(source, target))


class Program:
    """What is cancelled, and what it knew when it was."""

    def __init__(self, root: Path, compression: Any) -> None:
        self.files = BusyFiles()
        self.backend = JsonlBackend(root, compression=compression, files=self.files)
        self.store = SessionStore(backend=self.backend, batch_window_ms=60_000)
        self.session: StoredSession | None = None
        self.acknowledged = 0
        self.disposed = False

    async def write(self) -> None:
        """Create, append, flush, and dispose."""
        self.session = await self.store.create("s")
        for count in (2, 3):
            self.fill(count)
            self.acknowledged = await self.session.flush()
        self.fill(2)
        await self.session.dispose()
        self.disposed = True

    async def resume(self) -> None:
        """Repair what is torn, append, flush, and dispose."""
        self.session = await self.store.resume("s")
        self.acknowledged = self.session.durable_seq
        self.fill(2)
        self.acknowledged = await self.session.flush()
        await self.session.dispose()
        self.disposed = True

    async def move(self) -> None:
        """Fork, delete the source, bring it back."""
        await (await self.store.fork("s", child_id="child")).dispose()
        entry = await self.store.delete("s")
        await self.store.restore(entry)

    def fill(self, count: int) -> None:
        assert self.session is not None
        for _ in range(count):
            self.session.append("test/event", {"n": self.session.seq})


async def cancel_at_await(program: Program, work: Work, at: range) -> bool:
    """Run *work* and cancel it at its awaits *at*; whether there is such an await."""
    body = CancelledAt(work(), at)

    async def task() -> None:
        await body

    await ended(asyncio.create_task(task()))
    assert program.files.busy == 0, "a write was abandoned half way"
    return body.awaits > at.start


async def cancel_at_call(program: Program, work: Work, at: range, *, everything: bool) -> bool:
    """Run *work* and cancel it, or every task there is, while a worker is about to do its file operations *at*.

    The operation goes on when the cancellation has been delivered.  Whether there is such an operation.
    """
    loop = asyncio.get_running_loop()
    me = asyncio.current_task()
    running = asyncio.create_task(work())
    reached = False

    def deliver(delivered: threading.Event) -> None:
        for each in asyncio.all_tasks() if everything else {running}:
            if each is not me:
                each.cancel()
        loop.call_soon(loop.call_soon, delivered.set)  # after the tasks have had their turn

    def before(_name: str, number: int) -> None:
        nonlocal reached
        if number in at and not running.done():
            reached = True
            delivered = threading.Event()
            loop.call_soon_threadsafe(deliver, delivered)
            assert delivered.wait(30)

    program.files.before = before
    await ended(running)
    program.files.before = lambda _name, _number: None
    return reached


async def ended(task: asyncio.Task[None]) -> None:
    """Wait for the end of *task*, which may be cancelled."""
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def cancel(program: Program, work: Work, how: str, at: range) -> bool:
    """Run *work* and cancel it in the way *how*."""
    if how == "awaits":
        return await cancel_at_await(program, work, at)
    return await cancel_at_call(program, work, at, everything=how == "calls, all tasks")


async def at_every_place(run: Callable[[range], Awaitable[bool]], *, times: int = 1) -> int:
    """Call *run* with each place of a cancellation until there is none left; how many there were."""
    place = 0
    while await run(range(place, place + times)):
        place += 1
    return place


async def stored(root: Path, session_id: str = "s") -> tuple[Verdict, list[Any]]:
    """Verdict and content of what lies below *root*, which nobody holds."""
    async with SessionStore(root) as store:
        found = await store.inspect(session_id)
        assert found.writer == "none"
        return found.verdict, [event.to_dict()["data"] for event in found.events]


@pytest.mark.parametrize("times", [1, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["awaits", "calls", pytest.param("calls, all tasks", marks=pytest.mark.slow)])
async def test_append_flush_dispose(tmp_path: Path, how: str, times: int) -> None:
    """Whatever was flushed is there; what was appended is there when the store is closed; nothing is there twice."""

    async def run(at: range) -> bool:
        root = tmp_path / f"{at.start}-{len(at)}"
        program = Program(root, "zstd" if at.start % 2 else "none")
        cancelled = await cancel(program, program.write, how, at)
        if program.acknowledged:
            assert len(await stored_while_open(root)) >= program.acknowledged
        appended = [] if program.session is None else [{"n": n} for n in range(program.session.seq)]
        await program.store.aclose()
        if appended:
            assert await stored(root) == (Verdict.CLEAN, appended)
        else:
            assert not list(root.rglob("session.jsonl*"))
        return cancelled

    assert await at_every_place(run, times=times) >= (4 if how == "awaits" else 30)


async def stored_while_open(root: Path) -> list[Any]:
    """What a reader sees while somebody may hold the session."""
    async with SessionStore(root) as store:
        found = await store.inspect("s")
        assert found.verdict in {Verdict.CLEAN, Verdict.INTERRUPTED}
        return [event.to_dict()["data"] for event in found.events]


@pytest.mark.parametrize("how", WAYS)
async def test_resume_with_a_repair(tmp_path: Path, how: str) -> None:
    """A repair is done or not; a later resume finishes it, and the session goes on where it was."""
    template = tmp_path / "template"
    program = Program(template, "none")
    program.session = await program.store.create("s")
    program.session.append("turn/start", {"turn": 1})
    await program.store.aclose()
    (log,) = template.glob("*/*/session.jsonl*")
    with log.open("ab") as file:
        file.write(b'{"type":"torn')

    async def run(at: range) -> bool:
        root = tmp_path / f"{at.start}-{len(at)}"
        shutil.copytree(template, root)
        program = Program(root, "none")
        cancelled = await cancel(program, program.resume, how, at)
        await program.store.aclose()
        async with SessionStore(root) as store:
            session = await store.resume("s")
            assert [event.type for event in session.events[:2]] == ["turn/start", "turn/end"]
            assert session.seq >= program.acknowledged
            if program.session is not None:
                assert session.seq == program.session.seq
        cuts = list(root.rglob("session.jsonl.cut-*"))
        assert [path.read_bytes() for path in cuts] == [b'{"type":"torn']
        assert not list(root.rglob("*.tmp*"))
        return cancelled

    assert await at_every_place(run) >= (3 if how == "awaits" else 30)


@pytest.mark.parametrize("how", WAYS)
async def test_fork_delete_restore(tmp_path: Path, how: str) -> None:
    """The session is in one place, the child is there whole or not at all, and nothing is held."""
    template = tmp_path / "template"
    program = Program(template, "none")
    program.session = await program.store.create("s")
    program.fill(3)
    await program.store.aclose()
    events = [{"n": n} for n in range(3)]

    async def run(at: range) -> bool:
        root = tmp_path / f"{at.start}-{len(at)}"
        shutil.copytree(template, root)
        program = Program(root, "none")
        cancelled = await cancel(program, program.move, how, at)
        await program.store.aclose()
        async with SessionStore(root) as store:
            ids = {info.id for info in (await store.list()).sessions}
            buried = [entry.id for entry in await store.trash()]
            assert ids | set(buried) >= {"s"}
            assert len(buried) + ("s" in ids) == 1
        if "s" in ids:
            assert await stored(root) == (Verdict.CLEAN, events)
        if "child" in ids:
            assert await stored(root, "child") == (Verdict.CLEAN, events)
        return cancelled

    assert await at_every_place(run) >= (3 if how == "awaits" else 30)


async def test_a_timeout_around_a_flush(tmp_path: Path) -> None:
    """A deadline in the middle of a write: the flush raises when the write has settled, and a later flush is whole."""
    program = Program(tmp_path, "none")
    program.session = await program.store.create("s")
    for _ in range(20):
        program.fill(1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await program.session.flush()
        assert program.files.busy == 0
    assert await program.session.flush() == 20
    await program.store.aclose()
    assert await stored(tmp_path) == (Verdict.CLEAN, [{"n": n} for n in range(20)])

"""Blocking work is waited for, whatever happens to the one who waits."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from sessionstore.settle import settle


class Gate:
    """A piece of work that a test holds until it opens the gate."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        self.finished = False
        self.error = error

    def work(self, value: int = 0) -> int:
        self.entered.set()
        self.open.wait(10)
        self.finished = True
        if self.error is not None:
            raise self.error
        return value


async def _entered(gate: Gate) -> None:
    while not gate.entered.is_set():
        await asyncio.sleep(0)


async def test_returns_what_the_function_returns() -> None:
    """The arguments go in and the result comes out."""
    assert await settle(divmod, 7, 2) == (3, 1)


async def test_runs_in_another_thread() -> None:
    """The loop's own thread is never blocked."""
    assert await settle(threading.get_ident) != threading.get_ident()


async def test_raises_what_the_function_raises() -> None:
    """An error of the work reaches the caller as it is."""
    with pytest.raises(ZeroDivisionError):
        await settle(divmod, 1, 0)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("error", [None, OSError("disk")])
async def test_a_cancelled_caller_waits(times: int, error: OSError | None) -> None:
    """However often the caller is cancelled, it ends only after the work, cancelled."""
    gate = Gate(error)
    task = asyncio.ensure_future(settle(gate.work))
    await _entered(gate)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
    gate.open.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert gate.finished
    assert caught.value.__cause__ is error


async def test_a_timeout_waits_too() -> None:
    """``asyncio.timeout`` is a cancellation like any other and still becomes a ``TimeoutError``."""
    gate = Gate()
    asyncio.get_running_loop().call_later(0.02, gate.open.set)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await settle(gate.work)
    assert gate.finished


async def test_an_abandoned_result_is_released() -> None:
    """What the work opened is handed to ``abandoned`` when nobody is left to take it."""
    gate = Gate()
    released: list[int] = []
    task = asyncio.ensure_future(settle(gate.work, 7, abandoned=released.append))
    await _entered(gate)
    task.cancel()
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert released == [7]


async def test_a_delivered_result_is_not_released() -> None:
    """``abandoned`` is for cancelled callers only."""
    released: list[int] = []
    assert await settle(int, "7", abandoned=released.append) == 7
    assert released == []


def test_the_end_of_asyncio_run_waits() -> None:
    """A task that is left over when the main one returns is cancelled by asyncio.run, and its work still ends."""
    gate = Gate()

    order: list[str] = []

    async def watched() -> None:
        with suppress(asyncio.CancelledError):
            await settle(gate.work)
        order.append("caller ended" if gate.finished else "abandoned")

    async def outer() -> None:
        task = asyncio.ensure_future(watched())
        await _entered(gate)
        asyncio.get_running_loop().call_later(0.02, gate.open.set)
        order.append("main ended")
        assert not task.done()

    asyncio.run(outer())
    assert order == ["main ended", "caller ended"]


def test_work_that_waits_for_a_worker_is_done_all_the_same() -> None:
    """With every worker busy, work that asyncio.run cancels before it began is still done before its end."""
    busy = Gate()
    waiting = Gate()
    waiting.open.set()

    async def outer() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        first = asyncio.ensure_future(settle(busy.work))
        await _entered(busy)
        second = asyncio.ensure_future(settle(waiting.work))
        await asyncio.sleep(0)
        loop.call_later(0.02, busy.open.set)
        assert not first.done()
        assert not second.done()

    asyncio.run(outer())
    assert busy.finished
    assert waiting.finished


async def test_work_is_done_once_however_often_it_is_cancelled() -> None:
    """Work that a cancellation takes out of the queue goes there again, and runs one time."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = Gate()
    runs: list[int] = []
    first = asyncio.ensure_future(settle(busy.work))
    await _entered(busy)
    second = asyncio.ensure_future(settle(runs.append, 1))
    for _ in range(3):
        await asyncio.sleep(0)
        second.cancel()
    busy.open.set()
    with pytest.raises(asyncio.CancelledError):
        await second
    await first
    assert runs == [1]


async def test_an_executor_that_was_shut_down_is_an_error() -> None:
    """Work that no worker takes any more raises instead of waiting for ever."""
    await asyncio.get_running_loop().shutdown_default_executor()
    with pytest.raises(RuntimeError):
        await settle(int)


async def test_nothing_is_left_unretrieved(caplog: pytest.LogCaptureFixture) -> None:
    """An error that a cancelled caller never sees leaves no "never retrieved" behind."""
    gate = Gate(OSError("disk"))
    task = asyncio.ensure_future(settle(gate.work))
    await _entered(gate)
    task.cancel()
    gate.open.set()
    with suppress(asyncio.CancelledError):
        await task
    del task
    gc.collect()
    assert not caplog.records


@pytest.mark.slow
def test_importing_it_imports_no_driver() -> None:
    """The driver, aiofiles, is imported by the first call and not by the import."""
    import subprocess

    code = "import sys, sessionstore.settle; sys.exit('aiofiles' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

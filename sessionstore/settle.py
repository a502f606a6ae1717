"""Blocking work off the event loop, never abandoned half way.

``asyncio.to_thread`` and aiofiles return at once when their caller is cancelled,
while the thread goes on writing: a lock would be released, or a second write
started, under a write that still runs.  :func:`settle` waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple

from sessionstore.tasks import outlast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["settle"]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


async def settle(fn: Callable[[*_Ts], _T], *args: *_Ts, abandoned: Callable[[_T], None] | None = None) -> _T:
    """Run ``fn(*args)`` in a worker thread, in one hop; return what it returns, raise what it raises.

    A cancelled caller still waits until *fn* has settled, however often it is cancelled, and only then gets its
    ``CancelledError`` (with what *fn* raised as its cause).  The result is lost then: *abandoned*, if given, is
    called with it, in a worker too, to release what it owns; an error of *abandoned* becomes the cause.
    """
    work, cancelled = await _settled(fn, *args)
    if cancelled is None:
        return work.result()
    cause = work.exception()
    if cause is None and abandoned is not None:
        release, _ = await _settled(abandoned, work.result())
        cause = release.exception()
    raise cancelled from cause


async def _settled(fn: Callable[[*_Ts], _T], *args: *_Ts) -> tuple[Future[_T], asyncio.CancelledError | None]:
    """The outcome of ``fn(*args)``, and the first cancellation that came before it was there."""
    outcome: Future[_T] = Future()
    begun = threading.Lock()  # taken by the worker that runs fn, or here when none ever will

    def run() -> None:
        if not begun.acquire(blocking=False):
            return
        try:
            result = fn(*args)
        except BaseException as error:  # noqa: BLE001  # all of it belongs to the caller
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    cancelled: asyncio.CancelledError | None = None
    # Usually one turn.  A cancellation takes work that no worker has begun out of the queue: it goes there again.
    while not begun.locked():
        try:
            await _hop(run)
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
        except RuntimeError as error:  # the executor takes no more work
            if begun.acquire(blocking=False):
                outcome.set_exception(error)
    if not outcome.done():
        later = await _until_done(outcome)
        cancelled = cancelled or later
    return outcome, cancelled


async def _hop(run: Callable[[], None]) -> None:
    """Call *run* in a worker thread."""
    if not _calls:
        # A program that only handles events never needs it, and a loop at work is not held up by an import.
        aiofiles_os = await asyncio.get_running_loop().run_in_executor(None, import_module, "aiofiles.os")
        _calls.append(aiofiles_os.wrap(_call))
    await _calls[0](run)


def _call(run: Callable[[], None]) -> None:
    run()


_calls: Final[list[Callable[[Callable[[], None]], Awaitable[None]]]] = []
"""``_call`` as a coroutine function, once it was needed."""


async def _until_done(outcome: Future[_T]) -> asyncio.CancelledError | None:
    """Wait for *outcome*, through cancellations, on a future that the end of ``asyncio.run`` does not cancel."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(_: Future[_T]) -> None:
        # A loop that was closed meanwhile has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(done.set_result, None)

    outcome.add_done_callback(tell)
    return await outlast(done)

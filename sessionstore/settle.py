"""Blocking work off the event loop, never abandoned half way.

``asyncio.to_thread`` and aiofiles return at once when their caller is cancelled,
while the thread goes on writing: a lock would be released, or a second write
started, under a write that still runs.  :func:`settle` waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["settle"]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


async def settle(fn: Callable[[*_Ts], _T], *args: *_Ts, abandoned: Callable[[_T], None] | None = None) -> _T:
    """Run ``fn(*args)`` in a worker thread, in one hop; return what it returns, raise what it raises.

    A cancelled caller still waits until *fn* has settled, however often it is cancelled, and only then gets its
    ``CancelledError`` (with what *fn* raised as its cause).  The result is lost then: *abandoned*, if given, is
    called with it, in a worker too, to release what it owns; an error of *abandoned* becomes the cause.
    """
    work, cancelled = await _outlast(fn, *args)
    if cancelled is None:
        return work.result()
    cause = None if work.cancelled() else work.exception()
    if cause is None and not work.cancelled() and abandoned is not None:
        release, _ = await _outlast(abandoned, work.result())
        cause = None if release.cancelled() else release.exception()
    raise cancelled from cause


async def _outlast(fn: Callable[[*_Ts], _T], *args: *_Ts) -> tuple[asyncio.Future[_T], asyncio.CancelledError | None]:
    """The finished future of ``fn(*args)``, and the first cancellation that came while it ran."""
    from aiofiles.os import wrap  # noqa: PLC0415  # a program that only handles events never needs it

    loop = asyncio.get_running_loop()
    # Not the task below: asyncio.run cancels every task at its end, and a task of the executor that is cancelled
    # looks finished while its thread goes on.
    work: asyncio.Future[_T] = loop.create_future()
    begun = threading.Lock()  # taken once: by the worker that runs fn, or by the loop when fn will never run

    def run() -> None:
        if not begun.acquire(blocking=False):
            return
        try:
            result = fn(*args)
        except BaseException as error:  # noqa: BLE001  # all of it belongs to the caller
            _tell(loop, work.set_exception, error)
        else:
            _tell(loop, work.set_result, result)

    task: asyncio.Future[None] = asyncio.ensure_future(wrap(run)())
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            watched: list[asyncio.Future[_T] | asyncio.Future[None]] = [work] if task.done() else [work, task]
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
        if task.done() and not work.done() and begun.acquire(blocking=False):
            _never_ran(task, work)
    return work, cancelled


_A = TypeVar("_A")


def _tell(loop: asyncio.AbstractEventLoop, setter: Callable[[_A], None], outcome: _A) -> None:
    # A loop that was closed meanwhile has nobody left who waits.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(setter, outcome)


def _never_ran(task: asyncio.Future[None], work: asyncio.Future[_T]) -> None:
    """*task* ended before a worker began: it was cancelled from outside, or the executor takes no more work."""
    if task.cancelled():
        work.cancel()
        return
    error = task.exception()
    work.set_exception(error if error is not None else RuntimeError("the worker pool dropped the work"))

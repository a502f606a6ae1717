"""Waiting that a cancellation does not cut short.

Cancelling a task must not leave a lock taken, a file half written or a session half
opened.  Work that has to be finished runs in a task of its own; whoever waits for it
and is cancelled waits until it has ended, and is cancelled then.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["finish", "join", "outlast", "raise_all"]

T = TypeVar("T")


async def outlast(future: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait until *future* is done, through cancellations; the last of them is returned, not raised."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


async def join(future: asyncio.Future[T]) -> T:
    """Wait for *future* and return its result; a cancelled caller waits for its end too.

    Raises:
        asyncio.CancelledError: the caller was cancelled meanwhile; the work has ended all the same, and its
            result or error is for whoever started it to look at.
    """
    cancelled = await outlast(future)
    if cancelled is None:
        return future.result()
    if not future.cancelled():
        future.exception()  # looked at: the cancellation is what the caller sees
    raise cancelled


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run *work* to its end whatever happens to the caller; otherwise as :func:`join`."""
    return await join(asyncio.get_running_loop().create_task(work))


def raise_all(message: str, failures: list[Exception]) -> None:
    """Raise what failed: one error as it is, several as a group, none not at all."""
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise ExceptionGroup(message, failures)

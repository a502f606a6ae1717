"""Blocking work off the event loop, never abandoned half way.

``asyncio.to_thread`` and aiofiles return at once when their caller is cancelled,
while the thread goes on writing: a lock would be released, or a second write
started, under a write that still runs.  :func:`settle` waits.
"""

from __future__ import annotations

import asyncio
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
    cause = work.exception()
    if cause is None and abandoned is not None:
        release, _ = await _outlast(abandoned, work.result())
        cause = release.exception()
    raise cancelled from cause


async def _outlast(fn: Callable[[*_Ts], _T], *args: *_Ts) -> tuple[asyncio.Future[_T], asyncio.CancelledError | None]:
    """The finished future of ``fn(*args)``, and the first cancellation that came while it ran."""
    from aiofiles.os import wrap  # noqa: PLC0415  # a program that only reads messages never needs it

    work: asyncio.Future[_T] = asyncio.ensure_future(wrap(fn)(*args))
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    return work, cancelled

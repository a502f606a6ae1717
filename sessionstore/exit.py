"""Sessions that nobody closed: what becomes of them at interpreter exit, in a forked child, and when they are garbage.

An interpreter that ends still gets buffered events written, once, without an event
loop.  A forked child holds a copy of everything and must use none of it: it neither
writes the parent's events a second time nor gives up the parent's lock.  What its
program has let go of is not kept alive from here: it ends itself when it is
collected, and asks to be kept only where it could not.

SIGKILL, SIGTERM without a handler, and ``os._exit`` run none of this.
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OpenResource", "forget", "keep", "watch"]

_logger = logging.getLogger("sessionstore")


class OpenResource(Protocol):
    """Something that is open until it is forgotten."""

    def write_at_exit(self) -> None:
        """Write what is pending, synchronously.  Called by an interpreter that is about to end."""
        ...

    def after_fork(self) -> None:
        """Refuse everything from now on: this is a copy in a child process.  Must not raise."""
        ...


# Without callbacks: an entry stays until its resource, which may be on its way out, says that it is done.
_open: dict[int, Callable[[], OpenResource | None]] = {}
_hooked = False


def watch(resource: OpenResource) -> None:
    """Look after *resource* until :func:`forget`, without keeping it alive."""
    global _hooked  # noqa: PLW0603 - once per process, and importing the package should register nothing
    if not _hooked:
        _hooked = True
        atexit.register(_at_exit)
        os.register_at_fork(after_in_child=_after_fork_in_child)
    _open[id(resource)] = weakref.ref(resource)


def keep(resource: OpenResource) -> None:
    """Keep a *resource* alive that could not end itself: the interpreter's exit is the last chance it has."""
    _open[id(resource)] = lambda: resource


def forget(resource: OpenResource) -> bool:
    """Stop looking after *resource*; idempotent.  Whether it was looked after."""
    return _open.pop(id(resource), None) is not None


def _at_exit() -> None:
    # Worker threads have ended by now (threading joins them before atexit runs), so no write is in progress.
    while _open:
        for key in reversed(list(_open)):
            reference = _open.pop(key, None)  # a collection in between may have been faster
            resource = None if reference is None else reference()
            try:
                if resource is not None:
                    resource.write_at_exit()
            except Exception:  # one session must not cost another its events
                _logger.exception("a session could not be written at exit; its last events are lost")


def _after_fork_in_child() -> None:
    inherited = [reference() for reference in list(_open.values())]
    _open.clear()
    for resource in inherited:
        if resource is not None:
            resource.after_fork()

"""Sessions that nobody closed: what becomes of them at interpreter exit and in a forked child.

An interpreter that ends still gets buffered events written, once, without an event
loop.  A forked child holds a copy of everything and must use none of it: it neither
writes the parent's events a second time nor gives up the parent's lock.

SIGKILL, SIGTERM without a handler, and ``os._exit`` run none of this.
"""

from __future__ import annotations

import atexit
import logging
import os
from typing import Protocol

__all__ = ["OpenResource", "forget", "watch"]

_logger = logging.getLogger("sessionstore")


class OpenResource(Protocol):
    """Something that is open until it is forgotten."""

    def write_at_exit(self) -> None:
        """Write what is pending, synchronously.  Called at most once, by an interpreter that is about to end."""
        ...

    def after_fork(self) -> None:
        """Refuse everything from now on: this is a copy in a child process.  Must not raise."""
        ...


# Strong references: a session that its program dropped without closing still has events to write.
_open: dict[int, OpenResource] = {}
_hooked = False


def watch(resource: OpenResource) -> None:
    """Look after *resource* until :func:`forget`."""
    global _hooked  # noqa: PLW0603 - once per process, and importing the package should register nothing
    if not _hooked:
        _hooked = True
        atexit.register(_at_exit)
        os.register_at_fork(after_in_child=_after_fork_in_child)
    _open[id(resource)] = resource


def forget(resource: OpenResource) -> None:
    """Stop looking after *resource*; idempotent."""
    _open.pop(id(resource), None)


def _at_exit() -> None:
    # Worker threads have ended by now (threading joins them before atexit runs), so no write is in progress.
    while _open:
        _, resource = _open.popitem()
        try:
            resource.write_at_exit()
        except Exception:  # one session must not cost another its events
            _logger.exception("a session could not be written at exit; its last events are lost")


def _after_fork_in_child() -> None:
    inherited = list(_open.values())
    _open.clear()
    for resource in inherited:
        resource.after_fork()

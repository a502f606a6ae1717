"""What a store has promised by the moment it dies, and whether an image of its disk keeps it."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import Struct, structs

from sessionstore import SessionStore
from sessionstore.backends.jsonl.backend import JsonlBackend
from sessionstore.recovery.findings import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sessionstore import StoredSession
    from sessionstore.backends.files import Files

T = TypeVar("T")

__all__ = ["CWD", "ROOT", "BrokenPromiseError", "Inline", "Ledger", "Outcome", "Promise", "Setup"]

ROOT = "/disk/sessions"
CWD = "/srv/project"
GOOD = frozenset({Verdict.CLEAN, Verdict.INTERRUPTED, Verdict.TORN})
Place = Literal["home", "trash", "nowhere"]
Outcome = Literal["absent", "clean", "interrupted", "torn", "damaged", "invalid", "not repairable", "unnoticed"]
Doubt = Literal["none", "stale text", "damage"]
"""What cannot be told from what: stale text of another log may complete a line; without its barriers a log that is
torn may look damaged."""


class BrokenPromiseError(AssertionError):
    """An image does not keep what was promised; *kind* says what is broken."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {message}")


class Setup(Struct, frozen=True, kw_only=True):
    """The options of a store, and what may be taken from its promises for them."""

    compression: Literal["none", "zstd"] = "none"
    durability: Literal["batch", "flush"] = "batch"
    lock_dir: str | None = None
    batch_bytes: int = 1_000_000

    def open(self, files: Files) -> SessionStore:
        """A store on that disk, which writes when it is told to."""
        backend = JsonlBackend(ROOT, compression=self.compression, lock_dir=self.lock_dir, files=files, clock=_clock)
        ids = iter(range(1_000_000))
        return SessionStore(
            backend=backend,
            durability=self.durability,
            batch_bytes=self.batch_bytes,
            batch_window_ms=86_400_000,
            clock=_clock,
            new_id=lambda: f"id-{next(ids)}",
        )


class Promise(Struct, frozen=True, kw_only=True):
    """One session at one moment.

    *lines* are the events given out, *acked* how many of them are durable, *first* how many were in the batch that
    publishes (a visible session has that many), *places* where it may be.  *kept* are bytes that a repair cut or
    will cut: a quarantine file must hold them in the end.  *doubt*: what may have to be refused.
    *original* is a damaged log that a salvage must keep; *unmended*: the salvage may not be done yet.
    """

    id: str
    header: bytes | None = None
    lines: tuple[bytes, ...] = ()
    acked: int = 0
    exists: bool = False
    first: int = 0
    places: frozenset[Place] = frozenset({"home"})
    kept: tuple[bytes, ...] = ()
    doubt: Doubt = "none"
    original: bytes | None = None
    unmended: bool = False


class Ledger:
    """The promises of a store while it runs."""

    def __init__(self) -> None:
        self._known: dict[str, Promise] = {}
        self._live: dict[str, tuple[StoredSession, list[bytes]]] = {}
        self.robbed: set[str] = set()  # sessions whose file somebody removed: what was durable is gone with it

    def promises(self) -> tuple[Promise, ...]:
        """What is promised now."""
        return tuple(self._now(promise) for promise in self._known.values())

    def _now(self, promise: Promise) -> Promise:
        if promise.id not in self._live:
            return promise
        session, lines = self._live[promise.id]
        acked = promise.acked if promise.id in self.robbed else max(promise.acked, session.durable_seq)
        return structs.replace(promise, lines=tuple(lines), acked=acked, exists=promise.exists or acked > 0)

    def expect(self, promise: Promise) -> None:
        """Promise that, also of a session that another life of the program left."""
        self._known[promise.id] = promise

    def watch(self, session: StoredSession, *, exists: bool = False, first: int | None = None) -> None:
        """Follow a session from now on; *first* as in :class:`Promise` (default: what it holds)."""
        lines = [event.to_json() for event in session.events]
        before = self._known.get(session.id, Promise(id=session.id))
        self._live[session.id] = (session, lines)
        self._known[session.id] = structs.replace(
            before,
            header=session.header.to_json(),
            exists=exists or before.exists,
            acked=0,
            unmended=False,
            first=len(lines) if first is None else first,
        )
        session.observe(lambda event: lines.append(event.to_json()))

    def published(self, session_id: str) -> None:
        """The session's first flush begins now: if it is ever seen, it is seen with all that it has."""
        promise = self._now(self._known[session_id])
        if not promise.first and not promise.acked:
            self._known[session_id] = structs.replace(promise, first=len(promise.lines))

    def change(self, session_id: str, **changes: Any) -> None:
        """Change a promise, keeping what was promised so far."""
        self._known[session_id] = structs.replace(self._now(self._known[session_id]), **changes)

    def forget(self, session_id: str) -> None:
        """The session is disposed: nothing is appended to it any more."""
        if session_id in self._live:
            self.change(session_id)
            del self._live[session_id]


class Inline(ThreadPoolExecutor):
    """In the place of the worker threads: the work is done at once, and sees no event loop, as in a worker."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        done: Future[T] = Future()
        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - all of it belongs to whoever waits
            done.set_exception(error)
        finally:
            asyncio._set_running_loop(loop)
        return done


def _clock() -> int:
    return 1_700_000_000_000

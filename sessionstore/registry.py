"""The sessions a store has open, the ids it is working on, and how all of it ends."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from sessionstore import exit as exit_hooks
from sessionstore.errors import SessionExistsError, SessionLockedError, StoreClosedError
from sessionstore.invariants import InvariantTrace
from sessionstore.progress import Tally
from sessionstore.recording import Recorder
from sessionstore.settle import settle
from sessionstore.tasks import join, outlast
from sessionstore.writebehind import Counters, WriteBehind

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

    from sessionstore.backends.base import Backend, RepairReport, Writer
    from sessionstore.options import Options
    from sessionstore.stored import StoredSession

__all__ = ["Registry"]

T = TypeVar("T")

_logger = logging.getLogger("sessionstore")
_FORKED = "this process was forked and holds a copy; the store belongs to the parent process"


class Registry:
    """What one store has open in this process.  Belongs to the event loop that first uses it.

    An id is taken while its session is open and while an operation holds it, so that no two operations on one
    session overlap.
    """

    def __init__(self, backend: Backend, options: Options) -> None:
        self.live: dict[str, StoredSession] = {}
        self.counters = Counters()
        self._backend = backend
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._busy: dict[str, str] = {}
        self._work: set[asyncio.Future[None]] = set()  # operations in progress
        self._endings: dict[str, asyncio.Task[list[Exception]]] = {}
        self._closing: asyncio.Task[list[Exception]] | None = None
        self._refusal: str | None = None  # why nothing is taken any more

    # --- operations and ids -------------------------------------------------------------------------------------

    @contextmanager
    def working(self) -> Generator[None]:
        """Bracket an operation of the store; closing waits for it.

        Raises:
            StoreClosedError: the store is closed, or this is a forked child.
            RuntimeError: the store belongs to another event loop.
        """
        if self._refusal is not None:
            raise StoreClosedError(self._refusal)
        done = self._bind().create_future()
        self._work.add(done)
        try:
            yield
        finally:
            self._work.discard(done)
            done.set_result(None)

    def _bind(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            exit_hooks.watch(self)
        elif self._loop is not loop:
            raise RuntimeError("this SessionStore belongs to another event loop; open one store in each loop")
        return loop

    def state(self, session_id: str) -> str | None:
        """In what way an id is taken here, as the end of a sentence; ``None`` when it is not."""
        if session_id in self.live:
            return "open in this process"
        return self._busy.get(session_id)

    @contextmanager
    def hold(self, session_id: str, doing: str) -> Generator[None]:
        """Keep an id, which must not be taken, from everybody else while an operation runs."""
        self._busy[session_id] = f"{doing} in this process"
        try:
            yield
        finally:
            del self._busy[session_id]

    def refuse_new(self, session_id: str) -> None:
        """Raise :class:`SessionExistsError` when a session of that id is here."""
        state = self.state(session_id)
        if state is not None:
            raise SessionExistsError(session_id, detail=f"it is {state}")

    def refuse_second(self, session_id: str) -> None:
        """Raise :class:`SessionLockedError` when a session of that id is here."""
        state = self.state(session_id)
        if state is not None:
            raise SessionLockedError(session_id, pid=os.getpid(), detail=f"it is {state}")

    # --- a session begins ---------------------------------------------------------------------------------------

    async def guard(self, session: StoredSession) -> None:
        """Put the store's invariants and checkers in front of *session*'s appends.

        Raises:
            InvariantError: what the session already holds breaks them.
        """
        if self._options.invariants is not None:
            trace = InvariantTrace(self._options.invariants)
            await settle(trace.replay, session.events)
            session.check(trace.check)
            session.observe(trace.commit)
        for checker in self._options.checkers:
            session.check(checker)

    def open(self, session: StoredSession, writer: Writer, *, report: RepairReport | None = None) -> StoredSession:
        """Put write-behind and recorder behind *session*; from now on it is open.

        Raises:
            StoreClosedError: the store was closed meanwhile.
        """
        if self._refusal is not None:
            raise StoreClosedError(self._refusal, session_id=session.id)
        options = self._options
        on_error = None if options.on_error is None else functools.partial(options.on_error, session)
        loop = self._bind()
        behind = WriteBehind(session, writer, options.policy, loop=loop, counters=self.counters, on_error=on_error)
        recorder = Recorder(session, session.flush, new_id=options.new_id, strict=options.invariants == "strict")
        session._attach(behind, loop=loop, end=self.end, recorder=recorder, report=report)
        self.live[session.id] = session
        return session

    async def hand_over(self, opening: Coroutine[Any, Any, StoredSession]) -> StoredSession:
        """Run *opening* to its end; when the caller is cancelled meanwhile, the session is disposed again."""
        task = self._bind().create_task(opening)
        cancelled = await outlast(task)
        if cancelled is None:
            return task.result()
        if not task.cancelled() and task.exception() is None:
            await outlast(self.end(task.result()))
        raise cancelled

    # --- a session ends -----------------------------------------------------------------------------------------

    def is_open(self, session: object) -> bool:
        """Whether this very object is an open session of this store, and nobody has begun to dispose it."""
        session_id = getattr(session, "id", None)
        return session_id not in self._endings and self.live.get(session_id or "") is session

    def end(self, session: StoredSession) -> asyncio.Future[list[Exception]]:
        """Dispose *session*; what failed.  Everybody who asks for it meanwhile gets the same future."""
        ending = self._endings.get(session.id)
        if self.live.get(session.id) is not session or self._refusal is _FORKED:
            nothing = self._bind().create_future()
            nothing.set_result([])
            return nothing
        if ending is None:
            session._behind.refuse("the session was disposed")
            ending = self._endings[session.id] = self._bind().create_task(self._end(session))
        return ending

    async def _end(self, session: StoredSession) -> list[Exception]:
        try:
            return await session._behind.close(before_release=functools.partial(self._write_index, session))
        finally:
            self.drop(session)

    def drop(self, session: StoredSession) -> None:
        """Forget a session whose writer is closed."""
        session._disposed = True
        self._endings.pop(session.id, None)
        self.live.pop(session.id, None)

    async def _write_index(self, session: StoredSession) -> None:
        tally = Tally(session._log)
        while tally.read_some():  # noqa: ASYNC110 - nothing is waited for, others get their turn
            await asyncio.sleep(0)
        await self._backend.write_index(session.id, title=tally.title, turns=tally.turns, events=session.seq)

    # --- everything ends ----------------------------------------------------------------------------------------

    async def close(self) -> list[Exception]:
        """Take nothing more, let operations finish, dispose every session, close the backend; what failed.

        Concurrent callers get the same list, later ones an empty one.  A cancelled caller waits for the end.
        """
        if self._refusal is _FORKED:
            return []
        if self._closing is None:
            loop = self._bind()
            self._refusal = "the store was closed"
            self._closing = loop.create_task(self._close())
        elif self._closing.done():
            return []
        return await join(self._closing)

    async def _close(self) -> list[Exception]:
        failures: list[Exception] = []
        try:
            while self._work:
                await asyncio.wait(self._work)
            endings = [self.end(session) for session in list(self.live.values())]
            for ending in endings:
                failures += await ending
        finally:
            exit_hooks.forget(self)
            try:
                await self._backend.aclose()
            except Exception as error:  # noqa: BLE001 - reported together with the others
                failures.append(error)
        return failures

    def write_at_exit(self) -> None:
        """Write what every open session still has, without an event loop."""
        self._refusal = "the interpreter is exiting"
        for session in self.live.values():
            try:
                session._behind.write_at_exit()
            except Exception:  # one session must not cost another its events
                _logger.exception("session %r: could not be written at exit, its last events are lost", session.id)

    def __del__(self) -> None:
        """Store and sessions are out of reach, so nobody can close them any more: write what waits, now or at exit.

        The locks go with the writers.  A loop that still has something to do for a session holds it, so this is a
        session that is stored already, one whose loop was closed, or one whose last write failed; a worker that still
        writes holds it, too.
        """
        try:
            if exit_hooks.forget(self) and not self._let_go():
                exit_hooks.keep(self)
        except Exception:  # the interpreter is ending, and much is gone
            _logger.exception("a store was dropped without aclose(), and its sessions could not be written")

    def _let_go(self) -> bool:
        done = True
        for session in self.live.values():
            try:
                session._behind.write_now()
            except Exception as error:  # noqa: BLE001 - one session must not cost another its events
                done = False
                _logger.warning(
                    "session %r: its store was dropped without aclose(), and its last events could not be written; "
                    "that is tried again at exit: %s",
                    session.id, error,
                )  # fmt: skip
        return done

    def after_fork(self) -> None:
        """Refuse everything: this is the copy in a forked child."""
        self._refusal = _FORKED
        for session in self.live.values():
            session._behind.after_fork()

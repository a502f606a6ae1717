"""A session with a store behind it: the model plus flush, dispose and the recorder."""

from __future__ import annotations

import asyncio
from _thread import get_ident
from typing import TYPE_CHECKING

from sessionstore.errors import StoreClosedError, WrongThreadError
from sessionstore.recorder import Turn
from sessionstore.session import Session
from sessionstore.tasks import join, raise_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from sessionstore.backends.base import RepairReport
    from sessionstore.drafts import Content, JsonLike
    from sessionstore.recording import Recorder
    from sessionstore.writebehind import WriteBehind

__all__ = ["StoredSession"]


class StoredSession(Session):
    """A session of a :class:`SessionStore`; made by its ``create``, ``resume`` and ``fork``, never directly.

    Belongs to the thread and the event loop that opened it.  ``async with session:`` disposes it at the end.
    """

    _behind: WriteBehind
    _loop: asyncio.AbstractEventLoop
    _end: Callable[[StoredSession], asyncio.Future[list[Exception]]]
    _recorder: Recorder
    _report: RepairReport | None
    _disposed: bool

    if not TYPE_CHECKING:  # a type checker knows all attributes

        def __getattr__(self, name: str) -> object:
            """Only for what is missing: the store behind a session that none has made."""
            if name in {"_behind", "_report", "_recorder", "_disposed"}:
                raise TypeError(
                    "this StoredSession has no store: create, resume and fork of a SessionStore make them; "
                    "a session without a store is Session(id)"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def _attach(
        self,
        behind: WriteBehind,
        *,
        loop: asyncio.AbstractEventLoop,
        end: Callable[[StoredSession], asyncio.Future[list[Exception]]],
        recorder: Recorder,
        report: RepairReport | None,
    ) -> None:
        self._behind = behind
        self._loop = loop
        self._end = end
        self._recorder = recorder
        self._report = report
        self._disposed = False
        self._owner = get_ident()
        self._sink = behind
        self._wake_at = 0

    # --- what the store knows about it --------------------------------------------------------------------------

    @property
    def durable_seq(self) -> int:
        """Every event with ``seq < durable_seq`` is on the disk; equal to ``seq`` when all are.

        With ``durability="none"`` this counts what was handed to the operating system.
        """
        return self._behind.durable_seq

    @property
    def persistence_error(self) -> Exception | None:
        """Why the last write failed; ``None`` once a later one has succeeded.

        The events stay queued meanwhile; :meth:`flush` tries again.
        """
        return self._behind.error

    @property
    def recovery(self) -> RepairReport | None:
        """What the resume found and changed; ``None`` for a session that was not resumed."""
        return self._report

    @property
    def disposed(self) -> bool:
        """Whether the session was disposed: it can still be read, but takes no more events."""
        return self._disposed

    # --- what the store does for it -----------------------------------------------------------------------------

    async def flush(self) -> int:
        """Return when every event is on the disk, also those appended meanwhile; the new ``durable_seq``.

        A cancelled caller still waits until the write in progress has settled.

        Raises:
            StorageError: the disk refused; the events stay queued, in order, and a later flush tries again.
            SessionExistsError, SessionLockedError, ConcurrentWriteError: somebody else writes this session.
            StoreClosedError: the session was disposed, or this is a forked child process.
            WrongThreadError: called from another thread.
        """
        if not self._behind.forked:  # whose flush says so
            self._check_place()
        if self._disposed:
            raise StoreClosedError("the session was disposed", session_id=self.id)
        return await self._behind.flush()

    async def dispose(self) -> None:
        """Take no more events, flush, release the lock.  Idempotent; concurrent callers share the outcome.

        The lock is released whatever fails, also when the caller is cancelled (it then waits for the end).

        Raises:
            What :meth:`flush` raises; an :class:`ExceptionGroup` when several things failed.
        """
        if self._behind.forked:
            return
        self._check_place()
        raise_all("the session was not disposed cleanly", await join(self._end(self)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.dispose()

    # --- the recorder -------------------------------------------------------------------------------------------

    def turn(self, *, trigger: JsonLike | None = None) -> Turn:
        """Record one turn of an agent: ``async with session.turn() as turn``.  See :class:`Turn`.

        *trigger* says what started it, as a Struct or a mapping with ``kind``; by default a user's message.

        Raises (when entered):
            InvariantError: a turn is open.
        """
        return Turn(self._recorder, trigger)

    def inject(self, content: Content | JsonLike, *, source: JsonLike | None = None, id: str | None = None) -> None:
        """Add a message from outside the conversation (a notice, a file that changed) to the history.

        While tools run it is held back until the last result of their batch is in; otherwise it is appended at
        once, in the open turn or between turns (with ``invariants="strict"``: in a turn of its own).  It is
        written with the next batch.

        Raises:
            As :meth:`append`.
        """
        self._recorder.inject(content, source=source, id=id)

    def _check_place(self) -> None:
        if self._owner != get_ident():
            raise WrongThreadError(self.id)
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                f"session {self.id!r} belongs to another event loop; open a store in each loop and resume it there"
            )

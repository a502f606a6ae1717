"""Write-behind: what is appended now is written a moment later, in order, once.

One :class:`WriteBehind` stands between one session and one writer.  The session
tells it that events wait (:meth:`WriteBehind.admit`); it decides when they are
written and takes them from the log then.  There is one write at a time.  A failed
batch goes back to the front and is tried again with the next event or flush.

The log in memory is the queue: what is stored is a prefix of it, and the writer's
``next_seq`` says which, also where a cancellation or the end of the event loop has
swallowed the outcome of a write.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from sessionstore.backends.base import Batch
from sessionstore.chunks import line_type, unpack_rows
from sessionstore.errors import PendingLimitError, StoreClosedError
from sessionstore.recovery.format import MAX_BATCH_TEXT, TURN_END
from sessionstore.tasks import outlast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from sessionstore.backends.base import Writer
    from sessionstore.session import Session

__all__ = ["Counters", "Durability", "Policy", "WriteBehind", "split_parts"]

Durability = Literal["batch", "flush", "none"]

_logger = logging.getLogger("sessionstore")
_CANONICAL: Final = b'{"type":"'
_TURN_END: Final = b'{"type":"turn/end"'
_FORKED: Final = "this process was forked and holds a copy; the session belongs to the parent process"


class Policy(Struct, frozen=True, kw_only=True):
    """When to write: one window in seconds from the first waiting event, or *batch_bytes* of them.

    *durability* says what is fsynced: ``"batch"`` every batch, ``"flush"`` only barriers, ``"none"`` nothing.
    *max_pending_bytes* bounds what may wait in memory.  Without *pack_chunks* every event is written on a line of
    its own.
    """

    window: float = 0.2
    batch_bytes: int = 262_144
    max_pending_bytes: int = 67_108_864
    durability: Durability = "batch"
    pack_chunks: bool = True


class Counters(Struct):
    """What a store has done since it was opened; shared by the write-behind of all its sessions."""

    batches: int = 0
    events: int = 0
    bytes: int = 0
    flushes: int = 0
    failures: int = 0


def split_parts(lines: Iterable[bytes], limit: int = MAX_BATCH_TEXT) -> tuple[tuple[bytes, ...], ...]:
    """Divide storage lines into the parts that are written one by one.

    A ``turn/end`` begins its part, so that one found on the disk proves that all before it was durable; and a
    part holds at most *limit* bytes of text beyond its first line, which is what a reader is prepared for.
    """
    parts: list[tuple[bytes, ...]] = []
    part: list[bytes] = []
    beyond = 0
    for line in lines:
        if part:
            beyond += len(line) + 1
            if beyond > limit or _ends_turn(line):
                parts.append(tuple(part))
                part, beyond = [], 0
        part.append(line)
    if part:
        parts.append(tuple(part))
    return tuple(parts)


def _ends_turn(line: bytes) -> bool:
    if line.startswith(_TURN_END):
        return True
    if line.startswith(_CANONICAL) and line.find(b"\\", 0, line.find(b",")) < 0:
        return False  # a line as we write it: the type is what stands there
    return b"turn" in line and line_type(line) == TURN_END


class WriteBehind:
    """Decides when the events of *session* go to *writer*, and keeps count of what is on the disk.

    Belongs to *loop* and its thread.  *on_error* is told of the first failure of every episode; what it raises
    is logged and contained.
    """

    def __init__(
        self,
        session: Session,
        writer: Writer,
        policy: Policy,
        *,
        loop: asyncio.AbstractEventLoop,
        counters: Counters,
        on_error: Callable[[Exception], object] | None = None,
    ) -> None:
        self.error: Exception | None = None
        self.durable_seq = writer.next_seq
        self._session = session
        self._writer = writer
        self._policy = policy
        self._loop = loop
        self._counters = counters
        self._on_error = on_error
        self._wrote = False
        self._refusal: str | None = None  # why nothing is admitted any more
        self._in_flight = 0  # bytes of the batch that is being written
        self._timer: asyncio.TimerHandle | None = None
        self._due = False  # a batch is wanted as soon as the current one is done
        self._running: asyncio.Task[None] | None = None  # the background batch
        self._barrier: asyncio.Future[bool] | None = None  # the flush that everybody shares
        self._write: asyncio.Future[None] | None = None  # done when the write in progress has settled

    # --- the session's side -------------------------------------------------------------------------------------

    def admit(self, size: int, *, events: int = 1) -> int:
        """Take note that *size* more bytes are about to wait, in so many *events*; the amount at which to be told again.

        Raises:
            StoreClosedError: the session was disposed, its store closed, or this is a forked child.
            PendingLimitError: more than ``max_pending_bytes`` would wait.  One event alone is always taken,
                several are not.
        """
        if self._refusal is not None:
            raise StoreClosedError(self._refusal, session_id=self._session.id)
        waiting = self._session._unwritten
        limit = self._policy.max_pending_bytes - self._in_flight
        if waiting + size > limit and (events > 1 or waiting + self._in_flight > 0):
            raise PendingLimitError(
                self._session.id, pending_bytes=waiting + self._in_flight, limit=self._policy.max_pending_bytes
            )
        if self._loop.is_closed():
            return limit + 1  # nothing can be scheduled: the interpreter's exit writes what waits
        if waiting + size >= self._policy.batch_bytes:
            if not self._due:
                self._due = True
                self._loop.call_soon(self._begin)
            return limit + 1
        if self._timer is None and not self._due:
            self._timer = self._loop.call_later(self._policy.window, self._expired)
        return min(self._policy.batch_bytes, limit + 1)

    @property
    def pending_bytes(self) -> int:
        """About how many bytes wait in memory or are being written."""
        return self._session._unwritten + self._in_flight

    @property
    def forked(self) -> bool:
        """Whether this is the copy in a forked child."""
        return self._refusal is _FORKED

    def refuse(self, reason: str) -> None:
        """Admit nothing from now on; *reason* is what an append is told."""
        if self._refusal is None:
            self._refusal = reason
        self._session._wake_at = 0

    # --- background batches -------------------------------------------------------------------------------------

    def _expired(self) -> None:
        self._timer = None
        self._due = True
        self._begin()

    def _begin(self) -> None:
        # A flush drains everything anyway, and a batch in progress looks at _due when it is done.
        if self._due and self._barrier is None and self._running is None and not self.forked:
            self._running = self._loop.create_task(self._background())

    async def _background(self) -> None:
        try:
            while self._due and self._barrier is None:
                await self._write_some(sync=self._policy.durability == "batch")
        except Exception:  # noqa: BLE001, S110 - noted in _write_some; the next flush raises it if it persists
            pass
        finally:
            self._running = None

    # --- flush --------------------------------------------------------------------------------------------------

    async def flush(self) -> int:
        """Write until nothing waits and nothing is being written; the seq below which everything is on the disk.

        Concurrent callers share one drain.  A cancelled caller still waits for the write in progress.

        Raises:
            StoreClosedError: this is a forked child.
            StorageError and what else :meth:`Writer.append` raises: the events stay queued.
        """
        if self.forked:
            raise StoreClosedError(_FORKED, session_id=self._session.id)
        self._counters.flushes += 1
        while (barrier := self._barrier) is not None:
            if await self._follow(barrier):
                return self.durable_seq
        await self._lead()
        return self.durable_seq

    async def _lead(self) -> None:
        """Drain, in the caller's own task (a task more would cost the loop as much again), for all who flush now."""
        barrier = self._barrier = self._loop.create_future()
        try:
            await self._drain()
        except asyncio.CancelledError:
            barrier.set_result(False)
            await self._settled()
            self._rearm()
            raise
        except BaseException as error:
            barrier.set_exception(error)
            barrier.exception()  # looked at, also where nobody follows
            raise
        barrier.set_result(True)

    async def _follow(self, barrier: asyncio.Future[bool]) -> bool:
        """Wait for another caller's drain; ``False`` when that caller was cancelled and somebody has to go on."""
        try:
            await asyncio.wait({barrier})
        except asyncio.CancelledError:
            await self._settled()
            raise
        return barrier.result()

    async def _settled(self) -> None:
        if self._write is not None:
            await outlast(self._write)

    def _rearm(self) -> None:
        """What a cancelled drain left waits for a window, like events that have just come."""
        if self._session._unwritten and self._timer is None and not self._due and not self._loop.is_closed():
            self._timer = self._loop.call_later(self._policy.window, self._expired)

    async def _drain(self) -> None:
        sync = self._policy.durability != "none"
        try:
            while True:
                if self._running is not None:
                    # Its failure is not ours yet: what it could not write, this drain tries again.
                    await asyncio.wait({self._running})
                elif not await self._write_some(sync=sync):
                    return
        finally:
            self._barrier = None  # in the very step that saw the queue empty: a later flush starts anew

    # --- one write ----------------------------------------------------------------------------------------------

    async def _write_some(self, *, sync: bool) -> bool:
        """Write one batch of what waits, or sync what was only written; ``False`` when there was nothing to do."""
        self._stop_timer()
        self._due = False
        batch = self._next_batch()
        if batch is None and not (sync and self.durable_seq < self._writer.next_seq):
            return False
        settled = self._write = self._loop.create_future()
        try:
            if batch is None:
                await self._writer.sync()
            else:
                await self._writer.append(batch, sync=sync)
        except BaseException as error:
            self._put_back()
            # A cancelled caller has waited for the write all the same, and its failure is the cause.
            failure = error if isinstance(error, Exception) else error.__cause__
            if isinstance(failure, Exception):
                self._note_failure(failure)
            elif batch is not None and self._writer.next_seq == batch.next_seq:
                self._note_success(batch, synced=sync)
            raise
        finally:
            self._in_flight = 0
            self._write = None
            settled.set_result(None)
        self._note_success(batch, synced=sync)
        return True

    def _next_batch(self) -> Batch | None:
        session = self._session
        taken = session._take(MAX_BATCH_TEXT)
        if taken is None:
            return None
        first_seq, lines = taken
        # The first write publishes a session, all of it or nothing, however long its seed is.
        while self._writer.next_seq == 0 and (more := session._take(MAX_BATCH_TEXT)) is not None:
            lines += more[1]
        self._in_flight = sum(map(len, lines)) + len(lines)
        next_seq = session._log.line_start(session._taken)
        if next_seq < session.seq:
            self._due = True
        return self._make_batch(first_seq, next_seq, lines)

    def _make_batch(self, first_seq: int, next_seq: int, lines: Iterable[bytes]) -> Batch:
        log = self._session._log
        if self._policy.pack_chunks:
            return Batch(first_seq, next_seq, split_parts(lines), lambda: log.lines(0, next_seq))
        parts = split_parts(unpack_rows(lines))
        return Batch(first_seq, next_seq, parts, lambda: unpack_rows(log.lines(0, next_seq)))

    def _put_back(self) -> None:
        """After a write that raised: whatever the writer does not have waits again, in front."""
        stored = self._writer.next_seq
        self.durable_seq = min(self.durable_seq, stored)
        if stored < self._session._log.line_start(self._session._taken):
            self._session._untake(stored)

    def _note_success(self, batch: Batch | None, *, synced: bool) -> None:
        if synced or self._policy.durability == "none":
            self.durable_seq = self._writer.next_seq
        if batch is not None:
            self._wrote = True
            self._counters.batches += 1
            self._counters.events += batch.next_seq - batch.first_seq
            self._counters.bytes += sum(len(line) + 1 for part in batch.parts for line in part)
        if self.error is not None:
            self.error = None
            _logger.info("session %r: writing works again, nothing was lost", self._session.id)

    def _note_failure(self, error: Exception) -> None:
        first_of_episode = self.error is None
        self.error = error
        self._counters.failures += 1
        # No retry on its own: the next event, or an explicit flush, tries again.
        self._stop_timer()
        self._due = False
        self._session._wake_at = 0
        if not first_of_episode:
            return
        _logger.error("session %r: cannot write, its events wait in memory: %s", self._session.id, error)
        if self._on_error is not None:
            try:
                self._on_error(error)
            except Exception:
                _logger.exception("session %r: on_error failed", self._session.id)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- ends ---------------------------------------------------------------------------------------------------

    async def publish(self) -> None:
        """Make the session exist in storage now, even without an event.  Raises as :meth:`flush`."""
        if self._session.seq or self._writer.next_seq:
            await self.flush()
        else:
            await self._writer.append(self._make_batch(0, 0, ()), sync=self._policy.durability != "none")

    async def close(
        self, *, write: bool = True, before_release: Callable[[], Awaitable[object]] | None = None
    ) -> list[Exception]:
        """Admit nothing more, flush (unless not *write*), release the writer; what failed, in order.

        *before_release* runs once everything is stored and while the writer is still held.  No
        :class:`Exception` is raised, and the writer is always released.
        """
        self.refuse("the session was disposed")
        failures: list[Exception] = []
        if self.forked:
            return failures
        try:
            if write:
                await self.flush()
                if before_release is not None and self._wrote:
                    await before_release()
        except Exception as error:  # noqa: BLE001 - reported together with the others
            failures.append(error)
        finally:
            self._stop_timer()
            self._due = False
            try:
                await self._writer.close()
            except Exception as error:  # noqa: BLE001 - must not hide the others
                failures.append(error)
        return failures

    def write_at_exit(self) -> None:
        """As :meth:`write_now`, for the last time."""
        self.refuse("the interpreter is exiting")  # first: what came after the last write would be lost in silence
        self.write_now()

    def write_now(self) -> None:
        """Write what waits without an event loop; no write may be in progress.

        Raises as :meth:`Writer.append_now`.
        """
        first_seq, next_seq = self._writer.next_seq, self._session.seq
        if first_seq < next_seq:
            self._writer.append_now(
                self._make_batch(first_seq, next_seq, self._session._log.lines(first_seq, next_seq))
            )

    def after_fork(self) -> None:
        """Refuse everything: this is the copy in a forked child."""
        self._refusal = _FORKED
        self._session._wake_at = 0
        self._writer.after_fork()

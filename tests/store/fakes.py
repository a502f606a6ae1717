"""A backend that fails and waits when a test says so, and an event loop whose time passes on its own."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct

from sessionstore.backends.memory import MemoryBackend
from sessionstore.errors import StorageError
from sessionstore.tasks import finish

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from sessionstore.backends.base import Batch, RepairReport, Stored, Writer
    from sessionstore.header import Header
    from sessionstore.recovery.plan import RepairPlan

T = TypeVar("T")

NO_SPACE = OSError(28, "No space left on device")


def no_space(action: str = "write") -> StorageError:
    """The error of a full disk."""
    return StorageError(action, path="/disk", os_error=NO_SPACE)


class Call(Struct):
    """One write: which events, in which parts, and whether it was synced."""

    first_seq: int
    next_seq: int
    parts: tuple[tuple[bytes, ...], ...]
    sync: bool


class FlakyBackend(MemoryBackend):
    """Keeps sessions in memory and misbehaves on demand.

    ``failure`` is raised by every write while set, ``failures`` by the next ones, one each; ``gate`` holds every
    write until it is set.  With ``forgets`` a failure takes everything with it that was not synced.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failure: Exception | None = None
        self.failures: list[Exception | None] = []
        self.sync_failure: Exception | None = None
        self.close_failure: Exception | None = None
        self.prepare_failure: Exception | None = None
        self.aclose_failure: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.forgets = False
        self.calls: list[Call] = []
        self.entered = 0
        self.syncs = 0
        self.at_exit = 0
        self.forked = 0
        self.closed_writers = 0
        self.events: list[str] = []

    async def prepare(self, header: Header) -> None:
        await asyncio.sleep(0)
        if self.prepare_failure is not None:
            raise self.prepare_failure
        await super().prepare(header)

    def writer(self, header: Header) -> Writer:
        return FlakyWriter(self, super().writer(header), header.id)

    async def open(self, session_id: str) -> tuple[Writer, Stored]:
        writer, stored = await super().open(session_id)
        return FlakyWriter(self, writer, session_id), stored

    async def aclose(self) -> None:
        self.events.append("backend closed")
        if self.aclose_failure is not None:
            raise self.aclose_failure

    @property
    def held(self) -> set[str]:
        """The sessions whose lock is taken."""
        return set(self._held)


class FlakyWriter:
    """Writes settle: a cancelled caller waits, as with every writer."""

    def __init__(self, backend: FlakyBackend, inner: Writer, session_id: str) -> None:
        self._id = session_id
        self._backend = backend
        self._inner = inner
        self._busy = False
        self._synced: tuple[bytes, int] | None = None

    @property
    def next_seq(self) -> int:
        return self._inner.next_seq

    async def append(self, batch: Batch, *, sync: bool) -> None:
        self._backend.entered += 1
        await finish(self._append(batch, sync))

    async def _append(self, batch: Batch, sync: bool) -> None:
        assert not self._busy, "two writes at once"
        self._busy = True
        try:
            await asyncio.sleep(0)
            if self._backend.gate is not None:
                await self._backend.gate.wait()
            failure = self._backend.failures.pop(0) if self._backend.failures else self._backend.failure
            if failure is not None:
                self._forget()
                raise failure
            await self._inner.append(batch, sync=sync)
            if sync:
                self._synced = (self._backend.stored_bytes(self._id), batch.next_seq)
            self._backend.calls.append(Call(batch.first_seq, batch.next_seq, batch.parts, sync))
        finally:
            self._busy = False

    async def sync(self) -> None:
        assert not self._busy, "a sync during a write"
        self._backend.syncs += 1
        await asyncio.sleep(0)
        if self._backend.sync_failure is not None:
            self._forget()
            raise self._backend.sync_failure

    def _forget(self) -> None:
        """Go back to the last synced length, as a writer does that cannot trust the page cache."""
        if self._backend.forgets and self._synced is not None:
            inner = cast("Any", self._inner)
            inner._log.put(self._synced[0])
            inner._revision, inner._next_seq = inner._log.revision, self._synced[1]

    async def repair(self, stored: Stored, plan: RepairPlan) -> RepairReport:
        await asyncio.sleep(0)
        if self._backend.failure is not None:
            raise self._backend.failure
        return await self._inner.repair(stored, plan)

    def append_now(self, batch: Batch) -> None:
        self._backend.at_exit += 1
        if self._backend.failure is not None:
            raise self._backend.failure
        self._inner.append_now(batch)

    async def close(self) -> None:
        assert not self._busy, "closed during a write"
        await asyncio.sleep(0)
        await self._inner.close()
        self._backend.closed_writers += 1
        self._backend.events.append("writer closed")
        if self._backend.close_failure is not None:
            raise self._backend.close_failure

    def after_fork(self) -> None:
        self._backend.forked += 1


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: where a real one would, the loop's clock jumps ahead."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            # Without a timer only a worker thread can go on; 5 s is a deadlock.
            return super().select(5 if timeout is None else 0)
        self.loop.now += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which sleeping takes no time."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        # Since Python 3.12 there is a timeout, and it would be over before a worker thread gets any real time.
        await super().shutdown_default_executor()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run *main* in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)

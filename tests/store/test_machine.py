"""A session against an obvious model: a list of what was appended, and how much of it is promised.

Whatever is done in whatever order, with a disk that fails now and then: what is stored
is a prefix of the list, each event once, at least as long as the last flush promised.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sessionstore import (
    PendingLimitError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    SessionStore,
    StorageError,
    StoredSession,
    scan_log,
)
from tests.store.fakes import FlakyBackend, VirtualLoop, no_space


class Machine(RuleBasedStateMachine):
    """One id, driven through everything that can happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.backend = FlakyBackend()
        self.store = SessionStore(backend=self.backend, batch_bytes=400, max_pending_bytes=1500, clock=lambda: 7)
        self.session: StoredSession | None = None
        self.numbers: list[int] = []  # what was appended
        self.promised = 0  # how much of it is on the disk, as far as anybody was told
        self.next_number = 0
        self.open()

    def teardown(self) -> None:
        self.backend.failure = None
        self.backend.failures = []
        if self.session is not None:
            self.run(self.store.aclose())
            self.promised = len(self.numbers)
            self.nothing_is_lost_or_doubled()
        self.runner.close()

    def run(self, coroutine: Any) -> Any:
        """Run on the machine's loop."""
        return self.runner.run(coroutine)

    # --- what can happen ----------------------------------------------------------------------------------------

    @precondition(lambda self: self.session is None)
    @rule()
    def open(self) -> None:
        """Create the session, or resume it when it is stored."""
        try:
            self.session = self.run(self.store.create("s"))
            self.numbers = []
        except SessionExistsError:
            try:
                session = self.session = self.run(self.store.resume("s"))
            except StorageError:  # a resume syncs what it has read before it goes on
                assert self.backend.failure is not None
                assert self.backend.held == set()
                return
            del self.numbers[session.seq :]  # a dispose failed: what it could not write is gone
        assert self.session is not None
        assert self.session.durable_seq == self.session.seq == len(self.numbers)

    @precondition(lambda self: self.session is not None)
    @rule(count=st.integers(1, 8), wide=st.booleans())
    def append(self, count: int, wide: bool) -> None:
        """Events of two sizes; past the limit they are refused and use no seq."""
        assert self.session is not None
        for _ in range(count):
            try:
                event = self.session.append("test/event", {"n": self.next_number, "text": "x" * 200 * wide})
            except PendingLimitError:
                return
            assert event.seq == len(self.numbers)
            self.numbers.append(self.next_number)
            self.next_number += 1

    @precondition(lambda self: self.session is not None)
    @rule(callers=st.integers(1, 3), cancel=st.booleans())
    def flush(self, callers: int, cancel: bool) -> None:
        """By one or more callers, the first of whom may be cancelled."""
        session = self.session
        assert session is not None

        async def together() -> list[Any]:
            tasks = [asyncio.create_task(session.flush()) for _ in range(callers)]
            await asyncio.sleep(0)
            if cancel:
                tasks[0].cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

        for result in self.run(together()):
            if isinstance(result, int):
                assert result == len(self.numbers)
                self.promised = result
            else:
                assert isinstance(result, StorageError | asyncio.CancelledError)
        assert session.durable_seq >= self.promised

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.3]))
    def wait(self, seconds: float) -> None:
        """Windows run out."""
        self.run(asyncio.sleep(seconds))

    @rule(times=st.integers(0, 3), forever=st.booleans())
    def break_disk(self, times: int, forever: bool) -> None:
        """The next writes fail, or all of them."""
        self.backend.failures = [no_space() for _ in range(times)]
        self.backend.failure = no_space() if forever else None

    @rule()
    def mend_disk(self) -> None:
        """Writes succeed again."""
        self.backend.failures = []
        self.backend.failure = None

    @precondition(lambda self: self.session is not None)
    @rule()
    def dispose(self) -> None:
        """The lock is free afterwards; without an error everything is stored."""
        session, self.session = self.session, None
        assert session is not None
        try:
            self.run(session.dispose())
        except StorageError:
            pass
        else:
            self.promised = len(self.numbers)
        assert self.backend.held == set()

    @precondition(lambda self: self.session is not None)
    @rule()
    def rival(self) -> None:
        """Nobody else gets in while the session is open, and nothing changes for it."""
        assert self.session is not None
        other = SessionStore(backend=self.backend)
        published = "s" in self.backend.held
        with pytest.raises(SessionLockedError if published else (SessionNotFoundError, SessionLockedError)):
            self.run(other.resume("s"))
        self.run(other.aclose())

    # --- what always holds --------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        """What is stored is a prefix of what was appended, at least as long as promised."""
        try:
            stored = scan_log(self.backend.stored_bytes("s")).events
        except SessionNotFoundError:
            assert self.promised == 0
            return
        found: list[Any] = [event.to_dict()["data"] for event in stored]
        assert [data["n"] for data in found] == self.numbers[: len(stored)]
        assert len(stored) >= self.promised

    @invariant()
    def the_session_shows_what_was_appended(self) -> None:
        """The log in memory is the list, and durable_seq never claims too much."""
        if self.session is not None:
            assert len(self.session.events) == len(self.numbers)
            assert self.promised <= self.session.durable_seq <= len(self.numbers)


TestMachine = Machine.TestCase
TestMachine.pytestmark = [pytest.mark.slow]  # type: ignore[attr-defined]

"""Inputs through a real store: looked at, resumed or refused, repaired, resumed, written on, and resumed again."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sessionstore import SessionStore
from sessionstore.backends.memory import MemoryBackend
from sessionstore.backends.paths import session_paths
from sessionstore.errors import DamagedLogError, InvalidEventError, UnsupportedFormatError
from sessionstore.recovery.findings import Verdict

if TYPE_CHECKING:
    from collections.abc import Generator

    from sessionstore import Inspection, Session
    from tests.fuzz.checks import Sample

__all__ = ["Live"]

_ID: Final = "s1"
_CWD: Final = "/srv/project"
_REFUSED: Final = (DamagedLogError, UnsupportedFormatError)
_UNREADABLE: Final = ("number is out of range", "-0.0 is not", "integer has more")
"""What a log may hold all the same: its text is kept as it is, and only a reader of the number refuses it."""


class Live:
    """An event loop for many inputs; one store for each of them."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        logging.getLogger("sessionstore").addHandler(logging.NullHandler())  # that logs are damaged is no news here
        self.resumed = 0

    def close(self) -> None:
        """End the loop."""
        self._runner.close()

    def in_memory(self, text: bytes) -> None:
        """A log in the memory backend."""
        backend = MemoryBackend(clock=_clock)
        backend.put_bytes(_ID, text)
        self._runner.run(self._go(SessionStore(backend=backend, clock=_clock)))

    def on_disk(self, sample: Sample) -> None:
        """A log in files, compressed where the sample is."""
        with _folder() as root:
            path = session_paths(root, _ID, _CWD).log("zstd" if sample.zstd else "none")
            os.makedirs(os.path.dirname(path), mode=0o700)
            with open(path, "wb") as file:
                file.write(sample.data)
            compression = "zstd" if sample.zstd else "none"
            store = SessionStore(root, clock=_clock, compression=compression)  # type: ignore[arg-type]
            self._runner.run(self._go(store))

    async def _go(self, store: SessionStore) -> None:
        async with store:
            report = await store.verify(_ID)
            assert report.exit_code in range(4)
            await self._look(store)
            if await self._resume(store, report.verdict):
                return
            planned = await store.repair(_ID, cwd=_CWD)
            if planned.refusal is not None:
                return
            assert planned.dry_run
            done = await store.repair(_ID, dry_run=False, cwd=_CWD)
            assert (done.kept, done.events) == (planned.kept, planned.events), "a repair is not what was planned"
            again = await store.repair(_ID, dry_run=False, cwd=_CWD)
            assert not again.changed, "a second repair changes something"
            assert await self._resume(store, Verdict.CLEAN), "a repaired log is refused"

    async def _look(self, store: SessionStore) -> None:
        inspection = await store.inspect(_ID)
        _derive(inspection)
        list(inspection.events)
        assert len((await store.list()).sessions) == 1, "a bad log is not listed"
        try:
            await store.read_from(_ID, 0)
        except _REFUSED:
            assert inspection.verdict not in {Verdict.CLEAN, Verdict.INTERRUPTED, Verdict.TORN}

    async def _resume(self, store: SessionStore, verdict: Verdict) -> bool:
        """Resume, append and resume again; whether it was not refused."""
        try:
            session = await store.resume(_ID, on_damage="raise")
        except _REFUSED:
            assert verdict not in {Verdict.CLEAN, Verdict.INTERRUPTED, Verdict.TORN}, f"a log {verdict} is refused"
            return False
        count = len(session.events)
        session.append("turn/start", {"turn": 9000, "trigger": {"kind": "message", "source": {"kind": "user"}}})
        session.append("my/plugin", {"a": 1})
        session.append("turn/end", {"turn": 9000, "reason": {"kind": "completed"}})
        before = list(session.events)
        await session.flush()
        await session.dispose()
        session = await store.resume(_ID)
        assert len(session.events) == count + 3
        assert list(session.events) == before, "a second resume shows other events"
        assert session.recovery is not None
        assert not session.recovery.changed, "a second resume changes something"
        _derive(session)
        await session.dispose()
        assert (await store.verify(_ID)).verdict is Verdict.CLEAN
        self.resumed += 1
        return True


def _derive(held: Inspection | Session) -> None:
    """Derive the messages; only a number that no value can hold may be in the way, as it is read here at first."""
    try:
        held.derive_messages()
    except InvalidEventError as error:
        assert error.reason.startswith(_UNREADABLE), f"no messages: {error}"


def _clock() -> int:
    return 1_800_000_000_000


@contextmanager
def _folder() -> Generator[str]:
    memory = "/dev/shm"  # a disk would be worn for nothing: what is tested here is no durability
    root = tempfile.mkdtemp(prefix="sessionstore-fuzz-", dir=memory if os.access(memory, os.W_OK) else None)
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)

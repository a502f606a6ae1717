"""How much work things cost, in counts: system calls, hops, bytes read, lines decoded, objects.

A regression in speed shows here as a number, on any machine; docs/performance.md has the times.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from sessionstore import SessionStore, eventlog
from sessionstore.backends.base import ANY
from sessionstore.backends.files import OsFiles
from sessionstore.backends.jsonl import JsonlBackend, reading
from sessionstore.backends.jsonl.listing import list_sessions
from sessionstore.eventlog import EventLog
from sessionstore.recovery import scan
from sessionstore.recovery.findings import Verdict
from sessionstore.session import Session
from tests.recovery import logs
from tests.unit.jsonl_places import CountingFiles, log, put

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CALLS = [name for name in vars(OsFiles) if not name.startswith("_")]


class CountedFiles(OsFiles):
    """Counts every call by its name."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        for name in CALLS:
            setattr(self, name, self._counted(name, getattr(self, name)))

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return call(*arguments, **named)

        return counted


class CountingExecutor(ThreadPoolExecutor):
    """Counts the hops to its workers."""

    hops = 0

    def submit(self, *arguments: Any, **named: Any) -> Any:
        self.hops += 1
        return super().submit(*arguments, **named)


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A root that does not exist yet."""
    return os.fspath(tmp_path / "root")


def counted(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> list[object]:
    """The first arguments of all calls of a function, from now on."""
    calls: list[object] = []
    original = getattr(module, name)

    def noting(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments[0])
        return original(*arguments, **named)

    monkeypatch.setattr(module, name, noting)
    return calls


# --- writing --------------------------------------------------------------------------------------------------

ONE_BATCH = {"fstat": 3, "stat": 1, "open_append": 1, "write": 1, "sync": 1, "close": 1}


async def test_system_calls_of_a_flush(root: str) -> None:
    """One look at the lock and one at its path, one at the log before and one after the only write, one sync."""
    files = CountedFiles()
    async with SessionStore(backend=JsonlBackend(root, files=files)) as store:
        session = await store.create("s")
        session.append("my/event", {"n": 0})
        await session.flush()
        files.calls.clear()
        session.append("my/event", {"n": 1})
        await session.flush()
        assert files.calls == ONE_BATCH
        files.calls.clear()
        await session.flush()
        assert files.calls == {}


async def test_a_thousand_appends_and_one_flush_are_one_write_and_one_sync(root: str) -> None:
    """Events are written together; only a turn/end begins a write of its own, and what is before it is synced first."""
    files = CountedFiles()
    async with SessionStore(backend=JsonlBackend(root, files=files)) as store:
        session = await store.create("s")
        session.append("my/event", {"n": 0})
        await session.flush()
        files.calls.clear()
        for n in range(1000):
            session.append("my/event", {"n": n})
        await session.flush()
        assert files.calls == ONE_BATCH
        files.calls.clear()
        session.append("turn/start", {"turn": 1})
        session.append("turn/end", {"turn": 1, "reason": {"kind": "completed"}})
        await session.flush()
        assert files.calls == {**ONE_BATCH, "fstat": 4, "write": 2, "sync": 2}


async def test_a_flush_is_one_hop_and_no_task(root: str) -> None:
    """The loop pays for a flush what it pays for asyncio.to_thread: one piece of work for a worker."""
    loop = asyncio.get_running_loop()
    executor = CountingExecutor(2)
    loop.set_default_executor(executor)
    async with SessionStore(root) as store:
        session = await store.create("s")
        session.append("my/event", {"n": 0})
        await session.flush()
        before, tasks = executor.hops, 0

        def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
            nonlocal tasks
            tasks += 1
            return asyncio.Task(coroutine, loop=loop, **options)

        loop.set_task_factory(make)
        session.append("my/event", {"n": 1})
        await session.flush()
        loop.set_task_factory(None)
        assert (executor.hops - before, tasks) == (1, 0)


# --- listing --------------------------------------------------------------------------------------------------


def test_what_a_list_reads_of_a_session_does_not_depend_on_its_size(root: str) -> None:
    """Two reads and at most 8 KiB of each log, be it of ten lines or of megabytes; nothing is opened twice."""
    for count in (10, 1000, 5_000):
        lines = [logs.event("my/x", seq, {"text": "x" * 100}) for seq in range(count)]
        put(root, f"s{count}", log(f"s{count}", lines))
        both, calls = CountingFiles(), CountedFiles()
        assert {row.status for row in list_sessions(both, root, cwd=ANY, lock_dir=None)} == {"ok"}
        list_sessions(calls, root, cwd=ANY, lock_dir=None)
        sessions = len(os.listdir(os.path.join(root, "--srv-project--")))
        assert both.read <= 8192 * sessions
        assert calls.calls["pread"] <= 2 * sessions
        assert calls.calls["open_read"] == sessions
        assert calls.calls["listdir"] == 2


async def test_a_list_is_one_hop(root: str) -> None:
    """However many sessions there are, one worker reads them all."""
    executor = CountingExecutor(2)
    asyncio.get_running_loop().set_default_executor(executor)
    for n in range(20):
        put(root, f"s{n}", log(f"s{n}"))
    assert len((await JsonlBackend(root).list()).sessions) == 20
    assert executor.hops == 1


# --- reading --------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_reading_the_end_reads_what_it_returns(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes read and the lines decoded for the last events are the same for a log and for one of ten times its size."""
    work: list[tuple[int, int]] = []
    for count in (4_000, 40_000):
        lines = [logs.event("my/x", seq, {"text": "x" * 100}) for seq in range(count)]
        put(root, "s1", log("s1", lines))
        files = CountingFiles()
        backend = JsonlBackend(root, files=files)
        await backend.read("s1")
        files.read = 0
        decoded = counted(monkeypatch, reading, "read_record")
        assert [event.seq for event in await backend.read_from("s1", count - 50)] == list(range(count - 50, count))
        work.append((files.read // 1024, len(decoded) // 10))
    assert work[0] == work[1]
    assert work[1][0] < 200
    assert work[1][1] < 20


def test_a_scan_of_our_own_lines_reads_none_with_care(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines as our own writers write them take the fast way, and no member of a row is made."""
    careful = counted(monkeypatch, scan, "read_record")
    made = counted(monkeypatch, eventlog, "parse_row")
    data = logs.header() + logs.row(0, ["a", "b\n", '"\\']) + logs.user(3) + logs.event("my/x", 4, {"n": 1})
    assert scan.scan_log(data).verdict is Verdict.CLEAN
    assert (careful, made) == ([], [])


def test_iteration_decodes_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Going through a log decodes a row when it comes to it; neighbours in a row share its decoding."""
    decoded = counted(monkeypatch, eventlog, "parse_row")
    rows = [logs.row(seq, ["a"] * 100) for seq in range(0, 1000, 100)]
    events = scan.scan_log(b"".join([logs.header(), *rows])).events
    assert decoded == []
    assert len(list(events)) == 1000
    assert len(decoded) == 10
    assert [events[n].seq for n in range(300, 400)] == list(range(300, 400))
    assert len(decoded) == 11
    assert len(events[500:900]) == 400
    assert len(decoded) == 11


def test_messages_are_derived_from_the_surface_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call looks at the nodes of the surface and not at the log; the next only at what is new."""
    looked = counted(monkeypatch, EventLog, "event")
    session = Session("s")
    message = {"id": "m", "role": "user", "source": {"kind": "user"}, "content": [{"type": "text", "text": "hi"}]}
    for n in range(200):
        session.append("my/event", {"n": n})
        if n % 50 == 0:
            session.append("user/message", message, surface_op="append")
    looked.clear()
    assert len(session.derive_messages()) == len(looked) == 4
    session.derive_messages()
    assert len(looked) == 4
    session.append("user/message", message, surface_op="append")
    session.derive_messages()
    assert len(looked) == 5


# --- memory ---------------------------------------------------------------------------------------------------


def test_a_streamed_delta_leaves_no_object_for_the_collector_and_few_bytes() -> None:
    """A run of deltas is one line in the end, of little more than their text."""
    session = Session("s", clock=lambda: 1_700_000_000_000)
    chunk = {"type": "text-delta", "index": 0, "text": " word"}
    session.append("assistant/chunk", {"turn": 1, "step": 1, "chunk": chunk})
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(5000):
        session.append("assistant/chunk", {"turn": 1, "step": 1, "chunk": chunk})
    gc.collect()
    assert len(gc.get_objects()) - before < 20
    session._log.seal()
    assert session._log.line_count == 1
    assert sum(map(len, session._log.lines(0, 5001))) < 12 * 5001


def test_a_dropped_session_is_gone_at_once() -> None:
    """No cycle keeps the log of a session, or of a scan, until the collector comes."""
    found = scan.scan_log(b"".join(logs.closed_log()))
    session = Session("s", seed=found.events)
    session.derive_messages()
    scanned, mine = found.log, session._log
    del session, found
    assert (sys.getrefcount(scanned), sys.getrefcount(mine)) <= (2, 2)

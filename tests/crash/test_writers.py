"""One writer per session: racing, killed, suspended, forked and foreign ones, in real processes."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

from sessionstore import (
    ConcurrentWriteError,
    SessionLockedError,
    SessionStore,
    StorageError,
    Verdict,
    scan_log,
)
from tests.crash.disks import remount, tmpfs
from tests.crash.racing import race
from tests.paths import REPO

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from sessionstore import StoredSession

pytestmark = pytest.mark.crash

HOLDER = """
import asyncio, sys
from sessionstore import SessionStore

async def main(root, lock_dir=None):
    async with SessionStore(root, lock_dir=lock_dir, batch_window_ms=60_000) as store:
        session = await store.create("s", cwd="/srv")
        fill(session, 3)
        await session.flush()
        print("held", flush=True)
        for line in sys.stdin:
            fill(session, 1)
            await session.flush()
            print("flushed", flush=True)

def fill(session, count):
    for _ in range(count):
        session.append("test/event", {"n": session.seq})

asyncio.run(main(*sys.argv[2:]))
"""


@contextmanager
def holder(root: Path, *more: str) -> Generator[subprocess.Popen[bytes]]:
    """A process that holds session ``s`` and has flushed three events."""
    command = [sys.executable, "-c", HOLDER, "--token=hunter2", str(root), *more]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPO) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"held\n"
            yield child
        finally:
            child.kill()


def fill(session: StoredSession, count: int) -> None:
    """Append so many events that say which they are."""
    for _ in range(count):
        session.append("test/event", {"n": session.seq})


def numbers(log: Path) -> list[int]:
    """What the events of a clean log say."""
    scan = scan_log(log.read_bytes())
    assert scan.verdict is Verdict.CLEAN, scan.findings
    return [msgspec.json.decode(event.data_json)["n"] for event in scan.events]


def log_of(root: Path) -> Path:
    """The one log below *root*."""
    (log,) = root.glob("*/*/session.jsonl")
    return log


# -- Two of ours


def test_two_processes_race_for_one_session(tmp_path: Path) -> None:
    """Whoever wins, the log is whole and holds what was acknowledged; `make crash-faults` tries ten thousand times."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"python -m tests.crash.racing --seed {seed}")
    seen = race(tmp_path, attempts=48, seed=seed)
    assert seen["written"] > 0
    assert seen["SessionExistsError"] > 0


@pytest.mark.slow
def test_two_processes_race_for_a_while(tmp_path: Path) -> None:
    """The same, long enough for one to wait in vain."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"python -m tests.crash.racing --seed {seed}")
    seen = race(tmp_path, attempts=1_500, seed=seed)
    assert seen["SessionLockedError"] > 0


async def test_a_live_holder_is_named_and_never_stolen_from(tmp_path: Path) -> None:
    """Pid, host and program, but no argument of it; suspended it is still alive; when it is killed the lock is free."""
    with holder(tmp_path) as child:
        for suspended in (False, True):
            if suspended:
                child.send_signal(signal.SIGSTOP)
            async with SessionStore(tmp_path) as store:
                with pytest.raises(SessionLockedError) as caught:
                    await store.resume("s")
                with pytest.raises(SessionLockedError):
                    await store.delete("s")
                assert (await store.inspect("s")).writer == "live"
            error = caught.value
            assert (error.pid, error.host) == (child.pid, socket.gethostname())
            assert error.program == "-c"
            assert error.since is not None
            assert str(child.pid) in str(error)
            assert "hunter2" not in f"{error} {error.__dict__}"
        child.send_signal(signal.SIGCONT)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"more\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"flushed\n"
        child.kill()
        child.wait()
        async with SessionStore(tmp_path) as store:
            session = await store.resume("s")
            fill(session, 1)
            await session.flush()
    assert numbers(log_of(tmp_path)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("pid", [1, pytest.param(os.getpid(), marks=pytest.mark.slow)])
async def test_a_reused_pid_blocks_nobody(tmp_path: Path, pid: int) -> None:
    """The note of a dead holder names a process that lives: only the lock itself counts."""
    with holder(tmp_path) as child:
        child.kill()
        child.wait()
    lock = log_of(tmp_path).with_name("session.lock")
    lock.write_bytes(msgspec.json.encode({"pid": pid, "host": socket.gethostname(), "program": "other"}))
    async with SessionStore(tmp_path) as store:
        assert (await store.inspect("s")).writer == "none"
        fill(await store.resume("s"), 1)
    assert numbers(log_of(tmp_path)) == [0, 1, 2, 3]


async def test_locks_in_a_directory_elsewhere(tmp_path: Path) -> None:
    """All programs that name it exclude each other, by whatever path they reach the root; the root has no lock file."""
    root, locks = tmp_path / "root", tmp_path / "locks"
    (tmp_path / "link").symlink_to(root)
    with holder(root, str(locks)) as child:
        assert not list(root.rglob("*.lock"))
        assert locks.stat().st_mode & 0o777 == 0o700
        async with SessionStore(tmp_path / "link", lock_dir=locks) as store:
            with pytest.raises(SessionLockedError) as caught:
                await store.resume("s")
            assert caught.value.pid == child.pid
            child.kill()
            child.wait()
            fill(await store.resume("s"), 1)
    assert numbers(log_of(root)) == [0, 1, 2, 3]


async def test_a_read_only_root(tmp_path: Path) -> None:
    """It can be listed and read; create says early that nothing can be written, resume changes nothing."""
    with tmpfs(tmp_path / "disk", "size=1m") as disk:
        async with SessionStore(disk / "root") as store:
            session = await store.create("s", cwd="/srv")
            session.append("turn/start", {"turn": 1})
            await session.dispose()
            whole = log_of(disk / "root").read_bytes()
            with log_of(disk / "root").open("ab") as file:
                file.write(b'{"type":"torn')
        remount(disk, "ro")
        async with SessionStore(disk / "root") as store:
            assert [(info.id, info.status) for info in (await store.list()).sessions] == [("s", "ok")]
            found = await store.inspect("s")
            assert [event.type for event in found.events] == ["turn/start", "turn/end"]
            assert found.verdict is Verdict.TORN
            assert [event.type for event in await store.read_from("s", 0)] == ["turn/start"]
            for refused in (store.create("t"), store.resume("s"), store.fork("s"), store.delete("s")):
                with pytest.raises(StorageError):
                    await refused
        assert log_of(disk / "root").read_bytes() == whole + b'{"type":"torn'


# -- Foreign writers


async def test_a_foreign_process_between_two_batches(tmp_path: Path) -> None:
    """It is found before the next write; not a byte of either is cut, and nothing more is acknowledged."""
    async with SessionStore(tmp_path, batch_window_ms=60_000) as store:
        session = await store.create("s")
        fill(session, 2)
        await session.flush()
        log = log_of(tmp_path)
        subprocess.run(["sh", "-c", f'echo \'{{"type":"turn/end","seq":2}}\' >> "{log}"'], check=True)
        both = log.read_bytes()
        fill(session, 1)
        for _ in range(2):
            with pytest.raises(ConcurrentWriteError):
                await session.flush()
        assert session.durable_seq == 2
        with pytest.raises(ConcurrentWriteError):
            await session.dispose()
        assert log.read_bytes() == both


async def test_a_foreign_process_that_writes_all_the_time(tmp_path: Path) -> None:
    """Found before or right after a write: every byte of both stands in the file, whatever came between."""
    program = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
sys.stdin.readline()
for number in range(300):
    os.write(fd, b'{"theirs":%d}\\n' % number)
"""
    async with SessionStore(tmp_path, batch_window_ms=60_000) as store:
        session = await store.create("s")
        fill(session, 1)
        await session.flush()
        log = log_of(tmp_path)
        command = [sys.executable, "-c", program, str(log)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as foreign:
            assert foreign.stdin is not None
            foreign.stdin.write(b"go\n")
            foreign.stdin.flush()
            with pytest.raises(ConcurrentWriteError):
                while True:  # until they meet
                    fill(session, 1)
                    await session.flush()
            acknowledged = session.durable_seq
        assert foreign.returncode == 0
        with pytest.raises(ConcurrentWriteError):
            await session.dispose()
    lines = log.read_bytes().splitlines()
    assert [line for line in lines if line.startswith(b'{"theirs"')] == [b'{"theirs":%d}' % n for n in range(300)]
    ours = [event.to_json() for event in session.events[:acknowledged]]
    assert [line for line in lines if line in ours] == ours
    async with SessionStore(tmp_path) as store:
        found = await store.inspect("s")
        assert found.verdict is Verdict.TORN  # no turn was ever closed behind the foreign lines
        assert found.findings


# -- Forks of the process
#
# A child that is forked inside a running event loop shares the loop's epoll with its parent: whatever closes the
# loop there breaks the parent's, with or without this library.  It has to leave with os._exit, as multiprocessing does.

FORKS = """
import asyncio, multiprocessing, os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process with threads is what this is about
from sessionstore import SessionLockedError, SessionStore, StoreClosedError

def fill(session, count):
    for _ in range(count):
        session.append("test/event", {"n": session.seq})

async def resume(root):
    try:
        await SessionStore(root).resume("s")
    except SessionLockedError as error:
        return error.pid == os.getppid()
    return False

def work(session, root, ending):
    if ending == "append":
        try:
            fill(session, 1)
        except StoreClosedError:
            return True
        return False
    if ending == "resume":  # with a loop of its own; the parent has the session
        return asyncio.run(resume(root))
    return True

def fork(session, root, ending):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if work(session, root, ending) else 1)
    assert os.waitpid(pid, 0)[1] == 0

async def main(root, ending):
    store = SessionStore(root, batch_window_ms=60_000)
    session = await store.create("s")
    fill(session, 2)
    await session.flush()
    fill(session, 2)
    if ending == "multiprocessing":
        process = multiprocessing.get_context("fork").Process(target=work, args=(session, root, "append"))
        process.start()
        process.join()
    elif ending != "both just end":
        fork(session, root, ending)
    fill(session, 1)
    if ending != "both just end":
        await session.flush()
        fill(session, 1)
        await store.aclose()

asyncio.run(main(*sys.argv[1:]))
if sys.argv[2] == "both just end" and os.fork():
    os.wait()  # both processes end with the same events in memory; only this one may write them
"""


@pytest.mark.parametrize(
    "ending",
    [
        "append",
        "both just end",
        *(pytest.param(e, marks=pytest.mark.slow) for e in ("nothing", "resume", "multiprocessing")),
    ],
)
def test_a_forked_process_with_buffered_events(tmp_path: Path, ending: str) -> None:
    """Whatever the child does: every event is in the log once, and the parent keeps its lock."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(tmp_path), ending], check=False, capture_output=True, cwd=REPO, timeout=50
    )
    assert done.returncode == 0, done.stderr.decode()
    assert numbers(log_of(tmp_path)) == list(range(5 if ending == "both just end" else 6))

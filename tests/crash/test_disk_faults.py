"""Real disks that fail under a live session: the caller is told, and when the fault is gone nothing is missing."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sessionstore import ConcurrentWriteError, SessionStore, StorageError, StoredSession, Verdict, scan_log
from tests.crash.children import no_strace
from tests.crash.disks import LoopDisk, no_loop, remount, require, tmpfs
from tests.paths import REPO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessionstore import Event

pytestmark = pytest.mark.crash


class Host:
    """A program with one session, that notes what it is told about the disk."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.told: list[Exception] = []
        self.store = SessionStore(root, batch_window_ms=60_000, on_error=self._on_error, **options)
        self.session: StoredSession

    def _on_error(self, session: StoredSession, error: Exception) -> None:
        self.told.append(error)

    async def begin(self) -> None:
        """Create the session and store its first events."""
        self.session = await self.store.create("s")
        self.append(3)
        await self.session.flush()

    def append(self, count: int, *, text: str = "") -> None:
        """Append turns of one event each, so that every flush has parts that are synced one after the other."""
        for _ in range(count):
            number = self.session.seq // 3 + 1
            self.session.append("turn/start", {"turn": number})
            self.session.append("note/text", {"text": text or f"event {self.session.seq}"})
            self.session.append("turn/end", {"turn": number, "reason": {"kind": "completed"}})

    async def refused(self, *codes: int) -> None:
        """A flush fails with one of *codes*, everybody is told, and appending goes on."""
        durable, told = self.session.durable_seq, len(self.told)
        for first in (True, False):
            with pytest.raises((StorageError, ExceptionGroup)) as caught:
                await self.session.flush()
            assert errnos(caught.value) & set(codes), caught.value
            assert self.session.persistence_error is caught.value
            assert self.session.durable_seq == durable
            # Once for each episode, with the error that began it.
            assert len(self.told) == told + 1
            assert not first or self.told[-1] is caught.value
            self.append(1)

    async def mended(self) -> None:
        """The next flush writes everything, once."""
        assert await self.session.flush() == self.session.seq
        assert self.session.persistence_error is None
        log = self.store.locate("s")
        assert log is not None
        assert_holds(log, self.session.events)

    async def end(self) -> None:
        """Close, and see that a resume has nothing to repair."""
        events = list(self.session.events)
        self.append(1)
        await self.store.aclose()
        async with SessionStore(backend=self.store._backend) as store:
            again = await store.resume("s")
            assert again.recovery is not None
            assert not again.recovery.changed
            assert list(again.events[: len(events)]) == events
            assert again.seq == len(events) + 3


def assert_holds(log: Path, events: Sequence[Event]) -> None:
    """The file is clean and holds exactly *events*."""
    scan = scan_log(log.read_bytes())
    assert scan.verdict is Verdict.CLEAN
    assert list(scan.events) == list(events)


def errnos(error: BaseException) -> set[int | None]:
    """The error numbers in an error or a group of them."""
    if isinstance(error, BaseExceptionGroup):
        return {code for each in error.exceptions for code in errnos(each)}
    return {error.os_error.errno} if isinstance(error, StorageError) and error.os_error else set()


async def test_a_full_disk(tmp_path: Path) -> None:
    """ENOSPC after a short write: the file goes back to its length, and when there is room all is written once."""
    with tmpfs(tmp_path / "small", "size=64k") as disk:
        host = Host(disk / "root")
        await host.begin()
        ballast = disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(b"x" * 1024):
                pass
        host.append(2, text="y" * 6_000)
        await host.refused(errno.ENOSPC)
        ballast.unlink()
        await host.mended()
        await host.end()


async def test_a_disk_without_inodes(tmp_path: Path) -> None:
    """ENOSPC before the first event is stored: nothing is there, and later everything."""
    with tmpfs(tmp_path / "few", "nr_inodes=4") as disk:
        host = Host(disk / "root")
        host.session = await host.store.create("s")
        host.append(1)
        await host.refused(errno.ENOSPC)
        assert not list((disk / "root").rglob("session.jsonl*"))
        remount(disk, "nr_inodes=100")
        await host.mended()
        await host.end()


async def test_a_disk_that_becomes_read_only(tmp_path: Path) -> None:
    """EROFS: the lock lies elsewhere, for an open file would keep the disk from being remounted."""
    with tmpfs(tmp_path / "disk", "size=1m") as disk:
        host = Host(disk / "root", lock_dir=tmp_path / "locks")
        await host.begin()
        host.append(1)
        remount(disk, "ro")
        await host.refused(errno.EROFS)
        remount(disk, "rw")
        await host.mended()
        await host.end()


async def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    """EFBIG after a short write (what a quota looks like)."""
    host = Host(tmp_path / "root")
    await host.begin()
    host.append(2, text="y" * 10_000)
    log = host.store.locate("s")
    assert log is not None
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + 5_000, hard))
    try:
        await host.refused(errno.EFBIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await host.mended()
    await host.end()


def warm_journal(disk: LoopDisk) -> None:
    """Let the journal have all its blocks while there are some: it is the data that is to find no room."""
    fd = os.open(disk.path / "warm", os.O_WRONLY | os.O_CREAT)
    for _ in range(1500):
        os.write(fd, b"x")
        os.fsync(fd)
    os.close(fd)


async def test_a_sync_that_fails_once_and_then_lies(tmp_path: Path) -> None:
    """A sparse disk on a full one: write works, fsync fails, the next fsync "succeeds" without the data."""
    require(no_loop())
    with tmpfs(tmp_path / "host", "size=20m") as place:
        options = ("-J", "size=4", "-E", "lazy_itable_init=0,lazy_journal_init=0")
        with LoopDisk(place, "ext4", size="64M", options=options) as disk:
            warm_journal(disk)
            host = Host(disk.path / "root")
            await host.begin()
            ballast = place / "ballast"
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(b"x" * 65_536):
                    pass
            host.append(1, text="y" * 1_000_000)
            with pytest.raises((StorageError, ExceptionGroup)):
                await host.session.flush()
            assert len(host.told) == 1
            ballast.unlink()
            await host.mended()
            events = list(host.session.events)
            disk.cut_power()  # what the page cache pretends is gone now
            with contextlib.suppress(OSError, StorageError, ExceptionGroup):
                await host.store.aclose()
            disk.power_up()
            log = host.store.locate("s")
            assert log is not None
            assert_holds(log, events)


async def test_a_file_system_that_gives_up(tmp_path: Path) -> None:
    """An aborted journal cannot be mended under a live session; after a remount nothing acknowledged is missing."""
    require(no_loop())
    disk = LoopDisk(tmp_path, "ext4")
    disk.mount("loop,errors=remount-ro")
    try:
        host = Host(disk.path / "root")
        await host.begin()
        trigger = Path(f"/sys/fs/ext4/{disk.device()}/trigger_fs_error")
        if not trigger.exists():
            pytest.skip("this kernel cannot be told to give up a file system")
        trigger.write_text("1", encoding="ascii")
        host.append(1)
        await host.refused(errno.EROFS, errno.EIO)
        acknowledged = host.session.durable_seq
        with pytest.raises((StorageError, ExceptionGroup)):
            await host.store.aclose()
        disk.power_up()
        async with SessionStore(disk.path / "root") as store:
            again = await store.resume("s")
            assert list(again.events[:acknowledged]) == list(host.session.events[:acknowledged])
            again.append("note/text", {})
            assert await again.flush() == again.seq
    finally:
        disk.close()


async def test_a_directory_that_vanishes(tmp_path: Path) -> None:
    """Somebody removed the whole root: the log is published again, from its first event on."""
    host = Host(tmp_path / "root")
    await host.begin()
    shutil.rmtree(tmp_path / "root")
    host.append(1)
    await host.mended()
    shutil.rmtree(tmp_path / "root")
    (tmp_path / "root").write_text("a file in the way", encoding="ascii")
    host.append(1)
    await host.refused(errno.ENOTDIR)
    (tmp_path / "root").unlink()
    await host.mended()
    await host.end()


async def test_a_directory_that_is_away_for_a_while(tmp_path: Path) -> None:
    """A disk that is not mounted: where it is missing nothing is lost, and when it is back the same file goes on."""
    host = Host(tmp_path / "root", lock_dir=tmp_path / "locks")
    await host.begin()
    log = host.store.locate("s")
    assert log is not None
    inode = log.stat().st_ino
    (tmp_path / "root").rename(tmp_path / "away")
    (tmp_path / "root").write_text("a file in the way", encoding="ascii")
    host.append(1)
    await host.refused(errno.ENOTDIR)
    (tmp_path / "root").unlink()
    (tmp_path / "away").rename(tmp_path / "root")
    await host.mended()
    assert log.stat().st_ino == inode
    await host.end()


async def test_a_file_that_was_replaced(tmp_path: Path) -> None:
    """Another file in its place is somebody's: not a byte of it changes, and when it is gone all is published again."""
    host = Host(tmp_path / "root")
    await host.begin()
    log = host.store.locate("s")
    assert log is not None
    theirs = log.read_bytes() + b'{"type":"theirs"}\n'
    other = log.with_name("other")
    other.write_bytes(theirs)
    other.replace(log)
    host.append(1)
    for _ in range(2):
        with pytest.raises(ConcurrentWriteError):
            await host.session.flush()
    assert isinstance(host.session.persistence_error, ConcurrentWriteError)
    assert len(host.told) == 1
    assert log.read_bytes() == theirs
    log.unlink()
    await host.mended()
    await host.end()


@pytest.mark.parametrize("step", [-3_600_000, 3_600_000, -86_400_000_000])
async def test_a_clock_that_steps(tmp_path: Path, step: int) -> None:
    """Order is by seq: a clock that jumps loses nothing, delays nothing and needs no repair."""
    now = [1_700_000_000_000 + abs(step)]
    host = Host(tmp_path / "root", clock=lambda: now[0])
    await host.begin()
    began = time.monotonic()
    for _ in range(3):
        now[0] += step // 3
        host.append(1)
        await host.session.flush()
    assert time.monotonic() - began < 30
    await host.mended()
    assert [info.id for info in (await host.store.list()).sessions] == ["s"]
    host.session.append("turn/start", {"turn": 99})
    crashed = Path(shutil.copytree(tmp_path / "root", tmp_path / "copy"))
    async with SessionStore(crashed, clock=lambda: 5) as store:
        assert (await store.resume("s")).seq == host.session.durable_seq
    await host.end()


# Error numbers that only a kernel can give: strace puts them in place of the result of a system call.

PROGRAM = """
import asyncio, json, sys
from sessionstore import SessionStore, StorageError
told, failures = [], []

def errnos(error):
    if isinstance(error, BaseExceptionGroup):
        return [code for each in error.exceptions for code in errnos(each)]
    return [error.os_error.errno]

async def main(root):
    store = SessionStore(root, batch_window_ms=60_000, on_error=lambda session, error: told.append(errnos(error)))
    async with store:
        session = await store.create("s")
        for turn in range(1, 5):
            session.append("turn/start", {"turn": turn})
            session.append("note/text", {"text": "x" * 100})
            session.append("turn/end", {"turn": turn, "reason": {"kind": "completed"}})
            while session.durable_seq < session.seq:
                try:
                    await session.flush()
                except (StorageError, ExceptionGroup) as error:
                    assert session.persistence_error is error
                    failures.append(errnos(error))
                    if len(failures) > 40:
                        raise
    print(json.dumps({"told": told, "failures": failures}))

asyncio.run(main(sys.argv[1]))
"""


def under_strace(root: Path, call: str, what: str, *, only_log: bool) -> dict[str, Any]:
    """What the program above says when the kernel answers *what* to *call*."""
    require(no_strace())
    log = str(root / "_no-cwd" / "s" / "session.jsonl")
    path = ("-P", log) if only_log else ()
    inject = ("-e", f"trace={call}", "-e", f"inject={call}:{what}")
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", "/dev/null", *path, *inject, sys.executable, "-c", PROGRAM, str(root)],
        check=False, capture_output=True, cwd=REPO, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    said: dict[str, Any] = json.loads(done.stdout)
    scan = scan_log(Path(log).read_bytes())
    assert scan.verdict is Verdict.CLEAN
    assert [event.seq for event in scan.events] == list(range(12))
    return said


@pytest.mark.parametrize(
    ("call", "error", "only_log"),
    [
        ("fsync", "EIO", False),
        ("write", "EDQUOT", True),
        pytest.param("write", "EIO", True, marks=pytest.mark.slow),
        pytest.param("ftruncate", "EIO", False, marks=pytest.mark.slow),
    ],
)
def test_an_error_of_the_kernel(tmp_path: Path, call: str, error: str, only_log: bool) -> None:
    """An error at the third call of its kind: told once, tried again, nothing missing or doubled."""
    said = under_strace(tmp_path / "root", call, f"error={error}:when=3", only_log=only_log)
    if call != "ftruncate":  # nothing of the log is cut unless something else fails
        assert getattr(errno, error) in {code for codes in said["failures"] for code in codes}
        assert len(said["told"]) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("call", ["fsync", "write", "linkat", "unlink", "openat", "mkdir", "flock"])
@pytest.mark.parametrize("nth", [1, 2, 5])
def test_an_error_of_the_kernel_at_any_call(tmp_path: Path, call: str, nth: int) -> None:
    """Whichever call it is that fails once with EIO: the program above goes on, and its log is whole."""
    under_strace(tmp_path / "root", call, f"error=EIO:when={nth}", only_log=call in {"write", "openat"})


@pytest.mark.slow
def test_a_short_write_that_the_kernel_makes_up(tmp_path: Path) -> None:
    """A kernel that claims to have written what it has not: nothing is acknowledged that is not there."""
    require(no_strace())
    root = tmp_path / "root"
    log = root / "_no-cwd" / "s" / "session.jsonl"
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", "/dev/null", "-P", str(log), "-e", "trace=write", "-e",
         "inject=write:retval=40:when=2", sys.executable, "-c", PROGRAM, str(root)],
        check=False, capture_output=True, cwd=REPO, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert b"ConcurrentWriteError" in done.stderr
    scan = scan_log(log.read_bytes())
    assert len(scan.events) >= 3
    assert scan.verdict in {Verdict.TORN, Verdict.DAMAGED, Verdict.INTERRUPTED, Verdict.CLEAN}

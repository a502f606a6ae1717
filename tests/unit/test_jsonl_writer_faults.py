"""The writer of a log, when the disk or somebody else gets in its way."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionstore.backends.files import OsFiles
from sessionstore.backends.jsonl.lock import probe
from sessionstore.errors import (
    ConcurrentWriteError,
    StorageError,
)
from tests.logs import BOTH, Log, raises_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from sessionstore.backends.paths import Compression


@pytest.fixture(params=BOTH)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    """A session that is not stored yet, in either encoding."""
    log = Log(tmp_path / "root", compression=request.param)
    yield log
    log.faulty.heal()
    log.close()


# -- Failures


def test_a_full_disk_leaves_the_file_as_it_was(log: Log) -> None:
    """After ENOSPC in the middle of a batch the file has its old bytes, and the batch fits when there is room."""
    log.append(2)
    before = log.path.read_bytes()
    batch = log.batch(3, 2)
    log.faulty.room = 5
    with raises_storage(errno.ENOSPC):
        log.give(batch)
    assert log.path.read_bytes() == before
    assert log.writer.next_seq == 2
    log.faulty.heal()
    log.give(batch)
    assert log.text() == log.expected()


def test_the_cut_after_a_failure_is_synced(log: Log) -> None:
    """The length that was restored survives a power cut, and makes the bytes before it durable."""
    log.append(1)
    log.append(1, sync=False)
    log.faulty.room = 3
    batch = log.batch(1)
    log.faulty.calls.clear()
    with raises_storage(errno.ENOSPC):
        log.give(batch, sync=False)
    assert "sync" in log.faulty.calls[log.faulty.calls.index("truncate") :]
    log.faulty.heal()
    log.faulty.calls.clear()
    log.sync()
    assert "sync" not in log.faulty.calls
    log.give(batch)
    assert log.text() == log.expected()


def test_a_failed_write_leaves_unsynced_bytes_where_they_are(log: Log) -> None:
    """Only a failed sync makes earlier bytes doubtful."""
    log.append(1)
    log.append(1, sync=False)
    batch = log.batch(1)
    log.faulty.room = 3
    with raises_storage(errno.ENOSPC):
        log.give(batch, sync=False)
    assert log.text() == log.expected(2)
    log.faulty.heal()
    log.give(batch)
    assert log.text() == log.expected()


@pytest.mark.parametrize("sync_call", [False, True])
def test_after_a_failed_sync_everything_unsynced_is_written_again(log: Log, sync_call: bool) -> None:
    """The page cache is not trusted: the file is cut to what is durable, and all behind it is written anew."""
    log.append(1)
    durable = log.path.read_bytes()
    log.append(1, sync=False)
    log.append(2, sync=False)
    log.faulty.fail("sync")
    batch = None if sync_call else log.batch(1)
    with raises_storage(errno.EIO):
        log.sync() if batch is None else log.give(batch)
    assert log.path.read_bytes() == durable
    log.faulty.calls.clear()
    log.sync() if batch is None else log.give(batch)
    assert log.faulty.calls.count("write") == (2 if batch is None else 3)
    assert log.text() == log.expected()


def test_both_errors_are_raised_when_the_file_cannot_be_put_back(log: Log) -> None:
    """A write that fails and a cut that fails too give both errors; the next batch cuts first."""
    log.append(1)
    before = log.path.read_bytes()
    batch = log.batch(2)
    log.faulty.room = 4
    log.faulty.fail("truncate", errno.EROFS)
    with pytest.raises(ExceptionGroup) as caught:
        log.give(batch)
    first, second = caught.value.exceptions
    assert isinstance(first, StorageError)
    assert isinstance(second, StorageError)
    assert first.os_error is not None
    assert second.os_error is not None
    assert (first.os_error.errno, second.os_error.errno) == (errno.ENOSPC, errno.EROFS)
    assert len(log.path.read_bytes()) == len(before) + 4
    log.faulty.fail("truncate", errno.EROFS)
    with raises_storage(errno.EROFS):
        log.give(batch)
    log.faulty.heal()
    log.give(batch)
    assert log.text() == log.expected()


def test_bytes_read_back_as_nuls_are_ours(log: Log) -> None:
    """A block that the disk lost behind the durable length is cut like the bytes it should have held."""
    log.append(1)
    batch = log.batch(2)
    before = log.path.stat().st_size
    log.faulty.room = 4
    log.faulty.fail("truncate")
    with pytest.raises(ExceptionGroup):
        log.give(batch)
    log.faulty.heal()
    os.truncate(log.path, before)
    os.truncate(log.path, before + 3)
    log.give(batch)
    assert log.text() == log.expected()


def put_theirs(log: Log) -> Callable[[str, int], None]:
    """A watcher that puts another file in the log's place just before the link."""

    def put(name: str, _number: int) -> None:
        if name == "link":
            log.path.write_bytes(b"theirs")

    return put


PROGRAM: list[tuple[str, tuple[int, ...]]] = [
    ("append", (1,)),
    ("append", (1, 2)),
    ("append unsynced", (2,)),
    ("append unsynced", (1, 1)),
    ("sync", ()),
    ("append unsynced", (1,)),
    ("append", (1, 1)),
    ("append", (1,)),
]


def run_program(log: Log) -> int:
    """Do PROGRAM, each step until it works; the number of failures."""
    failures = 0
    for step, parts in PROGRAM:
        batch = log.batch(*parts) if step != "sync" else None
        for _ in range(60):
            try:
                log.sync() if batch is None else log.give(batch, sync=step == "append")
            except (StorageError, ExceptionGroup):
                failures += 1
            else:
                break
        else:
            raise AssertionError("never recovered")
    return failures


@pytest.fixture(scope="module")
def calls_of_program(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many calls PROGRAM makes when none fails."""
    log = Log(tmp_path_factory.mktemp("count"))
    run_program(log)
    log.close()
    return len(log.faulty.calls)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compression", "length"), [("none", 1), ("none", 2), ("none", 3), ("none", 25), ("zstd", 1), ("zstd", 3)]
)
def test_any_call_may_fail(tmp_path: Path, calls_of_program: int, compression: Compression, length: int) -> None:
    """Wherever a run of failures begins and however long it lasts, nothing is missing or doubled in the end."""
    failed = 0
    for number in range(calls_of_program):
        log = Log(tmp_path / str(number), compression=compression)
        log.faulty.fail_numbers(range(number, number + length))

        failed += run_program(log)
        assert log.text() == log.expected(), number
        assert sorted(p.name for p in log.path.parent.iterdir() if "tmp" not in p.name) == sorted(
            [log.path.name, "session.lock"]
        )
        log.close()
    assert failed > calls_of_program // 3


@pytest.mark.slow
def test_acknowledged_bytes_are_never_cut(tmp_path: Path, calls_of_program: int) -> None:
    """While calls fail, what a synced append acknowledged stays in the file at every moment."""
    for number in range(calls_of_program):
        log = Log(tmp_path / str(number))
        durable = [b""]

        def check(_name: str, _number: int, log: Log = log, durable: list[bytes] = durable) -> None:
            assert not durable[0] or log.path.read_bytes().startswith(durable[0])

        log.faulty.before = check
        log.faulty.fail_numbers(range(number, number + 2))
        for step, parts in PROGRAM:
            batch = log.batch(*parts)
            for _ in range(9):
                with suppress(StorageError, ExceptionGroup):
                    log.give(batch, sync=step != "append unsynced")
                    break
            if step != "append unsynced":
                durable[0] = log.path.read_bytes()
                assert durable[0] == log.expected()
        log.close()


# -- Somebody else writes


@pytest.mark.parametrize("theirs", [b'{"seq":1}\n', b"\n", b"half a line"])
def test_a_foreign_append_between_batches_is_found_and_kept(log: Log, theirs: bytes) -> None:
    """A longer file is not ours to cut: the error says so, and nothing is written."""
    log.append(1)
    with log.path.open("ab") as file:
        file.write(theirs)
    now = log.path.read_bytes()
    batch = log.batch(1)
    for _ in range(2):
        with pytest.raises(ConcurrentWriteError):
            log.give(batch)
    assert log.path.read_bytes() == now


def test_a_foreign_cut_is_found(log: Log) -> None:
    """A shorter file is not written to."""
    log.append(3)
    os.truncate(log.path, 10)
    with pytest.raises(ConcurrentWriteError):
        log.append(1)
    assert log.path.stat().st_size == 10


def test_another_file_in_the_place_is_found(log: Log) -> None:
    """A file with the same bytes and another identity is somebody else's."""
    log.append(1)
    copy = log.path.with_name("copy")
    copy.write_bytes(log.path.read_bytes())
    copy.replace(log.path)
    with pytest.raises(ConcurrentWriteError):
        log.append(1)
    assert log.text() == log.expected(1)


@pytest.mark.parametrize("full", [False, True])
def test_foreign_bytes_at_any_moment_of_a_batch_are_kept(tmp_path: Path, full: bool) -> None:
    """Whenever somebody appends during a batch, on a full disk too, his bytes are all there afterwards.

    Except between the look at the length and the cut of a batch that failed: no system call does both at once.
    """
    theirs = b'{"theirs":true}\n'
    detected = 0
    for number in range(40):
        log = Log(tmp_path / f"{full}{number}")
        log.append(1)
        start = len(log.faulty.calls)
        if full:
            log.faulty.room = 20
        intruded: list[str] = []

        def intrude(
            name: str, at: int, log: Log = log, wanted: int = start + number, intruded: list[str] = intruded
        ) -> None:
            if at == wanted and name != "truncate":
                intruded.append(name)
                with log.path.open("ab") as file:
                    file.write(theirs)

        log.faulty.before = intrude
        try:
            log.append(1, 1, 1)
        except ConcurrentWriteError:
            detected += 1
            assert intruded
        except StorageError:
            assert full
        else:
            assert not full
        assert log.path.read_bytes().count(theirs) == len(intruded)
        log.close()
    assert detected >= 8


# -- The file vanishes


@pytest.mark.parametrize("what", ["log", "session", "project", "root"])
def test_a_vanished_log_is_published_again(log: Log, what: str) -> None:
    """The whole log comes back from memory, under the lock, wherever the removal stopped."""
    import shutil

    log.append(2)
    log.append(1, sync=False)
    if what == "log":
        log.path.unlink()
    else:
        shutil.rmtree({"session": log.path.parent, "project": log.path.parent.parent, "root": log.root}[what])
    log.append(1, 1)
    assert log.text() == log.expected()
    assert probe(log.files, log.paths.lock) == "live"
    log.append(1)
    assert log.text() == log.expected()


def test_a_vanished_log_is_published_again_by_sync(log: Log) -> None:
    """Bytes that were only accepted are durable after a sync although their file vanished."""
    log.append(1)
    log.append(1, sync=False)
    log.path.unlink()
    log.sync()
    assert log.text() == log.expected()


def test_the_same_file_back_in_its_place_is_written_on(log: Log) -> None:
    """A log that was moved away and back is the one we know."""
    log.append(1)
    away = log.path.with_name("away")
    log.path.rename(away)
    away.rename(log.path)
    log.append(1)
    assert log.text() == log.expected()


@pytest.mark.parametrize("also", ["sync_directory", "unlink"])
@pytest.mark.parametrize("first", [False, True])
def test_publication_that_fails_half_way_is_finished_later(log: Log, also: str, first: bool) -> None:
    """The name of a log whose directory could not be synced is taken back, at the next try if not at once."""
    if not first:
        log.append(1)
        log.path.unlink()
    batch = log.batch(1)

    def fail(name: str, _number: int) -> None:
        if name == "link":
            log.faulty.fail("sync_directory")
            log.faulty.fail(also, times=3)

    log.faulty.before = fail
    with pytest.raises(ExceptionGroup):
        log.give(batch)
    log.faulty.heal()
    log.faulty.before = lambda _name, _number: None
    log.give(batch)
    assert log.text() == log.expected()
    assert log.path.stat().st_nlink == 1


def test_another_log_in_the_place_of_a_vanished_one_stays(log: Log) -> None:
    """What appears while we publish again is not overwritten."""
    log.append(1)
    log.path.unlink()
    log.faulty.before = put_theirs(log)
    with pytest.raises(ConcurrentWriteError):
        log.append(1)
    assert log.path.read_bytes() == b"theirs"


# -- Real file systems


def mount_options() -> str | None:
    """Why no file system can be mounted here, or None."""
    if sys.platform != "linux":
        return "mounting needs Linux"
    if os.geteuid() != 0:
        return "mounting needs root"
    return None


@contextmanager
def tmpfs(directory: Path, options: str) -> Generator[None]:
    """A small file system of its own at *directory*."""
    reason = mount_options()
    if reason is not None:
        pytest.skip(reason)
    directory.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", directory], check=False).returncode:
        pytest.skip("mount is not permitted")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


def test_a_really_full_disk(tmp_path: Path) -> None:
    """On a full tmpfs a flush fails with ENOSPC, and works when a file is removed."""
    with tmpfs(tmp_path / "small", "size=64k"):
        log = Log(tmp_path / "small" / "root", files=OsFiles())
        log.append(1)
        ballast = tmp_path / "small" / "ballast"
        with suppress(OSError):
            ballast.write_bytes(b"x" * 100_000)
        batch = log.batch(2000)
        for _ in range(2):
            with raises_storage(errno.ENOSPC):
                log.give(batch)
            assert log.text() == log.expected(1)
        ballast.unlink()
        log.give(batch)
        assert log.text() == log.expected()
        log.close()


def test_a_disk_without_inodes(tmp_path: Path) -> None:
    """Where nothing can be created the first flush fails, and works later."""
    with tmpfs(tmp_path / "few", "nr_inodes=4"):
        log = Log(tmp_path / "few" / "root", files=OsFiles())
        batch = log.batch(1)
        with raises_storage(errno.ENOSPC):
            log.give(batch)
        subprocess.run(["mount", "-o", "remount,nr_inodes=100", tmp_path / "few"], check=True)
        log.give(batch)
        assert log.text() == log.expected()
        log.close()


def test_a_disk_that_becomes_read_only(tmp_path: Path) -> None:
    """EROFS is like any other failure: the events wait, and go through when the disk is writable again."""
    with tmpfs(tmp_path / "ro", "size=1m"):
        log = Log(tmp_path / "ro" / "root", files=OsFiles())
        # The lock file is open for writing all the time, so it has to be elsewhere for the remount.
        log.writer = log.new_writer(lock_dir=str(tmp_path / "locks"))
        log.append(1)
        subprocess.run(["mount", "-o", "remount,ro", tmp_path / "ro"], check=True)
        batch = log.batch(1)
        with raises_storage(errno.EROFS):
            log.give(batch)
        subprocess.run(["mount", "-o", "remount,rw", tmp_path / "ro"], check=True)
        log.give(batch)
        assert log.text() == log.expected()
        log.close()


@contextmanager
def thin_disk(directory: Path) -> Generator[Path]:
    """An ext4 file system at *directory* on a disk that is out of space; removing the file yielded gives it some."""
    with tmpfs(directory.with_name("host"), "size=20m"):
        image = directory.with_name("host") / "image"
        with image.open("wb") as file:
            file.truncate(64 << 20)
        directory.mkdir()
        options = ["-q", "-F", "-J", "size=4", "-E", "lazy_itable_init=0,lazy_journal_init=0"]
        try:
            subprocess.run(["mkfs.ext4", *options, image], check=True)
            subprocess.run(["mount", "-o", "loop", image, directory], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no ext4 on a loop device here")
        try:
            warm = os.open(directory / "warm", os.O_WRONLY | os.O_CREAT)
            for _ in range(1500):  # the journal gets all its blocks while there are some
                os.write(warm, b"x")
                os.fsync(warm)
            os.close(warm)
            yield directory.with_name("host") / "ballast"
        finally:
            subprocess.run(["umount", "-l", directory], check=True)


@pytest.mark.slow
def test_a_sync_that_fails_and_then_claims_success(tmp_path: Path) -> None:
    """The write works, the sync says ENOSPC, and the next sync would lie: what counts is on the disk in the end."""
    with thin_disk(tmp_path / "thin") as ballast:
        log = Log(tmp_path / "thin" / "root", files=OsFiles())
        log.append(1)
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 65536)
        batch = log.batch(40_000)
        for _ in range(2):
            with raises_storage(errno.ENOSPC):
                log.give(batch)
            assert log.text() == log.expected(1)
        ballast.unlink()
        log.give(batch)
        log.close()
        fd = os.open(log.path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        assert log.text() == log.expected()


@pytest.mark.slow
def test_a_limit_on_the_file_size(tmp_path: Path) -> None:
    """RLIMIT_FSIZE gives a short write and then EFBIG; the file goes back to its length."""
    code = """
import resource, sys
from sessionstore.backends.base import Batch
from sessionstore.backends.files import OsFiles
from sessionstore.backends.jsonl.writer import JsonlWriter
from sessionstore.backends.paths import session_paths
from sessionstore.errors import StorageError
from sessionstore.header import make_header
paths = session_paths(sys.argv[1], "s", None)
w = JsonlWriter(OsFiles(), paths, make_header("s", created_at=1), now=lambda: 5)
w.append_now(Batch(0, 1, ((b"{}",),), lambda: ()))
size = len(open(paths.log("none")).read())
batch = Batch(1, 2, ((b'"' + b"x" * 9000 + b'"',),), lambda: ())
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
try:
    w.append_now(batch)
except StorageError as error:
    print(error.os_error.errno, len(open(paths.log("none")).read()) == size)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
w.append_now(batch)
print(len(open(paths.log("none")).readlines()))
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(errno.EFBIG), "True", "3"]


# -- Programs of all kinds


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["append", "unsynced", "sync", "vanish"]), st.lists(st.integers(1, 3), max_size=3)),
        max_size=8,
    ),
    faults=st.lists(st.tuples(st.integers(0, 80), st.integers(1, 6)), max_size=3),
    compression=st.sampled_from(BOTH),
)
def test_any_program_with_any_faults_ends_complete(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, list[int]]],
    faults: list[tuple[int, int]],
    compression: Compression,
) -> None:
    """Appends, syncs, removals and failures in any order: in the end every line is there once, in order."""
    log = Log(tmp_path_factory.mktemp("program") / "root", compression=compression)
    bad = {number for start, length in faults for number in range(start, start + length)}

    def fail(_name: str, number: int) -> None:
        if number in bad:
            raise OSError(errno.EIO, "fault")

    log.faulty.before = fail
    for step, parts in [*steps, ("append", [1])]:
        if step == "vanish":
            log.path.unlink(missing_ok=True)
            continue
        batch = None if step == "sync" else log.batch(*parts)
        for _ in range(99):
            try:
                log.sync() if batch is None else log.give(batch, sync=step == "append")
            except (StorageError, ExceptionGroup):
                continue
            break
    assert log.text() == log.expected()
    log.close()

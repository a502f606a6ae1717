"""The writer of a log: what is on the disk, how it gets there, and who may write."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sessionstore.backends.base import Batch
from sessionstore.backends.jsonl.frames import encode_frame
from sessionstore.backends.jsonl.lock import probe
from sessionstore.backends.jsonl.logfile import MAX_UNSYNCED
from sessionstore.errors import (
    InvalidEventError,
    SessionExistsError,
    SessionLockedError,
    StorageError,
    StoreClosedError,
)
from tests.logs import BOTH, HEADER, Log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessionstore.backends.paths import Compression


@pytest.fixture(params=BOTH)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    """A session that is not stored yet, in either encoding."""
    log = Log(tmp_path / "root", compression=request.param)
    yield log
    log.faulty.heal()
    log.close()


# -- What is on the disk


def test_nothing_is_on_the_disk_before_the_first_batch(log: Log) -> None:
    """Making a writer does no I/O."""
    assert not log.root.exists()
    assert log.faulty.calls == []


def test_batches_follow_the_header_line_by_line(log: Log) -> None:
    """The file is the header and then every line once, in order."""
    log.append(1)
    log.append(2, 1)
    log.append(1, 3, 1, sync=False)
    assert log.text() == log.expected()
    assert log.writer.next_seq == 9


def test_a_batch_without_events_publishes_the_header(log: Log) -> None:
    """A session may be stored before its first event."""
    log.append()
    assert log.text() == log.expected()


def test_each_part_is_a_frame_and_the_header_is_the_first(tmp_path: Path) -> None:
    """Compressed, frame 1 is exactly the header line, then one frame for each part."""
    log = Log(tmp_path, compression="zstd")
    log.append(1, 2)
    log.append(3)
    expected = [[HEADER.to_json()], log.lines[:1], log.lines[1:3], log.lines[3:]]
    assert log.path.read_bytes() == b"".join(encode_frame(b"\n".join([*part, b""])) for part in expected)
    log.close()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_only_the_owner_can_read(log: Log, umask: int) -> None:
    """Files are 0600 and directories 0700 whatever the umask is."""
    before = os.umask(umask)
    try:
        log.append(1)
        log.append(1)
    finally:
        os.umask(before)
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in [log.root, *log.root.rglob("*")]}
    assert {mode for p, mode in modes.items() if p.is_dir()} == {0o700}
    assert {mode for p, mode in modes.items() if p.is_file()} == {0o600}
    assert len(modes) == 5


def test_short_writes_go_on(log: Log) -> None:
    """A system that takes three bytes at a time gets them all."""
    log.faulty.most_per_write = 3
    log.append(2, 1)
    log.append(2, 1)
    assert log.text() == log.expected()


def test_every_part_is_synced_before_the_next_is_written(log: Log) -> None:
    """A turn/end begins its part, so that one found on disk proves that all before it was durable."""
    log.append(1)
    log.faulty.calls.clear()
    log.append(1, 1, 1)
    writes = [name for name in log.faulty.calls if name in {"write", "sync"}]
    assert writes == ["write", "sync"] * 3


def test_unsynced_bytes_are_synced_before_a_synced_part(log: Log) -> None:
    """What went without sync is durable before anything that promises to be."""
    log.append(1)
    log.append(1, 1, sync=False)
    log.faulty.calls.clear()
    log.append(1)
    writes = [name for name in log.faulty.calls if name in {"write", "sync"}]
    assert writes == ["sync", "write", "sync"]


def test_without_sync_nothing_is_synced_until_asked(log: Log) -> None:
    """``sync=False`` costs no sync, and ``sync`` costs one."""
    log.append(1)
    log.faulty.calls.clear()
    log.append(1, 1, sync=False)
    assert "sync" not in log.faulty.calls
    log.sync()
    assert log.faulty.calls.count("sync") == 1
    log.sync()
    assert log.faulty.calls.count("sync") == 1


def test_unsynced_bytes_do_not_pile_up_in_memory(tmp_path: Path) -> None:
    """Beyond a limit even a write without sync is synced, since what is not durable is kept for a rewrite."""
    log = Log(tmp_path)
    log.append(1)
    log.faulty.calls.clear()
    line = b'"' + b"x" * (MAX_UNSYNCED + 1) + b'"'
    log.give(Batch(1, 2, ((line,),), lambda: ()), sync=False)
    assert "sync" in log.faulty.calls
    log.close()


def test_a_line_break_inside_a_line_is_refused(log: Log) -> None:
    """A record never becomes two lines."""
    with pytest.raises(InvalidEventError):
        log.give(Batch(0, 1, ((b'{"a":\n1}',),), lambda: ()))
    assert not log.path.exists()


def test_a_seq_is_never_written_twice(log: Log) -> None:
    """A batch that does not start where the log ends is a mistake of the caller."""
    batch = log.batch(2)
    log.give(batch)
    with pytest.raises(ValueError, match="seq 2"):
        log.give(batch)
    assert log.text() == log.expected()


# -- Publication


def test_nothing_is_visible_before_the_link(log: Log) -> None:
    """Header and first batch appear at once: until the name is given, there is no log."""
    seen: list[bool] = []
    log.faulty.before = lambda name, _number: seen.append(log.path.exists()) if name == "link" else None
    log.append(3)
    assert seen == [False]


def test_publication_syncs_file_and_directories(log: Log) -> None:
    """The bytes are durable before the name exists, and the names before the batch counts as stored."""
    log.append(1)
    calls = log.faulty.calls
    link = calls.index("link")
    assert "sync" in calls[:link]
    assert "sync_directory" in calls[link:]
    made = [n for n, name in enumerate(calls) if name == "mkdir"]
    assert len(made) == 3
    assert all(calls[n + 1] == "sync_directory" for n in made)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP])
def test_without_hard_links_the_file_is_renamed(log: Log, code: int) -> None:
    """A file system without links gets a rename, checked under the lock."""
    log.faulty.fail("link", code, times=9)
    log.append(2)
    log.append(1)
    assert log.text() == log.expected()
    assert log.path.stat().st_nlink == 1


def test_without_hard_links_nothing_is_overwritten(log: Log) -> None:
    """A log that appears between the first check and the rename stays."""
    log.faulty.fail("link", errno.EPERM)

    def put_theirs(name: str, _number: int) -> None:
        if name == "link":
            log.path.write_bytes(b"theirs")

    log.faulty.before = put_theirs
    with pytest.raises(SessionExistsError):
        log.append(1)
    assert log.path.read_bytes() == b"theirs"


@pytest.mark.parametrize("theirs", BOTH)
def test_a_published_session_is_never_overwritten(log: Log, theirs: Compression) -> None:
    """A log in either encoding makes the id taken; the lock is free again."""
    taken = Path(log.paths.log(theirs))
    taken.parent.mkdir(parents=True)
    taken.write_bytes(b"theirs")
    for _ in range(2):
        with pytest.raises(SessionExistsError):
            log.give(Batch(0, 1, ((b"{}",),), lambda: ()))
    assert taken.read_bytes() == b"theirs"
    assert probe(log.files, log.paths.lock) == "none"
    assert sorted(p.name for p in taken.parent.iterdir()) == sorted([taken.name, "session.lock"])


@pytest.mark.slow
def test_two_writers_of_a_new_id_do_not_both_publish(log: Log) -> None:
    """The second one is told who holds the session."""
    other = log.new_writer()
    log.append(1)
    with pytest.raises(SessionLockedError) as caught:
        asyncio.run(other.append(Batch(0, 1, ((b"{}",),), lambda: ()), sync=True))
    assert caught.value.pid == os.getpid()
    assert caught.value.since == 5
    assert log.text() == log.expected()


def test_a_crash_before_the_link_leaves_a_name_that_the_next_writer_removes(log: Log) -> None:
    """Temporary files do not pile up."""
    directory = log.path.parent
    directory.mkdir(parents=True)
    (directory / "session.tmp-0123456789abcdef").write_bytes(b"half")
    log.append(1)
    assert sorted(p.name for p in directory.iterdir()) == sorted([log.path.name, "session.lock"])


def test_a_crash_after_the_link_leaves_a_second_name_that_the_next_write_removes(log: Log) -> None:
    """Our own temporary name is no hard link to be afraid of."""
    log.append(1)
    temp = log.path.parent / "session.tmp-0123456789abcdef"
    os.link(log.path, temp)
    log.append(1)
    assert not temp.exists()
    assert log.text() == log.expected()


def test_a_log_with_a_second_name_is_not_written(log: Log, tmp_path: Path) -> None:
    """A hard link elsewhere would change with the log, so the write is refused, and works when it is gone."""
    log.append(1)
    other = tmp_path / "backup"
    os.link(log.path, other)
    batch = log.batch(1)
    with pytest.raises(StorageError, match="hard links"):
        log.give(batch)
    assert other.read_bytes() == log.path.read_bytes()
    other.unlink()
    log.give(batch)
    assert log.text() == log.expected()


@pytest.mark.parametrize("what", ["project", "session", "log", "lock"])
def test_symbolic_links_below_the_root_are_not_followed(log: Log, tmp_path: Path, what: str) -> None:
    """Nothing is written through a link somebody put below the root."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    directory = log.path.parent
    link = {"project": directory.parent, "session": directory, "log": log.path, "lock": Path(log.paths.lock)}[what]
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere / "file" if what in {"log", "lock"} else elsewhere)
    with pytest.raises((StorageError, SessionExistsError)):
        log.append(1)
    assert list(elsewhere.iterdir()) == []


def test_the_root_may_be_a_symbolic_link(tmp_path: Path) -> None:
    """Only below the root links are not followed."""
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    log = Log(tmp_path / "root")
    log.append(1)
    assert (tmp_path / "real" / "_no-cwd" / "s" / "session.jsonl").read_bytes() == log.expected()
    log.close()


# -- The lock


def test_the_lock_is_held_from_the_first_batch_until_close(log: Log) -> None:
    """Readers see a live writer exactly in between."""
    assert probe(log.files, log.paths.lock) == "none"
    log.append(1)
    assert probe(log.files, log.paths.lock) == "live"
    log.close()
    log.close()
    assert probe(log.files, log.paths.lock) == "none"
    with pytest.raises(StoreClosedError):
        log.append(1)


def test_a_lock_file_that_was_removed_is_taken_again(log: Log) -> None:
    """A lock that others cannot see protects nothing."""
    log.append(1)
    Path(log.paths.lock).unlink()
    log.append(1)
    assert probe(log.files, log.paths.lock) == "live"


def test_a_lock_directory_elsewhere(log: Log, tmp_path: Path) -> None:
    """With ``lock_dir`` nothing but the log lies beside the log."""
    log.writer = log.new_writer(lock_dir=str(tmp_path / "locks"))
    log.append(1)
    assert [p.name for p in log.path.parent.iterdir()] == [log.path.name]
    (lock,) = (tmp_path / "locks").iterdir()
    assert probe(log.files, str(lock)) == "live"


def test_without_locks_the_error_names_lock_dir(log: Log) -> None:
    """A file system that cannot lock is never written without one."""
    log.faulty.fail("lock", errno.ENOLCK)
    with pytest.raises(StorageError, match="lock_dir"):
        log.append(1)
    assert not log.path.exists()


def test_append_now_needs_no_event_loop(log: Log) -> None:
    """At the exit of the interpreter the last batch is written by a plain call."""
    log.writer.append_now(log.batch(1))
    log.writer.append_now(log.batch(1, 1))
    assert log.text() == log.expected()


@pytest.mark.slow
def test_a_forked_child_writes_nothing_and_the_lock_stays(tmp_path: Path) -> None:
    """The child's writer refuses, told or not, and its end does not free the parent's lock."""
    code = """
import os, sys
from sessionstore.backends.base import Batch
from sessionstore.backends.files import OsFiles
from sessionstore.backends.jsonl.lock import probe
from sessionstore.backends.jsonl.writer import JsonlWriter
from sessionstore.backends.paths import session_paths
from sessionstore.errors import StoreClosedError
from sessionstore.header import make_header
paths = session_paths(sys.argv[1], "s", None)
w = JsonlWriter(OsFiles(), paths, make_header("s", created_at=1), now=lambda: 5)
w.append_now(Batch(0, 1, ((b"{}",),), lambda: ()))
for told in (False, True):
    child = os.fork()
    if child == 0:
        if told:
            w.after_fork()
        try:
            w.append_now(Batch(1, 2, ((b"{}",),), lambda: ()))
        except StoreClosedError:
            del w
            os._exit(7)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), probe(OsFiles(), paths.lock))
w.append_now(Batch(1, 2, ((b"{}",),), lambda: ()))
print(len(open(paths.log("none")).readlines()))
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["7", "live", "7", "live", "3"]

"""One holder at a time, a crashed one never in the way, and readers who only look."""

from __future__ import annotations

import errno
import gc
import json
import os
import socket
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sessionstore.backends.files import OsFiles
from sessionstore.backends.jsonl.lock import SessionLock, lock_path, probe, read_holder
from sessionstore.backends.paths import session_paths
from sessionstore.errors import SessionLockedError, StorageError
from tests.faults import FaultyFiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sessionstore.backends.files import Files

FILES = OsFiles()


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the lock file will be."""
    return str(tmp_path / "session.lock")


def new_lock(path: str, files: Files = FILES, *, retry_ms: int = 0) -> SessionLock:
    """A lock that does not wait, unless told to."""
    return SessionLock(files, path, "s", now=lambda: 12, retry_ms=retry_ms)


@pytest.fixture
def held(path: str) -> Iterator[SessionLock]:
    """A lock that is held."""
    lock = new_lock(path)
    lock.acquire()
    yield lock
    lock.release()


class Holder:
    """Another process that holds the lock until it is killed."""

    def __init__(self, path: str, *arguments: str) -> None:
        code = (
            "import sys; from sessionstore.backends.files import OsFiles\n"
            "from sessionstore.backends.jsonl.lock import SessionLock\n"
            "lock = SessionLock(OsFiles(), sys.argv[1], 's', now=lambda: 7); lock.acquire()\n"
            "print('held', flush=True); sys.stdin.read()\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, path, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"held\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_the_holder_leaves_a_note(held: SessionLock, path: str) -> None:
    """Pid, host, program without arguments, and since when; readable by the owner only."""
    with open(path, encoding="utf-8") as file:
        note = json.load(file)
    program = os.path.basename(sys.argv[0])
    assert note == {"pid": os.getpid(), "host": socket.gethostname(), "program": program, "since": 12}
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert held.held


@pytest.mark.usefixtures("held")
def test_a_second_handle_in_this_process_is_refused(path: str) -> None:
    """The lock belongs to the handle, and the error says who holds it."""
    with pytest.raises(SessionLockedError) as caught:
        new_lock(path).acquire()
    error = caught.value
    assert (error.session_id, error.pid, error.host, error.since) == ("s", os.getpid(), socket.gethostname(), 12)
    assert error.program == os.path.basename(sys.argv[0])


@pytest.mark.slow
def test_another_process_is_refused_until_it_dies(path: str) -> None:
    """A live holder is never stolen from, a killed one is free at once; no argument of its program is shown."""
    holder = Holder(path, "--token=secret")
    try:
        with pytest.raises(SessionLockedError) as caught:
            new_lock(path).acquire()
        assert caught.value.pid == holder.process.pid
        assert "secret" not in str(caught.value)
        assert probe(FILES, path) == "live"
    finally:
        holder.kill()
    assert probe(FILES, path) == "none"
    lock = new_lock(path)
    lock.acquire()
    lock.release()


def test_release_frees_and_leaves_the_file(held: SessionLock, path: str) -> None:
    """The file stays, so that nobody waits on another one; the note of the past goes."""
    held.release()
    held.release()
    assert not held.held
    assert os.path.getsize(path) == 0
    other = new_lock(path)
    other.acquire()
    other.release()


def test_acquiring_twice_is_once(held: SessionLock, path: str) -> None:
    """A holder may ask again; one release is enough."""
    held.acquire()
    held.release()
    assert probe(FILES, path) == "none"


def test_a_lock_that_is_dropped_is_free(path: str) -> None:
    """Forgetting to release does not wedge the session for the rest of the process."""
    lock = new_lock(path)
    lock.acquire()
    del lock
    gc.collect()
    other = new_lock(path)
    other.acquire()
    other.release()


@pytest.mark.parametrize("content", [b"", b"\0" * 40, b'{"pid":1}', b"not json", b'{"pid":"x"}', b"\xff", b"[" * 9000])
def test_an_old_lock_file_blocks_nobody(path: str, content: bytes) -> None:
    """Whatever a crash left in it, and whatever pid it names, only the lock itself counts."""
    with open(path, "wb") as file:
        file.write(content)
    assert probe(FILES, path) == "none"
    lock = new_lock(path)
    lock.acquire()
    lock.release()


@pytest.mark.parametrize("content", [b"", b"not json", b"\xff\0", b"[" * 9000])
def test_an_unreadable_note_is_no_reason_to_fail(held: SessionLock, path: str, content: bytes) -> None:
    """The error then says that there is a holder, and not which."""
    with open(path, "wb") as file:
        file.write(content)
    assert read_holder(FILES, path) is None
    with pytest.raises(SessionLockedError, match="left no note") as caught:
        new_lock(path).acquire()
    assert caught.value.pid is None
    assert held.held


def test_a_momentary_reader_never_makes_a_writer_fail(path: str) -> None:
    """A probe's shared lock is waited out."""
    files = FaultyFiles()
    open(path, "wb").close()
    reader = FILES.open_read(path)
    assert FILES.lock(reader, shared=True)
    tries = 0

    def let_go(name: str, _number: int) -> None:
        nonlocal tries
        tries += name == "lock"
        if tries == 3 and name == "lock":
            FILES.unlock(reader)

    files.before = let_go
    lock = new_lock(path, files, retry_ms=10_000)
    lock.acquire()
    assert tries == 3
    lock.release()
    os.close(reader)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_lock_file_that_was_moved_is_not_the_lock(path: str, replaced: bool) -> None:
    """Whoever locks a file that others no longer find at the path tries again with the one that is there."""
    files = FaultyFiles()

    def move(name: str, _number: int) -> None:
        if name == "lock" and not os.path.exists(path + ".moved"):
            os.rename(path, path + ".moved")
            if replaced:
                open(path, "wb").close()

    files.before = move
    lock = new_lock(path, files, retry_ms=10_000)
    lock.acquire()
    assert probe(FILES, path) == "live"
    assert lock.still_there()
    os.rename(path, path + ".again")
    assert not lock.still_there()
    open(path, "wb").close()
    assert not lock.still_there()
    lock.release()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_working_locks_the_hint_names_lock_dir(path: str, code: int) -> None:
    """Never "assume unlocked", never another kind of lock."""
    files = FaultyFiles()
    files.fail("lock", code)
    with pytest.raises(StorageError) as caught:
        new_lock(path, files).acquire()
    assert caught.value.os_error is not None
    assert caught.value.os_error.errno == code
    assert "lock_dir" in str(caught.value)


def test_flock_itself_may_be_missing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the system call arrives through the lock library, without a soft lock beside it."""
    import fcntl

    def refuse(_fd: int, _operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StorageError, match="lock_dir"):
        new_lock(path).acquire()
    assert probe(FILES, path) == "unknown"
    assert os.listdir(os.path.dirname(path)) == ["session.lock"]


def test_a_missing_directory_is_the_error_it_is(tmp_path: Path) -> None:
    """The lock makes no directory; a caller can tell this case."""
    with pytest.raises(StorageError) as caught:
        new_lock(str(tmp_path / "no" / "session.lock")).acquire()
    assert isinstance(caught.value.os_error, FileNotFoundError)


def test_a_symbolic_link_is_not_followed(path: str, tmp_path: Path) -> None:
    """Neither to lock it nor to write a note through it."""
    (tmp_path / "precious").write_bytes(b"precious")
    os.symlink(tmp_path / "precious", path)
    with pytest.raises(StorageError):
        new_lock(path).acquire()
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert probe(FILES, path) == "unknown"


def test_a_full_disk_keeps_nobody_from_holding(path: str) -> None:
    """The note is for messages; without it the lock holds."""
    files = FaultyFiles()
    files.room = 0
    lock = new_lock(path, files)
    lock.acquire()
    with pytest.raises(SessionLockedError, match="left no note"):
        new_lock(path).acquire()
    lock.release()


def test_a_probe_changes_nothing(path: str) -> None:
    """It creates no file, and works on one that cannot be written."""
    assert probe(FILES, path) == "none"
    assert not os.path.exists(path)
    open(path, "wb").close()
    os.chmod(path, 0o400)
    before = os.stat(path)
    assert probe(FILES, path) == "none"
    assert os.stat(path) == before


def test_a_probe_that_cannot_know_says_so(path: str) -> None:
    """No permission, no locks: unknown, never an exception."""
    open(path, "wb").close()
    for name, code in (("open_read", errno.EACCES), ("lock", errno.ENOLCK), ("unlock", errno.EIO)):
        files = FaultyFiles()
        files.fail(name, code)
        assert probe(files, path) == "unknown"


def test_a_filelock_user_is_kept_out_and_keeps_out(path: str) -> None:
    """The same lock as filelock's own, on the same file."""
    import filelock

    theirs = filelock.FileLock(path, timeout=0, fallback_to_soft=False)
    lock = new_lock(path)
    lock.acquire()
    with pytest.raises(filelock.Timeout):
        theirs.acquire()
    lock.release()
    with theirs, pytest.raises(SessionLockedError):
        lock.acquire()


# Other tests leave worker threads behind, and a fork then warns from Python 3.12 on.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_lets_go_without_unlocking(held: SessionLock, path: str) -> None:
    """The child has no descriptor left, and the parent still has its lock."""
    child = os.fork()
    if child == 0:
        held.after_fork()
        os._exit(0 if not held.held and probe(FILES, path) == "live" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert probe(FILES, path) == "live"
    assert held.still_there()


def test_a_descriptor_that_somebody_else_closed_is_left_alone(held: SessionLock, path: str, tmp_path: Path) -> None:
    """A program that closes all descriptors may have reused the number: the new owner's file stays open."""
    assert held._fd is not None
    number = held._fd
    os.close(number)
    fd = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    os.dup2(fd, number)
    os.write(number, b"data")
    assert not held.still_there()
    held.release()
    assert os.fstat(number).st_size == 4
    os.close(number)
    if fd != number:
        os.close(fd)
    assert probe(FILES, path) == "none"


def test_lock_dir_follows_the_real_root(tmp_path: Path) -> None:
    """A root reached through a link has the same lock; without lock_dir the lock lies beside the log."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    real = session_paths(str(tmp_path / "real"), "s", "/w")
    link = session_paths(str(tmp_path / "link"), "s", "/w")
    assert lock_path(FILES, real, "/locks") == lock_path(FILES, link, "/locks")
    assert os.path.dirname(lock_path(FILES, real, "/locks")) == "/locks"
    assert lock_path(FILES, real, None) == os.path.join(real.directory, "session.lock")


@pytest.mark.slow
def test_importing_it_imports_no_driver() -> None:
    """The library for locks is loaded by the first lock."""
    code = "import sys, sessionstore.backends.jsonl.lock as l; sys.exit('filelock' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

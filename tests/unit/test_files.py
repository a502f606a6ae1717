"""The operations of the system: modes, links, locks, and what a helper makes of them."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore.backends.files import OsFiles, ensure_directories, read_chunks, storage_errors, write_all
from sessionstore.errors import StorageError
from tests.faults import FaultyFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FILES = OsFiles()


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    """A new file, open for reading and appending."""
    fd = FILES.create(str(tmp_path / "file"))
    yield fd
    os.close(fd)


@pytest.fixture(params=[0o000, 0o022, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """A umask that would make files too open or too closed."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("make", [FILES.create, FILES.open_lock])
def test_files_are_private_under_any_umask(tmp_path: Path, make: Callable[[str], int]) -> None:
    """0600, neither more nor less."""
    fd = make(str(tmp_path / "file"))
    os.close(fd)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


@pytest.mark.usefixtures("umask")
def test_directories_are_private_under_any_umask(tmp_path: Path) -> None:
    """0700, neither more nor less."""
    FILES.mkdir(str(tmp_path / "d"))
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700


def test_create_refuses_a_name_that_is_taken(tmp_path: Path) -> None:
    """Nothing is overwritten, nor is anything created through a dangling link."""
    (tmp_path / "file").write_bytes(b"theirs")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(FileExistsError):
            FILES.create(str(tmp_path / name))
    assert (tmp_path / "file").read_bytes() == b"theirs"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("make", [FILES.open_read, FILES.open_append, FILES.open_lock])
def test_a_symbolic_link_is_not_opened(tmp_path: Path, make: Callable[[str], int]) -> None:
    """The last component of a path is never followed."""
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(OSError, match="symbolic") as caught:
        make(str(tmp_path / "link"))
    assert caught.value.errno == errno.ELOOP


@pytest.mark.parametrize("make", [FILES.open_read, FILES.open_append, FILES.open_lock])
def test_a_pipe_in_the_place_of_a_file_does_not_hang(tmp_path: Path, make: Callable[[str], int]) -> None:
    """Opening returns at once, and the kind tells."""
    os.mkfifo(tmp_path / "pipe")
    fd = make(str(tmp_path / "pipe"))
    assert FILES.fstat(fd).kind == "other"
    os.close(fd)


@pytest.mark.parametrize("make", [FILES.create, FILES.open_lock])
def test_descriptors_are_not_inherited(tmp_path: Path, make: Callable[[str], int]) -> None:
    """A program that is started does not keep a log open or locked."""
    fd = make(str(tmp_path / "file"))
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_open_lock_keeps_what_the_file_holds(tmp_path: Path) -> None:
    """The note of the present holder is not destroyed by somebody who only tries."""
    (tmp_path / "lock").write_bytes(b"note")
    os.close(FILES.open_lock(str(tmp_path / "lock")))
    assert (tmp_path / "lock").read_bytes() == b"note"


def test_link_refuses_a_name_that_is_taken(tmp_path: Path) -> None:
    """The reason why publication links and does not rename."""
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    with pytest.raises(FileExistsError):
        FILES.link(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b").read_bytes() == b"b"


def test_writes_go_to_the_end(descriptor: int) -> None:
    """Also after the file was cut."""
    write_all(FILES, descriptor, b"abcdef")
    FILES.truncate(descriptor, 2)
    write_all(FILES, descriptor, b"X")
    assert b"".join(read_chunks(FILES, descriptor)) == b"abX"


def test_stat_tells_what_a_name_is(tmp_path: Path) -> None:
    """Files, directories, links and the rest; a link is followed only when asked."""
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path)
    os.link(tmp_path / "file", tmp_path / "second")
    found = FILES.stat(str(tmp_path / "file"))
    assert (found.kind, found.size, found.links) == ("file", 3, 2)
    assert found.identity == FILES.stat(str(tmp_path / "second")).identity
    assert FILES.stat(str(tmp_path / "link")).kind == "link"
    assert FILES.stat(str(tmp_path / "link"), follow=True).kind == "directory"


def test_two_descriptors_conflict_and_shared_ones_do_not(tmp_path: Path) -> None:
    """A lock belongs to the open file, also inside one process."""
    path = str(tmp_path / "lock")
    one, other, reader = FILES.open_lock(path), FILES.open_lock(path), FILES.open_read(path)
    assert FILES.lock(one)
    assert not FILES.lock(other)
    assert not FILES.lock(reader, shared=True)
    FILES.unlock(one)
    assert FILES.lock(reader, shared=True)
    assert FILES.lock(other, shared=True)
    assert not FILES.lock(one)
    for fd in (one, other, reader):
        os.close(fd)


@given(st.binary(max_size=50), st.integers(1, 9), st.integers(0, 60), st.integers(0, 60))
def test_short_writes_and_reads_go_on(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, most: int, start: int, stop: int
) -> None:
    """Whatever the system takes or gives at a time, all of it arrives."""
    files = FaultyFiles()
    files.most_per_write = most
    fd = files.create(str(tmp_path_factory.mktemp("short") / "file"))
    write_all(files, fd, data)
    assert b"".join(read_chunks(files, fd)) == data
    assert b"".join(read_chunks(files, fd, start, stop, chunk=most)) == data[start:stop]
    os.close(fd)


def test_a_system_that_takes_nothing_is_an_error(descriptor: int) -> None:
    """Asking again and again would never end."""
    files = FaultyFiles()
    files.most_per_write = 0
    with pytest.raises(OSError, match="took no bytes"):
        write_all(files, descriptor, b"a")


def test_missing_directories_are_made_and_each_name_is_synced(tmp_path: Path) -> None:
    """From the top down, the parent synced after each."""
    files = FaultyFiles()
    root = tmp_path / "a" / "root"
    ensure_directories(files, str(root), str(root / "p" / "s"))
    assert (root / "p" / "s").is_dir()
    made = files.calls[files.calls.index("mkdir") :]
    assert made[:8] == ["mkdir", "sync_directory"] * 4


def test_a_directory_that_exists_gets_its_name_synced(tmp_path: Path) -> None:
    """Whoever made it may have crashed before."""
    files = FaultyFiles()
    (tmp_path / "root").mkdir()
    ensure_directories(files, str(tmp_path / "root"), str(tmp_path / "root"))
    assert files.calls == ["stat", "sync_directory"]


def test_a_race_for_a_directory_is_no_error(tmp_path: Path) -> None:
    """Two processes may make the same project at once."""
    files = FaultyFiles()
    root = tmp_path / "root"

    def race(name: str, _number: int) -> None:
        if name == "mkdir":
            (root / "p").mkdir(parents=True, exist_ok=True)

    files.before = race
    ensure_directories(files, str(root), str(root / "p"))
    assert (root / "p").is_dir()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_is_no_directory_is_named(tmp_path: Path, kind: str) -> None:
    """A file or a link in the place of a directory below the root is refused."""
    place = tmp_path / "root" / "p"
    place.parent.mkdir()
    if kind == "file":
        place.write_bytes(b"")
    else:
        place.symlink_to(tmp_path)
    with pytest.raises(NotADirectoryError) as caught:
        ensure_directories(FILES, str(tmp_path / "root"), str(place))
    assert caught.value.filename == str(place)


def test_storage_errors_name_what_was_tried() -> None:
    """The OSError is kept, with session, path, action and hint."""
    with pytest.raises(StorageError) as caught, storage_errors("write", path="/p", session_id="s", hint="buy a disk"):
        raise OSError(errno.ENOSPC, "No space left on device")
    error = caught.value
    assert str(error) == "session 's': cannot write /p: No space left on device; buy a disk"
    assert isinstance(error.os_error, OSError)
    assert error.__cause__ is error.os_error


def test_storage_errors_leaves_other_errors_alone() -> None:
    """A mistake in the program is not the disk's."""
    with pytest.raises(KeyError), storage_errors("write", path="/p"):
        raise KeyError

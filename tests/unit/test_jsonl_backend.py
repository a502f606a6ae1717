"""The backend itself: its root, its index, and what it refuses early."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from sessionstore.backends.files import OsFiles
from sessionstore.backends.jsonl import JsonlBackend
from sessionstore.backends.jsonl.index import Index
from sessionstore.errors import (
    DamagedLogError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from sessionstore.recovery.findings import Verdict
from tests.contract.programs import CLOSED, batch, header, store, write
from tests.recovery import logs
from tests.unit.jsonl_places import DeniedFiles, ReadOnlyFiles, log, put, stored

if TYPE_CHECKING:
    from pathlib import Path

LOG = b"".join(logs.closed_log())


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A root that does not exist yet."""
    return os.fspath(tmp_path / "deep" / "root")


def test_root_is_absolute_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative root, and one in the home directory, mean what they meant when the backend was made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", os.fspath(tmp_path / "home"))
    backend = JsonlBackend("sub/../sessions")
    home = JsonlBackend("~/x")
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", "/elsewhere")
    assert backend.root == os.fspath(tmp_path / "sessions")
    assert home.root == os.fspath(tmp_path / "home" / "x")
    assert backend.locate("a/b", "/srv") == os.fspath(tmp_path / "sessions" / "--srv--" / "a~002Fb" / "session.jsonl")
    assert JsonlBackend(tmp_path, compression="zstd").locate("a", None) == os.fspath(
        tmp_path / "_no-cwd" / "a" / "session.jsonl.zstd"
    )


@pytest.mark.parametrize("arguments", [{"root": ""}, {"root": "a\0b"}, {"root": "/x", "compression": "gzip"}])
def test_bad_arguments(arguments: dict[str, Any]) -> None:
    """A root that is no path and an unknown compression are refused when the backend is made."""
    with pytest.raises(ValueError, match=r"directory|compression"):
        JsonlBackend(**arguments)


async def test_root_is_made_at_the_first_write(root: str) -> None:
    """Until something is written there is no root, and no operation that reads misses it or makes it."""
    backend = JsonlBackend(root)
    await backend.prepare(header())
    assert (await backend.list()).sessions == ()
    assert list(await backend.trash()) == []
    assert await backend.empty_trash() == 0
    with pytest.raises(SessionNotFoundError):
        await backend.open("s1")
    with pytest.raises(SessionNotFoundError):
        await backend.delete("s1")
    await backend.write_index("s1", title=None, turns=0, events=0)
    assert not os.path.exists(os.path.dirname(root))
    await store(backend)
    place = os.path.join(root, "--srv-project--", "s1")
    for directory in (root, os.path.dirname(place), place):
        assert os.stat(directory).st_mode & 0o777 == 0o700
    for name in os.listdir(place):
        assert os.stat(os.path.join(place, name)).st_mode & 0o777 == 0o600


async def test_root_that_is_a_file(root: str) -> None:
    """A root that is a file is an error of its own, in every operation."""
    os.makedirs(os.path.dirname(root))
    with open(root, "w", encoding="utf-8") as file:
        file.write("x")
    backend = JsonlBackend(root)
    for operation in (backend.prepare(header()), backend.read("s1"), backend.list(), backend.open("s1")):
        with pytest.raises(StorageError) as caught:
            await operation
        assert caught.value.path == root
        assert isinstance(caught.value.os_error, NotADirectoryError)


async def test_root_that_may_not_be_read(root: str) -> None:
    """A root without rights is a storage error that says so, not an empty list and not an absent session."""
    put(root, "s1", LOG)
    backend = JsonlBackend(root, files=DeniedFiles(lambda path: path == root))
    for operation in (backend.list(), backend.read("s1"), backend.prepare(header("s2"))):
        with pytest.raises(StorageError, match="Permission denied"):
            await operation


async def test_unwritable_root_is_told_early(root: str) -> None:
    """A root that cannot be written, or made, refuses a new session before its first event."""
    backend = JsonlBackend(root, files=ReadOnlyFiles())
    with pytest.raises(StorageError, match="cannot be written"):
        await backend.prepare(header())
    os.makedirs(root)
    with pytest.raises(StorageError, match="cannot be written"):
        await backend.prepare(header())
    assert os.listdir(root) == []


@pytest.mark.parametrize("at", ["project", "session"])
async def test_something_in_the_place_of_a_directory(root: str, at: str) -> None:
    """A file where a directory of the new session has to be is told early."""
    place = os.path.join(root, "--srv-project--", *(["s1"] if at == "session" else []))
    os.makedirs(os.path.dirname(place))
    with open(place, "w", encoding="utf-8") as file:
        file.write("x")
    with pytest.raises(StorageError, match="not a directory"):
        await JsonlBackend(root).prepare(header())


async def test_id_stored_twice_is_taken(root: str) -> None:
    """An id that cannot be opened because it is stored twice is no free id."""
    for cwd in ("/a", "/b"):
        put(root, "s1", log(cwd=cwd), cwd=cwd)
    with pytest.raises(SessionExistsError):
        await JsonlBackend(root).prepare(header())


async def test_each_session_keeps_its_encoding(root: str) -> None:
    """Both encodings live in one root; a session goes on in the one it has, whatever the backend writes."""
    plain, packed = JsonlBackend(root), JsonlBackend(root, compression="zstd")
    await store(plain, "a", CLOSED[:11])
    await store(packed, "b", CLOSED[:11])
    for id, other in (("a", packed), ("b", plain)):
        writer, found = await other.open(id)
        await writer.append(batch(CLOSED, 11), sync=True)
        await writer.close()
        assert os.path.basename(found.location or "") == ("session.jsonl" if id == "a" else "session.jsonl.zstd")
        assert len((await plain.read(id)).scan.log) == 23


async def test_second_encoding_is_warned_of_once(root: str, caplog: pytest.LogCaptureFixture) -> None:
    """The reference refuses a mixed root: whoever is about to make one is told, once."""
    stored(root, "a", log("a"), "zstd")
    caplog.set_level(logging.WARNING, "sessionstore")
    backend = JsonlBackend(root)
    await backend.prepare(header("b"))
    await backend.prepare(header("c"))
    assert len(caplog.records) == 1
    await JsonlBackend(root, compression="zstd").prepare(header("d"))
    assert len(caplog.records) == 1


async def test_lock_dir(root: str, tmp_path: Path) -> None:
    """With a directory for locks of its own a session is held there, for readers, openers and deleters alike."""
    locks = tmp_path / "new" / "locks"
    backend = JsonlBackend(root, lock_dir=locks)
    writer = await write(backend, header(), CLOSED)
    other = JsonlBackend(root, lock_dir=os.fspath(locks))
    assert (await other.read("s1")).writer == "live"
    assert (await other.list()).sessions[0].status == "live"
    with pytest.raises(SessionLockedError):
        await other.delete("s1")
    await writer.close()
    assert (await other.list()).sessions[0].status == "ok"
    assert os.listdir(os.path.join(root, "--srv-project--", "s1")) == ["session.jsonl"]
    await other.delete("s1")


async def test_lock_of_a_vanished_session(root: str) -> None:
    """A session that is deleted while somebody waits for its lock is not found, and no lock file comes back."""
    put(root, "s1", LOG)

    class Deleting(OsFiles):
        def open_lock(self, path: str) -> int:
            if os.path.exists(os.path.dirname(path)):
                os.rename(os.path.dirname(path), os.path.join(root, "gone"))
            return super().open_lock(path)

    with pytest.raises(SessionNotFoundError):
        await JsonlBackend(root, files=Deleting()).open("s1")
    assert os.listdir(os.path.join(root, "--srv-project--")) == []


async def test_failed_open_frees_the_lock(root: str) -> None:
    """An open that fails behind the lock leaves the session free."""
    path = put(root, "s1", LOG)
    with pytest.raises(StorageError):
        await JsonlBackend(root, files=DeniedFiles(lambda each: each == path)).open("s1")
    writer, _ = await JsonlBackend(root).open("s1")
    await writer.close()


# The index


def _index(root: str) -> str:
    return os.path.join(root, "--srv-project--", "s1", "session.index")


@pytest.mark.parametrize(
    "garbage", [b"", b"{", b"\0" * 50, b"[]", b'{"device":1}', b"\xff", b"[" * 40_000, b'{"title":"' + b"x" * 99_999]
)
async def test_garbage_in_the_index_is_ignored(root: str, garbage: bytes) -> None:
    """An index of any bytes changes nothing but the extras of a row, and is replaced by the next one."""
    put(root, "s1", LOG)
    backend = JsonlBackend(root)
    with open(_index(root), "wb") as file:
        file.write(garbage)
    (row,) = (await backend.list()).sessions
    assert (row.status, row.title) == ("ok", None)
    assert len(await JsonlBackend(root).read_from("s1", 20)) == 3
    await backend.write_index("s1", title="t", turns=2, events=23)
    assert (await backend.list()).sessions[0].title == "t"
    assert os.stat(_index(root)).st_mode & 0o777 == 0o600


async def test_index_that_is_a_directory_or_a_link(root: str, tmp_path: Path) -> None:
    """Whatever lies in the index's place, it is neither followed nor an error."""
    put(root, "s1", LOG)
    backend = JsonlBackend(root)
    os.mkdir(_index(root))
    await backend.write_index("s1", title="t", turns=2, events=23)
    assert (await backend.list()).sessions[0].title is None
    os.rmdir(_index(root))
    (tmp_path / "precious").write_text("x")
    os.symlink(tmp_path / "precious", _index(root))
    assert (await backend.list()).sessions[0].title is None
    await backend.write_index("s1", title="t", turns=2, events=23)
    assert (tmp_path / "precious").read_text() == "x"
    assert sorted(os.listdir(os.path.dirname(_index(root)))) == ["session.index", "session.jsonl"]


async def test_index_moves_with_the_session_and_is_checked(root: str) -> None:
    """An index copied beside another log, or left beside a changed one, is not believed."""
    put(root, "s1", LOG)
    backend = JsonlBackend(root)
    await backend.read("s1")
    await backend.write_index("s1", title="t", turns=2, events=23)
    await backend.restore(await backend.delete("s1"))
    assert (await backend.list()).sessions[0].title == "t"
    os.utime(os.path.join(os.path.dirname(_index(root)), "session.jsonl"), (1, 1))
    assert (await backend.list()).sessions[0].title is None


async def test_checkpoint_that_lies_is_found_out(root: str) -> None:
    """An index whose checkpoint does not fit the bytes in front of it leads to a whole scan, not to wrong events."""
    put(root, "s1", LOG)
    backend = JsonlBackend(root)
    await backend.read("s1")
    await backend.write_index("s1", title="t", turns=2, events=23)
    with open(_index(root), "rb") as file:
        index = msgspec.json.decode(file.read(), type=Index)
    assert index.checkpoint is not None
    assert index.checkpoint.next_seq == 23
    path = put(root, "s1", log(lines=[*logs.closed_log()[1:11], b"#\n", logs.turn_end(30), b" " * 2000 + b"\n"]))
    assert os.path.getsize(path) > index.checkpoint.offset
    assert (await JsonlBackend(root).read("s1")).scan.verdict is Verdict.DAMAGED
    with pytest.raises(DamagedLogError):
        await JsonlBackend(root).read_from("s1", 20)


async def test_lock_note_names_the_holder(root: str) -> None:
    """Whoever is refused is told who holds the session."""
    writer = await write(JsonlBackend(root, clock=lambda: 77), header(), CLOSED)
    with pytest.raises(SessionLockedError) as caught:
        await JsonlBackend(root).open("s1")
    await writer.close()
    assert caught.value.pid == os.getpid()
    assert caught.value.since == 77

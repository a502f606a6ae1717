"""The trash on disk: moved in one step, restored to where it was, never more removed than was put there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sessionstore.backends.files import OsFiles
from sessionstore.backends.jsonl import JsonlBackend
from sessionstore.errors import SessionNotFoundError, SessionStoreError, StorageError
from tests.recovery import logs
from tests.unit.jsonl_places import FailingFiles, put

if TYPE_CHECKING:
    from pathlib import Path

LOG = b"".join(logs.closed_log())


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A root with one session."""
    root = os.fspath(tmp_path / "root")
    put(root, "s1", LOG)
    return root


async def test_layout(root: str) -> None:
    """A deleted session lies two levels below the trash's root, whole, with everything that was beside the log."""
    extra = put(root, "s1", b"cut", name="session.jsonl.cut-5-0123456789ab")
    entry = await JsonlBackend(root, clock=lambda: 1234).delete("s1")
    assert entry.key == "1234-0"
    assert entry.location == os.path.join(root, ".trash", "1234-0", "s1")
    assert {"session.jsonl", os.path.basename(extra)} <= set(os.listdir(entry.location))
    assert os.stat(os.path.join(root, ".trash")).st_mode & 0o777 == 0o700
    assert os.stat(os.path.join(root, ".trash", "1234-0", "note.json")).st_mode & 0o777 == 0o600
    assert os.listdir(os.path.join(root, "--srv-project--")) == []


@pytest.mark.parametrize("note", [None, b"", b"{", b"[]", b'{"id":1}', b'{"id":"s1","project":"../.."}', b"\0" * 99])
async def test_note_is_not_needed(root: str, note: bytes | None) -> None:
    """Without its note a session still goes back to where its header says it belongs, and never outside the root."""
    backend = JsonlBackend(root)
    entry = await backend.delete("s1")
    path = os.path.join(root, ".trash", entry.key, "note.json")
    os.unlink(path)
    if note is not None:
        with open(path, "wb") as file:
            file.write(note)
    assert [each.id for each in await backend.trash()] == ["s1"]
    await backend.restore(entry)
    assert os.path.exists(os.path.join(root, "--srv-project--", "s1", "session.jsonl"))
    assert list(await backend.trash()) == []


async def test_neither_note_nor_header(root: str) -> None:
    """Where nothing says where a session belongs it stays in the trash, and the error says so."""
    backend = JsonlBackend(root)
    put(root, "s1", b"###")
    entry = await backend.delete("s1")
    os.unlink(os.path.join(root, ".trash", entry.key, "note.json"))
    with pytest.raises(StorageError, match="move it"):
        await backend.restore(entry)
    assert list(await backend.trash()) == [entry]


async def test_something_in_the_way(root: str) -> None:
    """A directory without a log in the session's place is not overwritten; the session stays in the trash."""
    backend = JsonlBackend(root)
    entry = await backend.delete("s1")
    lock = put(root, "s1", b"", name="session.lock")
    with pytest.raises(StorageError, match="in the way"):
        await backend.restore(entry)
    os.unlink(lock)
    await backend.restore(entry)
    assert (await backend.read("s1")).location is not None


async def test_foreign_things_in_the_trash_stay(root: str) -> None:
    """What this library has not put into the trash is neither listed nor removed."""
    backend = JsonlBackend(root)
    await backend.delete("s1")
    trash = os.path.join(root, ".trash")
    os.mkdir(os.path.join(trash, "mine"))
    with open(os.path.join(trash, "file"), "w", encoding="utf-8") as file:
        file.write("x")
    os.mkdir(os.path.join(trash, "77-0"))  # a delete that crashed before the move
    assert len(await backend.trash()) == 1
    assert await backend.empty_trash() == 1
    assert sorted(os.listdir(trash)) == ["file", "mine"]


async def test_links_in_the_trash_are_not_followed(root: str, tmp_path: Path) -> None:
    """Emptying removes a symbolic link and not what it points to; a trash that is a link is none."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    backend = JsonlBackend(root)
    entry = await backend.delete("s1")
    os.symlink(outside, os.path.join(entry.location or "", "link"))
    assert await backend.empty_trash() == 1
    assert (outside / "precious").exists()
    os.rmdir(os.path.join(root, ".trash"))
    (outside / "1-0").mkdir()
    os.symlink(outside, os.path.join(root, ".trash"))
    assert list(await backend.trash()) == []
    assert await backend.empty_trash() == 0
    put(root, "s1", LOG)
    with pytest.raises(StorageError):
        await backend.delete("s1")
    assert (outside / "1-0").exists()


async def test_delete_that_fails_anywhere(tmp_path: Path) -> None:
    """Whichever step of a delete fails, the session is whole, in its place or in the trash, and a repeat works."""
    at = 1
    while True:
        root = os.fspath(tmp_path / str(at))
        put(root, "s1", LOG)
        files = FailingFiles(at)
        try:
            await JsonlBackend(root, files=files).delete("s1")
        except StorageError:
            pass
        else:
            if files.calls < at:
                break
        backend = JsonlBackend(root)
        places = [path for path in (os.path.join(root, "--srv-project--", "s1"),) if os.path.exists(path)]
        places += [entry.location or "" for entry in await backend.trash()]
        assert len(places) == 1
        with open(os.path.join(places[0], "session.jsonl"), "rb") as file:
            assert file.read() == LOG
        if not await backend.trash():
            await backend.delete("s1")
        (entry,) = await backend.trash()
        await backend.restore(entry)
        at += 1
    assert at > 5


async def test_restore_that_fails_anywhere(tmp_path: Path) -> None:
    """Whichever step of a restore fails, the session is in one place, and a repeat brings it back."""
    at = 1
    while True:
        root = os.fspath(tmp_path / str(at))
        put(root, "s1", LOG)
        entry = await JsonlBackend(root).delete("s1")
        os.rmdir(os.path.join(root, "--srv-project--"))
        files = FailingFiles(at)
        try:
            await JsonlBackend(root, files=files).restore(entry)
        except StorageError:
            pass
        else:
            if files.calls < at:
                break
        backend = JsonlBackend(root)
        try:
            await backend.restore(entry)
        except SessionNotFoundError:
            assert [row.id for row in (await backend.list()).sessions] == ["s1"]
        assert len((await backend.read("s1")).scan.log) == 23
        assert list(await backend.trash()) == []
        at += 1
    assert at > 3


async def test_two_deletes_at_once(root: str) -> None:
    """Of two processes that delete one session, one does and the other is told; nothing is lost."""
    import asyncio

    results = await asyncio.gather(*(JsonlBackend(root).delete("s1") for _ in range(3)), return_exceptions=True)
    assert sum(not isinstance(result, BaseException) for result in results) == 1
    assert all(isinstance(result, SessionStoreError) for result in results if isinstance(result, BaseException))
    assert len(await JsonlBackend(root, files=OsFiles()).trash()) == 1

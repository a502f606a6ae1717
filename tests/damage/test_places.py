"""Things in the places of files: links, pipes, devices and directories where the store expects something of its own."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
from pathlib import Path

import pytest

from sessionstore import SessionNotFoundError, SessionStore, StorageError, TrashEntry
from sessionstore.backends.files import OsFiles
from sessionstore.backends.jsonl import JsonlBackend
from sessionstore.backends.paths import quarantine_name
from tests.faults import FaultyFiles
from tests.recovery import logs
from tests.unit.jsonl_places import put

CLOSED = logs.closed_log()
WHOLE = b"".join(CLOSED)
DAMAGED = b"".join(logs.insert(CLOSED, 13, b"\xff\n"))


def plant(path: Path, kind: str) -> None:
    """Put something that is no regular file at *path*."""
    path.unlink(missing_ok=True)
    if kind == "directory":
        path.mkdir()
        (path / "in it").write_text("x")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as end:  # such a path has to be short
            end.bind(path.name)
    else:
        path.symlink_to(path.parent)


# The trash


async def test_a_link_among_the_places_of_the_trash_leads_nowhere(tmp_path: Path) -> None:
    """What a link in the trash points to is neither listed nor brought back nor removed."""
    outside = tmp_path / "outside"
    (outside / "s2").mkdir(parents=True)
    (outside / "s2" / "session.jsonl").write_bytes(logs.header(id="s2") + b"".join(CLOSED[1:]))
    (outside / "precious").write_text("x")
    before = sorted(outside.rglob("*"))
    root = tmp_path / "root"
    put(str(root), "s1", WHOLE)
    async with SessionStore(root) as store:
        mine = await store.delete("s1")
        link = root / ".trash" / "5-0"
        link.symlink_to(outside)
        assert list(await store.trash()) == [mine]
        with pytest.raises(SessionNotFoundError):
            await store.restore(TrashEntry("5-0", "s2", 5, 0, str(link / "s2")))
        assert await store.empty_trash() == 1
    assert sorted(outside.rglob("*")) == before
    assert link.is_symlink()


@pytest.mark.parametrize("kind", ["file", "pipe", "socket"])
async def test_what_is_no_place_keeps_nobody_from_emptying_the_trash(tmp_path: Path, kind: str) -> None:
    """A file that is named like a place stays, and the sessions beside it are removed."""
    put(str(tmp_path), "s1", WHOLE)
    async with SessionStore(tmp_path) as store:
        await store.delete("s1")
        odd = tmp_path / ".trash" / "5-0"
        if kind == "file":
            odd.write_text("x")
        else:
            plant(odd, kind)
        assert await store.empty_trash() == 1
        assert os.listdir(tmp_path / ".trash") == ["5-0"]


# Names of files being made


@pytest.mark.parametrize("data", [b"", WHOLE + b'{"type":"x', DAMAGED], ids=["new", "torn", "damaged"])
@pytest.mark.parametrize("kind", ["directory", "pipe", "socket", "link"])
async def test_what_has_a_temporary_name_stops_nobody(tmp_path: Path, kind: str, data: bytes) -> None:
    """A directory stays, anything else is taken for what a crash left; writing, resuming and repairing go on."""
    log = Path(put(str(tmp_path), "s1", data))
    if not data:
        log.unlink()
    plant(log.with_name("session.tmp-0123456789abcdef"), kind)
    async with SessionStore(tmp_path) as store:
        if data:
            session = await store.resume("s1", on_damage="salvage")
        else:
            session = await store.create("s1", cwd="/srv/project")
        session.append("my/note", {})
        assert await session.flush() == (24 if data else 1)
    left = [name for name in os.listdir(log.parent) if ".tmp-" in name]
    assert left == (["session.tmp-0123456789abcdef"] if kind == "directory" else [])


# Locks


@pytest.mark.parametrize("kind", ["directory", "pipe", "socket", "link"])
async def test_what_cannot_be_a_lock_is_not_called_a_writer(tmp_path: Path, kind: str) -> None:
    """Nobody is said to hold a session whose lock is no file; the error names the lock, and reading goes on."""
    log = Path(put(str(tmp_path), "s1", WHOLE))
    plant(log.with_name("session.lock"), kind)
    async with SessionStore(tmp_path) as store:
        for call in (store.resume("s1"), store.delete("s1"), store.repair("s1", dry_run=False)):
            with pytest.raises(StorageError, match=r"session\.lock"):
                await call
        assert (await store.verify("s1")).exit_code == 0
        assert (await store.fork("s1", child_id="child")).seq == 23


async def test_of_two_that_restore_a_session_one_is_told_that_it_is_gone(tmp_path: Path) -> None:
    """Whoever comes second by a moment gets the documented error, not one about the disk."""

    class Overtaken(OsFiles):
        """Another process restores the session right before this one does."""

        def rename(self, source: str, target: str) -> None:
            super().rename(source, target)
            super().rename(source, target)

    put(str(tmp_path), "s1", WHOLE)
    entry = await JsonlBackend(tmp_path).delete("s1")
    with pytest.raises(SessionNotFoundError, match="trash"):
        await JsonlBackend(tmp_path, files=Overtaken()).restore(entry)
    async with SessionStore(tmp_path) as store:
        assert (await store.verify("s1")).exit_code == 0


@pytest.mark.slow
async def test_a_trash_of_any_depth_is_emptied(tmp_path: Path) -> None:
    """What somebody put beside a log may be nested deeper than the interpreter's stack."""
    log = Path(put(str(tmp_path), "s1", WHOLE))
    with contextlib.chdir(log.parent):
        for _ in range(1200):
            os.mkdir("d")
            os.chdir("d")
        Path("file").write_text("x")
    async with SessionStore(tmp_path) as store:
        await store.delete("s1")
        assert await store.empty_trash() == 1
    assert os.listdir(tmp_path / ".trash") == []


async def test_a_project_on_another_device_is_not_deleted_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    """Nothing is copied across devices: the session stays whole, and no trace of it is in the trash."""

    class Mounted(OsFiles):
        """The project directory is a mount."""

        def rename(self, source: str, target: str) -> None:
            if ("--srv-project--" in source) != ("--srv-project--" in target):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            super().rename(source, target)

    put(str(tmp_path), "s1", WHOLE)
    backend = JsonlBackend(tmp_path, files=Mounted())
    with pytest.raises(StorageError, match="by hand"):
        await backend.delete("s1")
    assert list(await backend.trash()) == []
    assert os.listdir(tmp_path / ".trash") == []
    async with SessionStore(tmp_path) as store:
        assert (await store.verify("s1")).exit_code == 0


async def test_a_full_disk_is_not_called_a_log_that_cannot_be_read(tmp_path: Path) -> None:
    """The error of a repair says which file could not be written; the damaged log stays."""
    path = Path(put(str(tmp_path), "s1", DAMAGED))
    (path.parent / "session.lock").touch()
    files = FaultyFiles()
    async with SessionStore(backend=JsonlBackend(tmp_path, files=files)) as store:
        files.fail("write", errno.ENOSPC, times=1, skip=1)  # the note in the lock is written first
        with pytest.raises(StorageError, match=r"keep a copy .*\.damaged-"):
            await store.repair("s1", dry_run=False)
        assert path.read_bytes() == DAMAGED
        files.heal()
        assert (await store.repair("s1", dry_run=False)).exit_code == 0


@pytest.mark.parametrize("kind", ["directory", "pipe", "socket", "link"])
async def test_what_has_the_name_of_a_quarantine_file_costs_nothing(tmp_path: Path, kind: str) -> None:
    """A link, a pipe or a socket gives way to the bytes that are kept; a directory stops the cut, and the log stays."""
    torn = b'{"type":"x'
    log = Path(put(str(tmp_path), "s1", WHOLE + torn))
    kept = log.with_name(quarantine_name(len(WHOLE), hashlib.sha256(torn).hexdigest()))
    plant(kept, kind)
    async with SessionStore(tmp_path) as store:
        if kind == "directory":
            with pytest.raises(StorageError, match="keep the torn end") as caught:
                await store.resume("s1")
            assert caught.value.path == str(kept)
            assert "a directory" in str(caught.value)
            assert log.read_bytes() == WHOLE + torn
        else:
            assert (await store.resume("s1")).seq == 23
            assert (log.read_bytes(), kept.read_bytes()) == (WHOLE, torn)
            assert not kept.is_symlink()

"""Temporary files that a crash has left: who removes them, who counts them, and who never shows them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from sessionstore import SessionNotFoundError, SessionStore
from sessionstore.backends.files import OsFiles
from sessionstore.backends.jsonl import JsonlBackend
from sessionstore.backends.jsonl.leftovers import find_leftovers

if TYPE_CHECKING:
    from pathlib import Path

TEMP = "session.tmp-0123456789abcdef"


async def stored(root: Path, session_id: str = "s") -> Path:
    """A closed session; its log."""
    async with SessionStore(root) as store:
        session = await store.create(session_id)
        session.append("test/event", {"n": 1})
    return root / "_no-cwd" / session_id / "session.jsonl"


def leave(root: Path, session_id: str) -> Path:
    """What a crash leaves that came before the log got its name."""
    directory = root / "_no-cwd" / session_id
    directory.mkdir(parents=True)
    (directory / "session.lock").touch()
    (directory / TEMP).write_bytes(b"half a log")
    return directory / TEMP


async def test_a_resume_removes_what_a_crash_left_beside_the_log(tmp_path: Path) -> None:
    """Also where there is nothing to repair and nothing is appended."""
    log = await stored(tmp_path)
    log.with_name(TEMP).write_bytes(b"half a copy")
    async with SessionStore(tmp_path) as store:
        await store.inspect("s")
        assert log.with_name(TEMP).exists()
        await (await store.resume("s")).dispose()
    assert not log.with_name(TEMP).exists()


async def test_a_leftover_that_cannot_be_removed_stops_no_resume(tmp_path: Path) -> None:
    """It is nobody's, and stays."""
    log = await stored(tmp_path)
    log.with_name(TEMP).write_bytes(b"half a copy")

    class Stuck(OsFiles):
        def unlink(self, path: str) -> None:
            if path.endswith(TEMP):
                raise PermissionError(13, "not permitted", path)
            super().unlink(path)

    async with SessionStore(backend=JsonlBackend(tmp_path, files=Stuck())) as store:
        session = await store.resume("s")
        session.append("test/event", {"n": 2})
        assert await session.flush() == 2
    assert log.with_name(TEMP).exists()


async def test_emptying_the_trash_removes_what_crashes_left(tmp_path: Path) -> None:
    """Of sessions that never came to be, and beside logs; the logs stay, and no session is counted."""
    log = await stored(tmp_path)
    log.with_name(TEMP).write_bytes(b"half a copy")
    unborn = leave(tmp_path, "unborn")
    async with SessionStore(tmp_path) as store:
        assert [row.id for row in (await store.list()).sessions] == ["s"]
        with pytest.raises(SessionNotFoundError):
            await store.resume("unborn")
        assert await store.empty_trash() == 0
        assert not unborn.exists()
        assert not log.with_name(TEMP).exists()
        assert (await store.verify("s")).exit_code == 0
        session = await store.create("unborn")
        session.append("test/event", {"n": 1})


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_what_a_live_writer_is_making_stays(tmp_path: Path, elsewhere: bool) -> None:
    """Whoever holds the lock may be about to give the file its name; when he is gone it is removed."""
    root, lock_dir = tmp_path / "root", tmp_path / "locks" if elsewhere else None
    async with SessionStore(root, lock_dir=lock_dir) as mine, SessionStore(root, lock_dir=lock_dir) as other:
        session = await mine.create("s")
        session.append("test/event", {"n": 1})
        await session.flush()
        temp = root / "_no-cwd" / "s" / TEMP
        temp.write_bytes(b"being made")
        await other.empty_trash()
        assert temp.exists()
        await session.dispose()
        await other.empty_trash()
        assert not temp.exists()


async def test_only_our_own_names_in_our_own_places_are_removed(tmp_path: Path) -> None:
    """Not behind a link, not in the root, not a directory, not another name."""
    outside = tmp_path / "outside"
    root = tmp_path / "root"
    (outside / "t").mkdir(parents=True)
    await stored(root)
    kept = [outside / TEMP, outside / "t" / TEMP, root / TEMP, root / "_no-cwd" / TEMP]
    kept += [root / "_no-cwd" / "s" / "notes.tmp-1"]
    for path in kept:
        path.write_bytes(b"somebody's")
    (root / "linked").symlink_to(outside)
    (root / "_no-cwd" / "linked").symlink_to(outside)
    (root / "_no-cwd" / "s" / TEMP).mkdir()
    async with SessionStore(root) as store:
        await store.empty_trash()
    assert all(path.exists() for path in [*kept, root / "_no-cwd" / "s" / TEMP])


def test_leftovers_are_found_with_their_size(tmp_path: Path) -> None:
    """What ``du`` counts; a root that is not there has none."""
    backend = JsonlBackend(tmp_path / "root")
    assert list(find_leftovers(backend._files, backend.root)) == []
    temp = leave(tmp_path / "root", "unborn")
    found = list(find_leftovers(backend._files, backend.root))
    assert [(each.paths.directory, each.bytes) for each in found] == [(os.path.dirname(temp), 10)]

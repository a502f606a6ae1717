"""Sessions whose id makes a directory name that this library shortens and the reference implementation does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sessionstore import DuplicateSessionError, SessionStore
from sessionstore.backends.paths import names_of

if TYPE_CHECKING:
    from pathlib import Path

LONG = "s" * 220
EVENT = {"n": 1}


async def as_the_reference_stores_it(root: Path) -> Path:
    """A closed session under its whole name; its directory."""
    async with SessionStore(root) as store:
        session = await store.create(LONG, cwd="/srv/project")
        session.append("test/event", EVENT)
    own, whole = names_of(LONG)
    assert len(whole) == 220
    return (root / "--srv-project--" / own).rename(root / "--srv-project--" / whole)


async def test_it_is_found_and_written_where_it_is(tmp_path: Path) -> None:
    """By every operation; its id cannot be taken."""
    directory = await as_the_reference_stores_it(tmp_path)
    async with SessionStore(tmp_path) as store:
        (row,) = (await store.list()).sessions
        assert (row.id, row.status) == (LONG, "ok")
        assert (await store.inspect(LONG)).verdict == "clean"
        with pytest.raises(Exception, match="exists"):
            await store.create(LONG)
        session = await store.resume(LONG)
        session.append("test/event", EVENT)
        await session.dispose()
        assert len(await store.read_from(LONG, 0)) == 2
        entry = await store.delete(LONG)
        assert [each.id for each in await store.trash()] == [LONG]
        await store.restore(entry)
        assert (await store.verify(LONG)).exit_code == 0
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]


async def test_it_is_repaired_where_it_is(tmp_path: Path) -> None:
    """A repair does not move it to where the reference would not find it."""
    directory = await as_the_reference_stores_it(tmp_path)
    end = b'{"type":"turn/end","seq":3,"time":1,"data":{"turn":1,"reason":{"kind":"completed"}}}'
    with (directory / "session.jsonl").open("ab") as file:
        file.write(b"garbage in the place of two events and more\n" + end + b"\n")
    async with SessionStore(tmp_path) as store:
        assert (await store.repair(LONG, dry_run=False)).changed
        assert (await store.verify(LONG)).exit_code == 0
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]


async def test_under_both_names_it_is_a_duplicate(tmp_path: Path) -> None:
    """Nobody guesses which one was meant."""
    directory = await as_the_reference_stores_it(tmp_path)
    own = directory.with_name(names_of(LONG)[0])
    own.mkdir()
    (own / "session.jsonl").write_bytes((directory / "session.jsonl").read_bytes())
    async with SessionStore(tmp_path) as store:
        with pytest.raises(DuplicateSessionError):
            await store.resume(LONG)

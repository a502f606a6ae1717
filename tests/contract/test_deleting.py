"""What every backend does with a session that is deleted: moved aside, whole, until somebody empties the trash."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sessionstore.backends.base import TrashEntry
from sessionstore.errors import SessionExistsError, SessionLockedError, SessionNotFoundError
from tests.contract.kits import make_kit
from tests.contract.programs import CLOSED, OPEN, events, header, ids, store, write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.contract.kits import Kit


async def test_deleted_session_is_gone_and_comes_back(kit: Kit) -> None:
    """A deleted session is not found and not listed; restored it is what it was."""
    backend = kit.open()
    head = await store(backend)
    await store(backend, "other", OPEN)
    entry = await backend.delete("s1")
    assert entry.id == "s1"
    assert entry.bytes > 0
    assert await ids(backend) == ["other"]
    for operation in (backend.read("s1"), backend.open("s1"), backend.delete("s1")):
        with pytest.raises(SessionNotFoundError):
            await operation
    assert list(await kit.open().trash()) == [entry]
    await kit.open().restore(entry)
    assert list(await backend.trash()) == []
    stored = await kit.open().read("s1")
    assert stored.scan.header == head
    assert list(stored.scan.events) == events(CLOSED)
    writer, _ = await backend.open("s1")
    await writer.close()


async def test_deleted_id_is_free(kit: Kit) -> None:
    """The id of a deleted session can be used again; the old one is then not restored over the new one."""
    backend = kit.open()
    await store(backend, lines=CLOSED)
    entry = await backend.delete("s1")
    await backend.prepare(header())
    await store(backend, lines=OPEN)
    with pytest.raises(SessionExistsError):
        await backend.restore(entry)
    assert list(await backend.trash()) == [entry]
    assert list((await backend.read("s1")).scan.events) == events(OPEN)
    second = await backend.delete("s1")
    assert {each.key for each in await backend.trash()} == {entry.key, second.key}
    await backend.restore(entry)
    assert list((await backend.read("s1")).scan.events) == events(CLOSED)


async def test_held_session_is_not_deleted(kit: Kit) -> None:
    """A session that somebody holds is refused, and stays as it is."""
    backend = kit.open()
    writer = await write(backend, header(), CLOSED)
    with pytest.raises(SessionLockedError):
        await kit.open().delete("s1")
    assert list(await backend.trash()) == []
    await writer.close()
    await backend.delete("s1")


async def test_bad_sessions_can_be_deleted_and_restored(kit: Kit) -> None:
    """Deleting needs no readable log, and brings back exactly the damage that was there."""
    backend = kit.open()
    for id in ("torn", "damaged", "empty"):
        await store(backend, id)
    kit.damage_tail("torn")
    kit.damage_middle("damaged")
    kit.damage_all("empty")
    for id in ("torn", "damaged", "empty"):
        before = (await backend.read(id)).scan
        await backend.restore(await backend.delete(id))
        after = (await backend.read(id)).scan
        assert (after.verdict, after.size, after.findings) == (before.verdict, before.size, before.findings)


async def test_restoring_what_is_not_there(kit: Kit) -> None:
    """An entry is restored once; one that was made up is nowhere."""
    backend = kit.open()
    await store(backend)
    entry = await backend.delete("s1")
    await backend.restore(entry)
    for wrong in (entry, *(TrashEntry(key, "s1", 0, 0) for key in ("", "..", "../s1", "1-0", "1-0\n", "x" * 300))):
        with pytest.raises(SessionNotFoundError):
            await backend.restore(wrong)
    assert await ids(backend) == ["s1"]


async def test_emptying_the_trash(kit: Kit) -> None:
    """Emptying removes what was deleted, counts it, and touches nothing else."""
    backend = kit.open()
    assert await backend.empty_trash() == 0
    for n in range(3):
        await store(backend, f"s{n}")
    entries = [await backend.delete(f"s{n}") for n in range(2)]
    assert await kit.open().empty_trash() == 2
    assert await backend.empty_trash() == 0
    assert list(await backend.trash()) == []
    with pytest.raises(SessionNotFoundError):
        await backend.restore(entries[0])
    assert await ids(backend) == ["s2"]


@pytest.mark.parametrize("name", ["memory", "jsonl"])
async def test_trash_is_newest_first(name: str, tmp_path: Path) -> None:
    """The trash is ordered by the time of deletion, and two deletions in one millisecond are two entries."""
    now = [0]
    kit = make_kit(name, tmp_path, lambda: now[0])
    backend = kit.open()
    keys: list[str] = []
    for id, now[0] in zip("abcd", (5, 5, 9, 7), strict=True):
        await store(backend, id)
        keys.append((await backend.delete(id)).key)
    assert len(set(keys)) == 4
    assert [entry.id for entry in await backend.trash()] == ["c", "d", "a", "b"]

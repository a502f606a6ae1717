"""Crashes enumerated on a disk in memory: the model itself, the store on it, and stores that are wrong on purpose."""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING

import pytest

from sessionstore.backends.paths import session_paths
from sessionstore.recovery.scan import scan_log
from tests.crash.disk import Disk, Fault
from tests.crash.enumeration import images
from tests.crash.mutants import MUTANTS
from tests.crash.promises import CWD, ROOT, Setup
from tests.crash.run_enumeration import PROTOCOLS, Protocol, enumerate_crashes, mutated, no_threads

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

pytestmark = pytest.mark.crash

LOG = session_paths(ROOT, "s", CWD).log("none")


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop whose workers work at once."""
    with no_threads() as loop:
        yield loop


def a_file(disk: Disk, data: bytes, *, name: str = "/f") -> int:
    """A durable file; its descriptor."""
    fd = disk.create(name)
    disk.write(fd, memoryview(data))
    disk.sync(fd)
    disk.sync_directory("/")
    return fd


def contents(disk: Disk, name: str = "/f", limit: int = 10_000) -> set[bytes | None]:
    """All that a power cut could leave of a file."""
    return {choice.of(disk).tree().get(name) for choice in images(disk, random.Random(1), limit)}


# --- the model --------------------------------------------------------------------------------------------------


def test_synced_bytes_never_change() -> None:
    """Whatever becomes of what was written since, a file begins with what was synced."""
    disk = Disk(4)
    fd = a_file(disk, b"abcdef")
    disk.write(fd, memoryview(b"ghijkl"))
    found = contents(disk)
    assert all(each is not None and each.startswith(b"abcdef") for each in found)
    assert {b"abcdef", b"abcdefghijkl", b"abcdef\0\0ijkl", b"abcdefgh\0\0\0\0", b"abcdefgh"} <= found


def test_a_synced_file_is_found_as_it_is() -> None:
    """A sync leaves one image."""
    disk = Disk(4)
    fd = a_file(disk, b"abcdef")
    disk.write(fd, memoryview(b"ghijkl"))
    disk.sync(fd)
    assert contents(disk) == {b"abcdefghijkl"}


def test_a_cut_that_was_not_synced_may_not_have_happened() -> None:
    """Cut bytes are there or not, and never turn into zeros."""
    disk = Disk(4)
    fd = a_file(disk, b"abcdefgh")
    disk.truncate(fd, 2)
    assert contents(disk) == {b"abcdefgh", b"abcd", b"ab"}


def test_a_failed_sync_can_lose_what_the_next_one_calls_durable() -> None:
    """The pages were dropped: readers go on seeing the bytes, and a later sync does not write them."""
    disk = Disk(4)
    fd = a_file(disk, b"abcd")
    disk.write(fd, memoryview(b"efgh"))
    disk.fault = lambda _number, name: Fault(errno.EIO, lies=True) if name == "sync" else None
    with pytest.raises(OSError, match=r"rror"):
        disk.sync(fd)
    disk.fault = None
    disk.sync(fd)
    assert disk.pread(fd, 8, 0) == b"abcdefgh"
    assert b"abcd\0\0\0\0" in contents(disk)
    disk.truncate(fd, 4)
    disk.write(fd, memoryview(b"efgh"))
    disk.sync(fd)
    assert contents(disk) == {b"abcdefgh"}


def test_names_are_durable_when_their_directory_was_synced() -> None:
    """A new name may be gone, a removed one back; a rename is done or not."""
    disk = Disk(4)
    a_file(disk, b"one")
    disk.mkdir("/d")
    disk.rename("/f", "/d/g")
    trees = {frozenset(choice.of(disk).tree()) for choice in images(disk, random.Random(1), 100)}
    assert trees == {frozenset({"", "/f"}), frozenset({"", "/f", "/d"}), frozenset({"", "/d", "/d/g"}), frozenset({""})}
    disk.sync_directory("/")
    assert {frozenset(choice.of(disk).tree()) for choice in images(disk, random.Random(1), 100)} == {
        frozenset({"", "/d", "/d/g"})
    }


def test_each_block_alone_is_tried_where_not_all_can_be() -> None:
    """Beyond the limit every single block is still found lost, and every length is tried."""
    disk = Disk(4)
    fd = a_file(disk, b"")
    data = bytes(range(1, 65))
    disk.write(fd, memoryview(data))
    found = contents(disk, limit=300)
    for start in range(0, 64, 4):
        assert data[:start] + bytes(4) + data[start + 4 :] in found
        assert data[:start] in found
    assert {data, b""} <= found


# --- the store --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_no_image_breaks_a_promise(protocol: Protocol) -> None:
    """A few images of each protocol; `make crash-enum` opens more than 100,000."""
    tally = enumerate_crashes(protocol, seed=random.SystemRandom().getrandbits(32), limit=10, most=24, block=512)
    assert not tally.broken, tally.examples
    assert tally.images == 24


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_no_image_of_many_breaks_a_promise(protocol: Protocol) -> None:
    """Some hundred images of each protocol, with several blocks per line."""
    tally = enumerate_crashes(protocol, seed=random.SystemRandom().getrandbits(32), limit=10, most=200, block=64)
    assert not tally.broken, tally.examples
    assert tally.images >= 100


@pytest.mark.parametrize("name", MUTANTS)
def test_a_call_left_out_is_found(name: str) -> None:
    """A disk on which one kind of sync does nothing breaks promises, or the enumeration proves nothing."""
    assert enumerate_crashes(mutated(name), seed=5, most=5_000, until_broken=True).broken


def test_what_a_killed_process_wrote_is_durable_once_resume_returns(loop: asyncio.AbstractEventLoop) -> None:
    """A clean log that is only in the page cache is synced by the resume, though there is nothing to mend."""

    async def killed_before_its_sync() -> Disk:
        store = Setup().open(disk)
        session = await store.create("s", cwd=CWD)
        session.append("turn/start", {"turn": 1, "trigger": {"kind": "message", "source": {"kind": "user"}}})
        await session.flush()
        session.append("turn/end", {"turn": 1, "reason": {"kind": "completed"}})
        moments: list[Disk] = []
        disk.before = lambda name, _path: moments.append(disk.clone()) if name == "sync" else None
        await session.flush()
        disk.before = None
        await store.aclose()
        return moments[-1]

    async def resumed(disk: Disk) -> int:
        store = Setup().open(disk)
        session = await store.resume("s")
        assert session.recovery is not None
        assert not session.recovery.changed
        found = scan_log(disk.strictest().tree()[LOG] or b"")
        await store.aclose()
        assert session.durable_seq == 2
        return len(found.log)

    disk = Disk()
    disk.mkdir("/disk")
    disk.sync_directory("/")
    left = loop.run_until_complete(killed_before_its_sync())
    assert len(scan_log(left.strictest().tree()[LOG] or b"").log) == 1
    assert loop.run_until_complete(resumed(left)) == 2


def test_salvage_is_not_confused_by_a_second_name_of_the_log(loop: asyncio.AbstractEventLoop) -> None:
    """A publication that crashed before it removed its temporary name does not make the first repair fail."""

    async def damaged_and_salvaged() -> int:
        store = Setup().open(disk)
        session = await store.create("s", cwd=CWD)
        for turn in (1, 2):
            session.append("turn/start", {"turn": turn, "trigger": {"kind": "message", "source": {"kind": "user"}}})
            session.append("turn/end", {"turn": turn, "reason": {"kind": "completed"}})
        await session.flush()
        await store.aclose()
        data = disk.tree()[LOG] or b""
        disk.unlink(LOG)
        fd = disk.create(LOG.replace("session.jsonl", "session.tmp-0123456789abcdef"))
        lines = data.split(b"\n")
        disk.write(fd, memoryview(b"\n".join([*lines[:2], b"\0" * len(lines[2]), *lines[3:]])))
        disk.link(LOG.replace("session.jsonl", "session.tmp-0123456789abcdef"), LOG)
        store = Setup().open(disk)
        session = await store.resume("s", on_damage="salvage")
        await store.aclose()
        return session.seq

    disk = Disk()
    disk.mkdir("/disk")
    assert loop.run_until_complete(damaged_and_salvaged()) == 4


@pytest.mark.parametrize("links", [True, False])
def test_a_publication_whose_answer_was_lost_is_one(loop: asyncio.AbstractEventLoop, *, links: bool) -> None:
    """A link (or the rename where there are none) that was made but reported as failed publishes the session."""

    def fault(_number: int, name: str) -> Fault | None:
        if name == "link" and not links:
            return Fault(errno.EPERM)
        return Fault(errno.EIO, done=True) if name in {"link", "rename"} else None

    async def published() -> int:
        store = Setup().open(disk)
        session = await store.create("s", cwd=CWD)
        session.append("turn/start", {"turn": 1, "trigger": {"kind": "message", "source": {"kind": "user"}}})
        disk.fault = fault
        durable = await session.flush()
        disk.fault = None
        await store.aclose()
        return durable

    disk = Disk()
    disk.mkdir("/disk")
    disk.sync_directory("/")
    assert loop.run_until_complete(published()) == 1
    assert len(scan_log(disk.strictest().tree()[LOG] or b"").log) == 1


def test_a_delete_whose_answer_was_lost_removes_nothing(loop: asyncio.AbstractEventLoop) -> None:
    """A rename into the trash that was made but reported as failed leaves the session there, whole."""

    async def deleted() -> list[str]:
        store = Setup().open(disk)
        session = await store.create("s", cwd=CWD)
        session.append("turn/start", {"turn": 1, "trigger": {"kind": "message", "source": {"kind": "user"}}})
        await session.dispose()
        disk.fault = lambda _number, name: Fault(errno.EIO, done=True) if name == "rename" else None
        entry = await store.delete("s")
        disk.fault = None
        assert [each.key for each in await store.trash()] == [entry.key]
        await store.restore(entry)
        again = await store.resume("s")
        await store.aclose()
        return [event.type for event in again.events]

    disk = Disk()
    disk.mkdir("/disk")
    disk.sync_directory("/")
    assert loop.run_until_complete(deleted()) == ["turn/start", "turn/end"]


def test_a_second_history_that_is_found_published_is_made_durable(loop: asyncio.AbstractEventLoop) -> None:
    """A salvage that failed between the name of a fork and its sync: the repeat does not take it for durable."""
    linked = False

    def fault(_number: int, name: str) -> Fault | None:
        nonlocal linked
        refused = linked and name in {"sync_directory", "unlink"}
        linked = linked or name == "link"
        return Fault(errno.EIO) if refused else None

    async def salvaged_at_the_second_try() -> str:
        store = Setup().open(disk)
        texts: list[bytes] = []
        for name in ("s", "t"):
            session = await store.create(name, cwd=CWD)
            for turn in (1, 2):
                message = {"kind": "message", "source": {"kind": "user"}, "note": name if turn == 2 else ""}
                session.append("turn/start", {"turn": turn, "trigger": message})
                session.append("turn/end", {"turn": turn, "reason": {"kind": "completed"}})
            await session.dispose()
            texts.append(disk.tree()[session_paths(ROOT, name, CWD).log("none")] or b"")
        fd = disk.open_append(LOG)
        disk.write(fd, memoryview(b"".join(texts[1].splitlines(keepends=True)[3:])))
        disk.sync(fd)
        await store.delete("t")
        disk.fault = fault
        with pytest.raises(ExceptionGroup):
            await store.repair("s", dry_run=False)
        disk.fault = None
        report = await store.repair("s", dry_run=False)
        await store.aclose()
        return report.forks[0].id

    disk = Disk()
    disk.mkdir("/disk")
    disk.sync_directory("/")
    fork = loop.run_until_complete(salvaged_at_the_second_try())
    assert session_paths(ROOT, fork, CWD).log("none") in disk.strictest().tree()

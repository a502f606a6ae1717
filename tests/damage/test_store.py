"""What other stores get wrong around the bytes: writers, listings, forks, places, permissions, endings."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sessionstore import (
    DamagedLogError,
    ForkError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    SessionStore,
    StorageError,
    StoreClosedError,
    Verdict,
)
from sessionstore.backends.jsonl.backend import JsonlBackend
from sessionstore.recovery.scan import scan_log
from tests.faults import FaultyFiles
from tests.recovery import logs
from tests.unit.jsonl_places import put, stored

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sessionstore import StoredSession

CLOSED = logs.closed_log()
WHOLE = b"".join(CLOSED)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SessionStore]:
    """A store on an empty root."""
    async with SessionStore(tmp_path) as store:
        yield store


async def written(store: SessionStore, session_id: str, count: int = 3, **header: str) -> StoredSession:
    """A session with that many events on the disk."""
    session = await store.create(session_id, **header)  # type: ignore[arg-type]
    for number in range(count):
        session.append("my/note", {"n": number})
    await session.flush()
    return session


def seqs(path: Path) -> list[int]:
    """The seqs in a log, which must scan clean."""
    scan = scan_log(path.read_bytes())
    assert scan.verdict in {Verdict.CLEAN, Verdict.INTERRUPTED}
    return [event.seq for event in scan.events]


# Acknowledged is there, once


async def test_identical_events_are_different_events(store: SessionStore) -> None:
    """Equal content twenty times is twenty seqs, each line once, also after a failed flush."""
    session = await store.create("s1")
    for _ in range(20):
        session.append("my/image", {"b": "x" * 5000})
    await session.flush()
    await session.flush()
    path = store.locate("s1")
    assert path is not None
    assert seqs(path) == list(range(20))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
async def test_a_full_disk_is_told_and_then_forgotten(tmp_path: Path, code: int) -> None:
    """Flush raises, the events wait, and when there is room again nothing is missing or doubled."""
    files = FaultyFiles()
    async with SessionStore(backend=JsonlBackend(tmp_path, files=files)) as store:
        session = await written(store, "s1")
        files.fail("write", code, times=100)
        session.append("my/note", {})
        with pytest.raises(StorageError) as caught:
            await session.flush()
        assert caught.value.os_error is not None
        assert caught.value.os_error.errno == code
        assert session.persistence_error is not None
        files.heal()
        session.append("my/note", {})
        assert await session.flush() == 5
        path = store.locate("s1")
        assert path is not None
        assert seqs(path) == list(range(5))


async def test_short_writes_and_short_reads_change_nothing(tmp_path: Path) -> None:
    """A system that takes and gives a few bytes at a time stores and reads the same log."""
    files = FaultyFiles()
    files.most_per_write = 7
    async with SessionStore(backend=JsonlBackend(tmp_path, files=files)) as store:
        session = await written(store, "s1")
        await session.dispose()
        assert (await store.resume("s1")).seq == 3


async def test_a_cancelled_flush_never_overtakes_a_later_one(store: SessionStore) -> None:
    """However often flushes are cancelled, the log is in order and complete, and no descriptor is lost."""
    session = await store.create("s1")
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    for number in range(30):
        session.append("my/note", {"n": number})
        flush = asyncio.ensure_future(session.flush())
        await asyncio.sleep(0)
        flush.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flush
    assert await session.flush() == 30
    path = store.locate("s1")
    assert path is not None
    assert seqs(path) == list(range(30))
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before + 8


async def test_a_disposed_session_takes_nothing(store: SessionStore) -> None:
    """After the end an append is refused loudly."""
    session = await written(store, "s1")
    await session.dispose()
    with pytest.raises(StoreClosedError):
        session.append("my/note", {})


async def test_a_session_exists_from_its_first_event(tmp_path: Path) -> None:
    """Interrupted before any reply, it is listed with what the user said; without an event there is nothing."""
    async with SessionStore(tmp_path) as store:
        await store.create("nothing")
        session = await store.create("s1")
        session.append(
            "user/message", {"content": [], "source": {"kind": "user"}, "role": "user", "id": "m"}, surface_op="append"
        )
        await session.flush()
        async with SessionStore(tmp_path) as other:
            assert [row.id for row in (await other.list()).sessions] == ["s1"]


async def test_a_changed_directory_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative root is made absolute once."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    async with SessionStore("root") as store:
        session = await written(store, "s1")
        monkeypatch.chdir(tmp_path / "elsewhere")
        session.append("my/note", {})
        await session.flush()
    assert (tmp_path / "root").is_dir()
    assert not list((tmp_path / "elsewhere").iterdir())


# Writers


async def test_a_second_writer_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    """Buffered or not, two writers never share a session; the lock is free when the holder is done."""
    async with SessionStore(tmp_path) as one, SessionStore(tmp_path) as two:
        session = await written(one, "s1")
        with pytest.raises(SessionLockedError) as caught:
            await two.resume("s1")
        assert str(os.getpid()) in str(caught.value)
        await session.dispose()
        assert (await two.resume("s1")).seq == 3


@pytest.mark.parametrize("note", [b"", b"garbage", b"\0" * 64, b'{"pid":1}'])
async def test_a_lock_file_of_a_dead_holder_is_free(tmp_path: Path, note: bytes) -> None:
    """Empty, garbled, or naming a pid that is somebody else's now: only a live lock counts."""
    path = Path(put(str(tmp_path), "s1", WHOLE))
    (path.parent / "session.lock").write_bytes(note)
    async with SessionStore(tmp_path) as store:
        assert (await store.resume("s1")).seq == 23


async def test_one_of_many_racing_creators_wins(tmp_path: Path) -> None:
    """Two processes that create one id: the second is told at its first flush, and keeps its events."""
    async with SessionStore(tmp_path) as one, SessionStore(tmp_path) as two:
        first, second = await one.create("s1"), await two.create("s1")
        for session in (first, second):
            session.append("my/note", {"by": id(session)})
        await first.flush()
        with pytest.raises((SessionExistsError, SessionLockedError)):
            await second.flush()
        path = one.locate("s1")
        assert path is not None
        assert seqs(path) == [0]
        with pytest.raises((SessionExistsError, SessionLockedError)):
            await second.dispose()


# Reading beside a writer


async def test_a_reader_beside_a_writer_sees_whole_events(tmp_path: Path) -> None:
    """What is being written is no finding; reading takes no lock and changes no byte and no time."""
    async with SessionStore(tmp_path) as store, SessionStore(tmp_path) as reader:
        await written(store, "s1")
        path = store.locate("s1")
        assert path is not None
        with path.open("ab") as log:
            log.write(b'{"type":"my/note","seq":3,"ti')
        before = path.stat().st_mtime_ns
        inspection = await reader.inspect("s1")
        assert (inspection.verdict, len(inspection.events), inspection.writer) == (Verdict.CLEAN, 3, "live")
        assert [event.seq for event in await reader.read_from("s1", 1)] == [1, 2]
        await reader.list()
        assert path.stat().st_mtime_ns == before
        os.truncate(path, path.stat().st_size - 29)


# Listings


async def test_every_session_that_opens_is_listed_and_a_bad_one_is_a_row(tmp_path: Path) -> None:
    """Empty, damaged, unreadable and foreign logs are rows with a status; none hides another."""
    put(str(tmp_path), "good", logs.header(id="good") + b"".join(CLOSED[1:]))
    put(str(tmp_path), "empty", b"")
    put(str(tmp_path), "newline", b"\n")
    put(str(tmp_path), "half", CLOSED[0][:30])
    put(str(tmp_path), "header", logs.header(id="header"))
    put(str(tmp_path), "newer", logs.header(id="newer", version=9))
    put(str(tmp_path), "garbage", b"\xff\xfe" * 600)
    Path(put(str(tmp_path), "sidecar", logs.header(id="sidecar"))).with_name("session.index").write_bytes(b"{")
    async with SessionStore(tmp_path) as store:
        rows = {row.id: row.status for row in (await store.list()).sessions}
        assert len(rows) == 8
        for session_id, status in rows.items():
            opens = True
            try:
                await (await store.resume(session_id)).dispose()
            except Exception:  # noqa: BLE001 - whatever it is, it must not be called ok
                opens = False
            assert opens == (status == "ok"), (session_id, status)


async def test_the_latest_is_the_one_used_last(tmp_path: Path) -> None:
    """Order is by the last event, not by creation or file time; looking does not change it."""
    now = iter(range(1000, 10**6))
    async with SessionStore(tmp_path, clock=lambda: next(now)) as store:
        old = await written(store, "old")
        await written(store, "new")
        old.append("my/note", {})
        await old.flush()
        path = store.locate("new")
        assert path is not None
        os.utime(path, (2**33, 2**33))
        await store.inspect("new")
        assert [row.id for row in (await store.list()).sessions] == ["old", "new"]


async def test_an_index_that_lies_is_not_believed(tmp_path: Path) -> None:
    """Only the log is the truth."""
    async with SessionStore(tmp_path) as store:
        session = await written(store, "s1", 5)
        await session.dispose()
        path = store.locate("s1")
        assert path is not None
        index = path.with_name("session.index")
        index.write_text(index.read_text().replace('"events":5', '"events":6').replace('"offset":', '"offset":9'))
        assert [event.seq for event in await store.read_from("s1", 3)] == [3, 4]
        assert (await store.resume("s1")).seq == 5


# Forks


async def test_a_fork_ends_where_it_was_told(store: SessionStore) -> None:
    """A boundary past the end is an error; a fork of a fork opens when its parents are gone."""
    session = await written(store, "s1")
    with pytest.raises(ForkError) as caught:
        await store.fork(session, 103)
    assert caught.value.code == "INVALID_BOUNDARY"
    child = await store.fork(await store.fork(session, 1, "a"), None, "b")
    for each in (session, child):
        await each.dispose()
    await store.delete("s1")
    assert (await store.resume("b")).seq == 2


async def test_a_fork_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """An error of the disk during a fork is raised, and no half-made child is listed."""
    files = FaultyFiles()
    async with SessionStore(backend=JsonlBackend(tmp_path, files=files)) as store:
        session = await written(store, "s1")
        files.fail("link", errno.EIO)
        with pytest.raises(StorageError):
            await store.fork(session, child_id="child")
        assert [row.id for row in (await store.list()).sessions] == ["s1"]
        assert (await store.fork(session, child_id="child")).seq == 3


# Places and permissions


@pytest.mark.parametrize(
    "session_id", ["a:b", "../x", "/abs", "C:foo", ".", "..", "a\0b", "a/b", "世" * 120, "~", "CON"]
)
async def test_no_id_reaches_outside_the_root(tmp_path: Path, session_id: str) -> None:
    """Ids are encoded, and come back from the listing as they are."""
    root = tmp_path / "root"
    async with SessionStore(root) as store:
        await written(store, session_id)
        assert [row.id for row in (await store.list()).sessions] == [session_id]
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


async def test_projects_that_look_alike_are_kept_apart(store: SessionStore) -> None:
    """A lossy folder name never mixes sessions: the list compares the header's directory."""
    for number, cwd in enumerate(["/p/新聞", "/p/暫存", "/p-a", "/p/a", "/" + "長" * 300]):
        await written(store, f"s{number}", cwd=cwd)
        assert [row.id for row in (await store.list(cwd=cwd)).sessions] == [f"s{number}"]


async def test_everything_is_private_whatever_the_umask(tmp_path: Path) -> None:
    """Directories 0700 and files 0600 from the first byte, also after a repair."""
    old = os.umask(0)
    try:
        stored(str(tmp_path / "root"), "s1", b"".join(logs.insert(CLOSED, 13, b"\xff\n")), "none")
        async with SessionStore(tmp_path / "root") as store:
            await store.repair("s1", dry_run=False)
            await written(store, "s2")
            session = await store.resume("s1")
            session.append("my/note", {})
            await session.flush()
            path = store.locate("s1", "/srv/project")
    finally:
        os.umask(old)
    assert path is not None
    for name in os.listdir(path.parent):
        assert stat.S_IMODE((path.parent / name).stat().st_mode) == 0o600, name


async def test_links_planted_in_the_root_are_not_written_through(tmp_path: Path) -> None:
    """A log that is a symbolic or a hard link is not repaired, and what it points to stays as it is."""
    target = tmp_path / "target"
    target.write_bytes(b"".join(logs.insert(CLOSED, 13, b"\xff\n")))
    before = target.read_bytes()
    path = Path(put(str(tmp_path / "root"), "s1", b""))
    path.unlink()
    path.symlink_to(target)
    async with SessionStore(tmp_path / "root") as store:
        with pytest.raises(StorageError):
            await store.repair("s1", dry_run=False)
    assert target.read_bytes() == before


async def test_not_found_is_neither_damaged_nor_locked(store: SessionStore) -> None:
    """Each of the entry points says that there is no such session."""
    for call in (store.resume, store.inspect, store.verify, store.repair, store.delete):
        with pytest.raises(SessionNotFoundError):
            await call("nobody")


async def test_a_damaged_session_is_the_same_through_every_entry(tmp_path: Path) -> None:
    """Verify, inspect, list, read and resume agree, none makes a new session, and delete needs no parse."""
    put(str(tmp_path), "s1", b"\xff\n" * 3 + WHOLE)
    async with SessionStore(tmp_path) as store:
        assert (await store.verify("s1")).verdict is Verdict.DAMAGED
        assert (await store.inspect("s1")).verdict is Verdict.DAMAGED
        for call in (store.resume("s1"), store.read_from("s1", 0)):
            with pytest.raises(Exception, match="damaged"):
                await call
        assert len((await store.list()).sessions) == 1
        assert (await store.delete("s1")).id == "s1"


# Clocks


async def test_a_clock_that_goes_back_changes_no_order(tmp_path: Path) -> None:
    """Order is by seq; times are what the clock said; a repair does not mind."""
    times = iter([100, 101, 99, 99, 5, 200, 1, 2, 3])
    async with SessionStore(tmp_path, clock=lambda: next(times)) as store:
        session = await written(store, "s1", 5)
        await session.dispose()
    async with SessionStore(tmp_path) as store:
        assert [event.time for event in (await store.resume("s1")).events] == [101, 99, 99, 5, 200]


@pytest.mark.parametrize(
    ("name", "data", "advice"),
    [
        ("session.jsonl", b"", "it can be deleted"),
        ("session.jsonl", bytes(4096), "it can be deleted"),
        ("session.jsonl", WHOLE.replace(b"\n", b"\r"), "look at its bytes"),
        ("session.jsonl.zstd", WHOLE, "look at its bytes"),
    ],
)
async def test_an_empty_log_is_told_and_never_taken_for_worthless(
    tmp_path: Path, name: str, data: bytes, advice: str
) -> None:
    """The error is a whole sentence without a repair that cannot be; where there are bytes, nobody says to delete them."""
    put(str(tmp_path), "s1", data, name=name)
    async with SessionStore(tmp_path) as store:
        with pytest.raises(
            DamagedLogError, match=r"is empty: \w.* Nothing was changed\. `sessionstore verify"
        ) as caught:
            await store.resume("s1")
        assert "repair" not in str(caught.value)
        assert advice in (await store.verify("s1")).advice
        assert (await store.delete("s1")).bytes == len(data)


async def test_a_fork_of_a_bad_log_names_the_place_in_that_log(tmp_path: Path) -> None:
    """With a boundary as without: the file, and the line and byte at which it is bad."""
    path = put(str(tmp_path), "s1", WHOLE.replace(b'"id":"m1"', b'"id":""'))
    async with SessionStore(tmp_path) as store:
        for boundary in (None, 16):
            with pytest.raises(DamagedLogError) as caught:
                await store.fork("s1", boundary)
            (finding,) = caught.value.findings
            assert (caught.value.path, caught.value.verdict) == (path, "invalid")
            assert (finding.line, finding.offset) == (3, len(b"".join(CLOSED[:2])))

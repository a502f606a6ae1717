"""Reading logs from files: found by id, streamed, and from a seq on without reading the rest."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from sessionstore.backends.files import OsFiles
from sessionstore.backends.jsonl import JsonlBackend, reading
from sessionstore.backends.jsonl.frames import encode_frame
from sessionstore.backends.jsonl.lock import SessionLock
from sessionstore.backends.jsonl.lookup import find_session
from sessionstore.backends.paths import ZSTD_NAME
from sessionstore.errors import (
    DamagedLogError,
    DuplicateSessionError,
    SessionNotFoundError,
    SessionStoreError,
    StorageError,
)
from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.plan import plan_repair
from tests.contract.programs import header, write
from tests.recovery import logs
from tests.recovery.strategies import damaged_bytes, log_lines
from tests.unit.jsonl_places import CountingFiles, DeniedFiles, ReadOnlyFiles, framed, log, put, stored

if TYPE_CHECKING:
    from pathlib import Path

    from sessionstore.backends.paths import Compression

LOG = b"".join(logs.closed_log())


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A root that does not exist yet."""
    return os.fspath(tmp_path / "root")


async def _outcome(backend: JsonlBackend, seq: int) -> object:
    try:
        return [event.to_json() for event in await backend.read_from("s1", seq)]
    except SessionStoreError as error:
        return type(error)


# From a seq on


@pytest.mark.slow
@given(
    lines=log_lines(), more=st.binary(max_size=40) | damaged_bytes(), cut=st.integers(0, 30), block=st.integers(1, 200)
)
@example(lines=logs.closed_log(), more=logs.event("mode/set", 23, {}), cut=30, block=8)
@example(lines=logs.closed_log(), more=logs.event("context/message", 23, {}, surfaceOp="append"), cut=30, block=8)
@example(lines=logs.closed_log(), more=logs.event("context/message", 23, {}, sourceEventSeqs=[1]), cut=30, block=8)
@example(lines=logs.closed_log(), more=logs.line({"type": "x", "seq": 23, "time": "x", "data": 1}), cut=30, block=8)
@example(lines=logs.closed_log(), more=logs.event("my/x", 23, {}) + logs.turn_end(23), cut=30, block=8)
@example(lines=logs.closed_log(), more=logs.event("my/x", 23, {})[:-1] + b"\r\n", cut=30, block=8)
@example(lines=logs.closed_log(), more=logs.event("my/x", 23, {}) + b"{", cut=20, block=8)
@example(lines=logs.closed_log()[:-1], more=logs.event("my/x", 5, {}) + logs.turn_end(6), cut=30, block=1)
@example(lines=logs.closed_log(), more=logs.line({"type": "my/x", "seq": "23", "time": 0, "data": 1}), cut=30, block=8)
async def test_the_end_alone_tells_what_a_whole_scan_tells(
    lines: list[bytes], more: bytes, cut: int, block: int
) -> None:
    """A backend that scanned a beginning of the log answers exactly as one that scans all of it, whatever follows."""
    with tempfile.TemporaryDirectory() as root, mock.patch.object(reading, "_BLOCK", block):
        path = put(root, "s1", b"".join(lines[:cut]))
        warm = JsonlBackend(root)
        await _outcome(warm, 0)
        with open(path, "ab") as file:
            file.write(b"".join(lines[cut:]) + more)
        for seq in (25, 23, 22, 18, 7, 1, 0):
            assert await _outcome(warm, seq) == await _outcome(JsonlBackend(root), seq)


@pytest.mark.slow
@given(lines=log_lines(), block=st.integers(1, 300), cut=st.integers(1, 30))
def test_a_sound_log_never_needs_a_whole_scan(lines: list[bytes], block: int, cut: int) -> None:
    """Of a log that only grew the end alone is always enough, wherever its blocks begin: only seq 0 is all of it."""
    files = OsFiles()
    with tempfile.TemporaryDirectory() as root, mock.patch.object(reading, "_BLOCK", block):
        path = put(root, "s1", b"".join(lines[:cut]))
        found = find_session(files, root, "s1")
        known = reading.read_log(files, found, "s1").checkpoint
        assert known is not None
        with open(path, "ab") as file:
            file.write(b"".join(lines[cut:]))
        whole = reading.read_log(files, found, "s1").scan.events
        for seq in range(1, len(whole) + 2):
            suffix = reading.read_suffix(files, found, "s1", seq, known=known)
            if known.next_seq == 0:
                assert suffix is None  # nothing but the header was scanned
                continue
            assert suffix is not None
            assert suffix[0] == list(whole[seq:])
            known = suffix[1]
            assert known.next_seq == len(whole)


def test_checkpoint_with_a_wrong_seq_is_found_out() -> None:
    """A checkpoint that names the right place and a wrong seq is not believed, whatever is asked for."""
    files = OsFiles()
    with tempfile.TemporaryDirectory() as root:
        put(root, "s1", LOG)
        found = find_session(files, root, "s1")
        known = reading.read_log(files, found, "s1").checkpoint
        assert known is not None
        for wrong in (22, 24, 40):
            lie = structs.replace(known, next_seq=wrong)
            for seq in range(45):
                assert reading.read_suffix(files, found, "s1", seq, known=lie) is None


@pytest.mark.slow
@given(data=damaged_bytes())
async def test_read_from_is_what_read_shows(data: bytes) -> None:
    """Of any bytes, the events from a seq on are those that a whole read shows, or the same refusal every time."""
    with tempfile.TemporaryDirectory() as root:
        put(root, "s1", data)
        backend = JsonlBackend(root)
        scan = (await backend.read("s1")).scan
        for seq in range(len(scan.log) + 2):
            found = await _outcome(backend, seq)
            if isinstance(found, list):
                assert found == [event.to_json() for event in scan.events[seq:]]
            else:
                assert scan.verdict in {Verdict.DAMAGED, Verdict.EMPTY, Verdict.UNSUPPORTED}


async def _long_log(root: str, count: int, size: int) -> bytes:
    lines = [logs.event("my/x", seq, {"text": "x" * size}) for seq in range(count)]
    data = log(lines=lines)
    put(root, "s1", data)
    return data


async def test_only_the_end_is_read(root: str) -> None:
    """Once scanned, a log costs a later reader what is returned and the blocks around it, not its size."""
    data = await _long_log(root, 2000, 1000)
    files = CountingFiles()
    backend = JsonlBackend(root, files=files)
    await backend.read_from("s1", 0)
    assert files.read >= len(data)
    for seq in (1999, 1990, 2000, 2500):
        files.read = 0
        assert len(await backend.read_from("s1", seq)) == max(0, 2000 - seq)
        assert files.read < 200_000


async def test_index_lets_another_process_read_the_end(root: str) -> None:
    """How far a log was scanned is in the index: a reader that never saw the log starts there, also after more writes."""
    await _long_log(root, 2000, 1000)
    backend = JsonlBackend(root)
    await backend.read("s1")
    await backend.write_index("s1", title=None, turns=0, events=2000)
    path = put_path(root)
    with open(path, "ab") as file:
        file.write(logs.event("my/x", 2000, {}))
    files = CountingFiles()
    assert [event.seq for event in await JsonlBackend(root, files=files).read_from("s1", 1999)] == [1999, 2000]
    assert files.read < 200_000


def put_path(root: str) -> str:
    """The log of the session s1."""
    return os.path.join(root, "--srv-project--", "s1", "session.jsonl")


@pytest.mark.parametrize("same_inode", [True, False])
async def test_replaced_log_is_scanned_anew(root: str, *, same_inode: bool) -> None:
    """What was known of a log is forgotten when another one lies in its place, in the same file or a new one."""
    await _long_log(root, 50, 10)
    backend = JsonlBackend(root)
    assert len(await backend.read_from("s1", 0)) == 50
    path = put_path(root)
    if not same_inode:
        os.rename(path, path + ".away")
    put(root, "s1", log(lines=[logs.event("my/y", seq, {"text": "y" * 40}) for seq in range(60)]))
    assert [event.type for event in await backend.read_from("s1", 45)] == ["my/y"] * 15
    put(root, "s1", log(lines=[]))
    assert list(await backend.read_from("s1", 45)) == []


async def test_lines_longer_than_a_block(root: str) -> None:
    """A line of many blocks is found, and what stands behind it too."""
    sizes = [10, 700_000, 5, 300_000, 5]
    put(root, "s1", log(lines=[logs.event("my/x", seq, {"text": "x" * size}) for seq, size in enumerate(sizes)]))
    backend = JsonlBackend(root)
    await backend.read("s1")
    for seq in range(6):
        assert [event.seq for event in await backend.read_from("s1", seq)] == list(range(seq, 5))


# Whole


@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_large_log_is_read_in_pieces(root: str, compression: Compression) -> None:
    """A log larger than the pieces it is read in comes out whole, in both encodings."""
    lines = [logs.event("my/x", seq, {"text": f"{seq}é" * 3000}) for seq in range(100)]
    stored(root, "s1", log(lines=lines), compression)
    scan = (await JsonlBackend(root).read("s1")).scan
    assert scan.verdict is Verdict.CLEAN
    assert [line + b"\n" for line in scan.log.lines(0, 100)] == lines


@pytest.mark.slow
@given(data=st.data(), lines=log_lines())
async def test_any_cut_of_a_compressed_log_is_a_prefix(data: st.DataObject, lines: list[bytes]) -> None:
    """A compressed log cut anywhere behind its header shows a beginning of its events and can be repaired."""
    whole = framed(b"".join(lines), every=data.draw(st.integers(20, 400)))
    header_frame = len(framed(lines[0]))
    cut = data.draw(st.integers(header_frame, len(whole)))
    with tempfile.TemporaryDirectory() as root:
        put(root, "s1", whole[:cut], name=ZSTD_NAME)
        backend = JsonlBackend(root)
        found = await backend.read("s1")
        assert found.scan.verdict in {Verdict.CLEAN, Verdict.INTERRUPTED, Verdict.TORN}
        kept = b"".join(line + b"\n" for line in found.scan.log.lines(0, len(found.scan.log)))
        assert b"".join(lines[1:]).startswith(kept)
        assert (found.torn is None) == (found.scan.verdict is not Verdict.TORN)
        writer, again = await backend.open("s1")
        report = await writer.repair(again, plan_repair(again.scan))
        await writer.close()
        after = (await backend.read("s1")).scan
        assert after.verdict is Verdict.CLEAN
        assert not after.findings
        assert list(after.events) == [*found.scan.events, *report.closers]


async def test_frame_in_flight_is_not_shown_early(root: str) -> None:
    """Of a frame that a live writer has not finished nothing is shown: it may be taken back.  Left behind, it is torn."""
    backend = JsonlBackend(root, compression="zstd")
    lines = [line[:-1] for line in logs.closed_log()[1:]]
    writer = await write(backend, header(), lines[:11])
    path = os.path.join(root, "--srv-project--", "s1", ZSTD_NAME)
    with open(path, "ab") as file:
        file.write(encode_frame(lines[11] + b"\n")[:-4])  # only the checksum is missing
    found = await JsonlBackend(root).read("s1")
    assert (found.writer, found.scan.verdict, len(found.scan.log)) == ("live", Verdict.CLEAN, 17)
    await writer.close()
    found = await JsonlBackend(root).read("s1")
    assert (found.writer, found.scan.verdict, len(found.scan.log)) == ("none", Verdict.TORN, 18)


async def test_log_that_changes_under_the_reader_is_read_again(root: str) -> None:
    """A reader that saw a torn end which a repair cut meanwhile does not report what is no longer there."""
    path = put(root, "s1", LOG + b'{"type":"us')

    class Repaired(CountingFiles):
        def pread(self, fd: int, length: int, offset: int) -> bytes:
            data = super().pread(fd, length, offset)
            os.truncate(path, len(LOG))
            return data

    found = await JsonlBackend(root, files=Repaired()).read("s1")
    assert found.scan.verdict is Verdict.CLEAN
    assert found.torn is None


async def test_writer_who_comes_while_the_log_is_read(root: str) -> None:
    """A cut line that a writer who came meanwhile may still be writing is no finding."""
    put(root, "s1", LOG + b'{"type":"us')
    lock = SessionLock(OsFiles(), os.path.join(os.path.dirname(put_path(root)), "session.lock"), "s1", now=lambda: 0)

    class Joined(CountingFiles):
        def pread(self, fd: int, length: int, offset: int) -> bytes:
            lock.acquire()
            return super().pread(fd, length, offset)

    found = await JsonlBackend(root, files=Joined()).read("s1")
    await asyncio.to_thread(lock.release)
    assert (found.writer, found.scan.verdict) == ("live", Verdict.CLEAN)


async def test_log_that_never_rests_is_read_at_last(root: str) -> None:
    """A log that changes at every look is believed after a few."""
    path = put(root, "s1", LOG + b"{")

    class Restless(CountingFiles):
        def pread(self, fd: int, length: int, offset: int) -> bytes:
            with open(path, "ab") as file:
                file.write(b"{")
            return super().pread(fd, length, offset)

    assert (await JsonlBackend(root, files=Restless()).read("s1")).scan.verdict is Verdict.TORN


async def test_session_moved_away_while_it_is_read(root: str) -> None:
    """A session that goes to the trash between being found and being opened is not found, and no storage error."""
    put(root, "s1", LOG)

    class Moved(CountingFiles):
        def open_read(self, path: str) -> int:
            if path.endswith("session.jsonl") and os.path.exists(path):
                os.rename(os.path.dirname(path), os.path.join(root, "away"))
            return super().open_read(path)

    with pytest.raises(SessionNotFoundError):
        await JsonlBackend(root, files=Moved()).read("s1")


async def test_read_only_file_system_can_be_read(root: str) -> None:
    """Reading and listing need no lock and write nothing; only opening for writing is refused."""
    put(root, "s1", LOG)
    backend = JsonlBackend(root, files=ReadOnlyFiles())
    assert (await backend.read("s1")).scan.verdict is Verdict.CLEAN
    assert len(await backend.read_from("s1", 20)) == 3
    assert [row.status for row in (await backend.list()).sessions] == ["ok"]
    await backend.write_index("s1", title="x", turns=1, events=1)
    for operation in (backend.open("s1"), backend.delete("s1")):
        with pytest.raises(StorageError):
            await operation


# What else may lie there


@pytest.mark.parametrize(
    ("header", "path"),
    [({"id": "s2"}, "$.id"), ({"id": "S1"}, "$.id"), ({"cwd": "/other"}, "$.cwd"), ({"cwd": None}, "$.cwd")],
)
async def test_log_of_another_place_is_damaged(root: str, header: dict[str, Any], path: str) -> None:
    """A header whose id or cwd belongs elsewhere is never taken for the session asked for; it can still be looked at."""
    put(root, "s1", logs.header(**header) + b"".join(logs.closed_log()[1:]))
    backend = JsonlBackend(root)
    scan = (await backend.read("s1")).scan
    assert scan.verdict is Verdict.DAMAGED
    assert scan.findings[0].path == path
    assert len(scan.log) == 23
    with pytest.raises(DamagedLogError):
        await backend.read_from("s1", 0)
    assert [row.status for row in (await backend.list()).sessions] == ["damaged"]


async def test_two_cwds_may_share_a_project_directory(root: str) -> None:
    """Project names are lossy: two working directories with one name share it, and their sessions do not mix."""
    for id, cwd in {"a": "/a/b", "b": "/a:b", "c": "/a\\b"}.items():
        put(root, id, log(id, cwd=cwd), cwd=cwd)
    backend = JsonlBackend(root)
    assert os.listdir(root) == ["--a-b--"]
    for id, cwd in {"a": "/a/b", "b": "/a:b", "c": "/a\\b"}.items():
        assert (await backend.read(id)).scan.verdict is Verdict.CLEAN
        assert [row.id for row in (await backend.list(cwd=cwd)).sessions] == [id]


async def test_one_id_in_two_projects(root: str) -> None:
    """An id that is stored twice is refused by every operation, with both places; the list shows both as damaged."""
    for cwd in ("/a", "/b"):
        put(root, "s1", log(cwd=cwd), cwd=cwd)
    backend = JsonlBackend(root)
    for operation in (backend.read("s1"), backend.open("s1"), backend.delete("s1"), backend.read_from("s1", 0)):
        with pytest.raises(DuplicateSessionError) as caught:
            await operation
        assert len(caught.value.paths) == 2
    assert [(row.id, row.status) for row in (await backend.list()).sessions] == [("s1", "damaged")] * 2


async def test_both_encodings_in_one_directory(root: str) -> None:
    """Two logs of one session are a case for a person: refused, listed as damaged, and deleted as one."""
    put(root, "s1", LOG)
    stored(root, "s1", LOG, "zstd")
    backend = JsonlBackend(root)
    with pytest.raises(DuplicateSessionError) as caught:
        await backend.read("s1")
    assert [os.path.basename(path) for path in caught.value.paths] == ["session.jsonl", "session.jsonl.zstd"]
    assert [row.status for row in (await backend.list()).sessions] == ["damaged"]
    entry = await backend.delete("s1")
    assert entry.bytes > len(LOG)
    assert (await backend.list()).sessions == ()


@pytest.mark.parametrize("linked", ["project", "session"])
async def test_linked_directories_are_read_and_not_written(root: str, tmp_path: Path, linked: str) -> None:
    """Behind a symbolic link a session can be read, and is not opened, deleted or indexed."""
    path = put(root, "s1", LOG)
    place = os.path.dirname(path) if linked == "session" else os.path.dirname(os.path.dirname(path))
    os.rename(place, tmp_path / "real")
    os.symlink(tmp_path / "real", place)
    backend = JsonlBackend(root)
    assert (await backend.read("s1")).scan.verdict is Verdict.CLEAN
    for operation in (backend.open("s1"), backend.delete("s1")):
        with pytest.raises(StorageError, match="symbolic link"):
            await operation
    await backend.write_index("s1", title="x", turns=1, events=1)
    assert os.listdir(os.path.dirname(path)) == ["session.jsonl"]


async def test_second_name_of_a_project_is_no_duplicate(root: str) -> None:
    """A symbolic link beside the real project directory shows the same session twice, and it is still one."""
    put(root, "s1", LOG)
    os.symlink("--srv-project--", os.path.join(root, "--alias--"))
    backend = JsonlBackend(root)
    writer, found = await backend.open("s1")
    await writer.close()
    assert found.location == put_path(root)


@pytest.mark.parametrize("kind", ["directory", "link", "fifo"])
async def test_log_that_is_no_file(root: str, kind: str) -> None:
    """Something else in the log's place is an error that says so, at once, and a row in the list."""
    path = put(root, "s1", b"")
    os.unlink(path)
    if kind == "directory":
        os.mkdir(path)
    elif kind == "link":
        os.symlink("/etc/hostname", path)
    else:
        os.mkfifo(path)
    backend = JsonlBackend(root)
    for operation in (backend.read("s1"), backend.open("s1"), backend.read_from("s1", 0)):
        with pytest.raises(StorageError):
            await operation
    (row,) = (await backend.list()).sessions
    assert (row.id, row.status) == ("s1", "unreadable")
    await backend.restore(await backend.delete("s1"))


async def test_unreadable_project_is_not_an_absent_session(root: str) -> None:
    """Where a project cannot be searched, "not found" would be a guess; sessions elsewhere are found all the same."""
    put(root, "s1", log(cwd="/a"), cwd="/a")
    put(root, "s2", log("s2", cwd="/b"), cwd="/b")
    backend = JsonlBackend(root, files=DeniedFiles(lambda path: "--a--" in path))
    assert (await backend.read("s2")).scan.verdict is Verdict.CLEAN
    with pytest.raises(StorageError):
        await backend.read("s1")
    rows = {row.id: row.status for row in (await backend.list()).sessions}
    assert rows == {"s2": "ok", "--a--": "unreadable"}


async def test_compressed_log_without_the_package(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the optional package a compressed log is an error that names it, and the list still works."""
    stored(root, "s1", LOG, "zstd")
    put(root, "s2", log("s2"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    backend = JsonlBackend(root)
    with pytest.raises(StorageError, match="zstd"):
        await backend.read("s1")
    rows = {row.id: row.status for row in (await backend.list()).sessions}
    assert rows == {"s1": "unreadable", "s2": "ok"}


async def test_session_with_a_shortened_name_and_no_header(root: str) -> None:
    """A long id is cut in its directory's name; when the header is lost, the name is what the session is called."""
    id = "x" * 300
    path = put(root, id, b"#\n" + LOG)
    backend = JsonlBackend(root)
    (row,) = (await backend.list()).sessions
    assert row.id == os.path.basename(os.path.dirname(path))
    assert (await backend.read(row.id)).scan.verdict is Verdict.DAMAGED
    assert (await backend.delete(row.id)).id == row.id

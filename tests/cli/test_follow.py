"""Following a session that somebody else writes: nothing twice, nothing missed, whatever happens to the writer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionstore import SessionNotFoundError, SessionStore
from sessionstore.backends.files import OsFiles
from sessionstore.backends.memory import MemoryBackend
from sessionstore.follow import Delivered, FollowError, follow
from sessionstore.tail import LogTail
from tests.cli.logs import Log
from tests.paths import REPO

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from sessionstore import Event

QUICK = 0.02
TURN = {"turn": 1, "trigger": {"kind": "message", "source": {"kind": "user"}}}


async def take(events: AsyncIterator[Event], count: int) -> list[Event]:
    """The next *count* events; a bug must not hang the test."""
    async with asyncio.timeout(20):
        return [await anext(events) for _ in range(count)]


def simple(count: int, session_id: str = "demo") -> Log:
    """A log of *count* notes in one turn."""
    log = Log(session_id)
    log.begin()
    for number in range(count - 1):
        log.add("note/plain", {"number": number})
    return log


def lines(log: Log) -> list[bytes]:
    """The lines of a log, header first, each with its newline."""
    return log.text().splitlines(keepends=True)


class Follower:
    """A follower of a log file below a root."""

    def __init__(self, root: Path, session_id: str = "demo", from_seq: int = 0) -> None:
        self.store = SessionStore(root)
        self.events: AsyncGenerator[Event, None] = follow(self.store, session_id, from_seq, max_wait=QUICK)

    async def seqs(self, count: int) -> list[int]:
        """The seqs of the next *count* events."""
        return [event.seq for event in await take(self.events, count)]

    async def failure(self) -> FollowError:
        """The error with which it ends."""
        with pytest.raises(FollowError) as caught:
            await take(self.events, 1)
        return caught.value

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.events.aclose()
        await self.store.aclose()


async def test_a_follower_sees_what_is_stored_and_then_what_comes(tmp_path: Path) -> None:
    """Every event comes once, in order, while another store writes."""
    async with SessionStore(tmp_path) as writer:
        session = await writer.create("demo", cwd="/srv/project")
        session.append("turn/start", TURN)
        await session.flush()
        async with Follower(tmp_path) as follower:
            assert await follower.seqs(1) == [0]
            for number in range(12):
                session.append("note/plain", {"number": number})
                await session.flush()
            events = await take(follower.events, 12)
            assert [event.seq for event in events] == list(range(1, 13))
            assert [event.to_dict()["data"] for event in events] == [{"number": number} for number in range(12)]


@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_a_follower_goes_on_from_a_seq_in_both_encodings(tmp_path: Path, compression: Any) -> None:
    """from_seq may lie in the log, or ahead of it; compressed frames are followed as lines are."""
    pytest.importorskip("zstandard")
    async with SessionStore(tmp_path, compression=compression) as writer:
        session = await writer.create("demo", cwd="/srv/project")
        session.append("turn/start", TURN)
        session.append("note/plain", {"number": 1})
        await session.flush()
        async with Follower(tmp_path, from_seq=1) as follower, Follower(tmp_path, from_seq=4) as ahead:
            assert await follower.seqs(1) == [1]
            for number in range(2, 8):
                session.append("note/plain", {"number": number})
                await session.flush()
            assert await follower.seqs(6) == [2, 3, 4, 5, 6, 7]
            assert await ahead.seqs(4) == [4, 5, 6, 7]


async def test_a_memory_backend_is_followed_by_polling(tmp_path: Path) -> None:
    """A backend without files is asked again and again."""
    backend = MemoryBackend()
    async with SessionStore(backend=backend) as writer, aclosing(follow(backend, "demo", max_wait=QUICK)) as events:
        session = await writer.create("demo")
        session.append("turn/start", TURN)
        await session.flush()
        assert [event.seq for event in await take(events, 1)] == [0]
        session.append("note/plain", {"number": 1})
        await session.flush()
        assert [event.seq for event in await take(events, 1)] == [1]
        backend.put_bytes("demo", b"not a log\n")
        with pytest.raises(FollowError, match="seq 2") as caught:
            await take(events, 1)
        assert caught.value.seq == 2


async def test_a_half_written_line_is_waited_for(tmp_path: Path) -> None:
    """Half a line is no event, however often it is looked at; the other half makes it one."""
    log = simple(4)
    path = log.save(tmp_path)
    rows = lines(log)
    path.write_bytes(b"".join(rows[:3]) + rows[3][:20])
    async with Follower(tmp_path) as follower:
        assert await follower.seqs(2) == [0, 1]
        waiting = asyncio.ensure_future(anext(follower.events))
        done, _ = await asyncio.wait([waiting], timeout=5 * QUICK)
        assert not done
        with path.open("ab") as file:
            file.write(rows[3][20:] + rows[4])
        assert (await waiting).seq == 2
        assert await follower.seqs(1) == [3]


async def test_a_torn_tail_that_is_cut_and_written_over_is_read_again(tmp_path: Path) -> None:
    """A resume cuts half a line and writes other events in its place; the follower sees those."""
    log = simple(3)
    path = log.save(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"type":"note/plain","seq":3,"time":17900000')
    async with Follower(tmp_path) as follower:
        assert await follower.seqs(3) == [0, 1, 2]
        async with SessionStore(tmp_path) as second:
            session = await second.resume("demo")
            session.append("note/after", {"n": 1})
            await session.flush()
            types = [event.type for event in await take(follower.events, 2)]
            assert types == ["turn/end", "note/after"]


async def test_events_taken_back_and_written_again_come_once(tmp_path: Path) -> None:
    """A write that failed after it was seen is put back and repeated: its events are not delivered twice."""
    log = simple(5)
    path = log.save(tmp_path)
    rows = lines(log)
    async with Follower(tmp_path) as follower:
        assert await follower.seqs(5) == [0, 1, 2, 3, 4]
        path.write_bytes(b"".join(rows[:4]))
        log.add("note/new", {})
        waiting = asyncio.ensure_future(anext(follower.events))
        await asyncio.wait([waiting], timeout=5 * QUICK)
        with path.open("ab") as file:
            file.write(b"".join(lines(log)[4:]))
        assert (await waiting).seq == 5


async def test_an_event_that_was_replaced_after_it_was_seen_ends_it(tmp_path: Path) -> None:
    """A follower that delivered an event cannot pretend that it was another one."""
    log = simple(5)
    path = log.save(tmp_path)
    other = simple(3)
    for number in range(5):
        other.add("note/other", {"number": number})
    async with Follower(tmp_path) as follower:
        assert await follower.seqs(5) == [0, 1, 2, 3, 4]
        with path.open("r+b") as file:
            file.write(other.text())
        error = await follower.failure()
        assert error.seq == 3
        assert "event 3" in str(error)


async def test_a_damaged_line_ends_it_with_the_seq(tmp_path: Path) -> None:
    """What stands before the bad line is delivered, the error names the seq that is missing."""
    log = simple(6)
    path = log.save(tmp_path)
    rows = lines(log)
    async with Follower(tmp_path) as follower:
        path.write_bytes(b"".join(rows[:4]))
        assert await follower.seqs(3) == [0, 1, 2]
        with path.open("ab") as file:
            file.write(rows[4] + b"\x00" * 40 + b"\n" + rows[6])
        assert await follower.seqs(1) == [3]
        error = await follower.failure()
        assert error.seq == 4
        assert "seq 4" in str(error)
    async with Follower(tmp_path, from_seq=4) as follower:
        assert (await follower.failure()).seq == 4


async def test_a_gap_ends_it_with_the_seq(tmp_path: Path) -> None:
    """A line that skips a seq is as bad as one that cannot be read."""
    log = simple(6)
    path = log.save(tmp_path)
    rows = lines(log)
    path.write_bytes(b"".join(rows[:3] + rows[4:]))
    async with Follower(tmp_path) as follower:
        assert await follower.seqs(2) == [0, 1]
        assert (await follower.failure()).seq == 2


async def test_a_log_that_was_replaced_ends_it(tmp_path: Path) -> None:
    """A salvage puts a new file in the log's place: what was delivered may not be in it."""
    log = simple(3)
    path = log.save(tmp_path)
    async with Follower(tmp_path) as follower:
        assert await follower.seqs(3) == [0, 1, 2]
        new = path.with_name("new")
        new.write_bytes(path.read_bytes())
        new.replace(path)
        error = await follower.failure()
        assert error.seq == 3
        assert "another log" in str(error)


async def test_a_torn_frame_that_is_cut_and_written_over_is_read_again(tmp_path: Path) -> None:
    """Half a compressed frame is waited for; a resume cuts it and the follower sees what came instead."""
    pytest.importorskip("zstandard")
    async with SessionStore(tmp_path, compression="zstd") as first:
        session = await first.create("demo", cwd="/srv/project")
        session.append("turn/start", TURN)
        await session.flush()
        session.append("note/lost", {"text": "x" * 500})
        await session.flush()
    (path,) = tmp_path.glob("*/demo/session.jsonl.zstd")
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    async with Follower(tmp_path) as follower:
        assert await follower.seqs(1) == [0]
        waiting = asyncio.ensure_future(anext(follower.events))
        done, _ = await asyncio.wait([waiting], timeout=5 * QUICK)
        assert not done
        async with SessionStore(tmp_path) as second:
            session = await second.resume("demo")
            session.append("note/after", {"n": 1})
            await session.flush()
            stored = [event.type for event in await second.read_from("demo", 1)]
            seen = [await waiting, *await take(follower.events, len(stored) - 1)]
            assert [event.type for event in seen] == stored
            assert stored[-2:] == ["turn/end", "note/after"]


async def test_a_broken_frame_ends_it(tmp_path: Path) -> None:
    """A flipped byte in a frame is damage: what stands before it was delivered, the seq is named."""
    pytest.importorskip("zstandard")
    async with SessionStore(tmp_path, compression="zstd") as store:
        session = await store.create("demo", cwd="/srv/project")
        for number in range(4):
            session.append("note/plain", {"number": number, "text": "some text to compress"})
            await session.flush()
        (path,) = tmp_path.glob("*/demo/session.jsonl.zstd")
        frames = path.read_bytes().split(b"\x28\xb5\x2f\xfd")
        broken = bytearray(path.read_bytes())
        async with Follower(tmp_path) as follower:
            assert await follower.seqs(4) == [0, 1, 2, 3]
        broken[len(broken) - len(frames[-1]) - 8] ^= 0xFF
        path.write_bytes(broken)
        async with Follower(tmp_path) as follower:
            assert await follower.seqs(2) == [0, 1]
            assert (await follower.failure()).seq == 2


async def test_a_gap_within_a_frame_ends_it_with_the_seq(tmp_path: Path) -> None:
    """A frame that decodes well can still hold the wrong lines; those before the gap are delivered once."""
    pytest.importorskip("zstandard")
    from sessionstore.backends.jsonl.frames import encode_frame

    rows = lines(simple(6))
    path = simple(1).save(tmp_path)
    path.unlink()
    path = path.with_name("session.jsonl.zstd")
    path.write_bytes(encode_frame(rows[0]) + encode_frame(rows[1]))
    async with Follower(tmp_path) as follower:
        assert await follower.seqs(1) == [0]
        with path.open("ab") as file:
            file.write(encode_frame(rows[2] + rows[3] + rows[5]))
        assert await follower.seqs(2) == [1, 2]
        error = await follower.failure()
        assert error.seq == 3
        assert "expected event 3, found 4" in str(error)


@pytest.mark.slow
async def test_a_line_longer_than_a_read_is_put_together(tmp_path: Path) -> None:
    """One event may be larger than what is read at a time, and half of it is still waited for."""
    log = simple(2)
    log.add("note/long", {"text": "x" * 3_000_000})
    log.add("note/plain", {})
    path = log.save(tmp_path)
    whole = path.read_bytes()
    async with Follower(tmp_path) as follower:
        path.write_bytes(whole[:2_000_000])
        assert await follower.seqs(2) == [0, 1]
        path.write_bytes(whole)
        assert await follower.seqs(2) == [2, 3]


async def test_a_salvage_ends_it(tmp_path: Path) -> None:
    """A real repair of the followed log ends the follower with the seq to go on from."""
    log = simple(6)
    log.end()
    path = log.save(tmp_path)
    rows = lines(log)
    async with Follower(tmp_path) as follower:
        path.write_bytes(b"".join(rows[:4]))
        assert await follower.seqs(3) == [0, 1, 2]
        path.write_bytes(b"".join(rows[:4]) + b"garbage\n" + b"".join(rows[5:]))
        report = await follower.store.repair("demo", dry_run=False)
        assert report.changed
        assert (await follower.failure()).seq == 3
    async with Follower(tmp_path, from_seq=3) as follower:
        assert await follower.seqs(4) == [3, 4, 5, 6]


async def test_a_deleted_session_ends_it(tmp_path: Path) -> None:
    """After some patience a log that is gone is reported as not found."""
    path = simple(2).save(tmp_path)
    async with Follower(tmp_path) as follower:
        assert await follower.seqs(2) == [0, 1]
        path.unlink()
        with pytest.raises(SessionNotFoundError):
            await take(follower.events, 1)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4)),
        st.tuples(st.just("row"), st.integers(1, 5)),
        st.tuples(st.just("half"), st.integers(1, 60)),
        st.tuples(st.just("cut"), st.just(0)),
        st.tuples(st.just("blank"), st.just(0)),
        st.tuples(st.just("take back"), st.integers(1, 3)),
        st.tuples(st.just("look"), st.just(0)),
    ),
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=60)
@given(STEPS)
def test_whatever_a_writer_does_each_event_comes_once(steps: list[tuple[str, int]]) -> None:
    """Appends, packed rows, half lines, cut tails, blank lines and batches taken back and repeated, looked at anywhen."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "session.jsonl"
        path.write_bytes(lines(simple(1))[0])
        tail = LogTail(OsFiles(), str(path), "demo", compressed=False)
        tail.open(len(path.read_bytes()), 0)
        seen: list[Event] = []
        delivered = Delivered("demo", 0)

        def look() -> None:
            for _ in range(3):
                for event in delivered.fresh(tail.poll()):
                    delivered.note(event)
                    seen.append(event)

        written: list[bytes] = []  # whole lines behind the header
        count = 0
        half = b""
        for what, number in steps:
            if what in {"append", "row"} and half:
                what, number = "cut", 0
            if what == "append":
                for _ in range(number):
                    written.append(b'{"type":"note/plain","seq":%d,"time":%d,"data":{}}\n' % (count, 1000 + count))
                    count += 1
            elif what == "row":
                texts = json.dumps([f"t{count + k}" for k in range(number)])
                gaps = json.dumps([0] * (number - 1))
                written.append(
                    b'{"type":"text-chunks","seq0":%d,"time0":1,"data":{"turn":1,"step":1,"index":0,"dt":%b,"texts":%b}}\n'
                    % (count, gaps.encode(), texts.encode())
                )
                count += number
            elif what == "half":
                half = b'{"type":"note/never","seq":%d,"time":1,"data":{"text":"xxxxxxxxxxxxxxxx"}}' % count
                half = half[:number]
            elif what == "cut":
                half = b""
            elif what == "blank" and not half:
                written.append(b"\n")
            elif what == "take back":  # a failed write: the same lines come again
                whole = path.read_bytes()
                shorter = b"".join(written[: max(0, len(written) - number)])
                with path.open("r+b") as file:
                    file.truncate(len(whole[: whole.index(b"\n") + 1]) + len(shorter))
                look()
            with path.open("r+b") as file:
                file.write(header_and(written) + half)
                file.truncate()
            if what == "look":
                look()
        with path.open("r+b") as file:
            file.write(header_and(written))
            file.truncate()
        look()
        tail.close()
        assert [event.seq for event in seen] == list(range(count))


def header_and(written: list[bytes]) -> bytes:
    """A log of these lines."""
    return lines(simple(1))[0] + b"".join(written)


async def test_there_is_nothing_to_follow_without_a_session(tmp_path: Path) -> None:
    """An unknown id and a bad seq are errors at once."""
    async with SessionStore(tmp_path) as store:
        with pytest.raises(SessionNotFoundError):
            await anext(follow(store, "nobody"))
        with pytest.raises(ValueError, match="-1"):
            await anext(follow(store, "nobody", -1))


WRITER = """
import asyncio, sys
from sessionstore import SessionStore

async def main():
    store = SessionStore(sys.argv[1], batch_window_ms=1)
    resumed = sys.argv[2] == "resume"
    session = await (store.resume("demo") if resumed else store.create("demo", cwd="/srv/project"))
    session.append("turn/start", {"turn": 2 if resumed else 1})
    for number in range(int(sys.argv[3])):
        session.append("note/plain", {"number": number, "text": "x" * 200})
        if number % 7 == 0:
            await session.flush()
    await session.flush()
    print("flushed", flush=True)
    if not resumed:
        session.append("note/never", {"text": "y" * 100})
        await asyncio.sleep(3600)
    await store.aclose()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.crash
async def test_a_writer_is_killed_and_another_resumes(tmp_path: Path) -> None:
    """Through the kill of its writer, a torn line and a resume, a follower sees exactly what is stored in the end."""

    def start(how: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WRITER, str(tmp_path), how, "200"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPO, env=os.environ)

    first = start("create")
    assert first.stdout is not None
    assert await asyncio.to_thread(first.stdout.readline) == "flushed\n"
    async with Follower(tmp_path) as follower:
        seen = await take(follower.events, 201)
        first.send_signal(signal.SIGKILL)
        await asyncio.to_thread(first.wait)
        first.stdout.close()
        (log,) = tmp_path.glob("*/demo/session.jsonl")
        with log.open("ab") as file:
            file.write(b'{"type":"note/plain","seq":')
        second = start("resume")
        assert second.stdout is not None
        out = await asyncio.to_thread(second.stdout.read)
        assert out == "flushed\n"
        assert await asyncio.to_thread(second.wait) == 0
        second.stdout.close()
        stored = list(await follower.store.read_from("demo", 0))
        seen += await take(follower.events, len(stored) - len(seen))
        assert seen == stored
        assert [event.seq for event in seen] == list(range(len(stored)))

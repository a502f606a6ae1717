"""Conformance, theme R: compressed logs, seen from outside."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from sessionstore import DamagedLogError, SessionStore
from sessionstore.backends.jsonl.frames import FrameReader, encode_frame
from tests.conformance.build import closed_turn, say, turn_start

if TYPE_CHECKING:
    from pathlib import Path

zstandard = pytest.importorskip("zstandard")

HEADER = b'{"type":"session","version":0,"id":"s","createdAt":1,"delegationDepth":0}\n'


def lines(*records: dict[str, Any]) -> bytes:
    """Records as lines."""
    return b"".join(json.dumps(r, separators=(",", ":")).encode() + b"\n" for r in records)


START = {"type": "turn/start", "seq": 0, "time": 5, "data": turn_start()}
EVENT = {"type": "my/event", "seq": 1, "time": 5, "data": {"n": 1}}
END = {"type": "turn/end", "seq": 2, "time": 5, "data": {"turn": 1, "reason": {"kind": "completed"}}}


def decoded(data: bytes, *, limit: int | None = None, piece: int | None = None) -> tuple[bytes, FrameReader]:
    """What the reader makes of a file, given in pieces."""
    reader = FrameReader() if limit is None else FrameReader(limit=limit)
    out: list[bytes] = []
    step = piece or max(len(data), 1)
    for at in range(0, len(data), step):
        out += reader.feed(data[at : at + step])
    out += reader.finish()
    return b"".join(out), reader


def write(root: Path, *frames: bytes) -> Path:
    """A compressed log of these frames."""
    path = root / "_no-cwd" / "s" / "session.jsonl.zstd"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(frames))
    return path


def log_of(root: Path) -> Path:
    """The one compressed log."""
    (path,) = root.rglob("session.jsonl.zstd")
    return path


def frames_of(data: bytes) -> list[bytes]:
    """The content of each frame, by the library itself."""
    out: list[bytes] = []
    while data:
        decoder = zstandard.ZstdDecompressor().decompressobj()
        out.append(decoder.decompress(data))
        data = decoder.unused_data
    return out


# --- frames ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [None, 1, 7])
def test_concatenated_checksummed_frames_are_read(piece: int | None) -> None:
    """In pieces of any size; ours are read by the library and the library's by us."""
    parts = [b"one\n", b"two\n" * 1000, b"", b"three\n"]
    ours = b"".join(encode_frame(p) for p in parts)
    assert decoded(ours, piece=piece)[0] == b"".join(parts)
    assert frames_of(ours) == parts
    assert all(zstandard.get_frame_parameters(encode_frame(p)).has_checksum for p in parts)
    theirs = b"".join(
        zstandard.ZstdCompressor(level=level, write_checksum=check, write_content_size=size).compress(p)
        for p in parts
        for level in (1, 19)
        for check in (True, False)
        for size in (True, False)
    )
    assert decoded(theirs, piece=piece)[0] == b"".join(p * 8 for p in parts)


def test_frames_of_every_shape_are_read() -> None:
    """Runs of one byte, many blocks, streamed frames of unknown size, skippable frames between."""
    runs, noise = b"a" * 1_000_000, bytes(range(256)) * 3000
    stream = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    streamed = b"".join(stream.compress(noise[k : k + 70_000]) for k in range(0, len(noise), 70_000)) + stream.flush()
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    data = encode_frame(runs) + skippable + streamed + encode_frame(noise)
    assert decoded(data)[0] == runs + noise + noise


def test_a_frame_over_the_limit_is_a_defect_not_an_allocation() -> None:
    """However small it is on the disk."""
    bomb = encode_frame(b"\0" * 50_000_000)
    assert len(bomb) < 10_000
    out, reader = decoded(bomb, limit=1_000_000)
    assert [d.kind for d in reader.defects] == ["oversize"]
    assert len(out) < 2_000_000


def test_a_cut_frame_is_torn_and_a_broken_one_corrupt() -> None:
    """Every cut of a frame is torn; a flipped bit or checksum is not."""
    frame = encode_frame(b"some text that does not repeat itself 0123456789\n")
    for cut in range(1, len(frame)):
        _, reader = decoded(encode_frame(b"x\n") + frame[:cut])
        assert {d.kind for d in reader.defects} <= {"torn", "garbage"}
        assert reader.defects
    broken = frame[:-1] + bytes([frame[-1] ^ 1])
    out, reader = decoded(broken + encode_frame(b"after\n"))
    assert [d.kind for d in reader.defects] == ["corrupt"]
    assert out.endswith(b"after\n")


# --- files -----------------------------------------------------------------------------------------------------------


async def test_a_file_is_a_header_frame_and_one_frame_per_batch(tmp_path: Path) -> None:
    """The first frame is exactly the header line; earlier bytes are never touched again."""
    async with SessionStore(tmp_path, compression="zstd") as store:
        session = await store.create("s")
        say(session, "u1")
        await session.flush()
        path = log_of(tmp_path)
        first = path.read_bytes()
        assert frames_of(first) == [session.header.to_json() + b"\n", session.events[0].to_json() + b"\n"]
        say(session, "u2")
        say(session, "u3")
        await session.flush()
        assert path.read_bytes().startswith(first)
        assert len(frames_of(path.read_bytes())) == 3
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_turn_end_has_a_frame_of_its_own(tmp_path: Path) -> None:
    """Everything before it was synced when its frame was written."""
    async with SessionStore(tmp_path, compression="zstd") as store:
        closed_turn(await store.create("s"))
    frames = frames_of(log_of(tmp_path).read_bytes())
    assert [f.count(b"\n") for f in frames] == [1, 5, 1]
    assert frames[2].startswith(b'{"type":"turn/end"')


async def test_compression_is_off_unless_asked_for(tmp_path: Path) -> None:
    """The default store writes plain JSON lines; each session keeps its encoding on resume."""
    async with SessionStore(tmp_path) as store:
        say(await store.create("plain"))
    async with SessionStore(tmp_path, compression="zstd") as store:
        say(await store.create("packed"))
        say(await store.resume("plain"), "more")
    assert (tmp_path / "_no-cwd" / "plain" / "session.jsonl").is_file()
    assert (tmp_path / "_no-cwd" / "packed" / "session.jsonl.zstd").is_file()
    async with SessionStore(tmp_path) as store:
        assert (await store.resume("packed")).seq == 1
        assert (await store.resume("plain")).seq == 2


async def test_a_listing_reads_a_long_header_and_no_event_frame(tmp_path: Path) -> None:
    """A header frame of many pieces is read; a corrupt frame of events is not looked at for it."""
    import random

    noise = random.Random(1).randbytes(150_000).hex()
    header = json.dumps({**json.loads(HEADER), "cwd": "/" + noise}).encode() + b"\n"
    frame = encode_frame(header)
    assert len(frame) > 128 * 1024
    path = write(tmp_path, frame, b"\x28\xb5\x2f\xfdgarbage that is no frame")
    project = tmp_path / ("--" + noise[:251] + "--") / "s"
    project.mkdir(parents=True)
    path.rename(project / path.name)
    async with SessionStore(tmp_path) as store:
        (row,) = (await store.list()).sessions
        assert (row.id, row.cwd) == ("s", "/" + noise)


async def test_a_torn_frame_gives_up_its_complete_lines(tmp_path: Path) -> None:
    """They are written again as a new frame, with the closers; the cut bytes are kept."""
    big = [
        {"type": "my/event", "seq": k, "time": 5, "data": {"n": k, "x": f"{k * 7919:x}" * 40}} for k in range(1, 4000)
    ]
    frame = encode_frame(lines(*big))
    whole = encode_frame(HEADER) + encode_frame(lines(START))
    path = write(tmp_path, whole, frame[: len(frame) * 2 // 3])
    async with SessionStore(tmp_path) as store:
        session = await store.resume("s")
        report = session.recovery
        assert report is not None
        assert report.quarantine is not None
        assert report.cut_at == len(whole)
        kept = [e.to_dict() for e in session.events]
        assert kept[:-1] == [START, *big][: len(kept) - 1]
        assert len(kept) > 100
        assert kept[-1]["type"] == "turn/end"
        say(session)
    assert path.read_bytes().startswith(whole)
    async with SessionStore(tmp_path) as store:
        again = await store.resume("s")
        assert [e.to_dict() for e in again.events][: len(kept)] == kept


async def test_only_the_checksum_missing_loses_nothing(tmp_path: Path) -> None:
    """All lines can be decoded, so all are kept."""
    frame = encode_frame(lines(START, EVENT))
    write(tmp_path, encode_frame(HEADER), frame[:-4])
    async with SessionStore(tmp_path) as store:
        session = await store.resume("s")
        assert [e.type for e in session.events] == ["turn/start", "my/event", "turn/end"]


@pytest.mark.parametrize("kept", [0, 3, 10])
async def test_a_torn_header_is_an_empty_log(tmp_path: Path, kept: int) -> None:
    """Nothing was ever acknowledged of such a session: refused, and delete works."""
    write(tmp_path, encode_frame(HEADER)[:kept])
    async with SessionStore(tmp_path) as store:
        with pytest.raises(DamagedLogError) as caught:
            await store.resume("s")
        assert caught.value.verdict == "empty"
        await store.delete("s")


async def test_a_complete_frame_with_a_torn_line_before_a_turn_end_is_damage(tmp_path: Path) -> None:
    """The frame's checksum is right, so no crash cut that line."""
    path = write(
        tmp_path, encode_frame(HEADER), encode_frame(lines(START) + b'{"type":"my/ev'), encode_frame(lines(EVENT, END))
    )
    before = path.read_bytes()
    async with SessionStore(tmp_path) as store:
        with pytest.raises(DamagedLogError):
            await store.resume("s")
    assert path.read_bytes() == before


async def test_a_corrupt_frame_before_a_turn_end_is_damage(tmp_path: Path) -> None:
    """A flipped bit inside a batch is noticed, unlike in plain JSONL."""
    middle = bytearray(encode_frame(lines(EVENT)))
    middle[len(middle) // 2] ^= 1
    path = write(tmp_path, encode_frame(HEADER), encode_frame(lines(START)), bytes(middle), encode_frame(lines(END)))
    before = path.read_bytes()
    async with SessionStore(tmp_path) as store:
        with pytest.raises(DamagedLogError):
            await store.resume("s")
        assert (await store.inspect("s")).verdict == "damaged"
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("frames", "status"),
    [
        ((), "empty"),
        ((encode_frame(HEADER)[:9],), "empty"),
        ((encode_frame(b"nonsense\n"),), "damaged"),
        ((encode_frame(b"\xff\xfe\n"), encode_frame(lines(START, EVENT, END))), "damaged"),
    ],
    ids=["empty", "partial", "no header", "malformed header"],
)
async def test_bad_compressed_logs_are_rows_and_are_refused(
    tmp_path: Path, frames: tuple[bytes, ...], status: str
) -> None:
    """The listing shows them with a status; reading one by its id says what is wrong."""
    write(tmp_path, *frames)
    async with SessionStore(tmp_path) as store:
        (row,) = (await store.list()).sessions
        assert row.status == status
        with pytest.raises(DamagedLogError):
            await store.resume("s")


async def test_both_encodings_live_in_one_root_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The reference refuses such a root, so the store says so once, when it writes the second encoding."""
    async with SessionStore(tmp_path) as store:
        say(await store.create("plain"))
    with caplog.at_level(logging.WARNING, logger="sessionstore"):
        async with SessionStore(tmp_path, compression="zstd") as store:
            say(await store.create("one"))
            say(await store.create("two"))
    warnings = [r for r in caplog.records if "compression" in r.getMessage()]
    assert len(warnings) == 1
    async with SessionStore(tmp_path) as store:
        assert {row.id for row in (await store.list()).sessions} == {"plain", "one", "two"}


@pytest.mark.slow
async def test_decoding_a_long_log_does_not_block_the_loop(tmp_path: Path) -> None:
    """Decompression runs in a worker; a reader that is cancelled leaves the store usable."""
    import asyncio

    records = [{"type": "my/event", "seq": k, "time": 5, "data": {"x": "y" * 200}} for k in range(20_000)]
    write(
        tmp_path, encode_frame(HEADER), *(encode_frame(lines(*records[k : k + 1000])) for k in range(0, 20_000, 1000))
    )
    async with SessionStore(tmp_path) as store:
        task = asyncio.ensure_future(store.inspect("s"))
        ticks = 0
        while not task.done():
            await asyncio.sleep(0)
            ticks += 1
        assert ticks > 1
        assert len((await task).events) == 20_000
        cancelled = asyncio.ensure_future(store.inspect("s"))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert len(await store.read_from("s", 19_990)) == 10

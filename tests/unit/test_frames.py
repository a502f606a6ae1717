"""Compressed logs decode to what was written, and what cannot be decoded never hides what can."""

from __future__ import annotations

import functools
import random
import subprocess
import sys

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from sessionstore.backends.jsonl.frames import (
    BLANK_MARK,
    BROKEN_MARK,
    MAX_FRAME,
    FrameDefect,
    FrameEnd,
    FrameReader,
    encode_frame,
    salvaged,
)
from sessionstore.errors import StorageError

LINES = [
    b'{"h":1}\n',
    b'{"seq":0}\n{"seq":1}\n',
    b'{"seq":2}\n',
    b'{"seq":3,"x":"' + b"ab" * 40 + b'"}\n',
    b'{"seq":4}\n',
]
FRAMES = [encode_frame(each) for each in LINES]


def read(data: bytes, *, step: int | None = None, limit: int = MAX_FRAME) -> tuple[bytes, FrameReader]:
    """Everything a reader hands out for *data*, fed in pieces of *step* bytes, and the reader."""
    reader = FrameReader(limit=limit)
    pieces = [data] if step is None else [data[i : i + step] for i in range(0, len(data), step)]
    out = [chunk for piece in pieces for chunk in reader.feed(piece)]
    out += reader.finish()
    decoded = b"".join(out)
    assert reader.decoded == len(decoded)
    return decoded, reader


@functools.cache
def incompressible(size: int) -> bytes:
    """Bytes of which a compressor keeps every one, the same in each run."""
    return random.Random(size).randbytes(size)


def rle_frame(blocks: int, *, checksum: bool = False) -> bytes:
    """A valid frame of *blocks* times 128 KiB of one letter, in four bytes each: a small bomb."""
    body = b"".join((128 * 1024 << 3 | 2 | (n == blocks - 1)).to_bytes(3, "little") + b"a" for n in range(blocks))
    return b"\x28\xb5\x2f\xfd" + bytes([0x04 if checksum else 0, 0x58]) + body + (b"\0\0\0\0" if checksum else b"")


# -- Intact logs


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 40))
def test_what_was_encoded_is_decoded_in_any_pieces(contents: list[bytes], step: int) -> None:
    """Any frames, fed in any pieces, give their content and their ends."""
    frames = [encode_frame(each) for each in contents]
    decoded, reader = read(b"".join(frames), step=step)
    assert decoded == b"".join(contents)
    assert reader.defects == []
    assert reader.frames == len(frames)


def test_a_frame_carries_its_checksum() -> None:
    """A standard frame that any decoder takes, which says when its content is wrong."""
    parameters = zstandard.get_frame_parameters(FRAMES[1])
    assert parameters.has_checksum
    assert zstandard.ZstdDecompressor().decompress(FRAMES[1]) == LINES[1]


@pytest.mark.parametrize(
    "content", [b"", b"a" * 1_000_000, incompressible(400_000), incompressible(200_000) + b"a" * 500_000]
)
@pytest.mark.parametrize("options", [{}, {"write_content_size": False}, {"write_checksum": False}])
def test_frames_of_other_writers(content: bytes, options: dict[str, bool]) -> None:
    """Raw, run-length and compressed blocks, many blocks, with and without size and checksum."""
    frame = zstandard.ZstdCompressor(
        write_checksum=options.get("write_checksum", True), write_content_size=options.get("write_content_size", True)
    ).compress(content)
    decoded, reader = read(FRAMES[0] + frame + FRAMES[1], step=4099)
    assert decoded == LINES[0] + content + LINES[1]
    assert reader.defects == []


def test_streamed_frames_of_many_small_blocks() -> None:
    """A frame that was flushed after every line decodes within the limit although its blocks could hold more."""
    compressor = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    frame = b""
    for line in (b'{"seq":%d}\n' % n for n in range(100)):
        frame += compressor.compress(line) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    frame += compressor.flush()
    expected = b"".join(b'{"seq":%d}\n' % n for n in range(100))
    assert read(frame)[0] == expected
    decoded, reader = read(frame, limit=len(expected))
    assert decoded == expected
    assert reader.defects == []


def test_skippable_frames_are_skipped() -> None:
    """Standard frames that hold no data hold none of ours."""
    skippable = b"\x5a\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    decoded, reader = read(FRAMES[0] + skippable + FRAMES[1], step=3)
    assert decoded == LINES[0] + LINES[1]
    assert reader.defects == []


def test_ends_of_frames() -> None:
    """For a decoded offset: where the last frame that lies before it ends, in the file and decoded."""
    _, reader = read(b"".join(FRAMES))
    one = FrameEnd(len(FRAMES[0]), len(LINES[0]))
    two = FrameEnd(one.compressed + len(FRAMES[1]), one.decoded + len(LINES[1]))
    assert reader.end_before(0) == reader.end_before(one.decoded - 1) == FrameEnd(0, 0)
    assert reader.end_before(one.decoded) == reader.end_before(two.decoded - 1) == one
    assert reader.end_before(two.decoded) == two
    assert reader.end_before(10**9) == FrameEnd(sum(map(len, FRAMES)), sum(map(len, LINES)))


# -- Torn logs


def test_every_cut_gives_a_prefix() -> None:
    """A log cut anywhere decodes to a prefix of its lines; a mark follows unless the cut is between frames."""
    data, text = b"".join(FRAMES), b"".join(LINES)
    ends = {sum(map(len, FRAMES[:n])) for n in range(len(FRAMES) + 1)}
    for cut in range(len(data) + 1):
        decoded, reader = read(data[:cut])
        if cut in ends:
            assert text.startswith(decoded)
            assert reader.defects == []
            continue
        assert decoded.endswith(BROKEN_MARK)
        assert text.startswith(decoded[:-1])
        (defect,) = reader.defects
        start = max(end for end in ends if end < cut)
        assert defect == FrameDefect(
            "garbage" if cut - start < 4 else "torn", start, cut - start, len(decoded) - 1, False
        )


def test_a_torn_frame_gives_what_its_whole_blocks_hold() -> None:
    """The blocks before the cut are decoded; a repair writes their complete lines again."""
    content = incompressible(300_000).hex().encode()
    frame = encode_frame(content)
    decoded, reader = read(FRAMES[0] + frame[:-1])
    assert decoded == LINES[0] + content + BROKEN_MARK
    kept = len(decoded) - 1
    assert reader.end_before(kept) == FrameEnd(len(FRAMES[0]), len(LINES[0]))
    decoded, _ = read(FRAMES[0] + frame[: len(frame) // 2])
    assert len(LINES[0]) + 128 * 1024 < len(decoded) < kept
    assert content.startswith(decoded[len(LINES[0]) : -1])
    assert salvaged(frame[:-1], 1000) == content[:1000]


@pytest.mark.parametrize("tail", [b"\0" * 1728, b"\0" * 3, b"garbage", b"\0\0x\0", b"\x28\xb5\x2f"])
@pytest.mark.parametrize("step", [1, None])
def test_bytes_behind_the_last_frame(tail: bytes, step: int | None) -> None:
    """One mark stands for all of them, and says whether they are NULs."""
    decoded, reader = read(FRAMES[0] + tail, step=step)
    blank = not tail.strip(b"\0")
    assert decoded == LINES[0] + (BLANK_MARK if blank else BROKEN_MARK)
    assert reader.defects == [FrameDefect("garbage", len(FRAMES[0]), len(tail), len(LINES[0]), blank)]


# -- Damaged logs


@pytest.mark.parametrize("hit", range(len(FRAMES)))
def test_a_flipped_bit_costs_at_most_its_frame(hit: int) -> None:
    """Whichever bit it is, every other frame is decoded, and the broken one is marked unless nothing was lost."""
    before, after = b"".join(LINES[:hit]), b"".join(LINES[hit + 1 :])
    start = sum(map(len, FRAMES[:hit]))
    for position in range(start, start + len(FRAMES[hit])):
        for bit in range(8):
            log = bytearray(b"".join(FRAMES))
            log[position] ^= 1 << bit
            decoded, reader = read(bytes(log))
            if not reader.defects:  # an unused bit of the frame's header
                assert decoded == b"".join(LINES)
                continue
            assert decoded.startswith(before)
            assert decoded.endswith(after)
            broken = decoded[len(before) : len(decoded) - len(after)]
            (defect,) = reader.defects
            if reader.frames == len(FRAMES):  # the flag that announces a checksum: now four bytes too many
                assert broken == LINES[hit] + BROKEN_MARK + (b"\n" if after else b"")
                continue
            assert broken.rstrip(b"\n").endswith(BROKEN_MARK)
            assert reader.frames == len(FRAMES) - 1
            assert (defect.offset, defect.length) == (start, len(FRAMES[hit]))


def test_a_wrong_checksum_makes_the_content_worthless() -> None:
    """All blocks decode, and yet something in them is wrong: nothing of the frame is handed out."""
    frame = bytearray(FRAMES[1])
    frame[-1] ^= 1
    decoded, reader = read(FRAMES[0] + bytes(frame) + FRAMES[2])
    assert decoded == LINES[0] + BROKEN_MARK + b"\n" + LINES[2]
    assert [defect.kind for defect in reader.defects] == ["corrupt"]


def test_a_header_that_claims_to_be_empty_loses_nothing_silently() -> None:
    """A flipped bit can turn the size into 0; the blocks say otherwise, so it is a defect and no empty frame."""
    frame = bytearray(FRAMES[0])
    assert frame[5] == len(LINES[0])
    frame[5] = 0
    decoded, reader = read(bytes(frame) + FRAMES[1])
    assert decoded.endswith(BROKEN_MARK + b"\n" + LINES[1])
    assert [defect.kind for defect in reader.defects] == ["corrupt"]


def test_an_empty_frame_that_was_cut_short_swallows_nothing() -> None:
    """Without its checksum an empty frame ends in the first bytes of the next one, which is intact all the same."""
    cut = encode_frame(b"")[:-4]
    decoded, reader = read(FRAMES[0] + cut + FRAMES[1])
    assert decoded == LINES[0] + BROKEN_MARK + b"\n" + LINES[1]
    assert [(defect.offset, defect.length) for defect in reader.defects] == [(len(FRAMES[0]), len(cut))]


def test_a_skippable_frame_behind_garbage_is_the_same_in_pieces() -> None:
    """Behind garbage only the start of a data frame counts, however the bytes come."""
    log = b"\0" + b"\x53\x2a\x4d\x18" + bytes(4) + FRAMES[0]
    whole, reader = read(log)
    assert whole == BROKEN_MARK + b"\n" + LINES[0]
    for step in range(1, len(log)):
        decoded, other = read(log, step=step)
        assert (decoded, other.defects) == (whole, reader.defects)


def test_zeroed_blocks_inside_a_log() -> None:
    """A stretch of NULs over several frames is one defect, and what follows is read."""
    log = bytearray(b"".join(FRAMES))
    start = len(FRAMES[0]) + 5
    stop = sum(map(len, FRAMES[:3])) - 5
    log[start:stop] = bytes(stop - start)
    decoded, reader = read(bytes(log), step=5)
    assert decoded.startswith(LINES[0])
    assert decoded.endswith(BROKEN_MARK + b"\n" + LINES[3] + LINES[4])
    (defect,) = reader.defects
    assert (defect.offset, defect.length) == (len(FRAMES[0]), len(FRAMES[1]) + len(FRAMES[2]))


def test_a_missing_start_is_found_again() -> None:
    """A log whose first bytes are gone gives all frames that are whole."""
    data = b"".join(FRAMES)
    decoded, reader = read(data[5:])
    assert decoded == BROKEN_MARK + b"\n" + b"".join(LINES[1:])
    assert reader.end_before(3) == FrameEnd(0, 0)
    assert reader.frames == len(FRAMES) - 1


@given(
    st.binary(max_size=400)
    | st.lists(st.sampled_from([*FRAMES, b"\0" * 9, b"\x28\xb5\x2f\xfd", b"\x5a\x2a\x4d\x18"]), max_size=9).map(
        b"".join
    ),
    st.integers(1, 50),
)
@example(b"\x28\xb5\x2f\xfd" * 40, 3)
def test_any_bytes_give_a_result(data: bytes, step: int) -> None:
    """Whatever the bytes, the pieces they come in make no difference, and defects and frames cover the file."""
    decoded, reader = read(data)
    again, other = read(data, step=step)
    assert decoded == again
    assert reader.defects == other.defects
    assert reader.frames == other.frames
    for one, two in zip(reader.defects, reader.defects[1:], strict=False):
        assert one.offset + one.length <= two.offset


# -- Bounds


def test_a_frame_up_to_the_limit_is_accepted() -> None:
    """The limit is exact: what a write may hold is read, one byte more is a defect."""
    content = b"x" * 1000
    assert read(encode_frame(content), limit=1000)[0] == content
    decoded, reader = read(encode_frame(content), limit=999)
    assert decoded.strip(b"x") == BROKEN_MARK
    assert [defect.kind for defect in reader.defects] == ["oversize"]


@pytest.mark.parametrize("blocks", [2, 500])
def test_a_bomb_is_a_defect(blocks: int) -> None:
    """A few bytes that decode to many are refused before they take memory, and do not hide what follows."""
    limit = 200 * 1024
    decoded, reader = read(FRAMES[0] + rle_frame(blocks) + FRAMES[1], limit=limit)
    assert decoded.startswith(LINES[0])
    assert decoded.endswith(BROKEN_MARK + b"\n" + LINES[1])
    assert len(decoded) < limit + 1000
    (defect,) = reader.defects
    assert (defect.kind, defect.length) == ("oversize", len(rle_frame(blocks)))


def test_a_header_that_lies_about_the_size_takes_no_memory() -> None:
    """The claimed size is compared with what the blocks can hold."""
    frame = b"\x28\xb5\x2f\xfd" + bytes([0xA0]) + (300 * 1024 * 1024).to_bytes(4, "little") + b"\x01\0\0"
    decoded, reader = read(frame + FRAMES[0])
    assert decoded == BROKEN_MARK + b"\n" + LINES[0]
    assert [defect.kind for defect in reader.defects] == ["corrupt"]


def test_hostile_bytes_stay_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beginnings of frames nested in each other are not each followed to the end of the file."""
    walked = 0
    from sessionstore.backends.jsonl import frames

    monkeypatch.setattr(frames, "_SECOND_LOOKS", 10_000)
    go = frames._Walk.go

    def counting(self: frames._Walk, buffer: bytearray, start: int) -> frames._State:
        nonlocal walked
        state = go(self, buffer, start)
        walked += self.position
        return state

    monkeypatch.setattr(frames._Walk, "go", counting)
    # Each begins a raw block that swallows the next 60 beginnings.
    piece = b"\x28\xb5\x2f\xfd\x00\x58" + (60 * 9 - 9 << 3).to_bytes(3, "little")
    data = piece * 3000
    _, reader = read(data)
    assert walked < 6 * len(data) + 20_000
    assert [defect.length for defect in reader.defects] == [len(data)]


# -- Around it


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store without compression never needs it; one that meets a compressed log says what to install."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    for use in (lambda: encode_frame(b""), FrameReader):
        with pytest.raises(StorageError, match=r"sessionstore\[zstd\]"):
            use()


@pytest.mark.slow
def test_importing_it_imports_no_driver() -> None:
    """The library is loaded by the first compressed log."""
    code = "import sys, sessionstore.backends.jsonl.frames; sys.exit('zstandard' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""Listing files: bounded reading, every session a row, and a status that agrees with a whole scan."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sessionstore.backends.base import ANY, SessionInfo, make_page
from sessionstore.backends.files import OsFiles
from sessionstore.backends.jsonl import JsonlBackend
from sessionstore.backends.jsonl.heads import MAX_HEADER
from sessionstore.backends.jsonl.listing import CLOSE_LOOK, list_sessions, look_closer
from sessionstore.backends.jsonl.tails import TAIL
from sessionstore.backends.paths import LOG_NAMES, ZSTD_NAME
from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.scan import scan_log
from tests.recovery import logs
from tests.recovery.strategies import damaged_bytes
from tests.unit.jsonl_places import CountingFiles, DeniedFiles, framed, log, put, stored

if TYPE_CHECKING:
    from pathlib import Path

    from sessionstore.backends.paths import Compression

LOG = b"".join(logs.closed_log())
ENCODINGS: list[Compression] = ["none", "zstd"]
STATUS = {
    Verdict.CLEAN: "ok",
    Verdict.INTERRUPTED: "ok",
    Verdict.TORN: "ok",
    Verdict.INVALID: "ok",
    Verdict.DAMAGED: "damaged",
    Verdict.EMPTY: "empty",
}


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A root that does not exist yet."""
    return os.fspath(tmp_path / "root")


def rows(root: str, files: OsFiles | None = None) -> dict[str, SessionInfo]:
    """The rows by id."""
    found = list_sessions(files or OsFiles(), root, cwd=ANY, lock_dir=None)
    assert len({row.id for row in found}) == len(found)
    return {row.id: row for row in found}


def only(root: str, files: OsFiles | None = None) -> SessionInfo:
    """The only row there is, looked at as closely as the rows of a short page are."""
    (row,) = look_closer(files or OsFiles(), make_page(rows(root, files).values(), limit=None, after=None)).sessions
    return row


@pytest.mark.slow
@given(data=damaged_bytes() | st.binary(max_size=60))
@example(data=b"")
@example(data=b"\n")
@example(data=b"\0" * 100)
@example(data=LOG[:40])
@example(data=logs.header())
@example(data=logs.header() + b"\0" * 512)
@example(data=LOG + b"\0" * 1728)
@example(data=LOG.replace(b"\n", b"\r\n"))
@example(data=LOG.replace(b"\n", b"\n\n"))
@example(data=b"\n" + LOG)
@example(data=b"\xef\xbb\xbf" + LOG)
@example(data=LOG.replace(b'{"type":"turn/end"', b'{ "type": "turn/end"'))
@example(data=logs.header() + logs.turn_start(1) + logs.turn_end(2))
@example(data=logs.header() + logs.turn_start(0) + logs.header() + logs.turn_end(1))
@example(data=logs.header() + logs.user(0) + b"x" + logs.turn_end(1))
@example(data=logs.header() + logs.event("my-chunks/x", 0, {}))
@example(data=logs.header() + logs.line({"type": "x", "seq": 0.0, "time": 5.0, "data": None}))
def test_status_is_what_a_whole_scan_says(data: bytes) -> None:
    """Of any bytes that fit into what a listing reads, the status is the one that a whole scan leads to."""
    with tempfile.TemporaryDirectory() as root:
        put(root, "s1", data)
        scan = scan_log(data)
        row = only(root)
        if scan.verdict is Verdict.UNSUPPORTED:
            assert row.status == ("unsupported" if scan.header is None else "ok")
        elif scan.header is None or (scan.header.id, scan.header.cwd) == ("s1", "/srv/project"):
            assert row.status == STATUS[scan.verdict], scan.findings
        if row.status == "ok" and len(scan.log) and scan.verdict is not Verdict.INVALID:
            assert row.last_time == scan.events[-1].time
            assert not row.approximate


@pytest.mark.slow
@given(data=st.data(), text=damaged_bytes() | st.just(LOG))
def test_compressed_status_never_raises_a_false_alarm(data: st.DataObject, text: bytes) -> None:
    """A compressed log of any contents, cut and flipped at random, is a row; a sound one is never called damaged."""
    frames = framed(text, every=data.draw(st.integers(1, 3000)))
    at = data.draw(st.integers(0, len(frames)))
    frames = data.draw(st.sampled_from([frames, frames[:at], frames[:at] + b"\x00" + frames[at + 1 :]]))
    with tempfile.TemporaryDirectory() as root:
        put(root, "s1", frames, name=ZSTD_NAME)
        row = only(root)
        if frames == framed(LOG):
            assert row.status == "ok"
            assert row.last_time == scan_log(LOG).events[-1].time


@pytest.mark.parametrize("compression", ENCODINGS)
def test_bytes_read_do_not_grow_with_the_log(root: str, compression: Compression) -> None:
    """A log of many megabytes costs its header and its end."""
    lines = [logs.event("my/x", seq, {"text": os.urandom(400).hex()}) for seq in range(3000)]
    whole = log(lines=lines)
    text = whole if compression == "none" else framed(whole, every=50_000)
    put(root, "s1", text, name=LOG_NAMES[compression])
    files = CountingFiles()
    row = only(root, files)
    assert (row.status, row.bytes, row.approximate) == ("ok", len(text), False)
    assert row.last_time == 1_700_000_000_000 + 2999
    assert files.read <= 3 * TAIL < len(text)


@pytest.mark.parametrize("compression", ENCODINGS)
def test_last_event_out_of_reach(root: str, compression: Compression) -> None:
    """Where the last event is larger than what a listing reads, the file's modification time stands in, marked."""
    huge = logs.event("my/x", 0, {"text": os.urandom(100_000).hex()})
    path = stored(root, "s1", log(lines=[huge]), compression)
    os.utime(path, (1000, 2000))
    row = only(root)
    assert (row.status, row.last_time, row.approximate) == ("ok", 2_000_000, True)


@pytest.mark.parametrize("compression", ENCODINGS)
def test_damage_at_the_end_of_a_long_log(root: str, compression: Compression) -> None:
    """A defect with a turn/end after it, both near the end of a long log, is seen."""
    lines = [logs.event("my/x", seq, {"text": "x" * 500}) for seq in range(400)]
    bad = [*lines, logs.turn_start(400), b"#####\n", logs.turn_end(401)]
    text = log(lines=bad)
    data = text if compression == "none" else framed(text, every=len(text) // 3)
    put(root, "s1", data, name=LOG_NAMES[compression])
    assert only(root).status == "damaged"


@pytest.mark.slow
async def test_damage_far_from_the_end_is_seen_where_few_rows_are_wanted(root: str) -> None:
    """A long list looks at the very end only; a page that a person reads shows what is wrong in the last 64 KiB."""
    lines = [logs.event("my/x", seq, {"text": "x" * 100}) for seq in range(300)]
    bad = log(lines=[*lines[:200], b"#####\n", *lines[200:], logs.turn_end(300)])
    for n in range(CLOSE_LOOK + 1):
        put(root, f"s{n}", bad.replace(b'"s1"', b'"s%d"' % n) if n in {1, 2} else log(f"s{n}"))
    backend = JsonlBackend(root)
    assert {row.status for row in (await backend.list()).sessions} == {"ok"}
    page = (await backend.list(limit=CLOSE_LOOK)).sessions
    assert {row.id for row in page if row.status == "damaged"} == {"s1", "s2"}
    assert [row.id for row in page] == [row.id for row in (await backend.list()).sessions][:CLOSE_LOOK]


def test_torn_end_of_a_long_log_is_ok(root: str) -> None:
    """A cut line, and a bad one without a turn/end after it, are what a resume mends."""
    lines = [logs.event("my/x", seq, {"text": "x" * 500}) for seq in range(400)]
    for tail in (b'{"type":', b"\0" * 5000, b"###\n", lines[5], b'###\n{"type"'):
        put(root, "s1", log(lines=[*lines, tail]))
        row = only(root)
        assert (row.status, row.last_time) == ("ok", 1_700_000_000_399)


@pytest.mark.parametrize("compression", ENCODINGS)
@pytest.mark.parametrize("size", [9000, TAIL + 5, MAX_HEADER // 2])
def test_long_header(root: str, compression: Compression, size: int) -> None:
    """A header line of more than one block is read."""
    stored(root, "s1", log(future=os.urandom(size // 2).hex()), compression)
    row = only(root)
    assert (row.status, row.cwd, row.last_time) == ("ok", "/srv/project", 1_700_000_000_022)


async def test_header_that_is_too_long_for_a_list(root: str) -> None:
    """A header longer than a listing reads makes a row that says so; the session itself can be read."""
    put(root, "s1", log(future="x" * MAX_HEADER))
    backend = JsonlBackend(root)
    (row,) = (await backend.list()).sessions
    assert (row.id, row.status) == ("s1", "unreadable")
    assert (await backend.read("s1")).scan.verdict is Verdict.CLEAN


def test_long_hole_in_front_of_the_log(root: str) -> None:
    """A megabyte of NULs where the header was is damage while something stands behind it, else an empty log."""
    put(root, "s1", b"\0" * (MAX_HEADER + 5) + b"\n" + LOG)
    assert only(root).status == "damaged"
    put(root, "s1", b"\0" * (MAX_HEADER - 5))
    assert only(root).status == "empty"


def test_one_merged_frame(root: str) -> None:
    """A compressed log that somebody rewrote as one frame is listed as well as any."""
    from sessionstore.backends.jsonl.frames import encode_frame

    put(root, "s1", encode_frame(LOG), name=ZSTD_NAME)
    row = only(root)
    assert (row.status, row.last_time) == ("ok", 1_700_000_000_022)


def test_only_the_last_frame_is_decoded(root: str) -> None:
    """A corrupt frame far from the end is none of the list's business."""
    text = log(lines=[logs.event("my/x", seq, {"text": os.urandom(100).hex()}) for seq in range(2000)])
    data = bytearray(framed(text, every=20_000))
    data[30_000] ^= 0xFF
    put(root, "s1", bytes(data), name=ZSTD_NAME)
    row = only(root)
    assert (row.status, row.last_time) == ("ok", 1_700_000_001_999)


def test_zeros_that_unpack_to_gigabytes(root: str) -> None:
    """A last frame that would decode to far more than a listing may hold is out of reach, not out of memory."""
    from sessionstore.backends.jsonl.frames import encode_frame

    put(root, "s1", encode_frame(logs.header()) + encode_frame(b"\0" * (32 * 1024 * 1024)), name=ZSTD_NAME)
    assert only(root).bytes < TAIL


def test_what_is_no_session_is_no_row(root: str) -> None:
    """Files in the root, files and empty directories in a project, leftovers of a create that died: no rows."""
    put(root, "s1", LOG)
    project = os.path.join(root, "--srv-project--")
    for name in ("notes.txt", ".DS_Store"):
        for place in (root, project):
            with open(os.path.join(place, name), "w", encoding="utf-8") as file:
                file.write("x")
    os.mkdir(os.path.join(project, "empty"))
    put(root, "unborn", b"", name="session.lock")
    put(root, "unborn", LOG, name="session.tmp-0123456789abcdef")
    os.makedirs(os.path.join(root, ".trash", "1-0"))
    os.rename(os.path.dirname(put(root, "s9", log("s9"))), os.path.join(root, ".trash", "s9"))
    assert list(rows(root)) == ["s1"]


def test_unreadable_ones_are_rows(root: str) -> None:
    """A session, or a whole project, that may not be read is a row with the reason; the others are listed."""
    for id in ("a", "b", "c"):
        put(root, id, log(id))
    found = rows(root, DeniedFiles(lambda path: path.endswith(("/a", "/b/session.jsonl"))))
    assert {id: row.status for id, row in found.items()} == {"a": "unreadable", "b": "unreadable", "c": "ok"}
    assert found["a"].detail == "Permission denied"
    found = rows(root, DeniedFiles(lambda path: path.endswith("--srv-project--")))
    assert {id: row.status for id, row in found.items()} == {"--srv-project--": "unreadable"}


def test_session_that_vanishes_while_listed(root: str) -> None:
    """A session that is deleted between two steps of the list is left out."""
    put(root, "s1", LOG)
    put(root, "s2", log("s2"))

    class Vanishing(OsFiles):
        def open_read(self, path: str) -> int:
            if path.endswith("s1/session.jsonl"):
                os.unlink(path)
            return super().open_read(path)

    assert list(rows(root, Vanishing())) == ["s2"]


def test_filter_keeps_what_has_no_header_with_its_project(root: str) -> None:
    """A session whose header is lost is shown with the project it lies in: it must not vanish from the user's list."""
    put(root, "s1", b"###\n")
    put(root, "s2", b"###\n", cwd="/elsewhere")
    found = list_sessions(OsFiles(), root, cwd="/srv/project", lock_dir=None)
    assert [row.id for row in found] == ["s1"]


def test_only_root_and_projects_are_listed(root: str) -> None:
    """One look at the root and one at each project; what a session has is found by its name."""
    for n in range(5):
        put(root, f"s{n}", log(f"s{n}", cwd=f"/p{n % 2}"), cwd=f"/p{n % 2}")
    seen: list[str] = []

    class Noting(OsFiles):
        def listdir(self, path: str) -> list[str]:
            seen.append(path)
            return super().listdir(path)

    assert len(rows(root, Noting())) == 5
    assert len(seen) == len(set(seen)) == 1 + 2

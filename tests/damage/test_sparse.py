"""Logs with stretches of NULs that take no room on the disk: what a repair needs follows what is in the log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from sessionstore import SessionStore
from sessionstore.backends.files import read_chunks
from sessionstore.backends.jsonl import whole
from sessionstore.backends.jsonl.frames import encode_frame
from tests.paths import REPO

if TYPE_CHECKING:
    from pathlib import Path

HEADER = b'{"type":"session","version":0,"id":"s","createdAt":1,"delegationDepth":0}\n'
TURN = (
    b'{"type":"turn/start","seq":0,"time":1,"data":{"turn":1,"trigger":{"kind":"message","source":{"kind":"user"}}}}\n'
    b'{"type":"turn/end","seq":1,"time":2,"data":{"turn":1,"reason":{"kind":"completed"}}}\n'
)
BEHIND = TURN.replace(b'"seq":1', b'"seq":5').replace(b'"seq":0', b'"seq":4').replace(b'"turn":1', b'"turn":2')

PROGRAM = """
import asyncio, json, resource, sys
from sessionstore import SessionStore

async def main(root):
    with open("/proc/self/statm") as file:
        room = int(file.read().split()[0]) * resource.getpagesize() + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    async with SessionStore(root) as store:
        for dry_run in (True, False):
            report = await store.repair("s", dry_run=dry_run)
            print(json.dumps([report.refusal, report.kept, [[q.offset, q.length] for q in report.quarantined]]))

asyncio.run(main(sys.argv[1]))
"""
HOLE = 256 << 20


def sparse_log(root: Path, before: bytes, hole: int, behind: bytes = b"") -> Path:
    """A log of session ``s`` with *hole* NULs in it that are not on the disk."""
    directory = root / "_no-cwd" / "s"
    directory.mkdir(parents=True)
    log = directory / "session.jsonl"
    with log.open("wb") as file:
        file.write(HEADER + before)
        file.truncate(len(HEADER + before) + hole)
        file.seek(0, os.SEEK_END)
        file.write(behind)
    return log


def repaired(root: Path) -> list[list[Any]]:
    """What a dry run and a repair of session ``s`` say, in a process that may take 64 MiB more than an idle one."""
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("how much memory a process has is read from /proc")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root)], check=False, capture_output=True, text=True, cwd=REPO,
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("torn", [b"", b'{"type":"test/event","seq":2,"ti'])
def test_a_repair_does_not_hold_the_nuls_behind_the_end(tmp_path: Path, torn: bytes) -> None:
    """A tail of 256 MiB that was never written, also behind the beginning of a line, takes no memory."""
    log = sparse_log(tmp_path, TURN + torn, HOLE)
    planned, carried_out = repaired(tmp_path)
    safe = len(HEADER + TURN)
    left_out = [[at, length] for at, length in ((safe, len(torn)), (safe + len(torn), HOLE)) if length]
    assert planned == carried_out == [None, 2, left_out]
    assert log.read_bytes() == HEADER + TURN


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("behind", [b"", BEHIND, b"\n" + BEHIND, b"garbage\n" + BEHIND + bytes(20_000)])
async def test_what_is_not_held_changes_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str, behind: bytes
) -> None:
    """Offsets, lengths and kept events are the same as when every NUL is held."""
    pytest.importorskip("zstandard")
    parts = [HEADER, TURN, b"junk", *[bytes(8192)] * 3, behind, b"more junk"]
    log = sparse_log(tmp_path, b"", 0)
    if compression == "none":
        log.write_bytes(b"".join(parts))
    else:
        log.unlink()
        # A frame that cannot be decoded behind the NULs: it counts with its length.
        broken = bytearray(encode_frame(BEHIND))
        broken[-1] ^= 1
        log.with_suffix(".jsonl.zstd").write_bytes(b"".join(map(encode_frame, parts)) + broken + encode_frame(BEHIND))
    held: list[int] = []

    def noting(read: Any) -> Any:
        def noted(*arguments: Any, **options: Any) -> Any:
            found = read(*arguments, **options)
            held.append(len(found.data))
            return found

        return noted

    monkeypatch.setattr(whole, "read_chunks", partial(read_chunks, chunk=4096))
    monkeypatch.setattr("sessionstore.backends.jsonl.repairing.read_decoded", noting(whole.read_decoded))
    async with SessionStore(tmp_path) as store:
        reports = []
        for limit in (1 << 40, 8192):
            monkeypatch.setattr(whole, "_HELD", limit)
            reports.append(await store.repair("s"))
    assert reports[0] == reports[1]
    assert held[0] - held[1] >= 8192


async def test_holes_make_no_room_for_notes_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of tiny lines is refused also where its file claims to be large."""
    monkeypatch.setattr(whole, "FREE", 0)
    sparse_log(tmp_path, b"x\n" * 1000, 4 << 20)
    async with SessionStore(tmp_path) as store:
        refusal = (await store.repair("s")).refusal
    assert refusal is not None
    assert "lines" in refusal

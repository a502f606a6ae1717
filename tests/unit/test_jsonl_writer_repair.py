"""What a resume does to the file: keep, cut, close, and nothing when the copy cannot be kept."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sessionstore.backends.base import RepairReport, Stored
from sessionstore.backends.jsonl.frames import encode_frame
from sessionstore.backends.jsonl.writer import TornTail
from sessionstore.errors import (
    ConcurrentWriteError,
    StorageError,
)
from sessionstore.events import Event
from sessionstore.recovery.plan import RepairPlan
from sessionstore.recovery.scan import scan_log
from tests.logs import BOTH, Log, raises_storage

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=BOTH)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    """A session that is not stored yet, in either encoding."""
    log = Log(tmp_path / "root", compression=request.param)
    yield log
    log.faulty.heal()
    log.close()


# -- Resume and repair


def stored(log: Log, torn: TornTail | None) -> Stored:
    """What a backend says of *log* when it reads it."""
    scan = scan_log(log.text())
    scan.intact_after = 2
    return Stored(scan=scan, torn=torn, location=None, writer="none", revision=None)


def closers(*types: str, seq: int) -> tuple[Event, ...]:
    """Events of these types, one after the other from *seq* on."""
    return tuple(
        Event.from_json(b'{"type":"%s","seq":%d,"time":1,"data":{}}' % (each.encode(), seq + n))
        for n, each in enumerate(types)
    )


def torn_log(log: Log, tail: bytes) -> TornTail:
    """Store two batches and *tail* behind them, in the way a crash leaves it; what has to be cut."""
    log.append(2)
    log.close()
    size = log.path.stat().st_size
    if log.compression == "none":
        with log.path.open("ab") as file:
            file.write(tail)
        return TornTail(size)
    salvage, _, _ = tail.rpartition(b"\n")
    frame = encode_frame(tail)
    with log.path.open("ab") as file:
        file.write(frame[:-2])
    return TornTail(size, salvage + b"\n" if salvage else b"")


def repair(log: Log, torn: TornTail | None, added: tuple[Event, ...] = ()) -> RepairReport:
    """Carry out the plan that cuts *torn* and adds *added*."""
    plan = RepairPlan(truncate_to=None if torn is None else torn.cut_at, closers=added)
    return asyncio.run(log.writer.repair(stored(log, torn), plan))


def test_an_empty_plan_only_makes_durable(log: Log) -> None:
    """What a crashed predecessor left in the page cache is synced, with its names, and nothing changes."""
    log.append(2)
    log.close()
    before = log.path.read_bytes()
    log.writer = log.resumed()
    log.faulty.calls.clear()
    report = repair(log, None)
    assert not report.changed
    assert log.faulty.calls.count("sync") == 1
    assert log.faulty.calls.count("sync_directory") == 3
    assert log.path.read_bytes() == before
    log.append(1)
    assert log.text() == log.expected()


def test_the_cut_bytes_are_kept_aside(log: Log) -> None:
    """Quarantine holds exactly the cut bytes, 0600; the closers follow, a turn/end in a write of its own."""
    torn = torn_log(log, b'{"seq":2')
    cut = log.path.read_bytes()[torn.cut_at :]
    log.writer = log.resumed()
    log.faulty.calls.clear()
    added = closers("step/end", "turn/end", seq=2)
    report = repair(log, torn, added)
    assert (report.cut_at, report.cut_bytes, report.closers, report.intact_after) == (torn.cut_at, len(cut), added, 2)
    assert report.quarantine is not None
    kept = Path(report.quarantine)
    assert kept.read_bytes() == cut
    assert kept.name.startswith(f"session.jsonl.cut-{torn.cut_at}-")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    calls = log.faulty.calls
    assert "sync" in calls[calls.index("create") : calls.index("rename")]
    assert "sync_directory" in calls[calls.index("rename") : calls.index("truncate")]
    writes = [c for c in calls[calls.index("truncate") :] if c in {"write", "sync"}]
    assert writes == ["sync", "write", "sync", "write", "sync"]
    log.lines += [event.to_json() for event in added]
    assert log.writer.next_seq == 4
    log.append(1)
    assert log.text() == log.expected()


def test_complete_lines_of_a_torn_frame_are_written_again(tmp_path: Path) -> None:
    """Nothing that can be decoded is lost: it becomes a new frame."""
    log = Log(tmp_path, compression="zstd")
    lines = [b'{"seq":%d,"x":"%s"}' % (n, os.urandom(40_000).hex().encode()) for n in range(2, 12)]
    torn = torn_log(log, b"\n".join([*lines, b""]))
    log.writer = log.resumed()
    repair(log, torn)
    log.lines += lines
    assert log.text() == log.expected()
    log.close()


@pytest.mark.parametrize("tail", [b"\0" * 1728, b"\0\n\n", b" \r\n"])
def test_blank_tails_are_not_worth_a_file(tmp_path: Path, tail: bytes) -> None:
    """NULs and blanks are cut and counted, not kept."""
    log = Log(tmp_path)
    torn = torn_log(log, tail)
    log.writer = log.resumed()
    report = repair(log, torn)
    assert (report.cut_bytes, report.quarantine) == (len(tail), None)
    assert log.text() == log.expected()
    assert sorted(p.name for p in log.path.parent.iterdir()) == ["session.jsonl", "session.lock"]
    log.close()


def test_without_quarantine_nothing_is_cut(log: Log) -> None:
    """A full disk refuses the copy, so the resume is refused and the log stays as it is."""
    torn = torn_log(log, b'{"seq":2')
    before = log.path.read_bytes()
    log.writer = log.resumed()
    log.faulty.room = 3
    with raises_storage(errno.ENOSPC):
        repair(log, torn, closers("turn/end", seq=2))
    assert log.path.read_bytes() == before
    assert sorted(p.name for p in log.path.parent.iterdir()) == sorted([log.path.name, "session.lock"])


@pytest.mark.slow
def test_a_repair_that_fails_anywhere_can_be_repeated(tmp_path: Path) -> None:
    """Whichever call fails, a repeat gives the same log and the same quarantine file."""
    number = failures = 0
    while True:
        log = Log(tmp_path / str(number))
        torn = torn_log(log, b'{"seq":2')
        log.writer = log.resumed()
        log.faulty.calls.clear()
        log.faulty.fail_numbers(range(number, number + 1))
        added = closers("step/end", "turn/end", seq=2)
        try:
            repair(log, torn, added)
        except StorageError:
            failures += 1
            repair(log, torn, added)
        log.lines += [event.to_json() for event in added]
        assert log.text() == log.expected()
        names = [p.name for p in log.path.parent.iterdir() if not p.name.startswith("session.tmp-")]
        assert len(names) == 3
        log.close()
        if len(log.faulty.calls) < number:
            break
        number += 1
    assert failures > 15


def test_quarantine_of_the_same_bytes_is_one_file(tmp_path: Path) -> None:
    """A repeat after a crash before the cut finds the copy, completes a partial one, and adds none."""
    log = Log(tmp_path)
    torn = torn_log(log, b'{"seq":2')
    log.writer = log.resumed()
    report = repair(log, torn)
    log.close()
    assert report.quarantine is not None
    kept = Path(report.quarantine)
    for there in (b'{"seq":2', b'{"se'):
        kept.write_bytes(there)
        with log.path.open("ab") as file:
            file.write(b'{"seq":2')
        log.writer = log.resumed()
        assert repair(log, torn).quarantine == report.quarantine
        log.close()
        assert kept.read_bytes() == b'{"seq":2'
    assert len(list(log.path.parent.glob("*.cut-*"))) == 1


def test_a_log_that_grew_since_the_scan_is_not_repaired(log: Log) -> None:
    """The bytes to cut are no longer the ones that were scanned."""
    torn = torn_log(log, b'{"seq":2')
    log.writer = log.resumed()
    with log.path.open("ab") as file:
        file.write(b"}\n")
    with pytest.raises(ConcurrentWriteError):
        repair(log, torn)
    assert log.path.read_bytes().endswith(b"}\n")

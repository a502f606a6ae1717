"""Repairs of stored sessions: what is written, what is kept, and what a crash at any point leaves."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from sessionstore import DamagedLogError, SessionLockedError, SessionStore, StorageError, Verdict
from sessionstore.backends.jsonl.backend import JsonlBackend
from sessionstore.backends.jsonl.frames import encode_frame
from sessionstore.backends.memory import MemoryBackend
from sessionstore.recovery.scan import scan_log
from tests.faults import FaultyFiles
from tests.recovery import logs
from tests.recovery.salvage_checker import joined
from tests.unit.jsonl_places import framed, put, stored

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sessionstore.backends.paths import Compression

CLOSED = logs.closed_log()
DAMAGED = b"".join(logs.insert(CLOSED, 13, b"\xff\xfe garbage\n"))
BRANCH = [logs.event("turn/start", 17, {"turn": 2}), logs.user(18, "theirs"), logs.turn_end(19, 2)]
TWO = b"".join([*CLOSED, *BRANCH])
BOTH: list[Compression] = ["none", "zstd"]


class Died(BaseException):
    """The process is gone."""


class MortalFiles(FaultyFiles):
    """Does nothing to the disk any more from the call on at which the process dies."""

    CHANGES = frozenset(
        {"create", "write", "truncate", "sync", "mkdir", "sync_directory", "link", "rename", "unlink", "rmdir"}
    )

    def __init__(self, at: int) -> None:
        super().__init__()
        self.changes = 0
        self.at = at

        def before(name: str, _number: int) -> None:
            if name in self.CHANGES:
                self.changes += 1
                if self.changes > self.at:
                    raise Died

        self.before = before
        self.locks: dict[int, int] = {}  # descriptor: inode

    def open_lock(self, path: str) -> int:
        fd = super().open_lock(path)
        self.locks[fd] = os.fstat(fd).st_ino
        return fd

    def close(self, fd: int) -> None:
        self.locks.pop(fd, None)
        super().close(fd)

    def bury(self) -> None:
        """What the system does at the end of a process: its locks are free."""
        for fd, inode in self.locks.items():
            with contextlib.suppress(OSError):
                if os.fstat(fd).st_ino == inode:
                    os.close(fd)


def files_of(path: str) -> list[str]:
    """The names beside a log."""
    return sorted(os.listdir(os.path.dirname(path)))


def content(path: str) -> bytes:
    """The bytes of a file."""
    with open(path, "rb") as file:
        return file.read()


def backend(root: str, files: FaultyFiles | None = None) -> JsonlBackend:
    """A backend on *root* with a clock of its own."""
    moments = iter(range(1000, 10**6))
    return JsonlBackend(root, files=files, clock=lambda: next(moments))


def text_of(path: str, compression: Compression) -> bytes:
    """The decompressed log."""
    from sessionstore.backends.jsonl.frames import salvaged

    data = content(path)
    return data if compression == "none" else salvaged(data, 10**9)


@pytest.mark.parametrize("compression", BOTH)
async def test_a_dry_run_writes_nothing_and_a_repair_does_what_it_said(
    tmp_path: Path, compression: Compression
) -> None:
    """The plan is the report; the damaged log is kept whole; a second repair changes nothing."""
    path = stored(str(tmp_path), "s1", DAMAGED, compression)
    before, names = content(path), files_of(path)
    async with SessionStore(tmp_path) as store:
        plan = await store.repair("s1")
        assert (content(path), files_of(path)) == (before, names)
        done = await store.repair("s1", dry_run=False)
        assert (plan.events, plan.kept, plan.quarantined, plan.exit_code) == (23, 23, done.quarantined, 2)
        assert done.original is not None
        assert content(done.original) == before
        assert text_of(path, compression) == b"".join(CLOSED)
        names = files_of(path)
        again = await store.repair("s1", dry_run=False)
        assert (again.changed, again.exit_code, files_of(path)) == (False, 0, names)
        assert (await store.verify("s1")).exit_code == 0
        assert {oct(os.stat(os.path.join(os.path.dirname(path), name)).st_mode & 0o777) for name in names} <= {
            "0o600",
            "0o644",  # the log that the test wrote is replaced; its lock is ours
        }


@pytest.mark.parametrize("compression", BOTH)
async def test_a_second_history_becomes_a_session(tmp_path: Path, compression: Compression) -> None:
    """Both histories can be resumed, and the report names the other one."""
    stored(str(tmp_path), "s1", TWO, compression)
    async with SessionStore(tmp_path) as store:
        report = await store.repair("s1", dry_run=False)
        assert [fork.id for fork in report.forks] == ["s1~17"]
        fork = await store.resume("s1~17")
        assert [event.to_json() + b"\n" for event in fork.events[17:]] == BRANCH
        assert (fork.header.parent_session, fork.header.seed_length) == ("s1", 17)
        assert len((await store.resume("s1")).events) == 23


async def test_a_fork_takes_another_name_where_its_own_is_taken(tmp_path: Path) -> None:
    """A session of somebody else is never touched."""
    stored(str(tmp_path), "s1", TWO, "none")
    taken = put(str(tmp_path), "s1~17", logs.header(id="s1~17") + b"".join(CLOSED[1:]))
    before = content(taken)
    async with SessionStore(tmp_path) as store:
        report = await store.repair("s1", dry_run=False)
        assert [fork.id for fork in report.forks] == ["s1~17~2"]
        assert (await store.inspect("s1~17~2")).verdict is Verdict.CLEAN
    assert content(taken) == before


@pytest.mark.parametrize("compression", BOTH)
def test_a_crash_at_any_point_is_repaired_by_the_same_call(tmp_path: Path, compression: Compression) -> None:
    """The log is the damaged or the repaired one at every moment; a repeat ends where the first try would have."""
    for at in range(200):
        root = str(tmp_path / str(at))
        path = stored(root, "s1", TWO, compression)
        damaged = content(path)
        files = MortalFiles(at)
        try:
            asyncio.run(backend(root, files).salvage("s1", dry_run=False, cwd=None))
        except Died:
            died = True
            files.bury()
        else:
            died = False
        assert content(path) == damaged or text_of(path, compression) == b"".join(CLOSED)
        report = asyncio.run(backend(root).salvage("s1", dry_run=False, cwd=None))
        assert report.refusal is None
        assert text_of(path, compression) == b"".join(CLOSED)
        fork = asyncio.run(backend(root).read("s1~17"))
        assert (fork.scan.verdict, len(fork.scan.log)) == (Verdict.CLEAN, 20)
        assert len([name for name in files_of(path) if ".damaged-" in name]) == 1
        assert not [name for name in files_of(path) if "tmp" in name] or not died
        if not died:
            assert at > 10
            return
    pytest.fail("the repair never came to its end")


@pytest.mark.parametrize("name", ["create", "write", "sync", "rename", "sync_directory", "listdir"])
async def test_a_disk_that_refuses_leaves_the_damaged_log(tmp_path: Path, name: str) -> None:
    """An error on the way is a StorageError, nothing is lost, and the next repair works."""
    path = stored(str(tmp_path), "s1", DAMAGED, "none")
    files = FaultyFiles()
    store = SessionStore(backend=backend(str(tmp_path), files))
    async with store:
        await store.verify("s1")
        files.fail(name, times=1, skip=1 if name in {"sync", "write"} else 0)
        with pytest.raises((StorageError, OSError)):
            await store.repair("s1", dry_run=False)
        files.heal()
        if name != "sync_directory":
            assert content(path) == DAMAGED
        await store.repair("s1", dry_run=False)
    assert content(path) == b"".join(CLOSED)
    assert not [each for each in files_of(path) if "tmp" in each]


async def test_a_session_that_is_open_is_not_repaired(tmp_path: Path) -> None:
    """Neither in this process nor in another; looking is allowed."""
    async with SessionStore(tmp_path) as store:
        session = await store.create("s1", cwd="/srv/project")
        session.append(
            "user/message", {"content": [], "source": {"kind": "user"}, "role": "user", "id": "m"}, surface_op="append"
        )
        await session.flush()
        with pytest.raises(SessionLockedError):
            await store.repair("s1", dry_run=False)
        async with SessionStore(tmp_path) as other:
            with pytest.raises(SessionLockedError):
                await other.repair("s1", dry_run=False)
            assert (await other.repair("s1")).changed is False
            assert (await other.verify("s1")).exit_code == 0


# Headers and places


async def test_a_lost_header_takes_the_directory_of_a_sibling(tmp_path: Path) -> None:
    """Another session of the project folder says what the folder's name is lossy about."""
    path = put(str(tmp_path), "s1", b"".join(CLOSED[1:]))
    put(str(tmp_path), "s2", logs.header(id="s2") + b"".join(CLOSED[1:]))
    async with SessionStore(tmp_path) as store:
        report = await store.repair("s1", dry_run=False)
        assert (report.location, report.cwd, report.header_fate) == (path, "/srv/project", "rebuilt")
        assert (await store.resume("s1")).header.cwd == "/srv/project"


@pytest.mark.parametrize(("cwd", "project"), [("/srv/other", "--srv-other--"), (None, "_no-cwd")])
async def test_a_lost_header_moves_the_session_to_where_it_belongs(
    tmp_path: Path, cwd: str | None, project: str
) -> None:
    """With the caller's directory, or without any, the session is found by its id as before."""
    put(str(tmp_path), "s1", b"".join(CLOSED[1:]))
    async with SessionStore(tmp_path) as store:
        planned = await store.repair("s1", cwd=cwd)
        report = await store.repair("s1", cwd=cwd, dry_run=False)
        assert report.location == planned.location == str(tmp_path / project / "s1" / "session.jsonl")
        assert (report.verdict, report.changed) == (Verdict.DAMAGED, True)
        session = await store.resume("s1")
        assert (session.header.cwd, session.seq) == (cwd, 23)
        await session.dispose()
        assert not (await store.repair("s1", dry_run=False)).changed


async def test_an_id_is_read_from_the_name_of_its_directory(tmp_path: Path) -> None:
    """Ids that are escaped in the name come back."""
    put(str(tmp_path), "a/b: 世", b"".join(CLOSED[1:]), cwd=None)
    async with SessionStore(tmp_path) as store:
        await store.repair("a/b: 世", dry_run=False)
        assert (await store.resume("a/b: 世")).header.id == "a/b: 世"


async def test_a_session_in_the_wrong_folder_is_moved_home(tmp_path: Path) -> None:
    """An intact header says where a session belongs."""
    put(str(tmp_path), "s1", b"".join(CLOSED), cwd="/elsewhere")
    async with SessionStore(tmp_path) as store:
        assert (await store.verify("s1")).exit_code == 2
        await store.repair("s1", dry_run=False)
        assert (await store.resume("s1")).seq == 23


async def test_a_copied_directory_becomes_a_session_of_its_own(tmp_path: Path) -> None:
    """A copy under another name gets that id; the other session stays as it is."""
    put(str(tmp_path), "s1", b"".join(CLOSED))
    put(str(tmp_path), "copy", b"".join(CLOSED))
    async with SessionStore(tmp_path) as store:
        await store.repair("copy", dry_run=False)
        assert {row.id: row.status for row in (await store.list()).sessions} == {"s1": "ok", "copy": "ok"}


# Resuming with salvage


@pytest.mark.parametrize("compression", BOTH)
async def test_resume_salvages_when_asked(tmp_path: Path, compression: Compression) -> None:
    """By default a damaged log is refused; with on_damage="salvage" it is repaired and goes on."""
    stored(str(tmp_path), "s1", DAMAGED, compression)
    async with SessionStore(tmp_path) as store:
        with pytest.raises(DamagedLogError):
            await store.resume("s1")
        session = await store.resume("s1", on_damage="salvage")
        assert session.recovery is not None
        assert session.recovery.salvage is not None
        assert (session.recovery.changed, session.recovery.salvage.kept) == (True, 23)
        session.append("my/note", {})
        await session.flush()
    async with SessionStore(tmp_path) as store:
        assert (await store.resume("s1")).seq == 24


async def test_resume_keeps_what_is_intact_behind_a_torn_end(tmp_path: Path) -> None:
    """Without salvage those events are cut; with it they keep their seqs."""
    data = b"".join([*logs.interrupted_log()[:13], b"\0" * 300 + b"\n", *logs.interrupted_log()[14:]])
    put(str(tmp_path), "s1", data)
    async with SessionStore(tmp_path) as store:
        report = await store.verify("s1")
        assert (report.verdict, report.exit_code, report.intact_after) == (Verdict.TORN, 1, 3)
        session = await store.resume("s1", on_damage="salvage")
        assert [event.seq for event in session.events[19:22]] == [19, 20, 21]
        assert session.events[18].type == "recovery/lost"
        assert session.recovery is not None
        assert session.recovery.salvage is not None


async def test_resume_with_salvage_of_a_plain_torn_log_is_a_plain_resume(tmp_path: Path) -> None:
    """Where nothing is behind the torn end, the log is cut as always."""
    path = put(str(tmp_path), "s1", b"".join(CLOSED) + b'{"type":"user')
    async with SessionStore(tmp_path) as store:
        session = await store.resume("s1", on_damage="salvage")
        assert session.recovery is not None
        assert (session.recovery.salvage, session.recovery.cut_bytes) == (None, 13)
    assert not [name for name in files_of(path) if "damaged" in name]


async def test_a_torn_log_is_repaired_by_a_cut(tmp_path: Path) -> None:
    """Repair does what a resume does: the cut bytes are kept, the log is not copied."""
    path = put(str(tmp_path), "s1", b"".join(logs.interrupted_log()) + b'{"type":"user')
    async with SessionStore(tmp_path) as store:
        report = await store.repair("s1", dry_run=False)
        assert report.original is not None
        assert ".cut-" in report.original
        assert [event.type for event in report.made] == ["tool/result", "tool/result", "step/end", "turn/end"]
        assert not (await store.repair("s1", dry_run=False)).changed
    assert scan_log(content(path)).verdict is Verdict.CLEAN


async def test_an_unknown_way_with_damage_is_refused(tmp_path: Path) -> None:
    """A misspelled option is not taken for the default."""
    async with SessionStore(tmp_path) as store:
        with pytest.raises(ValueError, match="on_damage"):
            await store.resume("s1", on_damage="salvge")  # type: ignore[arg-type]


# Verify


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"".join(CLOSED), 0),
        (b"".join(logs.interrupted_log()), 1),
        (b"".join(CLOSED) + b"{", 1),
        (DAMAGED, 2),
        (b"".join(CLOSED).replace(b'"id":"m1"', b'"id":""'), 2),
        (b"", 3),
        (logs.header(version=3), 3),
        (b"".join([*CLOSED, *second_gap]), 3)
        if (second_gap := [logs.user(90_000), logs.turn_end(90_001)])
        else (b"", 3),
    ],
)
async def test_verify_exit_codes(tmp_path: Path, data: bytes, code: int) -> None:
    """0 clean, 1 a resume mends it, 2 a repair can, 3 nothing can; a repair of the last says why."""
    path = put(str(tmp_path), "s1", data)
    async with SessionStore(tmp_path) as store:
        report = await store.verify("s1")
        assert report.exit_code == code, report.describe()
        done = await store.repair("s1", dry_run=False)
        assert done.exit_code == (3 if code == 3 else 0)
        if code == 3:
            assert done.refusal
            assert content(path) == data


async def test_verify_lists_shapes_that_append_would_refuse(tmp_path: Path) -> None:
    """An odd event loads and is carried; verify says so, and the log is clean."""
    odd = logs.event("todo/write", 23, {"todos": "none"})
    put(str(tmp_path), "s1", b"".join([*CLOSED, odd]))
    async with SessionStore(tmp_path) as store:
        report = await store.verify("s1")
        assert (report.verdict, report.exit_code, report.deviating) == (Verdict.CLEAN, 0, 1)
        assert report.deviations[0].seq == 23
        assert "todo/write" in report.describe()


# Frames


def bad_frames() -> list[tuple[str, Callable[[list[bytes]], bytes]]]:
    """Damage to a compressed log of four frames."""
    return [
        ("a flipped byte", lambda f: f[0] + f[1] + f[2][:40] + bytes([f[2][40] ^ 1]) + f[2][41:] + f[3]),
        ("a lost frame", lambda f: f[0] + f[1] + f[3]),
        ("a doubled frame", lambda f: f[0] + f[1] + f[2] + f[2] + f[3]),
        ("zeros for a frame", lambda f: f[0] + f[1] + bytes(len(f[2])) + f[3]),
        ("a torn frame and its retry", lambda f: f[0] + f[1] + f[2][:50] + f[2] + f[3]),
        ("swapped frames", lambda f: f[0] + f[2] + f[1] + f[3]),
        ("a lost header frame", lambda f: f[1] + f[2] + f[3]),
        ("one frame for all", lambda f: encode_frame(b"".join(CLOSED[:9]) + b"\xff\n" + b"".join(CLOSED[9:]))),
    ]


@pytest.mark.parametrize(("what", "damage"), bad_frames(), ids=[name for name, _ in bad_frames()])
async def test_compressed_logs_are_salvaged_frame_by_frame(
    tmp_path: Path, what: str, damage: Callable[[list[bytes]], bytes]
) -> None:
    """Intact frames keep their events; the repaired log is compressed, with the header in a frame of its own."""
    frames = [encode_frame(b"".join(part)) for part in (CLOSED[:1], CLOSED[1:6], CLOSED[6:12], CLOSED[12:])]
    path = put(str(tmp_path), "s1", damage(frames), name="session.jsonl.zstd")
    async with SessionStore(tmp_path, compression="zstd") as store:
        await store.repair("s1", dry_run=False, cwd="/srv/project")
        session = await store.resume("s1")
        assert session.seq == 23
        assert [event.to_json() + b"\n" for event in session.events[17:]] == CLOSED[12:]
    assert content(path).startswith(encode_frame(session.header.to_json() + b"\n"))
    assert framed(b"".join(CLOSED))


# Memory


async def test_the_memory_backend_repairs_alike() -> None:
    """The same plan, the original in the quarantine, the fork among the sessions."""
    memory = MemoryBackend(clock=lambda: 5)
    memory.put_bytes("s1", TWO)
    async with SessionStore(backend=memory) as store:
        report = await store.repair("s1", dry_run=False)
        assert report.original == "s1.damaged-5"
        assert memory.quarantine["s1.damaged-5"] == TWO
        assert memory.stored_bytes("s1") == joined([line.rstrip(b"\n") for line in CLOSED])
        assert (await store.inspect("s1~17")).verdict is Verdict.CLEAN
        session = await store.resume("s1", on_damage="salvage")
        assert session.recovery is not None
        assert session.recovery.salvage is None

"""Files that somebody else must not read, places that must not be left, and what hostile files in a root can do."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import stat
import subprocess
import sys
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from sessionstore import EventTypes, Session, SessionStore, SessionStoreError, StorageError
from sessionstore.backends.jsonl import whole
from sessionstore.backends.jsonl.backend import JsonlBackend
from sessionstore.backends.jsonl.frames import encode_frame
from tests.faults import FaultyFiles
from tests.paths import REPO

if TYPE_CHECKING:
    from collections.abc import Generator

    from sessionstore import StoredSession

pytestmark = pytest.mark.crash

TORN = b'{"type":"test/event","seq":9,"ti'


@contextmanager
def umask(mask: int) -> Generator[None]:
    """Another umask for a while."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def snapshot(place: Path) -> dict[str, tuple[int, bytes | str]]:
    """Every name below *place*, with its mode and content."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for directory, directories, names in os.walk(place):
        for name in (*directories, *names):
            path = Path(directory) / name
            mode = path.lstat().st_mode
            content: bytes | str = ""
            if stat.S_ISLNK(mode):
                content = str(path.readlink())
            elif stat.S_ISREG(mode):
                content = path.read_bytes()
            found[str(path.relative_to(place))] = (mode, content)
    return found


def open_to_others(place: Path) -> list[str]:
    """What below *place*, itself included, is not 0600 (a file) or 0700 (a directory)."""
    wrong: list[str] = []
    for path in (place, *place.rglob("*")):
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if stat.S_IMODE(mode) != (0o700 if stat.S_ISDIR(mode) else 0o600):
                wrong.append(f"{path} {stat.S_IMODE(mode):o}")
    return wrong


def fill(session: StoredSession, count: int = 2) -> None:
    """A few events."""
    for _ in range(count):
        session.append("test/event", {"n": session.seq})


async def whole_life(store: SessionStore, root: Path) -> None:
    """Everything that makes or changes a file: create, append, fork, repair, salvage, index, delete, restore."""
    session = await store.create("s", cwd="/srv/project")
    fill(session)
    await session.flush()
    fill(session)
    await (await store.fork(session, child_id="child")).dispose()
    await session.dispose()
    log = next((root / "--srv-project--" / "s").glob("session.jsonl*"))
    with log.open("ab") as file:
        file.write(TORN)
    session = await store.resume("s")
    assert session.recovery is not None
    assert session.recovery.quarantine is not None
    fill(session)
    await session.dispose()
    with log.open("ab") as file:
        file.write(b'{"type":"test/event","seq":99}\n{"type":"turn/end","seq":7,"time":1,"data":{"turn":1}}\n')
    with suppress(SessionStoreError):
        await store.repair("s", dry_run=False)
    entry = await store.delete("s")
    await store.restore(entry)
    await store.delete("child")


# -- Modes


@pytest.mark.parametrize("mask", [0o000, *(pytest.param(m, marks=pytest.mark.slow) for m in (0o077, 0o777))])
@pytest.mark.parametrize("compression", ["none", pytest.param("zstd", marks=pytest.mark.slow)])
async def test_nobody_else_can_read_anything(tmp_path: Path, mask: int, compression: Any) -> None:
    """0600 and 0700 in the moment before every single file operation, whatever the umask."""
    root, locks = tmp_path / "root", tmp_path / "locks"
    files = FaultyFiles()
    seen: set[str] = set()
    wrong: list[str] = []

    def before(_name: str, _number: int) -> None:
        for place in (root, locks):
            if place.exists():
                wrong.extend(open_to_others(place))
                seen.update(path.name[:16] for path in place.rglob("*"))

    files.before = before
    with umask(mask):
        for lock_dir in (None, locks):
            backend = JsonlBackend(root, compression=compression, files=files, lock_dir=lock_dir)
            async with SessionStore(backend=backend) as store:
                await whole_life(store, root)
                await store.empty_trash()
                entry = await store.delete("s")
                assert entry.location is not None
                await store.empty_trash()
    before("", 0)
    assert wrong == []
    assert {"session.lock", "session.index", "session.jsonl.cu", "note.json", ".trash"} <= seen
    assert any(name.startswith("session.tmp-") for name in seen)


async def test_a_log_that_others_may_read_is_written_on_as_it_is(tmp_path: Path) -> None:
    """What somebody opened to others on purpose stays so; a new file beside it does not."""
    async with SessionStore(tmp_path) as store:
        session = await store.create("s")
        fill(session)
        await session.flush()
        (log,) = tmp_path.glob("*/*/session.jsonl")
        log.chmod(0o640)
        fill(session)
        await session.dispose()
        assert stat.S_IMODE(log.stat().st_mode) == 0o640
        assert stat.S_IMODE(log.with_name("session.index").stat().st_mode) == 0o600


# -- Names

HOSTILE = [
    "..", ".", "../../escape", "/etc/passwd", "a/../../b", "..\\..\\b", "~", "~root", "-rf", "a\0b", "a\nb", ".trash",
    "session.lock", "\ud800", "\u202e", "x" * 5000, "é" * 300, "C:\\x", "con", "%2e%2e%2f", "_no-cwd", "--x--", "$(id)",
]  # fmt: skip
names = st.one_of(st.sampled_from(HOSTILE), st.text(min_size=1, max_size=40))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(id=names, child=names, cwd=names, text=names)
@example(id="../../escape", child="../x", cwd="/../../escape", text="../../escape")
def test_no_name_leaves_the_root(tmp_path: Path, id: str, child: str, cwd: str, text: str) -> None:
    """Ids, working directories and header values are data: every operation with them stays below the root."""
    place = tmp_path / "place"
    if not place.exists():
        (place / "deep" / "outside").mkdir(parents=True)
        (place / "deep" / "outside" / "canary").write_text("untouched", encoding="ascii")
    outside = {key: value for key, value in snapshot(place).items() if not key.startswith("deep/root")}
    root = place / "deep" / "root"

    async def run() -> None:
        async with SessionStore(root) as store:
            with suppress(SessionStoreError, ValueError):
                session = await store.create(id, cwd=f"/{cwd}", parent_session=text, origin=text, agent_preset=text)
                fill(session)
                await session.flush()
                await session.dispose()
            for act in (
                lambda: store.resume(id), lambda: store.fork(id, child_id=child), lambda: store.inspect(id),
                lambda: store.read_from(id, 0), lambda: store.delete(id), lambda: store.delete(child),
            ):  # fmt: skip
                with suppress(SessionStoreError):
                    await act()
            for entry in await store.trash():
                assert entry.location is not None
                assert Path(entry.location).is_relative_to(root)
                await store.restore(entry)
                await store.delete(entry.id)
            await store.empty_trash()
            with suppress(SessionStoreError):
                assert (store.locate(id, f"/{cwd}") or root).is_relative_to(root)

    asyncio.run(run())
    assert {key: value for key, value in snapshot(place).items() if not key.startswith("deep/root")} == outside


async def test_a_header_that_lies_about_id_and_cwd(tmp_path: Path) -> None:
    """A planted log whose header names another place: forking, deleting, restoring and repairing stay in the root."""
    root = tmp_path / "root"
    directory = root / "_no-cwd" / "s"
    directory.mkdir(parents=True)
    header = (
        b'{"type":"session","id":"../../../escape","version":0,"createdAt":1,"cwd":"/../../..","delegationDepth":0}\n'
    )
    event = b'{"type":"test/event","seq":0,"time":1,"data":{}}\n'
    end = b'{"type":"turn/end","seq":5,"time":1,"data":{"turn":1,"reason":{"kind":"completed"}}}\n'
    outside = {key for key in snapshot(tmp_path) if not key.startswith("root")}
    for content in (header + event, header + event + TORN, header + event + b"garbage\n" + end):
        (directory / "session.jsonl").write_bytes(content)
        async with SessionStore(root) as store:
            for act in (
                lambda: store.resume("s"), lambda: store.fork("s", child_id="t"),
                lambda: store.repair("s", dry_run=False), lambda: store.delete("s"), lambda: store.delete("t"),
                lambda: store.delete("../../../escape"),
            ):  # fmt: skip
                with suppress(SessionStoreError):
                    await act()
            for entry in await store.trash():
                with suppress(SessionStoreError):
                    await store.restore(entry)
            await store.empty_trash()
        assert {key for key in snapshot(tmp_path) if not key.startswith("root")} == outside
        directory.mkdir(parents=True, exist_ok=True)


# -- Links


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file outside of the root, and a directory beside it, that nothing may change."""
    outside = tmp_path / "outside"
    (outside / "directory").mkdir(parents=True)
    (outside / "file").write_bytes(
        b'{"type":"session","id":"s","version":0,"createdAt":1,"delegationDepth":0}\n' + TORN
    )
    (outside / "file").chmod(0o600)
    return outside


async def attacked(root: Path) -> list[str]:
    """Everything a store can be asked to do with session ``s`` and a new one; what was refused."""
    refused: list[str] = []

    async def go_on() -> None:
        session = await store.resume("s")
        fill(session)
        await session.dispose()

    async def begin() -> None:
        session = await store.create("new", cwd="/srv/project")
        fill(session)
        await session.dispose()

    async with SessionStore(root) as store:
        for act in (
            lambda: store.inspect("s"), store.list, go_on, begin, lambda: store.fork("s", child_id="child"),
            lambda: store.repair("s", dry_run=False), lambda: store.delete("s"), store.trash,
        ):  # fmt: skip
            try:
                await act()
            except SessionStoreError as error:
                refused.append(type(error).__name__)
            except ExceptionGroup as group:
                refused += [type(error).__name__ for error in group.exceptions]
        for entry in await store.trash():
            with suppress(SessionStoreError):
                await store.restore(entry)
        with suppress(SessionStoreError):
            await store.empty_trash()
    return refused


def plant(path: Path, target: Path, kind: str) -> None:
    """Put a link to *target* in the place of *path*."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(path.name + ".moved"))
    else:
        path.unlink(missing_ok=True)
    if kind == "symbolic":
        path.symlink_to(target)
    else:
        os.link(target, path)


FILES = ["session.jsonl", "session.lock", "session.index", "cut"]


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
@pytest.mark.parametrize("name", FILES)
async def test_a_link_in_the_place_of_a_file(tmp_path: Path, victim: Path, name: str, kind: str) -> None:
    """Nothing is written through it: the file behind it keeps every byte, its mode and its other name."""
    root = tmp_path / "root"
    async with SessionStore(root) as store:
        session = await store.create("s", cwd="/srv/project")
        fill(session)
        await session.dispose()
    (log,) = root.glob("*/*/session.jsonl")
    if name != "session.jsonl":
        with log.open("ab") as file:
            file.write(TORN)
    if name == "cut":  # the name that the repair is going to use
        import hashlib

        name = f"session.jsonl.cut-{log.stat().st_size - len(TORN)}-{hashlib.sha256(TORN).hexdigest()[:12]}"
    plant(log.with_name(name), victim / "file", kind)
    before = snapshot(victim)
    refused = await attacked(root)
    assert snapshot(victim) == before
    if name == "session.jsonl":
        assert refused


@pytest.mark.parametrize("what", ["session", "project", ".trash", "new session", "new project"])
async def test_a_link_in_the_place_of_a_directory(tmp_path: Path, victim: Path, what: str) -> None:
    """A directory elsewhere does not become part of the root: nothing is made, moved or changed there."""
    root = tmp_path / "root"
    async with SessionStore(root) as store:
        session = await store.create("s", cwd="/srv/old")
        fill(session)
        await session.dispose()
    places = {
        "session": root / "--srv-old--" / "s",
        "project": root / "--srv-old--",
        ".trash": root / ".trash",
        "new session": root / "--srv-project--" / "new",
        "new project": root / "--srv-project--",
    }
    place = places[what]
    place.parent.mkdir(exist_ok=True)
    plant(place, victim / "directory", "symbolic")
    before = snapshot(victim)
    refused = await attacked(root)
    assert snapshot(victim) == before
    assert refused


async def test_a_root_behind_a_link_is_a_root(tmp_path: Path) -> None:
    """Only what lies below the root is distrusted: the user may well have put the root itself elsewhere."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    async with SessionStore(tmp_path / "link") as store:
        fill(await store.create("s"))
    assert list((tmp_path / "real").glob("*/*/session.jsonl"))


async def test_a_second_name_given_to_a_live_log(tmp_path: Path) -> None:
    """A log that gets a hard link while it is written is not written on; when the link is gone it is."""
    async with SessionStore(tmp_path) as store:
        session = await store.create("s")
        fill(session)
        await session.flush()
        (log,) = tmp_path.glob("*/*/session.jsonl")
        before = log.read_bytes()
        (tmp_path / "second").hardlink_to(log)
        fill(session)
        with pytest.raises(StorageError, match="hard link"):
            await session.flush()
        assert (tmp_path / "second").read_bytes() == before
        (tmp_path / "second").unlink()
        assert await session.flush() == 4


@pytest.mark.parametrize("name", ["session.jsonl", "session.lock", "session.index"])
async def test_a_pipe_in_the_place_of_a_file_hangs_nobody(tmp_path: Path, name: str) -> None:
    """It is refused or passed over."""
    async with SessionStore(tmp_path) as store:
        session = await store.create("s", cwd="/srv/project")
        fill(session)
        await session.dispose()
    (log,) = tmp_path.glob("*/*/session.jsonl")
    log.with_name(name).unlink()
    os.mkfifo(log.with_name(name))
    async with asyncio.timeout(20):
        await attacked(tmp_path)


# -- Bombs

PROGRAM = """
import asyncio, resource, sys
from sessionstore import SessionStore, SessionStoreError

async def main(root, *acts):
    async with SessionStore(root) as store:
        for act in acts:
            more = {"list": (), "read_from": ("s", 0)}.get(act, ("s",))
            try:
                await getattr(store, act)(*more)
            except SessionStoreError:
                pass

asyncio.run(main(*sys.argv[1:]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def run_bounded(program: str, *arguments: object) -> list[str]:
    """The lines that a Python *program* prints; it has 4 GiB."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], check=False, capture_output=True, text=True, cwd=REPO,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def peak(root: Path, *acts: str) -> int:
    """How many bytes of memory a process needs that asks a store for *acts* with session ``s``."""
    return int(run_bounded(PROGRAM, root, *acts)[-1])


def log_with(root: Path, name: str, content: bytes) -> None:
    """A log with that content, as session ``s``."""
    directory = root / "_no-cwd" / "s"
    directory.mkdir(parents=True)
    (directory / name).write_bytes(content)


def zeros_frame(size: int) -> bytes:
    """A zstd frame that decodes to *size* NULs: blocks of 128 KiB that take four bytes each."""
    block = 128 * 1024
    whole = size // block
    head = b"\x28\xb5\x2f\xfd" + b"\x00" + b"\x38"  # no content size, window of 128 KiB
    blocks = [(block << 3 | 1 << 1 | (n == whole - 1)).to_bytes(3, "little") + b"\0" for n in range(whole)]
    return head + b"".join(blocks)


HEADER = b'{"type":"session","version":0,"id":"s","createdAt":1,"delegationDepth":0}\n'


BOMBS = {
    "one frame of 4 GiB": (4 << 30, 1),
    "small frames": (1 << 20, 500),
    "frames as large as one may be": (300 << 20, 2),
}


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("what", BOMBS)
def test_a_zstd_bomb(tmp_path: Path, what: str, first: bool) -> None:
    """A few KB that would be gigabytes, in the place of the header or behind it: whoever reads it needs 1 GiB at most."""
    zstandard = pytest.importorskip("zstandard")
    size, count = BOMBS[what]
    bomb = zeros_frame(size) * count
    assert len(bomb) < 200_000
    header: bytes = zstandard.ZstdCompressor().compress(HEADER)
    log_with(tmp_path, "session.jsonl.zstd", bomb if first else header + bomb)
    assert peak(tmp_path, "list", "inspect", "resume") < 1 << 30


DAMAGE = b'\n{"type":"turn/end","seq":5,"time":1,"data":{"turn":1,"reason":{"kind":"completed"}}}\n'
TEXT_BOMBS = {
    "zeros": (b"\0", 1 << 22, 150),
    "one line of text": (b"x", 1 << 22, 150),
    "long lines": (b"x" * 99_999 + b"\n", 40, 150),
}
REPAIR = """
import asyncio, resource, sys
from sessionstore import DamagedLogError, SessionStore

async def main(root):
    async with SessionStore(root) as store:
        for dry_run in (True, False):
            report = await store.repair("s", dry_run=dry_run)
            assert not report.changed
            print(report.exit_code, report.refusal)
        try:
            await store.resume("s", on_damage="salvage")
        except DamagedLogError:
            pass
        print((await store.verify("s")).exit_code)

asyncio.run(main(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", TEXT_BOMBS)
def test_a_repair_of_a_zstd_bomb(tmp_path: Path, what: str) -> None:
    """It is refused with its numbers, by a dry run, a repair, a salvaging resume and a verify; the log stays."""
    zstandard = pytest.importorskip("zstandard")
    unit, times, count = TEXT_BOMBS[what]
    compress = zstandard.ZstdCompressor(write_checksum=True).compress
    content = compress(HEADER) + compress(unit * times) * count + compress(DAMAGE)
    assert len(content) < 200_000
    log_with(tmp_path, "session.jsonl.zstd", content)
    *said, size = run_bounded(REPAIR, tmp_path)
    assert said[0] == said[1]
    assert said[0].startswith(f"3 its file of {len(content):,} bytes holds more than ")
    assert said[2] == "3"
    assert int(size) < 1 << 30
    assert (tmp_path / "_no-cwd" / "s" / "session.jsonl.zstd").read_bytes() == content


@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_a_repair_takes_room_in_proportion_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: Literal["none", "zstd"]
) -> None:
    """A damaged log of usual lines is repaired whatever is granted to small files; one of tiny lines is refused."""
    pytest.importorskip("zstandard")
    monkeypatch.setattr(whole, "FREE", 0)
    name = "session.jsonl" if compression == "none" else "session.jsonl.zstd"
    frame: Any = bytes if compression == "none" else encode_frame
    for session_id, filler, refused in (("usual", b"x" * 64, False), ("tiny", b"x\n" * 1000, True)):
        directory = tmp_path / "_no-cwd" / session_id
        directory.mkdir(parents=True)
        header = HEADER.replace(b'"s"', b'"%s"' % session_id.encode())
        (directory / name).write_bytes(frame(header) + frame(filler + DAMAGE))
        async with SessionStore(tmp_path) as store:
            report = await store.repair(session_id, dry_run=False)
            assert (report.refusal is not None) == refused
            assert report.changed != refused
            assert (await store.verify(session_id)).exit_code == (3 if refused else 0)


async def test_a_torn_log_too_large_for_a_repair_is_mended_by_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal says so, and it is true."""
    monkeypatch.setattr(whole, "FREE", 0)
    log_with(tmp_path, "session.jsonl", HEADER + b"x\n" * 1000)
    async with SessionStore(tmp_path) as store:
        report = await store.repair("s", dry_run=False)
        assert report.refusal is not None
        assert "a resume" in report.refusal
        session = await store.resume("s", on_damage="salvage")
        fill(session)
        await session.dispose()
        assert (await store.verify("s")).exit_code == 0


@pytest.mark.parametrize("first", [True, False])
def test_a_listing_next_to_a_zstd_bomb(tmp_path: Path, first: bool) -> None:
    """A list looks at so little of it that nobody notices."""
    zstandard = pytest.importorskip("zstandard")
    header: bytes = zstandard.ZstdCompressor().compress(HEADER)
    bomb = zeros_frame(1 << 20) * 3000
    log_with(tmp_path, "session.jsonl.zstd", bomb if first else header + bomb)
    assert peak(tmp_path, "list") < 200 << 20


DEEP = {
    "arrays": b"[" * 200_000,
    "closed arrays": b"[" * 200_000 + b"]" * 200_000,
    "objects": b'{"a":' * 200_000,
    "in a payload": b'{"type":"x/y","seq":0,"time":1,"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "just allowed": b'{"type":"x/y","seq":0,"time":1,"data":' + b"[" * 9_900 + b"]" * 9_900 + b"}\n",
}


@pytest.mark.parametrize("what", [pytest.param(d, marks=[pytest.mark.slow] * (d != "in a payload")) for d in DEEP])
@pytest.mark.parametrize("where", [pytest.param("header", marks=pytest.mark.slow), "event"])
def test_deep_nesting(tmp_path: Path, what: str, where: str) -> None:
    """Whatever stands in a log, no process dies of its depth."""
    if where == "header":
        log_with(tmp_path, "session.jsonl", HEADER[:-2] + b',"x":' + DEEP[what].rstrip() + b"}\n")
    else:
        log_with(tmp_path, "session.jsonl", HEADER + DEEP[what] + b'\n{"type":"x/y","seq":1,"time":1,"data":{}}\n')
    assert peak(tmp_path, "list", "inspect", "read_from", "verify", "repair", "resume") < 512 << 20


def test_deep_events_in_memory() -> None:
    """An event at the limit can be compared, hashed, copied, shown and pickled; one beyond it is refused."""
    program = """
import copy, pickle
from sessionstore import InvalidEventError, Session

def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return {"a": value}

session = Session("s")
event = session.append("x/y", nested(9_900))
again = session.append("x/y", nested(9_900))
for act in (repr, str, hash, copy.copy, copy.deepcopy, pickle.dumps, lambda e: e == again, lambda e: e.data,
            lambda e: e.to_dict(), lambda e: e.to_json(), lambda e: repr(e.data), lambda e: hash(e.data_json)):
    try:
        act(event)
    except (RecursionError, TypeError) as error:
        print(act, type(error).__name__)
for depth in (10_001, 200_000):
    try:
        session.append("x/y", nested(depth))
    except InvalidEventError:
        continue
    raise SystemExit("accepted")
print("ok")
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, cwd=REPO)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "ok"


# -- What errors and logs say

SECRET = "hunter2-sk-live-0123456789"
LINE = '{"type":"%s","seq":%d,"time":1,"data":%s}'
GOOD: dict[str, dict[str, Any]] = {
    "turn/start": {"turn": 1, "trigger": {"kind": "message", "source": {"kind": "user"}}},
    "turn/end": {"turn": 1, "reason": {"kind": "completed"}},
    "user/message": {"id": "m", "role": "user", "source": {"kind": "user"}, "content": [{"type": "text", "text": "x"}]},
    "tool/call": {"turn": 1, "step": 1, "callId": "c", "name": "n", "arguments": "{}"},
    "assistant/chunk": {"turn": 1, "step": 1, "chunk": {"type": "text-delta", "index": 0, "text": "x"}},
    "todo/write": {"todos": [{"content": "x", "status": "pending"}]},
    "assistant/message": {
        "turn": 1, "step": 1,
        "message": {"id": "m", "role": "assistant", "source": {"kind": "model", "provider": "p", "model": "m"},
                    "content": [{"type": "tool-call", "id": "c", "name": "n", "arguments": "{}"}]},
    },
}  # fmt: skip


OPERATIONS: list[Any] = [None, "append", {"op": "replace", "start": 0, "end": SECRET}]


def spoiled(value: Any) -> Generator[Any]:
    """*value* with the secret in the place of each of its parts, as a text, in a list, in an object, or as a key."""
    for bad in (
        SECRET,
        [SECRET],
        {"x": SECRET},
        {"type": SECRET},
        {"kind": SECRET},
        f"{SECRET}\ud800",
        {SECRET: float("nan")},
    ):
        yield bad
    if isinstance(value, dict):
        for key in value:
            for bad in spoiled(value[key]):
                yield {**value, key: bad}
        yield {**value, "extra": SECRET}
    elif isinstance(value, list):
        for at, each in enumerate(value):
            for bad in spoiled(each):
                yield [*value[:at], bad, *value[at + 1 :]]


def everything_said(error: BaseException) -> str:
    """All that somebody sees of an error: its text, its fields, and the errors behind it."""
    said = "".join(traceback.format_exception(error))
    seen: BaseException | None = error
    while seen is not None:
        said += f"{seen!r} {seen} {vars(seen)!r}"
        seen = seen.__cause__ or seen.__context__
    return said


def test_no_refusal_of_an_event_repeats_its_content() -> None:
    """Whatever is wrong with a payload, the error names the place and not what stands there."""
    refused = 0
    for type_, good in GOOD.items():
        for bad in spoiled(good):
            for operation in OPERATIONS:
                session = Session("s")
                try:
                    session.append(type_, bad, surface_op=operation)
                except (SessionStoreError, TypeError) as error:
                    refused += 1
                    if not _names_only_a_key(bad):
                        assert SECRET not in everything_said(error)
    assert refused > 500


class Plugin(Struct, frozen=True):
    """A plugin's payload, with the kinds of fields whose mistakes msgspec quotes."""

    mode: Literal["a", "b"]
    count: int = 0


def test_no_refusal_of_a_plugin_event_repeats_its_content() -> None:
    """The same for types of which only the plugin's Struct says what is right."""
    types = EventTypes()
    types.register("my/type", Plugin)
    for bad in spoiled({"mode": "a", "count": 1}):
        session = Session("s", types=types)
        try:
            event = session.append("my/type", bad)
            assert event.data
        except SessionStoreError as error:
            if not _names_only_a_key(bad):
                assert SECRET not in everything_said(error)


def _names_only_a_key(value: Any) -> bool:
    """Whether the secret is a key of *value*: the path to what is wrong has to name the keys on the way."""
    if isinstance(value, dict):
        return any(SECRET in key or _names_only_a_key(each) for key, each in value.items())
    return isinstance(value, list) and any(map(_names_only_a_key, value))


@pytest.mark.slow
async def test_no_finding_repeats_what_stands_in_a_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Damage of every kind in front of, behind and inside of lines that hold a secret: reports say where, not what."""
    caplog.set_level(logging.DEBUG)
    said: list[str] = []
    end = LINE % ("turn/end", 9, '{"turn":1,"reason":{"kind":"completed"}}')
    lines = [LINE % (type_, 0, json.dumps(bad)) for type_, good in GOOD.items() for bad in spoiled(good)]
    lines = [line for line in lines if "NaN" not in line][::7]
    lines += [
        SECRET, f'"{SECRET}"', f'{{"type":"{SECRET}', f'{{"type":5,"seq":0,"{SECRET}":1}}', f'[{{"a":"{SECRET}"}}]',
        f'{{"type":"x/y","seq":"{SECRET}","time":1,"data":{{}}}}', f'{{"type":"x/y","seq":0,"time":"{SECRET}","data":1}}',
        f'{{"type":"text-chunks","seq0":0,"turn":1,"step":1,"index":0,"t0":0,"d":["{SECRET}"]}}',
        f'{{"type":"text-chunks","seq0":0,"turn":1,"step":1,"index":0,"t0":"{SECRET}","dt":[0],"deltas":["a"]}}',
        f'{{"type":"x/y","seq":0,"time":1,"data":{{"a":"{SECRET}"}}}}{{"type":"x/y","seq":1,"time":1,"data":{{}}}}',
    ]  # fmt: skip
    for number, line in enumerate(lines):
        for tail in ("", end + "\n"):
            root = tmp_path / f"{number}{bool(tail)}"
            log_with(root, "session.jsonl", HEADER + f"{line}\n{line}\n{tail}".encode())
            async with SessionStore(root) as store:
                for act in (
                    store.list, lambda: store.verify("s"), lambda: store.fork("s", child_id="t"),
                    lambda: store.read_from("s", 0), lambda: store.resume("s"), lambda: store.repair("s"),
                    lambda: store.resume("s", on_damage="salvage"),
                ):  # fmt: skip
                    try:
                        found = await act()
                    except SessionStoreError as error:
                        said.append(everything_said(error))
                    else:
                        said += [finding.describe() for finding in getattr(found, "findings", ())]
                        said += [f"{info.detail}" for info in getattr(found, "sessions", ())]
                said += [f"{finding!r} {finding.describe()}" for finding in (await store.inspect("s")).findings]
    assert len(said) > 100
    assert [text for text in said if SECRET in text] == []
    assert SECRET not in caplog.text


async def test_no_failure_to_write_repeats_what_was_to_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk, a foreign writer, a vetoing checker, a failing observer, a limit: none of them shows the event."""
    caplog.set_level(logging.DEBUG)
    errors: list[BaseException] = []
    files = FaultyFiles()
    backend = JsonlBackend(tmp_path, files=files)
    async with SessionStore(
        backend=backend, max_pending_bytes=3000, batch_window_ms=60_000, invariants="strict",
        on_error=lambda _session, error: errors.append(error),
    ) as store:  # fmt: skip
        session = await store.create("s")
        session.observe(lambda _event: 1 / 0)
        session.append("turn/start", GOOD["turn/start"])
        session.append("note/text", {"text": SECRET})
        assert (
            repr(session).count(SECRET)
            == repr(session.events).count(SECRET)
            == repr(session.events[1]).count(SECRET)
            == 0
        )
        files.room = 100
        for act in (session.flush, session.flush):
            with pytest.raises((StorageError, ExceptionGroup)) as caught:
                await act()
            errors.append(caught.value)
        with pytest.raises(SessionStoreError) as limit:
            for _ in range(100):
                session.append("note/text", {"text": SECRET})
        errors.append(limit.value)
        with pytest.raises(SessionStoreError) as broken:
            session.append("step/end", {"turn": 7, "step": 1, "note": SECRET})
        errors.append(broken.value)
        files.heal()
        await session.flush()
        (log,) = tmp_path.glob("*/*/session.jsonl")
        whole = log.read_bytes()
        log.write_bytes(whole + SECRET.encode())
        session.append("note/text", {"text": SECRET})
        with pytest.raises(SessionStoreError) as foreign:
            await session.flush()
        errors.append(foreign.value)
        log.write_bytes(whole)
    assert len(errors) >= 6
    assert [error for error in errors if SECRET in everything_said(error)] == []
    assert "ZeroDivisionError" in caplog.text
    assert SECRET not in caplog.text

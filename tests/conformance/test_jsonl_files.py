"""Conformance, theme Q: sessions as JSONL files, seen from outside."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore import (
    DamagedLogError,
    DuplicateSessionError,
    InvalidEventError,
    Session,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    SessionStore,
    SessionStoreError,
    StorageError,
    UnsupportedFormatError,
    pack_chunk_runs,
    scan_log,
)
from sessionstore.backends.paths import encode_id, project_name, session_paths
from sessionstore.header import make_header
from tests.conformance.build import closed_turn, events, say, text, turn_start, user_message

if TYPE_CHECKING:
    from pathlib import Path

HEADER = {"type": "session", "version": 0, "id": "s", "createdAt": 1, "delegationDepth": 0}
PLACE = {"turn": 1, "step": 1}


def lines(*records: Any) -> bytes:
    """Records as lines of a log; bytes are taken as they are."""
    return b"".join(
        r if isinstance(r, bytes) else json.dumps(r, separators=(",", ":")).encode() + b"\n" for r in records
    )


def write(root: Path, data: bytes, *, id: str = "s", project: str = "_no-cwd") -> Path:
    """Put a log where a session of that id lies."""
    path = root / project / id / "session.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def turn(*, end: bool = True) -> list[dict[str, Any]]:
    """A turn of three or four events."""
    session = Session("s", clock=lambda: 5)
    session.append("turn/start", turn_start())
    say(session)
    session.append("my/event", {"n": 1})
    if end:
        session.append("turn/end", {"turn": 1, "reason": {"kind": "completed"}})
    return [e.to_dict() for e in session.events]


async def refused(root: Path, error: type[SessionStoreError], id: str = "s") -> SessionStoreError:
    """Resuming raises *error* and changes nothing in the root but the lock file."""
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    async with SessionStore(root) as store:
        with pytest.raises(error) as caught:
            await store.resume(id)
    after = {p: p.read_bytes() for p in root.rglob("*") if p.is_file() and p.name != "session.lock"}
    assert after == {p: data for p, data in before.items() if p.name != "session.lock"}
    return caught.value


# --- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id_", "segment"),
    [
        ("abc-1._Z", "abc-1._Z"),
        ("a/b", "a~002Fb"),
        ("a b", "a~0020b"),
        ("~", "~007E"),
        (".", "~002E"),
        ("..", "~002E~002E"),
        ("...", "..."),
        ("é", "~00E9"),
        ("😀", "~D83D~DE00"),
        ("\ud83d", "~D83D"),
        ("a\x00b", "a~0000b"),
    ],
)
def test_an_id_becomes_one_path_segment(id_: str, segment: str) -> None:
    """Letters, digits, dot, dash and underscore stay; everything else is escaped by UTF-16 unit."""
    assert encode_id(id_) == segment


def test_the_empty_id_is_an_error() -> None:
    """There is no directory without a name."""
    with pytest.raises(InvalidEventError):
        encode_id("")


IDS = st.text(
    st.characters(codec=None, categories=None) | st.sampled_from("/.~\ud83d\udc00-\\"), min_size=1, max_size=80
)


@given(IDS, IDS)
def test_different_ids_never_share_a_directory(one: str, two: str) -> None:
    """The escape is injective, long ids and lone surrogates included, and never leaves its parent."""
    a, b = encode_id(one), encode_id(two)
    joined_one = one.encode("utf-16-le", "surrogatepass")
    joined_two = two.encode("utf-16-le", "surrogatepass")
    assert (a == b) == (joined_one == joined_two)
    assert "/" not in a
    assert a not in {".", ".."}
    assert len(a.encode()) <= 200
    assert session_paths("/root", one, None).directory == f"/root/_no-cwd/{a}"


@pytest.mark.parametrize(
    ("cwd", "name"),
    [
        ("/", "--root--"),
        ("/srv/project", "--srv-project--"),
        ("C:\\work\\agent", "--C-work-agent--"),
        ("/开发/~agent", "--~5F00~53D1-~007Eagent--"),
        ("//a//b", "--a-b--"),
        (None, "_no-cwd"),
        ("/" + "x" * 300, "--" + "x" * 251 + "--"),
    ],
)
def test_a_working_directory_becomes_a_readable_name(cwd: str | None, name: str) -> None:
    """Separators become dashes, the rest is escaped, the length is bounded."""
    assert project_name(cwd) == name


async def test_a_relative_root_is_made_absolute_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later change of the working directory, or of HOME, does not move the store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    async with SessionStore("sessions") as relative, SessionStore("~/sessions") as home:
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        monkeypatch.setenv("HOME", "/nowhere")
        for store, expected in ((relative, tmp_path / "sessions"), (home, tmp_path / "home" / "sessions")):
            session = await store.create()
            say(session)
            await session.flush()
            place = store.locate(session.id)
            assert place is not None
            assert expected in place.parents
            assert place.exists()


# --- headers and versions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "direction"),
    [
        ({**HEADER, "version": 1}, "newer"),
        ({**HEADER, "version": 1, "createdAt": "then", "id": 5}, "newer"),
        ({**HEADER, "version": "two"}, "newer"),
        ({k: v for k, v in HEADER.items() if k != "version"}, "older"),
    ],
    ids=["newer", "newer with other shapes", "odd", "none"],
)
async def test_a_foreign_version_is_unsupported_not_damaged(tmp_path: Path, header: Any, direction: str) -> None:
    """It is looked at before the shape of anything else, and the error says where the file is and which way."""
    path = write(tmp_path, lines(header, *turn()))
    error = await refused(tmp_path, UnsupportedFormatError)
    assert isinstance(error, UnsupportedFormatError)
    assert error.direction == direction
    assert str(path) in str(error)


@pytest.mark.parametrize(
    "change",
    [
        {"createdAt": 0.5},
        {"createdAt": -1},
        {"createdAt": 2**53},
        {"createdAt": -0.0},
        {"createdAt": None},
        {"delegationDepth": "0"},
        {"delegationDepth": 0.5},
        {"delegationDepth": -1},
        {"delegationDepth": -0.0},
        {"agentPreset": 5},
        {"cwd": "relative"},
        {"id": 5},
        {"type": "other"},
    ],
    ids=repr,
)
async def test_a_header_with_a_bad_value_is_damage(tmp_path: Path, change: dict[str, Any]) -> None:
    """Each bad value of the header line is refused, and the file stays."""
    write(tmp_path, lines({**HEADER, **change}, *turn()))
    await refused(tmp_path, DamagedLogError)


@pytest.mark.parametrize("first", [b"[1,2]\n", b'"session"\n', b"5\n", b"{\n", b"\xff\xfe\n"], ids=repr)
async def test_a_first_line_that_is_no_object_is_damage(tmp_path: Path, first: bytes) -> None:
    """No header, no session; the events behind it are still somebody's."""
    write(tmp_path, lines(first, *turn()))
    await refused(tmp_path, DamagedLogError)


async def test_a_header_without_a_depth_has_depth_zero(tmp_path: Path) -> None:
    """Where the reference refuses, this reads 0, and the line goes out as it came in."""
    data = lines({k: v for k, v in HEADER.items() if k != "delegationDepth"}, *turn())
    path = write(tmp_path, data)
    async with SessionStore(tmp_path) as store:
        session = await store.resume("s")
        assert session.header.delegation_depth == 0
    assert path.read_bytes() == data


async def test_an_agent_preset_round_trips(tmp_path: Path) -> None:
    """Through the disk."""
    async with SessionStore(tmp_path) as store:
        say(await store.create("s", agent_preset="reviewer"))
    async with SessionStore(tmp_path) as store:
        assert (await store.resume("s")).header.agent_preset == "reviewer"


@pytest.mark.parametrize("field", ["sandboxMode", "approvalPolicy"])
async def test_a_retired_header_field_is_refused(tmp_path: Path, field: str) -> None:
    """The form is of the past, the file is intact."""
    write(tmp_path, lines({**HEADER, field: "x"}, *turn()))
    error = await refused(tmp_path, UnsupportedFormatError)
    assert isinstance(error, UnsupportedFormatError)
    assert error.direction == "retired"


async def test_a_header_longer_than_eight_kib_is_listed_and_resumed(tmp_path: Path) -> None:
    """A long working directory is long, and nothing else."""
    cwd = "/" + "d" * 20_000
    async with SessionStore(tmp_path) as store:
        say(await store.create("s", cwd=cwd))
    async with SessionStore(tmp_path) as store:
        assert [(row.id, row.cwd, row.status) for row in (await store.list()).sessions] == [("s", cwd, "ok")]
        assert (await store.resume("s")).header.cwd == cwd


# --- files and places ----------------------------------------------------------------------------------------------


async def test_files_appear_with_the_first_event(tmp_path: Path) -> None:
    """Creating writes nothing, not even the root; names and modes are as the format says."""
    root = tmp_path / "sessions"
    async with SessionStore(root) as store:
        session = await store.create("s", cwd="/srv/project")
        assert not root.exists()
        assert store.locate("s", "/srv/project") == root / "--srv-project--" / "s" / "session.jsonl"
        say(session)
        await session.flush()
        path = root / "--srv-project--" / "s" / "session.jsonl"
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert {p.name for p in path.parent.iterdir()} == {"session.jsonl", "session.lock"}


async def test_the_place_is_stable_and_a_fork_has_its_own(tmp_path: Path) -> None:
    """Resuming changes no path."""
    async with SessionStore(tmp_path) as store:
        session = await store.create("s", cwd="/srv")
        closed_turn(session)
        await session.flush()
        before = (await store.inspect("s")).location
    async with SessionStore(tmp_path) as store:
        await store.resume("s")
        assert (await store.inspect("s")).location == before
        child = await store.fork("s", None, "c")
        assert (await store.inspect("c")).location != before
        assert child.header.cwd == "/srv"


async def test_bytes_round_trip_with_deltas(tmp_path: Path) -> None:
    """A long stream comes back byte for byte, and so does its file."""
    async with SessionStore(tmp_path) as store:
        session = await store.create("s")
        session.append("turn/start", turn_start())
        session.append("step/start", PLACE)
        for k in range(500):
            session.append("assistant/chunk", text(0, f"token {k}")["data"])
        session.append("step/end", PLACE)
        session.append("turn/end", {"turn": 1, "reason": {"kind": "completed"}})
        events_then = [e.to_json() for e in session.events]
    path = tmp_path / "_no-cwd" / "s" / "session.jsonl"
    data = path.read_bytes()
    assert b"text-chunks" in data
    async with SessionStore(tmp_path) as store:
        session = await store.resume("s")
        assert [e.to_json() for e in session.events] == events_then
    assert path.read_bytes() == data
    scan = scan_log(data)
    body = data.split(b"\n", 1)[1]
    assert b"\n".join([*scan.log.lines(0, len(scan.log)), b""]) == body


async def test_written_bytes_are_never_rewritten(tmp_path: Path) -> None:
    """Every later state of the file begins with the one before, a repair included."""
    path = tmp_path / "_no-cwd" / "s" / "session.jsonl"
    async with SessionStore(tmp_path) as store:
        session = await store.create("s")
        session.append("turn/start", turn_start())
        await session.flush()
        states = [path.read_bytes()]
        say(session)
        await session.flush()
        states.append(path.read_bytes())
    async with SessionStore(tmp_path) as store:
        session = await store.resume("s")
        states.append(path.read_bytes())
        say(session, "u2")
        await session.flush()
        states.append(path.read_bytes())
    for earlier, later in itertools.pairwise(states):
        assert later.startswith(earlier)
        assert len(later) > len(earlier)


async def test_sessions_do_not_mix(tmp_path: Path) -> None:
    """Many sessions of one store, written at once, have their own events only."""
    async with SessionStore(tmp_path) as store:
        sessions = [await store.create(f"s{k}") for k in range(8)]
        for round_ in range(5):
            for session in sessions:
                say(session, f"{session.id}-{round_}")
        await asyncio.gather(*(session.flush() for session in sessions))
    for k in range(8):
        data = (tmp_path / "_no-cwd" / f"s{k}" / "session.jsonl").read_bytes()
        assert [e.data.id for e in scan_log(data).events] == [f"s{k}-{r}" for r in range(5)]  # type: ignore[union-attr]


@pytest.mark.parametrize("id_", ["../escape", "..", ".", "/etc/passwd", "a/../../b", "~", "C:\\x", "\x00"])
async def test_no_id_leaves_the_root(tmp_path: Path, id_: str) -> None:
    """Whatever the id is made of, its session is two levels below the root, and is found again."""
    root = tmp_path / "a" / "b"
    async with SessionStore(root) as store:
        say(await store.create(id_))
    (path,) = tmp_path.rglob("session.jsonl")
    assert path.parent.parent.parent == root
    async with SessionStore(root) as store:
        assert (await store.resume(id_)).id == id_


async def test_a_header_of_another_session_is_refused_before_anything_is_repaired(tmp_path: Path) -> None:
    """A log that names another session, or lies in the wrong project, is not touched, torn or not."""
    torn = b'{"type":"my/ev'
    write(tmp_path, lines({**HEADER, "id": "other"}, *turn(end=False)) + torn)
    await refused(tmp_path, SessionStoreError)
    write(tmp_path, lines({**HEADER, "id": "t", "cwd": "/srv"}, *turn(end=False)) + torn, id="t")
    await refused(tmp_path, SessionStoreError, "t")


async def test_an_alternate_spelling_counts_only_for_the_same_file(tmp_path: Path) -> None:
    """A root reached through a link is the same root; a copy elsewhere is another log of that id."""
    async with SessionStore(tmp_path / "real") as store:
        say(await store.create("s", cwd="/srv"))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    async with SessionStore(tmp_path / "link") as store:
        assert (await store.resume("s")).seq == 1
    original = tmp_path / "real" / "--srv--" / "s" / "session.jsonl"
    write(tmp_path / "real", original.read_bytes(), project="--other--")
    await refused(tmp_path / "real", DuplicateSessionError)


async def test_an_id_in_two_projects_is_a_duplicate(tmp_path: Path) -> None:
    """No operation guesses which one is meant, and a third cannot be created."""
    write(tmp_path, lines({**HEADER, "cwd": "/one"}, *turn()), project="--one--")
    write(tmp_path, lines({**HEADER, "cwd": "/two"}, *turn()), project="--two--")
    async with SessionStore(tmp_path) as store:
        for call in (store.resume, store.inspect, store.delete):
            with pytest.raises(DuplicateSessionError) as caught:
                await call("s")
            assert len(caught.value.paths) == 2
        for cwd in ("/one", "/two", "/three", None):
            with pytest.raises((DuplicateSessionError, SessionExistsError)):
                await store.create("s", cwd=cwd)
        assert len((await store.list()).sessions) == 2


async def test_two_working_directories_may_share_a_project_directory(tmp_path: Path) -> None:
    """The header's cwd decides, not the directory's name."""
    async with SessionStore(tmp_path) as store:
        say(await store.create("one", cwd="/srv/a-b"))
        say(await store.create("two", cwd="/srv-a/b"))
    assert {p.name for p in tmp_path.iterdir()} == {"--srv-a-b--"}
    async with SessionStore(tmp_path) as store:
        assert [row.id for row in (await store.list(cwd="/srv/a-b")).sessions] == ["one"]
        assert [row.id for row in (await store.list(cwd="/srv-a/b")).sessions] == ["two"]
        assert len((await store.list()).sessions) == 2


async def test_a_session_without_cwd_is_not_taken_for_one_with(tmp_path: Path) -> None:
    """An id is taken whatever its cwd; a create of the same id elsewhere adopts nothing."""
    async with SessionStore(tmp_path) as store:
        say(await store.create("s", cwd="/srv"))
    async with SessionStore(tmp_path) as store:
        with pytest.raises(SessionExistsError):
            await store.create("s")


async def test_other_files_beside_a_log_do_not_matter(tmp_path: Path) -> None:
    """A session's directory may hold what a host puts there, and the root too."""
    async with SessionStore(tmp_path) as store:
        say(await store.create("s"))
    (tmp_path / "_no-cwd" / "s" / "attachments").mkdir()
    (tmp_path / "_no-cwd" / "s" / "notes.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "README").write_text("mine", encoding="utf-8")
    (tmp_path / "_no-cwd" / "stray").write_text("mine", encoding="utf-8")
    async with SessionStore(tmp_path) as store:
        assert [row.id for row in (await store.list()).sessions] == ["s"]
        assert (await store.resume("s")).seq == 1


@pytest.mark.parametrize("name", ["s.jsonl", "s.jsonl.zstd", "session.jsonl"])
async def test_a_flat_layout_is_no_session(tmp_path: Path, name: str) -> None:
    """A log that lies directly in a project directory is not this format's layout, and is left alone."""
    (tmp_path / "_no-cwd").mkdir()
    flat = tmp_path / "_no-cwd" / name
    flat.write_bytes(lines(HEADER, *turn()))
    async with SessionStore(tmp_path) as store:
        assert (await store.list()).sessions == ()
        with pytest.raises(SessionNotFoundError):
            await store.resume("s")
    assert flat.read_bytes() == lines(HEADER, *turn())


async def test_bad_logs_are_rows_of_the_listing(tmp_path: Path) -> None:
    """Empty, headerless or foreign: a row with a status, never an exception for all."""
    write(tmp_path, lines({**HEADER, "id": "good"}, *turn()), id="good")
    write(tmp_path, b"", id="empty")
    write(tmp_path, b"nonsense\nmore\n", id="no-header")
    write(tmp_path, lines({**HEADER, "version": 9}), id="foreign")
    async with SessionStore(tmp_path) as store:
        rows = {row.id: row.status for row in (await store.list()).sessions}
    assert rows == {"good": "ok", "empty": "empty", "no-header": "damaged", "foreign": "unsupported"}


async def test_a_missing_root_lists_nothing(tmp_path: Path) -> None:
    """A store that was never written to is an empty store."""
    async with SessionStore(tmp_path / "nowhere") as store:
        assert (await store.list()).sessions == ()
        assert not (tmp_path / "nowhere").exists()


async def test_a_root_that_is_no_directory_is_an_error(tmp_path: Path) -> None:
    """Told early, by create too, and never "not found"."""
    (tmp_path / "file").write_text("x", encoding="utf-8")
    async with SessionStore(tmp_path / "file") as store:
        for call in (store.list(), store.create("s"), store.resume("s"), store.inspect("s")):
            with pytest.raises(StorageError):
                await call


async def test_a_root_that_becomes_unusable_loses_nothing(tmp_path: Path) -> None:
    """A fault at the first write keeps the events; when it is gone, the next flush stores them once."""
    root = tmp_path / "root"
    async with SessionStore(root) as store:
        session = await store.create("s")
        say(session)
        root.write_text("in the way", encoding="utf-8")
        with pytest.raises(StorageError):
            await session.flush()
        assert isinstance(session.persistence_error, StorageError)
        assert session.seq == 1
        root.unlink()
        assert await session.flush() == 1
        assert store.stats().failures == 1
        error: Exception | None = session.persistence_error
        assert error is None
    assert len(scan_log((root / "_no-cwd" / "s" / "session.jsonl").read_bytes()).events) == 1


async def test_a_removed_log_is_not_found(tmp_path: Path) -> None:
    """What somebody deleted is gone, from lookups and listings."""
    async with SessionStore(tmp_path) as store:
        say(await store.create("s"))
    (tmp_path / "_no-cwd" / "s" / "session.jsonl").unlink()
    async with SessionStore(tmp_path) as store:
        assert (await store.list()).sessions == ()
        with pytest.raises(SessionNotFoundError):
            await store.inspect("s")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every directory")
async def test_a_directory_that_cannot_be_read_is_a_storage_error(tmp_path: Path) -> None:
    """Only absence is absence."""
    write(tmp_path, lines(HEADER, *turn()))
    (tmp_path / "_no-cwd").chmod(0)
    try:
        async with SessionStore(tmp_path) as store:
            with pytest.raises(StorageError):
                await store.resume("s")
    finally:
        (tmp_path / "_no-cwd").chmod(0o700)


@pytest.mark.slow
async def test_a_second_owner_is_refused(tmp_path: Path) -> None:
    """While one store has the session, another cannot resume, delete or create it."""
    async with SessionStore(tmp_path) as store, SessionStore(tmp_path) as other:
        session = await store.create("s")
        say(session)
        await session.flush()
        with pytest.raises(SessionLockedError) as caught:
            await other.resume("s")
        assert caught.value.pid == os.getpid()
        with pytest.raises(SessionLockedError):
            await other.delete("s")
        with pytest.raises(SessionExistsError):
            await other.create("s")


async def test_a_reused_id_starts_anew(tmp_path: Path) -> None:
    """After a delete the id is free, and the new session has its own header and seqs."""
    async with SessionStore(tmp_path) as store:
        first = await store.create("s", created_at=1)
        closed_turn(first)
        await first.dispose()
        await store.delete("s")
        second = await store.create("s", created_at=2)
        assert say(second).seq == 0
    async with SessionStore(tmp_path) as store:
        again = await store.resume("s")
        assert (again.header.created_at, again.seq) == (2, 1)


async def test_two_events_of_one_seq_are_never_the_same_by_position(tmp_path: Path) -> None:
    """A log whose next line has a seq that was there, with other data, is torn or damaged, never merged."""
    first, other = turn(end=False), {"type": "my/event", "seq": 2, "time": 5, "data": {"n": 2}}
    end = {"type": "turn/end", "seq": 3, "time": 5, "data": {"turn": 1, "reason": {"kind": "completed"}}}
    write(tmp_path, lines(HEADER, *first, other, end))
    await refused(tmp_path, DamagedLogError)
    path = write(tmp_path, lines({**HEADER, "id": "t"}, *first, other), id="t")
    async with SessionStore(tmp_path) as store:
        session = await store.resume("t")
        assert session.events[2].to_dict()["data"] == {"n": 1}
        assert session.recovery is not None
        assert session.recovery.cut_bytes
    assert path.read_bytes().startswith(lines({**HEADER, "id": "t"}, *first))


# --- the scanner on files ----------------------------------------------------------------------------------------------

GOOD = turn()
MORE = [
    {"type": "turn/start", "seq": 4, "time": 5, "data": turn_start(2)},
    {"type": "my/event", "seq": 5, "time": 5, "data": {}},
]
BAD_LINE = b'{"type":"my/event","seq":4,\n'
GAP = {"type": "my/event", "seq": 9, "time": 5, "data": {}}


@pytest.mark.parametrize(
    ("tail", "kept"),
    [
        ((), 4),
        ((BAD_LINE,), 4),
        ((GAP,), 4),
        ((*MORE, BAD_LINE), 6),
        ((*MORE, {**GAP, "seq": 8}), 6),
        ((*MORE, b'{"type":"my/ev'), 6),
    ],
    ids=["nothing", "bad line", "gap after a turn end", "bad line in the tail", "gap in the tail", "torn"],
)
async def test_what_no_turn_end_follows_is_cut(tmp_path: Path, tail: tuple[Any, ...], kept: int) -> None:
    """A defect behind the last turn end is what a crash leaves: the prefix stays and goes on."""
    write(tmp_path, lines(HEADER, *GOOD, *tail))
    async with SessionStore(tmp_path) as store:
        session = await store.resume("s")
        assert session.events[:kept] == scan_log(lines(HEADER, *GOOD, *MORE)).events[:kept]
        assert session.seq == kept + (1 if kept == 6 else 0)


@pytest.mark.parametrize("middle", [BAD_LINE, GAP, b"\x00" * 64 + b"\n"], ids=["bad line", "gap", "NUL block"])
async def test_what_a_turn_end_follows_is_damage(tmp_path: Path, middle: Any) -> None:
    """A defect before a turn end is no crash's tail: refused, with line and byte."""
    end = {"type": "turn/end", "seq": 4, "time": 5, "data": {"turn": 2, "reason": {"kind": "completed"}}}
    write(tmp_path, lines(HEADER, *GOOD, middle, end))
    error = await refused(tmp_path, DamagedLogError)
    assert isinstance(error, DamagedLogError)
    assert error.findings[0].line == 6
    assert error.findings[0].offset == len(lines(HEADER, *GOOD))


async def test_a_header_alone_is_an_empty_session(tmp_path: Path) -> None:
    """It resumes and takes its first event."""
    write(tmp_path, lines(HEADER))
    async with SessionStore(tmp_path) as store:
        assert say(await store.resume("s")).seq == 0


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\x00" * 100, b'{"type":"session","version":0'], ids=repr)
async def test_an_empty_log_is_refused_and_can_be_deleted(tmp_path: Path, data: bytes) -> None:
    """Nothing to resume, and nothing in the way of getting rid of it."""
    write(tmp_path, data)
    error = await refused(tmp_path, DamagedLogError)
    assert isinstance(error, DamagedLogError)
    assert error.verdict == "empty"
    async with SessionStore(tmp_path) as store:
        await store.delete("s")
        assert (await store.list()).sessions == ()


async def test_a_second_header_is_no_event(tmp_path: Path) -> None:
    """There is exactly one header record, the first line."""
    write(tmp_path, lines(HEADER, *GOOD, HEADER, *MORE))
    async with SessionStore(tmp_path) as store:
        session = await store.resume("s")
        assert session.seq == 4
        assert session.recovery is not None
        assert session.recovery.quarantine is not None


# --- packing ---------------------------------------------------------------------------------------------------------

STREAM = [
    {"type": "turn/start", "seq": 0, "time": 5, "data": turn_start()},
    {"type": "step/start", "seq": 1, "time": 5, "data": PLACE},
]
DELTAS = [text(k, f"t{k}", time=5) for k in range(2, 8)]
ENDS = [
    {"type": "step/end", "seq": 8, "time": 5, "data": PLACE},
    {"type": "turn/end", "seq": 9, "time": 5, "data": {"turn": 1, "reason": {"kind": "completed"}}},
]


async def test_packed_unpacked_and_mixed_files_are_the_same_log(tmp_path: Path) -> None:
    """Rows are storage, not meaning; a row advances the seq by its members."""
    packed = [json.loads(line) for line in pack_chunk_runs(events(*DELTAS))]
    half = [*DELTAS[:3], *(json.loads(line) for line in pack_chunk_runs(events(*DELTAS[3:])))]
    assert (len(packed), len(half)) == (1, 4)
    loaded = []
    for id_, middle in (("packed", packed), ("unpacked", DELTAS), ("mixed", half)):
        path = write(tmp_path, lines({**HEADER, "id": id_}, *STREAM, *middle, *ENDS), id=id_)
        before = path.read_bytes()
        async with SessionStore(tmp_path) as store:
            loaded.append((await store.resume(id_)).events)
        assert path.read_bytes() == before
    assert loaded[0] == loaded[1] == loaded[2]


async def test_a_malformed_row_is_a_defect_as_any_other(tmp_path: Path) -> None:
    """Before a turn end it is damage, and a row whose seq does not continue goes as a whole."""
    row = json.loads(pack_chunk_runs(events(*DELTAS))[0])
    bad = {**row, "data": {**row["data"], "dt": []}}
    write(tmp_path, lines(HEADER, *STREAM, bad, *ENDS))
    await refused(tmp_path, DamagedLogError)
    gap = {**row, "seq0": 4}
    write(tmp_path, lines({**HEADER, "id": "t"}, *STREAM, gap), id="t")
    async with SessionStore(tmp_path) as store:
        session = await store.resume("t")
        assert [e.type for e in session.events] == ["turn/start", "step/start", "step/end", "turn/end"]


# --- what is stored of old forms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "data"),
    [
        ("request/header-delta", {}),
        ("mode/set", {}),
        ("request/header", {"header": {"config": {"provider": "p", "model": "m"}}, "reason": "fallback"}),
    ],
    ids=["delta", "mode", "fallback"],
)
async def test_stored_retired_events_are_unsupported(tmp_path: Path, type_: str, data: Any) -> None:
    """Intact, of the past, refused without a change."""
    write(tmp_path, lines(HEADER, {"type": type_, "seq": 0, "time": 1, "data": data}))
    await refused(tmp_path, UnsupportedFormatError)


async def test_the_metadata_of_a_session_is_its_own(tmp_path: Path) -> None:
    """A header is immutable, so what one reader gets no other can change."""
    async with SessionStore(tmp_path) as store:
        say(await store.create("s", cwd="/srv"))
    async with SessionStore(tmp_path) as store:
        header = (await store.resume("s")).header
        with pytest.raises(AttributeError):
            header.cwd = "/x"  # type: ignore[misc]
        assert header == make_header("s", created_at=header.created_at, cwd="/srv")
        assert user_message()["role"] == "user"

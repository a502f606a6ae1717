"""Bad arguments of a store get a clear error, at once.

It costs nothing: the session goes on and what is stored is sound.
"""

from __future__ import annotations

import math
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

import pytest

from sessionstore import (
    ForkError,
    InvalidEventError,
    Session,
    SessionNotFoundError,
    SessionStore,
    StorageError,
    StoreClosedError,
    StoredSession,
    TrashEntry,
)
from tests.conformance.build import goes_on

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conformance.places import Place


# --- wrong arguments of the store ---------------------------------------------------------------------------------

NO_IDS: list[Any] = [None, b"s", 0, 1.5, True, [], {}, object()]
ODD_IDS = ["", ".", "..", "../x", "a/b", "a\0b", "a\nb", " ", "-", "~", "a~3", "CON", "x" * 300, "漢字" * 100, "\ud800"]
BY_ID: dict[str, Callable[[SessionStore, Any], Any]] = {
    "resume": lambda store, name: store.resume(name),
    "salvage": lambda store, name: store.resume(name, on_damage="salvage"),
    "inspect": lambda store, name: store.inspect(name),
    "read_from": lambda store, name: store.read_from(name, 0),
    "verify": lambda store, name: store.verify(name),
    "repair": lambda store, name: store.repair(name),
    "repair for good": lambda store, name: store.repair(name, dry_run=False),
    "follow": lambda store, name: anext(store.follow(name)),
    "delete": lambda store, name: store.delete(name),
}


@pytest.mark.parametrize("method", BY_ID)
async def test_an_id_is_a_str(place: Place, method: str) -> None:
    """Anything else is a mistake of the program and is told so, whatever the backend would make of it."""
    async with place.store() as store:
        session = await store.create("s")
        for id in NO_IDS:
            with pytest.raises(TypeError, match="a session id is a str, got"):
                await BY_ID[method](store, id)
        await goes_on(session)


@pytest.mark.parametrize("method", BY_ID)
async def test_a_session_that_is_not_there(place: Place, method: str) -> None:
    """Whatever its id looks like, it is not found; the message names it, and what to do, and can be printed."""
    async with place.store() as store:
        session = await store.create("s")
        await session.flush()
        for id in ODD_IDS:
            with pytest.raises(SessionNotFoundError, match=r"list\(\), or `sessionstore ls`, shows") as caught:
                await BY_ID[method](store, id)
            assert caught.value.session_id == id
            assert len(str(caught.value).encode()) < 1000
        await goes_on(session)


async def test_every_str_but_the_empty_one_is_an_id(place: Place) -> None:
    """Odd ids are stored like others; all they need is to be told apart."""
    async with place.store() as store:
        for id in ODD_IDS[1:]:
            session = await store.create(id)
            await goes_on(session)
            await session.dispose()
            assert (await store.verify(id)).verdict == "clean"
        assert {row.id for row in (await store.list()).sessions} == set(ODD_IDS[1:])


CREATE: list[tuple[dict[str, Any], type[Exception], str]] = [
    *[({"id": id}, InvalidEventError, r"non-empty string, got .* at \$\.id") for id in [*NO_IDS[1:], ""]],
    *[({"cwd": cwd}, TypeError, "cwd is an absolute path") for cwd in NO_IDS[1:]],
    *[
        ({"cwd": cwd}, InvalidEventError, r"absolute path, got .* at \$\.cwd")
        for cwd in ["", ".", "a/b", "~", "\ud800"]
    ],
    *[({"seed": seed}, TypeError, "not iterable") for seed in [0, 1.5, True, object()]],
    *[({"seed": seed}, InvalidEventError, "seed event 0 is refused") for seed in [b"x", "x", {"a": 1}, [None], [{}]]],
    *[({"created_at": time}, InvalidEventError, r"\$\.createdAt") for time in ["1", -1, 1.5, True, 2**53]],
    *[({"seed_length": n}, InvalidEventError, r"\$\.seedLength") for n in ["1", -1, 1.5, True, 2**53]],
    *[({"delegation_depth": n}, InvalidEventError, r"\$\.delegationDepth") for n in [None, "1", -1, 1.5, True]],
    *[({"parent_session": id}, InvalidEventError, r"\$\.parentSession") for id in [0, "", b"x", []]],
    *[({"origin": word}, InvalidEventError, 'expected "subagent"') for word in [0, "", "user", []]],
    *[({"agent_preset": word}, InvalidEventError, r"\$\.agentPreset") for word in [0, "", b"x", []]],
]


async def test_what_create_refuses(place: Place) -> None:
    """A refused session is nowhere, and its id is free."""
    async with place.store() as store:
        anything: dict[str, Any] = {"id": "s"}
        for arguments, error, message in CREATE:
            with pytest.raises(error, match=message):
                await store.create(**(anything | arguments))
        assert store.stats().open_sessions == 0
        await goes_on(await store.create("s"))
        assert [row.id for row in (await store.list()).sessions] == ["s"]


def entry(key: Any, id: Any) -> TrashEntry:
    """An entry of the trash; constructors of Structs do not look at types."""
    return TrashEntry(key=key, id=id, deleted_at=0, bytes=0)


OTHERS: list[tuple[str, dict[str, Any], list[Any], type[Exception], str]] = [
    ("read_from", {"id": "s", "seq": ...}, [None, "0", 0.0, True, b"0", [], math.nan], TypeError, "seq is an int"),
    ("read_from", {"id": "s", "seq": ...}, [-1, -(2**70)], ValueError, "0 or more"),
    ("follow", {"id": ...}, NO_IDS, TypeError, "a session id is a str"),
    ("follow", {"id": "s", "from_seq": ...}, [None, "0", 0.0, True], TypeError, "seq is an int"),
    ("follow", {"id": "s", "from_seq": ...}, [-1], ValueError, "0 or more"),
    ("follow", {"id": "s", "max_wait": ...}, [None, "1", True, b"1", []], TypeError, "a number of seconds"),
    ("follow", {"id": "s", "max_wait": ...}, [0, -1, math.nan, math.inf], ValueError, "above 0"),
    ("list", {"limit": ...}, ["1", 1.0, True, b"1", [], math.nan], TypeError, "limit is an int"),
    ("list", {"limit": ...}, [0, -1], ValueError, "at least 1"),
    ("list", {"after": ...}, ["", "ab", b"", 0, 1.5, [], {}, (), (1,), (1, 2)], TypeError, "the `next` of a page"),
    ("list", {"after": ...}, [("a", "b"), (True, "a"), (1.5, "a"), (1, "a", 2)], TypeError, "the `next` of a page"),
    ("list", {"cwd": ...}, [0, b"/w", True, [], {}, object()], TypeError, "cwd is an absolute path"),
    ("list", {"cwd": ...}, ["", ".", "w"], ValueError, "abspath"),
    ("resume", {"id": "s", "on_damage": ...}, [None, "", True, 0, [], {}, b"raise"], ValueError, "'salvage'"),
    ("repair", {"id": "s", "dry_run": ...}, [None, 0, 1, "", "no", []], TypeError, "dry_run is True or False"),
    ("repair", {"id": "s", "cwd": ...}, [0, b"/w", True, []], TypeError, "cwd is an absolute path"),
    ("repair", {"id": "s", "cwd": ...}, ["", ".", "w"], InvalidEventError, "absolute path"),
    ("locate", {"id": ...}, [None, 0, b"s", []], TypeError, "a session id is a str"),
    ("locate", {"id": ...}, [""], InvalidEventError, "never empty"),
    ("locate", {"id": "s", "cwd": ...}, [0, b"/w", True, []], TypeError, "cwd is an absolute path"),
    ("locate", {"id": "s", "cwd": ...}, ["", "."], InvalidEventError, "absolute path"),
    ("restore", {"entry": ...}, [None, "s", 0, {}, entry(None, "s"), entry("s", 0)], TypeError, "an entry of trash"),
    ("dispose", {"session": ...}, [None, "s", 0, Session("s")], TypeError, "a session of this store"),
    ("dispose", {"session": ...}, [StoredSession("s")], ValueError, "not one of this store"),
    ("fork", {"source": ...}, [None, b"s", 0, True, [], {}], TypeError, "a session or an id"),
    ("fork", {"source": "s", "child_id": ...}, [0, b"s", True, [], {}], TypeError, "a session id is a str"),
    ("fork", {"source": "s", "child_id": ...}, [""], InvalidEventError, r"\$\.id"),
    ("fork", {"source": "s", "boundary": ...}, ["0", 0.0, True, [], b"0"], ForkError, "an int, .*INVALID_BOUNDARY"),
    ("fork", {"source": "s", "boundary": ...}, [-1, 2, 10**30], ForkError, "seq 0 to 1.*INVALID_BOUNDARY"),
]


async def test_what_every_other_method_refuses(place: Place) -> None:
    """The error says which argument, what it should have been and what it was; the store and its session go on."""
    async with place.store() as store:
        session = await store.create("s")
        await goes_on(session)
        await goes_on(session)
        for method, arguments, values, error, message in OTHERS:
            if method == "locate" and store.locate("s") is None:
                continue  # no paths, no id that has none
            for value in values:
                given = {name: value if wanted is ... else wanted for name, wanted in arguments.items()}
                with pytest.raises(error, match=message):
                    done = getattr(store, method)(**given)
                    done = anext(done) if method == "follow" else done
                    pytest.fail(f"{method}({given}) gave {await done if isawaitable(done) else done}")
        await goes_on(session)
        assert (await store.verify("s")).verdict == "clean"
        assert store.stats().open_sessions == 1


async def test_deleted_is_restored_once(place: Place) -> None:
    """The second time it is not in the trash any more; nor is what never was."""
    async with place.store() as store:
        session = await store.create("s")
        await goes_on(session)
        await session.dispose()
        deleted = await store.delete("s")
        await store.restore(deleted)
        for gone in [deleted, *(entry(key, "s") for key in ["", "..", "../s", "a\0", "\ud800"])]:
            with pytest.raises(SessionNotFoundError, match=r"; trash\(\)"):
                await store.restore(gone)
        await goes_on(await store.resume("s"))


async def test_the_refusals_of_a_fork_have_an_order(place: Place) -> None:
    """Of several mistakes the first in the list is told: child's id, source, object, boundary, open turn."""
    async with place.store() as store:
        session = await store.create("s")
        session.append("turn/start", {"turn": 1})
        gone = await store.create("gone")
        await goes_on(gone)
        await gone.dispose()
        mistakes: list[tuple[Any, int | None, str, str]] = [
            ("missing", 99, "s", "SESSION_ALREADY_EXISTS"),
            ("missing", 99, "gone", "SESSION_ALREADY_EXISTS"),
            (gone, 99, "s", "SESSION_ALREADY_EXISTS"),
            ("missing", 99, "new", "SESSION_NOT_FOUND"),
            (gone, 99, "new", "SESSION_NOT_LIVE"),
            (Session("s"), 99, "new", "SESSION_NOT_LIVE"),
            (session, 99, "new", "INVALID_BOUNDARY"),
            (session, -1, "new", "INVALID_BOUNDARY"),
            (session, 0, "new", "OPEN_TURN"),
            (session, None, "new", "OPEN_TURN"),
        ]
        for source, boundary, child, code in mistakes:
            with pytest.raises(ForkError) as caught:
                await store.fork(source, boundary, child)
            assert caught.value.code == code
        await goes_on(session)
        session.append("turn/end", {"turn": 1, "reason": {"kind": "completed"}})
        await goes_on(await store.fork(session, None, "new"))


# --- roots --------------------------------------------------------------------------------------------------------

NO_ROOTS: list[tuple[Any, type[Exception]]] = [
    *[(root, TypeError) for root in [b"/r", 0, 1.5, True, [], {}, object()]],
    *[(root, ValueError) for root in ["", "a\0b", "/tmp/\ud800", "~nobody-of-that-name/r"]],
]


@pytest.mark.parametrize("root", NO_ROOTS, ids=repr)
def test_what_is_no_directory_is_no_root(root: tuple[Any, type[Exception]]) -> None:
    """It is refused where it is given: later nobody knows who gave it.  So is a folder for locks."""
    with pytest.raises(root[1], match=r"directory"):
        SessionStore(root[0])
    with pytest.raises(root[1], match=r"directory"):
        SessionStore("/nowhere", lock_dir=root[0])


@pytest.mark.parametrize("backend", ["/r", 0, [], object()], ids=repr)
def test_what_is_no_backend(backend: Any) -> None:
    """A path in the wrong argument is told at once, not by the first method that a str does not have."""
    with pytest.raises(TypeError, match="a path is given as root"):
        SessionStore(backend=backend)


def file(root: Path) -> None:
    """A file where the directory should be."""
    root.write_text("not a directory")


def below_a_file(root: Path) -> None:
    """A file above the directory."""
    root.parent.write_text("not a directory")


def nowhere(root: Path) -> None:
    """A link to nothing."""
    root.symlink_to("nothing")


def loop(root: Path) -> None:
    """A link to itself."""
    root.symlink_to(root.name)


@pytest.mark.parametrize("make", [file, below_a_file, nowhere, loop])
async def test_a_root_that_is_no_directory_is_told_early(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Create says so before an event can be lost, and names the place; closing has nothing to complain of."""
    root = tmp_path / "above" / "root"
    if make is not below_a_file:
        root.parent.mkdir()
    make(root)
    async with SessionStore(root) as store:
        with pytest.raises(StorageError, match=str(root)) as caught:
            await store.create("s")
        assert isinstance(caught.value.os_error, OSError)
        for method in BY_ID.values():
            with pytest.raises((StorageError, SessionNotFoundError)):
                await method(store, "s")
    async with SessionStore(tmp_path / "sessions", lock_dir=root) as store:
        with pytest.raises(StorageError, match=f"keep locks in {root}"):
            await store.create("s")


async def test_a_relative_root_does_not_follow_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made absolute once, when it is given."""
    monkeypatch.chdir(tmp_path)
    store = SessionStore("sessions")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    session = await store.create("s")
    await goes_on(session)
    await store.aclose()
    assert list(tmp_path.glob("sessions/*/s/session.jsonl"))


def test_a_relative_root_in_a_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be made absolute, which is an error of the storage."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(StorageError, match="current directory"):
        SessionStore("sessions")


# --- after the end ---------------------------------------------------------------------------------------------------


async def test_closed_means_closed(place: Place) -> None:
    """Every method says so, with what to do; closing and disposing again is nothing."""
    store = place.store()
    session = await store.create("s")
    await goes_on(session)
    await store.aclose()
    for method in BY_ID.values():
        with pytest.raises(StoreClosedError, match="the store was closed"):
            await method(store, "s")
    for call in (store.create, store.list, store.trash, store.empty_trash, store.__aenter__):
        with pytest.raises(StoreClosedError, match="the store was closed"):
            await call()
    for append in (lambda: session.append("test/event", {}), lambda: session.inject("x")):
        with pytest.raises(StoreClosedError, match=r"'s'.*disposed"):
            append()
    with pytest.raises(StoreClosedError, match=r"'s'.*disposed"):
        await session.flush()
    for again in (session.dispose, store.aclose, lambda: store.dispose(session)):
        await again()
    assert session.seq == 1
    assert session.events[0].type == "test/after"


async def test_a_repair_of_a_sound_log_counts_what_it_keeps(place: Place) -> None:
    """Nothing to repair does not mean nothing there."""
    async with place.store() as store:
        session = await store.create("s")
        await goes_on(session)
        report = await store.repair("s")
        assert (report.changed, report.events, report.kept) == (False, 1, 1)

"""What the store does while it is watched: the lives whose every moment is tried as the last one."""

from __future__ import annotations

import asyncio
import errno
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, structs

from sessionstore import SessionNotFoundError, SessionStore, StorageError
from sessionstore import exit as exit_hooks
from sessionstore.backends.paths import session_paths
from tests.crash.disk import Disk, Fault
from tests.crash.promises import CWD, ROOT, Ledger, Place, Promise, Setup

if TYPE_CHECKING:
    from sessionstore import StoredSession

T = TypeVar("T")

__all__ = [
    "Crash",
    "Life",
    "Workload",
    "batches",
    "deleting",
    "exiting",
    "fault_at",
    "forking",
    "mending_a_hole",
    "mending_two_histories",
    "resuming",
    "resuming_torn",
    "robbed",
    "streaming",
]

SOURCE = {"kind": "model", "provider": "p", "model": "m"}
PATIENCE = 8  # how often an operation is tried again


class Crash(Struct):
    """The moment before an operation: the disk, and what was promised by then."""

    moment: str
    disk: Disk
    promises: tuple[Promise, ...]


class Life:
    """One run of a program with a store on *disk*, and every moment of it that differs from the one before.

    ``operations`` counts the file operations, before each of which the program could have died.
    """

    def __init__(self, disk: Disk, setup: Setup, *promises: Promise) -> None:
        self.disk = disk
        self.setup = setup
        self.ledger = Ledger()
        for promise in promises:
            self.ledger.expect(promise)
        self.crashes: list[Crash] = []
        self.operations = 0
        self.abandoned = False  # the program ends without a close
        self.troubled = False  # a move was refused, and may have been done all the same
        self._fault = disk.fault
        self._last: tuple[int, tuple[Promise, ...]] | None = None
        disk.before = self._before

    def _before(self, name: str, path: str) -> None:
        self.operations += 1
        now = (self.disk.version, self.ledger.promises())
        if now != self._last:
            self._last = now
            self.crashes.append(Crash(f"{self.operations} {name} {path}", self.disk.clone(), now[1]))

    def pause(self) -> None:
        """What comes now is preparation: nothing of it counts, and nothing fails."""
        self._fault, self.disk.fault, self.disk.before = self.disk.fault, None, None

    def start(self) -> None:
        """The preparation is over."""
        self.crashes.clear()
        self.operations = self.disk.operations = 0
        self.disk.fault, self.disk.before = self._fault, self._before

    async def live(self, workload: Workload) -> None:
        """Let the program run to its end, which is a moment like any other."""
        store = self.setup.open(self.disk)
        try:
            await workload(self, store)
        finally:
            if self.abandoned:
                exit_hooks.forget(store._registry)
            else:
                await store.aclose()
        self._before("the end", "")
        self.disk.before = None

    async def insist(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do *work*, again where the disk refuses; the fault goes away once it was reported."""
        for _ in range(PATIENCE):
            try:
                return await work()
            except (StorageError, ExceptionGroup):
                self.disk.fault = None
        return await work()

    async def create(self, store: SessionStore, session_id: str = "s") -> StoredSession:
        session = await self.insist(lambda: store.create(session_id, cwd=CWD))
        self.ledger.watch(session)
        return session

    async def flush(self, session: StoredSession) -> None:
        self.ledger.published(session.id)
        await self.insist(session.flush)

    async def dispose(self, session: StoredSession) -> None:
        await session.dispose()
        self.ledger.forget(session.id)


Workload = Callable[[Life, SessionStore], Coroutine[Any, Any, None]]


# --- what is appended -------------------------------------------------------------------------------------------


def turn_start(session: StoredSession, turn: int) -> None:
    session.append("turn/start", {"turn": turn, "trigger": {"kind": "message", "source": {"kind": "user"}}})


def turn_end(session: StoredSession, turn: int) -> None:
    session.append("turn/end", {"turn": turn, "reason": {"kind": "completed"}})


def user(session: StoredSession, text: str = "hi") -> None:
    message = {"role": "user", "content": [{"type": "text", "text": text}], "source": {"kind": "user"}}
    session.append("user/message", {**message, "id": f"m{session.seq}"}, surface_op="append")


def asks(session: StoredSession, turn: int, *calls: str) -> None:
    """A step in which the model streams some text and asks for *calls*, the first of which is started."""
    place = {"turn": turn, "step": 1}
    session.append("step/start", place)
    for text in ("Hel", "lo ", "wörld"):
        session.append("assistant/chunk", {**place, "chunk": {"type": "text-delta", "index": 0, "text": text}})
    content: list[Any] = [{"type": "text", "text": "Hello wörld"}]
    content += [{"type": "tool-call", "id": call, "name": "sh", "arguments": "{}"} for call in calls]
    message = {"role": "assistant", "content": content, "source": SOURCE, "id": f"a{session.seq}"}
    session.append("assistant/message", {**place, "message": message}, surface_op="append")
    if calls:
        session.append("tool/call", {**place, "callId": calls[0], "name": "sh", "arguments": "{}"})


def answers(session: StoredSession, turn: int, call: str, text: str = "done") -> None:
    block = {"type": "tool-result", "toolCallId": call, "content": [{"type": "text", "text": text}]}
    source = {"kind": "tool", "callId": call}
    message = {"role": "user", "content": [block], "source": source, "id": f"r{session.seq}"}
    session.append("tool/result", {"turn": turn, "step": 1, "message": message}, surface_op="append")


# --- lives ------------------------------------------------------------------------------------------------------


async def batches(life: Life, store: SessionStore) -> None:
    """Create, then batches of every kind: open calls, turn/end first, turn/end inside, two of them, a long line."""
    session = await life.create(store)
    turn_start(session, 1)
    user(session)
    asks(session, 1, "c1", "c2")
    await life.flush(session)
    answers(session, 1, "c1")
    await life.flush(session)
    answers(session, 1, "c2")
    session.append("step/end", {"turn": 1, "step": 1})
    turn_end(session, 1)
    turn_start(session, 2)
    user(session, "second")
    await life.flush(session)
    turn_end(session, 2)
    turn_start(session, 3)
    asks(session, 3)
    session.append("step/end", {"turn": 3, "step": 1})
    turn_end(session, 3)
    turn_start(session, 4)
    await life.flush(session)
    user(session, "long " * 120)
    asks(session, 4, "c3")
    await life.flush(session)
    answers(session, 4, "c3")
    session.append("step/end", {"turn": 4, "step": 1})
    turn_end(session, 4)
    await life.flush(session)
    await life.dispose(session)


async def brief(life: Life, store: SessionStore) -> None:
    """Two batches, the second of which closes the turn."""
    session = await life.create(store)
    turn_start(session, 1)
    user(session)
    await life.flush(session)
    turn_end(session, 1)
    await life.flush(session)
    await life.dispose(session)


async def streaming(life: Life, store: SessionStore) -> None:
    """Batches that begin on their own, with a flush now and then."""
    session = await life.create(store)
    life.ledger.change(session.id, first=1)
    for turn in range(1, 4):
        turn_start(session, turn)
        await _idle(life, session)
        user(session, "text " * 20)
        await _idle(life, session)
        asks(session, turn)
        session.append("step/end", {"turn": turn, "step": 1})
        turn_end(session, turn)
        await _idle(life, session)
        if turn != 2:
            await life.flush(session)
    await life.dispose(session)


async def _idle(life: Life, session: StoredSession) -> None:
    """Let what was begun in the background end."""
    for _ in range(20):
        await asyncio.sleep(0)
    if session.persistence_error is not None:
        life.disk.fault = None


async def forking(life: Life, store: SessionStore) -> None:
    """A live session, forked; the fork goes on; then a fork of what is stored, of a closed parent."""
    parent = await life.create(store)
    turn_start(parent, 1)
    user(parent, "text " * 30)
    turn_end(parent, 1)
    turn_start(parent, 2)
    await life.flush(parent)
    life.ledger.expect(Promise(id="f1", lines=_lines(parent, 3), header=None, first=3))
    child = await _fork(life, store, parent, 2, "f1")
    turn_start(child, 2)
    await life.flush(child)
    turn_end(parent, 2)
    await life.flush(parent)
    await life.dispose(parent)
    life.ledger.expect(Promise(id="f2", lines=_lines(parent, 5), first=5))
    await life.dispose(await _fork(life, store, "s", None, "f2"))
    await life.dispose(child)


def _lines(session: StoredSession, count: int) -> tuple[bytes, ...]:
    return tuple(event.to_json() for event in session.events[:count])


async def _fork(
    life: Life, store: SessionStore, source: StoredSession | str, boundary: int | None, child: str
) -> StoredSession:
    session = await life.insist(lambda: store.fork(source, boundary, child))
    life.ledger.watch(session, exists=True)
    return session


async def resuming(life: Life, store: SessionStore) -> None:
    """Another life of session ``s``: resume (or create what was never published), two batches, the end."""
    try:
        session = await life.insist(lambda: store.resume("s"))
        life.ledger.watch(session, exists=True)
    except SessionNotFoundError:
        session = await life.create(store)
    turn = 1000
    turn_start(session, turn)
    user(session, "again")
    await life.flush(session)
    turn_end(session, turn)
    turn_start(session, turn + 1)
    await life.flush(session)
    await life.dispose(session)


async def resuming_torn(life: Life, store: SessionStore) -> None:
    """A log whose last line was cut and is followed by garbage, in an open turn with open calls: resume, go on."""
    life.pause()
    session = await store.create("s", cwd=CWD)
    turn_start(session, 1)
    user(session)
    asks(session, 1, "c1", "c2")
    await session.flush()
    lines, path = _lines(session, session.seq), _log(life, "s")
    header = session.header.to_json()
    data = life.disk.tree()[path] or b""
    await session.dispose()
    tail = b'{"type":"tool/result","seq":8,"ti' + bytes(70) + b"\xff\n{}"
    _put(life, path, data + tail)
    life.ledger.expect(Promise(id="s", header=header, lines=lines, acked=len(lines), exists=True, kept=(tail,)))
    life.start()
    await resuming(life, store)


def _put(life: Life, path: str, data: bytes) -> None:
    """Put a durable file of *data* in the place of another."""
    life.disk.unlink(path)
    fd = life.disk.create(path)
    life.disk.write(fd, memoryview(data))
    life.disk.sync(fd)
    life.disk.close(fd)
    life.disk.sync_directory(path.rpartition("/")[0])


async def robbed(life: Life, store: SessionStore) -> None:
    """Somebody removes the log, then its whole directory, while the session is open: it is published again."""
    session = await life.create(store)
    turn_start(session, 1)
    user(session, "text " * 30)
    await life.flush(session)
    paths = session_paths(ROOT, "s", CWD)
    for turn, everything in ((1, False), (2, True)):
        life.ledger.change("s", exists=False, acked=0, first=session.seq)
        life.ledger.robbed.add("s")
        log = paths.log(life.setup.compression)
        prefix = f"{paths.directory}/"
        fault, life.disk.fault = life.disk.fault, None  # whoever removes it has a better disk
        for path in [path for path in life.disk.tree() if path.startswith(prefix)] if everything else [log]:
            life.disk.unlink(path)
        if everything:
            life.disk.rmdir(paths.directory)
        life.disk.fault = fault
        user(session, "after it was removed")
        turn_end(session, turn)
        turn_start(session, turn + 1)
        await life.flush(session)
        life.ledger.robbed.discard("s")
        life.ledger.change("s", exists=True, first=0)
    await life.dispose(session)


async def deleting(life: Life, store: SessionStore) -> None:
    """Delete, restore, delete again, empty the trash."""
    session = await life.create(store)
    turn_start(session, 1)
    user(session, "text " * 30)
    await life.flush(session)
    await life.dispose(session)
    either: frozenset[Place] = frozenset({"home", "trash"})
    for again in (False, True):
        life.ledger.change("s", places=either)
        if await _until_done(life, lambda: store.delete("s")):
            life.ledger.change("s", places=frozenset({"trash"}))
        if not again:
            life.ledger.change("s", places=either)
            entry = (await store.trash())[0]
            if await _until_done(life, functools.partial(store.restore, entry)):
                life.ledger.change("s", places=frozenset({"home"}))
    life.ledger.change("s", places=frozenset({"home", "trash", "nowhere"} if life.troubled else {"trash", "nowhere"}))
    await life.insist(store.empty_trash)


async def _until_done(life: Life, move: Callable[[], Awaitable[object]]) -> bool:
    """Whether *move* returned; ``False`` where it was done by a try that failed later, and may not be durable."""
    for _ in range(PATIENCE):
        try:
            await move()
        except SessionNotFoundError:
            return False
        except StorageError:
            life.disk.fault = None
            life.troubled = True
        else:
            return True
    raise AssertionError("it does not work without faults")


async def exiting(life: Life, store: SessionStore) -> None:
    """The interpreter ends without a close: what waits is written without an event loop."""
    session = await life.create(store)
    turn_start(session, 1)
    user(session, "text " * 30)
    await life.flush(session)
    turn_end(session, 1)
    turn_start(session, 2)
    user(session, "unsaved")
    store._registry.write_at_exit()
    life.ledger.change("s", acked=session.seq)
    life.abandoned = True


async def mending_a_hole(life: Life, store: SessionStore) -> None:
    """A line, or a frame, in the middle of a closed log reads as NULs: salvage, and go on."""
    life.pause()
    await _turns(store, "s")
    data = life.disk.tree()[_log(life, "s")] or b""
    where = data.index(b"\n", len(data) // 2) + 1 if life.setup.compression == "none" else len(data) // 2
    await _salvage(life, store, data[:where] + bytes(40) + data[where + 40 :])


async def mending_two_histories(life: Life, store: SessionStore) -> None:
    """Two programs wrote one log: salvage makes the second history a session of its own."""
    life.pause()
    await _turns(store, "s")
    await _turns(store, "other", "another text, " * 3)
    both = [(life.disk.tree()[_log(life, each)] or b"").split(b"\n") for each in ("s", "other")]
    same = next(n for n in range(1, len(both[0])) if both[0][n] != both[1][n])
    await _salvage(life, store, b"\n".join([*both[0][:-1], *both[1][same:]]))


async def _turns(store: SessionStore, session_id: str, text: str = "text " * 10) -> None:
    session = await store.create(session_id, cwd=CWD)
    for turn in (1, 2, 3):
        turn_start(session, turn)
        user(session, "the same" if turn == 1 else text)
        turn_end(session, turn)
        await session.flush()
    await session.dispose()


async def _salvage(life: Life, store: SessionStore, damaged: bytes) -> None:
    """Put *damaged* in the place of the log; what a salvage makes of it must come of it after every crash, too."""
    path = _log(life, "s")
    _put(life, path, damaged)
    if any(path.endswith("/other") for path in life.disk.tree()):
        await store.delete("other")
    await _expect_salvage(life, damaged)
    life.start()
    session = await life.insist(lambda: store.resume("s", on_damage="salvage"))
    life.ledger.watch(session, exists=True)
    turn_start(session, 4)
    await life.flush(session)
    await life.dispose(session)


async def _expect_salvage(life: Life, damaged: bytes) -> None:
    disk = life.disk.clone()
    store = life.setup.open(disk)
    session = await store.resume("s", on_damage="salvage")
    salvage = None if session.recovery is None else session.recovery.salvage
    found = {"s": _lines(session, session.seq)}
    for fork in () if salvage is None else salvage.forks:
        found[fork.id] = tuple(event.to_json() for event in (await store.inspect(fork.id)).events)
    await store.aclose()
    for session_id, lines in found.items():
        promise = Promise(id=session_id, lines=lines, acked=len(lines), exists=True)
        original = damaged if session_id == "s" else None
        life.ledger.expect(structs.replace(promise, original=original, unmended=session_id == "s"))


def _log(life: Life, session_id: str) -> str:
    return session_paths(ROOT, session_id, CWD).log(life.setup.compression)


# --- faults -----------------------------------------------------------------------------------------------------


def fault_at(number: int, mode: str) -> Callable[[int, str], Fault | None]:
    """The operation with that *number* fails; in mode ``dead`` all later ones do, until the fault is reported.

    ``done``: a link or rename is made all the same.  ``lies``: a sync drops its pages.  ``short``: a write takes half, and the ones after it nothing.
    """
    changes = {"write", "sync", "truncate", "create", "link", "rename", "unlink", "mkdir", "sync_directory"}

    def fault(now: int, name: str) -> Fault | None:
        if now < number or (now > number and mode not in {"dead", "short"}) or name not in changes:
            return None
        if mode == "done":
            return Fault(errno.EIO, done=True) if name in {"link", "rename"} else None
        if mode == "short":
            return Fault(errno.ENOSPC, short=now == number) if name == "write" else None
        return Fault(errno.EIO, lies=mode == "lies")

    return fault

"""User code that mypy --strict and pyright --strict must both accept.  Checked by `make type`, never run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, assert_type

from msgspec import Struct

from sessionstore import (
    AssistantChunk,
    DamagedLogError,
    Event,
    EventTypes,
    ForkError,
    InvalidEventError,
    Session,
    SessionStore,
    SessionStoreError,
    StoredSession,
    TextDelta,
    derive_event_message,
    fold_surface,
    interrupted_turn_closers,
    pack_chunk_runs,
    scan_log,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Title(Struct, frozen=True):
    """A plugin's own event."""

    title: str


async def lifecycle(root: Path) -> None:
    """Open, append in both forms, flush, resume, look."""
    types = EventTypes()
    types.register("session/title", Title)
    async with SessionStore(root, durability="flush", batch_window_ms=50, types=types) as store:
        session = await store.create(cwd="/srv/project")
        event = session.append("turn/start", {"turn": 1})
        assert_type(event, Event)
        assert_type(event.seq, int)
        assert_type(event.to_json(), bytes)
        session.append(AssistantChunk(turn=1, step=1, chunk=TextDelta(index=0, text="Hel")))
        session.append("session/title", {"title": "x"})
        durable = await session.flush()
        assert_type(durable, int)
        assert_type(session.durable_seq, int)
        events: Sequence[Event] = session.events
        last = events[-1]
        assert_type(last, Event)
        for message in session.derive_messages():
            print(message)
        child = await store.fork(session, boundary=0)
        await store.dispose(child)
        again = await store.resume(session.id)
        print(again.recovery, again.persistence_error)
        seen = await store.inspect(session.id)
        print(seen.verdict, seen.findings, seen.writer, seen.header, seen.surface)
        page = await store.list(cwd="/srv/project", limit=10)
        print([info.id for info in page.sessions])
        await store.delete(session.id)


def pure() -> None:
    """The model and recovery need no store and no event loop."""
    session = Session("s1")
    session.append(
        "user/message", {"id": "m", "role": "user", "content": [], "source": {"kind": "user"}}, surface_op="append"
    )
    fold = fold_surface(session.events)
    print(fold.nodes, fold.replacements, derive_event_message(session.events[0]))
    lines: list[bytes] = pack_chunk_runs(session.events)
    closers: list[Event] = interrupted_turn_closers(session.events)
    print(scan_log(b"\n".join(lines)).verdict, closers)


def observers(session: Session) -> None:
    """Observers and checkers are plain functions of an event."""
    remove = session.observe(lambda event: print(event.seq))
    forget = session.check(lambda event: None)
    remove()
    forget()


async def errors(store: SessionStore) -> None:
    """Each error has its own fields."""
    try:
        await store.resume("s1")
    except DamagedLogError as damaged:
        print([finding.line for finding in damaged.findings])
    except ForkError as refused:
        print(refused.code)
    except InvalidEventError as invalid:
        print(invalid.path, invalid.seq)
    except SessionStoreError as other:
        print(other)


async def recorder(session: StoredSession) -> None:
    """The recorder brackets an agent's turn."""
    async with session.turn() as turn, turn.step() as step:
        await step.request()
        await step.call("c1", "shell", "{}")


def from_sync_code(root: Path) -> None:
    """A sync program runs the store in a Runner."""
    with asyncio.Runner() as runner:
        runner.run(lifecycle(root))

"""Sessions to store: headers, lines, batches, and the shortest ways to write and read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sessionstore.backends.base import Batch
from sessionstore.chunks import decode_storage_record
from sessionstore.header import Header, make_header
from sessionstore.recovery.records import read_record
from tests.recovery import logs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessionstore.backends.base import Backend, Writer
    from sessionstore.events import Event

CREATED = 1_700_000_000_000
CLOSED = [line.rstrip(b"\n") for line in logs.closed_log()[1:]]
"""Two turns, both ended: storage lines without newlines."""
OPEN = [line.rstrip(b"\n") for line in logs.interrupted_log()[1:]]
"""Two turns, the second with a recorded call and one that was never recorded."""


def header(
    session_id: str = "s1", *, cwd: str | None = "/srv/project", created_at: int = CREATED, **rest: Any
) -> Header:
    """A header as the store makes it."""
    return make_header(session_id, created_at=created_at, cwd=cwd, **rest)


def batch(lines: Sequence[bytes], start: int = 0, stop: int | None = None) -> Batch:
    """The lines from index *start* to *stop* of a session that is *lines*, as the store hands them over."""
    stop = len(lines) if stop is None else stop
    parts: list[list[bytes]] = []
    for line in lines[start:stop]:
        if not parts or read_record(line).is_turn_end:
            parts.append([])
        parts[-1].append(line)
    first = sum(read_record(line).count for line in lines[:start])
    count = sum(read_record(line).count for line in lines[start:stop])
    return Batch(first, first + count, tuple(map(tuple, parts)), lambda: iter(lines[:stop]))


def events(lines: Sequence[bytes]) -> list[Event]:
    """What the lines hold."""
    return [event for line in lines for event in decode_storage_record(line)]


async def write(backend: Backend, head: Header, lines: Sequence[bytes], *, every: int | None = None) -> Writer:
    """Store a session, *every* so many lines in one batch; the writer still holds it."""
    writer = backend.writer(head)
    step = every or max(len(lines), 1)
    for start in range(0, max(len(lines), 1), step):
        await writer.append(batch(lines, start, min(start + step, len(lines))), sync=True)
    return writer


async def store(backend: Backend, session_id: str = "s1", lines: Sequence[bytes] = CLOSED, **rest: Any) -> Header:
    """Store a session and let it go."""
    head = header(session_id, **rest)
    await (await write(backend, head, lines)).close()
    return head


async def ids(backend: Backend, **arguments: Any) -> list[str]:
    """The ids of one page of the list."""
    return [row.id for row in (await backend.list(**arguments)).sessions]

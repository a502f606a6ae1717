"""Following a session that somebody else is writing.

``async for event in follow(store, session_id)`` gives every stored event once, in
order, first those that are there, then those that come.  It takes no lock, so it
never gets in a writer's way, and it does not end with its writer: another one may
resume the session.  It ends only with an error, which names the seq to go on from.

Where the backend keeps a log in a file, the file is read from a byte cursor that
always stands behind a whole line (compressed: a whole frame); anything else is
asked with ``read_from``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Final, Protocol, cast

from sessionstore.backends.base import check_seq, refuse_unsupported
from sessionstore.backends.files import OsFiles
from sessionstore.backends.paths import LOG_NAMES
from sessionstore.errors import DamagedLogError, FollowError
from sessionstore.recovery.findings import Verdict
from sessionstore.settle import settle
from sessionstore.tail import LogTail, TailError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from sessionstore.backends.base import Backend, Stored
    from sessionstore.events import Event
    from sessionstore.store import SessionStore

__all__ = ["Delivered", "FollowError", "follow"]

_SHORTEST_WAIT: Final = 0.02
_REMEMBERED: Final = 20_000
"""How many delivered events can be told from others that a writer put in their place."""

_BREATH: Final = 256
"""Events handed over between two chances for other tasks of the loop."""


class _Source(Protocol):
    """Where the next events come from.  ``poll`` gives what is new, maybe nothing."""

    async def poll(self) -> Sequence[Event]: ...

    async def close(self) -> None: ...


async def follow(
    store: SessionStore | Backend, session_id: str, from_seq: int = 0, *, max_wait: float = 0.5
) -> AsyncGenerator[Event, None]:
    """The events of *session_id* from *from_seq* on, without end.

    A half-written line is waited for; a log that shrinks (a torn tail was cut, a failed write taken back) is read
    again, and no event comes twice.  An idle log is looked at less and less often, at least every *max_wait*
    seconds.  Close the iterator (``contextlib.aclosing``) when done.

    Raises:
        TypeError, ValueError: *from_seq* is not a non-negative int, or *max_wait* not a number of seconds above 0.
        SessionNotFoundError: there is none, or it was deleted.
        DuplicateSessionError, UnsupportedFormatError, StorageError.
        FollowError: the log has a bad line, or another log stands in its place; names the seq.
    """
    check_seq(from_seq)
    _check_wait(max_wait)
    backend = cast("Backend", getattr(store, "_backend", store))
    stored = await backend.read(session_id)
    refuse_unsupported(stored, session_id)
    if stored.scan.verdict is Verdict.DAMAGED and stored.scan.findings[0].line == 1:
        raise FollowError(session_id, seq=from_seq, reason=stored.scan.findings[0].describe())
    delivered = Delivered(session_id, from_seq)
    source = await _source(backend, session_id, stored, delivered)
    try:
        wait = _SHORTEST_WAIT
        events: Sequence[Event] = stored.scan.log.events()[from_seq:]
        while True:
            fresh = delivered.fresh(events)
            for count, event in enumerate(fresh):
                delivered.note(event)
                yield event
                if count % _BREATH == _BREATH - 1:
                    await asyncio.sleep(0)
            if not fresh:
                await asyncio.sleep(wait)
            wait = _SHORTEST_WAIT if fresh else min(max_wait, wait * 1.5)
            events = await _poll(source, delivered)
    finally:
        await source.close()


def _check_wait(max_wait: object) -> None:
    if not isinstance(max_wait, int | float) or isinstance(max_wait, bool):
        raise TypeError(f"max_wait is a number of seconds, got {type(max_wait).__name__}")
    if not 0 < max_wait < inf:
        raise ValueError(f"max_wait is a number of seconds above 0, got {max_wait}")


async def _poll(source: _Source, delivered: Delivered) -> Sequence[Event]:
    try:
        return await source.poll()
    except TailError as error:
        raise FollowError(delivered.session_id, seq=delivered.next_seq, reason=str(error)) from error
    except DamagedLogError as error:
        reason = error.findings[0].describe() if error.findings else f"the log is {error.verdict}"
        raise FollowError(delivered.session_id, seq=delivered.next_seq, reason=reason) from error


class Delivered:
    """What was handed over: nothing comes twice, and what was taken back and replaced is noticed."""

    def __init__(self, session_id: str, from_seq: int) -> None:
        self.session_id = session_id
        self.next_seq = from_seq
        self._hashes: deque[int] = deque(maxlen=_REMEMBERED)

    def note(self, event: Event) -> None:
        """*event* is being delivered."""
        self._hashes.append(hash(event.to_json()))
        self.next_seq = event.seq + 1

    def fresh(self, events: Sequence[Event]) -> Sequence[Event]:
        """Those of *events* that were not delivered yet.

        Raises:
            FollowError: one that was delivered is another one now.
        """
        if not events or events[0].seq >= self.next_seq:
            return events
        oldest = self.next_seq - len(self._hashes)
        for event in events:
            if event.seq >= self.next_seq:
                break
            if event.seq >= oldest and self._hashes[event.seq - oldest] != hash(event.to_json()):
                reason = f"event {event.seq} was taken back by its writer and another one written in its place"
                raise FollowError(self.session_id, seq=event.seq, reason=reason)
        return events[self.next_seq - events[0].seq :]


async def _source(backend: Backend, session_id: str, stored: Stored, delivered: Delivered) -> _Source:
    location = stored.location
    if location is not None and location.endswith(tuple(LOG_NAMES.values())):
        tail = LogTail(
            OsFiles(),
            location,
            session_id,
            compressed=location.endswith(LOG_NAMES["zstd"]),
            types=getattr(backend, "_types", None),
        )
        scan = stored.scan
        await settle(lambda: tail.open(scan.safe_offset, len(scan.log), headed=scan.header is not None))
        return _TailSource(tail)
    return _PolledSource(backend, session_id, delivered)


class _TailSource:
    """A log file, read behind a byte cursor."""

    def __init__(self, tail: LogTail) -> None:
        self._tail = tail

    async def poll(self) -> Sequence[Event]:
        return await settle(self._tail.poll)

    async def close(self) -> None:
        await settle(self._tail.close)


class _PolledSource:
    """Any backend, asked again and again for what comes after the last event."""

    def __init__(self, backend: Backend, session_id: str, delivered: Delivered) -> None:
        self._backend = backend
        self._session_id = session_id
        self._delivered = delivered

    async def poll(self) -> Sequence[Event]:
        # One event that was delivered is asked for again, so that a log that was taken back is noticed.
        start = max(0, self._delivered.next_seq - 1)
        return await self._backend.read_from(self._session_id, start)

    async def close(self) -> None:
        pass

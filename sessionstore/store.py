"""The store: creates, resumes, shows, forks and ends sessions, over any backend.

The store knows nothing about files.  It decides who may write, when a log is
repaired, and in which order things end; a backend carries it out.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Literal, get_args

from msgspec import Struct

from sessionstore.arguments import (
    check_choice,
    check_cwd,
    check_cwd_filter,
    check_entry,
    check_flag,
    check_id,
    check_page,
)
from sessionstore.backends.base import ANY, AnyCwd, Page, SalvageReport, TrashEntry, check_seq
from sessionstore.forking import fork_session, id_is_taken
from sessionstore.header import make_header
from sessionstore.inspection import Inspection, inspect_live, inspect_stored
from sessionstore.opening import OnDamage, resume_session
from sessionstore.options import check_options
from sessionstore.recovery.findings import Verdict
from sessionstore.registry import Registry
from sessionstore.session import Session
from sessionstore.settle import settle
from sessionstore.stored import StoredSession
from sessionstore.tasks import finish, raise_all
from sessionstore.verification import VerifyReport, verify_stored

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from sessionstore.backends.base import Backend
    from sessionstore.clock import Clock
    from sessionstore.events import Event
    from sessionstore.invariants import InvariantMode
    from sessionstore.lossless import Json
    from sessionstore.vocabulary import EventTypes
    from sessionstore.writebehind import Durability

__all__ = ["SessionStore", "StoreStats"]


class StoreStats(Struct, frozen=True, kw_only=True):
    """Counters of a store since it was opened.

    ``pending_bytes`` is about what waits in memory now; ``bytes`` counts text written, newlines included and
    before compression; ``failures`` counts failed writes, ``flushes`` calls of flush.
    """

    open_sessions: int
    pending_bytes: int
    batches: int
    events: int
    bytes: int
    flushes: int
    failures: int


class SessionStore:
    """Stores sessions below *root* (a str or Path, ``~`` is expanded, made absolute once), or in *backend*.

    Use it as ``async with SessionStore(root) as store``; leaving flushes and disposes every session.  It belongs
    to the event loop that first uses it.  Every method raises TypeError for an argument of a wrong type.

    Args:
        root: the folder for JSONL logs; made when the first event is written.
        compression: ``"none"`` or ``"zstd"`` (needs the extra of that name).
        durability: what is fsynced: ``"batch"`` every batch, ``"flush"`` only flushes, ``"none"`` nothing.
        batch_window_ms: how long the first waiting event waits for company.
        batch_bytes: how many waiting bytes start a batch at once.
        max_pending_bytes: how many bytes may wait before append raises :class:`PendingLimitError`.
        pack_chunks: write runs of token deltas as one line each; off, every event has a line of its own.
        lock_dir: a local folder for the locks, where the root's file system has none.
        clock: returns epoch ms; stamps events and headers.
        new_id: makes session and message ids; by default time-ordered UUIDs.
        invariants: ``None``, ``"execution"`` or ``"strict"``: the rules about turns and steps to enforce.
        checkers: functions of a candidate event; raising vetoes the append.
        on_error: called as ``on_error(session, error)`` when writing begins to fail.
        types: plugin event types to read as Structs.
        backend: any other place; excludes root, compression and lock_dir.

    Raises:
        TypeError, ValueError: an option is of a wrong type or out of range.
        StorageError: *root* is relative and the current directory is gone.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        compression: Literal["none", "zstd"] = "none",
        durability: Durability = "batch",
        batch_window_ms: float = 200,
        batch_bytes: int = 262_144,
        max_pending_bytes: int = 67_108_864,
        pack_chunks: bool = True,
        lock_dir: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
        new_id: Callable[[], str] | None = None,
        invariants: InvariantMode | None = None,
        checkers: Iterable[Callable[[Event], object]] = (),
        on_error: Callable[[StoredSession, Exception], object] | None = None,
        types: EventTypes | None = None,
        backend: Backend | None = None,
    ) -> None:
        self._options = check_options(
            durability=durability,
            batch_window_ms=batch_window_ms,
            batch_bytes=batch_bytes,
            max_pending_bytes=max_pending_bytes,
            pack_chunks=pack_chunks,
            clock=clock,
            new_id=new_id,
            invariants=invariants,
            checkers=checkers,
            on_error=on_error,
            types=types,
        )
        if (root is None) == (backend is None):
            raise TypeError("SessionStore takes either a root or a backend")
        if root is not None:
            from sessionstore.backends.jsonl.backend import JsonlBackend  # noqa: PLC0415 - the default, not the only one

            backend = JsonlBackend(
                root,
                compression=compression,
                lock_dir=lock_dir,
                clock=self._options.clock,
                types=self._options.types,
            )
        elif compression != "none" or lock_dir is not None:
            raise ValueError("compression and lock_dir are options of a root; a backend has its own")
        if backend is None or not hasattr(backend, "prepare"):
            raise TypeError(f"backend is a Backend, got {type(backend).__name__}; a path is given as root")
        self._backend = backend
        self._registry = Registry(backend, self._options)

    # --- sessions -----------------------------------------------------------------------------------------------

    async def create(
        self,
        id: str | None = None,
        *,
        cwd: str | os.PathLike[str] | None = None,
        seed: Iterable[Event | Mapping[str, Json]] | None = None,
        created_at: int | None = None,
        parent_session: str | None = None,
        seed_length: int | None = None,
        origin: str | None = None,
        delegation_depth: int = 0,
        agent_preset: str | None = None,
    ) -> StoredSession:
        """A new session.  Nothing is stored until the first batch, which holds the *seed* too.

        *id* defaults to a new one; *cwd* is an absolute path; the rest goes into the header.

        Raises:
            SessionExistsError: the id is taken.
            InvalidEventError: a value of the header, or an event of the seed, breaks a rule.
            StorageError: the place cannot be written.
            StoreClosedError: the store is closed.
        """
        options, registry = self._options, self._registry
        with registry.working():
            header = make_header(
                options.new_id() if id is None else id,
                created_at=options.clock() if created_at is None else created_at,
                cwd=check_cwd(cwd),
                parent_session=parent_session,
                seed_length=seed_length,
                origin=origin,
                delegation_depth=delegation_depth,
                agent_preset=agent_preset,
            )
            registry.refuse_new(header.id)
            session = StoredSession(header.id, seed, header, clock=options.clock, types=options.types)
            with registry.hold(header.id, "being created"):
                await self._backend.prepare(header)
                await registry.guard(session)
                return registry.open(session, self._backend.writer(header))

    async def resume(self, id: str, *, on_damage: OnDamage = "raise") -> StoredSession:
        """Lock a stored session, repair what a crash left, and go on; ``session.recovery`` says what was done.

        With ``on_damage="salvage"`` a damaged log is repaired as :meth:`repair` does it, and so is one that holds
        intact events behind a torn end; ``session.recovery.salvage`` is the report on that.

        Raises:
            SessionNotFoundError, DuplicateSessionError: there is none, or more than one.
            SessionLockedError: somebody holds it, in this process or another.
            DamagedLogError: it is damaged, invalid or empty; nothing was changed.
            UnsupportedFormatError: it is for another version; nothing was changed.
            InvariantError: its events break the invariants that this store enforces.
            StorageError: the storage refused.
            StoreClosedError: the store is closed.
            ValueError: *on_damage* is another word.
        """
        check_id(id)
        check_choice("on_damage", on_damage, get_args(OnDamage))
        with self._registry.working():
            self._registry.refuse_second(id)
            with self._registry.hold(id, "being resumed"):
                return await self._registry.hand_over(
                    resume_session(self._registry, self._backend, self._options, id, on_damage=on_damage)
                )

    async def fork(
        self, source: Session | str, boundary: int | None = None, child_id: str | None = None
    ) -> StoredSession:
        """A new session with the events 0 to *boundary* (default: all) of a live session or a stored id.

        A stored source is read as :meth:`inspect` reads it.  The child is on the disk when this returns; if it
        cannot be published, nothing of it remains.

        Raises:
            ForkError: its ``code`` is, in the order of the checks, ``SESSION_ALREADY_EXISTS`` (the child's id),
                ``SESSION_NOT_FOUND``, ``SESSION_NOT_LIVE`` (a session object that is disposed or not of this
                store), ``INVALID_BOUNDARY`` or ``OPEN_TURN``.
            DamagedLogError, UnsupportedFormatError: the stored source cannot be copied.
            DuplicateSessionError, StorageError, StoreClosedError.
            InvalidEventError: *child_id* is empty.
        """
        if not isinstance(source, Session | str):
            raise TypeError(f"the source of a fork is a session or an id, got {type(source).__name__}")
        with self._registry.working():
            child = check_id(self._options.new_id() if child_id is None else child_id)
            if self._registry.state(child) is not None:
                raise id_is_taken(child)
            with self._registry.hold(child, "being created"):
                return await self._registry.hand_over(
                    fork_session(self._registry, self._backend, self._options, source, boundary=boundary, child=child)
                )

    # --- looking ------------------------------------------------------------------------------------------------

    async def inspect(self, id: str) -> Inspection:
        """Look at a session without lock or change: a live one as it is in memory, a stored one as resumed.

        A log that a resume refuses is shown as far as it is good, with its verdict and findings.

        Raises:
            SessionNotFoundError, DuplicateSessionError, StorageError, StoreClosedError.
        """
        check_id(id)
        with self._registry.working():
            live = self._registry.live.get(id)
            if live is None:
                return await settle(inspect_stored, id, await self._backend.read(id), self._options.clock)
            return inspect_live(live, self._backend.locate(id, live.header.cwd))

    async def read_from(self, id: str, seq: int) -> Sequence[Event]:
        """The stored events from *seq* on: no closers, and of a live session nothing that still waits.

        Raises:
            ValueError: *seq* is negative.
            SessionNotFoundError, DuplicateSessionError, StorageError, StoreClosedError.
            DamagedLogError, UnsupportedFormatError: nobody can say which events it holds.
        """
        check_id(id)
        check_seq(seq)
        with self._registry.working():
            return await self._backend.read_from(id, seq)

    async def follow(self, id: str, from_seq: int = 0, *, max_wait: float = 0.5) -> AsyncGenerator[Event, None]:
        """The stored events from *from_seq* on, and those that come, without end; another process may write them.

        Takes no lock and does not end with the writer.  A half-written line is waited for, no event comes twice.
        An idle log is looked at at least every *max_wait* seconds.  Close the iterator (``contextlib.aclosing``).

        Raises:
            ValueError: *from_seq* is negative, or *max_wait* not above 0.
            SessionNotFoundError, DuplicateSessionError, UnsupportedFormatError, StorageError, StoreClosedError.
            FollowError: the log has a bad line, or another log stands in its place; names the seq to go on from.
        """
        from sessionstore.follow import follow  # noqa: PLC0415 - most programs never follow

        check_id(id)
        with self._registry.working():
            backend = self._backend
        async with aclosing(follow(backend, id, from_seq, max_wait=max_wait)) as events:
            async for event in events:
                yield event

    async def verify(self, id: str) -> VerifyReport:
        """Read a stored session completely and say what is the matter with it.  Changes nothing, takes no lock.

        Of a session that is open in this process, what is stored of it.  ``report.exit_code`` is that of the
        command ``sessionstore verify``.

        Raises:
            SessionNotFoundError, DuplicateSessionError, StorageError, StoreClosedError.
        """
        check_id(id)
        with self._registry.working():
            stored = await self._backend.read(id)
            salvage = None
            if stored.scan.verdict in {Verdict.DAMAGED, Verdict.INVALID}:
                salvage = await self._backend.salvage(id, dry_run=True, cwd=None)
            return await settle(verify_stored, id, stored, salvage)

    async def repair(
        self, id: str, *, dry_run: bool = True, cwd: str | os.PathLike[str] | None = None
    ) -> SalvageReport:
        """Save what can be saved of a damaged session.  By default only says what it would do.

        Nothing is thrown away: the damaged log is kept beside the repaired one, and a second history (of two
        programs that wrote one log) becomes a session of its own.  A torn or interrupted log is repaired as
        :meth:`resume` does it, and keeps what is intact behind the torn end.  A second repair changes nothing.

        *cwd* is the working directory of a session whose header is lost; by default that of the other sessions in
        its folder.  A log that cannot be repaired is reported (``report.refusal``), not raised.

        Raises:
            SessionNotFoundError, DuplicateSessionError, StorageError, StoreClosedError.
            SessionLockedError: somebody holds it, in this process or another (not with *dry_run*).
            InvalidEventError: *cwd* is not an absolute path.
            ConcurrentWriteError: somebody without the lock changed the log meanwhile; it was left alone.
        """
        check_id(id)
        place = check_cwd(cwd)
        with self._registry.working():
            if check_flag("dry_run", dry_run):
                return await self._backend.salvage(id, dry_run=True, cwd=place)
            self._registry.refuse_second(id)
            with self._registry.hold(id, "being repaired"):
                return await finish(self._backend.salvage(id, dry_run=False, cwd=place))

    async def list(
        self,
        *,
        cwd: str | os.PathLike[str] | AnyCwd | None = ANY,
        limit: int | None = None,
        after: tuple[int, str] | None = None,
    ) -> Page:
        """One page of stored sessions, newest activity first; ``page.next`` is the *after* of the next one.

        *cwd* filters by the header's (``None``: those without).  A bad session is a row with a status.

        Raises:
            ValueError: *limit* is below 1, or *cwd* not absolute.
            StorageError, StoreClosedError.
        """
        wanted = check_cwd_filter(cwd)
        size, position = check_page(limit, after)
        with self._registry.working():
            return await self._backend.list(cwd=wanted, limit=size, after=position)

    def locate(self, id: str, cwd: str | os.PathLike[str] | None = None) -> Path | None:
        """Where a session of that id and *cwd* is, or would be, stored; ``None`` where there are no paths.

        Raises:
            InvalidEventError: *id* is empty, or *cwd* not absolute.
        """
        from pathlib import Path  # noqa: PLC0415  # with what it imports, an eighth of the import of everything

        place = self._backend.locate(check_id(id), check_cwd(cwd))
        return None if place is None else Path(place)

    def stats(self) -> StoreStats:
        """Counters since the store was opened; nothing is sent anywhere."""
        live, counters = self._registry.live.values(), self._registry.counters
        return StoreStats(
            open_sessions=len(live),
            pending_bytes=sum(session._behind.pending_bytes for session in live),
            batches=counters.batches,
            events=counters.events,
            bytes=counters.bytes,
            flushes=counters.flushes,
            failures=counters.failures,
        )

    # --- deleting -----------------------------------------------------------------------------------------------

    async def delete(self, id: str) -> TrashEntry:
        """Move a session to the trash and say where it went.  Nothing else ever deletes anything.

        Raises:
            SessionNotFoundError, DuplicateSessionError.
            SessionLockedError: somebody holds it, in this process or another.
            StorageError, StoreClosedError.
        """
        check_id(id)
        with self._registry.working():
            self._registry.refuse_second(id)
            with self._registry.hold(id, "being deleted"):
                return await finish(self._backend.delete(id))

    async def trash(self) -> Sequence[TrashEntry]:
        """What the trash holds, newest first.  Raises StorageError, StoreClosedError."""
        with self._registry.working():
            return await self._backend.trash()

    async def restore(self, entry: TrashEntry) -> None:
        """Bring a deleted session back.

        Raises:
            SessionNotFoundError: it is not in the trash.
            SessionExistsError: a session of that id is there again.
            StorageError, StoreClosedError.
        """
        check_entry(entry)
        with self._registry.working():
            self._registry.refuse_new(entry.id)
            with self._registry.hold(entry.id, "being restored"):
                await finish(self._backend.restore(entry))

    async def empty_trash(self) -> int:
        """Remove what is in the trash for good; the number of sessions removed.  Raises as :meth:`trash`.

        Goes with it: files that crashes left half made, in the directories of sessions that nobody holds.
        """
        with self._registry.working():
            return await finish(self._backend.empty_trash())

    # --- ending -------------------------------------------------------------------------------------------------

    async def dispose(self, session: StoredSession) -> None:
        """As :meth:`StoredSession.dispose`.  Raises ValueError for a session of another store."""
        if not isinstance(session, StoredSession):
            raise TypeError(f"dispose takes a session of this store, got {type(session).__name__}")
        if getattr(session, "_end", None) != self._registry.end:
            raise ValueError("the session is not one of this store")
        await session.dispose()

    async def aclose(self) -> None:
        """Take nothing more, let running operations finish, dispose every session.  Idempotent.

        Every lock is released whatever fails, also when the caller is cancelled (it then waits for the end).

        Raises:
            What failed, as it is; an :class:`ExceptionGroup` when several things did.
        """
        raise_all("the store did not close cleanly", await self._registry.close())

    async def __aenter__(self) -> Self:
        with self._registry.working():
            return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

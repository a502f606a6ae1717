"""Every error this library raises on purpose.

::

    SessionStoreError
    ├── SessionNotFoundError      no such session in this store
    ├── SessionExistsError        the id is taken
    ├── DuplicateSessionError     one id lies in two project folders
    ├── SessionLockedError        another writer holds the session
    ├── ConcurrentWriteError      the log changed under its writer
    ├── InvalidEventError         an event, header or seed breaks a rule of the format
    ├── InvariantError            an event breaks an opt-in invariant
    ├── ForkError                 the fork was refused; ``code`` says why
    ├── DamagedLogError           bytes proven bad; ``findings`` lists them
    ├── FollowError               a session cannot be followed past a seq
    ├── UnsupportedFormatError    intact, but not for this version
    ├── StorageError              the operating system said no; ``os_error`` is kept
    ├── PendingLimitError         too much is waiting for a disk that does not take it
    ├── StoreClosedError          the store or the session was disposed
    └── WrongThreadError          a session belongs to the thread of its event loop

Constructors take data and build the message; the data are attributes, and every
error survives pickling to another process.  Messages name the session, the file
and the position, what was expected and found, and what to do next.  They never
contain the contents of an event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessionstore.recovery.findings import Finding

__all__ = [
    "ConcurrentWriteError",
    "DamagedLogError",
    "DuplicateSessionError",
    "FollowError",
    "ForkCode",
    "ForkError",
    "InvalidEventError",
    "InvariantError",
    "PendingLimitError",
    "SessionExistsError",
    "SessionLockedError",
    "SessionNotFoundError",
    "SessionStoreError",
    "StorageError",
    "StoreClosedError",
    "UnsupportedFormatError",
    "WrongThreadError",
]

ForkCode = Literal["SESSION_ALREADY_EXISTS", "SESSION_NOT_FOUND", "SESSION_NOT_LIVE", "INVALID_BOUNDARY", "OPEN_TURN"]


_SHOWN = 120  # characters of a name that a message repeats; the attribute has all of it


class SessionStoreError(Exception):
    """Base of every error raised on purpose by this library."""

    def __str__(self) -> str:
        # Ids and paths may hold lone surrogates, which no terminal and no log file takes.
        return super().__str__().encode("utf-8", "backslashreplace").decode()

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only data cannot travel through Exception.args, so the
        # instance dictionary carries everything and __init__ is not called.
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


def _rebuild(cls: type[SessionStoreError], args: tuple[object, ...], state: dict[str, object]) -> SessionStoreError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def _short(name: str) -> str:
    return name if len(name) <= _SHOWN else name[:_SHOWN] + "…"


def _session(session_id: str) -> str:
    return f"session {_short(session_id)!r}"


def _argument(session_id: str) -> str:
    """The id for a command line, quoted where it has to be."""
    name = _short(session_id)
    return name if name.isprintable() and " " not in name else repr(name)


class SessionNotFoundError(SessionStoreError):
    """No session of that id is stored here."""

    def __init__(self, session_id: str, *, where: str | None = None, in_trash: bool = False) -> None:
        self.session_id = session_id
        self.where = where
        look = "trash(), or `sessionstore trash ls`," if in_trash else "list(), or `sessionstore ls`,"
        super().__init__(
            f"{_session(session_id)} not found" + (f" in {where}" if where else "") + f"; {look} shows what is there"
        )


class SessionExistsError(SessionStoreError):
    """The id is taken, in this process or in storage."""

    def __init__(self, session_id: str, *, where: str | None = None, detail: str | None = None) -> None:
        self.session_id = session_id
        self.where = where
        self.detail = detail
        super().__init__(
            f"{_session(session_id)} already exists"
            + (f" at {where}" if where else "")
            + (f": {detail}" if detail else "")
            + ("; resume it" if detail is None else "; use that one")
            + ", or create with another id"
        )


class DuplicateSessionError(SessionStoreError):
    """One id is stored more than once, so no operation can know which is meant."""

    def __init__(self, session_id: str, *, paths: Sequence[str]) -> None:
        self.session_id = session_id
        self.paths = tuple(paths)
        super().__init__(
            f"{_session(session_id)} is stored {len(self.paths)} times: {', '.join(self.paths)}; "
            "move all but one of them out of the root"
        )


class SessionLockedError(SessionStoreError):
    """Another writer holds the session.

    ``pid``, ``host``, ``program`` and ``since`` (epoch ms) describe the holder where it left a note.
    """

    def __init__(
        self,
        session_id: str,
        *,
        pid: int | None = None,
        host: str | None = None,
        program: str | None = None,
        since: int | None = None,
        detail: str | None = None,
    ) -> None:
        self.session_id = session_id
        self.pid = pid
        self.host = host
        self.program = program
        self.since = since
        self.detail = detail
        held = "by a writer that left no note"
        if pid is not None:
            held = f"by pid {pid}"
            if host is not None:
                held += f" on {host}"
            if program is not None:
                held += f" ({program})"
            if since is not None:
                held += f" since {since} ms"
        super().__init__(
            f"{_session(session_id)} is held {held}" + (f": {detail}" if detail else "") + "; one writer at a time: "
            "dispose it there, or inspect() to read without writing"
        )


class ConcurrentWriteError(SessionStoreError):
    """The stored log is not as its writer left it: somebody wrote without the lock."""

    def __init__(self, session_id: str, *, path: str, expected: str, found: str) -> None:
        self.session_id = session_id
        self.path = path
        self.expected = expected
        self.found = found
        super().__init__(
            f"{_session(session_id)}: {path} was changed by another writer: expected {expected}, found {found}; "
            "nothing of it was cut, the events of this session stay in memory: fork() this session to keep them, "
            "then `sessionstore repair` separates the two writers"
        )


class InvalidEventError(SessionStoreError):
    """An event, header or seed breaks a rule of the format.

    ``path`` is a JSON path to the value (``$.message.content[0]``) where one is known, ``seq`` the event's
    position, ``event_type`` its type.
    """

    def __init__(
        self,
        reason: str,
        *,
        event_type: str | None = None,
        path: str | None = None,
        seq: int | None = None,
        session_id: str | None = None,
    ) -> None:
        self.reason = reason
        self.event_type = event_type
        self.path = path
        self.seq = seq
        self.session_id = session_id
        where = ""
        if session_id is not None:
            where += _session(session_id) + ": "
        if event_type is not None:
            where += _short(event_type)
            if seq is not None:
                where += f" (seq {seq})"
            where += ": "
        elif seq is not None:
            where += f"seq {seq}: "
        super().__init__(where + reason + (f" at {path}" if path else ""))


class InvariantError(SessionStoreError):
    """An event breaks an opt-in invariant of the log (session.md section 7)."""

    def __init__(self, reason: str, *, event_type: str, seq: int) -> None:
        self.reason = reason
        self.event_type = event_type
        self.seq = seq
        super().__init__(f"{_short(event_type)} (seq {seq}): {reason}")


class ForkError(SessionStoreError):
    """A fork was refused; ``code`` is stable and says why."""

    def __init__(self, code: ForkCode, reason: str, *, session_id: str) -> None:
        self.code: ForkCode = code
        self.reason = reason
        self.session_id = session_id
        super().__init__(f"cannot fork {_session(session_id)}: {reason} [{code}]")


class DamagedLogError(SessionStoreError):
    """The stored bytes were read and are bad, or break the rules of a log.  Nothing was changed."""

    def __init__(self, session_id: str, *, path: str | None, verdict: str, findings: Sequence[Finding]) -> None:
        self.session_id = session_id
        self.path = path
        self.verdict = verdict
        self.findings = tuple(findings)
        shown = "; ".join(f.describe() for f in self.findings[:5]) or "no header line was ever completed"
        more = f"; and {len(self.findings) - 5} more" if len(self.findings) > 5 else ""
        own = _argument(session_id)
        # There is nothing in an empty log that a repair could save.
        repair = "" if verdict == "empty" else f", `sessionstore repair {own}` plans a repair"
        super().__init__(
            _session(session_id)
            + (f" ({path})" if path else "")
            + f" is {verdict}: {shown}{more}. Nothing was changed. `sessionstore verify {own}` explains{repair}"
        )


class UnsupportedFormatError(SessionStoreError):
    """The log is intact, but this version does not read it; ``direction`` is ``newer``, ``older`` or ``retired``."""

    def __init__(
        self,
        reason: str,
        *,
        direction: Literal["newer", "older", "retired"],
        session_id: str | None = None,
        path: str | None = None,
    ) -> None:
        self.reason = reason
        self.direction: Literal["newer", "older", "retired"] = direction
        self.session_id = session_id
        self.path = path
        where = _session(session_id) if session_id is not None else "log"
        super().__init__(where + (f" ({path})" if path else "") + f": {reason}")


class StorageError(SessionStoreError):
    """The operating system refused; ``os_error`` is what it said."""

    def __init__(
        self,
        action: str,
        *,
        path: str | None = None,
        os_error: OSError | None = None,
        session_id: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.action = action
        self.path = path
        self.os_error = os_error
        self.session_id = session_id
        self.hint = hint
        super().__init__(
            (_session(session_id) + ": " if session_id is not None else "")
            + f"cannot {action}"
            + (f" {path}" if path else "")
            + (f": {os_error.strerror or os_error}" if os_error is not None else "")
            + (f"; {hint}" if hint else "")
        )


class PendingLimitError(SessionStoreError):
    """More than ``max_pending_bytes`` wait to be written; the event was not taken and used no seq."""

    def __init__(self, session_id: str, *, pending_bytes: int, limit: int) -> None:
        self.session_id = session_id
        self.pending_bytes = pending_bytes
        self.limit = limit
        super().__init__(
            f"{_session(session_id)}: {pending_bytes} bytes wait to be written, the limit is {limit}; "
            "await flush() (it raises what the disk said), then append again"
        )


class StoreClosedError(SessionStoreError):
    """The store was closed, or the session disposed; nothing more is taken."""

    def __init__(self, what: str, *, session_id: str | None = None) -> None:
        self.what = what
        self.session_id = session_id
        where = "" if session_id is None else _session(session_id) + ": "
        next_ = "resume the session in an open store" if session_id is not None else "open another one"
        super().__init__(f"{where}{what}; {next_} to go on")


class WrongThreadError(SessionStoreError):
    """A session was used outside the thread of the event loop that opened it."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"{_session(session_id)} belongs to another thread; use loop.call_soon_threadsafe(session.append, ...)"
        )


class FollowError(SessionStoreError):
    """A session cannot be followed any further: its log was replaced, or has a bad line.

    Everything below ``seq`` was delivered, or was not asked for; when the log is well again,
    ``store.follow(session_id, seq)`` goes on from there.
    """

    def __init__(self, session_id: str, *, seq: int, reason: str) -> None:
        self.session_id = session_id
        self.seq = seq
        self.reason = reason
        super().__init__(
            f"{_session(session_id)} cannot be followed past seq {seq}: {reason}; "
            f"`sessionstore verify {session_id}` says more, following can go on from seq {seq}"
        )

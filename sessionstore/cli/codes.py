"""Exit codes, and which error has which.  docs/cli.md lists them; a test compares."""

from __future__ import annotations

from enum import IntEnum

from sessionstore.errors import (
    ConcurrentWriteError,
    DamagedLogError,
    DuplicateSessionError,
    ForkError,
    InvalidEventError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    SessionStoreError,
    StorageError,
    UnsupportedFormatError,
)
from sessionstore.follow import FollowError

__all__ = ["ExitCode", "code_of"]


class ExitCode(IntEnum):
    """Exit codes of the command; those from 64 on are the ones of ``sysexits.h``."""

    OK = 0
    """It worked; of ``verify``: clean, or a live writer's open turn."""
    MENDS_ITSELF = 1
    """``verify``: interrupted or torn; the next resume mends it."""
    DAMAGED = 2
    """``verify``: damaged or invalid; a repair can mend it."""
    UNREADABLE = 3
    """``verify``: not repairable, unsupported, empty or unreadable."""
    USAGE = 64
    """The command line is wrong, or the id is ambiguous."""
    BAD_LOG = 65
    """The log is damaged, invalid or unsupported."""
    NOT_FOUND = 66
    """No such session."""
    FAILED = 70
    """Anything else."""
    REFUSED = 73
    """It would have to overwrite something, or the fork was refused."""
    STORAGE = 74
    """The operating system refused."""
    LOCKED = 75
    """Somebody else holds the session; try again later."""
    INTERRUPTED = 130
    """Ctrl-C."""


_CODES: tuple[tuple[type[SessionStoreError], ExitCode], ...] = (
    (SessionNotFoundError, ExitCode.NOT_FOUND),
    (SessionLockedError, ExitCode.LOCKED),
    (SessionExistsError, ExitCode.REFUSED),
    (ForkError, ExitCode.REFUSED),
    (StorageError, ExitCode.STORAGE),
    (DamagedLogError, ExitCode.BAD_LOG),
    (DuplicateSessionError, ExitCode.BAD_LOG),
    (UnsupportedFormatError, ExitCode.BAD_LOG),
    (InvalidEventError, ExitCode.BAD_LOG),
    (ConcurrentWriteError, ExitCode.BAD_LOG),
    (FollowError, ExitCode.BAD_LOG),
)


def code_of(error: BaseException) -> ExitCode:
    """The exit code for *error*."""
    if isinstance(error, ForkError) and error.code == "SESSION_NOT_FOUND":
        return ExitCode.NOT_FOUND
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ExitCode.STORAGE if isinstance(error, OSError) else ExitCode.FAILED

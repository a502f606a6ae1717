"""Bytes that a repair cuts are kept beside the log, and durable there, before the cut."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
from typing import TYPE_CHECKING, Final

from sessionstore.backends.files import read_chunks, write_all
from sessionstore.backends.jsonl.publish import remove_temp_names
from sessionstore.backends.paths import quarantine_name, temp_name
from sessionstore.errors import StorageError
from sessionstore.recovery.lines import is_nul

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sessionstore.backends.files import Files

__all__ = ["keep_bytes"]

_BLANK: Final = b"\0 \t\r\n"


def keep_bytes(
    files: Files, fd: int, directory: str, start: int, stop: int, *, session_id: str | None = None
) -> str | None:
    """Copy the bytes of *fd* from *start* to *stop* to a quarantine file in *directory*; its path, durable on return.

    Bytes that are only NULs and blanks are not worth a file: ``None``.  The name holds the hash of the bytes, so a
    repeat after a crash finds the file and writes nothing.

    Raises:
        OSError: then no file was left.
        StorageError: a directory has that name.
    """
    digest = hashlib.sha256()
    blank = True
    for piece in read_chunks(files, fd, start, stop):
        digest.update(piece)
        blank = blank and (is_nul(piece) or not piece.strip(_BLANK))
    if blank:
        return None
    path = os.path.join(directory, quarantine_name(start, digest.hexdigest()))
    if files.exists(path) and files.stat(path).kind == "directory":
        raise StorageError(
            "keep the torn end of the log as",
            path=path,
            os_error=IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path),
            session_id=session_id,
            hint="a directory has that name: move it away; nothing was changed",
        )
    if not _holds(files, path, digest.digest()):
        _copy(files, path, read_chunks(files, fd, start, stop))
    files.sync_directory(directory)
    return path


def _holds(files: Files, path: str, digest: bytes) -> bool:
    """Whether *path* is a file of these bytes, durable now: whoever wrote it may have crashed before the sync."""
    try:
        if files.stat(path).kind != "file":
            return False  # a link or a pipe is replaced by the copy, never followed
        fd = files.open_read(path)
    except FileNotFoundError:
        return False
    try:
        found = hashlib.sha256()
        for piece in read_chunks(files, fd):
            found.update(piece)
        if found.digest() != digest:
            return False
        files.sync(fd)
        return True
    finally:
        files.close(fd)


def _copy(files: Files, path: str, pieces: Iterable[bytes]) -> None:
    directory = os.path.dirname(path)
    remove_temp_names(files, directory)  # of an earlier repair that crashed here
    temp = os.path.join(directory, temp_name(secrets.token_hex(8)))
    copy = files.create(temp)
    try:
        try:
            for piece in pieces:
                write_all(files, copy, piece)
            files.sync(copy)
        finally:
            files.close(copy)
        # May replace a file of the same name: one that was cut short, or damaged later.
        files.rename(temp, path)
    except BaseException:
        with contextlib.suppress(OSError):
            files.unlink(temp)
        raise

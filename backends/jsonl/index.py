"""What a listing may show beside header and tail, and where a read may start: ``session.index`` beside the log.

The index is never needed and never trusted further than it can be checked: it says
which file it describes (device, inode, size, modification time), and is ignored
when the log has become another one, or when it is not exactly what is written here.
Deleting it loses nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from sessionstore.backends.files import write_all
from sessionstore.backends.paths import INDEX_NAME, temp_name

if TYPE_CHECKING:
    from sessionstore.backends.files import Files, FileStat

__all__ = ["Checkpoint", "Index", "load_index", "save_index", "tail_digest"]

_MAX_INDEX: Final = 64 * 1024
_DIGESTED: Final = 4096


class Checkpoint(Struct, frozen=True):
    """A place in a log up to which it was scanned and found good: *offset* follows the event *next_seq* - 1.

    A log only grows behind such a place; *digest*, of the bytes in front of it, tells a log that was replaced.
    """

    device: int
    inode: int
    offset: int
    next_seq: int
    digest: str

    def fits(self, log: FileStat) -> bool:
        """Whether *log* may be the log scanned, as it was or with more behind it; the digest says whether it is."""
        return (self.device, self.inode) == log.identity and self.offset <= log.size


class Index(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The contents of ``session.index``.  ``mtime_ns`` is a string: JSON readers lose the last digits of such a number."""

    device: int
    inode: int
    size: int
    mtime_ns: str
    title: str | None = None
    turns: int | None = None
    events: int | None = None
    checkpoint: Checkpoint | None = None

    def describes(self, log: FileStat) -> bool:
        """Whether the index was written for the log as it is now."""
        mine = (self.device, self.inode, self.size, self.mtime_ns)
        return mine == (log.device, log.inode, log.size, str(log.mtime_ns))


_decode: Final = msgspec.json.Decoder(Index).decode


def load_index(files: Files, directory: str) -> Index | None:
    """The index in a session's *directory*; ``None`` when there is none or it is no index.  Never raises."""
    path = f"{directory}/{INDEX_NAME}"
    if not files.exists(path):  # a third of what an exception costs; a list asks for thousands that are not there
        return None
    try:
        fd = files.open_read(path)
    except OSError:
        return None
    try:
        return _decode(files.pread(fd, _MAX_INDEX, 0))
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    finally:
        with contextlib.suppress(OSError):
            files.close(fd)


def save_index(files: Files, directory: str, index: Index) -> None:
    """Write the index, replacing the one before in one step.  No sync: a lost index is no loss.

    Raises:
        OSError: it could not be written; the one before is still there.
    """
    temp = os.path.join(directory, temp_name(secrets.token_hex(8)))
    fd = files.create(temp)
    try:
        try:
            write_all(files, fd, msgspec.json.encode(index))
        finally:
            files.close(fd)
        files.rename(temp, os.path.join(directory, INDEX_NAME))
    except BaseException:
        with contextlib.suppress(OSError):
            files.unlink(temp)
        raise


def tail_digest(files: Files, fd: int, offset: int) -> str:
    """A digest of the (at most) 4 KiB in front of *offset*.  Raises ``OSError``."""
    start = max(0, offset - _DIGESTED)
    parts: list[bytes] = []
    while start < offset:
        piece = files.pread(fd, offset - start, start)
        if not piece:
            break
        parts.append(piece)
        start += len(piece)
    return hashlib.sha256(b"".join(parts)).hexdigest()

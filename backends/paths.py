"""Where the files of a session lie: names only, no I/O (docs/format.md, Layout).

::

    <root>/--<project>--/<session>/session.jsonl        _no-cwd/ when the session has no working directory
                                   session.jsonl.zstd   instead, when the store compresses
                                   session.lock  session.index
                                   session.jsonl.cut-<offset>-<12 hex>      bytes that a repair cut
                                   session.tmp-<16 hex>                     a file being made

Names are built from UTF-16 code units, as the reference implementation does: a
string holding a surrogate pair as two code points is the same name as the one
holding the character, and so it is on disk, where both are the same JSON string.
"""

from __future__ import annotations

import hashlib
import os
import re
from functools import lru_cache
from typing import Final, Literal

from msgspec import Struct

from sessionstore.errors import InvalidEventError

__all__ = [
    "INDEX_NAME",
    "LOCK_NAME",
    "LOG_NAME",
    "LOG_NAMES",
    "NO_CWD",
    "TRASH",
    "ZSTD_NAME",
    "Compression",
    "SessionPaths",
    "decode_segment",
    "encode_id",
    "is_at_home",
    "is_temp_name",
    "lock_name",
    "names_of",
    "project_name",
    "quarantine_name",
    "session_paths",
    "temp_name",
]

Compression = Literal["none", "zstd"]

LOG_NAME: Final = "session.jsonl"
ZSTD_NAME: Final = "session.jsonl.zstd"
LOG_NAMES: Final[dict[Compression, str]] = {"none": LOG_NAME, "zstd": ZSTD_NAME}
LOCK_NAME: Final = "session.lock"
INDEX_NAME: Final = "session.index"
NO_CWD: Final = "_no-cwd"
TRASH: Final = ".trash"

_MAX_PROJECT: Final = 251  # with the four dashes around it: the 255 bytes that file systems allow
_MAX_SEGMENT: Final = 200
_MAX_NAME: Final = 255  # what file systems allow
_KEPT_OF_LONG: Final = 160
_HASH_MARK: Final = "~~"  # an escape always has a digit after its "~", so no short name holds this
_TEMP_PREFIX: Final = "session.tmp-"
_SEPARATORS: Final = re.compile(r"[/\\:]+")
_SPECIAL: Final = re.compile(r"[^A-Za-z0-9._-]")
_ESCAPE: Final = re.compile(r"~([0-9A-F]{4})")


class SessionPaths(Struct, frozen=True):
    """The absolute paths of one session: ``directory`` is its own, ``project`` the one above, ``lock`` its lock file."""

    root: str
    project: str
    directory: str
    lock: str

    def log(self, compression: Compression) -> str:
        """The log, written with or without compression."""
        return os.path.join(self.directory, LOG_NAMES[compression])

    @property
    def index(self) -> str:
        """The rebuildable index beside the log."""
        return os.path.join(self.directory, INDEX_NAME)


@lru_cache(maxsize=1024)
def project_name(cwd: str | None) -> str:
    """The readable name of the directory that holds the sessions of *cwd*.  Lossy: two cwds may share one."""
    if cwd is None:
        return NO_CWD
    name = _escape(_SEPARATORS.sub("-", cwd)).lstrip("-") or "root"
    return f"--{name[:_MAX_PROJECT]}--"


def encode_id(session_id: str) -> str:
    """The name of a session's directory: one path segment, at most 200 bytes, a different one for every id.

    Raises:
        InvalidEventError: the id is empty.
    """
    if not session_id:
        raise InvalidEventError("a session id is never empty", path="$.id")
    if session_id in {".", ".."}:
        return session_id.replace(".", "~002E")
    segment = _escape(session_id)
    if len(segment) <= _MAX_SEGMENT:
        return segment
    return segment[:_KEPT_OF_LONG] + _HASH_MARK + _digest(session_id)


def names_of(session_id: str) -> tuple[str, ...]:
    """The names that the directory of a stored session may have: ours first.

    Where ours is shortened, the reference implementation still writes the whole name as long as a file system takes it.

    Raises:
        InvalidEventError: the id is empty.
    """
    own = encode_id(session_id)
    whole = _escape(session_id) if _HASH_MARK in own else own
    return (own,) if whole == own or len(whole) > _MAX_NAME else (own, whole)


def decode_segment(segment: str) -> str | None:
    """The id whose directory is named *segment*; ``None`` when it was shortened or is no name of a session."""
    if segment and segment not in {".", ".."} and len(segment) <= _MAX_SEGMENT and _SPECIAL.search(segment) is None:
        return segment  # most names are ids as they are
    text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), segment)
    if not text:
        return None
    session_id = _join_surrogates(text)
    return session_id if segment in names_of(session_id) else None


def session_paths(root: str, session_id: str, cwd: str | None) -> SessionPaths:
    """The paths of a session below the absolute path *root*, with its lock beside its log.

    Raises:
        InvalidEventError: the id is empty.
    """
    project = os.path.join(root, project_name(cwd))
    directory = os.path.join(project, encode_id(session_id))
    return SessionPaths(root, project, directory, os.path.join(directory, LOCK_NAME))


def is_at_home(paths: SessionPaths, session_id: str, cwd: str | None) -> bool:
    """Whether *paths* are where a session of that id and *cwd* belongs, under any of its names."""
    project, name = os.path.split(paths.directory)
    return project == os.path.join(paths.root, project_name(cwd)) and name in names_of(session_id)


def lock_name(directory: str) -> str:
    """The name of a session's lock in a shared ``lock_dir``: another one for every (real) session *directory*."""
    return f"{os.path.basename(directory)[:_KEPT_OF_LONG]}{_HASH_MARK}{_digest(directory)}.lock"


def quarantine_name(offset: int, sha256_hex: str) -> str:
    """The name of the file that keeps the bytes cut at *offset*; the same bytes always get the same name."""
    return f"{LOG_NAME}.cut-{offset}-{sha256_hex[:12]}"


def temp_name(token: str) -> str:
    """The name of a file being made; *token* is random."""
    return _TEMP_PREFIX + token


def is_temp_name(name: str) -> bool:
    """Whether *name* is one that :func:`temp_name` made: whoever holds the lock may remove it."""
    return name.startswith(_TEMP_PREFIX)


def _escape(text: str) -> str:
    return _SPECIAL.sub(_escape_character, text)


def _escape_character(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"~{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))


def _join_surrogates(text: str) -> str:
    return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


def _digest(text: str) -> str:
    """32 hex digits; a surrogate pair counts as its character, a lone surrogate as itself."""
    return hashlib.sha256(_join_surrogates(text).encode("utf-8", "surrogatepass")).hexdigest()[:32]

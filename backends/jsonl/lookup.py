"""Where on the disk a session is, found by its id alone.

A lookup by id does not know the working directory, so it looks for the session's
directory name in every project directory: one listing of the root and one stat per
project.  Nothing is cached: other processes create, delete and move sessions.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from sessionstore.backends.files import FileStat, storage_errors
from sessionstore.backends.paths import LOCK_NAME, LOG_NAMES, Compression, SessionPaths, encode_id
from sessionstore.errors import DuplicateSessionError, SessionNotFoundError, StorageError

if TYPE_CHECKING:
    from sessionstore.backends.files import Files, Identity

__all__ = ["Found", "find_session", "project_directories", "session_at"]

# What an id that was too long for a directory name was shortened to.  Such a name does not give the id back, so
# a session whose header is lost can only be named by its directory.
_SHORTENED: Final = re.compile(r"[A-Za-z0-9._~-]{160}~~[0-9a-f]{32}\Z")


class Found(Struct, frozen=True):
    """A stored session: its paths, which encoding its log has, and the log's stat when it was found.

    ``linked`` says that a symbolic link stands between the root and the log: such a session can be read, and is
    not written.
    """

    paths: SessionPaths
    compression: Compression
    stat: FileStat
    linked: bool = False

    @property
    def log(self) -> str:
        """The path of the log."""
        return self.paths.log(self.compression)


def project_directories(files: Files, root: str) -> list[str]:
    """The names in *root* that may be project directories, sorted; empty when there is no root.

    Raises:
        StorageError: the root cannot be read, or is no directory.
    """
    with storage_errors("list the sessions in", path=root):
        try:
            names = files.listdir(root)
        except FileNotFoundError:
            return []
    return sorted(name for name in names if not name.startswith("."))


def session_at(files: Files, root: str, project: str, segment: str, *, session_id: str) -> Found | None:
    """The session in that project directory under that name; ``None`` when there is none.

    Raises:
        DuplicateSessionError: it has two logs, one of each encoding.
        OSError: that cannot be found out.
    """
    parent = os.path.join(root, project)
    directory = os.path.join(parent, segment)
    try:
        stat = files.stat(directory)
        linked = stat.kind == "link" or files.stat(parent).kind == "link"
        if (files.stat(directory, follow=True) if linked else stat).kind != "directory":
            return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    paths = SessionPaths(root, parent, directory, os.path.join(directory, LOCK_NAME))
    logs: list[Found] = []
    for compression in LOG_NAMES:
        try:
            log = files.stat(paths.log(compression))
        except (FileNotFoundError, NotADirectoryError):
            continue
        logs.append(Found(paths, compression, log, linked or log.kind == "link"))
    if len(logs) > 1:
        raise DuplicateSessionError(session_id, paths=[found.log for found in logs])
    return logs[0] if logs else None


def find_session(files: Files, root: str, session_id: str) -> Found:
    """The one place where *session_id* is stored.

    Raises:
        InvalidEventError: the id is empty.
        SessionNotFoundError: no project directory has it.
        DuplicateSessionError: more than one has it, or one has it in both encodings.
        StorageError: the root cannot be read, or a project directory that may have it cannot.
    """
    segments = [encode_id(session_id)]
    if _SHORTENED.match(session_id) and session_id != segments[0]:
        segments.append(session_id)
    projects = project_directories(files, root)
    for segment in segments:
        found = _find(files, root, projects, segment, session_id)
        if found is not None:
            return found
    raise SessionNotFoundError(session_id, where=root)


def _find(files: Files, root: str, projects: list[str], segment: str, session_id: str) -> Found | None:
    places: dict[Identity, Found] = {}
    unreadable: tuple[str, OSError] | None = None
    for project in projects:
        try:
            found = session_at(files, root, project, segment, session_id=session_id)
        except OSError as error:
            unreadable = (os.path.join(root, project), error)
            continue
        if found is None:
            continue
        known = places.get(found.stat.identity)
        if known is None or known.linked:  # two names of one log are one session; the name without links counts
            places[found.stat.identity] = found
    if len(places) > 1:
        raise DuplicateSessionError(session_id, paths=[found.log for found in places.values()])
    if not places and unreadable is not None:
        # "not found" would be a guess: the session may well be in the project that cannot be read.
        raise StorageError(
            "look for the session in", path=unreadable[0], os_error=unreadable[1], session_id=session_id
        ) from unreadable[1]
    return next(iter(places.values()), None)

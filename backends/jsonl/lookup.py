"""Where on the disk a session is, found by its id alone.

A lookup by id does not know the working directory, so it looks for the session's
directory name in every project directory: one listing of the root and one stat per
project.  Nothing is cached: other processes create, delete and move sessions.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from sessionstore.backends.files import FileStat, storage_errors
from sessionstore.backends.paths import LOCK_NAME, LOG_NAMES, Compression, SessionPaths, names_of
from sessionstore.errors import DuplicateSessionError, SessionNotFoundError, StorageError

if TYPE_CHECKING:
    from sessionstore.backends.files import Files

__all__ = ["Found", "check_directory", "find_session", "project_directories", "warn_of_mixed_root"]

_logger = logging.getLogger("sessionstore")

# What an id that was too long for a directory name was shortened to.  Such a name does not give the id back, so
# a session whose header is lost can only be named by its directory.
_SHORTENED: Final = re.compile(r"[A-Za-z0-9._~-]{160}~~[0-9a-f]{32}\Z")


class Found(Struct, frozen=True):
    """A stored session: its paths, which encoding its log has, and the log's stat when it was found.

    ``linked`` says that the session's directory, or the project's, is a symbolic link: such a session can be read,
    and is not written.
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


def _session_at(files: Files, root: str, project: str, segment: str) -> list[Found]:
    """The session in that project directory under that name: none, one, or one in each encoding.

    Raises:
        OSError: that cannot be found out.
    """
    parent = os.path.join(root, project)
    directory = os.path.join(parent, segment)
    try:
        stat = files.stat(directory)
        linked = stat.kind == "link" or files.stat(parent).kind == "link"
        if (files.stat(directory, follow=True) if linked else stat).kind != "directory":
            return []
    except (FileNotFoundError, NotADirectoryError):
        return []
    paths = SessionPaths(root, parent, directory, os.path.join(directory, LOCK_NAME))
    logs: list[Found] = []
    for compression in LOG_NAMES:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            logs.append(Found(paths, compression, files.stat(paths.log(compression)), linked))
    return logs


def find_session(files: Files, root: str, session_id: str, *, any_encoding: bool = False) -> Found:
    """The one place where *session_id* is stored.

    With *any_encoding* a directory that holds a log of each encoding counts as one session, too.

    Raises:
        SessionNotFoundError: no project directory has it, or it is empty.
        DuplicateSessionError: more than one has it, or one has it in both encodings.
        StorageError: the root cannot be read, or a project directory that may have it cannot.
    """
    if not session_id:
        raise SessionNotFoundError(session_id, where=root)
    names: list[tuple[str, ...]] = [names_of(session_id)]
    if _SHORTENED.match(session_id):
        names.append((session_id,))
    projects = project_directories(files, root)
    for segments in names:
        found = _find(files, root, projects, segments, session_id)
        places = {each.paths.directory if any_encoding else each.log for each in found}
        if len(places) > 1:
            raise DuplicateSessionError(session_id, paths=[each.log for each in found])
        if found:
            return found[0]
    raise SessionNotFoundError(session_id, where=root)


def _find(files: Files, root: str, projects: list[str], segments: tuple[str, ...], session_id: str) -> list[Found]:
    found: list[Found] = []
    unreadable: tuple[str, OSError] | None = None
    for project in projects:
        try:
            for segment in segments:
                found += _session_at(files, root, project, segment)
        except OSError as error:
            unreadable = (os.path.join(root, project), error)
    # Two names of one log are one session; the name without links on the way counts.
    own = {each.stat.identity: each for each in found if not each.linked}
    found = [each for each in found if own.get(each.stat.identity, each) is each]
    if not found and unreadable is not None:
        # "not found" would be a guess: the session may well be in the project that cannot be read.
        path, reason = unreadable
        raise StorageError("look for the session in", path=path, os_error=reason, session_id=session_id) from reason
    return found


def check_directory(files: Files, directory: str, root: str) -> None:
    """Check, writing nothing, that *directory* is there or could be made; links are followed down to *root* only.

    Raises:
        OSError: something else is in the way, or the place cannot be written.
    """
    path = directory
    while True:
        try:
            kind = files.stat(path, follow=len(path) <= len(root)).kind
        except (FileNotFoundError, NotADirectoryError):
            if os.path.dirname(path) == path:
                raise
            if _is_link(files, path):
                raise FileNotFoundError(errno.ENOENT, f"{path} is a symbolic link that leads nowhere", path) from None
            path = os.path.dirname(path)
            continue
        if kind != "directory":
            raise NotADirectoryError(errno.ENOTDIR, f"{path} is not a directory", path)
        if not files.writable(path):
            raise PermissionError(errno.EACCES, f"{path} cannot be written", path)
        return


def _is_link(files: Files, path: str) -> bool:
    try:
        return files.stat(path).kind == "link"
    except (FileNotFoundError, NotADirectoryError):
        return False


def warn_of_mixed_root(files: Files, root: str, compression: Compression) -> None:
    """Log a warning when *root* holds sessions of another encoding than *compression*: the reference refuses that.

    Raises:
        StorageError: the root cannot be read.
    """
    others = [name for other, name in LOG_NAMES.items() if other != compression]
    for project in project_directories(files, root):
        directory = os.path.join(root, project)
        with contextlib.suppress(OSError):
            for segment in files.listdir(directory):
                for name in others:
                    with contextlib.suppress(OSError):
                        files.stat(os.path.join(directory, segment, name))
                        _logger.warning(
                            "%s holds sessions with and without compression; this library reads both, "
                            "the reference implementation refuses such a root", root,
                        )  # fmt: skip
                        return

"""Temporary files that a crash has left, of any session below a root.

A file that is being made has a temporary name, and its writer holds the session's lock.
Who dies in between leaves it.  The next write in that directory removes it, but the
directory of a session that never came to be may see no other write.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from msgspec import Struct

from sessionstore.backends.jsonl.lock import SessionLock, lock_path
from sessionstore.backends.jsonl.lookup import project_directories
from sessionstore.backends.jsonl.publish import remove_temp_names
from sessionstore.backends.paths import LOCK_NAME, SessionPaths, is_temp_name
from sessionstore.errors import SessionStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sessionstore.backends.files import Files

__all__ = ["Leftovers", "find_leftovers", "remove_leftovers"]


class Leftovers(Struct, frozen=True):
    """The temporary files of one session: where, how many, and how many bytes."""

    paths: SessionPaths
    count: int
    bytes: int


def find_leftovers(files: Files, root: str) -> Iterator[Leftovers]:
    """Every session directory that holds temporary files, those being made right now too; links are not followed.

    What cannot be read is passed over.

    Raises:
        StorageError: the root cannot be read.
    """
    for project in project_directories(files, root):
        parent = os.path.join(root, project)
        for segment in _names(files, parent):
            directory = os.path.join(parent, segment)
            names = [os.path.join(directory, name) for name in _names(files, directory) if is_temp_name(name)]
            sizes: list[int] = []
            for name in names:
                with contextlib.suppress(OSError):
                    stat = files.stat(name)
                    if stat.kind != "directory":
                        # A second name of the log takes no room of its own.
                        sizes.append(stat.size if stat.links < 2 else 0)
            if sizes:
                paths = SessionPaths(root, parent, directory, os.path.join(directory, LOCK_NAME))
                yield Leftovers(paths, len(sizes), sum(sizes))


def remove_leftovers(files: Files, root: str, lock_dir: str | None, now: Callable[[], int]) -> None:
    """Remove what crashes have left; each under the lock of its session, and never while somebody holds that.

    What cannot be removed stays.

    Raises:
        StorageError: the root cannot be read.
    """
    for found in find_leftovers(files, root):
        name = os.path.basename(found.paths.directory)
        lock = SessionLock(files, lock_path(files, found.paths, lock_dir), name, now=now, retry_ms=0)
        with contextlib.suppress(SessionStoreError, OSError):
            lock.acquire()
            try:
                remove_temp_names(files, found.paths.directory)
            finally:
                lock.release()


def _names(files: Files, directory: str) -> list[str]:
    """The names in a directory; none where it is no directory, or a link, or cannot be read."""
    try:
        return files.listdir(directory) if files.stat(directory).kind == "directory" else []
    except OSError:
        return []

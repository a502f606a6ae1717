"""The first write of a log: header and events become visible at once, and nothing is ever overwritten.

A temporary file is written whole and synced, gets the log's name with ``link``
(which refuses a taken name, where ``rename`` would replace it), and the directory is
synced.  Nobody can see the file before the link, so one sync before it is enough
however many parts the log is made of.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

from sessionstore.backends.files import Identity, write_all
from sessionstore.backends.paths import is_temp_name, temp_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sessionstore.backends.files import Files, FileStat

__all__ = ["Published", "Publisher", "directories_up", "make_durable", "remove_temp_names"]

# What systems answer where a file cannot have two names (vfat, some network and container file systems).
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


class Published(NamedTuple):
    """The file that was published, and its length in bytes."""

    identity: Identity
    size: int


class Publisher:
    """Publishes the log of one session, again where the first try failed half way.  Use it under the session's lock.

    ``unfinished`` is what a failed try left at the log's name and could not remove.
    """

    def __init__(self, files: Files, path: str, *, taken_by: tuple[str, ...] = ()) -> None:
        """*path* is the log's; a file at one of *taken_by* makes the session exist already, too."""
        self.path = path
        self.unfinished: Published | None = None
        self._files = files
        self._directory = os.path.dirname(path)
        self._taken_by = (path, *taken_by)

    def publish(self, chunks: Iterable[bytes]) -> Published:
        """Write *chunks* and give them the log's name; durable on return.  The directory exists.

        Raises:
            FileExistsError: the name is taken.
            OSError: the system refused; nothing is visible.
            ExceptionGroup: of two ``OSError``: what was visible already could not be taken back.  The next call does.
        """
        self._take_back()
        remove_temp_names(self._files, self._directory)
        for path in self._taken_by:
            if self._exists(path):
                raise FileExistsError(errno.EEXIST, "exists already", path)
        temp = os.path.join(self._directory, temp_name(secrets.token_hex(8)))
        try:
            published = self._write(temp, chunks)
            self._name(temp, published)
        except BaseException:
            self._forget(temp)
            raise
        self.unfinished = published
        try:
            self._files.sync_directory(self._directory)
        except OSError as error:
            self._forget(temp)
            try:
                self._take_back()
            except OSError as second:
                raise ExceptionGroup("publication failed, and so did taking it back", [error, second]) from error
            raise
        self.unfinished = None
        # Whatever happens to the second name now, the next write removes it.
        self._forget(temp)
        return published

    def _write(self, temp: str, chunks: Iterable[bytes]) -> Published:
        fd = self._files.create(temp)
        try:
            for chunk in chunks:
                write_all(self._files, fd, chunk)
            self._files.sync(fd)
            found = self._files.fstat(fd)
        except BaseException:
            with contextlib.suppress(OSError):
                self._files.close(fd)
            raise
        self._files.close(fd)
        return Published(found.identity, found.size)

    def _name(self, temp: str, published: Published) -> None:
        try:
            self._files.link(temp, self.path)
        except OSError as error:
            if self._is_named(published):
                return  # it was done all the same: a file server's answer can get lost
            if error.errno not in _NO_LINKS:
                raise
        else:
            return
        # Only the lock keeps others from the name between these two calls.
        if self._exists(self.path):
            raise FileExistsError(errno.EEXIST, "exists already", self.path)
        try:
            self._files.rename(temp, self.path)
        except OSError:
            if not self._is_named(published):
                raise

    def _is_named(self, published: Published) -> bool:
        """Whether the log's name is that of the file just written."""
        try:
            return self._files.stat(self.path).identity == published.identity
        except OSError:
            return False

    def _take_back(self) -> None:
        """Remove what a failed try left, as long as it is exactly what we wrote."""
        if self.unfinished is None:
            return
        with contextlib.suppress(FileNotFoundError):
            found = self._files.stat(self.path)
            if Published(found.identity, found.size) == self.unfinished:
                self._files.unlink(self.path)
        self._files.sync_directory(self._directory)
        self.unfinished = None

    def _exists(self, path: str) -> bool:
        try:
            self._files.stat(path)
        except FileNotFoundError:
            return False
        return True

    def _forget(self, temp: str) -> None:
        with contextlib.suppress(OSError):
            self._files.unlink(temp)


def remove_temp_names(files: Files, directory: str, *, of: FileStat | None = None) -> None:
    """Remove our own temporary names in *directory*: all, or those of the file *of*.  Only under the lock.

    A crash leaves them behind; then they are either nobody's or a second name of the log.
    """
    for name in files.listdir(directory):
        if not is_temp_name(name):
            continue
        path = os.path.join(directory, name)
        with contextlib.suppress(FileNotFoundError):
            found = files.stat(path)
            # A directory of such a name is not ours, and in nobody's way.
            if found.kind != "directory" and (of is None or found.identity == of.identity):
                files.unlink(path)


def make_durable(files: Files, root: str, path: str) -> None:
    """Make a file that somebody published durable: he may have died, or been refused, before his syncs.

    Raises ``OSError``.
    """
    fd = files.open_read(path)
    try:
        files.sync(fd)
    finally:
        files.close(fd)
    for directory in directories_up(path, root):
        files.sync_directory(directory)


def directories_up(path: str, root: str) -> Iterator[str]:
    """The directory of *path*, and those above it up to *root*."""
    directory = os.path.dirname(path)
    yield directory
    while len(directory) > len(root):
        directory = os.path.dirname(directory)
        yield directory

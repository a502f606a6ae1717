"""Deleting is moving: ``<root>/.trash/<time>-<n>/<session dir>``, with a note of where it came from.

Two levels below the root, because the reference implementation looks for sessions
one level below it.  The move is one rename, made under the session's lock, so a
session is either where it was or in the trash, whole.  Nothing is removed for good
but by :func:`empty_trash`, and only what this module has put there (what crashes left half made goes with it,
see ``leftovers.py``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from sessionstore.backends.base import TrashEntry
from sessionstore.backends.files import ensure_directories, storage_errors, write_all
from sessionstore.backends.jsonl.heads import header_of
from sessionstore.backends.paths import LOG_NAMES, TRASH, decode_segment, project_name
from sessionstore.errors import InvalidEventError, SessionNotFoundError, StorageError
from sessionstore.lossless import decode, encode

if TYPE_CHECKING:
    from sessionstore.backends.files import Files
    from sessionstore.backends.jsonl.lookup import Found

__all__ = ["Buried", "bury", "empty_trash", "find_buried", "home_of", "list_trash", "unbury"]

_NOTE_NAME: Final = "note.json"
_KEY: Final = re.compile(r"(\d{1,16})-(\d{1,6})\Z")
_MAX_NOTE: Final = 64 * 1024
_ELSEWHERE: Final = (
    "nothing was moved: its project directory is on another file system than the root, and deleting is one rename; "
    "move the session's directory away by hand"
)


class _Note(Struct, frozen=True):
    """What a directory in the trash says of itself: which session, and the project directory it lay in."""

    id: str
    project: str


class Buried(Struct, frozen=True):
    """A session in the trash: ``directory`` is where it lies, ``project`` where it belongs (``None``: note lost)."""

    entry: TrashEntry
    directory: str
    project: str | None


def bury(files: Files, root: str, found: Found, session_id: str, now: int) -> TrashEntry:
    """Move a session to the trash; durable on return.  The caller holds its lock.

    Raises:
        StorageError: nothing was moved.
    """
    trash = os.path.join(root, TRASH)
    now = max(0, now)  # a clock may tell a time before 1970, the name of a place in the trash cannot
    segment = os.path.basename(found.paths.directory)
    note = _Note(session_id, os.path.basename(found.paths.project))
    with storage_errors("delete", path=found.paths.directory, session_id=session_id):
        ensure_directories(files, root, trash)
        place, key = _make_place(files, trash, now)
        target = os.path.join(place, segment)
        try:
            _write_note(files, place, note)
            files.rename(found.paths.directory, target)
        except BaseException as error:
            # A rename can be done all the same: a file server's answer can get lost.
            if not (isinstance(error, OSError) and _is_there(files, target)):
                _remove_empty_place(files, place)
                if isinstance(error, OSError) and error.errno == errno.EXDEV:
                    raise StorageError(
                        "delete", path=found.paths.directory, os_error=error, session_id=session_id, hint=_ELSEWHERE
                    ) from error
                raise
        files.sync_directory(place)
        files.sync_directory(found.paths.project)
    return TrashEntry(key, session_id, now, _log_size(files, target), target)


def list_trash(files: Files, root: str) -> list[Buried]:
    """What the trash holds, newest first; directories without a session are passed over.

    Raises:
        StorageError: the trash cannot be read.
    """
    trash = os.path.join(root, TRASH)
    with storage_errors("list the trash in", path=trash):
        keys = _keys(files, trash)
    found = (_read_place(files, trash, key) for key in keys)
    return sorted((buried for buried in found if buried is not None), key=lambda b: (-b.entry.deleted_at, b.entry.key))


def find_buried(files: Files, root: str, entry: TrashEntry) -> Buried:
    """The session in the trash that *entry* names.

    Raises:
        SessionNotFoundError: it is not there (any more).
    """
    trash = os.path.join(root, TRASH)
    with storage_errors("look into the trash in", path=trash, session_id=entry.id):
        is_place = _is_trash(files, trash) and _is_place(files, trash, entry.key)
    buried = _read_place(files, trash, entry.key) if is_place else None
    if buried is None:
        raise SessionNotFoundError(entry.id, where=trash, in_trash=True)
    return buried


def home_of(files: Files, buried: Buried) -> str:
    """The project directory that a buried session came from: by its note, else by its header.

    Raises:
        StorageError: neither says so.
    """
    if buried.project is not None:
        return buried.project
    with storage_errors("restore", path=buried.directory, session_id=buried.entry.id):
        header = header_of(files, buried.directory)
    if header is None:
        raise StorageError(
            "restore",
            path=buried.directory,
            session_id=buried.entry.id,
            hint="its note and its header are lost, so where it belongs is unknown; move it to a project directory",
        )
    return project_name(header.cwd)


def unbury(files: Files, root: str, buried: Buried, project: str) -> None:
    """Move a session back to the directory *project* of the root; durable on return.

    Raises:
        SessionNotFoundError: it is not in the trash any more.
        StorageError: it stays in the trash; something of that name may be there again.
    """
    parent = os.path.join(root, project)
    target = os.path.join(parent, os.path.basename(buried.directory))
    hint = (
        "what is in the way there is no session; remove it if none is being created"
        if _is_there(files, target)
        else None
    )
    with storage_errors("restore", path=target, session_id=buried.entry.id, hint=hint):
        ensure_directories(files, root, parent)
        # An empty directory in the way is replaced; one with anything in it belongs to somebody and stops this.
        try:
            files.rename(buried.directory, target)
        except FileNotFoundError as error:
            if _is_there(files, buried.directory):
                raise
            # Another one brought it back, or emptied the trash, a moment ago.
            trash = os.path.join(root, TRASH)
            raise SessionNotFoundError(buried.entry.id, where=trash, in_trash=True) from error
        files.sync_directory(parent)
        place = os.path.dirname(buried.directory)
        files.sync_directory(place)
        with contextlib.suppress(OSError):  # an empty place in the trash is passed over
            _remove_tree(files, place)


def empty_trash(files: Files, root: str) -> int:
    """Remove everything in the trash for good; the number of sessions removed.

    Raises:
        StorageError: something could not be removed; a repeat goes on with the rest.
    """
    trash = os.path.join(root, TRASH)
    removed = 0
    with storage_errors("empty the trash in", path=trash):
        for key in _keys(files, trash):
            removed += _read_place(files, trash, key) is not None
            _remove_tree(files, os.path.join(trash, key))
    return removed


def _keys(files: Files, trash: str) -> list[str]:
    """The places in the trash that are ours."""
    if not _is_trash(files, trash):
        return []
    return sorted(name for name in files.listdir(trash) if _is_place(files, trash, name))


def _is_trash(files: Files, trash: str) -> bool:
    """Whether there is a trash; one that is a symbolic link is none."""
    try:
        return files.stat(trash).kind == "directory"
    except FileNotFoundError:
        return False


def _is_place(files: Files, trash: str, name: str) -> bool:
    """Whether *name* is that of a place that :func:`bury` made.  A link so named would lead out of the trash."""
    if not _KEY.match(name):
        return False
    try:
        return files.stat(os.path.join(trash, name)).kind == "directory"
    except FileNotFoundError:
        return False  # emptied or restored meanwhile


def _make_place(files: Files, trash: str, now: int) -> tuple[str, str]:
    for n in range(1_000_000):
        key = f"{now}-{n}"
        place = os.path.join(trash, key)
        try:
            files.mkdir(place)
        except FileExistsError:
            continue
        files.sync_directory(trash)
        return place, key
    raise FileExistsError(f"a million sessions were deleted in millisecond {now}")


def _remove_empty_place(files: Files, place: str) -> None:
    """Remove a place in the trash, with its note, unless anything else is in it."""
    with contextlib.suppress(OSError):
        if files.listdir(place) == [_NOTE_NAME]:
            files.unlink(os.path.join(place, _NOTE_NAME))
        files.rmdir(place)


def _write_note(files: Files, place: str, note: _Note) -> None:
    fd = files.create(os.path.join(place, _NOTE_NAME))
    try:
        write_all(files, fd, encode({"id": note.id, "project": note.project}))
        files.sync(fd)
    finally:
        files.close(fd)


def _read_place(files: Files, trash: str, key: str) -> Buried | None:
    """What lies in one directory of the trash; ``None`` when that is no session, or cannot be read."""
    place = os.path.join(trash, key)
    match = _KEY.match(key)
    try:
        names = [name for name in files.listdir(place) if files.stat(os.path.join(place, name)).kind == "directory"]
        if match is None or len(names) != 1:
            return None
        directory = os.path.join(place, names[0])
        note = _read_note(files, place)
        session_id = decode_segment(names[0]) or (names[0] if note is None else note.id)
        entry = TrashEntry(key, session_id, int(match[1]), _log_size(files, directory), directory)
    except OSError:
        return None
    return Buried(entry, directory, None if note is None else note.project)


def _read_note(files: Files, place: str) -> _Note | None:
    try:
        fd = files.open_read(os.path.join(place, _NOTE_NAME))
    except OSError:
        return None
    try:
        found = decode(files.pread(fd, _MAX_NOTE, 0))
    except (OSError, InvalidEventError):
        return None
    finally:
        with contextlib.suppress(OSError):
            files.close(fd)
    if not isinstance(found, dict):
        return None
    session_id, project = found.get("id"), found.get("project")
    if not isinstance(session_id, str) or not isinstance(project, str) or not session_id:
        return None
    # Whoever can write the note could also move the directory; still, no name in it leads out of the root.
    safe = project not in {"", ".", ".."} and not project.startswith(".") and not set(project) & {"/", "\0"}
    return _Note(session_id, project) if safe else None


def _log_size(files: Files, directory: str) -> int:
    size = 0
    for name in LOG_NAMES.values():
        with contextlib.suppress(OSError):
            size += files.stat(os.path.join(directory, name)).size
    return size


def _is_there(files: Files, path: str) -> bool:
    try:
        files.stat(path)
    except OSError:
        return False
    return True


def _remove_tree(files: Files, path: str) -> None:
    """Remove a directory and everything in it; a symbolic link in it is removed, not followed."""
    pending = [path]  # not the call stack: whatever lies beside a log may be nested deeper than that
    while pending:
        inner: list[str] = []
        for name in files.listdir(pending[-1]):
            each = os.path.join(pending[-1], name)
            if files.stat(each).kind == "directory":
                inner.append(each)
            else:
                files.unlink(each)
        if inner:
            pending += inner
        else:
            files.rmdir(pending.pop())

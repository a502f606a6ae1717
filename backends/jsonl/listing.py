"""One row per session, from the header line and the end of its log.

The cost grows with the number of sessions, never with their size, and one bad
session costs the list nothing: whatever is wrong with it becomes its status.  A
session that can be opened by its id is in the list, and one that is in the list as
``ok`` shows nothing, in header and tail, that would keep it from being opened.

How closely a tail is looked at depends on how many rows are wanted: a long list
costs a few bytes per session, and a page that a person reads is looked at again,
up to 64 KiB of each log (:func:`look_closer`).
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import structs

from sessionstore.backends.base import AnyCwd, SessionInfo
from sessionstore.backends.jsonl.heads import WHOLE, Head, LogView, read_head
from sessionstore.backends.jsonl.index import load_index
from sessionstore.backends.jsonl.lock import lock_path, probe
from sessionstore.backends.jsonl.lookup import project_directories
from sessionstore.backends.jsonl.reading import Pauses
from sessionstore.backends.jsonl.tails import Tail, read_tail
from sessionstore.backends.paths import (
    LOCK_NAME,
    LOG_NAMES,
    ZSTD_NAME,
    SessionPaths,
    decode_segment,
    encode_id,
    project_name,
    session_paths,
)
from sessionstore.errors import StorageError

if TYPE_CHECKING:
    from sessionstore.backends.base import Page
    from sessionstore.backends.files import Files, FileStat

__all__ = ["CLOSE_LOOK", "list_sessions", "look_closer"]

CLOSE_LOOK: Final = 256
"""The most rows of a page that are looked at again."""


class _Place(NamedTuple):
    """A directory that may hold a session: its name, its project's name below *root*, its path."""

    root: str
    project: str
    segment: str
    directory: str

    @property
    def paths(self) -> SessionPaths:
        lock = os.path.join(self.directory, LOCK_NAME)
        return SessionPaths(self.root, os.path.dirname(self.directory), self.directory, lock)


def list_sessions(files: Files, root: str, *, cwd: str | AnyCwd | None, lock_dir: str | None) -> list[SessionInfo]:
    """A row for every session below *root*, in no order.  Blocks: call it in a worker.

    Filtered by the *cwd* of the header; a session whose header cannot be read belongs to its project directory.

    Raises:
        StorageError: the root cannot be listed.
    """
    rows: list[tuple[str, SessionInfo]] = []
    pause = Pauses()
    for project in project_directories(files, root):
        directory = os.path.join(root, project)
        try:
            names = files.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            rows.append((project, _unreadable(project, error, directory)))
            continue
        for name in names:
            row = _list_one(files, _Place(root, project, name, f"{directory}/{name}"), lock_dir)
            if row is not None:
                rows.append((project, row))
            pause()
    counts = Counter(row.id for _, row in rows)
    return [_unique(row, counts[row.id]) for project, row in rows if _matches(row, project, cwd)]


def look_closer(files: Files, page: Page) -> Page:
    """*page*, if it is no longer than people read, with the status that the last 64 KiB of each log show.  Blocks."""
    if len(page.sessions) > CLOSE_LOOK:
        return page
    pause = Pauses()
    return structs.replace(page, sessions=tuple(_look_closer(files, row, pause) for row in page.sessions))


def _look_closer(files: Files, row: SessionInfo, pause: Pauses) -> SessionInfo:
    pause()
    if row.status not in {"ok", "live"} or row.bytes <= WHOLE or row.location is None:
        return row
    try:
        _, _, tail = _look(files, row.location, closely=True)
    except (OSError, StorageError):  # it was there a moment ago: what was seen then stands
        return row
    return row if tail.damage is None else structs.replace(row, status="damaged", detail=tail.damage)


def _matches(row: SessionInfo, project: str, cwd: str | AnyCwd | None) -> bool:
    if isinstance(cwd, AnyCwd):
        return True
    if row.created_at is None:  # no header
        return project == project_name(cwd)
    return row.cwd == cwd


def _unique(row: SessionInfo, count: int) -> SessionInfo:
    """An id that is stored twice cannot be opened: each row of it says so."""
    if count == 1:
        return row
    return structs.replace(row, status="damaged", detail=f"this id is stored {count} times")


def _unreadable(session_id: str, error: Exception, location: str) -> SessionInfo:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return SessionInfo(id=session_id, status="unreadable", detail=reason, location=location)


def _list_one(files: Files, place: _Place, lock_dir: str | None) -> SessionInfo | None:
    """The row of one directory; ``None`` when there is no session in it.

    The names are tried: that costs less than a listing of the directory.
    """
    session_id = decode_segment(place.segment) or place.segment
    row: SessionInfo | None = None
    for name in LOG_NAMES.values():
        log = f"{place.directory}/{name}"
        try:
            if row is None:
                row = _read_row(files, place, session_id, log)
            elif files.exists(log):
                return structs.replace(row, status="damaged", detail="two logs, one compressed and one not")
        except (FileNotFoundError, NotADirectoryError):  # no session, or one in the other encoding
            continue
        except (OSError, StorageError) as error:
            row = _unreadable(session_id, error, log)
    if row is None or row.status not in {"ok", "damaged"}:
        return row
    lock = f"{place.directory}/{LOCK_NAME}" if lock_dir is None else lock_path(files, place.paths, lock_dir)
    return structs.replace(row, status="live") if _is_held(files, lock) else row


def _is_held(files: Files, lock: str) -> bool:
    """Whether a lock is held, where that shows: a lock file is empty but for its holder's note.

    Nearly all are empty, and to know that without opening them halves what a list asks of the system.  A holder whose
    disk was too full for a note goes unnoticed here, not by those who want to write.
    """
    try:
        return files.exists(lock) and files.stat(lock).size > 0 and probe(files, lock) == "live"
    except OSError:
        return False


def _look(files: Files, log: str, *, closely: bool = False) -> tuple[FileStat, Head, Tail]:
    """Head and tail of a log, which is opened once.  Raises ``OSError`` and :class:`StorageError`."""
    fd = files.open_read(log)
    try:
        stat = files.fstat(fd)
        if stat.kind != "file":
            raise OSError(0, f"the log is not a file but {stat.noun}")
        view = LogView(files, fd, stat, "zstd" if log.endswith(ZSTD_NAME) else "none")
        head = read_head(view)
        return stat, head, Tail() if head.id is None else read_tail(view, head.end, closely=closely)
    finally:
        files.close(fd)


def _read_row(files: Files, place: _Place, session_id: str, log: str) -> SessionInfo:
    stat, head, tail = _look(files, log)
    status, detail = head.status, head.detail
    if head.id is not None:
        session_id = _own_id(session_id, place, head.id)
        misplaced = _misplaced(files, place, session_id, head, stat)
        if misplaced is not None or tail.damage is not None:
            status, detail = "damaged", misplaced or tail.damage
    last_time, approximate = tail.time, False
    if last_time is None and not tail.out_of_reach:
        last_time = head.created_at
    if last_time is None:
        last_time, approximate = stat.mtime_ns // 1_000_000, True
    index = load_index(files, place.directory)
    if index is not None and not index.describes(stat):
        index = None
    return SessionInfo(
        id=session_id,
        status=status,
        cwd=head.cwd,
        created_at=head.created_at,
        last_time=last_time,
        bytes=stat.size,
        approximate=approximate,
        title=None if index is None else index.title,
        turns=None if index is None else index.turns,
        events=None if index is None else index.events,
        detail=detail,
        location=log,
    )


def _own_id(session_id: str, place: _Place, stored: str) -> str:
    """The id to open the session by: the header's where the directory's name was shortened from it."""
    if stored == session_id:
        return stored
    return stored if encode_id(stored) == place.segment else session_id


def _misplaced(files: Files, place: _Place, session_id: str, head: Head, stat: FileStat) -> str | None:
    if head.id is None or head.id != session_id:
        return f"the header names session {head.id!r}"
    if project_name(head.cwd) == place.project:
        return None
    own = session_paths(place.root, head.id, head.cwd)
    for name in LOG_NAMES.values():
        try:
            if files.stat(os.path.join(own.directory, name)).identity == stat.identity:
                return None
        except OSError:
            continue
    return f"the header's cwd belongs to {own.project}"

"""What callers give to the store, checked before anything is done with it.

A wrong type is the caller's mistake and a :class:`TypeError`, a wrong value a
:class:`ValueError`; neither depends on what is stored.  A session that is not
there is neither: its id is as good as any other.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sessionstore.backends.base import AnyCwd, TrashEntry
from sessionstore.errors import InvalidEventError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["check_choice", "check_cwd", "check_cwd_filter", "check_entry", "check_flag", "check_id", "check_page"]


def check_id(session_id: object) -> str:
    """The id of a session that may be stored.

    Raises:
        TypeError: it is not a str.
    """
    if not isinstance(session_id, str):
        raise TypeError(f"a session id is a str, got {type(session_id).__name__}")
    return session_id


def check_cwd(cwd: object) -> str | None:
    """A working directory, ``None`` for none.

    Raises:
        TypeError: it is neither a str nor a path.
        InvalidEventError: it is not absolute.
    """
    if cwd is None:
        return None
    path = _path(cwd)
    if not path.startswith("/"):
        raise InvalidEventError(f"expected an absolute path, got {path[:60]!r}", path="$.cwd")
    return path


def check_cwd_filter(cwd: object) -> str | AnyCwd | None:
    """The working directory that a listing is for.

    Raises:
        TypeError: it is neither a str, nor a path, nor ``ANY``, nor ``None``.
        ValueError: it is not absolute: no session has it.
    """
    if cwd is None or isinstance(cwd, AnyCwd):
        return cwd
    path = _path(cwd)
    if not path.startswith("/"):
        raise ValueError(f"cwd is an absolute path, got {path[:60]!r}; os.path.abspath makes it one")
    return path


def _path(value: object) -> str:
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(path, str):
        raise TypeError(f"cwd is an absolute path as a str or a Path, got {type(value).__name__}")
    return path


def check_page(limit: object, after: object) -> tuple[int | None, tuple[int, str] | None]:
    """The size and the position of a page of a listing.

    Raises:
        TypeError: *limit* is not an int, or *after* is not what ``page.next`` was.
        ValueError: *limit* is below 1.
    """
    if limit is not None:
        if not isinstance(limit, int) or isinstance(limit, bool):
            raise TypeError(f"limit is an int, got {type(limit).__name__}")
        if limit < 1:
            raise ValueError(f"a page holds at least 1 session, got limit={limit}")
    if after is None:
        return limit, None
    match after:
        case (int(activity), str(session_id)) if not isinstance(activity, bool):
            return limit, (activity, session_id)
        case _:
            raise TypeError(f"after is the `next` of a page, (epoch ms, session id), got {type(after).__name__}")


def check_entry(entry: object) -> TrashEntry:
    """An entry of the trash.

    Raises:
        TypeError: it is none.
    """
    names: tuple[object, ...] = (entry.key, entry.id) if isinstance(entry, TrashEntry) else (None,)
    if not isinstance(entry, TrashEntry) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"restore takes an entry of trash(), got {type(entry).__name__}")
    return entry


def check_flag(name: str, value: object) -> bool:
    """A yes or no.  Nothing else is taken for one of them: ``repair(id, dry_run=None)`` must not repair.

    Raises:
        TypeError: it is not a bool.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, got {type(value).__name__}")
    return value


def check_choice(name: str, value: object, allowed: Iterable[str]) -> None:
    """One of a few words.

    Raises:
        ValueError: it is another.
    """
    choices = tuple(allowed)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} is {' or '.join(map(repr, choices))}, got {value!r}")

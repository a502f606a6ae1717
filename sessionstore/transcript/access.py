"""Reading JSON that may have any shape.

A transcript is made of logs written by several releases and by plugins, so a field
that is missing or of another type is an ordinary case here, never an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["EMPTY", "boolean", "integer", "items", "lookup", "mapping", "text"]

EMPTY: Final[Mapping[str, object]] = {}


def mapping(value: object) -> Mapping[str, object]:
    """*value* where it is a JSON object, else an empty one."""
    return value if isinstance(value, Mapping) else EMPTY


def items(value: object) -> Sequence[object]:
    """*value* where it is a JSON array, else an empty one."""
    return value if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else ()


def text(value: object, default: str = "") -> str:
    """*value* where it is a string, else *default*."""
    return value if isinstance(value, str) else default


def integer(value: object) -> int | None:
    """*value* where it is an integral number (``1.0`` too), else ``None``."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


def boolean(value: object) -> bool:
    """Whether *value* is ``true``."""
    return value is True


def lookup(value: object, *path: str) -> object:
    """The value below *path*, ``None`` where a step of it is missing."""
    for key in path:
        value = mapping(value).get(key)
    return value

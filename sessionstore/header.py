"""The header: the immutable first line of a log.

A header read from a log keeps its text, so that unknown keys, key order and
number spelling go out as they came in.  A header made here is written in the
fixed order of the format.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, cast

from msgspec import Struct

from sessionstore.errors import InvalidEventError, UnsupportedFormatError
from sessionstore.lossless import MAX_SAFE, decode, encode, freeze, json_equal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sessionstore.lossless import Json

__all__ = ["Header", "check_header_id", "child_header", "make_header", "parse_header"]

_VERSION: Final = 0
_RETIRED: Final = ("sandboxMode", "approvalPolicy")
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z]:[\\/]|\\\\")
# JSON name -> field, in the order in which a header is written.
_FIELDS: Final = {
    "version": "version",
    "id": "id",
    "createdAt": "created_at",
    "cwd": "cwd",
    "parentSession": "parent_session",
    "seedLength": "seed_length",
    "origin": "origin",
    "delegationDepth": "delegation_depth",
    "agentPreset": "agent_preset",
}
_COUNTS: Final = frozenset({"version", "createdAt", "seedLength", "delegationDepth"})
_REQUIRED: Final = frozenset({"version", "id", "createdAt", "delegationDepth"})


class Header(Struct, frozen=True, kw_only=True, eq=False):
    """What is known about a session before its first event.  Immutable, hashable, picklable.

    ``created_at`` is in epoch milliseconds.  ``cwd`` is an absolute path of the machine that wrote the log (POSIX or
    Windows style, since logs travel).  ``seed_length`` is the number of events copied from ``parent_session`` by a
    fork.  ``text`` is the header line as loaded, without its newline; empty for a header made here.

    Headers are equal when all their values are, unknown keys included; key order and number spelling do not count.
    The constructor checks every value; ``text`` must say the same as the other fields, so a loaded header cannot be
    changed with :func:`msgspec.structs.replace`.

    Raises:
        InvalidEventError: a value breaks the rules of :func:`make_header`.
    """

    id: str
    created_at: int
    version: int = _VERSION
    cwd: str | None = None
    parent_session: str | None = None
    seed_length: int | None = None
    origin: str | None = None
    delegation_depth: int = 0
    agent_preset: str | None = None
    text: bytes = b""

    def __post_init__(self) -> None:
        for key, field in _FIELDS.items():
            value = getattr(self, field)
            if value is not None or key in _REQUIRED:
                _check_value(key, value)
        if self.version != _VERSION:
            raise _foreign_version(self.version, self.id)
        if self.text and _known_values(_decode_object(self.text)) != {f: getattr(self, f) for f in _FIELDS.values()}:
            raise InvalidEventError("a loaded header cannot be changed; make_header() makes a new one", path="$.text")

    @property
    def extra(self) -> Mapping[str, Json]:
        """Keys of a loaded header that this version does not know, read-only."""
        return cast("Mapping[str, Json]", freeze(self._unknown()))

    def to_json(self) -> bytes:
        """The header line without its newline: the loaded bytes, or compact JSON in the order of the format."""
        return self.text or encode(self.to_dict())

    def to_dict(self) -> dict[str, Json]:
        """A fresh plain dict with the names on disk; absent optionals are left out, unknown keys are in it."""
        found: dict[str, Json] = {"type": "session"}
        for key, field in _FIELDS.items():
            value: str | int | None = getattr(self, field)
            if value is not None:
                found[key] = value
        found.update(self._unknown())
        return found

    def _unknown(self) -> dict[str, Json]:
        if not self.text:
            return {}
        return {key: value for key, value in _decode_object(self.text).items() if key != "type" and key not in _FIELDS}

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, field) for field in _FIELDS.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Header):
            return NotImplemented
        if self._values() != other._values():
            return False
        return self.text == other.text or json_equal(self._unknown(), other._unknown())

    def __ne__(self, other: object) -> bool:
        # Struct has one of its own, which compares identities.
        return not self == other

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        shown = (f"{field}={getattr(self, field)!r}" for field in _FIELDS.values() if getattr(self, field) is not None)
        return f"Header({', '.join(shown)})"


def make_header(
    id: str,
    *,
    created_at: int,
    cwd: str | None = None,
    parent_session: str | None = None,
    seed_length: int | None = None,
    origin: str | None = None,
    delegation_depth: int = 0,
    agent_preset: str | None = None,
) -> Header:
    """A new header.  ``created_at`` is in epoch milliseconds; ``origin`` is ``"subagent"`` or absent.

    Raises:
        InvalidEventError: a wrong type, a number that is negative, fractional or past 2**53 - 1, an empty string, or
            a relative ``cwd``; ``path`` says which.
    """
    if origin is not None and origin != "subagent":
        raise InvalidEventError(f'expected "subagent", got {_shown(origin)}', path="$.origin")
    return Header(
        id=id,
        created_at=cast("int", _whole(created_at)),
        cwd=cwd,
        parent_session=parent_session,
        seed_length=cast("int | None", _whole(seed_length)),
        origin=origin,
        delegation_depth=cast("int", _whole(delegation_depth)),
        agent_preset=agent_preset,
    )


def child_header(parent: Header, id: str, *, created_at: int, seed_length: int) -> Header:
    """The header of a fork of ``parent`` that copies its first ``seed_length`` events.

    The child lives in the same directory and, being a sibling and not a delegate, at the same delegation depth;
    ``origin`` and ``agent_preset`` are not inherited.

    Raises:
        InvalidEventError: a value breaks the rules of :func:`make_header`.
    """
    return make_header(
        id,
        created_at=created_at,
        cwd=parent.cwd,
        parent_session=parent.id,
        seed_length=seed_length,
        delegation_depth=parent.delegation_depth,
    )


def check_header_id(header: Header, session_id: str) -> None:
    """Check that ``header`` belongs to the session ``session_id``.

    Raises:
        InvalidEventError: it names another one.
    """
    if header.id != session_id:
        raise InvalidEventError(f"the header names session {header.id!r}", path="$.id", session_id=session_id)


def parse_header(line: bytes) -> Header:
    """Read a header line (without its newline).

    The version is looked at before anything else, so that a future format never shows as damage.

    Raises:
        UnsupportedFormatError: another version (``direction`` says which way), or a retired key.
        InvalidEventError: the line is no header, or a value breaks the rules; ``path`` says which.
    """
    found = _decode_object(line)
    session_id = found.get("id")
    known_id = session_id if isinstance(session_id, str) else None
    # A first line that is some other record has lost its header; it is not a header of another version.
    is_header = found.get("type") == "session" or ("version" in found and "seq" not in found)
    if not is_header:
        raise InvalidEventError('the first line is not a header: expected the type "session"', path="$.type")
    version = _whole(found.get("version"))
    if type(version) is not int or version != _VERSION:
        raise _foreign_version(version if "version" in found else _MISSING, known_id)
    if found.get("type") != "session":
        raise InvalidEventError('expected the type "session"', path="$.type")
    for key in _RETIRED:
        if key in found:
            raise UnsupportedFormatError(
                f"the header carries {key}, a retired form; the program that wrote it can still read it",
                direction="retired",
                session_id=known_id,
            )
    for key in _FIELDS:
        if key in found or (key in _REQUIRED and key != "delegationDepth"):
            _check_value(key, _whole(found.get(key)) if key in _COUNTS else found.get(key), missing=key not in found)
    values = _known_values(found)
    return Header(
        id=cast("str", values["id"]),
        created_at=cast("int", values["created_at"]),
        cwd=cast("str | None", values["cwd"]),
        parent_session=cast("str | None", values["parent_session"]),
        seed_length=cast("int | None", values["seed_length"]),
        origin=cast("str | None", values["origin"]),
        delegation_depth=cast("int", values["delegation_depth"]),
        agent_preset=cast("str | None", values["agent_preset"]),
        text=line,
    )


_MISSING: Final = object()


def _foreign_version(version: object, session_id: str | None) -> UnsupportedFormatError:
    if version is _MISSING:
        reason = "the header names no format version: written by an older version or another program"
        return UnsupportedFormatError(reason, direction="older", session_id=session_id)
    if type(version) is not int:
        reason = f"the header's format version is {_shown(version)}, not a whole number: no known version writes that"
        return UnsupportedFormatError(reason, direction="newer", session_id=session_id)
    if version > _VERSION:
        reason = f"format version {version}, this program reads {_VERSION}: written by a newer version: upgrade"
        return UnsupportedFormatError(reason, direction="newer", session_id=session_id)
    reason = (
        f"format version {version}, this program reads {_VERSION}: written by an older version: "
        "no upgrade path exists, read it with the program that wrote it"
    )
    return UnsupportedFormatError(reason, direction="older", session_id=session_id)


def _check_value(key: str, value: object, *, missing: bool = False) -> None:
    path = f"$.{key}"
    if missing:
        raise InvalidEventError("missing from the header", path=path)
    if key == "version":
        return
    if key in _COUNTS:
        if type(value) is not int or not 0 <= value <= MAX_SAFE:
            raise InvalidEventError(f"expected an integer from 0 to 2**53 - 1, got {_shown(value)}", path=path)
    elif not isinstance(value, str) or not value:
        raise InvalidEventError(f"expected a non-empty string, got {_shown(value)}", path=path)
    elif key == "cwd" and not _ABSOLUTE.match(value):
        raise InvalidEventError(f"expected an absolute path, got {_shown(value)}", path=path)


def _known_values(found: Mapping[str, Json]) -> dict[str, Json]:
    """The fields of a :class:`Header`, by their Python names, with absent ones at their defaults."""
    values: dict[str, Json] = {}
    for key, field in _FIELDS.items():
        value = found.get(key, 0 if key == "delegationDepth" else None)
        values[field] = cast("Json", _whole(value)) if key in _COUNTS else value
    return values


def _whole(value: object) -> object:
    """An integral float as the integer it spells (``1e3``, ``5.0``); anything else, ``-0.0`` too, as it is."""
    if type(value) is float and value.is_integer() and (value != 0.0 or str(value)[0] != "-"):
        return int(value)
    return value


def _decode_object(line: bytes) -> dict[str, Json]:
    found = decode(line)
    if not isinstance(found, dict):
        raise InvalidEventError(f"the header is not an object but {_shown(found)}", path="$")
    if b"-0" in line:
        found.update(_negative_zeros(line))
    return found


def _negative_zeros(line: bytes) -> dict[str, Json]:
    """The keys of a header whose number is spelled ``-0``.

    No integer type holds a negative zero, so a plain decode takes it for 0; the rules refuse it because a JavaScript
    reader does not.
    """
    import json  # noqa: PLC0415  # for this one case; nothing else here needs it

    try:
        found = json.loads(line, parse_int=lambda text: -0.0 if text == "-0" else 0)
    except (ValueError, RecursionError):
        # The lossless reader took the line, so this is only its greater depth: such a header is far from ours.
        return {}
    return {key: value for key, value in found.items() if type(value) is float and str(value) == "-0.0"}


def _shown(value: object) -> str:
    """A short spelling of a value for a message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, (int, float)):
        return repr(value) if abs(value) < 1e30 else "a number past 1e30"
    return type(value).__name__

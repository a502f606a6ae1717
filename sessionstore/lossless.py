"""JSON without loss: what may enter a log, and how it is written and read.

Accepted are ``None``, ``bool``, ``str`` (lone surrogates included), ``int`` of at most
4,300 digits, finite ``float`` other than ``-0.0``, lists, tuples and dicts with
``str`` keys, nested to :data:`MAX_DEPTH` levels.  Everything else is refused with
the path to the value, because a serialiser would change it silently (session.md,
section 2).

msgspec does the work where it is exact.  Where it is not (deep nesting, lone
surrogates, values that it would coerce) the iterative writer and reader below
decide.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from sessionstore.errors import InvalidEventError

__all__ = [
    "MAX_DEPTH",
    "MAX_EVENT_BYTES",
    "MAX_SAFE",
    "Json",
    "decode",
    "encode",
    "freeze",
    "json_equal",
    "member_texts",
]

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"

MAX_SAFE: Final = 2**53 - 1
"""The largest integer that a JavaScript reader holds exactly."""

MAX_EVENT_BYTES: Final = 256 * 1024 * 1024
"""The longest JSON text of one event, in bytes."""

MAX_DEPTH: Final = 10_000
"""How deep containers may be nested."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_NEGATIVE_ZERO: Final = re.compile(rb"(?:^|[\[:,\s])-0(?:\.0+)?(?:[eE][-+]?\d+)?(?![\d.eE])")


def encode(value: object, *, what: str | None = None) -> bytes:
    """Return *value* as compact UTF-8 JSON, detached from the caller's objects.

    *what* names the event type in the error.

    Raises:
        InvalidEventError: *value* is not lossless JSON; ``path`` says where.
    """
    try:
        raw = _encode(value)
        # msgspec coerces sets, bytes, dates, NaN, ... without a word; what it coerced does not compare equal.
        if _decode(raw) == value and b"-0.0" not in raw:
            return raw
    except Exception:  # noqa: BLE001, S110 - whatever it was, the careful writer below names it
        pass
    return _Writer(what).write(value)


def decode(raw: bytes, *, exact: bool = True) -> Json:
    """Return the value of the JSON text *raw* as fresh dicts and lists.

    With *exact* off, a number that Python cannot hold losslessly is read as near as it can be: for looking at the
    shape of a stored line whose numbers nobody reads yet.

    Raises:
        InvalidEventError: not JSON, not UTF-8, too deep, or (*exact*) a number that Python cannot hold losslessly.
    """
    try:
        value: Json = _decode(raw)
    except Exception:  # noqa: BLE001 - whatever it was, the careful reader decides
        return _Reader(raw, exact).read()
    if exact and _NEGATIVE_ZERO.search(raw) is not None:
        return _Reader(raw, exact).read()
    return value


def member_texts(raw: bytes) -> dict[str, bytes]:
    """Return the JSON text of each member of the object *raw*: the very bytes, whatever msgspec makes of them.

    Raises:
        InvalidEventError: not JSON, not UTF-8, too deep, or not an object.
    """
    reader = _Reader(raw, exact=False)
    if not isinstance(reader.read(), dict):
        raise InvalidEventError("not a JSON object")
    return reader.members


def freeze(value: Json) -> Json:
    """Return *value* with every dict a read-only mapping and every list a tuple."""
    if not isinstance(value, (dict, list)):
        return value
    containers: list[dict[str, Json] | list[Json]] = [value]
    for container in containers:
        children = container.values() if isinstance(container, dict) else container
        containers.extend(child for child in children if isinstance(child, (dict, list)))
    frozen: dict[int, Json] = {}
    for container in reversed(containers):
        if isinstance(container, dict):
            frozen[id(container)] = MappingProxyType({k: frozen.get(id(v), v) for k, v in container.items()})
        else:
            frozen[id(container)] = tuple(frozen.get(id(v), v) for v in container)
    return frozen[id(value)]


def json_equal(a: Json, b: Json) -> bool:
    """Whether two JSON values are the same value: ``1``, ``1.0`` and ``True`` differ, key order does not count."""
    pairs: list[tuple[Json, Json]] = [(a, b)]
    while pairs:
        x, y = pairs.pop()
        if isinstance(x, Mapping):
            if not isinstance(y, Mapping) or len(x) != len(y) or x.keys() != y.keys():
                return False
            pairs.extend((v, y[k]) for k, v in x.items())
        elif isinstance(x, (list, tuple)):
            if not isinstance(y, (list, tuple)) or len(x) != len(y):
                return False
            pairs.extend(zip(x, y, strict=True))
        elif type(x) is not type(y) or x != y:
            return False
    return True


class _Writer:
    """The careful writer: checks each value, keeps its own stack, knows the path it is at."""

    def __init__(self, what: str | None) -> None:
        self._what = what
        self._path: list[str | int] = []
        self._out: list[bytes] = []

    def write(self, root: object) -> bytes:
        """Write *root* depth first; ``work`` holds an iterator per open container."""
        out = self._out
        work: list[tuple[Iterator[tuple[str | int, object]], bytes]] = []
        open_ids: list[int] = []
        inside: set[int] = set()
        pending: object = root
        while True:
            opened = self._open(pending)
            if opened is None:
                out.append(self._scalar(pending))
            else:
                if id(pending) in inside:
                    raise self._refuse("a container contains itself")
                if len(work) >= MAX_DEPTH:
                    raise self._refuse(f"nested deeper than {MAX_DEPTH} levels")
                items, opening, closing = opened
                out.append(opening)
                work.append((items, closing))
                self._path.append("")
                inside.add(id(pending))
                open_ids.append(id(pending))
            while work:
                items, closing = work[-1]
                step = next(items, None)
                if step is not None:
                    key, pending = step
                    if out[-1] not in (b"{", b"["):
                        out.append(b",")
                    self._path[-1] = "" if closing == b"}" and not isinstance(key, str) else key
                    if closing == b"}":
                        out.append(self._key(key) + b":")
                    break
                out.append(closing)
                work.pop()
                self._path.pop()
                inside.discard(open_ids.pop())
            else:
                return b"".join(out)

    def _open(self, value: object) -> tuple[Iterator[tuple[str | int, object]], bytes, bytes] | None:
        if isinstance(value, dict):
            return iter(list(value.items())), b"{", b"}"
        if isinstance(value, (list, tuple)):
            return iter(list(enumerate(value))), b"[", b"]"
        return None

    def _key(self, key: object) -> bytes:
        if not isinstance(key, str):
            raise self._refuse(f"object key is {type(key).__name__}, expected str")
        return _text(key)

    def _scalar(self, value: object) -> bytes:
        if value is None or isinstance(value, bool):
            return _encode(value)
        if isinstance(value, str):
            return _text(value)
        if isinstance(value, int):
            return self._integer(value)
        if isinstance(value, float):
            return self._float(value)
        raise self._refuse(f"{type(value).__name__} is not JSON")

    def _integer(self, value: int) -> bytes:
        try:
            return int.__repr__(value).encode()
        except ValueError:
            raise self._refuse("integer has more than 4300 digits") from None

    def _float(self, value: float) -> bytes:
        plain = float(value)
        if not math.isfinite(plain):
            raise self._refuse(f"{float.__repr__(plain)} has no JSON form")
        if plain == 0.0 and float.__repr__(plain)[0] == "-":
            raise self._refuse("-0.0 does not survive JSON")
        return _encode(plain)

    def _refuse(self, reason: str) -> InvalidEventError:
        return InvalidEventError(reason, event_type=self._what, path=_path(self._path))


def _path(steps: Sequence[str | int]) -> str:
    shown = "$"
    for step in steps[:50]:
        if isinstance(step, int):
            shown += f"[{step}]"
        elif step.isidentifier() and step.isascii() and len(step) <= 60:
            shown += f".{step}"
        else:
            # A key may hold anything, secrets included: its shape is enough to find it.
            shown += "[<key>]"
    return shown + ("..." if len(steps) > 50 else "")


def _text(value: str) -> bytes:
    """Encode one string; a lone surrogate becomes its six-character escape.

    A high surrogate followed by a low one is what UTF-16 calls one character: JSON cannot tell the two
    apart, so the pair is written as that character.
    """
    plain = str.__str__(value)
    try:
        return _encode(plain)
    except UnicodeEncodeError:
        joined = plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    out = [b'"']
    at = 0
    for match in _SURROGATE.finditer(joined):
        out.append(_encode(joined[at : match.start()])[1:-1])
        out.append(b"\\u%04x" % ord(match.group()))
        at = match.end()
    out.append(_encode(joined[at:])[1:-1])
    out.append(b'"')
    return b"".join(out)


_SPACE: Final = re.compile(r"[ \t\n\r]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_LITERALS: Final[Mapping[str, bool | None]] = {"true": True, "false": False, "null": None}


@cache
def _string_reader() -> Callable[[str, int], tuple[object, int]]:
    """Imported for the first text that is not as usual: it is a twentieth of the time that importing the library takes."""
    from json import JSONDecoder  # noqa: PLC0415

    return JSONDecoder().raw_decode


class _Reader:
    """The careful reader: any depth up to MAX_DEPTH, lone surrogates, and exact about numbers."""

    def __init__(self, raw: bytes, exact: bool) -> None:
        self._exact = exact
        self.members: dict[str, bytes] = {}  # of the outermost object
        try:
            self._text = raw.decode()
        except UnicodeDecodeError as error:
            raise InvalidEventError(f"not UTF-8 (byte {error.start})") from None

    def read(self) -> Json:
        """Read one value; the text must end after it."""
        text = self._text
        stack: list[dict[str, Json] | list[Json]] = []
        keys: list[str] = []
        at = begin = self._skip(0)
        while True:
            char = text[at : at + 1]
            value: Json
            if len(stack) == 1:
                begin = at
            if char in {"{", "["}:
                if len(stack) > MAX_DEPTH:  # one more than a payload may have: the event around it
                    raise InvalidEventError(f"nested deeper than {MAX_DEPTH} levels")
                container: dict[str, Json] | list[Json] = {} if char == "{" else []
                at = self._skip(at + 1)
                if text[at : at + 1] != ("}" if char == "{" else "]"):
                    stack.append(container)
                    if char == "{":
                        at = self._read_key(keys, at)
                    continue
                value, at = container, at + 1
            else:
                value, at = self._scalar(at)
            # The value is complete: put it into its container, and close what it closes.
            while True:
                end, at = at, self._skip(at)
                if not stack:
                    if at != len(text):
                        raise self._bad(at)
                    return value
                top = stack[-1]
                if isinstance(top, dict):
                    if len(stack) == 1:
                        self.members[keys[-1]] = text[begin:end].encode()
                    top[keys.pop()] = value
                else:
                    top.append(value)
                char = text[at : at + 1]
                if char == ",":
                    at = self._skip(at + 1)
                    if isinstance(top, dict):
                        at = self._read_key(keys, at)
                    break
                if char != ("}" if isinstance(top, dict) else "]"):
                    raise self._bad(at)
                value, at = stack.pop(), at + 1

    def _skip(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        return at if match is None else match.end()

    def _read_key(self, keys: list[str], at: int) -> int:
        if self._text[at : at + 1] != '"':
            raise self._bad(at)
        key, at = self._string(at)
        keys.append(key)
        at = self._skip(at)
        if self._text[at : at + 1] != ":":
            raise self._bad(at)
        return self._skip(at + 1)

    def _string(self, at: int) -> tuple[str, int]:
        try:
            value, end = _string_reader()(self._text, at)
        except ValueError:
            raise self._bad(at) from None
        return str(value), end

    def _scalar(self, at: int) -> tuple[Json, int]:
        if self._text[at : at + 1] == '"':
            return self._string(at)
        for word, value in _LITERALS.items():
            if self._text.startswith(word, at):
                return value, at + len(word)
        match = _NUMBER.match(self._text, at)
        if match is None:
            raise self._bad(at)
        return self._number(match, at), match.end()

    def _number(self, match: re.Match[str], at: int) -> int | float:
        if match.group(1) is None and match.group(2) is None:
            try:
                return int(match.group())
            except ValueError:
                if self._exact:
                    raise InvalidEventError(f"integer has more than 4300 digits (character {at})") from None
        number = float(match.group())
        if not self._exact:
            return number
        if number in (float("inf"), float("-inf")):
            raise InvalidEventError(f"number is out of range (character {at})")
        if number == 0.0 and match.group()[0] == "-":
            raise InvalidEventError(f"-0.0 is not a lossless value (character {at})")
        return number

    def _bad(self, at: int) -> InvalidEventError:
        return InvalidEventError(f"not JSON (character {at})")

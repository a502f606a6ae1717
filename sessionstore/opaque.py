"""Fields that hold somebody else's JSON.

A tool's ``meta`` or a provider's replay state belongs to whoever wrote it: nothing in it
may make an event unreadable, and most readers never look.  Such a field is stored as the
JSON text and decoded, read-only, when it is read.  A constructor takes plain JSON values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Final, Protocol, TypeAlias, TypeVar, cast

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import fields

from sessionstore.errors import InvalidEventError
from sessionstore.lossless import Json, decode, encode, freeze

__all__ = [
    "UNREADABLE",
    "JsonHolder",
    "Opaque",
    "OpenVariant",
    "Unknown",
    "json_fields",
    "json_text",
    "plain",
    "read_json",
]

_T = TypeVar("_T")
_S = TypeVar("_S", bound=Struct)

if TYPE_CHECKING:
    Opaque: TypeAlias = Annotated[_T, None]
else:

    class Opaque:
        """``Opaque[T]``: a field that holds JSON.  Type checkers see ``T``, msgspec stores the text."""

        def __class_getitem__(cls, item: object) -> object:
            return Raw


UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, ValueError)
"""What a msgspec decoder raises for JSON that is wrong, or that it cannot read and :mod:`.lossless` can."""


class OpenVariant(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Base of the known variants of unions to which others may add: such a union may hold an :class:`Unknown`."""


class Unknown(Struct, frozen=True, kw_only=True, gc=False):
    """A value of an open union whose kind this version does not know; ``json`` is its whole JSON text."""

    kind: str
    json: bytes


_Reader: TypeAlias = Callable[[Raw], object]


class _Slot(Protocol):
    """A member descriptor: the place of a field inside a Struct."""

    def __get__(self, instance: Struct, owner: type | None = None, /) -> object: ...
    def __set__(self, instance: Struct, value: object, /) -> None: ...


_SLOTS: Final[dict[type[Struct], dict[str, _Slot]]] = {}


class _JsonField:
    """Stands in for a field's member descriptor and decodes what the field holds."""

    def __init__(self, slot: _Slot, reader: _Reader) -> None:
        self._slot = slot
        self._reader = reader

    def __get__(self, instance: Struct | None, owner: type | None = None) -> object:
        if instance is None:
            return self
        held = self._slot.__get__(instance)
        return self._reader(held) if isinstance(held, Raw) else held


def read_json(raw: Raw) -> Json:
    """Return the value as read-only JSON.

    Raises:
        InvalidEventError: the text holds a number that cannot be read without loss.
    """
    return freeze(decode(bytes(raw)))


def json_fields(*names: str, **readers: _Reader) -> Callable[[type[_S]], type[_S]]:
    """Make the named fields of a Struct opaque; a keyword gives a field its own reader.

    The fields are annotated ``Opaque[...]`` and the Struct derives from :class:`JsonHolder`.
    """

    def decorate(cls: type[_S]) -> type[_S]:
        slots: dict[str, _Slot] = {}
        for name, reader in {**dict.fromkeys(names, read_json), **readers}.items():
            slots[name] = cast("_Slot", cls.__dict__[name])
            setattr(cls, name, _JsonField(slots[name], reader))
        _SLOTS[cls] = slots
        return cls

    return decorate


class JsonHolder(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Base of Structs with :func:`json_fields`; equality and hash compare the JSON text of those fields."""

    def __post_init__(self) -> None:
        """Turn what a constructor was given into JSON text.

        Raises:
            InvalidEventError: a value is not lossless JSON.
        """
        for slot in _SLOTS[type(self)].values():
            held = slot.__get__(self)
            if held is not None and not isinstance(held, Raw):
                slot.__set__(self, Raw(encode(plain(held))))

    def __hash__(self) -> int:
        slots = _SLOTS[type(self)]
        return hash(tuple(json_text(self, n) if n in slots else getattr(self, n) for n in self.__struct_fields__))


def json_text(value: Struct, name: str) -> bytes | None:
    """Return the JSON text that the opaque field *name* holds; ``None`` when absent."""
    held = _SLOTS[type(value)][name].__get__(value)
    return bytes(held) if isinstance(held, Raw) else None


def plain(value: object) -> object:
    """Return *value* with Structs and read-only mappings as dicts, tuples as lists, at any depth.

    Other objects stay as they are, for :func:`sessionstore.lossless.encode` to refuse.

    Raises:
        InvalidEventError: a container contains itself.
    """
    root: list[object] = [value]
    inside: set[int] = set()
    work: list[tuple[dict[str, object] | list[object], str | int] | int] = [(root, 0)]
    while work:
        entry = work.pop()
        if isinstance(entry, int):  # everything inside that container is done
            inside.discard(entry)
            continue
        owner, key = entry
        held = owner[key]  # type: ignore[index]  # a dict by str, a list by int
        opened = _open(held)
        if opened is None:
            continue
        if id(held) in inside:
            raise InvalidEventError("a container contains itself")
        inside.add(id(held))
        work.append(id(held))
        owner[key] = opened  # type: ignore[index]
        if isinstance(opened, dict):
            work.extend((opened, name) for name in opened)
        else:
            work.extend((opened, i) for i in range(len(opened)))
    return root[0]


def _open(value: object) -> dict[str, object] | list[object] | None:
    """A shallow plain copy of a container, ``None`` for everything else."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (list, tuple)):
        return list(value)
    return _fields(value) if isinstance(value, Struct) else None


def _fields(value: Struct) -> dict[str, object] | None:
    """The object that *value* is written as, its fields not yet converted."""
    if isinstance(value, Unknown):
        found = decode(value.json)
        if not isinstance(found, dict):
            raise InvalidEventError("the json of an Unknown is not an object")
        return {**found}
    config = value.__struct_config__
    if config.array_like:
        return None
    out: dict[str, object] = {}
    if config.tag is not None and config.tag_field is not None:
        out[config.tag_field] = config.tag
    slots = _SLOTS.get(type(value), {})
    for field in fields(value):
        held = slots[field.name].__get__(value) if field.name in slots else getattr(value, field.name)
        if held is UNSET or (config.omit_defaults and held is field.default):
            continue
        out[field.encode_name] = decode(bytes(held)) if isinstance(held, Raw) else held
    return out

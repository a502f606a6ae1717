"""The careful way from JSON to a Struct, for payloads that msgspec's decoder does not take.

It reads what the format allows and msgspec does not: kinds of open unions that are not
known here (as :class:`Unknown`), integers written as ``1.0`` or ``1e3``, lone surrogates
and deep nesting.  What fits nowhere is refused with the path to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar, cast

from msgspec import Raw, Struct
from msgspec import inspect as shape

from sessionstore.errors import InvalidEventError
from sessionstore.lossless import decode, encode
from sessionstore.opaque import OpenVariant, Unknown

if TYPE_CHECKING:
    from sessionstore.lossless import Json

__all__ = ["MAX_BLOCK_DEPTH", "build"]

_S = TypeVar("_S", bound=Struct)

MAX_BLOCK_DEPTH: Final = 32
"""Members of open unions nested deeper than this (tool results inside tool results) are kept as Unknown.

It bounds this reader's own stack; msgspec's decoder, where it is not at its limit, goes deeper.
"""


def build(cls: type[_S], raw: bytes, what: str) -> _S:
    """Return the JSON text *raw*, the payload of an event of type *what*, as a *cls*.

    Raises:
        InvalidEventError: the value does not have that shape; ``path`` says where.
    """
    try:
        value = decode(raw)
    except InvalidEventError as error:
        raise InvalidEventError(error.reason, event_type=what, path=error.path) from None
    return cast("_S", _Builder(what).any(_shape(cls), value, "$", 0))


@cache
def _shape(cls: type[Struct]) -> shape.Type:
    return shape.type_info(cls)


class _Builder:
    """One conversion.

    Its methods take the shape that is expected, the value, the path to it, and how many open variants it is in.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def any(self, expected: shape.Type, value: Json, path: str, depth: int) -> object:
        """Convert *value* to whatever *expected* asks for."""
        match expected:
            case shape.StructType():
                return self.struct(expected, value, path, depth)
            case shape.UnionType():
                return self.union(expected, value, path, depth)
            case shape.VarTupleType():
                if not isinstance(value, list):
                    self.refuse("a list", value, path)
                return tuple(self.any(expected.item_type, item, f"{path}[{i}]", depth) for i, item in enumerate(value))
            case shape.RawType():
                return Raw(encode(value))
            case _:
                return self.scalar(expected, value, path)

    def scalar(self, expected: shape.Type, value: Json, path: str) -> object:
        """Take a string, an integer however it is spelled, a bool, or one of a few strings."""
        match expected:
            case shape.StrType():
                if not isinstance(value, str):
                    self.refuse("a string", value, path)
                if len(value) < (expected.min_length or 0):
                    raise self.error("an empty string", path)
            case shape.IntType():
                if isinstance(value, float) and value.is_integer():
                    return int(value)
                if not isinstance(value, int) or isinstance(value, bool):
                    self.refuse("an integer", value, path)
            case shape.BoolType():
                if not isinstance(value, bool):
                    self.refuse("true or false", value, path)
            case shape.LiteralType():
                if not isinstance(value, str) or value not in expected.values:
                    raise self.error(f"not one of {', '.join(map(str, expected.values))}", path)
            case _:
                raise self.error("this version cannot check it", path)
        return value

    def struct(self, expected: shape.StructType, value: Json, path: str, depth: int) -> object:
        """Convert an object to a Struct, field by field."""
        if not isinstance(value, dict):
            self.refuse("an object", value, path)
        found: dict[str, object] = {}
        for field in expected.fields:
            if field.encode_name in value:
                at = f"{path}.{field.encode_name}"
                found[field.name] = self.any(field.type, value[field.encode_name], at, depth)
            elif field.required:
                raise self.error(f"'{field.encode_name}' is missing", path)
        if expected.forbid_unknown_fields and len(found) != len(value):
            raise self.error("a field that does not belong there", path)
        return expected.cls(**found)

    def union(self, expected: shape.UnionType, value: Json, path: str, depth: int) -> object:
        """Convert to the variant that the tag names; the one union without tags is that of the two number types."""
        variants = {variant.tag: variant for variant in expected.types if isinstance(variant, shape.StructType)}
        if not variants:
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                self.refuse("a number", value, path)
            return value
        if not isinstance(value, dict):
            self.refuse("an object", value, path)
        first = next(iter(variants.values()))
        field = str(first.tag_field)
        if field not in value:
            raise self.error(f"'{field}' is missing", path)
        tag = value[field]
        if not isinstance(tag, str):
            self.refuse("a string", tag, f"{path}.{field}")
        may_be_other = issubclass(first.cls, OpenVariant)
        if tag in variants and not (may_be_other and depth >= MAX_BLOCK_DEPTH):
            return self.struct(variants[tag], value, path, depth + may_be_other)
        if not may_be_other or (field == "kind" and not tag):
            raise self.error(f"not one of {', '.join(map(str, variants))}", f"{path}.{field}")
        return Unknown(kind=tag, json=encode(value))

    def refuse(self, wanted: str, got: Json, path: str) -> NoReturn:
        """Say that *got* is of another kind than what is wanted."""
        raise self.error(f"expected {wanted}, got {_kind(got)}", path)

    def error(self, reason: str, path: str) -> InvalidEventError:
        """The error for a value at *path*."""
        return InvalidEventError(reason, event_type=self._what, path=path)


def _kind(value: Json) -> str:
    """What JSON calls the value: its kind only, since errors never show contents."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an object" if isinstance(value, Mapping) else "a list"

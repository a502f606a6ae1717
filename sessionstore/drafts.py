"""Payloads of messages and results, made from what a host finds easiest to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from msgspec import UNSET, Struct

from sessionstore.errors import InvalidEventError
from sessionstore.lossless import decode, encode
from sessionstore.opaque import plain
from sessionstore.vocabulary import validate_payload

if TYPE_CHECKING:
    from sessionstore.lossless import Json

__all__ = ["Content", "JsonLike", "draft_message", "draft_result", "text_of"]

JsonLike: TypeAlias = Struct | Mapping[str, object]
"""A value of the vocabulary: its Struct, or a mapping with the names on disk."""

Content: TypeAlias = str | Sequence[JsonLike]
"""What a message says: a text, or content blocks."""


def draft_message(content: Content | JsonLike, *, source: JsonLike | None, id: str) -> dict[str, Json]:
    """The payload of a user-role message, detached from what the caller gave and known to be one.

    *content* may be a whole message; *source* and *id* are for what it does not say itself.

    Raises:
        InvalidEventError: not lossless JSON, or no message.
    """
    given = plain(content)
    whole = given if isinstance(given, dict) else {"content": _blocks(given)}
    if "content" not in whole:
        raise InvalidEventError("'content' is missing; a block goes into a list", event_type="user/message", path="$")
    text = encode(
        {"content": None, "source": plain(source), "role": "user", "id": id, **whole},
        what="user/message",
    )
    # Now, not when it is appended: a message that is held back has nobody left to hear of a mistake.
    validate_payload("user/message", text)
    message = decode(text)
    return message if isinstance(message, dict) else {}


def draft_result(
    call_id: str,
    content: Content,
    *,
    is_error: bool | None,
    error: JsonLike | None,
    meta: object,
    id: str,
) -> dict[str, object]:
    """The payload of a ``tool/result``, without its place; *meta* ``UNSET`` is absent."""
    block: dict[str, object] = {"type": "tool-result", "toolCallId": call_id, "content": _blocks(plain(content))}
    if is_error is not None or error is not None:
        block["isError"] = True if is_error is None else is_error
    message = {"source": {"kind": "tool", "callId": call_id}, "content": [block], "role": "user", "id": id}
    data: dict[str, object] = {"message": message}
    if error is not None:
        data["error"] = plain(error)
    if meta is not UNSET:
        data["meta"] = plain(meta)
    return data


def _blocks(content: object) -> object:
    """Content blocks, out of a text or as they are."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def text_of(error: Exception) -> str:
    """What an exception says, or its class name when it cannot."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - it must not keep a turn open
        return type(error).__name__

"""What a seed refuses: the events that no later version of the log could be replayed with.

Appending checks shapes in full (:func:`sessionstore.vocabulary.validate_payload`); reading
is liberal and asks only for what a replay needs.  Envelope, seq and surface are checked
where events are read, numbered and folded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from sessionstore.errors import InvalidEventError, UnsupportedFormatError
from sessionstore.legacy import RETIRED_MESSAGES, legacy_message
from sessionstore.lossless import decode
from sessionstore.vocabulary import (
    RESERVED_FOR_ROWS,
    RETIRED_TYPES,
    ROW_NAMES,
    SURFACE_TYPES,
    decode_payload,
    retired_form,
)

if TYPE_CHECKING:
    from sessionstore.events import Event
    from sessionstore.lossless import Json

__all__ = ["check_seed_event"]

_CHECKED: Final = SURFACE_TYPES | RETIRED_TYPES | RETIRED_MESSAGES | ROW_NAMES | {"request/header"}


def check_seed_event(event: Event) -> None:
    """Check everything that a seed refuses in one event by itself.

    Raises:
        UnsupportedFormatError: the event is of a retired form (``direction="retired"``).
        InvalidEventError: a message that cannot be replayed, or a request header without provider and model.
    """
    name = event.type
    if name not in _CHECKED:
        return
    if name in RETIRED_MESSAGES:
        _refuse_marker(event)
        return
    if name in ROW_NAMES:
        raise InvalidEventError(RESERVED_FOR_ROWS, event_type=name, seq=event.seq)
    raw = event.data_json
    retired = retired_form(name, raw)
    if retired is not None:
        raise UnsupportedFormatError(f"{name} (seq {event.seq}) is {retired}", direction="retired")
    try:
        decode_payload(name, raw)  # what append accepts, a seed accepts
    except InvalidEventError:
        try:
            _check(name, _read(raw))
        except InvalidEventError as error:
            raise InvalidEventError(error.reason, event_type=name, path=error.path, seq=event.seq) from None


def _refuse_marker(event: Event) -> None:
    try:
        marked = event.surface_op is not None
    except InvalidEventError:
        marked = True
    if marked:
        raise UnsupportedFormatError(
            f"{event.type} (seq {event.seq}) on the surface is a retired form of old logs", direction="retired"
        )


def _read(raw: bytes) -> Json:
    """The value, without the care about numbers: a load keeps text that only a reader of the number refuses."""
    return decode(raw, exact=False)


def _check(name: str, data: Json) -> None:
    if name == "request/header":
        config = _object(_object(_object(data, "$").get("header"), "$.header").get("config"), "$.header.config")
        _text(config.get("provider"), "$.header.config.provider")
        _text(config.get("model"), "$.header.config.model")
        return
    old = legacy_message(name, data)
    if old is not None:
        _check_message(name, old, "$")
    elif name == "user/message":
        _check_message(name, _identified(data, "$"), "$")
    else:
        _check_message(name, _identified(_object(data, "$").get("message"), "$.message"), "$.message")


def _identified(value: Json, path: str) -> dict[str, Json]:
    message = _object(value, path)
    _text(message.get("id"), f"{path}.id")
    return message


def _check_message(name: str, message: dict[str, Json], path: str) -> None:
    role = "assistant" if name == "assistant/message" else "user"
    if message.get("role") != role:
        _refuse(f"expected role '{role}'", f"{path}.role")
    source = _object(message.get("source"), f"{path}.source")
    kind = _text(source.get("kind"), f"{path}.source.kind")
    content = message.get("content")
    if not isinstance(content, list):
        _refuse("expected a list", f"{path}.content")
    if name == "assistant/message":
        if kind != "model":
            _refuse("expected 'model'", f"{path}.source.kind")
        _text(source.get("provider"), f"{path}.source.provider")
        _text(source.get("model"), f"{path}.source.model")
    elif name == "tool/result":
        if kind != "tool":
            _refuse("expected 'tool'", f"{path}.source.kind")
        call_id = _text(source.get("callId"), f"{path}.source.callId")
        block = content[0] if len(content) == 1 else None
        if not isinstance(block, dict) or block.get("type") != "tool-result":
            _refuse("expected exactly one tool-result block", f"{path}.content")
        if block.get("toolCallId") != call_id:
            _refuse("not the call that the source names", f"{path}.content[0].toolCallId")


def _object(value: Json, path: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        _refuse("expected an object", path)
    return value


def _text(value: Json, path: str) -> str:
    if not isinstance(value, str) or not value:
        _refuse("expected a string that is not empty", path)
    return value


def _refuse(reason: str, path: str) -> NoReturn:
    raise InvalidEventError(reason, path=path)

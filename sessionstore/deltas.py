"""Recognising a token delta at append: the one path of the model that runs once per token.

A payload of exactly a delta's shape joins the open run as one string, with no JSON
made and nothing compared twice.  Whatever looks different in any way, even an
extra key, takes the general path of ``Session.append``, which accepts it as an
event of its own or says what is wrong with it.
"""

from __future__ import annotations

from typing import Final, Literal

from sessionstore.events import DeltaKey
from sessionstore.lossless import MAX_SAFE
from sessionstore.messages import ReasoningDelta, TextDelta, ToolCallDelta
from sessionstore.vocabulary import AssistantChunk

__all__ = ["match_delta"]

_LONGEST: Final = 16 * 1024 * 1024
"""Characters; a longer delta takes the general path, which measures its bytes."""


def match_delta(data: object, key: DeltaKey | None) -> tuple[DeltaKey, str] | None:
    """The run key and the text of a delta's payload, dict or Struct; ``None`` where *data* is anything else.

    *key* is the open run's: it is returned itself where the delta continues that run.
    """
    if type(data) is dict:
        if len(data) != 3:
            return None
        try:
            return _match_dict(data["chunk"], data["turn"], data["step"], key)
        except KeyError:
            return None
    if type(data) is not AssistantChunk:
        return None
    chunk = data.chunk
    if type(chunk) is TextDelta:
        return _match("text-delta", data.turn, data.step, chunk.index, None, None, chunk.text, key)
    if type(chunk) is ReasoningDelta:
        return _match("reasoning-delta", data.turn, data.step, chunk.index, None, None, chunk.text, key)
    if type(chunk) is ToolCallDelta and type(chunk.id) is str:
        name = chunk.name if type(chunk.name) is str else None
        if name is None and chunk.name:
            return None
        return _match("tool-call-delta", data.turn, data.step, chunk.index, chunk.id, name, chunk.arguments_delta, key)
    return None


def _match_dict(chunk: object, turn: object, step: object, key: DeltaKey | None) -> tuple[DeltaKey, str] | None:
    if type(chunk) is not dict:
        return None
    kind = chunk["type"]
    if kind in {"text-delta", "reasoning-delta"}:
        if len(chunk) != 3:
            return None
        return _match(kind, turn, step, chunk["index"], None, None, chunk["text"], key)
    if kind != "tool-call-delta" or type(chunk["id"]) is not str:
        return None
    named = "name" in chunk
    name = chunk["name"] if named else None
    if len(chunk) != 4 + named or (named and type(name) is not str):
        return None
    return _match(kind, turn, step, chunk["index"], chunk["id"], name, chunk["argumentsDelta"], key)


def _match(  # noqa: PLR0917 - one call per token: no tuple, no keywords
    kind: Literal["text-delta", "reasoning-delta", "tool-call-delta"],
    turn: object,
    step: object,
    index: object,
    id_: str | None,
    name: str | None,
    string: object,
    key: DeltaKey | None,
) -> tuple[DeltaKey, str] | None:
    if type(string) is not str:
        return None
    # Small integers are one object each, so identity settles the usual case.
    if key is None or not (
        turn is key.turn and step is key.step and index is key.index
        and kind == key.kind and id_ == key.id and name == key.name
    ):  # fmt: skip
        fresh = _new_key(kind, turn, step, index, id_, name)
        if fresh is None:
            return None
        if key is None or fresh != key:
            key = fresh
    if string.isascii() and len(string) <= _LONGEST:
        return key, string
    plain = _plain(string)
    return None if plain is None else (key, plain)


def _new_key(  # noqa: PLR0917
    kind: Literal["text-delta", "reasoning-delta", "tool-call-delta"],
    turn: object,
    step: object,
    index: object,
    id_: str | None,
    name: str | None,
) -> DeltaKey | None:
    if type(turn) is not int or type(step) is not int or type(index) is not int:
        return None
    if max(turn, step, index) > MAX_SAFE or min(turn, step, index) < -MAX_SAFE:
        return None
    for text in (id_, name):
        if text is not None and _plain(text) != text:
            return None
    return DeltaKey(kind, turn, step, index, id_, name)


def _plain(string: str) -> str | None:
    """The text as its JSON will be read back; ``None`` where it is so long that it has to be measured."""
    if len(string) > _LONGEST:
        return None
    try:
        string.encode()
    except UnicodeEncodeError:
        # Surrogates: a pair is written as the character that it means, a lone one stays (lossless._text).
        return string.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return string

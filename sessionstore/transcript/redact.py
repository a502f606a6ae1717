"""Taking secrets, and on request tool results, out of what leaves the store.

The log itself is never changed: everything here returns new values, or changes a
transcript that was built for this one output.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sessionstore.errors import InvalidEventError
from sessionstore.transcript.access import integer, lookup, mapping, text
from sessionstore.transcript.model import Entry, Fragment, ToolUse, Transcript
from sessionstore.transcript.secrets import patterns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sessionstore.events import Event
    from sessionstore.lossless import Json

__all__ = ["HIDDEN", "UNREADABLE", "hide_results", "public_events", "redact", "redact_text", "without_results"]

HIDDEN: Final = "[result hidden]"
UNREADABLE: Final = "[left out: it holds a number that cannot be read, so it was not searched for secrets]"
_TELLING: Final = re.compile(
    r"(?i)(?:^|[_.-])(?:password|passwd|passphrase|secret|api[_-]?key|access[_-]?key|auth[_-]?token|access[_-]?token|"
    r"refresh[_-]?token|private[_-]?key|client[_-]?secret|authorization|credentials?|token)$"
)


def redact_text(text: str) -> str:
    """*text* with everything that looks like a secret replaced by ``[redacted: kind]``."""
    for name, pattern in patterns():
        text = pattern.sub(lambda match, name=name: _mark(match, name), text)  # type: ignore[misc]
    return text


def _mark(match: re.Match[str], name: str) -> str:
    keep = match.groupdict().get("keep") or ""
    return f"{keep}[redacted: {name}]"


def redact(transcript: Transcript) -> None:
    """Take secrets out of every text of *transcript*, in place."""
    transcript.title = redact_text(transcript.title)
    for turn in transcript.turns:
        turn.title, turn.detail = redact_text(turn.title), redact_text(turn.detail)
    for entry in transcript.entries:
        _redact_entry(entry)


def _redact_entry(entry: Entry) -> None:
    entry.note, entry.label = redact_text(entry.note), redact_text(entry.label)
    entry.fragments = _redact_fragments(entry.fragments)
    entry.todos = tuple((status, redact_text(content)) for status, content in entry.todos)
    if entry.tool is not None:
        _redact_tool(entry.tool)


def _redact_tool(tool: ToolUse) -> None:
    tool.arguments = redact_text(tool.arguments)
    tool.result = _redact_fragments(tool.result)
    for child in tool.children:
        _redact_tool(child)


def _redact_fragments(fragments: tuple[Fragment, ...]) -> tuple[Fragment, ...]:
    return tuple(Fragment(fragment.kind, redact_text(fragment.text)) for fragment in fragments)


def hide_results(transcript: Transcript) -> None:
    """Replace what tools returned by a mark, in place; that they ran, and with what outcome, stays."""
    for entry in transcript.entries:
        if entry.tool is not None:
            _hide(entry.tool)


def _hide(tool: ToolUse) -> None:
    if tool.result:
        tool.result = (Fragment("other", HIDDEN),)
    for child in tool.children:
        _hide(child)


# -- raw events ---------------------------------------------------------------


def public_events(events: Iterable[Event], *, secrets: bool, results: bool) -> Iterator[dict[str, Json]]:
    """Events as plain dicts, with *secrets* redacted and tool *results* hidden as asked.

    A secret can be spread over many token deltas, none of which looks like one.  So the deltas of a block are
    judged together: where the whole has a secret, the first delta carries the redacted whole and the others are
    empty.  For that the events of one step are held back until it ends.
    """
    held: list[dict[str, Json]] = []
    for event in events:
        value = _value(event)
        if results:
            without_results(value)
        if not secrets:
            yield value
            continue
        held.append(value)
        if event.type not in ("assistant/chunk", "assistant/message", "tool/call", "request/context"):
            yield from _redact_held(held)
            held = []
    yield from _redact_held(held)


def _value(event: Event) -> dict[str, Json]:
    """The event as a dict; of one whose numbers cannot be read without loss, only that it is there."""
    try:
        return event.to_dict()
    except InvalidEventError:
        return {"type": event.type, "seq": event.seq, "time": event.time, "data": {"unreadable": UNREADABLE}}


def without_results(value: dict[str, Json]) -> None:
    """Replace what a tool returned in one event, in place."""
    data = value.get("data")
    if not isinstance(data, dict):
        return
    mark: Json = [{"type": "text", "text": HIDDEN}]
    if value.get("type") == "tool/result":
        data.pop("meta", None)
        message = data.get("message")
        blocks = message.get("content") if isinstance(message, dict) else None
        for block in blocks if isinstance(blocks, list) else [data]:
            if isinstance(block, dict) and "content" in block:
                block["content"] = mark
    elif value.get("type") == "tool/code-dispatch" and "content" in data:
        data["content"] = mark


def _redact_held(held: list[dict[str, Json]]) -> list[dict[str, Json]]:
    streams: dict[tuple[int | None, str, str], list[dict[str, Json]]] = {}
    for value in held:
        chunk = lookup(value, "data", "chunk")
        kind = text(mapping(chunk).get("type"))
        if isinstance(chunk, dict) and kind.endswith("-delta"):
            index = integer(chunk.get("index"))
            streams.setdefault((index, kind, text(chunk.get("id"))), []).append(chunk)
        elif kind == "finish":
            _redact_streams(streams)  # the next attempt starts its blocks anew
            streams = {}
    _redact_streams(streams)
    return [_redact_event(value) for value in held]


def _redact_streams(streams: Mapping[tuple[int | None, str, str], list[dict[str, Json]]]) -> None:
    for chunks in streams.values():
        key = "argumentsDelta" if "argumentsDelta" in chunks[0] else "text"
        whole = "".join(text(chunk.get(key)) for chunk in chunks)
        clean = redact_text(whole)
        if clean != whole:
            for position, chunk in enumerate(chunks):
                chunk[key] = clean if position == 0 else ""


def _redact_event(value: dict[str, Json]) -> dict[str, Json]:
    return {key: _walk(item, redact_text) if key == "data" else item for key, item in value.items()}


def _walk(value: Json, clean: Callable[[str], str]) -> Json:
    """*value* with every string cleaned, and strings behind a telling key taken out whole.

    Iterative: a payload may be nested to 10,000 levels.
    """
    root: list[Json] = [value]
    stack: list[dict[str, Json] | list[Json]] = [root]
    while stack:
        node = stack.pop()
        pairs = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
        for key, item in pairs:
            if isinstance(item, str):
                told = isinstance(key, str) and item and _TELLING.search(key)
                node[key] = "[redacted: value of a telling name]" if told else clean(item)  # type: ignore[index]
            elif isinstance(item, (dict, list)):
                stack.append(item)
    return root[0]

"""Runs of token deltas and the packed rows that they are stored as (format.md, "Event lines and packed rows").

A row is one line for a run of deltas that share everything but time and text.
The strings are kept apart, never joined: a token's boundaries are part of the log.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from sessionstore.errors import InvalidEventError
from sessionstore.events import DeltaKey, DeltaType, Event, only_events
from sessionstore.lossless import MAX_SAFE, Json, decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sessionstore.vocabulary import EventTypes

__all__ = [
    "MIN_RUN",
    "ROW_TYPES",
    "Row",
    "decode_storage_record",
    "encode_row",
    "line_type",
    "pack_chunk_runs",
    "parse_row",
    "read_delta",
    "unpack_rows",
]

MIN_RUN: Final = 3
"""The fewest deltas that the encoder packs; the decoder takes rows of any length above 0."""

ROW_TYPES: Final[Mapping[str, DeltaType]] = {
    "text-chunks": "text-delta",
    "reasoning-chunks": "reasoning-delta",
    "tool-call-chunks": "tool-call-delta",
}
_TAG_OF: Final[Mapping[DeltaType, bytes]] = {kind: tag.encode() for tag, kind in ROW_TYPES.items()}


class Row(Struct, frozen=True, gc=False):
    """A packed row, read: member *k* has seq ``seq0 + k``, time ``times()[k]`` and text ``strings[k]``."""

    key: DeltaKey
    seq0: int
    time0: int
    gaps: list[int]
    strings: list[str]

    def __len__(self) -> int:
        return len(self.strings)

    def times(self) -> list[int]:
        """The members' times (epoch ms)."""
        return list(accumulate(self.gaps, initial=self.time0))

    def events(self, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        """The members from index *start* up to *stop*, as events."""
        key, seq0, times, strings = self.key, self.seq0, self.times(), self.strings
        for k in range(start, len(strings) if stop is None else stop):
            yield Event("assistant/chunk", seq0 + k, times[k], None, key, strings[k])

    def slice(self, start: int, stop: int) -> Row:
        """The row of the members from index *start* up to *stop* (at least one)."""
        return Row(
            self.key,
            self.seq0 + start,
            self.time0 + sum(self.gaps[:start]),
            self.gaps[start : stop - 1],
            self.strings[start:stop],
        )


def encode_row(row: Row) -> bytes:
    """The row as a line of JSON without its newline."""
    key = row.key
    number = _json(key.turn), _json(key.step), _json(key.index)
    head = b'{"type":"%b","seq0":%d,"time0":%d,"data":{"turn":%b,"step":%b,"index":%b,"dt":%b,' % (
        _TAG_OF[key.kind],
        row.seq0,
        row.time0,
        *number,
        _json(row.gaps),
    )
    try:
        strings = _json(row.strings)
    except UnicodeEncodeError:  # a lone surrogate
        strings = b"[" + b",".join(map(encode, row.strings)) + b"]"
    if key.kind != "tool-call-delta":
        return b'%b"texts":%b}}' % (head, strings)
    name = b"" if key.name is None else b'"name":%b,' % encode(key.name)
    return b'%b"id":%b,%b"args":%b}}' % (head, encode(key.id), name, strings)


_json: Final = msgspec.json.Encoder().encode


class _TextData(Struct, forbid_unknown_fields=True, gc=False):
    turn: int
    step: int
    index: int
    dt: list[int]
    texts: list[str]


class _TextRow(Struct, forbid_unknown_fields=True, gc=False):
    type: Literal["text-chunks", "reasoning-chunks"]
    seq0: int
    time0: int
    data: _TextData


class _ToolData(Struct, forbid_unknown_fields=True, gc=False):
    turn: int
    step: int
    index: int
    dt: list[int]
    id: str
    args: list[str]
    name: str | UnsetType = UNSET


class _ToolRow(Struct, forbid_unknown_fields=True, gc=False):
    type: Literal["tool-call-chunks"]
    seq0: int
    time0: int
    data: _ToolData


_text_row: Final = msgspec.json.Decoder(_TextRow).decode
_tool_row: Final = msgspec.json.Decoder(_ToolRow).decode


def parse_row(line: bytes) -> Row:
    """Read the packed row *line* strictly.

    Raises:
        InvalidEventError: a key is missing or too many, a value is of a wrong kind, the run is empty, ``dt`` is
            not one shorter than the run, or a seq or time leaves the safe integers.
    """
    try:
        if line.startswith(b'{"type":"tool-call-chunks"'):
            tool = _tool_row(line)
            data = tool.data
            name = None if isinstance(data.name, UnsetType) else data.name
            key = DeltaKey("tool-call-delta", data.turn, data.step, data.index, data.id, name)
            row = Row(key, tool.seq0, tool.time0, data.dt, data.args)
        else:
            text = _text_row(line)
            key = DeltaKey(ROW_TYPES[text.type], text.data.turn, text.data.step, text.data.index)
            row = Row(key, text.seq0, text.time0, text.data.dt, text.data.texts)
    except msgspec.MsgspecError:
        row = _read_row(decode(line))
    _check_run(row.seq0, row.time0, row.gaps, len(row.strings))
    return row


def _check_run(seq0: int, time0: int, dt: list[int], count: int) -> None:
    if not count:
        raise InvalidEventError("a packed row without members", path="$.data")
    if len(dt) != count - 1:
        raise InvalidEventError(f"{count} members need {count - 1} time gaps, found {len(dt)}", path="$.data.dt")
    if seq0 < 0 or seq0 + count - 1 > MAX_SAFE:
        raise InvalidEventError("seq outside the safe integers", path="$.seq0", seq=seq0)
    if not dt or min(dt) >= 0:
        safe = time0 >= -MAX_SAFE and time0 + sum(dt) <= MAX_SAFE
    else:
        safe = all(-MAX_SAFE <= time <= MAX_SAFE for time in accumulate(dt, initial=time0))
    if not safe:
        raise InvalidEventError("time outside the safe integers", path="$.time0", seq=seq0)


def _read_row(value: Json) -> Row:
    """The careful reading, for what the typed decoders do not take: integral floats, surrogates, odd numbers."""
    top = _object(value, {"type", "seq0", "time0", "data"}, set(), "$")
    kind = ROW_TYPES.get(str(top["type"]))
    if kind is None:
        raise InvalidEventError("not a packed row", path="$.type")
    tool = kind == "tool-call-delta"
    strings = "args" if tool else "texts"
    keys = {"turn", "step", "index", "dt", strings} | ({"id"} if tool else set())
    data = _object(top["data"], keys, {"name"} if tool else set(), "$.data")
    key = DeltaKey(
        kind,
        _number(data["turn"], "$.data.turn"),
        _number(data["step"], "$.data.step"),
        _number(data["index"], "$.data.index"),
        _string(data["id"], "$.data.id") if tool else None,
        _string(data["name"], "$.data.name") if "name" in data else None,
    )
    gaps = [_safe(gap, f"$.data.dt[{k}]") for k, gap in enumerate(_list(data["dt"], "$.data.dt"))]
    members = [_string(s, f"$.data.{strings}[{k}]") for k, s in enumerate(_list(data[strings], f"$.data.{strings}"))]
    return Row(key, _safe(top["seq0"], "$.seq0"), _safe(top["time0"], "$.time0"), gaps, members)


def _object(value: Json, keys: set[str], optional: set[str], path: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise InvalidEventError(f"expected an object, got {type(value).__name__}", path=path)
    if not keys <= value.keys() <= keys | optional:
        raise InvalidEventError(f"expected exactly the keys {', '.join(sorted(keys))}", path=path)
    return value


def _list(value: Json, path: str) -> list[Json]:
    if not isinstance(value, list):
        raise InvalidEventError(f"expected a list, got {type(value).__name__}", path=path)
    return value


def _string(value: Json, path: str) -> str:
    if not isinstance(value, str):
        raise InvalidEventError(f"expected a string, got {type(value).__name__}", path=path)
    return value


def _number(value: Json, path: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidEventError(f"expected a number, got {type(value).__name__}", path=path)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _safe(value: Json, path: str) -> int:
    number = _number(value, path)
    if not isinstance(number, int):
        raise InvalidEventError("expected an integer, got a fraction", path=path)
    # Gaps may be larger than a safe integer in a hostile row; the running sums are what has to be safe.
    return number


class _Delta(Struct, forbid_unknown_fields=True, gc=False):
    type: DeltaType
    index: int
    text: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments_delta: str | UnsetType = msgspec.field(default=UNSET, name="argumentsDelta")


class _DeltaData(Struct, forbid_unknown_fields=True, gc=False):
    turn: int
    step: int
    chunk: _Delta


class _DeltaLine(Struct, forbid_unknown_fields=True, gc=False):
    type: Literal["assistant/chunk"]
    seq: int
    time: int
    data: _DeltaData


_delta_line: Final = msgspec.json.Decoder(_DeltaLine).decode


def read_delta(event: Event) -> tuple[DeltaKey, str] | None:
    """The run key and text of an event whose whole shape is exactly a delta's, else ``None``.

    An event read from a log qualifies only if packing it and unpacking it again gives back its bytes.
    """
    if event._delta is not None:
        return event._delta, event._string
    line = event.to_json()
    if event.type != "assistant/chunk":
        return None
    try:
        data = _delta_line(line).data
    except msgspec.MsgspecError:
        return _read_odd_delta(event, line)
    chunk = data.chunk
    tool = chunk.type == "tool-call-delta"
    string = chunk.arguments_delta if tool else chunk.text
    id_ = None if chunk.id is UNSET else chunk.id
    name = None if chunk.name is UNSET else chunk.name
    if not isinstance(string, str) or tool == (id_ is None):
        return None
    key = DeltaKey(chunk.type, data.turn, data.step, chunk.index, id_, name)
    return (key, string) if Event(event.type, event.seq, event.time, None, key, string).to_json() == line else None


def _read_odd_delta(event: Event, line: bytes) -> tuple[DeltaKey, str] | None:
    """A delta that msgspec cannot read because of a lone surrogate may still be packed."""
    try:
        data = decode(event.data_json)
        if not isinstance(data, dict) or not isinstance(data.get("chunk"), dict):
            return None
        # Nothing is known of these values yet: what they are is checked on the key that they make.
        data = cast("dict[str, Any]", data)
        chunk = cast("dict[str, Any]", data["chunk"])
        tool = chunk["type"] == "tool-call-delta"
        key = DeltaKey(chunk["type"], data["turn"], data["step"], chunk["index"], chunk.get("id"), chunk.get("name"))
        string = chunk["argumentsDelta" if tool else "text"]
    except (KeyError, InvalidEventError):
        return None
    exact = key.kind in _TAG_OF and isinstance(string, str) and all(type(n) is int for n in (key.turn, key.step))
    if not exact or type(key.index) is not int or tool != isinstance(key.id, str):
        return None
    packed = Event(event.type, event.seq, event.time, None, key, string)
    return (key, string) if packed.to_json() == line else None


def pack_chunk_runs(events: Iterable[Event]) -> list[bytes]:
    """Storage lines (no newlines) for *events*: runs of 3 or more deltas become packed rows, all else goes as it is.

    A run breaks on another kind, a seq that is not the next one, a time gap outside the safe integers, and on
    turn, step, index, and for tool calls id and name.
    """
    lines: list[bytes] = []
    run: list[Event] = []
    row: Row | None = None
    last_time = 0
    for event in only_events(events):
        found = read_delta(event)
        if (
            row is not None
            and found is not None
            and found[0] == row.key
            and event.seq == row.seq0 + len(row.strings)
            and -MAX_SAFE <= event.time - last_time <= MAX_SAFE
        ):
            row.gaps.append(event.time - last_time)
            row.strings.append(found[1])
            run.append(event)
        else:
            lines.extend(_close_run(row, run))
            row, run = None, []
            if found is None:
                lines.append(event.to_json())
            else:
                row = Row(found[0], event.seq, event.time, [], [found[1]])
                run = [event]
        last_time = event.time
    lines.extend(_close_run(row, run))
    return lines


def _close_run(row: Row | None, run: list[Event]) -> list[bytes]:
    if row is None or len(run) < MIN_RUN:
        return [event.to_json() for event in run]
    return [encode_row(row)]


def decode_storage_record(line: bytes, types: EventTypes | None = None) -> list[Event]:
    """The events of one storage line: the members of a packed row, or the one event that the line is.

    Raises:
        InvalidEventError: neither a valid row nor an event.
        TypeError: *line* is not bytes.
    """
    if not isinstance(line, bytes):
        raise TypeError(f"a storage line is bytes, got {type(line).__name__}")
    kind = line_type(line)
    if kind in ROW_TYPES:
        return list(parse_row(line).events())
    return [Event.from_json(line, types)]


def unpack_rows(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The same log with one event per line: packed rows are taken apart, all other lines go as they are."""
    for line in lines:
        if b"-chunks" in line and line_type(line) in ROW_TYPES:
            yield from (event.to_json() for event in parse_row(line).events())
        else:
            yield line


class _Typed(Struct, gc=False):
    type: str


_typed: Final = msgspec.json.Decoder(_Typed).decode


def line_type(line: bytes) -> str | None:
    """The ``type`` of a storage line, ``None`` where there is none."""
    try:
        return _typed(line).type
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        value = decode(line, exact=False)
    except InvalidEventError:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else None

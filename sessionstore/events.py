"""One event: an immutable value that keeps its JSON.

An event's truth is its line of JSON; everything typed is a view on that line,
made when first looked at.  A token delta of a packed run has no line of its own:
it is the run's key and one string, and renders the line that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import force_setattr

from sessionstore.errors import InvalidEventError
from sessionstore.lossless import MAX_SAFE, Json, decode, encode, freeze, json_equal, member_texts
from sessionstore.messages import ReasoningDelta, TextDelta, ToolCallDelta
from sessionstore.vocabulary import AssistantChunk, EventTypes, decode_payload, is_typed

__all__ = [
    "DeltaKey",
    "DeltaType",
    "Event",
    "Payload",
    "Replace",
    "SurfaceOp",
    "check_event",
    "only_events",
    "render_line",
]

DeltaType = Literal["text-delta", "reasoning-delta", "tool-call-delta"]
Payload: TypeAlias = "Struct | Json"
"""The data of an event: a frozen Struct for core and registered types, else read-only JSON."""


class Replace(Struct, frozen=True, tag_field="op", tag="replace", forbid_unknown_fields=True):
    """A surface operation: the event takes the place of the nodes from seq *start* to seq *end*, both included."""

    start: int
    end: int


SurfaceOp: TypeAlias = Literal["append"] | Replace


class DeltaKey(Struct, frozen=True, gc=False):
    """What all deltas of one run share.  ``id`` is set, and ``name`` may be, for tool-call deltas only."""

    kind: DeltaType
    turn: int | float
    step: int | float
    index: int | float
    id: str | None = None
    name: str | None = None


class _Envelope(Struct, gc=False):
    type: str
    seq: int
    time: int
    data: Raw
    surface_op: Raw | UnsetType = msgspec.field(default=UNSET, name="surfaceOp")
    source_event_seqs: Raw | UnsetType = msgspec.field(default=UNSET, name="sourceEventSeqs")


_envelope: Final = msgspec.json.Decoder(_Envelope).decode
_surface_op: Final = msgspec.json.Decoder(Literal["append"] | Replace).decode
_seqs: Final = msgspec.json.Decoder(tuple[int, ...]).decode
_text: Final = msgspec.json.Encoder().encode


class Event(Struct, frozen=True, eq=False, gc=False):
    """An entry of a session's log.

    ``type`` names what happened, ``seq`` is the position in the log (from 0, contiguous), ``time`` the wall
    clock at append (epoch ms; not monotonic).  Made by :meth:`Session.append`, :meth:`from_json` or
    :meth:`from_dict`, never changed.  Two events are equal when their JSON values are.
    """

    type: str
    seq: int
    time: int
    _line: bytes | None
    _delta: DeltaKey | None = None
    _string: str = ""
    _types: EventTypes | None = None
    _data: Payload | UnsetType = UNSET

    @classmethod
    def from_json(cls, line: bytes | str, types: EventTypes | None = None) -> Event:
        """Read one event from its JSON text (no newline).

        Raises:
            InvalidEventError: not JSON, or ``type``, ``seq``, ``time`` or ``data`` is missing or of a wrong kind.
        """
        if not isinstance(line, bytes | bytearray | memoryview | str):
            raise TypeError(f"an event is read from bytes or str, got {type(line).__name__}")
        raw = line.encode("utf-8", "surrogatepass") if isinstance(line, str) else bytes(line)
        try:
            found = _envelope(raw)
            if 0 <= found.seq <= MAX_SAFE and -MAX_SAFE <= found.time <= MAX_SAFE and (raw.isascii() or raw.decode()):
                return cls(found.type, found.seq, found.time, raw, None, "", types)
        except Exception:  # noqa: BLE001, S110 - the careful reading below says what is wrong, or that nothing is
            pass
        # Numbers that cannot be read without loss are nobody's concern until the payload is read.
        return cls(*_read_envelope(decode(raw, exact=False)), raw, None, "", types)

    @classmethod
    def stored(cls, line: bytes, seq: int, types: EventTypes | None = None) -> Event:
        """The event that a log holds at *seq* as the JSON object *line*, whatever its envelope is like.

        A scan reports an envelope that breaks the rules and keeps the line.  Such an event shows what can be
        read of it: a missing type is ``""``, a missing time 0, missing data ``None``.
        """
        try:
            return cls.from_json(line, types)
        except InvalidEventError:
            found = decode(line, exact=False)
        type_ = found.get("type") if isinstance(found, dict) else None
        time = found.get("time") if isinstance(found, dict) else None
        if isinstance(time, bool) or not isinstance(time, int) or not -MAX_SAFE <= time <= MAX_SAFE:
            time = 0
        return cls(type_ if isinstance(type_, str) else "", seq, time, line, None, "", types)

    @classmethod
    def from_dict(cls, value: Mapping[str, Json], types: EventTypes | None = None) -> Event:
        """Make an event from its JSON value.

        Raises:
            InvalidEventError: as :meth:`from_json`, or a value is not lossless JSON.
        """
        if not isinstance(value, Mapping):
            raise InvalidEventError(f"an event is a JSON object, got {type(value).__name__}")
        return cls.from_json(encode(dict(value)), types)

    @property
    def data(self) -> Payload:
        """The payload: a frozen Struct for core and registered types, a read-only mapping for others.

        A payload that does not fit its type's Struct is a read-only mapping too.

        Raises:
            InvalidEventError: the text holds a number that cannot be read without loss.
        """
        data = self._data
        if data is UNSET:
            data = self._read_data()
            force_setattr(self, "_data", data)
        return data

    @property
    def surface_op(self) -> SurfaceOp | None:
        """How the event entered the surface: ``"append"``, a :class:`Replace`, or ``None`` for log-only events.

        Raises:
            InvalidEventError: the stored value is neither.
        """
        raw = self._field("surfaceOp")
        if raw is None:
            return None
        try:
            return _surface_op(raw)
        except msgspec.MsgspecError:
            return _odd_surface_op(decode(raw))

    @property
    def source_event_seqs(self) -> tuple[int, ...] | None:
        """The seqs of the events that this one derives from; ``None`` when not recorded.

        Raises:
            InvalidEventError: the stored value is not a list of integers.
        """
        raw = self._field("sourceEventSeqs")
        if raw is None:
            return None
        try:
            return _seqs(raw)
        except msgspec.MsgspecError:
            return _odd_seqs(decode(raw))

    @property
    def data_json(self) -> bytes:
        """The payload's JSON text."""
        if self._delta is not None:
            return _delta_data(self._delta, self._string)
        line = self.to_json()
        try:
            return bytes(_envelope(line).data)
        except (msgspec.MsgspecError, RecursionError):
            return member_texts(line).get("data", b"null")

    def to_json(self) -> bytes:
        """The event as one line of JSON without its newline: the very bytes, where it was read from a log."""
        if self._line is not None:
            return self._line
        return render_line(self.type, self.seq, self.time, self.data_json)

    def to_dict(self) -> dict[str, Json]:
        """The event as a fresh plain dict, unknown fields included.

        Raises:
            InvalidEventError: the text holds a number that cannot be read without loss.
        """
        value = decode(self.to_json())
        if not isinstance(value, dict):
            raise InvalidEventError("an event is a JSON object", seq=self.seq)
        return value

    def _field(self, name: str) -> bytes | None:
        if self._line is None:
            return None
        try:
            found = _envelope(self._line)
            raw = found.surface_op if name == "surfaceOp" else found.source_event_seqs
            return bytes(raw) if isinstance(raw, Raw) else None
        except (msgspec.MsgspecError, RecursionError):
            return member_texts(self._line).get(name)

    def _read_data(self) -> Payload:
        if self._delta is not None:
            return _delta_payload(self._delta, self._string)
        raw = self.data_json
        if is_typed(self.type, self._types):
            try:
                return decode_payload(self.type, raw, self._types)
            except InvalidEventError:
                pass  # carried as it is: session.md section 3
        return freeze(decode(raw))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        if self.seq != other.seq or self.type != other.type or self.time != other.time:
            return False
        mine, theirs = self.to_json(), other.to_json()
        if mine == theirs:
            return True
        try:
            return json_equal(decode(mine), decode(theirs))
        except InvalidEventError:
            return False

    def __ne__(self, other: object) -> bool:
        # Struct has one of its own, which compares identities.
        return not self == other

    def __hash__(self) -> int:
        return hash((self.type, self.seq, self.time))

    def __repr__(self) -> str:
        # Contents stay out: representations end up in logs and tracebacks.
        return f"Event(type={self.type!r}, seq={self.seq}, time={self.time})"

    def __reduce__(self) -> tuple[object, ...]:
        return (Event.stored, (self.to_json(), self.seq))

    def __copy__(self) -> Event:
        return self

    def __deepcopy__(self, memo: object) -> Event:
        return self


def check_event(value: object) -> Event:
    """*value*, for functions that anybody may call with anything.

    Raises:
        TypeError: it is no :class:`Event`.
    """
    if not isinstance(value, Event):
        raise TypeError(f"expected an Event, got {type(value).__name__}; Event.from_dict makes one of a dict")
    return value


def only_events(events: Iterable[object]) -> Iterator[Event]:
    """*events*, each as :func:`check_event`."""
    return map(check_event, events)


def render_line(
    type_: str, seq: int, time: int, data: bytes, *, sources: bytes | None = None, surface_op: bytes | None = None
) -> bytes:
    """The line of an event in the order in which live events are written (vocabulary.md, section 1)."""
    tail = b""
    if sources is not None:
        tail += b',"sourceEventSeqs":' + sources
    if surface_op is not None:
        tail += b',"surfaceOp":' + surface_op
    return b'{"type":%b,"seq":%d,"time":%d,"data":%b%b}' % (encode(type_), seq, time, data, tail)


def _delta_data(key: DeltaKey, string: str) -> bytes:
    try:
        text = _text(string)
    except UnicodeEncodeError:
        text = encode(string)
    head = b'{"turn":%b,"step":%b,"chunk":{"type":"%b","index":%b' % (
        _text(key.turn),
        _text(key.step),
        key.kind.encode(),
        _text(key.index),
    )
    if key.kind != "tool-call-delta":
        return head + b',"text":' + text + b"}}"
    name = b"" if key.name is None else b',"name":' + encode(key.name)
    return head + b',"id":' + encode(key.id) + name + b',"argumentsDelta":' + text + b"}}"


def _delta_payload(key: DeltaKey, string: str) -> Payload:
    turn, step, index = key.turn, key.step, key.index
    if not (isinstance(turn, int) and isinstance(step, int) and isinstance(index, int)):
        return freeze(decode(_delta_data(key, string)))  # the reference allows any number here, we type integers
    chunk: TextDelta | ReasoningDelta | ToolCallDelta
    if key.kind == "text-delta":
        chunk = TextDelta(index=index, text=string)
    elif key.kind == "reasoning-delta":
        chunk = ReasoningDelta(index=index, text=string)
    else:
        named = {} if key.name is None else {"name": key.name}
        chunk = ToolCallDelta(index=index, id=key.id or "", arguments_delta=string, **named)
    return AssistantChunk(turn=turn, step=step, chunk=chunk)


def _integer(value: Json, path: str) -> int:
    """An integer as JSON means it: ``1.0`` and ``1e3`` are integers, ``true`` is not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidEventError(f"expected an integer, got {type(value).__name__}", path=path)
    if not -MAX_SAFE <= value <= MAX_SAFE:
        raise InvalidEventError("integer outside the range that JavaScript holds exactly (2^53 - 1)", path=path)
    return value


def _read_envelope(value: Json) -> tuple[str, int, int]:
    if not isinstance(value, dict):
        raise InvalidEventError(f"an event is a JSON object, got {type(value).__name__}")
    for name in ("type", "seq", "time", "data"):
        if name not in value:
            raise InvalidEventError(f"event without {name!r}", path="$")
    type_ = value["type"]
    if not isinstance(type_, str):
        raise InvalidEventError(f"expected a string, got {type(type_).__name__}", path="$.type")
    seq = _integer(value["seq"], "$.seq")
    if seq < 0:
        raise InvalidEventError("negative seq", path="$.seq")
    return type_, seq, _integer(value["time"], "$.time")


def _odd_surface_op(value: Json) -> SurfaceOp:
    if value == "append":
        return "append"
    if isinstance(value, dict) and value.keys() == {"op", "start", "end"} and value["op"] == "replace":
        return Replace(_integer(value["start"], "$.surfaceOp.start"), _integer(value["end"], "$.surfaceOp.end"))
    raise InvalidEventError('expected "append" or {"op":"replace","start":…,"end":…}', path="$.surfaceOp")


def _odd_seqs(value: Json) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise InvalidEventError(f"expected a list, got {type(value).__name__}", path="$.sourceEventSeqs")
    return tuple(_integer(seq, f"$.sourceEventSeqs[{i}]") for i, seq in enumerate(value))

"""The fast way through a log: one typed decode for each line as our own writers write it.

A reader takes a line, already known to be UTF-8, and the seq that it should have.
It returns how many events the line holds after checking everything that the
careful way checks (:mod:`sessionstore.recovery.records`, the rules for seeds, the
surface), or 0 for "not sure": then the careful way decides.  A reader may raise
anything; that is "not sure", too.  A reader never accepts a line that the careful
way refuses; the tests compare the two on every kind of line.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from sessionstore.chunks import ROW_TYPES
from sessionstore.lossless import MAX_SAFE
from sessionstore.measure import measure_row
from sessionstore.recovery.format import TURN_END, TURN_START
from sessionstore.vocabulary import SURFACE_TYPES

if TYPE_CHECKING:
    from sessionstore.surface import Surface

__all__ = ["Reader", "Readers", "read_plain"]

Reader: TypeAlias = Callable[[bytes, int], int]

# Types whose lines need more than a good envelope without surface keys; "request/header" and the retired forms
# are rare enough for the careful way.
_SPECIAL: Final = (
    SURFACE_TYPES | ROW_TYPES.keys() | {TURN_START, TURN_END, "request/header", "request/header-delta", "mode/set"}
)

_Text: TypeAlias = Annotated[str, Meta(min_length=1)]


class _Plain(Struct, gc=False, rename="camel"):
    type: str
    seq: int
    time: int
    data: Raw
    surface_op: Raw | UnsetType = UNSET
    source_event_seqs: Raw | UnsetType = UNSET


class _TurnData(Struct, gc=False):
    turn: int


class _Turn(Struct, gc=False, rename="camel"):
    type: Literal["turn/start", "turn/end"]
    seq: int
    time: int
    data: _TurnData
    surface_op: Raw | UnsetType = UNSET
    source_event_seqs: Raw | UnsetType = UNSET


class _AnySource(Struct, gc=False):
    kind: _Text


class _ModelSource(Struct, gc=False):
    kind: Literal["model"]
    provider: _Text
    model: _Text


class _ToolSource(Struct, gc=False, rename="camel"):
    kind: Literal["tool"]
    call_id: _Text


class _ResultBlock(Struct, gc=False, rename="camel"):
    type: Literal["tool-result"]
    tool_call_id: str


class _UserMessage(Struct, gc=False):
    id: _Text
    role: Literal["user"]
    content: list[Raw]
    source: _AnySource


class _AssistantMessage(Struct, gc=False):
    id: _Text
    role: Literal["assistant"]
    content: list[Raw]
    source: _ModelSource


class _ResultMessage(Struct, gc=False):
    id: _Text
    role: Literal["user"]
    content: Annotated[list[_ResultBlock], Meta(min_length=1, max_length=1)]
    source: _ToolSource


class _AssistantData(Struct, gc=False):
    message: _AssistantMessage


class _ResultData(Struct, gc=False):
    message: _ResultMessage


class _SteeringData(Struct, gc=False):
    message: _UserMessage


class _Surface(Struct, gc=False, rename="camel"):
    seq: int
    time: int
    surface_op: Literal["append"]
    source_event_seqs: Raw | UnsetType = UNSET


class _UserLine(_Surface, gc=False, kw_only=True, rename="camel"):
    type: Literal["user/message"]
    data: _UserMessage


class _AssistantLine(_Surface, gc=False, kw_only=True, rename="camel"):
    type: Literal["assistant/message"]
    data: _AssistantData


class _ResultLine(_Surface, gc=False, kw_only=True, rename="camel"):
    type: Literal["tool/result"]
    data: _ResultData


class _SteeringLine(_Surface, gc=False, kw_only=True, rename="camel"):
    type: Literal["steering/message"]
    data: _SteeringData


_BLOCK: Final = 1000
_SHORT: Final = 100  # bytes of a citation whose numbers are made faster than its text is looked at

_sources: Final = msgspec.json.Decoder(list[int]).decode
_plain: Final = msgspec.json.Decoder(_Plain).decode

_L = TypeVar("_L")


@cache
def _decoder(line: type[_L]) -> Callable[[bytes], _L]:
    """Made for the first scan and not by the import, which would take a tenth longer."""
    return msgspec.json.Decoder(line).decode


class Readers:
    """The readers of one scan: they share its surface and what is known of the open turn.

    ``open_turn`` is the number of the turn that is open, ``open_turn_seq`` the seq of its start; both ``None``
    between turns.
    """

    __slots__ = ("_assistant", "_result", "_steering", "_turn", "_user", "by_token", "open_turn", "open_turn_seq",
                 "surface")  # fmt: skip

    def __init__(self, surface: Surface) -> None:
        self.surface = surface
        self._turn = _decoder(_Turn)
        self._user = _decoder(_UserLine)
        self._assistant = _decoder(_AssistantLine)
        self._result = _decoder(_ResultLine)
        self._steering = _decoder(_SteeringLine)
        self.open_turn: int | None = None
        self.open_turn_seq: int | None = None
        self.by_token: dict[bytes, Reader] = {
            TURN_START.encode(): self._read_turn,
            TURN_END.encode(): self._read_turn,
            b"user/message": self._read_user,
            b"assistant/message": self._read_assistant,
            b"tool/result": self._read_result,
            b"steering/message": self._read_steering,
            **{tag.encode(): _read_row for tag in ROW_TYPES},
        }

    def turn_start(self, seq: int, turn: int) -> None:
        """Note a ``turn/start``."""
        self.open_turn = turn
        self.open_turn_seq = seq

    def turn_end(self) -> None:
        """Note a ``turn/end``."""
        self.open_turn = self.open_turn_seq = None

    def _read_turn(self, line: bytes, expected: int) -> int:
        found = self._turn(line)
        if found.seq != expected or found.surface_op is not UNSET or found.source_event_seqs is not UNSET:
            return 0
        if not -MAX_SAFE <= found.time <= MAX_SAFE:
            return 0
        if found.type == TURN_START:
            self.turn_start(expected, found.data.turn)
        else:
            self.turn_end()
        return 1

    def _read_user(self, line: bytes, expected: int) -> int:
        return self._append(self._user(line), expected)

    def _read_assistant(self, line: bytes, expected: int) -> int:
        found = self._assistant(line)
        if found.source_event_seqs is not UNSET and bytes(found.source_event_seqs) == b"[]":
            found.source_event_seqs = UNSET  # a known, empty stream: legal here only
        return self._append(found, expected)

    def _read_result(self, line: bytes, expected: int) -> int:
        found = self._result(line)
        message = found.data.message
        if message.content[0].tool_call_id != message.source.call_id:
            return 0
        return self._append(found, expected)

    def _read_steering(self, line: bytes, expected: int) -> int:
        return self._append(self._steering(line), expected)

    def _append(self, found: _Surface, expected: int) -> int:
        if found.seq != expected or not -MAX_SAFE <= found.time <= MAX_SAFE:
            return 0
        sources = found.source_event_seqs
        if sources is not UNSET and not _good_sources(bytes(sources), expected):
            return 0
        self.surface.append_fast(expected)
        return 1


def read_plain(line: bytes, expected: int) -> int:
    """The reader of every type that has no reader of its own, and of lines that do not begin as usual."""
    found = _plain(line)
    good = (
        found.seq == expected
        and found.surface_op is UNSET
        and found.source_event_seqs is UNSET
        and -MAX_SAFE <= found.time <= MAX_SAFE
        and found.type not in _SPECIAL
    )
    return 1 if good else 0


def _read_row(line: bytes, expected: int) -> int:
    seq0, count = measure_row(line)
    return count if seq0 == expected else 0


def _good_sources(text: bytes, seq: int) -> bool:
    # A message cites the chunks of its step, nearly always one unbroken range: that its text is the range's text is
    # the cheapest proof that these are integers without duplicates, and no integer is ever made.
    if len(text) > _SHORT:
        first, last = int(text[1 : text.find(b",")]), int(text[text.rfind(b",") + 1 : -1])
        if _BLOCK <= first <= last < first + len(text) and _is_range(text, first, last + 1):
            return last < seq
    sources = _sources(text)
    return bool(sources) and min(sources) >= 0 and max(sources) < seq and len(set(sources)) == len(sources)


def _is_range(text: bytes, first: int, stop: int) -> bool:
    """Whether *text* is the JSON of the integers from *first*, which is at least 1000, up to *stop*."""
    parts: list[bytes] = []
    while first < stop:
        block, low = divmod(first, _BLOCK)
        high = min(_BLOCK, low + stop - first)
        width, numbers = _block_text(block)
        parts.append(numbers[width * low : width * high])
        first += high - low
    return text == b"[%b]" % b"".join(parts)[:-1]


@lru_cache(maxsize=4)  # the citations of a log go forward
def _block_text(block: int) -> tuple[int, bytes]:
    """The integers of a block of a thousand, each with a comma behind it, and how many bytes each one takes."""
    lead = b"%d" % block
    width = len(lead) + 4
    text = bytearray(_last_digits(len(lead)))
    for index, digit in enumerate(lead):
        text[index::width] = bytes((digit,)) * _BLOCK
    return width, bytes(text)


@lru_cache(maxsize=32)
def _last_digits(lead: int) -> bytes:
    """What all blocks have in common whose numbers have *lead* digits in front of the last three."""
    return b"".join(b" " * lead + b"%03d," % n for n in range(_BLOCK))

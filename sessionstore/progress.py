"""What a log says about the work in progress: the last turn, the open step, the unanswered calls.

Reads storage lines and decodes only the few that matter; token deltas, which are most
of a log, are passed over by their type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from sessionstore.chunks import line_type
from sessionstore.events import Event
from sessionstore.lossless import decode
from sessionstore.recovery.closers import OpenWork
from sessionstore.recovery.format import TURN_END, TURN_START

if TYPE_CHECKING:
    from sessionstore.eventlog import EventLog
    from sessionstore.lossless import Json

__all__ = ["Progress", "Tally", "last_turn", "type_of_line"]

_CANONICAL: Final = b'{"type":"'
_BRACKETS: Final = frozenset({
    TURN_START, TURN_END, "step/start", "step/end", "assistant/message", "tool/call", "tool/result",
})  # fmt: skip
_BLOCK: Final = 512  # lines looked at together


def type_of_line(line: bytes) -> str | None:
    """The ``type`` of a storage line, ``None`` where there is none; fast for a line as this library writes it."""
    if line.startswith(_CANONICAL):
        name = line[len(_CANONICAL) : line.find(b'"', len(_CANONICAL))]
        if name.isascii() and b"\\" not in name:
            return name.decode()
    return line_type(line)


class Progress:
    """Follows one turn of *log* from its ``turn/start`` (seq *start*) on, as far as the log has been read."""

    def __init__(self, log: EventLog, start: int) -> None:
        self.work = OpenWork()
        self.last_step = 0
        self.hit_max_tokens = False
        self._log = log
        self._next_line = log.line_index(start)

    def catch_up(self) -> OpenWork:
        """Read what was appended since the last call; what is open now."""
        # The run that is being streamed is no line yet: it holds deltas only, which open and close nothing.
        stop = self._log.line_count
        for line in self._log.slice_lines(self._next_line, stop):
            type_ = type_of_line(line)
            if type_ in _BRACKETS:
                self.work.observe(Event.from_json(line))
                if type_ == "step/start" and self.work.step is not None:
                    self.last_step = self.work.step
            elif type_ == "assistant/chunk" and b'"finish"' in line:
                self._read_chunk(_payload(Event.from_json(line)).get("chunk"))
        self._next_line = stop
        return self.work

    def _read_chunk(self, chunk: Json) -> None:
        if isinstance(chunk, Mapping) and chunk.get("type") == "finish":
            reason = chunk.get("reason")
            self.hit_max_tokens = isinstance(reason, Mapping) and reason.get("kind") == "max-tokens"


def last_turn(log: EventLog, stop: int | None = None) -> tuple[int, bool]:
    """The number of the last turn in *log*, or before seq *stop* (0: none), and whether it is still open then."""
    is_open: bool | None = None
    unreadable = 0  # such a turn still counts: it took the number after the one before it
    for event in _backwards(log, log.line_count if not stop else log.line_index(stop - 1) + 1):
        if is_open is None:
            is_open = event.type == TURN_START
        if event.type == TURN_START:
            turn = _payload(event).get("turn")
            if isinstance(turn, float) and turn.is_integer():
                turn = int(turn)
            if isinstance(turn, int) and not isinstance(turn, bool):
                return turn + unreadable, is_open
            unreadable += 1
    return unreadable, bool(is_open)


def _backwards(log: EventLog, stop: int) -> Iterator[Event]:
    """The turn boundaries in the first *stop* lines of *log*, the last one first."""
    while stop > 0:
        start = max(0, stop - _BLOCK)
        for line in reversed(log.slice_lines(start, stop)):
            if type_of_line(line) in {TURN_START, TURN_END}:
                yield Event.from_json(line)
        stop = start


def _payload(event: Event) -> Mapping[str, Json]:
    data = decode(event.data_json)
    return data if isinstance(data, Mapping) else {}


class Tally:
    """Counts what a listing may show of a log: its turns and its title."""

    def __init__(self, log: EventLog) -> None:
        self.turns = 0
        self.title: str | None = None
        self._log = log
        self._next_line = 0

    def read_some(self) -> bool:
        """Read the next block of lines; ``False`` once the end was reached.  Never long enough to be felt."""
        stop = min(self._next_line + 8 * _BLOCK, self._log.line_count)
        for line in self._log.slice_lines(self._next_line, stop):
            type_ = type_of_line(line)
            if type_ == TURN_START:
                self.turns += 1
            elif type_ == "session/title":
                title = _payload(Event.from_json(line)).get("title")
                self.title = title if isinstance(title, str) else self.title
        self._next_line = stop
        return stop < self._log.line_count

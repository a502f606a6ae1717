"""What a session cost: turns, steps, tokens, time, tools, bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from sessionstore.transcript.build import TranscriptBuilder
from sessionstore.transcript.model import ToolUse, Transcript, Turn, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sessionstore.events import Event
    from sessionstore.header import Header

__all__ = ["Stats", "StatsCounter", "ToolStats", "TurnStats", "TypeStats", "count"]


class ToolStats(Struct, rename="camel"):
    """One tool: calls, how many failed (error or unknown outcome), how many are without result, time in ms."""

    name: str
    calls: int = 0
    failed: int = 0
    unanswered: int = 0
    time: int = 0


class TypeStats(Struct, rename="camel"):
    """One event type: events and the bytes of their JSON (unpacked, without newlines)."""

    type: str
    events: int = 0
    bytes: int = 0


class TurnStats(Struct, rename="camel"):
    """One turn: how it ended, its wall time in ms, steps, tool calls and tokens."""

    number: int
    seq: int
    ended: str
    duration: int | None
    steps: int
    tools: int
    failures: int
    usage: Usage


class Stats(Struct, rename="camel"):
    """Everything ``sessionstore stats`` shows.  ``duration`` is the sum of the closed turns, in ms."""

    id: str
    title: str
    models: list[str]
    events: int
    turns: int
    steps: int
    tool_calls: int
    tool_failures: int
    duration: int
    first_time: int | None
    last_time: int | None
    usage: Usage
    per_turn: list[TurnStats] = field(default_factory=list)
    tools: list[ToolStats] = field(default_factory=list)
    types: list[TypeStats] = field(default_factory=list)


class StatsCounter:
    """Counts event by event; ``finish`` gives the result."""

    def __init__(self, session_id: str, header: Header | None = None) -> None:
        self._builder = TranscriptBuilder(session_id, header)
        self._types: dict[str, TypeStats] = {}

    def feed(self, event: Event) -> None:
        """Take the next event."""
        found = self._types.get(event.type)
        if found is None:
            found = self._types[event.type] = TypeStats(event.type)
        found.events += 1
        found.bytes += len(event.to_json())
        self._builder.feed(event)

    def finish(self) -> Stats:
        """The result; the counter is spent."""
        transcript = self._builder.finish()
        return Stats(
            id=transcript.id,
            title=transcript.title,
            models=transcript.models,
            events=transcript.events,
            turns=len(transcript.turns),
            steps=sum(len(turn.steps) for turn in transcript.turns),
            tool_calls=transcript.tool_calls,
            tool_failures=transcript.failures,
            duration=sum(turn.duration or 0 for turn in transcript.turns),
            first_time=transcript.first_time,
            last_time=transcript.last_time,
            usage=transcript.usage,
            per_turn=[_turn(turn) for turn in transcript.turns],
            tools=_tools(transcript),
            types=sorted(self._types.values(), key=lambda row: (-row.bytes, row.type)),
        )


def count(session_id: str, events: Iterable[Event], header: Header | None = None) -> Stats:
    """The statistics of a whole session."""
    counter = StatsCounter(session_id, header)
    for event in events:
        counter.feed(event)
    return counter.finish()


def _turn(turn: Turn) -> TurnStats:
    return TurnStats(
        number=turn.number,
        seq=turn.seq,
        ended=turn.ended,
        duration=turn.duration,
        steps=len(turn.steps),
        tools=turn.tools,
        failures=turn.failures,
        usage=turn.usage,
    )


def _uses(transcript: Transcript) -> Iterator[ToolUse]:
    for entry in transcript.entries:
        if entry.tool is not None:
            yield entry.tool
            yield from entry.tool.children


def _tools(transcript: Transcript) -> list[ToolStats]:
    rows: dict[str, ToolStats] = {}
    for use in _uses(transcript):
        row = rows.setdefault(use.name, ToolStats(use.name))
        row.calls += 1
        row.failed += use.failed
        row.unanswered += use.outcome in ("running", "unanswered")
        row.time += use.duration or 0
    return sorted(rows.values(), key=lambda row: (-row.calls, row.name))

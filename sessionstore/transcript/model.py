"""What a transcript consists of, before it becomes text, Markdown or HTML.

A :class:`Transcript` is what a person wants to know about a session: who said what,
which tools ran with what outcome, where turns began, ended or broke off, and what
they cost.  Token deltas are gone: they are part of the message they became.

All times are epoch milliseconds as logged (wall clock: they may go backwards); all
durations are milliseconds and never negative.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

__all__ = [
    "Entry",
    "EntryKind",
    "Fragment",
    "FragmentKind",
    "Outcome",
    "Span",
    "ToolUse",
    "Transcript",
    "Turn",
    "Usage",
]

FragmentKind = Literal["text", "reasoning", "image", "other"]
Outcome = Literal["running", "ok", "error", "unknown", "not-started", "unanswered"]
EntryKind = Literal["turn-start", "turn-end", "user", "context", "steering", "assistant", "tool", "todo", "notice"]


class Usage(Struct, rename="camel", omit_defaults=True, frozen=True):
    """Tokens.  ``input`` and the two cache counts are disjoint: what was billed as input is their sum."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            reasoning=self.reasoning + other.reasoning,
        )

    @property
    def total_input(self) -> int:
        """Everything the model read: fresh input and both cache counts."""
        return self.input + self.cache_read + self.cache_write


class Fragment(Struct, rename="camel", omit_defaults=True, frozen=True):
    """One block of a message as text; for images and unknown blocks ``text`` describes it."""

    kind: FragmentKind
    text: str


class ToolUse(Struct, rename="camel", omit_defaults=True):
    """One tool call and what came of it.

    ``arguments`` is the raw JSON text the model wrote.  ``outcome``: ``unknown`` and ``not-started`` are what was
    written for calls that a crash, a cancellation or a failure left open; ``running`` had no result yet; ``unanswered`` never got one.
    """

    call_id: str
    name: str
    arguments: str = ""
    outcome: Outcome = "running"
    call_seq: int | None = None
    result_seq: int | None = None
    started: int | None = None
    ended: int | None = None
    error: str | None = None
    result: tuple[Fragment, ...] = ()
    pruned_seq: int | None = None
    children: list[ToolUse] = field(default_factory=list)

    @property
    def duration(self) -> int | None:
        """From call to result in ms, ``None`` unless both were logged."""
        if self.started is None or self.ended is None:
            return None
        return max(0, self.ended - self.started)

    @property
    def failed(self) -> bool:
        """Whether the call came to a bad or an unknown end."""
        return self.outcome in ("error", "unknown", "not-started")


class Entry(Struct, rename="camel", omit_defaults=True):
    """One thing to show.

    ``seq`` is the event it stands for; ``first_seq`` (where it was streamed) and ``last_seq`` are the first and last
    event that it covers.  ``speaker`` is who speaks, for
    assistants the model.  ``label`` and ``note`` are for notices and turn boundaries.  ``flags``: ``partial`` (the
    stream broke off before the message), ``interrupted``, ``recovered`` (written by a recovery), ``closed`` (a
    call without a result, answered for it when its turn was cancelled, failed or was repaired), ``lost`` (stands
    for events that are gone), ``summary`` (replaces earlier messages), ``hidden`` (shadowed by a later summary),
    ``inherited`` (copied from the parent of a fork), ``minor`` (only of interest to who looks for it).
    """

    kind: EntryKind
    seq: int
    time: int
    last_seq: int = -1
    first_seq: int = -1
    turn: int | None = None
    step: int | None = None
    speaker: str = ""
    label: str = ""
    note: str = ""
    fragments: tuple[Fragment, ...] = ()
    tool: ToolUse | None = None
    todos: tuple[tuple[str, str], ...] = ()
    flags: list[str] = field(default_factory=list)

    @property
    def shown_seq(self) -> int:
        """The seq to show: of a tool its call, for the message that asked for it has an entry of its own."""
        return self.tool.call_seq if self.tool is not None and self.tool.call_seq is not None else self.seq

    def has(self, flag: str) -> bool:
        """Whether *flag* is set."""
        return flag in self.flags

    @property
    def closed_by(self) -> str:
        """How a call came to an answer that no tool gave; empty where a tool did, or nobody."""
        if self.has("recovered"):
            return "closed by recovery"
        return "closed without a result" if self.has("closed") else ""


class Span(Struct, rename="camel", omit_defaults=True):
    """A step on the clock."""

    number: int
    seq: int
    start: int
    end: int | None = None
    usage: Usage = Usage()


class Turn(Struct, rename="camel", omit_defaults=True):
    """One turn.  ``ended`` is the reason's kind, or ``open`` while there is no ``turn/end``."""

    number: int
    seq: int
    start: int
    end_seq: int | None = None
    end: int | None = None
    ended: str = "open"
    detail: str = ""
    trigger: str = ""
    title: str = ""
    usage: Usage = Usage()
    steps: list[Span] = field(default_factory=list)
    tools: int = 0
    failures: int = 0

    @property
    def duration(self) -> int | None:
        """Wall time in ms, ``None`` while open."""
        return None if self.end is None else max(0, self.end - self.start)


class Transcript(Struct, rename="camel", omit_defaults=True):
    """A whole session, ready to be rendered.

    ``findings`` are the sentences of a scan of a log that is not clean; ``verdict`` is its word for it.
    """

    id: str
    created_at: int | None = None
    cwd: str | None = None
    parent: str | None = None
    seed_length: int | None = None
    title: str = ""
    models: list[str] = field(default_factory=list)
    events: int = 0
    first_time: int | None = None
    last_time: int | None = None
    verdict: str = ""
    findings: tuple[str, ...] = ()
    usage: Usage = Usage()
    turns: list[Turn] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    @property
    def tool_calls(self) -> int:
        """Calls in all turns."""
        return sum(turn.tools for turn in self.turns)

    @property
    def failures(self) -> int:
        """Calls that came to a bad or an unknown end."""
        return sum(turn.failures for turn in self.turns)

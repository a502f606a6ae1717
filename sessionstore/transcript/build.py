"""From events to a transcript.

:class:`TranscriptBuilder` takes events one by one, so the same code serves a stored
log, a log too large to hold, and one that is still growing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from sessionstore.errors import InvalidEventError
from sessionstore.messages import ReasoningDelta, TextDelta
from sessionstore.transcript.access import integer, items, lookup, mapping, text
from sessionstore.transcript.content import failure_text, fragments, read_result, read_usage, speaker
from sessionstore.transcript.model import Entry, EntryKind, Span, ToolUse, Transcript, Turn, Usage
from sessionstore.transcript.notices import describe
from sessionstore.transcript.stream import Stream
from sessionstore.transcript.tools import ToolBook
from sessionstore.vocabulary import AssistantChunk

if TYPE_CHECKING:
    from sessionstore.events import Event
    from sessionstore.header import Header

__all__ = ["TranscriptBuilder", "build_transcript"]

_Data = Mapping[str, object]


def build_transcript(
    session_id: str,
    events: Iterable[Event],
    *,
    header: Header | None = None,
    verdict: str = "",
    findings: Iterable[str] = (),
) -> Transcript:
    """The transcript of a whole session.

    *header*, *verdict* and *findings* are what ``inspect`` returned; a log without a header is shown all the same.
    """
    builder = TranscriptBuilder(session_id, header)
    for event in events:
        builder.feed(event)
    transcript = builder.finish()
    transcript.verdict = verdict
    transcript.findings = tuple(findings)
    return transcript


class TranscriptBuilder:
    """Builds a :class:`Transcript` event by event.  ``transcript`` is valid, if unfinished, at any time."""

    def __init__(self, session_id: str, header: Header | None = None) -> None:
        self.transcript = Transcript(id=session_id)
        if header is not None:
            self.transcript.created_at = header.created_at
            self.transcript.cwd = header.cwd
            self.transcript.parent = header.parent_session
            self.transcript.seed_length = header.seed_length
        self._turn: Turn | None = None
        self._step: Span | None = None
        self._tools = ToolBook()
        self._operation: _Data = {}
        self._stream = Stream()
        self._chunk_usage = False
        self._handlers: dict[str, Callable[[Event, _Data], None]] = {
            "turn/start": self._turn_start,
            "turn/end": self._turn_end,
            "step/start": self._step_start,
            "step/end": self._step_end,
            "assistant/chunk": self._chunk,
            "user/message": self._user,
            "context/message": self._user,
            "steering/message": self._steering,
            "assistant/message": self._assistant,
            "tool/call": self._tool_call,
            "tool/result": self._tool_result,
            "tool/code-dispatch-start": self._subcall_start,
            "tool/code-dispatch": self._subcall_end,
            "todo/write": self._todo,
            "session/title": self._session_title,
            "request/header": self._request_header,
        }

    def feed(self, event: Event) -> None:
        """Take the next event."""
        transcript = self.transcript
        transcript.events += 1
        if transcript.first_time is None:
            transcript.first_time = event.time
        transcript.last_time = event.time
        try:
            if event.type == "assistant/chunk" and self._delta(event):
                return
            whole = event.to_dict()
        except InvalidEventError:
            self._add(event, "notice", label=event.type, note="(its numbers cannot be read without loss)")
            return
        self._operation = mapping(whole.get("surfaceOp"))
        self._handlers.get(event.type, self._notice)(event, mapping(whole.get("data")))

    def finish(self) -> Transcript:
        """End of the events: what was being streamed becomes a partial message.  The builder is spent."""
        self._flush_stream()
        return self.transcript

    # -- helpers ---------------------------------------------------------

    def _add(self, event: Event, kind: EntryKind, **facts: object) -> Entry:
        entry = Entry(kind=kind, seq=event.seq, time=event.time, last_seq=event.seq)
        entry.turn = self._turn.number if self._turn is not None else None
        entry.step = self._step.number if self._step is not None else None
        for name, value in facts.items():
            setattr(entry, name, value)
        seed = self.transcript.seed_length
        if seed is not None and event.seq < seed:
            entry.flags.append("inherited")
        self.transcript.entries.append(entry)
        return entry

    def _charge(self, usage: Usage) -> None:
        self.transcript.usage += usage
        if self._turn is not None:
            self._turn.usage += usage
        if self._step is not None:
            self._step.usage += usage

    def _notice(self, event: Event, data: _Data) -> None:
        label, note, minor = describe(event.type, data)
        entry = self._add(event, "notice", label=label, note=note)
        if event.type == "recovery/lost":
            self._note_loss(entry)
        elif minor:
            entry.flags.append("minor")

    def _note_loss(self, entry: Entry) -> None:
        """Consecutive ``recovery/lost`` events become one notice: a hole can be thousands of them."""
        entry.flags.append("lost")
        entries = self.transcript.entries
        if len(entries) > 1:
            before = entries[-2]
            if before.has("lost") and before.last_seq == entry.seq - 1 and before.turn == entry.turn:
                entries.pop()
                before.last_seq = entry.seq
                before.label = f"Events lost ({before.last_seq - before.seq + 1})"

    # -- turns and steps ---------------------------------------------------

    def _turn_start(self, event: Event, data: _Data) -> None:
        number = integer(data.get("turn"))
        turn = Turn(
            number=number if number is not None else len(self.transcript.turns) + 1, seq=event.seq, start=event.time
        )
        kind = text(lookup(data, "trigger", "kind"))
        source = text(lookup(data, "trigger", "source", "kind"))
        turn.trigger = " ".join(part for part in (kind, source) if part)
        self._turn, self._step = turn, None
        self.transcript.turns.append(turn)
        note = "" if turn.trigger in ("", "message user") else turn.trigger
        self._add(event, "turn-start", label=f"Turn {turn.number}", note=note)

    def _turn_end(self, event: Event, data: _Data) -> None:
        self._close_step(event.time)
        turn = self._turn
        reason = mapping(data.get("reason"))
        kind = text(reason.get("kind"), "ended")
        detail = _reason_detail(reason)
        number = integer(data.get("turn"))
        entry = self._add(event, "turn-end", label=kind, note=detail)
        if turn is not None:
            turn.ended, turn.detail, turn.end, turn.end_seq = kind, detail, event.time, event.seq
        elif number is not None:
            entry.turn = number
        if kind == "interrupted":
            entry.flags.extend(("interrupted", "recovered"))
        elif kind != "completed":
            entry.flags.append("interrupted")
        self._turn = None
        self._tools.end_turn(recovered=kind == "interrupted")

    def _step_start(self, event: Event, data: _Data) -> None:
        self._close_step(event.time)
        number = integer(data.get("step")) or 0
        self._step = Span(number=number, seq=event.seq, start=event.time)
        if self._turn is not None:
            self._turn.steps.append(self._step)

    def _step_end(self, event: Event, _data: _Data) -> None:
        self._close_step(event.time)

    def _close_step(self, time: int) -> None:
        self._flush_stream()
        self._chunk_usage = False
        self._tools.close()
        if self._step is not None:
            self._step.end = max(time, self._step.start)
            self._step = None

    # -- messages ------------------------------------------------------------

    def _user(self, event: Event, data: _Data) -> None:
        source = mapping(data.get("source"))
        mine = text(source.get("kind"), "user") == "user" and event.type == "user/message"
        entry = self._add(
            event,
            "user" if mine else "context",
            speaker=speaker(source) or "user",
            fragments=fragments(data.get("content")),
        )
        if not mine:
            entry.label = text(source.get("form"))
        if not self._shadow(entry) and mine and self._turn is not None and not self._turn.title:
            self._turn.title = _headline(entry)

    def _shadow(self, entry: Entry) -> bool:
        start, end = integer(self._operation.get("start")), integer(self._operation.get("end"))
        if start is None or end is None:
            return False
        entry.kind = "context"
        entry.label = "summary of earlier messages"
        entry.note = f"replaces events {start} to {end} in what the model sees"
        entry.flags.append("summary")
        return True

    def _steering(self, event: Event, data: _Data) -> None:
        message = mapping(data.get("message")) or data
        self._add(
            event,
            "steering",
            speaker=speaker(message.get("source")) or "user",
            fragments=fragments(message.get("content")),
        )

    def _delta(self, event: Event) -> bool:
        """Take a token delta.  They are nearly all events of a log, so they are not decoded to dicts first."""
        data = event.data
        if not isinstance(data, AssistantChunk):
            return False
        chunk = data.chunk
        if isinstance(chunk, TextDelta):
            self._stream.delta(chunk.index, "text", chunk.text, event.seq, event.time)
        elif isinstance(chunk, ReasoningDelta):
            self._stream.delta(chunk.index, "reasoning", chunk.text, event.seq, event.time)
        else:
            return False
        return True

    def _chunk(self, event: Event, data: _Data) -> None:
        chunk = mapping(data.get("chunk"))
        usage = read_usage(chunk.get("usage")) if chunk.get("type") == "usage" else None
        if usage is not None:
            self._chunk_usage = True
            self._charge(usage)
        self._stream.feed(chunk, event.seq, event.time)

    def _assistant(self, event: Event, data: _Data) -> None:
        message = mapping(data.get("message")) or data
        first, known = self._stream.first_seq, len(self.transcript.entries)
        self._stream.clear()
        if not self._chunk_usage:
            usage = read_usage(data.get("usage"))
            if usage is not None:
                self._charge(usage)
        model = speaker(message.get("source")) or text(lookup(data, "provenance", "model"))
        if model and model not in self.transcript.models:
            self.transcript.models.append(model)
        blocks = [mapping(block) for block in items(message.get("content"))]
        shown = fragments(blocks)
        if shown:
            entry = self._add(event, "assistant", speaker=model, fragments=shown)
            if data.get("interrupted") is True:
                entry.flags.append("partial")
        for block in blocks:
            if block.get("type") == "tool-call":
                self._use(event, text(block.get("id")), text(block.get("name")), text(block.get("arguments")))
        if first is not None and len(self.transcript.entries) > known:
            self.transcript.entries[known].first_seq = first

    def _flush_stream(self) -> None:
        stream = self._stream
        if not stream or stream.first_seq is None:
            return
        entry = Entry(kind="assistant", seq=stream.first_seq, time=stream.first_time, last_seq=stream.first_seq)
        entry.turn = self._turn.number if self._turn is not None else None
        entry.step = self._step.number if self._step is not None else None
        entry.fragments = stream.fragments()
        entry.note = stream.failure
        entry.flags.append("partial")
        for call in stream.calls():
            if call.call_id not in self._tools:
                entry.note = "; ".join(part for part in (entry.note, f"was about to call {call.name}") if part)
        if entry.fragments or entry.note:
            self.transcript.entries.append(entry)
        stream.clear()

    # -- tools -----------------------------------------------------------------

    def _use(self, event: Event, call_id: str, name: str, arguments: str) -> tuple[Entry, ToolUse]:
        tool = ToolUse(call_id=call_id, name=name, arguments=arguments)
        entry = self._add(event, "tool")
        self._tools.enter(entry, tool)
        if self._turn is not None:
            self._turn.tools += 1
        return entry, tool

    def _tool_call(self, event: Event, data: _Data) -> None:
        call_id, arguments = text(data.get("callId")), text(data.get("arguments"))
        tool = self._tools.awaiting_start(call_id)
        if tool is None:
            _, tool = self._use(event, call_id, text(data.get("name")), arguments)
        tool.call_seq, tool.started = event.seq, event.time
        tool.arguments = arguments or tool.arguments

    def _tool_result(self, event: Event, data: _Data) -> None:
        result = read_result(data)
        if self._operation:
            self._tools.prune(result.call_id, event.seq)
            return
        entry = self._tools.awaiting_result(result.call_id)
        if entry is None or entry.tool is None:
            entry, tool = self._use(event, result.call_id, "(unknown call)", "")
        else:
            tool = entry.tool
        self._tools.answer(entry, tool, result, event)
        if tool.failed and self._turn is not None:
            self._turn.failures += 1

    def _subcall_start(self, event: Event, data: _Data) -> None:
        self._stranger(event, self._tools.dispatch(data, event))

    def _subcall_end(self, event: Event, data: _Data) -> None:
        self._stranger(event, self._tools.dispatched(data, event))

    def _stranger(self, event: Event, tool: ToolUse | None) -> None:
        if tool is not None:
            self._add(event, "tool", tool=tool)

    # -- the rest ------------------------------------------------------------

    def _todo(self, event: Event, data: _Data) -> None:
        rows = (mapping(row) for row in items(data.get("todos")))
        self._add(
            event,
            "todo",
            label="Plan",
            todos=tuple((text(row.get("status"), "pending"), text(row.get("content"))) for row in rows),
        )

    def _session_title(self, event: Event, data: _Data) -> None:
        self.transcript.title = text(data.get("title")) or self.transcript.title
        self._notice(event, data)

    def _request_header(self, event: Event, data: _Data) -> None:
        model = text(lookup(data, "header", "config", "model"))
        if model and model not in self.transcript.models:
            self.transcript.models.append(model)
        self._notice(event, data)


def _reason_detail(reason: _Data) -> str:
    kind = text(reason.get("kind"))
    if kind == "error":
        return failure_text(reason.get("failure") or reason.get("error") or reason)
    if kind == "aborted":
        by = mapping(reason.get("reason"))
        return " ".join(part for part in (text(by.get("kind")), text(by.get("reason"))) if part)
    return text(reason.get("reason"))


def _headline(entry: Entry) -> str:
    for fragment in entry.fragments:
        line = " ".join(fragment.text.split())
        if line:
            return line if len(line) <= 100 else line[:99] + "…"
    return ""

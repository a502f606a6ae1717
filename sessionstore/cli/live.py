"""A session that is being written, printed as it grows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sessionstore.cli.terminal import out, print_lines
from sessionstore.messages import ReasoningDelta, TextDelta
from sessionstore.transcript.build import TranscriptBuilder
from sessionstore.transcript.redact import hide_results, redact
from sessionstore.transcript.text import Line, View, entry_lines
from sessionstore.transcript.visible import visible
from sessionstore.vocabulary import AssistantChunk

if TYPE_CHECKING:
    from sessionstore import Event, Inspection
    from sessionstore.transcript.model import Entry

__all__ = ["LivePrinter"]


class LivePrinter:
    """Prints entries as they become complete, and text while it is streamed.

    A tool call is printed when it has its result, or when its step ends without one.
    """

    def __init__(self, inspection: Inspection, view: View, *, secrets: bool, results: bool) -> None:
        self._view = view
        self._secrets = secrets
        self._results = results
        self._builder = TranscriptBuilder(inspection.id, inspection.header)
        # Only what is stored: the closers that an inspection adds may never come.
        for event in inspection.events[: inspection.durable_seq]:
            self._builder.feed(event)
        self._waiting: list[Entry] = [
            entry
            for entry in self._builder.transcript.entries
            if entry.tool is not None and entry.tool.outcome == "running"
        ]
        self._done = len(self._builder.transcript.entries)
        self._streaming = False

    def feed(self, event: Event) -> None:
        """Take the next event and print what it completes."""
        streamed = self._stream(event)
        known = len(self._builder.transcript.entries)
        self._builder.feed(event)
        entries = self._builder.transcript.entries
        if len(entries) < known:
            self._done = min(self._done, len(entries))  # losses are joined to one entry
        new, self._done = entries[self._done :], len(entries)
        if new and streamed:
            sys.stdout.write("\n")
        for entry in new:
            if entry.tool is not None:
                self._waiting.append(entry)
            elif not (streamed and entry.kind == "assistant"):
                self._print(entry)
            elif entry.has("partial"):
                print_lines([Line("⚠ broke off before it was complete", "warn", 2)], out())
        self._print_tools()

    def _stream(self, event: Event) -> bool:
        """Print the text of a delta.  Whether the message that *event* completes is on the screen already."""
        if self._secrets or event.type not in ("assistant/chunk", "assistant/message", "step/end"):
            return False
        data = event.data if event.type == "assistant/chunk" else None
        if isinstance(data, AssistantChunk) and isinstance(data.chunk, TextDelta | ReasoningDelta):
            if isinstance(data.chunk, TextDelta):
                if not self._streaming:
                    self._streaming = True
                    sys.stdout.write("\nAssistant\n  ")
                sys.stdout.write(visible(data.chunk.text).replace("\n", "\n  "))
            return False
        if event.type == "assistant/chunk":
            return False
        was, self._streaming = self._streaming, False
        return was

    def _print_tools(self) -> None:
        still: list[Entry] = []
        for entry in self._waiting:
            if entry.tool is not None and entry.tool.outcome == "running":
                still.append(entry)
            else:
                self._print(entry)
        self._waiting = still

    def _print(self, entry: Entry) -> None:
        transcript = self._builder.transcript
        single = type(transcript)(id=transcript.id, entries=[entry])
        if self._results:
            hide_results(single)
        if self._secrets:
            redact(single)
        last = transcript.turns[-1] if transcript.turns else None
        turn = last if last is not None and entry.seq in (last.seq, last.end_seq) else None
        print_lines(entry_lines(entry, self._view, turn), out())

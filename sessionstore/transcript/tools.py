"""Tool calls between being asked for and being answered.

A call appears up to three times in a log: the model asks for it, the agent records
that it starts, and a result comes, or a recovery or the end of the step says that
none will.  A program may dispatch further calls, which belong to the call that runs it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from sessionstore.transcript.access import text
from sessionstore.transcript.content import ToolOutcome, fragments
from sessionstore.transcript.model import Entry, Outcome, ToolUse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sessionstore.events import Event

__all__ = ["ToolBook"]

_RECOVERED: Final[dict[str, Outcome]] = {"TOOL_OUTCOME_UNKNOWN": "unknown", "TOOL_NOT_STARTED": "not-started"}


class ToolBook:
    """Which entry a call id means, now and before."""

    def __init__(self) -> None:
        self._open: dict[str, Entry] = {}
        self._last: dict[str, Entry] = {}
        self._subcalls: dict[str, ToolUse] = {}
        self._answered: list[Entry] = []  # in this turn, with a result that no tool gave

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._open

    def enter(self, entry: Entry, tool: ToolUse) -> None:
        """A call was asked for, or recorded without having been asked for."""
        entry.tool = tool
        self._open[tool.call_id] = self._last[tool.call_id] = entry

    def awaiting_start(self, call_id: str) -> ToolUse | None:
        """The call that was asked for under this id and is not recorded yet."""
        entry = self._open.get(call_id)
        tool = None if entry is None else entry.tool
        return tool if tool is not None and tool.call_seq is None else None

    def awaiting_result(self, call_id: str) -> Entry | None:
        """The entry of the call of this id that has no result yet, one of an earlier step too."""
        entry = self._open.get(call_id) or self._last.get(call_id)
        if entry is None or entry.tool is None or entry.tool.result_seq is not None:
            return None
        return entry

    def answer(self, entry: Entry, tool: ToolUse, result: ToolOutcome, event: Event) -> None:
        """The result of *tool* has come."""
        tool.result_seq, tool.ended, tool.result, tool.error = event.seq, event.time, result.content, result.error
        plain: Outcome = "error" if result.failed or result.error else "ok"
        tool.outcome = _RECOVERED.get(result.error or "", plain)
        if result.recovered:
            entry.flags.append("recovered")
            self._answered.append(entry)

    def end_turn(self, *, recovered: bool) -> None:
        """The turn is over.  Unless a recovery ended it, its calls without a result were answered by a living writer."""
        for entry in self._answered if not recovered else ():
            entry.flags = ["closed" if flag == "recovered" else flag for flag in entry.flags]
        self._answered.clear()

    def prune(self, call_id: str, seq: int) -> None:
        """The result of a call was shortened for the model by the event *seq*."""
        entry = self._last.get(call_id)
        if entry is not None and entry.tool is not None:
            entry.tool.pruned_seq = seq

    def dispatch(self, data: Mapping[str, object], event: Event) -> ToolUse | None:
        """A program dispatches a call: it becomes part of its parent, or is returned where that is not known."""
        tool = ToolUse(
            call_id=text(data.get("subCallId")),
            name=text(data.get("name")),
            arguments=_as_text(data.get("arguments")),
            call_seq=event.seq,
            started=event.time,
        )
        self._subcalls[tool.call_id] = tool
        parent = self._open.get(text(data.get("parentCallId")))
        if parent is None or parent.tool is None:
            return tool
        parent.tool.children.append(tool)
        return None

    def dispatched(self, data: Mapping[str, object], event: Event) -> ToolUse | None:
        """A dispatched call is done; returns as :meth:`dispatch` where its start was not logged."""
        stranger = None if text(data.get("subCallId")) in self._subcalls else self.dispatch(data, event)
        tool = self._subcalls[text(data.get("subCallId"))]
        tool.result_seq, tool.ended, tool.result = event.seq, event.time, fragments(data.get("content"))
        tool.outcome = "error" if data.get("isError") is True else "ok"
        return stranger

    def close(self) -> None:
        """The step is over: what is open gets no result any more."""
        for entry in self._open.values():
            if entry.tool is not None and entry.tool.outcome == "running":
                entry.tool.outcome = "unanswered"
        self._open.clear()


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

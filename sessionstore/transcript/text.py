"""A transcript as lines of text for a terminal, each with the name of its style.

What the styles look like, and how long lines are wrapped, is the terminal's business
(``sessionstore.cli``).  Every line is already safe to print.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import tzinfo
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct

from sessionstore.transcript.markdown import pretty_arguments
from sessionstore.transcript.units import clock, duration, moment, plural, tokens
from sessionstore.transcript.visible import one_line, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessionstore.transcript.model import Entry, Fragment, ToolUse, Transcript, Turn, Usage

__all__ = ["Line", "Style", "View", "entry_lines", "header_lines", "render_text", "usage_text"]

Style = Literal["plain", "title", "turn", "user", "assistant", "tool", "dim", "warn", "error", "ok", "rule"]


class Line(NamedTuple):
    """One paragraph: *text* without newlines, *indent* in columns, *tail* to be set at the right edge if it fits."""

    text: str
    style: Style = "plain"
    indent: int = 0
    tail: str = ""


class View(Struct, frozen=True, kw_only=True):
    """What to show.

    ``turns``: only these (``None``: all).  ``full``: arguments and results of tools unfolded.  ``reasoning``: the
    model's reasoning unfolded.  ``minor``: notices that are usually left out.  ``zone``: ``None`` is the machine's.
    """

    turns: Collection[int] | None = None
    full: bool = False
    reasoning: bool = False
    minor: bool = False
    zone: tzinfo | None = None


def render_text(transcript: Transcript, view: View | None = None) -> Iterator[Line]:
    """The lines of *transcript*."""
    view = view or View()
    yield from header_lines(transcript, view)
    turns = {seq: turn for turn in transcript.turns for seq in (turn.seq, turn.end_seq) if seq is not None}
    seam = transcript.seed_length
    for entry in transcript.entries:
        if view.turns is not None and entry.turn not in view.turns:
            continue
        if seam is not None and entry.seq >= seam:
            yield Line("")
            yield Line(f"the fork starts here; events 0 to {seam - 1} are its parent's", "dim")
            seam = None
        yield from entry_lines(entry, view, turns.get(entry.seq))
    last = transcript.turns[-1] if transcript.turns else None
    if last is not None and last.ended == "open" and (view.turns is None or last.number in view.turns):
        yield Line("")
        yield Line(f"⚠ Turn {last.number} is open: still running, or broken off and not resumed yet", "warn")


def header_lines(transcript: Transcript, view: View) -> Iterator[Line]:
    """Title, where and when, and what is wrong with the log."""
    yield Line(one_line(transcript.title, 200) or f"Session {one_line(transcript.id)}", "title")
    yield Line(one_line(transcript.id), "dim")
    if transcript.cwd is not None:
        yield Line(one_line(transcript.cwd), "dim")
    if transcript.parent is not None:
        yield Line(f"forked from {one_line(transcript.parent)}", "dim")
    facts = [moment(transcript.first_time, view.zone)] if transcript.first_time is not None else []
    facts += [plural(len(transcript.turns), "turn"), plural(transcript.events, "event")]
    if transcript.tool_calls:
        facts.append(plural(transcript.tool_calls, "tool call") + _failed(transcript.failures))
    if transcript.usage.total_input or transcript.usage.output:
        facts.append(usage_text(transcript.usage))
    yield Line(" · ".join(facts), "dim")
    if transcript.findings:
        yield Line(f"⚠ This log is {one_line(transcript.verdict)}; below is what could be read.", "error")
        for finding in transcript.findings[:10]:
            yield Line(one_line(finding, 400), "warn", 2)
        if len(transcript.findings) > 10:
            yield Line(f"and {len(transcript.findings) - 10} more; `verify` lists them", "warn", 2)


def entry_lines(entry: Entry, view: View, turn: Turn | None = None) -> Iterator[Line]:
    """The lines of one entry; *turn* is given with its first and last one."""
    if entry.has("minor") and not view.minor:
        return
    tail = f"#{entry.shown_seq}"
    if entry.kind == "turn-start":
        note = f" · {one_line(entry.note)}" if entry.note else ""
        yield Line("")
        yield Line(f"── {one_line(entry.label)} · {moment(entry.time, view.zone)}{note}", "turn", 0, tail)
    elif entry.kind == "turn-end":
        yield from _turn_end(entry, turn, tail)
    elif entry.kind == "tool" and entry.tool is not None:
        yield Line("")
        yield from _tool(entry.tool, view, tail, 2, closed=entry.closed_by)
    elif entry.kind == "todo":
        yield Line("")
        yield Line(one_line(entry.label), "dim", 2, tail)
        boxes = {"completed": "☑", "in_progress": "◪"}
        for status, content in entry.todos:
            yield Line(f"{boxes.get(status, '☐')} {one_line(content)}", "dim" if status == "completed" else "plain", 4)
    elif entry.kind == "notice":
        note = f": {one_line(entry.note, 400)}" if entry.note else ""
        mark = "⚠ " if entry.has("lost") else "· "
        yield Line(f"{mark}{one_line(entry.label)}{note}", "warn" if entry.has("lost") else "dim", 2, tail)
    else:
        yield from _message(entry, view, tail)


def _message(entry: Entry, view: View, tail: str) -> Iterator[Line]:
    names = {"user": "You", "steering": "You, while it ran", "context": "Context", "assistant": "Assistant"}
    head = names[entry.kind]
    if entry.speaker and entry.speaker != "user":
        head += f" · {one_line(entry.speaker, 60)}"
    for extra in (entry.label, entry.note):
        if extra:
            head += f" · {one_line(extra, 200)}"
    style: Style = "assistant" if entry.kind == "assistant" else "dim" if entry.kind == "context" else "user"
    yield Line("")
    yield Line(f"{head} · {clock(entry.time, view.zone)}", style, 0, tail)
    if entry.has("partial"):
        yield Line("⚠ broke off before it was complete", "warn", 2)
    for fragment in entry.fragments:
        yield from _fragment(fragment, entry, view)


def _fragment(fragment: Fragment, entry: Entry, view: View) -> Iterator[Line]:
    if fragment.kind == "reasoning" and not view.reasoning:
        yield Line(f"(reasoning: {one_line(fragment.text, 60)})", "dim", 2)
        return
    lines = visible(fragment.text).expandtabs(4).rstrip("\n").split("\n")
    shown = lines
    if entry.kind == "context" and not view.full and len(lines) > 3:
        shown = lines[:3]
    style: Style = "dim" if fragment.kind != "text" or entry.kind == "context" else "plain"
    for line in shown:
        yield Line(line, style, 2)
    if len(shown) < len(lines):
        yield Line(f"… {plural(len(lines) - len(shown), 'more line')}", "dim", 2)


def _tool(tool: ToolUse, view: View, tail: str, indent: int, *, closed: str) -> Iterator[Line]:
    words: dict[str, tuple[str, Style]] = {
        "ok": ("ok", "ok"),
        "error": ("failed", "error"),
        "unknown": ("outcome unknown", "warn"),
        "not-started": ("never started", "warn"),
        "running": ("no result yet", "dim"),
        "unanswered": ("no result", "warn"),
    }
    word, style = words[tool.outcome]
    facts = [word]
    if tool.error is not None and tool.outcome == "error":
        facts.append(one_line(tool.error, 60))
    if tool.duration is not None:
        facts.append(duration(tool.duration))
    if closed:
        facts.append(closed)
    if tool.pruned_seq is not None:
        facts.append("result pruned from the context")
    folded = "" if view.full else f" {one_line(tool.arguments, 300)}"
    yield Line(f"▸ {one_line(tool.name, 60)}{folded}", "tool", indent, tail)
    if view.full and tool.arguments:
        for line in visible(pretty_arguments(tool.arguments)).split("\n"):
            yield Line(line, "plain", indent + 4)
    yield Line(" · ".join(facts), style, indent + 2)
    yield from _result(tool, view, indent + 2)
    for child in tool.children:
        seq = child.call_seq if child.call_seq is not None else child.result_seq
        yield from _tool(child, view, "" if seq is None else f"#{seq}", indent + 2, closed="")


def _result(tool: ToolUse, view: View, indent: int) -> Iterator[Line]:
    text = "\n".join(fragment.text for fragment in tool.result)
    lines = visible(text).expandtabs(4).strip("\n").split("\n") if text else []
    if view.full:
        for line in lines:
            yield Line(line, "dim", indent + 2)
        return
    first = next((line for line in lines if line.strip()), "")
    if first:
        yield Line(one_line(first, 300), "dim", indent + 2)
    if len(lines) > 1:
        yield Line(f"… {plural(len(lines) - 1, 'more line')}", "dim", indent + 2)


def _turn_end(entry: Entry, turn: Turn | None, tail: str) -> Iterator[Line]:
    said: dict[str, tuple[str, Style]] = {
        "completed": ("completed", "dim"),
        "interrupted": ("⚠ interrupted: its process ended before it did; closed by recovery", "warn"),
        "aborted": ("⚠ aborted", "warn"),
        "error": ("✗ ended with an error", "error"),
        "max-tokens": ("⚠ stopped at the token limit", "warn"),
        "disposed": ("⚠ stopped: the session was closed", "warn"),
    }
    words, style = said.get(entry.label, (f"⚠ ended: {one_line(entry.label, 60)}", "warn"))
    note = f" ({one_line(entry.note, 400)})" if entry.note else ""
    number = entry.turn if entry.turn is not None else "?"
    yield Line("")
    yield Line(f"Turn {number} {words}{note}", style, 0, tail)
    if turn is None:
        return
    facts = [duration(turn.duration), plural(len(turn.steps), "step")]
    if turn.tools:
        facts.append(plural(turn.tools, "tool call") + _failed(turn.failures))
    if turn.usage.total_input or turn.usage.output:
        facts.append(usage_text(turn.usage))
    yield Line(" · ".join(facts), "dim")


def _failed(count: int) -> str:
    return f" ({count} failed)" if count else ""


def usage_text(usage: Usage) -> str:
    """Tokens as ``12.3k in (10.0k cached), 450 out``."""
    cached = f" ({tokens(usage.cache_read)} cached)" if usage.cache_read else ""
    return f"{tokens(usage.total_input)} in{cached}, {tokens(usage.output)} out"

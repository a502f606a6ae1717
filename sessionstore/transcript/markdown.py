"""A transcript as Markdown, for pull requests, tickets and notes.

Whatever stands in the log stays inside its place: code fences are longer than any in
their content, an unclosed fence is closed, raw HTML is escaped, and control characters
are made visible.
"""

from __future__ import annotations

import html
import json
import re
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Final

from sessionstore.transcript.units import clock, duration, moment, plural, tokens
from sessionstore.transcript.visible import one_line, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessionstore.transcript.model import Entry, Fragment, ToolUse, Transcript, Turn, Usage

__all__ = ["pretty_arguments", "render_markdown"]

_FENCE: Final = re.compile(r"(`{3,}|~{3,})(.*)$")
# A fence within a list or a quotation, or something that looks like one.
_HIDDEN_FENCE: Final = re.compile(r"[\s>*+\-\d.)]*(?:`{3,}|~{3,})")
_CODE: Final = re.compile(r"((?<!`)(`+)(?!`)[^`]+(?<!`)\2(?!`))")
_ENDINGS: Final = {
    "completed": "completed",
    "interrupted": "⚠ interrupted: its process ended before it did; closed by recovery",
    "aborted": "⚠ aborted",
    "error": "✗ ended with an error",
    "max-tokens": "⚠ stopped at the token limit",
    "disposed": "⚠ stopped: the session was closed",
    "blocked": "⚠ blocked",
}
_MARKS: Final = {"in_progress": "[~]", "completed": "[x]"}


def render_markdown(transcript: Transcript, *, zone: tzinfo | None = UTC, minor: bool = False) -> Iterator[str]:
    """The lines of *transcript* as Markdown; *minor* notices are left out unless asked for."""
    yield from _head(transcript, zone)
    turns = {turn.seq: turn for turn in transcript.turns}
    by_number = {turn.end_seq: turn for turn in transcript.turns if turn.end_seq is not None}
    seam = transcript.seed_length
    for entry in transcript.entries:
        if seam is not None and entry.seq >= seam:
            yield from ("", f"*Events 0 to {seam - 1} were inherited from the parent session; the fork starts here.*")
            seam = None
        if entry.has("minor") and not minor:
            continue
        yield ""
        yield from _entry(entry, turns.get(entry.seq) or by_number.get(entry.seq), zone)
    if transcript.turns and transcript.turns[-1].ended == "open":
        yield from (
            "",
            "*The last turn is open: it is still running, or its process ended and nothing has resumed it.*",
        )


def _head(transcript: Transcript, zone: tzinfo | None) -> Iterator[str]:
    yield f"# {_inline(transcript.title or 'Session ' + transcript.id)}"
    yield ""
    yield f"- Session: {_code(transcript.id)}"
    if transcript.cwd is not None:
        yield f"- Project: {_code(transcript.cwd)}"
    if transcript.parent is not None:
        yield f"- Forked from: {_code(transcript.parent)}"
    if transcript.first_time is not None:
        yield f"- Time: {moment(transcript.first_time, zone)} to {moment(transcript.last_time, zone)} {zone or ''}".rstrip()
    if transcript.models:
        yield f"- Model: {', '.join(_code(model) for model in transcript.models)}"
    counts = [plural(len(transcript.turns), "turn"), plural(transcript.events, "event")]
    if transcript.tool_calls:
        failed = f" ({transcript.failures} failed)" if transcript.failures else ""
        counts.append(plural(transcript.tool_calls, "tool call") + failed)
    yield f"- Size: {', '.join(counts)}"
    yield f"- Tokens: {_usage(transcript.usage)}"
    if transcript.findings:
        yield ""
        yield f"> **This log is {_inline(transcript.verdict)}.** What follows is what could be read."
        for finding in transcript.findings[:20]:
            yield f"> - {_inline(finding)}"


def _entry(entry: Entry, turn: Turn | None, zone: tzinfo | None) -> Iterator[str]:
    anchor = f'<a id="e{entry.shown_seq}"></a>'
    if entry.kind == "turn-start":
        title = f": {_inline(turn.title)}" if turn is not None and turn.title else ""
        yield f"## {anchor}{_inline(entry.label)}{title}"
        yield ""
        yield f"*{moment(entry.time, zone)}*" + (f" · {_inline(entry.note)}" if entry.note else "")
    elif entry.kind == "turn-end":
        yield f"{anchor}*{_ending(entry)}{_turn_facts(turn)}*"
    elif entry.kind == "tool" and entry.tool is not None:
        yield from _tool(entry.tool, anchor, closed=entry.closed_by)
    elif entry.kind == "todo":
        yield f"{anchor}**{_inline(entry.label)}**"
        yield ""
        for status, content in entry.todos:
            yield f"- {_MARKS.get(status, '[ ]')} {_inline(content)}"
    elif entry.kind == "notice":
        note = f": {_inline(entry.note)}" if entry.note else ""
        yield f"{anchor}*{'⚠ ' if entry.has('lost') else ''}{_inline(entry.label)}{note}*"
    else:
        yield from _message(entry, anchor, zone)


def _message(entry: Entry, anchor: str, zone: tzinfo | None) -> Iterator[str]:
    names = {"user": "User", "steering": "User, while the turn ran", "context": "Context", "assistant": "Assistant"}
    head = names.get(entry.kind, entry.kind)
    if entry.speaker and entry.speaker != "user":
        head += f" ({_inline(entry.speaker)})"
    extra = " · ".join(part for part in (entry.label, entry.note) if part)
    yield f"### {anchor}{head}"
    yield ""
    yield f"*{clock(entry.time, zone)} · event {entry.seq}{' · ' + _inline(extra) if extra else ''}*"
    if entry.has("partial"):
        yield ""
        yield "*⚠ This message broke off before it was complete.*"
    for fragment in entry.fragments:
        yield ""
        yield from _fragment(fragment, quote=entry.kind != "assistant")


def _fragment(fragment: Fragment, *, quote: bool) -> Iterator[str]:
    if fragment.kind == "reasoning":
        yield "<details><summary>Reasoning</summary>"
        yield ""
        yield from _quoted(fragment.text)
        yield ""
        yield "</details>"
        return
    lines = visible(fragment.text).split("\n")
    if quote or not _is_plain(lines):
        yield from _quoted(fragment.text)
    else:
        yield from _prose(lines)


def _quoted(text: str) -> Iterator[str]:
    """A block quote: nothing in it reaches further than its last line, not even a fence that is never closed."""
    lines = visible(text).split("\n")
    for line in _prose(lines) if _is_plain(lines) else (line.replace("<", "&lt;") for line in lines):
        yield f"> {line}".rstrip()


def _is_plain(lines: list[str]) -> bool:
    """Whether all code fences stand at the left margin and in pairs, so that it is certain what is code."""
    fence = ""
    for line in lines:
        found = _FENCE.match(line)
        if fence:
            if found and found[1].startswith(fence) and not found[2].strip():
                fence = ""
        elif found and not ("`" in found[1] and "`" in found[2]):
            fence = found[1]
        elif _HIDDEN_FENCE.match(line):
            return False
    return not fence


def _prose(lines: list[str]) -> Iterator[str]:
    """Plain Markdown as it is, but for raw HTML outside of code."""
    paragraph: list[str] = []
    fence = ""
    for line in lines:
        found = _FENCE.match(line)
        if fence:
            if found and found[1].startswith(fence) and not found[2].strip():
                fence = ""
            yield line
        elif found or not line.strip():
            yield from _without_html(paragraph)
            paragraph = []
            fence = found[1] if found else ""
            yield line
        else:
            paragraph.append(line)
    yield from _without_html(paragraph)


def _without_html(paragraph: list[str]) -> list[str]:
    """A paragraph in which no ``<`` is markup.  Code keeps its own where no doubt is possible what is code."""
    if not any("<" in line for line in paragraph):
        return paragraph
    parts = [_CODE.split(line) for line in paragraph]
    if any("`" in part for line in parts for part in line[::3]) or any("\\`" in line for line in paragraph):
        return [line.replace("<", "&lt;") for line in paragraph]
    return ["".join(_escaped(line)) for line in parts]


def _escaped(parts: list[str]) -> Iterator[str]:
    for index, part in enumerate(parts):
        if index % 3 == 0:
            yield part.replace("<", "&lt;")
        elif index % 3 == 1:
            yield part  # with its ticks; the group after it is the ticks alone


def _tool(tool: ToolUse, anchor: str, *, closed: str) -> Iterator[str]:
    words = {
        "ok": "ok",
        "error": "✗ failed",
        "unknown": "⚠ outcome unknown",
        "not-started": "⚠ never started",
        "running": "no result yet",
        "unanswered": "⚠ no result",
    }
    facts = [words[tool.outcome]]
    if tool.error is not None and tool.outcome == "error":
        facts.append(tool.error)
    if tool.duration is not None:
        facts.append(duration(tool.duration))
    if closed:
        facts.append(closed)
    if tool.pruned_seq is not None:
        facts.append(f"result pruned from the context at event {tool.pruned_seq}")
    facts_line = html.escape(visible(" · ".join(facts)))
    yield f"<details><summary>{anchor}Tool <code>{html.escape(one_line(tool.name, 80))}</code> · {facts_line}</summary>"
    yield ""
    yield from _fenced(pretty_arguments(tool.arguments), "json")
    for fragment in tool.result:
        yield ""
        yield from _fenced(fragment.text, "")
    for child in tool.children:
        yield ""
        yield from _tool(child, "", closed="")
    yield ""
    yield "</details>"


def pretty_arguments(arguments: str) -> str:
    """Arguments indented, where they are JSON."""
    if len(arguments) > 200_000:
        return arguments
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False, indent=2)
    except (ValueError, RecursionError):
        return arguments


def _fenced(text: str, language: str) -> Iterator[str]:
    text = visible(text)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield f"{fence}{language}"
    yield from text.rstrip("\n").split("\n")
    yield fence


def _ending(entry: Entry) -> str:
    said = _ENDINGS.get(entry.label, f"⚠ ended: {_inline(entry.label)}")
    return f"Turn {entry.turn} {said}" + (f" ({_inline(entry.note)})" if entry.note else "")


def _turn_facts(turn: Turn | None) -> str:
    if turn is None:
        return ""
    facts = [duration(turn.duration), plural(len(turn.steps), "step")]
    if turn.tools:
        facts.append(plural(turn.tools, "tool call"))
    if turn.usage.total_input or turn.usage.output:
        facts.append(_usage(turn.usage))
    return " · " + " · ".join(facts)


def _usage(usage: Usage) -> str:
    cached = f" ({tokens(usage.cache_read)} from cache)" if usage.cache_read else ""
    return f"{tokens(usage.total_input)} in{cached}, {tokens(usage.output)} out"


def _inline(text: str) -> str:
    """Text on one line of which nothing is markup."""
    return re.sub(r"([\\`*_\[\]>#|~])", r"\\\1", one_line(text, 500)).replace("<", "&lt;")


def _code(text: str) -> str:
    text = one_line(text, 500)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    ticks = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"

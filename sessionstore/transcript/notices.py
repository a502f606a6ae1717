"""One line for each event that is not part of the conversation but worth a mention.

The table covers the plugin events of both generations of the vocabulary.  An unknown
type is a minor notice that shows its name only: its payload may hold anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sessionstore.transcript.access import boolean, integer, items, lookup, mapping, text
from sessionstore.transcript.content import failure_text, fragments

__all__ = ["MINOR", "describe"]

_Data = Mapping[str, object]


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)


def _goal(data: _Data) -> str:
    return _joined(text(data.get("operation")), text(lookup(data, "goal", "objective")))


def _retry(data: _Data) -> str:
    attempt, limit, delay = (integer(data.get(key)) for key in ("retry", "maxRetries", "delayMs"))
    which = f"attempt {attempt}" + (f" of {limit}" if limit is not None else "") if attempt is not None else ""
    return _joined(which, f"after {delay} ms" if delay is not None else "", failure_text(data.get("failure")))


def _hook(data: _Data) -> str:
    code = integer(data.get("exitCode"))
    return _joined(
        text(data.get("point")),
        text(data.get("decision")),
        f"exit {code}" if code else "",
        text(data.get("stderrSummary")),
    )


def _summary(data: _Data) -> str:
    tokens = integer(data.get("shadowedTokenCount"))
    said = " ".join(fragment.text for fragment in fragments(data.get("summary")))
    return _joined(f"{tokens} tokens summarised" if tokens is not None else "", said)


def _preset(data: _Data) -> str:
    return text(data.get("preset")) or text(data.get("name"))


def _request(data: _Data) -> str:
    config = mapping(lookup(data, "header", "config"))
    tools = len(items(lookup(data, "header", "tools")))
    effort = text(config.get("reasoningEffort"))
    return _joined(
        "/".join(part for part in (text(config.get("provider")), text(config.get("model"))) if part),
        f"effort {effort}" if effort else "",
        f"{tools} tools" if tools else "",
        text(data.get("reason")),
    )


def _context(data: _Data) -> str:
    window = integer(data.get("contextWindow"))
    return _joined(
        "/".join(part for part in (text(data.get("provider")), text(data.get("model"))) if part),
        f"window of {window} tokens" if window is not None else "",
    )


def _inbox(data: _Data) -> str:
    count = len(items(data.get("inserted")))
    return _joined(f"{count} queued" if count else "", text(data.get("target")), text(data.get("outcome")))


def _lost(data: _Data) -> str:
    length = integer(data.get("length"))
    return _joined(text(data.get("reason")), f"{length} bytes" if length else "")


def _keys(*names: str) -> Callable[[_Data], str]:
    return lambda data: _joined(*(text(data.get(name)) for name in names))


_TABLE: Final[dict[str, tuple[str, Callable[[_Data], str]]]] = {
    "agent-preset/selected": ("Agent preset", _preset),
    "agent/inbox/spliced": ("Inbox", _inbox),
    "approval/asked": ("Approval asked", _keys("toolName", "reason")),
    "approval/decided": ("Approval", _keys("outcome")),
    "approval/policy": ("Approval policy", _keys("policy", "source")),
    "command/done": ("Command done", _keys("kind", "text")),
    "command/run": ("Command", _keys("name", "args")),
    "compact/end": ("Compaction done", _keys("error")),
    "compact/start": ("Compaction started", _keys()),
    "compact/summary": ("Compaction summary", _summary),
    "compaction/end": ("Compaction done", _keys("error")),
    "compaction/prune": ("Compaction pruned", _keys()),
    "compaction/start": ("Compaction started", _keys()),
    "compaction/summary": ("Compaction summary", _summary),
    "feedback/record": ("Feedback", _keys("rating", "text")),
    "goal/change": ("Goal", _goal),
    "hook/invoked": ("Hook invoked", _keys("point", "handlerId")),
    "hook/result": ("Hook", _hook),
    "llm/retry": ("Model call retried", _retry),
    "llm/retry-started": ("Retry started", _keys()),
    "mode/set": ("Mode", _keys("mode")),
    "permission/preset": ("Permissions", _keys("preset")),
    "plan/mode": ("Plan mode", lambda data: "on" if boolean(data.get("active")) else "off"),
    "prompt/blocked": ("Prompt blocked", _keys("reason")),
    "recovery/lost": ("Events lost", _lost),
    "request/context": ("Model", _context),
    "request/header": ("Request header", _request),
    "sandbox/mode": ("Sandbox", _keys("mode", "source")),
    "schedule/change": ("Schedule", _keys("operation")),
    "session/end-seed": ("End of the inherited part", _keys()),
    "session/title": ("Title", _keys("title")),
    "session/title-llm-request": ("Title requested", _keys("titleProvider")),
    "subagent/descriptor": ("Subagent", _keys("label", "mode", "provider")),
    "tool-workflow/agent-end": ("Workflow agent done", _keys("label", "agentId")),
    "tool-workflow/agent-start": ("Workflow agent", _keys("label", "agentId")),
    "tool-workflow/run-end": ("Workflow done", _keys("name")),
    "tool-workflow/run-start": ("Workflow", _keys("name")),
    "web/deepseek-search-llm-request": ("Search requested", _keys()),
}

#: Notices that only interest somebody who looks for them.
MINOR: Final = frozenset(
    {
        "agent/inbox/spliced",
        "approval/policy",
        "compact/end",
        "compact/start",
        "compaction/end",
        "compaction/start",
        "hook/invoked",
        "hook/result",
        "llm/retry-started",
        "permission/preset",
        "request/context",
        "request/header",
        "sandbox/mode",
        "session/end-seed",
        "session/title",
        "session/title-llm-request",
        "subagent/descriptor",
        "tool-workflow/agent-end",
        "tool-workflow/agent-start",
        "web/deepseek-search-llm-request",
    }
)


def describe(event_type: str, data: _Data) -> tuple[str, str, bool]:
    """Label, note (one line, maybe empty) and whether the notice is minor."""
    known = _TABLE.get(event_type)
    if known is None:
        return event_type, "", True
    label, note = known
    return label, " ".join(note(data).split()), event_type in MINOR

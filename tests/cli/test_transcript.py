"""From events to a transcript: what is shown, how it ended, and what it cost."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore import Event, SessionStore, decode_storage_record
from sessionstore.errors import SessionStoreError
from sessionstore.header import parse_header
from sessionstore.transcript import Usage, build_transcript
from sessionstore.transcript.html import render_html
from sessionstore.transcript.markdown import render_markdown
from sessionstore.transcript.redact import UNREADABLE, public_events
from sessionstore.transcript.stats import count
from sessionstore.transcript.text import View, render_text
from tests.cli.logs import Log, demo
from tests.paths import NO_REAL_LOGS, REAL_LOGS

if TYPE_CHECKING:
    from pathlib import Path

    from sessionstore.transcript import Entry, Transcript

HEADER = {"config": {"provider": "example", "model": "m"}}


def events_of(log: Log) -> list[Event]:
    """The events of a log."""
    return [Event.from_json(json.dumps(event)) for event in log.events]


def transcript_of(log: Log) -> Transcript:
    """The transcript of a log."""
    return build_transcript(log.header["id"], events_of(log), header=parse_header(json.dumps(log.header).encode()))


def kinds(transcript: Transcript) -> list[str]:
    """The kinds of the entries, minor notices aside."""
    return [entry.kind for entry in transcript.entries if not entry.has("minor")]


def tool(transcript: Transcript, call_id: str) -> Entry:
    """The entry of a call."""
    return next(entry for entry in transcript.entries if entry.tool is not None and entry.tool.call_id == call_id)


def test_the_demo_is_told_in_order() -> None:
    """Every kind of entry is there, in the order of the log."""
    transcript = transcript_of(demo())
    assert kinds(transcript) == [
        "turn-start", "user", "context", "assistant", "tool", "tool", "todo", "tool", "steering", "assistant", "turn-end",
        "turn-start", "user", "assistant", "tool", "tool", "turn-end",
        "turn-start", "user", "notice", "assistant", "turn-end",
    ]  # fmt: skip
    assert transcript.title == "Fix the hanging test"
    assert transcript.models == ["example-large"]
    assert [turn.ended for turn in transcript.turns] == ["completed", "interrupted", "aborted"]


def test_tools_say_how_they_ended() -> None:
    """ok, failed, unknown and never started are told apart, and recovery is marked."""
    transcript = transcript_of(demo())
    outcomes = {entry.tool.call_id: entry.tool.outcome for entry in transcript.entries if entry.tool is not None}
    assert outcomes == {"call-1": "ok", "call-2": "error", "call-3": "ok", "call-4": "unknown", "call-5": "not-started"}
    assert tool(transcript, "call-4").has("recovered")
    assert not tool(transcript, "call-2").has("recovered")


@pytest.mark.parametrize("error", [asyncio.CancelledError, ValueError])
async def test_a_call_that_a_living_process_gave_up_was_closed_by_no_recovery(
    tmp_path: Path, error: type[BaseException]
) -> None:
    """The recorder answers it with the words of a recovery; the transcript tells them apart by the turn's end."""
    blocks = [{"type": "tool-call", "id": each, "name": "sh", "arguments": "{}"} for each in ("ran", "waits")]
    source = {"kind": "model", "provider": "p", "model": "m"}
    async with SessionStore(tmp_path) as store:
        session = await store.create("s")
        with suppress(error):
            async with session.turn() as turn, turn.step() as step:
                step.message({"content": blocks, "source": source})
                await step.call("ran", "sh", "{}")
                raise error
        transcript = build_transcript("s", session.events)
    for call_id, outcome in (("ran", "unknown"), ("waits", "not-started")):
        entry = tool(transcript, call_id)
        assert entry.tool is not None
        assert (entry.tool.outcome, entry.closed_by) == (outcome, "closed without a result")
    for lines in (render_markdown(transcript), (line.text for line in render_text(transcript, View()))):
        shown = "\n".join(lines)
        assert shown.count("closed without a result") == 2
        assert "recovery" not in shown


def test_tokens_are_the_usage_of_all_attempts() -> None:
    """A step's usage chunks are summed, failed attempts too."""
    log = Log()
    log.begin("hi")
    log.steps()
    for _ in range(3):
        log.chunk({"type": "usage", "usage": {"inputTokens": 10, "outputTokens": 1, "cacheReadTokens": 5}})
        log.chunk({"type": "finish", "reason": {"kind": "error", "failure": {"message": "x", "code": "SERVER"}}})
    log.done()
    log.end()
    assert transcript_of(log).usage == Usage(input=30, output=3, cache_read=15)


def test_the_usage_of_a_message_counts_only_where_its_step_streamed_none() -> None:
    """The same tokens are never counted twice, and never lost."""
    log = Log()
    log.begin("hi")
    usage = {"inputTokens": 10, "outputTokens": 1}
    for streamed in (True, False):
        log.steps()
        if streamed:
            log.chunk({"type": "usage", "usage": usage})
        message = {"role": "assistant", "content": [{"type": "text", "text": "x"}], "id": "m",
                   "source": {"kind": "model", "provider": "p", "model": "m"}}  # fmt: skip
        log.add("assistant/message", {"turn": 1, "step": log.step, "message": message, "usage": usage},
                sourceEventSeqs=[], surfaceOp="append")  # fmt: skip
        log.done()
    log.end()
    transcript = transcript_of(log)
    assert transcript.usage == Usage(input=20, output=2)
    assert [step.usage.input for step in transcript.turns[0].steps] == [10, 10]


def test_a_stream_that_broke_off_is_shown_as_partial() -> None:
    """Of a step without a message what was streamed is shown; a failed attempt before it is not."""
    entry = transcript_of(demo()).entries[-2]
    assert entry.kind == "assistant"
    assert entry.has("partial")
    assert [fragment.text for fragment in entry.fragments] == ["I am checking the tags, and then the"]


def test_an_open_turn_stays_open() -> None:
    """The end of the log is not the end of a turn."""
    log = Log()
    log.begin("hi")
    log.steps()
    log.call("c", "run", {})
    transcript = transcript_of(log)
    assert transcript.turns[0].ended == "open"
    assert tool(transcript, "c").tool.outcome == "running"  # type: ignore[union-attr]
    assert any("Turn 1 is open" in line.text for line in render_text(transcript))


def test_a_summary_and_a_pruned_result_are_marked() -> None:
    """Replacements on the surface are told from ordinary messages."""
    log = Log()
    log.begin("hi")
    log.steps()
    log.use("c", "run", {}, "a long result")
    log.done()
    result = log.events[-2]
    log.add("tool/result", result["data"], surfaceOp={"op": "replace", "start": 4, "end": 4}, sourceEventSeqs=[4])

    log.events.append({"type": "user/message", "seq": len(log.events), "time": log.time, "data": log.events[1]["data"],
                       "sourceEventSeqs": [1], "surfaceOp": {"op": "replace", "start": 1, "end": 1}})  # fmt: skip
    log.end()
    transcript = transcript_of(log)
    entry = tool(transcript, "c")
    assert entry.tool is not None
    assert entry.tool.outcome == "ok"
    assert entry.tool.pruned_seq == 6
    summary = next(entry for entry in transcript.entries if entry.has("summary"))
    assert summary.kind == "context"
    assert "events 1 to 1" in summary.note


def test_a_fork_shows_where_it_begins() -> None:
    """What came from the parent is marked, in every rendering."""
    log = Log("child", parentSession="parent", seedLength=3)
    log.begin("first")
    log.end()
    log.begin("second")
    log.end()
    transcript = transcript_of(log)
    assert [entry.has("inherited") for entry in transcript.entries] == [True, True, True, False, False, False]
    assert any("the fork starts here" in line.text for line in render_text(transcript))
    assert any("the fork starts here" in line for line in render_markdown(transcript))


def test_lost_events_in_a_row_are_one_notice() -> None:
    """A hole of thousands of events is one line."""
    log = Log()
    log.begin("hi")
    for _ in range(5):
        log.add("recovery/lost", {"reason": "hole", "offset": 1, "length": 2}, ignorable=True)
    log.end()
    lost = [entry for entry in transcript_of(log).entries if entry.has("lost")]
    assert [(entry.seq, entry.last_seq, entry.label) for entry in lost] == [(2, 6, "Events lost (5)")]


def test_messages_of_old_logs_are_read() -> None:
    """Flat payloads without identity have the same text in them."""
    log = Log()
    log.begin()
    log.add(
        "user/message", {"content": [{"type": "text", "text": "old"}], "source": {"kind": "user"}}, surfaceOp="append"
    )
    log.steps()
    log.add("assistant/message", {"turn": 1, "step": 1, "content": [
        {"type": "text", "text": "answer"}, {"type": "tool-call", "id": "c", "name": "run", "arguments": "{}"}],
        "provenance": {"provider": "p", "model": "old-model"}}, surfaceOp="append")  # fmt: skip
    log.call("c", "run", {})
    log.add("tool/result", {"turn": 1, "step": 1, "callId": "c", "isError": True,
                            "content": [{"type": "text", "text": "boom"}]}, surfaceOp="append")  # fmt: skip
    log.add("steering/message", {"turn": 1, "content": [{"type": "text", "text": "stop"}], "source": {"kind": "user"}},
            surfaceOp="append")  # fmt: skip
    log.done()
    log.end()
    transcript = transcript_of(log)
    text = "\n".join(line.text for line in render_text(transcript))
    for word in ("old", "answer", "boom", "stop", "old-model", "failed"):
        assert word in text


def test_a_result_that_comes_after_its_step_finds_its_call() -> None:
    """It is late, and still the result of that call."""
    log = Log()
    log.begin("hi")
    log.steps()
    log.call("c", "run", {})
    log.done()
    log.steps()
    log.result("c", "late")
    log.result("c", "later", failed=True)
    log.done()
    log.end()
    transcript = transcript_of(log)
    uses = [entry.tool for entry in transcript.entries if entry.tool is not None]
    assert [(use.name, use.outcome) for use in uses] == [("run", "ok"), ("(unknown call)", "error")]


def test_sub_calls_stand_below_their_call() -> None:
    """What a program dispatched is part of the call that ran it, and counted among the tools."""
    log = Log()
    log.begin("hi")
    log.steps()
    log.call("c", "run_code", {})
    log.add(
        "tool/code-dispatch-start", {"parentCallId": "c", "subCallId": "c:1", "name": "inner", "arguments": {"a": 1}}
    )
    log.add("tool/code-dispatch", {"parentCallId": "c", "subCallId": "c:1", "name": "inner", "arguments": {"a": 1},
                                   "isError": True, "content": [{"type": "text", "text": "inner failed"}]})  # fmt: skip
    log.result("c", "done")
    log.done()
    log.end()
    entry = tool(transcript_of(log), "c")
    assert entry.tool is not None
    assert [child.name for child in entry.tool.children] == ["inner"]
    assert {row.name: (row.calls, row.failed) for row in count("x", events_of(log)).tools} == {
        "inner": (1, 1),
        "run_code": (1, 0),
    }


def test_an_event_with_a_number_that_cannot_be_read_is_mentioned() -> None:
    """Its bytes stay in the log, and the transcript goes on behind it."""
    odd = b'{"type":"plugin/odd","seq":0,"time":1,"data":{"n":1e999}}'
    chunk = b'{"type":"assistant/chunk","seq":1,"time":1,"data":{"turn":1,"step":1,"chunk":{"type":"usage","x":-0.0}}}'
    after = b'{"type":"turn/start","seq":2,"time":2,"data":{"turn":1}}'
    events = [Event.from_json(line) for line in (odd, chunk, after)]
    transcript = build_transcript("x", events)
    assert [entry.label for entry in transcript.entries] == ["plugin/odd", "assistant/chunk", "Turn 1"]
    values = list(public_events(events, secrets=True, results=True))
    assert [value["seq"] for value in values] == [0, 1, 2]
    assert values[0]["data"] == {"unreadable": UNREADABLE}
    assert "cannot be read" in transcript.entries[0].note


def test_statistics_add_up() -> None:
    """Bytes by type are those of the events, and the turns' figures sum to the session's."""
    events = events_of(demo())
    stats = count("demo", events)
    assert sum(row.bytes for row in stats.types) == sum(len(event.to_json()) for event in events)
    assert sum(row.events for row in stats.types) == stats.events == len(events)
    assert sum((turn.usage for turn in stats.per_turn), Usage()) == stats.usage
    assert stats.usage == Usage(input=3170, output=614, cache_read=30600, cache_write=5200, reasoning=48)
    assert sum(turn.tools for turn in stats.per_turn) == stats.tool_calls == 5
    assert stats.tool_failures == 3


def test_view_picks_turns_and_unfolds() -> None:
    """--turn, --full, --reasoning and --all each add or take away what they say."""
    transcript = transcript_of(demo())

    def text(**view: Any) -> str:
        return "\n".join(line.text for line in render_text(transcript, View(**view)))

    assert "Was it released?" not in text(turns={1})
    assert "A hang on CI and not locally smells of a port, a lock or a missing terminal." in text(reasoning=True)
    assert "A hang on CI and not locally smells of a port, a lock or a missing terminal." not in text()
    assert "server.start()" in text(full=True)
    assert "server.start()" not in text()
    assert "Request header" in text(minor=True)
    assert "Request header" not in text()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@st.composite
def distorted(draw: st.DrawFn) -> list[Event]:
    """The demo's events with payloads, or parts of them, replaced by anything."""
    values = [json.loads(json.dumps(event)) for event in demo().events]
    for _ in range(draw(st.integers(1, 12))):
        value = values[draw(st.integers(0, len(values) - 1))]
        node: Any = value
        keys = ["data"]
        while isinstance(node.get(keys[-1]), dict) and node[keys[-1]] and draw(st.booleans()):
            node = node[keys[-1]]
            keys.append(draw(st.sampled_from(sorted(node))))
        node[keys[-1]] = draw(JSON)
    found: list[Event] = []
    for value in values:
        try:
            found.append(Event.from_json(json.dumps(value)))
        except SessionStoreError:
            continue
    return found


@pytest.mark.slow
@given(distorted())
def test_no_payload_can_break_a_transcript(events: list[Event]) -> None:
    """Whatever shape a plugin or an old release gave its payloads, every rendering comes out."""
    transcript = build_transcript("x", events)
    assert transcript.events == len(events)
    list(render_text(transcript, View(full=True, minor=True, reasoning=True)))
    list(render_markdown(transcript, minor=True))
    render_html(transcript)
    count("x", events)


@pytest.mark.slow
@pytest.mark.skipif(not REAL_LOGS.exists(), reason=NO_REAL_LOGS)
def test_every_real_log_becomes_a_transcript() -> None:
    """No event type of the real logs is unknown, and every user message and tool result is shown."""
    for path in sorted(REAL_LOGS.glob("*/*.jsonl")):
        lines = path.read_bytes().split(b"\n")[1:]
        events = [event for line in lines if line.strip() for event in decode_storage_record(line)]
        transcript = build_transcript(path.stem, events)
        unknown = [entry.label for entry in transcript.entries if entry.kind == "notice" and "/" in entry.label]
        assert not unknown, path
        said = sum(event.type == "user/message" for event in events)
        assert sum(entry.kind in {"user", "context"} for entry in transcript.entries) >= said
        results = sum(
            event.type == "tool/result" and '"op":"replace"' not in event.to_json().decode() for event in events
        )
        shown = sum(entry.tool is not None and entry.tool.result_seq is not None for entry in transcript.entries)
        assert shown == results, path

"""What ``tail -f`` prints while a session grows."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from sessionstore import Event, SessionStore
from sessionstore.cli.live import LivePrinter
from sessionstore.transcript.text import View
from tests.cli.logs import Log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


@pytest.fixture
async def watch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Callable[..., Any]]:
    """Begin to watch a session with one open turn: its log, and a function that feeds what is new and returns the output."""
    log = Log("live")
    log.begin("go on")
    log.steps()
    log.save(tmp_path)
    async with SessionStore(tmp_path) as store:
        inspection = await store.inspect("live")

        def begin(**options: bool) -> tuple[Log, Callable[[], str]]:
            printer = LivePrinter(inspection, View(), **{"secrets": False, "results": False, **options})
            fed = len(log.events)

            def grow() -> str:
                nonlocal fed
                for event in log.events[fed:]:
                    printer.feed(Event.from_json(json.dumps(event)))
                fed = len(log.events)
                sys.stdout.flush()
                return capsys.readouterr().out

            return log, grow

        yield begin


async def test_text_is_printed_while_it_is_streamed_and_only_once(watch: Callable[..., Any]) -> None:
    """Each delta as it comes, line breaks indented, and the message that they become not again."""
    log, grow = watch()
    log.chunk({"type": "text-delta", "index": 0, "text": "first\n"})
    assert grow() == "\nAssistant\n  first\n  "
    log.chunk({"type": "text-delta", "index": 0, "text": "second \x1b[2J"})
    assert grow() == "second \u241b[2J"
    message = {"role": "assistant", "id": "m", "content": [{"type": "text", "text": "first\nsecond \x1b[2J"}],
               "source": {"kind": "model", "provider": "p", "model": "m"}}  # fmt: skip
    log.add("assistant/message", {"turn": 1, "step": 1, "message": message}, surfaceOp="append")
    log.done()
    log.end()
    out = grow()
    assert "first" not in out
    assert "Turn 1 completed" in out


async def test_a_message_that_was_not_streamed_is_printed_whole(watch: Callable[..., Any]) -> None:
    """Nothing is lost where a model does not stream."""
    log, grow = watch()
    message = {"role": "assistant", "id": "m", "content": [{"type": "text", "text": "all at once"}],
               "source": {"kind": "model", "provider": "p", "model": "m"}}  # fmt: skip
    log.add("assistant/message", {"turn": 1, "step": 1, "message": message}, surfaceOp="append")
    assert "all at once" in grow()


async def test_a_tool_is_printed_when_it_has_its_result(watch: Callable[..., Any]) -> None:
    """Once, with arguments, outcome and result; a call that never gets one is printed when its step ends."""
    log, grow = watch()
    log.call("c1", "run", {"a": 1})
    log.call("c2", "walk", {"b": 2})
    assert grow() == ""
    log.result("c1", "the output")
    out = grow()
    assert "▸ run" in out
    assert "the output" in out
    assert "walk" not in out
    log.done()
    out = grow()
    assert "▸ walk" in out
    assert "no result" in out
    assert "▸ run" not in out


async def test_a_stream_that_breaks_off_is_marked(watch: Callable[..., Any]) -> None:
    """The text stands there already; that it is not whole is said when the step ends."""
    log, grow = watch()
    log.chunk({"type": "text-delta", "index": 0, "text": "half a"})
    grow()
    log.done()
    assert "broke off" in grow()


async def test_with_redaction_nothing_is_printed_before_it_was_seen_whole(watch: Callable[..., Any]) -> None:
    """A secret in pieces never appears, and results can be hidden."""
    log, grow = watch(secrets=True, results=True)
    secret = "ghp_" + "a" * 36
    log.chunk({"type": "text-delta", "index": 0, "text": secret[:10]})
    log.chunk({"type": "text-delta", "index": 0, "text": secret[10:]})
    assert grow() == ""
    message = {"role": "assistant", "id": "m", "content": [{"type": "text", "text": secret}],
               "source": {"kind": "model", "provider": "p", "model": "m"}}  # fmt: skip
    log.add("assistant/message", {"turn": 1, "step": 1, "message": message}, surfaceOp="append")
    log.use("c", "run", {}, "the output")
    out = grow()
    assert "[redacted: GitHub token]" in out
    assert secret not in out
    assert "[result hidden]" in out
    assert "the output" not in out


async def test_lost_events_are_joined_without_losing_the_thread(watch: Callable[..., Any]) -> None:
    """A run of lost events is one notice that grows; what follows it is still printed once."""
    log, grow = watch()
    for _ in range(3):
        log.add("recovery/lost", {"reason": "hole", "offset": 1, "length": 2}, ignorable=True)
        grow()
    log.user("after the hole")
    assert grow().count("after the hole") == 1

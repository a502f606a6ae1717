"""Logs for the tests of the command line and the transcript, made event by event."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

START = 1_790_000_000_000


class Log:
    """A log under construction.  Every method appends one event and moves the clock by *ms*."""

    def __init__(self, session_id: str = "demo", cwd: str | None = "/srv/project", **header: Any) -> None:
        self.header: dict[str, Any] = {"type": "session", "version": 0, "id": session_id, "createdAt": START}
        if cwd is not None:
            self.header["cwd"] = cwd
        self.header |= {"delegationDepth": 0, **header}
        self.events: list[dict[str, Any]] = []
        self.time = START
        self.turn = 0
        self.step = 0

    def add(self, type_: str, data: Any, ms: int = 10, **envelope: Any) -> int:
        """Append an event; its seq."""
        self.time += ms
        self.events.append({"type": type_, "seq": len(self.events), "time": self.time, "data": data, **envelope})
        return len(self.events) - 1

    def begin(self, said: str | None = None, **source: Any) -> int:
        """Start a turn, with a user message where *said* is given."""
        self.turn, self.step = self.turn + 1, 0
        seq = self.add(
            "turn/start", {"turn": self.turn, "trigger": {"kind": "message", "source": source or {"kind": "user"}}}
        )
        if said is not None:
            self.user(said)
        return seq

    def user(self, said: str, **extra: Any) -> int:
        """A user message."""
        source = extra.pop("source", {"kind": "user"})
        content = [{"type": "text", "text": said}]
        message = {"content": content, "source": source, "role": "user", "id": f"m{len(self.events)}"}
        return self.add("user/message", message, surfaceOp="append", **extra)

    def steps(self) -> int:
        """Start the next step."""
        self.step += 1
        return self.add("step/start", {"turn": self.turn, "step": self.step})

    def chunk(self, chunk: dict[str, Any], ms: int = 15) -> int:
        """A stream chunk."""
        return self.add("assistant/chunk", {"turn": self.turn, "step": self.step, "chunk": chunk}, ms)

    def say(
        self, text: str, *calls: tuple[str, str, Any], reasoning: str = "", usage: dict[str, int] | None = None
    ) -> int:
        """An assistant message, streamed in pieces of four words first."""
        content: list[dict[str, Any]] = []
        seqs: list[int] = []
        for kind, whole in (("reasoning", reasoning), ("text", text)):
            if not whole:
                continue
            index = len(content)
            seqs.append(self.chunk({"type": "block-start", "index": index, "blockType": kind}))
            words = whole.split(" ")
            pieces = [" ".join(words[i : i + 4]) for i in range(0, len(words), 4)]
            for i, piece in enumerate(pieces):
                tail = " " if i + 1 < len(pieces) else ""
                seqs.append(self.chunk({"type": f"{kind}-delta", "index": index, "text": piece + tail}))
            content.append({"type": kind, "text": whole})
            seqs.append(self.chunk({"type": "block-end", "index": index, "block": content[-1]}))
        content.extend(
            {"type": "tool-call", "id": call, "name": name, "arguments": json.dumps(args, ensure_ascii=False)}
            for call, name, args in calls
        )
        if usage is not None:
            seqs.append(self.chunk({"type": "usage", "usage": usage}))
        seqs.append(self.chunk({"type": "finish", "reason": {"kind": "tool-calls" if calls else "stop"}}))
        message = {
            "role": "assistant",
            "content": content,
            "source": {"kind": "model", "provider": "example", "model": "example-large"},
            "id": f"m{len(self.events)}",
        }
        data = {"turn": self.turn, "step": self.step, "message": message}
        return self.add("assistant/message", data, 5, sourceEventSeqs=seqs, surfaceOp="append")

    def call(self, call: str, name: str, args: Any) -> int:
        """A recorded tool call."""
        arguments = json.dumps(args, ensure_ascii=False)
        data = {"turn": self.turn, "step": self.step, "callId": call, "name": name, "arguments": arguments}
        return self.add("tool/call", data, 2)

    def result(
        self, call: str, text: str, ms: int = 400, *, failed: bool = False, error: dict[str, str] | None = None,
        message_id: str | None = None, sources: list[int] | None = None,
    ) -> int:  # fmt: skip
        """A tool result."""
        block = {
            "type": "tool-result",
            "toolCallId": call,
            "content": [{"type": "text", "text": text}],
            "isError": failed,
        }
        source = {"kind": "tool", "callId": call}
        message = {"source": source, "content": [block], "role": "user", "id": message_id or f"m{len(self.events)}"}
        data: dict[str, Any] = {"turn": self.turn, "step": self.step, "message": message}
        if error is not None:
            data["error"] = error
        extra = {"sourceEventSeqs": sources} if sources is not None else {}
        return self.add("tool/result", data, ms, surfaceOp="append", **extra)

    def use(self, call: str, name: str, args: Any, text: str, ms: int = 400, *, failed: bool = False) -> None:
        """A call and its result."""
        seq = self.call(call, name, args)
        self.result(call, text, ms, failed=failed, sources=[seq])

    def done(self) -> int:
        """End the step."""
        return self.add("step/end", {"turn": self.turn, "step": self.step}, 2)

    def end(self, kind: str = "completed", **reason: Any) -> int:
        """End the turn."""
        return self.add("turn/end", {"turn": self.turn, "reason": {"kind": kind, **reason}}, 3)

    def text(self) -> bytes:
        """The log as bytes."""
        rows = [self.header, *self.events]
        return b"".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for row in rows)

    def save(self, root: Path, project: str = "--srv-project--") -> Path:
        """Write the log where a store with *root* looks for it."""
        folder = root / project / str(self.header["id"])
        folder.mkdir(parents=True)
        path = folder / "session.jsonl"
        path.write_bytes(self.text())
        return path


def demo() -> Log:
    """A session in which everything happens that a transcript has to show."""
    log = Log("demo-0198c0de")
    log.begin("Why does `make test` hang on CI? Find out and fix it.")
    log.add("session/title", {"title": "Fix the hanging test", "messageSeqs": [1], "source": {"kind": "fallback"}})
    log.user(
        "Repository rules:\n- run the tests before you answer\n- never push\n- keep answers short\n- no new dependencies",
        source={"kind": "plugin", "plugin": "workspace-instructions"},
    )
    header = {"config": {"provider": "example", "model": "example-large", "reasoningEffort": "high"}}
    log.steps()
    log.add("request/header", {"header": header, "reason": "initial"})
    log.say(
        "I'll look at the test first.",
        ("call-1", "read_file", {"path": "tests/test_server.py"}),
        ("call-2", "run", {"command": "make test", "timeout": 20}),
        reasoning="A hang on CI and not locally smells of a port, a lock or a missing terminal. Read the test before running it.",
        usage={"inputTokens": 1840, "outputTokens": 122, "cacheWriteTokens": 5200, "reasoningTokens": 48},
    )
    log.use(
        "call-1",
        "read_file",
        {"path": "tests/test_server.py"},
        "def test_server(tmp_path):\n    server = Server(port=8080)\n    server.start()\n    assert server.ready.wait()\n",
        38,
    )
    log.use(
        "call-2", "run", {"command": "make test", "timeout": 20},
        "tests/test_server.py::test_server \nTIMEOUT after 20 s\nmake: *** [test] Error 124", 20_140, failed=True,
    )  # fmt: skip
    log.done()
    log.add("todo/write", {"todos": [
        {"content": "Reproduce the hang", "status": "completed"},
        {"content": "Bind to a free port", "status": "in_progress"},
        {"content": "Run the tests", "status": "pending"},
    ]})  # fmt: skip
    log.steps()
    log.say(
        "",
        ("call-3", "edit_file", {"path": "tests/test_server.py", "old": "Server(port=8080)", "new": "Server(port=0)"}),
        usage={"inputTokens": 310, "outputTokens": 64, "cacheReadTokens": 7100},
    )
    log.use(
        "call-3",
        "edit_file",
        {"path": "tests/test_server.py", "old": "Server(port=8080)", "new": "Server(port=0)"},
        "1 replacement",
        12,
    )
    log.done()
    log.add("steering/message", {"turn": log.turn, "message": {
        "content": [{"type": "text", "text": "Please also add a timeout to `wait()`."}],
        "source": {"kind": "user"}, "role": "user", "id": "steer-1"}}, surfaceOp="append")  # fmt: skip
    log.steps()
    log.say(
        "The test bound **port 8080**, which is taken on CI, and then waited for ever.\n\n"
        "## What I changed\n\n1. The server binds a free port (`port=0`).\n2. `wait()` has a timeout:\n\n"
        "```python\nassert server.ready.wait(timeout=5)\n```\n\n"
        "| before | after |\n|---|---|\n| hangs | 0.2 s |\n\nSee https://docs.python.org/3/library/threading.html for `Event.wait`.",
        usage={"inputTokens": 420, "outputTokens": 188, "cacheReadTokens": 7400},
    )
    log.done()
    log.end()
    log.time += 3_600_000
    log.begin("用中文总结一下、然后发布。اكتب الملخص بالعربية أيضًا.")
    log.steps()
    log.say(
        "测试以前绑定固定端口 8080、在 CI 上会一直等待。现在使用空闲端口、并且等待有超时。\n\n"
        "كان الاختبار يحجز المنفذ 8080 وينتظر إلى الأبد. أصبح يستخدم منفذًا حرًّا.",
        ("call-4", "run", {"command": "make release", "env": {"API_TOKEN": "sk-test-0123456789abcdefghij"}}),
        ("call-5", "notify", {"channel": "#releases"}),
        usage={"inputTokens": 510, "outputTokens": 240, "cacheReadTokens": 7900},
    )
    seq = log.call("call-4", "run", {"command": "make release", "env": {"API_TOKEN": "sk-test-0123456789abcdefghij"}})
    log.result(
        "call-4", "The process ended before this call returned: its outcome is unknown.", 0, failed=True,
        error={"name": "ToolOutcomeUnknownError", "code": "TOOL_OUTCOME_UNKNOWN"},
        message_id=f"interrupted-tool-result-call-4-{seq + 1}", sources=[seq],
    )  # fmt: skip
    log.result(
        "call-5", "The process ended before this call was started: it may be retried.", 0, failed=True,
        error={"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"},
        message_id=f"interrupted-tool-result-call-5-{seq + 2}",
    )  # fmt: skip
    log.done()
    log.end("interrupted")
    log.time += 120_000
    log.begin("Was it released?")
    log.steps()
    log.chunk({"type": "usage", "usage": {"inputTokens": 90, "outputTokens": 0, "cacheReadTokens": 8200}})
    log.chunk(
        {
            "type": "finish",
            "reason": {"kind": "error", "failure": {"message": "overloaded", "code": "SERVER", "status": 529}},
        }
    )
    log.add("llm/retry", {"turn": 3, "step": 1, "provider": "example", "mode": "normal", "policyKey": "p", "retry": 1,
                          "maxRetries": 3, "delayMs": 1000, "failure": {"message": "overloaded", "code": "SERVER"}}, 1000)  # fmt: skip
    log.chunk({"type": "block-start", "index": 0, "blockType": "text"})
    log.chunk({"type": "text-delta", "index": 0, "text": "I am checking the tags, and "})
    log.chunk({"type": "text-delta", "index": 0, "text": "then the"})
    log.done()
    log.end("aborted", reason={"kind": "user"})
    return log


def many(turns: int, events_per_turn: int = 50) -> Log:
    """A long session of whole messages: *turns* times *events_per_turn* events."""
    log = Log("many")
    for turn in range(turns):
        log.begin(f"Question {turn}: what about item {turn * 7}?")
        spare = events_per_turn - 3
        while spare >= 5:
            log.steps()
            call = f"c{turn}-{len(log.events)}"
            log.add("assistant/message", {"turn": log.turn, "step": log.step, "message": {
                "role": "assistant", "id": f"m{len(log.events)}",
                "source": {"kind": "model", "provider": "example", "model": "example-large"},
                "content": [{"type": "text", "text": f"Looking at **item {spare}** of turn {turn}.\n\n- one\n- two"},
                            {"type": "tool-call", "id": call, "name": "run", "arguments": '{"n": 1}'}]},
                "usage": {"inputTokens": 100 + spare, "outputTokens": 20, "cacheReadTokens": 900}},
                sourceEventSeqs=[], surfaceOp="append")  # fmt: skip
            log.use(call, "run", {"n": spare}, f"line one of {call}\nline two\nneedle-{turn}", 30)
            log.done()
            spare -= 5
        while spare > 0:
            log.add("note/unknown", {"n": spare})
            spare -= 1
        log.end()
    return log

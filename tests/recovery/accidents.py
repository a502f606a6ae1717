"""Logs as an agent's loop writes them, and what happens to their lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from tests.recovery import logs

if TYPE_CHECKING:
    from collections.abc import Callable

Lines = list[bytes]


@st.composite
def agent_logs(draw: st.DrawFn) -> Lines:
    """The lines of a valid log with steps, streams, calls, pruned results and summaries; it may be cut anywhere."""
    writer = _Agent(draw)
    for turn in range(1, draw(st.integers(1, 3)) + 1):
        writer.turn(turn)
    cut = draw(st.integers(0, 6))
    return writer.lines[: max(2, len(writer.lines) - cut)]


class _Agent:
    """Writes turns like a recorder does; knows the next seq and the surface."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.lines: Lines = [logs.header()]
        self.seq = 0
        self.nodes: list[int] = []
        self.calls = 0

    def put(self, line: bytes, count: int = 1, *, node: bool = False) -> None:
        if node:
            self.nodes.append(self.seq)
        self.lines.append(line)
        self.seq += count

    def turn(self, turn: int) -> None:
        self.put(logs.turn_start(self.seq, turn))
        self.put(logs.user(self.seq, "go"), node=True)
        for step in range(1, self.draw(st.integers(1, 2)) + 1):
            self.step(turn, step)
        if self.draw(st.booleans()):
            self.put(logs.event("my/plugin", self.seq, {"a": 1}))
        if self.draw(st.booleans()):
            self.summary()
        self.put(logs.turn_end(self.seq, turn))

    def step(self, turn: int, step: int) -> None:
        self.put(logs.step("start", self.seq, turn, step))
        first = self.seq
        texts = self.draw(st.lists(st.sampled_from(["", "a", "世", "}{"]), min_size=1, max_size=5))
        self.put(logs.row(self.seq, texts, turn=turn, step=step), len(texts))
        calls = [f"c{self.calls + k}" for k in range(self.draw(st.integers(0, 3)))]
        self.calls += len(calls)
        if self.draw(st.booleans()):
            self.blocks(turn, step, calls)
        sources = list(range(first, self.seq))
        self.put(logs.assistant(self.seq, calls=tuple(calls), turn=turn, step=step, sourceEventSeqs=sources), node=True)
        for call in calls:
            self.put(logs.call(self.seq, call, turn=turn, step=step))
        for call in calls:
            self.put(logs.result(self.seq, call, turn=turn, step=step), node=True)
            if self.draw(st.integers(0, 4)) == 0:
                self.prune()
        self.put(logs.step("end", self.seq, turn, step))

    def blocks(self, turn: int, step: int, calls: list[str]) -> None:
        blocks: list[dict[str, str]] = [{"type": "text", "text": "ok"}]
        blocks += [{"type": "tool-call", "id": call, "name": "sh", "arguments": "{}"} for call in calls]
        for index, block in enumerate(blocks):
            chunk = {"type": "block-end", "index": index, "block": block}
            self.put(logs.event("assistant/chunk", self.seq, {"turn": turn, "step": step, "chunk": chunk}))

    def prune(self) -> None:
        """Replace the last result by one that says less."""
        old = self.nodes.pop()
        value = json.loads(self.lines[-1])
        value |= {"seq": self.seq, "surfaceOp": {"op": "replace", "start": old, "end": old}, "sourceEventSeqs": [old]}
        value["data"]["message"]["content"][0]["content"] = []
        self.put(logs.line(value), node=True)

    def summary(self) -> None:
        """Replace the history so far by one message."""
        first = self.draw(st.integers(0, min(1, len(self.nodes) - 1)))
        shadowed = self.nodes[first:]
        del self.nodes[first:]
        op = {"op": "replace", "start": shadowed[0], "end": shadowed[-1]}
        self.put(logs.user(self.seq, "summary", surfaceOp=op, sourceEventSeqs=shadowed), node=True)


@st.composite
def accidents(draw: st.DrawFn, lines: Lines, *, other: Lines | None = None) -> bytes:
    """The bytes of a log after one to three accidents; *other* is a log whose lines may get in between."""
    lines = list(lines)
    for _ in range(draw(st.integers(1, 3))):
        kinds = [*_KINDS, _interleave(other)] if other else _KINDS
        lines = draw(st.sampled_from(kinds))(draw, lines) or [b"\n"]
    return b"".join(lines)


def _index(draw: st.DrawFn, lines: Lines) -> int:
    return draw(st.integers(0, len(lines) - 1))


def _cut(draw: st.DrawFn, lines: Lines) -> Lines:
    at = _index(draw, lines)
    return lines[:at] + lines[at + draw(st.integers(1, 6)) :]


def _duplicate(draw: st.DrawFn, lines: Lines) -> Lines:
    at, to = _index(draw, lines), _index(draw, lines)
    return [*lines[:to], lines[at], *lines[to:]]


def _swap(draw: st.DrawFn, lines: Lines) -> Lines:
    a, b = _index(draw, lines), _index(draw, lines)
    lines[a], lines[b] = lines[b], lines[a]
    return lines


def _flip(draw: st.DrawFn, lines: Lines) -> Lines:
    at = _index(draw, lines)
    line = lines[at]
    place = draw(st.integers(0, len(line) - 1))
    lines[at] = logs.set_byte(line, place, line[place] ^ (1 << draw(st.integers(0, 7))))
    return lines


def _zero(draw: st.DrawFn, lines: Lines) -> Lines:
    at = _index(draw, lines)
    lines[at] = bytes(draw(st.integers(1, 300))) + draw(st.sampled_from([b"", b"\n"]))
    return lines


def _tear(draw: st.DrawFn, lines: Lines) -> Lines:
    at = _index(draw, lines)
    lines[at] = lines[at][: draw(st.integers(0, len(lines[at]) - 1))]
    return lines


def _retry(draw: st.DrawFn, lines: Lines) -> Lines:
    at = _index(draw, lines)
    lines[at] = lines[at][: draw(st.integers(0, len(lines[at]) - 1))] + lines[at]
    return lines


def _splice(draw: st.DrawFn, lines: Lines) -> Lines:
    at = _index(draw, lines)
    block = lines[at : at + draw(st.integers(1, 8))]
    rest = lines[:at] + lines[at + len(block) :]
    to = draw(st.integers(0, len(rest)))
    return rest[:to] + block + rest[to:]


def _garbage(draw: st.DrawFn, lines: Lines) -> Lines:
    data = b"".join(lines)
    at = draw(st.integers(0, len(data)))
    return (data[:at] + draw(st.binary(min_size=1, max_size=6)) + data[at:]).splitlines(keepends=True)


def _fuse(draw: st.DrawFn, lines: Lines) -> Lines:
    at = _index(draw, lines)
    lines[at] = lines[at].rstrip(b"\n")
    return lines


def _interleave(other: Lines) -> Callable[[st.DrawFn, Lines], Lines]:
    def interleave(draw: st.DrawFn, lines: Lines) -> Lines:
        mixed: Lines = []
        mine, theirs = list(lines), list(other)
        while mine and theirs:
            source = mine if draw(st.booleans()) else theirs
            count = draw(st.integers(1, 5))
            mixed += source[:count]
            del source[:count]
        return mixed + mine + theirs

    return interleave


_KINDS = [_cut, _duplicate, _swap, _flip, _zero, _tear, _retry, _splice, _garbage, _fuse]

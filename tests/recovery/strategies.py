"""Random logs that are valid, and random damage to them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from tests.recovery import logs

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = st.text(max_size=8) | st.sampled_from(
    ["", "世界", "\u2028\u0085", "🎉", '"\\', "\x00\x1f", "}{", '{"type":"turn/end"']
)
PLUGIN_DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def log_lines(draw: st.DrawFn) -> list[bytes]:
    """The lines of a valid log, header first; the last turn may be open."""
    lines = [logs.header()]
    writer = _Writer(draw, lines)
    for turn in range(1, draw(st.integers(0, 3)) + 1):
        writer.turn(turn)
    if draw(st.booleans()):
        writer.open_turn()
    return lines


class _Writer:
    """Writes random turns; knows the next seq, the surface and the open turn."""

    def __init__(self, draw: st.DrawFn, lines: list[bytes]) -> None:
        self.draw = draw
        self.lines = lines
        self.seq = 0
        self.turn_number = 0
        self.nodes: list[int] = []

    def put(self, line: bytes, count: int = 1) -> None:
        self.lines.append(line)
        self.seq += count

    def turn(self, number: int) -> None:
        self.turn_number = number
        self.put(logs.turn_start(self.seq, number))
        self.events()
        self.put(logs.turn_end(self.seq, number))

    def open_turn(self) -> None:
        self.put(logs.turn_start(self.seq, self.turn_number + 1))
        self.turn_number += 1
        self.events()

    def events(self) -> None:
        kinds: list[Callable[[], None]] = [
            self.user, self.row, self.tool_row, self.chunk, self.plugin, self.assistant, self.call, self.replace,
        ]  # fmt: skip
        for kind in self.draw(st.lists(st.sampled_from(kinds), max_size=6)):
            kind()

    def user(self) -> None:
        self.nodes.append(self.seq)
        self.put(logs.user(self.seq, self.draw(TEXT)))

    def row(self) -> None:
        texts = self.draw(st.lists(TEXT, min_size=1, max_size=5))
        kind = self.draw(st.sampled_from(["text-chunks", "reasoning-chunks"]))
        self.put(logs.row(self.seq, texts, kind=kind, turn=self.turn_number), len(texts))

    def tool_row(self) -> None:
        args = self.draw(st.lists(TEXT, min_size=1, max_size=4))
        self.put(logs.tool_row(self.seq, args, turn=self.turn_number), len(args))

    def chunk(self) -> None:
        chunk = {"type": "text-delta", "index": 0, "text": self.draw(TEXT)}
        self.put(logs.event("assistant/chunk", self.seq, {"turn": self.turn_number, "step": 1, "chunk": chunk}))

    def plugin(self) -> None:
        self.put(logs.event("my/plugin", self.seq, self.draw(PLUGIN_DATA), time=self.draw(st.integers(-5, 5))))

    def assistant(self) -> None:
        calls = tuple(self.draw(st.lists(st.sampled_from("xyz"), max_size=2)))
        cited = self.draw(st.sets(st.integers(0, self.seq - 1), max_size=4))
        self.nodes.append(self.seq)
        self.put(logs.assistant(self.seq, calls=calls, turn=self.turn_number, sourceEventSeqs=sorted(cited)))

    def call(self) -> None:
        call_id = self.draw(st.sampled_from("xyz"))
        self.put(logs.call(self.seq, call_id, turn=self.turn_number))
        if self.draw(st.booleans()):
            self.nodes.append(self.seq)
            cited = [self.seq - 1]
            self.put(logs.result(self.seq, call_id, turn=self.turn_number, sourceEventSeqs=cited))

    def replace(self) -> None:
        if not self.nodes:
            return
        first = self.draw(st.integers(0, len(self.nodes) - 1))
        last = self.draw(st.integers(first, len(self.nodes) - 1))
        shadowed = self.nodes[first : last + 1]
        op = {"op": "replace", "start": shadowed[0], "end": shadowed[-1]}
        self.nodes[first : last + 1] = [self.seq]
        self.put(logs.user(self.seq, "summary", surfaceOp=op, sourceEventSeqs=shadowed))


@st.composite
def damaged_bytes(draw: st.DrawFn) -> bytes:
    """A valid log after one or two accidents."""
    data = b"".join(draw(log_lines()))
    for _ in range(draw(st.integers(1, 2))):
        data = draw(_accident(data))
    return data


def _accident(data: bytes) -> st.SearchStrategy[bytes]:
    position = st.integers(0, len(data))

    def garble(args: tuple[int, int, bytes]) -> bytes:
        a, b, new = args
        return data[: min(a, b)] + new + data[max(a, b) :]

    def flip(args: tuple[int, int]) -> bytes:
        return logs.set_byte(data, args[0], args[1]) if args[0] < len(data) else data

    new = st.binary(max_size=6) | st.sampled_from([b"\n", b"\r\n", b"\0" * 5, b"\xff", b" ", b""])
    return st.tuples(position, position, new).map(garble) | st.tuples(position, st.integers(0, 255)).map(flip)


def chunkings(data: bytes) -> st.SearchStrategy[list[bytes]]:
    """Ways to cut *data* into pieces, empty ones included."""

    def cut(positions: list[int]) -> list[bytes]:
        points = [0, *sorted(positions), len(data)]
        return [data[a:b] for a, b in itertools.pairwise(points)]

    return st.lists(st.integers(0, len(data)), max_size=8).map(cut)

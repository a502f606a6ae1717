"""Valid logs to be damaged: written here by a seeded author, and taken from the fixtures and the real logs."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from sessionstore.chunks import ROW_TYPES, line_type, parse_row
from sessionstore.recovery.closers import interrupted_turn_closers
from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.lines import EMPTINESS
from sessionstore.recovery.plan import plan_repair
from sessionstore.recovery.scan import scan_log
from sessionstore.surface import fold_surface
from tests.fuzz.history import Faults, history_faults
from tests.paths import FIXTURES, REAL_LOGS
from tests.recovery import logs

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

__all__ = ["Original", "pool", "split_lines", "stale_closers"]

_PLAIN = ("", "ok", "世界", "a\nb", "x" * 30)
_TEXTS = (
    "\u2028\u0085", "🎉 é", '"\\', "\x00\x1f\x7f", "}{", '{"type":"turn/end","seq":3', "\ud800", "\u200b",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**53 - 1, 2**60, 10**40, 0.5, 1e300, "", [], {}, [[[]]], {"a": {"b": [1, "\ud83d"]}},
)  # fmt: skip


class Original(Struct):
    """A log before the damage, and what is known of it.

    *lines* are whole lines with their newlines, header first.  *branch* are lines that another writer might have
    written instead of those from line *fork* on.  *sound* tells that all of it is valid, so that survival and history can be judged.
    """

    name: str
    lines: list[bytes]
    sound: bool = True
    branch: list[bytes] = []
    fork: int = 0
    seqs: dict[bytes, tuple[int, int]] = {}
    faults: Faults = field(default_factory=Counter)

    def learn(self) -> Original:
        """Note which line holds which seqs, and what a provider could already object to."""
        histories = [self.lines, [*self.lines[: self.fork], *self.branch]] if self.branch else [self.lines]
        for lines in histories:
            scan = scan_log(b"".join(lines))
            if scan.verdict not in {Verdict.CLEAN, Verdict.INTERRUPTED}:
                self.sound = False
                return self
            seq = 0
            for line in lines[1:]:
                body = line.strip(EMPTINESS)
                if not body:
                    continue
                count = len(parse_row(body)) if line_type(body) in ROW_TYPES else 1
                self.seqs[body] = (seq, count)
                seq += count
            # A log that lost its end may have the faults that a summary took away later.
            seqs = range(len(scan.events)) if any(b'"replace"' in line for line in lines) else ()
            for stop in (*seqs, len(scan.events)):
                events = [*scan.events[:stop], *interrupted_turn_closers(scan.events[:stop])]
                self.faults |= history_faults(events, fold_surface(events).nodes)
        return self


class _Author:
    """Writes turns as an agent does; some of them are odd, as plugins make them."""

    def __init__(self, rng: random.Random, lines: list[bytes], *, tag: str = "c") -> None:
        self.rng = rng
        self.lines = lines
        self.tag = tag
        self.seq = 0
        self.turn = 0
        self.nodes: list[tuple[int, str]] = []

    def twin(self, rng: random.Random, tag: str) -> _Author:
        """Another writer that goes on from here, with lines of its own."""
        other = _Author(rng, [], tag=tag)
        other.seq, other.turn, other.nodes = self.seq, self.turn, list(self.nodes)
        return other

    def put(self, line: bytes, count: int = 1) -> int:
        self.lines.append(line)
        self.seq += count
        return self.seq - count

    def write_turns(self, lines: int) -> None:
        """Turns until there are about so many lines; the last one may stay open."""
        while len(self.lines) < lines:
            self.write_turn(lines)

    def write_turn(self, budget: int) -> None:
        rng = self.rng
        self.turn += 1
        self.put(logs.turn_start(self.seq, self.turn))
        if rng.random() < 0.6:
            self.nodes.append((self.put(logs.user(self.seq, self._text())), "user"))
        for step in range(1, rng.randint(1, 2) + 1):
            if len(self.lines) >= budget and rng.random() < 0.5:
                return
            self._step(step)
        if rng.random() < 0.15:
            self._replace()
        if len(self.lines) < budget or rng.random() < 0.7:
            self.put(logs.turn_end(self.seq, self.turn))

    def _step(self, step: int) -> None:
        rng = self.rng
        self.put(logs.step("start", self.seq, self.turn, step))
        calls = tuple(dict.fromkeys(self._call_id(number) for number in range(rng.choice((0, 0, 1, 1, 2)))))
        streamed = self._stream(step, calls) if rng.random() < 0.6 else []
        self._aside()
        if rng.random() < 0.05:
            return  # the model's answer never came
        line = logs.assistant(self.seq, calls=calls, turn=self.turn, step=step, sourceEventSeqs=streamed)
        self.nodes.append((self.put(line), "assistant"))
        for call in calls:
            started = self.seq if rng.random() < 0.9 else None
            if started is not None:
                self.put(logs.call(self.seq, call, turn=self.turn, step=step))
            self._aside()
            cited = {} if started is None else {"sourceEventSeqs": [started]}
            line = logs.result(self.seq, call, turn=self.turn, step=step, text=self._text(), **cited)
            self.nodes.append((self.put(line), call))
        if rng.random() < 0.95:
            self.put(logs.step("end", self.seq, self.turn, step))

    def _call_id(self, number: int) -> str:
        # A few ids come again: models do that.
        return "again" if self.rng.random() < 0.03 else f"{self.tag}{self.seq}-{number}"

    def _stream(self, step: int, calls: tuple[str, ...]) -> list[int]:
        rng, first = self.rng, self.seq
        place = {"turn": self.turn, "step": step}
        texts = [self._text() for _ in range(rng.randint(1, 5))]
        if rng.random() < 0.5:
            self._chunk(place, {"type": "block-start", "index": 0, "blockType": "text"})
        if rng.random() < 0.6:
            self.put(
                logs.row(self.seq, texts, kind=rng.choice(("text-chunks", "reasoning-chunks")), **place), len(texts)
            )
        else:
            for text in texts[:2]:
                self._chunk(place, {"type": "text-delta", "index": 0, "text": text})
        if rng.random() < 0.7:
            self._chunk(place, {"type": "block-end", "index": 0, "block": {"type": "text", "text": "ok"}})
        for index, call in enumerate(calls, 1):
            if rng.random() < 0.3:
                self.put(logs.tool_row(self.seq, ["{", "}"], index=index, id=call, name="sh", **place), 2)
            block = {"type": "tool-call", "id": call, "name": "sh", "arguments": "{}"}
            if rng.random() < 0.7:
                self._chunk(place, {"type": "block-end", "index": index, "block": block})
        return list(range(first, self.seq))

    def _chunk(self, place: dict[str, Any], chunk: dict[str, Any]) -> None:
        self.put(logs.event("assistant/chunk", self.seq, {**place, "chunk": chunk}))

    def _text(self) -> str:
        return self.rng.choice(_PLAIN if self.rng.random() < 0.95 else _TEXTS)

    def _aside(self) -> None:
        """What plugins write between the model's events."""
        rng = self.rng
        if rng.random() < 0.08:
            self.put(logs.event("my/plugin", self.seq, rng.choice(_VALUES), time=rng.randint(-5, 5)))

    def _replace(self) -> None:
        rng = self.rng
        if not self.nodes:
            return
        at = rng.randrange(len(self.nodes))
        seq, kind = self.nodes[at]
        if kind not in ("user", "assistant") and rng.random() < 0.7:
            op = {"op": "replace", "start": seq, "end": seq}
            line = logs.result(self.seq, kind, turn=self.turn, text="short", surfaceOp=op, sourceEventSeqs=[seq])
            self.nodes[at] = (self.put(line), kind)
            return
        first, last = (0, len(self.nodes) - 1) if rng.random() < 0.6 else (at, rng.randrange(at, len(self.nodes)))
        shadowed = [each for each, _ in self.nodes[first : last + 1]]
        op = {"op": "replace", "start": shadowed[0], "end": shadowed[-1]}
        line = logs.user(self.seq, "summary", surfaceOp=op, sourceEventSeqs=shadowed)
        self.nodes[first : last + 1] = [(self.put(line), "user")]


def _written(rng: random.Random) -> Original:
    """A log of a few lines, seldom of many; for some of them another writer's end is known too."""
    size = rng.choice((1, 3, 4, 5, 6, 7, 9)) if rng.random() < 0.98 else rng.randint(15, 80)
    author = _Author(rng, [logs.header(**({} if rng.random() < 0.9 else {"cwd": None, "origin": "subagent"}))])
    author.write_turns(1 + rng.randint(0, size))
    if rng.random() < 0.25:  # it was interrupted anywhere
        return Original("written", author.lines[: rng.randint(1, len(author.lines))])
    original = Original("written", author.lines)
    if rng.random() < 0.4:
        original.fork = len(author.lines)
        other = author.twin(rng, "d")
        author.write_turns(original.fork + rng.randint(1, 4))
        other.write_turns(rng.randint(1, 5))
        original.branch = other.lines
    return original


def _slice(rng: random.Random, name: str, lines: list[bytes]) -> Original:
    """A real log up to some line: as valid as the whole, and mostly smaller."""
    whole = rng.random() < 0.01
    return Original(name, lines if whole else lines[: rng.randint(1, 10)])


@cache
def _real() -> list[tuple[str, list[bytes]]]:
    return [(path.parent.name + "/" + path.name, path.read_bytes().splitlines(keepends=True))
            for path in sorted(REAL_LOGS.glob("*/*.jsonl"))]  # fmt: skip


@cache
def _fixtures() -> list[tuple[str, list[bytes]]]:
    found = ((path.parent.name, path.read_bytes()) for path in sorted(FIXTURES.glob("*/session.jsonl")))
    return [(name, split_lines(data)) for name, data in found]


def split_lines(data: bytes) -> list[bytes]:
    """The lines with their newlines; the last may lack it."""
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def pool(rng: random.Random, size: int) -> list[Original]:
    """So many logs of all sources."""
    found: list[Original] = []
    for _ in range(size):
        dice = rng.random()
        if dice < 0.08 and _real():
            original = _slice(rng, *rng.choice(_real()))
        elif dice < 0.15 and _fixtures():
            original = Original(*rng.choice(_fixtures()))
        else:
            original = _written(rng)
        found.append(original.learn())
    return found


def stale_closers(lines: Iterable[bytes]) -> list[bytes]:
    """The closers that a resume would have written behind these lines."""
    scan = scan_log(b"".join(lines))
    if scan.verdict is not Verdict.INTERRUPTED:
        return []
    return [event.to_json() + b"\n" for event in plan_repair(scan).closers]

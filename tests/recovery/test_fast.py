"""The fast way through a log and the careful way say the same of every line."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore.recovery import scan as scan_module
from sessionstore.recovery.scan import scan_log
from tests.recovery import logs
from tests.recovery.strategies import damaged_bytes, log_lines
from tests.recovery.test_properties import summary
from tests.recovery.test_scan import DEFECTS, INVALID, RETIRED

if TYPE_CHECKING:
    from collections.abc import Iterator

# Values that stand where they should not, in every field of every kind of line.
ODD: tuple[str, ...] = (
    "null", "true", "0", "-0", "1", "1.0", "1e0", "-1", "1.5", "2e400", "-0.0", "9007199254740991", "9007199254740992",
    "-9007199254740992", "123456789012345678901234567890", '""', '"x"', '"append"', '"user"', '"turn/end"',
    '"text-chunks"', '"\\ud83d"', "[]", "[0]", "[0,0]", "[99]", "[1,0]", "[0,1.0]", "[-1]", '["x"]', "{}",
    '{"op":"replace","start":0,"end":0}', '{"op":"replace","start":1.0,"end":1e0}', '{"kind":"user"}',
)  # fmt: skip

LINES: dict[str, bytes] = {
    "turn/start": logs.turn_start(2, 2),
    "turn/end": logs.turn_end(2),
    "step/start": logs.step("start", 2),
    "user/message": logs.user(2, sourceEventSeqs=[0, 1]),
    "assistant/message": logs.assistant(2, calls=("c",), sourceEventSeqs=[0, 1]),
    "empty stream": logs.assistant(2, sourceEventSeqs=[]),
    "tool/result": logs.result(2, "c1", sourceEventSeqs=[0]),
    "steering/message": logs.event("steering/message", 2, {"turn": 1, "message": json.loads(logs.user(2))["data"]},
                                   surfaceOp="append"),
    "replace": logs.user(2, surfaceOp={"op": "replace", "start": 1, "end": 1}, sourceEventSeqs=[1]),
    "request/header": logs.event("request/header", 2, {"reason": "initial",
                                 "header": {"config": {"provider": "p", "model": "m"}}}),
    "chunk": logs.event("assistant/chunk", 2, {"turn": 1, "step": 1,
                        "chunk": {"type": "text-delta", "index": 0, "text": "x"}}),
    "text row": logs.row(2, ["a", "b", "c"]),
    "reasoning row": logs.row(2, ["a"], kind="reasoning-chunks"),
    "tool row": logs.tool_row(2, ["a", "b"]),
    "plugin": logs.event("acme/x", 2, {"any": [1, {"type": "turn/end"}]}),
    "surrogate": logs.user(2, "X").replace(b"X", b"\\ud83d"),
    "surrogate header": logs.event("request/header", 2, {"reason": "initial", "header": {"system": "X",
                                   "config": {"provider": "p", "model": "m"}}}).replace(b"X", b"\\ud83d"),
    "legacy user": logs.event("user/message", 2, {"content": [], "source": {"kind": "user"}}, surfaceOp="append"),
    "legacy assistant": logs.event("assistant/message", 2, {"turn": 1, "step": 1, "content": [],
                                   "provenance": {"provider": "p", "model": "m"}}, surfaceOp="append"),
    "legacy result": logs.event("tool/result", 2, {"turn": 1, "step": 1, "callId": "c", "content": [],
                                "isError": False}, surfaceOp="append"),
    "context": logs.event("context/message", 2, {"content": [], "source": {"kind": "user"}}),
}  # fmt: skip


def never_sure(line: bytes, expected: int) -> int:
    """A reader that leaves everything to the careful way."""
    return 0


def both_ways(data: bytes) -> tuple[object, object]:
    """What the scanner says with its fast readers and without."""
    fast = summary(scan_log(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan_module, "read_plain", never_sure)
        careful = scan_module.LogScanner()
        careful._readers.by_token.clear()
        careful.feed(data)
        return fast, summary(careful.finish())


def variants(line: bytes) -> Iterator[bytes]:
    """The line with each of its values replaced by each odd one, each key left out, doubled, or put elsewhere."""
    value = json.loads(line)
    yield line
    yield json.dumps(value).encode() + b"\n"
    yield logs.line(dict(reversed(value.items())))
    for path in paths(value):
        for odd in ODD:
            yield logs.line(changed(value, path, "\0")).replace(b'"\\u0000"', odd.encode())
        yield logs.line(changed(value, path, None, remove=True))
    for key in value:
        yield line.replace(b"}\n", b',"%b":%b}\n' % (key.encode(), json.dumps(value[key]).encode()))
        yield line.replace(b"{", b'{"%b":"first",' % key.encode(), 1)
    yield line.replace(b"}\n", b',"extra":[1]}\n')
    yield re.sub(rb'"([a-zA-Z])', lambda m: b'"\\u%04x' % m.group(1)[0], line, count=1)


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*at, key)
        yield from paths(inner, (*at, key))


def changed(value: Any, path: tuple[Any, ...], new: Any, *, remove: bool = False) -> Any:
    """A copy of *value* with the place at *path* changed or removed."""
    copy = json.loads(json.dumps(value))
    owner = copy
    for key in path[:-1]:
        owner = owner[key]
    if remove:
        del owner[path[-1]]
    else:
        owner[path[-1]] = new
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
def test_every_variant_of_a_line_is_judged_alike(name: str) -> None:
    """Whatever stands in whatever field, the fast way never accepts what the careful way does not."""
    start = logs.header() + logs.turn_start(0) + logs.user(1)
    for line in variants(LINES[name]):
        fast, careful = both_ways(start + line + logs.user(3))
        assert fast == careful, line


@pytest.mark.parametrize("bad", [*DEFECTS.values(), *INVALID.values(), *((line, None) for line in RETIRED.values())])
def test_every_bad_line_is_judged_alike(bad: tuple[bytes, object]) -> None:
    """The tables of defects, invalid events and retired forms give the same findings both ways."""
    fast, careful = both_ways(logs.header() + logs.turn_start(0) + bad[0] + logs.turn_end(2))
    assert fast == careful


@given(st.one_of(damaged_bytes(), log_lines().map(b"".join)))
def test_every_log_is_judged_alike(data: bytes) -> None:
    """Whole logs, good and damaged, give the same result both ways."""
    fast, careful = both_ways(data)
    assert fast == careful


@pytest.mark.parametrize("name", [n for n in LINES if not n.startswith(("legacy", "replace", "request", "surrogate"))])
def test_usual_lines_take_the_fast_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What our own writers write is not read carefully: a load would be several times slower."""

    def fail(self: object, line: bytes, body: bytes) -> None:
        pytest.fail("read carefully")

    monkeypatch.setattr(scan_module.LogScanner, "_accept_carefully", fail)
    log = logs.header() + logs.turn_start(0) + logs.user(1) + LINES[name]
    scan_log(log)
    scan_log(log.replace(b"\n", b"\r\n"))

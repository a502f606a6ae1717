"""Beside the reference implementation itself: our files open there, its files open here.

Needs an installation of the reference; SESSIONSTORE_PEER names its folder (with `node`, `bench.mjs` and `open.mjs`).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Literal, cast

import pytest

from sessionstore import SessionStore, TextDelta
from sessionstore.recovery.findings import Verdict

PEER = Path(os.environ.get("SESSIONSTORE_PEER", "/nowhere"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (PEER / "node").exists(), reason="no reference implementation: SESSIONSTORE_PEER names no installation"
    ),
]
Compression = Literal["none", "zstd"]
COMPRESSIONS: list[Compression] = ["none", "zstd"]


def node(*args: str) -> dict[str, object]:
    """What a script of the reference prints."""
    done = subprocess.run(["./node", *args], cwd=PEER, capture_output=True, text=True, check=False, timeout=120)
    return cast("dict[str, object]", json.loads(done.stdout.strip().splitlines()[-1]))


async def converse(store: SessionStore, *, interrupted: bool) -> str:
    """A session with everything in it that the reference knows."""
    session = await store.create(cwd="/srv/project")
    for number in (1, 2):
        async with session.turn() as turn:
            turn.user(f"question {number} \u2028 é 😀 \ud83d")
            async with turn.step() as step:
                for word in ("I", " will", " look", "\ud83d", "\ude00"):
                    step.chunk(TextDelta(index=0, text=word))
                source = {"kind": "model", "provider": "p", "model": "m"}
                call = {"type": "tool-call", "id": f"c{number}", "name": "sh", "arguments": "{}"}
                step.message({"content": [{"type": "text", "text": "I will look"}, call], "source": source})
                await step.call(f"c{number}", "sh", "{}")
                if number == 1:
                    step.result("c1", "fine")
    if interrupted:
        session.append("turn/start", {"turn": 3})
    await session.flush()
    await store.dispose(session)
    return session.id


@pytest.mark.parametrize("interrupted", [False, True], ids=["closed", "open turn"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_our_log_opens_in_the_reference(compression: Compression, interrupted: bool, tmp_path: Path) -> None:
    """The reference sees the same events, surface and history, raw and compressed, and closes an open turn as we do."""
    async with SessionStore(tmp_path, compression=compression) as store:
        id_ = await converse(store, interrupted=interrupted)
        ours = await store.inspect(id_)
        seen = node("open.mjs", str(tmp_path), id_, compression)
    assert seen["ok"] is True, seen
    assert seen["events"] == len(ours.events)
    assert seen["last"] == ours.events[-1].type == "turn/end"
    assert seen["nodes"] == list(ours.surface.nodes)
    assert seen["messages"] == len(ours.derive_messages())
    assert seen["meta"] == {k: v for k, v in ours.header.to_dict().items() if k != "type"}  # type: ignore[union-attr]


@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_a_log_of_the_reference_opens_here(compression: Compression, tmp_path: Path) -> None:
    """What the reference wrote resumes here, goes on, and opens there again."""
    wrote = node("bench.mjs", "write", str(tmp_path), compression, "8000")
    before = node("open.mjs", str(tmp_path), "bench", compression)
    async with SessionStore(tmp_path, compression=compression) as store:
        inspected = await store.inspect("bench")
        assert inspected.verdict is Verdict.CLEAN
        assert len(inspected.events) == wrote["n"] == before["events"]
        assert list(inspected.surface.nodes) == before["nodes"]
        assert len(inspected.derive_messages()) == before["messages"]
        session = await store.resume("bench")
        async with session.turn() as turn:
            turn.user("go on")
        count = session.seq
    after = node("open.mjs", str(tmp_path), "bench", compression)
    assert (after["ok"], after["events"]) == (True, count)

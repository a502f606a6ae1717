"""Packed rows can be switched off."""

from __future__ import annotations

import json

import pytest

from sessionstore import SessionStore, scan_log
from sessionstore.backends.memory import MemoryBackend


async def write(pack_chunks: bool) -> bytes:
    """The log of a session with two runs of deltas, written in two batches."""
    backend = MemoryBackend()
    ticks = iter(range(10_000))
    async with SessionStore(backend=backend, pack_chunks=pack_chunks, clock=lambda: next(ticks)) as store:
        session = await store.create("s")
        for batch in range(2):
            session.append("my/mark", {"text": "text-chunks"})
            for n in range(5):
                chunk = {"type": "text-delta", "index": 0, "text": f"{batch}{n}"}
                session.append("assistant/chunk", {"turn": 1, "step": 1, "chunk": chunk})
            await session.flush()
    return backend.stored_bytes("s")


async def test_packing_can_be_switched_off() -> None:
    """Off, every event is a line of its own in the plain layout; both files are the same log."""
    packed, plain = await write(True), await write(False)
    assert packed.count(b'"text-chunks","seq0"') == 2
    assert plain.count(b"\n") == 13
    seqs = [json.loads(line)["seq"] for line in plain.splitlines()[1:]]
    assert seqs == list(range(12))
    assert list(scan_log(plain).events) == list(scan_log(packed).events)


@pytest.mark.parametrize("pack_chunks", [True, False])
async def test_a_log_of_either_kind_goes_on_in_the_other(pack_chunks: bool) -> None:
    """A packed log resumed without packing, or the reverse, is a mixed file and one log."""
    backend = MemoryBackend()
    before = await write(pack_chunks)
    backend.put_bytes("s", before)
    async with SessionStore(backend=backend, pack_chunks=not pack_chunks) as store:
        session = await store.resume("s")
        for n in range(4):
            session.append(
                "assistant/chunk", {"turn": 1, "step": 1, "chunk": {"type": "text-delta", "index": 0, "text": str(n)}}
            )
        await session.flush()
        assert session.seq == 16
    after = backend.stored_bytes("s")
    assert after.startswith(before)
    assert after[len(before) :].count(b"\n") == (4 if pack_chunks else 1)
    assert [event.seq for event in scan_log(after).events] == list(range(16))


def test_the_option_is_a_bool() -> None:
    """Anything else is told at once."""
    with pytest.raises(ValueError, match="pack_chunks"):
        SessionStore(backend=MemoryBackend(), pack_chunks=1)  # type: ignore[arg-type]

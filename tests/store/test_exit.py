"""Programs that end without closing, and programs that fork: every event once, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.paths import REPO

PRELUDE = """
import asyncio, atexit, json, os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process with threads
from sessionstore import SessionStore, StoreClosedError, scan_log
from tests.store.fakes import FlakyBackend

backend = FlakyBackend()

def report(who="exit"):
    # Registered before the store's own hook, so it runs after it.
    try:
        scan = scan_log(backend.stored_bytes("s"))
        numbers = [event.to_dict()["data"]["n"] for event in scan.events]
    except Exception as error:
        numbers = type(error).__name__
    os.write(1, (json.dumps([who, numbers]) + "\\n").encode())

atexit.register(report)

def fill(session, count):
    for _ in range(count):
        session.append("test/event", {"n": session.seq})
"""

pytestmark = pytest.mark.slow


def outcome(program: str, *, code: int = 0) -> list[list[object]]:
    """What *program* reported, one line each."""
    result = subprocess.run(
        [sys.executable, "-c", PRELUDE + program],
        capture_output=True, text=True, check=False, cwd=REPO, timeout=30, env={**os.environ, "PYTHONPATH": str(REPO)},
    )  # fmt: skip
    assert result.returncode == code, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_program_that_just_ends_has_written_everything() -> None:
    """Events that waited when the loop ended are written at exit, once, after those that were flushed."""
    program = """
async def main():
    store = SessionStore(backend=backend, batch_window_ms=60_000)
    session = await store.create("s")
    fill(session, 2)
    await session.flush()
    fill(session, 3)

asyncio.run(main())
"""
    assert outcome(program) == [["exit", [0, 1, 2, 3, 4]]]


def test_a_program_that_dies_of_an_exception_has_written_everything() -> None:
    """Also events that no window was opened for, and also when a session was let go of."""
    program = """
async def main():
    fill(await SessionStore(backend=backend).create("s"), 3)
    raise SystemExit(3)

asyncio.run(main())
"""
    assert outcome(program, code=3) == [["exit", [0, 1, 2]]]


def test_a_write_that_ran_when_the_loop_ended_is_not_repeated() -> None:
    """The loop is torn down while a batch is being written; what came after it follows, nothing comes twice."""
    program = """
async def main():
    store = SessionStore(backend=backend, batch_window_ms=0)
    session = await store.create("s")
    backend.gate = asyncio.Event()
    fill(session, 2)
    while not backend.entered:
        await asyncio.sleep(0)
    fill(session, 2)
    asyncio.get_running_loop().call_later(0.01, backend.gate.set)

asyncio.run(main())
"""
    assert outcome(program) == [["exit", [0, 1, 2, 3]]]


def test_one_session_that_cannot_be_written_does_not_cost_another_its_events() -> None:
    """At exit each session is on its own."""
    program = """
async def main():
    bad = FlakyBackend()
    bad.failure = OSError(28, "No space left on device")
    fill(await SessionStore(backend=bad).create("s"), 1)
    fill(await SessionStore(backend=backend).create("s"), 1)

asyncio.run(main())
"""
    assert outcome(program) == [["exit", [0]]]


def test_a_closed_store_writes_nothing_at_exit() -> None:
    """It has nothing left to write."""
    program = """
async def main():
    async with SessionStore(backend=backend) as store:
        fill(await store.create("s"), 1)

asyncio.run(main())
atexit.register(lambda: os.write(1, json.dumps(["at exit", backend.at_exit]).encode() + b"\\n"))
"""
    assert outcome(program) == [["at exit", 0], ["exit", [0]]]


@pytest.mark.parametrize("ending", ["sys.exit()", "await store.aclose(); return", "await session.dispose(); return"])
def test_a_forked_child_writes_nothing_and_the_parent_everything_once(ending: str) -> None:
    """The child's copy refuses, whichever way the child ends; its parent does not notice."""
    program = f"""
async def main():
    store = SessionStore(backend=backend, batch_window_ms=60_000)
    session = await store.create("s")
    fill(session, 1)
    await session.flush()
    fill(session, 2)
    pid = os.fork()
    if pid == 0:
        for act in (lambda: fill(session, 1), session.flush, lambda: store.create("t"), lambda: store.inspect("s")):
            try:
                result = act()
                await result
            except StoreClosedError as error:
                assert "forked" in str(error), error
            else:
                os.write(1, b'["accepted", []]\\n')
        {ending}
    os.waitpid(pid, 0)
    fill(session, 1)
    await store.aclose()

asyncio.run(main())
"""
    # The child's report comes first and shows its own copy of the memory: only what was stored before the fork.
    assert outcome(program) == [["exit", [0]], ["exit", [0, 1, 2, 3]]]


def test_a_child_can_open_a_store_of_its_own() -> None:
    """What was inherited is dead; what the child opens itself lives, and is written at its exit."""
    program = """
async def main():
    store = SessionStore(backend=backend)
    fill(await store.create("s"), 1)

asyncio.run(main())
if os.fork() == 0:
    backend = FlakyBackend()

    async def child():
        fill(await SessionStore(backend=backend).create("s"), 2)

    asyncio.run(child())
else:
    os.wait()
"""
    assert outcome(program) == [["exit", [0, 1]], ["exit", [0]]]

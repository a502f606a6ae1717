"""Programs that end in every way, on real files: what was appended is in the log once, whatever ended the program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sessionstore import SessionStore, Verdict, scan_log
from tests.paths import REPO

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.crash

PRELUDE = """
import asyncio, os, signal, sys, threading
from sessionstore import SessionStore

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it ignored
ROOT = sys.argv[1]
STORE = {"batch_window_ms": 60_000, "compression": sys.argv[2]}

def fill(session, count):
    for _ in range(count):
        session.append("test/event", {"n": session.seq})

async def begin(store):
    session = await store.create("s")
    fill(session, 2)
    await session.flush()
    fill(session, 3)
    return session
"""

ENDINGS = {
    "it returns": """
async def main():
    await begin(SessionStore(ROOT, **STORE))
asyncio.run(main())
""",
    "sys.exit": """
async def main():
    await begin(SessionStore(ROOT, **STORE))
    sys.exit(3)
asyncio.run(main())
""",
    "an exception": """
async def main():
    await begin(SessionStore(ROOT, **STORE))
    raise ZeroDivisionError
asyncio.run(main())
""",
    "an exception inside async with": """
async def main():
    async with SessionStore(ROOT, **STORE) as store:
        await begin(store)
        raise ZeroDivisionError
asyncio.run(main())
""",
    "KeyboardInterrupt inside async with": """
async def main():
    async with SessionStore(ROOT, **STORE) as store:
        await begin(store)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)
asyncio.run(main())
""",
    "KeyboardInterrupt outside of it": """
async def main():
    await begin(SessionStore(ROOT, **STORE))
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(60)
asyncio.run(main())
""",
    "KeyboardInterrupt during a flush": """
async def main():
    async with SessionStore(ROOT, **STORE) as store:
        session = await begin(store)
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        await session.flush()
        await asyncio.sleep(60)
asyncio.run(main())
""",
    "the loop ends during a flush": """
async def main():
    session = await begin(SessionStore(ROOT, **STORE))
    task = asyncio.get_running_loop().create_task(session.flush())
    await asyncio.sleep(0)
asyncio.run(main())
""",
    "a loop that nobody ends": """
loop = asyncio.new_event_loop()
loop.run_until_complete(begin(SessionStore(ROOT, **STORE)))
""",
    "a loop in a daemon thread": """
ready = threading.Event()
async def main():
    session = await begin(SessionStore(ROOT, **STORE))
    ready.set()
    await asyncio.sleep(3600)
threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
ready.wait()
""",
    "a Runner between two calls": """
with asyncio.Runner() as runner:
    session = runner.run(begin(SessionStore(ROOT, **STORE)))
    fill(session, 0)
""",
}
SLOW = set(ENDINGS) - {"it returns", "KeyboardInterrupt inside async with", "a loop in a daemon thread"}


async def events_of(root: Path) -> list[int]:
    """What the events of session ``s`` say; nothing holds it, and a resume has nothing to repair."""
    async with SessionStore(root) as store:
        session = await store.resume("s")
        assert session.recovery is not None
        assert not session.recovery.changed
        return [json.loads(event.data_json)["n"] for event in session.events]


@pytest.mark.parametrize("compression", ["none", pytest.param("zstd", marks=pytest.mark.slow)])
@pytest.mark.parametrize("ending", [pytest.param(e, marks=[pytest.mark.slow] * (e in SLOW)) for e in ENDINGS])
async def test_what_was_buffered_is_written(tmp_path: Path, ending: str, compression: str) -> None:
    """Every orderly end of a program writes what waited, once, behind what was flushed."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + ENDINGS[ending], str(tmp_path), compression],
        check=False, capture_output=True, cwd=REPO, timeout=50,
    )  # fmt: skip
    assert b"could not be written" not in done.stderr, done.stderr.decode()
    assert await events_of(tmp_path) == [0, 1, 2, 3, 4]


@pytest.mark.slow
async def test_os_exit_loses_only_what_was_buffered(tmp_path: Path) -> None:
    """Nothing of the interpreter runs then; what a flush covered is there."""
    program = """
async def main():
    await begin(SessionStore(ROOT, **STORE))
    os._exit(0)
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", PRELUDE + program, str(tmp_path), "none"], check=True, cwd=REPO, timeout=50)
    assert await events_of(tmp_path) == [0, 1]


@pytest.mark.parametrize("flushed", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_an_append_after_the_last_write_is_refused(tmp_path: Path, flushed: bool) -> None:
    """Whoever still appends when the exit has written everything is told, instead of losing it in silence."""
    program = """
import atexit
from sessionstore import StoreClosedError
kept = []

@atexit.register  # before the store's own, so it runs after it
def late():
    try:
        fill(kept[0], 1)
    except StoreClosedError as error:
        print(error)

async def main():
    kept.append(await begin(SessionStore(ROOT, **STORE)))
    await kept[0].flush()
    fill(kept[0], int(sys.argv[3]))
asyncio.run(main())
"""
    more = 0 if flushed else 2
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program, str(tmp_path), "none", str(more)],
        check=True, capture_output=True, cwd=REPO, timeout=50,
    )  # fmt: skip
    assert b"exiting" in done.stdout
    assert await events_of(tmp_path) == list(range(5 + more))


SIGNALLED = """
async def main():
    async with SessionStore(ROOT, **STORE) as store:
        session = await store.create("s")
        while True:
            fill(session, 1)
            os.write(1, b"%d\\n" % session.seq)
            if session.seq % 7 == 0:
                await session.flush()
            await asyncio.sleep(0)
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 6, 7, 8, 50, 333, 700])
async def test_an_interrupt_at_any_moment(tmp_path: Path, after: int) -> None:
    """Ctrl-C while the program appends and flushes: all that was appended is there."""
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + SIGNALLED, str(tmp_path), "none"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPO, bufsize=0,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        said = b""
        while said.count(b"\n") < after:
            said += child.stdout.read(4096)
        child.send_signal(signal.SIGINT)
        said += child.communicate()[0]
    assert child.returncode == -signal.SIGINT
    assert await events_of(tmp_path) == list(range(said.count(b"\n")))


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_the_example_ends_in_order(tmp_path: Path, number: signal.Signals) -> None:
    """A signal while its tool runs: the turn is closed, the call's outcome unknown, everything stored, nothing held."""
    tools = tmp_path / "work"
    tools.mkdir()
    # A megabyte does not fit into a pipe: when it is written, asyncio has finished starting the tool and reads.
    # (A cancellation before that can hang in asyncio itself.)
    script = "head -c 1000000 /dev/zero; echo running > marker.pipe; exec sleep 3600\n"
    (tools / "add-item.sh").write_text(script, encoding="ascii")
    os.mkfifo(tools / "marker.pipe")
    root = tmp_path / "root"
    with subprocess.Popen(
        [sys.executable, str(REPO / "examples" / "agent.py"), "--root", str(root), "Put milk on the list."],
        cwd=tools, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
    ) as child:  # fmt: skip
        try:
            (tools / "marker.pipe").read_text(encoding="ascii")  # returns when the tool runs
            child.send_signal(number)
            _, errors = child.communicate(timeout=30)
        finally:
            _kill_group(child.pid)
    assert child.returncode == 130, errors.decode()
    (log,) = root.glob("*/*/session.jsonl")
    found = scan_log(log.read_bytes())
    assert found.verdict is Verdict.CLEAN
    events = [event.to_dict() for event in found.events]
    assert [event["type"] for event in events[-4:]] == ["tool/call", "tool/result", "step/end", "turn/end"]
    assert "TOOL_OUTCOME_UNKNOWN" in json.dumps(events[-3])
    assert "aborted" in json.dumps(events[-1])
    assert log.with_name("session.lock").read_bytes() == b""


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.mark.slow
async def test_sigterm_without_a_handler_is_like_sigkill(tmp_path: Path) -> None:
    """Python unwinds nothing then: what a flush covered is there, what came after it is lost, as the docs say."""
    program = """
async def main():
    async with SessionStore(ROOT, **STORE) as store:
        await begin(store)
        os.kill(os.getpid(), signal.SIGTERM)
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program, str(tmp_path), "none"], check=False, cwd=REPO, timeout=50
    )
    assert done.returncode == -signal.SIGTERM
    assert await events_of(tmp_path) == [0, 1]

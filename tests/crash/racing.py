"""Two processes race for one session, thousands of times: one of them writes, the log is whole, nobody's event is lost.

    python -m tests.crash.racing --attempts 10000 [--seed 5]

Both get the same order at the same moment: create this id, or resume it, append, flush, dispose.  Now and then the
log was torn before, so that they race for its repair as well, and now and then the winner keeps the session for
longer than the other is willing to wait.  After every round the log is read and compared with what was acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from sessionstore import SessionExistsError, SessionLockedError, SessionStore, Verdict, scan_log
from sessionstore.backends.paths import session_paths
from tests.paths import REPO

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["race"]


class Order(Struct, frozen=True):
    """What a racer has to do; *hold* is for how many seconds it keeps the session when it has it."""

    op: Literal["create", "resume"]
    id: str
    hold: float = 0.0


class Outcome(Struct, frozen=True):
    """What became of it: the tags of the events acknowledged, or the error and whom it names."""

    tags: tuple[str, ...] = ()
    error: str | None = None
    holder: tuple[int | None, str | None, str | None] = (None, None, None)


async def racer(root: str) -> None:
    """Carry out orders from stdin until it ends."""
    logging.getLogger("sessionstore").setLevel(logging.CRITICAL)  # to lose a race is what this is about
    count = 0
    async with SessionStore(root) as store:
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            order = msgspec.json.decode(line, type=Order)
            count += 1
            outcome = await _carry_out(store, order, [f"{os.getpid()}-{count}-{n}" for n in range(2)])
            os.write(1, msgspec.json.encode(outcome) + b"\n")


async def _carry_out(store: SessionStore, order: Order, tags: list[str]) -> Outcome:
    session = None
    try:
        session = await (store.create(order.id) if order.op == "create" else store.resume(order.id))
        for tag in tags:
            session.append("race/tag", {"tag": tag})
        await session.flush()
        await asyncio.sleep(order.hold)
    except SessionLockedError as error:
        return Outcome(error="SessionLockedError", holder=(error.pid, error.host, error.program))
    except SessionExistsError:
        return Outcome(error="SessionExistsError")
    finally:
        if session is not None:
            with contextlib.suppress(SessionExistsError, SessionLockedError):  # as the flush said
                await session.dispose()
    return Outcome(tags=tuple(tags))


@contextmanager
def _racer(root: Path) -> Generator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.crash.racing", "--racer", str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPO) as child:
        try:
            yield child
        finally:
            assert child.stdin is not None
            child.stdin.close()
    assert child.returncode == 0


def race(root: Path, *, attempts: int, seed: int) -> Counter[str]:
    """Let two processes race; how often what happened.  Raises AssertionError when a promise was broken."""
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    with _racer(root) as one, _racer(root) as other:
        number = 0
        while seen["attempts"] < attempts:
            id = f"s{number}"
            number += 1
            log = Path(session_paths(str(root), id, None).log("none"))
            stored: list[str] = []
            for op in ("create", "resume", "resume"):
                if op == "resume" and rng.random() < 0.3:
                    with log.open("ab") as file:
                        file.write(b'{"type":"race/tag","seq":2,"ti')
                    seen["torn logs"] += 1
                order = Order(op, id, 0.35 if rng.random() < 0.01 else 0.0)
                outcomes = _round(order, (one, other))
                _check(order, outcomes, (one.pid, other.pid), log, stored)
                seen.update(outcome.error or "written" for outcome in outcomes)
                seen["attempts"] += 2
    return seen


def _round(order: Order, racers: tuple[subprocess.Popen[bytes], ...]) -> list[Outcome]:
    """Give both the order at once; their outcomes."""
    line = msgspec.json.encode(order) + b"\n"
    for each in racers:
        assert each.stdin is not None
        each.stdin.write(line)
        each.stdin.flush()
    outcomes: list[Outcome] = []
    for each in racers:
        assert each.stdout is not None
        outcomes.append(msgspec.json.decode(each.stdout.readline(), type=Outcome))
    return outcomes


def _check(order: Order, outcomes: list[Outcome], pids: tuple[int, int], log: Path, stored: list[str]) -> None:
    """Compare the log with what was acknowledged: *stored* are the tags before, and afterwards."""
    written = [outcome.tags for outcome in outcomes if outcome.error is None]
    assert written, "nobody got the session"
    assert order.op == "resume" or len(written) == 1, "both created one session"
    for outcome, rival in zip(outcomes, reversed(pids), strict=True):
        if outcome.error == "SessionLockedError":
            pid, host, program = outcome.holder
            # The holder may have let go between the last try and the look at its note.
            assert pid in {rival, None}
            assert pid is None or (host, program) == (socket.gethostname(), "racing.py")
    scan = scan_log(log.read_bytes())
    assert scan.verdict is Verdict.CLEAN, scan.findings
    tags = [msgspec.json.decode(event.data_json)["tag"] for event in scan.events]
    new = tags[len(stored) :]
    orders = [[*written[0], *written[-1]], [*written[-1], *written[0]]] if len(written) == 2 else [list(written[0])]
    assert tags[: len(stored)] == stored
    assert new in orders, f"{new} is on the disk, {written} was acknowledged"
    stored += new


def main() -> int:
    """Race, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--racer", metavar="ROOT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.racer:
        asyncio.run(racer(options.racer))
        return 0
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="sessionstore-race-") as place:
        seen = race(Path(place), attempts=options.attempts, seed=options.seed)
    print("| what happened | times |\n|---|---|")
    for what, times in sorted(seen.items()):
        print(f"| {what} | {times} |")
    print("| damaged logs, lost or doubled events | 0 |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

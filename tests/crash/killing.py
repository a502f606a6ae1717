"""Kill an agent with SIGKILL, a thousand times, and count what its sessions lost: nothing, or this fails.

    python -m tests.crash.killing --kills 1000 [--seed 5]

A child (``agent_child.py``) runs an agent and tells what it does.  It dies in one of three ways: the parent kills
it a random moment after something it said; it kills itself at a file operation that was chosen before, or with half
of a write done; or strace kills it at a system call.  The class a kill counts in is decided by what the child said
last, so a kill that came late counts where it really landed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from msgspec import Struct, structs

from sessionstore.backends.paths import session_paths
from tests.crash.agent_child import CWD, Plan, SelfKill
from tests.crash.children import Aim, no_strace, run_child
from tests.crash.witness import Checked, Witness, check_session

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CLASSES", "Death", "choose", "die", "kill_until", "table"]

CLASSES = ("window", "write", "fsync", "publication", "repair", "tool")
SESSION = "s"
BIG = 3_000_000  # characters of a tool's result: a write of that size can be hit in its middle

Compression = Literal["none", "zstd"]


class Death(Struct, frozen=True, kw_only=True):
    """One kill, the class it landed in, and what was checked after it."""

    moment: str
    compression: Compression
    checked: Checked


def choose(kind: str, rng: random.Random, root: Path, *, strace: bool) -> list[Aim]:
    """The runs of one session that are to end with a kill in the class *kind*; the last one's kill counts."""
    compression: Compression = "zstd" if rng.random() < 0.4 else "none"
    plan = Plan(root=str(root), session=SESSION, compression=compression, turns=5, seed=rng.getrandbits(32))
    how = rng.choice(("parent", "self", "strace" if strace else "self"))
    match kind:
        case "window":
            plan = structs.replace(plan, window_ms=rng.choice((60_000, 60_000, 30)), text=rng.choice((40, 20_000)))
            return [Aim(plan=plan, line="E", count=rng.randint(4, 150), delay=rng.random() * 0.002)]
        case "write":
            return [_at_write(plan, rng, how)]
        case "fsync":
            return [_at_call(plan, rng, how, "sync", "fsync", rng.randint(9, 30))]
        case "publication":
            name = rng.choice(("any", "any", "link", "create", "sync"))
            call = rng.choice(("fsync", "link", "linkat", "unlink", "mkdir", "openat", "flock"))
            most = {"any": 24, "sync": 4}.get(name, 1)
            return [_at_call(plan, rng, how, name, call, rng.randint(1, most), file_only=call == "openat")]
        case "repair":
            first = Aim(plan=structs.replace(plan, kill=SelfKill("write", rng.randint(5, 14), "half")))
            if rng.random() < 0.3:
                first = Aim(plan=plan, line="E", count=rng.randint(25, 100))
            again = structs.replace(plan, resume=True)
            call = rng.choice(("ftruncate", "rename", "fsync", "openat"))
            return [first, _at_call(again, rng, how, "any", call, rng.randint(1, 26), file_only=call == "openat")]
        case _:
            count = rng.randint(1, 5)
            plan = structs.replace(plan, slow_tool=rng.choice((count, count, 1000)))
            return [Aim(plan=plan, line="T", count=count, delay=rng.random() * 0.005)]


def _at_write(plan: Plan, rng: random.Random, how: str) -> Aim:
    # The first three writes are the note in the lock, the header and the first batch.
    if how == "parent":
        plan = structs.replace(plan, text=BIG)
        return Aim(plan=plan, line="B write", count=rng.randint(4, 12), delay=rng.random() * 0.004)
    if how == "self":
        at = rng.choice(("half", "half", "before", "after"))
        return Aim(plan=structs.replace(plan, kill=SelfKill("write", rng.randint(4, 16), _at(at))))
    return Aim(plan=plan, strace=_strace("write", rng.randint(1, 9), path=_log(plan)))


def _at_call(  # noqa: PLR0917 - one line of the table above
    plan: Plan, rng: random.Random, how: str, name: str, call: str, nth: int, *, file_only: bool = False
) -> Aim:
    if how == "parent":
        line = "B" if name == "any" else f"B {name}"
        return Aim(plan=plan, line=line, count=nth, delay=rng.random() * 0.003)
    if how == "self":
        return Aim(plan=structs.replace(plan, kill=SelfKill(name, nth, _at(rng.choice(("before", "half", "after"))))))
    return Aim(plan=plan, strace=_strace(call, rng.randint(1, 6), path=_log(plan) if file_only else None))


def _at(text: str) -> Literal["before", "half", "after"]:
    return cast("Literal['before', 'half', 'after']", text)


def _log(plan: Plan) -> str:
    return session_paths(plan.root, plan.session, CWD).log(plan.compression)


def _strace(call: str, nth: int, *, path: str | None = None) -> tuple[str, ...]:
    """The command that kills what follows it at the *nth* system call *call* of a thread."""
    only = ("-P", path) if path is not None else ()
    inject = f"inject={call}:signal=SIGKILL:when={nth}"
    return ("strace", "-f", "-qq", "-o", "/dev/null", *only, "-e", f"trace={call}", "-e", inject)


def die(aims: Iterable[Aim], root: Path) -> Death:
    """Run the children of one session one after the other, then check what they left.  Raises AssertionError."""
    said = Witness()
    moment = ""
    plan: Plan | None = None
    for aim in aims:
        if plan is not None:
            said.next_child()
            if said.acknowledged == 0:
                break  # it died before its session was there: nothing to resume
        plan = aim.plan
        run_child(aim, said)
        moment = said.moment()
    assert plan is not None
    checked = asyncio.run(check_session(root, SESSION, said))
    return Death(moment=moment, compression=plan.compression, checked=checked)


def _one(kind: str, seed: str, *, strace: bool) -> Death:
    """One kill in a directory of its own, which stays as evidence when a promise was broken."""
    root = Path(tempfile.mkdtemp(prefix="sessionstore-kill-"))
    aims = choose(kind, random.Random(seed), root, strace=strace)
    try:
        death = die(aims, root)
    except BaseException:
        print(f"seed {seed}, class {kind}: broken; the evidence is in {root}\n{aims}", file=sys.stderr, flush=True)
        raise
    shutil.rmtree(root)
    return death


def table(deaths: list[Death]) -> str:
    """What was seen, per class of moments, as a Markdown table."""
    rows = ["| killed while | kills | raw | zstd | torn tails | acknowledged events checked | lost | doubled |"]
    rows.append("|---|---|---|---|---|---|---|---|")
    others = sorted({death.moment for death in deaths} - set(CLASSES))
    for moment in (*CLASSES, *others):
        some = [death for death in deaths if death.moment == moment]
        raw = sum(death.compression == "none" for death in some)
        torn = sum(death.checked.torn for death in some)
        checked = sum(death.checked.acknowledged for death in some)
        rows.append(f"| {moment} | {len(some)} | {raw} | {len(some) - raw} | {torn} | {checked} | 0 | 0 |")
    checked = sum(death.checked.acknowledged for death in deaths)
    rows.append(f"| all | {len(deaths)} | | | | {checked} | 0 | 0 |")
    return "\n".join(rows)


def kill_until(*, kills: int, each: int, seed: int, jobs: int = 2, strace: bool = True) -> list[Death]:
    """Kill until *each* class has that many and all together have *kills*.  Raises AssertionError."""
    deaths: list[Death] = []
    began = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        while len(deaths) < kills or _behind(deaths, each):
            if len(deaths) > 10 * max(kills, each * len(CLASSES)):
                raise AssertionError(f"kills do not land in {_behind(deaths, each)}")
            first = len(deaths)
            kinds = [_next_kind(deaths, number) for number in range(first, first + 4 * jobs)]
            runs = [pool.submit(_one, kind, f"{seed}-{first + n}", strace=strace) for n, kind in enumerate(kinds)]
            deaths += [run.result() for run in runs]
            if len(deaths) % 100 < len(kinds):
                print(f"{len(deaths)} kills after {time.monotonic() - began:.0f} s", flush=True)
    return deaths


def main() -> int:
    """Kill, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--each", type=int, default=20, help="at least so many in each class")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    reason = no_strace()
    print(f"seed {options.seed}" + ("" if reason is None else f"; no exact system calls: {reason}"), flush=True)
    wanted = {"kills": options.kills, "each": options.each, "seed": options.seed, "jobs": options.jobs}
    print(table(kill_until(**wanted, strace=reason is None)))
    return 0


def _behind(deaths: list[Death], each: int) -> list[str]:
    return [kind for kind in CLASSES if sum(death.moment == kind for death in deaths) < each]


def _next_kind(deaths: list[Death], number: int) -> str:
    """The classes in turn; every second time the one that is behind most."""
    if number % 2 and deaths:
        return min(CLASSES, key=lambda kind: sum(death.moment == kind for death in deaths))
    return CLASSES[number // 2 % len(CLASSES)]


if __name__ == "__main__":
    sys.exit(main())

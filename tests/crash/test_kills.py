"""Agents that are killed with SIGKILL, and what their sessions still know."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Literal

import pytest
from msgspec import structs

from tests.crash.agent_child import Plan, SelfKill
from tests.crash.children import Aim, no_strace
from tests.crash.killing import CLASSES, SESSION, choose, die, kill_until, table

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(sys.platform != "linux", reason="watching a child die needs pidfds"),
]

HALF_A_WRITE = SelfKill("write", 6, "half")


def aims_at(kind: str, plan: Plan) -> list[Aim]:
    """Runs that end with a kill in exactly that class of moments."""
    match kind:
        case "window":
            return [Aim(plan=structs.replace(plan, window_ms=60_000), line="E", count=15)]
        case "write":
            return [Aim(plan=structs.replace(plan, kill=HALF_A_WRITE))]
        case "fsync":
            return [Aim(plan=structs.replace(plan, kill=SelfKill("sync", 9, "before")))]
        case "publication":
            return [Aim(plan=structs.replace(plan, kill=SelfKill("link", 1, "after")))]
        case "repair":
            first = structs.replace(plan, kill=HALF_A_WRITE)
            # The second cut of the resume: the first one empties the note in the lock file.
            again = structs.replace(plan, resume=True, kill=SelfKill("truncate", 2, "after"))
            return [Aim(plan=first), Aim(plan=again)]
        case _:
            return [Aim(plan=structs.replace(plan, slow_tool=2), line="T", count=2)]


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("kind", CLASSES)
def test_a_killed_agent_loses_nothing_acknowledged(
    kind: str, compression: Literal["none", "zstd"], tmp_path: Path
) -> None:
    """Killed in each class of moments: all that a flush covered is there once, and the session goes on."""
    plan = Plan(root=str(tmp_path), session=SESSION, compression=compression, turns=2, seed=5)
    death = die(aims_at(kind, plan), tmp_path)
    assert death.moment == kind
    assert (death.checked.acknowledged > 0) == (kind != "publication")
    if kind == "write":
        assert death.checked.torn
    if kind == "tool":
        assert death.checked.unknown_outcomes == 1


@pytest.mark.slow
@pytest.mark.parametrize("call", ["fsync", "linkat", "link", "unlink", "write", "ftruncate"])
def test_an_agent_killed_at_a_system_call(call: str, tmp_path: Path) -> None:
    """The kernel kills it at the first to fourth call of a kind, whatever that call was for."""
    reason = no_strace()
    if reason:
        pytest.skip(reason)
    for nth in range(1, 5):
        root = tmp_path / str(nth)
        command = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}")
        inject = (*command, "-e", f"inject={call}:signal=SIGKILL:when={nth}")
        die([Aim(plan=Plan(root=str(root), session=SESSION, turns=2, seed=nth), strace=inject)], root)


@pytest.mark.slow
def test_agents_killed_at_random_moments(capsys: pytest.CaptureFixture[str]) -> None:
    """At least eight in each class of moments; `make crash-kill` kills a thousand."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"python -m tests.crash.killing --seed {seed}")
    deaths = kill_until(kills=48, each=8, seed=seed, strace=no_strace() is None)
    with capsys.disabled():
        print(f"\nseed {seed}\n{table(deaths)}")
    assert sum(death.checked.acknowledged for death in deaths) > 0


def test_every_kill_that_is_chosen_can_be_told_again(tmp_path: Path) -> None:
    """The printed seed is all that is needed to aim again at the same moment."""
    for kind in CLASSES:
        one = choose(kind, random.Random("5-1"), tmp_path, strace=True)
        assert one == choose(kind, random.Random("5-1"), tmp_path, strace=True)
        assert one != choose(kind, random.Random("5-2"), tmp_path, strace=True)

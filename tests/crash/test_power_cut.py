"""Power cuts on real file systems: what was acknowledged is there when the power is back."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from tests.crash.agent_child import Plan
from tests.crash.children import Aim, run_child
from tests.crash.disks import FILE_SYSTEMS, FileSystem, LoopDisk, no_loop, require
from tests.crash.power import SESSION, cut_many, table
from tests.crash.witness import Checked, Witness, check_session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.crash


@pytest.fixture(params=FILE_SYSTEMS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LoopDisk]:
    """A mounted disk; skipped where there can be none."""
    kind: FileSystem = request.param
    require(no_loop(kind))
    try:
        made = LoopDisk(tmp_path, kind)
        made.mount()
    except OSError as error:
        pytest.skip(str(error))
    try:
        yield made
    finally:
        made.close()


def run_and_cut(disk: LoopDisk, *, lie_about_sync: bool) -> Checked:
    """An agent whose power is cut when it has written for a while, and what its session holds afterwards."""
    plan = Plan(root=str(disk.path / "root"), session=SESSION, turns=3, seed=5, lie_about_sync=lie_about_sync)
    said = Witness()

    def cut() -> None:
        said.power_off()
        disk.cut_power()

    run_child(Aim(plan=plan, line="A", count=60), said, then=cut)
    assert said.acknowledged > 0
    disk.power_up()
    return asyncio.run(check_session(disk.path / "root", SESSION, said))


def test_a_power_cut_loses_nothing_acknowledged(disk: LoopDisk) -> None:
    """In the middle of an agent's second turn."""
    assert run_and_cut(disk, lie_about_sync=False).acknowledged > 0


@pytest.mark.slow
def test_without_sync_a_power_cut_loses_and_the_harness_tells(disk: LoopDisk) -> None:
    """The same cut under a library that only claims to sync: the check that passes above fails here."""
    with pytest.raises(AssertionError, match="were acknowledged"):
        run_and_cut(disk, lie_about_sync=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILE_SYSTEMS)
def test_power_cuts_at_random_moments(kind: FileSystem, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten on each file system; `make crash-power` makes two hundred."""
    require(no_loop(kind))
    seed = random.SystemRandom().getrandbits(32)
    print(f"python -m tests.crash.power --seed {seed}")
    cuts = cut_many(tmp_path, kind, cuts=10, seed=seed)
    with capsys.disabled():
        print(f"\nseed {seed}\n{table(cuts)}")
    assert sum(cut.checked.acknowledged for cut in cuts) > 0

"""Cut the power under an agent, on real file systems, and count what its sessions lost: nothing, or this fails.

    python -m tests.crash.power --cuts 200 [--seed 5]

An agent (``agent_child.py``) writes to a file system of its own, loop-mounted from a file.  A random moment after
something it said the file system is shut down without flushing its journal: what was synced is on the disk, all else
is gone, and every later write fails.  The agent is killed, the disk mounted again, the session resumed and checked.
Needs root, loop devices, and mkfs.ext4 and mkfs.xfs (packages e2fsprogs and xfsprogs).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path
from typing import Literal

from msgspec import Struct, structs

from tests.crash.agent_child import Plan, SelfKill
from tests.crash.children import Aim, run_child
from tests.crash.disks import FILE_SYSTEMS, FileSystem, LoopDisk, no_loop
from tests.crash.witness import Checked, Witness, check_session

__all__ = ["PowerCut", "cut_many", "cut_once", "table"]

SESSION = "s"


class PowerCut(Struct, frozen=True, kw_only=True):
    """One cut: on which file system, in which class of moments, and what was checked when the power was back."""

    file_system: FileSystem
    moment: str
    checked: Checked


def choose(rng: random.Random, root: Path) -> list[Aim]:
    """The runs of one session; during the last one the power is cut."""
    compression: Literal["none", "zstd"] = "zstd" if rng.random() < 0.4 else "none"
    plan = Plan(
        root=str(root),
        session=SESSION,
        compression=compression,
        turns=4,
        seed=rng.getrandbits(32),
        text=rng.choice((40, 40, 100_000)),
        window_ms=rng.choice((5, 20, 60_000)),
    )
    delay = rng.random() * 0.003
    if rng.random() < 0.2:
        first = Aim(plan=structs.replace(plan, kill=SelfKill("write", rng.randint(5, 14), "half")))
        again = structs.replace(plan, resume=True)
        return [first, Aim(plan=again, line="B", count=rng.randint(1, 26), delay=delay)]
    line, most = rng.choice(
        (("E", 120), ("B write", 16), ("F write", 16), ("B sync", 30), ("F sync", 30), ("B", 24), ("A", 200), ("T", 6))
    )
    return [Aim(plan=plan, line=line, count=rng.randint(1, most), delay=delay)]


def cut_once(disk: LoopDisk, rng: random.Random, name: str) -> PowerCut:
    """Cut the power of *disk*, which is mounted before and after.  Raises AssertionError."""
    root = disk.path / name
    said = Witness()
    moments: list[str] = []

    def cut() -> None:
        moments.append(said.moment())
        said.power_off()
        disk.cut_power()

    *before, last = choose(rng, root)
    for aim in before:
        run_child(aim, said)
        said.next_child()
    run_child(last, said, then=cut)
    if not moments:
        cut()  # it had said all it had to say
    disk.power_up()
    checked = asyncio.run(check_session(root, SESSION, said))
    return PowerCut(file_system=disk.kind, moment=moments[0], checked=checked)


def cut_many(place: Path, kind: FileSystem, *, cuts: int, seed: int) -> list[PowerCut]:
    """Cut the power of one disk so many times.  Raises AssertionError."""
    done: list[PowerCut] = []
    with LoopDisk(place, kind) as disk:
        for number in range(cuts):
            name = f"{seed}-{number}"
            try:
                done.append(cut_once(disk, random.Random(f"{kind}-{name}"), name))
            except BaseException:
                evidence = tempfile.mkdtemp(prefix="sessionstore-power-")
                disk.image.rename(Path(evidence) / disk.image.name)
                print(f"cut {name} on {kind}: broken; the disk is in {evidence}", file=sys.stderr, flush=True)
                raise
    return done


def table(cuts: list[PowerCut]) -> str:
    """What was seen, per file system and class of moments, as a Markdown table."""
    rows = ["| file system | power cut while | cuts | torn tails | acknowledged events checked | lost | doubled |"]
    rows.append("|---|---|---|---|---|---|---|")
    for kind in FILE_SYSTEMS:
        some = [cut for cut in cuts if cut.file_system == kind]
        for moment in [*sorted({cut.moment for cut in some}), "all"] if some else []:
            these = [cut for cut in some if moment in {cut.moment, "all"}]
            torn = sum(cut.checked.torn for cut in these)
            acknowledged = sum(cut.checked.acknowledged for cut in these)
            rows.append(f"| {kind} | {moment} | {len(these)} | {torn} | {acknowledged} | 0 | 0 |")
    return "\n".join(rows)


def main() -> int:
    """Cut, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=200, help="half of them on ext4, half on xfs")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    kinds: list[FileSystem] = []
    for kind in FILE_SYSTEMS:
        reason = no_loop(kind)
        if reason is None:
            kinds.append(kind)
        else:
            print(f"no power cut on {kind}: {reason}")
    if not kinds:
        return 0
    cuts: list[PowerCut] = []
    with tempfile.TemporaryDirectory(prefix="sessionstore-power-") as place:
        for kind in kinds:
            cuts += cut_many(Path(place), kind, cuts=options.cuts // len(kinds), seed=options.seed)
    print(table(cuts))
    return 0


if __name__ == "__main__":
    sys.exit(main())

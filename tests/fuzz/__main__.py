"""Fuzz the recovery: ``python -m tests.fuzz --inputs 1000000 --seed N --jobs 2``."""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import random
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fuzz.inputs import BLOCK, make_input
from tests.fuzz.rows import ROWS
from tests.fuzz.run import Failure, Tally, run_block

if TYPE_CHECKING:
    from collections.abc import Iterator

VERDICTS = ("clean", "interrupted", "torn", "damaged", "invalid", "unsupported", "empty")


def _tasks(options: argparse.Namespace) -> Iterator[tuple[int, int, int]]:
    for start in range(options.first, options.first + options.inputs, BLOCK):
        yield options.seed, start, min(start + BLOCK, options.first + options.inputs)


def _fuzz(options: argparse.Namespace) -> tuple[Tally, float]:
    tally, cpu = Tally(), 0.0
    began = told = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for part, seconds in pool.imap_unordered(run_block, _tasks(options)):
            tally.add(part)
            cpu += seconds
            for failure in part.failures:
                print(f"failed: {failure.rule}, input {failure.number}: {failure.message[:200]}", flush=True)
            if time.monotonic() - told > 30:
                told = time.monotonic()
                rate = tally.inputs / (told - began)
                print(f"{tally.inputs} inputs, {rate:.0f}/s, {len(tally.failures)} failures", flush=True)
            over = options.seconds is not None and time.monotonic() - began > options.seconds
            if over or len({each.rule for each in tally.failures}) >= options.rules:
                break
    return tally, cpu


def _show(tally: Tally, cpu: float, wall: float) -> None:
    print(f"{tally.inputs} inputs, {tally.size / max(tally.inputs, 1):.0f} bytes each; {wall:.0f} s, "
          f"{cpu:.0f} s of processor time: {tally.inputs / max(cpu, 0.01):.0f} inputs/s/core")  # fmt: skip
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(f"the largest process had {peak // 1024} MiB")
    for name in ("sources", "through", "verdicts", "mutators", "rows", "refusals"):
        counts = getattr(tally, name)
        print(f"{name}: " + ", ".join(f"{key} {count}" for key, count in counts.most_common()))
    missing = [verdict for verdict in VERDICTS if not tally.verdicts[verdict]]
    missing += [row for row in ROWS if not tally.rows[row]]
    if missing:
        print("never reached: " + ", ".join(missing))


def _keep(failures: list[Failure], folder: Path) -> None:
    for failure in failures:
        folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(failure.data).hexdigest()[:12]
        (folder / f"{name}.bin").write_bytes(failure.data)
        print(f"\nFAILED: {failure.rule}\n  {failure.message[:500]}\n  made by {', '.join(failure.mutators)}; "
              f"the smallest input found, {len(failure.data)} bytes, is {folder / name}.bin\n  again: "
              f"python -m tests.fuzz --seed {failure.seed} --first {failure.number} --inputs 1 --jobs 1")  # fmt: skip


def main() -> int:
    """Run, print the figures, keep what failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, help="stop after so long")
    parser.add_argument("--rules", type=int, default=10, help="stop when so many different rules are broken")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where failing inputs go")
    parser.add_argument("--show", action="store_true", help="write the first input to stdout and stop")
    options = parser.parse_args()
    if options.show:
        sys.stdout.buffer.write(make_input(options.seed, options.first).sample.data)
        return 0
    print(f"seed {options.seed}", flush=True)
    began = time.monotonic()
    tally, cpu = _fuzz(options)
    _show(tally, cpu, time.monotonic() - began)
    _keep(tally.failures, options.keep)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())

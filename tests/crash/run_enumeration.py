"""Enumerate crashes: every moment of every life of a store, and the images that a power cut could leave of each.

    python -m tests.crash.run_enumeration [--images 100000] [--seed 5] [--jobs 2]

An image is counted when a store has opened it and every promise was checked on it; of the moments of one protocol
that could leave the same image under the same promises, one counts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import logging
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Final, Literal, TypeVar
from unittest import mock

from msgspec import Struct, field, structs

from sessionstore import SessionStoreError
from tests.crash.checks import check
from tests.crash.disk import Disk
from tests.crash.enumeration import Choice, images
from tests.crash.mutants import MUTANTS
from tests.crash.promises import BrokenPromiseError, Inline, Outcome, Promise, Setup
from tests.crash.workloads import (
    Crash,
    Life,
    Workload,
    batches,
    brief,
    deleting,
    exiting,
    fault_at,
    forking,
    mending_a_hole,
    mending_two_histories,
    resuming,
    resuming_torn,
    robbed,
    streaming,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from tests.crash.disk import Fault

__all__ = ["PROTOCOLS", "Enumeration", "Protocol", "Tally", "enumerate_crashes", "no_threads"]

T = TypeVar("T")
MODES: Final = ("once", "dead", "done", "lies", "short")
EXAMPLES: Final = 3


class Tally(Struct):
    """What was seen of one protocol: file operations in front of which it could die, moments that differed, images."""

    operations: int = 0
    moments: int = 0
    images: int = 0
    acked: int = 0
    outcomes: dict[Outcome, int] = field(default_factory=dict)
    broken: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)

    def note(self, kind: str, example: str) -> None:
        """Count a broken promise."""
        self.broken[kind] = self.broken.get(kind, 0) + 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(example)


class Protocol(Struct, frozen=True, kw_only=True):
    """What is enumerated, and *then* what: nothing more, another life after each image, or after each kill.

    With *faults* each file operation fails, in every run another one.  *share* is how many images are opened per
    moment, in hundredths of the limit.
    """

    name: str
    workload: Workload
    setup: Setup = Setup()
    then: Literal["nothing", "power cut", "kill"] = "nothing"
    faults: bool = False
    share: int = 100
    make: type[Disk] = Disk


class Enumeration:
    """Enumerates one protocol, at most *limit* images per moment (times its share), and *most* in all.

    Where *most* bounds it, moments are taken in an order drawn by the seed.  Prints nothing.
    """

    def __init__(
        self,
        protocol: Protocol,
        loop: asyncio.AbstractEventLoop,
        *,
        seed: int,
        limit: int = 100,
        most: int | None = None,
        block: int = 64,
    ) -> None:
        self.tally = Tally()
        self._protocol = protocol
        self._loop = loop
        self._seed = seed
        self._limit = max(2, limit * protocol.share // 100)
        self._most = most
        self._block = block
        self._order = random.Random(seed)
        self._seen: set[tuple[bytes, tuple[Promise, ...]]] = set()

    def go(self, *, until_broken: bool = False) -> Tally:
        """All of it, or up to the first broken promise."""
        for life, label in self._lives():
            for _ in self._try_all(life, label):
                if (until_broken and self.tally.broken) or self.tally.images == self._most:
                    return self.tally
        return self.tally

    def _lives(self) -> Iterator[tuple[Life, str]]:
        protocol = self._protocol
        life = self._first_life()
        if protocol.faults:
            for mode, number in self._some(itertools.product(MODES, range(1, life.disk.operations + 1))):
                yield self._first_life(fault_at(number, mode)), f"{mode} {number}"
        elif protocol.then == "power cut":
            whole: list[tuple[Crash, Disk]] = []
            for found in self._try_all(life, ""):
                whole += [] if found is None else [found]
                if self._most is not None and self.tally.images >= self._most // 2:
                    break
            for number, (crash, disk) in enumerate(self._some(whole)):
                kept = _kept(disk, self._loop, protocol.setup)
                yield self._second_life(crash, disk, kept), f"cut {number} at {crash.moment}, then"
        elif protocol.then == "kill":
            for number, crash in enumerate(self._some(life.crashes)):
                yield self._second_life(crash, crash.disk.clone(), ()), f"kill {number} at {crash.moment}, then"
        else:
            yield life, ""

    def _some(self, every: Iterable[T]) -> list[T]:
        found = list(every)
        return found if self._most is None else self._order.sample(found, len(found))

    def _first_life(self, fault: Callable[[int, str], Fault | None] | None = None) -> Life:
        disk = self._protocol.make(self._block)
        disk.mkdir("/disk")
        disk._make_names_durable(disk._directory("/"))
        disk.operations = 0
        disk.fault = fault
        life = Life(disk, self._protocol.setup)
        self._loop.run_until_complete(life.live(self._protocol.workload))
        return life

    def _second_life(self, crash: Crash, disk: Disk, kept: tuple[bytes, ...]) -> Life:
        promises = [structs.replace(promise, kept=kept) for promise in crash.promises]
        life = Life(disk, self._protocol.setup, *promises)
        self._loop.run_until_complete(life.live(resuming))
        return life

    def _try_all(self, life: Life, label: str) -> Iterator[tuple[Crash, Disk] | None]:
        """Open every image of every moment of *life*; those that keep every promise, as they were before."""
        self.tally.operations += life.operations
        for crash in self._some(life.crashes):
            rng = random.Random(f"{self._seed} {self._protocol.name} {label} {crash.moment}")
            self.tally.moments += 1
            for choice in images(crash.disk, rng, self._limit):
                image = choice.of(crash.disk)
                key = (image.digest(), crash.promises)
                if key in self._seen:
                    continue
                self._seen.add(key)
                whole = image.clone()
                good = self._open(image, crash, choice, f"{self._protocol.name}: {label} {crash.moment}: {choice}")
                yield (crash, whole) if good else None

    def _open(self, image: Disk, crash: Crash, choice: Choice, label: str) -> bool:
        tally, setup = self.tally, self._protocol.setup
        promises = crash.promises
        stale = choice.stale(crash.disk)
        if stale == "end" or setup.durability == "flush":
            promises = tuple(structs.replace(each, doubt="damage") for each in promises)
        elif stale == "text":
            promises = tuple(structs.replace(each, doubt="stale text") for each in promises)
        tally.images += 1
        tally.acked += sum(promise.acked for promise in promises)
        try:
            outcomes = self._loop.run_until_complete(check(image, promises, setup, thorough=tally.images % 4 == 0))
        except BrokenPromiseError as broken:
            tally.note(broken.kind, f"{label}: {broken}")
            return False
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported with the image that brought it about
            tally.note(type(error).__name__, f"{label}: {type(error).__name__}: {error}")
            return False
        for outcome in outcomes:
            tally.outcomes[outcome] = tally.outcomes.get(outcome, 0) + 1
        return True


def _kept(image: Disk, loop: asyncio.AbstractEventLoop, setup: Setup) -> tuple[bytes, ...]:
    """The bytes that a resume of session ``s`` on *image* puts into quarantine."""

    async def resume() -> None:
        store = setup.open(disk)
        with contextlib.suppress(SessionStoreError):
            await store.resume("s")
        await store.aclose()

    disk = image.clone()
    loop.run_until_complete(resume())
    return tuple(data for path, data in disk.tree().items() if ".jsonl.cut-" in path and data is not None)


def _at_once(_seconds: float) -> None:
    """Sleep."""


@contextlib.contextmanager
def no_threads() -> Generator[asyncio.AbstractEventLoop]:
    """An event loop on which the store's blocking work is done at once, and a silent logger.

    Nobody sleeps: on a busy machine giving up the GIL costs more than all else, and here nobody waits for it.
    """
    logger = logging.getLogger("sessionstore")
    before, logger.disabled = logger.disabled, True
    loop = asyncio.new_event_loop()
    loop.set_default_executor(Inline())
    try:
        with mock.patch("time.sleep", _at_once):
            yield loop
    finally:
        loop.close()
        logger.disabled = before


ZSTD: Final = Setup(compression="zstd")
PROTOCOLS: Final = (
    Protocol(name="create, append, flush", workload=batches, share=2000),
    Protocol(name="create, append, flush; zstd", workload=batches, setup=ZSTD, share=3000),
    Protocol(name="batches on their own", workload=streaming, setup=Setup(batch_bytes=1), share=1500),
    Protocol(
        name="batches on their own; durability flush",
        workload=streaming,
        setup=Setup(batch_bytes=1, durability="flush"),
        share=1000,
    ),
    Protocol(name="fork", workload=forking, share=600),
    Protocol(name="fork; zstd", workload=forking, setup=ZSTD, share=600),
    Protocol(name="power cut, resume, power cut", workload=batches, then="power cut", share=16),
    Protocol(name="power cut, resume, power cut; zstd", workload=batches, setup=ZSTD, then="power cut", share=16),
    Protocol(name="kill, resume, power cut", workload=batches, then="kill", share=100),
    Protocol(name="kill, resume, power cut; zstd", workload=batches, setup=ZSTD, then="kill", share=100),
    Protocol(name="a failing disk", workload=batches, faults=True, share=25),
    Protocol(name="a failing disk; zstd", workload=batches, setup=ZSTD, faults=True, share=20),
    Protocol(
        name="a failing disk; durability flush",
        workload=streaming,
        setup=Setup(batch_bytes=1, durability="flush"),
        faults=True,
        share=12,
    ),
    Protocol(name="resume of a torn log on a failing disk", workload=resuming_torn, faults=True, share=16),
    Protocol(
        name="resume of a torn log on a failing disk; zstd", workload=resuming_torn, setup=ZSTD, faults=True, share=16
    ),
    Protocol(name="published again after it vanished", workload=robbed, share=800),
    Protocol(name="published again on a failing disk", workload=robbed, faults=True, share=10),
    Protocol(name="delete, restore, empty the trash", workload=deleting, share=800),
    Protocol(name="delete, restore, empty the trash on a failing disk", workload=deleting, faults=True, share=6),
    Protocol(name="salvage of a hole", workload=mending_a_hole, share=1200),
    Protocol(name="salvage of a hole; zstd", workload=mending_a_hole, setup=ZSTD, share=1200),
    Protocol(name="salvage of two histories", workload=mending_two_histories, share=600),
    Protocol(name="salvage of two histories on a failing disk", workload=mending_two_histories, faults=True, share=6),
    Protocol(name="interpreter exit", workload=exiting, share=600),
    Protocol(name="locks elsewhere", workload=batches, setup=Setup(lock_dir="/disk/locks"), share=400),
)


def enumerate_crashes(
    protocol: Protocol,
    *,
    seed: int,
    limit: int = 100,
    most: int | None = None,
    block: int = 64,
    until_broken: bool = False,
) -> Tally:
    """Enumerate one protocol, as :class:`Enumeration` says."""
    with no_threads() as loop:
        return Enumeration(protocol, loop, seed=seed, limit=limit, most=most, block=block).go(until_broken=until_broken)


def table(tallies: dict[str, Tally]) -> str:
    """What was seen, as a Markdown table."""
    rows = ["| protocol | operations | images | acknowledged events checked | torn | refused | promises broken |"]
    rows.append("|---|---|---|---|---|---|---|")
    total = Tally()
    for name, tally in tallies.items():
        total.operations += tally.operations
        total.images += tally.images
        total.acked += tally.acked
        for outcome, count in tally.outcomes.items():
            total.outcomes[outcome] = total.outcomes.get(outcome, 0) + count
        for kind, count in tally.broken.items():
            total.broken[kind] = total.broken.get(kind, 0) + count
        rows.append(_row(name, tally))
    return "\n".join([*rows, _row("all", total)])


def _row(name: str, tally: Tally) -> str:
    found = tally.outcomes
    refused = sum(found.get(each, 0) for each in _REFUSED)
    figures = (tally.operations, tally.images, tally.acked, found.get("torn", 0), refused)
    broken = ", ".join(f"{kind}: {count}" for kind, count in sorted(tally.broken.items())) or "0"
    return f"| {name} | " + " | ".join(f"{figure:,}" for figure in figures) + f" | {broken} |"


_REFUSED: Final[tuple[Outcome, ...]] = ("damaged", "invalid", "not repairable")


def main(arguments: Sequence[str] | None = None) -> int:
    """Enumerate everything and print the figures; 1 when a promise was broken or a mutant was not caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=100, help="images per moment, times the share of the protocol")
    parser.add_argument("--most", type=int, help="images per protocol")
    parser.add_argument("--block", type=int, default=64, help="bytes per block")
    parser.add_argument("--images", type=int, default=0, help="fail below so many images")
    parser.add_argument("--only", default="", help="protocols whose name holds this")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    began = time.monotonic()
    wanted = [protocol for protocol in PROTOCOLS if options.only in protocol.name]
    wanted += [mutated(name) for name in MUTANTS if options.only in name]
    tallies: dict[str, Tally] = {}
    how = {"seed": options.seed, "limit": options.limit, "most": options.most, "block": options.block}
    with ProcessPoolExecutor(options.jobs) as pool:
        runs = {protocol.name: pool.submit(enumerate_crashes, protocol, **how) for protocol in wanted}
        for name, run in runs.items():
            tallies[name] = run.result()
            print(f"{time.monotonic() - began:6.0f} s  {_row(name, tallies[name])}", flush=True)
            for example in tallies[name].examples if name not in MUTANTS else ():
                print(f"    {example}", flush=True)
    right = {name: tally for name, tally in tallies.items() if name not in MUTANTS}
    print(table(right))
    print(table({name: tally for name, tally in tallies.items() if name in MUTANTS}).rpartition("\n")[0])
    caught = all(tallies[name].broken for name in MUTANTS if name in tallies)
    kept = not any(tally.broken for tally in right.values())
    return 0 if caught and kept and sum(tally.images for tally in right.values()) >= options.images else 1


def mutated(name: str) -> Protocol:
    """The protocol with one call left out."""
    if "killed process" in name:
        return Protocol(name=name, workload=brief, then="kill", make=MUTANTS[name], share=6)
    return Protocol(name=name, workload=batches, make=MUTANTS[name], share=400)


if __name__ == "__main__":
    sys.exit(main())

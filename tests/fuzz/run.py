"""Puts inputs through everything, counts what was reached, and keeps what fails."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from sessionstore.recovery.salvage import salvage
from sessionstore.recovery.scan import scan_log
from tests.fuzz.checks import Sample, check, decoded
from tests.fuzz.guards import CALLS, MEMORY, count_calls, peak_memory, watchdog
from tests.fuzz.inputs import Input, make_input
from tests.fuzz.live import Live
from tests.fuzz.shrink import shrink

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Failure", "Tally", "run", "run_block"]

MEMORY_EACH: Final = 70
"""Every so many-th input goes through a store in memory; the figures below are the same for files and costs."""
DISK_EACH: Final = 900
COST_EACH: Final = 400
PEAK_EACH: Final = 1100


class Failure(Struct, frozen=True):
    """An input that broke a rule: which, how it was made, and the smallest data that still does."""

    seed: int
    number: int
    rule: str
    message: str
    mutators: tuple[str, ...]
    data: bytes


class Tally(Struct):
    """What a run has seen."""

    inputs: int = 0
    size: int = 0
    mutators: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    through: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = []

    def add(self, other: Tally) -> None:
        """Take another run's counts in."""
        self.inputs += other.inputs
        self.size += other.size
        for name in ("mutators", "sources", "verdicts", "rows", "refusals", "through"):
            getattr(self, name).update(getattr(other, name))
        self.failures += other.failures


def run(seed: int, numbers: Iterable[int], *, shrinking: bool = True, most: int = 20) -> Tally:
    """Run the inputs of these numbers; stops at so many failures."""
    tally = Tally()
    live = Live()
    try:
        for number in numbers:
            made = make_input(seed, number)
            failure = _run_one(made, tally, live)
            if failure is not None:
                seen = {each.rule for each in tally.failures}
                tally.failures.append(
                    _shrunk(failure, made, live) if shrinking and failure.rule not in seen else failure
                )
                if len(tally.failures) >= most:
                    break
    finally:
        live.close()
    return tally


def run_block(task: tuple[int, int, int]) -> tuple[Tally, float]:
    """Run the inputs from one number to another of a seed; also the seconds of processor time."""
    seed, start, stop = task
    began = time.process_time()
    return run(seed, range(start, stop)), time.process_time() - began


def _run_one(made: Input, tally: Tally, live: Live) -> Failure | None:
    sample = made.sample
    tally.inputs += 1
    tally.size += len(sample.data)
    tally.mutators.update(made.mutators)
    tally.sources[_family(made.source)] += 1
    try:
        with watchdog(15 + len(sample.data) / 10_000):  # a few hundred bytes may decode to a MiB, on a busy machine
            outcome = check(sample)
            tally.through.update(_more(made.number, sample, live))
    except Exception as error:  # noqa: BLE001 - whatever is raised is a finding
        return _failure(made, error)
    tally.verdicts[outcome.verdict.value] += 1
    tally.rows.update(outcome.rows)
    if outcome.refusal is not None:
        tally.refusals[_reason(outcome.refusal)] += 1
    return None


def _family(source: str) -> str:
    return source if source == "written" else "real log" if "/" in source else "fixture"


def _reason(refusal: str) -> str:
    return "".join("#" if letter.isdigit() else letter for letter in refusal)[:48]


def _more(number: int, sample: Sample, live: Live) -> list[str]:
    """What a share of the inputs goes through besides; which one is decided by the number alone."""
    done: list[str] = []
    if number % MEMORY_EACH == 0:
        live.in_memory(decoded(sample)[0] if sample.zstd else sample.data)
        done.append("store in memory")
    if number % DISK_EACH == 0:
        live.on_disk(sample)
        done.append("store of files, zstd" if sample.zstd else "store of files")
    if number % COST_EACH == 0:
        calls = count_calls(lambda: _work(sample))
        assert calls <= CALLS[0] + CALLS[1] * len(sample.data), f"{calls} calls for {len(sample.data)} bytes"
        done.append("work counted")
    if number % PEAK_EACH == 0:
        peak = peak_memory(lambda: _work(sample))
        assert peak <= MEMORY[0] + MEMORY[1] * len(sample.data), f"{peak} bytes held for {len(sample.data)}"
        done.append("memory measured")
    return done


def _work(sample: Sample) -> None:
    text, weights = decoded(sample) if sample.zstd else (sample.data, [])
    salvage(text, session_id=sample.session_id, cwd="/srv/project", scan=scan_log(text), weights=weights)


def _failure(made: Input, error: Exception) -> Failure:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    rule = f"{type(error).__name__} in {frame.name} ({Path(frame.filename).name}:{frame.lineno})"
    return Failure(made.seed, made.number, rule, f"{error}", made.mutators, made.sample.data)


def _shrunk(failure: Failure, made: Input, live: Live) -> Failure:
    def fails(data: bytes) -> bool:
        sample = Sample(data, made.sample.zstd, made.sample.known, made.sample.cuts, made.sample.session_id)
        sample.folds = made.sample.folds
        again = _run_one(Input(made.seed, made.number, made.source, (), sample), Tally(), live)
        return again is not None and again.rule == failure.rule

    if not fails(made.sample.data):
        return failure
    return Failure(
        failure.seed, failure.number, failure.rule, failure.message, failure.mutators, shrink(made.sample.data, fails)
    )

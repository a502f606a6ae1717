"""A few seconds of fuzzing: inputs that are always the same, and new ones each time."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from sessionstore.recovery.salvage import salvage
from sessionstore.recovery.scan import scan_log
from tests.fuzz.checks import Known, Sample, check
from tests.fuzz.guards import HangError, count_calls, peak_memory, watchdog
from tests.fuzz.history import history_faults
from tests.fuzz.inputs import make_input
from tests.fuzz.mutators import MUTATORS
from tests.fuzz.rows import ROWS
from tests.fuzz.run import Tally, run
from tests.fuzz.shrink import shrink
from tests.fuzz.sources import Original
from tests.recovery import logs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sessionstore.recovery.salvage_plan import SalvagePlan

VERDICTS = {"clean", "interrupted", "torn", "damaged", "invalid", "unsupported", "empty"}


def told(tally: Tally) -> str:
    """What failed, with the command that runs it again."""
    return "\n".join(
        f"{each.rule}: {each.message[:300]}\n  again: python -m tests.fuzz --seed {each.seed} --first {each.number} "
        f"--inputs 1 --jobs 1\n  smallest: {each.data[:2000]!r}"
        for each in tally.failures
    )


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 2000, 500))
def test_the_same_inputs_as_always(start: int) -> None:
    """Inputs of a fixed seed break no rule."""
    tally = run(1, range(start, start + 500))
    assert not tally.failures, told(tally)
    assert tally.inputs == 500


def test_inputs_that_nobody_has_seen() -> None:
    """Inputs of a seed of today break no rule; SESSIONSTORE_FUZZ_SEED sets it."""
    seed = int(os.environ.get("SESSIONSTORE_FUZZ_SEED", random.SystemRandom().getrandbits(32)))
    print(f"fuzz seed {seed}")
    tally = run(seed, range(60), shrinking=False)
    assert not tally.failures, told(tally)


@pytest.mark.slow
def test_every_verdict_and_every_row_is_reached() -> None:
    """The inputs lead to each verdict and through each row of the damage table: nothing is out of reach."""
    rows: set[str] = set()
    verdicts: set[str] = set()
    for number in range(6000):
        outcome = check(make_input(3, number).sample)
        rows |= outcome.rows
        verdicts.add(outcome.verdict.value)
        if verdicts == VERDICTS and rows >= set(ROWS):
            return
    assert verdicts == VERDICTS
    assert rows >= set(ROWS), set(ROWS) - rows


def test_a_number_is_an_input() -> None:
    """The same seed and number give the same input, whatever was made before it."""
    first = [make_input(7, number).sample.data for number in (0, 5, 1001)]
    again = [make_input(7, number).sample.data for number in (1001, 5, 0)]
    assert first == again[::-1]
    assert len({make_input(7, number).sample.data for number in range(40)}) > 30


def test_every_mutator_is_used() -> None:
    """None of them is left out, and each changes something now and then."""
    seen = {name for number in range(600) for name in make_input(8, number).mutators}
    assert seen >= set(MUTATORS)


# The checks can fail


def known(lines: Iterable[bytes]) -> Known:
    """What is known of a log of single events."""
    original = Original("by hand", list(lines)).learn()
    return Known(original.seqs, original.faults, original.sound)


def test_a_lost_event_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A salvage that leaves out an untouched line does not pass."""
    lines = [logs.header(), *logs.first_turn(), *logs.second_turn()]
    damaged = b"".join(logs.drop_line(lines, 3))
    forgetful = b"".join(line for line in logs.drop_line(lines, 3) if b'"seq":13' not in line)

    def forget(data: bytes, **options: Any) -> SalvagePlan:
        return salvage(forgetful if data == damaged else data)

    monkeypatch.setattr("tests.fuzz.checks.salvage", forget)
    with pytest.raises(AssertionError, match="seq 13"):
        check(Sample(damaged, zstd=False, known=known(lines), cuts=[7]))


def test_an_unanswered_call_is_noticed() -> None:
    """A history in which a call has lost its answer is worse than before."""
    lines = [logs.header(), logs.turn_start(0), logs.assistant(1, calls=("c",)), logs.user(2), logs.turn_end(3)]
    scan = scan_log(b"".join(lines))
    assert history_faults(scan.events, scan.surface.nodes) == {("unanswered", "c"): 1}


def test_a_hang_is_noticed() -> None:
    """The watchdog ends a loop without end."""
    with pytest.raises(HangError), watchdog(0.02):
        while True:
            pass


def test_work_and_memory_are_counted() -> None:
    """More work and more memory are seen as such."""
    assert count_calls(lambda: [len("x") for _ in range(500)]) >= 500
    assert peak_memory(lambda: bytes(1 << 20)) >= 1 << 20


def test_a_failing_input_is_made_small() -> None:
    """Of a long input only what breaks the rule is left."""
    data = b"".join(b"line %d\n" % number for number in range(50))
    assert shrink(data, lambda part: b"37" in part) == b"37"

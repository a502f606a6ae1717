"""Write-behind: when events are written, in which batches, and what happens when that fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore.errors import PendingLimitError, StorageError, StoreClosedError
from sessionstore.header import make_header
from sessionstore.session import Session
from sessionstore.writebehind import Counters, Policy, WriteBehind, split_parts
from tests.store.fakes import FlakyBackend, no_space, run

if TYPE_CHECKING:
    from collections.abc import Callable


class Rig:
    """One session with write-behind over a backend that does what it is told."""

    def __init__(self, on_error: Callable[[Exception], object] | None = None, **policy: Any) -> None:
        self.backend = FlakyBackend()
        self.header = make_header("s", created_at=1)
        self.session = Session("s", header=self.header, clock=lambda: 7)
        self.counters = Counters()
        self.behind = WriteBehind(
            self.session,
            self.backend.writer(self.header),
            Policy(**policy),
            loop=asyncio.get_running_loop(),
            counters=self.counters,
            on_error=on_error,
        )
        self.session._sink = self.behind
        self.session._wake_at = 0

    def append(self, count: int = 1) -> None:
        """Append *count* small events."""
        for _ in range(count):
            self.session.append("test/event", {"n": self.session.seq})

    def noted(self) -> Exception | None:
        """The error that the session shows."""
        return self.behind.error

    @property
    def batches(self) -> list[tuple[int, int]]:
        """The seqs of the batches written so far."""
        return [(call.first_seq, call.next_seq) for call in self.backend.calls]

    def check_stored(self, count: int) -> None:
        """The backend holds exactly the first *count* events, each once."""
        lines = self.backend.stored_bytes("s").split(b"\n")
        assert lines.pop() == b""
        assert lines == [self.header.to_json(), *self.session._log.lines(0, count)]


async def turns(count: int = 20) -> None:
    """Let everything that is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


# --- the window -----------------------------------------------------------------------------------------------


def test_the_first_event_opens_one_window_that_later_ones_do_not_move() -> None:
    """A batch is written 200 ms after the first waiting event, whatever came since."""

    async def main() -> None:
        rig = Rig()
        rig.append()
        await asyncio.sleep(0.15)
        rig.append()
        await asyncio.sleep(0.04)
        assert rig.batches == []
        await asyncio.sleep(0.02)
        assert rig.batches == [(0, 2)]

    run(main())


def test_twenty_events_in_one_window_are_one_batch() -> None:
    """Events 10 ms apart within one window of 200 ms are written together."""

    async def main() -> None:
        rig = Rig()
        for _ in range(20):
            rig.append()
            await asyncio.sleep(0.0099)
        await asyncio.sleep(0.1)
        assert rig.batches == [(0, 20)]
        assert rig.counters == Counters(batches=1, events=20, bytes=rig.counters.bytes)

    run(main())


def test_after_a_batch_the_next_event_opens_a_new_window() -> None:
    """Nothing runs while nothing waits; then a full window again."""

    async def main() -> None:
        rig = Rig()
        rig.append()
        await asyncio.sleep(1)
        rig.append()
        await asyncio.sleep(0.19)
        assert rig.batches == [(0, 1)]
        await asyncio.sleep(0.02)
        assert rig.batches == [(0, 1), (1, 2)]

    run(main())


def test_many_bytes_start_a_batch_at_once() -> None:
    """Reaching batch_bytes does not wait for the window, and includes the event that reached it."""

    async def main() -> None:
        rig = Rig(batch_bytes=250)
        rig.append(5)
        assert rig.batches == []
        await turns()
        assert rig.batches == [(0, 5)]

    run(main())


def test_what_arrives_during_a_write_keeps_its_own_window() -> None:
    """The window of the next batch runs from its first event, not from the end of the write before it."""

    async def main() -> None:
        rig = Rig()
        gate = rig.backend.gate = asyncio.Event()
        rig.append()
        await asyncio.sleep(0.25)  # the write of event 0 stands at the gate since 0.2
        rig.append()  # window until 0.45
        await asyncio.sleep(0.1)
        gate.set()
        await asyncio.sleep(0.09)
        assert rig.batches == [(0, 1)]
        await asyncio.sleep(0.02)
        assert rig.batches == [(0, 1), (1, 2)]

    run(main())


@pytest.mark.parametrize("why", ["bytes", "window"])
def test_a_batch_that_is_due_starts_right_after_the_active_write(why: str) -> None:
    """Bytes or time that ran out during a write do not wait any longer."""

    async def main() -> None:
        rig = Rig(batch_bytes=300)
        gate = rig.backend.gate = asyncio.Event()
        rig.append()
        await asyncio.sleep(0.21)
        rig.append(8 if why == "bytes" else 1)
        await asyncio.sleep(0.01 if why == "bytes" else 0.21)
        assert rig.batches == []
        gate.set()
        await turns()
        assert rig.batches == [(0, 1), (1, rig.session.seq)]

    run(main())


# --- flush ----------------------------------------------------------------------------------------------------


def test_a_flush_skips_the_window() -> None:
    """It writes what waits now and says how far the disk is."""

    async def main() -> None:
        rig = Rig()
        rig.append(3)
        assert await rig.behind.flush() == 3
        assert rig.batches == [(0, 3)]
        rig.check_stored(3)
        await asyncio.sleep(1)
        assert rig.batches == [(0, 3)]

    run(main())


def test_a_flush_of_nothing_writes_nothing() -> None:
    """A session without events stays unwritten."""

    async def main() -> None:
        rig = Rig()
        assert await rig.behind.flush() == 0
        assert rig.backend.entered == 0

    run(main())


def test_concurrent_flushes_share_one_barrier_that_drains_what_arrives_meanwhile() -> None:
    """Three flushes, and an event that comes during the first write: two writes, everybody done after the second."""

    async def main() -> None:
        rig = Rig()
        gate = rig.backend.gate = asyncio.Event()
        rig.append()
        flushes = [asyncio.create_task(rig.behind.flush()) for _ in range(3)]
        await turns()
        rig.append()
        assert not any(task.done() for task in flushes)
        gate.set()
        assert await asyncio.gather(*flushes) == [2, 2, 2]
        assert rig.batches == [(0, 1), (1, 2)]

    run(main())


def test_a_flush_covers_everything_appended_before_it_in_whichever_step_it_comes() -> None:
    """The barrier closes in the step that sees the queue empty: a flush never joins one that will not see its event."""

    async def main(step: int) -> None:
        rig = Rig()
        rig.append()
        first = asyncio.create_task(rig.behind.flush())
        await turns(step)
        rig.append()
        assert await rig.behind.flush() == 2
        assert await first in {1, 2}
        rig.check_stored(2)

    for step in range(20):
        run(main(step))


def test_a_flush_waits_for_the_write_in_progress() -> None:
    """A background batch that is being written is part of what a flush promises."""

    async def main() -> None:
        rig = Rig()
        gate = rig.backend.gate = asyncio.Event()
        rig.append()
        await asyncio.sleep(0.21)
        flush = asyncio.create_task(rig.behind.flush())
        await turns()
        assert not flush.done()
        gate.set()
        assert await flush == 1
        assert rig.batches == [(0, 1)]

    run(main())


def test_a_cancelled_flush_waits_until_the_write_has_settled() -> None:
    """Cancelling abandons no write: the caller gets its CancelledError after the last byte."""

    async def main() -> None:
        rig = Rig()
        gate = rig.backend.gate = asyncio.Event()
        rig.append()
        flush = asyncio.create_task(rig.behind.flush())
        await turns()
        for _ in range(3):
            flush.cancel()
            await turns()
            assert not flush.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await flush
        assert rig.batches == [(0, 1)]
        assert await rig.behind.flush() == 1

    run(main())


def test_cancelling_one_flush_does_not_cancel_the_others() -> None:
    """The barrier belongs to all who wait for it."""

    async def main() -> None:
        rig = Rig()
        gate = rig.backend.gate = asyncio.Event()
        rig.append()
        first, second = (asyncio.create_task(rig.behind.flush()) for _ in range(2))
        await turns()
        first.cancel()
        await turns()
        gate.set()
        assert await second == 1
        with pytest.raises(asyncio.CancelledError):
            await first

    run(main())


# --- failures -------------------------------------------------------------------------------------------------


def test_a_failed_batch_waits_in_front_until_the_next_event(caplog: pytest.LogCaptureFixture) -> None:
    """No retry on its own, one log line and one report per episode, everything in order once it works again."""

    async def main() -> None:
        reported: list[Exception] = []
        rig = Rig(on_error=reported.append)
        error = rig.backend.failure = no_space()
        rig.append(2)
        await asyncio.sleep(10)
        assert rig.backend.entered == 1
        assert rig.noted() == error
        rig.append()
        await asyncio.sleep(10)
        assert rig.backend.entered == 2
        assert reported == [error]
        assert [record.levelno for record in caplog.records if record.name == "sessionstore"] == [logging.ERROR]
        rig.backend.failure = None
        rig.append()
        await asyncio.sleep(10)
        assert rig.batches == [(0, 4)]
        assert rig.noted() is None
        assert rig.counters.failures == 2
        rig.check_stored(4)

    with caplog.at_level(logging.WARNING, "sessionstore"):
        run(main())


def test_a_flush_raises_what_the_disk_said_and_keeps_the_events() -> None:
    """The events are still there, in order, for the flush that works."""

    async def main() -> None:
        rig = Rig()
        error = rig.backend.failure = no_space()
        rig.append(2)
        for _ in range(3):
            with pytest.raises(StorageError) as caught:
                await rig.behind.flush()
            assert caught.value is error
        assert rig.behind.pending_bytes > 0
        rig.append()
        rig.backend.failure = None
        assert await rig.behind.flush() == 3
        rig.check_stored(3)

    run(main())


def test_a_background_failure_that_a_flush_overlaps_is_tried_again_by_it() -> None:
    """The flush did not see that write begin, so its failure is no answer to the flush."""

    async def main() -> None:
        rig = Rig()
        gate = rig.backend.gate = asyncio.Event()
        rig.backend.failures = [no_space()]
        rig.append()
        await asyncio.sleep(0.21)
        flush = asyncio.create_task(rig.behind.flush())
        await turns()
        rig.append()
        gate.set()
        assert await flush == 2
        assert rig.batches == [(0, 2)]
        assert rig.behind.error is None

    run(main())


def test_events_that_arrive_during_a_failing_write_do_not_retry_on_their_own() -> None:
    """They were there when it failed; the next event, or a flush, tries again."""

    async def main() -> None:
        rig = Rig()
        gate = rig.backend.gate = asyncio.Event()
        rig.backend.failures = [no_space()]
        rig.append()
        await asyncio.sleep(0.21)
        rig.append()
        gate.set()
        await asyncio.sleep(10)
        assert rig.backend.entered == 1
        rig.append()
        await asyncio.sleep(0.21)
        assert rig.batches == [(0, 3)]

    run(main())


def test_a_very_large_failed_batch_is_kept_whole() -> None:
    """Nothing is dropped because it is big."""

    async def main() -> None:
        rig = Rig(batch_bytes=1000)
        rig.backend.failures = [no_space()]
        rig.append(2000)
        await turns()
        assert rig.batches == []
        assert await rig.behind.flush() == 2000
        rig.check_stored(2000)

    run(main())


def test_what_on_error_raises_is_contained(caplog: pytest.LogCaptureFixture) -> None:
    """A callback that fails is logged; the store goes on."""

    async def main() -> None:
        def on_error(error: Exception) -> None:
            raise ValueError("the callback's own fault")

        rig = Rig(on_error=on_error)
        rig.backend.failures = [no_space()]
        rig.append()
        await asyncio.sleep(1)
        assert await rig.behind.flush() == 1

    with caplog.at_level(logging.ERROR, "sessionstore"):
        run(main())
    assert "on_error failed" in caplog.text


def test_nobody_is_told_of_an_exception_that_was_never_retrieved() -> None:
    """A write that fails while nobody waits leaves no stray task behind."""

    async def main() -> None:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        rig = Rig()
        rig.backend.failure = no_space()
        rig.append()
        await asyncio.sleep(1)
        flush = asyncio.create_task(rig.behind.flush())
        await turns(1)
        flush.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flush
        await asyncio.sleep(1)
        del rig, flush
        assert complaints == []

    run(main())


def test_a_write_whose_outcome_was_swallowed_is_not_repeated() -> None:
    """When a writer stored a batch but was cancelled, its next_seq says so and the events are not written twice."""

    async def main() -> None:
        rig = Rig()
        rig.append(2)
        rig.backend.gate = asyncio.Event()
        flush = asyncio.create_task(rig.behind.flush())
        await turns()
        flush.cancel()
        await turns()
        rig.backend.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await flush
        assert rig.behind.durable_seq == 2
        rig.append()
        assert await rig.behind.flush() == 3
        assert rig.batches == [(0, 2), (2, 3)]
        rig.check_stored(3)

    run(main())


# --- limits ---------------------------------------------------------------------------------------------------


def test_past_the_limit_append_refuses_and_uses_no_seq() -> None:
    """Memory for a dead disk is bounded, and the events that were taken are all written when it lives again."""

    async def main() -> None:
        rig = Rig(max_pending_bytes=1000)
        rig.backend.failure = no_space()
        with pytest.raises(PendingLimitError) as caught:
            rig.append(1000)
        taken = rig.session.seq
        assert 5 < taken < 30
        assert caught.value.pending_bytes <= caught.value.limit == 1000
        with pytest.raises(StorageError):
            await rig.behind.flush()
        with pytest.raises(PendingLimitError):
            rig.append()
        assert rig.session.seq == taken
        rig.backend.failure = None
        await rig.behind.flush()
        rig.append()
        await rig.behind.flush()
        rig.check_stored(taken + 1)

    run(main())


def test_what_is_being_written_counts_as_pending() -> None:
    """A write that hangs does not open the limit again."""

    async def main() -> None:
        rig = Rig(max_pending_bytes=1000, batch_bytes=500)
        gate = rig.backend.gate = asyncio.Event()

        async def fill() -> None:
            for _ in range(1000):
                rig.append()
                await turns(2)

        with pytest.raises(PendingLimitError):
            await fill()
        seq = rig.session.seq
        assert sum(map(len, rig.session._log.lines(0, seq))) <= 1000
        gate.set()
        await rig.behind.flush()
        rig.check_stored(seq)

    run(main())


def test_one_event_larger_than_the_limit_is_taken_when_nothing_waits() -> None:
    """The limit is about a queue, not about the size of an event."""

    async def main() -> None:
        rig = Rig(max_pending_bytes=100)
        rig.session.append("test/event", {"text": "x" * 1000})
        with pytest.raises(PendingLimitError):
            rig.append()
        assert await rig.behind.flush() == 1

    run(main())


# --- durability -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("durability", "background", "flushed", "durable"),
    [("batch", True, True, 1), ("flush", False, True, 0), ("none", False, False, 1)],
)
def test_each_level_syncs_what_it_promises(durability: Any, background: bool, flushed: bool, durable: int) -> None:
    """Batches are synced at "batch", flushes at "batch" and "flush"; "none" counts what was handed over."""

    async def main() -> None:
        rig = Rig(durability=durability)
        rig.append()
        await asyncio.sleep(0.3)
        assert [call.sync for call in rig.backend.calls] == [background]
        assert rig.behind.durable_seq == durable
        rig.append()
        assert await rig.behind.flush() == 2
        assert [call.sync for call in rig.backend.calls] == [background, flushed]

    run(main())


def test_a_flush_with_nothing_to_write_syncs_what_was_only_written() -> None:
    """At level "flush" the barrier is what makes earlier batches durable; a failing sync is raised."""

    async def main() -> None:
        rig = Rig(durability="flush")
        rig.append()
        await asyncio.sleep(0.3)
        rig.backend.sync_failure = no_space("sync")
        with pytest.raises(StorageError):
            await rig.behind.flush()
        assert rig.behind.durable_seq == 0
        rig.backend.sync_failure = None
        assert await rig.behind.flush() == 1
        assert rig.backend.syncs == 2
        assert await rig.behind.flush() == 1
        assert rig.backend.syncs == 2

    run(main())


@pytest.mark.parametrize("durability", ["flush", "none"])
def test_what_a_failure_took_with_it_is_written_again(durability: Any) -> None:
    """A failed sync, or a failed write, may cost all unsynced batches before it: nothing is missing afterwards."""

    async def main() -> None:
        rig = Rig(durability=durability)
        rig.append()
        rig.behind._policy = Policy(durability="batch")
        await rig.behind.flush()  # one event that is truly synced
        rig.behind._policy = Policy(durability=durability)
        rig.backend.forgets = True
        for _ in range(2):
            rig.append()
            await asyncio.sleep(0.3)
        assert rig.behind.durable_seq == (1 if durability == "flush" else 3)
        rig.append()
        rig.backend.failures = [no_space()]
        with pytest.raises(StorageError):
            await rig.behind.flush()
        assert rig.behind.durable_seq == 1
        await rig.behind.flush()
        rig.check_stored(4)
        rig.append()
        await asyncio.sleep(0.3)
        rig.backend.sync_failure = no_space("sync")
        with contextlib.suppress(StorageError):
            await rig.behind.flush()
        rig.backend.sync_failure = None
        await rig.behind.flush()
        rig.check_stored(5)

    run(main())


# --- parts ----------------------------------------------------------------------------------------------------


TURN_END = b'{"type":"turn/end","seq":1,"time":1,"data":{"turn":1,"reason":{"kind":"completed"}}}'
FOREIGN_END = b'{"seq":1,"time":1,"data":{},"type":"turn\\/end"}'
OTHER = b'{"type":"x/turn/end","seq":1,"time":1,"data":{"type":"turn/end"}}'


@given(st.lists(st.sampled_from([TURN_END, FOREIGN_END, OTHER]), max_size=12), st.sampled_from([1, 150, 200, 10_000]))
def test_parts_keep_every_line_begin_with_turn_ends_and_stay_small(lines: list[bytes], limit: int) -> None:
    """The parts are the lines in order; a turn/end stands first in its part; no part is longer than a reader takes."""
    parts = split_parts(lines, limit)
    assert [line for part in parts for line in part] == lines
    for part in parts:
        assert part
        assert not any(line in {TURN_END, FOREIGN_END} for line in part[1:])
        assert sum(len(line) + 1 for line in part[1:]) <= limit
    if limit == 10_000:
        ends = sum(line is not OTHER for line in lines[1:])
        assert len(parts) == (ends + 1 if lines else 0)


def test_a_turn_end_is_written_on_its_own() -> None:
    """What the store gives a writer is already divided."""

    async def main() -> None:
        rig = Rig()
        rig.session.append("turn/start", {"turn": 1})
        rig.session.append("turn/end", {"turn": 1, "reason": {"kind": "completed"}})
        rig.append()
        await rig.behind.flush()
        (call,) = rig.backend.calls
        assert [len(part) for part in call.parts] == [1, 2]

    run(main())


def test_a_long_first_batch_is_published_in_one_go() -> None:
    """A seed of any length becomes visible with its header at once; later batches are bounded."""

    async def main() -> None:
        rig = Rig()
        rig.append(9_000)
        await rig.behind.flush()
        assert rig.batches == [(0, 9_000)]

    run(main())


# --- ends -----------------------------------------------------------------------------------------------------


def test_closing_flushes_then_releases_and_reports_everything_in_order() -> None:
    """A close error does not hide the flush error, and the writer is released whatever happens."""

    async def main() -> None:
        rig = Rig()
        flush_error = rig.backend.failure = no_space()
        close_error = rig.backend.close_failure = no_space("close")
        rig.append()
        assert await rig.behind.close() == [flush_error, close_error]
        assert rig.backend.closed_writers == 1
        with pytest.raises(StoreClosedError):
            rig.append()
        assert rig.session.seq == 1

    run(main())


def test_closing_writes_what_waits_and_tells_before_it_releases() -> None:
    """The last batch is on the disk, then the callback runs, then the lock goes."""

    async def main() -> None:
        rig = Rig()
        rig.append(2)

        async def before() -> None:
            rig.check_stored(2)
            rig.backend.events.append("told")

        assert await rig.behind.close(before_release=before) == []
        assert rig.backend.events == ["told", "writer closed"]

    run(main())


def test_at_exit_only_what_is_not_stored_is_written_once() -> None:
    """Also when the loop ended in the middle of a write: the writer knows what it has."""
    rigs: list[Rig] = []

    async def main() -> None:
        rig = Rig()
        rigs.append(rig)
        rig.append(2)
        await rig.behind.flush()
        rig.append(3)

    run(main())
    rig = rigs[0]
    rig.behind.write_at_exit()
    rig.behind.write_at_exit()
    assert rig.backend.at_exit == 1
    rig.check_stored(5)


def test_an_append_after_the_loop_has_closed_waits_for_the_exit() -> None:
    """Append needs no running loop; what comes after the last one is written at exit."""
    rigs: list[Rig] = []

    async def main() -> None:
        rigs.append(Rig())

    run(main())
    rigs[0].append(2)
    rigs[0].behind.write_at_exit()
    rigs[0].check_stored(2)


def test_append_needs_no_running_loop() -> None:
    """Events appended between two runs of the loop are written by the next one."""
    with asyncio.Runner() as runner:

        async def make() -> Rig:
            return Rig(window=0.0)

        rig = runner.run(make())
        rig.append(2)
        runner.run(asyncio.sleep(0.001))
        assert rig.batches == [(0, 2)]


def test_a_forked_copy_refuses_and_writes_nothing() -> None:
    """In the child append and flush raise, a close does nothing, and the parent's window writes nothing."""

    async def main() -> None:
        rig = Rig()
        rig.append(2)
        rig.behind.after_fork()
        with pytest.raises(StoreClosedError, match="forked"):
            rig.append()
        with pytest.raises(StoreClosedError, match="forked"):
            await rig.behind.flush()
        assert await rig.behind.close() == []
        await asyncio.sleep(1)
        assert (rig.backend.entered, rig.backend.closed_writers, rig.backend.forked) == (0, 0, 1)

    run(main())


def test_a_session_without_events_can_be_published() -> None:
    """A fork of an empty session is on the disk as a header."""

    async def main() -> None:
        rig = Rig()
        await rig.behind.publish()
        rig.check_stored(0)
        rig.append()
        await rig.behind.flush()
        rig.check_stored(1)

    run(main())

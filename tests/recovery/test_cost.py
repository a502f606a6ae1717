"""What a scan may cost: memory beside the result, and work per byte."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Self

from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.format import MAX_LINE
from sessionstore.recovery.lines import LineSplitter
from sessionstore.recovery.scan import LogScanner
from tests.recovery import logs

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20


def peak(pieces: Iterator[bytes], *, max_line: int = MAX_LINE) -> tuple[int, Verdict]:
    """The most memory in bytes that was held while the pieces were scanned, and the verdict."""
    scanner = LogScanner(max_line=max_line)
    tracemalloc.start()
    try:
        for piece in pieces:
            scanner.feed(piece)
        result = scanner.finish()
        return tracemalloc.get_traced_memory()[1], result.verdict
    finally:
        tracemalloc.stop()


def test_a_long_log_takes_little_more_than_its_bytes() -> None:
    """No object per event: a megabyte of packed rows are held as those bytes."""
    lines = [logs.row(seq, [" token"] * 200) for seq in range(0, 200 * 500, 200)]
    size = sum(map(len, lines))
    memory, verdict = peak(iter([logs.header(), *lines]))
    assert verdict is Verdict.CLEAN
    assert size > MIB * 0.9
    assert memory < size * 1.3 + MIB // 4


def test_an_endless_line_is_not_held() -> None:
    """Eight times the longest line takes no more memory than that line."""
    limit = MIB
    pieces = (b"x" * 65536 for _ in range(8 * limit // 65536))
    memory, verdict = peak(iter([logs.header(), *pieces, b"\n", logs.turn_start(0)]), max_line=limit)
    assert verdict is Verdict.TORN
    assert memory < 3 * limit


def test_many_findings_take_no_memory() -> None:
    """Thousands of blank lines, and bad ones behind a defect, are a handful of findings."""
    memory, verdict = peak(iter([logs.header(), b"\n" * 5000, b"bad\n" * 1500]))
    assert verdict is Verdict.TORN
    assert memory < MIB // 4


class CountingBuffer(bytearray):
    """A buffer that knows how many bytes were ever put into it."""

    grown = 0

    def __iadd__(self, piece: bytes) -> Self:  # type: ignore[override,misc]
        self.grown += len(piece)
        return super().__iadd__(piece)


def test_each_byte_is_copied_once() -> None:
    """A line that arrives byte by byte is not copied again with every byte."""
    splitter = LineSplitter(MIB)
    splitter._pending = buffer = CountingBuffer()
    for _ in range(5000):
        assert splitter.split(b"x") == (None, [])
    assert splitter.split(b"\n") == (None, [b"x" * 5000])
    assert buffer.grown == 5000

"""One measurement per function.  Each runs in a process of its own: ``python -m benchmarks.cases NAME [ARG ...]``.

Every function returns plain figures, which are printed as one JSON object.  Imports that cost time stand inside
the functions, so that a process loads only what it measures.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from sessionstore import Session

Figures = dict[str, float]
clock = time.perf_counter


def peak_mib() -> float:
    """The most memory that this process ever held (MiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def rss_bytes() -> int:
    """The memory that this process holds now (bytes)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder on the real disk, removed afterwards."""
    place = Path(tempfile.mkdtemp(prefix="bench-", dir=os.environ.get("BENCH_DIR", "/var/tmp")))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


async def write_workload(session: Session, events: int, times: dict[str, list[float]] | None) -> None:
    """Append the workload and flush once per turn, yielding once per step; *times* collects seconds per append."""
    from benchmarks.workload import turns

    def append(type_: str, data: object, **options: object) -> int:
        if times is None:
            return session.append(type_, data, **options).seq  # type: ignore[call-overload,no-any-return]
        start = clock()
        seq: int = session.append(type_, data, **options).seq  # type: ignore[call-overload]
        found = times.setdefault(type_, [0.0, 0])
        found[0] += clock() - start
        found[1] += 1
        return seq

    for start, user, steps, end in turns():
        if session.seq >= events:
            break
        append(start[0], start[1])
        append(user[0], user[1], surface_op="append")
        for first, (message, call, result, close) in steps:
            append(first[0][0], first[0][1])
            sources = [append(type_, data) for type_, data, _ in first[1:]]
            append(message[0], message[1], surface_op="append", source_event_seqs=sources)
            called = append(call[0], call[1])
            append(result[0], result[1], surface_op="append", source_event_seqs=[called])
            append(close[0], close[1])
            await asyncio.sleep(0)
        append(end[0], end[1])
        await session.flush()  # type: ignore[attr-defined]


def timer_cost() -> float:
    """What timing one append costs by itself (seconds)."""
    start = clock()
    for _ in range(100_000):
        clock()
    return (clock() - start) / 100_000


def append(events: str = "300000", compression: str = "none") -> Figures:
    """µs per append by event type, store attached and writing; bytes per event on disk; peak memory."""
    from sessionstore import SessionStore

    async def main(root: Path) -> Figures:
        times: dict[str, list[float]] = {}
        async with SessionStore(root, compression=compression) as store:  # type: ignore[arg-type]
            session = await store.create("bench", cwd="/w")
            await write_workload(session, int(events), times)
            count = session.seq
        size = sum(file.stat().st_size for file in root.rglob("session.jsonl*"))
        cost = timer_cost()
        figures = {type_: (total / n - cost) * 1e6 for type_, (total, n) in times.items()}
        return {**figures, "bytes_per_event": size / count, "peak_mib": peak_mib(), "events": count}

    with scratch() as root:
        return asyncio.run(main(root))


def append_forms(rounds: str = "200000") -> Figures:
    """µs per delta, dict form against Struct form, each made and appended; store attached."""
    from sessionstore import AssistantChunk, SessionStore, TextDelta

    async def main(root: Path) -> Figures:
        async with SessionStore(root) as store:
            figures: Figures = {}
            for form in ("dict", "struct"):
                session = await store.create(form)
                start = clock()
                for n in range(int(rounds)):
                    if form == "dict":
                        chunk = {"type": "text-delta", "index": 0, "text": " word"}
                        session.append("assistant/chunk", {"turn": 1, "step": 1, "chunk": chunk})
                    else:
                        session.append(AssistantChunk(turn=1, step=1, chunk=TextDelta(index=0, text=" word")))
                    if n % 500 == 0:
                        await asyncio.sleep(0)
                figures[form] = (clock() - start) / int(rounds) * 1e6
                await session.flush()
            return figures

    with scratch() as root:
        return asyncio.run(main(root))


def _log_file(root: str) -> Path:
    return next(path for path in Path(root).rglob("session.jsonl*") if path.suffix in (".jsonl", ".zstd"))


def resume(root: str) -> Figures:
    """Seconds and memory of resuming the session that lies in *root*, everything validated; then its history."""
    import aiofiles.os
    import filelock

    from sessionstore import SessionStore

    del aiofiles, filelock

    async def main() -> Figures:
        async with SessionStore(root) as store:
            before = peak_mib()
            start = clock()
            session = await store.resume("bench")
            loaded = clock() - start
            peak = peak_mib()
            gc.collect()
            start = clock()
            messages = len(session.derive_messages())
            first = clock() - start
            start = clock()
            for _ in range(20):
                session.derive_messages()
            again = (clock() - start) / 20
            return {
                "seconds": loaded, "peak_mib": peak, "before_mib": before, "events": session.seq,
                "derive_first": first, "derive_again": again, "messages": messages,
            }  # fmt: skip

    return asyncio.run(main())


def floor_load(root: str) -> Figures:
    """The floor of a load: read, (decompress,) split, and decode each line's envelope with msgspec."""

    class Envelope(msgspec.Struct):
        type: str
        data: msgspec.Raw = msgspec.Raw()
        seq: int = 0
        seq0: int = 0
        time: int = 0
        time0: int = 0

    decode = msgspec.json.Decoder(Envelope).decode
    path = _log_file(root)
    start, lines, rest = clock(), 0, b""
    with path.open("rb", buffering=0) as file:
        source: Iterator[bytes] = iter(lambda: file.read(1 << 20), b"")
        if path.suffix == ".zstd":
            import zstandard

            reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
            source = iter(lambda: reader.read(1 << 20), b"")
        for block in source:
            parts = (rest + block).split(b"\n")
            rest = parts.pop()
            for line in parts:
                decode(line)
            lines += len(parts)
    return {"seconds": clock() - start, "peak_mib": peak_mib(), "lines": lines}


def live_memory(events: str) -> Figures:
    """Bytes of memory per streamed delta of a live session that a store writes."""
    from sessionstore import SessionStore

    async def main(root: Path) -> Figures:
        async with SessionStore(root) as store:
            session = await store.create("bench")
            session.append("my/start", {})
            await session.flush()
            gc.collect()
            before, count = rss_bytes(), int(events)
            for n in range(count):
                data = {
                    "turn": 1,
                    "step": n // 500,
                    "chunk": {"type": "text-delta", "index": 0, "text": f" word{n % 997}"},
                }
                session.append("assistant/chunk", data)
                if n % 2000 == 0:
                    await asyncio.sleep(0)
            await session.flush()
            gc.collect()
            return {"bytes_per_delta": (rss_bytes() - before) / count, "peak_mib": peak_mib()}

    with scratch() as root:
        return asyncio.run(main(root))


def flush(rounds: str = "300") -> Figures:
    """Ms to flush one small event, against one write + fdatasync through a thread and without one; interleaved."""
    from sessionstore import SessionStore

    async def main(root: Path) -> Figures:
        async with SessionStore(root) as store:
            session = await store.create("bench")
            session.append("my/start", {})
            await session.flush()
            fd = os.open(root / "plain", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            line = b'{"type":"my/event","seq":1000,"time":1700000000000,"data":{"n":1000}}\n'

            def write() -> None:
                os.write(fd, line)
                os.fdatasync(fd)

            spans: dict[str, list[float]] = {"flush": [], "thread": [], "bare": []}
            for n in range(int(rounds)):
                start = clock()
                session.append("my/event", {"n": n})
                await session.flush()
                spans["flush"].append(clock() - start)
                start = clock()
                await asyncio.to_thread(write)
                spans["thread"].append(clock() - start)
                start = clock()
                write()
                spans["bare"].append(clock() - start)
            os.close(fd)
            return {name: sorted(values)[len(values) // 2] * 1e3 for name, values in spans.items()}

    with scratch() as root:
        return asyncio.run(main(root))


def many(sessions: str = "64", events: str = "400000") -> Figures:
    """Events per second of *sessions* streaming at once in one process, and how the slowest fared."""
    from sessionstore import SessionStore

    async def stream(session: Session, count: int, begin: float) -> float:
        for n in range(count):
            data = {"turn": 1, "step": n // 500, "chunk": {"type": "text-delta", "index": 0, "text": " word"}}
            session.append("assistant/chunk", data)
            if n % 50 == 0:
                await asyncio.sleep(0)
        await session.flush()  # type: ignore[attr-defined]
        return clock() - begin

    async def main(root: Path) -> Figures:
        async with SessionStore(root) as store:
            live = [await store.create(f"s{n}") for n in range(int(sessions))]
            begin = clock()
            each = int(events) // len(live)
            ends = await asyncio.gather(*(stream(session, each, begin) for session in live))
            return {"events_per_second": int(events) / max(ends), "first_end": min(ends), "last_end": max(ends)}

    with scratch() as root:
        return asyncio.run(main(root))


async def _gaps(work: Callable[[], Awaitable[object]]) -> list[float]:
    """The times (ms) between two turns of the loop that should be 1 ms apart, while *work* runs."""
    gaps: list[float] = []
    task = asyncio.ensure_future(work())
    last = clock()
    while not task.done():
        await asyncio.sleep(0.001)
        now = clock()
        gaps.append((now - last) * 1e3)
        last = now
    await task
    return sorted(gaps)


def _percentiles(name: str, gaps: list[float]) -> Figures:
    return {f"{name}_p50": gaps[len(gaps) // 2], f"{name}_p99": gaps[int(len(gaps) * 0.99)], f"{name}_max": gaps[-1]}


def heartbeat(root: str) -> Figures:
    """Gaps of a 1 ms heartbeat (ms) while the session in *root* is resumed, extended and read from.

    Then while one of a million lines is resumed, and while 10,000 sessions are listed.
    """
    from benchmarks.logs import write_many, write_notes
    from sessionstore import SessionStore

    async def main(place: Path) -> Figures:
        copy = place / "root"
        shutil.copytree(root, copy)
        figures = _percentiles("idle", await _gaps(lambda: asyncio.sleep(1)))
        async with SessionStore(copy) as store:
            held: list[Session] = []

            async def load() -> None:
                held.append(await store.resume("bench"))

            figures |= _percentiles("resume", await _gaps(load))
            session = held[0]
            for n in range(60_000):
                data = {"turn": 900_000, "step": 1, "chunk": {"type": "text-delta", "index": n // 240, "text": " word"}}
                session.append("assistant/chunk", data)
            figures |= _percentiles("flush", await _gaps(session.flush))  # type: ignore[attr-defined]
            await session.flush()  # type: ignore[attr-defined]
            figures |= _percentiles("read_from", await _gaps(lambda: store.read_from("bench", session.seq - 100)))
        write_notes(place / "notes", 1_000_000)
        async with SessionStore(place / "notes") as store:
            figures |= _percentiles("lines", await _gaps(lambda: store.resume("notes")))
        gc.collect()  # the freeing of a million lines is not what a list costs
        write_many(place / "many", 10_000, beside=True)
        async with SessionStore(place / "many") as store:
            figures |= _percentiles("list", await _gaps(store.list))
        figures |= _percentiles("idle_after", await _gaps(lambda: asyncio.sleep(1)))
        return figures

    with scratch() as place:
        return asyncio.run(main(place))


def listing(sessions: str = "10000", beside: str = "") -> Figures:
    """Seconds to list many sessions, against a bare walk that opens each log and reads 8 KiB at both ends.

    With anything for *beside*, each session has the lock and the index that a store leaves there.
    """
    from benchmarks.logs import write_many
    from sessionstore import SessionStore

    def walk(root: Path) -> int:
        count = 0
        for project in os.scandir(root):
            for session in os.scandir(project.path):
                fd = os.open(os.path.join(session.path, "session.jsonl"), os.O_RDONLY)
                size = os.fstat(fd).st_size
                os.pread(fd, 8192, 0)
                os.pread(fd, 8192, max(0, size - 8192))
                os.close(fd)
                count += 1
        return count

    async def main(root: Path) -> Figures:
        write_many(root, int(sessions), beside=bool(beside))
        walk(root)
        spans: dict[str, list[float]] = {"list": [], "walk": []}
        async with SessionStore(root) as store:
            for _ in range(5):
                start = clock()
                walk(root)
                spans["walk"].append(clock() - start)
                start = clock()
                page = await store.list()
                spans["list"].append(clock() - start)
                known = sum(row.events == 300 for row in page.sessions)
                if len(page.sessions) != int(sessions) or known != bool(beside) * int(sessions):
                    raise SystemExit("a session is missing, or what its index says")
        return {name: sorted(values)[2] for name, values in spans.items()}

    with scratch() as root:
        return asyncio.run(main(root))


def read_end(root: str) -> Figures:
    """Ms of reading the last 50 events, and the last 5,000, of the session in *root*."""
    from sessionstore import SessionStore

    async def main() -> Figures:
        async with SessionStore(root) as store:
            end = int(os.environ["BENCH_EVENTS"])
            figures: Figures = {}
            for count in (50, 5_000):
                spans = []
                for _ in range(7):
                    start = clock()
                    events = await store.read_from("bench", end - count)
                    spans.append(clock() - start)
                    if len(events) != count:
                        raise SystemExit(f"{len(events)} events")
                figures[f"last_{count}"] = sorted(spans)[3] * 1e3
            return figures

    return asyncio.run(main())


def imports() -> Figures:
    """Ms to import sessionstore after asyncio and msgspec, in a process that has imported nothing else."""
    code = (
        "import asyncio, msgspec, time; start = time.perf_counter(); import sessionstore; "
        "print((time.perf_counter() - start) * 1e3)"
    )
    spans = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    return {"ms": sorted(spans)[2]}


CASES: dict[str, Callable[..., Figures]] = {
    case.__name__: case
    for case in (
        append,
        append_forms,
        resume,
        floor_load,
        live_memory,
        flush,
        many,
        heartbeat,
        listing,
        read_end,
        imports,
    )
}

if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]](*sys.argv[2:])))

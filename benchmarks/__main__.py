"""Run the measurements and print the table: figure, what it is compared with, ratio, target.

``python -m benchmarks [--quick] [--runs N] [--peer DIR] [--logs DIR] [--json FILE] [--write FILE]``

Every measurement is a fresh process; what is compared runs in turn in the same run (A B A B ...), so that a
machine whose speed drifts drifts for both.  ``--peer`` (or BENCH_PEER) names a folder in which the reference
implementation is installed; without it the ratios against it are left out, and the loads are measured on a log of
our own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Figures = dict[str, float]
CORE = (
    "turn/start",
    "user/message",
    "step/start",
    "assistant/message",
    "tool/call",
    "tool/result",
    "step/end",
    "turn/end",
)
BEGIN, END = "<!-- figures: python -m benchmarks --write -->", "<!-- end of the figures -->"


class Row(NamedTuple):
    """One line of the table: medians over the runs, with the smallest and largest."""

    name: str
    figure: str
    against: str
    ratio: str
    target: str


def case(name: str, *args: str, **env: str) -> Figures:
    """Run one of our measurements in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.cases", name, *args]
    return run(command, Path(__file__).parent.parent, env)


def run(command: Sequence[str], folder: Path, env: dict[str, str] | None = None) -> Figures:
    """The figures that a command prints as its last line of JSON."""
    # What users run is compiled already; so is, after the first process, what is measured here.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        command, cwd=folder, env=environment | (env or {}), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    found: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return found


class Bench:
    """One run of everything; collects rows and raw figures."""

    def __init__(self, peer: Path | None, logs: Path | None, runs: int, events: int, work: Path) -> None:
        self.peer, self.logs, self.runs, self.events, self.work = peer, logs, runs, events, work
        self.rows: list[Row] = []
        self.raw: dict[str, list[Figures]] = {}

    def paired(self, **commands: Callable[[], Figures]) -> dict[str, list[Figures]]:
        """Run the commands in turn, as often as asked for."""
        found: dict[str, list[Figures]] = {name: [] for name in commands}
        for _ in range(self.runs):
            for name, command in commands.items():
                found[name].append(command())
        for name, figures in found.items():
            self.raw.setdefault(name, []).extend(figures)
        return found

    def row(self, name: str, ours: Sequence[float], other: Sequence[float] | None, target: str, unit: str) -> None:
        """Add a line; the ratio is the median of the ratios pair by pair."""
        ratio = ""
        if other:
            ratios = [a / b for a, b in zip(ours, other, strict=True)]
            ratio = f"{statistics.median(ratios):.2f}"
        self.rows.append(Row(name, shown(ours, unit), shown(other, unit) if other else "", ratio, target))
        print("  " + " | ".join(self.rows[-1]), flush=True)

    def node(self, *args: str) -> Figures:
        """Run the reference's benchmark."""
        if self.peer is None:
            raise SystemExit("no reference installed")
        return run(["./node", "bench.mjs", *args], self.peer)

    # --- the measurements -------------------------------------------------------------------------------------

    def appends(self) -> None:
        """µs per append by type, and bytes per event."""
        count = str(min(self.events, 300_000))
        for compression in ("none", "zstd"):
            commands: dict[str, Callable[[], Figures]] = {
                f"append-{compression}": partial(case, "append", count, compression)
            }
            root = self.work / f"peer-append-{compression}"
            if self.peer is not None:

                def reference(c: str = compression, root: Path = root) -> Figures:
                    shutil.rmtree(root, ignore_errors=True)
                    return self.node("write", str(root), c, count)

                commands[f"peer-append-{compression}"] = reference
            found = self.paired(**commands)
            ours = found[f"append-{compression}"]
            peers = found.get(f"peer-append-{compression}")
            if compression == "none":
                self._append_rows(ours, peers)
            size = [sum(f.stat().st_size for f in root.rglob("session.jsonl*")) / ours[0]["events"]] * len(ours)
            sizes = [figures["bytes_per_event"] for figures in ours]
            self.row(f"bytes per event, {compression}", sizes, size if peers else None, "<= 1", "B")

    def _append_rows(self, ours: list[Figures], peers: list[Figures] | None) -> None:
        for type_ in ("assistant/chunk", *CORE):
            other = [dict(figures["perTypeUs"])[type_] for figures in peers] if peers else None  # type: ignore[call-overload]
            target = "<= 0.25" if type_ == "assistant/chunk" else "<= 1"
            self.row(f"append {type_}", [figures[type_] for figures in ours], other, target, "µs")

    def forms(self) -> None:
        """The Struct form against the dict form of a delta."""
        found = self.paired(forms=lambda: case("append_forms"))["forms"]
        self.row("append delta, Struct against dict", *columns(found, "struct", "dict"), "<= 1", "µs")

    def loads(self) -> None:
        """Resume against the reference and against the floor."""
        for compression in ("none", "zstd"):
            root = self.log(compression)
            commands: dict[str, Callable[[], Figures]] = {
                f"resume-{compression}": partial(case, "resume", str(root)),
                f"floor-{compression}": partial(case, "floor_load", str(root)),
            }
            if self.peer is not None:
                commands[f"peer-load-{compression}"] = partial(self.node, "load", str(root), compression)
            found = self.paired(**commands)
            ours, floor = found[f"resume-{compression}"], found[f"floor-{compression}"]
            peers = found.get(f"peer-load-{compression}")
            seconds = [figures["seconds"] for figures in ours]
            memory = [figures["peak_mib"] for figures in ours]
            if peers:
                limit = "<= 0.20" if compression == "none" else "<= 0.25"
                self.row(
                    f"resume, {compression}, reference", seconds, [float(p["loadMs"]) / 1e3 for p in peers], limit, "s"
                )
                limit = "<= 0.25" if compression == "none" else "<= 0.33"
                self.row(
                    f"peak memory of it, {compression}", memory, [float(p["maxRssMB"]) for p in peers], limit, "MiB"
                )
            if compression == "none":
                self.row("resume, floor", seconds, [figures["seconds"] for figures in floor], "<= 3.5", "s")
                self.row("first derive_messages()", [f["derive_first"] * 1e3 for f in ours], None, "~ surface", "ms")
                self.row("next derive_messages()", [f["derive_again"] * 1e3 for f in ours], None, "~ new", "ms")

    def memory(self) -> None:
        """Bytes per streamed delta of a live session."""
        for count in (1_000_000, 10_000_000) if self.events > 500_000 else (200_000,):
            found = self.paired(**{f"memory-{count}": partial(case, "live_memory", str(count))})
            figures = [f["bytes_per_delta"] for f in found[f"memory-{count}"]]
            self.row(f"memory per delta at {count:,}", figures, None, "<= 100 B", "B")

    def flushes(self) -> None:
        """One small flush against the same write through a thread, and bare."""
        found = self.paired(flush=lambda: case("flush"))["flush"]
        self.row("flush of one event, to_thread", *columns(found, "flush", "thread"), "<= 1.5", "ms")
        self.row("flush of one event, bare calls", *columns(found, "flush", "bare"), "reported", "ms")

    def sessions(self) -> None:
        """64 sessions at once against one."""
        found = self.paired(many=lambda: case("many", "64"), one=lambda: case("many", "1"))
        rates = [[f["events_per_second"] for f in found[name]] for name in ("many", "one")]
        self.row("64 sessions streaming, against one", rates[0], rates[1], ">= 0.6", "events/s")
        spread = [f["first_end"] / f["last_end"] for f in found["many"]]
        self.row("first of 64 done / last done", spread, None, "none starved", "")

    def loop(self) -> None:
        """The loop's gaps at work against an idle loop's."""
        root = self.log("none")
        found = self.paired(loop=lambda: case("heartbeat", str(root)))["loop"]
        works = {"lines": "resume of 1,000,000 lines", "list": "list() of 10,000"}
        for work in ("resume", "flush", "read_from", *works):
            name = works.get(work, work)
            over = [f[f"{work}_p99"] - f["idle_p99"] for f in found]
            self.row(f"loop gap over idle, 99 %, {name}", over, None, "<= 10 ms", "ms")
            self.row(f"largest loop gap, {name}", [f[f"{work}_max"] for f in found], None, "<= 50 ms", "ms")

    def lists(self) -> None:
        """Listing against a bare walk."""
        count = "10000" if self.events > 500_000 else "1000"
        found = self.paired(bare=partial(case, "listing", count), beside=partial(case, "listing", count, "beside"))
        name = f"list() of {int(count):,} sessions"
        self.row(f"{name}, bare walk", *columns(found["bare"], "list", "walk"), "<= 4", "s")
        self.row(f"{name} with lock and index", *columns(found["beside"], "list", "walk"), "reported", "s")

    def ends(self) -> None:
        """Reading the end of a large log."""
        root = self.log("none")
        events = str(int(case("resume", str(root))["events"]))
        found = self.paired(ends=lambda: case("read_end", str(root), BENCH_EVENTS=events))["ends"]
        self.row("read_from: last 50 events", [f["last_50"] for f in found], None, "~ returned", "ms")
        self.row("read_from: last 5,000 events", [f["last_5000"] for f in found], None, "~ returned", "ms")

    def imports(self) -> None:
        """The cost of the import."""
        found = self.paired(imports=lambda: case("imports"))["imports"]
        self.row("import over asyncio and msgspec", [f["ms"] for f in found], None, "<= 40 ms", "ms")

    def log(self, compression: str) -> Path:
        """A large session, written by the reference where it is installed."""
        root = self.work / f"log-{compression}"
        if not root.exists():
            if self.logs is not None:
                shutil.copytree(self.logs / f"root-{compression}", root)
            elif self.peer is not None:
                self.node("write", str(root), compression, str(self.events))
            else:
                asyncio.run(write_log(root, compression, self.events))
        return root


async def write_log(root: Path, compression: str, events: int) -> None:
    """Write the workload with our own store."""
    from benchmarks.cases import write_workload
    from sessionstore import SessionStore

    async with SessionStore(root, compression="zstd" if compression == "zstd" else "none") as store:
        await write_workload(await store.create("bench", cwd="/w"), events, None)


def columns(figures: Sequence[Figures], *names: str) -> tuple[list[float], list[float]]:
    """Two columns of figures."""
    return [f[names[0]] for f in figures], [f[names[1]] for f in figures]


def shown(values: Sequence[float], unit: str) -> str:
    """Median and spread as a person reads them."""
    low, middle, high = min(values), statistics.median(values), max(values)
    digits = 0 if middle >= 1000 else 2 if middle >= 1 else 3
    return f"{middle:,.{digits}f} ({low:,.{digits}f}–{high:,.{digits}f}) {unit}".rstrip()


def machine() -> str:
    """What the figures were taken on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    return f"{os.cpu_count()} × {model}, {platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}"


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    head = "| what | figure (smallest–largest) | against | ratio | target |\n| --- | --- | --- | --- | --- |"
    return "\n".join([head, *("| " + " | ".join(row) + " |" for row in rows)])


def put_table(path: Path, text: str) -> None:
    """Replace what stands between the two marks of a document."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        prog="benchmarks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small logs and one run: does it work at all?")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--events", type=int, default=1_300_000)
    parser.add_argument("--peer", type=Path, default=os.environ.get("BENCH_PEER"))
    parser.add_argument("--logs", type=Path, help="where root-none and root-zstd lie, written before by the reference")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--write", type=Path, help="put the table there, between its two marks")
    parser.add_argument("only", nargs="*", help="appends forms loads memory flushes sessions loop lists ends imports")
    options = parser.parse_args()
    names = options.only or [
        "appends",
        "forms",
        "loads",
        "memory",
        "flushes",
        "sessions",
        "loop",
        "lists",
        "ends",
        "imports",
    ]
    with tempfile.TemporaryDirectory(prefix="bench-", dir=os.environ.get("BENCH_DIR", "/var/tmp")) as work:
        runs, events = (1, 20_000) if options.quick else (options.runs, options.events)
        bench = Bench(options.peer, options.logs, runs, events, Path(work))
        print(machine(), flush=True)
        for name in names:
            print(f"{name}:", flush=True)
            getattr(bench, name)()
    print("\n" + table(bench.rows))
    if options.write is not None:
        put_table(options.write, f"{machine()}; {bench.runs} runs\n\n{table(bench.rows)}")
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine(), "runs": bench.raw}, indent=1))


if __name__ == "__main__":
    main()

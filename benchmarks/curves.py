"""Draw how the costs grow with the log: ``python -m benchmarks.curves DIR [--largest EVENTS]`` writes three SVG files.

Each point is the best of three fresh processes.  What is flat per event in these plots is linear in the log.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.__main__ import case, write_log

if TYPE_CHECKING:
    from collections.abc import Sequence

Points = list[tuple[float, float]]
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 560, 300, 70, 40, 20, 45
COLOURS = ("#1f6feb", "#8b949e")


def plot(title: str, unit: str, curves: Sequence[tuple[str, Points]]) -> str:
    """An SVG with both axes from zero, one line per curve."""
    right = max(x for _, points in curves for x, _ in points)
    top = max(y for _, points in curves for _, y in points) * 1.1 or 1.0

    def place(x: float, y: float) -> str:
        return (
            f"{LEFT + x / right * (WIDTH - LEFT - RIGHT):.1f},{HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM):.1f}"
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{title}</text>',
    ]
    for step in range(5):
        y = top * step / 4
        (x0, y0), (x1, _) = (place(0, y).split(","), place(right, y).split(","))
        parts.append(f'<line x1="{x0}" y1="{y0}" x2="{x1}" y2="{y0}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{float(y0) + 4}" text-anchor="end">{y:.3g}</text>')
        x = place(right * step / 4, 0).split(",")[0]
        parts.append(f'<text x="{x}" y="{HEIGHT - 25}" text-anchor="middle">{right * step / 4:,.0f}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">events in the log</text>')
    parts.append(f'<text x="8" y="{TOP - 6}">{unit}</text>')
    for colour, (name, points), row in zip(COLOURS, curves, range(len(COLOURS)), strict=False):
        line = " ".join(place(x, y) for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{c[0]}" cy="{c[1]}" r="3" fill="{colour}"/>' for c in (p.split(",") for p in line.split())
        ]
        parts.append(f'<text x="{LEFT + 10}" y="{TOP + 14 + 16 * row}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    """Measure and draw."""
    parser = argparse.ArgumentParser(prog="benchmarks.curves")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--largest", type=int, default=1_300_000)
    options = parser.parse_args()
    load: Points = []
    floor: Points = []
    memory: Points = []
    append: Points = []
    for part in (1, 2, 4, 8, 16):
        events = options.largest * part // 16
        with tempfile.TemporaryDirectory(prefix="bench-", dir=os.environ.get("BENCH_DIR", "/var/tmp")) as work:
            root = Path(work) / "root"
            asyncio.run(write_log(root, "none", events))
            resumed = [case("resume", str(root)) for _ in range(3)]
            floors = [case("floor_load", str(root)) for _ in range(3)]
            load.append((events, min(found["seconds"] for found in resumed)))
            floor.append((events, min(found["seconds"] for found in floors)))
            memory.append((events, min(found["peak_mib"] - found["before_mib"] for found in resumed)))
        figures = [case("append", str(events))["assistant/chunk"] for _ in range(3)]
        append.append((events, min(figures)))
    plots = {
        "load.svg": plot(
            "Resume", "s", [("resume, everything validated", load), ("floor: read, split, decode", floor)]
        ),
        "memory.svg": plot("Memory that a resume takes", "MiB", [("peak over before", memory)]),
        "append.svg": plot("Append of a delta, store writing", "µs", [("mean over the whole log", append)]),
    }
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, text in plots.items():
        (options.folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

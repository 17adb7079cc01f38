"""Measure how time and memory of self-attention and hard attention grow with the map, and write docs/speed.md.

Run: python -m benchmarks.growth               a quarter of an hour on two cores; keep the machine otherwise idle
     python -m benchmarks.growth --table       page and plot from the results that are there
     python -m benchmarks.growth --smoke --out FOLDER    tiny maps and two blocks: does it run? Its figures mean nothing

The figures are in benchmarks/results/growth.json, the plot is docs/growth.png.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.speed_table import add_flags, folder_of, write_page
from visattn.cost import bench_growth

SMOKE: dict[str, Any] = {"blocks": "nonlocal,hard", "sides": (3, 5, 8), "channels": 16, "repeats": 2}


def draw(results: dict[str, Any], path: Path) -> None:
    """Time and memory against the number of pixels, both axes logarithmic, a line per block."""
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.subplots(1, 2)
    for row in results["rows"]:
        pixels = [side**2 for side in row["sides"]]
        seconds = [1000 * each["median"] for each in row["seconds"]]
        axes[0].plot(pixels, seconds, marker="o", label=f"{row['block']}: {row['time_exponent']:.1f}")
        peaks = [each / 1e6 for each in row["peak_bytes"]]
        axes[1].plot(pixels, peaks, marker="o", label=f"{row['block']}: {row['memory_exponent']:.1f}")
    for each, title in zip(axes, ("forward and backward, milliseconds", "peak memory, MB"), strict=True):
        each.set(xscale="log", yscale="log", xlabel="pixels of the map, H W", title=title)
        each.legend(title="block: exponent", fontsize="small")
        each.grid(True, which="both", alpha=0.2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="of the CPU [as torch is set]")
    arguments = parser.parse_args(argv)
    folder = folder_of(parser, arguments)
    results = folder / "benchmarks" / "results" / "growth.json"
    if not arguments.table:
        report = bench_growth(
            **(SMOKE if arguments.smoke else {}),
            threads=arguments.threads,
            note=lambda what, why: print(f"{what}: {why}", flush=True),
        )
        report.measured_by(f"python -m benchmarks.growth{' --smoke' if arguments.smoke else ''}").save(results)
    draw(json.loads(results.read_text()), folder / "docs" / "growth.png")
    write_page(folder)


if __name__ == "__main__":
    main()

"""docs/speed.md, from the results of benchmarks/blocks.py and benchmarks/growth.py."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from visattn.cost.rivals import RIVALS
from visattn.cost.table import geometric_mean, megabytes
from visattn.files import replacing
from visattn.tables import Table, as_markdown

ROOT = Path(__file__).parent.parent

HEADER = """# What attention costs

Generated from [`benchmarks/results/`](../benchmarks/results) by `python -m benchmarks.blocks` and
`python -m benchmarks.growth`; `visattn bench` measures the same on your machine.

- **x\\*g**: how many times as long as the plain multiply of the input by one gate per channel. No gate can be
  faster: it is bound by memory alone.
- **timm**: how many times as long as timm's block with the same widths; below 1 ours is faster.
- **kept**: memory that is kept for the backward pass, the input included, in multiples of the input.

A block, the multiply and timm's block run in turn within one loop. Ratios are medians of the ratios within a round,
of forward and backward in training mode (gradients for the input and the parameters), of the forward pass in
evaluation mode.

"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of both commands."""
    parser.add_argument("--table", action="store_true", help="only write docs/speed.md, from the results")
    parser.add_argument("--smoke", action="store_true", help="a tiny run, to see that it works; needs --out")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="to write to, instead of this repository")


def folder_of(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Path:
    """Where to write; figures of a smoke run stay out of the repository."""
    if arguments.smoke and arguments.out is None:
        parser.error("--smoke needs --out: its figures mean nothing")
    return arguments.out or ROOT


def write_page(folder: Path) -> None:
    """Write docs/speed.md from the results in a folder."""
    path = folder / "docs" / "speed.md"
    text = speed_page(folder / "benchmarks" / "results")
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def speed_page(results: Path) -> str:
    """The page from the results that are there."""
    text = HEADER
    if (path := results / "blocks.json").is_file():
        text += _blocks(json.loads(path.read_text()))
    if (path := results / "growth.json").is_file():
        text += _growth(json.loads(path.read_text()))
    return text


def _measured(results: dict[str, Any]) -> str:
    machine = results["machine"]
    processor = f"{machine['cpu']}, {machine['cores']} cores, torch threads: {machine['threads']}"
    where = f"{machine['gpu']} ({processor})" if machine["gpu"] else processor
    return (
        f"`{results['command']}`, {machine['date']}: {where}; {machine['system']}, Python {machine['python']}, "
        f"torch {machine['torch']}, timm {machine['timm']}.\n\n"
    )


def _left_out(results: dict[str, Any]) -> str:
    return "".join(f"\nLeft out: {each['what']} ({each['why']}).\n" for each in results["left_out"])


def _blocks(results: dict[str, Any]) -> str:
    rows = results["rows"]
    text = "## In short\n\n" + _measured(results)
    text += "Geometric means over all shapes and layouts.\n\n" + as_markdown(_summary(rows))
    for mode, layout, compiled in _distinct(_setting(row) for row in rows):
        chosen = [row for row in rows if _setting(row) == (mode, layout, compiled)]
        title = f"{'Training' if mode == 'train' else 'Evaluation'}, {layout}{', compiled' if compiled == 'on' else ''}"
        text += f"\n## {title}\n\nMilliseconds of a step, times x\\*g, and times timm's block.\n\n"
        text += as_markdown(_by_shape(chosen, _times))
    trained = [row for row in rows if _setting(row) == ("train", "nchw", "off")]
    if trained:
        text += "\n## Memory in training, nchw\n\nPeak of a step / kept for the backward pass, in MB.\n\n"
        text += as_markdown(_by_shape(trained, _memory))
    text += "\n## Where timm's block is not the same\n\n"
    text += "".join(f"- `{name}`: {difference}.\n" for name, (_, difference) in RIVALS.items() if difference)
    return text + _left_out(results) + "\n"


def _setting(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["setting"]["mode"], row["setting"]["layout"], row["setting"]["compile"]


def _distinct(items: Any) -> list[Any]:
    return list(dict.fromkeys(items))


def _step(spreads: dict[str, Any]) -> float:
    """The median of a whole step: both passes where there is a backward pass."""
    return (spreads["forward_backward"] or spreads["forward"])["median"]


def _summary(rows: Sequence[dict[str, Any]]) -> Table:
    """A row per block with geometric means, and one of all blocks."""
    columns = [
        (f"{shown}, {mode}{' compiled' if compiled == 'on' else ''}", key, mode, compiled)
        for compiled in _distinct(row["setting"]["compile"] for row in rows)
        for key, shown in (("to_multiply", "x\\*g"), ("to_rival", "timm"))
        for mode in _distinct(row["setting"]["mode"] for row in rows)
    ]

    def mean(chosen: Sequence[dict[str, Any]], key: str, mode: str, compiled: str) -> str:
        found = [
            _step(row[key])
            for row in chosen
            if row[key] and (row["setting"]["mode"], row["setting"]["compile"]) == (mode, compiled)
        ]
        return f"{geometric_mean(found):.2f}" if found else ""

    def kept(chosen: Sequence[dict[str, Any]]) -> str:
        found = [
            row["cost"]["kept_bytes"] / row["multiply"]["kept_bytes"]  # the multiply keeps its input
            for row in chosen
            if row["cost"]["kept_bytes"] and row["setting"]["compile"] == "off"
        ]
        return f"{geometric_mean(found):.2f}" if found else ""

    cells = []
    for block in _distinct(row["block"] for row in rows):
        own = [row for row in rows if row["block"] == block]
        cells.append([f"`{block}`", *(mean(own, *which) for _, *which in columns), kept(own)])
    cells.append(["all", *(mean(rows, *which) for _, *which in columns), kept(rows)])
    return Table(["block", *(name for name, *_ in columns), "kept"], cells, "")


def _by_shape(rows: Sequence[dict[str, Any]], cell: Any) -> Table:
    """Blocks by shapes; empty where something was left out."""
    shapes = _distinct("x".join(map(str, row["shape"])) for row in rows)
    blocks = _distinct(row["block"] for row in rows)
    found = {(row["block"], "x".join(map(str, row["shape"]))): cell(row) for row in rows}
    cells = [[f"`{block}`", *(found.get((block, shape), "") for shape in shapes)] for block in blocks]
    return Table(["block", *shapes], cells, "")


def _times(row: dict[str, Any]) -> str:
    parts = [f"{1000 * _step(row['cost']):.2f}", f"{_step(row['to_multiply']):.2f}"]
    return ", ".join([*parts, *([f"{_step(row['to_rival']):.2f}"] if row["to_rival"] else [])])


def _memory(row: dict[str, Any]) -> str:
    return f"{megabytes(row['cost']['peak_bytes'])} / {megabytes(row['cost']['kept_bytes'])}"


def _growth(results: dict[str, Any]) -> str:
    rows = results["rows"]
    side = rows[0]["sides"][-1]
    text = "## Growth with the size of the map\n\n" + _measured(results)
    text += (
        "Forward and backward on square maps. An exponent p says that time or memory grow as (H W)^p, fitted to the "
        "larger half\nof the maps: 1 is linear in the number of pixels, 2 is an N x N matrix.\n\n"
        "![Time and memory against the number of pixels](growth.png)\n\n"
    )
    cells = [
        [
            f"`{row['block']}`",
            f"{row['time_exponent']:.2f}",
            f"{row['memory_exponent']:.2f}",
            f"{1000 * row['seconds'][-1]['median']:.1f}",
            megabytes(row["peak_bytes"][-1]),
        ]
        for row in rows
    ]
    columns = ["block", "time", "memory", f"ms at {side}x{side}", f"peak MB at {side}x{side}"]
    return text + as_markdown(Table(columns, cells, "")) + _left_out(results)

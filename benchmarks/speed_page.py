"""docs/speed.md and its plot, from the results of benchmarks/speed.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.speed_reasons import LONGER, REASONS
from visattn.cost.rivals import RIVALS
from visattn.cost.table import geometric_mean, megabytes
from visattn.files import replacing
from visattn.tables import Table, as_markdown

UNEXPLAINED = "not explained yet"
FLOOR = 2.0  # times the floor above which the page says why

HEADER = """# What attention costs

Generated from [`benchmarks/results/`](../benchmarks/results) by `python -m benchmarks.speed`; `visattn bench` measures
the same on your machine.{unmeasured}

What is compared runs in turn within one loop, and a ratio is the median of the ratios within a round. A training step
is forward and backward, with gradients for the input and the parameters; evaluation is a forward pass without
gradients.

"""
UNMEASURED = " All figures are of a CPU: the same code runs on a GPU, but has not been measured there yet."


def write_page(results: Path, path: Path) -> None:
    """Write the page from the results that are there."""
    with replacing(path) as partial:
        partial.write_text(speed_page(results), encoding="utf-8")


def speed_page(results: Path) -> str:
    """The page, a section for every part that was measured."""
    sections = {"timm": _timm, "compiled": _compiled, "networks": _networks, "blocks": _blocks, "growth": _growth}
    found = {part: content for part in sections if (content := _read(results, part)) is not None}
    on_gpu = any(content["machine"]["gpu"] for content in found.values())
    text = HEADER.format(unmeasured="" if on_gpu else UNMEASURED)
    for part, content in found.items():
        text += sections[part](content)
        text += "".join(f"\nLeft out: {each['what']} ({each['why']}).\n" for each in content["left_out"]) + "\n"
    return text.rstrip() + "\n"


def _read(results: Path, part: str) -> dict[str, Any] | None:
    path = results / f"{part}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def _measured(content: dict[str, Any]) -> str:
    machine = content["machine"]
    device = ", ".join(filter(None, [machine["gpu"], machine["cpu"]]))
    text = (
        f"`{content['command']}`, {machine['date']}: {device}, {machine['cores']} cores, torch threads: "
        f"{machine['threads']}; {machine['system']}, Python {machine['python']}, torch {machine['torch']}, "
        f"timm {machine['timm']}.\n\n"
    )
    if again := content.get("again"):
        names = ", ".join(f"`{name}` ({day})" for name, day in again.items())
        text += "Measured again in runs of their own, whose ratios can be compared, but not their milliseconds: "
        text += f"{names}.\n\n"
    return text


# --- beside timm ----------------------------------------------------------------------------------------------------


def _timm(content: dict[str, Any]) -> str:
    rows = [row for row in content["rows"] if row["to_rival"]]
    text = "## Beside timm's blocks\n\n" + _measured(content)
    text += (
        "How many times as long as timm's block with the same widths: geometric mean over all shapes and layouts, and\n"
        "the largest. Below 1 ours is faster. Peak: the most memory that a training step holds, in multiples of\n"
        "timm's, geometric mean. Kept: memory that is kept for the backward pass, the input included, in multiples of\n"
        "the input.\n\n"
    )
    text += as_markdown(_summary(rows))
    for mode in ("train", "eval"):
        for layout in ("nchw", "nhwc"):
            chosen = [row for row in rows if (row["setting"]["mode"], row["setting"]["layout"]) == (mode, layout)]
            text += f"\n### {'Training step' if mode == 'train' else 'Evaluation'}, {layout}\n\n"
            text += "Milliseconds, and times timm's.\n\n" + as_markdown(_by_shape(chosen, _beside))
    text += "\n### Where ours takes longer\n\nIn at least three quarters of the rounds, and by 2 % or more.\n\n"
    text += as_markdown(_longer(rows))
    text += "".join(f"\n- {', '.join(f'`{name}`' for name in names)}: {why}." for names, why in LONGER.items()) + "\n"
    text += "\n### Where timm's block is not the same\n\n"
    return text + "".join(f"- `{name}`: {difference}.\n" for name, (_, difference) in RIVALS.items() if difference)


def _summary(rows: Sequence[dict[str, Any]]) -> Table:
    """A row per block, and one of all."""
    names = ["block", "forward in training", "training step", "evaluation", "peak", "kept"]
    cells = [
        [f"`{block}`" if block != "all" else "all", *_summary_cells(own)]
        for block, own in [*_by_block(rows).items(), ("all", rows)]
    ]
    return Table(names, cells, "")


def _summary_cells(rows: Sequence[dict[str, Any]]) -> list[str]:
    training = [row for row in rows if row["setting"]["mode"] == "train"]
    evaluation = [row for row in rows if row["setting"]["mode"] == "eval"]
    return [
        _mean_and_largest(row["to_rival"]["forward"]["median"] for row in training),
        _mean_and_largest(row["to_rival"]["forward_backward"]["median"] for row in training),
        _mean_and_largest(row["to_rival"]["forward"]["median"] for row in evaluation),
        f"{geometric_mean([row['cost']['peak_bytes'] / row['rival']['peak_bytes'] for row in training]):.2f}",
        f"{geometric_mean([_kept(row) for row in training]):.2f}",
    ]


def _longer(rows: Sequence[dict[str, Any]]) -> Table:
    """What three quarters of the rounds say takes longer than timm's."""
    cells = []
    for row in rows:
        setting, shape = row["setting"], "x".join(map(str, row["shape"]))
        passes = {"forward": "forward in training", "forward_backward": "training step"}
        for key, what in passes.items() if setting["mode"] == "train" else [("forward", "evaluation")]:
            ratio = row["to_rival"][key]
            if ratio["low"] > 1 and ratio["median"] >= 1.02:
                spread = f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
                cells.append([f"`{row['block']}`", what, f"{shape}, {setting['layout']}", spread])
    return Table(["block", "what", "where", "times timm's, and quartiles"], cells, "", texts=3)


def _mean_and_largest(ratios: Iterable[float]) -> str:
    found = list(ratios)
    return f"{geometric_mean(found):.2f} ({max(found):.2f})"


def _kept(row: dict[str, Any]) -> float:
    return row["cost"]["kept_bytes"] / row["multiply"]["kept_bytes"]  # the multiply keeps its input


def _beside(row: dict[str, Any]) -> str:
    return f"{1000 * _step(row['cost']):.1f}, {_step(row['to_rival']):.2f}"


def _step(spreads: dict[str, Any]) -> float:
    """The median of a whole step: both passes where there is a backward pass."""
    return (spreads["forward_backward"] or spreads["forward"])["median"]


# --- compiled -------------------------------------------------------------------------------------------------------


def _compiled(content: dict[str, Any]) -> str:
    text = "## Under torch.compile\n\n" + _measured(content)
    text += (
        "A training step, nchw: compiled ours beside compiled timm's, and beside ours as it is. Compilers get the\n"
        "plain formula, not our primitives: where the second figure is above 1, those are faster than what the\n"
        "compiler makes of it.\n\n"
    )
    eager = {_place(row): row for row in content["rows"] if row["setting"]["compile"] == "off"}
    compiled = [row for row in content["rows"] if row["setting"]["compile"] == "on"]

    def cell(row: dict[str, Any]) -> str:
        beside = f"{_step(row['to_rival']):.2f}" if row["to_rival"] else "no such block"
        return f"{beside}, {_step(row['cost']) / _step(eager[_place(row)]['cost']):.2f}"

    return text + as_markdown(_by_shape(compiled, cell))


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["block"], *row["shape"]


# --- networks -------------------------------------------------------------------------------------------------------


def _networks(content: dict[str, Any]) -> str:
    first = content["rows"][0]
    images = f"{first['batch_size']}x{'x'.join(map(str, first['image']))}"
    text = "## Whole networks\n\n" + _measured(content)
    text += f"A step with {images}, and the latency of one image, as multiples of `{first['model']}`; peak in MB.\n\n"
    cells = [
        [
            f"`{row['model']}`",
            f"{row['setting']['mode']}, {row['setting']['layout']}",
            f"{row['throughput']['median']:.1f}",
            f"{row['step_to_first']['median']:.3f}",
            f"{row['latency_to_first']['median']:.3f}",
            megabytes(row["peak_bytes"]),
        ]
        for row in content["rows"]
    ]
    return text + as_markdown(
        Table(["network", "setting", "images/s", "step", "one image", "peak"], cells, "", texts=2)
    )


# --- all blocks -----------------------------------------------------------------------------------------------------


def _blocks(content: dict[str, Any]) -> str:
    rows = content["rows"]
    rates = {tuple(each["shape"]): each["cost"]["macs"] / _step(each["cost"]) for each in content["convolutions"]}

    def floor(row: dict[str, Any]) -> float:
        return _step(row["cost"]) / (_step(row["multiply"]) + row["cost"]["macs"] / rates[tuple(row["shape"])])

    text = "## All blocks\n\n" + _measured(content)
    text += (
        "A training step, nchw: how many times as long as the plain multiply **x\\*g** of the input by one gate per\n"
        "channel, and as the **floor**: that multiply plus the block's multiply-accumulates at the rate of a 1x1\n"
        "convolution of C to C channels on the same map. Geometric means over both shapes.\n\n"
    )
    cells, slow = [], {}
    for block, own in _by_block(rows).items():
        times = geometric_mean([floor(row) for row in own])
        if times > FLOOR:
            slow[block] = times
        multiply = geometric_mean([_step(row["to_multiply"]) for row in own])
        kept = geometric_mean([_kept(row) for row in own])
        cells.append([f"`{block}`", f"{multiply:.2f}", f"{times:.2f}", f"{kept:.2f}"])
    text += as_markdown(Table(["block", "x\\*g", "floor", "kept"], cells, ""))
    text += f"\n### More than {FLOOR:g} times the floor, and why\n\n"
    text += "".join(f"- `{block}`, {times:.1f}: {REASONS.get(block, UNEXPLAINED)}.\n" for block, times in slow.items())
    return (
        text
        + "\n### By shape\n\nMilliseconds, and peak memory in MB.\n\n"
        + as_markdown(_by_shape(rows, _time_and_peak))
    )


def _time_and_peak(row: dict[str, Any]) -> str:
    return f"{1000 * _step(row['cost']):.1f}, {megabytes(row['cost']['peak_bytes'])}"


def _by_block(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["block"], []).append(row)
    return found


def _by_shape(rows: Sequence[dict[str, Any]], cell: Callable[[dict[str, Any]], str]) -> Table:
    """Blocks by shapes; empty where something was left out."""
    found = {(row["block"], "x".join(map(str, row["shape"]))): cell(row) for row in rows}
    shapes = sorted({shape for _, shape in found}, key=lambda shape: -int(shape.split("x")[-1]))
    blocks = list(dict.fromkeys(block for block, _ in found))
    cells = [[f"`{block}`", *(found.get((block, shape), "") for shape in shapes)] for block in blocks]
    return Table(["block", *shapes], cells, "")


# --- growth ---------------------------------------------------------------------------------------------------------


def _growth(content: dict[str, Any]) -> str:
    rows = content["rows"]
    side = rows[0]["sides"][-1]
    text = "## Growth with the size of the map\n\n" + _measured(content)
    text += (
        "A training step on square maps. An exponent p says that time or memory grow as (H W)^p, fitted to the larger\n"
        "half of the maps: 1 is linear in the number of pixels, 2 is an N x N matrix.\n\n"
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
    return text + as_markdown(
        Table(["block", "time", "memory", f"ms at {side}x{side}", f"peak MB at {side}x{side}"], cells, "")
    )


def draw_growth(results: Path, path: Path) -> None:
    """Time and memory against the number of pixels, a line per block; nothing if it was not measured."""
    content = _read(results, "growth")
    if content is None:
        return
    rows = sorted(content["rows"], key=lambda row: row["seconds"][-1]["median"])
    figure = Figure(figsize=(12, 0.24 * len(rows) + 2.5), layout="constrained")
    axes = figure.subplots(1, 2)
    for each, values, exponent, title in (
        (axes[0], lambda row: [1000 * s["median"] for s in row["seconds"]], "time_exponent", "training step, ms"),
        (axes[1], lambda row: [peak / 1e6 for peak in row["peak_bytes"]], "memory_exponent", "peak memory, MB"),
    ):
        for row in rows:
            colour = "tab:red" if row[exponent] > 1.5 else "tab:orange" if row[exponent] > 1.2 else "tab:blue"
            each.plot([side**2 for side in row["sides"]], values(row), marker=".", color=colour, alpha=0.7)
        _label_ends(
            each, [(row["sides"][-1] ** 2, values(row)[-1], f"{row['block']} {row[exponent]:.1f}") for row in rows]
        )
        each.set(xscale="log", yscale="log", xlabel="pixels of the map, H W", title=title)
        each.grid(True, which="both", alpha=0.2)
    figure.suptitle(
        "blue: grows like the number of pixels; orange: exponent above 1.2; red: above 1.5", fontsize="medium"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _label_ends(axes: Any, ends: Sequence[tuple[float, float, str]]) -> None:
    """Names of lines at their right ends, evenly spread so that none covers another."""
    ordered = sorted(ends, key=lambda end: end[1])
    for number, (x, y, name) in enumerate(ordered):
        height = (number + 0.5) / len(ordered)
        axes.annotate(
            name, (x, y), xytext=(1.06, height), textcoords="axes fraction", fontsize="x-small", va="center",
            arrowprops={"arrowstyle": "-", "alpha": 0.3, "linewidth": 0.5, "relpos": (0, 0.5)},
        )  # fmt: skip

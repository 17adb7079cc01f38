"""The family tree of the blocks: a branch per family, a leaf per block at the year of its paper."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from tests.zoo.page import year
from visattn.blocks import FAMILIES, block_info, list_blocks

COLOURS = ("#2563a8", "#2a8a4a", "#b45f06", "#8e3a80", "#a02c2c")
ROW = 0.2  # inches
GAP = 1  # rows between families


def draw(path: Path) -> None:
    """Draw it; the names of all leaves are in the description of the picture."""
    leaves = {family: _by_year(family) for family in FAMILIES}
    years = [leaf for each in leaves.values() for _, leaf in each]
    first, last = min(years), max(years)
    rows = sum(len(each) + GAP for each in leaves.values())
    trunk, root = first - 1, first - 3
    figure = Figure(figsize=(9, (rows + 3) * ROW), layout="constrained")
    axes = figure.add_subplot()
    row = 0
    middles = []
    for colour, (family, each) in zip(COLOURS, leaves.items(), strict=True):
        middle = row + (len(each) - 1) / 2
        middles.append(middle)
        axes.plot([root, trunk], [middle, middle], color=colour, lw=2)
        axes.text((root + trunk) / 2, middle - 0.25, family, ha="center", va="bottom", color=colour, weight="bold")
        axes.plot([trunk, trunk], [row, row + len(each) - 1], color=colour, lw=2, solid_capstyle="round")
        for number, (name, born) in enumerate(each):
            axes.plot([trunk, born], [row + number] * 2, color=colour, lw=0.7, alpha=0.6)
            axes.plot(born, row + number, "o", color=colour, ms=4)
            axes.text(born + 0.15, row + number, name, va="center", fontsize=9)
        row += len(each) + GAP
    axes.plot([root, root], [middles[0], middles[-1]], color="#444", lw=2, solid_capstyle="round")
    axes.set_xlim(root - 0.2, last + 2.6)
    axes.set_ylim(row - GAP + 0.5, -1.5)
    axes.set_xticks(range(first, last + 1))
    axes.xaxis.tick_top()
    axes.grid(axis="x", color="#e8e8e8")
    axes.set_axisbelow(True)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    names = " ".join(name for each in leaves.values() for name, _ in each)
    figure.savefig(path, dpi=130, metadata={"Description": names, "Software": None})


def _by_year(family: str) -> list[tuple[str, int]]:
    dated = []
    for name in list_blocks(family=family):
        born = year(block_info(name).paper)
        assert born is not None, f"the paper of {name!r} has no year: {block_info(name).paper}"
        dated.append((name, born))
    return sorted(dated, key=lambda leaf: (leaf[1], leaf[0]))

"""How time and memory of blocks grow with the number of pixels of a map."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from visattn.blocks import create_block, list_blocks
from visattn.core.arguments import Device, at_least_one, whole
from visattn.cost.contest import Contestant, check_affordable, check_block, contest
from visattn.cost.results import Note, Report, Track, as_call, measure_all, this_machine
from visattn.cost.settings import Setting, Words, block_names, checked_repeats, quiet_machine, shapes
from visattn.cost.table import megabytes, milliseconds
from visattn.cost.timing import Spread
from visattn.listing import shown
from visattn.opening import usable_device
from visattn.tables import Table

SETTING = Setting("train", "fp32", "off", "nchw")


@dataclass(frozen=True)
class GrowthRow:
    """A block on maps of several sizes.

    Args:
        block: its name.
        sides: height and width of the maps.
        seconds: of forward and backward.
        peak_bytes: the most memory that this took at a time.
        time_exponent: p in time ~ (H W)^p, fitted to the larger half of the maps.
        memory_exponent: the same of the memory.
    """

    block: str
    sides: tuple[int, ...]
    seconds: tuple[Spread, ...]
    peak_bytes: tuple[int, ...]
    time_exponent: float
    memory_exponent: float


def bench_growth(
    blocks: Words | None = None,
    sides: Sequence[int] = (7, 14, 20, 28, 40, 56),
    *,
    batch_size: int = 2,
    channels: int = 64,
    device: Device = None,
    repeats: int | None = None,
    threads: int | None = None,
    note: Note | None = None,
    track: Track | None = None,
) -> Report[GrowthRow]:
    """Time and memory of blocks on square maps of growing size, with fitted exponents.

    Args:
        blocks: names and globs; the self-attention blocks and hard attention unless given.
        sides: heights of the maps, two or more, growing.
        batch_size: images at a time.
        channels: of the maps.
        device: cuda if there is one.
        repeats: rounds, each with all sizes; three to twenty, as many as fit into two seconds, unless given.
        threads: of the CPU; as torch is set unless given.
        note: called at once with what is left out, and why.
        track: wraps lists, as ``tqdm`` does, to show progress.

    >>> found = bench_growth("nonlocal_dot", (12, 24, 48), channels=16, repeats=1)
    >>> 0.8 < found.rows[0].memory_exponent < 1.2
    True
    """
    names = block_names([*list_blocks(family="self"), *list_blocks(family="hard")] if blocks is None else blocks)
    if not isinstance(sides, list | tuple) or any(whole(side) is None for side in sides):
        raise TypeError(f"sides are two or more growing numbers, got {shown(sides)}")
    batch_size, channels = at_least_one("batch_size", batch_size), at_least_one("channels", channels)
    every = [shapes((batch_size, channels, side, side))[0] for side in sides]
    if len(every) < 2 or any(small[2] >= large[2] for small, large in pairwise(every)):
        raise ValueError(f"sides are two or more growing numbers, got {shown(sides)}")
    repeats = checked_repeats(repeats)
    place = usable_device(device)
    with quiet_machine(threads):
        machine = this_machine(place)
        rows, left_out = measure_all(
            names, lambda name: [_measure(name, every, place, repeats)], lambda name: name, note, track
        )
    command = as_call(
        "bench_growth",
        blocks=blocks,
        sides=tuple(sides),
        batch_size=batch_size,
        channels=channels,
        repeats=repeats,
    )
    return Report("growth", command, machine, tuple(rows), left_out, growth_table)


def _measure(
    name: str, every: Sequence[tuple[int, int, int, int]], device: torch.device, repeats: int | None
) -> GrowthRow:
    block = create_block(name, every[0][1])
    check_affordable([block], every[-1], SETTING, device)
    inputs = [SETTING.random(shape, device).requires_grad_() for shape in every]
    check_block(block, SETTING, inputs[0])
    contestants = [Contestant(copy.deepcopy(block), SETTING, x) for x in inputs]
    costs = [found.cost for found in contest(contestants, repeats)]
    sides = tuple(shape[2] for shape in every)
    seconds, peaks = tuple(cost.step for cost in costs), tuple(cost.peak_bytes for cost in costs)
    return GrowthRow(
        name,
        sides,
        seconds,
        peaks,
        exponent(sides, [each.median for each in seconds]),
        exponent(sides, peaks),
    )


def exponent(sides: Sequence[int], values: Sequence[float]) -> float:
    """The slope of values against pixels in logarithms, at the larger half of the sizes: small maps cost a constant.

    >>> round(exponent([8, 16, 32, 64], [5.0, 5.0, 32**4, 64**4]), 6)
    2.0
    """
    first = min(len(sides) // 2, len(sides) - 2)
    pixels = np.log([side**2 for side in sides[first:]])
    return float(np.polyfit(pixels, np.log(values[first:]), 1)[0])


def growth_table(rows: Sequence[GrowthRow]) -> Table:
    """A row per block, with the exponents and the largest map."""
    side = rows[0].sides[-1] if rows else 0
    columns = ["block", "time ~ (HW)^", "memory ~ (HW)^", f"ms at {side}x{side}", f"peak MB at {side}x{side}"]
    cells = [
        [
            row.block,
            f"{row.time_exponent:.2f}",
            f"{row.memory_exponent:.2f}",
            milliseconds(row.seconds[-1]),
            megabytes(row.peak_bytes[-1]),
        ]
        for row in rows
    ]
    return Table(columns, cells, "forward and backward; exponents fitted to the larger half of the maps")

"""What every block costs, beside the plain multiply of its input and beside timm's block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from visattn.blocks import block_info, create_block
from visattn.core.arguments import Device
from visattn.cost.contest import Contestant, Cost, Ratio, check_affordable, check_block, check_size, contest
from visattn.cost.results import Note, Report, Track, as_call, measure_all, this_machine
from visattn.cost.rivals import RIVALS, build_rival
from visattn.cost.settings import (
    Setting,
    Shapes,
    Words,
    all_settings,
    block_names,
    checked_repeats,
    quiet_machine,
    shapes,
    words,
)
from visattn.cost.table import factor, megabytes, milliseconds
from visattn.listing import times
from visattn.opening import usable_device
from visattn.tables import Table


@dataclass(frozen=True)
class BlockRow:
    """A block in a setting.

    Args:
        block: its name.
        family: its family.
        shape: of the input (B, C, H, W).
        setting: how it runs.
        cost: the block's own.
        multiply: that of x * g with a gate g (B, C, 1, 1), which is bound by memory alone.
        rival: that of timm's block; None if there is none, or nobody asked.
        to_multiply: how many times as long as the multiply.
        to_rival: how many times as long as timm's block.
    """

    block: str
    family: str
    shape: tuple[int, int, int, int]
    setting: Setting
    cost: Cost
    multiply: Cost
    rival: Cost | None
    to_multiply: Ratio
    to_rival: Ratio | None


class Multiply(nn.Module):
    """x * g: the least that a gate can do.

    Args:
        batch: B, number of images.
        channels: C.
    """

    def __init__(self, batch: int, channels: int) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.rand(batch, channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        return x * self.g[: len(x)]  # one image where multiply-accumulates are counted


def bench_blocks(
    blocks: Words = "all",
    shape: Shapes = "32x256x56x56",
    *,
    mode: Words = "train,eval",
    dtype: Words = "fp32",
    compile: Words = "off",
    layout: Words = "nchw",
    against: str | None = None,
    device: Device = None,
    repeats: int | None = None,
    threads: int | None = None,
    note: Note | None = None,
    track: Track | None = None,
) -> Report[BlockRow]:
    """Parameters, multiply-accumulates, time and memory of blocks, and how they compare.

    A block, the multiply x * g and timm's block run in turn within one loop, so that their ratios do not depend on what
    else the machine is doing. Words are given as on the command line, several with commas or as a list.

    Args:
        blocks: names and globs, or ``all``.
        shape: of the input, batch x channels x height x width.
        mode: ``train`` (forward and backward, to the input and the parameters) and ``eval`` (no gradients).
        dtype: ``fp32``, ``bf16`` or ``fp16``, of weights and inputs.
        compile: ``off`` and ``on``.
        layout: ``nchw`` and ``nhwc``.
        against: ``timm`` for timm's blocks with the same widths.
        device: cuda if there is one.
        repeats: rounds; three to twenty, as many as fit into two seconds, unless given.
        threads: of the CPU; as torch is set unless given.
        note: called at once with what is left out, and why.
        track: wraps lists, as ``tqdm`` does, to show progress.

    >>> found = bench_blocks("se", "2x16x7x7", mode="eval", against="timm", repeats=2)
    >>> found.rows[0].cost.parameters, found.rows[0].to_rival is not None
    (49, True)
    """
    names, all_shapes = block_names(blocks), shapes(shape)
    settings = all_settings(mode, dtype, compile, layout)
    if against is not None:
        words("rival", against, ["timm"])
    repeats = checked_repeats(repeats)
    place = usable_device(device)
    jobs = [(name, each, setting) for each in all_shapes for setting in settings for name in names]
    with quiet_machine(threads):
        machine = this_machine(place)
        rows, left_out = measure_all(
            jobs,
            lambda job: [_measure(*job, against, place, repeats)],
            lambda job: f"{job[0]} at {times(job[1])}, {named(job[2])}",
            note,
            track,
        )
    command = as_call(
        "bench_blocks",
        blocks=blocks,
        shape=shape,
        mode=mode,
        dtype=dtype,
        compile=compile,
        layout=layout,
        against=against,
        repeats=repeats,
    )
    return Report("blocks", command, machine, tuple(rows), left_out, block_table)


def _measure(
    name: str,
    shape: tuple[int, int, int, int],
    setting: Setting,
    against: str | None,
    device: torch.device,
    repeats: int | None,
) -> BlockRow:
    setting.forget_compiled()
    sketch = create_block(name, shape[1], device="meta")
    check_size(sketch, device)
    check_affordable([sketch], shape, setting, device)  # before a minute is spent on building it
    modules: list[nn.Module] = [create_block(name, shape[1]), Multiply(*shape[:2])]
    if against is not None and name in RIVALS and (timms := build_rival(name, *shape[1:])) is not None:
        modules.append(timms)
    check_affordable(modules, shape, setting, device)
    x = setting.random(shape, device).requires_grad_(setting.train)
    check_block(modules[0], setting, x)
    ours, multiply, *rival = contest([Contestant(module, setting, x) for module in modules], repeats)
    return BlockRow(
        name,
        block_info(name).family,
        shape,
        setting,
        ours.cost,
        multiply.cost,
        rival[0].cost if rival else None,
        ours.over(multiply),
        ours.over(rival[0]) if rival else None,
    )


def named(setting: Setting) -> str:
    """A setting in words."""
    compiled = ", compiled" if setting.compile == "on" else ""
    return f"{setting.mode}, {setting.dtype}, {setting.layout}{compiled}"


def block_table(rows: Sequence[BlockRow]) -> Table:
    """A row per block and setting."""
    against = any(row.to_rival is not None for row in rows)
    columns = ["block", "shape", "setting", "parameters", "MACs", "forward", "+ backward", "peak MB", "kept MB", "x*g"]
    cells = [
        [
            row.block,
            "x".join(map(str, row.shape)),
            named(row.setting),
            f"{row.cost.parameters:,}",
            f"{row.cost.macs:,}",
            milliseconds(row.cost.forward),
            milliseconds(row.cost.forward_backward),
            megabytes(row.cost.peak_bytes),
            megabytes(row.cost.kept_bytes),
            factor(row.to_multiply.step),
            *([factor(row.to_rival.step if row.to_rival is not None else None)] if against else []),
        ]
        for row in rows
    ]
    caption = (
        "MACs of one image; milliseconds of the whole batch, median [quartiles]; x*g: times as long as a plain multiply"
        + ("; timm: times as long as timm's block" if against else "")
    )
    return Table([*columns, *(["timm"] if against else [])], cells, caption, texts=3)

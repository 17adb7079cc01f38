"""Which blocks fit into a budget of latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from visattn.core.arguments import Device, at_least_one
from visattn.cost.blocks import named
from visattn.cost.contest import contest
from visattn.cost.networks import LARGEST_BATCH, contestant
from visattn.cost.results import Note, Report, Track, as_call, measure_all, this_machine
from visattn.cost.settings import (
    Setting,
    Words,
    all_settings,
    block_names,
    checked_repeats,
    number_above,
    quiet_machine,
    split,
)
from visattn.cost.table import factor, milliseconds
from visattn.cost.timing import Spread
from visattn.counting import count_macs
from visattn.listing import times
from visattn.models.names import model_config, split_name
from visattn.models.sized import build_model, checked_size
from visattn.modules import why_refused
from visattn.opening import usable_device
from visattn.tables import Table


@dataclass(frozen=True)
class BudgetRow:
    """A network with a block in it, beside the network without.

    Args:
        block: its name.
        model: the network with it, as :func:`visattn.create_model` knows it.
        fits: whether the median of the ratios is within the budget.
        ratio: latency with the block over latency without.
        latency: seconds of a forward pass with the block.
        parameters: that the block adds.
        macs: multiply-accumulates of one image that the block adds.
    """

    block: str
    model: str
    fits: bool
    ratio: Spread
    latency: Spread
    parameters: int
    macs: int


def bench_budget(
    model: str,
    budget: float = 1.05,
    blocks: Words = "all",
    *,
    batch_size: int = 1,
    image_size: int | None = None,
    dtype: str = "fp32",
    compile: str = "off",
    layout: str = "nchw",
    device: Device = None,
    repeats: int | None = None,
    threads: int | None = None,
    note: Note | None = None,
    track: Track | None = None,
) -> Report[BudgetRow]:
    """Which blocks can be put into a network for so many times its latency, the cheapest first.

    Each block is attached where :func:`visattn.create_model` puts it, and the two networks run in turn, in evaluation
    mode.

    Args:
        model: the name of the network without a block.
        budget: latency with the block over latency without, such as 1.05 for five per cent more.
        blocks: names and globs, or ``all``.
        batch_size: images at a time.
        image_size: height and width; the network's own unless given.
        dtype: ``fp32``, ``bf16`` or ``fp16``, of weights and images.
        compile: ``off`` or ``on``.
        layout: ``nchw`` or ``nhwc``.
        device: cuda if there is one.
        repeats: rounds; three to twenty, as many as fit into two seconds, unless given.
        threads: of the CPU; as torch is set unless given.
        note: called at once with what is left out, and why.
        track: wraps lists, as ``tqdm`` does, to show progress.

    >>> found = bench_budget("test_resnet", 100, "se,eca", image_size=32, repeats=2)
    >>> sorted(row.model for row in found.rows), all(row.fits for row in found.rows)
    (['test_resnet_eca', 'test_resnet_se'], True)
    """
    limit = number_above("budget", budget, 0)
    names = split("model", model)
    if len(names) > 1:
        raise ValueError(f"a budget is that of one model, got {model!r}")
    (model,) = names
    model_config(model)
    if (attention := split_name(model)[1]) is not None:
        raise ValueError(f"a budget is that of a model without a block, but {model!r} has {attention!r}")
    chosen = block_names(blocks)
    settings = all_settings("eval", dtype, compile, layout)
    if len(settings) > 1:
        raise ValueError("a budget is that of one setting: give one dtype, one layout, and compile off or on")
    batch_size = at_least_one("batch_size", batch_size, LARGEST_BATCH)
    image_size = checked_size(image_size)
    repeats = checked_repeats(repeats)
    place = usable_device(device)
    _check_images(model, image_size)
    with quiet_machine(threads):
        machine = this_machine(place)
        rows, left_out = measure_all(
            chosen,
            lambda name: [_measure(model, name, limit, batch_size, image_size, settings[0], place, repeats)],
            lambda name: f"{name} in {model}",
            note,
            track,
        )
    rows.sort(key=lambda row: row.ratio.median)
    command = as_call(
        "bench_budget",
        model=model,
        budget=budget,
        blocks=blocks,
        batch_size=batch_size,
        image_size=image_size,
        dtype=dtype,
        compile=compile,
        layout=layout,
        repeats=repeats,
    )

    def table(rows: Sequence[BudgetRow]) -> Table:
        return budget_table(rows, model, limit, f"batches of {batch_size}, {named(settings[0])}")

    return Report("budget", command, machine, tuple(rows), left_out, table)


def _check_images(model: str, image_size: int | None) -> None:
    """Say once, and not for every block, that the network itself does not run."""
    network, image = build_model(model, image_size)
    try:
        count_macs(network, 1, *image)
    except Exception as error:  # a network can refuse an image in any way it likes
        raise ValueError(f"{model!r} does not take images of {times(image)}: {why_refused(error)}") from error


def _measure(
    model: str,
    block: str,
    limit: float,
    batch_size: int,
    image_size: int | None,
    setting: Setting,
    device: torch.device,
    repeats: int | None,
) -> BudgetRow:
    base, _, tag = split_name(model)[0].partition(".")
    name = f"{base}_{block}{'.' if tag else ''}{tag}"
    setting.forget_compiled()
    networks = [build_model(each, image_size) for each in (model, name)]
    plain, attached = contest([contestant(*each, batch_size, setting, device) for each in networks], repeats)
    ratio = attached.over(plain).step
    return BudgetRow(
        block,
        name,
        ratio.median <= limit,
        ratio,
        attached.cost.forward,
        attached.cost.parameters - plain.cost.parameters,
        attached.cost.macs - plain.cost.macs,
    )


def budget_table(rows: Sequence[BudgetRow], model: str, limit: float, setting: str) -> Table:
    """The blocks that fit, a line, and those that do not."""
    cells = [
        [row.block, factor(row.ratio), milliseconds(row.latency), f"+{row.parameters:,}", f"{row.macs:+,}"]
        for row in rows
    ]
    fitting = sum(row.fits for row in rows)
    caption = (
        f"above the line: at most {limit:g} times the latency of {model} ({setting}); milliseconds, "
        "median [quartiles]; parameters and MACs of one image that are added"
    )
    return Table([f"{model} +", f"x {model}", "latency", "parameters", "MACs"], cells, caption, fitting)

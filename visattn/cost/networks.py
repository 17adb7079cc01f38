"""Throughput, latency and memory of whole networks, side by side."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from visattn.core.arguments import Device, at_least_one
from visattn.cost.blocks import named
from visattn.cost.contest import Contestant, check_affordable, contest
from visattn.cost.results import Note, Report, Track, as_call, measure_all, this_machine
from visattn.cost.settings import Setting, Words, all_settings, checked_repeats, quiet_machine, split
from visattn.cost.table import factor, megabytes, milliseconds
from visattn.cost.timing import Spread
from visattn.models.names import model_config
from visattn.models.sized import build_model, checked_size
from visattn.opening import usable_device
from visattn.tables import Table

LARGEST_BATCH = 2**16


@dataclass(frozen=True)
class ModelRow:
    """A network in a setting.

    Args:
        model: its name.
        image: channels, height and width of an image.
        batch_size: images at a time for the throughput.
        setting: how it runs.
        parameters: trainable ones.
        macs: multiply-accumulates of one image.
        throughput: images per second, of a whole step in its mode.
        latency: seconds of one image in evaluation mode.
        peak_bytes: the most memory that a step held at a time, beyond the images and the parameters.
        kept_bytes: for the backward pass; None in evaluation mode.
        step_to_first: how many times as long a step takes as that of the first network.
        latency_to_first: how many times as long one image takes as in the first network.
    """

    model: str
    image: tuple[int, int, int]
    batch_size: int
    setting: Setting
    parameters: int
    macs: int
    throughput: Spread
    latency: Spread
    peak_bytes: int
    kept_bytes: int | None
    step_to_first: Spread
    latency_to_first: Spread


def bench_models(
    model: Words,
    *,
    batch_size: int = 32,
    image_size: int | None = None,
    mode: Words = "eval",
    dtype: Words = "fp32",
    compile: Words = "off",
    layout: Words = "nchw",
    device: Device = None,
    repeats: int | None = None,
    threads: int | None = None,
    note: Note | None = None,
    track: Track | None = None,
) -> Report[ModelRow]:
    """Throughput, latency of one image, and memory of networks, which run in turn within one loop.

    Args:
        model: names of timm's and visattn's; the others are compared with the first.
        batch_size: images at a time for the throughput.
        image_size: height and width; each network's own unless given.
        mode: ``eval`` and ``train`` (forward and backward).
        dtype: ``fp32``, ``bf16`` or ``fp16``, of weights and images.
        compile: ``off`` and ``on``.
        layout: ``nchw`` and ``nhwc``.
        device: cuda if there is one.
        repeats: rounds; three to twenty, as many as fit into two seconds, unless given.
        threads: of the CPU; as torch is set unless given.
        note: called at once with what is left out, and why.
        track: wraps lists, as ``tqdm`` does, to show progress.

    >>> found = bench_models("test_resnet,test_resnet_se", batch_size=2, image_size=32, repeats=2)
    >>> [row.model for row in found.rows], found.rows[0].latency_to_first.median
    (['test_resnet', 'test_resnet_se'], 1.0)
    """
    names = split("model", model)
    for name in names:
        model_config(name)  # raises for a name that does not exist
    settings = all_settings(mode, dtype, compile, layout)
    batch_size = at_least_one("batch_size", batch_size, LARGEST_BATCH)
    image_size = checked_size(image_size)
    repeats = checked_repeats(repeats)
    place = usable_device(device)
    rows: list[ModelRow] = []
    left_out: tuple[tuple[str, str], ...] = ()
    with quiet_machine(threads):
        machine = this_machine(place)
        for setting in track(settings) if track is not None else settings:
            setting.forget_compiled()

            def prepare(name: str, setting: Setting = setting) -> list[_Ready]:
                return [_prepare(name, batch_size, image_size, setting, place)]

            def label(name: str, setting: Setting = setting) -> str:
                return f"{name}, {named(setting)}"

            ready, missing = measure_all(names, prepare, label, note, None)
            found, failed = measure_all(
                [ready] if ready else [],
                lambda group: _measure(group, repeats),
                lambda group: label(", ".join(each.name for each in group)),
                note,
                None,
            )
            rows += found
            left_out += missing + failed
    command = as_call(
        "bench_models",
        model=model,
        batch_size=batch_size,
        image_size=image_size,
        mode=mode,
        dtype=dtype,
        compile=compile,
        layout=layout,
        repeats=repeats,
    )
    return Report("models", command, machine, tuple(rows), left_out, model_table)


def contestant(
    network: nn.Module, image: tuple[int, int, int], batch_size: int, setting: Setting, device: torch.device
) -> Contestant:
    """A network with a batch of images."""
    check_affordable([network], (batch_size, *image), setting, device)
    return Contestant(network, setting, setting.random((batch_size, *image), device))


@dataclass(frozen=True)
class _Ready:
    """A network that is ready to run."""

    name: str
    image: tuple[int, int, int]
    batch: Contestant
    single: Contestant


def _prepare(name: str, batch_size: int, image_size: int | None, setting: Setting, device: torch.device) -> _Ready:
    network, image = build_model(name, image_size)
    alone = replace(setting, mode="eval")
    single = contestant(copy.deepcopy(network), image, 1, alone, device)
    return _Ready(name, image, contestant(network, image, batch_size, setting, device), single)


def _measure(ready: Sequence[_Ready], repeats: int | None) -> Iterator[ModelRow]:
    steps, singles = contest([each.batch for each in ready], repeats), contest([each.single for each in ready], repeats)
    for each, step, single in zip(ready, steps, singles, strict=True):
        batch_size = len(each.batch.x)
        seconds = step.forward_backward or step.forward
        yield ModelRow(
            each.name,
            each.image,
            batch_size,
            each.batch.setting,
            step.cost.parameters,
            step.cost.macs,
            Spread.of([batch_size / each for each in seconds]),
            single.cost.forward,
            step.cost.peak_bytes,
            step.cost.kept_bytes,
            step.over(steps[0]).step,
            single.over(singles[0]).step,
        )


def model_table(rows: Sequence[ModelRow]) -> Table:
    """A row per network and setting."""
    first = rows[0].model if rows else ""
    columns = [
        "model",
        "setting",
        "parameters",
        "MACs",
        "images/s",
        "latency",
        "peak MB",
        "kept MB",
        "step",
        "one image",
    ]
    cells = [
        [
            row.model,
            f"{row.batch_size}x{'x'.join(map(str, row.image))}, {named(row.setting)}",
            f"{row.parameters:,}",
            f"{row.macs:,}",
            f"{row.throughput.median:.1f}",
            milliseconds(row.latency),
            megabytes(row.peak_bytes),
            megabytes(row.kept_bytes),
            factor(row.step_to_first),
            factor(row.latency_to_first),
        ]
        for row in rows
    ]
    caption = (
        "MACs and latency (milliseconds, median [quartiles]) of one image; "
        f"step and one image: times as long as {first}"
    )
    return Table(columns, cells, caption, texts=2)

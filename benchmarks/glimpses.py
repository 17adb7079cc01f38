"""A ResNet-50 on a whole large image against the same network on four glimpses of it: ratios of work, memory and time.

Run: python -m benchmarks.glimpses [repeats] [side of the image]
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable

import torch

import visattn
from benchmarks.measuring import growth, seconds
from visattn.counting import count_macs

WHOLE, PARTS = "resnet50", "glimpse_resnet50"
TARGETS = {"multiply-adds": 4.0, "peak memory": 3.0}


def prepare(name: str, side: int, *, training: bool) -> Callable[[], object]:
    """Prepare a forward pass of one image, with or without a backward pass."""
    torch.manual_seed(0)
    model = visattn.create_model(name).train(training)
    x = torch.rand(1, 3, side, side)

    def step() -> object:
        return model(x).sum().backward()

    def forward() -> object:
        with torch.no_grad():
            return model(x)

    return step if training else forward


def memory(name: str, side: int, *, training: bool) -> float:
    """Peak memory above the level with the model and the image loaded."""
    prepared = f"import benchmarks.glimpses as b; run = b.prepare({name!r}, {side}, training={training})"
    # What is freed goes back to the system at once, so that the peak is of memory in use and the same in every run.
    return growth(prepared, {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"})


def main(repeats: int = 5, side: int = 1024) -> None:
    print(f"one image of {side} x {side}: {WHOLE} / {PARTS} (4 of 224 x 224)")

    def row(what: str, unit: str, whole: float, parts: float) -> None:
        kind = what.partition(",")[0]
        target = f"   (target: at least {TARGETS[kind]:.0f})" if kind in TARGETS else ""
        print(f"{what:26s} {whole:8.2f} / {parts:7.2f} {unit:4s} = {whole / parts:5.2f}{target}")

    whole, parts = (count_macs(visattn.create_model(name), 1, 3, side, side) / 1e9 for name in (WHOLE, PARTS))
    row("multiply-adds", "G", whole, parts)
    for training in (False, True):
        mode = "training step" if training else "inference"
        row(f"peak memory, {mode}", "MiB", *(memory(name, side, training=training) for name in (WHOLE, PARTS)))
        runs = [prepare(name, side, training=training) for name in (WHOLE, PARTS)]
        for run in runs:
            run()
        times = [[seconds(run) for run in runs] for _ in range(repeats)]
        row(f"time, {mode}", "s", *(statistics.median(t[i] for t in times) for i in range(2)))


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))

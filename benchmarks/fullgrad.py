"""Fullgrad of a batch against a plain fused forward pass of the same model: the median ratio of times.

Run: python -m benchmarks.fullgrad [repeats] [batch size]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import timm
import torch

import visattn
from benchmarks.measuring import seconds

MODELS = ("vit_small_patch16_224", "swin_tiny_patch4_window7_224", "resnet50")


def prepare(name: str, batch: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """A forward pass, and fullgrad, of the same model and images."""
    torch.manual_seed(0)
    model = timm.create_model(name).eval()
    x = torch.rand(batch, 3, 224, 224)

    def forward() -> object:
        with torch.no_grad():
            return model(x)

    return forward, lambda: visattn.explain(model, x, "fullgrad")


def main(repeats: int = 7, batch: int = 8) -> None:
    for name in MODELS:
        runs = prepare(name, batch)
        for run in runs:
            run()  # places are found out once per model
        ratios = sorted(seconds(runs[1]) / seconds(runs[0]) for _ in range(repeats))
        middle = statistics.median(ratios)
        print(f"{name}, batch {batch}: {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}; target 3.5)")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))

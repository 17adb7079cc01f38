"""Rollout of a batch against a plain fused forward pass of the same model: median times and peak memory, as ratios.

Run: python -m benchmarks.rollout [repeats] [batch size]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

import timm
import torch

import visattn
from benchmarks.measuring import growth, seconds

MODEL = "vit_small_patch16_224"


def prepare(batch: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Prepare a forward pass and a rollout of the same model and images."""
    torch.manual_seed(0)
    model = timm.create_model(MODEL).eval()
    x = torch.rand(batch, 3, 224, 224)

    def forward() -> object:
        with torch.no_grad():
            return model(x)

    return forward, lambda: visattn.explain(model, x, "rollout")


def main(repeats: int = 9, batch: int = 16) -> None:
    runs = prepare(batch)
    for run in runs:
        run()  # the geometry is found out once per model
    times = [[seconds(run) for run in runs] for _ in range(repeats)]
    ratio = statistics.median(t[1] / t[0] for t in times)
    spread = sorted(t[1] / t[0] for t in times)
    print(f"{MODEL}, batch {batch}: rollout / forward {ratio:.2f} ({spread[0]:.2f} to {spread[-1]:.2f}; target 1.25)")
    forward, rollout = (growth(f"import benchmarks.rollout as b; run = b.prepare({batch})[{i}]") for i in (0, 1))
    ratio = rollout / forward
    print(f"peak memory above that of the loaded model: {rollout:.0f} / {forward:.0f} MiB = {ratio:.2f} (target 1.5)")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))

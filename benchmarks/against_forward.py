"""A heatmap method against a plain fused forward pass of the same model and images."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import timm
import torch

import visattn
from benchmarks.measuring import seconds


def prepare(model: str, method: str, batch: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Prepare a forward pass, and the method, of the same model and images."""
    torch.manual_seed(0)
    network = timm.create_model(model).eval()
    x = torch.rand(batch, 3, 224, 224)

    def forward() -> object:
        with torch.no_grad():
            return network(x)

    return forward, lambda: visattn.explain(network, x, method)


def print_times(model: str, method: str, repeats: int, batch: int, target: float) -> None:
    """Print the median ratio of times."""
    forward, explain = prepare(model, method, batch)
    for run in (forward, explain):
        run()  # what is found out once per model
    ratios = sorted(seconds(explain) / seconds(forward) for _ in range(repeats))
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}; target {target}"
    print(f"{model}, batch {batch}: {method} / forward {statistics.median(ratios):.2f} ({spread})")

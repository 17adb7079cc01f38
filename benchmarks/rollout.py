"""Rollout of a batch against a plain fused forward pass of the same model: median times and peak memory, as ratios.

Run: python benchmarks/rollout.py [repeats] [batch size]
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import timm
import torch

import visattn

MODEL = "vit_small_patch16_224"


def prepare(batch: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """A forward pass and a rollout of the same model and images."""
    torch.manual_seed(0)
    model = timm.create_model(MODEL).eval()
    x = torch.rand(batch, 3, 224, 224)

    def forward() -> object:
        with torch.no_grad():
            return model(x)

    return forward, lambda: visattn.explain(model, x, "rollout")


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def peak() -> float:
    """Highest resident memory of this process so far, in MiB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def growth(which: int, batch: int) -> float:
    """Peak memory above the level with the model loaded, of a first run in a process of its own."""
    code = (
        "import benchmarks.rollout as b; "
        f"run = b.prepare({batch})[{which}]; before = b.peak(); run(); print(b.peak(), before)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after, before = map(float, result.stdout.split())
    return after - before


def main(repeats: int = 9, batch: int = 16) -> None:
    runs = prepare(batch)
    for run in runs:
        run()  # the geometry is found out once per model
    times = [[seconds(run) for run in runs] for _ in range(repeats)]
    ratio = statistics.median(t[1] / t[0] for t in times)
    spread = sorted(t[1] / t[0] for t in times)
    print(f"{MODEL}, batch {batch}: rollout / forward {ratio:.2f} ({spread[0]:.2f} to {spread[-1]:.2f}; target 1.25)")
    forward, rollout = growth(0, batch), growth(1, batch)
    ratio = rollout / forward
    print(f"peak memory above that of the loaded model: {rollout:.0f} / {forward:.0f} MiB = {ratio:.2f} (target 1.5)")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))

"""Rollout of a batch against a plain fused forward pass of the same model: median times and peak memory, as ratios.

Run: python -m benchmarks.rollout [repeats] [batch size]
"""

from __future__ import annotations

import sys

from benchmarks.against_forward import print_times
from benchmarks.measuring import growth

MODEL = "vit_small_patch16_224"


def main(repeats: int = 9, batch: int = 16) -> None:
    print_times(MODEL, "rollout", repeats, batch, target=1.25)
    prepare = f"from benchmarks.against_forward import prepare; runs = prepare({MODEL!r}, 'rollout', {batch})"
    forward, rollout = (growth(f"{prepare}; run = runs[{index}]") for index in (0, 1))
    ratio = rollout / forward
    print(f"peak memory above that of the loaded model: {rollout:.0f} / {forward:.0f} MiB = {ratio:.2f} (target 1.5)")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))

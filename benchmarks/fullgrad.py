"""Fullgrad of a batch against a plain fused forward pass of the same model: the median ratio of times.

Run: python -m benchmarks.fullgrad [repeats] [batch size]
"""

from __future__ import annotations

import sys

from benchmarks.against_forward import print_times

MODELS = ("vit_small_patch16_224", "swin_tiny_patch4_window7_224", "resnet50")


def main(repeats: int = 7, batch: int = 8) -> None:
    for model in MODELS:
        print_times(model, "fullgrad", repeats, batch, target=3.5)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))

"""Patch attention against timm's own on the same model and input: median times of interleaved runs, as a ratio.

Run: python -m benchmarks.patch_attention [repeats]
"""

from __future__ import annotations

import copy
import statistics
import sys
from collections.abc import Callable

import timm
import torch

import visattn
from benchmarks.measuring import seconds

MODELS = ("vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "eva02_tiny_patch14_224")


def compare(name: str, repeats: int, *, training: bool) -> float:
    torch.manual_seed(0)
    theirs = timm.create_model(name).train(training)
    ours = visattn.attach(copy.deepcopy(theirs), "patch")
    x = torch.rand(4, 3, 224, 224)

    def step(model: torch.nn.Module) -> Callable[[], object]:
        def run() -> object:
            if not training:
                with torch.no_grad():
                    return model(x)
            output = model(x)
            return (output[0] if isinstance(output, tuple) else output).sum().backward()

        return run

    runs = (step(theirs), step(ours))
    for run in runs:
        run()
    times = [[seconds(run) for run in runs] for _ in range(repeats)]
    return statistics.median(t[1] for t in times) / statistics.median(t[0] for t in times)


def main(repeats: int = 15) -> None:
    for name in MODELS:
        forward = compare(name, repeats, training=False)
        both = compare(name, repeats, training=True)
        print(f"{name:34s} forward {forward:.3f}   forward and backward {both:.3f}   (target: at most 1.05)")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))

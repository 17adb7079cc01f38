"""Deletion and insertion of a batch of images: one list of jobs against one image and one step at a time.

If torch-cam (0.5 or newer) or Quantus is installed, they do the same work in the same run, interleaved with ours, and
the numbers of torch-cam must agree with ours. Quantus has deletion only, so it does half of the work.

Run: python -m benchmarks.scoring [repeats] [images]
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import timm
import torch
from torch import Tensor, nn

from visattn.scoring.engine import Engine
from visattn.scoring.faithfulness import FAITHFULNESS
from visattn.scoring.ranking import Ranking

MODEL, SIDE, STEPS = "resnet18", 64, 16


def batched(model: nn.Module, images: Tensor, maps: Tensor) -> tuple[float, float]:
    engine, ranking = Engine(model, images), Ranking(maps)
    deletion, insertion = (FAITHFULNESS[name](engine, ranking, "mean", STEPS) for name in ("morf", "lerf"))
    return deletion.mean().item(), insertion.mean().item()


def step_by_step(model: nn.Module, images: Tensor, maps: Tensor) -> tuple[float, float]:
    """As most code does it: every curve anew, from the clean image to the empty one."""
    areas: list[list[float]] = [[], []]
    with torch.no_grad():
        for image, heatmap in zip(images, maps, strict=True):
            target = model(image[None]).argmax()
            order = heatmap.flatten().argsort(descending=True)
            for deleting, area in zip((True, False), areas, strict=True):
                curve = []
                for step in range(STEPS + 1):
                    brightest = torch.zeros(len(order), dtype=torch.bool)
                    brightest[order[: round(step / STEPS * len(order))]] = True
                    removed = (brightest if deleting else ~brightest).view(heatmap.shape)
                    perturbed = torch.where(removed, 0, image)[None]
                    curve.append(model(perturbed).softmax(1)[0, target])
                area.append(torch.trapezoid(torch.stack(curve), dx=1 / STEPS).item())
    return statistics.mean(areas[0]), statistics.mean(areas[1])


def with_torchcam(model: nn.Module, images: Tensor, maps: Tensor) -> tuple[float, float]:
    from torchcam.metrics import DeletionInsertionMetric

    class Given:
        """Hands out heatmaps that are there already."""

        def __init__(self) -> None:
            self.model = model

        def __call__(self, *_arguments: object, **_options: object) -> list[Tensor]:
            return [maps]

        def fuse_cams(self, cams: list[Tensor]) -> Tensor:
            return cams[0]

        def _hooks_off(self) -> object:
            return torch.no_grad()

    metric = DeletionInsertionMetric(Given(), partial(torch.softmax, dim=-1), steps=STEPS, batch_size=64)
    metric.update(images)
    found = metric.summary()
    return found["deletion_auc"], found["insertion_auc"]


def with_quantus(model: nn.Module, images: Tensor, maps: Tensor) -> object:
    import quantus

    metric = quantus.PixelFlipping(features_in_step=SIDE * SIDE // STEPS, perturb_baseline=0.0, disable_warnings=True)
    with torch.no_grad():
        target = model(images).argmax(1)
    return metric(
        model=model, x_batch=images.numpy(), y_batch=target.numpy(), a_batch=maps[:, None].numpy(), softmax=True,
        device="cpu", batch_size=64,
    )  # fmt: skip


def cpu_seconds(run: Callable[[], object]) -> float:
    """The time of this process alone: with one thread, others on the machine hardly matter."""
    start = time.process_time()
    run()
    return time.process_time() - start


def main(repeats: int = 3, number: int = 64) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = timm.create_model(MODEL, num_classes=10).eval()
    images, maps = torch.randn(number, 3, SIDE, SIDE), torch.rand(number, SIDE, SIDE)
    runs: dict[str, Callable[[nn.Module, Tensor, Tensor], object]] = {"batched": batched, "step by step": step_by_step}
    runs |= {"torch-cam": with_torchcam} if find_spec("torchcam") else {}
    runs |= {"Quantus (deletion only)": with_quantus} if find_spec("quantus") else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, run in runs.items():
            few = run(model, images[:4], maps[:4])
            if name != "Quantus (deletion only)":
                torch.testing.assert_close(few, batched(model, images[:4], maps[:4]), atol=1e-4, rtol=0)
        times = [
            {name: cpu_seconds(partial(run, model, images, maps)) for name, run in runs.items()} for _ in range(repeats)
        ]
    print(f"{MODEL}, {number} images of {SIDE} x {SIDE}, {STEPS} steps, one thread")
    for name in runs:
        ratios = sorted(each[name] / each["batched"] for each in times)
        median = statistics.median(each[name] for each in times)
        print(f"{name:24} {median:7.2f} s  {statistics.median(ratios):5.2f} x ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))

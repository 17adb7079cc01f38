"""Images per second: train.py against a bare PyTorch loop, and its data pipeline against timm's loader.

    python benchmarks/train_throughput.py

Everything is measured in one run, in turns, and compared by medians of the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cv2
import torch
import torch.nn.functional as F
from skimage import data as photographs
from timm.data import create_dataset, create_loader

from visattn.cli.train import main as train
from visattn.data.datamodule import ImageData
from visattn.data.preparation import Preparation
from visattn.data.sources import open_source
from visattn.training.building import create_classifier, create_data, create_source
from visattn.training.optimisation import create_optimizer
from visattn.training.record import read_rows
from visattn.training.runs import Run
from visattn.training.settings import Settings


def with_lightning(settings: Settings, steps: int, folder: Path) -> float:
    """Images per second of train.py, as it reports them itself."""
    name = f"run-{time.time_ns()}"
    arguments = [
        "--model", settings.model, "--data", settings.data, "--batch-size", str(settings.batch_size), "--epochs", "1",
        "--film-every", "0", "--out", str(folder), "--name", name, "--trainer.limit_train_batches", str(steps),
        "--trainer.limit_val_batches", "1", "--trainer.accelerator", "cpu",
    ]  # fmt: skip
    if settings.root is not None:
        size, workers = str(settings.image_size), str(settings.workers)
        arguments += ["--root", settings.root, "--image-size", size, "--workers", workers]
    assert train(arguments) == 0
    return float(read_rows(Run(folder / name))[0]["images_per_second"])


def with_a_bare_loop(settings: Settings, steps: int) -> float:
    """Images per second of the same model, data, workers and optimiser without any framework."""
    source = create_source(settings)
    model = create_classifier(settings, source).model.train()
    batches = create_data(settings, source, model)
    batches._position = lambda: (0, 0)  # type: ignore[method-assign]
    optimizer = create_optimizer(model, settings)
    began = time.perf_counter()
    for batch in itertools.islice(batches.train_dataloader(), steps):
        optimizer.zero_grad()
        images = batches.preparation.normalise(batch["image"])
        loss = F.cross_entropy(model(images), batch["label"], label_smoothing=0.1)
        loss.backward()
        optimizer.step()
    return steps * settings.batch_size / (time.perf_counter() - began)


def write_photographs(folder: Path, count: int) -> None:
    """Write JPEG files of ImageNet's average size, 500 x 375, in two classes."""
    pictures = [getattr(photographs, name)() for name in ("chelsea", "coffee", "rocket", "astronaut")]
    for number in range(count):
        picture = cv2.resize(cv2.cvtColor(pictures[number % 4], cv2.COLOR_RGB2BGR), (500, 375))
        for split in ("train", "val"):
            path = folder / split / f"class{number % 2}" / f"{number:04}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), picture)


def our_loader(folder: Path, workers: int) -> Callable[[], Iterable[Any]]:
    """Decode, crop, flip and normalise with visattn."""
    preparation = Preparation((3, 224, 224), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    source = open_source("folder", root=str(folder))
    data = ImageData(source, preparation, batch_size=32, augment="crop", workers=workers)
    data._position = lambda: (0, 0)  # type: ignore[method-assign]
    loader = data.train_dataloader()
    return lambda: (data.preparation.normalise(batch["image"]) for batch in loader)


def timms_loader(folder: Path, workers: int) -> Callable[[], Iterable[Any]]:
    """Decode, crop, flip and normalise with timm."""
    loader: Any = create_loader(
        create_dataset("", root=str(folder / "train")), (3, 224, 224), 32, is_training=True, use_prefetcher=False,
        scale=(0.08, 1), hflip=0.5, color_jitter=0, interpolation="bilinear", num_workers=workers,
        persistent_workers=True,
    )  # fmt: skip
    return lambda: (images for images, _ in loader)


def images_per_second(batches: Iterable[torch.Tensor]) -> float:
    """Images per second of one pass over a loader."""
    began = time.perf_counter()
    count = sum(len(batch) for batch in batches)
    return count / (time.perf_counter() - began)


def compare(label: str, ours: Callable[[], float], theirs: Callable[[], float], rounds: int, other: str) -> None:
    """Measure in turns, the first round only to warm up."""
    pairs = [(ours(), theirs()) for _ in range(rounds + 1)][1:]
    mine, other_speed = (statistics.median(values) for values in zip(*pairs, strict=True))
    ratios = sorted(a / b for a, b in pairs)
    print(f"{label}: {mine:.0f} images/s, {other} {other_speed:.0f}; ratio {statistics.median(ratios):.2f} ", end="")
    print(f"({ratios[0]:.2f} to {ratios[-1]:.2f} in {rounds} rounds)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_photographs(folder, 192)
        ours, theirs = our_loader(folder, 2), timms_loader(folder, 2)
        compare(
            "decode, crop and flip to 224, two workers", lambda: images_per_second(ours()),
            lambda: images_per_second(theirs()), arguments.rounds, "timm's loader",
        )  # fmt: skip
        settings = Settings()
        compare(
            "train.py, resnet_cbam on digits", lambda: with_lightning(settings, arguments.steps, folder / "runs"),
            lambda: with_a_bare_loop(settings, arguments.steps), arguments.rounds, "a bare loop",
        )  # fmt: skip
        files = Settings(data="folder", root=name, image_size=128, batch_size=16, workers=1)
        compare(
            "train.py, resnet_cbam on JPEG files at 128", lambda: with_lightning(files, 12, folder / "runs"),
            lambda: with_a_bare_loop(files, 12), arguments.rounds, "a bare loop",
        )  # fmt: skip


if __name__ == "__main__":
    main()

"""Images to batches: shuffled, augmented and split among processes, all as a function of (seed, epoch, index)."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from visattn.data.augment import Transform
from visattn.data.decode import BadImage
from visattn.data.preparation import Preparation
from visattn.data.readers import Reader
from visattn.data.shards import Stream, wrong_label

IGNORE = -100  # label of an image that pads a batch and is not counted

Key: TypeAlias = tuple[int, int]  # (epoch, index); a negative index ~i is image i, not to be counted
Item: TypeAlias = tuple[NDArray[np.uint8], int] | BadImage
Position: TypeAlias = Callable[[], tuple[int, int]]  # (epoch, batches of it already done)


class Batch(TypedDict):
    """A batch: images (B, 3, H, W) in 0..255, labels (B), and messages about unreadable images."""

    image: Tensor
    label: Tensor
    bad: list[str]


class Shares(Sampler[Key]):
    """Sampler of the images of one process in one epoch.

    At every step, the processes together see what one process with their combined batch size would see.

    Args:
        length: number of images.
        batch_size: images per process.
        position: called at the start of every pass, so that a resumed run continues with the next batch.
        seed: seed of the order; None keeps the order and pads the last round with images that are not counted.
        rank: index of this process.
        world: number of processes.
    """

    def __init__(
        self, length: int, batch_size: int, position: Position, *, seed: int | None, rank: int, world: int
    ) -> None:
        self.length, self.batch_size, self.position = length, batch_size, position
        self.seed, self.rank, self.world = seed, rank, world

    def __len__(self) -> int:
        if self.seed is None:
            return -(-self.length // self.world)
        return self.length // (self.batch_size * self.world) * self.batch_size

    def __iter__(self) -> Iterator[Key]:
        epoch, done = self.position()
        if self.seed is None:
            order = np.arange(len(self) * self.world)
            order = np.where(order < self.length, order, ~(order % self.length))
        else:
            order = np.random.default_rng((self.seed, epoch)).permutation(self.length)
        mine = order[self.rank :: self.world][: len(self)]
        for index in mine[done * self.batch_size :]:
            yield epoch, int(index)


def _transformed(transform: Transform, image: NDArray[np.uint8], key: tuple[int, ...]) -> NDArray[np.uint8]:
    if isinstance(transform, Preparation):
        return transform.pixels(image)
    rng = np.random.default_rng(key)
    transform.set_random_state(rng, random.Random(int(rng.integers(2**63))))
    return transform(image=image)["image"]


@dataclass(frozen=True)
class Images(Dataset[Item]):
    """A reader's images, transformed; an unreadable one is returned as its error."""

    reader: Reader
    transform: Transform
    seed: int

    def __getitem__(self, key: Key) -> Item:
        epoch, index = key
        actual = ~index if index < 0 else index
        try:
            image, label = self.reader.read(actual, epoch)
        except BadImage as error:
            return error
        return _transformed(self.transform, image, (self.seed, epoch, actual)), IGNORE if index < 0 else label


class Streamed(IterableDataset[Item]):
    """A stream's images, transformed."""

    def __init__(self, stream: Stream, transform: Transform, seed: int) -> None:
        self.stream, self.transform, self.seed = stream, transform, seed
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.stream)

    def __iter__(self) -> Iterator[Item]:
        worker = get_worker_info()
        for number, (image, label) in enumerate(self.stream.images(self.epoch)):
            if (why := wrong_label(label, self.stream.classes)) is not None:
                yield BadImage(f"an image of {self.stream.name}", why)
                continue
            key = (self.seed, self.epoch, worker.id if worker else 0, number)
            yield _transformed(self.transform, image, key), label


def collate(items: Sequence[Item], *, count_fillers: bool) -> Batch:
    """Collate a batch, replacing unreadable images by readable ones so that its size stays the same."""
    good = [item for item in items if not isinstance(item, BadImage)]
    bad = [str(item) for item in items if isinstance(item, BadImage)]
    fillers = [good[i % len(good)] for i in range(len(bad))] if good else []
    labels = [label for _, label in good] + [label if count_fillers else IGNORE for _, label in fillers]
    images = [image for image, _ in [*good, *fillers]]
    # A single copy, in the order that channels-last convolutions expect.
    stacked = torch.from_numpy(np.stack(images)) if images else torch.empty(0, 1, 1, 3, dtype=torch.uint8)
    return {"image": stacked.permute(0, 3, 1, 2), "label": torch.tensor(labels, dtype=torch.long), "bad": bad}


class ResumableLoader(DataLoader[Item]):
    """A loader without state: its sampler asks the trainer where to resume."""

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Ignore the state."""


class StreamLoader(ResumableLoader):
    """A loader that tells its stream the epoch; a run resumed within an epoch restarts that epoch's stream."""

    dataset: Streamed

    def __init__(self, dataset: Streamed, position: Position, **options: Any) -> None:
        super().__init__(dataset, **options)
        self.position = position

    def __iter__(self) -> Any:
        self.dataset.epoch, _ = self.position()
        return super().__iter__()


def start_worker(_: int) -> None:
    """Set up a worker: no OpenCV threads, and signals are ignored, since the run still needs its images."""
    cv2.setNumThreads(0)
    signal.set_wakeup_fd(-1)  # inherited from the main process
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)

"""The Lightning data module of a training run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any, cast

import numpy as np
import torch
from lightning.fabric.utilities.data import suggested_max_num_workers
from lightning.pytorch import LightningDataModule
from numpy.typing import NDArray
from typing_extensions import override

from visattn.data.augment import training_transform
from visattn.data.decode import BadImage, read_image
from visattn.data.loader import (
    Batch,
    Images,
    Position,
    ResumableLoader,
    Shares,
    Streamed,
    StreamLoader,
    collate,
    start_worker,
)
from visattn.data.preparation import Preparation
from visattn.data.readers import Files, Split
from visattn.data.shards import StreamSource, wrong_label
from visattn.data.sources import AnySource
from visattn.files import printable
from visattn.listing import evenly

log = logging.getLogger("visattn")


@dataclass(frozen=True)
class Examples:
    """Images (H, W, 3), their labels, and masks of the objects, if known."""

    images: list[NDArray[np.uint8]]
    labels: list[int]
    masks: list[NDArray[np.bool_]] | None = None


class ImageData(LightningDataModule):
    """Training and validation batches of a source.

    Args:
        source: where the images come from.
        preparation: the preprocessing that the model expects.
        batch_size: images per process.
        augment: name of the augmentation; None for the source's default.
        workers: loader processes; None chooses by the number of cores.
        seed: seed of shuffling and augmentation.
        on_bad_image: ``fail`` or ``skip``.
        channels_last: deliver images in that memory format.
    """

    def __init__(
        self,
        source: AnySource,
        preparation: Preparation,
        *,
        batch_size: int = 64,
        augment: str | None = None,
        workers: int | None = None,
        seed: int = 0,
        on_bad_image: str = "fail",
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        self.source, self.preparation, self.batch_size, self.seed = source, preparation, batch_size, seed
        self._check_batch(1)
        self.train_transform = training_transform(augment or source.augment, preparation)
        self.workers = workers
        self.skip_bad = on_bad_image == "skip"
        self.bad: set[str] = set()
        self._readable: dict[str, set[int]] = {"training": set(), "validation": set()}  # classes with such an image
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format

    @override
    def state_dict(self) -> dict[str, Any]:
        """How batches and validation images were chosen, for whoever resumes the run (:func:`recorded_split`)."""
        world = self.trainer.world_size if self.trainer else 1
        said = {"batch_size": self.batch_size, "processes": world}
        split = None if isinstance(self.source, StreamSource) else self.source.split
        return said if split is None else {**said, "fraction": split.fraction, "held_out": list(split.held_out)}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raise if other processes have seen a part of an epoch; another batch size was refused before."""
        assert self.trainer is not None
        before, now = state_dict.get("processes"), self.trainer.world_size
        if before not in (None, now) and self._position()[1]:
            raise ValueError(
                f"the run was stopped within an epoch that {before} processes shared, and cannot go on with {now}: "
                "resume it with as many, at least to the end of the epoch"
            )

    def _position(self) -> tuple[int, int]:
        """Current epoch, and how many of its batches an interrupted run has already seen."""
        assert self.trainer is not None
        loop: Any = self.trainer.fit_loop
        epochs, batches = loop.epoch_progress.current, loop.epoch_loop.batch_progress.current
        resumed_within = loop.restarting and epochs.ready > epochs.processed
        return epochs.processed, batches.processed if resumed_within else 0

    def train_dataloader(self) -> ResumableLoader:
        """Shuffled, augmented batches; every process gets the same number of full ones."""
        return self._loader("train")

    def val_dataloader(self) -> ResumableLoader:
        """Validation batches, with every image once."""
        return self._loader("val")

    def _loader(self, split: str) -> ResumableLoader:
        training = split == "train"
        trainer = self.trainer
        rank, world = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        transform = self.train_transform if training else self.preparation
        workers = self._worker_count(world)
        options: dict[str, Any] = {
            "batch_size": self.batch_size,
            "num_workers": workers,
            "collate_fn": partial(collate, count_fillers=training),
            "pin_memory": torch.cuda.is_available(),
            "worker_init_fn": start_worker,
        }
        position: Position = self._position if training else _beginning
        if isinstance(self.source, StreamSource):
            stream = self.source.stream(split, self.batch_size, self.seed, workers)
            return StreamLoader(Streamed(stream, transform, self.seed), position, drop_last=training, **options)
        reader = self.source.train if training else self.source.val
        if training:
            self._check_batch(world)
        sampler = Shares(
            len(reader),
            self.batch_size,
            position,
            seed=self.seed if training else None,
            rank=rank,
            world=world,
        )
        return ResumableLoader(
            Images(reader, transform, self.seed), sampler=sampler, persistent_workers=workers > 0, **options
        )

    def _check_batch(self, world: int) -> None:
        if isinstance(self.source, StreamSource):
            return
        together, count = self.batch_size * world, len(self.source.train)
        if count < together:
            raise ValueError(
                f"a batch of {together} ({self.batch_size} x {world}) is larger than the {count} training images: "
                f"lower --batch-size to {max(1, count // world)} or less"
            )

    def _worker_count(self, world: int) -> int:
        if self.workers is not None:
            return self.workers
        if self.source.size is not None:
            return 0  # small images generated on the fly
        nodes = self.trainer.num_nodes if self.trainer else 1
        return min(8, suggested_max_num_workers(max(1, world // nodes)))

    def examples(self, count: int) -> Examples:
        """Sample a few validation images evenly, as the model sees them, skipping unreadable ones."""
        if isinstance(self.source, StreamSource):
            stream = self.source.stream("val", self.batch_size, self.seed, 0)
            known = (each for each in stream.images(0) if wrong_label(each[1], stream.classes) is None)
            read = list(islice(known, count))
            return Examples([self.preparation.pixels(image) for image, _ in read], [label for _, label in read])
        found = Examples([], [], None if self.source.mask is None else [])
        for index in evenly(range(len(self.source.val)), count):
            try:
                image, label = self.source.val.read(index, 0)
            except BadImage:
                continue
            found.images.append(self.preparation.pixels(image))
            found.labels.append(label)
            if found.masks is not None and self.source.mask is not None:
                found.masks.append(self.preparation.mask(self.source.mask(index)))
        if not found.images:
            raise ValueError("no validation image could be read")
        return found

    @override
    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Fail on unreadable images, or warn that they were skipped."""
        batch = cast(Batch, batch)
        for message in batch["bad"]:
            if not self.skip_bad:
                raise ValueError(f"{message}; use --on-bad-image skip to leave such images out")
            if message not in self.bad:
                self.bad.add(message)
                log.warning("skipped %s", printable(message))
                self._check_class(message.partition(": ")[0])
        if len(batch["label"]) == 0:
            raise ValueError(f"no image in a whole batch could be read; the last one was {sorted(self.bad)[-1]}")
        return batch

    def _check_class(self, path: str) -> None:
        """Given an image that cannot be read, fail unless another one of its class and split can be."""
        for split, labels in self._labels.items():
            label = labels.get(path)
            if label is None or label in self._readable[split]:
                continue
            if not any(_can_be_read(other) for other, each in labels.items() if each == label):
                name = self.source.names[label]
                raise ValueError(f"no {split} image of class {name!r} can be read: repair one, or remove the class")
            self._readable[split].add(label)

    @cached_property
    def _labels(self) -> dict[str, dict[str, int]]:
        """The labels of all files by their path, in both splits."""
        if isinstance(self.source, StreamSource):
            return {}
        readers = {"training": self.source.train, "validation": self.source.val}
        return {
            split: dict(zip(reader.paths, reader.labels, strict=True))
            for split, reader in readers.items()
            if isinstance(reader, Files)
        }

    @override
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Normalise on the device, where it is fast, and convert to the run's precision."""
        image = self.preparation.normalise(batch["image"], self.memory_format)
        if self.trainer is not None:
            image = self.trainer.precision_plugin.convert_input(image)
        return {"image": image, "label": batch["label"]}

    def report_bad_images(self) -> None:
        """Log the images that were skipped, over all processes."""
        everywhere: list[Any] = [self.bad]
        if torch.distributed.is_initialized():
            everywhere = [None] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(everywhere, self.bad)
        bad = sorted(set().union(*everywhere))
        if bad:
            more = f"; and {len(bad) - 20} more, named above" if len(bad) > 20 else ""
            named = printable("; ".join(bad[:20]))
            log.warning("%d images could not be read and were skipped: %s%s", len(bad), named, more)


def _can_be_read(path: str) -> bool:
    try:
        read_image(path)
    except BadImage:
        return False
    return True


def recorded_split(state: Mapping[str, Any]) -> Split | None:
    """How a run split off its validation images, from a checkpoint; None if the data itself had them."""
    said = state.get(ImageData.__qualname__)
    if said is None or (isinstance(said, dict) and not said.keys() & {"fraction", "held_out"}):
        return None
    fraction, names = (said.get(key) if isinstance(said, dict) else None for key in ("fraction", "held_out"))
    if not (isinstance(fraction, float) and isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError("the checkpoint's list of validation images is malformed: it cannot be resumed")
    return Split(fraction, tuple(names))


def _beginning() -> tuple[int, int]:
    return 0, 0

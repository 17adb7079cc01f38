"""A film of attention as it forms: the same validation images every few epochs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from numpy.typing import NDArray
from torch import Tensor

from visattn.files import replacing
from visattn.heatmaps import explain
from visattn.modules import uncompiled
from visattn.report.heatmaps import draw_film
from visattn.training.classifier import reshard


class Film(Callback):
    """Save heatmaps as ``film/epoch_0003.npy`` and so on, and a picture of them all as ``film.png``.

    Every process computes them, since sharded weights must be gathered from all; the first one writes.

    Args:
        folder: of the run.
        every: epochs between two frames.
        images: (B, H, W, 3) in 0..255, for display.
        inputs: the same images as the model's input, (B, 3, H, W).
    """

    def __init__(self, folder: Path, every: int, images: NDArray[np.uint8], inputs: Tensor) -> None:
        self.folder, self.every, self.images, self.inputs = folder, every, images, inputs

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add a frame."""
        epoch = trainer.current_epoch + 1
        if epoch % self.every and epoch != trainer.max_epochs:
            return
        reshard(pl_module.model)  # type: ignore[arg-type]
        with uncompiled(pl_module.model), trainer.precision_plugin.forward_context():  # type: ignore[arg-type]
            inputs = trainer.precision_plugin.convert_input(self.inputs.to(pl_module.device))
            maps = explain(pl_module.model, inputs).heatmap  # type: ignore[arg-type]
        if trainer.is_global_zero:
            with replacing(self.folder / "film" / f"epoch_{epoch:04}.npy") as partial, partial.open("wb") as stream:
                np.save(stream, maps.half().cpu().numpy())
            frames = read_frames(self.folder, epoch)
            alike = {number: frame for number, frame in frames.items() if frame.shape == self.images.shape[:3]}
            draw_film(self.folder / "film.png", self.images, alike)  # without those of an earlier --image-size


def read_frames(folder: Path, last: int) -> dict[int, NDArray[np.float32]]:
    """Read the frames of a run up to an epoch, ignoring later ones left by a killed run."""
    names = {epoch: folder / "film" / f"epoch_{epoch:04}.npy" for epoch in range(1, last + 1)}
    return {epoch: _frame(file) for epoch, file in names.items() if file.is_file()}


def _frame(file: Path) -> NDArray[np.float32]:
    try:
        frame = np.load(file, allow_pickle=False)
    except (ValueError, EOFError):  # numpy's message recommends to run what may be in it
        raise ValueError(f"{str(file)!r} is not a frame of a film: delete it") from None
    if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.dtype.kind != "f":
        raise ValueError(f"{str(file)!r} is not a frame of a film, which is heatmaps (B, H, W): delete it")
    return frame

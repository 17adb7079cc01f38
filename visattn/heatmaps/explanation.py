"""A heatmap and everything known about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import timm
import torch
from torch import Tensor, nn

from visattn.files import made_by, replacing, write_json

if TYPE_CHECKING:
    from PIL.Image import Image


MAKER = "visattn.explain"  # as a manifest names it


@dataclass(frozen=True)
class Explanation:
    """What a model looked at in a batch of images.

    Args:
        heatmap: (B, H, W) in [0, 1], or in [-1, 1] if signed, at the resolution of the images.
        raw: (B, h, w), the method's own numbers at its own resolution.
        method: the method that made it.
        target: the class that it explains, for every image; None if the model has no classes.
        layers: the modules that it comes from, in order.
        probability: the model's probability for each target; None if it has no classes, or only one.
        classes: names of all classes, if they are known.
        of_class: whether the method is about the target, or the same for all classes.
        images: (B, C, H, W) in [0, 1], for pictures.
        of: what was explained: the ``logit``, ``log_probability`` or ``probability`` of the target, a ``function`` of
            the output, or the ``cosine`` of features with a vector.
        versus: the classes that the targets were compared with, if there were any.
        signed: whether negative numbers say what speaks against the targets.
        reason: why this method, if it was chosen automatically.
        frames: the heatmap after each layer, if requested.
        extra: what else a method found: ``channels``, ``relations``, ``fixations``.
    """

    heatmap: Tensor
    raw: Tensor
    method: str
    target: tuple[int, ...] | None
    layers: tuple[str, ...]
    probability: tuple[float, ...] | None
    classes: tuple[str, ...] | None
    of_class: bool
    images: Tensor
    of: str = "logit"
    versus: tuple[int, ...] | None = None
    signed: bool = False
    reason: str = ""
    frames: tuple[Tensor, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        batch, height, width = self.heatmap.shape
        about = ", ".join(dict.fromkeys(name.split(",")[0] for name in self.names)) or "no classes"
        return f"Explanation({self.method}, {batch} x {height}x{width}, {about})"

    @property
    def names(self) -> list[str]:
        """The targets by name, or by number where names are not known; empty if the model has no classes."""
        return [str(index) if self.classes is None else self.classes[index] for index in self.target or ()]

    def pixels(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The images as (B, H, W, 3) in 0..255."""
        images = self.images if self.images.shape[1] == 3 else self.images.mean(1, keepdim=True).expand(-1, 3, -1, -1)
        return (255 * images).round().byte().permute(0, 2, 3, 1).numpy()

    def overlay(self, opacity: float = 0.6) -> list[Image]:
        """The heatmaps over the images, as PIL images."""
        from PIL import Image

        from visattn.report.figures import overlay

        if isinstance(opacity, bool) or not isinstance(opacity, int | float) or not 0 <= opacity <= 1:
            raise ValueError(f"opacity is a number from 0 to 1, got {opacity!r}")

        return [
            Image.fromarray(overlay(image, heatmap, opacity, signed=self.signed))
            for image, heatmap in zip(self.pixels(), self.heatmap.numpy(), strict=True)
        ]

    def score(self, model: nn.Module, x: Tensor, **options: Any) -> list[Any]:
        """Whether the model needs what is bright: what :func:`visattn.score` says, one answer per image."""
        import visattn  # scores stand above heatmaps

        return visattn.score(self, model, x, **options)

    def save(self, folder: str | Path) -> Path:
        """Write ``<number>_<method>.png`` and ``.npy`` for every image, and ``manifest.json``; returns the folder."""
        if folder == "":
            raise ValueError("the name of the folder is empty")
        folder = Path(folder)
        manifest = folder / "manifest.json"
        if manifest.exists() and made_by(manifest) != MAKER:
            raise ValueError(f"{str(manifest)!r} was written by something else: name another folder")
        entries = []
        for number, picture in enumerate(self.overlay()):
            stem = f"{number:03}_{self.method}"
            with replacing(folder / f"{stem}.png") as partial:
                picture.save(partial, format="png")
            with replacing(folder / f"{stem}.npy") as partial, partial.open("wb") as stream:
                np.save(stream, self.heatmap[number].numpy())
            entries.append(
                {
                    "picture": f"{stem}.png",
                    "heatmap": f"{stem}.npy",
                    "target": None if self.target is None else self.target[number],
                    "class": None if self.target is None else self.names[number],
                    "versus": None if self.versus is None else self.versus[number],
                    "probability": None if self.probability is None else self.probability[number],
                }
            )
        content = {
            "made_by": MAKER,
            "method": self.method,
            "reason": self.reason,
            "of_class": self.of_class,
            "of": self.of,
            "signed": self.signed,
            "layers": list(self.layers),
            "size": list(self.heatmap.shape[1:]),
            "images": entries,
            "versions": {"torch": torch.__version__, "timm": timm.__version__},
        }
        write_json(manifest, content)
        return folder

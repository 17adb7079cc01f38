"""Predict the classes of images by name, with probabilities."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from visattn.core.arguments import at_least_one
from visattn.heatmaps.targets import check_order, class_names
from visattn.heatmaps.watch.cache import is_sharded
from visattn.heatmaps.watch.inspection import own_copy
from visattn.missing import saying_what_to_install
from visattn.models.refusals import refusal
from visattn.modules import check_default_device, evaluating, underlying
from visattn.opening import Picture, image_inputs, open_given

if TYPE_CHECKING:
    from visattn.data.preparation import Preparation
    from visattn.models.saving.saved import Trained


@dataclass(frozen=True)
class Prediction:
    """Prediction for one image.

    Args:
        labels: class names, most likely first; class indices if the names are unknown.
        probabilities: probability of each class.
        indices: index of each class.
        file: path of the image, if it is a file.
    """

    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    indices: tuple[int, ...]
    file: str | None = None

    @property
    def label(self) -> str:
        """Most likely class."""
        return self.labels[0]

    @property
    def probability(self) -> float:
        """Probability of the most likely class."""
        return self.probabilities[0]

    def __repr__(self) -> str:
        file = "" if self.file is None else f"{self.file}: "
        said = (f"{label} {share:.1%}" for label, share in zip(self.labels, self.probabilities, strict=True))
        return f"Prediction({file}{', '.join(said)})"


@saying_what_to_install()
def predict(
    model: nn.Module | str | PathLike[str] | Trained,
    images: Picture | Sequence[Picture],
    *,
    top: int = 5,
    classes: Sequence[str] | None = None,
    preparation: Preparation | None = None,
    batch_size: int = 8,
    device: str | torch.device | None = None,
) -> list[Prediction]:
    """Classify images, with one :class:`Prediction` per image, leaving the model unchanged.

    Args:
        model: a run folder, a checkpoint, or a classifier (timm's or your own).
        images: a file, a folder, a Pillow image, a uint8 array (H, W, 3) or (H, W), an already normalised tensor
            (C, H, W) or (B, C, H, W), or a list of these.
        top: number of classes per image.
        classes: class names in order; known for runs and for ImageNet.
        preparation: preprocessing; by default that of the model card or of timm's configuration.
        batch_size: images per batch.
        device: where to run a model that is loaded from a path; cuda if available. A network stays where it is.

    >>> import timm
    >>> model = timm.create_model("test_resnet", num_classes=2)
    >>> predict(model, torch.zeros(3, 64, 64), classes=("cat", "dog"))[0].indices in ((0, 1), (1, 0))
    True
    """
    check_default_device()
    batch_size = at_least_one("batch_size", batch_size)
    trained, prepared = open_given(model, device, preparation)
    predictor = Predictor(trained.model, trained.classes if classes is None else classes, top)
    inputs = image_inputs(images, predictor.model, prepared)
    found: list[Prediction] = []
    while batch := list(islice(inputs, min(batch_size, sys.maxsize))):
        sizes = {tuple(x.shape) for _, x in batch}
        if len(sizes) > 1:
            raise ValueError(f"the images in a batch have different shapes: {', '.join(map(str, sorted(sizes)))}")
        found += predictor(torch.stack([x for _, x in batch]), [file for file, _ in batch])
    if not found:
        raise ValueError("there are no images to classify")
    return found


class Predictor:
    """Classify batches with one model.

    Args:
        model: a classifier.
        classes: class names in order; known for ImageNet.
        top: number of classes per image.
    """

    def __init__(self, model: nn.Module, classes: Sequence[str] | None, top: int) -> None:
        if getattr(underlying(model), "num_classes", None) == 0:
            raise ValueError("the model has no classes (num_classes=0): give it a classifier")
        if classes is not None:
            check_order(classes)
        self.classes = None if classes is None else [str(name) for name in classes]
        self.model, self.top = _in_evaluation(model), at_least_one("top", top)

    def __call__(self, x: Tensor, files: Sequence[str | None]) -> list[Prediction]:
        """Predict for inputs (B, C, H, W) that come from these files."""
        logits = self._logits(x)
        number = logits.shape[1]
        known = class_names(number, self.model) or [str(index) for index in range(number)]
        classes = known if self.classes is None else self.classes
        if len(classes) != number:
            raise ValueError(f"{len(classes)} names for the {number} classes of the model")
        # Ties go to the lower index, as in validation.
        order = logits.sort(dim=1, descending=True, stable=True).indices[:, : self.top]
        shares = logits.softmax(1).gather(1, order)
        return [
            Prediction(tuple(classes[index] for index in indices), tuple(row), tuple(indices), file)
            for indices, row, file in zip(order.tolist(), shares.tolist(), files, strict=True)
        ]

    def _logits(self, x: Tensor) -> Tensor:
        """Logits (B, classes) on the CPU."""
        like = next((p for p in self.model.parameters() if p.is_floating_point()), x)
        if like.is_meta or x.is_meta:
            raise ValueError("the model or the image is on the meta device, where tensors have no values")
        try:
            with evaluating(self.model), torch.no_grad():
                output: Any = self.model(x.to(like.device, like.dtype))
        except torch.OutOfMemoryError as error:
            raise ValueError("the device is out of memory: lower the batch size") from error
        except Exception as error:  # a network can raise anything
            raise ValueError(refusal(x, error)) from error
        scores = isinstance(output, Tensor) and output.is_floating_point()
        if not scores or output.ndim != 2 or output.shape[1] < 2:
            what = f"a {type(output).__name__}"
            if isinstance(output, Tensor):
                what = f"a tensor {tuple(output.shape)} of {output.dtype}"
            raise ValueError(f"a classifier returns (batch, classes) with two classes or more, not {what}")
        if len(output) != len(x):
            raise ValueError(f"a classifier returns a row per image, but this one returned {len(output)} for {len(x)}")
        logits = output.float().cpu()
        if not logits.isfinite().all():
            raise ValueError("the model's output for these images is not finite (NaN or infinite)")
        return logits


def _in_evaluation(model: nn.Module) -> nn.Module:
    """Return the model, or a copy in evaluation mode that shares its weights if it is in training mode."""
    if not any(module.training for module in model.modules()) or is_sharded(model):
        return model
    return own_copy(underlying(model))

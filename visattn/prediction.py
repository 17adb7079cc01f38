"""Predictions: the classes of images by name, with probabilities."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from visattn.core.arguments import whole
from visattn.heatmaps.targets import check_order, class_names
from visattn.listing import times
from visattn.models.wrapping import inside
from visattn.modules import evaluating, sharing_copy, why_refused

if TYPE_CHECKING:
    from visattn.data.images import InMemory
    from visattn.data.preparation import Preparation
    from visattn.models.saving.saved import Trained

Picture: TypeAlias = "str | PathLike[str] | InMemory | Tensor"


@dataclass(frozen=True)
class Prediction:
    """The classes of one image.

    Args:
        labels: names of the classes, the most likely first; their numbers if the names are not known.
        probabilities: of each,
        indices: and its number.
        file: where the image comes from, if it is a file.
    """

    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    indices: tuple[int, ...]
    file: str | None = None

    @property
    def label(self) -> str:
        """The most likely one."""
        return self.labels[0]

    @property
    def probability(self) -> float:
        """Of the most likely one."""
        return self.probabilities[0]

    def __repr__(self) -> str:
        file = "" if self.file is None else f"{self.file}: "
        said = (f"{label} {share:.1%}" for label, share in zip(self.labels, self.probabilities, strict=True))
        return f"Prediction({file}{', '.join(said)})"


def predict(
    model: nn.Module | str | PathLike[str],
    images: Picture | Sequence[Picture],
    *,
    top: int = 5,
    classes: Sequence[str] | None = None,
    preparation: Preparation | None = None,
    batch_size: int = 8,
    device: str | torch.device | None = None,
) -> list[Prediction]:
    """Classify images, one :class:`Prediction` per image; the model is left as it was found.

    Args:
        model: the folder of a run, one of its checkpoints, or a classifier, timm's or yours.
        images: a file, a folder, a picture of Pillow's, an array (H, W, 3) or (H, W) of uint8, or a tensor (C, H, W) or
            (B, C, H, W) that is normalised already; or a list of these.
        top: how many classes of each image.
        classes: names of the classes in order; a run knows them, and those of ImageNet are known.
        preparation: how images become tensors; what the card of a run says, or timm of its models, unless given.
        batch_size: images at a time.
        device: where to compute what is loaded from a path; cuda if there is one. A model stays where it is.

    >>> import timm
    >>> model = timm.create_model("test_resnet", num_classes=2)
    >>> predict(model, torch.zeros(3, 64, 64), classes=("cat", "dog"))[0].indices in ((0, 1), (1, 0))
    True
    """
    batch_size = at_least_one("batch_size", batch_size)
    if isinstance(model, str | PathLike):
        trained, own = open_model(None, str(model), device)
        predictor = Predictor(trained.model, trained.classes if classes is None else classes, top)
        preparation = preparation or own
    else:
        if device is not None:
            raise ValueError("device is for models that are loaded from a path; this one stays where it is: move it")
        predictor = Predictor(model, classes, top)
    inputs = _inputs(images, predictor.model, preparation)
    found: list[Prediction] = []
    while batch := list(islice(inputs, min(batch_size, sys.maxsize))):
        sizes = {tuple(x.shape) for _, x in batch}
        if len(sizes) > 1:
            raise ValueError(f"the images of a batch have different shapes: {', '.join(map(str, sorted(sizes)))}")
        found += predictor(torch.stack([x for _, x in batch]), [file for file, _ in batch])
    if not found:
        raise ValueError("there are no images to look at")
    return found


class Predictor:
    """Classifies batches with one model.

    Args:
        model: a classifier.
        classes: names of its classes in order; those of ImageNet are known.
        top: how many classes of each image.
    """

    def __init__(self, model: nn.Module, classes: Sequence[str] | None, top: int) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"the model is a network, or the folder or checkpoint of a run, got {type(model).__name__}")
        if getattr(model, "num_classes", None) == 0:
            raise ValueError("the model has no classes (num_classes=0): give it a classifier")
        if classes is not None:
            check_order(classes)
        self.classes = None if classes is None else [str(name) for name in classes]
        self.model, self.top = _in_evaluation(model), at_least_one("top", top)

    def __call__(self, x: Tensor, files: Sequence[str | None]) -> list[Prediction]:
        """Predictions for inputs (B, C, H, W) that come from these files."""
        logits = self._logits(x)
        number = logits.shape[1]
        known = class_names(number, self.model) or [str(index) for index in range(number)]
        classes = known if self.classes is None else self.classes
        if len(classes) != number:
            raise ValueError(f"{len(classes)} names for the {number} classes of the model")
        # The first of equal ones comes first, as in validation.
        order = logits.sort(dim=1, descending=True, stable=True).indices[:, : self.top]
        shares = logits.softmax(1).gather(1, order)
        return [
            Prediction(tuple(classes[index] for index in indices), tuple(row), tuple(indices), file)
            for indices, row, file in zip(order.tolist(), shares.tolist(), files, strict=True)
        ]

    def _logits(self, x: Tensor) -> Tensor:
        """(B, classes) on the CPU."""
        like = next((p for p in self.model.parameters() if p.is_floating_point()), x)
        if like.is_meta:
            raise ValueError("the model or the image is on the meta device, where tensors have no numbers")
        try:
            with evaluating(self.model), torch.no_grad():
                output: Any = self.model(x.to(like.device, like.dtype))
        except torch.OutOfMemoryError as error:
            raise ValueError("the device is out of memory: lower the batch size") from error
        except Exception as error:  # a network can refuse an image in any way it likes
            said = why_refused(error)
            raise ValueError(f"the model does not take images of {times(x.shape[1:])} ({said})") from error
        scores = isinstance(output, Tensor) and output.is_floating_point()
        if not scores or output.ndim != 2 or output.shape[1] < 2:
            what = f"a {type(output).__name__}"
            if isinstance(output, Tensor):
                what = f"a tensor {tuple(output.shape)} of {output.dtype}"
            raise ValueError(f"a classifier returns (batch, classes) with two classes or more, this model {what}")
        if len(output) != len(x):
            raise ValueError(f"a classifier returns a row for every image, this model {len(output)} for {len(x)}")
        logits = output.float().cpu()
        if not logits.isfinite().all():
            raise ValueError("the model's numbers for these images are not finite (NaN or infinite)")
        return logits


def _in_evaluation(model: nn.Module) -> nn.Module:
    """A model in evaluation mode; a copy with the same weights if it is in training, perhaps in another thread."""
    if not any(module.training for module in model.modules()):
        return model
    try:
        return sharing_copy(inside(model))
    except Exception:  # what is in a network can refuse to be copied in any way it likes
        return model


def open_model(name: str | None, weights: str | None, device: str | torch.device | None) -> tuple[Trained, Preparation]:
    """A model by name or from a path, on its device, and how its images are prepared."""
    from visattn.data.preparation import Preparation
    from visattn.models.saving.saved import open_trained

    if weights == "":
        raise ValueError("the path of the model is empty")
    place = _device(device)
    trained = open_trained(name, weights)
    trained.model.to(place)
    return trained, Preparation.of(trained.model, trained.input)


def _device(name: str | torch.device | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.empty(1, device=name).device
    except Exception as error:  # every kind of device refuses in its own way
        raise ValueError(f"device {str(name)!r} cannot be used: {why_refused(error)}") from error
    if device.type == "meta":
        raise ValueError("device 'meta' cannot be used: tensors there have no numbers")
    return device


def _inputs(
    images: Picture | Sequence[Picture], model: nn.Module, preparation: Preparation | None
) -> Iterator[tuple[str | None, Tensor]]:
    """Inputs (C, H, W) one by one, each with its file."""
    from visattn.data.decode import read_image
    from visattn.data.images import as_rgb, find_images
    from visattn.data.preparation import Preparation

    if preparation is not None and not isinstance(preparation, Preparation):
        raise TypeError(f"preparation is a Preparation, got {type(preparation).__name__}")
    every: Any = images if isinstance(images, list | tuple) else [images]
    for image in every:
        if isinstance(image, Tensor):
            yield from ((None, x) for x in _normalised(image))
            continue
        preparation = preparation or own_preparation(model)
        if isinstance(image, str | PathLike):
            paths, missing = find_images([str(image)])
            for what, why in missing:
                raise ValueError(f"{what}: {why}")
            for path in paths:
                yield str(path), preparation.batch([read_image(path)])[0]
        else:
            yield None, preparation.batch([as_rgb(image)])[0]


def _normalised(image: Tensor) -> Iterable[Tensor]:
    if image.ndim not in (3, 4) or not image.is_floating_point():
        raise TypeError(
            f"a tensor is normalised already, (C, H, W) or (B, C, H, W) of floating-point numbers, got {image.dtype} "
            f"{tuple(image.shape)}; pixels are given as an array"
        )
    return image[None] if image.ndim == 3 else image


def own_preparation(model: nn.Module) -> Preparation:
    """How a model wants its images, as timm's ``pretrained_cfg`` says it."""
    from visattn.data.preparation import Preparation

    model = inside(model)
    if not getattr(model, "pretrained_cfg", None):
        raise ValueError(
            f"{type(model).__name__} does not say how it wants its images (timm's pretrained_cfg): give preparation=, "
            "or tensors that are normalised already"
        )
    return Preparation.of(model)


def at_least_one(name: str, value: Any) -> int:
    """A number of something."""
    number = whole(value)
    if number is None:
        raise TypeError(f"{name} is a whole number, got {value!r}")
    if number < 1:
        raise ValueError(f"{name} must be at least 1, got {number}")
    return number

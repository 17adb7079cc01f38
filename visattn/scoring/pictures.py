"""The images that heatmaps are scored on, and where the objects in them are, if that is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from visattn.listing import evenly, first_few
from visattn.scoring.localisation import check_masks

if TYPE_CHECKING:
    from visattn.data.images import InMemory
    from visattn.data.preparation import Preparation

Data: TypeAlias = "Tensor | str | PathLike[str] | InMemory | Sequence[str | PathLike[str] | InMemory]"
Masks: TypeAlias = "Tensor | str | PathLike[str] | None"
LeaveOut: TypeAlias = Callable[[str, str], None]


@dataclass(frozen=True)
class Pictures:
    """Images to score heatmaps on.

    Args:
        names: of the images.
        inputs: (B, C, H, W), normalised as the model wants them.
        masks: (B, H, W), where the objects are, if that is known.
    """

    names: tuple[str, ...]
    inputs: Tensor
    masks: Tensor | None = None


def load_pictures(
    data: Data, masks: Masks, preparation: Callable[[], Preparation], number: int, leave_out: LeaveOut
) -> Pictures:
    """The images that somebody names.

    Args:
        data: ``"digits"`` (``"./digits"`` is a folder), files, folders and what is in memory; or normalised tensors.
        masks: a folder of masks or boxes, or a tensor (B, H, W) for images in a tensor.
        preparation: how images become tensors.
        number: of images, at most; of more, some are chosen evenly.
        leave_out: told of what cannot be used, and why.
    """
    if masks is not None and not isinstance(masks, Tensor | str | PathLike):
        raise TypeError(f"masks are a folder, or a tensor (B, H, W) for images in a tensor, got {type(masks).__name__}")
    if isinstance(data, Tensor):
        return _tensors(data, masks, number)
    if isinstance(masks, Tensor):
        raise TypeError("masks in a tensor are for images in a tensor: name a folder of masks")
    if isinstance(data, str) and data == "digits" and masks is None:
        return _digits(preparation(), number)
    return _files(data, masks, preparation(), number, leave_out)


def _tensors(images: Tensor, masks: Masks, number: int) -> Pictures:
    images = images[None] if images.ndim == 3 else images
    if masks is not None:
        if not isinstance(masks, Tensor):
            raise TypeError(f"masks of images in a tensor are a tensor, got {type(masks).__name__}")
        masks = masks[None] if masks.ndim == 2 else masks
        masks = check_masks(masks, len(images), (images.shape[-2], images.shape[-1]))
    chosen = evenly(range(len(images)), number)
    return Pictures(
        tuple(f"image {index}" for index in chosen), images[chosen], None if masks is None else masks[chosen]
    )


def _digits(preparation: Preparation, number: int) -> Pictures:
    """Validation images of the bundled digits."""
    from visattn.data.digits import Digits
    from visattn.data.readers import DigitImages

    digits = Digits("val")
    indices = range(min(number, len(digits)))
    read = [preparation.pixels(DigitImages(digits).read(index, 0)[0]) for index in indices]
    masks = [preparation.mask(digits.sample(index)[2]) for index in indices]
    return _together([f"digit {index}" for index in indices], read, masks, preparation)


def _files(data: Any, masks: Any, preparation: Preparation, number: int, leave_out: LeaveOut) -> Pictures:
    from visattn.data.annotations import find_annotations, read_annotation
    from visattn.data.images import gather, read_batches

    reasons: list[str] = []

    def note(what: str, why: str) -> None:
        reasons.append(f"{what}: {why}")
        leave_out(what, why)

    annotations = None if masks is None else find_annotations(masks)
    found = gather(data, note)
    if annotations is not None:
        found = [*_with_masks(found, annotations, note)]
    names, read, seen = [], [], []
    for ((name, image),) in read_batches(evenly(found, number), 1, note):
        if annotations is not None:
            mask = preparation.mask(read_annotation(annotations[Path(name).stem], image.shape[:2]))
            if mask.all() or not mask.any():
                note(name, "what the model sees of it is all object" if mask.any() else "its object is not seen")
                continue
            seen.append(mask)
        names.append(name)
        read.append(preparation.pixels(image))  # the image itself may be large
    if not read:
        raise ValueError(f"there are no images to score heatmaps on ({first_few([each[:120] for each in reasons], 2)})")
    return _together(names, read, seen if annotations is not None else None, preparation)


def _with_masks(found: Sequence[Any], annotations: Mapping[str, Path], leave_out: LeaveOut) -> list[Path]:
    """The images of which there is a mask; two with the same one raise."""
    of_mask: dict[str, Path] = {}
    for each in found:
        if not isinstance(each, Path) or each.stem not in annotations:
            leave_out(str(each) if isinstance(each, Path) else "an image", "there is no mask of its name")
        elif (other := of_mask.setdefault(each.stem, each)) is not each:
            raise ValueError(f"{str(other)!r} and {str(each)!r} would have the same mask: rename one of them")
    return list(of_mask.values())


def _together(
    names: Sequence[str],
    pixels: Sequence[NDArray[np.uint8]],
    masks: Sequence[NDArray[np.bool_]] | None,
    preparation: Preparation,
) -> Pictures:
    inputs = preparation.together(pixels)
    return Pictures(tuple(names), inputs, None if masks is None else torch.from_numpy(np.stack(masks)))

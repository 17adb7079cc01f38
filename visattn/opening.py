"""The inputs of ``predict``, ``examine`` and ``evaluate``: a model, and images as files, pictures or tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import torch
from torch import Tensor, nn

from visattn.core.arguments import Device
from visattn.modules import NOT_DENSE, is_dense, own_size, timm_config, underlying, why_refused

if TYPE_CHECKING:
    from visattn.data.images import InMemory
    from visattn.data.preparation import Preparation
    from visattn.models.saving.saved import Trained

Picture: TypeAlias = "str | PathLike[str] | InMemory | Tensor"


def open_model(name: str | None, weights: str | None, device: str | torch.device | None) -> tuple[Trained, Preparation]:
    """Open a model by name or from a path, on its device, with its preprocessing."""
    from visattn.data.preparation import Preparation
    from visattn.models.saving.saved import open_trained

    if weights == "":
        raise ValueError("the path of the model is empty")
    place = usable_device(device)
    trained = open_trained(name, weights)
    trained.model.to(place)
    return trained, Preparation.of(trained.model, trained.input)


def open_given(
    model: nn.Module | str | PathLike[str] | Trained, device: Device, preparation: Preparation | None
) -> tuple[Trained, Preparation | None]:
    """Open a model given by its path or in memory, with the given preprocessing, or its own if that is known."""
    from visattn.data.preparation import Preparation
    from visattn.models.saving.saved import Trained

    if preparation is not None and not isinstance(preparation, Preparation):
        raise TypeError(f"preparation must be a Preparation, got {type(preparation).__name__}")
    if isinstance(model, str | PathLike):
        trained, own = open_model(None, str(model), device)
        return trained, preparation or own
    if device is not None:
        raise ValueError("device applies only to models loaded from a path: move this model yourself")
    if not isinstance(model, nn.Module | Trained):
        raise TypeError(f"the model must be a network, a run folder or a checkpoint, got {type(model).__name__}")
    trained = model if isinstance(model, Trained) else Trained(model, type(model).__name__, "in memory")
    try:
        return trained, preparation or own_preparation(trained.model)
    except ValueError:
        return trained, None


def usable_device(name: str | torch.device | None) -> torch.device:
    """The device of that name, or cuda if there is one; one that cannot be used raises."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.empty(1, device=name).device
    except Exception as error:  # every kind of device raises its own error
        raise ValueError(f"device {str(name)!r} cannot be used: {why_refused(error)}") from error
    if device.type == "meta":
        raise ValueError("device 'meta' cannot be used: its tensors have no values")
    return device


def image_inputs(
    images: Picture | Sequence[Picture], model: nn.Module, preparation: Preparation | None
) -> Iterator[tuple[str | None, Tensor]]:
    """Yield inputs (C, H, W) one by one, each with its file."""
    from visattn.data.preparation import Preparation

    if preparation is not None and not isinstance(preparation, Preparation):
        raise TypeError(f"preparation must be a Preparation, got {type(preparation).__name__}")
    every: Any = images if isinstance(images, list | tuple) else [images]
    for image in every:
        if isinstance(image, Tensor):
            yield from ((None, x) for x in _normalised(image))
            continue
        from visattn.data.decode import read_image  # tensors need no decoder
        from visattn.data.images import gather

        preparation = preparation or own_preparation(model)
        for found in gather(image, _refuse):
            file = str(found) if isinstance(found, Path) else None
            yield file, preparation.batch([read_image(found) if isinstance(found, Path) else found])[0]


def _refuse(what: str, why: str) -> NoReturn:
    raise ValueError(f"{what}: {why}")


def _normalised(image: Tensor) -> Iterable[Tensor]:
    if not is_dense(image):
        raise TypeError(f"a tensor of images must be dense, got {NOT_DENSE}: call to_dense(), or stack them")
    if image.ndim not in (3, 4) or not image.is_floating_point():
        raise TypeError(
            f"a tensor must be normalised floating-point numbers (C, H, W) or (B, C, H, W), got {image.dtype} "
            f"{tuple(image.shape)}; pass pixels as an array"
        )
    return image[None] if image.ndim == 3 else image


def own_preparation(model: nn.Module) -> Preparation:
    """Preprocessing of a model according to timm's ``pretrained_cfg``."""
    from visattn.data.preparation import Preparation

    model = underlying(model)
    if not timm_config(model):
        raise ValueError(
            f"{type(model).__name__} does not state its preprocessing (timm's pretrained_cfg): pass preparation=, "
            "or tensors that are already normalised"
        )
    return Preparation.of(model, {"size": own_size(model)})

"""A network by name, for images of a size."""

from __future__ import annotations

from typing import Any

from torch import nn

from visattn.core.arguments import at_least_one
from visattn.models.names import create_model, model_config
from visattn.modules import own_size

LARGEST_IMAGE = 2**14


def checked_size(image_size: int | None) -> int | None:
    """The side of an image, or raise."""
    return None if image_size is None else at_least_one("image_size", image_size, LARGEST_IMAGE)


def build_model(name: str, image_size: int | None) -> tuple[nn.Module, tuple[int, int, int]]:
    """A network with random weights, and the shape of its images."""
    extra: dict[str, Any] = {}
    config = model_config(name)
    if image_size is not None and config and config.fixed_input_size and image_size != config.input_size[-1]:
        extra = {"img_size": image_size}
    network = create_model(name, **extra)
    channels, height, width = own_size(network)
    return network, (channels, image_size or height, image_size or width)

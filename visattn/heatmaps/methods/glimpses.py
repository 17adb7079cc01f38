"""Where a model with hard attention looked."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from visattn.hard.sensor import coverage
from visattn.heatmaps.methods.base import register_method
from visattn.heatmaps.request import MethodResult, Request


@runtime_checkable
class HasFixations(Protocol):
    """A model that looks at one part of the image after the other."""

    def fixations(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Centres (B, T, 2) of the glimpses as (x, y), and height and width of a glimpse in pixels.

        What a location means is said in :mod:`visattn.hard.sensor`.
        """
        ...


def why_no_glimpses(model: nn.Module, images: Tensor) -> str | None:
    """Why there are no glimpses; None if there are."""
    del images
    if isinstance(model, HasFixations):
        return None
    return "it does not take glimpses of the image (what a hard block chose is among the gates)"


@register_method("glimpses", why_not=why_no_glimpses, of_class=False)
def glimpses(request: Request) -> MethodResult:
    """How often each pixel was looked at; the path is in ``extra["fixations"]`` and ``extra["glimpse"]``."""
    model = request.model
    assert isinstance(model, HasFixations)
    with torch.no_grad():
        points, (height, width) = model.fixations(request.images)
    points = points.detach().float().cpu()
    seen = coverage(points, (height, width), (request.images.shape[-2], request.images.shape[-1]))
    return MethodResult(seen, extra={"fixations": points, "glimpse": (height, width)})


def on_mask(points: Tensor, masks: Tensor) -> Tensor:
    """Which fixations are on an object.

    Args:
        points: (B, T, 2), locations.
        masks: (B, H, W), where the object is: true, or any number but zero.

    Returns:
        (B, T), booleans. By chance alone their mean would be that of the masks.

    >>> mask = torch.tensor([[[False, True], [False, False]]])  # above, on the right
    >>> on_mask(torch.tensor([[[0.5, -0.5], [-0.5, 0.5]]]), mask)
    tensor([[ True, False]])
    >>> on_mask(torch.zeros(1, 1, 2), mask.float())
    tensor([[False]])
    """
    shapes = [tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__ for each in (points, masks)]
    fit = all(isinstance(each, Tensor) and each.ndim == 3 for each in (points, masks))
    if not fit or points.shape[2] != 2 or len(points) != len(masks) or 0 in masks.shape[1:]:
        raise ValueError(f"points must be (B, T, 2) and masks (B, H, W), got {shapes[0]} and {shapes[1]}")
    if not points.isfinite().all():
        raise ValueError("points must be finite: there is NaN or infinity among them")
    height, width = masks.shape[1:]
    column = ((points[..., 0] + 1) / 2 * width).long().clamp(0, width - 1)
    row = ((points[..., 1] + 1) / 2 * height).long().clamp(0, height - 1)
    return masks.bool().flatten(1).gather(1, row * width + column)

"""Baselines that know nothing of the model, or next to nothing: a useful method must beat them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from visattn.heatmaps.methods.base import register_method, seeded
from visattn.heatmaps.request import MethodResult, Request
from visattn.heatmaps.watch.exactness import full_precision

CELLS = 14  # along the shorter side of a random map


@register_method("random", of_class=False)
def random(request: Request, *, seed: int = 0) -> MethodResult:
    """Noise at patch resolution, determined by the seed and the position in the batch."""
    height, width = request.images.shape[-2:]
    short = min(height, width)
    generator = seeded(seed)
    maps = torch.rand(len(request.images), CELLS * height // short, CELLS * width // short, generator=generator)
    return MethodResult(maps)


@register_method("center", of_class=False)
def center(request: Request) -> MethodResult:
    """A bump in the middle of the image, a quarter of its sides wide."""
    height, width = request.images.shape[-2:]
    rows, columns = (((torch.arange(n) + 0.5) / n - 0.5) / 0.25 for n in (height, width))
    bump = torch.exp(-0.5 * (rows.square()[:, None] + columns.square()))
    return MethodResult(bump.expand(len(request.images), -1, -1))


@register_method("edge", of_class=False)
def edge(request: Request) -> MethodResult:
    """How much the image changes from pixel to pixel (Sobel)."""
    grey = request.images.float().mean(1, keepdim=True)
    kernel = torch.tensor([[1.0, 2.0, 1.0], [0.0, 0.0, 0.0], [-1.0, -2.0, -1.0]]).to(grey)
    kernels = torch.stack([kernel, kernel.T])[:, None]
    with full_precision(grey.device):
        slopes = F.conv2d(F.pad(grey, (1, 1, 1, 1), mode="replicate"), kernels)
    return MethodResult(slopes.square().sum(1).sqrt())

"""From a method's own numbers to a heatmap."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

FINE = 7  # the fewest rows and columns at which a map still says where something is


def to_heatmap(maps: Tensor, size: tuple[int, int], *, signed: bool = False) -> Tensor:
    """(B, H, W) in [0, 1]: resized, the smallest value of every image 0 and the largest 1.

    A constant map carries no information: it becomes 0 everywhere.

    Args:
        maps: (B, height, width).
        size: of the images.
        signed: keep zero where it is, and the larger of the extremes of every image at 1 or -1.
    """
    maps = maps.detach().float().cpu()
    if tuple(maps.shape[-2:]) != size:
        maps = F.interpolate(maps[:, None], size, mode="bilinear", align_corners=False)[:, 0]
    if signed:
        most = maps.abs().amax((1, 2), keepdim=True)
        return maps / most.where(most > 0, 1)
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    spread = high - low
    flat = spread <= 1e-6 * high.abs()
    return torch.where(flat, 0, (maps - low) / spread.where(~flat, 1))

"""A retina: sharp in the middle, coarse around it (Mnih et al. 2014, https://arxiv.org/abs/1406.6247).

**Locations.** Everywhere in visattn, a location is (x, y) with both in [-1, 1]: x runs from the left edge of
the image (-1) to its right edge (1), y from its upper edge (-1) to its lower edge (1); (0, 0) is the middle.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

WIDEST = 2**13  # pixels of a side


def glimpse(images: Tensor, locations: Tensor, *, size: int, scales: int = 1) -> Tensor:
    """Extract patches around locations, each scale twice as wide as the previous one and averaged to the same size.

    All images, locations and scales take one call of ``grid_sample``. Locations between pixels are interpolated;
    outside the image there are zeros.

    Args:
        images: (B, C, H, W).
        locations: (B, G, 2), the centres as (x, y).
        size: side of the smallest patch in pixels, and of every patch afterwards.
        scales: number of patches around each location.

    Returns:
        (B, G, scales, C, size, size).

    >>> image = torch.arange(16.0).view(1, 1, 4, 4)
    >>> glimpse(image, torch.tensor([[[0.5, -0.5]]]), size=2).view(2, 2)  # to the right, and up
    tensor([[2., 3.],
            [6., 7.]])
    """
    check_glimpse(size, scales)
    if images.ndim != 4 or locations.ndim != 3 or locations.shape[::2] != (len(images), 2):
        shapes = f"{tuple(images.shape)} and {tuple(locations.shape)}"
        raise ValueError(f"a glimpse needs images (B, C, H, W) and locations (B, G, 2), got {shapes}")
    height, width = images.shape[-2:]
    dtype = torch.promote_types(images.dtype, torch.float32)  # half precision cannot resolve pixels of a large image
    sides = [size * 2**scale for scale in range(scales)]
    x, y = torch.cat([_offsets(side, images.device, dtype) for side in sides]).unbind(-1)  # (P,), in pixels
    points = torch.stack([x * (2 / width), y * (2 / height)], -1)  # (P, 2)
    grid = locations.to(dtype)[:, :, None] + points  # (B, G, P, 2)
    seen = F.grid_sample(images.to(dtype), grid, padding_mode="zeros", align_corners=False)  # (B, C, G, P)
    patches = [
        F.avg_pool2d(patch.unflatten(-1, (side, side)).flatten(1, 2), side // size).unflatten(1, patch.shape[1:3])
        for side, patch in zip(sides, seen.split([side**2 for side in sides], -1), strict=True)
    ]
    return torch.stack(patches, 1).permute(0, 3, 1, 2, 4, 5).to(images.dtype)  # from (B, scales, C, G, size, size)


def check_glimpse(size: int, scales: int) -> None:
    """Raise if there can be no such glimpse: too small, or larger than any image."""
    if size < 1 or scales < 1:
        raise ValueError(f"a glimpse needs size and scales of at least one, got {size} and {scales}")
    if size > WIDEST or scales > WIDEST or size * 2 ** (scales - 1) > WIDEST:
        raise ValueError(
            f"a glimpse of size {size:.3g} and {scales:.3g} scales is wider than {WIDEST} pixels: too wide"
        )


def _offsets(side: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(x, y) of the pixels of a square from its centre, row by row."""
    line = torch.arange(side, device=device, dtype=dtype) - (side - 1) / 2
    return torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).flatten(0, 1)


def coverage(points: Tensor, size: tuple[float, float], image: tuple[int, int]) -> Tensor:
    """How many glimpses the centre of each pixel lies in, (B, H, W).

    Args:
        points: (B, T, 2), the centres of the glimpses.
        size: height and width of a glimpse in pixels.
        image: height and width of the image.

    >>> coverage(torch.tensor([[[0.5, -0.5]]]), (1, 2), (2, 4))  # to the right, and up
    tensor([[[0., 0., 1., 1.],
             [0., 0., 0., 0.]]])
    """
    (height, width), (rows, columns) = size, image
    x, y = (points[..., 0] + 1) / 2 * columns, (points[..., 1] + 1) / 2 * rows  # (B, T)
    near_x = ((torch.arange(columns) + 0.5) - x[..., None]).abs() <= width / 2  # (B, T, W)
    near_y = ((torch.arange(rows) + 0.5) - y[..., None]).abs() <= height / 2  # (B, T, H)
    return torch.einsum("bth,btw->bhw", near_y.float(), near_x.float())

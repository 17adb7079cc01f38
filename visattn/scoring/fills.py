"""What takes the place of removed pixels.

- ``blur``: those of a blurred image (Gaussian, kernel 11, sigma 5; RISE, https://arxiv.org/abs/1806.07421)
- ``mean``: the mean colour of the model's training data, which is zero in its normalised input
- ``black``: black, which is *not* zero in normalised input
- ``neighbours``: the mean of the nearest pixels that remain, from fine to coarse
- ``linear``: the weighted mean of their eight neighbours, all at once, plus noise (ROAD,
  https://arxiv.org/abs/2202.00449)

For ``linear`` every removed pixel x_i satisfies ``sum_j w_ij (x_i - x_j) = 0`` over its neighbours j within the image,
with w = 1/6 for direct and 1/12 for diagonal ones. The matrix is symmetric and positive definite, so that all images
are solved together on the device they are on, by conjugate gradients and without storing any matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from visattn.listing import shown
from visattn.registry import Registry

if TYPE_CHECKING:
    from visattn.data.preparation import Preparation

BLUR_SIDE, BLUR_SIGMA = 11, 5.0
DIAGONAL = 1 / 12  # weight of a diagonal neighbour, half of that of a direct one
NOISE = 0.01
ACCURACY = 3e-4  # of the linear fill, relative: its error is a tenth of its noise
MOST_STEPS = 1000
IN_CACHE = 2  # images at a time on a CPU, whose memory is slow
COARSE = 16  # pixels of a side, below which nothing is gained from a smaller image
STEPS_BETWEEN_LOOKS = 10  # at the error, for which a device must be waited for


def blur(images: Tensor) -> Tensor:
    """A Gaussian blur; the outermost pixels are repeated beyond the edges."""
    side = BLUR_SIDE // 2
    places = torch.arange(-side, side + 1, dtype=torch.float32, device=images.device)
    bell = torch.exp(-places.square() / (2 * BLUR_SIGMA**2))
    bell = (bell / bell.sum()).to(images.dtype)
    channels = images.shape[1]
    padded = F.pad(images, (side,) * 4, mode="replicate")
    across = F.conv2d(padded, bell.view(1, 1, 1, -1).expand(channels, -1, -1, -1), groups=channels)
    return F.conv2d(across, bell.view(1, 1, -1, 1).expand(channels, -1, -1, -1), groups=channels)


def neighbours(images: Tensor, removed: Tensor) -> Tensor:
    """Removed pixels from the nearest remaining ones: halve the image until nothing is missing, and come back.

    Where nothing remains at all, it becomes zero.
    """
    if images[0, 0].numel() == 1:
        return images * ~removed
    factor = [2 if side > 1 else 1 for side in images.shape[-2:]]
    coarse = neighbours(*_halved(images, removed, factor))
    fine = coarse.repeat_interleave(factor[0], 2).repeat_interleave(factor[1], 3)
    return torch.where(removed, fine[..., : images.shape[-2], : images.shape[-1]], images)


def _halved(images: Tensor, removed: Tensor, factor: list[int]) -> tuple[Tensor, Tensor]:
    """The mean of what remains in every coarser pixel, and where nothing does."""
    kept = ~removed
    share = F.avg_pool2d(kept.to(images.dtype), factor, ceil_mode=True)
    mean = F.avg_pool2d(images * kept, factor, ceil_mode=True) / share.where(share > 0, 1)
    return mean, share == 0


def linear(images: Tensor, removed: Tensor) -> Tensor:
    """Removed pixels as the weighted mean of all their neighbours, without noise."""
    weight = _around(torch.ones_like(images[:1, :1]))  # less than one at the edges
    unknown = removed.to(images.dtype)

    def system(x: Tensor) -> Tensor:
        return (weight * x).sub_(_around(x)).mul_(unknown)

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum((2, 3), keepdim=True)  # every channel is a system of its own

    right = unknown * _around(images * ~removed)
    x = unknown * _guess(images, removed)
    residual = right - system(x)
    enough = ACCURACY**2 * (dot(right, right) + dot(residual, residual))  # what remains may be zero around
    direction = residual / weight
    size = dot(residual, direction)
    for step in range(MOST_STEPS):
        solved = dot(residual, residual) <= enough  # such a system rests, whatever else is in the batch
        if step % STEPS_BETWEEN_LOOKS == 0 and bool(solved.all()):
            break
        image = system(direction)
        along = dot(direction, image)
        length = torch.where(solved | (along <= 0), 0, size / along.where(along > 0, 1))
        x.addcmul_(length, direction)
        residual.addcmul_(length, image, value=-1)
        scaled = residual / weight
        before, size = size, dot(residual, scaled)
        direction = direction.mul_(torch.where(before > 0, size / before.where(before > 0, 1), 0)).add_(scaled)
    return torch.where(removed, x, images)


def _around(x: Tensor) -> Tensor:
    """The weighted sum of the eight neighbours of every pixel: a product of two sums of three, without the pixel."""
    across = 2 * x
    across[..., 1:] += x[..., :-1]
    across[..., :-1] += x[..., 1:]
    both = 2 * across
    both[..., 1:, :] += across[..., :-1, :]
    both[..., :-1, :] += across[..., 1:, :]
    return both.mul_(DIAGONAL).sub_(x, alpha=4 * DIAGONAL)


def _guess(images: Tensor, removed: Tensor) -> Tensor:
    """What to begin with: the solution for an image of half the size, enlarged."""
    size = images.shape[-2:]
    if min(size) < COARSE:
        return neighbours(images, removed)
    coarse = linear(*_halved(images, removed, [2, 2]))
    return F.interpolate(coarse, scale_factor=2.0, mode="bilinear", align_corners=False)[..., : size[0], : size[1]]


# The whole picture that shows through where something is removed, or pixels made from those that remain.
BACKGROUNDS = ("blur", "mean", "black")
INPAINTERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"neighbours": neighbours, "linear": linear}
FILLS: Registry[str] = Registry("fill", {name: name for name in (*BACKGROUNDS, *INPAINTERS)})


def black_of(preparation: Preparation) -> tuple[float, ...]:
    """What black is in a model's normalised input, per channel.

    >>> from visattn.data.preparation import Preparation
    >>> black_of(Preparation((3, 8, 8), mean=(0.5, 0.5, 0.4), std=(0.5, 0.25, 0.2)))
    (-1.0, -2.0, -2.0)
    """
    return tuple(-mean / std for mean, std in zip(preparation.mean, preparation.std, strict=True))


class Filler:
    """Takes pixels out of images.

    Args:
        images: (B, C, H, W), normalised as the model wants them.
        black: what black is in them, one number per channel; None if that is not known.
        seed: of the noise of ``linear``, which is the same for an image whatever is removed.
    """

    def __init__(self, images: Tensor, black: Sequence[float] | None, seed: int) -> None:
        self.images, self.black, self.seed = images, black, seed
        self._backgrounds: dict[str, Tensor] = {}

    def __call__(self, fill: str, numbers: Tensor, removed: Tensor) -> Tensor:
        """(N, C, H, W): images by number, each without what is removed.

        Args:
            fill: one of `FILLS`.
            numbers: (N,), of the images.
            removed: (N, 1, H, W), booleans.
        """
        FILLS[fill]
        images = self.images[numbers]
        if fill in BACKGROUNDS:
            return torch.where(removed, self.background(fill)[numbers], images)
        some = IN_CACHE if images.device.type == "cpu" else len(images)
        with torch.autocast(images.device.type, enabled=False):
            parts = zip(images.to(_precise(images)).split(some), removed.split(some), strict=True)
            filled = torch.cat([INPAINTERS[fill](*part) for part in parts]).to(images.dtype)
        return torch.where(removed, filled + self._noise(numbers), filled) if fill == "linear" else filled

    def background(self, fill: str) -> Tensor:
        """(B, C, H, W): what shows through where something is removed, the same whatever that is."""
        if fill not in BACKGROUNDS:
            raise ValueError(f"{fill!r} depends on what is removed: choose {', '.join(BACKGROUNDS)}")
        if fill not in self._backgrounds:
            with torch.autocast(self.images.device.type, enabled=False):
                self._backgrounds[fill] = self._make(fill)
        return self._backgrounds[fill]

    def _make(self, fill: str) -> Tensor:
        images = self.images
        if fill == "blur":
            return blur(images.to(_precise(images))).to(images.dtype)
        if fill == "mean":
            return torch.zeros_like(images)
        if self.black is None:
            raise ValueError(
                "what black is in the model's normalised input is not known: give preparation=, or another fill"
            )
        black = _colour(self.black)
        if len(black) != images.shape[1]:
            raise ValueError(f"black has {len(black)} numbers for images of {images.shape[1]} channels")
        return images.new_tensor(black).view(1, -1, 1, 1).expand_as(images)

    def _noise(self, numbers: Tensor) -> Tensor:
        draws = []
        for number in numbers.tolist():
            generator = torch.Generator().manual_seed((self.seed << 20) + number)
            draws.append(torch.randn(self.images.shape[1:], generator=generator))
        return NOISE * torch.stack(draws).to(self.images)


def _colour(black: Any) -> list[float]:
    """Black as plain numbers; what is no list of finite numbers raises."""
    try:
        numbers = [] if isinstance(black, str | bytes) else [float(each) for each in black]
    except (TypeError, ValueError, OverflowError):
        numbers = []
    if not numbers or not all(map(math.isfinite, numbers)):
        raise ValueError(f"black must be a finite number for every channel, got {shown(black)}")
    return numbers


def _precise(images: Tensor) -> torch.dtype:
    """What to compute with: single precision at least."""
    return torch.promote_types(images.dtype, torch.float32)

r"""What changes when parts of the image are covered: slower than others, and needs nothing of the model but answers.

=============  =======================================================================================================
``occlusion``  Zeiler & Fergus 2014, https://arxiv.org/abs/1311.2901: how much the score falls when a cell is covered
``rise``       Petsiuk et al. 2018, https://arxiv.org/abs/1806.07421: how the score and being uncovered go together,
               over many random masks. Differences from the paper: the mean over masks is subtracted from the scores,
               so that the map of a score without a zero point, such as a logit, means the same
=============  =======================================================================================================

What is covered becomes grey: zero, as the model sees it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from visattn.core.arguments import at_least_one
from visattn.core.precision import precise
from visattn.heatmaps.methods.base import register_method, seeded
from visattn.heatmaps.request import MethodResult, Request

AT_ONCE = 32  # covered versions of an image
MOST = 100_000  # of them


@register_method("occlusion", signed=True, slow=True)
def occlusion(request: Request, *, cells: int = 14) -> MethodResult:
    """How much the score falls when a cell of the image is covered.

    Args:
        request: model and images.
        cells: along the shorter side; there is a forward pass for each cell of the image.
    """
    height, width = request.images.shape[-2:]
    cells = min(at_least_one("cells", cells), height, width)
    rows, columns = cells * height // min(height, width), cells * width // min(height, width)
    if rows * columns > MOST:
        raise ValueError(f"{rows} x {columns} cells are too many, with a forward pass for each: lower cells")
    number = torch.arange(rows)[:, None] * columns + torch.arange(columns)  # (rows, columns)
    row, column = torch.arange(height) * rows // height, torch.arange(width) * columns // width
    cell_of = number[row][:, column].to(request.images.device)  # (H, W)
    every = torch.arange(rows * columns, device=cell_of.device)
    with torch.no_grad():
        request.run()
        clean = _numbers(request, [torch.ones(1, height, width).to(request.images)])
        covered = _numbers(request, (cell_of != some[:, None, None] for some in every.split(AT_ONCE)))
    return MethodResult((clean - covered).unflatten(1, (rows, columns)))


@register_method("rise", signed=True, slow=True)
def rise(request: Request, *, masks: int = 512, cells: int = 7, share: float = 0.5, seed: int = 0) -> MethodResult:
    """How much higher the score is when a pixel is not covered.

    Args:
        request: model and images.
        masks: how many random masks there are; each is a forward pass.
        cells: of a mask, along each side.
        share: of the cells that are not covered.
        seed: of the masks.
    """
    size = request.images.shape[-2:]
    masks, cells = at_least_one("masks", masks, MOST), at_least_one("cells", cells, max(size))
    if not 0 < share < 1:
        raise ValueError(f"share is a share of the cells between 0 and 1, got {share}")

    def drawn() -> Iterator[Tensor]:
        return (some.to(request.images) for some in _random_masks(masks, cells, share, size, seed))

    with torch.no_grad():
        request.run()
        numbers = _numbers(request, drawn())  # (B, masks)
    numbers = numbers - numbers.mean(1, keepdim=True)
    uncovered = precise(torch.zeros(size).to(request.images))
    together = torch.zeros(len(numbers), uncovered.numel()).to(numbers)  # (B, H W)
    for some, each in zip(drawn(), numbers.split(AT_ONCE, 1), strict=True):
        uncovered += some.sum(0)
        together += each @ some.flatten(1).to(numbers.dtype)
    if uncovered.amax() == 0 or uncovered.amin() == masks:
        raise ValueError(f"all {masks} masks are the same: choose a share nearer to one half, or more masks")
    return MethodResult((together / (masks * share)).unflatten(1, size))


def _random_masks(number: int, cells: int, share: float, size: torch.Size, seed: int) -> Iterator[Tensor]:
    """(some, H, W) in [0, 1], some at a time: a coarse pattern, enlarged and shifted at random."""
    generator = seeded(seed)
    height, width = (-(-side // cells) for side in size)  # of a cell
    whole = ((cells + 1) * height, (cells + 1) * width)
    for first in range(0, number, AT_ONCE):
        some = min(AT_ONCE, number - first)
        coarse = (torch.rand(some, 1, cells + 1, cells + 1, generator=generator) < share).float()
        large = F.interpolate(coarse, whole, mode="bilinear", align_corners=False)[:, 0]
        tops, lefts = (torch.randint(side, (some,), generator=generator).tolist() for side in (height, width))
        yield torch.stack(
            [
                each[top : top + size[0], left : left + size[1]]
                for each, top, left in zip(large, tops, lefts, strict=True)
            ]
        )


def _numbers(request: Request, masks: Iterable[Tensor]) -> Tensor:
    """(B, masks): what is explained, for every image under every mask, given some masks at a time."""
    return precise(
        torch.cat(
            [torch.stack([_under(request, image, some) for image in range(len(request.images))]) for some in masks], 1
        )
    )


def _under(request: Request, image: int, masks: Tensor) -> Tensor:
    """(masks,), for one image."""
    rows = request.aim.rows(request.model, request.model(request.images[image] * masks[:, None]))
    return request.aim.numbers(rows, request.target, slice(image, image + 1))

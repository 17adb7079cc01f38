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

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from visattn.core.arguments import at_least_one
from visattn.heatmaps.methods.base import register_method, seeded
from visattn.heatmaps.request import MethodResult, Request

AT_ONCE = 32  # covered versions of an image


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
    number = torch.arange(rows)[:, None] * columns + torch.arange(columns)  # (rows, columns)
    row, column = torch.arange(height) * rows // height, torch.arange(width) * columns // width
    cell_of = number[row][:, column].to(request.images.device)  # (H, W)
    masks = (cell_of != torch.arange(rows * columns, device=cell_of.device)[:, None, None]).to(request.images.dtype)
    with torch.no_grad():
        request.run()
        clean = _numbers(request, torch.ones_like(masks[:1]))
        drops = clean - _numbers(request, masks)
    return MethodResult(drops.unflatten(1, (rows, columns)))


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
    masks, cells = at_least_one("masks", masks), at_least_one("cells", cells)
    if not 0 < share < 1:
        raise ValueError(f"share is a share of the cells between 0 and 1, got {share}")
    drawn = _random_masks(masks, cells, share, request.images.shape[-2:], seed).to(request.images)
    with torch.no_grad():
        request.run()
        numbers = _numbers(request, drawn)  # (B, masks)
    together = (numbers - numbers.mean(1, keepdim=True)) @ drawn.flatten(1).to(numbers.dtype)  # (B, H W)
    return MethodResult((together / (masks * share)).unflatten(1, request.images.shape[-2:]))


def _random_masks(number: int, cells: int, share: float, size: torch.Size, seed: int) -> Tensor:
    """(number, H, W) in [0, 1]: a coarse pattern, enlarged and shifted at random."""
    generator = seeded(seed)
    height, width = (-(-side // cells) for side in size)  # of a cell
    coarse = (torch.rand(number, 1, cells + 1, cells + 1, generator=generator) < share).float()
    large = F.interpolate(coarse, ((cells + 1) * height, (cells + 1) * width), mode="bilinear", align_corners=False)
    masks = torch.empty(number, *size)
    for mask, each in zip(masks, large[:, 0], strict=True):
        top, left = (int(torch.randint(side, (), generator=generator)) for side in (height, width))
        mask.copy_(each[top : top + size[0], left : left + size[1]])
    return masks


def _numbers(request: Request, masks: Tensor) -> Tensor:
    """(B, masks): what is explained, for every image under every mask."""
    return torch.stack([torch.cat(list(_of_image(request, masks, image))) for image in range(len(request.images))])


def _of_image(request: Request, masks: Tensor, image: int) -> Iterator[Tensor]:
    for some in masks.split(AT_ONCE):
        rows = request.aim.rows(request.model, request.model(request.images[image] * some[:, None]))
        yield request.aim.numbers(rows, request.target, slice(image, image + 1))

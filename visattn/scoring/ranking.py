"""Which parts of an image a heatmap calls the most relevant, in order."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor


class Ranking:
    """The cells of heatmaps in the order of their relevance.

    Cells are the method's own: the patches of a token model, not the pixels that they are enlarged to. Equal ones are
    put in a random order, so that exactly as many are removed as were asked for.

    Args:
        maps: (B, h, w), any numbers; the larger, the more relevant.
        seed: of the order of equal cells.

    >>> Ranking(torch.tensor([[[0.1, 0.7], [0.2, 0.0]]])).ranks
    tensor([[[2, 0],
             [1, 3]]])
    """

    def __init__(self, maps: Tensor, seed: int = 0) -> None:
        if not isinstance(maps, Tensor) or maps.ndim != 3 or not maps.numel():
            got = tuple(maps.shape) if isinstance(maps, Tensor) else type(maps).__name__
            raise ValueError(f"heatmaps are (images, height, width), one per image, got {got}")
        if not maps.isfinite().all():
            raise ValueError("the heatmaps hold numbers that are not finite (NaN or infinite): they have no order")
        self.maps = maps.detach().float().cpu()
        flat = self.maps.flatten(1)  # (B, cells)
        shuffled = torch.rand(flat.shape, generator=torch.Generator().manual_seed(seed)).argsort(1)
        order = shuffled.gather(1, flat.gather(1, shuffled).argsort(dim=1, descending=True, stable=True))
        self.ranks = order.argsort(1).view(maps.shape)  # (B, h, w)

    @property
    def cells(self) -> int:
        """How many there are in an image."""
        return self.maps[0].numel()

    def count(self, share: float) -> int:
        """The number of cells that is nearest to a share of all."""
        return int(share * self.cells + 0.5)


class Removal(NamedTuple):
    """Cells that are taken out of every image: those with ``first <= rank < last``."""

    ranking: Ranking
    first: int
    last: int

    def masks(self, images: Tensor, size: tuple[int, int]) -> Tensor:
        """(N, 1, H, W), true where something is removed.

        Args:
            images: (N,) numbers of images.
            size: H and W.
        """
        ranks = self.ranking.ranks[images.cpu()]
        removed = (self.first <= ranks) & (ranks < self.last)
        return enlarged(removed, size)[:, None]


def enlarged(cells: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, h, w) to (B, H, W): every pixel has what the cell around it has."""
    rows, columns = (torch.arange(many) * few // many for many, few in zip(size, cells.shape[1:], strict=True))
    return cells[:, rows][:, :, columns]


def most_first(ranking: Ranking, shares: list[float]) -> list[Removal]:
    """The most relevant cells are removed first, up to each of the shares."""
    return [Removal(ranking, 0, ranking.count(share)) for share in shares]


def least_first(ranking: Ranking, shares: list[float]) -> list[Removal]:
    """The least relevant cells are removed first, up to each of the shares."""
    cells = ranking.cells
    return [Removal(ranking, cells - ranking.count(share), cells) for share in shares]


def groups(ranking: Ranking, number: int) -> list[Removal]:
    """As many groups of about the same size, the most relevant first; fewer if there are not enough cells."""
    number = min(number, ranking.cells)
    bounds = [ranking.count(k / number) for k in range(number + 1)]
    return [Removal(ranking, first, last) for first, last in pairwise(bounds)]

"""Does a heatmap depend on what it should depend on, and what does it cost?

- ``randomisation``: the weights are replaced by random ones, from the last layer to the first; how similar the heatmaps
  stay on the way (Adebayo et al. 2018, https://arxiv.org/abs/1810.03292). A heatmap that stays the same says nothing of
  the model.
- ``other_class``: how similar the heatmaps of the explained class and of another one are (random logit test, Sixt et
  al. 2020, https://arxiv.org/abs/1912.09818). It takes the place of training on random labels, for which a second
  training would be needed.
- ``sensitivity``: the largest change of the heatmap under noise on the image that one does not see, relative to the
  heatmap (max-sensitivity, Yeh et al. 2019, https://arxiv.org/abs/1901.09392). A constant heatmap wins.
- ``agreement``: how similar the heatmaps of two methods are.

Similar is Spearman's rank correlation of the cells: 1 for the same order, 0 for none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.heatmaps.watch.inspection import own_copy
from visattn.listing import evenly
from visattn.modules import separate_copy

RADIUS = 0.02  # of the noise in normalised input
DRAWS = 4
STAGES = 4

Explainer: TypeAlias = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""From a model, images (B, C, H, W) and targets (B,) to heatmaps (B, h, w)."""


def similarity(first: Tensor, second: Tensor) -> Tensor:
    """(B,): Spearman's rank correlation of heatmaps (B, h, w); equal cells share their rank, a flat heatmap has none.

    Of two sizes the coarser one is enlarged.

    >>> similarity(torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([[[10.0, 5.0, 0.0]]]))
    tensor([-1.])
    """
    size = [max(sides) for sides in zip(first.shape[1:], second.shape[1:], strict=True)]
    ranks = []
    for maps in (first, second):
        if list(maps.shape[1:]) != size:
            maps = F.interpolate(maps[:, None].float(), size, mode="bilinear", align_corners=False)[:, 0]
        ranks.append(_mean_ranks(maps.flatten(1)))
    a, b = (each - each.mean(1, keepdim=True) for each in ranks)
    length = a.norm(dim=1) * b.norm(dim=1)
    return torch.where(length > 0, (a * b).sum(1) / length.where(length > 0, 1), 0).float()


def _mean_ranks(rows: Tensor) -> Tensor:
    """(B, N): the rank of every number in its row; equal ones get the mean of theirs."""
    found = []
    for row in rows:
        _, inverse, counts = row.unique(return_inverse=True, return_counts=True)
        last = counts.cumsum(0).double()
        found.append((last - (counts - 1) / 2)[inverse])
    return torch.stack(found)


def randomisation(
    model: nn.Module,
    images: Tensor,
    target: Tensor,
    explain: Explainer,
    *,
    before: Tensor | None = None,
    stages: int = STAGES,
    seed: int = 0,
) -> Tensor:
    """(stages, B): the similarity to the true heatmap while more and more layers from the top down are random.

    The model itself is not touched.

    Args:
        model, images, target: what is explained.
        explain: how.
        before: the true heatmaps, if they are known.
        stages: at how many depths to look; the last one has no true weight left.
        seed: of the random weights.
    """
    before = explain(model, images, target) if before is None else before
    with torch.inference_mode(False):  # weights that can be differentiated, whatever mode the caller is in
        ruined = separate_copy(own_copy(model))  # the first copy shares the weights, the second does not
    generator = torch.Generator().manual_seed(seed)
    layers = [module for module in ruined.modules() if any(True for _ in module.parameters(recurse=False))][::-1]
    ends = set(evenly(range(len(layers) + 1), stages + 1)[1:])
    found = []
    for number, layer in enumerate(layers, start=1):
        _randomise(layer, generator)
        if number in ends:
            found.append(similarity(before, explain(ruined, images, target)))
    return torch.stack(found)


def _randomise(layer: nn.Module, generator: torch.Generator) -> None:
    """Other weights of the same mean and spread."""
    with torch.inference_mode(False), torch.no_grad():
        for weight in layer.parameters(recurse=False):
            if not weight.is_floating_point():
                continue
            spread = float(weight.float().std(correction=0))
            noise = torch.randn(weight.shape, generator=generator).to(weight)
            weight.copy_(weight.mean() + spread * noise)


def other_class(
    model: nn.Module, images: Tensor, target: Tensor, explain: Explainer, classes: int, *, before: Tensor, seed: int = 0
) -> Tensor:
    """(B,): the similarity of the heatmaps of the explained class and of another one, which is drawn."""
    generator = torch.Generator().manual_seed(seed)
    step = torch.randint(1, classes, target.shape, generator=generator)
    return similarity(before, explain(model, images, (target + step) % classes))


def sensitivity(
    model: nn.Module,
    images: Tensor,
    target: Tensor,
    explain: Explainer,
    *,
    before: Tensor,
    radius: float = RADIUS,
    draws: int = DRAWS,
    seed: int = 0,
) -> Tensor:
    """(B,): the largest relative change of the heatmaps over some draws of uniform noise of this radius."""
    generator = torch.Generator().manual_seed(seed)
    length = before.flatten(1).norm(dim=1)
    changes = []
    for _ in range(draws):
        noise = radius * (2 * torch.rand(images.shape, generator=generator) - 1)
        after = explain(model, images + noise.to(images), target)
        changes.append((after - before).flatten(1).norm(dim=1) / length.where(length > 0, 1))
    return torch.stack(changes).amax(0)


@dataclass
class Cost:
    """What explanations cost, in passes of an image through the model (backward passes are not counted) and seconds."""

    images: int = 0
    passes: int = 0
    seconds: float = 0.0


class Meter:
    """Measures what explanations cost.

    Args:
        model: to be explained; ``self.model`` is a copy with the same weights that counts.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = own_copy(model)
        self._running = running = [Cost()]

        def count(_model: nn.Module, inputs: tuple[Tensor, ...]) -> None:  # a copy of the copy counts here, too
            if inputs and isinstance(inputs[0], Tensor) and not inputs[0].is_meta:
                running[-1].passes += len(inputs[0])

        self._handle = self.model.register_forward_pre_hook(count)

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_error: object) -> None:
        self._handle.remove()

    @contextmanager
    def measuring(self, cost: Cost, images: int) -> Iterator[None]:
        """Add what happens inside, where so many images are explained."""
        self._running.append(cost)
        start = perf_counter()
        try:
            yield
        finally:
            cost.seconds += perf_counter() - start
            cost.images += images
            self._running.pop()

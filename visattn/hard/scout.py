r"""Where to look in a large image, decided from a small copy of it.

.. math::
    e = w^\top f(\mathrm{shrink}(x)), \qquad
    \bar e_c = \text{mean of } e \text{ over what crop } c \text{ shows}, \qquad
    \{c_1, \dots, c_G\} \sim \mathrm{softmax}(\bar e)

where f is ``features``, a few strided convolutions, and w is ``score``. Training draws G crops one by one without
replacement; evaluation takes the G best. The choice learns by REINFORCE (:mod:`visattn.policy`): no gradient
runs from the crops into their positions. ``baseline`` predicts the reward from the pooled features, without passing
gradients to them.

**Candidate crops.** All lie entirely inside the image and start at whole pixels, so a crop is an exact copy. Along each
side they start at both ends and, evenly spaced, at most half a crop apart (:func:`starts`). So every pixel can be seen,
and anything no larger than half a crop lies entirely inside one of them. Finer steps would mostly repeat the same
content: neighbours share half their width, or more where the free space is not a multiple of half a crop. Neighbours
may both be chosen, since an object can be larger than one crop.

>>> import torch
>>> scout = Scout(size=224, glimpses=4).eval()
>>> scout(torch.rand(2, 3, 600, 1024)).shape
torch.Size([2, 4, 2])
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.core.arguments import at_least_one, checked
from visattn.core.sampling import draw_log_prob, entropy, top_k
from visattn.hard.ram import MOST_GLIMPSES, Policy
from visattn.policy import Decision, DecisionModule
from visattn.registry import suggest

WIDTHS = (16, 32, 64)  # each convolution halves the sides
STRIDE = 2 ** len(WIDTHS)
GROUPS = 8
GLIMPSES = 4


class Scout(DecisionModule):
    """Choose G crops of an image from a copy of at most about ``overview`` pixels.

    Args:
        in_chans: channels of the images.
        size: side of a crop in pixels.
        glimpses: G.
        overview: longer side of the small copy.
        policy: ``learned``, or ``random`` for uniformly drawn crops, as a baseline; in evaluation mode these are the
            same for the same images.
        policy_weight: weight of REINFORCE in the loss.
        entropy_weight: weight of the entropy in the loss.
    """

    @checked
    def __init__(
        self,
        in_chans: int = 3,
        *,
        size: int,
        glimpses: int = GLIMPSES,
        overview: int = 96,
        policy: Policy = "learned",
        policy_weight: float = 0.1,
        entropy_weight: float = 0.002,
    ) -> None:
        super().__init__()
        for name, value in {"glimpses": glimpses, "glimpse_size": size, "overview": overview}.items():
            if value < 1:
                raise ValueError(f"a model that takes glimpses needs {name} of at least one, got {value}")
        at_least_one("glimpses", glimpses, MOST_GLIMPSES)
        if policy not in get_args(Policy):
            raise ValueError(f"unknown policy {policy!r}: {suggest(policy, get_args(Policy))}")
        self.size, self.glimpses, self.overview, self.policy = size, glimpses, overview, policy
        self.policy_weight, self.entropy_weight = policy_weight, entropy_weight
        if policy == "learned":
            layers: list[nn.Module] = []
            for narrow, wide in pairwise((in_chans, *WIDTHS)):
                # A kernel of even width is centred on the two by two pixels that it replaces.
                layers += [nn.Conv2d(narrow, wide, 4, 2, 1, bias=False), nn.GroupNorm(GROUPS, wide), nn.ReLU()]
            last = WIDTHS[-1]
            layers += [nn.Conv2d(last, last, 3, 1, 1, bias=False), nn.GroupNorm(GROUPS, last), nn.ReLU()]
            self.features = nn.Sequential(*layers)
            self.score = nn.Conv2d(last, 1, 1, bias=False)  # the same added to all energies changes nothing
            self.baseline = nn.Linear(last, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Centres (B, G, 2) of the crops as (x, y) in [-1, 1]; drawn in training mode, the best ones otherwise."""
        return self.locations(images, sample=self.training)

    def locations(self, images: Tensor, *, sample: bool) -> Tensor:
        """Centres of the crops, sampled or not."""
        height, width = images.shape[-2:]
        if self.size > min(height, width):
            raise ValueError(
                f"a glimpse of {self.size} x {self.size} pixels does not fit into an image of {height} x {width}: "
                "use a smaller glimpse_size, or larger images"
            )
        dtype = torch.promote_types(images.dtype, torch.float32)
        tops, lefts = (starts(side, self.size, device=images.device).to(dtype) for side in (height, width))
        count = len(tops) * len(lefts)
        if self.glimpses > count:
            raise ValueError(
                f"{self.glimpses} glimpses are more than the {count} that an image of {height} x {width} pixels has "
                f"room for at {self.size} x {self.size}: use fewer or smaller ones, or larger images"
            )
        if self.policy == "learned":
            chosen = self._decide(images, tops, lefts, sample)  # (B, G)
        else:
            chosen = self._anywhere(images, count, sample)
        y = (2 * tops[chosen // len(lefts)] + self.size - height) / height
        x = (2 * lefts[chosen % len(lefts)] + self.size - width) / width
        return torch.stack([x, y], -1)

    def _decide(self, images: Tensor, tops: Tensor, lefts: Tensor, sample: bool) -> Tensor:
        height, width = images.shape[-2:]
        features = self.features(F.interpolate(images, small_size(height, width, self.overview), mode="area"))
        e = self.score(features)[:, 0]  # (B, h, w)
        down, across = shares(tops, self.size, height, e.shape[1]), shares(lefts, self.size, width, e.shape[2])
        # Sums in full precision, and not matrix products, which autocast would round.
        e = (e[:, None] * down[:, :, None]).sum(2)  # (B, rows, w)
        energies = (e[:, :, None] * across).sum(3).flatten(1)  # (B, rows * columns)
        chosen = top_k(energies.detach(), self.glimpses, sample=sample)
        if sample:
            log_prob = draw_log_prob(energies, chosen)
            expected = self.baseline(features.detach().mean((2, 3))).to(log_prob.dtype)  # (B, 1)
            self.decision = Decision(
                log_prob, expected.expand_as(log_prob), entropy(energies), self.policy_weight, self.entropy_weight
            )
        return chosen

    def _anywhere(self, images: Tensor, count: int, sample: bool) -> Tensor:
        if sample:
            return torch.rand(len(images), count, device=images.device).topk(self.glimpses).indices
        generator = torch.Generator().manual_seed(0)
        chosen = torch.rand(len(images), count, generator=generator).topk(self.glimpses).indices
        return chosen.to(images.device, non_blocking=True)


def starts(length: int, size: int, *, device: torch.device | None = None) -> Tensor:
    """First pixels of the crops along a side: at both ends, and evenly between them at most half a crop apart.

    >>> starts(448, 224), starts(224, 224), starts(300, 224)
    (tensor([  0, 112, 224]), tensor([0]), tensor([ 0, 76]))
    """
    room, step = length - size, max(size // 2, 1)
    steps = -(-room // step)
    return (2 * room * torch.arange(steps + 1, device=device) + steps) // max(2 * steps, 1)


def smallest(size: int, glimpses: int) -> int:
    """Side of the smallest square image that has room for this many crops.

    >>> smallest(224, 1), smallest(224, 4), smallest(224, 9)
    (224, 225, 337)
    """
    rows = math.isqrt(glimpses - 1) + 1
    return size if rows == 1 else size + (rows - 2) * max(size // 2, 1) + 1


def small_size(height: int, width: int, overview: int) -> tuple[int, int]:
    """Height and width of the small copy: never much more than the image's own, multiples of the network's stride.

    >>> small_size(768, 1024, 96), small_size(64, 64, 96)
    ((72, 96), (64, 64))
    """
    scale = min(1.0, overview / max(height, width)) / STRIDE
    return STRIDE * max(round(scale * height), 1), STRIDE * max(round(scale * width), 1)


def shares(begins: Tensor, size: int, length: int, cells: int) -> Tensor:
    """Fraction of each of N crops that lies in each of the equal cells of a side, (N, cells).

    >>> shares(torch.tensor([0.0, 2.0]), 4, 8, 4)
    tensor([[0.5000, 0.5000, 0.0000, 0.0000],
            [0.0000, 0.5000, 0.5000, 0.0000]])
    """
    cell = length / cells
    edges = torch.arange(cells, device=begins.device, dtype=begins.dtype) * cell
    first, last = begins[:, None], begins[:, None] + size
    return (torch.minimum(last, edges + cell) - torch.maximum(first, edges)).clamp(min=0) / size

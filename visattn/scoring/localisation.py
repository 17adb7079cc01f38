"""Is the heat on the object? Scores for images of which it is known where the object is.

- ``pointing``: whether the hottest place is on the object, or almost (Zhang et al. 2016,
  https://arxiv.org/abs/1608.00507); "almost" is 3 % of the longer side, as 15 pixels of the photographs there
- ``energy``: share of the heat, as it is shown, on the object (Score-CAM, https://arxiv.org/abs/1910.01279)
- ``mass``: share of the positive relevance, as the method has it, on the object (Arras et al. 2022,
  https://arxiv.org/abs/2003.07258)
- ``rank``: as many of the hottest pixels as the object has: the share of them on it (same paper)
- ``iou``: the heatmap cut at its mean, against the mask: intersection over union, mean of object and background
  (Chefer et al. 2021, https://arxiv.org/abs/2012.09838, there over all pixels of a data set, here per image)

All of them assume that the model uses the object. By chance, ``energy``, ``mass`` and ``rank`` are the share of the
image that the object covers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from visattn.heatmaps.scaling import to_heatmap
from visattn.listing import times
from visattn.registry import Registry
from visattn.scoring.ranking import Ranking

TOLERANCE = 0.03  # of the longer side


def pointing(ranking: Ranking, masks: Tensor) -> Tensor:
    """1 where the hottest place is on the object, or at most the tolerance away; of equal ones, their share."""
    heat = _shown(ranking, masks)
    tolerance = TOLERANCE * max(masks.shape[1:])
    hottest = heat == heat.amax((1, 2), keepdim=True)
    found = []
    for peaks, mask in zip(hottest, masks, strict=True):
        places, object_ = peaks.nonzero().float(), mask.nonzero().float()
        near = [(torch.cdist(some[None], object_[None])[0].amin(1) <= tolerance).float() for some in places.split(4096)]
        found.append(torch.cat(near).mean())
    return torch.stack(found)


def energy(ranking: Ranking, masks: Tensor) -> Tensor:
    """Share of the heat that is on the object."""
    return _share(_shown(ranking, masks), masks)


def mass(ranking: Ranking, masks: Tensor) -> Tensor:
    """Share of the positive relevance that is on the object."""
    size = (masks.shape[1], masks.shape[2])
    relevance = F.interpolate(ranking.maps.clamp(min=0)[:, None], size, mode="bilinear", align_corners=False)[:, 0]
    return _share(relevance, masks)


def rank(ranking: Ranking, masks: Tensor) -> Tensor:
    """Share of the hottest pixels that is on the object, of as many as the object has."""
    ranks = Ranking(_shown(ranking, masks)).ranks
    count = masks.sum((1, 2), keepdim=True)
    return ((ranks < count) & masks).sum((1, 2)) / count[:, 0, 0]


def iou(ranking: Ranking, masks: Tensor) -> Tensor:
    """Mean of the intersection over union of object and of background, the heatmap cut at its mean."""
    heat = _shown(ranking, masks)
    found = heat > heat.mean((1, 2), keepdim=True)
    both = [(a & b).sum((1, 2)) / (a | b).sum((1, 2)).clamp(min=1) for a, b in ((found, masks), (~found, ~masks))]
    return torch.stack(both).mean(0)


LOCALISATION: Registry[Callable[[Ranking, Tensor], Tensor]] = Registry(
    "localisation", {"pointing": pointing, "energy": energy, "mass": mass, "rank": rank, "iou": iou}
)


def check_masks(masks: Tensor, number: int, size: tuple[int, int]) -> Tensor:
    """(B, H, W), booleans; each has an object, and none is all object."""
    if not isinstance(masks, Tensor) or masks.shape != (number, *size):
        got = times(masks.shape) if isinstance(masks, Tensor) else type(masks).__name__
        raise ValueError(f"masks are (images, height, width), here {times((number, *size))}, got {got}")
    if masks.is_meta or masks.is_complex():
        raise ValueError("masks are real numbers or booleans, and not on the meta device")
    if masks.is_floating_point() and not masks.isfinite().all():
        raise ValueError("the masks hold numbers that are not finite (NaN or infinite)")
    masks = masks.detach().cpu() > 0
    covered = masks.float().mean((1, 2))
    for number, share in enumerate(covered.tolist()):
        if share in (0, 1):
            raise ValueError(f"the mask of image {number} is {'all object' if share else 'empty'}: leave the image out")
    return masks


def _shown(ranking: Ranking, masks: Tensor) -> Tensor:
    return to_heatmap(ranking.maps, (masks.shape[1], masks.shape[2]))


def _share(heat: Tensor, masks: Tensor) -> Tensor:
    """Nothing found is nothing found on the object."""
    total = heat.sum((1, 2))
    return torch.where(total > 0, (heat * masks).sum((1, 2)) / total.where(total > 0, 1), 0)

"""The grid pointing game: a mosaic of four images, of which the heatmap has to find one.

An image that the model is sure of stands in one of the four places, images of other classes in the others; the score is
the share of the positive relevance of its class that lies in its place, by chance 0.25 (Böhle et al. 2021,
https://arxiv.org/abs/2104.00032). It needs no masks: any classifier and images of its classes.

*Differences from the paper*: the other three images may share a class, so that two classes are enough. A network that
takes only one size of images (most transformers) gets a mosaic of that size, with images of half their sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.scoring.engine import Answers, Engine
from visattn.scoring.ranking import Ranking, enlarged

CONFIDENT = 0.8
CHANCE = 0.25


@dataclass(frozen=True)
class Mosaics:
    """Mosaics and what is to be found in them.

    Args:
        images: (B, C, H, W), two by two.
        target: (B,), the class to explain,
        place: (B,), and where it is: 0 to 3, row by row.
        source: (B,), which of the images it is.
    """

    images: Tensor
    target: Tensor
    place: Tensor
    source: Tensor

    def score(self, ranking: Ranking) -> Tensor:
        """(B,): the share of positive relevance in the right place."""
        height, width = self.images.shape[2:]
        heat = enlarged(ranking.maps.clamp(min=0), (height, width))
        rows, columns = heat.split(height // 2, dim=1)[:2], width // 2
        quarters = torch.stack([part.sum((1, 2)) for row in rows for part in (row[..., :columns], row[..., columns:])])
        total = quarters.sum(0)
        inside = quarters.gather(0, self.place[None])[0]
        return torch.where(total > 0, inside / total.where(total > 0, 1), 0)


def make_mosaics(model: nn.Module, engine: Engine, *, most: int, seed: int = 0) -> Mosaics:
    """One mosaic for each of the images that the model is most sure of; ValueError if there are not enough of them.

    Args:
        model: a classifier.
        engine: its answers to the images.
        most: mosaics.
        seed: of the choice of the other images and of the places.
    """
    sure = _confident(engine.clean)
    classes = engine.target[sure]
    if len(classes.unique()) < 2:
        raise ValueError(
            f"no mosaics: they need images of two classes that the model is sure of ({CONFIDENT:.0%}), "
            f"and it is sure of {len(sure)} of {len(engine)} images, of {len(classes.unique())} classes"
        )
    images = engine.images if _takes_twice(model, engine.images) else _halved(engine.images)
    generator = torch.Generator().manual_seed(seed)
    chosen = sure[:most]
    mosaics, places = [], []
    for number in chosen.tolist():
        others = sure[classes != engine.target[number]]
        three = others[torch.randint(len(others), (3,), generator=generator)].tolist()
        place = int(torch.randint(4, (1,), generator=generator))
        four = images[[*three[:place], number, *three[place:]]]
        mosaics.append(torch.cat([torch.cat([*four[:2]], 2), torch.cat([*four[2:]], 2)], 1))
        places.append(place)
    return Mosaics(torch.stack(mosaics), engine.target[chosen], torch.tensor(places), chosen)


def _confident(answers: Answers) -> Tensor:
    """Numbers of the images that the model is sure of, the surest first."""
    order = answers.probability.argsort(descending=True, stable=True)
    return order[answers.probability[order] >= CONFIDENT]


def _takes_twice(model: nn.Module, images: Tensor) -> bool:
    """Whether the model also takes images of twice the size."""
    try:
        Engine(model, images[:1].repeat(1, 1, 2, 2))
    except ValueError:
        return False
    return True


def _halved(images: Tensor) -> Tensor:
    height, width = images.shape[2:]
    if height % 2 or width % 2:
        raise ValueError(f"no mosaics: images of {height} x {width} pixels cannot be halved")
    return F.avg_pool2d(images, 2)

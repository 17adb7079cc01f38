"""Whether one heatmap is true, in words a person understands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from visattn.core.arguments import checked_seed
from visattn.heatmaps import Explanation
from visattn.heatmaps.inputs import as_batch, inspectable
from visattn.listing import times
from visattn.scoring.engine import Engine
from visattn.scoring.faithfulness import FAITHFULNESS, probabilities
from visattn.scoring.ranking import Ranking, Removal

SHARE = 0.1
DRAWS = 5  # random choices of as many cells
STEPS = 10


@dataclass(frozen=True)
class PictureScore:
    """What the model needs of an image, compared with what the heatmap calls relevant.

    Args:
        share: of the image that is removed; at least one cell of the heatmap.
        before: the probability of the explained class.
        without_brightest: the same when the brightest share is removed.
        without_random: the same when as much is removed at random, the mean of some draws.
        srg: LeRF - MoRF; above zero the heatmap is better than chance.

    >>> print(PictureScore(0.1, 0.93, 0.12, 0.88, 0.4))
    removing the brightest 10 % lowers the answer from 93 % to 12 %; a random 10 %: 88 %
    """

    share: float
    before: float
    without_brightest: float
    without_random: float
    srg: float

    def __str__(self) -> str:
        before, after, chance = (
            f"{100 * each:.0f} %" for each in (self.before, self.without_brightest, self.without_random)
        )
        share = f"{100 * self.share:.2g} %"
        if before == after:
            change = f"leaves the answer at {before}"
        else:
            verb = "lowers" if self.without_brightest < self.before else "raises"
            change = f"{verb} the answer from {before} to {after}"
        return f"removing the brightest {share} {change}; a random {share}: {chance}"


def score(
    explanation: Explanation,
    model: nn.Module,
    x: Tensor,
    *,
    share: float = SHARE,
    fill: str = "blur",
    black: Sequence[float] | None = None,
    seed: int = 0,
) -> list[PictureScore]:
    """Check heatmaps against the model, image by image; leaves the model unchanged.

    Args:
        explanation: what :func:`visattn.explain` returned for this model and these images.
        model: the classifier.
        x: the images, as they were explained.
        share: how much of each image to remove.
        fill: what to put in place of removed parts: ``blur``, ``mean``, ``black``, ``neighbours`` or ``linear``.
        black: what black is in the images, per channel, for ``fill="black"``.
        seed: of the random parts.

    >>> import timm, visattn
    >>> model = timm.create_model("test_resnet", num_classes=2)
    >>> x = torch.rand(1, 3, 64, 64)
    >>> score(visattn.explain(model, x, "gradcam"), model, x)[0].share
    0.09375
    """
    if not isinstance(explanation, Explanation):
        raise TypeError(f"the explanation is what visattn.explain returns, got {type(explanation).__name__}")
    if explanation.of in ("function", "cosine"):
        raise ValueError("the explanation is not about a class, and only the probability of a class can be watched")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ValueError(f"share is a number above 0 and at most 1, got {share!r}")
    seed = checked_seed(seed)
    images = as_batch(inspectable(model), x)
    explained, given = tuple(explanation.heatmap.shape), (len(images), *images.shape[2:])
    if explained != given:
        raise ValueError(
            f"the explanation is of {explained[0]} images of {times(explained[1:])}, and these are {given[0]} of "
            f"{times(given[1:])}: give the images that were explained"
        )
    engine = Engine(model, images, explanation.target, black=black, seed=seed)
    ranking = Ranking(explanation.raw, seed)
    count = max(ranking.count(share), 1)
    random = [Ranking(torch.zeros_like(ranking.maps), seed + 1 + draw) for draw in range(DRAWS)]
    brightest, *chance = engine.without([Removal(each, 0, count) for each in (ranking, *random)], fill)
    srg = FAITHFULNESS["srg"](engine, ranking, fill, STEPS)
    columns = (engine.clean.probability, brightest.probability, probabilities(chance).mean(0), srg)
    return [
        PictureScore(count / ranking.cells, *numbers)
        for numbers in zip(*(each.tolist() for each in columns), strict=True)
    ]

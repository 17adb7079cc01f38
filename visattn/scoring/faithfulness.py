"""Does the model need what a heatmap calls relevant? Scores from images of which parts are taken away.

- ``morf``, ``lerf``: area under the class probability while the most, the least relevant cells are removed first
- ``srg``: LeRF - MoRF, the headline (Bluecher et al., TMLR 2024, https://arxiv.org/abs/2401.06654): consistent
  over many ways to occlude, where either alone contradicts itself
- ``deletion``: MoRF with the mean colour; ``insertion``: the most relevant cells are put into the blurred image first
  (RISE, https://arxiv.org/abs/1806.07421)
- ``positive``, ``negative``: area under the accuracy, in percent, while 0 to 90 % of the image turn black, the most,
  the least relevant cells first (Chefer et al. 2021, https://arxiv.org/abs/2012.09838)
- ``road``: (LeRF - MoRF) / 2 over 10 to 90 %, removed pixels interpolated linearly with noise (Rong et al. 2022,
  https://arxiv.org/abs/2202.00449)
- ``drop``, ``increase``: how much of the probability is lost, in percent, and how often it grows, when the image is
  multiplied by the heatmap (Grad-CAM++, https://arxiv.org/abs/1710.11063)
- ``saco``: do groups of cells influence the answer in the order of their salience? Pairwise, weighted by the difference
  in salience, from -1 to 1 (Wu et al., CVPR 2024, https://arxiv.org/abs/2404.02388)

Areas are trapezoids over the share that was removed. Every score is one number per image.

*Differences from papers and packages*: cells are those of the method's own grid, equal ones in random order, where RISE
removes 224 pixels per step. RISE's blank image is the zero of normalised input: the mean colour, not black. Chefer's
accuracy counts the explained class as right. grad-cam's ROAD takes logits unless it is told otherwise, and its drop is
not relative to the probability that was there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from visattn.heatmaps.scaling import to_heatmap
from visattn.registry import Registry
from visattn.scoring.engine import Answers, Engine
from visattn.scoring.ranking import Ranking, Removal, groups, least_first, most_first

TENTHS = [k / 10 for k in range(10)]  # 0 to 90 %
GROUPS = 10  # of SaCo

Plan = Callable[[Ranking, int], list[Removal]]


@dataclass(frozen=True)
class Faithfulness:
    """A score from removals.

    Args:
        plan: what is to be removed, of a ranking and in so many steps.
        score: (B,), from what the model said after each removal, and of the clean images.
        higher: whether higher is better.
        fill: of the removed pixels; None for whatever is chosen.
    """

    plan: Plan
    score: Callable[[Ranking, Sequence[Answers], Answers], Tensor]
    higher: bool
    fill: str | None = None

    def __call__(self, engine: Engine, ranking: Ranking, fill: str, steps: int) -> Tensor:
        """(B,), one number per image."""
        answers = engine.without(self.plan(ranking, steps), self.fill or fill)
        return self.score(ranking, answers, engine.clean)


def evenly_spaced(steps: int) -> list[float]:
    """Shares from nothing to everything."""
    return [k / steps for k in range(steps + 1)]


def probabilities(answers: Sequence[Answers]) -> Tensor:
    """(steps, B)."""
    return torch.stack([each.probability for each in answers])


def area(values: Tensor) -> Tensor:
    """Under curves (steps, B) with evenly spaced steps over a range of one."""
    return torch.trapezoid(values, dx=1 / (len(values) - 1), dim=0)


def _most(ranking: Ranking, steps: int) -> list[Removal]:
    return most_first(ranking, evenly_spaced(steps))


def _least(ranking: Ranking, steps: int) -> list[Removal]:
    return least_first(ranking, evenly_spaced(steps))


def _both(ranking: Ranking, steps: int) -> list[Removal]:
    return _most(ranking, steps) + _least(ranking, steps)


def _area(_ranking: Ranking, answers: Sequence[Answers], _clean: Answers) -> Tensor:
    return area(probabilities(answers))


def _gain(_ranking: Ranking, answers: Sequence[Answers], _clean: Answers) -> Tensor:
    most, least = probabilities(answers).chunk(2)
    return area(least) - area(most)


def _accuracy(_ranking: Ranking, answers: Sequence[Answers], _clean: Answers) -> Tensor:
    chosen = torch.stack([each.chosen for each in answers]).float()
    return 100 * torch.trapezoid(chosen, dx=0.1, dim=0)


def _road(_ranking: Ranking, answers: Sequence[Answers], _clean: Answers) -> Tensor:
    most, least = probabilities(answers).chunk(2)
    return (least - most).mean(0) / 2


def _saco(ranking: Ranking, answers: Sequence[Answers], clean: Answers) -> Tensor:
    influence = clean.probability - probabilities(answers)  # (groups, B)
    ranks, maps = ranking.ranks.flatten(1), ranking.maps.flatten(1)
    ordered = maps.gather(1, ranks.argsort(1))  # the most salient first
    removals = groups(ranking, GROUPS)
    salience = torch.stack([ordered[:, each.first : each.last].sum(1) for each in removals])
    first, second = torch.triu_indices(len(removals), len(removals), offset=1)
    weight = salience[first] - salience[second]  # (pairs, B)
    agreed = torch.where(influence[first] >= influence[second], weight, -weight).sum(0)
    total = weight.abs().sum(0)
    return torch.where(total > 0, agreed / total.where(total > 0, 1), 0)


FAITHFULNESS: Registry[Faithfulness] = Registry(
    "faithfulness",
    {
        "srg": Faithfulness(_both, _gain, higher=True),
        "morf": Faithfulness(_most, _area, higher=False),
        "lerf": Faithfulness(_least, _area, higher=True),
        "deletion": Faithfulness(_most, _area, higher=False, fill="mean"),
        "insertion": Faithfulness(_least, _area, higher=True, fill="blur"),
        "positive": Faithfulness(lambda r, _: most_first(r, TENTHS), _accuracy, higher=False, fill="black"),
        "negative": Faithfulness(lambda r, _: least_first(r, TENTHS), _accuracy, higher=True, fill="black"),
        "road": Faithfulness(
            lambda r, _: most_first(r, TENTHS[1:]) + least_first(r, TENTHS[1:]), _road, higher=True, fill="linear"
        ),
        "saco": Faithfulness(lambda r, _: groups(r, GROUPS), _saco, higher=True, fill="mean"),
    },
)


def drop_and_increase(engine: Engine, ranking: Ranking) -> tuple[Tensor, Tensor]:
    """(B,) each: the loss of probability in percent of what it was, and 100 where it grew.

    The heatmap is scaled to 0..1 and enlarged, as it is shown; where it is 0 the image becomes the mean colour. A
    heatmap that is 1 everywhere would have no drop at all: read it together with the other scores.
    """
    size = (engine.images.shape[2], engine.images.shape[3])
    before = engine.clean.probability
    after = engine.keeping(to_heatmap(ranking.maps, size), "mean").probability
    return 100 * (before - after).clamp(min=0) / before.clamp(min=1e-12), 100 * (after > before).float()

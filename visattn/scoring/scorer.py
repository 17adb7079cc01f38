"""All scores of all methods on one model and its images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from visattn.heatmaps import Explanation, explain
from visattn.heatmaps.watch.inspection import own_copy
from visattn.scoring.engine import Engine
from visattn.scoring.faithfulness import FAITHFULNESS, drop_and_increase, evenly_spaced, probabilities
from visattn.scoring.localisation import LOCALISATION
from visattn.scoring.metrics import MASKED, METRICS
from visattn.scoring.mosaics import make_mosaics
from visattn.scoring.pictures import Pictures
from visattn.scoring.ranking import Ranking, Removal, least_first, most_first
from visattn.scoring.sanity import Cost, Meter, other_class, randomisation, sensitivity, similarity


class Scorer:
    """All scores of all methods, one kind after the other.

    Args:
        model: to be explained.
        pictures: the images, and where the objects are.
        engine: the same images and what the model says of them.
        fill, steps, seed: see :func:`visattn.evaluate`.
        wanted: the scores to compute.
        leave_out: told of what cannot be done, and why.
    """

    def __init__(
        self,
        model: nn.Module,
        pictures: Pictures,
        engine: Engine,
        fill: str,
        steps: int,
        seed: int,
        wanted: list[str],
        leave_out: Callable[[str, str], None],
    ) -> None:
        self.model, self.pictures, self.engine = own_copy(model), pictures, engine
        self.fill, self.steps, self.seed, self.leave_out = fill, steps, seed, leave_out
        self.wanted = wanted
        self.arguments: dict[str, dict[str, Any]] = {}  # of explain, by method
        self.rankings: dict[str, Ranking] = {}
        self.heatmaps: dict[str, NDArray[np.uint8]] = {}
        self.shown: NDArray[np.uint8] = np.zeros((0, 1, 1, 3), np.uint8)
        self.costs: dict[str, Cost] = {}
        self.values: dict[str, dict[str, NDArray[np.float32]]] = {}

    def _explanations(self, model: nn.Module, method: str, images: Tensor, target: Tensor) -> list[Explanation]:
        size = self.engine.batch_size
        found = []
        for number, (x, y) in enumerate(zip(images.split(size), target.split(size), strict=True)):
            another: dict[str, Any] = {"seed": self.seed + number} if method == "random" else {}  # in each batch
            found.append(explain(model, x, target=y, **self.arguments[method], **another))
        return found

    def _maps(self, method: str) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
        return lambda model, images, target: torch.cat(
            [each.raw for each in self._explanations(model, method, images, target)]
        )

    def explain(self, arguments: dict[str, dict[str, Any]], track: Callable[[list[Any]], Iterable[Any]] | None) -> None:
        """Make the heatmaps of all methods, given their arguments of ``explain``."""
        engine, methods, self.arguments = self.engine, list(arguments), arguments
        found: list[Explanation] = []
        with Meter(self.model) as meter:
            for method in methods if track is None else track(methods):
                cost = Cost()
                try:
                    with meter.measuring(cost, len(engine)):
                        found = self._explanations(meter.model, method, engine.images, engine.target)
                except ValueError as error:
                    self.leave_out(method, str(error))
                    continue
                self.costs[method] = cost
                self.rankings[method] = Ranking(torch.cat([each.raw for each in found]), self.seed)
                heat = torch.cat([each.heatmap for each in found])
                self.heatmaps[method] = (255 * heat.clamp(min=0)).round().byte().numpy()
        if found:
            self.shown = np.concatenate([each.pixels() for each in found])

    def _put(self, metric: str, method: str, values: Tensor) -> None:
        self.values.setdefault(metric, {})[method] = values.detach().float().cpu().numpy()

    def _cannot(self, metrics: list[str], why: str) -> None:
        """Leave out scores that cannot be computed."""
        if metrics:
            self.leave_out(", ".join(metrics), why)

    def faithfulness(self) -> None:
        """Scores from parts that are taken away, of all methods in one list of jobs per fill."""
        names = [name for name in self.wanted if name in FAITHFULNESS]
        black = [name for name in names if (FAITHFULNESS[name].fill or self.fill) == "black"]
        if black and not self.engine.knows_black:
            self._cannot(black, "what black is in the model's input is not known: give preparation=")
            names = [name for name in names if name not in black]
        plans: dict[str, list[Removal]] = {}
        for name in names:
            score = FAITHFULNESS[name]
            for ranking in self.rankings.values():
                plans.setdefault(score.fill or self.fill, []).extend(score.plan(ranking, self.steps))
        for fill, removals in plans.items():
            self.engine.without(removals, fill)
        for name in names:
            for method, ranking in self.rankings.items():
                self._put(name, method, FAITHFULNESS[name](self.engine, ranking, self.fill, self.steps))
        if {"drop", "increase"} & set(self.wanted):
            for method, ranking in self.rankings.items():
                both = dict(zip(("drop", "increase"), drop_and_increase(self.engine, ranking), strict=True))
                for name in both.keys() & set(self.wanted):
                    self._put(name, method, both[name])

    def localisation(self) -> None:
        """Scores from masks."""
        names = [name for name in self.wanted if name in MASKED]
        if self.pictures.masks is None:
            self._cannot(names, "it is not known where the objects are: give masks of the images")
            return
        for name in names:
            for method, ranking in self.rankings.items():
                self._put(name, method, LOCALISATION[name](ranking, self.pictures.masks))

    def mosaics(self) -> None:
        """The grid pointing game."""
        if "gridpg" not in self.wanted:
            return
        try:
            mosaics = make_mosaics(self.model, self.engine, most=len(self.engine), seed=self.seed)
        except ValueError as error:
            self._cannot(["gridpg"], str(error))
            return
        for method in self.rankings:
            maps = self._maps(method)(self.model, mosaics.images, mosaics.target)
            self._put("gridpg", method, mosaics.score(Ranking(maps, self.seed)))

    def sanity(self) -> None:
        """Do heatmaps depend on what they should depend on?"""
        images, target = self.engine.images, self.engine.target
        for method, ranking in self.rankings.items():
            explained = (self.model, images, target, self._maps(method))
            if "randomisation" in self.wanted:
                found = randomisation(*explained, before=ranking.maps, seed=self.seed)
                self._put("randomisation", method, found.mean(0))
            if "other_class" in self.wanted:
                classes = self.engine.classes
                self._put("other_class", method, other_class(*explained, classes, before=ranking.maps, seed=self.seed))
            if "sensitivity" in self.wanted:
                self._put("sensitivity", method, sensitivity(*explained, before=ranking.maps, seed=self.seed))

    def cost(self) -> None:
        """Of one image, the mean over all."""
        for method, cost in self.costs.items():
            for name, total in (("passes", cost.passes), ("seconds", cost.seconds)):
                if name in self.wanted:
                    self._put(name, method, torch.full((len(self.engine),), total / cost.images))

    def ordered(self) -> Mapping[str, Mapping[str, NDArray[np.float32]]]:
        """By score in their usual order, by method, one number per image."""
        return {name: self.values[name] for name in METRICS if name in self.values}

    def curves(self) -> Mapping[str, NDArray[np.float32]]:
        """By method (2, steps + 1, B): the probability while the most, and while the least relevant are removed first.

        Empty unless they were needed for a score.
        """
        if not {"srg", "morf", "lerf"} & self.values.keys():
            return {}
        shares = evenly_spaced(self.steps)
        found = {}
        for method, ranking in self.rankings.items():
            both = [
                probabilities(self.engine.without(order(ranking, shares), self.fill))
                for order in (most_first, least_first)
            ]
            found[method] = torch.stack(both).numpy()
        return found

    def agreement(self) -> NDArray[np.float32]:
        """(methods, methods): mean rank correlation of the heatmaps."""
        maps = [ranking.maps for ranking in self.rankings.values()]
        return np.array([[float(similarity(a, b).mean()) for b in maps] for a in maps], np.float32)

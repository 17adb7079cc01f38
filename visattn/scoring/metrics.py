"""All scores by name: what they mean, and which way is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from visattn.core.arguments import list_of_names
from visattn.registry import suggest
from visattn.scoring.faithfulness import FAITHFULNESS

Kind: TypeAlias = Literal["faithfulness", "localisation", "sanity", "cost"]


@dataclass(frozen=True)
class Metric:
    """A score of heatmaps.

    Args:
        kind: what it asks.
        higher: whether higher is better.
        meaning: in a few words.
    """

    kind: Kind
    higher: bool
    meaning: str


FAITHFUL = {
    "srg": "LeRF - MoRF: the headline",
    "morf": "probability while the most relevant parts are removed first",
    "lerf": "probability while the least relevant parts are removed first",
    "insertion": "probability while the most relevant parts appear in the blurred image",
    "deletion": "probability while the most relevant parts become the mean colour",
    "positive": "accuracy (%) while the most relevant parts turn black",
    "negative": "accuracy (%) while the least relevant parts turn black",
    "road": "half of LeRF - MoRF, removed parts interpolated with noise",
    "saco": "does the order of salience agree with the order of influence?",
}
METRICS: dict[str, Metric] = {
    **{name: Metric("faithfulness", FAITHFULNESS[name].higher, meaning) for name, meaning in FAITHFUL.items()},
    "drop": Metric("faithfulness", False, "probability lost (%) when the image is multiplied by the heatmap"),
    "increase": Metric("faithfulness", True, "images (%) whose probability grows by that"),
    "pointing": Metric("localisation", True, "the hottest place is on the object"),
    "energy": Metric("localisation", True, "share of the heat, as shown, on the object"),
    "mass": Metric("localisation", True, "share of the positive relevance on the object"),
    "rank": Metric("localisation", True, "share of the hottest pixels on the object"),
    "iou": Metric("localisation", True, "overlap of the heatmap, cut at its mean, with the object"),
    "gridpg": Metric("localisation", True, "share of the relevance on the right one of four images (chance 0.25)"),
    "randomisation": Metric("sanity", False, "similarity to the heatmap of a model with random weights"),
    "other_class": Metric("sanity", False, "similarity to the heatmap of another class"),
    "sensitivity": Metric("sanity", False, "change under noise that one does not see"),
    "passes": Metric("cost", False, "forward passes per image"),
    "seconds": Metric("cost", False, "seconds per image"),
}
GROUPS: tuple[Kind, ...] = ("faithfulness", "localisation", "sanity", "cost")
MASKED = ("pointing", "energy", "mass", "rank", "iou")  # these need to know where the object is


def chosen_metrics(names: str | Sequence[str]) -> list[str]:
    """The scores in their order.

    >>> chosen_metrics(["cost", "srg"])
    ['srg', 'passes', 'seconds']
    """
    given = list_of_names("metrics", names)
    known = [*METRICS, *GROUPS, "all"]
    for name in given:
        if name not in known:
            raise ValueError(f"unknown metric {name!r}: {suggest(name, known)}")
    if not given:
        raise ValueError(f"no metrics: choose from {', '.join((*GROUPS, 'all'))}, or single ones")
    return [name for name, each in METRICS.items() if name in given or each.kind in given or "all" in given]

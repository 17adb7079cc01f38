"""Means with intervals: how far can a number be trusted that comes from so many images?"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DRAWS = 2000
LEVEL = 0.95

Values = NDArray[np.floating[Any]]


class Interval(NamedTuple):
    """A mean over images, and where it would lie with other images of the same kind in 95 of 100 cases."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        known = np.isfinite(self.low) and np.isfinite(self.high)
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}]" if known else f"{self.mean:.3g} (one image)"


def bootstrap(values: Values, seed: int = 0) -> Interval:
    """The mean of one number per image, with its percentile interval from images drawn with replacement.

    Of one image there is no interval: it is infinitely wide.

    The draws depend on the seed and the number of images only, so that differences between methods are paired.
    """
    if len(values) < 2:
        return Interval(float(np.mean(values, dtype=np.float64)), -np.inf, np.inf)
    draws = np.random.default_rng(seed).integers(0, len(values), (DRAWS, len(values)))
    means = np.asarray(values, np.float64)[draws].mean(1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(np.mean(values, dtype=np.float64)), float(low), float(high))

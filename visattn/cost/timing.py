"""Times of several steps, interleaved: whatever else the machine does meanwhile slows all of them alike."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

Step: TypeAlias = Callable[[], Any]

WARM_UP = 3  # rounds that are not counted: compilers, autotuning, caches
FEW, MANY = 3, 20  # rounds, if nobody says how many
SHORT = 0.1  # seconds of a step that may feel what was run before it
ENOUGH = 2.0  # seconds, after which no more of those begin: what takes long varies little


@dataclass(frozen=True)
class Spread:
    """The middle half of several measurements.

    Args:
        median: of them.
        low: the first quartile.
        high: the third quartile.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The median and the quartiles of measurements.

        >>> Spread.of([4.0, 1.0, 2.0, 3.0, 9.0])
        Spread(median=3.0, low=2.0, high=4.0)
        """
        low, median, high = (float(each) for each in np.percentile(values, [25, 50, 75]))
        return cls(median, low, high)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """How many times as long we take: ratios within each round, where both ran on an equally busy machine.

    >>> ratios([2.0, 20.0, 2.0], [1.0, 10.0, 4.0])  # the second round was disturbed, the ratio was not
    Spread(median=2.0, low=1.25, high=2.0)
    """
    return Spread.of([own / other for own, other in zip(ours, theirs, strict=True)])


def interleaved(steps: Sequence[Step], repeats: int | None, device: torch.device) -> list[list[float]]:
    """Seconds of every step in every round, of which there are three to twenty, as two seconds allow, unless given.

    What a step finds in the caches, and how much memory it has to ask the system for, depends on the step before it:
    every round has an order of its own, and a short step is run once before it is timed. Garbage is not collected
    meanwhile.
    """
    measure = _cuda_seconds if device.type == "cuda" else _seconds
    seconds: list[list[float]] = [[] for _ in steps]
    order = random.Random(0)
    with without_garbage_collection():
        for _ in _rounds(1, WARM_UP):
            for step in steps:
                step()
        for _ in _rounds(FEW, MANY) if repeats is None else range(repeats):
            for number in order.sample(range(len(steps)), len(steps)):
                if not seconds[number] or seconds[number][-1] < SHORT:
                    steps[number]()
                seconds[number].append(measure(steps[number], device))
    return seconds


def _rounds(least: int, most: int) -> Iterator[int]:
    """Count rounds until there are enough of them, or enough time has passed."""
    start = time.perf_counter()
    for number in range(most):
        if number >= least and time.perf_counter() - start > ENOUGH:
            return
        yield number


def _seconds(step: Step, device: torch.device) -> float:
    del device
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _cuda_seconds(step: Step, device: torch.device) -> float:
    """What passes between two events in the queue of the device, which is empty before and after."""
    with torch.cuda.device(device):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Let nothing that is left from before be released meanwhile."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

"""Modules that run in one setting, measured side by side."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from visattn.blocks.base import check_output
from visattn.cost.memory import foreseen_bytes, free_bytes, kept_bytes, peak_bytes
from visattn.cost.settings import DTYPES, Setting
from visattn.cost.timing import Spread, Step, interleaved, ratios
from visattn.counting import count_macs, count_parameters

MOST_MACS = 10**13  # of a step, for every thread of a CPU: some minutes
GPU_WORKERS = 1000  # threads of a CPU that a GPU is at least as fast as


@dataclass(frozen=True)
class Cost:
    """What a module costs in a setting.

    Args:
        parameters: trainable ones.
        macs: multiply-accumulates of a forward pass of one image.
        forward: seconds.
        forward_backward: seconds of both; None in evaluation mode.
        peak_bytes: the most memory that a step held at a time, beyond the input and the parameters.
        kept_bytes: for the backward pass, the input included; None in evaluation mode.
    """

    parameters: int
    macs: int
    forward: Spread
    forward_backward: Spread | None
    peak_bytes: int
    kept_bytes: int | None

    @property
    def step(self) -> Spread:
        """Seconds of a whole step in its mode."""
        return self.forward if self.forward_backward is None else self.forward_backward


@dataclass(frozen=True)
class Ratio:
    """How many times as long as another; medians of the ratios within a round.

    Args:
        forward: of the forward passes.
        forward_backward: of both passes; None in evaluation mode.
    """

    forward: Spread
    forward_backward: Spread | None

    @property
    def step(self) -> Spread:
        """Of a whole step in its mode."""
        return self.forward if self.forward_backward is None else self.forward_backward


@dataclass(frozen=True)
class Measured:
    """A module's cost, and the seconds of each round."""

    cost: Cost
    forward: list[float]
    forward_backward: list[float]

    def over(self, other: Measured) -> Ratio:
        """How many times as long as another one of the same contest."""
        both = ratios(self.forward_backward, other.forward_backward) if self.forward_backward else None
        return Ratio(ratios(self.forward, other.forward), both)


class Contestant:
    """A module in a setting, with its input and the gradient that is fed to its backward pass.

    That gradient is random: those of a sum or a mean are one number, expanded, which some operators take for less work.
    """

    def __init__(self, module: nn.Module, setting: Setting, x: Tensor) -> None:
        self.own = module
        self.setting, self.x = setting, x
        self.parameters, self.macs = count_parameters(module), count_macs(module, 1, *x.shape[1:])
        self.module = setting.place(module, x.device)
        self.gradient = torch.empty(0)
        if setting.train:
            self.gradient = torch.randn_like(self.forward())

    def forward(self) -> Tensor:
        """One forward pass, with a graph in training mode."""
        with torch.set_grad_enabled(self.setting.train):
            return self.module(self.x)

    def forward_backward(self) -> None:
        """Both passes, without gradients of before."""
        self.forget()
        self.forward().backward(self.gradient)

    def forget(self) -> None:
        """Drop all gradients."""
        for tensor in (self.x, *self.own.parameters()):
            tensor.grad = None

    def peak(self) -> int:
        """The most memory that a step holds at a time."""
        self.forget()
        peak = peak_bytes(self.forward_backward if self.setting.train else self.forward, self.x.device)
        self.forget()
        return peak


def check_block(block: nn.Module, setting: Setting, x: Tensor) -> None:
    """Raise unless a module does what a block does, with a backward pass if it is trained."""
    block = copy.deepcopy(block)
    setting.place(block, x.device)
    given = x.detach()
    with torch.no_grad():
        before = given._version
        check_output(block(given), given, changed=given._version != before)
    if setting.train and not block(x).requires_grad:
        raise ValueError("no gradient comes back through this block: it can be measured in evaluation mode only")


def contest(contestants: Sequence[Contestant], repeats: int | None) -> list[Measured]:
    """Measure all of them in one loop, each in turn."""
    train = contestants[0].setting.train
    steps: list[Step] = [each.forward for each in contestants]
    if train:
        steps += [each.forward_backward for each in contestants]
    seconds = interleaved(steps, repeats, contestants[0].x.device)
    found = []
    for number, each in enumerate(contestants):
        forward, both = seconds[number], seconds[len(contestants) + number] if train else []
        cost = Cost(
            each.parameters,
            each.macs,
            Spread.of(forward),
            Spread.of(both) if train else None,
            each.peak(),
            kept_bytes(each.forward, each.own) if train else None,
        )
        found.append(Measured(cost, forward, both))
    return found


def check_size(module: nn.Module, device: torch.device) -> None:
    """Raise before a module is built that takes more memory than there is, given one without storage."""
    free = free_bytes(device)
    needed = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    if free is not None and needed > free / 2:  # a step has gradients as well
        raise MemoryError(f"has {needed / 1e9:.1f} GB of weights, {free / 1e9:.1f} GB of memory are free")


def check_affordable(
    modules: Sequence[nn.Module], shape: tuple[int, ...], setting: Setting, device: torch.device
) -> None:
    """Raise before a step takes longer than anybody waits, or more memory than there is.

    Without memory, a CPU would end the process, or slow down everybody on it.
    """
    workers = torch.get_num_threads() if device.type == "cpu" else GPU_WORKERS
    for module in modules:
        macs = 0
        with suppress(Exception):  # as below
            macs = count_macs(module, *shape) * (3 if setting.train else 1)
        if macs > workers * MOST_MACS:
            raise ValueError(f"a step would take too long: {macs:.1e} multiply-accumulates")
    free = free_bytes(device)
    for module in modules:
        needed = 0
        with suppress(Exception):  # a module that only runs on real tensors is not foreseen
            needed = foreseen_bytes(module, shape, DTYPES[setting.dtype], train=setting.train)
        if free is not None and needed > free:
            raise MemoryError(f"needs about {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free")


def why_left_out(error: BaseException) -> str:
    """The reason in one line."""
    said = str(error).split("Exception raised from")[0]
    said = " ".join(said.split())[:300]
    plain = isinstance(error, AssertionError | MemoryError | RuntimeError | TypeError | ValueError)
    return said if said and plain else f"{type(error).__name__} {said}".strip()

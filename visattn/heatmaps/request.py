"""What every method is given, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor, nn

from visattn.registry import suggest

T = TypeVar("T")


@dataclass(frozen=True)
class Result:
    """What a method found.

    Args:
        maps: (B, height, width), not negative, at the method's own resolution.
        layers: the modules that it comes from, by name.
        frames: the same after each layer, if that was asked for.
        extra: what else a method found, such as gates, affinities or fixations.
    """

    maps: Tensor
    layers: tuple[str, ...] = ()
    frames: tuple[Tensor, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Request:
    """A model, images and what to explain. Running it fills in the model's answer.

    Args:
        model: in evaluation mode.
        images: (B, C, H, W).
        target: (B,) class indices; None for the predicted ones.
        frames: also keep intermediate maps.
    """

    model: nn.Module
    images: Tensor
    target: Tensor | None = None
    frames: bool = False
    logits: Tensor | None = None
    _output: Tensor = field(init=False, repr=False)  # with its graph

    def run(
        self,
        context: AbstractContextManager[Any] | None = None,
        *,
        model: nn.Module | None = None,
        images: Tensor | None = None,
    ) -> Tensor:
        """One forward pass, of a wrapped model or on images that need gradients if these are given."""
        with context or nullcontext():
            output = (model or self.model)(self.images if images is None else images)
        self._output = classifier_output(output)
        self.logits = self._output.detach()
        if self.target is None:
            self.target = self.logits.argmax(1)
        return self._output

    def score(self, output: Tensor | None = None) -> Tensor:
        """The sum over the batch of the logits of the targets; images do not influence each other's."""
        assert self.target is not None
        return (self._output if output is None else output).gather(1, self.target[:, None]).sum()


def classifier_output(output: Any) -> Tensor:
    """(B, classes): what a network returns, or the first part of it."""
    while isinstance(output, tuple | list):
        output = output[0]
    if isinstance(output, Mapping):
        output = next(iter(output.values()))
    if not isinstance(output, Tensor) or output.ndim != 2:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(f"a classifier returns (batch, classes), this model {shape}")
    return output


def matching(wanted: str, known: Mapping[str, T], kind: str) -> T:
    """An entry by name; an unknown one raises and names the closest."""
    if wanted not in known:
        raise ValueError(f"unknown {kind} {wanted!r}: {suggest(wanted, known)}")
    return known[wanted]

"""What every method is given, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from visattn.heatmaps.aim import Aim, class_scores
from visattn.heatmaps.balanced import balanced


@dataclass(frozen=True)
class MethodResult:
    """What a method found.

    Args:
        maps: (B, height, width) at the method's own resolution; negative only by methods whose maps are signed.
        layers: the modules that it comes from, by name.
        frames: the same after each layer, if requested.
        extra: anything else the method found, such as gates, affinities or fixations.
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
        target: (B,) class indices; None for the predicted ones, and for a model without classes.
        frames: also keep intermediate maps.
        logits: (B, classes) once it has run; None if the model has no classes.
        aim: which number of the target is explained, or what else.
    """

    model: nn.Module
    images: Tensor
    target: Tensor | None = None
    frames: bool = False
    logits: Tensor | None = None
    aim: Aim = field(default_factory=Aim)
    _output: Any = field(default=None, init=False, repr=False)  # what the model returned, with its graph

    def run(
        self,
        context: AbstractContextManager[Any] | None = None,
        *,
        model: nn.Module | None = None,
        images: Tensor | None = None,
    ) -> None:
        """Run one forward pass; of another (wrapped) model, or on images that require gradients, if given."""
        with context or nullcontext():
            self._output = (model or self.model)(self.images if images is None else images)
        scores = class_scores(self.model, self._output)
        if scores is not None and self.aim.needs_class:
            if len(scores) != len(self.images):
                raise ValueError(f"the model returned {len(scores)} rows for {len(self.images)} images")
            self.logits = scores.detach()
            if self.target is None:
                self.target = self.logits.argmax(1)

    def has_score(self) -> bool:
        """Whether there is a number to explain: a class, or something else."""
        return self.target is not None or not self.aim.needs_class

    def score(self, output: Any = None) -> Tensor:
        """The sum over the batch of the numbers that are explained; images do not influence each other's.

        Args:
            output: what the model returned; that of the last pass unless given.
        """
        with torch.enable_grad(), torch._C.DisableTorchFunction():  # not balanced: it is not a part of the model
            return self._score(output)

    def _score(self, output: Any) -> Tensor:
        rows = self.aim.rows(self.model, self._output if output is None else output)
        if len(rows) != len(self.images):
            raise ValueError(f"there are {len(rows)} numbers to explain for {len(self.images)} images")
        for name, module in self.model.named_modules():
            if ".quantized" in type(module).__module__:  # torch would leave its part of the gradient out
                raise ValueError(f"{name!r} is quantised, and has no gradients: choose a method that needs none")
        if not rows.requires_grad and self.aim.function is not None:
            raise ValueError("the target function, or the model, returns numbers without gradients (no_grad, detach)")
        if not rows.requires_grad:
            raise ValueError("the model computes without gradients (no_grad, detach): choose a method that needs none")
        return self.aim.numbers(rows, self.target).sum()


def backward_pass(request: Request, *, is_balanced: bool, weights: bool = False) -> AbstractContextManager[Any]:
    """A context for forward passes whose gradients will be asked for: balanced ones, or the usual ones.

    Args:
        request: whose model will run.
        is_balanced: which of them.
        weights: whether gradients of attention weights will be asked for.
    """
    return balanced(request.model, weights=weights) if is_balanced else nullcontext()

"""What every method is given, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor, nn

from visattn.heatmaps.balanced import balanced
from visattn.registry import suggest

T = TypeVar("T")


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
    """

    model: nn.Module
    images: Tensor
    target: Tensor | None = None
    frames: bool = False
    logits: Tensor | None = None
    _output: Tensor | None = field(default=None, init=False, repr=False)  # the logits with their graph

    def run(
        self,
        context: AbstractContextManager[Any] | None = None,
        *,
        model: nn.Module | None = None,
        images: Tensor | None = None,
    ) -> None:
        """Run one forward pass; of another (wrapped) model, or on images that require gradients, if given."""
        with context or nullcontext():
            output = (model or self.model)(self.images if images is None else images)
        self._output = class_scores(self.model, output)
        if self._output is not None:
            if len(self._output) != len(self.images):
                raise ValueError(f"the model returned {len(self._output)} rows for {len(self.images)} images")
            self.logits = self._output.detach()
            if self.target is None:
                self.target = self.logits.argmax(1)

    def score(self, output: Tensor | None = None) -> Tensor:
        """The sum over the batch of the logits of the targets; images do not influence each other's."""
        output = self._output if output is None else output
        assert output is not None
        assert self.target is not None
        if not output.requires_grad:
            raise ValueError("the model computes without gradients (no_grad, detach): choose a method that needs none")
        return output.gather(1, self.target[:, None]).sum()


def backward_pass(request: Request, *, is_balanced: bool, weights: bool = False) -> AbstractContextManager[Any]:
    """A context for forward passes whose gradients will be asked for: balanced ones, or the usual ones.

    Args:
        request: whose model will run.
        is_balanced: which of them.
        weights: whether gradients of attention weights will be asked for.
    """
    return balanced(request.model, weights=weights) if is_balanced else nullcontext()


def class_scores(model: nn.Module, output: Any) -> Tensor | None:
    """(B, classes): the output of a classifier, or its first part; None if the model has no classes.

    It has none if it says so (``num_classes=0``), or if it returns something else: features, a map, tokens.
    """
    while isinstance(output, tuple | list | Mapping) and len(output) > 0:
        output = next(iter(output.values())) if isinstance(output, Mapping) else output[0]
    is_vector = isinstance(output, Tensor) and output.ndim == 2 and output.is_floating_point()
    return output if is_vector and getattr(model, "num_classes", None) != 0 else None


def entry_named(wanted: str, known: Mapping[str, T], kind: str) -> T:
    """An entry by name; an unknown one raises and names the closest."""
    if wanted not in known:
        raise ValueError(f"unknown {kind} {wanted!r}: {suggest(wanted, known)}")
    return known[wanted]

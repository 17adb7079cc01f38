"""The number that a heatmap explains: one per image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from visattn.constants import OF
from visattn.core.precision import precise
from visattn.modules import why_refused
from visattn.registry import suggest

EVERY = slice(None)


@dataclass(frozen=True)
class Aim:
    """What is explained; by default the logit of a class.

    Args:
        of: which number of the class, one of :data:`visattn.constants.OF`. A log-probability leaves out what speaks
            for all classes.
        versus: (B,), classes whose number is subtracted.
        function: from what the model returns to (B,), instead of a class.
        vector: (B, D), with which the model's features are compared by their cosine, instead of a class.
    """

    of: str = "logit"
    versus: Tensor | None = None
    function: Callable[[Any], Tensor] | None = None
    vector: Tensor | None = None

    def __post_init__(self) -> None:
        if self.of not in OF:
            raise ValueError(f"unknown number {self.of!r} to explain: {suggest(str(self.of), OF)}")

    @property
    def needs_class(self) -> bool:
        """Whether it is about a class."""
        return self.function is None and self.vector is None

    def rows(self, model: nn.Module, output: Any) -> Tensor:
        """(B, K): what the number of every image follows from, given what the model returns."""
        if self.function is not None:
            return _one_per_image(_answer(self.function, output))
        if self.vector is not None:
            return _features(output, self.vector.shape[1])
        scores = class_scores(model, output)
        assert scores is not None
        return scores

    def numbers(self, rows: Tensor, target: Tensor | None, images: slice = EVERY) -> Tensor:
        """(B,), given the rows of these images and the classes of all."""
        if self.function is not None:
            return rows[:, 0]
        if self.vector is not None:
            return F.cosine_similarity(precise(rows), precise(self.vector[images]), dim=1)
        assert target is not None
        chosen = _of_class(rows, target[images].expand(len(rows)), self.of)
        if self.versus is None:
            return chosen
        same = (target == self.versus).nonzero()
        if len(same):
            which = f"image {int(same[0])}" if len(target) > 1 else "it"
            raise ValueError(f"{which} would be compared with the class that it explains: give another target")
        return chosen - _of_class(rows, self.versus[images].expand(len(rows)), self.of)


def _of_class(scores: Tensor, classes: Tensor, of: str) -> Tensor:
    """(B,), of scores (B, K) and one class (B,) each; a model with a single logit answers yes or no.

    A softmax that is rounded to one has no gradient. Its logarithm, written as that of a sigmoid of how far a class is
    ahead of all others, keeps one.
    """
    own = scores.gather(1, classes[:, None])[:, 0]
    if of == "logit":
        return own
    ahead = precise(own)
    if scores.shape[1] > 1:
        ahead = ahead - precise(scores).scatter(1, classes[:, None], -torch.inf).logsumexp(1)
    logarithm = F.logsigmoid(ahead)
    return logarithm if of == "log_probability" else logarithm.exp()


def _answer(function: Callable[[Any], Tensor], output: Any) -> Any:
    """What the function makes of what the model returns; whether it depends on that is checked."""
    try:
        found = function(output)
    except Exception as error:  # somebody else's code can fail in any way it likes
        raise ValueError(f"the target function fails ({why_refused(error)})") from error
    given = [each for each in tree_leaves(output) if isinstance(each, Tensor) and each.requires_grad]
    if given and isinstance(found, Tensor) and found.requires_grad:
        gradients = torch.autograd.grad(found.sum(), given, retain_graph=True, allow_unused=True)
        if all(each is None for each in gradients):
            raise ValueError("the target function does not use what the model returns")
    return found


def _one_per_image(found: Any) -> Tensor:
    if not isinstance(found, Tensor) or found.ndim != 1 or not found.is_floating_point():
        got = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"the target function must return one number per image, a tensor (B,), got {got}")
    return found[:, None]


def _features(output: Any, length: int) -> Tensor:
    features = first_part(output)
    if not isinstance(features, Tensor) or features.ndim != 2 or features.shape[1] != length:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(
            f"a target of {length} numbers is compared with features (B, {length}), but the model returns {got}: "
            "give a function from that to one number per image"
        )
    return features


def first_part(output: Any) -> Any:
    """What a model returns, or the first of several things."""
    while isinstance(output, tuple | list | Mapping) and len(output) > 0:
        output = next(iter(output.values())) if isinstance(output, Mapping) else output[0]
    return output


def class_scores(model: nn.Module, output: Any) -> Tensor | None:
    """(B, classes): what a classifier returns, or the first part of it; None if the model has no classes.

    It has none if it says so (``num_classes=0``), or if it returns something else: features, a map, tokens.
    """
    output = first_part(output)
    if not isinstance(output, Tensor) or output.layout is not torch.strided or not output.is_floating_point():
        return None
    has_classes = output.ndim == 2 and output.shape[1] > 0 and getattr(model, "num_classes", None) != 0
    return output if has_classes else None


def vector_of(target: Any, images: int) -> Tensor | None:
    """(images, D) if a target is a vector of floating-point numbers, or one for every image; None if it is not."""
    classes = isinstance(target, list | tuple) and not (target and all(isinstance(each, float) for each in target))
    if isinstance(target, Tensor) and (target.is_complex() or target.is_quantized or target.is_nested):
        raise ValueError("the target vector must hold real floating-point numbers, one after the other")
    try:
        vector = None if isinstance(target, str | int) or classes else torch.as_tensor(target)
    except (TypeError, ValueError, RuntimeError):
        return None
    if vector is None or not vector.is_floating_point() or vector.ndim not in (1, 2):
        return None
    if vector.layout is not torch.strided or vector.is_meta:
        raise ValueError("the target vector must be dense and have numbers: it is sparse, or on the meta device")
    if vector.ndim == 2 and len(vector) != images:
        raise ValueError(f"{len(vector)} target vectors for {images} images: give one, or one for each")
    if not vector.isfinite().all() or not vector.any(-1).all():
        raise ValueError("the target vector has no direction: it is zero, or holds numbers that are not finite")
    vector = vector.detach() / vector.detach().abs().amax(-1, keepdim=True)  # the square of its length stays finite
    return vector.expand(images, -1)

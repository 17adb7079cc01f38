"""The method to use if nobody names one: the one that scored best for this kind of model.

What was measured, and how, is in ``docs/truth.md``; ``python -m benchmarks.truth`` measures it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from visattn.heatmaps.methods import METHODS
from visattn.heatmaps.methods.glimpses import HasFixations
from visattn.heatmaps.watch.geometry import geometry


@dataclass(frozen=True)
class Choice:
    """A method, and how it is used.

    Args:
        method: its name.
        of: what it explains of a class.
        options: of the method.
        reason: why it was chosen.
    """

    method: str
    of: str = "logit"
    options: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""

    def __str__(self) -> str:
        """As tables have it.

        >>> str(Choice("gradcam", of="log_probability", options={"balanced": True}))
        'gradcam, of log p, balanced'
        """
        of = ["of log p"] if self.of == "log_probability" else []
        return ", ".join([self.method, *of, *(name for name, value in self.options.items() if value is True)])


def takes_glimpses(model: nn.Module, images: Tensor) -> bool:
    """Whether the model itself says where it looks."""
    del images
    return isinstance(model, HasFixations)


def is_flat_transformer(model: nn.Module, images: Tensor) -> bool:
    """Whether the same patches attend to each other in every layer, as in a ViT."""
    if not _fits("rollout", model, images):
        return False
    layers = [layer for layer in geometry(model, images).layers if layer.leads_on]
    return all(layer.keys.index.shape[0] == 1 and layer.keys.grid == layers[0].keys.grid for layer in layers)


def is_other_transformer(model: nn.Module, images: Tensor) -> bool:
    """Whether there is attention between patches of another kind: windows, stages, pooled keys."""
    return _fits("attention", model, images)


def _fits(method: str, model: nn.Module, images: Tensor) -> bool:
    """Whether a method works on a model, with classes or without; not on linear attention, which has no weights."""
    return METHODS[method].reason_against(model, images, needs_class=False) is None


def is_anything(model: nn.Module, images: Tensor) -> bool:
    """Always: convolutional networks, and whatever has no attention between patches."""
    del model, images
    return True


# Kinds of models in words, and how to tell them: the first that fits.
KINDS: tuple[tuple[str, Callable[[nn.Module, Tensor], bool]], ...] = (
    ("models that take glimpses", takes_glimpses),
    ("vision transformers", is_flat_transformer),
    ("transformers with windows or stages", is_other_transformer),
    ("convolutional networks", is_anything),
)
# What scored best on them (tests/test_auto.py compares), and what follows if that does not fit.
CHOICES: dict[str, tuple[Choice, ...]] = {
    "models that take glimpses": (Choice("glimpses"),),
    "vision transformers": (Choice("fullgrad"),),
    "transformers with windows or stages": (Choice("attcat", options={"balanced": True}), Choice("fullgrad")),
    "convolutional networks": (
        Choice("sharp_gradcam", of="log_probability", options={"balanced": True}),
        Choice("input_x_gradient"),
    ),
}
WITHOUT_CLASS = (Choice("rollout"), Choice("eigencam"), Choice("attention"))


def kind_of(model: nn.Module, images: Tensor) -> str:
    """The kind of a model, in words."""
    return next(name for name, fits in KINDS if fits(model, images))


def choose_method(model: nn.Module, images: Tensor, *, has_target: bool) -> Choice:
    """The best method for a model: the one that scored best on models of its kind, or the next that fits.

    Args:
        model, images: as in :class:`~visattn.heatmaps.request.Request`.
        has_target: whether there is something to explain, a class or a function of the output.
    """
    kind = kind_of(model, images) if has_target else "models without classes"
    choices = CHOICES[kind] if has_target else WITHOUT_CLASS
    tried = []
    for choice in choices:
        reason = METHODS[choice.method].reason_against(model, images, needs_class=False)
        if reason is None:
            return replace(choice, reason=f"the best for {kind}, see docs/truth.md")
        tried.append(f"{choice.method}: {reason}")
    raise ValueError(f"no method fits this {type(model).__name__} ({'; '.join(tried)})")

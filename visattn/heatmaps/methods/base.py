"""What every method shares: the registry, and what is asked before it runs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from visattn.core.arguments import numbers
from visattn.hard.glimpses import GlimpseNetwork
from visattn.heatmaps.request import MethodResult
from visattn.heatmaps.targets import number_of_classes
from visattn.heatmaps.watch.passes import MissedAttention
from visattn.registry import Registry, suggest

Run = TypeVar("Run", bound=Callable[..., MethodResult])
NAME = re.compile(r"[a-z][a-z0-9_+]*")
WhyNot: TypeAlias = Callable[[nn.Module, Tensor], str | None]


@dataclass(frozen=True)
class Method:
    """A way to make heatmaps.

    Args:
        run: from a :class:`~visattn.heatmaps.request.Request` to a :class:`~visattn.heatmaps.request.MethodResult`; its
            keyword-only arguments are the options of the method.
        why_not: from a model and images to the reason why the method does not fit them; None if it does.
        looks_at_layers: whether it looks at layers inside the model, which must then see whole images.
        of_class: whether the heatmap is about a class; if not, the model needs none.
        signed: whether its maps say what speaks against the class, too, as negative numbers.
        slow: whether it takes many passes per image, so that it only runs where it is asked for by name.
    """

    run: Callable[..., MethodResult]
    why_not: WhyNot | None = None
    looks_at_layers: bool = False
    of_class: bool = True
    signed: bool = False
    slow: bool = False

    def reason_against(self, model: nn.Module, images: Tensor, *, needs_class: bool = True) -> str | None:
        """Why the method does not work on a model; None if it does.

        Args:
            model, images: as in :class:`~visattn.heatmaps.request.Request`.
            needs_class: whether it is a class that is explained, if the method explains anything.
        """
        if self.of_class and needs_class and number_of_classes(model, images) == 0:
            return (
                "it explains a class, and the model has none: give it a classifier or a function as the target, or "
                "choose a method without classes"
            )
        if self.looks_at_layers and isinstance(model, GlimpseNetwork):
            return "its layers see crops and never the whole image: explain model.backbone on a crop"
        try:
            return None if self.why_not is None else self.why_not(model, images)
        except MissedAttention as error:
            return str(error)

    def options(self) -> list[str]:
        """The names of what may be chosen."""
        parameters = inspect.signature(self.run).parameters.values()
        return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "method"]

    def balanced(self, wanted: bool) -> dict[str, Any]:
        """The option that asks for a balanced backward pass, if that is wanted and the method has the choice."""
        return {"balanced": True} if wanted and "balanced" in self.options() else {}

    def check_options(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        """The options given to the method of this name, as plain numbers; one that it does not have raises."""
        known = self.options()
        for option in options:
            if option not in known:
                hint = suggest(option, known) if known else "it has none"
                raise TypeError(f"method {name!r} has no option {option!r}: {hint}")
        return numbers(f"method {name!r}", self.run, options)


def seeded(seed: int) -> torch.Generator:
    """Where a method draws its random numbers from; a seed that cannot be one raises."""
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"a seed is a whole number of 64 bits, got {seed}")
    return torch.Generator().manual_seed(seed)


METHODS: Registry[Method] = Registry("method")
AUTO = "auto"  # whichever of them scored best for this kind of model
RESERVED = ("all", "none")


def check_method(name: str) -> None:
    """Raise if there is no method of this name."""
    if name != AUTO:
        METHODS[name]


def register_method(
    name: str,
    *,
    why_not: WhyNot | None = None,
    looks_at_layers: bool = False,
    of_class: bool = True,
    signed: bool = False,
    slow: bool = False,
) -> Callable[[Run], Run]:
    """Enter a function under a name, so that :func:`visattn.explain` and the command line know it.

    Args:
        name: how it is asked for; a name that is taken raises.
        why_not, looks_at_layers, of_class, signed, slow: as in :class:`Method`.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(
            "a method is named in lower-case letters, digits, underscores and plus signs, since files are named after "
            f"it, got {name!r}"
        )
    if name == AUTO:
        raise ValueError(f"{AUTO!r} stands for the best of all methods: choose another name")
    if name in RESERVED:
        raise ValueError(f"a method cannot be named {name!r}: that is a word of the commands")

    def register(run: Run) -> Run:
        if not callable(run):
            raise TypeError(f"method {name!r} needs a function of a request, got {type(run).__name__}")
        try:
            inspect.signature(run).bind("a request")
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"method {name!r} must be a function of a request alone, with a default for every option: {error}"
            ) from None
        METHODS.add(name, Method(run, why_not, looks_at_layers, of_class, signed, slow))
        return run

    return register

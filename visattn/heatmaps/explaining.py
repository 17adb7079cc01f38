"""Run a method on a model and images, and see which methods fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from visattn.core.arguments import yes_or_no
from visattn.heatmaps.affinities import Affinities, affinities
from visattn.heatmaps.aim import Aim, vector_of
from visattn.heatmaps.auto import Choice, choose_method
from visattn.heatmaps.explanation import Explanation
from visattn.heatmaps.inputs import as_batch, displayable, inspectable, refusals_explained
from visattn.heatmaps.methods import METHODS
from visattn.heatmaps.methods.attention import every_head
from visattn.heatmaps.methods.base import AUTO
from visattn.heatmaps.request import MethodResult, Request
from visattn.heatmaps.scaling import to_heatmap
from visattn.heatmaps.targets import Class, Target, check_names, class_names, number_of_classes, resolve
from visattn.heatmaps.watch.inspection import inspection_copy
from visattn.listing import shown
from visattn.missing import saying_what_to_install
from visattn.models.places import example_images


class MethodList(list[str]):
    """Names of the methods that work on a model.

    ``reasons`` says why the others do not.
    """

    def __init__(self, reasons: dict[str, str | None]) -> None:
        super().__init__(name for name, reason in reasons.items() if reason is None)
        self.reasons: dict[str, str] = {name: reason for name, reason in reasons.items() if reason is not None}

    def __str__(self) -> str:
        lines = [", ".join(self), *(f"not {name}: {reason}" for name, reason in self.reasons.items())]
        return "\n".join(lines)


def list_methods(model: nn.Module, example: Tensor | None = None) -> MethodList:
    """List the methods that work on a model; ``.reasons`` of the list says why the others do not.

    Args:
        model: any classifier or encoder.
        example: a batch of images that it accepts; needed only if the network does not state its input size.

    >>> import timm
    >>> methods = list_methods(timm.create_model("test_resnet"))
    >>> "gradcam" in methods, methods.reasons["rollout"]
    (True, 'the model has no attention between tokens')
    """
    return fitting_methods(model, example, METHODS)


def fitting_methods(model: nn.Module, example: Tensor | None, names: str | Iterable[str]) -> MethodList:
    """Those of some methods that work on a model, as in :func:`list_methods`, which looks at all of them."""
    wanted = [names] if isinstance(names, str) else names
    model = inspectable(model)
    images = as_batch(model, next(iter(example_images(model))) if example is None else example)
    advice = ": give example=, a batch of images that it accepts" if example is None else ""
    with inspection_copy(model) as model, refusals_explained(model, images, advice):
        return MethodList({name: METHODS[name].reason_against(model, images) for name in wanted})


@saying_what_to_install()
def explain(
    model: nn.Module,
    x: Tensor,
    method: str = AUTO,
    target: Target = None,
    *,
    of: str | None = None,
    versus: Class = None,
    classes: Sequence[str] | None = None,
    frames: bool = False,
    signed: bool = False,
    **options: Any,
) -> Explanation:
    """Explain what a model looks at.

    The model is left as it was: modes, gradients, hooks and, unless it draws random numbers itself, the random state.

    Args:
        model: any classifier, timm's or yours; or a model without classes (an encoder, a segmenter), for methods that
            need none: ``target`` and ``probability`` of the result are None then.
        x: one image (C, H, W) or a batch (B, C, H, W), normalised as the model expects.
        method: see :func:`list_methods`; ``auto`` is the one that scored best for this kind of model, which ``reason``
            of the result names (``docs/truth.md``).
        target: the class to explain: its index, its name, or a list with one for every image; the predicted class by
            default. Or anything else: a function from what the model returns to one number per image (B,), for
            detectors, segmenters and regression; or a vector of floating-point numbers (D,) or (B, D), with which the
            model's features are compared by their cosine, such as the embedding of a text.
        of: what to explain of the class: its ``logit``, its ``log_probability``, which leaves out what speaks for all
            classes, or its ``probability``. The logit by default, unless ``auto`` knows better.
        versus: another class, to explain why the target rather than that one.
        classes: names of the classes in order; known for ImageNet.
        frames: also keep the map after every layer (``rollout``).
        signed: keep what speaks against the target, as negative numbers (heatmaps from -1 to 1), where a method has it.
        **options: of the method, such as ``layer=`` and ``head=`` of ``attention``, ``fusion=`` and ``discard=`` of
            ``rollout``, ``layer=`` of the CAM family and ``gates``.

    >>> import timm
    >>> model = timm.create_model("test_vit")
    >>> e = explain(model, torch.rand(2, 3, 160, 160), method="rollout")
    >>> e.heatmap.shape, e.raw.shape, e.layers[0]
    (torch.Size([2, 160, 160]), torch.Size([2, 10, 10]), 'blocks.0.attn')
    """
    if not isinstance(method, str):
        raise TypeError(f"method is one name, got {method!r}")
    yes_or_no(frames=frames, signed=signed)
    choice = Choice(method, "logit" if of is None else of)
    if method != AUTO:
        _check(choice, signed, options)
    model = inspectable(model)
    images = as_batch(model, x)
    check_names(classes)
    aim = _aim(target, choice.of, versus, images)
    with inspection_copy(model) as model, refusals_explained(model, images):
        if method == AUTO:
            has_target = not aim.needs_class or number_of_classes(model, images) > 0
            choice = choose_method(model, images, has_target=has_target)
            if aim.needs_class and of is None:
                aim = replace(aim, of=choice.of)
            options = {**choice.options, **options}
            if options.get("balanced") is True and "balanced" not in METHODS[choice.method].options():
                del options["balanced"]  # it always is, or has no gradients
        options = _check(choice, signed, options)
        chosen = METHODS[choice.method]
        if not chosen.of_class and not aim.needs_class:
            raise ValueError(f"{choice.method} is the same whatever the target: leave it out")
        reason = chosen.reason_against(model, images, needs_class=aim.needs_class)
        if reason is not None:
            raise ValueError(f"{choice.method} does not work on this {type(model).__name__}: {reason}")
        request = Request(model, images, frames=frames, aim=aim)
        number = number_of_classes(model, images) if aim.needs_class else 0
        classes = class_names(number, model) if classes is None else classes
        if classes is not None and len(classes) != number:
            raise ValueError(f"{len(classes)} names for the {number} classes of the model")
        if aim.needs_class:
            request.target, other = (
                None if each is None else each.to(images.device)
                for each in (
                    resolve(wanted, len(images), number, classes) for wanted in (cast("Class", target), versus)
                )
            )
            request.aim = replace(aim, versus=other)
        result = _checked(choice.method, chosen.run(request, **options), len(images))
        if chosen.signed and not signed:
            result = replace(result, maps=result.maps.clamp(min=0))
        if request.logits is None and number > 0:
            with torch.no_grad():
                request.run()
    if not all(each.isfinite().all() for each in (result.maps, request.logits) if each is not None):
        raise ValueError("the model's numbers for these images are not finite (NaN or infinite): there is no heatmap")
    size = (images.shape[-2], images.shape[-1])
    return Explanation(
        heatmap=to_heatmap(result.maps, size, signed=signed),
        raw=result.maps.detach().cpu(),
        method=choice.method,
        reason=choice.reason,
        target=None if request.target is None else tuple(request.target.tolist()),
        layers=result.layers,
        probability=_probability(request),
        classes=None if classes is None else tuple(classes),
        of_class=chosen.of_class,
        signed=signed,
        of=_described(request.aim),
        versus=None if request.aim.versus is None or not chosen.of_class else tuple(request.aim.versus.tolist()),
        images=displayable(model, images),
        frames=tuple(to_heatmap(frame, size) for frame in result.frames),
        extra=result.extra,
    )


def best_method(model: nn.Module, x: Tensor) -> Choice:
    """The method that ``auto`` stands for: what scored best for this kind of model, and why.

    Args:
        model, x: as in :func:`explain`.

    >>> import timm
    >>> best_method(timm.create_model("test_resnet"), torch.rand(1, 3, 64, 64)).method
    'sharp_gradcam'
    """
    model = inspectable(model)
    images = as_batch(model, x)
    with inspection_copy(model) as model, refusals_explained(model, images):
        return choose_method(model, images, has_target=number_of_classes(model, images) > 0)


def _check(choice: Choice, signed: bool, options: dict[str, Any]) -> dict[str, Any]:
    """The options as plain numbers; what the method does not have raises."""
    if signed:
        check_signs([choice.method])
    return METHODS[choice.method].check_options(choice.method, options)


def check_signs(methods: Iterable[str]) -> None:
    """Raise if the maps of none of these methods have a sign."""
    if not any(METHODS[name].signed for name in methods):
        having = ", ".join(name for name in METHODS if METHODS[name].signed)
        raise ValueError(f"the maps of {' and '.join(map(repr, methods))} have no sign: choose one of {having}")


def _checked(method: str, result: Any, images: int) -> MethodResult:
    """What a method returned; anything but a map for every image raises."""
    if not isinstance(result, MethodResult) or not isinstance(result.maps, Tensor):
        raise TypeError(f"method {method!r} must return a MethodResult with maps, got {shown(result)}")
    if result.maps.is_meta or not result.maps.is_floating_point():
        raise TypeError(f"maps of method {method!r} must be floating-point numbers, got {result.maps.dtype}")
    shape = tuple(result.maps.shape)
    if len(shape) != 3 or shape[0] != images or 0 in shape:
        raise ValueError(f"method {method!r} must return maps (images, height, width), {images} of them, got {shape}")
    return result


def _aim(target: Any, of: str, versus: Any, images: Tensor) -> Aim:
    """What is to be explained, without the classes."""
    vector = vector_of(target, len(images))
    function = target if callable(target) else None
    if (vector is not None or function is not None) and (of != "logit" or versus is not None):
        raise ValueError("of and versus are about classes: leave them out for a target that is none")
    return Aim(of, None, function, None if vector is None else vector.to(images.device))


def _described(aim: Aim) -> str:
    return aim.of if aim.needs_class else "function" if aim.function is not None else "cosine"


def _probability(request: Request) -> tuple[float, ...] | None:
    """The probabilities of the targets; None where there is nothing to compare them with."""
    if request.logits is None or request.target is None or request.logits.shape[1] < 2:
        return None
    return tuple(request.logits.float().softmax(1).gather(1, request.target[:, None])[:, 0].tolist())


def relate(model: nn.Module, x: Tensor) -> dict[str, Affinities]:
    """What every patch attends to, in each attention layer between patches, by the layer's name.

    Args:
        model, x: as in :func:`explain`.
    """
    model = inspectable(model)
    images = as_batch(model, x)
    with inspection_copy(model) as model, refusals_explained(model, images):
        return affinities(Request(model, images))


def attention_heads(
    model: nn.Module,
    x: Tensor,
    layers: str | int | Sequence[str | int] | None = None,
    heads: int | Sequence[int] | None = None,
) -> dict[tuple[str, int], Tensor]:
    """Heatmaps (B, H, W) of single heads, by layer and head, from one forward pass.

    Args:
        model, x: as in :func:`explain`.
        layers: a name, a number or a list of them; all layers with patches by default.
        heads: a number or a list of them; all by default.
    """
    model = inspectable(model)
    images = as_batch(model, x)
    with inspection_copy(model) as model, refusals_explained(model, images):
        maps = every_head(Request(model, images), layers, heads)
    return {key: to_heatmap(each, (images.shape[-2], images.shape[-1])) for key, each in maps.items()}

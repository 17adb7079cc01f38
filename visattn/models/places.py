"""The places of a network where a block can go: which there are, and which of them ``at=`` means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from visattn.blocks import block_info
from visattn.listing import first_few, times
from visattn.models.layout import Place
from visattn.models.refusals import failed_block
from visattn.models.resnet import paper_places
from visattn.models.survey import Survey, survey
from visattn.models.wrapper import replace_slot
from visattn.modules import (
    NOT_DENSE,
    HookOfThread,
    embedded_size,
    floating_like,
    has_numbers,
    input_size,
    is_dense,
    own_size,
    separate_copy,
    why_refused,
    zeros_copy,
)
from visattn.registry import matching, suggest


def survey_places(model: nn.Module, example: Tensor | None = None, advice: str | None = None) -> Survey:
    """Run the network once, on an example or on an image of the size it was made for.

    Args:
        model: any network.
        example: a batch of images.
        advice: what to do if the network takes none of them; without it, which images these were is said.
    """
    failure: Exception | None = None
    if example is not None and not (isinstance(example, Tensor) and is_dense(example) and example.is_floating_point()):
        got: Any = type(example).__name__
        if isinstance(example, Tensor):
            got = example.dtype if is_dense(example) else NOT_DENSE
        raise TypeError(f"example is a batch of images (B, C, H, W) of floating-point numbers, got {got}")
    for image in [example] if example is not None else list(example_images(model)):
        try:
            return survey(model, image[:1].repeat(2, *[1] * (image.ndim - 1)))
        except Exception as error:  # a network can refuse an image in any way it likes
            failure = error
    if failure is not None and (block := failed_block(failure)) is not None:
        raise ValueError(f"block {block!r} of the network fails ({why_refused(failure)})") from failure
    advice = advice or f"images of {times(image.shape[1:])} do not fit it"
    raise ValueError(f"the network could not be run ({failure and why_refused(failure)}): {advice}") from failure


def example_images(model: nn.Module) -> Iterator[Tensor]:
    """Images of the sizes that a network was probably made for, the likeliest first."""
    channels, *native = input_size(model)
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    like = floating_like(model)
    for size in (embedded_size(model), native):
        for depth in (channels, first.in_channels if first is not None else channels):
            if size is not None:
                generator = torch.Generator().manual_seed(0)
                yield torch.rand(1, depth, *size, generator=generator).to(like.device, like.dtype)


def choose(model: nn.Module, found: Survey, at: str | Sequence[str] | None) -> list[Place]:
    """The places that ``at`` stands for, without those that would have no effect; raise if nothing is left."""
    places = found.places()
    if not found.ran and any(model.children()):
        raise ValueError(
            "the forward of the network was replaced by a function (decorated with torch.inference_mode, say), behind "
            "which its layers and their gradients cannot be seen"
        )
    if at is None:
        at = "blocks" if found.blocks() else "stages"
    if at in ("blocks", "stages"):
        names = found.blocks() if at == "blocks" else found.stages()
        if not names:
            what = "residual blocks (try at='stages')" if at == "blocks" else "stages"
            raise ValueError(f"the network has no {what}; {_could_match(places)}")
        effective = reaching_output(model, found, [places[name] for name in names])
        if at == "stages" and len(effective) < len(names):  # class-token pooling: one block earlier
            lost = [places[name] for name in names if places[name] not in effective]
            candidates = found.blocks() or found.outermost()
            earlier = reaching_output(model, found, [p for name in candidates if (p := places[name]) not in lost])
            sizes = found.resolutions()
            for place in lost:
                effective += [p for p in earlier if sizes[p.name] == sizes[place.name]][-1:]
        if not effective:
            raise ValueError(f"no {at} of the network reach its output; {_could_match(places)}")
        return list(dict.fromkeys(effective))
    chosen: dict[str, list[Place]] = {}
    if not at:
        raise ValueError("at is empty: name at least one place")
    for pattern in [at] if isinstance(at, str) else at:
        matches = [places[name] for name in matching(pattern, found.modules) if name in places]
        if not matches:
            known = dict(model.named_modules(remove_duplicate=False))
            close = suggest(pattern, places)
            close = f" {close}" if close.startswith("did you mean") else ""
            problem = f"the output of {pattern!r} is not a feature map" if pattern in known else f"no {pattern!r} here"
            same = [name for name in places if pattern in known and known[name] is known[pattern]]
            if same:
                raise ValueError(
                    f"{pattern!r} is the same module as {same[0]!r}: name that one, once, for all its uses"
                )
            if pattern in found.unclear:
                problem = (
                    f"{pattern!r} has maps of {times(found.unclear[pattern])}, of which nobody can tell which number "
                    "is that of the channels: larger images may tell"
                )
            if pattern in found.points:
                problem = (
                    f"the output of {pattern!r} may be a map of one pixel for images of {times(found.image)}, or what "
                    "was pooled, and nobody can tell: larger images, which would show it, could not be tried"
                )
            if len(widths := found.widths().get(pattern, [])) > 1:
                several = " and ".join(map(str, widths))
                problem = f"{pattern!r} is called for maps of {several} channels, and one block fits one width only"
            raise ValueError(f"{problem}:{close} {_could_match(places)}")
        chosen[pattern] = matches
    read = reaching_output(model, found, list(dict.fromkeys(chain(*chosen.values()))))
    for matches in chosen.values():
        if not set(matches) & set(read):
            raise ValueError(
                f"what happens to the pixels behind {first_few([place.name for place in matches], 8)} does not reach "
                "the output (the class token is read there): choose an earlier place"
            )
    return read


def usual_places(
    model: nn.Module, found: Survey, block: str, chosen: Callable[[str | None], list[Place]] | None = None
) -> dict[Place, dict[str, Any]]:
    """Where a block goes unless somebody says otherwise, with the options used there.

    In a ResNet that is where its paper puts it; elsewhere behind every residual block, or every stage. ``chosen`` can
    be given to remember what :func:`choose` said about an ``at``.
    """
    family = block_info(block).family
    if places := paper_places(model, found, block):
        return places
    at = "stages" if family in ("self", "hard") or block in ("bam", "residual") else None
    every = choose(model, found, at) if chosen is None else chosen(at)
    return {place: {} for place in (every[-1:] if family == "hard" else every)}


def _could_match(places: Mapping[str, Place]) -> str:
    return f"feature maps: {first_few(list(places), 8) or 'none'}"


def is_doubtful(places: Iterable[Place]) -> bool:
    """Whether class tokens, before the pixels or beside them in a tuple, may be all that the output reads."""
    return any(place.layout.prefix or place.index is not None for place in places)


def reaching_output(model: nn.Module, found: Survey, places: Sequence[Place]) -> list[Place]:
    """Those places whose pixels influence the output.

    This is in question only for networks with class tokens (before the pixels, or beside them in a tuple): of the last
    blocks, the output may read that token alone. A copy of the network is run once, forwards and backwards; one without
    numbers (on the meta device, or under ``FakeTensorMode``) with random ones. What is read is the same for images of
    every size, so larger ones than the network was made for are not computed with if it takes its own.
    """
    doubtful = [place for place in places if is_doubtful([place])]
    if not doubtful:
        return list(places)
    with unset_fake_temporarily():
        unread = _unread_at_own_size(model, found, doubtful)
        if unread is None:
            unread = _unread(model, found.input_shape[1:], doubtful)
    return [place for place in places if place not in unread]


def _unread_at_own_size(model: nn.Module, found: Survey, places: Sequence[Place]) -> set[Place] | None:
    """The same for smaller images than those of the survey; None if the network has none or does not take them."""
    channels, height, width = own_size(model)
    rows, columns = found.image
    if channels != found.input_shape[1] or height > rows or width > columns or (height, width) == (rows, columns):
        return None
    try:
        return _unread(model, (channels, height, width), places)
    except Exception:  # a network can refuse an image in any way it likes
        return None


def _unread(model: nn.Module, shape: Sequence[int], places: Sequence[Place]) -> set[Place]:
    """Those places whose pixels have no influence on the output, by the gradients of a copy of a network."""
    shadow = (separate_copy if all(map(has_numbers, model.parameters())) else zeros_copy)(model)
    outputs: dict[Place, Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in shadow.parameters():  # a classifier may start at zero
            if parameter.is_floating_point():
                parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter), alpha=0.02)

    def tap(place: Place) -> Callable[..., Any]:
        def own_tensor(x: Tensor) -> Tensor:
            outputs[place] = x.clone()  # a tuple may hold one tensor twice, of which a hook can change only one
            return outputs[place]

        return lambda _module, _args, output: replace_slot(output, place.index, own_tensor)

    for place in places:
        shadow.get_submodule(place.name).register_forward_hook(HookOfThread(tap(place)), prepend=True)
    like = floating_like(shadow)
    image = torch.rand(1, *shape, generator=generator).to(like.device, like.dtype)
    with torch.enable_grad():
        result = shadow(image.requires_grad_())
        while not isinstance(result, Tensor):
            result = result[-1] if isinstance(result, tuple | list) else list(result.values())[-1]
        if not result.requires_grad:
            raise ValueError("what reaches the output cannot be seen: the network computes without gradients (no_grad)")
        gradients = torch.autograd.grad(result.square().sum(), list(outputs.values()), allow_unused=True)
    return {
        place
        for place, gradient in zip(outputs, gradients, strict=True)
        if gradient is None or not gradient[:, place.layout.prefix :].any()
    }

"""Put any block into any network that is already built, and take it out again.

>>> import timm, torch
>>> model = timm.create_model("resnet18").eval()
>>> x = torch.randn(1, 3, 64, 64)
>>> before = model(x)
>>> _ = attach(model, "cbam", at="stages")
>>> torch.equal(model(x), before)
True
>>> _ = detach(model)
"""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from visattn.blocks import create_block
from visattn.listing import first_few
from visattn.models.layout import Place
from visattn.models.patch import restore_attention, swap_attention
from visattn.models.saving.card import PLACEMENT
from visattn.models.survey import Survey, called, survey
from visattn.models.wrapping import (
    Attached,
    ImageShape,
    attachments,
    put_behind,
    replace_slot,
    take_away,
    unwrap,
    watched_image,
)
from visattn.modules import evaluating, underlying, why_refused
from visattn.registry import suggest

Init = Literal["identity", "paper"]
BlockLike = str | Callable[..., nn.Module]


def attach(
    model: nn.Module,
    block: BlockLike,
    at: str | Sequence[str] | None = None,
    *,
    init: Init = "identity",
    stack: bool = False,
    example: Tensor | None = None,
    **options: Any,
) -> nn.Module:
    """Put a block behind every chosen module of a network, in place.

    Each of these modules is wrapped, so that the blocks go wherever the network goes: copies, replicas, conversions,
    shards. The keys of its own weights in ``state_dict`` stay the same; those of the blocks are new, below ``visattn``.

    Args:
        model: any network; timm's and your own, also compiled.
        block: a registered name, or a function of the number of channels that returns a module; ``"patch"`` turns
            the attention of a vision transformer into :class:`PatchAttention`, with its weights, instead.
        at: ``"blocks"`` (every residual block), ``"stages"`` (the end of every resolution), or names and globs of
            modules; residual blocks, or stages where there are none, unless given.
        init: ``"identity"`` blends the block in with a learnable gain, so that the output is the same bit for bit at
            first; ``"paper"`` is the block as its paper starts it.
        stack: allow a second block at a place that has one.
        example: a batch of images that the network accepts; needed only if the network does not say its input size.
        **options: for the block.

    Returns:
        The same model.
    """
    network = _changeable(model)
    if at is not None and not all(isinstance(each, str) for each in ([at] if not isinstance(at, list | tuple) else at)):
        raise TypeError(f"at is a name, or a list of names, of modules; got {at!r}")
    if isinstance(block, str) and block == "patch":
        if init != "identity" or stack or example is not None:
            raise TypeError("patch attention takes at= and its own options; not init=, stack= or example=")
        swap_attention(network, at, **options)
        return model
    if not isinstance(block, str) and not callable(block):
        raise TypeError(f"a block is a name or a function of the number of channels, got {type(block).__name__}")
    if example is not None and not (isinstance(example, Tensor) and example.ndim == 4 and len(example)):
        raise TypeError("example is a batch of images (B, C, H, W)")
    found = survey_places(network, example)
    places = choose(network, found, at)
    before = set(attachments(network))
    attach_at(network, block, dict.fromkeys(places, options), entry=found.entry, init=init, stack=stack)
    try:
        missed = set(attachments(network)) - before - called(network, found.input_shape)
    except Exception as error:  # what a block does is its own affair
        for place in places:
            take_away(network, place.name)
        raise ValueError(f"the network cannot be run with this block in it ({why_refused(error)})") from error
    if missed:
        for place in places:
            take_away(network, place.name)
        raise ValueError(
            f"the network does not call {', '.join(map(repr, sorted(missed)))} as its own child (it keeps it in a "
            "plain list, say, instead of an nn.ModuleList): a block there would have no effect"
        )
    return model


def attach_at(
    model: nn.Module,
    block: BlockLike,
    places: Mapping[Place, Mapping[str, Any]],
    *,
    entry: str | None,
    init: Init,
    stack: bool = False,
) -> nn.Module:
    """Put a block with given options behind each of these places; ``entry`` is the module that is given the image."""
    if init not in ("identity", "paper"):
        raise ValueError(f"init is 'identity' or 'paper', got {init!r}")
    if isinstance(block, nn.Module):
        raise TypeError(
            "every place needs a block of its own: give a name or a class, not a block that is already built"
        )
    occupied = attachments(model)
    for place in places:
        if place.name in occupied and not stack:
            raise ValueError(f"{place.name!r} already has a block attached; stack=True puts another one behind it")
    tokens = any(place.layout.kind == "tokens" for place in places)
    if tokens and not entry:
        raise ValueError(
            "no module of the network is given the image, so that the shape of its token maps is not known"
        )
    image = watched_image(model, entry) if tokens and entry else None
    with torch.inference_mode(False):  # weights that were made in it could never be trained
        built = {place: _attached(model, block, place, init, options, image) for place, options in places.items()}
    for place, attached in built.items():
        put_behind(model, place.name, attached)
    return model


def detach(model: nn.Module) -> nn.Module:
    """Take all attached blocks out again; the network is exactly as before, with its weights as they are now."""
    network = _changeable(model)
    restored = restore_attention(network)
    if not unwrap(network) and not restored:
        raise ValueError("nothing is attached to this model")
    return model


def _changeable(model: nn.Module) -> nn.Module:
    """The network inside a compiled or replicated one; those that cannot be changed any more raise."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"attach takes a network, got {type(model).__name__}; to build one by name: create_model")
    network = underlying(model)
    if any(isinstance(module, nn.parallel.DistributedDataParallel) for module in model.modules()):
        raise ValueError("blocks go in and out before DistributedDataParallel: it shares the gradients it began with")
    if isinstance(network, torch.jit.ScriptModule):
        raise ValueError("a scripted or traced network cannot be changed any more: attach before torch.jit")
    for name, parameter in network.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ValueError(
                f"{name!r} has no shape yet (a lazy module): run the network once on a batch of images first"
            )
        if hasattr(parameter, "device_mesh"):  # a DTensor; to name the type would import torch.distributed.tensor
            raise ValueError(f"{name!r} is shared out among processes (FSDP): attach before sharding")
    return network


def _attached(
    model: nn.Module,
    block: BlockLike,
    place: Place,
    init: Init,
    options: Mapping[str, Any],
    image: ImageShape | None,
) -> Attached:
    near = next(chain(model.get_submodule(place.name).parameters(), model.parameters()), torch.empty(()))
    channels = place.layout.channels
    if isinstance(block, str):
        for option in PLACEMENT:
            if option in options:
                raise TypeError(f"a block has the {option} of the network that it is put into: leave {option}= out")
        built = create_block(block, channels, device=near.device, dtype=near.dtype, **options)
    else:
        built = block(channels, **options)
        if not isinstance(built, nn.Module):
            raise TypeError(f"a block is a module, but the function returned a {type(built).__name__}")
        built.to(near.device, near.dtype)
    built.train(model.training)
    gain = None
    if init == "identity":
        # Behind a gain of zero, a block that starts as the identity by itself would never learn: its own gradient and
        # the gain's would both stay zero. Such a block gets a gain of one.
        start = 1.0 if not near.is_meta and _is_identity(built, place, near) else 0.0
        gain = torch.full((1,), start, device=near.device, dtype=near.dtype)
    name = block if isinstance(block, str) else None
    return Attached(built, place, gain, image=image, name=name, options=options)


def _is_identity(block: nn.Module, place: Place, like: Tensor) -> bool:
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(2, place.layout.channels, *place.size, generator=generator).to(like.device, like.dtype)
    given = probe.clone()
    try:
        with torch.no_grad(), evaluating(block):
            output = block(given)
    except Exception as error:  # what a block does is its own affair
        raise ValueError(f"the block does not take a map of {tuple(probe.shape)} ({why_refused(error)})") from error
    if not torch.equal(given, probe):
        raise ValueError("this block changes the map that it is given, in place: it must return another one")
    if not isinstance(output, Tensor) or output.shape != probe.shape:
        got = tuple(output.shape) if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise ValueError(f"a block gives back a map of the shape it was given, {tuple(probe.shape)}; this one: {got}")
    if not output.isfinite().all():
        raise ValueError("the numbers of this block are not finite (NaN or infinite), even before training")
    return torch.equal(output, probe)


def survey_places(model: nn.Module, example: Tensor | None = None) -> Survey:
    """Run the network once, on an example or on an image of the size it says it was made for."""
    failure: Exception | None = None
    for image in [example] if example is not None else list(example_images(model)):
        try:
            return survey(model, image[:1].repeat(2, *[1] * (image.ndim - 1)))
        except Exception as error:  # a network can refuse an image in any way it likes
            failure = error
    advice = "give it example= images, or other options" if example is None else "example= does not fit it"
    raise ValueError(f"the network could not be run ({failure and why_refused(failure)}): {advice}") from failure


def example_images(model: nn.Module) -> Iterator[Tensor]:
    """Images of the sizes that a network may have been made for, most likely first."""
    config = getattr(model, "pretrained_cfg", None) or {}
    channels, height, width = config.get("input_size") or (3, 224, 224)
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    embedding = getattr(model, "patch_embed", None)
    sizes = [getattr(embedding, "img_size", None), (height, width)]
    like = next(model.parameters(), torch.empty(()))
    for size in sizes:
        for depth in (channels, first.in_channels if first is not None else channels):
            if size is not None:
                generator = torch.Generator().manual_seed(0)
                yield torch.rand(1, depth, *size, generator=generator).to(like.device, like.dtype)


def choose(model: nn.Module, found: Survey, at: str | Sequence[str] | None) -> list[Place]:
    """The places that ``at`` stands for; what cannot be matched, or would have no effect, raises."""
    places = found.places()
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
            for place in lost:
                effective += [p for p in earlier if p.size == place.size][-1:]
        if not effective:
            raise ValueError(f"no {at} of the network reach its output; {_could_match(places)}")
        return list(dict.fromkeys(effective))
    chosen: list[Place] = []
    if not at:
        raise ValueError("at is empty: name at least one place")
    for pattern in [at] if isinstance(at, str) else at:
        matches = [place for name, place in places.items() if fnmatch.fnmatchcase(name, pattern)]
        if not matches:
            known = dict(model.named_modules(remove_duplicate=False))
            close = suggest(pattern, places)
            close = f" {close}" if close.startswith("did you mean") else ""
            problem = f"the output of {pattern!r} is not a feature map" if pattern in known else f"no {pattern!r} here"
            if len(widths := found.widths().get(pattern, [])) > 1:
                several = " and ".join(map(str, widths))
                problem = f"{pattern!r} is called for maps of {several} channels, and one block fits one width only"
            raise ValueError(f"{problem}:{close} {_could_match(places)}")
        chosen += matches
    chosen = list(dict.fromkeys(chosen))
    without = [place.name for place in chosen if place not in reaching_output(model, found, chosen)]
    if without:
        raise ValueError(
            f"what happens to the pixels behind {first_few(without, 8)} does not reach the output (the class "
            "token is read there): choose an earlier place"
        )
    return chosen


def _could_match(places: Mapping[str, Place]) -> str:
    return f"feature maps: {first_few(list(places), 8) or 'none'}"


def reaching_output(model: nn.Module, found: Survey, places: Sequence[Place]) -> list[Place]:
    """Those places whose pixels have an influence on the output.

    Only networks with class tokens (before the pixels, or beside them in a tuple) are in question: the last blocks may
    be read at that token alone. A copy of them is run once, forwards and backwards.
    """
    doubtful = [place for place in places if place.layout.prefix or place.index is not None]
    if not doubtful:
        return list(places)
    outputs: dict[Place, Tensor] = {}
    shadow = copy.deepcopy(model).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in shadow.parameters():  # a classifier may start at zero
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter), alpha=0.02)

    def tap(place: Place) -> Callable[..., Any]:
        def own_tensor(x: Tensor) -> Tensor:
            outputs[place] = x.clone()  # a tuple may hold one tensor twice, of which a hook can change only one
            return outputs[place]

        return lambda _module, _args, output: replace_slot(output, place.index, own_tensor)

    for place in doubtful:
        shadow.get_submodule(place.name).register_forward_hook(tap(place))
    like = next(model.parameters())
    image = torch.rand(1, *found.input_shape[1:], generator=generator).to(like.device, like.dtype)
    with torch.enable_grad():
        result = shadow(image.requires_grad_())
        while not isinstance(result, Tensor):
            result = result[-1] if isinstance(result, tuple | list) else list(result.values())[-1]
        if not result.requires_grad:
            raise ValueError("what reaches the output cannot be seen: the network computes without gradients (no_grad)")
        gradients = torch.autograd.grad(result.square().sum(), list(outputs.values()), allow_unused=True)
    dead = {
        place
        for place, gradient in zip(outputs, gradients, strict=True)
        if gradient is None or not gradient[:, place.layout.prefix :].any()
    }
    return [place for place in places if place not in dead]

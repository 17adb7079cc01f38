"""Attach any block to any built network, and detach it again.

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

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from visattn.blocks import create_block
from visattn.blocks.base import check_built, check_output
from visattn.core.arguments import yes_or_no
from visattn.models.arguments import PLACEMENT
from visattn.models.image_shape import ImageShape
from visattn.models.layout import Place
from visattn.models.patch import Patch
from visattn.models.places import choose, survey_places
from visattn.models.replaced import check_known, restore_convolutions
from visattn.models.survey import called
from visattn.models.swapping import restore_attention, swap_attention
from visattn.models.wrapper import NAME, Attached, WithAttention
from visattn.models.wrapping import all_or_nothing, attachments, image_shape, put_behind, unwrap, unwrapped, watch_image
from visattn.modules import check_default_device, evaluating, has_numbers, underlying, why_refused

Init = Literal["identity", "paper"]
BlockLike = str | Callable[..., nn.Module]
SMALL = 32  # side of a map that even attention between all pixels takes quickly


@torch.inference_mode(False)  # in which autograd's graph cannot be read, and weights could never be trained
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
    """Attach a block to the output of every chosen module of a network, in place.

    Each of these modules is wrapped, so that the blocks go wherever the network goes: copies, replicas, conversions,
    shards. The keys of its own weights in ``state_dict`` stay the same; those of the blocks are new, under ``visattn``.

    Args:
        model: any network; timm's and your own, also compiled.
        block: a registered name, or a function of the number of channels that returns a module; ``"patch"`` turns
            the attention of a vision transformer into :class:`PatchAttention`, with its weights, instead.
        at: ``"blocks"`` (every residual block), ``"stages"`` (the end of every resolution), or names and globs of
            modules; by default residual blocks, or stages where there are none. Places whose pixels the output does not
            read are left out, unless they are named.
        init: ``"identity"`` blends the block in with a learnable gain, so that the output is bit for bit the same at
            first; ``"paper"`` starts the block as its paper does.
        stack: allow a second block at a place that has one.
        example: a batch of images that the network accepts; needed only if the network does not state its input size.
        **options: for the block.

    Returns:
        The same model.
    """
    check_default_device()
    network = changeable(model, "attach")
    if at is not None:
        check_names(at)
    if isinstance(block, str) and block == "patch":
        if init != "identity" or stack or example is not None:
            raise TypeError("patch attention takes at= and its own options; not init=, stack= or example=")
        swap_attention(network, at, **options)
        return model
    if not isinstance(block, str) and not callable(block):
        raise TypeError(f"a block is a name or a function of the number of channels, got {type(block).__name__}")
    if example is not None and not (isinstance(example, Tensor) and example.ndim == 4 and len(example)):
        got = f"a tensor {tuple(example.shape)}" if isinstance(example, Tensor) else type(example).__name__
        raise TypeError(f"example is a batch of images (B, C, H, W), got {got}")
    advice = "give it example= images, or other options" if example is None else "example= does not fit it"
    found = survey_places(network, example, advice)
    places = choose(network, found, at)
    before = set(attachments(network))
    attach_at(network, block, dict.fromkeys(places, options), entry=found.entry, init=init, stack=stack)
    with all_or_nothing(network, [place.name for place in places]):
        try:
            missed = set(attachments(network)) - before - called(network, found.input_shape)
        except Exception as error:  # what a block does is its own affair
            raise ValueError(f"the network cannot be run with this block in it ({why_refused(error)})") from error
        if missed:
            raise ValueError(
                f"the network does not call {', '.join(map(repr, sorted(missed)))} as its own child (it keeps it in a "
                "plain list, say, instead of an nn.ModuleList): a block there would have no effect"
            )
    return model


def check_init(init: Any) -> None:
    """Raise if there is no such way to start."""
    if init not in get_args(Init):
        raise ValueError(f"init is {' or '.join(map(repr, get_args(Init)))}, got {init!r}")


def attach_at(
    model: nn.Module,
    block: BlockLike,
    places: Mapping[Place, Mapping[str, Any]],
    *,
    entry: str | None,
    init: Init,
    stack: bool = False,
) -> nn.Module:
    """Attach a block with its options at each of these places; ``entry`` is the module that is given the image."""
    check_init(init)
    yes_or_no(stack=stack)
    if isinstance(block, nn.Module):
        raise TypeError(
            "every place needs a block of its own: give a name or a class, not a block that is already built"
        )
    occupied = attachments(model)
    for place in places:
        layer = unwrapped(model.get_submodule(place.name))
        if hasattr(layer, NAME) and not isinstance(layer, Patch):
            raise ValueError(f"{place.name!r} has a part called {NAME!r}, where its blocks would be kept: rename that")
        if place.name in occupied and not stack:
            raise ValueError(f"{place.name!r} already has a block attached; stack=True puts another one behind it")
    tokens = any(place.layout.kind == "tokens" for place in places)
    if tokens and not entry:
        raise ValueError(
            "no module of the network is given the image, so that the shape of its token maps is not known"
        )
    image = image_shape(model, entry) if tokens and entry else None
    built = {place: _attached(model, block, place, init, options, image) for place, options in places.items()}
    if image is not None and entry:
        watch_image(model, entry, image)
    for place, attached in built.items():
        put_behind(model, place.name, attached)
    return model


def detach(model: nn.Module) -> nn.Module:
    """Remove all attached blocks, and put back all replaced convolutions with the weights that they had.

    The network is exactly as before, with its own weights as they are now.
    """
    network = changeable(model, "detach")
    if isinstance(network, WithAttention):
        raise ValueError("a block is attached to this very module: detach it from the network that the module is in")
    check_known(network)
    restored = [restore(network) for restore in (restore_attention, unwrap, restore_convolutions)]
    if not any(restored):
        raise ValueError("nothing is attached to this model")
    return model


def check_names(at: Any) -> None:
    """Raise unless this is a name, or a list of names."""
    if not all(isinstance(each, str) for each in ([at] if not isinstance(at, list | tuple) else at)):
        raise TypeError(f"at is a name, or a list of names, of modules; got {at!r}")


def changeable(model: nn.Module, function: str) -> nn.Module:
    """The network inside a compiled or replicated one; raise if that function can no longer change it."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{function} takes a network, got {type(model).__name__}; to build one by name: create_model")
    network = underlying(model)
    if any(isinstance(module, nn.parallel.DistributedDataParallel) for module in model.modules()):
        raise ValueError("blocks go in and out before DistributedDataParallel: it shares the gradients it began with")
    if isinstance(network, torch.jit.ScriptModule):
        raise ValueError("a scripted or traced network cannot be changed any more: attach before torch.jit")
    for name, parameter in chain(network.named_parameters(), network.named_buffers()):
        if is_lazy(parameter):
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
    channels, dtype = place.layout.channels, place.dtype or near.dtype
    if isinstance(block, str):
        for option in PLACEMENT:
            if option in options:
                raise TypeError(f"a block has the {option} of the network that it is put into: leave {option}= out")
        built = create_block(block, channels, device=near.device, dtype=dtype, **options)
    else:
        built = block(channels, **options)
        check_built("this block", built)
        built.to(near.device, dtype)
    built.train(model.training)
    gain = None
    if init == "identity":
        # Behind a gain of zero, a block that starts as the identity by itself would never learn: its own gradient and
        # the gain's would both stay zero. Such a block gets a gain of one.
        start = 1.0 if has_numbers(near) and _is_identity(built, place, near.device, dtype) else 0.0
        gain = torch.full((1,), start, device=near.device, dtype=dtype)
    name = block if isinstance(block, str) else None
    return Attached(built, place, gain, image=image, name=name, options=options)


def _is_identity(block: nn.Module, place: Place, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a block returns the map that it is given, tried on a small one if it takes any size."""
    small = (min(place.size[0], SMALL), min(place.size[1], SMALL))
    for size in dict.fromkeys((small, place.size)):
        probe = torch.randn(2, place.layout.channels, *size, generator=torch.Generator().manual_seed(0))
        probe = probe.to(device, dtype)
        given = probe.clone()
        try:
            with torch.no_grad(), evaluating(block):
                output = block(given)
            break
        except Exception as error:  # what a block does is its own affair
            if size == place.size:
                shape = tuple(probe.shape)
                raise ValueError(f"the block does not take a map of {shape} ({why_refused(error)})") from error
    check_output(output, probe, changed=not torch.equal(given, probe))
    return torch.equal(output, probe)

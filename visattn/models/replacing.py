"""Put blocks in the place of convolutions: halos in a ResNet make a HaloNet.

>>> import timm, torch
>>> model = timm.create_model("test_resnet").eval()
>>> _ = replace(model, "mhsa", at="layer4.*.conv2")
>>> list(replacements(model)), [key for key in model.state_dict() if key.startswith("layer4.0.conv2.")]
(['layer4.0.conv2'], ['layer4.0.conv2.rel_h', 'layer4.0.conv2.rel_w', 'layer4.0.conv2.qkv.weight'])
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from visattn.blocks import block_info, create_block, is_imported, list_blocks
from visattn.listing import first_few
from visattn.models.arguments import PLACEMENT
from visattn.models.attach import changeable, check_names
from visattn.models.replaced import RECORD, Replaced, record_of, replacements
from visattn.models.resnet import behind_convolution
from visattn.models.wrapper import plain_name
from visattn.models.wrapping import attachments, exchange
from visattn.modules import check_default_device, weightless_copy
from visattn.registry import matching, suggest

COMPLETE = ("cot", "sk", "splat")  # blocks that end with a norm and an activation: a unit has no others behind them
OF_THE_CONVOLUTION = ("out_channels", "stride")  # what a block takes over; one that takes both can replace
PROBE = (33, 18)  # height and width of a map that shows how a convolution changes the size


@torch.inference_mode(False)  # weights made in inference mode could never be trained
def replace(model: nn.Module, block: str, at: str | Sequence[str], **options: Any) -> nn.Module:
    """Put a block in the place of every chosen convolution of a network, in place.

    The block has the convolution's widths, stride, groups, device and precision. What groups are to a block, its
    docstring says; one that cannot have any refuses a convolution that has, unless told ``groups=1``. It starts as its
    paper has it: what the convolution had learned is lost to the network, unlike with :func:`visattn.attach`, while all
    other weights are kept. :func:`visattn.detach` puts the convolutions back as they were. A block that ends with a
    norm and an activation (``sk``, ``splat``, ``cot``) also stands for those behind the convolution of a timm ResNet,
    as in its paper.

    Args:
        model: any network.
        block: the name of a block that can take a convolution's place: ``sk``, ``splat``, ``mhsa``, ...
        at: names and globs of convolutions (``nn.Conv2d``) larger than 1x1.
        **options: for the block.

    Returns:
        The same model.
    """
    check_default_device()
    network = changeable(model, "replace")
    check_names(at)
    return replace_at(network, block, dict.fromkeys(_chosen(network, at), options)) and model


def replacing_blocks() -> list[str]:
    """Names of the blocks that can take the place of a convolution: they are told its width and its stride."""
    return [name for name in filter(is_imported, list_blocks()) if set(OF_THE_CONVOLUTION) <= _arguments_of(name)]


def _arguments_of(block: str) -> set[str]:
    return set(inspect.signature(block_info(block).factory).parameters)


def replace_at(
    model: nn.Module, block: str, places: Mapping[str, Mapping[str, Any]], *, remember: bool = True
) -> nn.Module:
    """Put a block with its options in the place of each of these convolutions; all of them, or none.

    Args:
        model: the network.
        block: a registered name.
        places: the options, by the convolution's name.
        remember: keep the convolutions' weights, to be put back; else only what they were.
    """
    if not isinstance(block, str):
        raise TypeError(f"replace takes the name of a block (visattn.register_block), got {type(block).__name__}")
    block_info(block)  # raises if there is none
    if block not in (known := replacing_blocks()):
        raise ValueError(f"block {block!r} cannot take the place of a convolution, only {', '.join(known)} can")
    convolutions = _convolutions(model)
    for name in places:
        if name not in convolutions:
            raise ValueError(_no_convolution(model, name))
        if (problem := _problem(convolutions[name])) is not None:
            raise ValueError(f"{name!r} cannot be replaced: it {problem}")
    built = {name: _built(block, name, convolutions[name], options) for name, options in places.items()}
    followed = {name: behind_convolution(model, name) if block in COMPLETE else [] for name in places}
    for name, new in built.items():
        behind = [(nn.Identity(), module) for module in followed[name]]
        old = convolutions[name]
        exchange(model, old, new)
        for left, module in behind:
            exchange(model, module, left)
        if not remember:
            old.to("meta")
        setattr(new, RECORD, Replaced(block, dict(places[name]), old, tuple(behind)))
    return model


def _built(block: str, name: str, convolution: nn.Conv2d, options: Mapping[str, Any]) -> nn.Module:
    for option in (*OF_THE_CONVOLUTION, *PLACEMENT):
        if option in options:
            raise TypeError(f"a block has the {option} of the convolution that it replaces: leave {option}= out")
    settings: dict[str, Any] = {"out_channels": convolution.out_channels, "stride": convolution.stride[0]}
    weight = convolution.weight
    settings |= {"groups": convolution.groups, "device": weight.device, "dtype": weight.dtype, **options}
    if "groups" not in _arguments_of(block) and (groups := settings.pop("groups")) != 1:
        raise ValueError(f"{name!r}: block {block!r} cannot have {groups} groups; groups=1 puts it there without")
    return create_block(block, convolution.in_channels, **settings).train(convolution.training)


def _convolutions(model: nn.Module) -> dict[str, nn.Conv2d]:
    """The network's own convolutions by name, without those of blocks."""
    blocks = [*replacements(model).values(), *attachments(model).values()]
    parts = {part for block in blocks for part in block.modules()}
    named = {plain_name(name): module for name, module in model.named_modules() if name and module not in parts}
    return {name: module for name, module in named.items() if isinstance(module, nn.Conv2d)}


def _problem(convolution: nn.Conv2d) -> str | None:
    """Why no block can stand for a convolution; None if one can."""
    if convolution.kernel_size == (1, 1):
        return "is a 1x1 convolution, which does not look at other pixels"
    if convolution.dilation != (1, 1):
        return f"has a dilation of {convolution.dilation}, which no block has"
    if convolution.padding_mode != "zeros":
        return f"continues the map by {convolution.padding_mode!r}, and blocks do so with zeros"
    stride, other = convolution.stride
    if stride != other:
        return f"has a stride of {convolution.stride}: a block has one stride for rows and columns"
    with torch.no_grad():
        dry: Any = weightless_copy(convolution)
        probe = dry.weight.new_empty(1, dry.in_channels, *PROBE)
        size = dry.forward(probe).shape[2:]  # without anybody's hooks
    if size != tuple(-(-side // stride) for side in PROBE):
        return f"has a padding of {convolution.padding}, which changes the size of the map as no block does"
    return None


def _chosen(model: nn.Module, at: str | Sequence[str]) -> list[str]:
    """The names of the convolutions that ``at`` means; raise if one of the names or globs means none."""
    convolutions = _convolutions(model)
    patterns = [at] if isinstance(at, str) else list(at)
    if not any(patterns):
        raise ValueError("at is empty: name at least one convolution")
    chosen: dict[str, None] = {}
    every, replaced = [plain_name(name) for name, _ in model.named_modules()], replacements(model)
    for pattern in patterns:
        meant = matching(pattern, every)
        for name in meant:
            if name in replaced:
                block = record_of(replaced[name]).block
                raise ValueError(f"{name!r} has been replaced by {block!r} already: detach it first")
        matches = [name for name in meant if name in convolutions]
        if not matches:
            raise ValueError(_no_convolution(model, pattern))
        chosen |= dict.fromkeys(matches)
    return list(chosen)


def _no_convolution(model: nn.Module, pattern: str) -> str:
    modules = {plain_name(name): module for name, module in model.named_modules()}
    possible = [name for name, module in _convolutions(model).items() if _problem(module) is None]
    close = suggest(pattern, possible)
    close = f" {close}" if close.startswith("did you mean") else ""
    problem = f"no convolution matches {pattern!r}"
    if pattern in modules:
        kind = type(modules[pattern])
        inner = issubclass(kind, nn.Conv2d)
        problem = f"{pattern!r} is {'part of a block' if inner else f'a {kind.__name__}, not a 2-D convolution'}"
    return f"{problem}:{close} convolutions larger than 1x1: {first_few(possible, 8) or 'none'}"

"""The gates that attention blocks of visattn applied to a feature map, and the affinities they computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from visattn.blocks.base import BLOCKS, MEMORY, Gate
from visattn.blocks.hard import Sampled
from visattn.core.precision import precise
from visattn.heatmaps.affinities import Affinities, affinities
from visattn.heatmaps.methods.base import register_method
from visattn.heatmaps.request import MethodResult, Request
from visattn.heatmaps.scaling import FINE
from visattn.models.patch import Patch
from visattn.models.wrapper import plain_name
from visattn.models.wrapping import attachments
from visattn.modules import HookOfThread
from visattn.registry import entry_named


def why_no_gates(model: nn.Module, images: Tensor) -> str | None:
    """Why there are no gates to show; None if there are."""
    del images
    blocks = blocks_of(model)
    if _has_patches(model) or any(map(_sees_places, blocks.values())):
        return None
    if blocks:
        return f"its blocks attend to {MEMORY}, which has no places in the image"
    if attachments(model):
        return "its blocks do not say what they attend to: they have no method attention(x)"
    return "it has no visattn block: visattn.attach puts one in"


@register_method("gates", why_not=why_no_gates, looks_at_layers=True, of_class=False)
def gates(request: Request, *, layer: str | None = None) -> MethodResult:
    """The map that a block applied.

    Channel gates are in ``extra["channels"]`` by block, (B, C); affinities in ``extra["relations"]``.

    Args:
        request: model and images.
        layer: name of the block; by default the last one with a spatial map of at least 7x7.
    """
    with torch.no_grad():
        maps, channels, related = _gates(request)
        related = {**related, **(affinities(request) if _has_patches(request.model) else {})}
    for name, relation in related.items():
        maps.setdefault(name, relation.weights.mean(1).unflatten(1, relation.key_grid))
    extra = {"channels": channels, "relations": related}
    if not maps:  # channel gates are the same at every place
        return MethodResult(torch.ones(len(request.images), 1, 1), tuple(channels), extra=extra)
    if layer is None:
        fine = [name for name, each in maps.items() if min(each.shape[-2:]) >= FINE]
        layer = fine[-1] if fine else list(maps)[-1]
    return MethodResult(entry_named(layer, maps, "block with a spatial map"), (layer,), extra=extra)


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """The attention blocks in a model that can say what they attend to; attached ones by the name of their place."""
    found: dict[str, nn.Module] = {name: attached.block for name, attached in attachments(model).items()}
    taken = {part for block in found.values() for part in block.modules()}
    factories = (BLOCKS[name].factory for name in BLOCKS)
    kinds: tuple[type[nn.Module], ...] = (Gate, *(each for each in factories if isinstance(each, type)))
    for name, module in model.named_modules():
        if module not in taken and isinstance(module, kinds):
            found[plain_name(name)] = module
            taken.update(module.modules())  # a block's own parts are shown by the block
    return {name: block for name, block in found.items() if callable(getattr(block, "attention", None))}


def _sees_places(block: nn.Module) -> bool:
    """Whether what a block attends to is part of the image."""
    infos = (BLOCKS[name] for name in BLOCKS)
    return not any(i.attends == MEMORY and isinstance(i.factory, type) and isinstance(block, i.factory) for i in infos)


def _has_patches(model: nn.Module) -> bool:
    return any(isinstance(module, Patch) for module in model.modules())


def _gates(request: Request) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Affinities]]:
    """Spatial maps (B, H, W), channel gates (B, C) and relations of all blocks."""
    maps: dict[str, Tensor] = {}
    channels: dict[str, Tensor] = {}
    related: dict[str, Affinities] = {}

    def note(name: str) -> Any:
        def hook(module: nn.Module, args: Any, options: Any) -> None:
            x, *_ = args  # and a signal, where a block takes one
            attention = module.attention(*args, **options)  # type: ignore[operator]
            attention = precise(attention.mask if isinstance(attention, Sampled) else attention)
            size = (x.shape[2], x.shape[3])
            if attention.shape[1:] == x.shape[1:] or attention.shape[1:] == (1, *size):
                maps[name] = attention.mean(1)
            if attention.shape[1] == x.shape[1] and attention.shape[2:] in ((1, 1), size):
                channels[name] = attention.mean((2, 3))
            if name in maps or name in channels:
                return
            queries, keys = (_grid(number, size) for number in attention.shape[-2:])
            if queries and keys:
                related[name] = Affinities(attention.mean(1), queries, keys)
                maps[name] = related[name].weights.mean(1).unflatten(1, keys)

        return hook

    handles = [
        block.register_forward_pre_hook(HookOfThread(note(name)), with_kwargs=True)
        for name, block in blocks_of(request.model).items()
        if _sees_places(block)
    ]
    try:
        request.run()
    finally:
        for handle in handles:
            handle.remove()
    return maps, channels, related


def _grid(number: int, size: tuple[int, int]) -> tuple[int, int] | None:
    """The grid of so many places of a map, or of what was pooled by an equal factor along both sides."""
    grids = ((-(-size[0] // factor), -(-size[1] // factor)) for factor in range(1, max(size) + 1))
    return next((grid for grid in grids if grid[0] * grid[1] == number), None)

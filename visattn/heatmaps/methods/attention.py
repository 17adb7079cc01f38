"""The attention weights of one layer, as they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from visattn.core.arguments import one_or_several, whole
from visattn.heatmaps.methods.base import register_method
from visattn.heatmaps.request import MethodResult, Request
from visattn.heatmaps.watch.cache import on_device
from visattn.heatmaps.watch.calls import Call
from visattn.heatmaps.watch.exactness import row_slices
from visattn.heatmaps.watch.geometry import geometry, reporting_layers
from visattn.heatmaps.watch.layers import Layer
from visattn.registry import entry_named


def why_no_attention(model: nn.Module, images: Tensor) -> str | None:
    """Why there is no map of attention weights; None if there is."""
    found = geometry(model, images)
    if not found.layers:
        return "the model has no attention between tokens"
    if parts := [layer.name for layer in found.layers if layer.beside]:
        return (
            f"{parts[0]!r} computes its attention in parts beside each other, a few heads, queries or images at a time"
        )
    if not found.spatial():
        if any(".quantized" in type(module).__module__ for module in model.modules()):
            return "it is quantised: which part of the image a token stands for cannot be followed through its layers"
        return f"its attention is {found.layers[0].kind}: between channels, not between places"
    return None


@register_method("attention", why_not=why_no_attention, looks_at_layers=True, of_class=False)
def attention(request: Request, *, layer: str | int | None = None, head: int | None = None) -> MethodResult:
    """The weights of one layer.

    Args:
        request: model and images.
        layer: name of the layer, or its number (-1 is the last); by default the last one whose keys are patches.
        head: only this one; the mean of all by default.
    """
    found = geometry(request.model, request.images)
    chosen = choose_layer(found.layers, layer)
    _check_head(chosen, head)
    kept: list[Tensor] = []

    def keep(each: Layer, call: Call) -> None:
        if each is chosen:
            kept.append(seen_by_readers(each, call, [head]))

    with torch.no_grad():
        request.run(reporting_layers(request.model, found, keep))
    return MethodResult(kept[-1][:, 0], (chosen.name,))


def every_head(
    request: Request, layers: str | int | Sequence[str | int] | None = None, heads: int | Sequence[int] | None = None
) -> dict[tuple[str, int], Tensor]:
    """The weights of many layers and heads from one forward pass, (B, height, width) by name and number."""
    found = geometry(request.model, request.images)
    named = None if layers is None else one_or_several("layers", layers)
    numbered = None if heads is None else one_or_several("heads", heads)
    wanted = found.spatial() if named is None else [choose_layer(found.layers, each) for each in named]
    for layer in wanted:
        for head in numbered or ():
            _check_head(layer, head)
    maps: dict[tuple[str, int], Tensor] = {}

    def keep(layer: Layer, call: Call) -> None:
        if any(layer is each for each in wanted):
            numbers = list(range(layer.heads)) if numbered is None else numbered
            seen = seen_by_readers(layer, call, numbers)
            maps.update(((layer.name, head), seen[:, number]) for number, head in enumerate(numbers))

    with torch.no_grad():
        request.run(reporting_layers(request.model, found, keep))
    return maps


def _check_head(layer: Layer, head: int | None) -> None:
    if head is not None and whole(head) is None:
        raise TypeError(f"a head is a number, got {head!r}")
    if head is not None and not -layer.heads <= head < layer.heads:
        raise ValueError(f"{layer.name!r} has {layer.heads} heads, numbered from 0; there is no head {head}")


def choose_layer(layers: list[Layer], wanted: str | int | None) -> Layer:
    """A layer by name or number; one without patches raises."""
    if wanted is None:
        chosen = [layer for layer in layers if layer.keys.spatial][-1]
    elif (number := whole(wanted)) is not None:
        if not -len(layers) <= number < len(layers):
            raise ValueError(f"the model has {len(layers)} attention layers, numbered from 0; there is no {wanted}")
        chosen = layers[number]
    elif not isinstance(wanted, str):
        raise TypeError(f"layer is the name or the number of an attention layer, got {wanted!r}")
    else:
        chosen = entry_named(wanted, {layer.name: layer for layer in layers}, "attention layer")
    if not chosen.keys.spatial:
        raise ValueError(f"the attention of {chosen.name!r} is {chosen.kind}: it has no heatmap")
    return chosen


def seen_by_readers(layer: Layer, call: Call, heads: Sequence[int | None]) -> Tensor:
    """(B, heads, height, width): the weights of those queries that the output reads, or of all, summed over windows.

    Args:
        layer, call: the layer and its attention.
        heads: which heads; None is the mean of all.
    """
    read = layer.read if layer.read.any() else torch.ones_like(layer.read)
    readers = on_device(read, call.output.device)
    received: Tensor | None = None  # (B, windows, heads, Nk)
    for rows in row_slices(call.rows(), layer.keys.index.shape[1]):
        if read[:, rows].any():
            maps = layer.arrange(call.weights(rows))
            part = (maps * readers[:, None, rows, None]).sum(3)
            received = part if received is None else received + part
    assert received is not None
    assert layer.keys.grid is not None
    chosen = torch.stack([received.mean(2) if head is None else received[:, :, head] for head in heads], 1).flatten(2)
    where, numbers = (on_device(each, chosen.device) for each in layer.keys.patches)
    height, width = layer.keys.grid.size
    total = chosen.new_zeros(*chosen.shape[:2], height * width).index_add_(2, numbers, chosen[:, :, where])
    return total.unflatten(2, (height, width)) / read.sum()

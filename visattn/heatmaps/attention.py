r"""Heatmaps from attention weights.

================  ====================================================================================================
``attention``     the weights of one layer, as they are
``rollout``       Abnar & Zuidema 2020, https://arxiv.org/abs/2005.00928: :math:`R = A'_L \cdots A'_1` with
                  :math:`A' = \tfrac12 (A + I)`, A the mean over heads
``grad_rollout``  the same with A the mean over heads of :math:`\mathrm{ReLU}(\nabla A \odot A)`; A + I row-normalised
``chefer``        Chefer et al. 2021, https://arxiv.org/abs/2103.15679:
                  :math:`R \leftarrow R + \mathrm{mean}_h\,\mathrm{ReLU}(\nabla A \odot A)\, R`
``legrad``        Bousselham et al. 2024, https://arxiv.org/abs/2404.03214: the mean over layers, heads and queries
                  of :math:`\mathrm{ReLU}(\nabla A_l\, s_l)`, the score read from the tokens behind layer l
================  ====================================================================================================

:math:`\nabla A` is the gradient of the class score. With fused attention it follows from the gradient of the context,
:math:`\nabla A = \nabla O\, V^\top`, so the kernel stays on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from visattn.core.arguments import whole
from visattn.heatmaps.propagation import FUSIONS, Propagation, discard_smallest, fuse_heads
from visattn.heatmaps.request import MethodResult, Request, matching
from visattn.heatmaps.watch.cache import on_device
from visattn.heatmaps.watch.calls import Call
from visattn.heatmaps.watch.exactness import exactly, pieces
from visattn.heatmaps.watch.geometry import Geometry, Layer, geometry
from visattn.heatmaps.watch.interception import intercepting
from visattn.registry import suggest


def attention(request: Request, *, layer: str | int | None = None, head: int | None = None) -> MethodResult:
    """The weights of one layer.

    Args:
        request: model and images.
        layer: name of the layer, or its number (-1 is the last); the last one whose keys are patches unless given.
        head: only this one; the mean of all unless given.
    """
    found = geometry(request.model, request.images)
    chosen = choose_layer(found.layers, layer)
    _check_head(chosen, head)
    kept: list[Tensor] = []

    def keep(each: Layer, call: Call) -> None:
        if each is chosen:
            kept.append(seen_by_readers(each, call, [head]))

    with torch.no_grad():
        request.run(watching(request, found, keep))
    return MethodResult(kept[-1][:, 0], (chosen.name,))


def every_head(
    request: Request, layers: Sequence[str | int] | None = None, heads: Sequence[int] | None = None
) -> dict[tuple[str, int], Tensor]:
    """The weights of many layers and heads from one forward pass, (B, height, width) by name and number."""
    found = geometry(request.model, request.images)
    wanted = found.spatial() if layers is None else [choose_layer(found.layers, each) for each in layers]
    for layer in wanted:
        for head in heads or ():
            _check_head(layer, head)
    maps: dict[tuple[str, int], Tensor] = {}

    def keep(layer: Layer, call: Call) -> None:
        if any(layer is each for each in wanted):
            numbers = list(range(layer.heads) if heads is None else heads)
            seen = seen_by_readers(layer, call, numbers)
            maps.update(((layer.name, head), seen[:, number]) for number, head in enumerate(numbers))

    with torch.no_grad():
        request.run(watching(request, found, keep))
    return maps


def _check_head(layer: Layer, head: int | None) -> None:
    if head is not None and whole(head) is None:
        raise TypeError(f"a head is a number, got {head!r}")
    if head is not None and not -layer.heads <= head < layer.heads:
        raise ValueError(f"{layer.name!r} has {layer.heads} heads, numbered from 0; there is no head {head}")


def rollout(request: Request, *, fusion: str = "mean", discard: float = 0.0) -> MethodResult:
    """What the output is made of, if every layer passed on half of what it attends to and half of what it had.

    Args:
        request: model and images.
        fusion: how heads become one: ``mean``, ``max`` or ``min``.
        discard: this share of the smallest weights of every layer is left out.
    """
    if fusion not in FUSIONS:
        raise ValueError(f"unknown fusion {fusion!r}: {suggest(fusion, FUSIONS)}")
    if not 0 <= discard < 1:
        raise ValueError(f"discard is a share below 1, got {discard}")
    found = geometry(request.model, request.images)
    state = Propagation(found, normalised=True)
    passed: list[str] = []
    frames: list[Tensor] = []

    def go_through(layer: Layer, call: Call) -> None:
        if layer.leads_on:
            fused = partial(weights_in_pieces, layer, call, fusion)
            if discard:  # the smallest of all
                whole_map = discard_smallest(torch.cat(list(fused()), 2), discard, layer.keys)
                state.add(layer, lambda: [whole_map])
            else:
                state.add(layer, fused)
            passed.append(layer.name)
            if request.frames:
                frames.append(state.readout())

    with torch.no_grad():
        request.run(watching(request, found, go_through))
    return MethodResult(state.readout(), tuple(passed), frames=tuple(frames))


def grad_rollout(request: Request) -> MethodResult:
    """Rollout of those weights that speak for the class."""
    return _relevance(request, normalised=True)


def chefer(request: Request) -> MethodResult:
    """Generic attention explainability: relevance added up from layer to layer."""
    return _relevance(request, normalised=False)


def _relevance(request: Request, *, normalised: bool) -> MethodResult:
    found = geometry(request.model, request.images)
    state = Propagation(found, normalised=normalised)
    calls: list[tuple[Layer, Call]] = []

    def keep(layer: Layer, call: Call) -> None:
        if layer.leads_on:
            calls.append((layer, call))

    with torch.enable_grad():
        request.run(watching(request, found, keep), images=request.images.clone().requires_grad_())
        leaves = [call.leaf() for _, call in calls]
        gradients = torch.autograd.grad(request.score(), leaves, allow_unused=True)
    with exactly(request.images.device):
        for (layer, call), gradient in zip(calls, gradients, strict=True):
            state.add(layer, partial(_gains, layer, call, gradient))
    return MethodResult(state.readout(), tuple(layer.name for layer, _ in calls))


def _gains(layer: Layer, call: Call, gradient: Tensor | None) -> Iterator[Tensor]:
    """ReLU of the gradient times the weights, heads averaged, piece by piece."""
    for rows in pieces(call.rows(), layer.keys.index.shape[1]):
        weights = layer.arrange(call.weights(rows))
        gain = weights.new_zeros(()) if gradient is None else layer.arrange(call.gradient(gradient, rows))
        yield fuse_heads((gain * weights).clamp(min=0))


def legrad(request: Request) -> MethodResult:
    """How much the score, read behind each block, would gain from more attention to a patch."""
    model: Any = request.model
    found = geometry(model, request.images)
    blocks = list(model.blocks)
    outputs: list[Tensor] = []
    calls: list[tuple[Layer, Call]] = []

    def keep(layer: Layer, call: Call) -> None:
        if layer.name.startswith("blocks."):
            calls.append((layer, call))

    handles = [block.register_forward_hook(lambda _m, _a, output: outputs.append(output)) for block in blocks]
    try:
        with torch.enable_grad():
            request.run(watching(request, found, keep), images=request.images.clone().requires_grad_())
            gradients = [
                torch.autograd.grad(request.score(model.forward_head(model.norm(tokens))), call.leaf())[0]
                for tokens, (_, call) in reversed(list(zip(outputs, calls, strict=True)))
            ]
    finally:
        for handle in handles:
            handle.remove()
    with exactly(request.images.device):
        gains = [
            torch.stack(
                [
                    layer.arrange(call.gradient(gradient, rows)).clamp(min=0).mean((1, 2)).sum(1)  # (B, Nk)
                    for rows in pieces(call.rows(), layer.keys.index.shape[1])
                ]
            ).sum(0)
            / layer.queries.index.shape[1]
            for (layer, call), gradient in zip(calls, reversed(gradients), strict=True)
        ]
        keys = calls[0][0].keys
        assert keys.grid is not None
        patches = torch.stack(gains).mean(0)[:, on_device(keys.patches[0], request.images.device)]
    return MethodResult(patches.unflatten(1, keys.grid.size), tuple(layer.name for layer, _ in calls))


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
        return f"its attention is {found.layers[0].kind}: between channels, not between places"
    return None


def why_no_rollout(model: nn.Module, images: Tensor) -> str | None:
    """Why attention cannot be followed from the output back to the patches."""
    if reason := why_no_attention(model, images):
        return reason
    if not any(layer.leads_on for layer in geometry(model, images).layers):
        return (
            "its attention collects from patches into what has no known place in the image, such as channels or states"
        )
    return None


def why_no_legrad(model: nn.Module, images: Tensor) -> str | None:
    """Why the class cannot be read behind every block."""
    if reason := why_no_rollout(model, images):
        return reason
    needs = "it reads the class from the tokens behind every block, which takes a plain transformer"
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.Sequential | nn.ModuleList) or not isinstance(getattr(model, "norm", None), nn.Module):
        return needs
    inside = [layer for layer in geometry(model, images).layers if layer.name.startswith("blocks.")]
    same = {id(tokens) for layer in inside for tokens in (layer.queries, layer.keys)}
    plain = len(inside) == len(blocks) and len(same) == 1 and callable(getattr(model, "forward_head", None))
    read = plain and inside[-1].leads_on and inside[-1].windows == 1 and bool(inside[-1].read.any())
    return None if read else needs


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
        chosen = matching(wanted, {layer.name: layer for layer in layers}, "attention layer")
    if not chosen.keys.spatial:
        raise ValueError(f"the attention of {chosen.name!r} is {chosen.kind}: it has no heatmap")
    return chosen


def seen_by_readers(layer: Layer, call: Call, heads: Sequence[int | None]) -> Tensor:
    """(B, heads, height, width): the weights of those queries that the output reads, or of all, summed over windows.

    Args:
        layer, call: whose weights they are.
        heads: which ones; None is the mean of all.
    """
    read = layer.read if layer.read.any() else torch.ones_like(layer.read)
    readers = on_device(read, call.output.device)
    received: Tensor | None = None  # (B, windows, heads, Nk)
    for rows in pieces(call.rows(), layer.keys.index.shape[1]):
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


def weights_in_pieces(layer: Layer, call: Call, fusion: str = "mean") -> Iterator[Tensor]:
    """The weights (B, windows, some rows, Nk) of all heads together, from the first row to the last."""
    for rows in pieces(call.rows(), layer.keys.index.shape[1]):
        yield fuse_heads(layer.arrange(call.weights(rows)), fusion)  # one piece has no name while the next is made


@contextmanager
def watching(request: Request, found: Geometry, note: Callable[[Layer, Call], None]) -> Iterator[None]:
    """Call a function with every layer of a forward pass and what happened there."""
    layers = iter(found.layers)

    def match(call: Call) -> None:
        with exactly(call.output.device):
            note(next(layers), call)

    with intercepting(request.model, match):
        yield

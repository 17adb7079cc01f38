r"""Attention weighted by what happens to the tokens: TokenTM (Wu et al., CVPR 2024, https://arxiv.org/abs/2403.14552).

For tokens :math:`x_i` before and :math:`y_i` behind a part of a block, how much they grow and how little they turn is

.. math:: w_i = \frac{\lVert y_i \rVert}{\lVert x_i \rVert}\, \mathrm{softmax}_i \cos(x_i, y_i)

with the softmax over all tokens. Relevance starts with the lengths of the tokens that enter the first block, and is
carried through attention (a) and MLP (m) of each block, much as by ``chefer``:

.. math:: C \leftarrow \bigl(I + \mathrm{diag}\, w^m\bigr)
    \bigl(I + \mathrm{mean}_h\, \mathrm{ReLU}(\nabla A) \odot A\, \mathrm{diag}\, w^a\bigr)\, C

:math:`\nabla A` is the gradient of the class score. The heatmap is the row of the tokens that the output reads.

Differences from the paper: these are its equations as Mehri et al., CVPR 2025 (https://arxiv.org/abs/2411.16760) read
them for their comparison, whose figures are the ones to compare with. As there, tokens are those of the residual
stream, before a part of the block and behind it, shortcut included; the paper may mean the values that attention adds
up. Unlike there, gradients and weights are not averaged over the heads one by one: their product is, as in ``chefer``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.core.precision import precise
from visattn.heatmaps.methods.base import register_method
from visattn.heatmaps.methods.relevance import gains
from visattn.heatmaps.methods.rollout import why_no_rollout
from visattn.heatmaps.propagation import Propagation
from visattn.heatmaps.request import MethodResult, Request, backward_pass
from visattn.heatmaps.watch.cache import cached
from visattn.heatmaps.watch.calls import Call
from visattn.heatmaps.watch.exactness import full_precision
from visattn.heatmaps.watch.geometry import geometry, reporting_layers
from visattn.heatmaps.watch.layers import Layer
from visattn.models.survey import dry_run
from visattn.modules import HookOfThread

NEEDS = "it follows every token through the attention and the MLP of each block, which takes a plain transformer"


def _block_around(model: nn.Module, name: str) -> str | None:
    """The innermost module around an attention layer that has an MLP, too."""
    while "." in name:
        name = name.rpartition(".")[0]
        if isinstance(getattr(model.get_submodule(name), "mlp", None), nn.Module):
            return name
    return None


@contextmanager
def _streams(model: nn.Module, blocks: Sequence[str]) -> Iterator[dict[str, list[Tensor]]]:
    """Keep for every block the tokens that enter it, those behind its attention, and those that leave it."""
    kept: dict[str, list[Tensor]] = {name: [] for name in blocks}

    def keep(name: str, at: int) -> Any:
        def note(tokens: Any) -> None:
            if len(kept[name]) == at and isinstance(tokens, Tensor):
                with torch.no_grad():
                    kept[name].append(tokens.clone())

        return note

    handles = []
    for name in blocks:
        block = model.get_submodule(name)
        entering, between, leaving = (keep(name, at) for at in range(3))
        handles.append(block.register_forward_pre_hook(HookOfThread(lambda _m, args, note=entering: note(args[0]))))
        for half in (getattr(block, "norm2", None), block.mlp):  # whichever comes first begins the second half
            if isinstance(half, nn.Module):
                handles.append(
                    half.register_forward_pre_hook(HookOfThread(lambda _m, args, note=between: note(args[0])))
                )
        handles.append(block.register_forward_hook(HookOfThread(lambda _m, _a, out, note=leaving: note(out))))
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()


def _blocks(model: nn.Module, images: Tensor) -> list[str] | None:
    """The blocks around the attention layers, one for each; None if the model is no plain transformer."""

    def find() -> list[str] | None:
        layers = geometry(model, images).layers
        if any(not layer.leads_on or layer.windows > 1 for layer in layers):
            return None
        if len({id(tokens) for layer in layers for tokens in (layer.queries, layer.keys)}) > 1:
            return None
        names = [_block_around(model, layer.name) for layer in layers]
        blocks = [name for name in names if name is not None]
        if len(set(blocks)) < len(layers):
            return None

        def shapes(own: nn.Module, example: Tensor) -> list[torch.Size]:
            with _streams(own, blocks) as kept:
                own(example)
            return [
                tokens.shape if tokens.ndim == 3 else tokens.flatten(1, -2).shape
                for each in kept.values()
                for tokens in each
            ]

        number = layers[0].queries.index.shape[1]
        found = dry_run(model, images[:1], shapes)
        same = len(found) == 3 * len(blocks) and all(shape[1] == number and shape[2] == found[0][2] for shape in found)
        return blocks if same else None

    return cached(model, images, "blocks with attention and MLP", find)


def why_no_tokentm(model: nn.Module, images: Tensor) -> str | None:
    """Why tokens cannot be followed through every block."""
    return why_no_rollout(model, images) or (NEEDS if _blocks(model, images) is None else None)


@register_method("tokentm", why_not=why_no_tokentm, looks_at_layers=True)
def tokentm(request: Request, *, balanced: bool = False) -> MethodResult:
    """Relevance accumulated from layer to layer, weighted by how tokens grow and turn.

    Args:
        request: model and images.
        balanced: take gradients from a balanced backward pass (:mod:`visattn.heatmaps.balanced`).
    """
    found = geometry(request.model, request.images)
    blocks = _blocks(request.model, request.images)
    assert blocks is not None
    calls: list[Call] = []

    def keep(_layer: Layer, call: Call) -> None:
        calls.append(call)

    with (
        torch.enable_grad(),
        backward_pass(request, is_balanced=balanced, weights=True),
        _streams(request.model, blocks) as streams,
    ):
        request.run(reporting_layers(request.model, found, keep), images=request.images.clone().requires_grad_())
        gradients = torch.autograd.grad(request.score(), [call.leaf() for call in calls], allow_unused=True)
    state = Propagation(found, normalised=False)
    with full_precision(request.images.device):
        for layer, call, gradient, name in zip(found.layers, calls, gradients, blocks, strict=True):
            before, between, after = (precise(tokens.flatten(1, -2)) for tokens in streams[name])
            attended = _transformation(before, between)[:, None, None]  # (B, 1, 1, Nk)
            state.add(layer, partial(_weighted, layer, call, gradient, attended))
            state.scale(1 + _transformation(between, after)[:, None])
        lengths = precise(streams[blocks[0]][0].flatten(1, -2)).norm(dim=-1)
        grid = found.layers[0].keys.grid
        assert grid is not None
        patches = lengths[:, found.layers[0].keys.patches[0].to(lengths.device)].unflatten(1, grid.size)
        patches = F.adaptive_avg_pool2d(patches, state.source.size)  # neighbours may have been merged
        return MethodResult(state.readout() * patches, tuple(layer.name for layer in found.layers))


def _transformation(before: Tensor, after: Tensor) -> Tensor:
    """(B, N): the ratio of lengths times the softmax over tokens of the cosine, for tokens (B, N, C)."""
    smallest = torch.finfo(before.dtype).tiny
    ratio = after.norm(dim=-1) / before.norm(dim=-1).clamp(min=smallest)
    return ratio * F.cosine_similarity(before, after, dim=-1, eps=smallest).softmax(-1)


def _weighted(layer: Layer, call: Call, gradient: Tensor | None, weights: Tensor) -> Iterator[Tensor]:
    for piece in gains(layer, call, gradient):
        yield piece * weights

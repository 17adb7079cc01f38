r"""Attention rollout (Abnar & Zuidema 2020, https://arxiv.org/abs/2005.00928).

.. math:: R = A'_L \cdots A'_1, \quad A' = \tfrac12 (A + I)

A is the attention of a layer, averaged over its heads.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn

from visattn.heatmaps.methods.attention import why_no_attention
from visattn.heatmaps.methods.base import register_method
from visattn.heatmaps.propagation import FUSIONS, Propagation, discard_smallest, fuse_heads
from visattn.heatmaps.request import MethodResult, Request
from visattn.heatmaps.watch.calls import Call
from visattn.heatmaps.watch.geometry import geometry, reporting_layers
from visattn.heatmaps.watch.layers import Layer
from visattn.registry import suggest


def why_no_rollout(model: nn.Module, images: Tensor) -> str | None:
    """Why attention cannot be followed from the output back to the patches."""
    if reason := why_no_attention(model, images):
        return reason
    if not any(layer.leads_on for layer in geometry(model, images).layers):
        return (
            "its attention collects from patches into what has no known place in the image, such as channels or states"
        )
    return None


@register_method("rollout", why_not=why_no_rollout, looks_at_layers=True, of_class=False)
def rollout(request: Request, *, fusion: str = "mean", discard: float = 0.0) -> MethodResult:
    """Trace the output back to the patches, as if every layer passed on half attention and half identity.

    Args:
        request: model and images.
        fusion: how heads are merged: ``mean``, ``max`` or ``min``.
        discard: the fraction of every layer's smallest weights to leave out.
    """
    if fusion not in FUSIONS:
        raise ValueError(f"unknown fusion {fusion!r}: {suggest(fusion, FUSIONS)}")
    if not 0 <= discard < 1:
        raise ValueError(f"discard is a share below 1, got {discard}")
    found = geometry(request.model, request.images)
    state = Propagation(found, normalised=True)
    passed: list[str] = []
    frames: list[Tensor] = []

    def fused_pieces(layer: Layer, call: Call) -> Iterable[Tensor]:
        return map(partial(fuse_heads, fusion=fusion), layer.weights_in_pieces(call))  # none is kept for the next

    def go_through(layer: Layer, call: Call) -> None:
        if layer.leads_on:
            if discard:  # the smallest of all
                fused = torch.cat(list(fused_pieces(layer, call)), 2)
                fused = discard_smallest(fused, discard, layer.keys)
                state.add(layer, lambda: [fused])
            else:
                state.add(layer, lambda: fused_pieces(layer, call))
            passed.append(layer.name)
            if request.frames:
                frames.append(state.readout())

    with torch.no_grad():
        request.run(reporting_layers(request.model, found, go_through))
    return MethodResult(state.readout(), tuple(passed), frames=tuple(frames))

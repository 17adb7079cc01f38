r"""Attentive class activation tokens (Qiang et al., NeurIPS 2022, https://openreview.net/forum?id=cA8Zor8wFr5).

.. math:: m_i = \sum_l \alpha^l_i \sum_c h^l_{ic}\, \nabla h^l_{ic}

:math:`h^l` is the output of block l, with i a token and c a channel; :math:`\alpha^l_i` is the attention that token i
receives in that block, averaged over heads and queries. Of a class token's last block nothing is seen: nobody reads the
patches behind it.

Differences from the paper: an attention map has a row and a column for every token. Here it is the column, what a
token receives, as in the authors' code and in Mehri et al., CVPR 2025. Where patches attend in windows, the average is
over the queries of the window. Maps of several resolutions are added up as in
:mod:`visattn.heatmaps.methods.fullgrad`. Layers of class attention, which do not change the patches, are left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.heatmaps.methods.attention import seen_by_readers
from visattn.heatmaps.methods.base import register_method
from visattn.heatmaps.methods.fullgrad import added_up
from visattn.heatmaps.methods.rollout import why_no_rollout
from visattn.heatmaps.request import MethodResult, Request, backward_pass
from visattn.heatmaps.watch.cache import cached
from visattn.heatmaps.watch.calls import Call
from visattn.heatmaps.watch.exactness import full_precision
from visattn.heatmaps.watch.geometry import geometry, reporting_layers
from visattn.heatmaps.watch.layers import Layer
from visattn.models.layout import Place
from visattn.models.places import survey_places
from visattn.modules import HookOfThread


def _blocks(model: nn.Module, images: Tensor) -> dict[str, Place]:
    """For the name of every attention layer the innermost residual block around it, if that returns a map."""

    def find() -> dict[str, Place]:
        found = survey_places(model, images)
        places = found.places()
        blocks = [places[name] for name in found.blocks() if name in places and places[name].index is None]
        around: dict[str, Place] = {}
        for layer in geometry(model, images).layers:
            inside = [block for block in blocks if layer.name.startswith(f"{block.name}.")]
            if inside and layer.keys.spatial and layer.queries.spatial:
                around[layer.name] = max(inside, key=lambda block: len(block.name))
        return around

    return cached(model, images, "blocks around attention", find)


def why_no_attcat(model: nn.Module, images: Tensor) -> str | None:
    """Why features and attention of the same block cannot be had."""
    if reason := why_no_rollout(model, images):
        return reason
    none = "none of its layers of attention between patches is in a residual block that returns a map"
    try:
        return None if _blocks(model, images) else none
    except ValueError:
        return none


@register_method("attcat", why_not=why_no_attcat, looks_at_layers=True, signed=True)
def attcat(request: Request, *, balanced: bool = False) -> MethodResult:
    """What every token contributes behind each block, as far as it is attended to.

    Args:
        request: model and images.
        balanced: take gradients from a balanced backward pass (:mod:`visattn.heatmaps.balanced`).
    """
    found = geometry(request.model, request.images)
    blocks = _blocks(request.model, request.images)
    outputs: dict[str, Tensor] = {}
    received: list[tuple[Layer, Tensor]] = []

    def keep_output(name: str) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
            outputs[name] = output
            return output.clone()  # the next block may write over it

        return HookOfThread(hook)

    def keep_received(layer: Layer, call: Call) -> None:
        if layer.name in blocks:
            of_all = replace(layer, read=torch.ones_like(layer.read))
            received.append((layer, layer.windows * seen_by_readers(of_all, call, [None])[:, 0]))

    places = {block.name: block for block in blocks.values()}
    handles = [request.model.get_submodule(name).register_forward_hook(keep_output(name)) for name in places]
    try:
        with torch.enable_grad(), backward_pass(request, is_balanced=balanced):
            request.run(
                reporting_layers(request.model, found, keep_received), images=request.images.clone().requires_grad_()
            )
            gradients = torch.autograd.grad(request.score(), list(outputs.values()), allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    size = (request.images.shape[-2], request.images.shape[-1])
    contributions: dict[str, Tensor] = {}  # (B, height, width)
    with full_precision(request.images.device):
        for (name, output), gradient in zip(outputs.items(), gradients, strict=True):
            product = torch.zeros_like(output) if gradient is None else output * gradient
            layout = places[name].layout
            contributions[name] = layout.to_map(product, layout.size(product.shape, size)).sum(1)
        maps = []
        for layer, weights in received:
            each = contributions[blocks[layer.name].name]
            if weights.shape != each.shape:  # keys that were pooled
                weights = F.interpolate(weights[:, None], each.shape[-2:], mode="bilinear", align_corners=False)[:, 0]
            maps.append(weights * each)
    return MethodResult(added_up(maps), tuple(layer.name for layer, _ in received))

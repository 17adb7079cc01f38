r"""LeGrad (Bousselham et al. 2024, https://arxiv.org/abs/2404.03214).

The mean over layers, heads and queries of :math:`\mathrm{ReLU}(\nabla A_l\, s_l)`, where the class score :math:`s_l` is
read from the tokens after layer l.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from visattn.heatmaps.methods.base import register_method
from visattn.heatmaps.methods.rollout import why_no_rollout
from visattn.heatmaps.request import MethodResult, Request, backward_pass
from visattn.heatmaps.watch.cache import on_device
from visattn.heatmaps.watch.calls import Call
from visattn.heatmaps.watch.exactness import full_precision, row_slices
from visattn.heatmaps.watch.geometry import geometry, reporting_layers
from visattn.heatmaps.watch.layers import Layer
from visattn.modules import HookOfThread


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


@register_method("legrad", why_not=why_no_legrad, looks_at_layers=True)
def legrad(request: Request, *, balanced: bool = False) -> MethodResult:
    """How much the score, read after each block, would gain from more attention to a patch.

    Args:
        request: model and images.
        balanced: take gradients from a balanced backward pass (:mod:`visattn.heatmaps.balanced`).
    """
    model: Any = request.model
    found = geometry(model, request.images)
    blocks = list(model.blocks)
    outputs: list[Tensor] = []
    calls: list[tuple[Layer, Call]] = []

    def keep(layer: Layer, call: Call) -> None:
        if layer.name.startswith("blocks."):
            calls.append((layer, call))

    hook = HookOfThread(lambda _m, _a, output: outputs.append(output))  # which copies of the model leave out
    handles = [block.register_forward_hook(hook) for block in blocks]
    try:
        with torch.enable_grad(), backward_pass(request, is_balanced=balanced, weights=True):
            request.run(reporting_layers(request.model, found, keep), images=request.images.clone().requires_grad_())
            gradients = [
                torch.autograd.grad(request.score(model.forward_head(model.norm(tokens))), call.leaf())[0]
                for tokens, (_, call) in reversed(list(zip(outputs, calls, strict=True)))
            ]
    finally:
        for handle in handles:
            handle.remove()
    with full_precision(request.images.device):
        gains = [
            torch.stack(
                [
                    layer.arrange(call.gradient(gradient, rows)).clamp(min=0).mean((1, 2)).sum(1)  # (B, Nk)
                    for rows in row_slices(call.rows(), layer.keys.index.shape[1])
                ]
            ).sum(0)
            / layer.queries.index.shape[1]
            for (layer, call), gradient in zip(calls, reversed(gradients), strict=True)
        ]
        keys = calls[0][0].keys
        assert keys.grid is not None
        patches = torch.stack(gains).mean(0)[:, on_device(keys.patches[0], request.images.device)]
    return MethodResult(patches.unflatten(1, keys.grid.size), tuple(layer.name for layer, _ in calls))

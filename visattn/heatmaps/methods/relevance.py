r"""Rollout of the attention that supports a class.

================  ====================================================================================================
``grad_rollout``  rollout with A the mean over heads of :math:`\mathrm{ReLU}(\nabla A \odot A)`; A + I row-normalised
``chefer``        Chefer et al. 2021, https://arxiv.org/abs/2103.15679:
                  :math:`R \leftarrow R + \mathrm{mean}_h\,\mathrm{ReLU}(\nabla A \odot A)\, R`
================  ====================================================================================================

:math:`\nabla A` is the gradient of the class score. With fused attention it follows from the gradient of the context,
:math:`\nabla A = \nabla O\, V^\top`, so the fused kernel stays in use.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from visattn.heatmaps.methods.base import register_method
from visattn.heatmaps.methods.rollout import why_no_rollout
from visattn.heatmaps.propagation import Propagation, fuse_heads
from visattn.heatmaps.request import MethodResult, Request, backward_pass
from visattn.heatmaps.watch.calls import Call
from visattn.heatmaps.watch.exactness import full_precision, row_slices
from visattn.heatmaps.watch.geometry import geometry, reporting_layers
from visattn.heatmaps.watch.layers import Layer


@register_method("grad_rollout", why_not=why_no_rollout, looks_at_layers=True)
def grad_rollout(request: Request, *, balanced: bool = False) -> MethodResult:
    """Rollout of the weights that support the class.

    Args:
        request: model and images.
        balanced: take gradients from a balanced backward pass (:mod:`visattn.heatmaps.balanced`).
    """
    return _relevance(request, normalised=True, balanced=balanced)


@register_method("chefer", why_not=why_no_rollout, looks_at_layers=True)
def chefer(request: Request, *, balanced: bool = False) -> MethodResult:
    """Generic attention explainability: relevance accumulated from layer to layer.

    Args:
        request: model and images.
        balanced: take gradients from a balanced backward pass (:mod:`visattn.heatmaps.balanced`).
    """
    return _relevance(request, normalised=False, balanced=balanced)


def _relevance(request: Request, *, normalised: bool, balanced: bool) -> MethodResult:
    found = geometry(request.model, request.images)
    state = Propagation(found, normalised=normalised)
    calls: list[tuple[Layer, Call]] = []

    def keep(layer: Layer, call: Call) -> None:
        if layer.leads_on:
            calls.append((layer, call))

    with torch.enable_grad(), backward_pass(request, is_balanced=balanced, weights=True):
        request.run(reporting_layers(request.model, found, keep), images=request.images.clone().requires_grad_())
        leaves = [call.leaf() for _, call in calls]
        gradients = torch.autograd.grad(request.score(), leaves, allow_unused=True)
    with full_precision(request.images.device):
        for (layer, call), gradient in zip(calls, gradients, strict=True):
            state.add(layer, partial(gains, layer, call, gradient))
    return MethodResult(state.readout(), tuple(layer.name for layer, _ in calls))


def gains(layer: Layer, call: Call, gradient: Tensor | None) -> Iterator[Tensor]:
    """ReLU of the gradient times the weights, heads averaged, piece by piece."""
    for rows in row_slices(call.rows(), layer.keys.index.shape[1]):
        weights = layer.arrange(call.weights(rows))
        gain = weights.new_zeros(()) if gradient is None else layer.arrange(call.gradient(gradient, rows))
        yield fuse_heads((gain * weights).clamp(min=0))

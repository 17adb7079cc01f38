"""Gradients of the class score with respect to the image."""

from __future__ import annotations

import torch
from torch import Tensor

from visattn.heatmaps.methods.base import register_method
from visattn.heatmaps.request import MethodResult, Request, backward_pass


@register_method("input_gradient")
def input_gradient(request: Request, *, balanced: bool = False) -> MethodResult:
    """The largest change of the class score per change of a pixel (Simonyan et al. 2014, arXiv:1312.6034).

    Args:
        request: model and images.
        balanced: take gradients from a balanced backward pass (:mod:`visattn.heatmaps.balanced`).
    """
    return MethodResult(_gradient(request, balanced=balanced).abs().amax(1))


@register_method("input_x_gradient", signed=True)
def input_x_gradient(request: Request, *, balanced: bool = False) -> MethodResult:
    """What every pixel contributes: its value times the gradient, added up over colours (Shrikumar et al. 2016).

    With a balanced backward pass this and the model's constants add up to the class score.

    Args:
        request: model and images.
        balanced: take gradients from a balanced backward pass (:mod:`visattn.heatmaps.balanced`).
    """
    return MethodResult((request.images * _gradient(request, balanced=balanced)).sum(1))


def _gradient(request: Request, *, balanced: bool) -> Tensor:
    images = request.images.detach().clone().requires_grad_()
    with torch.enable_grad(), backward_pass(request, is_balanced=balanced):
        request.run(images=images)
    return torch.autograd.grad(request.score(), images)[0]

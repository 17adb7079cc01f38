"""Where in the image every token comes from, found by following coordinates through a forward pass.

Transformers cut, shift, shuffle, pool and pad their tokens in many ways. Instead of a table of families there is one
abstract run of the network: every tensor has a *shadow* of the same shape that says for each number which place of the
image (and which image of the batch) it belongs to. Operations that move numbers move the shadow in the same way; a
convolution takes the centre of its window; a matrix product keeps the place of the row, or the centre of what it mixes;
what is computed number by number keeps the place of that operand which has come the more direct way, as shortcuts do.

What a shadow is made of is said in :mod:`~visattn.heatmaps.watch.shadows`, and what an operation does to it in
:mod:`~visattn.heatmaps.watch.shadow_rules`.

The network is a copy without storage, so nothing is computed; networks that look at values run with theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from visattn.heatmaps.watch.calls import Call
from visattn.heatmaps.watch.interception import intercepting
from visattn.heatmaps.watch.passes import MissedAttention
from visattn.heatmaps.watch.shadow_rules import Tracing
from visattn.modules import sharing_copy, weightless_copy

T = TypeVar("T")


def learnt_tokens(model: nn.Module) -> set[int]:
    """The parameters that do not belong to ordinary layers, by identity."""
    layers = (nn.Linear, nn.LayerNorm, nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm)
    return {
        id(p) for m in model.modules() if not isinstance(m, layers) for p in m._parameters.values() if p is not None
    }


def trace(model: nn.Module, images: Tensor, look: Callable[[Call, Tracing], T]) -> list[T]:
    """Run a network on images of this shape; what a function says about every use of attention and its shadows."""
    blank = torch.empty_like(images, device="meta")
    calls: list[Call] = []
    try:
        shadow = weightless_copy(model)
        with torch.no_grad(), intercepting(shadow, calls.append):
            shadow(blank)
        return _run(shadow, blank, look) if calls else []
    except MissedAttention:
        raise
    except Exception:  # whatever a network does with values that are not there
        return _run(sharing_copy(model), images.detach(), look)


def _run(model: nn.Module, images: Tensor, look: Callable[[Call, Tracing], T]) -> list[T]:
    images = images.clone()
    tracing = Tracing(images, learnt_tokens(model))
    found: list[T] = []
    with torch.no_grad(), intercepting(model, lambda call: found.append(look(call, tracing))), tracing:
        model(images)
    return found

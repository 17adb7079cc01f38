r"""Contributions to the explained number, added up over the blocks of a network.

FullGrad+ of Mehri et al., CVPR 2025, https://arxiv.org/abs/2411.16760, after FullGrad (Srinivas & Fleuret, NeurIPS
2019, https://arxiv.org/abs/1905.00780):

.. math:: m_p = \sum_l \sum_c x^l_{pc}\, \nabla x^l_{pc} + \sum_b \sum_c b_{pc}\, \nabla y^b_{pc}

:math:`x^l` is the input of block l, with p a place and c a channel; :math:`b` is whatever was added to a map
:math:`y^b` as a constant: biases, shifts of norms, positions. Gradients are balanced
(:mod:`visattn.heatmaps.balanced`): without that the first sum of a transformer says little.

Differences from the paper: maps of a lower resolution are spread over the places they stand for, each keeping its sum,
so that the method works on networks with stages as well. Constants that were added to something without a place (a
window of tokens, pooled features) are left out.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.heatmaps.balanced import balanced
from visattn.heatmaps.methods.base import register_method
from visattn.heatmaps.request import MethodResult, Request
from visattn.heatmaps.watch.cache import cached
from visattn.heatmaps.watch.exactness import full_precision
from visattn.models.layout import Layout
from visattn.models.places import choose, survey_places
from visattn.modules import HookOfThread


def _blocks(model: nn.Module, images: Tensor) -> tuple[list[str], dict[tuple[int, ...], Layout]]:
    """Modules whose inputs count, and the arrangement of every shape of a map, without its batch."""

    def find() -> tuple[list[str], dict[tuple[int, ...], Layout]]:
        found = survey_places(model, images)
        names = found.blocks() or [place.name for place in choose(model, found, "stages")]
        return names, {tuple(visit.shape[1:]): visit.layout for visit in found.visits}

    return cached(model, images, "blocks and layouts", find)


def why_no_blocks(model: nn.Module, images: Tensor) -> str | None:
    """Why there are no blocks whose inputs could be added up; None if there are."""
    try:
        _blocks(model, images)
    except ValueError as error:
        return str(error)
    return None


@register_method("fullgrad", why_not=why_no_blocks, looks_at_layers=True, signed=True)
def fullgrad(request: Request) -> MethodResult:
    """What every place contributed, through the blocks and through constants."""
    names, layouts = _blocks(request.model, request.images)
    inputs: dict[str, Tensor] = {}
    maps: list[Tensor] = []
    size = (request.images.shape[-2], request.images.shape[-1])

    def keep(name: str) -> Any:
        def hook(_module: nn.Module, args: Any) -> Any:
            x = args[0] if args else None
            if name in inputs or not isinstance(x, Tensor) or not x.requires_grad or x.shape[1:] not in layouts:
                return None
            inputs[name] = x
            return (x.clone(), *args[1:])  # a block may write over its input

        return HookOfThread(hook)

    def add(x: Tensor, gradient: Tensor) -> None:
        layout = layouts.get(gradient.shape[1:])
        if layout is not None and len(gradient) == len(request.images):
            with full_precision(gradient.device):
                contributions = gradient * x  # (B, C, h, w) in some order
                maps.append(layout.to_map(contributions, layout.size(gradient.shape, size)).sum(1))

    images = request.images.clone().requires_grad_()
    handles = [request.model.get_submodule(name).register_forward_pre_hook(keep(name)) for name in names]
    try:
        with torch.enable_grad(), balanced(request.model, lambda gradient, constant: add(constant, gradient)):
            request.run(images=images)
    finally:
        for handle in handles:
            handle.remove()
    # Down to the images, since constants are added before the first block as well.
    _, *gradients = torch.autograd.grad(request.score(), [images, *inputs.values()], allow_unused=True)
    for x, gradient in zip(inputs.values(), gradients, strict=True):
        if gradient is not None:
            add(x.detach(), gradient)
    return MethodResult(added_up(maps), tuple(inputs))


def added_up(maps: list[Tensor]) -> Tensor:
    """The sum of maps at the finest resolution among them, to which each contributes what it adds up to itself."""
    rows, columns = max((each.shape[-2:] for each in maps), key=lambda each: each[0] * each[1])
    total = maps[0].new_zeros(len(maps[0]), rows, columns)
    for each in maps:
        share = each.shape[-2] * each.shape[-1] / (rows * columns)
        if each.shape[-2:] != total.shape[-2:]:
            each = F.interpolate(each[:, None], (rows, columns), mode="bilinear", align_corners=False)[:, 0]
        total += share * each
    return total

r"""Class activation maps of any backbone.

Grad-CAM (Selvaraju et al. 2017, https://arxiv.org/abs/1610.02391):

.. math:: M = \mathrm{ReLU}\Big(\sum_k \alpha_k A_k\Big), \qquad
          \alpha_k = \frac{1}{Z} \sum_{ij} \frac{\partial y}{\partial A_{kij}}

where :math:`A_k` is channel k of a feature map (``activation``) and :math:`y` the logit of the class (``target``).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.models.attach import choose, survey_places
from visattn.models.survey import Place, evaluating

FINE = 7  # rows and columns that a map should have


def look_at(model: nn.Module, example: Tensor) -> Place:
    """The deepest feature map that still has some resolution and a say in the output.

    Args:
        model: any network.
        example: a batch of images of the size it will be given.

    >>> import timm
    >>> look_at(timm.create_model("resnet18"), torch.rand(1, 3, 64, 64)).name
    'layer2'
    """
    with evaluating(model):
        places = choose(model, survey_places(model, example), "stages")
    fine = [place for place in places if min(place.size) >= FINE]
    return fine[-1] if fine else max(places, key=lambda place: min(place.size))


def grad_cam(model: nn.Module, images: Tensor, place: Place, target: Tensor | None = None) -> Tensor:
    """Grad-CAM of a batch, (B, H, W) in [0, 1] at the resolution of the images.

    The model is left as it was found: modes, gradients, hooks.

    Args:
        model: any network that returns logits.
        images: (B, 3, H, W).
        place: the feature map, from :func:`look_at`.
        target: (B,) class indices; None for the predicted ones.
    """
    kept: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        kept.append(output if place.index is None else output[place.index])

    handle = model.get_submodule(place.name).register_forward_hook(keep)
    try:
        with evaluating(model), torch.enable_grad():
            logits = model(images.detach().requires_grad_())
            if target is None:
                target = logits.argmax(1)
            (activation,) = kept[-1:]
            # To the activation only: parameters keep their .grad, and no other process is waited for.
            (gradient,) = torch.autograd.grad(logits.gather(1, target[:, None]).sum(), activation)
    finally:
        handle.remove()
    size = (images.shape[-2], images.shape[-1])
    weights = place.layout.to_map(gradient, size).mean((2, 3), keepdim=True)  # (B, C, 1, 1)
    feature = place.layout.to_map(activation.detach(), size)
    maps = (weights * feature).sum(1, keepdim=True).clamp(min=0).float()  # (B, 1, h, w)
    maps = F.interpolate(maps, size, mode="bilinear", align_corners=False)[:, 0]
    return maps / maps.amax((1, 2), keepdim=True).clamp(min=1e-12)

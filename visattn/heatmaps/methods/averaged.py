r"""Gradients of the image, averaged over many versions of it: slower than others, and a reference for them.

========================  ============================================================================================
``integrated_gradients``  Sundararajan et al. 2017, https://arxiv.org/abs/1703.01365:
                          :math:`x \odot \int_0^1 \nabla f(\alpha x)\, d\alpha`, from a grey image (zero, as the
                          model sees it); its sum is what the score gains on the way
``smoothgrad``            Smilkov et al. 2017, https://arxiv.org/abs/1706.03825: the mean gradient of noisy images
========================  ============================================================================================
"""

from __future__ import annotations

import torch
from torch import Tensor

from visattn.core.arguments import at_least_one
from visattn.heatmaps.methods.base import register_method, seeded
from visattn.heatmaps.request import MethodResult, Request, backward_pass

MOST = 10_000  # passes
MOST_NOISE = 10  # times the range of the image


@register_method("integrated_gradients", signed=True, slow=True)
def integrated_gradients(request: Request, *, steps: int = 32, balanced: bool = False) -> MethodResult:
    """What every pixel adds to the score on a straight way from a grey image.

    Args:
        request: model and images.
        steps: on that way; each is a forward and a backward pass.
        balanced: take gradients from a balanced backward pass (:mod:`visattn.heatmaps.balanced`).
    """
    steps = at_least_one("steps", steps, MOST)
    _answer(request)
    total = torch.zeros_like(request.images)
    for step in range(steps):
        total += _gradient(request, (step + 0.5) / steps * request.images, balanced=balanced)  # in the middle of each
    return MethodResult((request.images * total / steps).sum(1))


@register_method("smoothgrad", slow=True)
def smoothgrad(
    request: Request, *, samples: int = 16, noise: float = 0.15, seed: int = 0, balanced: bool = False
) -> MethodResult:
    """The size of the mean gradient of noisy images.

    Args:
        request: model and images.
        samples: how many noisy images there are; each is a forward and a backward pass.
        noise: its standard deviation, as a share of the range of the image.
        seed: of the noise.
        balanced: take gradients from a balanced backward pass (:mod:`visattn.heatmaps.balanced`).
    """
    samples = at_least_one("samples", samples, MOST)
    if not 0 <= noise <= MOST_NOISE:
        raise ValueError(f"noise is a share of the range of the image, from 0 to {MOST_NOISE}, got {noise}")
    _answer(request)
    images = request.images
    spread = noise * (images.amax((1, 2, 3), keepdim=True) - images.amin((1, 2, 3), keepdim=True))
    generator = seeded(seed)
    total = torch.zeros_like(images)
    for _ in range(samples):
        drawn = torch.randn(images.shape[1:], generator=generator).to(images)  # the same for all images of a batch
        total += _gradient(request, images + spread * drawn, balanced=balanced)
    return MethodResult((total / samples).abs().amax(1))


def _answer(request: Request) -> None:
    """Let the model answer for the images themselves: what it predicts there is explained."""
    with torch.no_grad():
        request.run()


def _gradient(request: Request, images: Tensor, *, balanced: bool) -> Tensor:
    images = images.detach().requires_grad_()
    with torch.enable_grad(), backward_pass(request, is_balanced=balanced):
        output = request.model(images)
    return torch.autograd.grad(request.score(output), images)[0]

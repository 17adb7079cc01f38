r"""Grad-CAM, sharpened by what the pixels contribute.

.. math:: m_p = \Big(\frac{\mathrm{CAM}_p}{\max \mathrm{CAM}}\Big)^2 \cdot
    S\Big(\Big|\sum_c (x_{pc} - \tilde x_c)\, \nabla x_{pc}\Big|\Big)

CAM is Grad-CAM, enlarged, which knows much about classes and little about places. The second factor knows much about
places and little about classes: the first-order effect of every pixel against the median colour :math:`\tilde x` of its
image, so that a plain background has none. S takes the mean over the cells of a grid that is four times as fine as the
feature map, and smooths it. Both come from one backward pass.

The idea is that of Guided Grad-CAM (Selvaraju et al. 2017, https://arxiv.org/abs/1610.02391). *Differences from the
paper*: guided backpropagation is replaced by gradients as they are, since it shows edges whatever the weights are
(Adebayo et al. 2018, https://arxiv.org/abs/1810.03292). What it gains is measured in ``docs/truth.md``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from visattn.heatmaps.methods.base import register_method
from visattn.heatmaps.methods.cam import Probed, look_at, place_at, why_no_cam
from visattn.heatmaps.request import MethodResult, Request, backward_pass

FINER = 4  # cells per row and column of the feature map


@register_method("sharp_gradcam", why_not=why_no_cam, looks_at_layers=True)
def sharp_gradcam(request: Request, *, layer: str | None = None, balanced: bool = False) -> MethodResult:
    """Grad-CAM, sharpened by what the pixels contribute.

    Args:
        request: model and images.
        layer: name of the module behind which Grad-CAM looks; see :func:`visattn.heatmaps.look_at` for the default.
        balanced: take gradients from a balanced backward pass (:mod:`visattn.heatmaps.balanced`).
    """
    model, images = request.model, request.images.detach().requires_grad_()
    place = look_at(model, images) if layer is None else place_at(model, images, layer)
    probed = Probed(model, place)
    with torch.enable_grad(), backward_pass(request, is_balanced=balanced):
        request.run(model=probed, images=images)
        assert probed.map is not None
        to_map, to_pixels = torch.autograd.grad(request.score(), [probed.map, images])
    cam = (to_map.float().mean((2, 3), keepdim=True) * probed.map.detach().float()).sum(1).clamp(min=0)
    highest = cam.amax((1, 2), keepdim=True)
    cam = cam / highest.where(highest > 0, 1)  # a class that is certain has tiny gradients, too small to be squared
    return MethodResult(sharpened(cam, images.detach().float(), to_pixels.float()), (place.name,))


def sharpened(cam: Tensor, images: Tensor, gradients: Tensor) -> Tensor:
    """(B, h, w): a coarse map (B, r, c) times the contributions of pixels, given images and gradients (B, C, H, W)."""
    size = min(FINER * cam.shape[1], images.shape[2]), min(FINER * cam.shape[2], images.shape[3])
    median = images.flatten(2).median(2).values[..., None, None]
    contributions = ((images - median) * gradients).sum(1, keepdim=True).abs()
    cells = F.adaptive_avg_pool2d(contributions, size)
    for _ in range(2):  # close to a Gaussian with a deviation of 1.2 cells
        cells = F.avg_pool2d(cells, 3, 1, 1, count_include_pad=False)
    return (F.interpolate(cam[:, None].square(), size, mode="bilinear", align_corners=False) * cells)[:, 0]

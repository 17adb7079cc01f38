r"""Differentiable patch selection: hard windows, learned through perturbed top-k.

Cordonnier et al., *Differentiable Patch Selection for Image Recognition*, CVPR 2021, https://arxiv.org/abs/2104.03059

.. math:: m = E_z\big[\mathrm{top}_K(\hat e + \sigma z)\big], \qquad z \sim \mathcal N(0, 1), \qquad y = m \odot x

where :math:`\hat e` are the energies of the windows (as in ``hard``), scaled to run from zero to one in each image. The
gradient of the expectation is :math:`E[\langle G, \mathrm{top}_K \rangle z_j] / \sigma`. Training multiplies by the
expectation (between zero and one where the choice is not clear); evaluation keeps the K best windows and nothing else.

Differences from the paper: the windows stay where they are on the map instead of being stacked as a list of patches,
so the order among the K does not matter, and σ is not lowered during training.

>>> import torch
>>> x = torch.randn(2, 64, 8, 8)
>>> hard = HardTopK(64, glimpses=2, window=3).eval()
>>> mask, probabilities = hard.attention(x)
>>> mask.unique(), probabilities.shape
(tensor([0., 1.]), torch.Size([2, 1, 6, 6]))
"""

from __future__ import annotations

from torch import Tensor

from visattn.blocks.base import register_block
from visattn.blocks.hard import Fill, HardWindows
from visattn.core.arguments import Device, DType
from visattn.core.sampling import perturbed_top_k


@register_block("hard_topk", family="hard", paper="Cordonnier et al., CVPR 2021, arXiv:2104.03059")
class HardTopK(HardWindows):
    """Weight windows by how often they are among the K best under noise in training; keep the K best in evaluation.

    Args:
        channels: C.
        glimpses: K, the number of windows to keep; a fraction of all windows if it is a float.
        window: w, side of a window.
        fill: value at the other positions: ``zero``, or the ``mean`` of the map.
        rd_ratio: width of the head as a fraction of C.
        sigma: standard deviation of the noise on energies between zero and one.
        samples: draws of the noise per image.
    """

    def __init__(
        self,
        channels: int,
        *,
        glimpses: int | float = 0.25,
        window: int = 1,
        fill: Fill = "zero",
        rd_ratio: float = 1 / 4,
        sigma: float = 0.05,
        samples: int = 100,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__(
            channels, glimpses=glimpses, window=window, fill=fill, rd_ratio=rd_ratio, device=device, dtype=dtype
        )
        if not sigma > 0 or samples < 1:
            raise ValueError(f"perturbed top-k needs noise: sigma above zero and samples, got {sigma} and {samples}")
        self.sigma, self.samples = sigma, samples

    def choose(self, x: Tensor, energies: Tensor, k: int) -> Tensor:
        """Weights (B, N) of the windows: shares of the draws in training, ones for the K best afterwards."""
        if not self.training:
            return super().choose(x, energies, k)
        lowest, highest = energies.amin(1, keepdim=True), energies.amax(1, keepdim=True)
        scaled = (energies - lowest) / (highest - lowest + 1e-5)
        return perturbed_top_k(scaled, k, sigma=self.sigma, samples=self.samples)

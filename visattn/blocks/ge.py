r"""Gather-Excite in its three sizes: ``ge`` (θ⁻), ``ge_theta`` (θ) and ``ge_theta_plus`` (θ⁺).

Hu et al., *Gather-Excite: Exploiting Feature Context in Convolutional Neural Networks*, NeurIPS 2018,
https://arxiv.org/abs/1810.12348

.. math:: \tilde x = x \cdot \sigma(\mathrm{interp}(\xi_G(x)))

where the gather operator ξ_G aggregates a neighbourhood of extent e and interp resizes to x by nearest neighbour.
θ⁻ gathers by average pooling and has no parameters at all; θ by depthwise convolutions, each with batch norm; θ⁺
adds a squeeze-and-excitation bottleneck after θ's gather. A global extent is a single depthwise convolution whose
kernel is as large as the map (``size``); a finite extent e is a chain of log2(e) 3x3 convolutions of stride two.

Differences from the paper: none for θ⁻. The paper's best ResNet-50 models use the global extent with
``size`` = 56, 28, 14, 7; such a kernel is bound to one input resolution, so the default here is the finite extent 8,
which fits every map. Between the convolutions of a chain there is a ReLU, after the last there is none.

>>> import torch
>>> x = torch.randn(2, 64, 14, 14)
>>> GatherExcite(64)(x).shape
torch.Size([2, 64, 14, 14])
>>> GatherExcitePlus(64, size=14).attention(x).shape
torch.Size([2, 64, 1, 1])
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import Gate, reduced, register_block
from visattn.blocks.primitives import Pointwise, mean_places
from visattn.core.arguments import Device, DType

PAPER = "Hu et al., NeurIPS 2018, arXiv:1810.12348"


def _spread(gathered: Tensor, x: Tensor) -> Tensor:
    """Resize what was gathered to the size of x; a single value per channel broadcasts."""
    return gathered if gathered.shape[2:] == (1, 1) else F.interpolate(gathered, size=x.shape[2:], mode="nearest")


@register_block("ge", family="channel", paper=PAPER)
class GatherExcite(Gate):
    """θ⁻: average of the neighbourhood -> sigmoid; no parameters.

    Args:
        channels: C.
        extent: the pooling window is 2·extent - 1 wide and moves by extent; 0 is the whole map.
    """

    def __init__(self, channels: int, *, extent: int = 0, device: Device = None, dtype: DType = None) -> None:
        del device, dtype  # nothing to place
        super().__init__()
        if extent < 0:
            raise ValueError(f"extent must be 0 (global) or positive, got {extent}")
        self.channels = channels
        self.extent = extent

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, 1, 1) for a global extent, (B, C, H, W) otherwise."""
        if self.extent == 0:
            return torch.sigmoid(mean_places(x))
        e = self.extent
        gathered = F.avg_pool2d(x, 2 * e - 1, stride=e, padding=e - 1, count_include_pad=False)
        return torch.sigmoid(_spread(gathered, x))

    def extra_repr(self) -> str:
        """Arguments, for print(model)."""
        return f"{self.channels}, extent={self.extent}"


@register_block("ge_theta", family="channel", paper=PAPER)
class GatherExciteTheta(Gate):
    """θ: depthwise convolution of the neighbourhood -> sigmoid.

    Args:
        channels: C.
        extent: a power of two; how far the gathering chain reaches.
        size: height and width of the map (one number if square): gather it whole instead, with one kernel.
    """

    def __init__(
        self,
        channels: int,
        *,
        extent: int = 8,
        size: int | tuple[int, int] | None = None,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.size = (size, size) if isinstance(size, int) else size
        layers: list[nn.Module] = []
        if self.size is not None:
            if len(self.size) != 2 or min(self.size) < 1:
                raise ValueError(f"size is the height and width of a map, got {size}")
            layers += [nn.Conv2d(channels, channels, self.size, groups=channels, bias=False, **factory)]
            layers += [nn.BatchNorm2d(channels, **factory)]
        else:
            if extent < 2 or extent & (extent - 1):
                raise ValueError(f"extent must be a power of two (2, 4, 8, ...), got {extent}")
            for _ in range(extent.bit_length() - 1):
                layers += [nn.Conv2d(channels, channels, 3, 2, 1, groups=channels, bias=False, **factory)]
                layers += [nn.BatchNorm2d(channels, **factory), nn.ReLU()]
            layers.pop()
        self.gather = nn.Sequential(*layers)

    def _gathered(self, x: Tensor) -> Tensor:
        if self.size is not None and (x.shape[2] < self.size[0] or x.shape[3] < self.size[1]):
            raise ValueError(
                f"gather-excite was built for maps of {self.size} or larger, got {tuple(x.shape[2:])}: take larger "
                "images, or size=None, which fits all maps"
            )
        return self.gather(x)

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, 1, 1) if the whole map is gathered, (B, C, H, W) otherwise."""
        return torch.sigmoid(_spread(self._gathered(x), x))


@register_block("ge_theta_plus", family="channel", paper=PAPER)
class GatherExcitePlus(GatherExciteTheta):
    """θ⁺: depthwise convolution of the neighbourhood -> bottleneck -> sigmoid.

    Args:
        channels: C.
        extent: a power of two; how far the gathering chain reaches.
        size: height and width of the map (one number if square): gather it whole instead, with one kernel.
        rd_ratio: width of the bottleneck as a fraction of C.
    """

    def __init__(
        self,
        channels: int,
        *,
        extent: int = 8,
        size: int | tuple[int, int] | None = None,
        rd_ratio: float = 1 / 16,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__(channels, extent=extent, size=size, device=device, dtype=dtype)
        hidden = reduced(channels, rd_ratio)
        self.fc1 = Pointwise(channels, hidden, device=device, dtype=dtype)
        self.fc2 = Pointwise(hidden, channels, device=device, dtype=dtype)

    def attention(self, x: Tensor) -> Tensor:
        """Gate (B, C, 1, 1) if the whole map is gathered, (B, C, H, W) otherwise."""
        excited = self.fc2(F.relu(self.fc1(F.relu(self._gathered(x)))))
        return torch.sigmoid(_spread(excited, x))

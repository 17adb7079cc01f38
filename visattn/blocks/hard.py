r"""Hard attention: keep a few windows of the map, and never see the rest.

Xu et al., *Show, Attend and Tell: Neural Image Caption Generation with Visual Attention*, ICML 2015,
https://arxiv.org/abs/1502.03044; the draw of K windows: Kool et al., ICML 2019, https://arxiv.org/abs/1903.06059

.. math::
    e = w_2^\top \mathrm{ReLU}(W_1 x), \qquad
    \{s_1, \dots, s_K\} \sim \mathrm{softmax}(\bar e), \qquad
    y = m \odot x + (1 - m) \odot \text{fill}

where W_1 is ``fc1``, w_2 is ``fc2``, :math:`\bar e` is the mean of e over every window of w x w places that lies wholly
inside the map, and the mask m is one at every place that a chosen window covers. Training draws K windows one by one
without replacement; evaluation takes the K best.

The head learns in one of two ways: ``straight_through`` (Gumbel top-k forwards, the gradient of the softmax backwards)
works in any training loop; ``reinforce`` needs :func:`visattn.policy.policy_term` in the loss, which
``train.py`` adds.

Differences from the paper: K windows instead of one place, and no recurrent network between them. The paper replaces
half of the samples by their expectation; here all of them are drawn. With ``reinforce`` the head reads the features
without passing gradients to them, as in RAM (https://arxiv.org/abs/1406.6247).

>>> import torch
>>> x = torch.randn(2, 64, 8, 8)
>>> hard = HardAttention(64, glimpses=2, window=3).eval()
>>> mask, probabilities = hard.attention(x)
>>> mask.shape, mask.sum((1, 2, 3)) <= 2 * 9, probabilities.shape
(torch.Size([2, 1, 8, 8]), tensor([True, True]), torch.Size([2, 1, 6, 6]))
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visattn.blocks.base import reduced, register_block
from visattn.core.arguments import Device, DType
from visattn.core.precision import precise
from visattn.core.sampling import draw_log_prob, entropy, k_hot, straight_through_top_k, top_k
from visattn.policy import Decision, DecisionModule
from visattn.registry import suggest

Fill: TypeAlias = Literal["zero", "mean"]
Signal: TypeAlias = Literal["straight_through", "reinforce"]
Baseline: TypeAlias = Literal["learned", "moving_average"]

MEMORY = 0.9  # of the moving average, as in the paper


class Sampled(NamedTuple):
    """Mask of the chosen windows (B, 1, H, W), and the probability of each window (B, 1, H - w + 1, W - w + 1)."""

    mask: Tensor
    probabilities: Tensor


class HardWindows(DecisionModule):
    """Head that scores the windows of a map and masks all but the chosen ones.

    Args:
        channels: C.
        glimpses: K, the number of windows to keep; a fraction of all windows if it is a float.
        window: w, side of a window.
        fill: value at the other positions: ``zero``, or the ``mean`` of the map.
        rd_ratio: width of the head as a fraction of C.
    """

    def __init__(
        self,
        channels: int,
        *,
        glimpses: int | float = 0.25,
        window: int = 1,
        fill: Fill = "zero",
        rd_ratio: float = 1 / 4,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__()
        if isinstance(glimpses, float) and not 0 < glimpses <= 1:
            raise ValueError(f"glimpses as a share of all windows must be above 0 and up to 1, got {glimpses}")
        if glimpses <= 0:
            raise ValueError(f"hard attention needs at least one glimpse, got {glimpses}")
        if window < 1:
            raise ValueError(f"hard attention needs a window of at least one place, got {window}")
        self.glimpses, self.window, self.fill = glimpses, window, _one_of("fill", fill, Fill)
        hidden = reduced(channels, rd_ratio)
        self.fc1 = nn.Conv2d(channels, hidden, 1, device=device, dtype=dtype)
        self.fc2 = nn.Conv2d(hidden, 1, 1, device=device, dtype=dtype)

    def energies(self, x: Tensor) -> Tensor:
        """Of every window, (B, 1, H - w + 1, W - w + 1)."""
        height, width = x.shape[2:]
        if self.window > min(height, width):
            raise ValueError(f"a window of {self.window} x {self.window} does not fit into a map of {height} x {width}")
        e = self.fc2(F.relu(self.fc1(x)))
        return precise(F.avg_pool2d(e, self.window, stride=1))

    def number(self, windows: int) -> int:
        """Number of windows to keep, out of all windows of a map."""
        if isinstance(self.glimpses, float):
            return max(1, round(self.glimpses * windows))
        if self.glimpses > windows:
            raise ValueError(f"{self.glimpses} glimpses are more than there are windows on the map, {windows}")
        return self.glimpses

    def choose(self, x: Tensor, energies: Tensor, k: int) -> Tensor:
        """Weights (B, N) of the windows, ones for the K that are seen."""
        del x
        return k_hot(top_k(energies, k), energies.shape[1]).to(energies.dtype)

    def attention(self, x: Tensor) -> Sampled:
        """The mask, drawn at random in training mode, and the probabilities of the windows."""
        energies = self.energies(x)
        grid = energies.shape[2:]
        flat = energies.flatten(1)  # (B, N)
        chosen = self.choose(x, flat, self.number(flat.shape[1]))
        mask = cover(chosen.unflatten(1, (1, *grid)), self.window)
        return Sampled(mask.to(x.dtype), flat.softmax(1).unflatten(1, (1, *grid)).to(x.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Masked map, (B, C, H, W)."""
        mask, _ = self.attention(x)
        if self.fill == "zero":
            return x * mask
        return x * mask + x.mean((2, 3), keepdim=True) * (1 - mask)


def cover(chosen: Tensor, window: int) -> Tensor:
    """Positions that windows cover: (B, 1, H - w + 1, W - w + 1) to (B, 1, H, W).

    Where windows overlap, a position is covered once; in the backward pass it belongs to all of them.
    """
    if window == 1:
        return chosen
    margin = window - 1
    total = F.avg_pool2d(F.pad(chosen, [margin] * 4), window, stride=1) * window**2
    return total - (total - total.clamp(max=1)).detach()


@register_block("hard", family="hard", paper="Xu et al., ICML 2015, arXiv:1502.03044")
class HardAttention(HardWindows):
    """Keep K windows: drawn at random in training, the best ones in evaluation.

    Args:
        channels: C.
        glimpses: K, the number of windows to keep; a fraction of all windows if it is a float.
        window: w, side of a window.
        fill: value at the other positions: ``zero``, or the ``mean`` of the map.
        rd_ratio: width of the head as a fraction of C.
        signal: how the head learns: ``straight_through`` or ``reinforce``.
        baseline: baseline of REINFORCE: ``learned`` from the map, or a ``moving_average`` of the reward.
        policy_weight: weight of REINFORCE in the loss.
        entropy_weight: weight of the entropy in the loss.
    """

    expected: Tensor

    def __init__(
        self,
        channels: int,
        *,
        glimpses: int | float = 0.25,
        window: int = 1,
        fill: Fill = "zero",
        rd_ratio: float = 1 / 4,
        signal: Signal = "straight_through",
        baseline: Baseline = "learned",
        policy_weight: float = 0.1,
        entropy_weight: float = 0.002,
        device: Device = None,
        dtype: DType = None,
    ) -> None:
        super().__init__(
            channels, glimpses=glimpses, window=window, fill=fill, rd_ratio=rd_ratio, device=device, dtype=dtype
        )
        self.signal, self.baseline = _one_of("signal", signal, Signal), _one_of("baseline", baseline, Baseline)
        self.policy_weight, self.entropy_weight = policy_weight, entropy_weight
        if signal == "reinforce" and baseline == "learned":
            self.guess = nn.Conv2d(channels, 1, 1, device=device, dtype=dtype)
        elif signal == "reinforce":
            self.register_buffer("expected", torch.zeros((), device=device))

    def energies(self, x: Tensor) -> Tensor:
        """Of every window, (B, 1, H - w + 1, W - w + 1)."""
        return super().energies(x.detach() if self.signal == "reinforce" else x)

    def choose(self, x: Tensor, energies: Tensor, k: int) -> Tensor:
        """Weights (B, N) of the windows, ones for the K that are seen."""
        if not self.training:
            return super().choose(x, energies, k)
        if self.signal == "straight_through":
            return straight_through_top_k(energies, k)
        chosen = top_k(energies.detach(), k, sample=True)
        log_prob = draw_log_prob(energies, chosen)
        self.decision = Decision(
            log_prob, self._guess(x).expand_as(log_prob), entropy(energies), self.policy_weight, self.entropy_weight
        )
        return k_hot(chosen, energies.shape[1]).to(energies.dtype)

    def _guess(self, x: Tensor) -> Tensor:
        """Expected reward, (B, 1)."""
        if self.baseline == "learned":
            return self.guess(x.detach().mean((2, 3), keepdim=True)).flatten(1).float()
        return self.expected.expand(len(x), 1)

    def observe(self, reward: Tensor) -> None:
        """Update the moving average."""
        if self.signal == "reinforce" and self.baseline == "moving_average":
            self.expected.lerp_(reward.to(self.expected), 1 - MEMORY)


def _one_of(what: str, name: str, choices: Any) -> str:
    if name not in get_args(choices):
        raise ValueError(f"unknown {what} {name!r}: {suggest(name, get_args(choices))}")
    return name

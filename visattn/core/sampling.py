"""Draw K of N without replacement, with the log-probability, and two ways to pass a gradient through the choice.

All functions take energies (B, N).
"""

from __future__ import annotations

import torch
from torch import Tensor

from visattn.core.precision import precise, without_autocast


def top_k(energies: Tensor, k: int, *, sample: bool = False) -> Tensor:
    """Indices (B, K) of the largest energies, or of a draw without replacement from the softmax.

    The draw is Gumbel top-k (Kool et al. 2019, https://arxiv.org/abs/1903.06059): the K largest of energies with Gumbel
    noise, in the order of a draw one by one.

    >>> top_k(torch.tensor([[0.1, 0.9, 0.5]]), 2)
    tensor([[1, 2]])
    """
    return (energies + gumbel_like(energies) if sample else energies).topk(k).indices


def gumbel_like(energies: Tensor) -> Tensor:
    """Standard Gumbel noise, in single precision at least: in half precision it would occasionally be infinite."""
    like = precise(energies)
    return torch.empty_like(like, memory_format=torch.contiguous_format).exponential_().log().neg()


def k_hot(chosen: Tensor, count: int) -> Tensor:
    """K-hot vectors (..., N), with ones at the indices (..., K).

    >>> k_hot(torch.tensor([[3, 0]]), 5)
    tensor([[1., 0., 0., 1., 0.]])
    """
    return torch.zeros(*chosen.shape[:-1], count, device=chosen.device).scatter_(-1, chosen, 1.0)


def draw_log_prob(energies: Tensor, chosen: Tensor) -> Tensor:
    """Log-probability (B, K) of each draw given those before it (the Plackett-Luce distribution).

    >>> draw_log_prob(torch.zeros(1, 4), torch.tensor([[2, 0]])).exp()
    tensor([[0.2500, 0.3333]])
    """
    energies = precise(energies)
    lowest = torch.finfo(energies.dtype).min
    rest = energies.scatter(1, chosen, lowest).logsumexp(1, keepdim=True)  # (B, 1): what is never drawn
    drawn = energies.gather(1, chosen)  # (B, K)
    still_there = torch.cat([rest, drawn.flip(1)], 1).logcumsumexp(1)[:, 1:].flip(1)  # (B, K)
    return drawn - still_there


def entropy(energies: Tensor) -> Tensor:
    """Entropy (B, 1) of the softmax, in nats.

    >>> entropy(torch.zeros(1, 8)).exp().round()
    tensor([[8.]])
    """
    log_p = precise(energies).log_softmax(1)
    return -(log_p.exp() * log_p).sum(1, keepdim=True)


def straight_through_top_k(energies: Tensor, k: int) -> Tensor:
    """(B, N): K ones, drawn from the softmax; backwards, the gradient of K times the softmax of the noisy energies.

    The straight-through Gumbel softmax (Jang et al. 2016, https://arxiv.org/abs/1611.01144) for K draws.
    """
    noisy = energies + gumbel_like(energies)
    soft = k * noisy.softmax(1)
    return k_hot(noisy.topk(k).indices, energies.shape[1]).to(soft.dtype) + (soft - soft.detach())


def perturbed_top_k(energies: Tensor, k: int, *, sigma: float, samples: int) -> Tensor:
    r"""(B, N): how often each is among the K largest when noise is added; a smooth function of the energies.

    .. math:: P = E[T], \qquad \partial P_i / \partial e_j = E[T_i z_j] / \sigma, \quad T = \mathrm{top}_K(e + \sigma z)

    with standard normal z (Cordonnier et al. 2021, https://arxiv.org/abs/2104.03059). Both expectations are means over
    the same draws.
    """
    energies = precise(energies)
    noise = torch.randn(len(energies), samples, energies.shape[1], device=energies.device, dtype=energies.dtype)
    chosen = (energies.detach()[:, None] + sigma * noise).topk(k).indices  # (B, S, K)
    ones = k_hot(chosen, energies.shape[1]).to(energies.dtype)  # (B, S, N)
    # Linear in the energies, with just that Jacobian; one axis after the other, so that it is never written out.
    with without_autocast(energies.device):
        along = noise @ (energies - energies.detach()).unsqueeze(2)  # (B, S, 1)
        slope = (ones.mT @ along).squeeze(2) / (sigma * samples)
    return ones.mean(1) + slope

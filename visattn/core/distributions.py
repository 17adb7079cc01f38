r"""Distributions: from energies to weights, :math:`a = g(e)`.

Every function takes ``(energies, dim=-1)``. A key with energy minus infinity gets weight zero, and a query that may
see no key at all gets zero weights everywhere rather than NaN.

===============  ==========================================================  ============================
name             weights                                                     source
===============  ==========================================================  ============================
``softmax``      exp(e_i) / sum_j exp(e_j)
``sigmoid``      1 / (1 + exp(-e_i)): every key by itself, no competition
``sparsemax``    max(e_i - tau, 0), tau such that they sum to one            Martins & Astudillo 2016
``entmax15``     max(e_i / 2 - tau, 0)², tau such that they sum to one       Peters et al. 2019
``hard``         one key only: the best, or one drawn from the softmax       Xu et al. 2015
===============  ==========================================================  ============================
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

from visattn.core.arguments import whole
from visattn.core.precision import precise
from visattn.core.sampling import gumbel_like
from visattn.registry import Registry

Distribution = Callable[..., Tensor]


def _overridable(distribution: Distribution) -> Distribution:
    """Make a function visible to torch function modes (:func:`visattn.capture`), as torch's softmax is."""

    @wraps(distribution)
    def seen(energies: Tensor, dim: int = -1) -> Tensor:
        if has_torch_function_unary(energies):
            return handle_torch_function(seen, (energies,), energies, dim=dim)
        _check_energies(energies, dim)
        return distribution(energies, dim)

    return seen


def _check_energies(energies: Tensor, dim: int) -> None:
    if not isinstance(energies, Tensor) or not energies.is_floating_point() or energies.ndim == 0:
        got = f"{energies.dtype} {tuple(energies.shape)}" if isinstance(energies, Tensor) else type(energies).__name__
        raise TypeError(f"energies are floating-point numbers, a tensor (..., keys), got {got}")
    if whole(dim) is None:
        raise TypeError(f"dim is the number of an axis, got {dim!r}")
    if not -energies.ndim <= dim < energies.ndim:
        raise ValueError(f"energies {tuple(energies.shape)} have no axis {dim}")


def _nothing_visible(energies: Tensor, dim: int) -> Tensor:
    return (energies == -torch.inf).all(dim, keepdim=True)


def softmax(energies: Tensor, dim: int = -1) -> Tensor:
    """exp(e_i) / sum_j exp(e_j).

    >>> softmax(torch.tensor([-2.0, 0.0, 0.5]))
    tensor([0.0486, 0.3592, 0.5922])
    """
    _check_energies(energies, dim)
    blind = _nothing_visible(energies, dim)
    return torch.softmax(energies.masked_fill(blind, 0), dim).masked_fill(blind, 0)


@_overridable
def sigmoid(energies: Tensor, dim: int = -1) -> Tensor:  # noqa: ARG001  (one signature for all)
    """1 / (1 + exp(-e_i)); the weights do not sum to one."""
    return torch.sigmoid(energies)


def _support(energies: Tensor, dim: int, threshold: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """Which keys receive weight: the largest k energies for the largest k that stay above the threshold for k."""
    ordered = energies.sort(dim, descending=True).values
    shape = [1] * energies.ndim
    shape[dim] = -1
    rank = torch.arange(1, energies.shape[dim] + 1, device=energies.device, dtype=energies.dtype).view(shape)
    finite = ordered.masked_fill(ordered == -torch.inf, 0)
    tau = threshold(finite.cumsum(dim), finite.square().cumsum(dim), rank)
    size = (ordered > tau).sum(dim, keepdim=True)
    return ~(energies < ordered.gather(dim, (size - 1).clamp_min(0)))  # all, where one is NaN: then the weights are


def _sparsemax_threshold(total: Tensor, squares: Tensor, count: Tensor) -> Tensor:  # noqa: ARG001
    return (total - 1) / count


def _entmax15_threshold(total: Tensor, squares: Tensor, count: Tensor) -> Tensor:
    mean = total / count
    spread = squares / count - mean.square()
    return mean - (1 / count - spread).clamp_min(0).sqrt()


def _projection(
    energies: Tensor, dim: int, threshold: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Energies above the threshold (zero elsewhere) and which queries see nothing.

    The support is found without gradient; the threshold is then a smooth function of the energies inside it, which
    gives the exact Jacobian.
    """
    blind = _nothing_visible(energies, dim)
    if energies.shape[dim] == 0:
        return energies, blind
    energies = energies.masked_fill(blind, 0)
    energies = energies - energies.detach().amax(dim, keepdim=True)  # weights do not change; squares stay small
    with torch.no_grad():
        inside = _support(energies, dim, threshold)
        count = inside.sum(dim, keepdim=True).to(energies.dtype)
    kept = torch.where(inside, energies, 0)
    tau = threshold(kept.sum(dim, keepdim=True), kept.square().sum(dim, keepdim=True), count)
    return torch.where(inside, energies - tau, 0).clamp_min(0), blind


@_overridable
def sparsemax(energies: Tensor, dim: int = -1) -> Tensor:
    """Euclidean projection of the energies onto the probability simplex.

    >>> sparsemax(torch.tensor([-2.0, 0.0, 0.5]))
    tensor([0.0000, 0.2500, 0.7500])
    """
    weights, blind = _projection(precise(energies), dim, _sparsemax_threshold)
    return weights.masked_fill(blind, 0).to(energies.dtype)


@_overridable
def entmax15(energies: Tensor, dim: int = -1) -> Tensor:
    """1.5-entmax, half way between softmax and sparsemax.

    >>> entmax15(torch.tensor([-2.0, 0.0, 0.5]))
    tensor([0.0000, 0.3260, 0.6740])
    """
    roots, blind = _projection(precise(energies) / 2, dim, _entmax15_threshold)
    return roots.square().masked_fill(blind, 0).to(energies.dtype)


def hard(energies: Tensor, dim: int = -1, *, sample: bool = False) -> Tensor:
    """All weight on one key: the largest energy, or a draw from the softmax.

    The gradient is the softmax's (straight-through): forward hard, backward soft.

    >>> hard(torch.tensor([-2.0, 0.0, 0.5]))
    tensor([0., 0., 1.])
    """
    soft = softmax(energies, dim)
    if energies.shape[dim] == 0:
        return soft
    # Gumbel-max: the arg-max of energies with Gumbel noise is distributed as their softmax.
    choice = (energies + gumbel_like(energies) if sample else energies).argmax(dim)
    one_hot = F.one_hot(choice, energies.shape[dim]).to(soft.dtype).movedim(-1, dim)
    one_hot = one_hot.masked_fill(_nothing_visible(energies, dim), 0)
    return one_hot + (soft - soft.detach())


class Hard(nn.Module):
    """The ``hard`` distribution as a layer: samples while training, takes the best afterwards."""

    def forward(self, energies: Tensor, dim: int = -1) -> Tensor:
        """One-hot weights."""
        return hard(energies, dim, sample=self.training)


DISTRIBUTIONS: Registry[Distribution | type[nn.Module]] = Registry(
    "distribution",
    {
        "softmax": softmax,
        "sigmoid": sigmoid,
        "sparsemax": sparsemax,
        "entmax15": entmax15,
        "hard": Hard,
    },
)


def as_distribution(distribution: str | Distribution) -> Distribution:
    """A distribution by name, or the one given."""
    if not isinstance(distribution, str):
        if not callable(distribution) or isinstance(distribution, type):
            raise TypeError(f"a distribution is a name or a function of energies and dim, got {distribution!r}")
        return distribution
    named = DISTRIBUTIONS[distribution]
    return named() if isinstance(named, type) else named

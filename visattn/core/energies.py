"""Energies as pure functions: queries ``(..., Nq, dq)`` and keys ``(..., Nk, dk)`` give ``(..., Nq, Nk)``.

The modules that own the parameters, and the table of names and sources, are in :mod:`visattn.core.scores`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from visattn.core.precision import precise, without_autocast


def dot(query: Tensor, key: Tensor) -> Tensor:
    """q·k; of half precision, in single: where softmax looks at differences, large energies must not be rounded.

    >>> dot(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]]))
    tensor([[11., 17.]])
    """
    with without_autocast(query.device):
        return precise(query) @ precise(key).mT


def scaled_dot(query: Tensor, key: Tensor) -> Tensor:
    """q·k / sqrt(d), where d is the number of features of a key."""
    return dot(query, key) * key.shape[-1] ** -0.5


def cosine(query: Tensor, key: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """cos(q, k) / temperature; zero where either is a zero vector."""
    return dot(unit(query), unit(key)) / temperature


def unit(x: Tensor) -> Tensor:
    """Normalise vectors to length one, in single precision at least; zero vectors stay zero."""
    return F.normalize(precise(x), dim=-1)


def general(query: Tensor, key: Tensor, w: Tensor) -> Tensor:
    """q' W k with W (dq, dk)."""
    return dot(query @ w, key)


def biased_general(query: Tensor, key: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """k' (W q + b) with W (dk, dq)."""
    return dot(F.linear(query, w, b), key)


def additive(query: Tensor, key: Tensor, w: Tensor, u: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """v' tanh(W q + U k + b); a matrix v (features, hidden) gives one energy per feature."""
    hidden = torch.tanh((F.linear(query, w, b)).unsqueeze(-2) + F.linear(key, u).unsqueeze(-3))
    return F.linear(hidden, v) if v.ndim == 2 else hidden @ v  # (..., Nq, Nk[, features])


def concat(query: Tensor, key: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """v' tanh(W [q; k] + b), computed as the additive score it is equal to."""
    w_query, w_key = w.split([query.shape[-1], key.shape[-1]], dim=1)
    return additive(query, key, w_query, w_key, b, v)


def location(query: Tensor, key: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """W q + b: depends on the query only; row j of W speaks for key position j."""
    if key.shape[-2] != w.shape[0]:
        raise ValueError(f"the location score was built for {w.shape[0]} keys and got {key.shape[-2]}")
    return F.linear(query, w, b)


def squared_distance(query: Tensor, key: Tensor) -> Tensor:
    """|q - k|² for every pair, exactly zero where they are equal; in single precision at least.

    The values come from differences. The gradient, of any order, is that of |q|² + |k|² - 2 q·k, which needs no memory
    for the differences, and whose values would be rounding errors where q and k are close.
    """
    query, key = precise(query), precise(key)
    if torch.compiler.is_compiling():  # exporters too: ONNX has no cdist, and compilers fuse what stands here
        return (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(-1)
    values = torch.cdist(query.detach(), key.detach(), compute_mode="donot_use_mm_for_euclid_dist").square()
    if not (torch.is_grad_enabled() and (query.requires_grad or key.requires_grad)):
        return values
    middle = key.detach().mean(-2, keepdim=True)  # distances do not change, and rounding errors become smaller
    query, key = query - middle, key - middle
    slope = query.square().sum(-1, keepdim=True) + key.square().sum(-1).unsqueeze(-2) - 2 * dot(query, key)
    return values + (slope - slope.detach())


def distance(query: Tensor, key: Tensor) -> Tensor:
    """|q - k| for every pair, with gradient zero (not infinite) where they coincide."""
    squared = squared_distance(query, key)
    same = squared == 0
    return torch.where(same, 1, squared).sqrt().masked_fill(same, 0)

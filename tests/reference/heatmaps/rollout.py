"""Relevance of the input tokens from attention maps and their gradients, first layer first."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def _fuse(heads: Array, fusion: str) -> Array:
    """A_ij = mean, max or min over h of A_hij."""
    n = heads.shape[1]
    reduce = {"mean": lambda x: math.fsum(x) / len(x), "max": max, "min": min}[fusion]
    out = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            out[i, j] = reduce([float(head[i, j]) for head in heads])
    return out


def _discard(fused: Array, discard: float, prefix: int) -> Array:
    """Zero the floor(discard N^2) smallest of all N^2 entries, except those in the columns of prefix tokens.

    The prefix columns take part in the ranking: one of their entries among the smallest is kept, and no other
    entry goes in its stead. Of equal entries the first in row-major order counts as the smaller.
    """
    n = len(fused)
    ranked = sorted((float(fused[i, j]), i, j) for i in range(n) for j in range(n))
    out = fused.copy()
    for _, i, j in ranked[: math.floor(discard * (n * n))]:
        if j >= prefix:
            out[i, j] = 0.0
    return out


def _residual(fused: Array) -> Array:
    """A'_ij = (A_ij + I_ij) / sum_k (A_ik + I_ik)."""
    out = fused + np.eye(len(fused))
    for i in range(len(out)):
        out[i] /= math.fsum(out[i])
    return out


def _chain(layers: Sequence[Array]) -> Array:
    """A'_L ... A'_2 A'_1."""
    out = np.eye(len(layers[0]))
    for layer in layers:
        out = np.einsum("ik,kj->ij", layer, out)
    return out


def _positive(gradient: Array, heads: Array) -> Array:
    """E_ij = 1/H sum_h max(G_hij A_hij, 0)."""
    assert gradient.shape == heads.shape
    out = np.zeros(heads.shape[1:])
    for g, a in zip(gradient, heads, strict=True):
        out += np.maximum(g * a, 0.0) / len(heads)
    return out


def rollout(maps: Sequence[Array], fusion: str = "mean", discard: float = 0.0, prefix: int = 1) -> Array:
    """A'_l = rows of (fuse_h A_l + I) over their sums, R = A'_L ... A'_1 (Abnar & Zuidema 2020).

    `maps` are the (heads, N, N) row-stochastic maps; with mean fusion and no discard A' = 0.5 A + 0.5 I. The other
    fusions and the discarded entries (see `_discard`; `prefix` matters to nothing else) are later practice.
    Returns R (N, N), row i the shares of the input tokens in output token i.
    """
    layers = []
    for heads in maps:
        fused = _fuse(heads, fusion)
        if discard > 0:
            fused = _discard(fused, discard, prefix)
        layers.append(_residual(fused))
    return _chain(layers)


def grad_rollout(maps: Sequence[Array], gradients: Sequence[Array]) -> Array:
    """A'_l = rows of (1/H sum_h max(G_l A_l, 0) + I) over their sums, R = A'_L ... A'_1.

    Rollout of the maps weighted by the gradients of the score; both are (heads, N, N) per layer. Returns R (N, N).
    """
    return _chain([_residual(_positive(g, a)) for a, g in zip(maps, gradients, strict=True)])


def chefer(maps: Sequence[Array], gradients: Sequence[Array]) -> Array:
    """R = I, then R <- R + (1/H sum_h max(G_l A_l, 0)) R per layer (Chefer et al. 2021, ICCV).

    Maps and gradients of the score are (heads, N, N) per layer. Returns R (N, N), not normalised.
    """
    out = np.eye(maps[0].shape[1])
    for a, g in zip(maps, gradients, strict=True):
        out = out + np.einsum("ik,kj->ij", _positive(g, a), out)
    return out


def legrad(gradients: Sequence[Array], prefix: int) -> Array:
    """E_j = 1/L sum_l 1/(H N) sum_h sum_i max((ds_l / dA_l)_hij, 0) (Bousselham et al. 2024, LeGrad).

    s_l is the score of the tokens behind layer l. Returns the vector over the patches j >= prefix, not normalised.
    """
    n = gradients[0].shape[1]
    out = np.zeros(n)
    for layer in gradients:
        for head in layer:
            for i in range(n):
                out += np.maximum(head[i], 0.0) / (len(gradients) * len(layer) * n)
    return out[prefix:]


def readout(R: Array, rows: Sequence[int], prefix: int) -> Array:
    """1/|rows| sum_i R_ij over i in rows, for the patches j >= prefix."""
    out = np.zeros(R.shape[1])
    for i in rows:
        out += R[i] / len(rows)
    return out[prefix:]

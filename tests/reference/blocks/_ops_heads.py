"""Shared pieces of the pairwise blocks: heads, weighted sums over positions, square neighbourhoods."""

import numpy as np

from ._ops import Array, flatten, pointwise

Linear = tuple[Array, Array | None]  # weight (out, in), bias (out,) or None


def heads_of(x: Array, layer: Linear, heads: int) -> Array:
    """1x1 projection split into heads: (B, C, H, W) -> (B, heads, d, N), head n has channels n d .. n d + d - 1."""
    y = pointwise(flatten(x), *layer)
    return y.reshape(y.shape[0], heads, y.shape[1] // heads, y.shape[2])


def weighted_sum(a: Array, v: Array, height: int, width: int) -> Array:
    """sum_j a_ij v_j with a (B, heads, N, M) and v (B, heads, d, M), heads joined: (B, heads d, H, W)."""
    y = np.einsum("bnij,bndj->bndi", a, v)
    return y.reshape(y.shape[0], -1, height, width)


def neighbours(x: Array, size: int, mode: str = "constant") -> Array:
    """The size x size window around every position, row by row: (B, C, H, W) -> (B, C, size^2, H, W)."""
    height, width = x.shape[2:]
    p = size // 2
    padded = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)), mode=mode)
    taps = [padded[:, :, i : i + height, j : j + width] for i in range(size) for j in range(size)]
    return np.stack(taps, axis=2)


def average_tiles(x: Array, size: int) -> Array:
    """Mean over size x size tiles; over what there is of those at the end."""
    rows, columns = (range(0, side, size) for side in x.shape[2:])
    means = [[x[:, :, i : i + size, j : j + size].mean((2, 3)) for j in columns] for i in rows]
    return np.moveaxis(np.array(means), (0, 1), (2, 3))


def average_pool_whole(x: Array, size: int) -> Array:
    """Mean over whole size x size tiles; rows and columns left over at the end are dropped."""
    height, width = x.shape[2] // size, x.shape[3] // size
    y = x[:, :, : height * size, : width * size].reshape(*x.shape[:2], height, size, width, size)
    return y.mean(axis=(3, 5))

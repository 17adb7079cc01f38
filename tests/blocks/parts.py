"""How weights of our blocks are handed to the oracles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn

Array = np.ndarray
Oracle = Callable[[Any, Array], Array]


def array(x: Tensor) -> Array:
    return x.detach().numpy()


def dense(conv: nn.Conv2d) -> Array:
    """A convolution's weight as (out, in, k, k): zero from one group to another."""
    groups = [array(rows) for rows in conv.weight.chunk(conv.groups)]
    rows, columns = groups[0].shape[:2]
    weight = np.zeros((rows * len(groups), columns * len(groups), *conv.kernel_size))
    for number, own in enumerate(groups):
        weight[number * rows :, number * columns :][:rows, :columns] = own
    return weight


def matrix(conv: nn.Conv2d) -> Array:
    """A 1x1 convolution's weight as (out, in)."""
    return dense(conv)[:, :, 0, 0]


def thirds(conv: nn.Conv2d) -> list[tuple[Array, Array | None]]:
    """Weights and biases of queries, keys and values, which a grouped convolution has group by group."""

    def cut(rows: Array | None) -> list[Any]:
        if rows is None:
            return [None] * 3
        parts = rows.reshape(conv.groups, 3, -1, *rows.shape[1:])
        return [part.reshape(-1, *rows.shape[1:]) for part in parts.swapaxes(0, 1)]

    return list(zip(cut(matrix(conv)), cut(bias(conv)), strict=True))


def bias(conv: nn.Conv2d) -> Array | None:
    return None if conv.bias is None else array(conv.bias)


def linear(conv: nn.Conv2d) -> tuple[Array, Array | None]:
    return matrix(conv), bias(conv)


def norm(bn: nn.BatchNorm2d) -> tuple[Array, ...]:
    return tuple(array(t) for t in (bn.weight, bn.bias, bn.running_mean, bn.running_var))


def bottleneck(m: nn.Module) -> tuple[Array | None, ...]:
    return (*linear(m.fc1), *linear(m.fc2))


def mask(attention: Any) -> Tensor:
    """What a block multiplied by; hard attention gives its probabilities as well."""
    return attention[0] if isinstance(attention, tuple) else attention

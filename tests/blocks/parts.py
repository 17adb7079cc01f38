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


def matrix(conv: nn.Conv2d) -> Array:
    """A 1x1 convolution's weight as (out, in)."""
    return array(conv.weight)[:, :, 0, 0]


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

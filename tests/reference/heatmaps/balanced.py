"""Balanced gradients from their definition: freeze what counts as constant, and the network is linear.

Of a linear function central differences are exact, so nothing here is derived by hand: a network is written in NumPy
with every constant looked up in a table. The first run fills the table in; later ones read it.
"""

import math

import numpy as np


class Frozen:
    """Values that are computed in the first run and looked up afterwards."""

    def __init__(self):
        self.values, self.filling, self.position = [], True, 0

    def __call__(self, value):
        if self.filling:
            self.values.append(value)
            return value
        self.position += 1
        return self.values[self.position - 1]


def slopes(network, x, step=1e-3):
    """d network / d x for a function of (frozen, x) to one number, with its constants frozen at x."""
    frozen = Frozen()
    value = network(frozen, x)
    frozen.filling = False
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        both = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            frozen.position = 0
            both.append(network(frozen, moved))
        gradient[index] = (both[0] - both[1]) / (2 * step)
    return value, gradient


def layer_norm(frozen, x, weight, bias, eps):
    centred = x - x.mean(-1, keepdims=True)
    deviation = frozen(np.sqrt((centred**2).mean(-1, keepdims=True) + eps))
    return centred / deviation * weight + bias


def attention(frozen, q, k, v):
    """One head, (N, d) each."""
    energies = q @ k.T / math.sqrt(q.shape[-1])
    weights = np.exp(energies - energies.max(-1, keepdims=True))
    return frozen(weights / weights.sum(-1, keepdims=True)) @ v


def normal_cdf(x):
    return 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu(frozen, x):
    return x * frozen(normal_cdf(x))


def swish(frozen, x):
    return x * frozen(1 / (1 + np.exp(-x)))


def product(frozen, a, b):
    """Half of the product with the one branch frozen, half with the other."""
    return 0.5 * a * frozen(b) + 0.5 * frozen(a) * b


def sigmoid(frozen, z):
    """One half and the line from there."""
    return 0.5 + z * frozen((1 / (1 + np.exp(-z)) - 0.5) / z)


def transformer(frozen, x, p):
    """A token of a pre-norm block, read by a linear head: p has the parameters, x is (N, C)."""
    y = layer_norm(frozen, x, p["norm1.weight"], p["norm1.bias"], 1e-5)
    q, k, v = (y @ p["qkv.weight"].T + p["qkv.bias"]).reshape(len(x), 3, -1).transpose(1, 0, 2)
    x = x + attention(frozen, q, k, v) @ p["proj.weight"].T + p["proj.bias"]
    y = layer_norm(frozen, x, p["norm2.weight"], p["norm2.bias"], 1e-5)
    gate, value = np.split(y @ p["up.weight"].T + p["up.bias"], 2, axis=-1)
    x = x + product(frozen, swish(frozen, gate), gelu(frozen, value)) @ p["down.weight"].T + p["down.bias"]
    return x[0] @ p["head.weight"][0] + p["head.bias"][0]


def squeeze_and_excite(frozen, x, p):
    """x (C, H, W) times a gate of its channel means, summed with weights."""
    gate = sigmoid(frozen, p["fc.weight"] @ x.mean((1, 2)) + p["fc.bias"])
    return (product(frozen, x, np.broadcast_to(gate[:, None, None], x.shape)) * p["read"]).sum()

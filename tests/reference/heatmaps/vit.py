"""A plain vision transformer by timm's weight names, and the gradients of its maps by central differences."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = Mapping[str, Array]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _linear(weights: Weights, name: str, x: Array) -> Array:
    """y = W x + b, per row of x."""
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _layer_norm(weights: Weights, name: str, x: Array) -> Array:
    """y = (x - mean) / sqrt(var + 1e-6) * gamma + beta, per row of x, the variance biased (Ba et al. 2016)."""
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-6) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _gelu(x: Array) -> Array:
    """x Phi(x) = x / 2 (1 + erf(x / sqrt 2)) (Hendrycks & Gimpel 2016)."""
    return x / 2 * (1 + _erf(x / math.sqrt(2)))


def _embed(weights: Weights, image: Array) -> Array:
    """z_0 = [class; E x_1; ...; E x_P] + E_pos, the patches row by row (Dosovitskiy et al. 2021, eq. 1)."""
    kernel, bias = weights["patch_embed.proj.weight"], weights["patch_embed.proj.bias"]  # (D, 3, p, p), (D,)
    p = kernel.shape[-1]
    tokens = [weights["cls_token"].reshape(-1)]
    for top in range(0, image.shape[1], p):
        for left in range(0, image.shape[2], p):
            patch = image[:, top : top + p, left : left + p]
            tokens.append(np.einsum("dcyx,cyx->d", kernel, patch) + bias)
    return np.stack(tokens) + weights["pos_embed"].reshape(len(tokens), -1)


def _attention(weights: Weights, name: str, x: Array, heads: int, given: Array | None) -> tuple[Array, Array]:
    """A_h = softmax(Q_h K_h^T / sqrt(D / H)), y = [A_1 V_1, ..., A_H V_H] W_o (Vaswani et al. 2017, 3.2.2).

    A given (heads, N, N) array takes the place of A. Returns (y, A).
    """
    n, width = x.shape
    size = width // heads
    q, k, v = np.split(_linear(weights, f"{name}.qkv", x), 3, axis=1)
    maps = np.zeros((heads, n, n))
    contexts = []
    for h in range(heads):
        own = slice(h * size, (h + 1) * size)
        if given is None:
            energies = q[:, own] @ k[:, own].T / math.sqrt(size)
            powers = np.exp(energies - energies.max(axis=1, keepdims=True))
            maps[h] = powers / powers.sum(axis=1, keepdims=True)
        else:
            maps[h] = given[h]
        contexts.append(maps[h] @ v[:, own])
    return _linear(weights, f"{name}.proj", np.concatenate(contexts, axis=1)), maps


def _blocks(weights: Weights, image: Array, heads: int, given: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """z' = z + attention(LN z), z = z' + MLP(LN z') per block (Dosovitskiy et al. 2021, eqs. 2-3).

    Returns the tokens behind every block and the maps; the first len(given) maps are the given ones.
    """
    x = _embed(weights, image)
    tokens: list[Array] = []
    maps: list[Array] = []
    while f"blocks.{len(maps)}.norm1.weight" in weights:
        layer = len(maps)
        name = f"blocks.{layer}"
        mixed, attention = _attention(
            weights,
            f"{name}.attn",
            _layer_norm(weights, f"{name}.norm1", x),
            heads,
            given[layer] if layer < len(given) else None,
        )
        x = x + mixed
        hidden = _gelu(_linear(weights, f"{name}.mlp.fc1", _layer_norm(weights, f"{name}.norm2", x)))
        x = x + _linear(weights, f"{name}.mlp.fc2", hidden)
        tokens.append(x)
        maps.append(attention)
    return tokens, maps


def _classify(weights: Weights, tokens: Array) -> Array:
    """y = head(LN z^class) (Dosovitskiy et al. 2021, eq. 4)."""
    return _linear(weights, "head", _layer_norm(weights, "norm", tokens[0]))


def forward(
    weights: Weights, image: Array, heads: int, maps: Sequence[Array] | None = None
) -> tuple[Array, list[Array]]:
    """Logits and the (heads, N, N) attention map of every block, for one image (3, H, W).

    `maps` take the place of the softmax maps of the first len(maps) blocks; the blocks behind them compute their own.
    """
    tokens, used = _blocks(weights, image, heads, maps or [])
    return _classify(weights, tokens[-1]), used


def _differences(score: Callable[[Array], float], at: Array, step: float) -> Array:
    """df/da_hij = (f(a + step e_hij) - f(a - step e_hij)) / (2 step)."""
    out = np.zeros(at.shape)
    for index in np.ndindex(at.shape):
        above, below = at.copy(), at.copy()
        above[index] += step
        below[index] -= step
        out[index] = (score(above) - score(below)) / (2 * step)
    return out


def map_gradients(weights: Weights, image: Array, heads: int, target: int, step: float = 1e-6) -> list[Array]:
    """dy_target / dA_l for every block l, every entry of A_l free, the maps behind l recomputed from their tokens.

    The total derivative, as back-propagation to the output of the l-th softmax gives it.
    """
    _, maps = forward(weights, image, heads)
    out = []
    for layer, at in enumerate(maps):
        before = maps[:layer]

        def score(a: Array, before: list[Array] = before) -> float:
            return float(forward(weights, image, heads, [*before, a])[0][target])

        out.append(_differences(score, at, step))
    return out


def layer_score_gradients(weights: Weights, image: Array, heads: int, target: int, step: float = 1e-6) -> list[Array]:
    """ds_l / dA_l for every block l, s_l = head(LN z_l^class)_target (Bousselham et al. 2024, LeGrad).

    z_l are the tokens behind block l; the final norm and the head are those of the model.
    """
    _, maps = forward(weights, image, heads)
    out = []
    for layer, at in enumerate(maps):
        before = maps[:layer]

        def score(a: Array, layer: int = layer, before: list[Array] = before) -> float:
            tokens, _ = _blocks(weights, image, heads, [*before, a])
            return float(_classify(weights, tokens[layer])[target])

        out.append(_differences(score, at, step))
    return out

"""Hard attention over windows of a map, at inference (Xu et al. 2015, arXiv 1502.03044; Mnih et al. 2014).

e = w2 . relu(W1 x + b1) + b2 at each place; the energy of a window of w x w places wholly inside the map is the
mean of e over it. The K windows with the largest energies are kept (the earlier one in row-major order of two equal
ones), mask = 1 where at least one of them covers the place:

y = mask * x + (1 - mask) * fill, fill = 0 ("zero") or the mean of x over the map, per image and channel ("mean")

x: (B, C, H, W). w1: (R, C), b1: (R,). w2: (R,) or (1, R), b2: a number or (1,). window: w. glimpses: K as an int, or
a float share of the M windows, K = max(1, round(share M)) with halves to even. The perturbed top-k block
(Cordonnier et al. 2021, arXiv 2104.03059) chooses the same windows at inference.
"""

import numpy as np

from ._ops import Array


def place_energies(x: Array, w1: Array, b1: Array, w2: Array, b2: Array | float) -> Array:
    """w2 . relu(W1 x + b1) + b2 of every place: (B, H, W)."""
    batch, _, height, width = x.shape
    e = np.zeros((batch, height, width))
    for b in range(batch):
        for i in range(height):
            for j in range(width):
                hidden = np.maximum(np.einsum("rc,c->r", w1, x[b, :, i, j]) + b1, 0.0)
                e[b, i, j] = np.sum(np.ravel(w2) * hidden) + np.ravel(b2)[0]
    return e


def window_energies(x: Array, w1: Array, b1: Array, w2: Array, b2: Array | float, window: int) -> Array:
    """Mean energy of each window, by its upper left place: (B, 1, H - w + 1, W - w + 1)."""
    e = place_energies(x, w1, b1, w2, b2)
    batch, height, width = e.shape
    rows, cols = height - window + 1, width - window + 1
    assert rows >= 1 and cols >= 1
    out = np.zeros((batch, 1, rows, cols))
    for i in range(rows):
        for j in range(cols):
            out[:, 0, i, j] = e[:, i : i + window, j : j + window].sum(axis=(1, 2)) / window**2
    return out


def number_of_glimpses(glimpses: int | float, windows: int) -> int:
    """K itself, or max(1, round-half-to-even(share * windows))."""
    if isinstance(glimpses, float):
        return max(1, round(glimpses * windows))  # Python rounds halves to even
    assert 1 <= glimpses <= windows
    return glimpses


def chosen_windows(
    x: Array, w1: Array, b1: Array, w2: Array, b2: Array | float, glimpses: int | float, window: int
) -> list[list[tuple[int, int]]]:
    """For each image the (row, column) of the upper left places of its K best windows, best first."""
    energies = window_energies(x, w1, b1, w2, b2, window)
    rows, cols = energies.shape[2:]
    places = [(i, j) for i in range(rows) for j in range(cols)]
    k = number_of_glimpses(glimpses, rows * cols)
    return [sorted(places, key=lambda p, image=image: -image[0, p[0], p[1]])[:k] for image in energies]


def hard_mask(
    x: Array, w1: Array, b1: Array, w2: Array, b2: Array | float, glimpses: int | float, window: int
) -> Array:
    """1 where at least one chosen window covers the place, else 0: (B, 1, H, W)."""
    mask = np.zeros((x.shape[0], 1, *x.shape[2:]))
    for b, windows in enumerate(chosen_windows(x, w1, b1, w2, b2, glimpses, window)):
        for top, left in windows:
            for i in range(window):
                for j in range(window):
                    mask[b, 0, top + i, left + j] = 1.0
    return mask


def hard_probabilities(
    x: Array, w1: Array, b1: Array, w2: Array, b2: Array | float, glimpses: int | float, window: int
) -> Array:
    """Softmax of the window energies over all windows of an image: (B, 1, H - w + 1, W - w + 1)."""
    energies = window_energies(x, w1, b1, w2, b2, window)
    mass = np.stack([np.exp(image - image.max()) for image in energies])
    return np.stack([image / image.sum() for image in mass])


def hard(
    x: Array,
    w1: Array,
    b1: Array,
    w2: Array,
    b2: Array | float,
    glimpses: int | float,
    window: int,
    fill: str = "zero",
) -> Array:
    """The map where a chosen window covers it and the fill elsewhere: (B, C, H, W)."""
    assert fill in ("zero", "mean")
    mask = hard_mask(x, w1, b1, w2, b2, glimpses, window)
    y = np.zeros(x.shape)
    for b, c, i, j in np.ndindex(*x.shape):
        instead = x[b, c].mean() if fill == "mean" else 0.0
        y[b, c, i, j] = x[b, c, i, j] if mask[b, 0, i, j] == 1.0 else instead
    return y

"""Scores that take parts of an image away, one image and one step at a time.

``ask(image)`` is the model: probabilities of all classes for (C, H, W). ``fill(image, removed)`` is what an image
becomes. Heatmaps are (h, w) without equal cells; H and W are multiples of h and w.
"""

from itertools import pairwise

import numpy as np


def pixels(cells, shape):
    return np.kron(cells, np.ones((shape[1] // cells.shape[0], shape[2] // cells.shape[1]))) > 0


def top(heatmap, count, *, most):
    """Which cells are removed: the `count` most or least relevant ones."""
    order = np.argsort(-heatmap if most else heatmap, axis=None)
    chosen = np.zeros(heatmap.size)
    chosen[order[:count]] = 1
    return chosen.reshape(heatmap.shape)


def curve(ask, image, heatmap, target, fill, shares, *, most):
    values = []
    for share in shares:
        removed = pixels(top(heatmap, round(share * heatmap.size), most=most), image.shape)
        values.append(ask(fill(image, removed))[target])
    return np.array(values)


def rise(values):
    """AUC of RISE: (sum - (first + last) / 2) / number of steps."""
    return (values.sum() - (values[0] + values[-1]) / 2) / (len(values) - 1)


def insertion(ask, image, heatmap, target, fill, steps):
    values = []
    for step in range(steps + 1):
        shown = top(heatmap, round(step / steps * heatmap.size), most=True)
        values.append(ask(fill(image, pixels(1 - shown, image.shape)))[target])
    return rise(np.array(values))


def chefer(ask, image, heatmap, target, fill, *, most):
    hits = []
    for tenths in range(10):
        removed = pixels(top(heatmap, round(tenths / 10 * heatmap.size), most=most), image.shape)
        hits.append(float(np.argmax(ask(fill(image, removed))) == target))
    return 100 * sum((a + b) / 2 * 0.1 for a, b in pairwise(hits))


def road(ask, image, heatmap, target, fill):
    shares = [k / 10 for k in range(1, 10)]
    most, least = (curve(ask, image, heatmap, target, fill, shares, most=most) for most in (True, False))
    return np.mean(least - most) / 2


def saco(ask, image, heatmap, target, fill, number=10):
    order = np.argsort(-heatmap, axis=None)
    clean = ask(image)[target]
    groups = np.array_split(order, number)  # equal sizes
    salience, influence = [], []
    for group in groups:
        cells = np.zeros(heatmap.size)
        cells[group] = 1
        salience.append(heatmap.flat[group].sum())
        influence.append(clean - ask(fill(image, pixels(cells.reshape(heatmap.shape), image.shape)))[target])
    score, total = 0.0, 0.0
    for i in range(number - 1):
        for j in range(i + 1, number):
            weight = salience[i] - salience[j]
            if influence[i] < influence[j]:
                weight = -weight
            score, total = score + weight, total + abs(weight)
    return score / total

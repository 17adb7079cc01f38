"""Whether the heat is on the object, pixel by pixel. Heatmaps and masks are (H, W); heatmaps have no equal pixels."""

import numpy as np


def shown(relevance):
    return (relevance - relevance.min()) / (relevance.max() - relevance.min())


def pointing(heatmap, mask, tolerance):
    y, x = np.unravel_index(heatmap.argmax(), heatmap.shape)
    for row, column in np.argwhere(mask):
        if (row - y) ** 2 + (column - x) ** 2 <= tolerance**2:
            return 1.0
    return 0.0


def share(heat, mask):
    return sum(heat[y, x] for y, x in np.argwhere(mask)) / heat.sum()


def rank(heatmap, mask):
    count = int(mask.sum())
    hottest = sorted(np.ndindex(heatmap.shape), key=lambda place: -heatmap[place])[:count]
    return sum(bool(mask[place]) for place in hottest) / count


def iou(heatmap, mask):
    found = heatmap > heatmap.mean()
    scores = []
    for a, b in ((found, mask), (~found, ~mask)):
        both = sum(1 for place in np.ndindex(mask.shape) if a[place] and b[place])
        either = sum(1 for place in np.ndindex(mask.shape) if a[place] or b[place])
        scores.append(both / either)
    return np.mean(scores)

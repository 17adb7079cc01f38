"""Grad-CAM times what the pixels contribute, in plain loops."""

import numpy as np


def enlarged(grid, rows, columns):
    """Bilinear, with the edges of the first and the last cell at the edges of the image."""
    height, width = grid.shape
    out = np.zeros((rows, columns))
    for r in range(rows):
        for c in range(columns):
            y = min(max((r + 0.5) * height / rows - 0.5, 0), height - 1)
            x = min(max((c + 0.5) * width / columns - 0.5, 0), width - 1)
            top, left = int(y), int(x)
            bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
            v, u = y - top, x - left
            out[r, c] = (1 - v) * ((1 - u) * grid[top, left] + u * grid[top, right]) + v * (
                (1 - u) * grid[bottom, left] + u * grid[bottom, right]
            )
    return out


def smoothed(grid):
    """The mean of the 3 x 3 neighbours that exist."""
    rows, columns = grid.shape
    return np.array(
        [
            [grid[max(r - 1, 0) : r + 2, max(c - 1, 0) : c + 2].mean() for c in range(columns)]
            for r in range(rows)
        ]
    )  # fmt: skip


def sharp_gradcam(activation, activation_gradient, image, image_gradient, finer=4):
    """(channels, h, w) twice, and an image (C, H, W) whose sides are multiples of the finer grid's, twice."""
    channels, h, w = activation.shape
    cam = np.zeros((h, w))
    for channel in range(channels):
        cam += activation_gradient[channel].mean() * activation[channel]
    cam = np.maximum(cam, 0)
    cam = (cam / cam.max()) ** 2 if cam.max() > 0 else cam
    rows, columns = finer * h, finer * w
    contributions = np.zeros(image.shape[1:])
    for colour, gradient in zip(image, image_gradient, strict=True):
        ordered = np.sort(colour.ravel())
        contributions += (colour - ordered[(len(ordered) - 1) // 2]) * gradient  # the lower median
    contributions = np.abs(contributions)
    down, across = contributions.shape[0] // rows, contributions.shape[1] // columns
    cells = np.array(
        [
            [contributions[r * down : (r + 1) * down, c * across : (c + 1) * across].mean() for c in range(columns)]
            for r in range(rows)
        ]
    )
    return enlarged(cam, rows, columns) * smoothed(smoothed(cells))

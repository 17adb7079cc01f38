"""What takes the place of removed pixels, pixel by pixel."""

import numpy as np


def blur(image, side=11, sigma=5.0):
    """(C, H, W): every pixel the weighted mean of a square around it; the edge pixels are repeated outside."""
    _, height, width = image.shape
    reach = side // 2
    result = np.zeros_like(image)
    for y in range(height):
        for x in range(width):
            total = 0.0
            for dy in range(-reach, reach + 1):
                for dx in range(-reach, reach + 1):
                    weight = np.exp(-(dy * dy + dx * dx) / (2 * sigma**2))
                    row, column = min(max(y + dy, 0), height - 1), min(max(x + dx, 0), width - 1)
                    result[:, y, x] += weight * image[:, row, column]
                    total += weight
            result[:, y, x] /= total
    return result


def linear(image, removed):
    """ROAD without noise: one dense system, an equation per removed pixel."""
    channels, height, width = image.shape
    unknown = [(y, x) for y in range(height) for x in range(width) if removed[y, x]]
    number = {place: i for i, place in enumerate(unknown)}
    matrix, right = np.zeros((len(unknown), len(unknown))), np.zeros((len(unknown), channels))
    for i, (y, x) in enumerate(unknown):
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):
                there = (y + dy, x + dx)
                if (dy, dx) == (0, 0) or not (0 <= there[0] < height and 0 <= there[1] < width):
                    continue
                weight = 1 / 6 if dy == 0 or dx == 0 else 1 / 12
                matrix[i, i] += weight
                if there in number:
                    matrix[i, number[there]] -= weight
                else:
                    right[i] += weight * image[:, there[0], there[1]]
    result = image.copy()
    solution = np.linalg.solve(matrix, right)
    for i, (y, x) in enumerate(unknown):
        result[:, y, x] = solution[i]
    return result


def neighbours(image, removed):
    """Halve until nothing is missing; a missing pixel takes the mean of what is known in the block around it."""
    _, height, width = image.shape
    result = image.copy()
    for y in range(height):
        for x in range(width):
            if not removed[y, x]:
                continue
            result[:, y, x] = 0
            side = 1
            while side < 2 * max(height, width):
                side *= 2
                top, left = y // side * side, x // side * side
                value = _mean_of_block(image, removed, top, left, side)
                if value is not None:
                    result[:, y, x] = value
                    break
    return result


def _mean_of_block(image, removed, top, left, side):
    """The mean of the known quarters of a block, each itself the mean of its known quarters."""
    if top >= image.shape[1] or left >= image.shape[2]:
        return None
    if side == 1:
        return None if removed[top, left] else image[:, top, left]
    half = side // 2
    quarters = [_mean_of_block(image, removed, top + dy, left + dx, half) for dy in (0, half) for dx in (0, half)]
    known = [each for each in quarters if each is not None]
    return np.mean(known, axis=0) if known else None

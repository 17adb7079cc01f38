"""Location-wise hard attention: glimpses, the recurrent attention model, draws without replacement, perturbed top-k.

Mnih et al. 2014 (arXiv 1406.6247); Plackett 1975; Williams 1992; Berthet et al. 2020 (arXiv 2002.08676);
Cordonnier et al. 2021 (arXiv 2104.03059). One image, one draw: nothing here has a batch axis.

The weights of the recurrent attention model are a dict. P = scales * C * size * size is the length of the retina,
the widths in brackets are the paper's, every width is read off the arrays:

    "glimpse.what.weight"       W_g   (128, P)      "glimpse.what.bias"       b_g   (128,)
    "glimpse.where.weight"      W_l   (128, 2)      "glimpse.where.bias"      b_l   (128,)
    "glimpse.from_what.weight"  W_hg  (256, 128)    "glimpse.from_what.bias"  b_hg  (256,)
    "glimpse.from_where.weight" W_hl  (256, 128)    "glimpse.from_where.bias" b_hl  (256,)
    "core.state.weight"         W_h   (256, 256)    "core.state.bias"         b_h   (256,)
    "core.input.weight"         W_x   (256, 256)    "core.input.bias"         b_x   (256,)
    "location.weight"           W_loc (2, 256)      "location.bias"           b_loc (2,)
    "classes.weight"            W_a   (classes, 256)  "classes.bias"          b_a   (classes,)
    "baseline.weight"           w_b   (256,) or (1, 256)  "baseline.bias"     b_b   () or (1,)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = Mapping[str, Array]


# The retina


def _pixel(image: Array, row: int, col: int) -> Array:
    """The (C,) values of one pixel, zero outside the image."""
    channels, height, width = image.shape
    if 0 <= row < height and 0 <= col < width:
        return image[:, row, col].astype(np.float64)
    return np.zeros(channels)


def _between(image: Array, across: float, down: float) -> Array:
    """Bilinear value at a point in edge coordinates: pixel (r, c) has its centre at down = r + 0.5, across = c + 0.5.

    Each of the four neighbours outside the image counts as zero.
    """
    col, row = math.floor(across - 0.5), math.floor(down - 0.5)
    fx, fy = across - 0.5 - col, down - 0.5 - row
    upper = (1.0 - fx) * _pixel(image, row, col) + fx * _pixel(image, row, col + 1)
    lower = (1.0 - fx) * _pixel(image, row + 1, col) + fx * _pixel(image, row + 1, col + 1)
    return (1.0 - fy) * upper + fy * lower


def crop(image: Array, left: int, top: int, side: int) -> Array:
    """The (C, side, side) pixels top .. top + side - 1, left .. left + side - 1; zeros outside the image."""
    patch = np.zeros((image.shape[0], side, side))
    for i in range(side):
        for j in range(side):
            patch[:, i, j] = _pixel(image, top + i, left + j)
    return patch


def shrink(patch: Array, factor: int) -> Array:
    """Mean of each block of factor x factor pixels: (C, n factor, n factor) -> (C, n, n)."""
    channels, n = patch.shape[0], patch.shape[1] // factor
    assert patch.shape == (channels, n * factor, n * factor)
    small = np.zeros((channels, n, n))
    for i in range(n):
        for j in range(n):
            block = patch[:, i * factor : (i + 1) * factor, j * factor : (j + 1) * factor]
            small[:, i, j] = block.sum(axis=(1, 2)) / factor**2
    return small


def corner(x: float, y: float, height: int, width: int, side: int) -> tuple[float, float]:
    """(left, top) in edge coordinates of the patch centred at (x, y): centre (x + 1) W / 2, (y + 1) H / 2."""
    return (x + 1.0) * width / 2.0 - side / 2.0, (y + 1.0) * height / 2.0 - side / 2.0


def glimpse(image: Array, x: float, y: float, size: int, scales: int) -> Array:
    """Retina-like sensor (Mnih et al. 2014, 3): (C, H, W) and a location -> (scales, C, size, size).

    x = -1, 1 are the left and right edge, y = -1, 1 the upper and lower edge. Scale k is a square of side
    size 2^k around the location, read at unit spacing and shrunk by averaging 2^k x 2^k pixels.
    """
    channels, height, width = image.shape
    patches = np.zeros((scales, channels, size, size))
    for k in range(scales):
        factor = 2**k
        side = size * factor
        left, top = corner(x, y, height, width, side)
        patch = np.zeros((channels, side, side))
        for i in range(side):
            for j in range(side):
                patch[:, i, j] = _between(image, left + j + 0.5, top + i + 0.5)
        patches[k] = shrink(patch, factor)
    return patches


# The recurrent attention model


def _linear(v: Array, weights: Weights, name: str) -> Array:
    """W v + b."""
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return np.einsum("oi,i->o", weight, v) + bias


def _relu(v: Array) -> Array:
    return np.maximum(v, 0.0)


def ram_glimpse(image: Array, weights: Weights, location: Array, size: int, scales: int) -> Array:
    """g = relu(W_hg hg + b_hg + W_hl hl + b_hl), hg = relu(W_g rho + b_g), hl = relu(W_l l + b_l).

    rho is the retina in the order scale, channel, row, column; l = (x, y).
    """
    patches = glimpse(image, float(location[0]), float(location[1]), size, scales)
    rho = np.array([v for scale in patches for channel in scale for row in channel for v in row])
    what = _relu(_linear(rho, weights, "glimpse.what"))
    where = _relu(_linear(np.asarray(location, dtype=np.float64), weights, "glimpse.where"))
    return _relu(_linear(what, weights, "glimpse.from_what") + _linear(where, weights, "glimpse.from_where"))


def ram_step(h: Array, g: Array, weights: Weights) -> Array:
    """h_t = relu(W_h h_{t-1} + b_h + W_x g_t + b_x)."""
    return _relu(_linear(h, weights, "core.state") + _linear(g, weights, "core.input"))


def ram_start(weights: Weights) -> Array:
    """h_0 = 0."""
    return np.zeros(weights["core.state.weight"].shape[1])


def ram_states(image: Array, weights: Weights, locations: Array, size: int, scales: int) -> Array:
    """h_0 .. h_T, (T + 1, hidden), at the T given locations (x, y)."""
    states = [ram_start(weights)]
    for location in locations:
        g = ram_glimpse(image, weights, location, size, scales)
        states.append(ram_step(states[-1], g, weights))
    return np.stack(states)


def ram_logits(image: Array, weights: Weights, locations: Array, size: int, scales: int) -> Array:
    """Class logits W_a h_T + b_a after the T given locations, (T, 2)."""
    return _linear(ram_states(image, weights, locations, size, scales)[-1], weights, "classes")


def ram_next_location(h: Array, weights: Weights) -> Array:
    """Mean (x, y) of the location chosen in state h: tanh(W_loc h + b_loc). The first comes from h_0."""
    return np.tanh(_linear(h, weights, "location"))


def ram_means(image: Array, weights: Weights, locations: Array, size: int, scales: int) -> Array:
    """Means (T, 2) of the T locations given: row t - 1 is tanh(W_loc h_{t-1} + b_loc)."""
    states = ram_states(image, weights, locations, size, scales)
    return np.stack([ram_next_location(h, weights) for h in states[:-1]])


def ram_baselines(image: Array, weights: Weights, locations: Array, size: int, scales: int) -> Array:
    """b_t = w_b . h_{t-1} + b_b, (T,): one for each location, from the state it was chosen in."""
    w, b = np.ravel(weights["baseline.weight"]), float(np.ravel(weights["baseline.bias"])[0])
    states = ram_states(image, weights, locations, size, scales)
    return np.array([float(np.sum(w * h)) + b for h in states[:-1]])


def ram_at_means(image: Array, weights: Weights, steps: int, size: int, scales: int) -> tuple[Array, Array]:
    """(logits, locations (steps, 2)) where every location is the mean of its distribution."""
    h, locations = ram_start(weights), []
    for _ in range(steps):
        locations.append(ram_next_location(h, weights))
        h = ram_step(h, ram_glimpse(image, weights, locations[-1], size, scales), weights)
    return _linear(h, weights, "classes"), np.stack(locations)


def gaussian_log_prob(location: Array, mean: Array, sigma: float) -> float:
    """log N(l; mean, sigma^2 I) in two dimensions: -|l - mean|^2 / (2 sigma^2) - log(2 pi sigma^2)."""
    square = sum((float(location[i]) - float(mean[i])) ** 2 for i in range(2))
    return -square / (2.0 * sigma**2) - math.log(2.0 * math.pi * sigma**2)


# Draws without replacement


def _softmax(energies: Array, places: Sequence[int]) -> dict[int, float]:
    """Softmax of the energies of some places only."""
    largest = max(float(energies[i]) for i in places)
    mass = {i: math.exp(float(energies[i]) - largest) for i in places}
    total = math.fsum(mass.values())
    return {i: m / total for i, m in mass.items()}


def plackett_luce_log_prob(energies: Array, chosen: Sequence[int]) -> float:
    """log prod_k exp(e_{c_k}) / sum_{i not in c_1 .. c_{k-1}} exp(e_i), in the order given."""
    left, total = list(range(len(energies))), 0.0
    for c in chosen:
        if int(c) not in left:
            return -math.inf
        largest = max(float(energies[i]) for i in left)
        normaliser = math.fsum(math.exp(float(energies[i]) - largest) for i in left)
        total += float(energies[c]) - largest - math.log(normaliser)
        left.remove(int(c))
    return total


def subset_probabilities(energies: Array, k: int) -> dict[frozenset[int], float]:
    """P(the K places drawn are this set) = sum of the Plackett-Luce probabilities of its K! orders."""
    table: dict[frozenset[int], float] = {}
    for order in permutations(range(len(energies)), k):
        key = frozenset(order)
        table[key] = table.get(key, 0.0) + math.exp(plackett_luce_log_prob(energies, order))
    return table


def entropy(energies: Array) -> float:
    """-sum_i p_i log p_i of p = softmax(e), in nats, with 0 log 0 = 0."""
    p = _softmax(energies, range(len(energies)))
    return -math.fsum(q * math.log(q) for q in p.values() if q > 0.0)


def exact_policy_gradient(energies: Array, k: int, reward: Callable[[tuple[int, ...]], float]) -> tuple[float, Array]:
    """J = sum_c P(c) R(c) over all ordered draws of K places, and dJ/de = sum_c P(c) R(c) d log P(c) / de.

    d log P(c) / de_i = sum_k [c_k = i] - softmax(e over the places left before draw k)_i.
    """
    n = len(energies)
    value, gradient = 0.0, np.zeros(n)
    for order in permutations(range(n), k):
        score = np.zeros(n)
        for step, c in enumerate(order):
            left = [i for i in range(n) if i not in order[:step]]
            score[c] += 1.0
            for i, q in _softmax(energies, left).items():
                score[i] -= q
        weighted = math.exp(plackett_luce_log_prob(energies, order)) * float(reward(order))
        value += weighted
        gradient += weighted * score
    return value, gradient


# Perturbed top-k


def _normal_cdf(z: Array) -> Array:
    """Phi(z) = erfc(-z / sqrt 2) / 2."""
    return np.array([0.5 * math.erfc(-v / math.sqrt(2.0)) for v in z])


def perturbed_topk(energies: Array, k: int, sigma: float) -> Array:
    """P(i is among the K largest of e + sigma z), z ~ N(0, I): (N,), summing to K.

    Given z_i = z, place j beats i with probability Phi((e_j - e_i) / sigma - z), independently
    over j, so the number of places that beat i is Poisson-binomial and P_i = E_z[P(at most K - 1 beat i)].
    Trapezoidal rule in z on [-10, 10] with step 0.05: the integrand is entire and falls off like exp(-z^2 / 2), so
    the error is of the order of exp(-(2 pi / 0.05)^2 / (2 N)), below 1e-15 for N up to 200.
    """
    e = np.asarray(energies, dtype=np.float64)
    n, step = len(e), 0.05
    z = step * np.arange(-200, 201)
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    included = np.zeros(n)
    for i in range(n):
        count = np.zeros((k, len(z)))  # count[m]: probability that m < K of the places seen so far beat i
        count[0] = 1.0
        for j in range(n):
            if j == i:
                continue
            beats, loses = _normal_cdf((e[j] - e[i]) / sigma - z), _normal_cdf(z - (e[j] - e[i]) / sigma)
            more = np.zeros_like(count)
            more[0] = count[0] * loses
            for m in range(1, k):
                more[m] = count[m] * loses + count[m - 1] * beats
            count = more
        included[i] = step * float(np.sum(density * count.sum(axis=0)))
    return included


def perturbed_topk_jacobian(energies: Array, k: int, sigma: float) -> Array:
    """J[i, j] = d P(i included) / d e_j, (N, N): central differences of sixth order of the exact values.

    f'(0) ~ [45 (f(h) - f(-h)) - 9 (f(2h) - f(-2h)) + (f(3h) - f(-3h))] / (60 h), h = sigma / 100.
    """
    e = np.asarray(energies, dtype=np.float64)
    n, h = len(e), 0.01 * sigma
    jacobian = np.zeros((n, n))
    for j in range(n):
        for m, c in ((1, 45.0), (2, -9.0), (3, 1.0)):
            shift = np.zeros(n)
            shift[j] = m * h
            difference = perturbed_topk(e + shift, k, sigma) - perturbed_topk(e - shift, k, sigma)
            jacobian[:, j] += c * difference / (60.0 * h)
    return jacobian

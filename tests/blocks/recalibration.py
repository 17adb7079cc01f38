"""Blocks that recalibrate channels, pixels or both: oracles, settings and mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from tests.blocks.case import Case
from tests.blocks.parts import Array, Oracle, array, bottleneck, linear, matrix, norm
from tests.reference.blocks import (
    ecam,
    ela,
    fcattention,
    gam,
    gct_gaussian,
    gsop,
    lct,
    nam,
    parnet,
    polarized,
    psa,
    sge,
    shuffle,
)


def affine(m: nn.Module) -> tuple[Array, Array]:
    return array(m.weight).ravel(), array(m.bias).ravel()


def mlp_channel(m: nn.Module, x: Array) -> Array:
    expand, conv = (array(m.expand.weight).ravel(), array(m.expand.bias)), array(m.conv.weight)[0]
    return ecam.mlp_channel(x, *expand, conv, array(m.conv.bias).item())


def second_order(m: nn.Module, x: Array) -> Array:
    rows = array(m.rows.weight)[:, 0, :, 0], array(m.rows.bias)
    return gsop.second_order(x, *linear(m.reduce), norm(m.bn), norm(m.row_bn), *rows, *linear(m.expand))


def fine_grained(m: nn.Module, x: Array) -> Array:
    return fcattention.fine_grained_channel(x, array(m.conv.weight).ravel(), *linear(m.fc), array(m.theta).item())


def shuffled(m: nn.Module, x: Array) -> Array:
    lines = [array(p) for p in (m.channel_weight, m.channel_bias, m.place_weight, m.place_bias)]
    return shuffle.shuffle_attention(x, *lines, *affine(m.norm))


def shuffle_gate(m: nn.Module, x: Array) -> Array:
    """The output in the order of the input, divided by the input."""
    output = shuffled(m, x)
    return np.concatenate([output[:, ::2], output[:, 1::2]], axis=1) / x


def polarized_parts(m: nn.Module) -> dict[str, Array]:
    parts = {"q": matrix(m.weigh), "v": matrix(m.value), "query": matrix(m.query), "key": matrix(m.key)}
    if hasattr(m, "up"):
        return parts | {"up": matrix(m.up)}
    w1, b1, w2, b2 = bottleneck(m)
    gamma, beta = affine(m.norm)
    return parts | {"w1": w1, "b1": b1, "gamma": gamma, "beta": beta, "w2": w2, "b2": b2}


def parnet_output(m: nn.Module, x: Array) -> Array:
    convs = array(m.conv3.weight), norm(m.bn3), matrix(m.conv1), norm(m.bn1)
    return parnet.parnet(x, *convs, matrix(m.fc), norm(m.bn))


def parnet_gate(m: nn.Module, x: Array) -> Array:
    gamma, beta, mean, variance = norm(m.bn)
    pooled = gamma * (x.mean((2, 3)) - mean) / np.sqrt(variance + 1e-5) + beta
    return (1 / (1 + np.exp(-pooled @ matrix(m.fc).T)))[:, :, None, None]


def kernels(m: nn.Module) -> list[Array]:
    """From the narrowest to the widest."""
    return sorted((array(branch.weight) for branch in m.branches), key=lambda weight: weight.shape[-1])


def psa_weights(m: nn.Module, x: Array) -> Array:
    """The output against that of four equal weights."""
    first, (w2, b2) = linear(m.fc1), linear(m.fc2)
    stride = m.branches[0].stride[0]
    equal = psa.pyramid_split(x, kernels(m), *first, 0 * w2, 0 * b2, stride)
    return (psa.pyramid_split(x, kernels(m), *first, w2, b2, stride) / (4 * equal))[:, :, :1, :1]


def efficient_local(m: nn.Module, x: Array) -> Array:
    both = array(m.conv.weight), affine(m.norm)
    return ela.efficient_local(x, *both, *both, m.norm.num_groups)


def gam_parts(m: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    w1, b1, w2, b2 = bottleneck(m)
    spatial = {
        "c1": array(m.conv1.weight),
        "d1": array(m.conv1.bias),
        "bn1": norm(m.bn1),
        "c2": array(m.conv2.weight),
        "d2": array(m.conv2.bias),
        "bn2": norm(m.bn2),
    }
    return {"w1": w1, "b1": b1, "w2": w2, "b2": b2}, spatial


OUTPUT: dict[str, Oracle] = {
    "ceca": lambda m, x: ecam.circular_channel(x, array(m.conv.weight).ravel()),
    "ecam": mlp_channel,
    "lct": lambda m, x: lct.linear_context(x, *affine(m), m.groups),
    "gct_gaussian": lambda m, x: gct_gaussian.gaussian_context(x, m.width),
    "gsop": second_order,
    "fcattention": fine_grained,
    "nam": lambda m, x: nam.normalization_based(x, norm(m.bn)),
    "sge": lambda m, x: sge.spatial_group_enhance(x, *affine(m)),
    "shuffle": shuffled,
    "polarized_parallel": lambda m, x: polarized.polarized_parallel(x, **polarized_parts(m)),
    "polarized_sequential": lambda m, x: polarized.polarized_sequential(x, **polarized_parts(m)),
    "parnet": parnet_output,
    "psa": lambda m, x: psa.pyramid_split(x, kernels(m), *bottleneck(m), m.branches[0].stride[0]),
    "ela": efficient_local,
    "gam": lambda m, x: gam.global_attention(x, *gam_parts(m)),
}

# What attention() returns where it is not simply output / input.
WEIGHTS: dict[str, Oracle] = {"shuffle": shuffle_gate, "parnet": parnet_gate, "psa": psa_weights}

DEFAULTS = [Case("sge", sizes=((7, 5), (33, 17)))]  # the deviation of one pixel is 0/0 in the definition

VARIANTS = [
    Case("ceca", {"kernel_size": 5}),
    Case("ecam", {"kernel_size": 5}),
    Case("lct", {"groups": 2}),
    Case("gct_gaussian", {"width": 0.5}),
    Case("gsop", {"dim": 8}),
    Case("fcattention", {"kernel_size": 5}),
    Case("sge", {"groups": 4}, sizes=((7, 5), (33, 17))),
    Case("shuffle", {"groups": 2}),
    Case("psa", {"rd_ratio": 1 / 2}),
    Case("psa", {"rd_ratio": 1 / 16}, channels=64),
    Case("psa", {"out_channels": 24, "stride": 2}),  # in the place of a convolution
    Case("psa", {"groups": 4}, channels=48, sizes=((7, 5),)),
    Case("ela", {"kernel_size": 5, "norm_groups": 32}, channels=32),
    Case("ela", {"group_width": 8}),
    Case("gam", {"rd_ratio": 1 / 4}),
]

# block, options, line as it is, line with the mistake
MUTATIONS = [
    ("ceca", {}, 'padding_mode="circular"', 'padding_mode="zeros"'),
    ("ecam", {}, "F.relu(self.expand(z))", "self.expand(z)"),
    ("lct", {}, "centred.square().mean(-1, keepdim=True)", "z.var(-1, keepdim=True)"),
    ("lct", {}, "z - z.mean(-1, keepdim=True)", "z - z.mean((1, 2), keepdim=True)"),
    ("gct_gaussian", {}, "/ (2 * self.width**2)", "/ 2 * self.width"),
    ("gct_gaussian", {}, "z - z.mean(1, keepdim=True)", "z"),
    ("gsop", {}, "u - u.mean(2, keepdim=True)", "u"),
    ("gsop", {}, "self.reduce(F.relu(x))", "self.reduce(x)"),
    ("gsop", {}, "* u.shape[2] ** -0.5", "* (u.shape[2] - 1) ** -0.5"),
    ("fcattention", {}, "v.sum(2, keepdim=True) * u", "v.sum(2, keepdim=True) * v"),
    ("fcattention", {}, "share * over_rows + (1 - share) * over_columns", "over_rows + over_columns"),
    ("nam", {}, "precise(self.bn.weight.detach()).abs()", "precise(self.bn.weight.detach())"),
    ("nam", {}, "scales / scales.sum().clamp(min=1e-30)", "scales"),
    ("sge", {}, "correction=min(1, c.shape[2] * c.shape[3] - 1)", "correction=0"),
    ("sge", {"groups": 4}, "gate(pixels, mean_places(pixels))", "pixels"),
    ("shuffle", {}, "gated.unflatten(1, (2, -1))", "gated.unflatten(1, (-1, 2))"),
    ("shuffle", {"groups": 4}, "(self.groups, 2, -1)", "(2, self.groups, -1)"),
    ("polarized_parallel", {}, "F.softmax(energies.flatten(2), dim=-1)", "energies.flatten(2)"),
    ("polarized_parallel", {}, "+ self._places(x)", "* self._places(x)"),
    ("polarized_parallel", {}, "precise(self.query(mean_places(x)))", "precise(self.query(mean_places(x))).softmax(1)"),
    ("polarized_sequential", {}, "F.softmax(key.flatten(2), dim=-1)", "F.softmax(key.flatten(2), dim=1)"),
    ("polarized_sequential", {}, "F.relu(self.norm(", "F.relu(("),
    ("polarized_sequential", {}, "return gate(x, self._places(x))", "return x + gate(x, self._places(x))"),
    ("parnet", {}, "        z = self.bn(x)", "        z = x"),
    ("parnet", {}, "F.silu(", "F.relu("),
    ("psa", {}, "((9, 16), (7, 8), (5, 4), (3, 1))", "((3, 1), (5, 4), (7, 8), (9, 16))"),
    ("psa", {"rd_ratio": 1 / 2}, "torch.sigmoid(self.fc2(F.relu(self.fc1(z))))", "self.fc2(F.relu(self.fc1(z)))"),
    ("psa", {"rd_ratio": 1 / 2}, "F.softmax(z, dim=1)", "F.softmax(z, dim=2)"),
    ("ela", {}, "self.norm(self.conv(rows))", "nn.functional.silu(self.norm(self.conv(rows)))"),
    ("ela", {}, "mean(x, 3).squeeze(3)", "x.amax(3)"),
    ("gam", {}, "return gate(x, self._places(x))", "return gate(x, self._places(x / self._channels(x)))"),
    ("gam", {}, "self.fc2(F.relu(self.fc1(x)))", "self.fc2(F.relu(self.fc1(x.mean((2, 3), keepdim=True))))"),
]  # fmt: skip

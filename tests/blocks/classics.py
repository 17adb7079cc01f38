"""The first blocks: oracles, settings and mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from tests.blocks.case import Case
from tests.blocks.parts import Array, Oracle, array, bias, bottleneck, linear, matrix, norm, thirds
from tests.reference.blocks import (
    bam,
    cbam,
    coord,
    double,
    eca,
    ese,
    fca,
    gc,
    gct,
    ge,
    hard,
    lka,
    mhsa,
    nonlocal_,
    residual,
    scse,
    se,
    simam,
    sk,
    splat,
    srm,
    triplet,
)
from tests.reference.blocks._ops import average_pool
from tests.reference.blocks._ops_heads import average_tiles


def gather(m: nn.Module) -> tuple[list[Array], list[tuple[Array, ...]], bool]:
    kernels = [array(layer.weight)[:, 0] for layer in m.gather if isinstance(layer, nn.Conv2d)]
    norms = [norm(layer) for layer in m.gather if isinstance(layer, nn.BatchNorm2d)]
    return kernels, norms, m.size is not None


def ge_plus(m: nn.Module, x: Array) -> Array:
    kernels, norms, full_map = gather(m)
    return ge.ge_theta_plus(x, kernels, norms, *bottleneck(m), full_map)


def unit(m: nn.Module) -> dict[str, Any]:
    return {
        **{f"bn{i}": norm(getattr(m, f"bn{i}")) for i in (1, 2, 3)},
        "w1": matrix(m.conv1),
        "w2": array(m.conv2.weight),
        "w3": matrix(m.conv3),
    }


def residual_mask(m: nn.Module, x: Array) -> Array:
    down, skip, up = ([unit(u) for u in units] for units in (m.down, m.skip, m.up))
    head = (norm(m.head[0]), matrix(m.head[2]), norm(m.head[3]), matrix(m.head[5]))
    return residual.residual_mask(x, down, skip, up, unit(m.bottom), head)


def bam_parts(m: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    c, s = m.channel, m.spatial
    channel = {"w1": matrix(c[0]), "b1": bias(c[0]), "bn": norm(c[1]), "w2": matrix(c[3]), "b2": bias(c[3])}
    spatial = {
        "w0": matrix(s[0]),
        "b0": bias(s[0]),
        "bn0": norm(s[1]),
        "w1": array(s[3].weight),
        "b1": bias(s[3]),
        "bn1": norm(s[4]),
        "w2": array(s[6].weight),
        "b2": bias(s[6]),
        "bn2": norm(s[7]),
        "w3": matrix(s[9]),
        "b3": bias(s[9]),
    }
    return channel, spatial


def max_mean(m: nn.Module) -> tuple[Array, tuple[Array, ...]]:
    return array(m.conv.weight), norm(m.bn)


def embedded(m: nn.Module) -> tuple[Any, ...]:
    return linear(m.theta), linear(m.phi), linear(m.g), linear(m.out), norm(m.bn)


def mhsa_parts(m: nn.Module, x: Array) -> tuple[Any, ...]:
    wq, wk, wv = (w for w, _ in thirds(m.qkv))
    rel_h = mhsa.resample_offsets(array(m.rel_h), x.shape[2])
    rel_w = mhsa.resample_offsets(array(m.rel_w), x.shape[3])
    return x, wq, wk, wv, rel_h, rel_w, m.heads


def sk_parts(m: nn.Module) -> tuple[Any, ...]:
    (conv3, bn3, _), (conv5, bn5, _) = m.branches
    narrow, wide = (array(conv3.weight), norm(bn3)), (array(conv5.weight), norm(bn5))
    return (*narrow, *wide, matrix(m.reduce), norm(m.bn), matrix(m.select), conv3.groups, conv3.stride[0])


def splat_output(m: nn.Module, x: Array) -> Array:
    first, second = (array(m.fc1.weight), bias(m.fc1), norm(m.bn1)), (array(m.fc2.weight), bias(m.fc2))
    y = splat.split_attention(x, array(m.conv.weight), norm(m.bn0), *first, *second, m.radix, m.groups)
    margin = ((0, 0), (0, 0), (1, 1), (1, 1))
    return y if m.stride == 1 else average_pool(np.pad(y, margin), 3, m.stride, 0)  # counts the zeros around the map


def gc_parts(m: nn.Module) -> tuple[Any, ...]:
    ln = (array(m.norm.weight).ravel(), array(m.norm.bias).ravel())
    return matrix(m.key)[0], bias(m.key), *linear(m.fc1), ln, *linear(m.fc2)


def hard_parts(m: nn.Module) -> tuple[Any, ...]:
    return (*linear(m.fc1), *linear(m.fc2), m.glimpses, m.window)


def double_parts(m: nn.Module) -> tuple[Any, ...]:
    return (*linear(m.features), *linear(m.gather), *linear(m.distribute), *linear(m.out))


OUTPUT: dict[str, Oracle] = {
    "se": lambda m, x: se.squeeze_excite(x, *bottleneck(m)),
    "ese": lambda m, x: ese.effective_squeeze_excite(x, *linear(m.fc)),
    "cse": lambda m, x: scse.channel_se(x, *bottleneck(m)),
    "sse": lambda m, x: scse.spatial_se(x, matrix(m.conv)[0], bias(m.conv)),
    "scse": lambda m, x: scse.concurrent_se(x, *bottleneck(m.channel), matrix(m.spatial.conv)[0], bias(m.spatial.conv)),
    "eca": lambda m, x: eca.efficient_channel(x, array(m.conv.weight).ravel()),
    "ge": lambda m, x: ge.ge_theta_minus(x, m.extent),
    "ge_theta": lambda m, x: ge.ge_theta(x, *gather(m)),
    "ge_theta_plus": ge_plus,
    "gc": lambda m, x: gc.global_context(x, *gc_parts(m)),
    "srm": lambda m, x: srm.style_recalibration(x, array(m.weight), norm(m.bn)),
    "fca": lambda m, x: fca.fca(x, matrix(m.fc1), matrix(m.fc2), m.size),
    "gct": lambda m, x: gct.gated_channel(x, array(m.alpha), array(m.gamma), array(m.beta)),
    "sk": lambda m, x: sk.selective_kernel(x, *sk_parts(m)),
    "splat": splat_output,
    "spatial": lambda m, x: x * cbam.spatial_gate(x, *max_mean(m.gate)),
    "cbam": lambda m, x: cbam.cbam(x, *bottleneck(m.channel), *max_mean(m.spatial.gate)),
    "residual": residual_mask,
    "lka": lambda m, x: lka.large_kernel(
        x, array(m.local.weight)[:, 0], bias(m.local), array(m.distant.weight)[:, 0], bias(m.distant), *linear(m.mix)
    ),
    "bam": lambda m, x: bam.bam(x, *bam_parts(m)),
    "coord": lambda m, x: coord.coordinate(x, *linear(m.reduce), norm(m.bn), *linear(m.row), *linear(m.column)),
    "simam": lambda m, x: simam.simam(x, m.lam),
    "triplet": lambda m, x: triplet.triplet(
        x, [max_mean(m.channel_width), max_mean(m.height_channel), max_mean(m.height_width)]
    ),
    "nonlocal": lambda m, x: nonlocal_.embedded_gaussian(x, *embedded(m), subsample=m.subsample),
    "nonlocal_gaussian": lambda m, x: nonlocal_.gaussian(
        x, linear(m.g), linear(m.out), norm(m.bn), subsample=m.subsample
    ),
    "nonlocal_dot": lambda m, x: nonlocal_.dot(x, *embedded(m), subsample=m.subsample),
    "nonlocal_concat": lambda m, x: nonlocal_.concat(x, *embedded(m), array(m.w_f), subsample=m.subsample),
    "mhsa": lambda m, x: average_tiles(mhsa.bottleneck_mhsa(*mhsa_parts(m, x)), m.stride),
    "double": lambda m, x: double.double_attention(x, *double_parts(m)),
    **dict.fromkeys(("hard", "hard_topk"), lambda m, x: hard.hard(x, *hard_parts(m), m.fill)),
}

# What attention() returns where it is not simply output / input.
WEIGHTS: dict[str, Oracle] = {
    "gc": lambda m, x: gc.global_context_weights(x, *gc_parts(m)),
    "sk": lambda m, x: sk.selective_kernel_weights(x, *sk_parts(m))[:, 1, :, None, None],
    "nonlocal": lambda m, x: nonlocal_.embedded_gaussian_weights(x, *embedded(m), subsample=m.subsample)[:, None],
    "nonlocal_gaussian": lambda m, x: nonlocal_.gaussian_weights(x, subsample=m.subsample)[:, None],
    "nonlocal_dot": lambda m, x: nonlocal_.dot_weights(x, *embedded(m), subsample=m.subsample)[:, None],
    "nonlocal_concat": lambda m, x: nonlocal_.concat_weights(x, *embedded(m), array(m.w_f), subsample=m.subsample)[
        :, None
    ],
    "mhsa": lambda m, x: mhsa.bottleneck_mhsa_weights(*mhsa_parts(m, x)),
    "double": lambda m, x: double.double_attention_weights(x, *double_parts(m))[:, None],
    **dict.fromkeys(("hard", "hard_topk"), lambda m, x: hard.hard_mask(x, *hard_parts(m))),
}

# Blocks that do not simply multiply by their attention().
NO_PRODUCT = {"splat"}

VARIANTS = [
    Case("se", {"rd_ratio": 1 / 4, "bias": False}),
    Case("eca", {"kernel_size": 5}),
    Case("ge", {"extent": 2}),
    Case("ge", {"extent": 4}),
    Case("ge_theta", {"extent": 2}),
    Case("ge_theta", {"size": (7, 5)}, sizes=((7, 5),)),
    Case("ge_theta_plus", {"size": 6}, sizes=((6, 6),)),
    Case("fca", {"size": 14}),
    Case("fca", {"rd_ratio": 1 / 2}, channels=24),
    Case("sk", {"rd_min": 8, "groups": 4}),
    Case("splat", {"radix": 1, "groups": 2}),
    Case("splat", {"radix": 2, "groups": 2}),
    Case("splat", {"radix": 4, "groups": 2}),
    *(
        Case(name, {"out_channels": 24, "stride": 2}) for name in ("sk", "splat", "mhsa")
    ),  # in the place of a convolution
    Case("spatial", {"kernel_size": 3}),
    Case("residual", {"depth": 1}),
    Case("residual", {"depth": 3}),
    Case("bam", {"rd_ratio": 1 / 4}),
    Case("simam", {"lam": 0.1}),
    Case("nonlocal", {"subsample": 2}),
    Case("nonlocal_gaussian", {"subsample": 2}),
    Case("nonlocal_dot", {"subsample": 2}),
    Case("nonlocal_concat", {"subsample": 2}),
    Case("mhsa", {"heads": 2, "size": 7}),
    Case("mhsa", {"out_channels": 24, "groups": 4}, sizes=((7, 5),)),
    Case("mhsa", {"heads": 2, "groups": 8}, sizes=((7, 5),)),
    Case("lka", {"groups": 4}, sizes=((7, 5),)),
    Case("hard", {"glimpses": 3, "window": 2, "fill": "mean"}, sizes=((7, 5), (33, 17))),
    Case("hard", {"glimpses": 1.0, "signal": "reinforce"}),
    Case("hard_topk", {"glimpses": 2, "window": 3}, sizes=((7, 5), (33, 17))),
]

# block, options, line as it is, line with the mistake
MUTATIONS = [
    ("se", {}, "torch.sigmoid(self.fc2(F.relu(self.fc1(z))))", "self.fc2(F.relu(self.fc1(z)))"),
    ("se", {}, "torch.sigmoid(self.fc2(F.relu(self.fc1(z))))", "torch.sigmoid(F.relu(self.fc2(F.relu(self.fc1(z)))))"),
    ("se", {}, "mean_places(x)", "x.amax((2, 3), keepdim=True)"),
    ("ese", {}, "F.hardsigmoid(", "F.sigmoid("),
    ("cse", {}, "F.relu(self.fc1(z))", "self.fc1(z)"),
    ("sse", {}, "return torch.sigmoid(self.conv(x))", "return torch.softmax(self.conv(x), 0)"),
    ("scse", {}, "return torch.maximum(self.channel(x)", "return torch.add(self.channel(x)"),
    ("scse", {}, "torch.where(x >= 0, torch.maximum", "torch.where(x >= 0, torch.minimum"),
    ("eca", {"kernel_size": 5}, '"circular" if circular else "constant"', '"circular"'),
    ("ge", {"extent": 2}, "count_include_pad=False", "count_include_pad=True"),
    ("ge", {}, "torch.sigmoid(mean_places(x))", "torch.sigmoid(x.mean(1, keepdim=True))"),
    ("ge_theta", {}, "layers.pop()", "pass"),
    ("ge_theta_plus", {}, "F.relu(self._gathered(x))", "self._gathered(x)"),
    ("gc", {}, "return x + self.fc2(", "return x * self.fc2("),
    ("gc", {}, "F.softmax(key(x).flatten(2), dim=-1)", "F.softmax(key(x).flatten(2), dim=0)"),
    ("srm", {}, "correction=min(1, pixels.shape[-1] - 1)", "correction=0"),
    ("fca", {}, "(1 + (frequency > 0).to(frequency.dtype)) / size", "1.0 / size + 0 * frequency"),
    ("fca", {}, "u, v = frequency", "v, u = frequency"),
    ("gct", {}, "s.square().mean(1, keepdim=True)", "s.square().sum(1, keepdim=True)"),
    ("sk", {}, "F.softmax(energies, dim=1)", "F.softmax(energies, dim=2)"),
    ("sk", {}, "for d in (1, 2)", "for d in (1, 1)"),
    ("splat", {"groups": 2}, "(self.groups, self.radix, -1)).transpose(1, 2)", "(self.radix, self.groups, -1))"),
    ("splat", {}, "F.softmax(energies, dim=1)", "torch.sigmoid(energies)"),
    ("splat", {"stride": 2}, "F.avg_pool2d(mixed, 3, self.stride, 1)", "F.avg_pool2d(mixed, 2, self.stride, 0, True)"),
    ("spatial", {}, "torch.cat([peak, mean]", "torch.cat([mean, peak]"),
    ("cbam", {"rd_ratio": 0.25}, "torch.sigmoid(mean + peak)", "torch.sigmoid(mean) + torch.sigmoid(peak)"),
    ("cbam", {}, "self.spatial(self.channel(x))", "x * self.channel.attention(x) * self.spatial.attention(x)"),
    ("residual", {}, "return 1 + self.mask(x)", "return self.mask(x)"),
    ("residual", {}, "align_corners=True", "align_corners=False"),
    ("residual", {}, "_resize(y, level) + skip(level)", "_resize(y, level) + skip(level) + level"),
    ("lka", {}, "padding=9, dilation=3", "padding=3, dilation=1"),
    ("bam", {}, "torch.sigmoid(channel * self.spatial(x))", "torch.sigmoid(channel + self.spatial(x))"),
    ("bam", {}, "return 1 + torch.sigmoid", "return torch.sigmoid"),
    ("coord", {}, "F.hardswish", "F.relu"),
    ("coord", {}, "self.row(along_h)", "self.column(along_h)"),
    ("simam", {}, "max(1, x.shape[2] * x.shape[3] - 1)", "x.shape[2] * x.shape[3]"),
    ("triplet", {}, ") / 3", ")"),
    ("triplet", {}, "self.height_width(peak", "self.channel_width(peak"),
    ("nonlocal", {}, 'Attention(self.inner, score="scaled_dot")', 'Attention(self.inner, score="dot")'),
    ("nonlocal", {}, "return x + self.bn(self.out(y))", "return self.bn(self.out(y))"),
    ("nonlocal", {"subsample": 2}, "tokens(self.phi(self._pooled(x)))", "tokens(self._pooled(self.phi(x)))"),
    ("nonlocal_gaussian", {}, 'Attention(self.channels, score="dot")', 'Attention(self.channels, score="scaled_dot")'),
    ("nonlocal_dot", {}, "return a * share, keys * share", "return a, keys * share"),
    ("nonlocal_concat", {}, "return F.relu(alpha", "return abs(alpha"),
    ("nonlocal_concat", {}, "alpha * values + weighted", "alpha * values"),
    ("mhsa", {}, "position - position[:, None] + length - 1", "position[:, None] - position + length - 1"),
    ("mhsa", {"groups": 4}, "(self.groups, 3, -1)).transpose(1, 2)", "(3, self.groups, -1))"),
    ("mhsa", {}, "scale=value.shape[3] ** -0.5", "scale=(heads * value.shape[3]) ** -0.5"),
    ("double", {}, "self.distribute(x).flatten(-2), dim=-2", "self.distribute(x).flatten(-2), dim=-1"),
    ("hard", {"glimpses": 3, "window": 2}, "F.avg_pool2d(e, self.window, stride=1)", "e[..., 1:, 1:]"),
    ("hard", {"glimpses": 3, "window": 2}, "total.clamp(max=1)", "total"),
    ("hard", {"fill": "mean"}, "x.mean((2, 3), keepdim=True)", "x.mean((0, 2, 3), keepdim=True)"),
    ("hard_topk", {}, "return super().choose(x, energies, k)", "return super().choose(x, -energies, k)"),
]  # fmt: skip

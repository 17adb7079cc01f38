"""Gates from large kernels, strips and cells, and what is made of them: oracles, settings and mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from tests.blocks.case import Case
from tests.blocks.parts import Array, Oracle, array, bias, linear, matrix, norm
from tests.reference.blocks import (
    attention_gate,
    caa,
    cpca,
    danet,
    deformable_lka,
    ema,
    lsk,
    lska,
    mhca,
    mlca,
    msca,
    scsa,
    strip,
)

Layer = tuple[Array, Array]


def conv(layer: nn.Module) -> Layer:
    return array(layer.weight), array(layer.bias)


def depthwise(layer: nn.Conv2d) -> Layer:
    return array(layer.weight)[:, 0], array(layer.bias)


def line(layer: nn.Module) -> Layer:
    """A depthwise row or column as (C, k)."""
    return array(layer.weight).reshape(len(layer.weight), -1), array(layer.bias)


def affine(layer: nn.GroupNorm) -> Layer:
    return array(layer.weight), array(layer.bias)


def strips(m: nn.Module) -> tuple[Layer, list[tuple[Layer, Layer]]]:
    return depthwise(m.local), [(line(row), line(column)) for row, column in m.scales]


def ema_output(m: nn.Module, x: Array) -> Array:
    return ema.ema(x, *linear(m.lines), *affine(m.norm), *conv(m.local), groups=m.groups)


def mlca_output(m: nn.Module, x: Array) -> Array:
    kernels = array(m.overall.weight).ravel(), array(m.local.weight).ravel()
    return mlca.mlca(x, *kernels, size=m.size, local_weight=m.local_weight)


def lska_output(m: nn.Module, x: Array) -> Array:
    lines = [line(layer) for layer in (m.row, m.column, m.far_row, m.far_column)]
    return lska.lska(x, *lines, linear(m.mix), dilation=m.far_row.dilation[0])


def deformable_lka_output(m: nn.Module, x: Array) -> Array:
    parts = [part for d in (m.local, m.distant) for part in (array(d.weight)[:, 0], conv(d.offsets))]
    return deformable_lka.deformable_lka(x, *parts, *linear(m.mix))


def cpca_output(m: nn.Module, x: Array) -> Array:
    return cpca.cpca(x, *linear(m.mix), *linear(m.channel.fc1), *linear(m.channel.fc2), *strips(m.strips))


def scsa_output(m: nn.Module, x: Array) -> Array:
    norms = [affine(each) for each in (m.norm_h, m.norm_w, m.norm)]
    numbers = [array(layer.weight).ravel() for layer in (m.query, m.key, m.value)]
    return scsa.scsa(x, [line(each) for each in m.lines], *norms, *numbers, heads=m.heads, window=m.window)


def lsk_output(m: nn.Module, x: Array) -> Array:
    branches = linear(m.narrow), linear(m.wide)
    return lsk.lsk(x, depthwise(m.local), depthwise(m.distant), *branches, conv(m.choose), linear(m.mix))


def mhca_head(layers: tuple[Array, ...], x: Array) -> Array:
    """What one head adds to the energies of a map that is padded to the size of its kernel."""
    missing = [max(0, layers[0].shape[-1] - side) for side in x.shape[2:]]
    first = [each // 2 for each in missing]
    padding = [(0, 0), (0, 0), *((before, each - before) for before, each in zip(first, missing, strict=True))]
    gate = mhca.mhca_gate(np.pad(x, padding), [layers])
    energies = np.log(gate) - np.log1p(-gate)
    return energies[:, :, first[0] : first[0] + x.shape[2], first[1] : first[1] + x.shape[3]]


def mhca_output(m: nn.Module, x: Array) -> Array:
    heads = [(*conv(head.collect), *conv(head.spread)) for head in m.heads]
    if min(x.shape[2:]) >= heads[-1][0].shape[-1]:
        return mhca.mhca(x, heads)
    return x / (1 + np.exp(-sum(mhca_head(layers, x) for layers in heads)))


def gated(oracle: Any, m: nn.Module, x: Array, *layers: Any) -> Array:
    """With the map as its own signal; a side of one pixel is padded for the convolution of stride two."""
    missing = [(0, 0), (0, 0), *((0, max(0, 2 - side)) for side in x.shape[2:])]
    result = oracle(np.pad(x, missing), x, array(m.theta.weight), linear(m.phi), linear(m.psi), *layers)
    return result[:, :, : x.shape[2], : x.shape[3]]


OUTPUT: dict[str, Oracle] = {
    "ema": ema_output,
    "mlca": mlca_output,
    "lska": lska_output,
    "deformable_lka": deformable_lka_output,
    "caa": lambda m, x: caa.caa(x, *linear(m.first), *line(m.row), *line(m.column), *linear(m.last)),
    "cpca": cpca_output,
    "scsa": scsa_output,
    "lsk": lsk_output,
    "strip": lambda m, x: strip.strip(x, depthwise(m.local), line(m.row), line(m.column), linear(m.mix)),
    "msca": lambda m, x: msca.msca(x, *strips(m.strips), linear(m.mix)),
    "danet": lambda m, x: danet.danet(
        x, *linear(m.query), *linear(m.key), *linear(m.value), m.alpha.item(), m.beta.item()
    ),
    "mhca": mhca_output,
    "attention_gate": lambda m, x: gated(attention_gate.attention_gate, m, x, matrix(m.out), bias(m.out), norm(m.bn)),
}

WEIGHTS: dict[str, Oracle] = {
    "danet": lambda m, x: danet.position_weights(x, *linear(m.query), *linear(m.key))[:, None],
    "attention_gate": lambda m, x: gated(attention_gate.attention_gate_map, m, x),
}

NO_PRODUCT = {"cpca"}  # convolutions around it: tests/test_convolutional_blocks.py

VARIANTS = [
    Case("ema", {"groups": 4}),
    Case("ema", {"groups": 1}, channels=6),
    Case("mlca", {"size": 3, "local_weight": 0.2}, channels=64),
    Case("lska", {"kernel_size": 7}),
    Case("lska", {"kernel_size": 53}),
    Case("caa", {"kernel_size": 15}),
    Case("cpca", {"rd_ratio": 1 / 4}),
    Case("scsa", {"heads": 4, "window": 4}),
    Case("strip", {"kernel_size": 11}),
    Case("danet", {"rd_ratio": 1 / 2}),
    Case("mhca", {"heads": 2, "rd_ratio": 2}, channels=4, sizes=((1, 1), (2, 5), (7, 5))),
    Case("attention_gate", {"rd_ratio": 1}),
]

# block, options, line as it is, line with the mistake
MUTATIONS = [
    ("ema", {"groups": 4}, "read(a, e) + read(e, a)", "read(a, a) + read(e, e)"),
    ("ema", {"groups": 4}, "GroupNorm(width, width", "GroupNorm(1, width"),
    ("mlca", {}, "cells.mean(1, keepdim=True)", "x.mean((2, 3)).unsqueeze(1)"),
    ("mlca", {}, "cells.flatten(1).unsqueeze(1)", "cells.mT.flatten(1).unsqueeze(1)"),
    ("lska", {}, "depthwise(channels, far, 1, dilation=dilation", "depthwise(channels, far, 1, dilation=1"),
    ("lska", {}, "self.mix(self.far_column", "self.mix(x + self.far_column"),
    ("deformable_lka", {}, "precise(offsets)", "precise(offsets).unflatten(1, (-1, 2)).flip(2).flatten(1, 2)"),
    ("deformable_lka", {}, "self.distant(self.local(x))", "self.distant(x)"),
    ("caa", {}, "stride=1, padding=3)", "stride=1, padding=3, count_include_pad=False)"),
    ("caa", {}, "self.row(self.first(around))", "self.row(F.silu(self.first(around)))"),
    ("cpca", {}, "torch.sigmoid(mean) + torch.sigmoid(peak)", "torch.sigmoid(mean + peak)"),
    ("cpca", {}, "self.mix(self.strips(f)) * f", "self.strips(f) * f"),
    ("scsa", {"heads": 4}, "query.shape[2] ** -0.5", "query.shape[3] ** -0.5"),
    ("scsa", {}, "self.norm_w(self._convolved(columns))", "self.norm_h(self._convolved(columns))"),
    ("lsk", {}, "self.wide(self.distant(local))", "self.wide(self.distant(x))"),
    ("lsk", {}, "torch.cat([(mean1 + mean2) / 2, torch.maximum(peak1, peak2)]",
     "torch.cat([torch.maximum(peak1, peak2), (mean1 + mean2) / 2]"),
    ("strip", {}, "self.row(self.local(x))", "self.row(x)"),
    ("strip", {}, "return self.mix(self.column(self.row(self.local(x))))",
     "return self.mix(self.column(self.row(self.local(x)))).sigmoid()"),
    ("msca", {}, "return self.mix(self.strips(x))", "return self.mix(self.strips(x) - self.strips.local(x))"),
    ("danet", {}, "F.softmax(-dot(channels, channels)", "F.softmax(dot(channels, channels)"),
    ("danet", {}, 'score="dot"', 'score="scaled_dot"'),
    ("mhca", {}, "self.spread(F.relu(self.collect(x)))", "self.spread(self.collect(x))"),
    ("mhca", {}, "energies + head(x)", "energies + torch.sigmoid(head(x))"),
    ("attention_gate", {}, "_resize(torch.sigmoid(self.psi(f)), x)", "torch.sigmoid(_resize(self.psi(f), x))"),
    ("attention_gate", {}, "align_corners=False", "align_corners=True"),
]  # fmt: skip

"""Blocks that are like a convolution: oracles, settings and mistakes."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.blocks.case import Case
from tests.blocks.parts import Array, bias, matrix, norm
from tests.reference.blocks import involution


def involution_parts(m: nn.Module, x: Array) -> tuple[Any, ...]:
    return x, matrix(m.reduce), norm(m.bn), matrix(m.span), bias(m.span), m.groups


def involution_output(m: nn.Module, x: Array) -> Array:
    value = None if isinstance(m.value, nn.Identity) else matrix(m.value)
    return involution.involution(*involution_parts(m, x), value, stride=m.stride)


OUTPUT = {"involution": involution_output}

WEIGHTS = {
    "involution": lambda m, x: involution.involution_weights(*involution_parts(m, x), stride=m.stride),
}

VARIANTS = [
    Case("involution", {"kernel_size": 3, "group_channels": 4}),
    Case("involution", {"kernel_size": 3, "rd_ratio": 1 / 2}, channels=12),
    Case("involution", {"kernel_size": 3, "out_channels": 24, "stride": 2}),  # in the place of a convolution
]

MUTATIONS = [
    (
        "involution",
        {},
        "[margin, margin, margin, margin]).unflatten(1, (self.groups, -1))",
        "[margin, margin, margin, margin]).unflatten(1, (-1, self.groups)).transpose(1, 2)",
    ),
    ("involution", {"stride": 2}, "averages(x, self.stride)", "x[..., :: self.stride, :: self.stride]"),
    (
        "involution",
        {},
        "F.relu(self.bn(self.reduce(averages(x, self.stride))))",
        "self.bn(self.reduce(averages(x, self.stride)))",
    ),
]

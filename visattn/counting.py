"""Parameters and multiply-accumulates of a module."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from visattn.modules import weightless_copy


def count_parameters(module: nn.Module) -> int:
    """Number of trainable values.

    >>> count_parameters(nn.Linear(3, 2))
    8
    """
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def count_macs(module: nn.Module, *input_shape: int) -> int:
    """Multiply-accumulates of one forward pass: convolutions, linear layers and attention matrices.

    Elementwise work (activations, norms, gates) is not counted, as in the literature. A copy of the module runs on
    the meta device, so nothing is computed and the module itself is untouched.

    >>> count_macs(nn.Conv2d(3, 8, 3), 1, 3, 5, 5)
    1944
    """
    shadow = weightless_copy(module).requires_grad_(False)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        shadow(torch.empty(input_shape, device="meta"))
    return counter.get_total_flops() // 2

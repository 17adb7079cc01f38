"""Store in half precision, compute in single precision.

PyTorch's convolutions, matrix products, means, variances and softmax accumulate in single precision, whatever their
input, and round once. Code that is written out, such as a square or a sum on the way to a norm, does not: in float16 a
square overflows from 256 on. Such code computes on :func:`precise` numbers and returns the dtype that it was given.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def precise(x: Tensor) -> Tensor:
    """Convert to single precision, unless the precision is already higher.

    >>> precise(torch.ones(1, dtype=torch.float16)).dtype, precise(torch.ones(1, dtype=torch.float64)).dtype
    (torch.float32, torch.float64)
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def autocasting(device: torch.device) -> bool:
    """Whether autocast is on for a kind of device."""
    # Compilers run where there is autocast; those of torch 2.8 and before cannot trace the question.
    known = torch.compiler.is_compiling() or torch.amp.is_autocast_available(device.type)
    return known and torch.is_autocast_enabled(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Run every operation in the precision of its operands."""
    return torch.autocast(device.type, enabled=False) if autocasting(device) else nullcontext()

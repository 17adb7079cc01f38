"""Half precision stores, and single precision computes.

PyTorch's convolutions, products of matrices, means, variances and softmax add up in single precision, whatever they are
given, and round once. What is written out, a square or a sum on the way to a norm, does not: in float16 a square passes
the largest number at 256. Such code computes on :func:`precise` numbers, and gives back what it was given.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def precise(x: Tensor) -> Tensor:
    """The same numbers in single precision at least.

    >>> precise(torch.ones(1, dtype=torch.float16)).dtype, precise(torch.ones(1, dtype=torch.float64)).dtype
    (torch.float32, torch.float64)
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which every operation runs in the precision of its operands."""
    # Compilers run where there is autocast; those of torch 2.8 and before cannot trace the question.
    known = torch.compiler.is_compiling() or torch.amp.is_autocast_available(device.type)
    on = known and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()

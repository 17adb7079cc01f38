"""Adaptive average pooling, also for exporters that do not know the size of the map."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from visattn.blocks.primitives import is_exporting, trains_plainly


def average_cells(x: Tensor, height: int, width: int) -> Tensor:
    """Means over cells: (B, C, H, W) -> (B, C, height, width), which may also be larger than the map.

    ONNX has no such pooling of a map whose size is not fixed; exporters get a product with matrices. So does training
    on a CPU, where the gradient of torch's own pooling takes several times as long.

    >>> average_cells(torch.arange(8.0).view(1, 1, 2, 4), 1, 2)
    tensor([[[[2.5000, 4.5000]]]])
    """
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        if is_exporting():
            rows, columns = (pooling_matrix(n, m, like=x) for n, m in ((height, x.shape[2]), (width, x.shape[3])))
            return rows @ x @ columns.mT
        if trains_plainly(x) and x.device.type == "cpu":
            rows, columns = (pooling_matrix(n, m, like=x) for n, m in ((height, x.shape[2]), (width, x.shape[3])))
            return (x.flatten(2) @ torch.kron(rows, columns).mT).unflatten(2, (height, width))
    return F.adaptive_avg_pool2d(x, (height, width))


def pooling_matrix(size: int, length: int, *, like: Tensor) -> Tensor:
    """Adaptive average pooling of ``length`` values to ``size`` bins as a matrix (size, length)."""
    bins = torch.arange(size, device=like.device)
    first = bins * length // size
    end = ((bins + 1) * length + size - 1) // size
    position = torch.arange(length, device=like.device)
    inside = (position >= first[:, None]) & (position < end[:, None])
    return inside.to(like.dtype) / (end - first)[:, None].to(like.dtype)

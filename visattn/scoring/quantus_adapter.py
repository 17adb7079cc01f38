"""Our heatmaps in the metrics of Quantus (https://github.com/understandable-machine-intelligence-lab/Quantus)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from visattn.heatmaps import explain
from visattn.heatmaps.methods.base import check_method

Floats = NDArray[np.float32]


def for_quantus(method: str = "rollout", **options: Any) -> Callable[..., Floats]:
    """Make an ``explain_func`` for any metric of Quantus.

    Heatmaps come at the resolution of the images, as (B, 1, H, W), scaled to 0..1. The functions that Quantus uses to
    make explanations of other libraries are not called.

    Args:
        method: see :func:`visattn.list_methods`.
        **options: of the method.

    >>> import timm
    >>> explain_func = for_quantus("gradcam")
    >>> model = timm.create_model("test_resnet", num_classes=3)
    >>> explain_func(model, np.zeros((2, 3, 64, 64), np.float32), np.array([0, 2]), device="cpu").shape
    (2, 1, 64, 64)
    """
    check_method(method)

    def explain_func(model: nn.Module, inputs: Floats, targets: NDArray[np.integer[Any]], **_given: Any) -> Floats:
        images = torch.from_numpy(np.ascontiguousarray(inputs, dtype=np.float32))
        found = explain(model, images, method, np.atleast_1d(targets).tolist(), **options)
        heatmaps: Floats = found.heatmap[:, None].numpy()
        return heatmaps

    return explain_func

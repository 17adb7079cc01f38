"""Every attention matrix of a forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from visattn.heatmaps.interception import Call, intercepting


class Maps(Mapping[str, Tensor]):
    """Attention weights by the name of their module, in the order of the forward pass.

    Each is (..., queries, keys) as the layer has it: (B, heads, N, N) in a plain transformer, with windows beside the
    batch or the heads in others. A module that attends more than once has names with numbers: ``attn``, ``attn#2``.
    They are no part of the model's graph; :meth:`gradients` has what one would differentiate them for.
    """

    def __init__(self) -> None:
        self._calls: dict[str, Call] = {}
        self._weights: dict[str, Tensor] = {}

    def _add(self, call: Call) -> None:
        name, number = call.name, 1
        while name in self._calls:
            number += 1
            name = f"{call.name}#{number}"
        self._calls[name] = call
        with torch.no_grad():
            self._weights[name] = call.weights()

    def _clear(self) -> None:
        self._calls.clear()
        self._weights.clear()

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __repr__(self) -> str:
        shapes = (f"{name} {tuple(weights.shape)}" for name, weights in self.items())
        return f"Maps({', '.join(shapes)})"

    def gradients(self, score: Tensor) -> dict[str, Tensor]:
        """The derivative of a number with respect to every map, by name.

        It is exact with fused attention too, where the maps are not part of the model's graph.
        """
        leaves = [call.leaf() for call in self._calls.values()]
        found = torch.autograd.grad(score, leaves, retain_graph=True, allow_unused=True)
        with torch.no_grad():
            return {
                name: torch.zeros_like(self._weights[name]) if gradient is None else call.gradient(gradient)
                for (name, call), gradient in zip(self._calls.items(), found, strict=True)
            }


@contextmanager
def capture(model: nn.Module) -> Iterator[Maps]:
    """Keep every attention matrix of the last forward pass inside the block.

    The output does not change, fused attention stays on, and nothing of the model is touched. A layer with attention
    that ran but could not be seen raises :class:`Missed`. A compiled model runs as it was written.

    >>> import timm
    >>> model = timm.create_model("test_vit").eval()
    >>> with capture(model) as maps:
    ...     logits = model(torch.rand(2, 3, 160, 160))
    >>> len(maps), maps["blocks.0.attn"].shape
    (6, torch.Size([2, 2, 101, 101]))
    """
    maps = Maps()
    handle = model.register_forward_pre_hook(lambda _module, _args: maps._clear())
    try:
        with intercepting(model, maps._add):
            yield maps
    finally:
        handle.remove()

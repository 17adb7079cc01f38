"""Which tokens the output of a model reads without further attention, found by gradients."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from visattn.heatmaps.watch.calls import Call
from visattn.heatmaps.watch.interception import intercepting
from visattn.modules import sharing_copy

REQUIRES_GRAD = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]


@contextmanager
def _keeping_zeros(model: nn.Module) -> Iterator[None]:
    """Save for the backward pass only where tensors are zero, since no more is asked of it.

    The tensors themselves would take many times the memory of the forward pass.
    """
    own = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}

    def pack(x: Tensor) -> Any:
        if not x.is_floating_point() or x.numel() < 2 or x.untyped_storage()._cdata in own:
            return x
        return x.shape, x.dtype, x.device, None if x.all() else x.sign().to(torch.int8)

    def unpack(kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        shape, dtype, device, signs = kept
        half = torch.full(shape, 0.5, dtype=dtype, device=device)  # where the slope of no usual function is zero
        return half if signs is None else half.mul_(signs)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


class _Undifferentiated(TorchFunctionMode):
    """Compute ``flex_attention`` without gradients, and where torch refuses to because it has none for that device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == REQUIRES_GRAD and sys._getframe(1).f_code.co_filename.endswith("flex_attention.py"):
            return False
        if getattr(func, "__name__", "") == "flex_attention":
            args = [x.detach() if isinstance(x, Tensor) else x for x in args]
        return func(*args, **kwargs or {})


def read_rows(model: nn.Module, example: Tensor) -> list[tuple[Tensor, bool]]:
    """For every attention in turn, the rows of its result that reach the output without passing another attention.

    Also whether it does not depend on the one before it, which happened in the same module.
    """
    shadow = sharing_copy(model)
    generator = torch.Generator().manual_seed(0)
    for module in shadow.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                noise = None if parameter.any() else torch.randn(parameter.shape, generator=generator)
                fixed = parameter.detach() if noise is None else (0.02 * noise).to(parameter.device, parameter.dtype)
                module._parameters[name] = nn.Parameter(fixed, requires_grad=False)  # heads may start at zero
    results: list[Tensor] = []  # one number for every row, which is added to it in some direction
    names: list[str] = []
    beside: list[bool] = []

    def cut(call: Call) -> Tensor:
        output = call.output.detach()
        again = call.name in names[-1:]
        beside.append(again and not _depends(call.output, results[-1]))
        names.append(call.name)
        results.append(output.new_zeros(*output.shape[:-1], 1).requires_grad_())
        return output + results[-1] * torch.randn(output.shape[-1], generator=generator).to(output)

    with torch.enable_grad(), intercepting(shadow, cut), _Undifferentiated(), _keeping_zeros(shadow):
        output = shadow(example)
        while not isinstance(output, Tensor):
            output = output[-1] if isinstance(output, tuple | list) else list(output.values())[-1]
        gradients: Sequence[Tensor | None] = [None] * len(results)
        if output.requires_grad:
            gradients = torch.autograd.grad(output.square().sum(), results, allow_unused=True)
    reads = [
        torch.zeros(result.shape[:-1], dtype=torch.bool) if gradient is None else gradient.ne(0).any(-1).cpu()
        for result, gradient in zip(results, gradients, strict=True)
    ]
    return list(zip(reads, beside, strict=True))


def _depends(x: Tensor, leaf: Tensor) -> bool:
    """Whether a tensor depends on a leaf of the graph."""
    waiting = [x.grad_fn]
    seen = {*waiting}
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        if getattr(node, "variable", None) is leaf:
            return True
        new = {each for each, _ in node.next_functions} - seen
        seen |= new
        waiting += new
    return False

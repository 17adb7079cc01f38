"""The mode that watches torch functions and lets each run by its rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils.weak import WeakTensorKeyDictionary

from visattn.heatmaps.balanced.linearised import has_own_derivative
from visattn.heatmaps.balanced.operation import Operation
from visattn.heatmaps.balanced.operators import HOMOGENEOUS, SPELLED
from visattn.heatmaps.balanced.rules import RULES, elementwise
from visattn.heatmaps.watch.interception import watched_inside
from visattn.modules import HookOfThread

Note: TypeAlias = Callable[[Tensor, Tensor], None]  # told of the gradient of an output, and what was added to it


class Balanced(TorchFunctionMode):
    """The mode.

    Args:
        note: told of every constant that was added, when its gradient is known.
        weights: whether attention weights stay in the graph, as ends of it.

    Attributes:
        unknown: names of functions that no rule is known for; their gradient is the usual one.
    """

    def __init__(self, note: Note | None, *, weights: bool) -> None:
        super().__init__()
        self.note = note
        self.weights = weights
        self.unknown: set[str] = set()
        self._constants: Any = WeakTensorKeyDictionary()  # tensors with a gradient that count as constants
        self._origins: Any = WeakTensorKeyDictionary()  # what a tensor is an elementwise function of; is it a multiple?

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not torch.is_grad_enabled():
            return func(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            with self:
                return watched_inside(func)(*args, **kwargs)
        name = getattr(func, "__name__", "")
        operation = Operation(self, func, SPELLED.get(name, name), args, kwargs)
        if not operation.active:
            output = func(*args, **kwargs)
            if self._constants and any(self.is_constant(x) for x in operation.tensors):
                self.keep_constant(output)
            return output
        rule = RULES.get(func) or RULES.get(operation.name)
        if rule is not None:
            return operation.by(rule)
        output = func(*args, **kwargs)
        if operation.name not in HOMOGENEOUS and _needs_gradient(output):
            self.unknown.add(name)
        return output

    def is_constant(self, x: Tensor) -> bool:
        """Whether a tensor with a gradient counts as a constant."""
        return x in self._constants

    def keep_constant(self, output: Any) -> None:
        """Let a tensor with a gradient, or several, count as a constant."""
        for each in output if isinstance(output, tuple | list) else [output]:
            if isinstance(each, Tensor) and each.requires_grad:
                self._constants[each] = True

    def origin(self, x: Tensor) -> tuple[Tensor, bool]:
        """What a tensor is an elementwise function of (itself, if nothing is known), and whether it is a multiple."""
        return self._origins.get(x) or (x, True)

    def follow(self, x: Tensor, output: Tensor, *, multiple: bool) -> None:
        """Note that a tensor is an elementwise function of another."""
        origin, so_far = self.origin(x)
        if output is not origin:
            self._origins[output] = origin, multiple and so_far

    def becomes(self, x: Tensor, value: Tensor) -> None:
        """Note that a tensor was written over, so that what was made of it is not made of it any more."""
        self._origins[x] = self.origin(value)

    def add(self, output: Tensor, constant: Tensor | None) -> None:
        """Note that a constant is part of an output."""
        note = self.note
        if note is not None and constant is not None and output.requires_grad:
            output.register_hook(lambda gradient: None if gradient is None else note(gradient, constant))


def _needs_gradient(output: Any) -> bool:
    parts = output if isinstance(output, tuple | list) else [output]
    return any(isinstance(each, Tensor) and each.requires_grad for each in parts)


def check_not_balanced(what: str) -> None:
    """Raise inside a block of :func:`balanced`, for something that would have its backward passes balanced, too."""
    if any(isinstance(each, Balanced) for each in _get_current_function_mode_stack()):
        raise ValueError(f"{what} cannot be asked for inside balanced(...): leave it first")


@contextmanager
def balanced(model: nn.Module, note: Note | None = None, *, weights: bool = False) -> Iterator[Balanced]:
    """Let forward passes of a model inside this block have a balanced backward pass; what they compute is the same.

    Gradients are those with respect to the images; parameters do not receive any.

    Args:
        model: a copy that belongs to the caller (:func:`visattn.heatmaps.watch.inspection.inspection_copy`).
        note: told of every constant that was added, such as a bias, in the backward pass: the gradient of the output it
            was added to, and the constant, which has that shape or can be broadcast to it.
        weights: whether gradients of attention weights will be asked for.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"balanced takes a network, got {type(model).__name__}")
    check_not_balanced("another balanced backward pass")
    mode = Balanced(note, weights=weights)

    def own_derivative(module: nn.Module, args: Any, output: Any) -> Any:
        """An activation with a derivative that somebody has written himself."""
        x = args[0] if args else None
        if not has_own_derivative(output) or not isinstance(x, Tensor) or output.shape != x.shape:
            return None
        with torch._C.DisableTorchFunction():
            return elementwise(Operation(mode, type(module).forward, "", (module, x), {}))

    handles = [
        module.register_forward_hook(HookOfThread(own_derivative))
        for module in model.modules()
        if not any(module.children()) and not any(True for _ in module.parameters())
    ]
    parameters = [(module, dict(module._parameters)) for module in model.modules()]
    try:
        for module, table in parameters:
            for name, parameter in table.items():
                if parameter is not None:
                    module._parameters[name] = nn.Parameter(parameter.detach(), requires_grad=False)
        with mode:
            yield mode
    finally:
        for module, table in parameters:
            module._parameters.update(table)
        for handle in handles:
            handle.remove()

"""See every use of attention in a forward pass, in whatever code it happens, without touching that code.

A mode at the level of torch functions watches two things:

- ``scaled_dot_product_attention``, the fused kernel: its weights are never formed, but follow from queries and keys;
- a distribution (``softmax``, or one of :mod:`visattn.core.distributions`) whose result is later multiplied by values.
  Between the two there may be dropout, casts, gates or talking heads. The map is the matrix that is multiplied, if its
  rows are still distributions (as in ConViT, which mixes two softmaxes), and the distribution otherwise (as in CaiT,
  which mixes heads behind the softmax).

A distribution that is never multiplied by values (selective kernels, a classifier) is not attention between tokens.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from visattn.core.distributions import entmax15, sigmoid, sparsemax
from visattn.models.wrapping import plain_name

DISTRIBUTIONS = {F.softmax, torch.softmax, Tensor.softmax, torch._softmax, sparsemax, entmax15, sigmoid}
PRODUCTS = frozenset({"matmul", "__matmul__", "bmm"})
COMPILED = re.compile(r"^_orig_mod(\.|$)")  # what torch.compile puts before the names of modules
# What modules that compute attention have: heads, or projections to queries, keys and values.
HEADS = ("num_heads", "n_heads", "heads")
PROJECTION = re.compile(r"(to_|in_)?(qkv|kv|q|query|wq)(_?(proj|conv|projection))?")


@dataclass
class Call(ABC):
    """One use of attention.

    Args:
        name: of the module in which it happened.
        value: (..., Nk, d), what is collected,
        output: (..., Nq, d), and what came of it; both are part of the model's own graph.
    """

    name: str
    value: Tensor
    output: Tensor

    @abstractmethod
    def rows(self) -> Tensor:
        """A tensor (..., Nq, *) of which every row belongs to one query."""

    @abstractmethod
    def weights(self) -> Tensor:
        """(..., Nq, Nk)."""

    @abstractmethod
    def gradient(self, of: Tensor) -> Tensor:
        """The derivative of a number with respect to the weights, (..., Nq, Nk), given the one for :meth:`leaf`."""

    @abstractmethod
    def leaf(self) -> Tensor:
        """The tensor of the model's graph that the derivative must be taken for first."""


@dataclass
class Fused(Call):
    """A call of the fused kernel. The weights are computed when they are asked for."""

    query: Tensor
    key: Tensor
    mask: Tensor | None
    causal: bool
    scale: float

    def rows(self) -> Tensor:
        """The queries."""
        return self.query

    def weights(self) -> Tensor:
        """softmax(scale q·k + mask), at least in single precision."""
        query, key = (x.float() if x.dtype in (torch.bfloat16, torch.float16) else x for x in (self.query, self.key))
        energies = (query * self.scale) @ shared_heads(key, query).mT
        if self.causal:
            future = torch.ones(energies.shape[-2:], dtype=torch.bool, device=energies.device).triu(1)
            energies = energies.masked_fill(future, -torch.inf)
        if self.mask is not None:
            if self.mask.dtype == torch.bool:
                energies = energies.masked_fill(~self.mask, -torch.inf)
            else:
                energies = energies + self.mask
        return energies.softmax(-1)

    def leaf(self) -> Tensor:
        """The context: context = weights @ values."""
        return self.output

    def gradient(self, of: Tensor) -> Tensor:
        """From that of the context: dy/dA = dy/dO V'."""
        return of @ shared_heads(self.value, self.query).mT


@dataclass
class Unfused(Call):
    """A product of weights and values, written out.

    Args:
        source: the weights, as they are in the model's graph.
        axis: the dimension of the keys there; that of the queries is the last of the others.
    """

    source: Tensor
    axis: int

    def rows(self) -> Tensor:
        """The weights themselves."""
        return self.source.movedim(self.axis, -1)

    def weights(self) -> Tensor:
        """As the model computed them."""
        weights = self.rows()
        return weights.float() if weights.dtype in (torch.bfloat16, torch.float16) else weights

    def leaf(self) -> Tensor:
        """The weights."""
        return self.source

    def gradient(self, of: Tensor) -> Tensor:
        """The one of the weights."""
        return of.movedim(self.axis, -1)


@dataclass
class MultiHead(Unfused):
    """A call of torch's own attention layer, whose weights are (B · heads, Nq, Nk) in the graph."""

    heads: int

    def rows(self) -> Tensor:
        """(B, heads, Nq, Nk)."""
        return self.source.unflatten(0, (-1, self.heads))

    def gradient(self, of: Tensor) -> Tensor:
        """The one of the weights."""
        return of.unflatten(0, (-1, self.heads))


def shared_heads(tokens: Tensor, query: Tensor) -> Tensor:
    """Keys or values repeated for grouped queries; a single head is left to broadcasting."""
    if tokens.ndim > 3 and tokens.shape[-3] not in (1, query.shape[-3]):
        return tokens.repeat_interleave(query.shape[-3] // tokens.shape[-3], dim=-3)
    return tokens


@dataclass
class Lineage:
    """A distribution, and what has become of it on the way to the values."""

    distribution: Tensor
    axis: int  # along which it sums to one


Report: TypeAlias = Callable[[Call], Tensor | None]  # what it returns takes the place of the call's output


# Whether the matrix in a product is a distribution, by the module and the number of the product in a forward pass.
Known: TypeAlias = dict[tuple[str, int], bool]
_found: WeakKeyDictionary[nn.Module, tuple[int, Known]] = WeakKeyDictionary()


class Interception(TorchFunctionMode):
    """The mode; reports every :class:`Call` to a function."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report
        self.products = 0  # of this forward pass so far
        self.known: Known = {}
        self.modules: list[str] = [""]  # names of those that are running, innermost last
        self.lineages: dict[int, tuple[Tensor, Lineage]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            output = func(*args, **kwargs)
            changed = self.report(fused_call(self.modules[-1], output, *args, **kwargs))
            return output if changed is None else changed
        if func is F.multi_head_attention_forward:
            return self._multi_head(args, kwargs)
        output = func(*args, **kwargs)
        if func in DISTRIBUTIONS:
            self._born(args, kwargs, output)
        elif self.lineages and not isinstance(output, torch.Size | torch.dtype | torch.device | int | bool):
            return self._follow(func, args, output)
        return output

    def _born(self, args: Any, kwargs: Any, output: Tensor) -> None:
        axis = kwargs.get("dim", args[1] if len(args) > 1 and isinstance(args[1], int) else -1)
        axis = axis if axis < 0 else axis - output.ndim
        if output.ndim >= 2:
            self.lineages[id(output)] = output, Lineage(output, axis)

    def _follow(self, func: Any, args: Any, output: Any) -> Any:
        """What descends from a distribution, until it is multiplied by something."""
        for position, argument in enumerate(args[:2]):
            if isinstance(argument, Tensor) and id(argument) in self.lineages:
                lineage = self.lineages[id(argument)][1]
                if func.__name__ in PRODUCTS and len(args) > 1:
                    return self._used(lineage, argument, position, args[1 - position], output)
                # Something larger is no map any more, but what a gate was applied to.
                if isinstance(output, Tensor) and output.ndim >= 2 and output.numel() <= lineage.distribution.numel():
                    self.lineages[id(output)] = output, lineage
                break
        return output

    def _used(self, lineage: Lineage, operand: Tensor, position: int, other: Tensor, output: Tensor) -> Tensor:
        """Multiplied: as the left operand along its last dimension, as the right one along the last but one."""
        for key in [key for key, (_, each) in self.lineages.items() if each is lineage]:
            del self.lineages[key]
        source, axis, value, context = operand, -1, other, output
        vector = position == 0 and other.ndim < operand.ndim
        if position == 1:
            axis, value, context = -2, other.mT, output.mT
        elif vector:
            value, context = other.unsqueeze(-1), output.unsqueeze(-1)
        this = self.modules[-1], self.products
        self.products += 1
        if this not in self.known:
            self.known[this] = _sums_to_one(operand, axis)  # for which a GPU must be waited for
        if not self.known[this]:
            source, axis = lineage.distribution, lineage.axis
        if source.shape[axis] != value.shape[-2]:
            return output
        changed = self.report(Unfused(self.modules[-1], value, context, source, axis))
        if changed is None:
            return output
        return changed.mT if position == 1 else changed.squeeze(-1) if vector else changed

    def _multi_head(self, args: Any, kwargs: Any) -> Any:
        """torch's own layer, which runs on tensors of its own: let it hand out its weights, and return what was asked.

        With gradients its result is that of the written-out form, equal up to rounding, since the maps must be part of
        the graph.
        """
        every = {**kwargs, "need_weights": True, "average_attn_weights": False}
        context, weights = F.multi_head_attention_forward(*args, **every)
        assert weights is not None
        answer = None
        if not torch.is_grad_enabled():
            context, answer = F.multi_head_attention_forward(*args, **kwargs)
        elif kwargs.get("need_weights", True):
            answer = weights.mean(-3) if kwargs.get("average_attn_weights", True) else weights
        if context.ndim == 2:  # one image without a batch
            return context, answer
        value, result = (x.transpose(0, 1)[:, None] for x in (args[2], context))  # (B, 1, N, d)
        source = weights.flatten(0, 1) if weights._base is None else weights._base  # what the context was made with
        changed = self.report(MultiHead(self.modules[-1], value, result, source, -1, weights.shape[1]))
        return (context if changed is None else changed[:, 0].transpose(0, 1)), answer


def _sums_to_one(matrix: Tensor, axis: int) -> bool:
    if matrix.is_meta:
        return True
    sums = matrix.detach().sum(axis)
    tolerance = 2e-2 if matrix.dtype in (torch.bfloat16, torch.float16) else 1e-3
    return bool(((sums - 1).abs() < tolerance).all())


def _known(model: nn.Module) -> Known:
    """What was found out before, if neither the modules nor their mode and weights have changed since."""
    modules = tuple((id(module), module.training) for module in model.modules())
    weights = tuple((id(each), 0 if each.is_inference() else each._version) for each in model.parameters())
    state = hash((modules, weights))
    if model not in _found or _found[model][0] != state:
        _found[model] = state, {}
    return _found[model][1]


def fused_call(
    name: str,
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Fused:
    """What the fused kernel was given; the arguments are those of torch's function."""
    del dropout_p, enable_gqa  # weights are those before dropout; grouped queries show in the shapes
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return Fused(name, value, output, query, key, attn_mask, is_causal, scale)


def computes_attention(module: nn.Module) -> bool:
    """Whether a module looks as if it had attention between tokens inside."""
    has_heads = any(isinstance(getattr(module, name, None), int) for name in HEADS)
    projects = any(PROJECTION.fullmatch(name) for name, _ in module.named_children())
    return projects or (has_heads and any(True for _ in module.parameters()))


class Missed(RuntimeError):  # noqa: N818 - read as prose: except Missed
    """A layer with attention ran, but its weights could not be seen."""


@contextmanager
def intercepting(model: nn.Module, report: Report) -> Iterator[None]:
    """Report every use of attention in forward passes of a model; a layer that was missed raises at their end."""
    mode = Interception(report)
    called: dict[str, nn.Module] = {}
    seen: set[str] = set()

    def enter(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, _args: Any) -> None:
            mode.modules.append(name)
            if not name:
                called.clear()
                seen.clear()
                mode.lineages.clear()
                mode.products, mode.known = 0, _known(model)
            called[name] = module

        return hook

    def leave(_module: nn.Module, _args: Any, _output: Any) -> None:
        name = mode.modules.pop()
        if not name:
            _check(called, seen)

    def note(call: Call) -> Tensor | None:
        seen.add(call.name)
        return report(call)

    mode.report = note
    handles = []
    try:
        for inner, module in model.named_modules():
            name = plain_name(COMPILED.sub("", inner))
            handles.append(module.register_forward_pre_hook(enter(name)))
            handles.append(module.register_forward_hook(leave))
        with torch.compiler.set_stance("force_eager"), mode:
            yield
    finally:
        for handle in handles:
            handle.remove()


def _check(called: dict[str, nn.Module], seen: set[str]) -> None:
    for name, module in called.items():
        inside = any(each == name or each.startswith(f"{name}.") for each in seen) or not name
        if not inside and computes_attention(module):
            raise Missed(
                f"{name!r} ({type(module).__name__}) ran, but its attention weights were not seen: it has no softmax "
                "that is multiplied by values, or hides it from torch functions"
            )

"""See every use of attention in a forward pass, in whatever code it happens, without touching that code.

A mode at the level of torch functions watches two things:

- ``scaled_dot_product_attention``, the fused kernel, and ``flex_attention``: their weights are never formed, but follow
  from queries and keys;
- a distribution (:mod:`visattn.heatmaps.watch.lineage`) whose result is later multiplied by values
  (:mod:`visattn.heatmaps.watch.products`). Between the two there may be dropout, casts, gates or talking heads. The
  map is the matrix that is multiplied, if its rows are still distributions (as in ConViT, which mixes two softmaxes),
  and the distribution otherwise (as in CaiT, which mixes heads behind the softmax).

A distribution that is never multiplied by values (selective kernels, a classifier) is not attention between tokens.
Other operators with attention in their name hide their weights: a layer that calls one has been missed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from visattn.heatmaps.watch.cache import original
from visattn.heatmaps.watch.calls import Call, Divided, Unfused, flexible_call, fused_call
from visattn.heatmaps.watch.descent import Step, Use
from visattn.heatmaps.watch.lineage import Lineages
from visattn.heatmaps.watch.passes import Passes
from visattn.modules import eagerly

# Names of operators that compute attention and do not expose its weights.
OPAQUE = re.compile(r"attention|attn|_transformer_encoder_layer_fwd")

Report: TypeAlias = Callable[[Call], Tensor | None]  # what it returns replaces the call's output


# Whether the matrix in a product is a distribution, by the module and the number of the product in a forward pass.
Known: TypeAlias = dict[tuple[str, int], bool]
_found: WeakKeyDictionary[nn.Module, tuple[int, Known]] = WeakKeyDictionary()


class Interception(TorchFunctionMode):
    """The mode; reports every :class:`Call` to a function."""

    def __init__(self, passes: Passes, report: Report) -> None:
        super().__init__()
        self.passes = passes
        self.report = report
        self.products = 0  # of this forward pass so far
        self.known: Known = {}
        self.lineages = Lineages()
        self.heads: int | None = None  # those that torch's own layer has merged with the batch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            return self._multi_head(args, kwargs)
        output = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if OPAQUE.search(name):
            return self._called(func, name, args, kwargs, output)
        if not isinstance(output, torch.Size | torch.dtype | torch.device | int | bool):
            use = self.lineages.note(func, args, kwargs, output)
            if use is not None:
                return self._used(use, output)
        return output

    def _called(self, func: Any, name: str, args: Any, kwargs: Any, output: Any) -> Any:
        """An operator that computes attention."""
        layer = self.passes.layer()
        if layer is None:
            return output
        if func is F.scaled_dot_product_attention:
            changed = self._report(fused_call(layer, output, *args, **kwargs))
            return output if changed is None else changed
        if name == "flex_attention":
            changed = self._report(flexible_call(layer, output[0], *args))
            return output if changed is None else (changed, *output[1:])
        self.passes.hide(layer, f"calls {name}, which computes attention but does not show its weights")
        return output

    def _report(self, call: Call) -> Tensor | None:
        self.passes.report(call.name)
        return self.report(call)

    def _used(self, use: Use, output: Tensor) -> Tensor:
        """A product of weights and values."""
        root, product = use.weights.root, use.product
        step: Step = use.weights.step
        distribution = root.used()
        layer = self.passes.layer()
        arrangement = product.arrangement(use.weights.axis)
        if layer is None or arrangement is None:
            return output
        source = product.weights
        view: Callable[[Tensor], Tensor] = arrangement.weights
        value, context = arrangement.values(), arrangement.context(product.context)
        if use.divided is None and not self._is_distribution(layer, view(source)):
            step = root
            if distribution is None:
                self.passes.hide(layer, "multiplies values by something that was made of weights it no longer has")
                return output
            if distribution.shape != source.shape or root.axis != use.weights.axis:
                view = partial(torch.movedim, source=root.axis, destination=-1)
            source = distribution
        keys, values = view(source).shape[-1], value.shape[-2]
        if keys != values:
            if product.weights.numel() < root.size and values < keys:
                self.passes.hide(layer, f"multiplies the weights of {values} of {keys} keys by values, not all at once")
            return output
        if use.divided is None:
            step.reported = True
        heads = self.heads
        if heads is not None:
            view, value, context = _then_split(view, heads), *(x.unflatten(0, (-1, heads)) for x in (value, context))
        call: Call = Unfused(layer, value, context, source, view)
        if use.divided is not None:
            call = Divided(layer, value, arrangement.context(output), source, view, output, arrangement.context)
        changed = self._report(call)
        if changed is None:
            return output
        return product.finish(arrangement.restore(changed if heads is None else changed.flatten(0, 1)))

    def _is_distribution(self, layer: str, matrix: Tensor) -> bool:
        """Whether rows sum to one; cached, since looking makes the host wait for a GPU."""
        this = layer, self.products
        self.products += 1
        if this not in self.known:
            self.known[this] = _sums_to_one(matrix)
        return self.known[this]

    def _multi_head(self, args: Any, kwargs: Any) -> Any:
        """torch's own layer: watch it from inside, with its hand-over to modes like this one switched off."""
        function = F.multi_head_attention_forward
        self.heads = inspect.signature(function).bind(*args, **kwargs).arguments["num_heads"]
        try:
            with self:
                return watched_inside(function)(*args, **kwargs)
        finally:
            self.heads = None


def watched_inside(function: Any) -> Callable[..., Any]:
    """A function of torch that does not offer itself as a whole to those who watch, but does what it does inside."""
    inside = FunctionType(function.__code__, {**function.__globals__, "has_torch_function": lambda _: False})
    inside.__defaults__, inside.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return inside


def _then_split(view: Callable[[Tensor], Tensor], heads: int) -> Callable[[Tensor], Tensor]:
    return lambda x: view(x).unflatten(0, (-1, heads))


def _sums_to_one(matrix: Tensor) -> bool:
    if matrix.is_meta:
        return True
    sums = matrix.detach().sum(-1)
    tolerance = 2e-2 if matrix.dtype in (torch.bfloat16, torch.float16) else 1e-3
    return bool(((sums - 1).abs() < tolerance).all())


def _known(model: nn.Module) -> Known:
    """What was found before, if neither the modules nor their modes and weights have changed since."""
    modes = tuple(module.training for module in model.modules())
    weights = tuple((id(each), 0 if each.is_inference() else each._version) for each in model.parameters())
    model = original(model)
    state = hash((tuple(map(id, model.modules())), modes, weights))
    if model not in _found or _found[model][0] != state:
        _found[model] = state, {}
    return _found[model][1]


@contextmanager
def intercepting(model: nn.Module, report: Report, begin: Callable[[int], None] | None = None) -> Iterator[None]:
    """Report every use of attention in forward passes of a model; a layer that was missed raises at their end.

    Args:
        model: to watch.
        report: called with every use.
        begin: called when a pass begins, with the number of earlier reports that belong to it
            (:mod:`visattn.heatmaps.watch.passes`).
    """

    def enter(itself: bool) -> None:
        mode.lineages.clear()
        mode.products, mode.known = 0, _known(model) if itself else {}

    passes = Passes(model, enter, begin or (lambda _: None))
    mode = Interception(passes, report)
    handles = []
    try:
        for module in passes.names:
            handles += passes.hooks(module)
        with eagerly(), mode:
            yield
        passes.check()
    finally:
        passes.close()
        for handle in handles:
            handle.remove()

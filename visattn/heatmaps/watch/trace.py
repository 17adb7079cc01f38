"""Where in the image every token comes from, found by following coordinates through a forward pass.

Transformers cut, shift, shuffle, pool and pad their tokens in many ways. Instead of a table of families there is one
abstract run of the network: every tensor has a *shadow* of the same shape that says for each number which place of the
image (and which image of the batch) it belongs to. Operations that move numbers move the shadow in the same way; a
convolution takes the centre of its window; a matrix product keeps the place of the row, or the centre of what it mixes;
what is computed number by number keeps the place of that operand which has come the more direct way, as shortcuts do.

A shadow is a pair of tensors (row, column). Rows are the image's rows, plus :data:`IMAGE` times the number of the image
in the batch. Learnt tokens (class, distillation, register) have no place; they have a row below zero that says which
parameter they come from, and their index in it as the column. NaN is neither: a mixture, or padding.

The network is a copy without storage, so nothing is computed; networks that look at values run with theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from visattn.heatmaps.watch.calls import Call
from visattn.heatmaps.watch.interception import intercepting
from visattn.heatmaps.watch.passes import Missed
from visattn.modules import sharing_copy, weightless_copy

# Rows between two images of a batch: more than any image has. A third tensor for the number of the image would be
# cleaner, and would cost every rule below a third more: pooling and products treat it exactly as they treat rows.
IMAGE = 100_000.0
Shadow: TypeAlias = tuple[Tensor, Tensor]
T = TypeVar("T")

# Operations that do to a shadow exactly what they do to the numbers.
MOVES = frozenset({
    "view", "_unsafe_view", "reshape", "_reshape_alias", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand",
    "slice", "select", "split", "split_with_sizes", "chunk", "unbind", "clone", "detach", "alias", "roll", "flip",
    "repeat", "index_select", "unfold", "as_strided", "contiguous", "lift_fresh", "narrow", "tile", "view_copy",
    "repeat_interleave", "unsafe_split", "unsafe_chunk", "pixel_unshuffle", "pixel_shuffle", "channel_shuffle",
})  # fmt: skip
JOINS = frozenset({"cat", "stack"})
NORMS = frozenset({
    "native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit_no_training",
    "cudnn_batch_norm", "native_dropout", "_fused_rms_norm", "_batch_norm_with_update", "_batch_norm_no_update",
})  # fmt: skip
REDUCTIONS = frozenset({"mean", "amax", "amin", "sum", "logsumexp"})
POOLS = frozenset({"max_pool2d_with_indices", "avg_pool2d", "max_pool2d"})
UPSAMPLING = frozenset({"upsample_nearest2d", "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_bicubic2d"})
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})


class LostShadow(RuntimeError):  # noqa: N818 - no error: where tokens come from is then unknown
    """A shadow cannot follow an operation."""


class Tracing(TorchDispatchMode):
    """The mode that keeps shadows.

    Args:
        images: (B, C, H, W), whose every pixel has its place.
        learnt: parameters that may be tokens, by identity.
    """

    supports_higher_order_operators = True

    def __init__(self, images: Tensor, learnt: set[int]) -> None:
        super().__init__()
        self.shadows: Any = WeakTensorKeyDictionary()
        self.across: Any = WeakTensorKeyDictionary()  # shadows of products by their columns, not their rows
        self.steps: Any = WeakTensorKeyDictionary()  # how often the places in a shadow were pooled
        self.learnt = learnt
        self.parameters = 0
        batch, _, height, width = images.shape
        rows = torch.arange(height).double()[:, None] + IMAGE * torch.arange(batch).double()[:, None, None, None]
        columns = torch.arange(width).double()
        self.shadows[images] = rows.expand(images.shape), columns.expand(images.shape)

    def shadow(self, x: Tensor) -> Shadow:
        """The shadow of a tensor."""
        if x not in self.shadows:
            if id(x) not in self.learnt or x.ndim < 2:
                return nowhere(x.shape)
            index = torch.arange(x.shape[-2]).double()[:, None]
            self.shadows[x] = self._new_token().expand(x.shape), index.expand(x.shape)
        return self.shadows[x]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if isinstance(func, HigherOrderOperator):  # flex_attention, whose rows belong to its queries
            if isinstance(output, tuple) and args[0].shape[:-1] == output[0].shape[:-1]:
                self.shadows[output[0]] = self._both(args[0], lambda s: s[..., :1].expand(output[0].shape))
            return output
        name = func._schema.name.removeprefix("aten::")
        inplace = name.endswith("_") and not name.startswith("_")
        name = name.rstrip("_") if inplace else name
        try:
            steps = max([self.steps.get(x, 0) for x in _tensors(args)], default=0)
            self._note(name, args, kwargs, output)
            self._note_across(name, args, kwargs, output)
            for each in _tensors([output]):
                if each not in self.steps or name in MOVES | JOINS:
                    self.steps[each] = steps + (name not in MOVES | JOINS | NORMS)
        except (RuntimeError, IndexError, TypeError, ValueError):  # LostShadow, or what torch says to odd arguments
            for each in _tensors([output]):
                self.shadows[each] = nowhere(each.shape)
        return output

    def _note(self, name: str, args: Any, kwargs: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple | list) else output
        if not isinstance(first, Tensor):
            return
        if name in MOVES:
            self._move(name, args, kwargs, output)
        elif name in JOINS:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
            rows, columns = zip(*(self.shadow(x) for x in args[0]), strict=True)
            self.shadows[output] = _joined(name, rows, dim, output), _joined(name, columns, dim, output)
        elif name == "constant_pad_nd":
            self.shadows[output] = self._both(args[0], lambda s: F.pad(s, args[1], value=math.nan))
        elif name in ("convolution", "_convolution"):
            self._convolve(args, output)
        elif name in POOLS:
            kernel, stride, padding = _pair(args[1]), _pair(args[2] if len(args) > 2 else []), _pair(_get(args, 3, 0))
            dilation = _pair(_get(args, 4, 1)) if name.startswith("max") else (1, 1)
            self._centres(args[0], first, kernel, stride or kernel, padding, dilation)
        elif name in ("adaptive_avg_pool2d", "_adaptive_avg_pool2d"):
            self.shadows[output] = self._both(args[0], lambda s: F.adaptive_avg_pool2d(s, output.shape[-2:]))
        elif name in UPSAMPLING:
            size = tuple(output.shape[-2:])
            self.shadows[output] = self._both(args[0], lambda s: F.interpolate(s, size, mode="nearest-exact"))
        elif name == "im2col":
            self.shadows[output] = self._both(args[0], lambda s: _unfolded(s, *args[1:]))
        elif name in PRODUCTS:
            left, right = args[-2:]
            self.shadows[output] = self._product(left, right, output)
        elif name == "_cdist_forward":  # a row for every query, as in a product
            left = self.shadow(args[0])
            self.shadows[output] = tuple(_middle(s, -1, left).expand(output.shape) for s in left)
        elif name in REDUCTIONS and len(args) > 1 and isinstance(args[1], int | list):
            self.shadows[first] = self._reduced(args[0], args[1], first)
        elif name in NORMS:
            self.shadows[first] = self.shadow(args[0])
        elif "scaled_dot_product" in name:
            query = self.shadow(args[0])
            self.shadows[first] = tuple(s[..., :1].expand(first.shape) for s in query)
        elif name == "copy":
            self._number_by_number([args[1]], output)
        else:
            self._number_by_number([*args, *kwargs.values()], first)

    def _note_across(self, name: str, args: Any, kwargs: Any, output: Any) -> None:
        """Follow the columns of a product too, as far as the next one: they may be the queries."""
        if name in PRODUCTS or not any(x in self.across for x in _tensors(args)):
            return
        self.shadows, self.across = self.across, self.shadows
        try:
            self._note(name, args, kwargs, output)
        except (RuntimeError, IndexError, TypeError, ValueError):
            pass
        finally:
            self.shadows, self.across = self.across, self.shadows

    def _both(self, x: Tensor, change: Callable[[Tensor], Tensor]) -> Shadow:
        rows, columns = self.shadow(x)
        return change(rows), change(columns)

    def _move(self, name: str, args: Any, kwargs: Any, output: Any) -> None:
        """Views of a shadow may need a copy where those of the numbers do not: it is often one number, repeated."""
        if name in ("view", "_unsafe_view", "_reshape_alias", "view_copy"):
            self.shadows[output] = self._both(args[0], lambda s: _reshaped(s, output.shape))
            return
        if name in ("clone", "contiguous"):  # nobody writes into a shadow
            self.shadows[output] = self.shadow(args[0])
            return
        move = getattr(torch.ops.aten, name)
        if any(isinstance(x, Tensor) for x in args[1:]):  # positions, which have no values here
            raise LostShadow(f"{name} by positions that have no values here")
        moved = self._both(args[0], lambda s: move(s, *args[1:], **_without_dtype(kwargs)))
        if isinstance(output, tuple | list):
            for each, rows, columns in zip(output, *moved, strict=True):
                self.shadows[each] = rows, columns
        else:
            self.shadows[output] = moved

    def _reduced(self, x: Tensor, axes: Any, output: Tensor) -> Shadow:
        """The middle of what is pooled; what is pooled over the whole image is a token without a place."""
        shadow = self.shadow(x)
        rows, columns = (_middle(s, axes, shadow, output.ndim == x.ndim) for s in shadow)
        if rows.numel() and _single(rows % IMAGE) and _single(columns) and not _single(shadow[0] % IMAGE):
            rows, columns = self._new_token().expand(output.shape), torch.zeros_like(columns)
        return rows, columns

    def _new_token(self) -> Tensor:
        self.parameters += 1
        return torch.full((), -float(self.parameters)).double()

    def _convolve(self, args: Any, output: Tensor) -> None:
        x, weight, _, stride, padding, dilation, transposed = args[:7]
        if transposed:
            scale = tuple(output.shape[2:])
            self.shadows[output] = self._both(
                x, lambda s: F.interpolate(s[:, :1], scale, mode="nearest-exact").expand(output.shape)
            )
        else:
            self._centres(x, output, tuple(weight.shape[2:]), tuple(stride), tuple(padding), tuple(dilation))

    def _centres(self, x: Tensor, output: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any) -> None:
        """The place of the middle of each window; between two pixels, half way."""

        def centre(s: Tensor) -> Tensor:
            s = s[:, :1] if s.shape[1] != output.shape[1] or s.stride(1) == 0 else s
            spatial = len(kernel)
            for k in range(spatial):
                axis = s.ndim - spatial + k
                size = s.shape[axis]
                step, pad = _at(stride, k), _at(padding, k)
                middle = torch.arange(output.shape[axis - s.ndim]) * step - pad + _at(dilation, k) * (kernel[k] - 1) / 2
                low, high = middle.floor().clamp(0, size - 1).long(), middle.ceil().clamp(0, size - 1).long()
                low, high = s.index_select(axis, low), s.index_select(axis, high)
                s = (low.where(low.isfinite(), high) + high.where(high.isfinite(), low)) / 2  # padding has no say
            return s.expand(output.shape)

        self.shadows[output] = self._both(x, centre)

    def _product(self, left: Tensor, right: Tensor, output: Tensor) -> Shadow:
        """Rows keep their place; where the left side has none, columns do."""
        a, b = self.shadow(left), self.shadow(right)
        by_row = [_middle(s, -1, a) for s in a]
        by_column = [_middle(s, -2, b) for s in b]
        rowed = _compact(by_row[0]).isfinite()
        if not rowed.all() and _compact(by_column[0]).isfinite().any():
            by_row = [r.where(rowed, c) for r, c in zip(by_row, by_column, strict=True)]
        elif rowed.any() and by_column[0].isfinite().any():
            self.across[output] = tuple(s.expand(output.shape) for s in by_column)
        rows, columns = (s.expand(output.shape) for s in by_row)
        return rows, columns

    def _number_by_number(self, inputs: Any, output: Tensor) -> None:
        """Of the operands, the place in the image that came the most direct way; else a learnt token."""
        operands = [x for x in inputs if isinstance(x, Tensor) and (x in self.shadows or id(x) in self.learnt)]
        operands = [x for x in operands if torch.broadcast_shapes(x.shape, output.shape) == output.shape]
        operands.sort(key=lambda x: (x.shape != output.shape, self.steps.get(x, 0)))
        found: Shadow | None = None
        for x in operands:
            rows, columns = (s.expand(output.shape) for s in self.shadow(x))
            if found is None:
                found = rows, columns
                self.steps[output] = self.steps.get(x, 0)
            else:
                found = _better((rows, columns), found)
            if _placed(found[0]):
                break
        self.shadows[output] = nowhere(output.shape) if found is None else found


def nowhere(shape: torch.Size) -> Shadow:
    """The shadow of a tensor that belongs to no place."""
    nothing = torch.full((), math.nan).double().expand(shape)
    return nothing, nothing


def _compact(s: Tensor) -> Tensor:
    """One number of every repetition."""
    for axis, stride in enumerate(s.stride()):
        if stride == 0 and s.shape[axis] > 1:
            s = s.narrow(axis, 0, 1)
    return s


def compact_copy(s: Tensor) -> Tensor:
    """The same numbers in memory of their own, those that are repeated only once."""
    return _compact(s).clone().expand(s.shape)


def _compact_together(*shadows: Tensor) -> list[Tensor]:
    """One number of every repetition that all of them have, so that they still fit each other."""
    for axis in range(shadows[0].ndim):
        if all(s.stride(axis) == 0 for s in shadows):
            shadows = tuple(s.narrow(axis, 0, 1) for s in shadows)
    return list(shadows)


def _better(new: Shadow, old: Shadow) -> Shadow:
    """The new places where the old ones are not in the image."""
    shape = old[0].shape
    rows, columns, old_rows, old_columns = _compact_together(*new, *old)
    better = (rows >= 0) & ~(old_rows >= 0)
    if not better.any():
        return old
    return rows.where(better, old_rows).expand(shape), columns.where(better, old_columns).expand(shape)


def _reshaped(s: Tensor, shape: torch.Size) -> Tensor:
    """In another shape; a number that is repeated along axes is kept only once."""
    small, new = list(s.shape), list(shape)
    apart: list[int] = []  # axes that one axis falls into
    before = after = 0  # the next axis of each
    while s.numel() and before < s.ndim and after < len(shape):
        ends, number, size = [before + 1, after + 1], s.shape[before], shape[after]
        while number != size:  # until both have gone through as many numbers
            if number < size:
                number, ends[0] = number * s.shape[ends[0]], ends[0] + 1
            else:
                size, ends[1] = size * shape[ends[1]], ends[1] + 1
        if all(s.stride(axis) == 0 or s.shape[axis] == 1 for axis in range(before, ends[0])):
            small[before : ends[0]] = [1] * (ends[0] - before)
            new[after : ends[1]] = [1] * (ends[1] - after)
        elif ends[1] > after + 1:
            apart += range(after, ends[1])
        before, after = ends
    for axis, size in enumerate(small):
        s = s.narrow(axis, 0, size)
    s = s.reshape(new)
    for axis in apart:  # such as heads that were joined with the batch
        first = s.narrow(axis, 0, 1)
        if s.shape[axis] > 1 and ((s == first) | (s.isnan() & first.isnan())).all():
            s = first
    return s.expand(shape)


def _joined(name: str, parts: Sequence[Tensor], dim: int, output: Tensor) -> Tensor:
    """Parts one after the other; what is the same in all of them along an axis is kept only once."""
    if name == "stack":
        return torch.stack(list(parts), dim)
    for axis in range(output.ndim):
        if axis != dim % output.ndim and all(part.stride(axis) == 0 for part in parts):
            parts = [part.narrow(axis, 0, 1) for part in parts]
    return torch.cat(list(parts), dim).expand(output.shape)


def _single(places: Tensor) -> bool:
    """Whether they are all one place of the image."""
    small = _compact(places)
    return bool((small >= 0).all() and small.max() - small.min() < 1e-6)


def _placed(rows: Tensor) -> bool:
    return bool((_compact(rows) >= 0).all())


def _middle(s: Tensor, axis: Any, shadow: Shadow, keepdim: bool = True) -> Tensor:
    """What is the same along axes, or else the middle of places in the image; a mixture of other things is nowhere."""
    axes = [axis] if isinstance(axis, int) else list(axis)
    rows = shadow[0]
    if all(each.stride(a) == 0 or each.shape[a] == 1 for each in shadow for a in axes):
        for a in axes:
            s = s.narrow(a, 0, 1)
    else:
        same = torch.ones((), dtype=torch.bool)
        for each in shadow:
            same = same & ((each.amax(axes, keepdim=True) - each.amin(axes, keepdim=True)).abs() < 1e-6)
        mixed = (rows < 0).any(axes[0], keepdim=True)
        for a in axes[1:]:
            mixed = mixed.any(a, keepdim=True)
        s = s.nanmean(axes, keepdim=True).where(same | ~mixed, math.nan)
    return s if keepdim else s.squeeze(axes)


def _tensors(values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += _tensors(value)
    return found


def _pair(value: Any) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _at(values: tuple[int, ...], k: int) -> int:
    return values[k] if len(values) > k else values[0]


def _get(args: Any, position: int, default: Any) -> Any:
    return args[position] if len(args) > position else default


def _without_dtype(kwargs: Any) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key not in ("dtype", "device", "layout", "memory_format")}


def _unfolded(s: Tensor, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    """Padding is nowhere, not at the corner."""
    rows, columns = padding
    padded = F.pad(s, (columns, columns, rows, rows), value=math.nan)
    return F.unfold(padded, kernel, dilation, 0, stride)


def learnt_tokens(model: nn.Module) -> set[int]:
    """The parameters that do not belong to ordinary layers, by identity."""
    layers = (nn.Linear, nn.LayerNorm, nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm)
    return {
        id(p) for m in model.modules() if not isinstance(m, layers) for p in m._parameters.values() if p is not None
    }


def trace(model: nn.Module, images: Tensor, look: Callable[[Call, Tracing], T]) -> list[T]:
    """Run a network on images of this shape; what a function says of every use of attention while shadows are there."""
    blank = torch.empty_like(images, device="meta")
    calls: list[Call] = []
    try:
        shadow = weightless_copy(model)
        with torch.no_grad(), intercepting(shadow, calls.append):
            shadow(blank)
        return _run(shadow, blank, look) if calls else []
    except Missed:
        raise
    except Exception:  # whatever a network does with values that are not there
        return _run(sharing_copy(model), images.detach(), look)


def _run(model: nn.Module, images: Tensor, look: Callable[[Call, Tracing], T]) -> list[T]:
    images = images.clone()
    tracing = Tracing(images, learnt_tokens(model))
    found: list[T] = []
    with torch.no_grad(), intercepting(model, lambda call: found.append(look(call, tracing))), tracing:
        model(images)
    return found

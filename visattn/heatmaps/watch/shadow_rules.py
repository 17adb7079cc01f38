"""What every operation does to the shadows of its operands (:mod:`visattn.heatmaps.watch.shadows`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from visattn.heatmaps.watch.shadows import (
    IMAGE,
    Shadow,
    all_placed,
    compact,
    is_one_place,
    joined,
    middle,
    nowhere,
    prefer_places,
    reshaped,
    unfolded,
    window_centres,
)

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
ADAPTIVE_POOLS = frozenset({"adaptive_avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d"})
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
            self.shadows[output] = joined(name, rows, dim, output), joined(name, columns, dim, output)
        elif name == "constant_pad_nd":
            self.shadows[output] = self._both(args[0], lambda s: F.pad(s, args[1], value=math.nan))
        elif name in ("convolution", "_convolution"):
            self._convolve(args, output)
        elif name in POOLS:
            kernel, stride, padding = _pair(args[1]), _pair(args[2] if len(args) > 2 else []), _pair(_get(args, 3, 0))
            dilation = _pair(_get(args, 4, 1)) if name.startswith("max") else (1, 1)
            self._centres(args[0], first, kernel, stride or kernel, padding, dilation)
        elif name in ADAPTIVE_POOLS:
            height, width = first.shape[-2:]
            self.shadows[first] = self._both(args[0], lambda s: F.adaptive_avg_pool2d(s, (height, width)))
        elif name in UPSAMPLING:
            size = tuple(output.shape[-2:])
            self.shadows[output] = self._both(args[0], lambda s: F.interpolate(s, size, mode="nearest-exact"))
        elif name == "im2col":
            self.shadows[output] = self._both(args[0], lambda s: unfolded(s, *args[1:]))
        elif name in PRODUCTS:
            left, right = args[-2:]
            self.shadows[output] = self._product(left, right, output)
        elif name == "_cdist_forward":  # a row for every query, as in a product
            left = self.shadow(args[0])
            self.shadows[output] = tuple(middle(s, -1, left).expand(output.shape) for s in left)
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
            self.shadows[output] = self._both(args[0], lambda s: reshaped(s, output.shape))
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
        rows, columns = (middle(s, axes, shadow, output.ndim == x.ndim) for s in shadow)
        if (
            rows.numel()
            and is_one_place(rows % IMAGE)
            and is_one_place(columns)
            and not is_one_place(shadow[0] % IMAGE)
        ):
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
        shape = output.shape
        self.shadows[output] = self._both(x, lambda s: window_centres(s, shape, kernel, stride, padding, dilation))

    def _product(self, left: Tensor, right: Tensor, output: Tensor) -> Shadow:
        """Rows keep their place; where the left side has none, columns do."""
        a, b = self.shadow(left), self.shadow(right)
        by_row = [middle(s, -1, a) for s in a]
        by_column = [middle(s, -2, b) for s in b]
        rowed = compact(by_row[0]).isfinite()
        if not rowed.all() and compact(by_column[0]).isfinite().any():
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
                found = prefer_places((rows, columns), found)
            if all_placed(found[0]):
                break
        self.shadows[output] = nowhere(output.shape) if found is None else found


def _tensors(values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += _tensors(value)
    return found


def _pair(value: Any) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * 2 if len(values) == 1 else values


def _get(args: Any, position: int, default: Any) -> Any:
    return args[position] if len(args) > position else default


def _without_dtype(kwargs: Any) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key not in ("dtype", "device", "layout", "memory_format")}

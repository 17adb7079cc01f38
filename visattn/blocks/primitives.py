"""The few operations that blocks are made of, with a backward pass that moves less memory than autograd's own.

A gate computes next to nothing. Its time is that of reading and writing maps as large as its input, and of allocating
them: on a CPU, memory that the process did not have before costs several times as much as the writing. In training, a
channel gate x * w(mean(x)) moves so many maps:

===================================  ==========================  =============================================
step                                 autograd                    here
===================================  ==========================  =============================================
mean of x                            1 read                      1 read
x * w                                1 read, 1 written (new)     1 read, 1 written (new)
gradient of x in the product         1 read, 1 written (new)     1 read, 1 written, in place if nobody else has it
gradient of w, a sum of products     3 read, 1 written (new)     2 read; the product does not leave the cache
gradient of x in the mean            1 written (new)             none: one number per channel, expanded
the sum of both                      2 read, 1 written           1 read, 1 written in place
===================================  ==========================  =============================================

13 maps, four of them new, against 9 and one or two. The places of a maximum are looked for in the backward pass, a few
images at a time: on a CPU, a maximum with its index takes six to nine times as long as one without. Places that share a
maximum share its gradient. :func:`gate_by_max_mean` adds it to the gradient of the product in place, and
:func:`gate_channels_places`, two gates in a row, does not hold what is between them.

The results and gradients are those of the plain formula. Compilers, exporters, tracers, ``torch.func`` and code that
watches torch functions get the plain formula itself: they save memory in their own way, or need to see every step.
The two keep different tensors, so ``torch.utils.checkpoint`` without ``use_reentrant`` refuses a block that is watched
in the forward pass only: let its ``context_fn`` watch both.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, Literal, TypeAlias

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C import _is_tracing, _len_torch_function_stack
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack
from torch.autograd import Function, forward_ad
from torch.compiler import is_compiling
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from visattn.core.precision import autocasting, without_autocast

PIECE = 2**21  # bytes of a product that are summed at once: about what the cache of a core holds
SMALL = 2**23  # bytes of a product that is not worth taking apart
ORDINARY = (Tensor, nn.Parameter)  # not what a tracer or another package makes of them

# Before torch 2.7 an exporter cannot be told from a compiler.
is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", is_compiling)

Weigh: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # weights from a maximum and a mean


def gate(x: Tensor, weights: Tensor) -> Tensor:
    """Multiply a map by weights that broadcast to it, such as (B, C, 1, 1) or (B, 1, H, W)."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        if trains_plainly(x, weights) and _spreads(weights, x):
            return _Gate.apply(x, weights)
    return x * weights


def gate_rows_columns(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Multiply a map by weights of its rows (B, C, H, 1) and by weights of its columns (B, C, 1, W)."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        if runs_plainly(x) and rows.dtype == columns.dtype == x.dtype:
            return _GateRowsColumns.apply(x, rows, columns)
    return x * rows * columns


def mean_places(x: Tensor) -> Tensor:
    """Mean of every channel: (B, C, H, W) -> (B, C, 1, 1)."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        if trains_plainly(x):
            return _Mean.apply(x, (2, 3))
    return x.mean((2, 3), keepdim=True)


def mean(x: Tensor, dim: int) -> Tensor:
    """Mean along one axis, which is kept."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        if trains_plainly(x):
            return _Mean.apply(x, (dim,))
        if runs_plainly(x):
            return _reduce(torch.mean, x, (dim,))
    return x.mean(dim, keepdim=True)


def max_mean_places(x: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum and mean of every channel, (B, C, 1, 1) each."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        if trains_plainly(x):
            return _MaxMean.apply(x, (2, 3))[1:]
    return x.amax((2, 3), keepdim=True), x.mean((2, 3), keepdim=True)


def max_mean(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Maximum and mean along one axis, which is kept."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        if trains_plainly(x):
            return _MaxMean.apply(x, (dim,))[1:]
    return x.amax(dim, keepdim=True), x.mean(dim, keepdim=True)


def pool_max_mean(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """x itself, to go on with, so that its gradients are added up at once; its maximum and its mean along one axis."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        if trains_plainly(x):
            return _MaxMean.apply(x, (dim,))
    return x, x.amax(dim, keepdim=True), x.mean(dim, keepdim=True)


def gate_by_max_mean(x: Tensor, dims: tuple[int, ...], weigh: Weigh) -> Tensor:
    """Multiply a map by weights made of its maximum and its mean along axes: x * weigh(max(x), mean(x))."""
    if not trains_plainly(x):
        return gate(x, weigh(x.amax(dims, keepdim=True), x.mean(dims, keepdim=True)))
    # The product takes x from the pooling, which thereby receives the gradient of the product and adds its own to it.
    same, peak, average = _MaxMean.apply(x, dims)
    return gate(same, weigh(peak, average))


def gate_channels_places(x: Tensor, weigh_channels: Weigh, weigh_places: Weigh) -> Tensor:
    """Gate the channels of a map by the maximum and the mean of each, and then its places likewise, as CBAM does.

    x' = x * weigh_channels(max(x), mean(x)), and the result x' * weigh_places(max(x'), mean(x')). In training x' is not
    held: a few images of it are made when they are needed.
    """
    if not trains_plainly(x):
        return gate_by_max_mean(gate_by_max_mean(x, (2, 3), weigh_channels), (1,), weigh_places)
    x, peak, average = _MaxMean.apply(x, (2, 3))
    channels = weigh_channels(peak, average)
    if not _spreads(channels, x):
        return gate_by_max_mean(x * channels, (1,), weigh_places)
    gated, peak, average = _ProductMaxMean.apply(x, channels)
    places = weigh_places(peak, average)
    return _GateProduct.apply(gated, x, channels, places) if _spreads(places, x) else x * channels * places


def mix(maps: list[Tensor], weights: Tensor) -> Tensor:
    """Sum of maps (B, C, H, W), each multiplied by its own weights (B, maps, C, 1, 1), or (B, maps, 1, H, W)."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        if trains_plainly(maps[0], weights):
            return _Mix.apply(weights, *maps)
    total = maps[0] * weights[:, 0]
    for number in range(1, len(maps)):
        total = total + maps[number] * weights[:, number]
    return total


def by_image(function: Callable[..., Tensor], *maps: Tensor) -> Tensor:
    """function(*maps), where the function treats every image by itself, and depends on nothing else.

    In training it is computed for a few images at a time, and once more in the backward pass: what is in between is not
    kept, and does not leave the cache.
    """
    if any(trains_plainly(maps[0], each) for each in maps) and not autocasting(maps[0].device):
        return _ByImage.apply(function, *maps)
    return function(*maps)


def attention_pool(x: Tensor, key: nn.Conv2d) -> tuple[Tensor, Tensor, Tensor]:
    """Average the pixels, weighted by the softmax of what a 1x1 convolution to one channel makes of them.

    Returns x itself, to go on with, so that its gradients are added up at once; the weights (B, 1, H, W); and the
    average (B, C, 1, 1).
    """
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        if trains_plainly(x) and is_bare_convolution(key, x):
            return _AttentionPool.apply(x, key.weight, key.bias)
    weights = F.softmax(key(x).flatten(2), dim=-1)  # (B, 1, N)
    return x, weights.unflatten(2, x.shape[2:]), (x.flatten(2) @ weights.mT).unsqueeze(-1)


def blend(x: Tensor, changed: Tensor, gain: Tensor) -> Tensor:
    """x + gain (changed - x), gain being one number; x itself if that is zero, even where ``changed`` is not finite."""
    if runs_plainly(x) and x.device.type == "cpu" and x.dtype == changed.dtype == gain.dtype:
        return _Blend.apply(x, changed, gain)
    change = changed - x
    change = change.where((gain != 0) | change.isfinite(), 0)  # zero times infinity is NaN
    return (x + gain * change).to(x.dtype)  # under autocast, the gain has a higher precision than the map


class Pointwise(nn.Conv2d):
    """1x1 convolution; of single pixels, as behind global pooling, it is one matrix product.

    Args:
        channels: of the input.
        out_channels: of the output.
        bias: whether it has one.
        groups: of channels that see nothing of each other.
    """

    def __init__(self, channels: int, out_channels: int, *, bias: bool = True, groups: int = 1, **factory: Any) -> None:
        super().__init__(channels, out_channels, 1, bias=bias, groups=groups, **factory)

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H, W)."""
        return pointwise(input, self.weight, self.bias, self.groups)


class Projections(Pointwise):
    """Queries, keys and values of a map, one after the other: three 1x1 convolutions with the same groups.

    A convolution gives its groups one after the other, and here each has its own queries, keys and values.
    """

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, 3·C', H, W)."""
        y = pointwise(input, self.weight, self.bias, self.groups)
        return y if self.groups == 1 else y.unflatten(1, (self.groups, 3, -1)).transpose(1, 2).flatten(1, 3)


def pointwise(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int = 1) -> Tensor:
    """1x1 convolution."""
    if groups == 1 and x.shape[2] == 1 and x.shape[3] == 1:
        return F.linear(x.flatten(1), weight.flatten(1), bias)[:, :, None, None]
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        if groups == 1 and (x.shape[3] == 1 or weight.shape[0] == 1) and is_compiled(x):
            return F.linear(x.flatten(2).mT, weight.flatten(1), bias).mT.unflatten(2, x.shape[2:])
    return F.conv2d(x, weight, bias, groups=groups)


torch.fx.wrap("pointwise")  # one step for torch.fx: it decides by the shape of real tensors


class AcrossChannels(nn.Conv1d):
    """1-D convolution of a few numbers for every channel, (B, R, C) -> (B, R', C).

    Args:
        width: R.
        out_width: R'.
        kernel_size: an odd number of neighbouring channels.
        bias: whether it has one.
        padding_mode: what is beyond the first and the last channel: "zeros", or "circular".
    """

    def __init__(
        self,
        width: int,
        out_width: int,
        kernel_size: int,
        *,
        bias: bool = False,
        padding_mode: Literal["zeros", "circular"] = "zeros",
        **factory: Any,
    ) -> None:
        super().__init__(
            width, out_width, kernel_size, padding=kernel_size // 2, bias=bias, padding_mode=padding_mode, **factory
        )

    def forward(self, input: Tensor) -> Tensor:
        """(B, R, C) -> (B, R', C)."""
        return across_channels(input, self.weight, self.bias, self.padding_mode == "circular")


def across_channels(x: Tensor, weight: Tensor, bias: Tensor | None, circular: bool) -> Tensor:
    """1-D convolution (B, R, C) -> (B, R', C) as products of matrices, which are faster if R or R' is one."""
    size = weight.shape[2]
    if weight.shape[1] == 1:  # the neighbours of every channel, and their products with the kernel
        return F.linear(_continued(x, size // 2, circular).unfold(2, size, 1)[:, 0], weight.flatten(1), bias).mT
    parts = F.linear(x.mT, weight.permute(2, 0, 1).flatten(0, 1)).mT  # what a channel adds to its neighbours
    parts = _continued(parts, size // 2, circular).unflatten(1, (size, -1))  # (B, k, R', C + k - 1)
    y = parts[:, 0].narrow(2, 0, x.shape[2])
    for shift in range(1, size):
        y = y + parts[:, shift].narrow(2, shift, x.shape[2])
    return y if bias is None else y + bias[:, None]


torch.fx.wrap("across_channels")  # one step for torch.fx: it decides by the shape of real tensors


def _continued(x: Tensor, margin: int, circular: bool) -> Tensor:
    """Channels (B, R, C), and so many more at both ends: zeros, or those of the other end."""
    return F.pad(x, (margin, margin), "circular" if circular else "constant") if margin else x


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """2-D convolution without padding, of maps of few channels."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        if is_compiled(x):
            return F.conv3d(x.unsqueeze(2), weight.unsqueeze(2)).squeeze(2)
    return F.conv2d(x, weight)


def is_compiled(x: Tensor) -> bool:
    """Whether torch.compile makes code for a CPU, and not an exporter a graph.

    It lays out the maps of a graph with their channels last if there is a 2-D convolution in it, be it of a few pooled
    numbers. Copying a map costs more than all the rest of a gate, so that such convolutions are written otherwise.
    """
    return is_compiling() and not is_exporting() and x.device.type == "cpu"


def trains_plainly(x: Tensor, weights: Tensor | None = None) -> bool:
    """Whether gradients are recorded, and by nothing but autograd on ordinary tensors."""
    return (
        torch.is_grad_enabled()
        and runs_plainly(x)  # first: a tracer's stand-in has no requires_grad that could be asked for
        and (x.requires_grad or (weights is not None and weights.requires_grad))
    )


def runs_plainly(x: Tensor) -> bool:
    """Whether operations on a tensor are run as they are, now, and nobody watches.

    On a small map, asking takes as long as a tenth of the work: few names to look up, few calls.
    """
    return (
        not is_compiling()
        and type(x) in ORDINARY
        and not _is_tracing()
        and (_len_torch_function_stack() == 0 or _only_default_devices())
        and not _transformed(x)
    )


def _only_default_devices() -> bool:
    """Whether the code that sees every torch function only cares where tensors are made."""
    return all(isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())


def _transformed(x: Tensor) -> bool:
    """Whether ``torch.func``, forward-mode differentiation or a batch of gradients is at work."""
    return peek_interpreter_stack() is not None or forward_ad._current_level >= 0 or is_legacy_batchedtensor(x)


def is_channels_last(x: Tensor) -> bool:
    """Whether a map has its channels last in memory, and not first; ``torch.func`` cannot be asked."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        if not is_compiling() and _transformed(x):
            return False
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def _spreads(weights: Tensor, x: Tensor) -> bool:
    """Whether one weight is multiplied by many values of the same image."""
    if type(weights) not in ORDINARY or weights.dtype != x.dtype or weights.ndim != 4 or x.ndim != 4:
        return False
    (images, channels, rows, columns), (batch, width, height, length) = weights.shape, x.shape
    return (
        images == batch
        and (channels == width or channels == 1)
        and (rows == height or rows == 1)
        and (columns == length or columns == 1)
        and weights.shape != x.shape
    )


def is_bare(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether the parts of a layer can stand for it: it is as it was made, and nobody hooks into it."""
    kinds = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    hooked = any(getattr(layer, f"_{each}") or getattr(nn.modules.module, f"_global_{each}") for each in kinds)
    return type(layer) is kind and "forward" not in vars(layer) and not hooked


def is_bare_convolution(layer: nn.Conv2d, x: Tensor) -> bool:
    """Whether a layer's weights can stand for the layer: in the precision of its input, and without hooks."""
    same = type(layer.weight) is nn.Parameter and layer.weight.dtype == x.dtype and not autocasting(x.device)
    return same and (is_bare(layer, nn.Conv2d) or is_bare(layer, Pointwise))


class _Gate(Function):
    """x * weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, weights)
        return x * weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weights = ctx.saved_tensors
        to_x, to_weights = ctx.needs_input_grad
        changeable = _changeable(grad)
        sums = _sum_of_products(grad, x, weights) if to_weights else None
        if not to_x:
            return None, sums
        return grad.mul_(weights) if changeable else grad * weights, sums


def _sum_of_products(a: Tensor, b: Tensor, like: Tensor) -> Tensor:
    """a * b, summed along the axes that are broadcast."""
    dims = tuple(dim for dim in range(a.ndim) if like.shape[dim] != a.shape[dim])
    if not dims:
        return a * b
    sums = [_reduce(torch.sum, product, dims) for _, product in _pieces(torch.mul, a, b)]
    return torch.cat(sums) if len(sums) > 1 else sums[0]


def _pieces(operation: Callable[..., Tensor], a: Tensor, b: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """What an operation makes of two maps, a few images at a time in the same memory, so that it stays in the cache."""
    size = a.numel() * a.element_size()
    if size <= SMALL or torch.is_grad_enabled() or _transformed(a):
        yield slice(None), operation(a, b)
        return
    step = max(1, len(a) * PIECE // size)
    memory = torch.empty_like(a[:step])
    for start in range(0, len(a), step):
        images = slice(start, start + step)
        yield images, operation(a[images], b[images], out=memory[: len(a[images])])


class _GateRowsColumns(Function):
    """x * rows * columns."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        ctx.save_for_backward(x, rows, columns)
        return (x * rows).mul_(columns)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, rows, columns = ctx.saved_tensors
        to_rows, to_columns = [], []
        with without_autocast(x.device):
            for images, product in _pieces(torch.mul, grad, x):
                row, column = rows[images], columns[images]
                if x.is_contiguous():
                    to_rows.append(product @ column.mT)
                    to_columns.append(row.mT @ product)
                else:
                    to_rows.append(_reduce(torch.sum, product * column, (3,)))
                    to_columns.append(_reduce(torch.sum, product * row, (2,)))
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = grad * rows
            to_x = to_x * columns if torch.is_grad_enabled() else to_x.mul_(columns)
        return to_x, torch.cat(to_rows), torch.cat(to_columns)


def _count(x: Tensor, dims: tuple[int, ...]) -> int:
    """How many values along axes become one."""
    return math.prod(x.shape[dim] for dim in dims)


def _reduce(operation: Callable[..., Tensor], x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Sum or mean along axes, which are kept."""
    if x.ndim != 4 or 1 in dims or x.is_contiguous():
        return operation(x, dims, keepdim=True)
    # Channels last. Along one of the two axes torch is ten times slower, unless it is given them in that order.
    return operation(x.permute(0, 2, 3, 1), [dim - 1 for dim in dims], keepdim=True).permute(0, 3, 1, 2)


class _Mean(Function):
    """x.mean(dims, keepdim=True)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: tuple[int, ...]) -> Tensor:
        ctx.shape, ctx.count = x.shape, _count(x, dims)
        return _reduce(torch.mean, x, dims)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return (grad / ctx.count).expand(ctx.shape), None


class _MaxMean(Function):
    """x itself, its maximum and its mean along axes; places that share a maximum share its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
        peak = x.amax(dims, keepdim=True)
        ctx.save_for_backward(x, peak)
        ctx.dims = dims
        return x.view_as(x), peak, _reduce(torch.mean, x, dims)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, to_peak: Tensor, to_mean: Tensor) -> tuple[Tensor, None]:
        (x, peak), dims = ctx.saved_tensors, ctx.dims
        to_mean = to_mean / _count(x, dims)
        if torch.is_grad_enabled() or any(map(_transformed, (grad, to_peak, to_mean))):
            highest = (x == peak).to(x.dtype)
            return grad + to_mean + highest * _shared(to_peak, highest, dims), None
        total = grad if _changeable(grad) else grad.clone()
        for images, highest in _pieces(_equal, x, peak):
            total[images].add_(to_mean[images]).addcmul_(highest, _shared(to_peak[images], highest, dims))
        return total, None


class _ProductMaxMean(Function):
    """The product x * weights, and its maximum and its mean over the channels.

    The product is not computed: what stands for it has its shape, and receives its gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pooled = [
            (part.amax(1, keepdim=True), part.mean(1, keepdim=True)) for _, part in _pieces(torch.mul, x, weights)
        ]
        peak, average = (torch.cat(each) for each in zip(*pooled, strict=True))
        ctx.save_for_backward(x, weights, peak)
        return x.view_as(x), peak, average

    @staticmethod
    def backward(ctx: Any, grad: Tensor, to_peak: Tensor, to_mean: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weights, peak = ctx.saved_tensors
        to_mean = to_mean / x.shape[1]
        if torch.is_grad_enabled() or any(map(_transformed, (grad, to_peak, to_mean))):
            highest = (x * weights == peak).to(x.dtype)
            grad = grad + to_mean + highest * _shared(to_peak, highest, (1,))
            return grad * weights, (grad * x).sum((2, 3), keepdim=True)
        total, sums = grad if _changeable(grad) else grad.clone(), []
        for images, product in _pieces(torch.mul, x, weights):
            highest, part = torch.eq(product, peak[images], out=product), total[images]
            part.add_(to_mean[images]).addcmul_(highest, _shared(to_peak[images], highest, (1,)))
            sums.append(_reduce(torch.sum, torch.mul(part, x[images], out=product), (2, 3)))
            part.mul_(weights[images])
        return total, torch.cat(sums)


class _GateProduct(Function):
    """x * channels * places, where x * channels has been pooled: it takes the gradient of that product."""

    @staticmethod
    def forward(ctx: Any, gated: Tensor, x: Tensor, channels: Tensor, places: Tensor) -> Tensor:
        del gated
        ctx.save_for_backward(x, channels, places)
        return (x * channels).mul_(places)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, channels, places = ctx.saved_tensors
        if torch.is_grad_enabled() or _transformed(grad):
            return grad * places, None, None, (grad * x * channels).sum(1, keepdim=True)
        changeable = _changeable(grad)
        products = _pieces(torch.mul, x, channels)
        sums = [product.mul_(grad[images]).sum(1, keepdim=True) for images, product in products]
        return grad.mul_(places) if changeable else grad * places, None, None, torch.cat(sums)


def _equal(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """One where numbers are equal, else zero: torch is several times faster at writing these than at true and false."""
    return torch.eq(a, b, out=torch.empty_like(a) if out is None else out)


def _shared(grad: Tensor, highest: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The gradient of a maximum for each of the places that have it."""
    exact = torch.promote_types(highest.dtype, torch.float32)  # there may be more of them than float16 can count
    return (grad / _reduce(partial(torch.sum, dtype=exact), highest, dims)).to(grad.dtype)


def _changeable(grad: Tensor) -> bool:
    """Whether a gradient can be changed in place: nobody but autograd has it. Hooks and other nodes can keep one."""
    if torch.is_grad_enabled() or _transformed(grad) or 0 in grad.stride():
        return False
    return _references(grad) == _references_of_autograd()


def _references(tensor: Tensor) -> tuple[int, int, int]:
    """How often a tensor is referred to: from Python, from torch, and its memory by tensors."""
    storage = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return sys.getrefcount(tensor), tensor._use_count(), storage


@cache
def _references_of_autograd() -> tuple[int, int, int]:
    """The references to a gradient in a backward pass that nobody but autograd has; versions of torch differ."""
    found = []

    class Counted(Function):
        @staticmethod
        def forward(_ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(_ctx: Any, grad: Tensor) -> Tensor:
            found.append(count(grad))
            return grad

    def count(grad: Tensor) -> tuple[int, int, int]:  # an argument is a reference, too: as deep as in `_changeable`
        return _references(grad)

    with torch.enable_grad():
        x = torch.zeros(1, requires_grad=True, device="cpu")
        torch.autograd.grad(2 * Counted.apply(x), x)
    return found[0]


class _Mix(Function):
    """The sum of maps times weights."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, *maps: Tensor) -> Tensor:
        ctx.save_for_backward(weights, *maps)
        total = maps[0] * weights[:, 0]
        for number in range(1, len(maps)):
            total += maps[number] * weights[:, number]
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weights, *maps = ctx.saved_tensors
        parts = list(zip(maps, weights.unbind(1), strict=True))
        to_weights = torch.stack([_sum_of_products(grad, x, weight) for x, weight in parts], dim=1)
        return to_weights, *(grad * weight for _, weight in parts)


class _ByImage(Function):
    """function(*maps), a few images at a time."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *maps: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*maps)
        parts = [function(*part) for _, part in _cut(maps)]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        maps, wanted = ctx.saved_tensors, ctx.needs_input_grad[1:]
        if torch.is_grad_enabled() or _transformed(grad):
            return None, *_gradients(ctx.function, maps, wanted, grad, create_graph=torch.is_grad_enabled())
        same = grad.shape == maps[0].shape and grad.dtype == maps[0].dtype
        first = grad if same and _changeable(grad) else None
        totals: list[Tensor | None] = [None] * len(maps)
        for images, part in _cut(maps):
            part = [each.detach().requires_grad_(want) for each, want in zip(part, wanted, strict=True)]
            found = _gradients(ctx.function, part, wanted, grad[images])
            for number, to_part in enumerate(found):
                if to_part is None:
                    continue
                total = totals[number]
                if total is None:
                    total = first if number == 0 and first is not None else torch.empty_like(maps[number])
                    totals[number] = total
                total[images] = to_part
        return None, *totals


def _cut(maps: tuple[Tensor, ...]) -> Iterator[tuple[slice, list[Tensor]]]:
    """The entries of the maps for a few images at a time."""
    size = maps[0].numel() * maps[0].element_size()
    step = max(1, len(maps[0]) * PIECE // size) if size > SMALL else max(1, len(maps[0]))
    for start in range(0, max(1, len(maps[0])), step):
        images = slice(start, start + step)
        yield images, [each[images] for each in maps]


def _gradients(
    function: Callable[..., Tensor],
    tensors: Sequence[Tensor],
    wanted: Sequence[bool],
    grad: Tensor,
    *,
    create_graph: bool = False,
) -> list[Tensor | None]:
    """The gradients of a function for those of its tensors that want one."""
    with torch.enable_grad():
        asked = [each for each, want in zip(tensors, wanted, strict=True) if want]
        found = iter(torch.autograd.grad(function(*tensors), asked, grad, create_graph=create_graph))
    return [next(found) if want else None for want in wanted]


class _Blend(Function):
    """x + gain (changed - x), on a CPU, where one can look at the gain without waiting for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, changed: Tensor, gain: Tensor) -> Tensor:
        ctx.save_for_backward(x, changed, gain)
        return (changed - x).mul_(gain).add_(x) if gain.item() else x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, changed, gain = ctx.saved_tensors
        to_x = to_changed = to_gain = None
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            to_changed = grad * gain
            to_x = grad - to_changed
        if ctx.needs_input_grad[2]:
            changes = _pieces(torch.sub, changed, x)
            if not gain.item():
                changes = ((images, change.nan_to_num(0, 0, 0)) for images, change in changes)
            to_gain = torch.stack([(grad[images] * change).sum() for images, change in changes]).sum().view_as(gain)
        return to_x, to_changed, to_gain


class _AttentionPool(Function):
    """x itself, the softmax of a linear function of its pixels, and their average with these weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, key: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        pixels = x.flatten(2)  # (B, C, N)
        energies = key.flatten(1) @ pixels  # (B, 1, N)
        weights = F.softmax(energies if bias is None else energies + bias, dim=-1)
        average, weights = (pixels @ weights.mT).unsqueeze(-1), weights.unflatten(2, x.shape[2:])
        ctx.save_for_backward(x, key, weights)  # the weights as they are returned: second derivatives go through them
        ctx.biased = bias is not None
        return x.view_as(x), weights, average

    @staticmethod
    def backward(ctx: Any, grad: Tensor, to_weights: Tensor, to_average: Tensor) -> tuple[Tensor | None, ...]:
        x, key, weights = ctx.saved_tensors
        flat, row = (*x.shape[:2], x.shape[2] * x.shape[3]), (len(x), 1, x.shape[2] * x.shape[3])
        with without_autocast(x.device):
            pixels, weights = x.reshape(flat), weights.reshape(row)  # (B, C, N), (B, 1, N)
            to_average = to_average.squeeze(-1)  # (B, C, 1)
            to_weights = to_weights.reshape(row) + to_average.mT @ pixels
            to_energies = weights * (to_weights - (to_weights * weights).sum(-1, keepdim=True))
            # Both gradients of x are products of a vector of channels and one of places: one product of thin matrices.
            channels = torch.cat([to_average, key.flatten(1).mT.expand(len(x), -1, -1)], dim=2)  # (B, C, 2)
            places = torch.cat([weights, to_energies], dim=1)  # (B, 2, N)
            if x.is_contiguous():
                to_x = torch.baddbmm(grad.reshape(flat), channels, places)
            else:
                to_x = torch.baddbmm(grad.reshape(flat).mT, places.mT, channels.mT).mT
            to_key = (to_energies @ pixels.mT).sum(0).reshape(key.shape)
        return to_x.reshape(x.shape), to_key, to_energies.sum().reshape(1) if ctx.biased else None

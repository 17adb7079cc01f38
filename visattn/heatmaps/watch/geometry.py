"""What the rows and columns of every attention map of a model stand for.

Found once per model and image size, by :mod:`visattn.heatmaps.watch.trace`; there is no table of families.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from visattn.core.precision import without_autocast
from visattn.heatmaps.watch.cache import on_device, remembered
from visattn.heatmaps.watch.calls import Call, Fused
from visattn.heatmaps.watch.interception import intercepting
from visattn.heatmaps.watch.trace import IMAGE, Shadow, Tracing, compact_copy, trace
from visattn.modules import sharing_copy

REQUIRES_GRAD = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Grid:
    """The patches that a layer works on, in row order.

    Args:
        rows, columns: places of their centres in the image, in pixels.
    """

    rows: tuple[float, ...]
    columns: tuple[float, ...]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return len(self.rows), len(self.columns)

    def __str__(self) -> str:
        return f"{len(self.rows)}x{len(self.columns)}"


@dataclass(frozen=True)
class Tokens:
    """What the queries or the keys of a layer are: patches of a grid, learnt tokens, or nothing in the image.

    Args:
        index: (windows, N): patches are numbered in row order; learnt tokens -2, -3, ... (see ``learnt``); -1 is
            padding, or has no place.
        grid: of the patches, if there are any.
        learnt: the learnt tokens (class, distillation, registers) by the parameter and row they come from.
    """

    index: Tensor
    grid: Grid | None
    learnt: tuple[tuple[int, int], ...]

    @property
    def spatial(self) -> bool:
        """Whether any of them is a patch."""
        return self.grid is not None

    @cached_property
    def padding(self) -> Tensor | None:
        """(windows, N), which of them are padding; None if none is."""
        padding = self.index == -1
        return padding if padding.any() else None

    @cached_property
    def in_order(self) -> bool:
        """Whether they are all patches of the grid, each once and in row order."""
        if self.grid is None or len(self.index) > 1:
            return False
        return torch.equal(self.index[0], torch.arange(len(self.grid.rows) * len(self.grid.columns)))

    @cached_property
    def patches(self) -> tuple[Tensor, Tensor]:
        """Where the patches are when windows are joined, and their numbers."""
        where = (self.index.flatten() >= 0).nonzero()[:, 0]
        return where, self.index.flatten()[where]

    @cached_property
    def once(self) -> Tensor | None:
        """Where each patch of the grid is when windows are joined, if each is there once."""
        where, numbers = self.patches
        order = numbers.argsort()
        size = 0 if self.grid is None else len(self.grid.rows) * len(self.grid.columns)
        return where[order] if torch.equal(numbers[order], torch.arange(size)) else None

    @cached_property
    def learnt_places(self) -> tuple[Tensor, ...]:
        """Where each learnt token is when windows are joined."""
        return tuple((self.index.flatten() == -2 - number).nonzero()[:, 0] for number in range(len(self.learnt)))


@dataclass(frozen=True)
class Layer:
    """One attention map.

    Args:
        name: of the module.
        before, after: how many maps of one image lie before and behind the batch when leading dimensions are flattened.
        order: (windows, heads), where each map of one image is among these.
        queries, keys: what rows and columns are.
        read: (windows, Nq), which of the rows the output of the model depends on without further attention.
        beside: whether its module attends several times beside each other: it is only a part, some heads or queries.
    """

    name: str
    before: int
    after: int
    order: Tensor
    queries: Tokens
    keys: Tokens
    read: Tensor
    beside: bool = False

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.order.shape[1]

    @property
    def windows(self) -> int:
        """Number of windows that attend by themselves."""
        return self.order.shape[0]

    @property
    def leads_on(self) -> bool:
        """Whether it collects from patches into tokens, so that one can follow what it collects."""
        return self.keys.spatial and (self.queries.spatial or bool(self.queries.learnt))

    @property
    def kind(self) -> str:
        """In a word or two, for people."""
        if not self.keys.spatial:
            return "not spatial"
        if not self.queries.spatial:
            return "class attention" if self.queries.learnt else "pooling"
        kind = "global" if self.windows == 1 else f"{self.windows} windows"
        keys, queries = (len(tokens.index[tokens.index >= 0].unique()) for tokens in (self.keys, self.queries))
        if self.windows > 1 and keys == queries and self.keys.index.shape[1] > self.queries.index.shape[1]:
            kind += " with surroundings"
        return kind + (", fewer keys" if keys < queries else ", fewer queries" if keys > queries else "")

    @cached_property
    def in_order(self) -> bool:
        """Whether the maps of an image lie window by window already."""
        return torch.equal(self.order.flatten(), torch.arange(self.order.numel()))

    @cached_property
    def read_patches(self) -> Tensor:
        """Numbers of the patches among the rows that the output depends on."""
        return self.queries.index[self.read & (self.queries.index >= 0)].unique()

    def arrange(self, maps: Tensor) -> Tensor:
        """(B, windows, heads, Nq, Nk) of maps as the model has them, with any leading dimensions."""
        flat = maps.reshape(self.before, -1, self.after, *maps.shape[-2:])
        flat = flat.transpose(0, 1).flatten(1, 2) if self.before > 1 else flat[0]  # (B, maps of an image, Nq, Nk)
        if not self.in_order:
            flat = flat[:, on_device(self.order, maps.device).flatten()]
        return flat.unflatten(1, tuple(self.order.shape))


@dataclass
class Geometry:
    """All attention of a model, in the order in which it happens."""

    layers: list[Layer] = field(default_factory=list)

    def spatial(self) -> list[Layer]:
        """Those layers whose keys are patches."""
        return [layer for layer in self.layers if layer.keys.spatial]


def geometry(model: nn.Module, images: Tensor) -> Geometry:
    """The geometry of a model's attention for images of this size; computed once."""
    return remembered(model, images, "geometry", lambda: _survey(model, images))


@dataclass
class _Found:
    name: str
    leading: tuple[int, ...]
    rows: Shadow  # (..., Nq)
    columns: Shadow  # (..., Nk)


def _survey(model: nn.Module, images: Tensor) -> Geometry:
    def look(call: Call, tracing: Tracing) -> _Found:
        seen = call.rows()
        rows = _row_places(tracing.shadow(seen), call)
        if seen in tracing.across and rows[0].isnan().all():  # the energies have keys before queries
            rows = _row_places(tracing.across[seen], call)
        columns = _key_places(tracing, call, rows[0].shape[:-1])
        return _Found(call.name, tuple(rows[0].shape[:-1]), rows, columns)

    generator = torch.Generator().manual_seed(0)
    example = torch.rand(1, *images.shape[1:], generator=generator).to(images.device, images.dtype)
    with without_autocast(images.device):
        found = trace(model, example.expand(2, -1, -1, -1), look)
        reads = _reads(model, example) if found else []
    if len(reads) != len(found):  # as often as there are images
        return Geometry([_unplaced(each, beside=True) for each in found])
    return Geometry(_shared([_layer(each, *read) for each, read in zip(found, reads, strict=True)]))


def _shared(layers: list[Layer]) -> list[Layer]:
    """The same layers with one object for tokens that are the same, so that they can be told by identity."""
    seen: dict[Any, Tokens] = {}

    def one(tokens: Tokens) -> Tokens:
        key = (tuple(tokens.index.shape), tuple(tokens.index.flatten().tolist()), tokens.grid, tokens.learnt)
        return seen.setdefault(key, tokens)

    return [replace(layer, queries=one(layer.queries), keys=one(layer.keys)) for layer in layers]


def _row_places(shadow: Shadow, call: Call) -> Shadow:
    """One place per query: where a map's row has several, it belongs to none."""
    rows, columns = shadow
    if isinstance(call, Fused):
        return compact_copy(rows[..., 0]), compact_copy(columns[..., 0])
    same = ((rows.amax(-1) - rows.amin(-1)).abs() < 1e-6) & ((columns.amax(-1) - columns.amin(-1)).abs() < 1e-6)
    return rows[..., 0].where(same, torch.nan), columns[..., 0].where(same, torch.nan)


def _key_places(tracing: Tracing, call: Call, leading: torch.Size) -> Shadow:
    keys = call.key if isinstance(call, Fused) else call.value
    rows, columns = (s[..., 0] for s in tracing.shadow(keys))
    if rows.shape[:-1] != leading:  # shared by several heads
        repeats = [1] * rows.ndim
        if len(leading) == rows.ndim - 1:
            repeats[-2] = leading[-1] // rows.shape[-2]
        rows, columns = rows.repeat_interleave(repeats[-2], -2), columns.repeat_interleave(repeats[-2], -2)
        rows, columns = (s.expand(*leading, s.shape[-1]) for s in (rows, columns))
    return compact_copy(rows), compact_copy(columns)


def _layer(found: _Found, read: Tensor, beside: bool = False) -> Layer:
    if not found.leading:  # not even one map per image
        return _unplaced(found, beside)
    rows, columns = ([s.flatten(0, -2) for s in shadow] for shadow in (found.rows, found.columns))
    before, after, order = _arrangement(rows, columns)
    first = torch.arange(order.numel())  # of the first image, flattened
    flat = (first // after) * 2 * after + first % after
    one = order[:, 0]  # any head will do
    queries = _tokens([s[flat][one] for s in rows])
    keys = _tokens([s[flat][one] for s in columns])
    if _follow_keys(queries, keys):
        queries = keys
    results = read.flatten(0, -2)
    results = results.repeat_interleave(order.numel() // len(results), 0)  # some are joined from all heads
    shown = results[order].any(1)
    return Layer(found.name, before, after, order, queries, keys, shown, beside)


def _unplaced(found: _Found, beside: bool) -> Layer:
    """A map of which it is not known to which image it belongs."""
    queries, keys = (Tokens(torch.full((1, s[0].shape[-1]), -1), None, ()) for s in (found.rows, found.columns))
    return Layer(found.name, 1, 1, torch.zeros(1, 1).long(), queries, keys, queries.index >= 0, beside)


def _follow_keys(queries: Tokens, keys: Tokens) -> bool:
    """Whether queries are asked on behalf of the keys' places.

    Outlook attention takes the weights of a whole neighbourhood from its centre; the global queries of GC ViT are the
    same in every window. The results belong to the places of the keys.
    """
    if queries.index.shape != keys.index.shape or not keys.spatial or not queries.spatial:
        return False
    distinct = torch.tensor([len(window.unique()) for window in queries.index])
    one_place = bool((distinct == 1).all()) and queries.index.shape[1] > 1
    repeated = len(queries.index) > 1 and bool((queries.index == queries.index[:1]).all())
    return one_place or repeated


def _arrangement(rows: list[Tensor], columns: list[Tensor]) -> tuple[int, int, Tensor]:
    """Where the batch is among the flattened leading dimensions, and which maps are the heads of one window."""
    number = rows[0].shape[0]
    image = torch.full((number,), torch.nan).double()
    for shadow in (columns[0], rows[0]):
        has = shadow >= 0
        which = torch.where(has, (shadow / IMAGE).floor(), torch.nan).nanmean(-1)
        image = image.where(image.isfinite(), which)
    after = number // 2
    if image.isfinite().all():
        changes = (image[1:] != image[:-1]).nonzero()
        after = int(changes[0]) + 1 if len(changes) else number // 2
    if after == 0 or number % (2 * after):
        after = max(number // 2, 1)
    before = max(number // (2 * after), 1)
    mine = [i for i in range(number) if (i // after) % 2 == 0]
    windows: dict[Any, list[int]] = {}
    for position, i in enumerate(mine):
        places = torch.cat([s[i].nan_to_num(-1e9) for s in (*rows, *columns)])
        windows.setdefault(tuple(places.tolist()), []).append(position)
    counts = {len(maps) for maps in windows.values()}
    if len(counts) != 1:
        return before, after, torch.arange(len(mine))[None]
    return before, after, torch.tensor(list(windows.values()))


def _tokens(places: list[Tensor]) -> Tokens:
    """Number the tokens (windows, N) of one image by their places."""
    rows, columns = places
    patch = rows >= 0
    rows = rows.where(~patch, rows % IMAGE)
    index = torch.full(rows.shape, -1)
    grid = None
    ys, xs = _levels(rows[patch]), _levels(columns[patch])
    if patch.any() and len(ys) * len(xs) > 1:
        grid = Grid(tuple(ys.tolist()), tuple(xs.tolist()))
        index[patch] = _nearest(rows[patch], ys) * len(xs) + _nearest(columns[patch], xs)
    learnt: dict[tuple[int, int], int] = {}
    for w, n in (rows < 0).nonzero().tolist():
        identity = (int(rows[w, n]), int(columns[w, n]))
        index[w, n] = learnt.setdefault(identity, -2 - len(learnt))
    return Tokens(index, grid, tuple(learnt))


def _levels(values: Tensor) -> Tensor:
    """The distinct values, in order; those that differ by rounding are one."""
    levels = values.round(decimals=2).unique()
    if len(levels) < 2:
        return levels
    apart = torch.cat([torch.tensor([True]), levels.diff() > 0.5])
    return levels[apart]


def _nearest(values: Tensor, levels: Tensor) -> Tensor:
    return (values[:, None] - levels).abs().argmin(1)


@contextmanager
def _keeping_zeros(model: nn.Module) -> Iterator[None]:
    """Keep of the numbers that a backward pass needs only where they are zero, since no more is asked of it.

    They would take many times the memory of the forward pass itself.
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


def _reads(model: nn.Module, example: Tensor) -> list[tuple[Tensor, bool]]:
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
    """Whether a tensor was made of a leaf of the graph."""
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

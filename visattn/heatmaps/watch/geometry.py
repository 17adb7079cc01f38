"""What the rows and columns of every attention map of a model stand for.

Found once per model and image size, by :mod:`visattn.heatmaps.watch.trace`; there is no table of families.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from visattn.core.precision import without_autocast
from visattn.heatmaps.watch.cache import cached
from visattn.heatmaps.watch.calls import Call, Fused
from visattn.heatmaps.watch.exactness import full_precision
from visattn.heatmaps.watch.interception import intercepting
from visattn.heatmaps.watch.layers import Geometry, Grid, Layer, Tokens
from visattn.heatmaps.watch.readers import read_rows
from visattn.heatmaps.watch.shadow_rules import Tracing
from visattn.heatmaps.watch.shadows import IMAGE, Shadow, compact_copy
from visattn.heatmaps.watch.trace import trace


def geometry(model: nn.Module, images: Tensor) -> Geometry:
    """The geometry of a model's attention for images of this size; computed once."""
    return cached(model, images, "geometry", lambda: _survey(model, images))


@contextmanager
def reporting_layers(model: nn.Module, found: Geometry, report: Callable[[Layer, Call], None]) -> Iterator[None]:
    """Report every layer of a forward pass, and its attention there, to a function."""
    layers = iter(found.layers)

    def match(call: Call) -> None:
        with full_precision(call.output.device):
            report(next(layers), call)

    with intercepting(model, match):
        yield


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
        reads = read_rows(model, example) if found else []
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

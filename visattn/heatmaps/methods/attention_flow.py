r"""Attention flow (Abnar & Zuidema 2020, https://arxiv.org/abs/2005.00928).

The layers are a network of pipes: from every token above to every token below it, as wide as

.. math:: A' = \tfrac12 (A + I)

with A averaged over the heads. The heatmap has for every patch the most that can flow from the output to it, with
nothing flowing to the others; so it is at least what rollout says, and at most one. What flows is counted in whole
units of :math:`2^{-30}`.

Differences from the paper: where the output reads several tokens, it is one more layer, with a pipe to each of them as
wide as their share in the average. The flows are not divided by their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from visattn.heatmaps.methods.base import register_method
from visattn.heatmaps.methods.rollout import why_no_rollout
from visattn.heatmaps.propagation import fuse_heads, without_padding
from visattn.heatmaps.request import MethodResult, Request
from visattn.heatmaps.watch.calls import Call
from visattn.heatmaps.watch.geometry import geometry, reporting_layers
from visattn.heatmaps.watch.layers import Layer, Tokens

UNITS = 2**30  # of a pipe as wide as one; scipy counts in 32 bits


def why_no_flow(model: nn.Module, images: Tensor) -> str | None:
    """Why the layers are not a network of pipes between the same tokens."""
    if reason := why_no_rollout(model, images):
        return reason
    layers = [layer for layer in geometry(model, images).layers if layer.leads_on]
    if len({tokens.grid for layer in layers for tokens in (layer.queries, layer.keys) if tokens.spatial}) > 1:
        return "it takes the same patches in every layer, and here they are pooled or merged on the way"
    for layer in layers:
        known = layer.queries.index[layer.queries.index != -1]
        if len(known.unique()) < len(known):
            return f"in {layer.name!r} a patch asks several times"
    return None


@register_method("attention_flow", why_not=why_no_flow, looks_at_layers=True, of_class=False, slow=True)
def attention_flow(request: Request) -> MethodResult:
    """The most that can flow from the output to each patch, through pipes as wide as the attention."""
    layers = [layer for layer in geometry(request.model, request.images).layers if layer.leads_on]
    learnt = list(dict.fromkeys(t for layer in layers for t in (*layer.queries.learnt, *layer.keys.learnt)))
    grid = layers[0].keys.grid
    assert grid is not None
    height, width = grid.size
    tokens = len(learnt) + height * width
    pipes: list[NDArray[np.float64]] = []  # (B, tokens above, tokens below) of every layer

    def keep(layer: Layer, call: Call) -> None:
        if layer.leads_on:
            fused = torch.cat([fuse_heads(each) for each in layer.weights_in_pieces(call)], 2)
            fused = without_padding(fused, layer.keys, normalised=True)
            above, below = (_numbered(each, learnt) for each in (layer.queries, layer.keys))
            pipes.append(_pipes(fused.double().cpu().numpy(), above, below, tokens))

    with torch.no_grad():
        request.run(reporting_layers(request.model, geometry(request.model, request.images), keep))
    shares = _read(layers, learnt, tokens)
    patches = range(len(learnt), tokens)
    flows = [_flows(shares, [each[image] for each in pipes], patches) for image in range(len(request.images))]
    maps = torch.tensor(np.array(flows), device=request.images.device).unflatten(1, (height, width))
    return MethodResult(maps, tuple(layer.name for layer in layers))


def _numbered(tokens: Tokens, learnt: Sequence[Any]) -> NDArray[np.int64]:
    """(windows, N): learnt tokens first, then the patches; -1 is padding."""
    own = [learnt.index(each) for each in tokens.learnt]
    index = tokens.index.numpy()
    numbers = np.where(index >= 0, index + len(learnt), -1)
    for position, number in enumerate(own):
        numbers[index == -2 - position] = number
    return numbers


def _pipes(
    fused: NDArray[np.float64], above: NDArray[np.int64], below: NDArray[np.int64], tokens: int
) -> NDArray[np.float64]:
    """Half attention, half identity; a token that does not ask stays what it is."""
    whole = np.broadcast_to(np.eye(tokens), (len(fused), tokens, tokens)).copy()
    asking = above[above >= 0]
    whole[:, asking] /= 2
    for window, (rows, columns) in enumerate(zip(above, below, strict=True)):
        valid = np.ix_(rows >= 0, columns >= 0)
        pairs = np.ix_(rows[rows >= 0], columns[columns >= 0])
        for image, maps in enumerate(fused[:, window]):
            np.add.at(whole[image], pairs, maps[valid] / 2)
    return whole


def _read(layers: Sequence[Layer], learnt: Sequence[Any], tokens: int) -> NDArray[np.float64]:
    """(tokens,): the share of every token in what the output reads; all patches if nothing is known."""
    read = np.zeros(tokens, dtype=bool)
    for layer in layers:  # what is read is what the last layer left
        numbers = _numbered(layer.queries, learnt)
        known = numbers >= 0
        read[numbers[known]] = layer.read.numpy()[known]
    if not read.any():
        read[len(learnt) :] = True
    groups = np.split(read, [len(learnt)])
    return np.concatenate([each / max(each.sum(), 1) for each in groups]) / sum(each.any() for each in groups)


def _flows(shares: NDArray[np.float64], pipes: Sequence[NDArray[np.float64]], sinks: Sequence[int]) -> list[float]:
    """The most that can flow to each of these tokens of the image.

    Args:
        shares: (tokens,), the pipes from the output to the tokens of the last layer.
        pipes: (tokens above, tokens below) of every layer, the first first.
        sinks: numbers of tokens below the first layer.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    tokens, last = len(shares), len(shares) * (len(pipes) + 1)
    starts, ends = [np.full(tokens, last)], [np.arange(tokens) + tokens * len(pipes)]
    for number, each in enumerate(pipes):
        above, below = np.indices(each.shape).reshape(2, -1)
        starts.append(above + tokens * (number + 1))
        ends.append(below + tokens * number)
    widths = np.concatenate([shares, *(each.ravel() for each in pipes)])
    capacities = np.rint(UNITS * widths).astype(np.int32)
    network = csr_array((capacities, (np.concatenate(starts), np.concatenate(ends))), shape=(last + 1, last + 1))
    network.eliminate_zeros()
    return [maximum_flow(network, last, sink).flow_value / UNITS for sink in sinks]

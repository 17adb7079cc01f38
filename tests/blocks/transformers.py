"""Attention of vision transformers: oracles, settings and mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from tests.blocks.case import Case
from tests.blocks.parts import Array, Oracle, array, bias, linear, matrix, norm
from tests.reference.blocks import (
    aft,
    agent,
    bra,
    cas,
    cga,
    deformable,
    dilated,
    emsa,
    generalized,
    hilo,
    irmb,
    outlook,
    perceiver,
    shsa,
)


def kernels(conv: nn.Conv2d) -> Array:
    """A depthwise convolution's weight as (C, k, k)."""
    return array(conv.weight)[:, 0]


def depthwise(conv: nn.Conv2d) -> tuple[Array, Array | None]:
    return kernels(conv), bias(conv)


def affine(layer: nn.Module) -> tuple[Array, Array]:
    """Weight and bias of a norm or a linear layer."""
    return array(layer.weight), array(layer.bias)


def dense(windows: Array, of_window: list[list[int]], pixels: int) -> Array:
    """(B, windows, heads, n, n) -> (B, heads, N, N): a token whose place is -1 is padding."""
    batch, _, heads = windows.shape[:3]
    full = np.zeros((batch, heads, pixels, pixels))
    for window, inside in enumerate(of_window):
        for i, row in enumerate(inside):
            for j, column in enumerate(inside):
                if min(row, column) >= 0:
                    full[:, :, row, column] += windows[:, window, :, i, j]
    return full


def place(y: int, x: int, height: int, width: int) -> int:
    return y * width + x if y < height and x < width else -1


def tiled(height: int, width: int, down: int, across: int) -> list[list[int]]:
    """The places of every tile of a map, filled up with padding, in row order."""
    return [
        [place(top + y, left + x, height, width) for y in range(down) for x in range(across)]
        for top in range(0, height, down)
        for left in range(0, width, across)
    ]


def strided(height: int, width: int, size: int) -> list[list[int]]:
    """The places of every group of far-apart pixels."""
    rows, columns = -(-height // size), -(-width // size)
    return [
        [place(y * rows + top, x * columns + left, height, width) for y in range(size) for x in range(size)]
        for top in range(rows)
        for left in range(columns)
    ]


def outlook_output(m: nn.Module, x: Array) -> Array:
    parts = (*linear(m.value), *linear(m.energies), *linear(m.out))
    return outlook.outlook(x, *parts, m.heads, m.kernel_size, m.stride)


def aft_parts(m: nn.Module) -> tuple[list[Array], list[Array], tuple[Array, ...]]:
    ends = [m.channels, m.channels + m.heads]
    position = array(m.position), array(m.gamma), array(m.beta)
    return np.split(matrix(m.qkv), ends), np.split(array(m.qkv.bias), ends), position


def aft_output(m: nn.Module, x: Array) -> Array:
    (wq, wk, wv), (bq, bk, bv), position = aft_parts(m)
    return aft.aft_conv(x, wq, bq, wk, bk, wv, bv, *linear(m.out), *position)


def aft_weights(m: nn.Module, x: Array) -> Array:
    (_, wk, _), (_, bk, _), position = aft_parts(m)
    return aft.aft_weights(x, wk, bk, *position).mean(1, keepdims=True)


def emsa_parts(m: nn.Module) -> tuple[Any, ...]:
    reduce = None if m.reduce is None else (*depthwise(m.reduce), *affine(m.norm))
    mixing = (None, None) if m.mixing is None else linear(m.mixing)
    return (*linear(m.query), *linear(m.key_value), reduce, *mixing)


def bra_output(m: nn.Module, x: Array) -> Array:
    return bra.routing(x, *linear(m.qkv), *depthwise(m.local), *linear(m.out), m.heads, m.regions, m.topk)


def key_value(conv: nn.Conv2d) -> tuple[Any, ...]:
    (wk, wv), (bk, bv) = np.split(matrix(conv), 2), np.split(array(conv.bias), 2)
    return wk, bk, wv, bv


def moves(m: nn.Module) -> dict[str, Any]:
    offset = (*depthwise(m.offset.conv), *affine(m.offset.norm), matrix(m.offset.out))
    rest = {"groups": m.groups, "factor": m.reach, "stride": m.offset.conv.stride[0]}
    return {"offset": offset, "table": array(m.position), **rest}


def deformable_output(m: nn.Module, x: Array) -> Array:
    return deformable.deformable(x, *linear(m.query), *key_value(m.key_value), *linear(m.out), **moves(m))


def deformable_weights(m: nn.Module, x: Array) -> Array:
    return deformable.deformable_weights(x, *linear(m.query), *key_value(m.key_value)[:2], **moves(m))


def cascade(m: nn.Module) -> list[Any]:
    return [(matrix(h.qkv), norm(h.bn), kernels(h.depthwise), norm(h.bn_query), array(h.position)) for h in m.cascade]


def cga_weights(m: nn.Module, x: Array) -> Array:
    height, width = x.shape[2:]
    size = (height, width) if max(height, width) <= m.window else (m.window, m.window)
    return dense(cga.cascaded_weights(x, cascade(m)), tiled(height, width, *size), height * width)


def cas_parts(m: nn.Module) -> tuple[Any, ...]:
    contexts = [
        (*depthwise(c.depthwise), norm(c.bn), matrix(c.place), matrix(c.channel))
        for c in (m.query_context, m.key_context)
    ]
    return (matrix(m.qkv), *contexts, *depthwise(m.mixing))


def irmb_parts(m: nn.Module) -> tuple[Any, ...]:
    return (*affine(m.norm), *linear(m.query_key))


def irmb_output(m: nn.Module, x: Array) -> Array:
    rest = (*linear(m.value), kernels(m.local), norm(m.bn), matrix(m.out))
    return irmb.irmb(x, *irmb_parts(m), *rest, m.heads, m.window)


def irmb_weights(m: nn.Module, x: Array) -> Array:
    height, width = x.shape[2:]
    windows = irmb.irmb_weights(x, *irmb_parts(m), m.heads, m.window)
    return dense(windows, strided(height, width, m.window), height * width)


def dilated_parts(m: nn.Module) -> dict[str, Any]:
    return {"heads": m.heads, "dilations": m.dilations, "kernel": m.kernel_size}


def dilated_weights(m: nn.Module, x: Array) -> Array:
    height, width = x.shape[2:]
    near = dilated.dilated_weights(x, *linear(m.qkv), **dilated_parts(m))
    full = np.zeros((*near.shape[:2], height * width, height * width))
    reach = m.kernel_size // 2
    for head in range(m.heads):
        step = m.dilations[head * len(m.dilations) // m.heads]
        for i in range(height * width):
            for tap in range(m.kernel_size**2):
                y = i // width + step * (tap // m.kernel_size - reach)
                x_ = i % width + step * (tap % m.kernel_size - reach)
                if 0 <= y < height and 0 <= x_ < width:
                    full[:, head, i, y * width + x_] += near[:, head, i, tap]
    return full


def halves(m: nn.Module) -> tuple[Any, Any]:
    high = None if m.high is None else (*linear(m.high.qkv), *linear(m.high.out))
    low = None if m.low is None else (*linear(m.low.query), *linear(m.low.key_value), *linear(m.low.out))
    return high, low


def hilo_weights(m: nn.Module, x: Array) -> Array:
    (high, low), size, d = halves(m), m.window, x.shape[1] // m.heads
    height, width = x.shape[2:]
    full = np.pad(x, ((0, 0), (0, 0), (0, -height % size), (0, -width % size)))
    of_tile = tiled(height, width, size, size)
    found = []
    if high is not None:
        found.append(dense(hilo.hifi(full, high, d, size)[0], of_tile, height * width))
    if low is not None:
        weights = hilo.lofi(full, low, d, size)[0]
        shared = np.zeros((*weights.shape[:2], height * width, height * width))
        for i in range(height * width):
            row = i // width * full.shape[3] + i % width
            for key, inside in enumerate(of_tile):
                for j in inside:
                    if j >= 0:
                        shared[:, :, i, j] = weights[:, :, row, key] / size**2
        found.append(shared)
    return np.concatenate(found, axis=1)


def agent_parts(m: nn.Module) -> dict[str, Any]:
    tables = [array(table[name]) for table in (m.gather, m.hand_out) for name in ("coarse", "rows", "columns")]
    (wq, bq), (wkv, bkv) = linear(m.query), linear(m.key_value)
    return {"wq": wq, "bq": bq, "wkv": wkv, "bkv": bkv, "tables": tuple(tables), "heads": m.heads}


def agent_output(m: nn.Module, x: Array) -> Array:
    (wd, bd), (wp, bp) = depthwise(m.local), linear(m.out)
    return agent.agent(x, wd=wd, bd=bd, wp=wp, bp=bp, **agent_parts(m))


def agent_weights(m: nn.Module, x: Array) -> Array:
    gathered, handed_out = agent.agent_weights(x, **agent_parts(m))
    return handed_out @ gathered


def shsa_parts(m: nn.Module) -> tuple[Any, ...]:
    return (*affine(m.norm), matrix(m.qkv), norm(m.bn_qkv))


def generalized_parts(m: nn.Module) -> dict[str, Any]:
    """Of terms that are not used there are no weights; any will do."""
    width, channels = m.out.in_channels, m.out.out_channels
    none, nothing = np.zeros((width, channels)), np.zeros(width)
    return {
        "wq": none if m.query is None else matrix(m.query),
        "wk": none if m.key is None else matrix(m.key),
        "wx": none[:, : channels // 2] if m.across is None else array(m.across.weight),
        "wy": none[:, : channels // 2] if m.down is None else array(m.down.weight),
        "u": nothing if m.content is None else array(m.content),
        "w": nothing if m.place is None else array(m.place),
        "heads": m.heads,
        "stride": m.subsample,
        "terms": (m.by_query, m.where_by_query, m.by_content, m.where),
    }


def generalized_output(m: nn.Module, x: Array) -> Array:
    wp, bp = linear(m.out)
    rest = {"wv": matrix(m.value), "wp": wp, "bp": bp, "gamma": array(m.gamma).item()}
    return generalized.generalized(x, **rest, **generalized_parts(m))


def cross(c: nn.Module) -> tuple[Any, ...]:
    (wk, wv), (bk, bv) = (np.split(each, 2) for each in affine(c.key_value))
    attend = (affine(c.norm_query), affine(c.norm_key), *affine(c.query), wk, bk, wv, bv, *affine(c.out))
    return (*attend, affine(c.norm), *affine(c.fc1), *affine(c.fc2))


def perceiver_parts(m: nn.Module) -> tuple[Any, ...]:
    return array(m.latents), cross(m.read), cross(m.write), m.heads


def perceiver_weights(m: nn.Module, x: Array) -> Array:
    read, written = perceiver.perceiver_weights(x, *perceiver_parts(m))
    return written @ read


OUTPUT: dict[str, Oracle] = {
    "outlook": outlook_output,
    "aft": aft_output,
    "emsa": lambda m, x: emsa.emsa(x, *emsa_parts(m), *linear(m.out), m.heads),
    "bra": bra_output,
    "deformable": deformable_output,
    "cga": lambda m, x: cga.cascaded(x, cascade(m), matrix(m.out), norm(m.bn)),
    "cas": lambda m, x: cas.additive(x, *cas_parts(m), *depthwise(m.out)),
    "irmb": irmb_output,
    "dilated": lambda m, x: dilated.dilated(x, *linear(m.qkv), *linear(m.out), **dilated_parts(m)),
    "hilo": lambda m, x: hilo.hilo(x, *halves(m), m.heads, m.window),
    "agent": agent_output,
    "shsa": lambda m, x: shsa.single_head(x, *shsa_parts(m), matrix(m.out), norm(m.bn)),
    "generalized": generalized_output,
    "perceiver": lambda m, x: perceiver.perceiver(x, *perceiver_parts(m)),
}

WEIGHTS: dict[str, Oracle] = {
    "outlook": lambda m, x: outlook.outlook_matrix(x, *linear(m.energies), m.heads, m.kernel_size, m.stride),
    "aft": aft_weights,
    "emsa": lambda m, x: emsa.emsa_weights(x, *emsa_parts(m), m.heads),
    "bra": lambda m, x: bra.routing_weights(x, *linear(m.qkv), m.heads, m.regions, m.topk),
    "deformable": deformable_weights,
    "cga": cga_weights,
    "cas": lambda m, x: cas.additive_map(x, *cas_parts(m)),
    "irmb": irmb_weights,
    "dilated": dilated_weights,
    "hilo": hilo_weights,
    "agent": agent_weights,
    "shsa": lambda m, x: shsa.single_head_weights(x, *shsa_parts(m)),
    "generalized": lambda m, x: generalized.generalized_weights(x, **generalized_parts(m)),
    "perceiver": perceiver_weights,
}

SMALL = ((1, 1), (7, 5))

VARIANTS = [
    Case("outlook", {"heads": 4, "kernel_size": 5, "stride": 1}, sizes=SMALL),
    Case("outlook", {"heads": 2, "stride": 3}, sizes=((8, 5),)),
    Case("aft", {"heads": 4, "kernel_size": 3}, sizes=SMALL),
    Case("emsa", {"heads": 1, "subsample": 1}, sizes=SMALL),
    Case("emsa", {"heads": 2, "subsample": 4}, sizes=SMALL),
    Case("bra", {"heads": 4, "regions": 3, "topk": 2, "kernel_size": 3}, sizes=((7, 5), (9, 6))),
    Case("bra", {"regions": 1, "topk": 1}, sizes=SMALL),
    Case("deformable", {"heads": 4, "groups": 2, "kernel_size": 3, "reach": 3.0, "size": 7}, sizes=SMALL),
    Case("deformable", {"heads": 2, "stride": 2}, sizes=SMALL),
    Case("cga", {"heads": 2, "key_dim": 4, "kernel_size": (7, 3), "window": 4}, sizes=SMALL),
    Case("irmb", {"heads": 2, "expansion": 1.5, "kernel_size": 3, "window": 3}, sizes=SMALL),
    Case("dilated", {"dilations": (1, 2, 3)}, channels=24, sizes=SMALL),
    Case("dilated", {"heads": 8, "dilations": (1, 3), "kernel_size": 5}, sizes=SMALL),
    Case("hilo", {"heads": 8, "alpha": 0.5, "window": 3}, sizes=SMALL),
    Case("hilo", {"alpha": 0.0}, sizes=SMALL),
    Case("hilo", {"heads": 4, "window": 1}, sizes=SMALL),
    Case("agent", {"heads": 2, "agents": 9, "size": 5}, sizes=SMALL),
    Case("shsa", {"attending": 16, "key_dim": 4}, sizes=SMALL),
    *(Case("generalized", {"terms": terms, "heads": 3}, sizes=SMALL) for terms in ("1000", "0100", "0010", "0001")),
    Case("generalized", {"terms": "1100", "subsample": 1}, sizes=SMALL),
    Case("generalized", {"terms": "0111", "subsample": 3}, sizes=SMALL),
    Case("perceiver", {"latents": 5, "latent_dim": 8, "heads": 4}, sizes=SMALL),
]

# block, options, line as it is, line with the mistake
MUTATIONS = [
    ("outlook", {}, "averages(x, self.stride)", "x[:, :, :: self.stride, :: self.stride]"),
    ("outlook", {}, "energies.transpose(1, 2) * self.scale", "energies.transpose(1, 2)"),
    ("aft", {}, "torch.expm1(self._kernels())", "self._kernels().exp()"),
    ("aft", {}, "torch.sigmoid(query)", "query"),
    ("emsa", {}, "(context * torch.rsqrt(variance.mean(2, keepdim=True) + 1e-5))", "context"),
    ("emsa", {}, "self._weights(query, key) - 1 / key.shape[2]", "self._weights(query, key)"),
    ("emsa", {}, "F.conv2d(energies, precise(", "F.conv2d(energies, 0 * precise("),
    ("bra", {"heads": 4}, "self.scale = channels**-0.5", "self.scale = (channels // self.heads) ** -0.5"),
    ("bra", {}, "dot(query, key).topk", "dot(key, query).topk"),
    ("deformable", {}, "align_corners=True", "align_corners=False"),
    ("deformable", {}, "points.flip(-1)", "points"),
    ("cga", {}, "share + y", "share"),
    ("cga", {}, "self.bn(self.out(F.relu(heads)))", "self.bn(self.out(heads))"),
    ("cas", {}, "self.query_context(query) + self", "self.query_context(query) * self"),
    ("cas", {}, "self.key_context(key))", "self.query_context(key))"),
    ("irmb", {}, "cut.permute(0, 3, 5, 1, 2, 4).flatten(0, 2)",
     "x.unflatten(3, (-1, size)).unflatten(2, (-1, size)).permute(0, 2, 4, 1, 3, 5).flatten(0, 2)"),
    ("irmb", {}, "F.silu(", "F.relu("),
    ("dilated", {}, "dilation * (self.kernel_size // 2)", "(dilation := 1) * (self.kernel_size // 2)"),
    ("dilated", {}, "energies * self.scale", "energies"),
    ("hilo", {}, "(self.high, self.low)", "(self.low, self.high)"),
    ("hilo", {}, "padded(x, self.window, self.window)", "padded(x, self.window, self.window, value=1)"),
    ("agent", {}, " + self.local(value_map)", ""),
    ("agent", {}, 'mode="bilinear"', 'mode="bilinear", align_corners=True'),
    ("shsa", {}, "F.relu(torch.cat([found, rest], dim=1))", "torch.cat([F.relu(found), rest], dim=1)"),
    ("shsa", {}, "GroupNorm(1, width", "GroupNorm(width, width"),
    ("generalized", {}, "query + vector.to(query.dtype)", "query"),
    ("generalized", {}, "place[:, None] - place", "-place[:, None] + place"),
    ("generalized", {}, "[angle.sin(), angle.cos()]", "[angle.cos(), angle.sin()]"),
    ("perceiver", {}, ', approximate="tanh"', ""),
    ("perceiver", {}, "t = tokens + self.out", "t = self.out"),
]  # fmt: skip

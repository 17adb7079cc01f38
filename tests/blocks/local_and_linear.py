"""Local self-attention and attention of linear cost: oracles, settings and mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from tests.blocks.case import Case
from tests.blocks.parts import Array, Oracle, array, bias, dense, linear, matrix, norm, thirds
from tests.reference.blocks import (
    acmix,
    aug,
    axial,
    cot,
    criss_cross,
    efficient,
    external,
    focused_linear,
    halo,
    lambda_,
    linear_,
    mhsa,
    performer,
    sasa,
)
from tests.reference.blocks._ops import average_pool
from tests.reference.blocks._ops_2 import bilinear
from tests.reference.blocks._ops_heads import average_pool_whole

Corner = Callable[[int, int], tuple[int, int]]


def bounced(position: int, length: int) -> int:
    """Where a position is after reflection at the first and the last pixel."""
    while length > 1 and not 0 <= position < length:
        position = -position if position < 0 else 2 * (length - 1) - position
    return position if length > 1 else 0


def on_the_map(weights: Array, x: Array, corner: Corner, *, stride: int = 1, reflect: bool = False) -> Array:
    """Weights of the slots of windows (B, heads, N', side²) as weights of pixels, (B, heads, N', N)."""
    height, width = x.shape[2:]
    side = int(weights.shape[-1] ** 0.5)
    dense = np.zeros((*weights.shape[:3], height * width))
    queries = [(y, x) for y in range(0, height, stride) for x in range(0, width, stride)]
    for number, query in enumerate(queries):
        top, left = corner(*query)
        for slot in range(side**2):
            row, column = top + slot // side, left + slot % side
            if reflect:
                row, column = bounced(row, height), bounced(column, width)
            if 0 <= row < height and 0 <= column < width:
                dense[:, :, number, row * width + column] += weights[:, :, number, slot]
    return dense


def around(size: int) -> Corner:
    return lambda y, x: (y - size // 2, x - size // 2)


def pooled(x: Array, stride: int) -> Array:
    """3x3 averages in which the zeros around the map count."""
    return x if stride == 1 else average_pool(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), 3, stride, 0)


def sasa_parts(m: nn.Module) -> tuple[Any, ...]:
    return (*(w for w, _ in thirds(m.qkv)), array(m.rel_h), array(m.rel_w), m.heads)


def halo_parts(m: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]]:
    t = m.tiling
    return sasa_parts(m), {"block": t.tile, "halo": t.halo, "stride": t.stride, "scale": m.head_dim**-0.5}


def halo_output(m: nn.Module, x: Array) -> Array:
    parts, options = halo_parts(m)
    return halo.halo(x, *parts, **options)


def halo_weights(m: nn.Module, x: Array) -> Array:
    (parts, options), t = halo_parts(m), m.tiling
    weights = halo.halo_weights(x, *parts, **options)
    weights = weights.reshape(*weights.shape[:2], -1, weights.shape[-1])
    return on_the_map(
        weights, x, lambda y, x: (y // t.tile * t.tile - t.halo, x // t.tile * t.tile - t.halo), stride=t.stride
    )


def acmix_parts(m: nn.Module) -> tuple[Any, dict[str, Any]]:
    kernel = 2 * m.tiling.halo + 1
    return thirds(m.qkv), {"heads": m.heads, "kernel": kernel, "stride": m.tiling.stride}


def acmix_output(m: nn.Module, x: Array) -> Array:
    qkv, options = acmix_parts(m)
    return acmix.acmix(x, *qkv, linear(m.position), matrix(m.mix), array(m.shift.weight), array(m.rates), **options)


def acmix_weights(m: nn.Module, x: Array) -> Array:
    (q, k, _), options = acmix_parts(m)
    weights = acmix.acmix_weights(x, q, k, linear(m.position), **options)
    return on_the_map(weights, x, around(options["kernel"]), stride=options["stride"], reflect=True)


def cot_weights_of(m: nn.Module) -> dict[str, Any]:
    return {
        "key": np.concatenate([np.split(rows, 4, 1)[i] for i, rows in enumerate(np.split(dense(m.static[0]), 4))]),
        "bn_key": norm(m.static[1]),
        "first": matrix(m.theta),
        "bn_first": norm(m.bn_theta),
        "second": linear(m.delta),
        "gn": (array(m.norm.weight), array(m.norm.bias)),
        "value": matrix(m.value[0]),
        "bn_value": norm(m.value[1]),
        "bn_local": norm(m.bn_dynamic),
        "down": linear(m.fc1),
        "bn_down": norm(m.bn),
        "up": linear(m.fc2),
    }


def cot_weights(m: nn.Module, x: Array) -> Array:
    x = pooled(x, m.stride)
    return on_the_map(cot.contextual_transformer_weights(x, cot_weights_of(m)), x, around(m.kernel_size))


def lambda_parts(m: nn.Module) -> tuple[Any, ...]:
    return matrix(m.query), norm(m.bn_query), matrix(m.key)


def lambda_output(m: nn.Module, x: Array) -> Array:
    value, e = (matrix(m.value), norm(m.bn_value)), array(m.embedding.weight)[:, 0]
    return average_pool_whole(lambda_.lambda_layer(x, *lambda_parts(m), *value, e, m.heads), m.stride)


def aug_parts(m: nn.Module, x: Array) -> dict[str, Any]:
    keys = m.heads * m.key_dim
    w, b = linear(m.kqv)
    k, q, v = zip(np.split(w, [keys, 2 * keys]), np.split(b, [keys, 2 * keys]), strict=True)
    return {
        "q": q,
        "k": k,
        "v": v,
        "rel_h": mhsa.resample_offsets(array(m.rel_h), x.shape[2]),
        "rel_w": mhsa.resample_offsets(array(m.rel_w), x.shape[3]),
        "heads": m.heads,
    }


def aug_output(m: nn.Module, x: Array) -> Array:
    def run(x: Array) -> Array:
        conv, out = (dense(m.conv), bias(m.conv)), linear(m.out)
        return aug.augmented_convolution(x, conv=conv, out=out, **aug_parts(m, x))

    own, s = m.conv.out_channels, m.stride
    return np.concatenate([run(x)[:, :own, ::s, ::s], run(pooled(x, s))[:, own:]], axis=1)


def aug_weights(m: nn.Module, x: Array) -> Array:
    x = pooled(x, m.stride)
    parts = aug_parts(m, x)
    del parts["v"]
    return aug.augmented_convolution_weights(x, **parts)


def axial_layer(m: nn.Module, length: int) -> dict[str, Any]:
    tables = {name: array(getattr(m, f"rel_{name[1]}")) for name in ("rq", "rk", "rv")}
    if 2 * length - 1 > len(tables["rq"]):
        tables = {name: mhsa.resample_offsets(table, length) for name, table in tables.items()}
    return {
        "w": matrix(m.qkv),
        "bn_qkv": norm(m.bn_qkv),
        "bn_similarity": norm(m.bn_energies),
        "bn_output": norm(m.bn_out),
        **{name: table.T for name, table in tables.items()},
    }


def axial_parts(m: nn.Module, x: Array) -> tuple[Any, ...]:
    return x, axial_layer(m.height, x.shape[2]), axial_layer(m.width, x.shape[3]), m.height.heads


def axial_weights(m: nn.Module, x: Array) -> Array:
    columns, rows = (each.mean(2) for each in axial.axial_weights(*axial_parts(m, x)))  # (B, W, H, H), (B, H, W, W)
    height, width = x.shape[2:]
    both = np.zeros((len(x), height, width, height, width))
    for r, c, s, d in np.ndindex(height, width, height, width):
        both[:, r, c, s, d] = rows[:, r, c, d] * columns[:, d, r, s]
    return both.reshape(len(x), 1, height * width, height * width)


def criss_cross_parts(m: nn.Module) -> tuple[Any, ...]:
    return linear(m.query), linear(m.key), linear(m.value), array(m.gamma)[0]


def projections(m: nn.Module) -> tuple[Any, ...]:
    return linear(m.query), linear(m.key), linear(m.value), linear(m.out)


def efficient_parts(m: nn.Module) -> tuple[Any, ...]:
    query, *others = projections(m)
    return (others[0], query, *others[1:], m.heads)


def external_parts(m: nn.Module) -> tuple[Any, ...]:
    return linear(m.query), array(m.memory_key), array(m.memory_value).T, matrix(m.out), norm(m.bn)


def performer_parts(m: nn.Module) -> tuple[Any, ...]:
    return (*projections(m), array(m.projection), m.heads)


def focused_parts(m: nn.Module, x: Array) -> tuple[Any, ...]:
    position = bilinear(array(m.position)[None], *x.shape[2:]).reshape(x.shape[1], -1)
    return x, *projections(m), array(m.scale), position, (array(m.local.weight)[:, 0], bias(m.local)), m.heads


OUTPUT: dict[str, Oracle] = {
    "sasa": lambda m, x: sasa.stand_alone(x, *sasa_parts(m), stride=m.stride),
    "halo": halo_output,
    "acmix": acmix_output,
    "cot": lambda m, x: cot.contextual_transformer(pooled(x, m.stride), cot_weights_of(m)),
    "lambda": lambda_output,
    "aug": aug_output,
    "axial": lambda m, x: axial.axial(*axial_parts(m, x)),
    "criss_cross": lambda m, x: criss_cross.criss_cross(x, *criss_cross_parts(m), recurrence=m.recurrence),
    "efficient": lambda m, x: efficient.efficient_attention(x, *efficient_parts(m)),
    "linear": lambda m, x: linear_.linear_attention(x, *projections(m), m.heads),
    "performer": lambda m, x: performer.performer(x, *performer_parts(m)),
    "focused_linear": lambda m, x: focused_linear.focused_linear(*focused_parts(m, x), p=m.power),
    "external": lambda m, x: external.external_attention(x, *external_parts(m)),
}

WEIGHTS: dict[str, Oracle] = {
    "sasa": lambda m, x: on_the_map(sasa.stand_alone_weights(x, *sasa_parts(m)), x, around(m.tiling.tile)),
    "halo": halo_weights,
    "acmix": acmix_weights,
    "cot": cot_weights,
    "lambda": lambda m, x: lambda_.lambda_layer_weights(x, *lambda_parts(m), array(m.embedding.weight)[:, 0], m.heads),
    "aug": aug_weights,
    "axial": axial_weights,
    "criss_cross": lambda m, x: criss_cross.criss_cross_weights(x, *criss_cross_parts(m), recurrence=m.recurrence),
    "efficient": lambda m, x: efficient.efficient_attention_weights(x, *efficient_parts(m)),
    "linear": lambda m, x: linear_.linear_attention_weights(x, *projections(m), m.heads),
    "performer": lambda m, x: performer.performer_weights(x, *performer_parts(m)),
    "focused_linear": lambda m, x: focused_linear.focused_linear_weights(*focused_parts(m, x), p=m.power),
    "external": lambda m, x: external.external_attention_weights(x, *external_parts(m)),
}

ELSEWHERE = {"out_channels": 24, "stride": 2}  # in the place of a convolution

VARIANTS = [
    Case("sasa", {"kernel_size": 3, "heads": 2}),
    Case("sasa", ELSEWHERE, sizes=((8, 6),)),
    Case("halo", {"block": 4, "halo": 1, "heads": 2}),
    Case("halo", {"block": 3, "halo": 0}),
    Case("halo", {**ELSEWHERE, "block": 4}),
    Case("acmix", {"kernel_size": 3, "heads": 2}),
    Case("acmix", ELSEWHERE),
    Case("acmix", {"stride": 3}),
    Case("cot", {"kernel_size": 5}),
    Case("cot", {"stride": 2}),
    Case("cot", ELSEWHERE),
    Case("cot", {"kernel_size": 3}, channels=36),
    Case("lambda", {"key_channels": 3, "kernel_size": 5, "heads": 2}),
    Case("lambda", ELSEWHERE, sizes=((8, 6),)),
    Case("aug", {"heads": 2, "kernel_size": 5, "size": 7}),
    Case("aug", {"key_ratio": 4.0, "value_ratio": 0.5, "heads": 4}),
    Case("aug", ELSEWHERE),
    *(
        Case(name, {**ELSEWHERE, "groups": 4}, sizes=((8, 6),))
        for name in ("sasa", "halo", "acmix", "cot", "lambda", "aug")
    ),
    *(Case(name, {"heads": 4, "groups": 2}, sizes=((7, 5),)) for name in ("sasa", "halo", "acmix", "lambda", "aug")),
    *(Case("cot", {"groups": groups}, sizes=((7, 5),)) for groups in (2, 8)),
    Case("halo", {"heads": 2, "groups": 16}, sizes=((7, 5),)),  # of one channel
    Case("axial", {"heads": 2, "size": 7}),
    Case("criss_cross", {"recurrence": 1}),
    Case("criss_cross", {"recurrence": 3, "rd_ratio": 1 / 4}),
    Case("efficient", {"heads": 4, "rd_ratio": 1.0}),
    Case("linear", {"heads": 2}),
    Case("performer", {"heads": 2, "features": 11}),
    Case("focused_linear", {"heads": 2, "power": 2, "kernel_size": 3, "size": 7}),
    Case("external", {"slots": 5}),
]

# block, options, line as it is, line with the mistake
MUTATIONS = [
    ("sasa", {}, "value, scale=1.0", "value, scale=value.shape[3] ** -0.5"),
    ("sasa", {}, "rel_w[index]", "rel_h[index]"),
    ("sasa", {}, "mask=tiling.nearby(qkv.device)", "mask=None"),
    ("halo", {}, "scale=rel_h.shape[1] ** -0.5", "scale=1.0"),
    ("halo", {}, "keys - queries[:, None]", "queries[:, None] - keys"),
    ("halo", {"stride": 2}, "torch.arange(0, self.tile, self.stride,", "torch.arange(self.tile // self.stride,"),
    ("acmix", {}, "reflected(each, tiling.halo)", "torch.nn.functional.pad(each, [tiling.halo] * 4)"),
    ("acmix", {}, "torch.stack(torch.meshgrid(across, down", "torch.stack(torch.meshgrid(-across, down"),
    ("acmix", {}, "transpose(1, 2).flatten(1, 2)  # (B, d·9, N)", "flatten(1, 2)"),
    ("cot", {}, "(-1, self.planes))", "(self.planes, -1)).transpose(1, 2)"),
    ("cot", {}, "mix([dynamic, static]", "mix([static, dynamic]"),
    ("cot", {}, "unflatten(1, (-1, 2)), dim=2)", "unflatten(1, (2, -1)), dim=1).transpose(1, 2)"),
    ("cot", {}, "self.norm(self.delta(hidden))", "F.softmax(self.norm(self.delta(hidden)), dim=1)"),
    ("lambda", {}, "F.softmax(self.key(x).flatten(2), dim=-1)", "F.softmax(self.key(x).flatten(2), dim=1)"),
    ("lambda", {}, "self.bn_query(self.query(x).flatten(2))", "self.query(x).flatten(2)"),
    ("aug", {}, "torch.cat([self.conv(x), attended]", "torch.cat([attended, self.conv(x)]"),
    ("aug", {}, "key, query, value = (", "query, key, value = ("),
    ("aug", {}, "resample_offsets(rel_h, height)", "resample_offsets(rel_w, height)"),
    ("axial", {}, "self.width(self.height(x).mT).mT", "self.height(self.width(x.mT).mT)"),
    ("axial", {}, '"shpd,opd->shop", key', '"shod,opd->shop", key'),
    ("axial", {}, "permute(0, 2, 4, 5, 3, 1)", "permute(0, 5, 2, 4, 3, 1)"),
    ("criss_cross", {}, "in_column.masked_fill(itself, -torch.inf)", "in_column"),
    ("criss_cross", {}, "for _ in range(self.recurrence):", "for _ in range(1):"),
    ("efficient", {}, "F.softmax(query, dim=-1), F.softmax(key, dim=-2)", "F.softmax(query, -2), F.softmax(key, -1)"),
    ("efficient", {}, "return x + self.out(", "return self.out("),
    ("linear", {}, "torch.exp(t.clamp(max=0)) + F.relu(t)", "F.relu(t) + 1"),
    ("linear", {}, "key.sum(-2, keepdim=True).mT + eps", "key.mean(-2, keepdim=True).mT + eps"),
    ("performer", {}, "tokens.shape[-1] ** -0.25", "tokens.shape[-1] ** -0.5"),
    ("performer", {}, "on_key.amax((-2, -1), keepdim=True)", "on_key.amax(-1, keepdim=True)"),
    ("focused_linear", {}, "return EPS * pixels", "return EPS"),
    ("focused_linear", {}, "+ local.unflatten", "+ 0 * local.unflatten"),
    ("focused_linear", {}, "t.norm(dim=1, keepdim=True) / peaked", "t.amax(1, keepdim=True) / peaked"),
    ("external", {}, "F.softmax(energies, dim=-2)", "F.softmax(energies, dim=-1)"),
    ("external", {}, "F.relu(x + self.bn", "(x + self.bn"),
]  # fmt: skip

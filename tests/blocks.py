"""Which blocks and settings the tests run on, and how their weights are handed to the oracles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import visattn
from tests.reference.blocks import (
    bam,
    cbam,
    coord,
    double,
    eca,
    ese,
    fca,
    gc,
    gct,
    ge,
    hard,
    lka,
    mhsa,
    nonlocal_,
    residual,
    scse,
    se,
    simam,
    sk,
    splat,
    srm,
    triplet,
)

Array = np.ndarray


def array(x: Tensor) -> Array:
    return x.detach().numpy()


def matrix(conv: nn.Conv2d) -> Array:
    """A 1x1 convolution's weight as (out, in)."""
    return array(conv.weight)[:, :, 0, 0]


def bias(conv: nn.Conv2d) -> Array | None:
    return None if conv.bias is None else array(conv.bias)


def linear(conv: nn.Conv2d) -> tuple[Array, Array | None]:
    return matrix(conv), bias(conv)


def norm(bn: nn.BatchNorm2d) -> tuple[Array, ...]:
    return tuple(array(t) for t in (bn.weight, bn.bias, bn.running_mean, bn.running_var))


def bottleneck(m: nn.Module) -> tuple[Array | None, ...]:
    return (*linear(m.fc1), *linear(m.fc2))


def gather(m: nn.Module) -> tuple[list[Array], list[tuple[Array, ...]], bool]:
    kernels = [array(layer.weight)[:, 0] for layer in m.gather if isinstance(layer, nn.Conv2d)]
    norms = [norm(layer) for layer in m.gather if isinstance(layer, nn.BatchNorm2d)]
    return kernels, norms, m.size is not None


def ge_plus(m: nn.Module, x: Array) -> Array:
    kernels, norms, full_map = gather(m)
    return ge.ge_theta_plus(x, kernels, norms, *bottleneck(m), full_map)


def unit(m: nn.Module) -> dict[str, Any]:
    return {
        **{f"bn{i}": norm(getattr(m, f"bn{i}")) for i in (1, 2, 3)},
        "w1": matrix(m.conv1),
        "w2": array(m.conv2.weight),
        "w3": matrix(m.conv3),
    }


def residual_mask(m: nn.Module, x: Array) -> Array:
    down, skip, up = ([unit(u) for u in units] for units in (m.down, m.skip, m.up))
    head = (norm(m.head[0]), matrix(m.head[2]), norm(m.head[3]), matrix(m.head[5]))
    return residual.residual_mask(x, down, skip, up, unit(m.bottom), head)


def bam_parts(m: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    c, s = m.channel, m.spatial
    channel = {"w1": matrix(c[0]), "b1": bias(c[0]), "bn": norm(c[1]), "w2": matrix(c[3]), "b2": bias(c[3])}
    spatial = {
        "w0": matrix(s[0]),
        "b0": bias(s[0]),
        "bn0": norm(s[1]),
        "w1": array(s[3].weight),
        "b1": bias(s[3]),
        "bn1": norm(s[4]),
        "w2": array(s[6].weight),
        "b2": bias(s[6]),
        "bn2": norm(s[7]),
        "w3": matrix(s[9]),
        "b3": bias(s[9]),
    }
    return channel, spatial


def max_mean(m: nn.Module) -> tuple[Array, tuple[Array, ...]]:
    return array(m.conv.weight), norm(m.bn)


def embedded(m: nn.Module) -> tuple[Any, ...]:
    return linear(m.theta), linear(m.phi), linear(m.g), linear(m.out), norm(m.bn)


def mhsa_parts(m: nn.Module, x: Array) -> tuple[Any, ...]:
    wq, wk, wv = np.split(matrix(m.qkv), 3)
    rel_h = mhsa.resample_offsets(array(m.rel_h), x.shape[2])
    rel_w = mhsa.resample_offsets(array(m.rel_w), x.shape[3])
    return x, wq, wk, wv, rel_h, rel_w, m.heads


def sk_parts(m: nn.Module) -> tuple[Any, ...]:
    (conv3, bn3, _), (conv5, bn5, _) = m.branches
    narrow, wide = (array(conv3.weight), norm(bn3)), (array(conv5.weight), norm(bn5))
    return (*narrow, *wide, matrix(m.reduce), norm(m.bn), matrix(m.select), conv3.groups)


def splat_output(m: nn.Module, x: Array) -> Array:
    first, second = (*linear(m.fc1), norm(m.bn1)), linear(m.fc2)
    return splat.split_attention(x, array(m.conv.weight), norm(m.bn0), *first, *second, m.radix, m.groups)


def gc_parts(m: nn.Module) -> tuple[Any, ...]:
    ln = (array(m.norm.weight).ravel(), array(m.norm.bias).ravel())
    return matrix(m.key)[0], bias(m.key), *linear(m.fc1), ln, *linear(m.fc2)


def hard_parts(m: nn.Module) -> tuple[Any, ...]:
    return (*linear(m.fc1), *linear(m.fc2), m.glimpses, m.window)


def mask(attention: Any) -> Tensor:
    """What a block multiplied by; hard attention gives its probabilities as well."""
    return attention[0] if isinstance(attention, tuple) else attention


def double_parts(m: nn.Module) -> tuple[Any, ...]:
    return (*linear(m.features), *linear(m.gather), *linear(m.distribute), *linear(m.out))


Oracle = Callable[[Any, Array], Array]

OUTPUT: dict[str, Oracle] = {
    "se": lambda m, x: se.squeeze_excite(x, *bottleneck(m)),
    "ese": lambda m, x: ese.effective_squeeze_excite(x, *linear(m.fc)),
    "cse": lambda m, x: scse.channel_se(x, *bottleneck(m)),
    "sse": lambda m, x: scse.spatial_se(x, matrix(m.conv)[0], bias(m.conv)),
    "scse": lambda m, x: scse.concurrent_se(x, *bottleneck(m.channel), matrix(m.spatial.conv)[0], bias(m.spatial.conv)),
    "eca": lambda m, x: eca.efficient_channel(x, array(m.conv.weight).ravel()),
    "ge": lambda m, x: ge.ge_theta_minus(x, m.extent),
    "ge_theta": lambda m, x: ge.ge_theta(x, *gather(m)),
    "ge_theta_plus": ge_plus,
    "gc": lambda m, x: gc.global_context(x, *gc_parts(m)),
    "srm": lambda m, x: srm.style_recalibration(x, array(m.weight), norm(m.bn)),
    "fca": lambda m, x: fca.fca(x, matrix(m.fc1), matrix(m.fc2), m.size),
    "gct": lambda m, x: gct.gated_channel(x, array(m.alpha), array(m.gamma), array(m.beta)),
    "sk": lambda m, x: sk.selective_kernel(x, *sk_parts(m)),
    "splat": splat_output,
    "spatial": lambda m, x: x * cbam.spatial_gate(x, *max_mean(m.gate)),
    "cbam": lambda m, x: cbam.cbam(x, *bottleneck(m.channel), *max_mean(m.spatial.gate)),
    "residual": residual_mask,
    "lka": lambda m, x: lka.large_kernel(
        x, array(m.local.weight)[:, 0], bias(m.local), array(m.distant.weight)[:, 0], bias(m.distant), *linear(m.mix)
    ),
    "bam": lambda m, x: bam.bam(x, *bam_parts(m)),
    "coord": lambda m, x: coord.coordinate(x, *linear(m.reduce), norm(m.bn), *linear(m.row), *linear(m.column)),
    "simam": lambda m, x: simam.simam(x, m.lam),
    "triplet": lambda m, x: triplet.triplet(
        x, [max_mean(m.channel_width), max_mean(m.height_channel), max_mean(m.height_width)]
    ),
    "nonlocal": lambda m, x: nonlocal_.embedded_gaussian(x, *embedded(m), subsample=m.subsample),
    "nonlocal_gaussian": lambda m, x: nonlocal_.gaussian(
        x, linear(m.g), linear(m.out), norm(m.bn), subsample=m.subsample
    ),
    "nonlocal_dot": lambda m, x: nonlocal_.dot(x, *embedded(m), subsample=m.subsample),
    "nonlocal_concat": lambda m, x: nonlocal_.concat(x, *embedded(m), array(m.w_f), subsample=m.subsample),
    "mhsa": lambda m, x: mhsa.bottleneck_mhsa(*mhsa_parts(m, x)),
    "double": lambda m, x: double.double_attention(x, *double_parts(m)),
    **dict.fromkeys(("hard", "hard_topk"), lambda m, x: hard.hard(x, *hard_parts(m), m.fill)),
}

# What attention() returns where it is not simply output / input.
WEIGHTS: dict[str, Oracle] = {
    "gc": lambda m, x: gc.global_context_weights(x, *gc_parts(m)),
    "sk": lambda m, x: sk.selective_kernel_weights(x, *sk_parts(m))[:, 1, :, None, None],
    "nonlocal": lambda m, x: nonlocal_.embedded_gaussian_weights(x, *embedded(m), subsample=m.subsample)[:, None],
    "nonlocal_gaussian": lambda m, x: nonlocal_.gaussian_weights(x, subsample=m.subsample)[:, None],
    "nonlocal_dot": lambda m, x: nonlocal_.dot_weights(x, *embedded(m), subsample=m.subsample)[:, None],
    "nonlocal_concat": lambda m, x: nonlocal_.concat_weights(x, *embedded(m), array(m.w_f), subsample=m.subsample)[
        :, None
    ],
    "mhsa": lambda m, x: mhsa.bottleneck_mhsa_weights(*mhsa_parts(m, x)),
    "double": lambda m, x: double.double_attention_weights(x, *double_parts(m))[:, None],
    **dict.fromkeys(("hard", "hard_topk"), lambda m, x: hard.hard_mask(x, *hard_parts(m))),
}

# Blocks whose attention() is a map that the input is multiplied by.
MULTIPLIES = sorted(set(OUTPUT) - set(WEIGHTS) - {"splat"})


@dataclass(frozen=True)
class Case:
    """A block with settings, and the map sizes it can be run on."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    channels: int = 16
    sizes: tuple[tuple[int, int], ...] = ((1, 1), (7, 5), (33, 17))

    @property
    def id(self) -> str:
        return "-".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])

    def build(self, *, dtype: torch.dtype = torch.float64, factory: Callable[..., nn.Module] | None = None) -> Any:
        """The block with random weights everywhere (also where it starts with zeros), in eval mode."""
        create = factory or (lambda channels, **kw: visattn.create_block(self.name, channels, **kw))
        block = create(self.channels, dtype=dtype, **self.options)
        randomise(block)
        return block.eval()


def randomise(module: nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 2, generator=generator)
            elif name.endswith("num_batches_tracked") or name in ("rows", "columns"):
                continue
            else:
                fan_in = tensor[0].numel() if tensor.ndim > 1 else 4
                tensor.normal_(std=(2 / fan_in) ** 0.5, generator=generator)


DEFAULTS = [Case(name) for name in visattn.list_blocks()]
OF_EVERY_FAMILY = ("se", "residual", "cbam", "nonlocal", "mhsa", "hard")  # a sample
VARIANTS = [
    Case("se", {"rd_ratio": 1 / 4, "bias": False}),
    Case("eca", {"kernel_size": 5}),
    Case("ge", {"extent": 2}),
    Case("ge", {"extent": 4}),
    Case("ge_theta", {"extent": 2}),
    Case("ge_theta", {"size": (7, 5)}, sizes=((7, 5),)),
    Case("ge_theta_plus", {"size": 6}, sizes=((6, 6),)),
    Case("fca", {"size": 14}),
    Case("fca", {"rd_ratio": 1 / 2}, channels=24),
    Case("sk", {"rd_min": 8, "groups": 4}),
    Case("splat", {"radix": 1, "groups": 2}),
    Case("splat", {"radix": 2, "groups": 2}),
    Case("splat", {"radix": 4, "groups": 2}),
    Case("spatial", {"kernel_size": 3}),
    Case("residual", {"depth": 1}),
    Case("residual", {"depth": 3}),
    Case("bam", {"rd_ratio": 1 / 4}),
    Case("simam", {"lam": 0.1}),
    Case("nonlocal", {"subsample": 2}),
    Case("nonlocal_gaussian", {"subsample": 2}),
    Case("nonlocal_dot", {"subsample": 2}),
    Case("nonlocal_concat", {"subsample": 2}),
    Case("mhsa", {"heads": 2, "size": 7}),
    Case("hard", {"glimpses": 3, "window": 2, "fill": "mean"}, sizes=((7, 5), (33, 17))),
    Case("hard", {"glimpses": 1.0, "signal": "reinforce"}),
    Case("hard_topk", {"glimpses": 2, "window": 3}, sizes=((7, 5), (33, 17))),
]
CASES = DEFAULTS + VARIANTS

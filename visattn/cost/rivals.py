"""timm's blocks, built with the widths of ours, so that the same work is compared.

Each computes the same function as ours, up to the order of weights, except where ``RIVALS`` says what is not the same.
timm's convolutional gather-excite (``extra_params=True``, our ``ge_theta``) cannot be built in timm 1.0.31, which takes
``device`` and ``dtype`` for numbers there. timm's ``ela`` and ``strip`` are not our blocks of these names. Our other
blocks are not in timm.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from visattn.blocks.base import reduced
from visattn.core.arguments import at_least_one
from visattn.listing import shown
from visattn.registry import suggest

# By the name of our block: timm's class, and what is not the same in it.
RIVALS = {
    "se": ("SEModule", ""),
    "ese": ("EffectiveSEModule", ""),
    "eca": ("EcaModule", "its kernel is at least three wide, ours may be one wide"),
    "ceca": ("CecaModule", ""),
    "ecam": ("EcaModule", ""),
    "gc": ("GlobalContext", "the epsilon of its norm is 1e-6, that of ours 1e-5"),
    "cbam": ("CbamModule", ""),
    "spatial": ("SpatialAttn", ""),
    "coord": ("CoordAttn", ""),
    "ge": ("GatherExcite", ""),
    "sk": ("SelectiveKernel", ""),
    "splat": ("SplitAttn", ""),
    "nonlocal": ("NonLocalAttn", "it divides energies by the root of C, ours by that of the inner width"),
    "mhsa": ("BottleneckAttn", "its position tables fit one size of maps, ours are interpolated for others"),
    "halo": (
        "HaloAttn",
        "it takes only maps of whole blocks, 8 x 8 each, and has rows of position tables that it never reads",
    ),
    "lambda": ("LambdaLayer", "its position embedding has a bias"),
}
HALO_BLOCK = 8


def build_rival(name: str, channels: int, height: int, width: int) -> nn.Module | None:
    """timm's block for one of ours, for maps of that size; None if timm's does not take them.

    >>> from visattn.blocks import create_block
    >>> from visattn.counting import count_parameters
    >>> count_parameters(build_rival("cbam", 256, 8, 8)) == count_parameters(create_block("cbam", 256))
    True
    """
    if name not in RIVALS:
        raise ValueError(f"timm has no block like {shown(name)}: {suggest(name, RIVALS)}")
    sizes = {"channels": channels, "height": height, "width": width}
    channels, height, width = (at_least_one(what, size) for what, size in sizes.items())
    if name == "halo" and (height % HALO_BLOCK or width % HALO_BLOCK):
        return None
    from timm.layers import (
        CecaModule,
        EcaModule,
        EffectiveSEModule,
        GatherExcite,
        GlobalContext,
        NonLocalAttn,
        SelectiveKernel,
        SEModule,
        SplitAttn,
    )
    from timm.layers.bottleneck_attn import BottleneckAttn
    from timm.layers.cbam import CbamModule, SpatialAttn
    from timm.layers.coord_attn import CoordAttn
    from timm.layers.halo_attn import HaloAttn
    from timm.layers.lambda_layer import LambdaLayer

    sixteenth = reduced(channels, 1 / 16)
    build: dict[str, Callable[[], nn.Module]] = {
        "se": lambda: SEModule(channels, rd_channels=sixteenth),
        "ese": lambda: EffectiveSEModule(channels),
        "eca": lambda: EcaModule(channels),
        "ceca": lambda: CecaModule(channels),
        "ecam": lambda: EcaModule(channels, use_mlp=True),
        "gc": lambda: GlobalContext(channels, fuse_add=True, fuse_scale=False, rd_channels=sixteenth),
        "cbam": lambda: CbamModule(channels, rd_channels=sixteenth, mlp_bias=True),
        "spatial": lambda: SpatialAttn(),
        "coord": lambda: CoordAttn(channels, rd_channels=reduced(channels, 1 / 32, minimum=8), bias=True),
        "ge": lambda: GatherExcite(channels, use_mlp=False),
        "sk": lambda: SelectiveKernel(
            channels, groups=math.gcd(channels, 32), rd_channels=max(sixteenth, 32), split_input=False
        ),
        # It wants the bottleneck's width per split, of which there are two.
        "splat": lambda: SplitAttn(
            channels, rd_channels=reduced(2 * channels, 1 / 4, minimum=32) // 2, norm_layer=nn.BatchNorm2d
        ),
        "nonlocal": lambda: NonLocalAttn(channels, rd_channels=reduced(channels, 1 / 2)),
        "mhsa": lambda: BottleneckAttn(channels, feat_size=(height, width), num_heads=4, scale_pos_embed=True),
        "halo": lambda: HaloAttn(channels, block_size=HALO_BLOCK, scale_pos_embed=True),
        "lambda": lambda: LambdaLayer(channels, r=23),
    }
    return build[name]()

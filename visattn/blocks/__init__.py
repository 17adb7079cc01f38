"""Plug-in attention blocks for CNNs: every block maps (B, C, H, W) to (B, C, H, W)."""

from visattn.blocks.bam import BAM
from visattn.blocks.base import (
    FAMILIES,
    BlockInfo,
    Gate,
    block_info,
    create_block,
    list_blocks,
    register_block,
)
from visattn.blocks.cbam import CBAM
from visattn.blocks.coord import Coordinate
from visattn.blocks.double import DoubleAttention
from visattn.blocks.eca import EfficientChannel
from visattn.blocks.ese import EffectiveSqueezeExcite
from visattn.blocks.fca import FrequencyChannel
from visattn.blocks.gc import GlobalContext
from visattn.blocks.gct import GatedChannel
from visattn.blocks.ge import GatherExcite, GatherExcitePlus, GatherExciteTheta
from visattn.blocks.hard import HardAttention
from visattn.blocks.hard_topk import HardTopK
from visattn.blocks.lka import LargeKernel
from visattn.blocks.mhsa import MultiHeadSelfAttention2d
from visattn.blocks.non_local import NonLocal, NonLocalConcat, NonLocalDot, NonLocalGaussian
from visattn.blocks.residual import ResidualMask
from visattn.blocks.scse import ChannelSE, ConcurrentSE, SpatialSE
from visattn.blocks.se import SqueezeExcite
from visattn.blocks.simam import SimAM
from visattn.blocks.sk import SelectiveKernel
from visattn.blocks.spatial import SpatialAttention
from visattn.blocks.splat import SplitAttention
from visattn.blocks.srm import StyleRecalibration
from visattn.blocks.triplet import Triplet

__all__ = [
    "BAM",
    "CBAM",
    "FAMILIES",
    "BlockInfo",
    "ChannelSE",
    "ConcurrentSE",
    "Coordinate",
    "DoubleAttention",
    "EffectiveSqueezeExcite",
    "EfficientChannel",
    "FrequencyChannel",
    "Gate",
    "GatedChannel",
    "GatherExcite",
    "GatherExcitePlus",
    "GatherExciteTheta",
    "GlobalContext",
    "HardAttention",
    "HardTopK",
    "LargeKernel",
    "MultiHeadSelfAttention2d",
    "NonLocal",
    "NonLocalConcat",
    "NonLocalDot",
    "NonLocalGaussian",
    "ResidualMask",
    "SelectiveKernel",
    "SimAM",
    "SpatialAttention",
    "SpatialSE",
    "SplitAttention",
    "SqueezeExcite",
    "StyleRecalibration",
    "Triplet",
    "block_info",
    "create_block",
    "list_blocks",
    "register_block",
]

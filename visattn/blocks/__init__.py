"""Plug-in attention blocks for CNNs: every block maps (B, C, H, W) to (B, C, H, W). And a head, which gives logits."""

from visattn.blocks.acmix import ACmix
from visattn.blocks.aft import AttentionFree
from visattn.blocks.agent import Agent
from visattn.blocks.attention_gate import AttentionGate
from visattn.blocks.aug import AugmentedConvolution
from visattn.blocks.axial import Axial
from visattn.blocks.bam import BAM
from visattn.blocks.base import (
    FAMILIES,
    BlockInfo,
    Gate,
    block_info,
    create_block,
    is_imported,
    list_blocks,
    register_block,
    unusable_announcements,
)
from visattn.blocks.bra import BiLevelRouting
from visattn.blocks.caa import ContextAnchor
from visattn.blocks.cas import ConvolutionalAdditive
from visattn.blocks.cbam import CBAM
from visattn.blocks.ceca import CircularChannel
from visattn.blocks.cga import CascadedGroup
from visattn.blocks.coord import Coordinate
from visattn.blocks.cot import ContextualTransformer
from visattn.blocks.cpca import ChannelPrior
from visattn.blocks.criss_cross import CrissCross
from visattn.blocks.csra import ClassResidualHead
from visattn.blocks.danet import DualAttention
from visattn.blocks.deformable import Deformable
from visattn.blocks.deformable_lka import DeformableLargeKernel
from visattn.blocks.dilated import Dilated
from visattn.blocks.double import DoubleAttention
from visattn.blocks.eca import EfficientChannel
from visattn.blocks.ecam import EfficientChannelMLP
from visattn.blocks.efficient import EfficientAttention
from visattn.blocks.ela import EfficientLocal
from visattn.blocks.ema import EfficientMultiScale
from visattn.blocks.emsa import EfficientMultiHead
from visattn.blocks.ese import EffectiveSqueezeExcite
from visattn.blocks.external import ExternalAttention
from visattn.blocks.fca import FrequencyChannel
from visattn.blocks.fcattention import FineGrainedChannel
from visattn.blocks.focused_linear import FocusedLinearAttention
from visattn.blocks.gam import GlobalAttention
from visattn.blocks.gc import GlobalContext
from visattn.blocks.gct import GatedChannel
from visattn.blocks.gct_gaussian import GaussianContext
from visattn.blocks.ge import GatherExcite, GatherExcitePlus, GatherExciteTheta
from visattn.blocks.generalized import Generalized
from visattn.blocks.gsop import SecondOrder
from visattn.blocks.halo import HaloAttention
from visattn.blocks.hard import HardAttention
from visattn.blocks.hard_topk import HardTopK
from visattn.blocks.hilo import HiLo
from visattn.blocks.involution import Involution
from visattn.blocks.irmb import InvertedResidualAttention
from visattn.blocks.lambda_ import LambdaLayer
from visattn.blocks.lct import LinearContext
from visattn.blocks.linear import LinearAttention
from visattn.blocks.lka import LargeKernel
from visattn.blocks.lsk import LargeSelectiveKernel
from visattn.blocks.lska import SeparableLargeKernel
from visattn.blocks.mhca import MultiHeadConvolution
from visattn.blocks.mhsa import MultiHeadSelfAttention2d
from visattn.blocks.mlca import MixedLocalChannel
from visattn.blocks.msca import MultiScaleConvolution
from visattn.blocks.nam import NormalizationBased
from visattn.blocks.non_local import NonLocal, NonLocalConcat, NonLocalDot, NonLocalGaussian
from visattn.blocks.outlook import Outlook
from visattn.blocks.parnet import ParNet
from visattn.blocks.perceiver import Perceiver
from visattn.blocks.performer import Performer
from visattn.blocks.polarized import PolarizedParallel, PolarizedSequential
from visattn.blocks.psa import PyramidSplit
from visattn.blocks.residual import ResidualMask
from visattn.blocks.sasa import StandAloneSelfAttention
from visattn.blocks.scsa import SpatialChannelSynergy
from visattn.blocks.scse import ChannelSE, ConcurrentSE, SpatialSE
from visattn.blocks.se import SqueezeExcite
from visattn.blocks.sge import SpatialGroupEnhance
from visattn.blocks.shsa import SingleHead
from visattn.blocks.shuffle import ShuffleAttention
from visattn.blocks.simam import SimAM
from visattn.blocks.sk import SelectiveKernel
from visattn.blocks.spatial import SpatialAttention
from visattn.blocks.splat import SplitAttention
from visattn.blocks.srm import StyleRecalibration
from visattn.blocks.strip import StripConvolution
from visattn.blocks.triplet import Triplet

__all__ = [
    "BAM",
    "CBAM",
    "FAMILIES",
    "ACmix",
    "Agent",
    "AttentionFree",
    "AttentionGate",
    "AugmentedConvolution",
    "Axial",
    "BiLevelRouting",
    "BlockInfo",
    "CascadedGroup",
    "ChannelPrior",
    "ChannelSE",
    "CircularChannel",
    "ClassResidualHead",
    "ConcurrentSE",
    "ContextAnchor",
    "ContextualTransformer",
    "ConvolutionalAdditive",
    "Coordinate",
    "CrissCross",
    "Deformable",
    "DeformableLargeKernel",
    "Dilated",
    "DoubleAttention",
    "DualAttention",
    "EffectiveSqueezeExcite",
    "EfficientAttention",
    "EfficientChannel",
    "EfficientChannelMLP",
    "EfficientLocal",
    "EfficientMultiHead",
    "EfficientMultiScale",
    "ExternalAttention",
    "FineGrainedChannel",
    "FocusedLinearAttention",
    "FrequencyChannel",
    "Gate",
    "GatedChannel",
    "GatherExcite",
    "GatherExcitePlus",
    "GatherExciteTheta",
    "GaussianContext",
    "Generalized",
    "GlobalAttention",
    "GlobalContext",
    "HaloAttention",
    "HardAttention",
    "HardTopK",
    "HiLo",
    "InvertedResidualAttention",
    "Involution",
    "LambdaLayer",
    "LargeKernel",
    "LargeSelectiveKernel",
    "LinearAttention",
    "LinearContext",
    "MixedLocalChannel",
    "MultiHeadConvolution",
    "MultiHeadSelfAttention2d",
    "MultiScaleConvolution",
    "NonLocal",
    "NonLocalConcat",
    "NonLocalDot",
    "NonLocalGaussian",
    "NormalizationBased",
    "Outlook",
    "ParNet",
    "Perceiver",
    "Performer",
    "PolarizedParallel",
    "PolarizedSequential",
    "PyramidSplit",
    "ResidualMask",
    "SecondOrder",
    "SelectiveKernel",
    "SeparableLargeKernel",
    "ShuffleAttention",
    "SimAM",
    "SingleHead",
    "SpatialAttention",
    "SpatialChannelSynergy",
    "SpatialGroupEnhance",
    "SpatialSE",
    "SplitAttention",
    "SqueezeExcite",
    "StandAloneSelfAttention",
    "StripConvolution",
    "StyleRecalibration",
    "Triplet",
    "block_info",
    "create_block",
    "is_imported",
    "list_blocks",
    "register_block",
    "unusable_announcements",
]

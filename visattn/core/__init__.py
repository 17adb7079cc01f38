"""The unified attention model: keys, queries, values -> score -> distribution -> scope -> context."""

from visattn.core.attention import Attention
from visattn.core.coattention import AlternatingCoAttention, CoContext, ParallelCoAttention
from visattn.core.distributions import DISTRIBUTIONS, entmax15, hard, sigmoid, softmax, sparsemax
from visattn.core.forms import (
    AttentionPool,
    HierarchicalAttention,
    MultiDimensionalAttention,
    MultiHeadAttention,
)
from visattn.core.kernels import Kernel
from visattn.core.scopes import SCOPES, Scope, View
from visattn.core.scores import SCORES, DotScore, Score

__all__ = [
    "DISTRIBUTIONS",
    "SCOPES",
    "SCORES",
    "AlternatingCoAttention",
    "Attention",
    "AttentionPool",
    "CoContext",
    "DotScore",
    "HierarchicalAttention",
    "Kernel",
    "MultiDimensionalAttention",
    "MultiHeadAttention",
    "ParallelCoAttention",
    "Scope",
    "Score",
    "View",
    "entmax15",
    "hard",
    "sigmoid",
    "softmax",
    "sparsemax",
]

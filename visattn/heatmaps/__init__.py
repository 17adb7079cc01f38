"""Heatmaps: what a model looks at in an image."""

from visattn.heatmaps.capture import Maps, capture
from visattn.heatmaps.explaining import attention_heads, best_method, explain, fitting_methods, list_methods, relate
from visattn.heatmaps.explanation import Explanation
from visattn.heatmaps.methods import METHODS, register_method
from visattn.heatmaps.methods.cam import look_at
from visattn.heatmaps.methods.glimpses import HasFixations, on_mask
from visattn.heatmaps.request import MethodResult, Request
from visattn.heatmaps.watch.passes import MissedAttention

__all__ = [
    "METHODS",
    "Explanation",
    "HasFixations",
    "Maps",
    "MethodResult",
    "MissedAttention",
    "Request",
    "attention_heads",
    "best_method",
    "capture",
    "explain",
    "fitting_methods",
    "list_methods",
    "look_at",
    "on_mask",
    "register_method",
    "relate",
]

"""Model and image to heatmap."""

from visattn.heatmaps.cam import grad_cam, look_at
from visattn.heatmaps.capture import Maps, capture
from visattn.heatmaps.explanation import Explanation
from visattn.heatmaps.glimpses import HasFixations, on_mask
from visattn.heatmaps.methods import METHODS, attention_heads, explain, list_methods, relate
from visattn.heatmaps.watch.passes import Missed

__all__ = [
    "METHODS",
    "Explanation",
    "HasFixations",
    "Maps",
    "Missed",
    "attention_heads",
    "capture",
    "explain",
    "grad_cam",
    "list_methods",
    "look_at",
    "on_mask",
    "relate",
]

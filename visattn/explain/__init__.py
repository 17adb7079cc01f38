"""Model and image to heatmap."""

from visattn.explain.cam import grad_cam, look_at

__all__ = ["grad_cam", "look_at"]

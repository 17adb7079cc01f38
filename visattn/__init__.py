"""Attention for computer vision: plug-in blocks, any of them in any backbone, trained and made visible."""

from visattn.blocks import create_block, list_blocks, register_block
from visattn.examination import examine
from visattn.heatmaps import capture, explain, list_methods
from visattn.models import attach, attachments, create_model, detach, load_model, load_state_dict, save_model
from visattn.prediction import predict
from visattn.scoring import evaluate

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "attach",
    "attachments",
    "capture",
    "create_block",
    "create_model",
    "detach",
    "evaluate",
    "examine",
    "explain",
    "list_blocks",
    "list_methods",
    "load_model",
    "load_state_dict",
    "predict",
    "register_block",
    "save_model",
]

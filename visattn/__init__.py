"""Attention for computer vision: plug-in blocks for any backbone, training, and heatmaps."""

import sys
from contextlib import nullcontext

from visattn_command import leaving_at_once

as_command = sys.argv[:1] == ["-m"] and "visattn" in sys.orig_argv  # python -m visattn comes by here first
with leaving_at_once() if as_command else nullcontext():
    from visattn.blocks import create_block, list_blocks, register_block
    from visattn.examination import examine
    from visattn.heatmaps import capture, explain, list_methods, register_method
    from visattn.models import attach, attachments, create_model, detach, load_model, load_state_dict, save_model
    from visattn.prediction import predict
    from visattn.scoring import evaluate, score

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
    "register_method",
    "save_model",
    "score",
]

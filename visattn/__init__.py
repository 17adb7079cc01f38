"""Attention for computer vision: plug-in blocks for any backbone, training, and heatmaps."""

import visattn_command

__version__ = "0.1.0"

if not visattn_command.flags_first:  # a command reads its flags before it waits for torch
    from visattn.blocks import create_block, list_blocks, register_block
    from visattn.examination import examine
    from visattn.heatmaps import capture, explain, list_methods, register_method
    from visattn.models import (
        attach,
        attachments,
        create_model,
        detach,
        load_model,
        load_state_dict,
        replace,
        replacements,
        save_model,
    )
    from visattn.models.placement import places
    from visattn.prediction import predict
    from visattn.scoring import evaluate, score

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
    "places",
    "predict",
    "register_block",
    "register_method",
    "replace",
    "replacements",
    "save_model",
    "score",
]

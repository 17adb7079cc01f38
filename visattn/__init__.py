"""Attention for computer vision: plug-in blocks, any of them in any backbone, trained and made visible."""

from visattn.blocks import create_block, list_blocks, register_block
from visattn.models import attach, create_model, detach, load_model, load_state_dict

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "attach",
    "create_block",
    "create_model",
    "detach",
    "list_blocks",
    "load_model",
    "load_state_dict",
    "register_block",
]

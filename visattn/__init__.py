"""Attention for computer vision: plug-in blocks, and any of them in any backbone."""

from visattn.blocks import create_block, list_blocks, register_block
from visattn.models import attach, create_model, detach, load_state_dict

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "attach",
    "create_block",
    "create_model",
    "detach",
    "list_blocks",
    "load_state_dict",
    "register_block",
]

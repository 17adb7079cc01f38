"""Attention for computer vision: blocks, backbones, training, and pictures of what a model looks at."""

from visattn.blocks import create_block, list_blocks, register_block

__version__ = "0.1.0"

__all__ = ["__version__", "create_block", "list_blocks", "register_block"]

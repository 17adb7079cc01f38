"""Blocks in backbones: attach them to any network, replace convolutions, or create models with them by name."""

import visattn.models.timm_registry.visattn as _registered_in_timm  # noqa: F401
from visattn.models.advice import blocks_for
from visattn.models.attach import attach, detach
from visattn.models.names import attentions, create_model, split_name
from visattn.models.patch import PatchAttention
from visattn.models.replaced import replacements
from visattn.models.replacing import replace
from visattn.models.saving.saved import load_model, save_model
from visattn.models.saving.state import LoadReport, load_state_dict
from visattn.models.wrapping import attachments

__all__ = [
    "LoadReport",
    "PatchAttention",
    "attach",
    "attachments",
    "attentions",
    "blocks_for",
    "create_model",
    "detach",
    "load_model",
    "load_state_dict",
    "replace",
    "replacements",
    "save_model",
    "split_name",
]

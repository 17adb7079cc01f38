"""Blocks in backbones: attach them to any network, or create models with them by name."""

import visattn.models.visattn as _registered_in_timm  # noqa: F401
from visattn.models.attach import attach, detach
from visattn.models.checkpoints import LoadReport, load_state_dict
from visattn.models.names import attentions, create_model, split_name
from visattn.models.patch import PatchAttention

__all__ = [
    "LoadReport",
    "PatchAttention",
    "attach",
    "attentions",
    "create_model",
    "detach",
    "load_state_dict",
    "split_name",
]

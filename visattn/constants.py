"""What commands say before torch is imported, and the code after that."""

from __future__ import annotations

OF = ("logit", "log_probability", "probability")  # what of a class can be explained
ON_SHEETS = 96  # images on the comparison sheets and the page
WITH_PATCHES = 24  # images: with more, the page leaves out what patches attend to
NO_MEMORY = "DefaultCPUAllocator: "  # how torch reports that a CPU is out of memory; it has no exception type for that
TOO_EARLY = "stopped before training began: nothing to save"

# Arguments of timm.create_model that say where weights come from, not what a network is.
ORIGIN = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_strict", "checkpoint_path", "cache_dir")

"""What commands say before torch is imported, and the code after that."""

from __future__ import annotations

OF = ("logit", "log_probability", "probability")  # what of a class can be explained
ON_SHEETS = 96  # images on the comparison sheets and the page
WITH_PATCHES = 24  # images: with more, the page leaves out what patches attend to
TOO_EARLY = "stopped before training began: nothing to save"

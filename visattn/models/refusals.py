"""Why a network cannot be run on images: because of these, or because of a block in it."""

from __future__ import annotations

import traceback

from torch import Tensor

from visattn.listing import times
from visattn.models.wrapper import Attached
from visattn.modules import fixed_batch, why_refused


def refusal(x: Tensor, error: Exception) -> str:
    """Say in one line that a model does not take images, given its error; or not so many, or that a block fails."""
    if fixed := fixed_batch(error):
        return f"the model {fixed}"
    images = f"images of {times(x.shape[1:])}"
    if (block := failed_block(error)) is not None:
        return f"block {block!r} of the model fails on {images} ({why_refused(error)})"
    return f"the model does not take {images} ({why_refused(error)})"


def failed_block(error: BaseException) -> str | None:
    """The name of the attached block inside which an error was raised, or of its class; None if it was none."""
    passed = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    attached = [each for each in passed if isinstance(each, Attached)]
    failed = (each for each in reversed(attached) if any(each.block is other for other in passed))
    return next((each.name or type(each.block).__name__ for each in failed), None)

"""Check and unwrap the model, make a batch of the images, and make the batch displayable again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from visattn.heatmaps.balanced.mode import check_not_balanced
from visattn.models.refusals import refusal
from visattn.modules import (
    NOT_DENSE,
    check_default_device,
    fixed_batch,
    has_numbers,
    is_dense,
    is_of_others,
    timm_config,
    underlying,
    why_refused,
)


def inspectable(model: nn.Module) -> nn.Module:
    """The network to look into, without what compilation or training on many devices put around it."""
    check_default_device()
    check_not_balanced("heatmaps and scores")
    model = underlying(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError("a scripted or traced network cannot be looked into: give the network from before torch.jit")
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise ValueError(
            "the model was built inside torch.inference_mode(), so that nothing can be differentiated: build it outside"
        )
    return model


def as_batch(model: nn.Module, x: Tensor) -> Tensor:
    """The images as (B, C, H, W), on the model's device and of its type."""
    got = type(x).__name__
    if isinstance(x, Tensor):
        got = f"{x.dtype} {tuple(x.shape)}" if is_dense(x) else NOT_DENSE
    if not isinstance(x, Tensor) or not is_dense(x) or x.ndim not in (3, 4) or not x.is_floating_point():
        raise TypeError(f"x is an image (C, H, W) or a batch (B, C, H, W) of floating-point numbers, got {got}")
    x = x[None] if x.ndim == 3 else x
    if len(x) == 0:
        raise ValueError("x is an empty batch")
    like = next((p for p in model.parameters() if p.is_floating_point()), x)
    for name, each in (("the model", like), ("x", x)):
        if each.is_meta:
            raise ValueError(f"{name} is on the meta device, where tensors have no numbers")
        if not has_numbers(each):
            raise ValueError(f"{name} was made under FakeTensorMode, where tensors have no numbers")
    with torch.inference_mode(False):
        x = x.clone() if x.is_inference() else x.detach()
        if type(x).__torch_dispatch__ is Tensor.__torch_dispatch__:  # of another library, but nothing else than numbers
            x = x.as_subclass(Tensor)
        return x.to(like.device, like.dtype)


def displayable(model: nn.Module, images: Tensor) -> Tensor:
    """The images in [0, 1], for people: normalisation undone as far as it is known."""
    images = images.detach().float().cpu()
    config = timm_config(model)
    mean, std = config.get("mean"), config.get("std")
    known = all(isinstance(each, Sequence) and len(each) == images.shape[1] for each in (mean, std))
    if known and (images.min() < 0 or images.max() > 1):
        images = images * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    outside = (low < -0.05) | (high > 1.05)
    return images.where(~outside, (images - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)


@contextmanager
def refusals_explained(model: nn.Module, images: Tensor, advice: str = "") -> Iterator[None]:
    """If something fails because the model does not accept these images at all, say that instead."""
    try:
        yield
    except Exception as error:
        try:
            with torch.no_grad():
                model(images[:1])
        except Exception as refused:  # a network can refuse an image in any way it likes
            raise ValueError(f"{refusal(images, refused)}{advice}") from error
        if fixed := fixed_batch(error):
            raise ValueError(f"the model {fixed}") from error
        if is_of_others(error) and not isinstance(error, TypeError | ValueError):  # a hook for gradients, say
            raise ValueError(f"something fails while the model is looked into ({why_refused(error)})") from error
        raise

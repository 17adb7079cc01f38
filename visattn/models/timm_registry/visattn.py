"""Entries in timm's registry, under the module name ``visattn``: ``timm.list_models(module="visattn")``.

A curated set: the four classical ResNets with every block, and representatives of other families with the blocks that
people ask for; a few backbones that take glimpses of large images; and the recurrent attention model, ``ram``. Every
other combination works through :func:`visattn.create_model`.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from timm.models import PretrainedCfg, get_arch_pretrained_cfgs, is_model, register_model
from timm.models._builder import resolve_pretrained_cfg
from timm.models._pretrained import DefaultCfg
from torch import nn

from visattn.blocks import is_imported, list_blocks
from visattn.hard import RAM
from visattn.hard.glimpses import PREFIX, glimpse_config
from visattn.models.names import create_model, registered
from visattn.models.resnet import BOUND
from visattn.registry import suggest

__all__: list[str] = []

RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101")
POPULAR = ("se", "eca", "cbam", "coord", "simam", "gc", "nonlocal")
CONVOLUTIONAL = (
    *("convnext_tiny", "convnext_small", "efficientnet_b0", "efficientnet_lite0", "regnetx_008", "regnety_008"),
    *("mobilenetv3_small_100", "mobilenetv3_large_100", "densenet121"),
)
TRANSFORMERS = ("vit_tiny_patch16_224", "vit_small_patch16_224", "swin_tiny_patch4_window7_224")
PATCH = ("cosine", "additive", "general", "gaussian", "sparsemax", "entmax15")
GLIMPSES = ("resnet18", "resnet50", "convnext_tiny", "efficientnet_b0", "vit_small_patch16_224")

RAM_CONFIG = PretrainedCfg(
    num_classes=10,
    input_size=(1, 28, 28),
    mean=(0.0,),
    std=(1.0,),
    crop_pct=1.0,
    interpolation="bilinear",
    classifier="head",
    first_conv="what",
)

default_cfgs: dict[str, DefaultCfg] = {"ram": DefaultCfg(deque([""]), {"": RAM_CONFIG})}


def _register(base: str, attention: str) -> None:
    name = f"{base}_{attention}"
    if is_model(name):
        return  # timm's own name, or registered already
    bound = attention in BOUND
    _register_entry(
        name,
        base,
        f"timm's {base} with {attention} attention.",
        changes=lambda entry: {"min_input_size": entry.input_size} if bound else {},
    )
    registered.add(name)


def _register_entry(name: str, base: str, doc: str, *, changes: Callable[[PretrainedCfg], dict[str, Any]]) -> None:
    """Register a name that create_model understands, with the weights of a backbone and a changed configuration."""

    def entrypoint(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return create_model(name, pretrained=pretrained, **kwargs)

    entrypoint.__name__ = entrypoint.__qualname__ = name
    entrypoint.__doc__ = doc
    config = DefaultCfg()
    for full_name, entry in get_arch_pretrained_cfgs(base).items():
        tag = full_name.partition(".")[2]
        config.tags.append(tag)
        config.cfgs[tag] = replace(entry, **changes(entry))
    default_cfgs[name] = config
    register_model(entrypoint)


@register_model
def ram(
    pretrained: bool = False,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: dict[str, Any] | None = None,
    cache_dir: Any = None,
    **kwargs: Any,
) -> RAM:
    """The recurrent attention model: glimpses of a small greyscale image, one after the other."""
    del cache_dir  # there is nothing to fetch
    if pretrained:
        raise ValueError("ram has no pretrained weights: train it, or load your own")
    known = list(inspect.signature(RAM).parameters)
    for key in kwargs:
        if key not in known:
            raise ValueError(f"ram has no option {key!r}: {suggest(key, known)} (valid: {', '.join(known)})")
    model = RAM(**kwargs)
    config = resolve_pretrained_cfg("ram", pretrained_cfg, pretrained_cfg_overlay).to_dict()
    channels = kwargs.get("in_chans", 1)
    if channels != 1:
        _, height, width = config["input_size"]
        config |= {
            "input_size": (channels, height, width),
            "mean": channels * config["mean"],
            "std": channels * config["std"],
        }
    model.pretrained_cfg = model.default_cfg = config
    return model


for _base in RESNETS:
    for _attention in filter(is_imported, list_blocks()):
        _register(_base, _attention)
for _base in CONVOLUTIONAL:
    for _attention in POPULAR:
        _register(_base, _attention)
for _base in TRANSFORMERS:
    for _attention in ("se", "eca", "cbam"):
        _register(_base, _attention)
for _base in TRANSFORMERS[:2]:
    for _attention in PATCH:
        _register(_base, _attention)
for _base in GLIMPSES:
    _register_entry(
        f"{PREFIX}{_base}",
        _base,
        f"timm's {_base} on a few crops of a large image.",
        changes=lambda entry: glimpse_config(entry.to_dict()),
    )

"""Entries in timm's registry, under the module name ``visattn``: ``timm.list_models(module="visattn")``.

A curated set: the four classical ResNets with every block, and representatives of other families with the blocks that
people ask for. Every other combination works through :func:`visattn.create_model`.
"""

from __future__ import annotations

from typing import Any

from timm.models import get_arch_pretrained_cfgs, is_model, register_model
from timm.models._pretrained import DefaultCfg
from torch import nn

from visattn.blocks import list_blocks
from visattn.models.names import create_model, registered

__all__: list[str] = []

RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101")
POPULAR = ("se", "eca", "cbam", "coord", "simam", "gc", "nonlocal")
CONVOLUTIONAL = (
    *("convnext_tiny", "convnext_small", "efficientnet_b0", "efficientnet_lite0", "regnetx_008", "regnety_008"),
    *("mobilenetv3_small_100", "mobilenetv3_large_100", "densenet121"),
)
TRANSFORMERS = ("vit_tiny_patch16_224", "vit_small_patch16_224", "swin_tiny_patch4_window7_224")
PATCH = ("cosine", "additive", "general", "gaussian", "sparsemax", "entmax15")

default_cfgs: dict[str, DefaultCfg] = {}


def _register(base: str, attention: str) -> None:
    name = f"{base}_{attention}"
    if is_model(name):
        return  # timm's own name, or registered already

    def entrypoint(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return create_model(base, attn=attention, pretrained=pretrained, **kwargs)

    entrypoint.__name__ = entrypoint.__qualname__ = name
    entrypoint.__doc__ = f"timm's {base} with {attention} attention."
    config = DefaultCfg()
    for full_name, entry in get_arch_pretrained_cfgs(base).items():
        tag = full_name.partition(".")[2]
        config.tags.append(tag)
        config.cfgs[tag] = entry
    default_cfgs[name] = config
    register_model(entrypoint)
    registered.add(name)


for _base in RESNETS:
    for _attention in list_blocks():
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

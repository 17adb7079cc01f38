"""A model in words: everything needed to rebuild it, with all that is attached to it.

>>> import timm, visattn
>>> model = visattn.attach(timm.create_model("test_resnet", num_classes=5), "se", at="layer1")
>>> description = describe(model)
>>> description["model"]
{'name': 'test_resnet.r160_in1k', 'num_classes': 5}
>>> description["attachments"][0]["at"], description["attachments"][0]["block"], description["attachments"][0]["init"]
('layer1', 'se', 'identity')
>>> list(build(description).state_dict()) == list(model.state_dict())
True
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from numbers import Real
from typing import Any

from torch import Tensor, nn

from visattn.core.arguments import whole
from visattn.hard.glimpses import PREFIX
from visattn.listing import shown
from visattn.models.attach import attach_at
from visattn.models.layout import Layout, Place
from visattn.models.names import create_model, split_name
from visattn.models.plugins import needed_plugins
from visattn.models.replaced import record_of, replacements
from visattn.models.replacing import replace_at
from visattn.models.swapping import patched, swap_attention
from visattn.models.wrapper import Attached
from visattn.models.wrapping import attachments, entry_of
from visattn.modules import own_size, timm_config


def describe(model: nn.Module, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """``model``, the arguments of :func:`visattn.create_model` for the plain network, its ``attachments``, and the
    ``plugins`` that it needs.

    Args:
        model: a timm model with anything that visattn can attach to it.
        arguments: of timm that cannot be read off the model, such as ``global_pool``.
    """
    described = {
        "model": _arguments(model, arguments or {}),
        "attachments": [
            *({"at": name, "patch": options} for name, options in patched(model).items()),
            *(
                {"at": name, "replace": record_of(block).block, "options": record_of(block).options}
                for name, block in replacements(model).items()
            ),
            *(_in_words(model, name.partition("#")[0], each) for name, each in attachments(model).items()),
        ],
    }
    try:
        described = json.loads(json.dumps(described, default=_plain))
    except TypeError as error:
        raise ValueError(f"the model was built with something that cannot be written to a card: {error}") from None
    plugins = needed_plugins(_names(described))
    return {**described, **({"plugins": plugins} if plugins else {})}


def _plain(value: Any) -> int | float:
    """A NumPy number, or a tensor of one, as a Python number."""
    number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    if not isinstance(number, Real):
        raise TypeError(f"{shown(value)} is not a number, a text, a list or a table")
    return integer if (integer := whole(number)) is not None else float(number)


def _names(description: Mapping[str, Any]) -> list[str]:
    """The models and blocks that a description refers to."""
    base, attention = split_name(description["model"]["name"])
    attached = [each.get("block") or each.get("replace") for each in description["attachments"]]
    blocks = [attention, description["model"].get("attn"), *attached]
    return [base.removeprefix(PREFIX).partition(".")[0], *filter(None, blocks)]


def _arguments(model: nn.Module, given: Mapping[str, Any]) -> dict[str, Any]:
    """How the plain network was built, as far as it is visible or was given."""
    built = getattr(model, "built_with", None) or ({} if "name" in given else _of_timm(model))
    number = whole(getattr(model, "num_classes", None))
    seen = {"num_classes": number} if number is not None and not built.get("features_only") else {}
    return {**built, **seen, **given}


def _of_timm(model: nn.Module) -> dict[str, Any]:
    config = timm_config(model)
    if "architecture" not in config:
        raise ValueError(
            f"this {type(model).__name__} cannot be described: it is not one of timm's models, so nobody could build "
            "it again; register it (timm.register_model) and give arguments={'name': …}, or save its state_dict()"
        )
    tag = config.get("tag")
    arguments = {"name": f"{config['architecture']}.{tag}" if tag else config["architecture"]}
    channels, *native = config.get("input_size") or (3, 224, 224)
    seen, *size = own_size(model)
    return {
        **arguments,
        **({"img_size": size} if size != native else {}),
        **({"in_chans": seen} if seen != channels else {}),
    }


def _in_words(model: nn.Module, at: str, attached: Attached) -> dict[str, Any]:
    if attached.name is None:
        raise ValueError(
            f"the block at {at!r} ({type(attached.block).__name__}) has no name by which it could be built again: "
            "register it with visattn.register_block, and attach it by that name"
        )
    place = attached.place
    return {
        "at": at,
        "block": attached.name,
        "options": attached.options,
        "init": "paper" if attached.gain is None else "identity",
        "layout": asdict(place.layout),
        "size": place.size,
        "image": place.image,
        "index": place.index,
        "entry": entry_of(model, attached),
    }


def build(description: Mapping[str, Any]) -> nn.Module:
    """The model of a description, without weights."""
    model = create_model(**description["model"])
    for each in description.get("attachments", ()):
        if "patch" in each:
            swap_attention(model, each["at"], **each["patch"])
            continue
        if "replace" in each:
            replace_at(model, each["replace"], {each["at"]: each["options"]}, remember=False)
            continue
        place = Place(each["at"], Layout(**each["layout"]), tuple(each["size"]), tuple(each["image"]), each["index"])
        options = {place: each["options"]}
        attach_at(model, each["block"], options, entry=each["entry"], init=each["init"], stack=True)
    return model


def title(description: Mapping[str, Any]) -> str:
    """A readable name.

    >>> title({"model": {"name": "resnet18.a1_in1k"}, "attachments": [{"at": "layer1", "block": "cbam"}]})
    'resnet18_cbam'
    """
    name, named = split_name(description["model"]["name"])
    parts = [named or description["model"].get("attn")]
    parts += [each.get("block") or each.get("replace", "patch") for each in description.get("attachments", ())]
    return "_".join(dict.fromkeys([name.partition(".")[0], *filter(None, parts)]))

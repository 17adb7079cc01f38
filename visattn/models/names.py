"""Models with attention by name: ``resnet50_cbam``, ``vit_tiny_patch16_224_cosine``, ``convnext_tiny_se.fb_in1k``.

``glimpse_`` in front makes any of them a model for large images, which looks at a few crops of them
(:mod:`visattn.hard.glimpses`): ``glimpse_resnet50``, ``glimpse_resnet50_cbam``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from numbers import Real
from typing import Any

import timm
import torch
from timm.models import PretrainedCfg
from torch import nn

from visattn.blocks import list_blocks
from visattn.blocks.base import RESERVED
from visattn.constants import ORIGIN
from visattn.core.arguments import whole, yes_or_no
from visattn.hard.glimpses import PREFIX, GlimpseNetwork, glimpse_config
from visattn.hard.ram import RAM
from visattn.hard.scout import Scout
from visattn.listing import shown
from visattn.models.arguments import PLACEMENT
from visattn.models.attach import Init, attach_at, check_init
from visattn.models.places import survey_places, usual_places
from visattn.models.replacing import replace_at
from visattn.models.resnet import BOUND, paper_replacements
from visattn.models.swapping import PATCH_ATTENTION, swap_attention
from visattn.modules import why_refused
from visattn.registry import suggest

SHORT = {"resnet": "resnet18"}  # the model that a bare family name stands for
SCOUTING = ("glimpses", "overview", "policy", "policy_weight", "entropy_weight")  # options of the scout

registered: set[str] = set()  # names that visattn itself has added to timm's registry


def _taken() -> Iterator[tuple[str, str]]:
    """Names that are taken, on their own or after the name of a model, and by what."""
    models = timm.list_models()
    yield from ((name, f"timm has a model {name!r}") for name in (*models, *SHORT))
    for name in models:
        for cut in re.finditer("_", name):
            if timm.is_model(name[: cut.start()]):
                yield name[cut.end() :], f"timm has a model {name!r}"
    yield from ((name, "that is an attention inside vision transformers") for name in PATCH_ATTENTION)


RESERVED.update(_taken())


def split_name(name: str) -> tuple[str, str | None]:
    """A model's name as (timm's name, attention or None); weight tag and ``glimpse_`` stay with timm's name.

    >>> split_name("resnet50_cbam.a1_in1k"), split_name("resnet_nonlocal_dot"), split_name("resnet50")
    (('resnet50.a1_in1k', 'cbam'), ('resnet18', 'nonlocal_dot'), ('resnet50', None))
    >>> split_name("glimpse_resnet50_cbam.a1_in1k")
    ('glimpse_resnet50.a1_in1k', 'cbam')
    """
    if name.startswith(PREFIX):
        if name.startswith(2 * PREFIX):
            raise ValueError(
                f"unknown model {shown(name)}: what takes glimpses itself cannot be the backbone of another"
            )
        base, attention = split_name(name.removeprefix(PREFIX))
        return f"{PREFIX}{base}", attention
    architecture, dot, tag = name.partition(".")
    if timm.is_model(architecture) and architecture not in registered:
        return name, None
    if architecture in SHORT:
        return f"{SHORT[architecture]}{dot}{tag}", None
    for attention in sorted(attentions(), key=len, reverse=True):
        base = architecture.removesuffix(f"_{attention}")
        if base == architecture:
            continue
        if base in registered and (first := split_name(base)[1]) is not None:
            raise ValueError(f"{shown(name)} names two attentions, {first!r} and {attention!r}: see visattn.attach")
        if timm.is_model(SHORT.get(base, base)):
            return f"{SHORT.get(base, base)}{dot}{tag}", attention
    base, _, attention = architecture.rpartition("_")
    if timm.is_model(SHORT.get(base, base)):
        raise ValueError(f"unknown attention {shown(attention)} in {shown(name)}: {suggest(attention, attentions())}")
    said = suggest(architecture, timm.list_models())
    advice = said if said.startswith("did you mean") else "see timm.list_models(); one of your own comes with --plugin"
    raise ValueError(f"unknown model {shown(name)}: {advice}")


def model_config(name: str) -> PretrainedCfg | None:
    """timm's configuration for a full name; None if timm has none.

    >>> model_config("glimpse_vit_tiny_patch16_224_se").input_size
    (3, 448, 448)
    """
    base, _ = split_name(name)
    if not base.startswith(PREFIX):
        try:
            return timm.get_pretrained_cfg(base, allow_unregistered=True)
        except RuntimeError:  # the tag after the dot is unknown
            architecture, _, tag = base.partition(".")
            known = [each.partition(".")[2] for each in timm.list_pretrained(f"{architecture}.*")]
            raise ValueError(f"unknown weights {shown(tag)} of {architecture!r}: {suggest(tag, known)}") from None
    config = model_config(base.removeprefix(PREFIX))
    return config and replace(config, **glimpse_config(config.to_dict()))


def attentions() -> list[str]:
    """All values of ``attn``: the blocks, and the patch attentions for vision transformers."""
    return sorted([*list_blocks(), *PATCH_ATTENTION])


@torch.inference_mode(False)  # in which autograd's graph cannot be read, and weights could never be trained
def create_model(
    name: str,
    attn: str | None = None,
    pretrained: bool = False,
    *,
    init: Init | None = None,
    attn_options: Mapping[str, Any] | None = None,
    **timm_kwargs: Any,
) -> nn.Module:
    """A timm model with attention, as one name (``"resnet50_cbam"``) or two (``"resnet50", attn="cbam"``).

    In a ResNet the block sits where its paper puts it (:mod:`visattn.models.resnet`), elsewhere behind every residual
    block, or every stage. Without pretrained weights it starts as in its paper. With pretrained weights it is
    blended in with a gain of zero, so that the model computes exactly what the backbone does; but one that its paper
    puts in the place of convolutions (``resnet50_halo``) starts as there, without what these had learned.

    Args:
        name: of a timm model, with or without ``_<attention>`` and ``.<weights>``.
        attn: a block, or a patch attention for vision transformers; see :func:`attentions`.
        pretrained: load the backbone's weights.
        init: how the block starts, as in :func:`visattn.attach`; by default ``"identity"`` with pretrained weights and
            ``"paper"`` without. A block in the place of convolutions cannot start as the identity.
        attn_options: for the block.
        **timm_kwargs: for ``timm.create_model``; for a ``glimpse_`` model also ``glimpses``, ``glimpse_size`` (the
            backbone's own size unless given) and the options of :class:`~visattn.hard.scout.Scout`.
    """
    yes_or_no(pretrained=pretrained)
    _check_arguments(name, init, attn_options, timm_kwargs)
    for key, least in (("num_classes", 0), ("in_chans", 1)):
        if timm_kwargs.get(key) is not None:
            timm_kwargs[key] = _count(key, timm_kwargs[key], least)
    if name.startswith(PREFIX):
        given = {key: value for key, value in timm_kwargs.items() if value is not None}  # as timm does
        model = _with_glimpses(name.removeprefix(PREFIX), attn, pretrained, init, attn_options, **given)
        return _remember(model, split_name(name)[0], given)
    full_name = name
    name, named = split_name(name)
    if attn is not None and named is not None:
        raise ValueError(f"{full_name!r} already says {named!r}, so {attn!r} is one attention too many")
    attn = named if attn is None else attn
    if attn is not None and attn not in attentions():
        raise ValueError(f"unknown attention {shown(attn)}: {suggest(attn, attentions())}")
    if attn is None and attn_options:
        raise ValueError(f"attn_options are given, but {full_name!r} names no attention")
    if attn is None and init is not None:
        raise ValueError(f"init={init!r} is given, but {full_name!r} names no attention")
    model_config(name)  # raises if there are no such weights
    model = _backbone(name, pretrained, timm_kwargs)
    _remember(model, name, timm_kwargs)
    if attn is None:
        return model
    if isinstance(model, RAM):
        raise ValueError(f"ram has no feature map that {attn!r} could be put behind")
    if isinstance(config := getattr(model, "pretrained_cfg", None), dict):
        config["architecture"] = f"{name.partition('.')[0]}_{attn}"
    options = dict(attn_options or {})
    if attn in PATCH_ATTENTION:
        if init is not None:
            raise ValueError(_no_start(init, attn, name, "attention, and its weights"))
        return swap_attention(model, **{**PATCH_ATTENTION[attn], **options})
    found = survey_places(model)
    if replaced := paper_replacements(model, found, attn):
        if init == "identity":
            raise ValueError(_no_start(init, attn, name, "convolutions"))
        return replace_at(model, attn, {name: {**settings, **options} for name, settings in replaced.items()})
    places = usual_places(model, found, attn)
    chosen_options = {place: {**settings, **options} for place, settings in places.items()}
    if attn in BOUND and config and any(each.get("size") is not None for each in chosen_options.values()):
        config["min_input_size"] = tuple(found.input_shape[1:])
    return attach_at(
        model,
        attn,
        chosen_options,
        entry=found.entry,
        init=init or ("identity" if pretrained else "paper"),
    )


def _no_start(init: Init, attn: str, name: str, what: str) -> str:
    return f"init={init!r} does not apply to {attn!r} in {name!r}: it takes the place of {what}"


def _backbone(name: str, pretrained: bool, kwargs: Mapping[str, Any]) -> nn.Module:
    """timm's model; whatever it cannot be built with is said in one line."""
    for key, value in kwargs.items():
        if key.endswith("_rate") and not (value is None or (isinstance(value, Real) and not value < 0 and value <= 1)):
            raise ValueError(f"{key} is a number from 0 to 1, got {shown(value)}")
    if (size := kwargs.get("img_size")) is not None:
        several = isinstance(size, tuple | list)
        size = tuple(_count("img_size", side, 1) for side in size) if several else _count("img_size", size, 1)
        kwargs = {**kwargs, "img_size": size}
    try:
        return timm.create_model(name, pretrained=pretrained, **kwargs)
    except Exception as error:
        said = f"{type(error).__name__}: {error}" if str(error) else why_refused(error)
        reason = " ".join(said.split("Exception raised from")[0].split())
        if pretrained and not isinstance(error, TypeError | AssertionError | LookupError | AttributeError):
            raise  # the weights may not be there
        given = {key: value for key, value in kwargs.items() if value is not None}
        unknown = re.search(r"unexpected keyword argument '(\w+)'", reason) if isinstance(error, TypeError) else None
        if unknown and unknown[1] in given:
            advice = _instead_of(unknown[1], name)
            raise TypeError(f"{name!r} got an unexpected keyword argument {unknown[1]!r}{advice}") from error
        raise ValueError(f"{name!r} cannot be built with {shown(given)} ({reason[:200]})") from error


def _instead_of(option: str, name: str) -> str:
    """What may have been meant by an option that a model does not take."""
    if option in (*SCOUTING, "glimpse_size"):
        return f": only models such as {PREFIX + name!r} take it"
    with torch.device("meta"):
        known = inspect.signature(type(timm.create_model(name))).parameters
    said = suggest(option, [*known, *inspect.signature(create_model).parameters, *SCOUTING])
    return f": {said}" if said.startswith("did you mean") else ""


def _check_arguments(name: Any, init: Any, attn_options: Any, others: Mapping[str, Any]) -> None:
    if not isinstance(name, str):
        raise TypeError(f"name is that of a model, such as 'resnet50_cbam', got {name!r}")
    if init is not None:
        check_init(init)
    if not isinstance(others.get("features_only", False), bool):
        raise ValueError(f"features_only is True or False, got {others['features_only']!r}")
    if attn_options is not None and not isinstance(attn_options, Mapping):
        raise TypeError(f"attn_options are options by name, such as {{'rd_ratio': 0.25}}, got {attn_options!r}")
    for key in attn_options or {}:
        if not isinstance(key, str):
            raise TypeError(f"attn_options are options by name, got {key!r} for a name")


def _count(name: str, value: Any, least: int) -> int:
    count = whole(value)
    if count is None or count < least:
        raise ValueError(f"{name} is a whole number from {least} up, got {shown(value)}")
    return count


def _remember(model: nn.Module, name: str, kwargs: Mapping[str, Any]) -> nn.Module:
    """Store in a model how it was built, without its attention and without where its weights came from."""
    built = {key: value for key, value in kwargs.items() if value is not None and key not in (*ORIGIN, *PLACEMENT)}
    model.built_with = {"name": name, **built}  # type: ignore[assignment]
    if not getattr(model, "pretrained_cfg", None):  # a model of the user's own: what all of timm's know of themselves
        model.pretrained_cfg = PretrainedCfg(architecture=name).to_dict()
    if "num_classes" in built and not hasattr(model, "num_classes"):
        model.num_classes = built["num_classes"]
    return model


def _with_glimpses(
    name: str,
    attn: str | None,
    pretrained: bool,
    init: Init | None,
    attn_options: Mapping[str, Any] | None,
    *,
    glimpse_size: int | None = None,
    **kwargs: Any,
) -> nn.Module:
    if "img_size" in kwargs:
        raise ValueError(f"the backbone sees glimpses: give glimpse_size instead of img_size={kwargs['img_size']}")
    if "size" in kwargs:
        raise ValueError(f"a glimpse_ model has no option 'size': give glimpse_size={kwargs['size']}")
    config = model_config(name)
    channels, _, native = config.input_size if config else (3, 224, 224)
    size = native if glimpse_size is None else glimpse_size
    own = {key: kwargs.pop(key) for key in SCOUTING if key in kwargs}
    scout = Scout(kwargs.get("in_chans", channels), size=size, **own)
    if config and config.fixed_input_size and size != native:
        kwargs["img_size"] = size
    backbone = create_model(name, attn, pretrained, init=init, attn_options=attn_options, **kwargs)
    return GlimpseNetwork(backbone, scout)

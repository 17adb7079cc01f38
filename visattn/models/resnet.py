"""Where each paper puts its block in a ResNet.

In most of them that is the residual branch, behind its last batch norm and before the addition. The exceptions:

- BAM and the residual-attention mask stand behind stages 1, 2 and 3 (the mask with depth 3, 2, 1);
- SimAM stands behind the second convolution of a unit, before its batch norm, with lambda 0.1;
- non-local, double and efficient attention stand behind two units of stage 2 and three of stage 3, evenly spread;
- hard, dual, criss-cross and external attention stand behind the last stage;
- global second-order pooling stands in the last unit of every stage;
- SCSA stands behind the activation of the second convolution of a unit;
- generalized attention does so too, in stages 3 and 4;
- ECA uses the kernel sizes of the released models, where there are such;
- FCA and the convolutional gather-excite are told the size of the map; the latter runs at that size and above, which
  ``min_input_size`` in the configuration says.

Other papers *replace* a convolution (:mod:`visattn.models.replacing`): the 3x3 convolution of every bottleneck, the
first of the two in a basic unit. BoTNet (``mhsa``) does so in the last stage only, attention augmentation (``aug``) in
the last three; both have tables of positions for the size of the map there. Selective kernels, split attention and the
contextual transformer bring a norm and an activation, which replace those of the unit as well. ResNeSt has an average
pooling of stride 1 in its first unit, RedNet (``involution``) and SASA a stem of their own: these are left out.

Axial attention and SCSA stand behind the activation inside the unit (``INSIDE``). The paper of GCT puts one before
every convolution; here it stands with the other gates, and so do those whose paper has no ResNet (``used_in`` of the
registry). Self-attention of such papers stands where it does in other networks, behind every stage.
"""

from __future__ import annotations

from typing import Any

from timm.models.resnet import BasicBlock, Bottleneck
from torch import nn

from visattn.blocks import list_blocks
from visattn.models.layout import Place
from visattn.models.survey import Survey
from visattn.models.wrapper import plain_name
from visattn.models.wrapping import unwrapped

# Kernel sizes of the released ECA-Nets, by number of units in the four stages.
ECA_RELEASED: dict[tuple[type[nn.Module], tuple[int, ...]], tuple[int, ...]] = {
    (BasicBlock, (2, 2, 2, 2)): (3, 5, 7, 7),
    (BasicBlock, (3, 4, 6, 3)): (3, 3, 5, 7),
    (Bottleneck, (3, 4, 6, 3)): (3, 5, 5, 7),
    (Bottleneck, (3, 4, 23, 3)): (3, 3, 5, 7),
}

# Blocks that replace convolutions, and the stages in which they do.
REPLACING: dict[str, slice] = {
    **dict.fromkeys(("acmix", "cot", "halo", "involution", "lambda", "psa", "sasa", "sk", "splat"), slice(0, 4)),
    "aug": slice(1, 4),
    "mhsa": slice(3, 4),
}

# The spatial convolution of a unit that has a norm and an activation behind it, and those.
INNER: dict[type[nn.Module], tuple[str, str, str]] = {
    BasicBlock: ("conv1", "bn1", "act1"),
    Bottleneck: ("conv2", "bn2", "act2"),
}

INSIDE = ("axial", "scsa")  # behind the activation inside the unit
BOUND = ("ge_theta", "ge_theta_plus")  # their kernels are as large as the map: smaller images do not fit


def stages_of(model: nn.Module) -> list[list[str]]:
    """Names of the units of each stage; empty if the model is not a ResNet."""
    stages: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        if isinstance(module, BasicBlock | Bottleneck):
            name = plain_name(name)
            stages.setdefault(name.rpartition(".")[0], []).append(name)
    return list(stages.values())


def spread(names: list[str], number: int) -> list[str]:
    """At most that many of the names, evenly spread, the last one included.

    >>> spread(["a", "b", "c", "d", "e", "f"], 3)
    ['b', 'd', 'f']
    """
    number = min(number, len(names))
    return [names[(i + 1) * len(names) // number - 1] for i in range(number)]


def paper_places(model: nn.Module, found: Survey, block: str) -> dict[Place, dict[str, Any]]:
    """Where the block's paper puts it in this ResNet, with the options used there; empty if it has no place there."""
    stages = stages_of(model)
    if len(stages) != 4:
        return {}
    places = found.places()
    unit = model.get_submodule(stages[0][0])
    last_norm, inner = "bn3" if isinstance(unit, Bottleneck) else "bn2", _inner(unit)[2]

    if block in ("bam", "residual"):
        options: list[dict[str, Any]] = [{}, {}, {}] if block == "bam" else [{"depth": d} for d in (3, 2, 1)]
        return {places[units[-1]]: o for units, o in zip(stages[:3], options, strict=True)}
    if block in ("double", "efficient") or block.startswith("nonlocal"):
        return {places[name]: {} for name in (*spread(stages[1], 2), *spread(stages[2], 3))}
    if block in ("danet", "criss_cross", "external", *list_blocks(family="hard")):
        return {places[stages[3][-1]]: {}}
    if block == "generalized":
        return {places[f"{name}.{inner}"]: {} for units in stages[2:] for name in units}
    if block in list_blocks(family="self") and block not in INSIDE:
        return {}

    position = {"simam": "conv2", **dict.fromkeys(INSIDE, inner)}.get(block, last_norm)
    kernels = ECA_RELEASED.get((type(unit), tuple(len(units) for units in stages)))
    chosen = {}
    for stage, units in enumerate(stages):
        for name in units[-1:] if block == "gsop" else units:
            place = places[f"{name}.{position}"]
            settings: dict[str, Any] = {}
            if block == "eca" and kernels is not None:
                settings = {"kernel_size": kernels[stage]}
            elif block == "simam":
                settings = {"lam": 0.1}
            elif block == "fca":
                settings = {"size": max(7, place.size[0])}
            elif block in BOUND:
                settings = {"size": place.size}
            chosen[place] = settings
    return chosen


def paper_replacements(model: nn.Module, found: Survey, block: str) -> dict[str, dict[str, Any]]:
    """The convolutions of this ResNet that the block's paper replaces, with the options used there; else empty."""
    stages = stages_of(model)
    if len(stages) != 4 or block not in REPLACING:
        return {}
    places = found.places()
    chosen: dict[str, dict[str, Any]] = {}
    for unit in (name for units in stages[REPLACING[block]] for name in units):
        name = f"{unit}.{_inner(model.get_submodule(unit))[0]}"
        side, convolution = max(places[name].size), model.get_submodule(name)
        stride = convolution.stride[0] if isinstance(convolution, nn.Conv2d) else 1
        # Attention between all pixels: of the map that comes in, or of the pooled one.
        chosen[name] = {"mhsa": {"size": side * stride}, "aug": {"size": side}}.get(block, {})
    return chosen


def _inner(unit: nn.Module) -> tuple[str, str, str]:
    return next(names for kind, names in INNER.items() if isinstance(unwrapped(unit), kind))


def behind_convolution(model: nn.Module, name: str) -> list[nn.Module]:
    """The norm and the activation behind a spatial convolution in a unit of a ResNet; nothing elsewhere."""
    parent, _, child = name.rpartition(".")
    unit = unwrapped(model.get_submodule(parent))
    if not isinstance(unit, tuple(INNER)) or child != (names := _inner(unit))[0]:
        return []
    return [unwrapped(unit.get_submodule(each)) for each in names[1:]]

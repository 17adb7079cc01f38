"""Where each paper puts its block in a ResNet.

In most of them that is the residual branch, behind its last batch norm and before the addition. The exceptions:

- BAM and the residual-attention mask stand behind stages 1, 2 and 3 (the mask with depth 3, 2, 1);
- SimAM stands behind the second convolution of a unit, before its batch norm, with lambda 0.1;
- non-local and double attention stand behind two units of stage 2 and three of stage 3, evenly spread;
- hard attention stands behind the last stage;
- ECA uses the kernel sizes of the released models, where there are such;
- FCA and the convolutional gather-excite are told the size of the map; the latter runs at that size and above, which
  ``min_input_size`` in the configuration says.

Papers that *replace* a convolution cannot be followed exactly by adding a block: selective kernels and split attention
stand behind the activation inside the unit, and self-attention (BoTNet) does so in the last stage only. The paper of
GCT puts one before every convolution; here it stands with the other gates.
"""

from __future__ import annotations

from typing import Any

from timm.models.resnet import BasicBlock, Bottleneck
from torch import nn

from visattn.blocks import list_blocks
from visattn.models.layout import Place
from visattn.models.survey import Survey
from visattn.models.wrapper import plain_name

# Kernel sizes of the released ECA-Nets, by number of units in the four stages.
ECA_RELEASED: dict[tuple[type[nn.Module], tuple[int, ...]], tuple[int, ...]] = {
    (BasicBlock, (2, 2, 2, 2)): (3, 5, 7, 7),
    (BasicBlock, (3, 4, 6, 3)): (3, 3, 5, 7),
    (Bottleneck, (3, 4, 6, 3)): (3, 5, 5, 7),
    (Bottleneck, (3, 4, 23, 3)): (3, 3, 5, 7),
}

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
    """Where the block's paper puts it in this ResNet, with the options used there; empty for other models."""
    stages = stages_of(model)
    if len(stages) != 4:
        return {}
    places = found.places()
    unit = model.get_submodule(stages[0][0])
    last_norm, inner = ("bn3", "act2") if isinstance(unit, Bottleneck) else ("bn2", "act1")

    if block in ("bam", "residual"):
        options: list[dict[str, Any]] = [{}, {}, {}] if block == "bam" else [{"depth": d} for d in (3, 2, 1)]
        return {places[units[-1]]: o for units, o in zip(stages[:3], options, strict=True)}
    if block == "double" or block.startswith("nonlocal"):
        return {places[name]: {} for name in (*spread(stages[1], 2), *spread(stages[2], 3))}
    if block in list_blocks(family="hard"):
        return {places[stages[3][-1]]: {}}
    if block == "mhsa":
        return {places[f"{name}.{inner}"]: {} for name in stages[3]}

    position = {"simam": "conv2", "sk": inner, "splat": inner}.get(block, last_norm)
    kernels = ECA_RELEASED.get((type(unit), tuple(len(units) for units in stages)))
    chosen = {}
    for stage, units in enumerate(stages):
        for name in units:
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

"""The taxonomy of the unified attention model, with every block and model in it.

The words are those of Niu, Zhong and Yu, *A review on the attention mechanism of deep learning*, Neurocomputing 2021.
The place of a block follows from its family and from the map that its ``attention(x)`` returns; `ELSEWHERE` has those
for which that is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from visattn.blocks import block_info, create_block, list_blocks
from visattn.models.swapping import PATCH_ATTENTION

DEFINITIONS = """\
- **Softness.** *Soft*: everything is weighted. *Hard*: some of it is chosen, and the rest is not seen.
- **Form of input.** *Item-wise*: the items are there already: channels, pixels or patches. *Location-wise*: the block
  says where to look, and what it finds there is cut out or sampled.
- **Input representation.** *Self*: what is weighted is also what the weights are computed from. *Distinctive*: the
  weights are computed from something else as well, such as another map, a state or a memory. *Hierarchical*: attention
  on top of attention, each on what the other made of the input. *Co-attention*: two inputs attend to each other.
- **Output representation.** *Single*: one weight for all features of an item. *Multi-head*: one for each head.
  *Multi-dimensional*: one for each feature.
"""


@dataclass(frozen=True)
class Taxon:
    softness: str
    form: str
    inputs: str
    outputs: str


# Blocks that the rules of `taxon` would put into the wrong place, and where they belong.
ELSEWHERE: dict[str, dict[str, str]] = {
    **{name: {"inputs": "hierarchical"} for name in ("cbam", "cpca", "gam", "polarized_sequential", "scsa")},
    **{name: {"inputs": "hierarchical"} for name in ("double", "perceiver", "residual")},
    "agent": {"inputs": "hierarchical", "outputs": "multi-head"},  # of 64 channels each
    "bra": {"inputs": "hierarchical", "softness": "hard"},  # regions that are not chosen are not seen
    "axial": {"outputs": "multi-head"},  # its map is the mean of the heads'
    "aft": {"outputs": "multi-dimensional"},  # likewise, and there is a head for every channel
    **{name: {"inputs": "distinctive"} for name in ("attention_gate", "external")},
    **{name: {"form": "location-wise"} for name in ("deformable", "deformable_lka")},
}

_SOFT = Taxon("soft", "item-wise", "self", "multi-head")
MODELS = {
    f"vision transformers, also with {', '.join(f'`{name}`' for name in PATCH_ATTENTION)}": _SOFT,
    "`ram`": Taxon("hard", "location-wise", "distinctive", "single"),
    "`glimpse_…`": Taxon("hard", "location-wise", "hierarchical", "single"),
    "`MultiHeadAttention(x)`": _SOFT,
    "`ClassResidualHead`": _SOFT,  # weights for each class
    "`MultiHeadAttention(x, context)`": replace(_SOFT, inputs="distinctive"),
    "`AttentionPool`": replace(_SOFT, outputs="single"),
    "`MultiDimensionalAttention`": replace(_SOFT, outputs="multi-dimensional"),
    "`HierarchicalAttention`": replace(_SOFT, inputs="hierarchical", outputs="single"),
    "`ParallelCoAttention`": replace(_SOFT, inputs="co-attention", outputs="single"),
    "`AlternatingCoAttention`": replace(_SOFT, inputs="co-attention", outputs="single"),
}


def taxon(name: str) -> Taxon:
    """Where a block belongs."""
    hard = block_info(name).family == "hard"
    rule = Taxon("hard" if hard else "soft", "location-wise" if hard else "item-wise", "self", _outputs(name))
    return replace(rule, **ELSEWHERE.get(name, {}))


def taxa() -> dict[Taxon, list[str]]:
    """Everybody in every place of the taxonomy: the blocks, then the models and the forms of the core."""
    found: dict[Taxon, list[str]] = {}
    everybody = {**{f"[`{name}`](#{name})": taxon(name) for name in list_blocks()}, **MODELS}
    for name, place in everybody.items():
        found.setdefault(place, []).append(name)
    order = ("soft", "hard", "item-wise", "location-wise", "self", "distinctive", "hierarchical", "co-attention")
    order += ("single", "multi-head", "multi-dimensional")
    places = sorted(found, key=lambda t: [order.index(word) for word in (t.softness, t.form, t.inputs, t.outputs)])
    return {place: found[place] for place in places}


def _outputs(name: str) -> str:
    """Single, multi-head or multi-dimensional, by the shape of what a block returns as its attention."""
    channels, side = 64, 14
    block: Any = create_block(name, channels, device="meta").eval()
    weights = block.attention(torch.empty(1, channels, side, side, device="meta"))
    weights = weights if isinstance(weights, Tensor) else weights[0]
    _, depth, *size = weights.shape
    if size in ([1, 1], [side, side]):  # a gate
        return "single" if depth == 1 else "multi-dimensional"
    return "single" if depth == 1 else "multi-head"

"""Blocks that stand in the place of convolutions (:mod:`visattn.models.replacing`): find them, and undo it.

Such a block is a child of the convolution's parent, like any layer. The convolution is remembered in a plain record on
the block, where neither ``parameters()`` nor ``state_dict()`` nor any wrapper for training sees it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from visattn.models.wrapper import plain_name
from visattn.models.wrapping import exchange
from visattn.modules import Remembered, underlying

RECORD = "replaced"  # the attribute of a block that holds what it has replaced


@dataclass(frozen=True, eq=False)
class Replaced(Remembered):
    """What a block has replaced, and how it was made.

    Args:
        block: its name in the registry.
        options: that it was built with, beside those that follow from the convolution.
        convolution: that it stands for, with its weights as they were; on the meta device if they are not known.
        behind: what stands for a norm or an activation behind the convolution, and that norm or activation.
    """

    block: str
    options: Mapping[str, Any]
    convolution: nn.Conv2d
    behind: tuple[tuple[nn.Identity, nn.Module], ...] = ()


def replacements(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks that stand in the place of a convolution, in order and by its name."""
    found = underlying(model).named_modules()
    return {plain_name(name): module for name, module in found if isinstance(_record(module), Replaced)}


def record_of(block: nn.Module) -> Replaced:
    """What a block has replaced."""
    record: Replaced = vars(block)[RECORD]
    return record


def _record(module: nn.Module) -> Any:
    return vars(module).get(RECORD)


def names_replaced(model: nn.Module) -> dict[str, list[str]]:
    """The names of all that a block stands for, by its own name: of a convolution, and perhaps of a norm behind it."""
    names = {module: plain_name(name) for name, module in model.named_modules()}
    return {
        name: [name, *(names[left] for left, _ in record_of(block).behind if left in names)]
        for name, block in replacements(model).items()
    }


def check_known(model: nn.Module) -> None:
    """Raise if a convolution cannot be put back, since its weights are not known."""
    for name, block in replacements(model).items():
        record, near = record_of(block), next(block.parameters(), torch.empty(()))
        if record.convolution.weight.is_meta and not near.is_meta:
            raise ValueError(
                f"the convolution that {record.block!r} replaces at {name!r} cannot be put back: its weights are not "
                "saved with a model"
            )


def restore_convolutions(model: nn.Module) -> bool:
    """Put every replaced convolution back, on the device and with the precision of its block; were there any?"""
    blocks = replacements(model)
    for block in blocks.values():
        record, near = record_of(block), next(block.parameters(), None)
        exchange(model, block, record.convolution)
        for left, module in record.behind:
            exchange(model, left, module)
        for module in (record.convolution, *(each for _, each in record.behind)):
            module.train(block.training)
            kinds = {(each.device, each.dtype) for each in module.parameters()}
            if near is not None and kinds - {(near.device, near.dtype)}:
                module.to(near.device, near.dtype)
        delattr(block, RECORD)
    return bool(blocks)

"""Which blocks there are for a network: where they go, what they cost there, and what they attend to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from visattn.blocks import block_info, create_block, is_imported, list_blocks
from visattn.blocks.announced import says
from visattn.counting import count_macs, count_parameters
from visattn.listing import first_few, shown
from visattn.models.layout import Place
from visattn.models.placement import surveyed
from visattn.models.places import choose, usual_places
from visattn.models.replaced import replacements
from visattn.models.replacing import replace_at
from visattn.models.resnet import paper_replacements
from visattn.models.survey import Survey
from visattn.models.wrapping import attachments
from visattn.modules import separate_copy, why_refused
from visattn.registry import suggest
from visattn.tables import Table, as_text

Chosen = Callable[[str | None], list[Place]]


@dataclass(frozen=True)
class BlockRow:
    """A block in a network.

    Args:
        block: its name.
        attends: what it attends to.
        where: where :func:`visattn.create_model` puts it, in words: in a ResNet where its paper does.
        places: the names of the modules that it stands behind, or of the convolutions that it replaces.
        parameters: that it adds in all these places; below zero if what it replaces has more.
        macs: multiply-accumulates of one image that it adds.
        problem: why it does not fit, or None.
        used_in: where its paper puts it, if that is not in a ResNet, or None.
    """

    block: str
    attends: str
    where: str
    places: tuple[str, ...] = ()
    parameters: int = 0
    macs: int = 0
    problem: str | None = None
    used_in: str | None = None

    @property
    def placed(self) -> str:
        """Where it goes and in how many places, or why it does not, and where its paper puts it."""
        number = f"{len(self.places)} place{'s' if len(self.places) > 1 else ''}"
        paper = f"; its paper: {self.used_in}" if self.used_in else ""
        return f"{self.problem or f'{self.where} ({number})'}{paper}"


class BlockRows(list[BlockRow]):
    """Rows that print as a table, and the cost of the network without a block."""

    def __init__(self, rows: Iterable[BlockRow], network: str, parameters: int, macs: int) -> None:
        super().__init__(rows)
        self.network = network
        self.parameters = parameters
        self.macs = macs

    def table(self) -> Table:
        """A row per block."""
        cells = []
        for row in self:
            told = [row.block, row.attends, row.placed]
            added = ((row.parameters, self.parameters), (row.macs, self.macs))
            costs = [(f"{count:+,}", f"{100 * count / max(whole, 1):.2f} %") for count, whole in added]
            cells.append([*told, *(["", "", "", ""] if row.problem else [*costs[0], *costs[1]])])
        caption = (
            f"added to {self.network} with {self.parameters:,} parameters and {self.macs:,} MACs, where create_model "
            "puts the block: in a ResNet where its paper puts it, unless that has another network, which is named then"
        )
        return Table(["block", "attends to", "where", "parameters", "", "MACs", ""], cells, caption, texts=3)

    def __repr__(self) -> str:
        return as_text(self.table())


@torch.inference_mode(False)  # in which autograd's graph cannot be read
def blocks_for(
    model: nn.Module | str, pattern: str = "*", *, family: str | None = None, image_size: int | None = None
) -> BlockRows:
    """For every block, where it goes in a network, what it costs there and what it attends to.

    Args:
        model: a network, or the name of one; by name it is only sketched, and no weights are downloaded.
        pattern: a name or a glob; a block of another package is imported only if this is its name.
        family: ``channel``, ``spatial``, ``mixed``, ``self`` or ``hard``; all unless given.
        image_size: height and width of the images; the network's own unless given.

    >>> (row,) = blocks_for("resnet18", "se")
    >>> row.where, len(row.places), row.parameters
    ('residual branch, behind bn2', 8, 89080)
    """
    names = matching_blocks(pattern, family)
    network, found = surveyed(model, image_size)
    name = model if isinstance(model, str) else type(model).__name__
    if not found.places():
        raise ValueError(f"{name} has no feature map that a block could be put behind")
    if attachments(network) or replacements(network):
        raise ValueError(f"{name} has blocks already: ask for the network without them")
    chosen = cache(lambda at: choose(network, found, at))  # takes seconds where a class token is read
    rows = (_row(network, found, block, block == pattern, chosen) for block in names)
    return BlockRows(rows, name, count_parameters(network), count_macs(network, 1, *found.input_shape[1:]))


def matching_blocks(pattern: str, family: str | None) -> list[str]:
    """The names of blocks that match; raise if there are none."""
    names = list_blocks(pattern, family=family)
    if not names:
        where = f"the family {family!r}" if family else "any family"
        raise ValueError(f"no block matches {shown(pattern)} in {where}: {suggest(pattern, list_blocks())}")
    return names


def _row(network: nn.Module, found: Survey, block: str, named: bool, chosen: Chosen) -> BlockRow:
    if not named and not is_imported(block):
        return BlockRow(block, "", "", problem=f"{says(block)}: imported if it is named")
    info = block_info(block)  # raises if it cannot be imported
    try:
        replaced = paper_replacements(network, found, block)
        row = _instead(network, found, block, replaced) if replaced else _behind(network, found, block, chosen)
    except (Exception, SystemExit) as error:  # what a block does is its own affair
        row = BlockRow(block, info.attends, "", problem=f"does not fit: {why_refused(error)}")
    return dataclasses.replace(row, used_in=info.used_in)


def _instead(network: nn.Module, found: Survey, block: str, replaced: Mapping[str, Mapping[str, Any]]) -> BlockRow:
    """A block that replaces convolutions."""
    plain = separate_copy(network).to("meta")
    other = replace_at(separate_copy(plain), block, replaced)
    image = (1, *found.input_shape[1:])
    parameters = count_parameters(other) - count_parameters(plain)
    where = f"in the place of {_same_in_blocks(list(replaced), found) or first_few(list(replaced), 5)}"
    macs = count_macs(other, *image) - count_macs(plain, *image)
    return BlockRow(block, block_info(block).attends, where, tuple(replaced), parameters, macs)


def _behind(network: nn.Module, found: Survey, block: str, chosen: Chosen) -> BlockRow:
    """A block that is added behind modules."""
    places = usual_places(network, found, block, chosen)
    parameters, macs = (sum(each) for each in zip(*_costs(block, places), strict=True))
    where = in_words(list(places), found, chosen)
    return BlockRow(block, block_info(block).attends, where, tuple(place.name for place in places), parameters, macs)


def _costs(block: str, places: dict[Place, dict[str, Any]]) -> list[tuple[int, int]]:
    """Parameters and multiply-accumulates at every place; equal ones are counted once."""
    known: dict[str, tuple[int, int]] = {}
    costs = []
    for place, options in places.items():
        key = repr((place.layout.channels, place.size, options))
        if key not in known:
            built = create_block(block, place.layout.channels, device="meta", **options)
            known[key] = count_parameters(built), count_macs(built, 1, place.layout.channels, *place.size)
        costs.append(known[key])
    return costs


def in_words(places: list[Place], found: Survey, chosen: Chosen) -> str:
    """Places in words, such as ``residual branch, behind bn3``."""
    for at, every in (("blocks", found.blocks()), ("stages", found.stages())):
        if every and len(places) > 1 and places == chosen(at):
            return f"behind every {'residual block' if at == 'blocks' else 'stage'}"
    names = [place.name for place in places]
    inside = _same_in_blocks(names, found)
    return f"residual branch, behind {inside}" if inside else f"behind {first_few(names, 5)}"


def _same_in_blocks(names: list[str], found: Survey) -> str | None:
    """The name that modules have in residual blocks, and in which of these, such as ``conv2 in layer4``."""
    parents, modules = (list(dict.fromkeys(part)) for part in zip(*map(split, names), strict=True))
    units = set(found.blocks())
    if len(modules) > 1 or not set(parents) <= units:
        return None
    stages = list(dict.fromkeys(split(parent)[0] for parent in parents))
    return modules[0] if set(parents) == units else f"{modules[0]} in {first_few(stages, 4)}"


def split(name: str) -> tuple[str, str]:
    """The name of a module as that of its parent, and its own.

    >>> split("layer1.0.bn3")
    ('layer1.0', 'bn3')
    """
    parent, _, own = name.rpartition(".")
    return parent, own

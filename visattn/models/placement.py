"""List the places of a network where a block can go, and what ``at=`` of :func:`visattn.attach` selects them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from visattn.listing import times
from visattn.models.layout import Place
from visattn.models.names import model_config
from visattn.models.places import choose, is_doubtful, reaching_output, survey_places
from visattn.models.sized import build_model, checked_size
from visattn.models.survey import Survey
from visattn.modules import check_default_device, floating_like, own_size, underlying
from visattn.tables import Table, as_text


@dataclass(frozen=True)
class PlaceRow:
    """A module whose output is a feature map.

    Args:
        name: of the module; ``at=`` takes it.
        layout: ``NCHW``, ``NHWC``, ``tokens``, or ``tokens + 1`` with so many class and register tokens.
        channels: of the map.
        height: of the map.
        width: of the map.
        module: its class.
        at: which of ``"blocks"`` and ``"stages"`` select it as well.
        read: whether its pixels reach the output; if not, a block there would have no effect, and is refused.
    """

    name: str
    layout: str
    channels: int
    height: int
    width: int
    module: str
    at: tuple[str, ...]
    read: bool


class PlaceRows(list[PlaceRow]):
    """Rows that print as a table, and the shape of the images that their sizes belong to."""

    def __init__(self, rows: Iterable[PlaceRow], image: Sequence[int]) -> None:
        super().__init__(rows)
        self.image = tuple(image)

    def table(self) -> Table:
        """A row per place."""
        cells = [
            [
                row.name,
                row.module,
                row.layout,
                (", ".join(row.at) or "its name") if row.read else "nothing: the output does not read it",
                str(row.channels),
                f"{row.height} x {row.width}",
            ]
            for row in self
        ]
        caption = (
            f"{len(self)} places, in the order of the forward pass of images of {times(self.image)}, in "
            "others they have other sizes; attach's at= also takes globs, such as '*.conv2'"
        )
        return Table(["name", "module", "layout", "at=", "channels", "size"], cells, caption, texts=4)

    def __repr__(self) -> str:
        return as_text(self.table())


@torch.inference_mode(False)  # in which autograd's graph cannot be read
def places(model: nn.Module | str, *, image_size: int | None = None) -> PlaceRows:
    """Every place of a network where :func:`visattn.attach` can put a block, in the order of the forward pass.

    Args:
        model: a network, or the name of one; by name it is only sketched, and no weights are downloaded.
        image_size: height and width of the images; the network's own unless given, or 224 if it states none.

    >>> found = places("test_resnet")
    >>> [(row.name, row.channels, row.height) for row in found if "stages" in row.at]
    [('layer1', 32, 40), ('layer2', 48, 20), ('layer3', 192, 10), ('layer4', 96, 5)]
    """
    network, found = surveyed(model, image_size)
    every = found.places()
    read = set(reaching_output(network, found, list(every.values())))
    selected = {at: set(selected_by(network, found, at)) for at in ("blocks", "stages")}
    rows = (
        PlaceRow(
            name,
            str(place.layout),
            place.layout.channels,
            *place.size,
            type(found.modules[name]).__name__,
            tuple(at for at, chosen in selected.items() if place in chosen),
            place in read,
        )
        for name, place in every.items()
    )
    return PlaceRows(rows, found.input_shape[1:])


def surveyed(model: nn.Module | str, image_size: int | None) -> tuple[nn.Module, Survey]:
    """A network that can be asked for its places, and these.

    A name is built without weights, which is quick; only where a class token may be all that the output reads, numbers
    have to be computed.
    """
    check_default_device()
    size = checked_size(image_size)
    if isinstance(model, str):
        return _surveyed_by_name(model, size)
    if not isinstance(model, nn.Module):
        raise TypeError(f"places are those of a network or of a name, got {type(model).__name__}")
    network = underlying(model)
    return network, _survey(network, size)


def _surveyed_by_name(name: str, size: int | None) -> tuple[nn.Module, Survey]:
    model_config(name)  # raises if there is no such model
    try:
        with torch.device("meta"):
            network, _ = build_model(name, size)
        found = _survey(network, size)
    except NotImplementedError:  # something in it needs numbers
        found = None
    if found is None or is_doubtful(found.places().values()):
        network, _ = build_model(name, size)
        found = _survey(network, size)
    return network.eval(), found


def _survey(network: nn.Module, size: int | None) -> Survey:
    if size is None:
        return survey_places(network)
    like = floating_like(network)
    channels, _, _ = own_size(network)
    return survey_places(network, torch.zeros(1, channels, size, size, device=like.device, dtype=like.dtype))


def selected_by(network: nn.Module, found: Survey, at: str) -> list[Place]:
    """The places that ``at`` stands for; none where :func:`visattn.attach` would refuse."""
    try:
        return choose(network, found, at)
    except ValueError:
        return []

"""Load weights across the line between a plain backbone and one with attached blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from visattn.models.wrapping import NAME


@dataclass(frozen=True)
class LoadReport:
    """What a checkpoint did not have and what it had too much: weights of attached attention only."""

    loaded: int
    new: list[str]
    ignored: list[str]

    def __str__(self) -> str:
        lines = [f"loaded {self.loaded} tensors"]
        if self.new:
            lines.append(f"new in the model, kept as they are: {_listed(self.new)}")
        if self.ignored:
            lines.append(f"in the checkpoint only, ignored: {_listed(self.ignored)}")
        return "; ".join(lines)


def _listed(keys: list[str]) -> str:
    return f"{len(keys)} ({', '.join(keys[:4])}{', ...' if len(keys) > 4 else ''})"


def _places(state: Mapping[str, Tensor]) -> dict[str, set[str]]:
    """The names of the weights of every attached block, by place."""
    places: dict[str, set[str]] = {}
    for key in state:
        parts = key.split(".")
        if NAME in parts:
            end = parts.index(NAME) + 2
            places.setdefault(".".join(parts[:end]), set()).add(".".join(parts[end:]))
    return places


def load_state_dict(model: nn.Module, state_dict: Mapping[str, Tensor]) -> LoadReport:
    """Load a checkpoint of the plain backbone into a model with blocks, or the other way round.

    Whole attached blocks may be missing or left over; a place that has another block in the checkpoint than in the
    model, and anything else that does not fit, raises.
    """
    own = model.state_dict()
    ours, theirs = _places(own), _places(state_dict)
    for place in ours.keys() & theirs.keys():
        if ours[place] != theirs[place]:
            differing = ", ".join(sorted(ours[place] ^ theirs[place])[:4])
            raise ValueError(f"the checkpoint has another block at {place!r} (they differ in {differing})")
    new = [key for key in own if key not in state_dict and NAME in key.split(".")]
    ignored = [key for key in state_dict if key not in own and NAME in key.split(".")]
    fitting = {key: value for key, value in state_dict.items() if key not in ignored}
    model.load_state_dict({**fitting, **{key: own[key] for key in new}})
    return LoadReport(len(fitting), new, ignored)

"""Load weights across the line between a plain backbone and one with attached blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from visattn.models.attachments import NAME


@dataclass(frozen=True)
class LoadReport:
    """What a checkpoint did not have and what it had too much: weights of attached attention only."""

    loaded: int
    new: list[str]
    ignored: list[str]

    def __str__(self) -> str:
        lines = [f"loaded {self.loaded} tensors"]
        if self.new:
            lines.append(f"new in the model, kept as they are: {len(self.new)} ({', '.join(self.new[:4])}, ...)")
        if self.ignored:
            lines.append(f"in the checkpoint only, ignored: {len(self.ignored)} ({', '.join(self.ignored[:4])}, ...)")
        return "; ".join(lines)


def load_state_dict(model: nn.Module, state_dict: Mapping[str, Tensor]) -> LoadReport:
    """Load a checkpoint of the plain backbone into a model with blocks, or the other way round.

    Weights of attached blocks may be missing or left over; anything else that does not fit raises.
    """
    own = model.state_dict()
    new = [key for key in own if key not in state_dict and NAME in key.split(".")]
    ignored = [key for key in state_dict if key not in own and NAME in key.split(".")]
    fitting = {key: value for key, value in state_dict.items() if key not in ignored}
    model.load_state_dict({**fitting, **{key: own[key] for key in new}})
    return LoadReport(len(fitting), new, ignored)

"""A block with settings, and weights that hide nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import visattn


@dataclass(frozen=True)
class Case:
    """A block with settings, and the map sizes it can be run on."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    channels: int = 16
    sizes: tuple[tuple[int, int], ...] = ((1, 1), (7, 5), (33, 17))

    @property
    def id(self) -> str:
        return "-".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])

    def build(self, *, dtype: torch.dtype = torch.float64, factory: Callable[..., nn.Module] | None = None) -> Any:
        """The block with random weights everywhere (also where it starts with zeros), in eval mode."""
        create = factory or (lambda channels, **kw: visattn.create_block(self.name, channels, **kw))
        block = create(self.channels, dtype=dtype, **self.options)
        randomise(block)
        return block.eval()


def randomise(module: nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 2, generator=generator)
            elif name.endswith("num_batches_tracked") or name in ("rows", "columns"):
                continue
            else:
                fan_in = tensor[0].numel() if tensor.ndim > 1 else 4
                tensor.normal_(std=(2 / fan_in) ** 0.5, generator=generator)

"""What every block shares: the registry, and the shape of a gate."""

from __future__ import annotations

import fnmatch
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor, nn

from visattn.registry import Registry, suggest

FAMILIES = ("channel", "spatial", "mixed", "self", "hard")

Factory = TypeVar("Factory", bound=Callable[..., nn.Module])


@dataclass(frozen=True)
class BlockInfo:
    """What the registry knows of a block."""

    name: str
    factory: Callable[..., nn.Module]
    family: str
    paper: str


BLOCKS: Registry[BlockInfo] = Registry("block")


def register_block(name: str, *, family: str, paper: str) -> Callable[[Factory], Factory]:
    """Enter a block class (or any factory whose first argument is ``channels``) under a name.

    Args:
        name: how :func:`create_block` finds it; a name that is taken raises.
        family: ``channel``, ``spatial``, ``mixed``, ``self`` or ``hard``.
        paper: where the block comes from.
    """
    if family not in FAMILIES:
        raise ValueError(f"unknown block family {family!r}: {suggest(family, FAMILIES)}")

    def register(factory: Factory) -> Factory:
        BLOCKS.add(name, BlockInfo(name, factory, family, paper))
        return factory

    return register


def block_info(name: str) -> BlockInfo:
    """The registry's entry for a name; an unknown one raises and names the closest."""
    return BLOCKS[name]


def list_blocks(pattern: str = "*", *, family: str | None = None) -> list[str]:
    """Sorted names of the blocks that match a glob and belong to a family.

    >>> list_blocks("nonlocal*", family="self")
    ['nonlocal', 'nonlocal_concat', 'nonlocal_dot', 'nonlocal_gaussian']
    """
    if family is not None and family not in FAMILIES:
        raise ValueError(f"unknown block family {family!r}: {suggest(family, FAMILIES)}")
    return [name for name in BLOCKS if fnmatch.fnmatchcase(name, pattern) and family in (None, BLOCKS[name].family)]


def create_block(name: str, channels: int, **kwargs: Any) -> nn.Module:
    """Build a block by name: a module (B, C, H, W) -> (B, C, H, W).

    >>> create_block("se", 64, rd_ratio=1 / 8).fc1
    Conv2d(64, 8, kernel_size=(1, 1), stride=(1, 1))
    """
    factory = BLOCKS[name].factory
    parameters = list(inspect.signature(factory).parameters.values())
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        valid = [p.name for p in parameters[1:]]
        for key in kwargs:
            if key not in valid:
                raise TypeError(
                    f"block {name!r} has no argument {key!r}: {suggest(key, valid)} (valid: {', '.join(valid)})"
                )
    if not isinstance(channels, int) or channels < 1:
        raise ValueError(f"block {name!r} needs a positive number of channels, got {channels!r}")
    return factory(channels, **kwargs)


def reduced(channels: int, rd_ratio: float, *, minimum: int = 1) -> int:
    """Width of a bottleneck: the exact fraction of the channels, not rounded to a multiple of eight.

    >>> reduced(64, 1 / 16), reduced(64, 1 / 32, minimum=8)
    (4, 8)
    """
    if rd_ratio <= 0:
        raise ValueError(f"rd_ratio must be above zero, got {rd_ratio}")
    return max(minimum, int(channels * rd_ratio))


class Gate(nn.Module, ABC):
    """A block that multiplies its input by a map it computes from it."""

    @abstractmethod
    def attention(self, x: Tensor) -> Tensor:
        """The map, (B, C, 1, 1), (B, 1, H, W) or (B, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        """The gated input, (B, C, H, W)."""
        return x * self.attention(x)

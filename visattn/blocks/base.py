"""What all blocks share: the registry, and the base class of gates."""

from __future__ import annotations

import fnmatch
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import torch
import torch.fx
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.parameter import is_lazy

from visattn.blocks.announced import announced, from_same_package, import_announced, package, says
from visattn.blocks.primitives import gate, is_channels_last
from visattn.core.arguments import numbers, whole
from visattn.listing import shown
from visattn.registry import Registry, suggest

# What the blocks of each family attend to, unless they say something else.
ATTENDS = {
    "channel": "channels",
    "spatial": "places",
    "mixed": "channels and places",
    "self": "pairs of places",
    "hard": "a few places",
}
FAMILIES = tuple(ATTENDS)
MEMORY = "a learned memory"  # what a block attends to whose keys are no part of the image

Factory = TypeVar("Factory", bound=Callable[..., nn.Module])


@dataclass(frozen=True)
class BlockInfo:
    """Registry entry of a block."""

    name: str
    factory: Callable[..., nn.Module]
    family: str
    paper: str
    attends: str
    used_in: str | None


BLOCKS: Registry[BlockInfo] = Registry("block")
NAME = re.compile(r"[A-Za-z0-9]+(_[A-Za-z0-9]+)*")
WIDEST = 2**16  # channels of a bottleneck
MOST_CHANNELS = 2**31 - 1  # which torch can count
LARGEST = 2**20  # any number among the options of a block
# Names that no block may have, and why; modules that use such names add theirs.
RESERVED: dict[str, str] = dict.fromkeys(("all", "auto", "none"), "that is a word of the commands")


def register_block(
    name: str, *, family: str, paper: str, attends: str | None = None, used_in: str | None = None
) -> Callable[[Factory], Factory]:
    """Register a block class (or any factory whose first argument is ``channels``) under a name.

    Args:
        name: how :func:`create_block` finds it; a name that is already taken raises.
        family: ``channel``, ``spatial``, ``mixed``, ``self`` or ``hard``.
        paper: where the block comes from.
        attends: what it attends to, if not to what its family does (``ATTENDS``).
        used_in: where the paper puts it, if that is not in a ResNet, such as "the skip connections of a U-Net".
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(
            "a block's name becomes part of the names of models: letters, digits and single underscores between them, "
            f"got {name!r}"
        )
    if name in RESERVED:
        raise ValueError(f"a block cannot be named {name!r}: {RESERVED[name]}")
    if family not in FAMILIES:
        raise ValueError(f"unknown block family {family!r}: {suggest(family, FAMILIES)}")
    if not isinstance(paper, str) or not paper.strip():
        raise ValueError(f"block {name!r} needs a paper: where it comes from, in words, got {paper!r}")
    if attends is not None and not (isinstance(attends, str) and attends.strip()):
        raise ValueError(f"block {name!r} attends to something, in words, such as 'channels', got {attends!r}")
    if used_in is not None and not (isinstance(used_in, str) and used_in.strip()):
        raise ValueError(f"block {name!r} is used in some network, in words, such as 'a U-Net', got {used_in!r}")

    def register(factory: Factory) -> Factory:
        if not callable(factory) or isinstance(factory, nn.Module):
            raise TypeError(
                f"block {name!r} needs a class, or a function of the number of channels, got {type(factory).__name__}"
            )
        BLOCKS.add(name, BlockInfo(name, factory, family, paper, attends or ATTENDS[family], used_in))
        return factory

    return register


def block_info(name: str) -> BlockInfo:
    """Registry entry of a name; an unknown name raises and suggests the closest.

    A block that another package announces (:mod:`visattn.blocks.announced`) is imported now.
    """
    if isinstance(name, str) and name not in BLOCKS:
        if name not in announced():
            raise ValueError(f"unknown block {name!r}: {suggest(name, list_blocks())}")
        if problem := _problem(name):
            raise ValueError(problem)
        import_announced(name)
        if name not in BLOCKS:
            raise ValueError(f"{says(name)} that it does not register: @visattn.register_block({name!r}, ...)")
    return BLOCKS[name]


def is_imported(name: str) -> bool:
    """Whether a block is registered, and not only announced by a package that was not imported yet."""
    return name in BLOCKS


def unusable_announcements() -> list[str]:
    """One line for every block that another package announces in vain: its name is taken, or none."""
    return [problem for name in announced() if (problem := _problem(name))]


def _problem(name: str) -> str | None:
    entries = announced()[name]
    if len(entries) > 1:
        return (
            f"{' and '.join(sorted(map(package, entries)))} announce a block of the same name, {name!r}: uninstall one"
        )
    reason = RESERVED.get(name)
    if not NAME.fullmatch(name):
        reason = "a name has letters, digits and single underscores between them"
    elif name in BLOCKS and not from_same_package(BLOCKS[name].factory, entries[0]):
        reason = "there is another one of this name"
    return f"{says(name)} that cannot be used: {reason}" if reason else None


def list_blocks(pattern: str = "*", *, family: str | None = None) -> list[str]:
    """Sorted names of the blocks that match a glob and belong to a family.

    Blocks that other packages announce are among them; their family is known once they were imported.

    >>> list_blocks("nonlocal*", family="self")
    ['nonlocal', 'nonlocal_concat', 'nonlocal_dot', 'nonlocal_gaussian']
    """
    if not isinstance(pattern, str):
        raise TypeError(f"pattern is a name or a glob, such as 'nonlocal*', got {pattern!r}")
    if family is not None and family not in FAMILIES:
        raise ValueError(f"unknown block family {family!r}: {suggest(family, FAMILIES)}")
    names = [name for name in BLOCKS if family in (None, BLOCKS[name].family)]
    if family is None:
        names = sorted({*names, *(name for name in announced() if not _problem(name))})
    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]


def create_block(name: str, channels: int, /, **kwargs: Any) -> nn.Module:
    """Build a block by name: a module (B, C, H, W) -> (B, C, H, W).

    ``device`` and ``dtype`` can be given for any block; one that does not take them itself is moved there.

    >>> create_block("se", 64, rd_ratio=1 / 8).fc1
    Pointwise(64, 8, kernel_size=(1, 1), stride=(1, 1))
    """
    factory = block_info(name).factory
    parameters = list(inspect.signature(factory).parameters.values())
    elsewhere: dict[str, Any] = {}
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        valid = [p.name for p in parameters[1:]]
        elsewhere = {key: kwargs.pop(key) for key in ("device", "dtype") if key in kwargs and key not in valid}
        for key in kwargs:
            if key not in valid:
                raise TypeError(
                    f"block {name!r} has no argument {key!r}: {suggest(key, valid)} (valid: {', '.join(valid)})"
                )
    dtype = kwargs.get("dtype", elsewhere.get("dtype"))
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize > 1):
        raise TypeError(f"block {name!r} computes in torch.float32, float64, bfloat16 or float16, got dtype={dtype!r}")
    width = whole(channels)
    if width is None or not 1 <= width <= MOST_CHANNELS:
        raise ValueError(f"block {name!r} needs a positive number of channels, got {shown(channels)}")
    options = numbers(f"block {name!r}", factory, kwargs)
    for key, value in options.items():
        if isinstance(value, int | float) and not abs(value) <= LARGEST:
            raise ValueError(f"block {name!r} needs {key} to be at most {LARGEST}, got {shown(value)}")
    try:
        block = factory(width, **options)
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise ValueError(
            f"block {name!r} of {width} channels needs more memory than there is, with {options}"
        ) from error
    check_built(f"block {name!r}", block)
    _watch_inputs(block, name, width)
    return block.to(elsewhere.get("device"), elsewhere.get("dtype")) if any(elsewhere.values()) else block


def check_built(what: str, block: Any) -> None:
    """Raise unless a factory has made a module whose weights are there."""
    if not isinstance(block, nn.Module):
        raise TypeError(f"{what} is not a module but {type(block).__name__}: its factory must return one")
    for name, tensor in chain(block.named_parameters(), block.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(
                f"{what} has a lazy module, whose {name!r} has no shape yet: a block is told its channels, so that it "
                "can build all of its weights"
            )


def check_output(output: Any, x: Tensor, *, changed: bool) -> None:
    """Raise if what a block makes of a map is not what a block makes, or if it has changed the map itself."""
    if changed:
        raise ValueError("this block changes the map that it is given, in place: it must return another one")
    if not isinstance(output, Tensor) or output.shape != x.shape:
        got = tuple(output.shape) if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise ValueError(f"a block gives back a map of the shape it was given, {tuple(x.shape)}; this one: {got}")
    if not output.is_floating_point():
        raise ValueError(f"a block gives back floating-point numbers; this one: {output.dtype}")
    if not output.isfinite().all():
        raise ValueError("the numbers of this block are not finite (NaN or infinite), even before training")


def reduced(channels: int, rd_ratio: float, *, minimum: int = 1) -> int:
    """Width of a bottleneck: the exact fraction of the channels, not rounded to a multiple of eight.

    >>> reduced(64, 1 / 16), reduced(64, 1 / 32, minimum=8)
    (4, 8)
    """
    if not rd_ratio > 0:
        raise ValueError(f"rd_ratio must be above zero, got {rd_ratio}")
    if minimum < 1:
        raise ValueError(f"rd_min must be at least one, got {minimum}")
    width = max(minimum, int(channels * rd_ratio))
    if width > WIDEST:
        raise ValueError(
            f"a bottleneck of {width:.3g} channels is too wide: rd_ratio {rd_ratio:g}, rd_min {minimum:.3g}"
        )
    return width


def _watch_inputs(block: Any, name: str, channels: int) -> None:
    """Have a block say what it takes when it is given something else."""
    block.built_as = (name, channels)
    block.register_forward_pre_hook(takes_maps)
    norms: list[Any] = [module for module in block.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]
    for norm in norms:
        norm.built_for = name
        norm.register_forward_pre_hook(takes_several_numbers)


# TorchScript takes no hooks but plain functions of a module and a tuple, and must not read what they do.


def takes_maps(self: Any, args: tuple[Tensor]) -> None:
    """A hook of a block."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        _check_map(self.built_as, args)


def takes_several_numbers(self: Any, args: tuple[Tensor]) -> None:
    """A hook of a block's batch norm."""
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        _check_batch(self, self.built_for, args)


def _check_map(built_as: tuple[str, int], args: tuple[Any, ...]) -> None:
    """Raise before PyTorch does, or where it would not, unless the input is a tracer's stand-in."""
    (block, channels), x = built_as, args[0] if args else None
    if type(x) is Tensor and x.ndim == 4 and x.is_floating_point():  # all is well, nearly always: ask little
        _, width, height, length = x.shape
        if width == channels and height != 0 and length != 0:
            return
    if isinstance(x, Proxy) or torch.jit.is_tracing():  # type: ignore[attr-defined]  # public, but not in __all__
        return
    if not isinstance(x, Tensor):
        raise TypeError(f"block {block!r} takes a tensor (B, {channels}, H, W), got {type(x).__name__}")
    if x.ndim != 4 or x.shape[1] != channels or x.shape[2] == 0 or x.shape[3] == 0:
        raise ValueError(f"block {block!r} was built for maps (B, {channels}, H, W), got a tensor {tuple(x.shape)}")
    if not x.is_floating_point():
        raise TypeError(f"block {block!r} takes floating-point numbers, got {x.dtype}")


def _check_batch(norm: nn.Module, block: str, args: tuple[Tensor]) -> None:
    """Raise before PyTorch does where there is but one number to take statistics of."""
    (x,) = args
    if norm.training and x.numel() == x.shape[1]:
        raise ValueError(
            f"the batch norm of block {block!r} sees one number per channel, so it cannot be trained on a "
            "single image: take batches of two or more, or put it into evaluation mode"
        )


def laid_out_like(x: Tensor, other: Tensor) -> Tensor:
    """Put a map into the memory layout of another, so that a channels-last network stays channels-last."""
    return in_layout_of(other, x)


def in_layout_of(other: Tensor, x: Tensor) -> Tensor:
    """One step for torch.fx, which wraps what a function of the same file calls: it decides by strides."""
    return x.contiguous(memory_format=torch.channels_last if is_channels_last(other) else torch.contiguous_format)


torch.fx.wrap("in_layout_of")


class Gate(nn.Module, ABC):
    """A block that multiplies its input by a map it computes from it."""

    @abstractmethod
    def attention(self, x: Tensor) -> Tensor:
        """The map, (B, C, 1, 1), (B, 1, H, W) or (B, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        """The gated input, (B, C, H, W)."""
        return gate(x, self.attention(x))

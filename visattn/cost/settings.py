"""What is measured, and how: the words of the command, checked before anything runs."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from visattn.blocks import is_imported, list_blocks
from visattn.core.arguments import at_least_one, whole
from visattn.listing import shown
from visattn.registry import suggest

Words: TypeAlias = str | Sequence[str]  # "train,eval" or ["train", "eval"]
Shapes: TypeAlias = str | Sequence[int] | Sequence[str | Sequence[int]]  # "32x256x56x56,8x64x7x7" or (32, 256, 56, 56)

MODES = ("train", "eval")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
COMPILE = ("off", "on")
LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
LARGEST_SIDE = 2**20
MOST_REPEATS = 10**6


@dataclass(frozen=True)
class Setting:
    """How a module runs.

    Args:
        mode: ``train``: gradients for the input and the parameters; ``eval``: evaluation mode, no gradients.
        dtype: of the module and its input, ``fp32``, ``bf16`` or ``fp16``.
        compile: ``on``: by ``torch.compile``.
        layout: of the maps in memory, ``nchw`` or ``nhwc``.
    """

    mode: str
    dtype: str
    compile: str
    layout: str

    @property
    def train(self) -> bool:
        """Whether there is a backward pass."""
        return self.mode == "train"

    def place(self, module: nn.Module, device: torch.device) -> nn.Module:
        """The module as it runs in this setting."""
        module.to(device, DTYPES[self.dtype]).train(self.train)
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.ndim == 4:  # nn.Module.to fails where there is a 3-D convolution as well
                tensor.data = tensor.data.to(memory_format=LAYOUTS[self.layout])
        return torch.compile(module, dynamic=False) if self.compile == "on" else module  # type: ignore[return-value]

    def forget_compiled(self) -> None:
        """Drop what was compiled for other modules, of which the compiler keeps only so many."""
        if self.compile == "on":
            torch.compiler.reset()

    def random(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """Random numbers in the dtype and the layout of this setting."""
        tensor = torch.randn(*shape, device=device).to(DTYPES[self.dtype])
        return tensor.to(memory_format=LAYOUTS[self.layout]) if tensor.ndim == 4 else tensor


def all_settings(mode: Words, dtype: Words, compile: Words, layout: Words) -> list[Setting]:
    """Every combination of the words."""
    chosen = (
        words("mode", mode, MODES),
        words("dtype", dtype, DTYPES),
        words("compile", compile, COMPILE),
        words("layout", layout, LAYOUTS),
    )
    return [Setting(*each) for each in product(*chosen)]


def split(what: str, given: Any) -> list[str]:
    """Words given as one text with commas or as a list, each once."""
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, list | tuple) or not all(isinstance(each, str) for each in parts):
        raise TypeError(f"{what} is text such as 'a,b', or a list of texts, got {shown(given)}")
    found = list(dict.fromkeys(each.strip() for each in parts if each.strip()))
    if not found:
        raise ValueError(f"{what} is empty")
    return found


def words(what: str, given: Any, known: Iterable[str]) -> list[str]:
    """Words that are all known.

    >>> words("mode", "train,eval", MODES), words("layout", ["nhwc"], LAYOUTS)
    (['train', 'eval'], ['nhwc'])
    """
    found = split(what, given)
    known = list(known)
    for each in found:
        if each not in known:
            raise ValueError(f"unknown {what} {shown(each)}: {suggest(each, known)}")
    return found


def block_names(given: Words) -> list[str]:
    """Names of blocks from names and globs; ``all`` are all, except those of packages that were not imported yet.

    >>> block_names("se,nonlocal_*")
    ['se', 'nonlocal_concat', 'nonlocal_dot', 'nonlocal_gaussian']
    """
    known = list_blocks()
    found: list[str] = []
    for pattern in split("blocks", given):
        matching = fnmatch.filter(known, "*" if pattern == "all" else pattern)
        matching = [name for name in matching if name == pattern or is_imported(name)]
        if not matching:
            raise ValueError(f"unknown block {shown(pattern)}: {suggest(pattern, ['all', *known])}")
        found += matching
    return list(dict.fromkeys(found))


def shapes(given: Shapes) -> list[tuple[int, int, int, int]]:
    """Shapes (B, C, H, W) of feature maps.

    >>> shapes("32x256x56x56,8x64x7x7"), shapes([(2, 64, 8, 8)])
    ([(32, 256, 56, 56), (8, 64, 7, 7)], [(2, 64, 8, 8)])
    """
    every: Any = given.split(",") if isinstance(given, str) else given
    if not isinstance(every, list | tuple):
        raise TypeError(f"shape is text such as '32x256x56x56', or numbers, or a list of these, got {shown(given)}")
    if not every:
        raise ValueError("shape is empty")
    alone = all(whole(each) is not None for each in every)
    return list(dict.fromkeys(map(_shape, [every] if alone else every)))


def _shape(given: Any) -> tuple[int, int, int, int]:
    sides = re.split(r"\s*x\s*", given.strip().lower()) if isinstance(given, str) else given
    numbers = []
    if isinstance(sides, list | tuple) and len(sides) == 4:
        numbers = [int(side) if re.fullmatch(r"\d{1,9}", str(side)) else whole(side) for side in sides]
    if not numbers or not all(number is not None and 0 < number <= LARGEST_SIDE for number in numbers):
        raise ValueError(f"a shape is batch x channels x height x width, such as 32x256x56x56, got {shown(given)}")
    return tuple(numbers)  # type: ignore[return-value]  # four numbers


def number_above(what: str, value: Any, least: float) -> float:
    """A finite number above another, or raise."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not (math.isfinite(number) and number > least):
        raise ValueError(f"{what} must be a number above {least:g}, got {shown(value)}")
    return number


def checked_repeats(repeats: int | None) -> int | None:
    """A number of rounds, if one is given, or raise."""
    return None if repeats is None else at_least_one("repeats", repeats, MOST_REPEATS)


@contextmanager
def quiet_machine(threads: int | None) -> Iterator[None]:
    """The same random numbers each time and, if given, that many threads; afterwards all is as before."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(at_least_one("threads", threads, 4096))
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            yield
    finally:
        torch.set_num_threads(before)

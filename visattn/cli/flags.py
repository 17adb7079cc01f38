"""Check flags before jsonargparse sees them: its messages are long, and it reads ``1:30`` as ninety."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args, get_type_hints

from visattn.cli import notation
from visattn.registry import suggest
from visattn.training.settings import Settings

# Trainer arguments that visattn manages itself, and what to do instead.
MANAGED = {
    "accumulate_grad_batches": "use --accumulate",
    "barebones": "a run always keeps its logs and checkpoints",
    "default_root_dir": "use --out and --name",
    "devices": "use --devices",
    "enable_checkpointing": "a run always saves its last and best epochs",
    "fast_dev_run": "try --epochs 1 --trainer.limit_train_batches 2 --trainer.limit_val_batches 2",
    "gradient_clip_val": "use --clip-grad",
    "max_epochs": "use --epochs",
    "num_nodes": "use --num-nodes",
    "overfit_batches": "try --trainer.limit_train_batches 2 --augment none",
    "precision": "use --precision",
    "use_distributed_sampler": "images are always split among the processes",
}


def pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every argument, with the one before it."""
    yield from zip(["", *arguments], arguments, strict=False)


def _key(flag: str) -> str:
    return flag.removeprefix("--").partition("=")[0].removesuffix("+").replace("-", "_")


def check_flags(arguments: Sequence[str], known: set[str]) -> None:
    """Raise for a flag that does not exist, and name the closest; or for one that visattn sets itself."""
    for argument in arguments:
        if argument == "-h" or not argument.startswith("-") or _is_number(argument):
            continue
        key = _key(argument)
        if key == "trainer":
            raise ValueError("--trainer takes no value: use --trainer.NAME, or 'trainer:' in a --config file")
        if key in known | {"help", "config", "plugin", "trainer.help"} or key.removeprefix("no_") in known:
            continue
        if any(key.startswith(f"{each}.") for each in known - {"trainer"}):
            continue  # a key inside a dictionary or class: jsonargparse checks it
        if (reason := MANAGED.get(key.removeprefix("trainer."))) is not None:
            raise ValueError(f"{argument.partition('=')[0]!r} cannot be set here: {reason}")
        flags = {f"--{each}" if "." in each else f"--{each.replace('_', '-')}" for each in known}
        raise ValueError(f"unknown flag {argument.partition('=')[0]!r}: {closest(argument.partition('=')[0], flags)}")


def check_number(flag: str, value: Any) -> None:
    """Raise for the time of a day, or no number at all, where a number is expected."""
    types = get_type_hints(Settings).get(_key(flag), int if flag.count(".") == 1 else str)
    wanted = {types, *get_args(types)} & {int, float}
    if wanted and isinstance(value, str) and value.lstrip("+-").lower() in ("nan", "inf", "infinity"):
        raise ValueError(f"{_key(flag)}: expected a finite number, got {value}")
    if wanted and flag != "--trainer.max_time" and isinstance(value, str) and notation.CLOCK.fullmatch(value):
        raise ValueError(f"{_key(flag)}: expected {wanted.pop().__name__}. Got value: {value}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def closest(key: str, known: set[str]) -> str:
    """A hint at a similar name, or at the help."""
    said = suggest(key, known)
    return said if said.startswith("did you mean") else "see --help"


def values_of(arguments: Sequence[str], flag: str) -> Iterator[str]:
    """All values given for a flag."""
    for before, value in pairs(arguments):
        if before == flag:
            yield value
        elif value.startswith(f"{flag}="):
            yield value.partition("=")[2]

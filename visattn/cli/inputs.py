"""What the commands that read images share: flags, the model, the images, and what was skipped."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from visattn.files import at_home, printable, say

if TYPE_CHECKING:
    from pathlib import Path

    from visattn.data.preparation import Preparation
    from visattn.models.saving.saved import Trained

DONE, PARTLY, NOTHING = 0, 1, 2  # exit codes
LARGEST_BATCH = 2**16


class LeftOut:
    """What was skipped and why: printed at once, and kept."""

    def __init__(self) -> None:
        self.entries: list[dict[str, str]] = []

    def add(self, what: str, why: str) -> None:
        """Print and record a skipped item."""
        say(printable(f"visattn: {what}: {why}"), error=True)
        self.entries.append({"what": what, "why": why})

    @property
    def code(self) -> int:
        """Exit code of a command that produced something."""
        return PARTLY if self.entries else DONE


def image_command(commands: Any, name: str, summary: str, epilog: str) -> argparse.ArgumentParser:
    """Add a command with flags for the model and the images."""
    parser = model_command(commands, name, summary, epilog)
    parser.add_argument(
        "--image", metavar="PATH", nargs="+", action="extend", required=True, help="image files and folders"
    )
    return parser


def model_command(
    commands: Any, name: str, summary: str, epilog: str, *, batch_size: int = 8
) -> argparse.ArgumentParser:
    """Add a command with flags for the model."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", metavar="NAME", help="a timm or visattn model; pretrained unless --weights is given")
    parser.add_argument(
        "--weights",
        metavar="PATH",
        help="a run folder, a checkpoint (.ckpt), or a state dict (.safetensors, .pth)",
    )
    parser.add_argument(
        "--batch-size", metavar="N", type=int, default=batch_size, help=f"images per batch [{batch_size}]"
    )
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, ... [cuda if available]")
    return parser


def listed(text: str | None, flag: str) -> list[str] | None:
    """Split at commas, dropping duplicates."""
    if text is None:
        return None
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError(f"{flag} is empty")
    return names


def named_images(arguments: argparse.Namespace, left_out: LeftOut) -> list[Path]:
    """Find the existing files named by ``--image``."""
    from visattn.data.images import find_images

    if arguments.batch_size < 1:
        raise ValueError(f"--batch-size must be at least 1, got {arguments.batch_size}")
    if arguments.batch_size > LARGEST_BATCH:
        raise ValueError(f"--batch-size must be at most {LARGEST_BATCH}, got {arguments.batch_size}")
    paths, missing = find_images([at_home(name) for name in arguments.image])
    for what, why in missing:
        left_out.add(what, why)
    return paths


def named_model(arguments: argparse.Namespace) -> tuple[Trained, Preparation]:
    """Open the model given by ``--model`` and ``--weights``, on its device."""
    from rich.console import Console

    from visattn.opening import open_model

    with Console(stderr=True).status("opening the model"), warnings.catch_warnings(record=True) as noted:
        opened = open_model(arguments.model, arguments.weights, arguments.device)
    for each in noted:
        say(printable(f"visattn: note: {each.message}"), error=True)
    return opened


@contextmanager
def progress(what: str = "images") -> Iterator[Callable[[list[Any]], Iterable[Any]]]:
    """Show a progress bar of what is worked on; yields a function that wraps the iterable to track."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        yield lambda items: bar.track(items, description=what)

"""``visattn predict``: classify your images, as a table or as JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from visattn.cli.inputs import DONE, NOTHING, PARTLY, LeftOut, image_command, named_images, named_model, progress
from visattn.files import printable, to_json

if TYPE_CHECKING:
    from visattn.prediction import Prediction

WIDE = 10_000  # characters, more than any name has

EPILOG = f"""\
examples:
  visattn predict --weights runs/resnet_cbam-digits --image digit.png
  visattn predict --model resnet50 --image a.jpg holidays/ --top 3
  visattn predict --weights runs/mine --image photographs/ --top 1 --json > predictions.json

exit codes:
  {DONE}  all images were classified
  {PARTLY}  some were skipped, or the pretrained weights could not be downloaded; stderr says what and why
  {NOTHING}  invalid usage, or no image could be classified
"""


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = image_command(commands, "predict", "classify your images with a model", EPILOG)
    parser.add_argument("--top", metavar="N", type=int, default=5, help="classes per image, most likely first [5]")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Predict and print."""
    from visattn.data.images import read_batches
    from visattn.prediction import Predictor

    if arguments.top < 1:
        raise ValueError(f"--top must be at least 1, got {arguments.top}")
    left_out = LeftOut()
    paths = named_images(arguments, left_out)
    if not paths:
        return NOTHING
    trained, preparation = named_model(arguments)
    predictor = Predictor(trained.model, trained.classes, arguments.top)
    found: list[Prediction] = []
    with progress() as track:
        for batch in read_batches(track(paths), arguments.batch_size, left_out.add, preparation.pixels):
            found += predictor(preparation.together([pixels for _, pixels in batch]), [name for name, _ in batch])
    if not found:
        return NOTHING
    if arguments.json:
        entries = [_entry(prediction) for prediction in found]
        print(to_json({"model": trained.name, "images": entries, "left_out": left_out.entries}), end="")
    else:
        _print_table(found)
    return left_out.code


def _entry(prediction: Prediction) -> dict[str, Any]:
    rows = zip(prediction.indices, prediction.labels, prediction.probabilities, strict=True)
    return {
        "file": prediction.file,
        "predictions": [{"index": index, "class": label, "probability": share} for index, label, share in rows],
    }


def _print_table(found: Sequence[Prediction]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("image", overflow="fold")
    table.add_column("class", overflow="fold")
    table.add_column("probability", justify="right")
    for prediction in found:
        name = printable(prediction.file or "")
        for label, share in zip(prediction.labels, prediction.probabilities, strict=True):
            table.add_row(Text(name), Text(printable(label)), f"{share:.1%}")
            name = ""  # only on the first row
        table.add_section()
    # In a pipe or a file there is no window to fit: keep every row on one line.
    Console(width=None if sys.stdout.isatty() else WIDE).print(table)

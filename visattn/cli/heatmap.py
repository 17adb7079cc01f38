"""``visattn heatmap``: show what a model looks at in your images, as pictures and as a page."""

from __future__ import annotations

import argparse
from typing import Any

from visattn.cli.inputs import (
    DONE,
    NOTHING,
    PARTLY,
    LeftOut,
    image_command,
    listed,
    named_images,
    named_model,
    progress,
)
from visattn.constants import OF, ON_SHEETS, WITH_PATCHES
from visattn.files import printable, say
from visattn.listing import first_few, shown

EPILOG = f"""\
examples:
  visattn heatmap --model vit_small_patch16_224 --image a.jpg b.jpg holidays/
  visattn heatmap --weights runs/resnet_cbam-digits --image digits/ --method gradcam,gates
  visattn heatmap --model resnet50 --weights mine.safetensors --image a.jpg --method gradcam --target "tabby"

written to --out:
  index.html                switch methods, click a patch to see what it attends to (up to {WITH_PATCHES} images)
  comparison.png            a row per image, a column per method; the first {ON_SHEETS} images, as on the page
  <image>_<method>.png      the heatmap over the image; .npy: the heatmap itself, over the part that the model saw
  <image>_depth.png         rollout up to each layer;  _grid.png: --layers and --heads
  <image>_channels.png      the weights of channel gates;  _fixations.png: the path of glimpses
  manifest.json             model, methods, layers, classes, probabilities, files, and what was skipped

exit codes:
  {DONE}  everything was written
  {PARTLY}  something was skipped, or the pretrained weights could not be downloaded; stderr says what and why
  {NOTHING}  invalid usage, or nothing could be written
"""


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = image_command(commands, "heatmap", "see what a model looks at in your images", EPILOG)
    parser.add_argument(
        "--method",
        metavar="A,B",
        default="auto",
        help="see visattn.list_methods [auto: what is best for the model]",
    )
    parser.add_argument(
        "--target", metavar="CLASS", default="auto", help="class index or name [auto: the predicted class]"
    )
    parser.add_argument("--of", choices=OF, help="what to explain of the class [logit, or what auto chooses]")
    parser.add_argument("--versus", metavar="CLASS", help="explain why the target rather than this class")
    parser.add_argument("--out", metavar="FOLDER", default="heatmaps", help="output folder [heatmaps]")
    parser.add_argument(
        "--layers", metavar="L,M", help="add a grid of single heads for these layers: names, indices, or all"
    )
    parser.add_argument("--heads", metavar="H,I", help="heads in that grid: indices, or all")
    parser.add_argument(
        "--balanced", action="store_true", help="balanced gradients, for the methods that have the choice"
    )
    parser.add_argument(
        "--signed", action="store_true", help="show what speaks against the class, too, in blue, if a method knows it"
    )
    parser.add_argument("--score", action="store_true", help="say below each heatmap whether it is true")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make the heatmaps."""
    from visattn.examination import examine
    from visattn.heatmaps import METHODS
    from visattn.heatmaps.methods.base import check_method
    from visattn.report.folder import HeatmapFolder, unlisted

    # Report mistakes in the request before computing anything.
    left_out = LeftOut()
    methods = listed(arguments.method, "--method")
    for name in methods or ():
        check_method(name)
    layers, heads = _layers(arguments.layers), _heads(arguments.heads)
    paths = named_images(arguments, left_out)
    if not paths:
        return NOTHING
    folder = HeatmapFolder(arguments.out, METHODS)
    trained, preparation = named_model(arguments)
    with progress() as track:
        found = examine(
            trained,
            paths,
            methods or (),
            target=None if arguments.target == "auto" else arguments.target,
            of=arguments.of,
            versus=arguments.versus,
            out=folder,
            layers=layers,
            heads=heads,
            score=arguments.score,
            balanced=arguments.balanced,
            signed=arguments.signed,
            preparation=preparation,
            batch_size=arguments.batch_size,
            note=left_out.add,
            track=track,
        )
    if not found.number:
        return NOTHING
    some = f" (the page shows the first {ON_SHEETS})" if found.number > ON_SHEETS else ""
    say(f"{found.number} image{'s' if found.number > 1 else ''}{some}: {found.page}")
    if others := unlisted(folder.path):
        note = f"visattn: note: {arguments.out} also has files that are not of this run: {first_few(others, 3)}"
        say(printable(note), error=True)
    return left_out.code


def _layers(text: str | None) -> str | list[str | int] | None:
    """Parse layer names and indices, or ``all``."""
    names = listed(text, "--layers")
    if names is None or names == ["all"]:
        return None if names is None else "all"
    return [_number(name) for name in names]


def _heads(text: str | None) -> str | list[int] | None:
    """Parse head indices, or ``all``."""
    names = listed(text, "--heads")
    if names is None or names == ["all"]:
        return None if names is None else "all"
    numbers = []
    for name in names:
        if isinstance(number := _number(name), str):
            raise ValueError(f"--heads must be numbers or all, got {shown(name)}")
        numbers.append(number)
    return numbers


def _number(name: str) -> str | int:
    return int(name) if name.removeprefix("-").isdecimal() and len(name) < 100 else name

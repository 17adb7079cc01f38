"""``visattn heatmap``: what a model looks at in your images, as pictures and as a page."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from visattn.cli.inputs import DONE, NOTHING, PARTLY, LeftOut, add_inputs, batches, named_images, named_model

if TYPE_CHECKING:
    from visattn.cli.findings import Question
    from visattn.data.preparation import Preparation
    from visattn.models.saved import Trained

DEFAULT = ("rollout", "chefer", "gradcam", "gates", "glimpses")  # those of them that fit,
OTHERWISE = ("input_gradient", "eigencam")  # or the first of these
WITH_PATCHES = 24  # images, up to which the page has the relations of patches
ON_SHEETS = 96  # images on the comparison sheets and the page

EPILOG = f"""\
examples:
  visattn heatmap --model vit_small_patch16_224 --image a.jpg b.jpg holidays/
  visattn heatmap --weights runs/resnet_cbam-digits --image digits/ --method gradcam,gates
  visattn heatmap --model resnet50 --weights mine.safetensors --image a.jpg --method gradcam --target "tabby"

written to --out:
  index.html                opacity, methods, and what the patch you click attends to (up to {WITH_PATCHES} images)
  comparison.png            a row per image, a column per method; the first {ON_SHEETS} images, as on the page
  <image>_<method>.png      the heatmap over the image; .npy: the heatmap itself, as the model saw the image
  <image>_depth.png         rollout up to each layer;  _grid.png: --layers and --heads
  <image>_channels.png      the weights of channel gates;  _fixations.png: the path of glimpses
  manifest.json             model, methods, layers, classes, probabilities, files, and what was left out

exit codes:
  {DONE}  everything was made
  {PARTLY}  something was left out, or the pretrained weights could not be fetched; stderr says what and why
  {NOTHING}  wrong usage, or nothing could be made
"""


def add_command(commands: Any) -> None:
    """Enter the command into the parser."""
    parser = commands.add_parser(
        "heatmap",
        help="see what a model looks at in your images",
        description="See what a model looks at in your images.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_inputs(parser)
    parser.add_argument(
        "--method", metavar="A,B", help=f"see visattn.list_methods [those of {','.join(DEFAULT)} that fit]"
    )
    parser.add_argument(
        "--target", metavar="CLASS", default="auto", help="a class by number or name [auto: the predicted one]"
    )
    parser.add_argument("--out", metavar="FOLDER", default="heatmaps", help="where to write [heatmaps]")
    parser.add_argument("--layers", metavar="L,M", help="a grid of single heads: names or numbers of layers, or all")
    parser.add_argument("--heads", metavar="H,I", help="the same for these heads: numbers, or all")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make the heatmaps."""
    from dataclasses import asdict
    from pathlib import Path

    import torch

    from visattn.cli.findings import Examiner, Finding
    from visattn.cli.outputs import KINDS, make_folder, mark, write_finding, write_manifest
    from visattn.cli.stems import Stems
    from visattn.heatmaps import METHODS
    from visattn.report.page import write_page
    from visattn.report.sheets import draw_comparison

    # Whatever can be wrong with the request is said before anything is computed.
    left_out = LeftOut()
    methods = _names(arguments.method)
    for name in methods or ():
        METHODS[name]
    out = Path(arguments.out)
    paths = named_images(arguments, left_out)
    if not paths:
        return NOTHING
    make_folder(out)
    trained, preparation = named_model(arguments)
    question, reasons = _question(arguments, methods, trained, preparation, len(paths))
    for what, why in reasons.items():
        left_out.add(what, why)
    if not question.methods and not question.heads:
        return NOTHING

    # Batch by batch: read, examine, write.
    examiner = Examiner(trained, preparation, question)
    stems = Stems([*METHODS, *KINDS])
    findings: list[Finding] = []
    entries: list[dict[str, Any]] = []
    layers: dict[str, list[str]] = {}
    for batch in batches(arguments, paths, left_out):
        try:
            found = examiner.examine([path.name for path, _ in batch], [image for _, image in batch])
        except torch.OutOfMemoryError as error:
            raise ValueError("the device has not enough memory: lower --batch-size") from error
        mark(out)
        for (path, _), finding in zip(batch, found, strict=True):
            files = write_finding(out, stems.of(path), finding)
            entries.append({"file": str(path), **finding.said, "files": files})
            layers |= {method: list(names) for method, names in finding.layers.items()}
        findings += found[: max(ON_SHEETS - len(findings), 0)]
    for what, why in examiner.failures.items():
        left_out.add(what, why)
    if not entries:
        return NOTHING

    # All of them together.
    title = f"What {trained.name} looks at"
    subjects = [finding.subject for finding in findings]
    sheets = draw_comparison(out / "comparison.png", subjects, title)
    write_page(out / "index.html", subjects, title)
    write_manifest(
        out,
        {
            "model": trained.name,
            "weights": trained.weights,
            "input": asdict(preparation),
            "methods": {method: {"of_class": METHODS[method].of_class, "layers": layers[method]} for method in layers},
            "images": entries,
            "sheets": [sheet.name for sheet in sheets],
            "page": "index.html",
            "left_out": left_out.entries,
            "versions": _versions(torch),
        },
    )
    some = f" (the first {ON_SHEETS} of them)" if len(entries) > ON_SHEETS else ""
    print(f"{len(entries)} image{'s' if len(entries) > 1 else ''}{some}: {out / 'index.html'}")
    return left_out.code


def _question(
    arguments: argparse.Namespace,
    methods: list[str] | None,
    trained: Trained,
    preparation: Preparation,
    images: int,
) -> tuple[Question, dict[str, str]]:
    """What to find out about every image, and why something cannot be."""
    import torch

    from visattn.cli.findings import Question, classes_of
    from visattn.heatmaps import attention_heads, list_methods
    from visattn.heatmaps.targets import resolve

    target = None
    if arguments.target != "auto":
        number, classes = classes_of(trained, preparation)
        wanted = resolve(arguments.target, 1, number, classes)
        target = None if wanted is None else int(wanted[0])

    layers = _names(arguments.layers, "--layers")
    heads = _names(arguments.heads, "--heads")
    head_layers = None if layers in (None, ["all"]) else [_number(name) for name in layers or ()]
    head_numbers = None if heads in (None, ["all"]) else [_head(name) for name in heads or ()]
    grid = layers is not None or heads is not None

    example = torch.zeros(1, *preparation.size)
    fitting = list_methods(trained.model, example)
    chosen = [name for name in methods or DEFAULT if name in fitting]
    if not methods and not chosen:
        chosen = [name for name in OTHERWISE if name in fitting][:1]
        if not chosen:
            reason = fitting.reasons[OTHERWISE[-1]]
            raise ValueError(f"no method for {trained.name} ({reason}): name one of {', '.join(fitting)} with --method")
    reasons = {name: f"does not fit {trained.name}: {fitting.reasons[name]}" for name in methods or ()
               if name in fitting.reasons}  # fmt: skip

    if grid and "attention" not in fitting:
        grid = False
        reasons["--layers and --heads"] = f"do not fit {trained.name}: {fitting.reasons['attention']}"
    if grid:
        attention_heads(trained.model, example, head_layers, head_numbers)  # raises if there is no such layer or head
    patches = "attention" in fitting and images <= WITH_PATCHES
    return Question(tuple(chosen), target, grid, head_layers, head_numbers, patches), reasons


def _names(text: str | None, flag: str = "--method") -> list[str] | None:
    """What stands between the commas, each once."""
    if text is None:
        return None
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError(f"{flag} is empty")
    return names


def _number(name: str) -> str | int:
    return int(name) if name.removeprefix("-").isdecimal() else name


def _head(name: str) -> int:
    number = _number(name)
    if isinstance(number, str):
        raise ValueError(f"--heads are numbers or all, got {name!r}")
    return number


def _versions(torch: Any) -> dict[str, str]:
    import visattn

    return {"visattn": visattn.__version__, "torch": torch.__version__}

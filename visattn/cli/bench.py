"""``visattn bench``: what blocks and networks cost in time and memory."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.cli.inputs import DONE, NOTHING, PARTLY, LeftOut, progress
from visattn.cli.tables import print_table
from visattn.files import at_home, check_own, check_replaceable, to_json

if TYPE_CHECKING:
    from visattn.cost.results import Report

STDOUT = "-"

EPILOG = f"""\
examples:
  visattn bench --blocks se,cbam --shape 32x256x56x56 --against timm
  visattn bench --blocks all --mode train,eval --dtype fp32,bf16 --compile off,on --layout nchw,nhwc --json blocks.json
  visattn bench --model resnet50,resnet50_cbam --batch-size 32 --mode train,eval
  visattn bench --budget 1.05 --model resnet50

What is compared runs in turn within one loop, and a ratio is the median of the ratios within a round, with quartiles.
x*g is the plain multiply of the input by a gate per channel, which is bound by memory alone.

exit codes:
  {DONE}  everything was measured
  {PARTLY}  something was left out; stderr says what and why
  {NOTHING}  wrong usage, or nothing could be measured
"""

# Flags that only some questions take, by what they are called in the parser.
ONLY = {
    "shape": ("--blocks",),
    "against": ("--blocks",),
    "mode": ("--blocks", "--model"),
    "batch_size": ("--model", "--budget"),
    "image_size": ("--model", "--budget"),
}


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "bench",
        help="measure what blocks and networks cost in time and memory",
        description="Measure what blocks and networks cost in time and memory.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--blocks", metavar="A,B", help="names and globs, or all [all]")
    parser.add_argument("--model", metavar="A,B", help="whole networks instead; compared with the first")
    parser.add_argument(
        "--budget", metavar="X", type=float, help="which blocks fit into X times the latency of --model"
    )
    parser.add_argument("--shape", metavar="BxCxHxW", help="of the input, several with commas [32x256x56x56]")
    parser.add_argument("--mode", metavar="A,B", help="train, eval [train,eval; of a network eval]")
    parser.add_argument("--dtype", metavar="A,B", default="fp32", help="fp32, bf16, fp16 [fp32]")
    parser.add_argument("--compile", metavar="A,B", default="off", help="off, on [off]")
    parser.add_argument("--layout", metavar="A,B", default="nchw", help="nchw, nhwc [nchw]")
    parser.add_argument("--against", metavar="NAME", help="timm: its blocks with the same widths")
    parser.add_argument("--batch-size", metavar="N", type=int, help="images at a time [32; of a budget 1]")
    parser.add_argument("--image-size", metavar="N", type=int, help="height and width [the network's own]")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, ... [cuda if available]")
    parser.add_argument("--repeats", metavar="N", type=int, help="rounds [3 to 20, as fit into 2 seconds]")
    parser.add_argument("--threads", metavar="N", type=int, help="of the CPU [as torch is set]")
    parser.add_argument(
        "--json", metavar="FILE", nargs="?", const=STDOUT, help="print JSON instead of a table, or write it to a file"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    left_out = LeftOut()
    file = None if arguments.json in (None, STDOUT) else Path(at_home(arguments.json))
    if file is not None:  # before an hour of measuring, not after it
        from visattn.cost.results import MAKER

        check_replaceable(file)
        check_own(file, MAKER)
    report = _measure(arguments, left_out).measured_by(_command(arguments))
    if arguments.json == STDOUT:
        print(to_json(report.content()), end="")
    elif report.rows:
        print_table(report.table(report.rows))
    if file is not None:
        report.save(file)
    return left_out.code if report.rows else NOTHING


def _measure(arguments: argparse.Namespace, left_out: LeftOut) -> Report[Any]:
    """Ask the question that the flags stand for."""
    from visattn.cost import bench_blocks, bench_budget, bench_models

    if arguments.budget is not None:
        if arguments.model is None:
            raise ValueError("--budget needs a --model to put blocks into, such as --model resnet50")
        question = "--budget"
    elif arguments.model is not None:
        if arguments.blocks is not None:
            raise ValueError("--blocks and --model: measure one or the other, or give a --budget as well")
        question = "--model"
    else:
        question = "--blocks"
    for name, questions in ONLY.items():
        if getattr(arguments, name) is not None and question not in questions:
            raise ValueError(f"--{name.replace('_', '-')} means nothing with {question}")
    names = {
        "--blocks": ("shape", "mode", "against"),
        "--model": ("mode", "batch_size", "image_size"),
        "--budget": ("batch_size", "image_size"),
    }[question]
    shared = ("dtype", "compile", "layout", "device", "repeats", "threads")
    given = {name: value for name in (*names, *shared) if (value := getattr(arguments, name)) is not None}
    with progress("settings" if question == "--model" else "blocks") as track:
        if question == "--model":
            return bench_models(arguments.model, **given, note=left_out.add, track=track)
        given["blocks"] = arguments.blocks or "all"
        if question == "--budget":
            return bench_budget(arguments.model, arguments.budget, **given, note=left_out.add, track=track)
        return bench_blocks(**given, note=left_out.add, track=track)


def _command(arguments: argparse.Namespace) -> str:
    """The command line that measures it again, without anybody's folders."""
    words = ["visattn", "bench"]
    for name, value in vars(arguments).items():
        if value is None or name in ("run", "json") or value == []:
            continue
        for each in value if isinstance(value, list) else [value]:
            words += [f"--{name.replace('_', '-')}", Path(each).name if name == "plugin" else str(each)]
    return shlex.join(words)

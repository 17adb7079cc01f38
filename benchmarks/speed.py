"""Measure what blocks and networks cost, part by part, and write docs/speed.md.

Run: python -m benchmarks.speed                     all parts; two hours on two cores, keep the machine otherwise idle
     python -m benchmarks.speed timm growth         some of them
     python -m benchmarks.speed timm --blocks se    these blocks once more: their rows take the place of the old ones
     python -m benchmarks.speed --table             only the page and the plot, from the results that are there
     python -m benchmarks.speed --smoke --out DIR   tiny maps, a few blocks: does it run? Its figures mean nothing

Every part is a file in benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.speed_page import draw_growth, write_page
from visattn.blocks import block_info, list_blocks
from visattn.cost import RIVALS, bench_blocks, bench_growth, bench_models
from visattn.cost.contest import Contestant, contest
from visattn.cost.settings import all_settings
from visattn.files import write_json
from visattn.opening import usable_device

ROOT = Path(__file__).parent.parent
SHAPES = "16x256x56x56,16x512x28x28,16x1024x14x14,16x2048x7x7"
TWO_SHAPES = "16x256x56x56,16x1024x14x14"
SMALLER = "16x512x28x28,16x1024x14x14"  # for self-attention, whose 3,136 x 3,136 pairs of 56x56 places take minutes
TINY = "2x16x8x8,2x32x4x4"


def timm(smoke: bool, only: Sequence[str], **shown: Any) -> dict[str, Any]:
    """Blocks that timm has too, beside timm's."""
    names, shape = (["se", "cbam", "mhsa"], TINY) if smoke else (list(RIVALS), SHAPES)
    settings: dict[str, Any] = {"mode": "train,eval", "layout": "nchw,nhwc", "against": "timm"}
    return bench_blocks(_chosen(names, only), shape, **settings, **shown).content()


def compiled(smoke: bool, only: Sequence[str], **shown: Any) -> dict[str, Any]:
    """The same under torch.compile, and not."""
    names, compile = (["se"], "off") if smoke else (list(RIVALS), "off,on")
    return _on_two_maps(_chosen(names, only), smoke, compile=compile, against="timm", **shown)


def blocks(smoke: bool, only: Sequence[str], **shown: Any) -> dict[str, Any]:
    """All blocks, and a 1x1 convolution on the same maps, which shows how fast this machine multiplies."""
    names = ["se", "simam", "nonlocal"] if smoke else list_blocks()
    content = _on_two_maps(_chosen(names, only), smoke, **shown)
    (setting,), device = all_settings("train", "fp32", "off", "nchw"), usable_device(None)
    convolutions = []
    for shape in sorted({tuple(row["shape"]) for row in content["rows"]}):
        x = setting.random(shape, device).requires_grad_()
        (found,) = contest([Contestant(nn.Conv2d(shape[1], shape[1], 1), setting, x)], None)
        convolutions.append({"shape": shape, "cost": asdict(found.cost)})
    return {**content, "convolutions": convolutions}


def _on_two_maps(names: Sequence[str], smoke: bool, **options: Any) -> dict[str, Any]:
    """Training steps of blocks on a large map and a small one; where such steps take long, both are smaller."""
    slow = [name for name in names if block_info(name).family == "self" or name == "deformable_lka"]
    groups = [([name for name in names if name not in slow], TWO_SHAPES), (slow, SMALLER)]
    found = [
        bench_blocks(group, TINY if smoke else shape, mode="train", **options).content()
        for group, shape in groups
        if group
    ]
    return {**found[0], **{key: [each for content in found for each in content[key]] for key in ("rows", "left_out")}}


def _chosen(names: Sequence[str], only: Sequence[str]) -> list[str]:
    return [name for name in names if name in only or not only]


def networks(smoke: bool, _only: Sequence[str], **shown: Any) -> dict[str, Any]:
    """Whole networks with and without a block."""
    names = "test_resnet,test_resnet_se" if smoke else "resnet50,resnet50_se,resnet50_cbam"
    size, batch, rounds = (32, 2, 1) if smoke else (224, 8, 7)
    return bench_models(
        names, batch_size=batch, image_size=size, mode="train,eval", layout="nchw,nhwc", repeats=rounds, **shown
    ).content()


def growth(smoke: bool, _only: Sequence[str], **shown: Any) -> dict[str, Any]:
    """Time and memory of self-attention and hard attention against the number of pixels."""
    options: dict[str, Any] = {"blocks": "nonlocal,hard", "sides": (3, 5, 8), "channels": 16} if smoke else {}
    return bench_growth(**options, **shown).content()


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    each.__name__: each for each in (timm, compiled, blocks, networks, growth)
}
OF_BLOCKS = ("timm", "compiled", "blocks")  # parts whose rows are of one block each


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} [all]")
    parser.add_argument("--blocks", default="", metavar="A,B", help=f"only these, with {', '.join(OF_BLOCKS)}")
    parser.add_argument("--table", action="store_true", help="only write the page and the plot, from the results")
    parser.add_argument("--smoke", action="store_true", help="a tiny run, to see that it works; needs --out")
    parser.add_argument("--out", type=Path, default=ROOT, metavar="DIR", help="to write to, instead of this repository")
    arguments = parser.parse_args(argv)
    for part in arguments.parts:
        if part not in PARTS:
            parser.error(f"unknown part {part!r}: there are {', '.join(PARTS)}")
    if arguments.smoke and arguments.out == ROOT:
        parser.error("--smoke needs --out: its figures mean nothing")
    only = [name for name in arguments.blocks.split(",") if name]
    for name in only:
        if part := next((part for part in arguments.parts or PARTS if part not in OF_BLOCKS), None):
            parser.error(f"--blocks {name}: the rows of {part} are not of single blocks, name the parts to measure")
        if name not in list_blocks():
            parser.error(f"--blocks: {name!r} is no block")
    results = arguments.out / "benchmarks" / "results"
    for part in [] if arguments.table else arguments.parts or PARTS:
        content = PARTS[part](
            arguments.smoke, only, note=lambda what, why: print(f"{what}: {why}", flush=True), track=_counted
        )
        if only:
            content = _with_rows(json.loads((results / f"{part}.json").read_text()), content)
        command = f"python -m benchmarks.speed {part}{' --smoke' if arguments.smoke else ''}"
        write_json(results / f"{part}.json", {**content, "command": command})
    draw_growth(results, arguments.out / "docs" / "growth.png")
    write_page(results, arguments.out / "docs" / "speed.md")


def _with_rows(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Old results, with the rows of blocks that were measured again, and the day of each."""

    def subject(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["block"], tuple(row["shape"]), *row["setting"].values()

    again = {subject(row): row for row in new["rows"]}
    rows = [again.pop(subject(row), row) for row in old["rows"]]
    days = {**old.get("again", {}), **{row["block"]: new["machine"]["date"] for row in new["rows"]}}
    left_out = [each for each in old["left_out"] if each not in new["left_out"]] + new["left_out"]
    return {**old, "again": days, "rows": [*rows, *again.values()], "left_out": left_out}


def _counted(jobs: list[Any]) -> Iterator[Any]:
    for number, job in enumerate(jobs, 1):
        print(f"{number} of {len(jobs)}: {' '.join(map(str, job)) if isinstance(job, tuple) else job}", flush=True)
        yield job


if __name__ == "__main__":
    main()

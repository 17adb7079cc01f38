"""Measure every block beside the plain multiply and timm's block, and write docs/speed.md.

Run: python -m benchmarks.blocks               an hour or two on two cores; keep the machine otherwise idle
     python -m benchmarks.blocks --compile     also compiled
     python -m benchmarks.blocks --table       docs/speed.md from the results that are there
     python -m benchmarks.blocks --smoke --out FOLDER    tiny maps, a few blocks: does it run? Its figures mean nothing

The figures are in benchmarks/results/blocks.json; ``benchmarks.growth`` adds a section to the same page.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks.speed_table import add_flags, folder_of, write_page
from visattn.cost import bench_blocks

FULL: dict[str, Any] = {"blocks": "all", "shape": "16x256x56x56,16x512x28x28,16x1024x14x14,16x2048x7x7", "repeats": 20}
SMOKE: dict[str, Any] = {"blocks": "se,cbam,simam,mhsa", "shape": "2x16x6x6,2x32x3x3", "repeats": 2}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser)
    parser.add_argument("--compile", action="store_true", help="also compiled")
    parser.add_argument("--threads", type=int, metavar="N", help="of the CPU [as torch is set]")
    arguments = parser.parse_args(argv)
    folder = folder_of(parser, arguments)
    if not arguments.table:
        report = bench_blocks(
            **(SMOKE if arguments.smoke else FULL),
            mode="train,eval",
            layout="nchw,nhwc",
            compile="off,on" if arguments.compile else "off",
            against="timm",
            threads=arguments.threads,
            note=lambda what, why: print(f"{what}: {why}", flush=True),
            track=_counted,
        )
        flags = [flag for flag, given in (("--smoke", arguments.smoke), ("--compile", arguments.compile)) if given]
        report.measured_by(" ".join(["python -m benchmarks.blocks", *flags])).save(
            folder / "benchmarks" / "results" / "blocks.json"
        )
    write_page(folder)


def _counted(jobs: list[Any]) -> Any:
    for number, job in enumerate(jobs, 1):
        print(f"{number} of {len(jobs)}: {job[0]} {job[1]} {job[2]}", flush=True)
        yield job


if __name__ == "__main__":
    main()

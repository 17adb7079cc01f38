"""What one waits for: `import visattn` against `import timm`, and help and wrong flags against `import torch`.

Medians of fresh processes, taken in turn. Run from the top of the repository, and without PYTHONDONTWRITEBYTECODE:
python -m benchmarks.import_time [repeats]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial

from benchmarks.measuring import seconds

STATEMENTS = ("import timm", "import timm, visattn", "import visattn")
PROGRAM = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"

# Whole processes, from their start to their end.
PROCESSES = {
    "python -c pass": ("-c", "pass"),
    "python -c 'import torch'": ("-c", "import torch"),
    "visattn --help": ("-m", "visattn", "--help"),
    "visattn heatmap --help": ("-m", "visattn", "heatmap", "--help"),
    "visattn heatmap --nonsense": ("-m", "visattn", "heatmap", "--nonsense"),
    "visattn train --help": ("-m", "visattn", "train", "--help"),
    "visattn train --nonsense": ("-m", "visattn", "train", "--nonsense"),
    "python train.py --help": ("train.py", "--help"),
}


def inside(statement: str) -> float:
    command = [sys.executable, "-c", PROGRAM.format(statement)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def whole(arguments: tuple[str, ...]) -> float:
    return seconds(partial(subprocess.run, [sys.executable, *arguments], capture_output=True, check=False))


def main(repeats: int = 7) -> None:
    measured: dict[str, Callable[[], float]] = {
        **{statement: partial(inside, statement) for statement in STATEMENTS},
        **{name: partial(whole, arguments) for name, arguments in PROCESSES.items()},
    }
    for measure in measured.values():
        measure()  # warm the file cache
    rounds = [{name: measure() for name, measure in measured.items()} for _ in range(repeats)]
    median = {name: statistics.median(each[name] for each in rounds) for name in measured}
    for name, value in median.items():
        print(f"{name:28s} {value:6.3f} s")
    print(f"visattn after timm: {median['import timm, visattn'] - median['import timm']:+.3f} s (target: at most +0.3)")
    print(f"visattn alone:      {median['import visattn'] - median['import timm']:+.3f} s against timm")
    slowest = max(value for name, value in median.items() if name in PROCESSES and "-c" not in name)
    print(f"slowest help:       {slowest:.3f} s (target: at most 0.5)")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))

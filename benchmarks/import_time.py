"""How much longer `import visattn` takes than `import timm`: medians of fresh processes, taken in turn.

Run: python benchmarks/import_time.py [repeats]
"""

from __future__ import annotations

import statistics
import subprocess
import sys

STATEMENTS = ("import timm", "import timm, visattn", "import visattn")
PROGRAM = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"


def seconds(statement: str) -> float:
    command = [sys.executable, "-c", PROGRAM.format(statement)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main(repeats: int = 7) -> None:
    for statement in STATEMENTS:
        seconds(statement)  # warm the file cache
    times: dict[str, list[float]] = {statement: [] for statement in STATEMENTS}
    for _ in range(repeats):
        for statement in STATEMENTS:
            times[statement].append(seconds(statement))
    median = {statement: statistics.median(values) for statement, values in times.items()}
    for statement, value in median.items():
        print(f"{statement:24s} {value:6.3f} s")
    print(f"visattn after timm: {median['import timm, visattn'] - median['import timm']:+.3f} s (target: at most +0.3)")
    print(f"visattn alone:      {median['import visattn'] - median['import timm']:+.3f} s against timm")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))

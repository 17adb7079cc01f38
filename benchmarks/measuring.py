"""Measuring tools of the benchmarks."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def peak() -> float:
    """Highest resident memory of this process so far, in MiB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def growth(prepare: str, environment: Mapping[str, str] | None = None) -> float:
    """Peak memory of a first run in a separate process, above the level after ``run = ...`` was prepared."""
    code = f"{prepare}; from benchmarks.measuring import peak; before = peak(); run(); print(peak(), before)"
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    after, before = map(float, result.stdout.split())
    return after - before

"""Run the tests with other versions of torch, each in a virtual environment of its own.

Run: python -m tests.versions 2.6 2.8                    the files below; gigabytes to download, about an hour each
     python -m tests.versions 2.6 tests/test_capture.py  some of them

Environments are kept in the folder for temporary files; one that is there is used again. What was found is in
docs/versions.md.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent

# What depends on torch: its functions, its graphs and compilers, its ways to save, and torchvision.
FILES = [
    f"tests/test_{name}.py"
    for name in (
        "core_attention", "core_scores", "core_distributions", "primitives", "block_properties", "block_export",
        "hard_blocks", "ram", "attach", "wrapping", "patch", "survival", "capture", "attention_forms",
        "attention_parts", "geometry", "rollout", "cam", "explain", "preparation", "data", "training", "runs", "saving",
        "predict", "heatmap_command",
    )
]  # fmt: skip


def environment(version: str) -> Path:
    """Python of an environment with a version of torch, its torchvision and everything else that tests need."""
    folder = Path(tempfile.gettempdir(), f"visattn-torch-{version}")
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        # torchvision asks for the torch it was made with, so pip finds the pair.
        install = [python, "-m", "pip", "install", f"torch=={version}.*", "torchvision", "-e", f"{ROOT}[test]"]
        subprocess.run(install, check=True)
    return python


def run(python: Path, file: str) -> str:
    """Run one file of tests and give pytest's last line."""
    result = subprocess.run(
        [python, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", file],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    lines = result.stdout.strip().splitlines() or result.stderr.strip().splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return "\n    ".join([lines[-1], *failed])


def main(arguments: list[str]) -> None:
    """Print a row per version and file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", nargs="*", help="of torch, such as 2.8, and files of tests")
    given = parser.parse_args(arguments).version
    files = [each for each in given if (ROOT / each).is_file()]
    versions = [each for each in given if re.fullmatch(r"\d+(\.\d+)+", each)]
    for each in given:
        if each not in files + versions:
            parser.error(f"{each!r} is neither a version of torch, such as 2.8, nor a file of tests")
    if not versions:
        parser.error("the following arguments are required: version")
    for version in versions:
        python = environment(version)
        for file in files or FILES:
            print(f"torch {version}  {file}: {run(python, file)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

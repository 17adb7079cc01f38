"""Imports go only downwards, and each third-party package lives where DESIGN puts it."""

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "visattn"

# Top to bottom; a module may import from its own layer and from those below.
LAYERS = [
    "__main__", "cli", "training", "examination", "scoring", "prediction", "cost", "opening", "heatmaps",
    "heatmaps/watch", "report", "data", "models", "hard", "blocks", "core", "policy", "counting", "modules", "registry",
    "files", "listing", "tables", "missing", "constants",
]  # fmt: skip

# Where a package may be imported; packages that are not listed may be imported anywhere.
HOMES = {
    "lightning": {"training", "data/datamodule", "cli/parsing"},
    "jsonargparse": {"cli"},
    "sklearn": {"data"},
    "albumentations": {"data"},
    "cv2": {"data"},
    "timm": {"models", "training", "data", "heatmaps", "hard", "cost"},
    "matplotlib": {"report"},
    "PIL": {"report", "data", "heatmaps/explanation"},
    "pytorch_grad_cam": {"heatmaps"},
    "rich": {"cli", "report", "training"},
}
PURE = {
    "registry": set(),
    "files": set(),
    "listing": set(),
    "tables": set(),
    "missing": set(),
    "constants": set(),
    "core": {"torch"},
    "blocks": {"torch", "torchvision"},
    "counting": {"torch"},
    "modules": {"torch"},
    "policy": {"torch"},
}


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer_of(place: str) -> str | None:
    """The layer of a file or module, such as ``heatmaps/watch/trace``: the innermost folder that is one."""
    parts = place.split("/")
    inside_out = ("/".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((each for each in inside_out if each in LAYERS), None)


def violations(package: Path) -> list[str]:
    """Every import that goes upwards or that fetches a package from outside its home."""
    found = []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package).with_suffix("").as_posix()
        if place == "__init__":
            continue  # the front door gathers the public names
        layer = layer_of(place)
        if layer is None:
            found.append(f"{place}: not in any layer")
            continue
        for name in imports(path):
            top, _, rest = name.partition(".")
            if top == "visattn":
                target = layer_of(rest.replace(".", "/"))
                if target is None and rest not in ("", "__version__"):
                    found.append(f"{place} imports through the front door: {name}")
                elif target is not None and LAYERS.index(target) < LAYERS.index(layer):
                    found.append(f"{place} imports upwards: {name}")
            elif top in HOMES and not HOMES[top] & {layer, place}:
                found.append(f"{place} imports {top}, which belongs to {', '.join(sorted(HOMES[top]))}")
            elif layer in PURE and top not in PURE[layer] | set(sys.stdlib_module_names):
                found.append(f"{place} imports {top}, beyond {', '.join(PURE[layer]) or 'the standard library'}")
    return found


def test_imports_go_only_downwards():
    assert violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("place", "line", "message"),
    [
        ("core/new", "from visattn.blocks import CBAM", "imports upwards"),
        ("blocks/new", "import visattn.models.attach", "imports upwards"),
        ("blocks/new", "import timm", "imports timm"),
        ("blocks/new", "import numpy as np", "imports numpy"),
        ("heatmaps/new", "from visattn.training.settings import Settings", "imports upwards"),
        ("heatmaps/new", "import matplotlib.pyplot", "imports matplotlib"),
        ("heatmaps/watch/new", "from visattn.heatmaps.request import Request", "imports upwards"),
        ("heatmaps/watch/new", "from visattn.heatmaps import explain", "imports upwards"),
        ("heatmaps/watch/new", "import timm", "imports timm"),
        ("core/new", "from visattn import blocks", "imports upwards"),
        ("models/new", "from visattn.cost import bench_blocks", "imports upwards"),
        ("cost/new", "import rich", "imports rich"),
        ("models/new", "from visattn import explain", "through the front door"),
        ("registry", "import torch", "imports torch"),
        ("data/readers", "import lightning", "imports lightning"),
        ("misc/new", "import os", "not in any layer"),
    ],
)
def test_the_guard_can_fail(tmp_path, place, line, message):
    file = tmp_path / f"{place}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(line)
    (found,) = violations(tmp_path)
    assert message in found

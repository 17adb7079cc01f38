"""What a new process imports: people who want a block, or help, do not wait for Lightning or matplotlib."""

import json
import subprocess
import sys

import pytest

HEAVY = {"lightning", "albumentations", "cv2", "matplotlib", "pytorch_grad_cam", "rich", "jsonargparse", "sklearn"}

# All in one process, since each needs seconds for torch: what is cheap comes before what it must not import.
PROCESS = """
import contextlib, io, json, sys
import timm

def help_of(command):
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        main([command, "--help"])
    return [said.getvalue(), list(sys.modules)]

entries = {name: timm.models.model_entrypoint(name) for name in timm.list_models()}
import visattn
found = {"import visattn": list(sys.modules), "before": len(entries), "after": len(timm.list_models())}
found["shadowed"] = [name for name, entry in entries.items() if timm.models.model_entrypoint(name) is not entry]
from visattn.cli import main
found |= {command: help_of(command) for command in ("predict", "heatmap")}
import rich
found["import rich"] = list(sys.modules)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    command = [sys.executable, "-W", "error", "-c", PROCESS]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_importing_visattn_is_cheap(found):
    """People who want a block pay for torch and timm only (benchmarks/import_time.py has the seconds)."""
    assert not set(found["import visattn"]) & HEAVY


def test_the_import_guard_can_fail(found):
    assert set(found["import rich"]) & HEAVY == {"rich"}


@pytest.mark.parametrize(
    ("command", "said"), [("predict", "0  all images were classified"), ("heatmap", "0  everything was written")]
)
def test_help_is_cheap(found, command, said):
    usage, modules = found[command]
    assert f"exit codes:\n  {said}\n" in usage
    assert not (HEAVY - {"rich"}) & set(modules)


def test_registering_neither_shadows_nor_floods(found):
    assert not found["shadowed"]
    assert found["before"] < found["after"] < 1.2 * found["before"]

"""What a new process imports: who wants a block does not wait for Lightning, and who wants help not for torch."""

import json
import re
import subprocess
import sys

import pytest

from tests.training import ROOT, environment

HEAVY = {"lightning", "albumentations", "cv2", "matplotlib", "pytorch_grad_cam", "rich", "jsonargparse", "sklearn"}
SLOW = HEAVY - {"jsonargparse"} | {"torch", "torchvision", "timm", "numpy", "scipy", "PIL"}

# All in one process, since each needs seconds for torch: what is cheap comes before what it must not import.
PROCESS = """
import json, sys
import timm

entries = {name: timm.models.model_entrypoint(name) for name in timm.list_models()}
import visattn
found = {"import visattn": list(sys.modules), "before": len(entries), "after": len(timm.list_models())}
found["shadowed"] = [name for name, entry in entries.items() if timm.models.model_entrypoint(name) is not entry]
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


def test_registering_neither_shadows_nor_floods(found):
    assert not found["shadowed"]
    assert found["before"] < found["after"] < 1.4 * found["before"]  # every block in the four ResNets is most of it


COMMANDS = ("train", "heatmap", "evaluate", "predict", "blocks", "places", "bench")
MODULE, SCRIPT, TRAIN = ["-m", "visattn"], [str(ROOT / "visattn_command.py")], [str(ROOT / "train.py")]


def answer(*arguments):
    """Run a process; returns its exit code, what it said, and the packages that it imported."""
    command = [sys.executable, "-X", "importtime", *arguments]
    ended = subprocess.run(command, env=environment() | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    lines = ended.stderr.splitlines()
    imported = {line.split("|")[-1].strip().partition(".")[0] for line in lines if line.startswith("import time:")}
    said = [line for line in lines if not line.startswith("import time:")]
    return ended.returncode, ended.stdout + "\n".join(said), imported


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        *(([*MODULE, command, "--help"], 0, f"usage: visattn {command} ") for command in COMMANDS),
        *(([*SCRIPT, command, "--nonsense"], 2, "--") for command in COMMANDS),
        ([*MODULE, "--help"], 0, "\ncommands:\n"),
        ([*SCRIPT, "--help"], 0, "\ncommands:\n"),
        ([*MODULE, "--version"], 0, "visattn 0."),
        (MODULE, 2, "required: COMMAND"),
        ([*MODULE, "haetmap"], 2, "invalid choice: 'haetmap'"),
        ([*MODULE, "heatmap", "--image", "a.png", "--of", "nothing"], 2, "invalid choice: 'nothing'"),
        ([*MODULE, "predict", "--image", "a.png", "--nonsense"], 2, "unrecognized arguments: --nonsense"),
        ([*MODULE, "predict", "--image", "a.png", "--batch-size", "many"], 2, "invalid int value: 'many'"),
        ([*TRAIN, "--help"], 0, "options of Lightning's Trainer:"),
        ([*TRAIN, "--modell", "x"], 2, "train.py: unknown flag '--modell': did you mean '--model'"),
        ([*TRAIN, "--trainer.max_stepz", "3"], 2, "did you mean '--trainer.max_steps'"),
        ([*MODULE, "train", "--epochs", "many", "--trainer.max_steps", "3"], 2, "visattn train: epochs: expected int"),
        ([*MODULE, "train", "--lr", "0"], 2, "visattn train: --lr must be above 0"),
        ([*MODULE, "train", "--config", "imagenete"], 2, "did you mean 'imagenette'"),
    ],
    ids=lambda value: " ".join(value).replace(f"{ROOT}/", "") if isinstance(value, list) else "",
)
def test_help_and_mistakes_do_not_wait_for_torch(arguments, code, said):
    ended, text, imported = answer(*arguments)
    assert ended == code, text
    assert said in text
    assert "argparse" in imported
    assert not imported & SLOW


def test_every_command_is_in_the_table():
    listed = answer(*MODULE, "--help")[1].partition("\ncommands:\n")[2]
    assert re.findall(r"^    (\w+)", listed, re.MULTILINE) == [*COMMANDS]


@pytest.mark.parametrize("arguments", [[*MODULE, "blocks", "se"], [*TRAIN, "--trainer.max_steps", "many"]], ids=str)
@pytest.mark.slow
def test_the_guard_of_help_can_fail(arguments):
    assert "torch" in answer(*arguments)[2]


PLUGIN = """
import timm
import visattn
assert visattn.heatmaps.METHODS and all(hasattr(visattn, name) for name in visattn.__all__)
assert timm.is_model("resnet50_cbam")
print("all of visattn is there", flush=True)
raise SystemExit
"""


@pytest.mark.parametrize(
    "arguments",
    [
        [*MODULE, "blocks", "se", "--plugin", "mine.py"],
        [*TRAIN, "--plugin", "mine.py"],
        ["-m", "other", "visattn"],  # a program of somebody else's
    ],
    ids=lambda words: " ".join(words).replace(f"{ROOT}/", ""),
)
@pytest.mark.slow
def test_what_a_command_does_not_import_at_first_is_there_later(tmp_path, arguments):
    (tmp_path / "other").mkdir()
    (tmp_path / "mine.py").write_text(PLUGIN)
    (tmp_path / "other" / "__init__.py").write_text(PLUGIN)
    environ = environment() | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, *arguments], env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert ended.stdout == "all of visattn is there\n", ended.stderr

"""torch and timm are enough for blocks; whatever else is missing is one clear line."""

import re
import subprocess
import sys

import pytest

from tests.training import ROOT, environment
from visattn.missing import PACKAGES


def python(code, *argv):
    return subprocess.run(
        [sys.executable, "-c", code, *argv], cwd=ROOT, env=environment(), capture_output=True, text=True
    )


def without(hidden, code, *argv):
    return python(f"from tests.bare import hide; hide({hidden!r}); {code}", *argv)


BARE = """
from tests.bare import hide_all_but
hide_all_but("torch", "timm")
import timm, torch, visattn
from visattn.cli import main
assert visattn.create_block("cbam", 8)(torch.rand(2, 8, 4, 4)).shape == (2, 8, 4, 4)
network = visattn.attach(timm.create_model("test_resnet", num_classes=3).eval(), "se")
assert len(visattn.attachments(network)) > 0
images = torch.rand(1, 3, 160, 160)
assert visattn.predict(network, images)[0].label in "012"
assert visattn.explain(timm.create_model("test_vit"), images, "rollout").method == "rollout"
for call in (
    lambda: visattn.explain(network, images, "gradcam"),
    lambda: visattn.predict(network, "x.png"),
    lambda: visattn.examine(network, "x.png", out="x"),
):
    try:
        call()
    except visattn.missing.MissingPackage as error:
        print(error)
images = "--model test_resnet --image x.png"
for words in ("train", f"predict {images}", f"heatmap {images}", "blocks"):
    assert main(words.split()) == 2
"""


def said(module, package):
    return f"this needs {module}, which is not installed: pip install {package}"


@pytest.mark.slow
def test_torch_and_timm_are_enough_for_blocks_and_the_rest_says_what_it_needs():
    result = python(BARE)
    assert result.stdout.splitlines() == [
        said("pytorch_grad_cam", "grad-cam"),
        said("cv2", "opencv-python-headless"),
        said("cv2", "opencv-python-headless"),
    ], result.stderr
    assert result.stderr.splitlines() == [
        f"visattn train: {said('jsonargparse', QUOTED)}",
        f"visattn: {said('cv2', 'opencv-python-headless')}",
        f"visattn: {said('matplotlib', 'matplotlib')}",
        f"visattn: {said('rich', 'rich')}",
    ]


QUOTED = "'jsonargparse[signatures]'"
COMMAND = "import sys; from visattn_command import main; sys.exit(main())"
SCRIPT = "import runpy; runpy.run_path('train.py', run_name='__main__')"
IMAGES = ("--model", "test_resnet", "--image", "x.png")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "code", "argv"),
    [
        ("lightning", COMMAND, ("train",)),
        ("lightning", SCRIPT, ()),
        ("albumentations", COMMAND, ("train",)),
        ("cv2", COMMAND, ("heatmap", *IMAGES)),
        ("matplotlib", COMMAND, ("heatmap", *IMAGES)),
    ],
)
def test_a_command_says_in_one_line_what_to_install(hidden, code, argv):
    result = without(hidden, code, *argv)
    assert result.returncode in (1, 2)
    (line,) = result.stderr.strip().splitlines()
    assert line.endswith(said(hidden, PACKAGES[hidden]))


def test_every_package_is_one_that_visattn_asks_for():
    project = (ROOT / "pyproject.toml").read_text()
    for package in PACKAGES.values():
        assert re.search(rf'"{re.escape(package)}>=', project), package

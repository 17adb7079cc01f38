"""Code of one's own comes in by --plugin, and then works like everything else."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

import visattn
from tests.training import ROOT, SCRIPT, environment
from visattn.blocks import base
from visattn.cli import main
from visattn.cli.parsing import parse
from visattn.models.plugins import load_plugin
from visattn.registry import Registry

PLUGIN = """
import torch
import timm
import visattn
from lightning.pytorch.callbacks import Callback
from torch import nn


@visattn.register_block("halve", family="channel", paper="an example")
class Halve(nn.Module):
    def __init__(self, channels, *, gain=0.5, device=None, dtype=None):
        super().__init__()
        self.gain = nn.Parameter(torch.full((channels, 1, 1), gain, device=device, dtype=dtype))

    def forward(self, x):
        return x * self.gain


class Small(nn.Module):  # knows nothing of timm: no num_classes, no pretrained_cfg, no get_classifier
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
        self.top = nn.Linear(16, classes)

    def forward(self, x):
        return self.top(self.body(x).mean((2, 3)))


@timm.models.register_model
def my_cnn(pretrained=False, num_classes=10, **kwargs):
    return Small(num_classes)


@visattn.register_method("upper_rows", of_class=False)
def upper_rows(request, *, share=0.5):
    height = request.images.shape[-2]
    rows = (torch.arange(height) < share * height).float()
    return visattn.heatmaps.MethodResult(rows[None, :, None].expand(len(request.images), -1, 4))


class Told(Callback):
    def on_train_start(self, trainer, module):
        print("told by a plugin")
"""
TINY = [
    "--batch-size", "16", "--epochs", "1", "--film-every", "0", "--trainer.limit_train_batches", "2",
    "--trainer.limit_val_batches", "1", "--trainer.accelerator", "cpu",
]  # fmt: skip


@pytest.fixture
def plugin(elsewhere, request, _scratch_names):
    """A file under a name of its own; afterwards nothing of it is left."""
    file = elsewhere / f"plugin_{abs(hash(request.node.name))}.py"
    file.write_text(PLUGIN)
    return file.name


def test_what_a_plugin_registers_are_names_like_all_others(plugin):
    with pytest.raises(ValueError, match="unknown model 'my_cnn'"):
        visattn.create_model("my_cnn")
    assert load_plugin(plugin).registers == {"halve", "my_cnn"}
    assert load_plugin(plugin) is load_plugin(plugin)
    assert "halve" in visattn.list_blocks()
    model = visattn.create_model("my_cnn_halve", num_classes=3)
    assert model.num_classes == 3
    assert sorted(visattn.attachments(model)) == ["body", "body.1"]
    visattn.create_model("resnet18_halve")


def test_a_method_of_ones_own_is_one_like_all_others(plugin):
    model, images = timm.create_model("test_resnet").eval(), torch.rand(2, 3, 64, 64)
    with pytest.raises(ValueError, match="unknown method 'upper_rows'"):
        visattn.explain(model, images, "upper_rows")
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save("image.png")
    visattn.save_model(model, "model")
    given = ["heatmap", "--plugin", plugin, "--weights", "model", "--image", "image.png", "--method", "upper_rows"]
    assert main(given) == 0
    assert list(Path("heatmaps").rglob("*upper_rows*"))
    assert "upper_rows" in visattn.list_methods(model)
    shares = visattn.explain(model, images, "upper_rows", share=0.25).heatmap.mean((1, 2))
    torch.testing.assert_close(shares, torch.full((2,), 0.25), atol=0.02, rtol=0)
    with pytest.raises(TypeError, match=r"method 'upper_rows' has no option 'part': known: share"):
        visattn.explain(model, images, "upper_rows", part=0.25)
    with pytest.raises(ValueError, match="method 'rollout' is already registered"):
        visattn.register_method("rollout")(lambda request: None)
    with pytest.raises(ValueError, match=r"files are named after it, got .*up"):
        visattn.register_method("../up")


def test_a_saved_model_says_what_it_needs(plugin, monkeypatch):
    load_plugin(plugin)
    visattn.save_model(visattn.create_model("my_cnn", attn="halve", num_classes=2), "model", classes=["cat", "dog"])
    card = json.loads(Path("model/model.json").read_text())
    assert card["model"] == {"name": "my_cnn", "num_classes": 2}
    (needed,) = card["plugins"]
    assert needed["name"] == plugin
    assert needed["registers"] == ["halve", "my_cnn"]
    assert len(needed["sha256"]) == 64
    again, _ = visattn.load_model("model")
    assert again.num_classes == 2
    assert visattn.predict(again, np.zeros((64, 64, 3), np.uint8))[0].labels[0] in ("cat", "dog")

    card["plugins"][0]["sha256"] = "0" * 64
    Path("model/model.json").write_text(json.dumps(card))
    with pytest.warns(UserWarning, match=r"is not the file that .* was made with"):
        visattn.load_model("model")

    monkeypatch.setattr(base, "BLOCKS", Registry("block", {"se": base.block_info("se")}))
    with pytest.raises(ValueError, match=f"this model needs --plugin {plugin}, which has 'halve'"):
        visattn.load_model("model")


@pytest.mark.usefixtures("elsewhere")
def test_whoever_imports_it_has_done_the_same(monkeypatch):
    monkeypatch.setattr(base, "BLOCKS", Registry("block", {name: base.block_info(name) for name in base.BLOCKS}))

    class Mine(nn.Identity):
        def __init__(self, channels, *, device=None, dtype=None):  # noqa: ARG002
            super().__init__()

    visattn.register_block("mine", family="channel", paper="mine")(Mine)
    model = visattn.attach(timm.create_model("test_resnet", num_classes=2), "mine", at="layer1")
    visattn.save_model(model, "model")
    _, card = visattn.load_model("model")
    assert [(each["name"], each["registers"]) for each in card["plugins"]] == [("tests.test_plugins", ["mine"])]


def test_a_registered_model_that_timm_built_can_be_saved_by_its_name(plugin):
    load_plugin(plugin)
    model = timm.create_model("my_cnn", num_classes=2)
    with pytest.raises(ValueError, match=r"give arguments=\{'name': …\}"):
        visattn.save_model(model, "model")
    visattn.save_model(model, "model", arguments={"name": "my_cnn", "num_classes": 2})
    assert visattn.load_model("model")[1]["model"]["name"] == "my_cnn"


@pytest.mark.usefixtures("elsewhere")
def test_plain_models_need_no_plugin():
    visattn.save_model(visattn.create_model("test_resnet_se", num_classes=2), "model")
    assert "plugins" not in json.loads(Path("model/model.json").read_text())


def test_a_callback_of_a_plugin(plugin):
    request = parse(["--plugin", plugin, f"--trainer.callbacks+={plugin.removesuffix('.py')}.Told"])
    assert [type(callback).__name__ for callback in request.trainer["callbacks"]] == ["Told"]
    Path("mine.yaml").write_text(request.to_yaml([]))
    assert "plugin" not in {line.partition(":")[0] for line in Path("mine.yaml").read_text().splitlines()}


def run(*command, cwd, code=0):
    result = subprocess.run(
        [sys.executable, *map(str, command)], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout + result.stderr


@pytest.mark.slow
def test_from_training_to_heatmaps(tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(tmp_path / "a.png")
    own = ("--plugin", "mine.py")
    said = run(SCRIPT, *own, "--model", "my_cnn", "--attn", "halve", "--name", "one", *TINY,
               "--trainer.callbacks+=mine.Told", cwd=tmp_path)  # fmt: skip
    assert "told by a plugin" in said
    assert json.loads((tmp_path / "runs/one/model.json").read_text())["plugins"][0]["name"] == "mine.py"
    assert "--plugin mine.py" in (tmp_path / "runs/one/config.yaml").read_text().splitlines()[0]

    for command in ("predict", "heatmap"):
        for weights in ("runs/one", "runs/one/checkpoints/best.ckpt"):
            line = ("-m", "visattn", command, "--weights", weights, "--image", "a.png")
            assert "this model needs --plugin mine.py" in run(*line, cwd=tmp_path, code=2)
            run(*line, *own, cwd=tmp_path)
    assert "halve" in run("-m", "visattn", "blocks", *own, cwd=tmp_path)
    run("-m", "visattn", "heatmap", "--weights", "runs/one", "--image", "a.png", "--target", "3", *own, cwd=tmp_path)

    resume = (SCRIPT, "--resume", "runs/one", "--epochs", "2")
    assert "mine.Told' is not one of Lightning's" in run(*resume, cwd=tmp_path, code=2)
    assert "epoch 2/2" in run(*resume, *own, cwd=tmp_path)


@pytest.mark.slow
def test_resuming_without_the_plugin(tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    run(
        SCRIPT, "--plugin", "mine.py", "--model", "test_resnet", "--attn", "halve", "--name", "one", *TINY, cwd=tmp_path
    )
    said = run(SCRIPT, "--resume", "runs/one", "--epochs", "2", cwd=tmp_path, code=2)
    assert "this model needs --plugin mine.py, which has 'halve'" in said


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [(), ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")])
def test_in_two_processes(tmp_path, launcher):
    (tmp_path / "mine.py").write_text(PLUGIN)
    two = ("--devices", "2", "--strategy", "ddp", "--workers", "1")
    run(*launcher, SCRIPT, "--plugin", "mine.py", "--model", "my_cnn_halve", "--name", "one", *TINY, *two, cwd=tmp_path)
    assert (tmp_path / "runs/one/model.json").is_file()


@pytest.mark.slow
def test_with_workers_that_are_spawned(tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    code = (
        "import multiprocessing, sys\n"
        "from visattn.cli.train import main\n"
        "if __name__ == '__main__':\n"
        "    multiprocessing.set_start_method('spawn')\n"
        "    sys.exit(main())\n"
    )
    (tmp_path / "start.py").write_text(code)
    run("start.py", "--plugin", "mine.py", "--model", "my_cnn", *TINY, "--workers", "1", "--name", "one", cwd=tmp_path)
    assert (tmp_path / "runs/one/model.json").is_file()


@pytest.mark.slow
def test_train_py_imports_nothing_from_its_own_folder(tmp_path):
    """Neither its folder nor that of the run is a place where code is found."""
    clone = tmp_path / "clone"
    clone.mkdir()
    shutil.copy(SCRIPT, clone)
    (clone / "found.py").write_text("from pathlib import Path\nPath(__file__).with_name('executed').touch()\n")
    os.symlink(ROOT / "visattn", clone / "visattn")
    os.symlink(ROOT / "configs", clone / "configs")
    said = run(clone / "train.py", "--plugin", "found", cwd=clone, code=2)
    assert "--plugin found: there is no such module" in said
    assert not (clone / "executed").exists()


def test_own_models_keep_their_classifier_when_frozen(plugin):
    from visattn.training.optimisation import new_parts

    load_plugin(plugin)
    model = visattn.create_model("my_cnn", num_classes=3)
    assert [part for part in new_parts(model) if isinstance(part, nn.Linear)] == [model.top]

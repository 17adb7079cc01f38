"""What a person sees who has just cloned the repository: the README's first command, word for word."""

import csv
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import visattn
from tests.training import ROOT, SCRIPT, environment
from visattn.data.digits import Digits

COMMAND = "pip install -e . && python train.py --model resnet_cbam"


@pytest.mark.slow(minutes=6)
def test_the_first_command_of_the_readme(tmp_path):
    assert f"```bash\n{COMMAND}\n```" in (ROOT / "README.md").read_text()
    program, _, *arguments = shlex.split(COMMAND.partition(" && ")[2])
    assert program == "python"
    result = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    run = tmp_path / "runs" / "resnet_cbam-digits"
    assert "runs/resnet_cbam-digits/" in result.stdout
    with (run / "metrics.csv").open() as stream:
        best = max(float(row["val_top1"]) for row in csv.DictReader(stream))
    print(result.stdout)
    assert best >= 0.95
    assert f"best validation accuracy {best:.1%}" in result.stdout

    model, card = visattn.load_model(run)
    mean, std = (torch.tensor(card["input"][key]).view(3, 1, 1) for key in ("mean", "std"))
    samples = [Digits("val").sample(index) for index in range(200)]
    images = torch.stack([(torch.from_numpy(image).expand(3, -1, -1) / 255 - mean) / std for image, _, _ in samples])
    masks = torch.stack([torch.from_numpy(mask) for _, _, mask in samples])
    labels = torch.tensor([label for _, label, _ in samples])
    with torch.no_grad():
        right = model(images).argmax(1) == labels
    assert right.float().mean() > 0.92  # the exported weights are the trained ones
    heatmaps = visattn.explain(model, images).heatmap
    assert (heatmaps * masks).sum() / heatmaps.sum() > 0.6  # and they look at the digit


@pytest.mark.slow
def test_an_installed_package_has_the_command_and_the_recipes(tmp_path):
    """Without the repository: a wheel, unpacked somewhere else."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)], check=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    expected = {path.relative_to(ROOT).as_posix() for path in (ROOT / "visattn").rglob("*.py")}
    expected.add("visattn/report/page.html")
    expected |= {f"visattn/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.*") if path.is_file()}
    assert expected <= names
    result = subprocess.run(
        [sys.executable, "-m", "visattn", "train", "--config", "digits", "--model", "test_resnet", "--epochs", "1",
         "--film-every", "0", "--trainer.limit_train_batches", "2", "--trainer.limit_val_batches", "1"],
        cwd=tmp_path / "site", env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert Path(tmp_path / "site" / "runs" / "test_resnet-digits" / "heatmaps.png").is_file()

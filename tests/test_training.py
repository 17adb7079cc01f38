"""Whole training runs, small ones: what they write, what they refuse, what they say."""

import copy
import csv
import io
import json
import os
import pickle
import resource
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import timm
import torch
import yaml
from safetensors.torch import load_file
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tests.test_data import write_images
from tests.tiers import mostly_slow
from tests.training import SCRIPT, TINY, assert_same_weights, checkpoint, environment
from visattn.cli.train import main
from visattn.models import attachments, create_model, load_model
from visattn.models.saving.description import describe
from visattn.models.saving.saved import write_model
from visattn.training.building import create_classifier, create_source
from visattn.training.checkpoints import load_checkpoint
from visattn.training.fitting import said_once
from visattn.training.settings import Settings

# TensorBoard's and Lightning's own
pytestmark = [
    pytest.mark.usefixtures("elsewhere", "_few_pictures"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*", "ignore:.*pynvml.*"),
]


def run(*arguments, code=0, capsys=None):
    """Train in this process."""
    result = main([*TINY, *map(str, arguments)])
    said = capsys.readouterr() if capsys else None
    assert result == code, said
    return said


def labelled(file, names=("cat", "dog")):
    """The numbers of a table whose first row and column are names."""
    header, *rows = csv.reader(io.StringIO(file.read_text(encoding="utf-8")))
    assert header == ["truth", *names]
    assert [row[0] for row in rows] == [*names]
    return np.array([[int(number) for number in row[1:]] for row in rows])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run with a film."""
    folder = tmp_path_factory.mktemp("finished")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert main([*TINY, "--film-every", "1", "--name", "done"]) == 0
    finally:
        os.chdir(before)
    return folder / "runs" / "done"


def test_a_run_leaves_everything_behind(finished):
    files = {path.relative_to(finished).as_posix() for path in finished.rglob("*") if path.is_file()}
    assert files >= {
        "config.yaml", "metrics.csv", "confusion.csv", "checkpoints/last.ckpt", "checkpoints/best.ckpt",
        "model.safetensors", "model.json", "heatmaps.png", "curves.png", "confusion.png", "film.png",
        "film/epoch_0001.npy", "film/epoch_0002.npy",
    }  # fmt: skip
    assert any("tfevents" in name for name in files)
    assert not any("partial" in name for name in files)
    for name in ("heatmaps.png", "curves.png", "confusion.png", "film.png"):
        picture = cv2.imread(str(finished / name))
        assert min(picture.shape[:2]) > 150
        assert picture.std() > 5


def test_metrics_have_a_row_per_epoch(finished):
    with (finished / "metrics.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert [row["step"] for row in rows] == ["4", "8"]
    for row in rows:
        assert 0 <= float(row["val_top1"]) <= float(row["val_top5"]) <= 1
        assert float(row["train_loss"]) > 0
        assert float(row["images_per_second"]) > 0
    matrix = labelled(finished / "confusion.csv", [str(digit) for digit in range(10)])
    assert matrix.shape == (10, 10)
    assert matrix.sum() == 32
    assert np.trace(matrix) / 32 == pytest.approx(max(float(row["val_top1"]) for row in rows))


def test_the_model_can_be_used_elsewhere(finished):
    model, card = load_model(finished)
    assert card["classes"] == list("0123456789")
    assert card["input"]["mean"] == list(timm.get_pretrained_cfg("test_resnet").mean)
    assert card["versions"]["torch"] == torch.__version__
    best = {f"model.{key}": value for key, value in model.state_dict().items()}
    expected = checkpoint(finished, "best")["state_dict"]
    for key, value in best.items():
        torch.testing.assert_close(value, expected[key], rtol=0, atol=0)
    assert model(torch.rand(2, 3, 64, 64)).shape == (2, 10)
    assert json.loads((finished / "model.json").read_text())["attachments"][0]["block"] == "eca"


def test_the_same_seed_gives_the_same_weights_and_another_one_others(undrawn):
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        run("--name", name, "--seed", seed)
    assert_same_weights(undrawn / "runs" / "a", undrawn / "runs" / "b")
    with pytest.raises(AssertionError, match=r"not close|not equal"):
        assert_same_weights(undrawn / "runs" / "a", undrawn / "runs" / "c")


def test_a_new_run_never_overwrites_an_old_one(undrawn):
    for _ in range(3):
        run("--epochs", 1)
    assert sorted(path.name for path in (undrawn / "runs").iterdir()) == [
        "test_resnet_eca-digits", "test_resnet_eca-digits-run2", "test_resnet_eca-digits-run3",
    ]  # fmt: skip
    run("--epochs", 2, "--resume")  # the last one
    assert checkpoint(undrawn / "runs" / "test_resnet_eca-digits-run3")["epoch"] == 1
    assert checkpoint(undrawn / "runs" / "test_resnet_eca-digits")["epoch"] == 0


def test_the_best_epoch_after_an_earlier_checkpoint_is_one_of_those_that_led_there(undrawn):
    """The later best one is of a run that is given up: its weights are not those of the new epochs."""
    folder = undrawn / "runs" / "mine"
    run("--name", "mine", "--epochs", 1)
    shutil.copy(folder / "checkpoints" / "last.ckpt", folder / "checkpoints" / "early.ckpt")
    run("--name", "mine", "--epochs", 2, "--resume")
    given_up = checkpoint(folder, "best")
    for name in ("best", "last"):
        state = copy.deepcopy(given_up)
        for row in state["callbacks"]["Record"]["rows"]:
            row.update(val_top1=1.0, val_loss=0.0, seconds=row["seconds"] + 1)
        (folder / "checkpoints" / f"{name}.ckpt").unlink()
        torch.save(state, folder / "checkpoints" / f"{name}.ckpt")
    run("--resume", "runs/mine/checkpoints/early.ckpt", "--epochs", 2, "--lr", 1e-9)
    best = json.loads((folder / "model.json").read_text())["best"]
    assert best["epoch"] == 2  # the first new one
    assert best["val_top1"] < 1
    assert checkpoint(folder, "best")["callbacks"]["Record"]["rows"][1]["val_top1"] == best["val_top1"]


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
@pytest.mark.slow
def test_the_pictures_of_other_precisions(elsewhere, precision):
    run("--name", "other", "--epochs", 1, "--precision", precision)
    assert (elsewhere / "runs" / "other" / "heatmaps.png").is_file()


def test_a_complete_run_says_so_and_keeps_its_settings(undrawn, capsys):
    run("--name", "done", "--epochs", 1)
    before = (undrawn / "runs" / "done" / "config.yaml").read_text()
    capsys.readouterr()
    said = run("--resume", "runs/done", "--name", "done", "--epochs", 1, "--seed", 7, capsys=capsys)
    assert "note: all 1 epochs of the run are done: give more --epochs to train on" in said.out
    assert (undrawn / "runs" / "done" / "config.yaml").read_text() == before


@pytest.mark.usefixtures("undrawn")
def test_a_warm_up_without_end_is_mentioned(capsys):
    said = run("--epochs", 1, "--warmup-epochs", 3, capsys=capsys)
    assert "note: the warm-up of 3 epochs is as long as the run, or longer" in said.out


def test_resume_takes_the_newest_run_that_has_begun_and_no_other(undrawn):
    run("--name", "vit", "--epochs", 1)
    run("--name", "vit-16", "--epochs", 1)
    (undrawn / "runs" / "vit-run2").mkdir()  # a start that failed
    run("--name", "vit", "--resume")
    assert checkpoint(undrawn / "runs" / "vit")["epoch"] == 1
    assert checkpoint(undrawn / "runs" / "vit-16")["epoch"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "test_vit"], "is not of the model 'test_vit'"),
        (["--epochs", "1"], "is already in epoch 2"),
        (["--attn", "cbam"], "is not of the model 'test_resnet'"),
    ],
)
def test_a_resume_that_cannot_work_leaves_the_run_alone(finished, elsewhere, capsys, arguments, message):
    shutil.copytree(finished, elsewhere / "runs" / "done")
    before = (elsewhere / "runs" / "done" / "config.yaml").read_text()
    assert main(["--resume", "runs/done", *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
    assert (elsewhere / "runs" / "done" / "config.yaml").read_text() == before


STOPPING = "{class_path: EarlyStopping, init_args: {monitor: val_loss}}"
AVERAGING = "{class_path: EMAWeightAveraging, init_args: {decay: 0.9}}"


def without(name, key):
    """The run, as if nobody had asked for this."""
    config = Path("runs", name, "config.yaml")
    values = yaml.safe_load(config.read_text())
    (values if key in values else values["trainer"]).pop(key)
    config.write_text("# python train.py\n" + yaml.safe_dump(values))


@pytest.mark.parametrize(
    ("given", "key", "instead", "said"),
    [
        (["--ema", "0.9"], "ema", [], "--ema"),
        (["--ema", "0.9"], "ema", ["--trainer.callbacks", AVERAGING], "--ema"),
        (["--trainer.callbacks", AVERAGING], "callbacks", [], "EMAWeightAveraging"),
        (["--trainer.callbacks", AVERAGING], "callbacks", ["--ema", "0.9"], "EMAWeightAveraging"),
    ],
)
def test_a_run_that_averages_its_weights_does_not_go_on_without(undrawn, capsys, given, key, instead, said):
    run("--name", "averaged", "--epochs", 1, *given)
    without("averaged", key)
    before = (undrawn / "runs" / "averaged" / "config.yaml").read_text()
    capsys.readouterr()
    assert main(["--resume", "runs/averaged", "--epochs", "2", *instead]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line == (
        f"train.py: the checkpoint has the average of the run's weights ({said}), and beside it those that are "
        "trained, which would be lost: resume it as it started, with the same average"
    )
    assert (undrawn / "runs" / "averaged" / "config.yaml").read_text() == before


@pytest.mark.parametrize("decay", ["0.9", "0.99"])
def test_an_average_goes_on_with_any_decay(undrawn, capsys, decay):
    run("--name", "averaged", "--epochs", 1, "--ema", "0.9", capsys=capsys)
    said = run("--resume", "runs/averaged", "--epochs", 2, "--ema", decay, capsys=capsys)
    assert "note: the run had no average" not in said.out
    assert said.err == ""
    assert int(checkpoint(undrawn / "runs" / "averaged")["averaging_state"]["n_averaged"]) == 8


def test_an_average_that_begins_later_says_so(undrawn, capsys):
    run("--name", "averaged", "--epochs", 1)
    said = run("--resume", "runs/averaged", "--epochs", 2, "--ema", "0.9", capsys=capsys)
    assert "note: the run had no average of its weights so far: it begins here" in said.out
    assert "Averag" not in said.err
    assert int(checkpoint(undrawn / "runs" / "averaged")["averaging_state"]["n_averaged"]) == 4


def test_a_resumed_run_prepares_images_as_before(undrawn, capsys):
    """Also if the command alone said how, since config.yaml may not say anything about weights."""
    said = "{mean: [0.1, 0.2, 0.3], std: [0.4, 0.5, 0.6], interpolation: nearest}"
    run("--name", "normalised", "--epochs", 1, "--model-options", f"{{pretrained_cfg_overlay: {said}}}")
    before = json.loads((undrawn / "runs" / "normalised" / "model.json").read_text())["input"]
    assert (before["mean"], before["std"], before["interpolation"]) == ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6], "nearest")
    capsys.readouterr()
    assert main(["--resume", "runs/normalised", "--epochs", "2"]) == 0, capsys.readouterr().err
    assert json.loads((undrawn / "runs" / "normalised" / "model.json").read_text())["input"] == before


@pytest.mark.usefixtures("undrawn")
def test_a_callback_that_is_left_out_is_named(capsys):
    run("--name", "stopping", "--epochs", 1, "--trainer.callbacks", STOPPING)
    without("stopping", "callbacks")
    capsys.readouterr()
    assert main(["--resume", "runs/stopping", "--epochs", "2"]) == 0
    said = capsys.readouterr()
    assert "note: the run goes on without EarlyStopping, whose state is in the checkpoint" in said.out
    assert said.err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--trainer.max_steps", "3"],
        ["--trainer.check_val_every_n_epoch", "5"],
        ["--trainer.limit_val_batches", "0"],
        ["--trainer.logger", "false"],
        ["--trainer.logger", "true"],
        ["--trainer.enable_progress_bar", "false"],
    ],
)
def test_lightnings_own_arguments(elsewhere, arguments):
    run("--name", "own", "--epochs", "1", *arguments)
    assert (elsewhere / "runs" / "own" / "heatmaps.png").is_file()
    assert (elsewhere / "runs" / "own" / "tensorboard").exists() == (
        arguments[-1] != "false" or "logger" not in arguments[0]
    )


def test_a_run_that_max_steps_has_ended_says_how_to_train_on(undrawn, capsys):
    run("--name", "cut", "--epochs", "1", "--trainer.max_steps", "1")
    capsys.readouterr()
    assert main(["--resume", "runs/cut"]) == 0
    said = capsys.readouterr().out
    assert "note: --trainer.max_steps 1 is reached: raise it to train on" in said
    assert "epochs of the run are done" not in said
    assert main(["--resume", "runs/cut", "--trainer.max_steps", "-1"]) == 2
    assert capsys.readouterr().err == (
        "train.py: epoch 1, the last one, was ended early (by --trainer.max_steps, say) and cannot be continued: give "
        "more --epochs to train on\n"
    )
    assert main(["--resume", "runs/cut", "--trainer.max_steps", "-1", "--epochs", "2"]) == 0
    assert "note: epoch 1 was ended before its last batch" in capsys.readouterr().out
    assert checkpoint(undrawn / "runs" / "cut")["global_step"] == 5


PIECES = {
    "sgd": ["--optimizer", "sgd", "--lr", "0.1"],
    "lamb": ["--optimizer", "lamb"],
    "ema": ["--ema", "0.9"],
    "bf16": ["--precision", "bf16-mixed"],
    "channels_last": ["--channels-last"],
    "mixing": ["--mixup", "0.2", "--cutmix", "1"],
    "clipping_and_accumulation": ["--clip-grad", "1", "--accumulate", "2"],
    "layer_decay": ["--layer-decay", "0.7"],
    "freezing": ["--freeze-backbone"],
    "patience": ["--patience", "1"],
    "film": ["--film-every", "1"],
    "translated": ["--difficulty", "translated", "--augment", "cutout", "--image-size", "48"],
    "workers": ["--workers", "2"],
    "transformer": ["--model", "test_vit", "--attn", "cosine", "--image-size", "64", "--film-every", "1"],
}


@pytest.mark.parametrize("piece", mostly_slow(PIECES, "ema", "mixing", "transformer"))
@pytest.mark.slow
def test_every_piece_of_the_recipe_trains(elsewhere, piece):
    run("--name", piece, *PIECES[piece])
    assert (elsewhere / "runs" / piece / "heatmaps.png").is_file()
    # and the run can be repeated and continued from what it wrote down
    assert main(["--resume", f"runs/{piece}", "--epochs", "3"]) == 0


@pytest.mark.usefixtures("undrawn")
def test_resuming_with_layer_decay_does_not_say_that_it_has_no_effect(caplog):
    run("--name", "decayed", "--epochs", "1", "--layer-decay", "0.7")
    assert main(["--resume", "runs/decayed", "--epochs", "2"]) == 0
    assert "Layer-wise lr decay" not in caplog.text


def test_the_film_has_every_second_epoch_and_the_last(undrawn):
    run("--name", "filmed", "--epochs", 3, "--film-every", 2, "--trainer.limit_train_batches", 1)
    frames = sorted((undrawn / "runs" / "filmed" / "film").iterdir())
    assert [frame.name for frame in frames] == ["epoch_0002.npy", "epoch_0003.npy"]
    assert np.load(frames[0]).shape == (2, 64, 64)


@pytest.mark.slow
def test_a_compiled_model_trains_and_is_filmed(elsewhere):
    proportional = ["--optimizer", "sgd", "--lr", "0.01"]  # to the gradient: rounding stays small
    run("--name", "compiled", "--compile", "--film-every", "1", *proportional)
    run("--name", "eager", "--film-every", "1", *proportional)
    assert_same_weights(elsewhere / "runs" / "compiled", elsewhere / "runs" / "eager", 1e-3)
    assert (elsewhere / "runs" / "compiled" / "film.png").is_file()


def test_a_frozen_backbone_stays_as_it_was(undrawn):
    run("--name", "frozen", "--freeze-backbone", "--lr", "0.1", "--seed", "1")
    trained = load_file(undrawn / "runs" / "frozen" / "model.safetensors")
    settings = Settings(model="test_resnet", attn="eca", seed=1)
    start = create_classifier(settings, create_source(settings)).model.state_dict()
    changed = {key for key in start if not torch.equal(start[key], trained[key])}
    assert changed
    kept = {key for key in changed if not key.startswith("fc.") and ".visattn." not in key}
    assert not kept  # not even batch statistics


def test_norms_biases_and_gains_have_no_weight_decay():
    import visattn
    from visattn.training.optimisation import create_optimizer

    model = visattn.attach(visattn.create_model("test_resnet"), "gct", at="stages")
    optimizer = create_optimizer(model, Settings(weight_decay=0.1))
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] > 0 for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert (id(parameter) in decayed) == (parameter.ndim > 1 and "visattn" not in name), name


def test_the_learning_rate_rises_and_falls():
    from visattn.training.optimisation import cosine_with_warmup

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = cosine_with_warmup(optimizer, steps=100, warmup=10)
    rates = []
    for _ in range(100):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates[0] == pytest.approx(1 / 11)
    assert np.argmax(rates) == 10
    assert rates[10] == 1
    assert rates[55] == pytest.approx(0.5)
    assert rates[-1] < 0.001


BAD_SETTINGS = {
    "model": (["--model", "resnet51"], r"unknown model 'resnet51': did you mean 'resnet"),
    "block": (["--attn", "cbm"], r"unknown attention 'cbm': did you mean 'cbam'"),
    "optimizer": (["--optimizer", "adamww"], r"unknown optimizer 'adamww': did you mean 'adamw'"),
    "flag": (["--epoch", "3"], r"unknown flag '--epoch': did you mean '--epochs'"),
    "augmentation": (["--augment", "colr"], "unknown augmentation 'colr'"),
    "data": (["--data", "folder", "--root", "nowhere"], "there is no folder 'nowhere'"),
    "batch": (["--batch-size", "4000"], "larger than the 3000 training images"),
    "resume": (["--resume", "runs/nothing"], "no such run or checkpoint: 'runs/nothing'"),
    "devices": (["--devices", "two"], "--devices 'two'"),
    "precision": (["--precision", "12"], "precision"),
    "strategy": (["--strategy", "dpp"], "strategy"),
    "option": (["--attn-options", "{rd_ration: 1}"], "no argument 'rd_ration'"),
}


@pytest.mark.parametrize("what", BAD_SETTINGS)
def test_wrong_settings_end_in_one_line_that_helps(capsys, what):
    import re

    arguments, message = BAD_SETTINGS[what]
    said = run(*arguments, code=2, capsys=capsys)
    lines = said.err.strip().splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith("train.py: ")
    assert re.search(message, lines[0])


def test_a_loss_that_is_not_finite_ends_the_run(capsys):
    (line,) = run("--lr", "1e6", "--optimizer", "sgd", code=1, capsys=capsys).err.strip().splitlines()
    assert line.startswith("train.py: the loss is no longer finite")
    assert "lower --lr" in line


def test_early_mistakes_leave_nothing_behind(elsewhere):
    for what in ("model", "block", "flag", "data"):
        main([*TINY, *BAD_SETTINGS[what][0]])
    assert list(elsewhere.iterdir()) == []


@pytest.fixture
def photographs(elsewhere):
    for split, count in (("train", 20), ("val", 4)):
        for number, name in enumerate(("cat", "dog")):
            write_images(elsewhere / "photographs" / split / name, count, number, ".jpg")
    return elsewhere / "photographs"


FOLDER = ["--data", "folder", "--root", "photographs", "--image-size", "32", "--batch-size", "8", "--workers", "1",
    "--trainer.limit_train_batches", "1.0", "--trainer.limit_val_batches", "1.0"]  # fmt: skip
DAMAGE = {
    "empty": (lambda data: b"", "the file is empty"),
    "truncated": (lambda data: data[: len(data) // 2], "truncated"),
    "garbage": (lambda data: bytes(len(data)), "not an image"),
    "bomb": (lambda data: _huge_png(), "30000 x 30000 pixels, more than"),
}


def _huge_png() -> bytes:
    """A small file that would unfold to almost three gigabytes."""
    import struct
    import zlib

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 30000, 30000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_bad_image_is_named_and_ends_the_run(photographs, capsys, kind):
    damage, message = DAMAGE[kind]
    file = photographs / "train" / "cat" / "007.jpg"
    file.write_bytes(damage(file.read_bytes()))
    said = run(*FOLDER, code=1, capsys=capsys)  # after the first step
    (line,) = said.err.strip().splitlines()
    assert "photographs/train/cat/007.jpg: " in line
    assert message in line
    assert "--on-bad-image skip" in line


@pytest.mark.usefixtures("undrawn")
def test_an_error_in_the_middle_of_a_run_is_not_one_of_usage(monkeypatch, capsys):
    def broken(*_):
        raise ValueError("the disk has turned to stone")

    monkeypatch.setattr("visattn.training.record._write_rows", broken)  # after an epoch
    assert run(code=1, capsys=capsys).err == "train.py: the disk has turned to stone\n"
    monkeypatch.undo()
    monkeypatch.setattr("visattn.training.train.write_model", broken)  # after the last
    assert run(code=1, capsys=capsys).err == "train.py: the disk has turned to stone\n"


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--trainer.logger", "{class_path: CSVLogger, init_args: {save_dir: runs/own, name: table}}"],
        ["--trainer.callbacks", "ModelCheckpoint"],
        ["--trainer.callbacks", "{class_path: ModelCheckpoint, init_args: {dirpath: runs/own/mine, save_last: true}}"],
    ],
)
def test_loggers_and_callbacks_may_write_beside_the_files_of_a_run(arguments):
    run("--name", "own", "--epochs", "1", *arguments)


def test_class_names_are_not_formulas(photographs):
    for split in ("train", "val"):
        (photographs / split / "cat").rename(photographs / split / "price $5 {a_ to $10 and a very long name indeed")
    run(*FOLDER, "--epochs", "1")
    assert Path("runs/test_resnet_eca-photographs/confusion.png").is_file()


@pytest.mark.slow
def test_bad_images_are_skipped_named_and_counted(photographs, caplog):
    bad = ["train/cat/007.jpg", "train/dog/003.jpg", "val/dog/001.jpg"]
    for name in bad:
        (photographs / name).write_bytes(b"")
    run(*FOLDER, "--on-bad-image", "skip", "--name", "skipping")
    said = caplog.messages
    for name in bad:
        assert sum(f"skipped photographs/{name}: the file is empty" in message for message in said) == 1
    assert any(message.startswith("3 images could not be read and were skipped: ") for message in said)
    matrix = labelled(Path("runs/skipping/confusion.csv"))
    assert matrix.sum() == 7  # the eighth is not counted


def test_a_malicious_checkpoint_is_refused_and_does_not_run(undrawn, capsys):
    class Evil:
        def __reduce__(self):
            return (os.system, ("touch executed",))

    run("--name", "mine", "--epochs", "1")
    file = undrawn / "runs" / "mine" / "checkpoints" / "last.ckpt"
    state = torch.load(file, weights_only=True)
    for evil in ({**state, "loops": Evil()}, Evil()):
        torch.save(evil, file)
        said = run("--resume", "runs/mine", code=2, capsys=capsys)
        assert "refused to load" in said.err
        assert "could run code" in said.err
        assert not (undrawn / "executed").exists()
    file.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match=r"refused to load|is not a whole checkpoint"):
        load_checkpoint(file)
    assert not (undrawn / "executed").exists()
    pickle.loads(pickle.dumps(Evil()))  # it would have worked
    assert (undrawn / "executed").exists()


def test_a_damaged_checkpoint_is_explained(undrawn, capsys):
    run("--name", "mine", "--epochs", "1")
    file = undrawn / "runs" / "mine" / "checkpoints" / "last.ckpt"
    for data in (file.read_bytes()[:1000], b"", b"hello"):
        file.write_bytes(data)
        said = run("--resume", "runs/mine", code=2, capsys=capsys)
        assert len(said.err.strip().splitlines()) == 1
        assert "runs/mine/checkpoints/last.ckpt" in said.err


def test_a_folder_that_cannot_be_written_to_is_explained(elsewhere, capsys):
    (elsewhere / "runs").write_text("a file is in the way")
    said = run(code=2, capsys=capsys)
    assert said.err == "train.py: cannot write to 'runs/test_resnet_eca-digits' (Not a directory)\n"


@pytest.mark.slow
@pytest.mark.parametrize("inside", [None, ".", "checkpoints"])
def test_no_permission_is_explained(undrawn, inside):
    """To begin a run, or to resume one of which not everything can be replaced: before an epoch is lost."""
    if inside is None:
        (undrawn / "runs").mkdir()
        arguments, locked = TINY, undrawn / "runs"
    else:
        run("--name", "mine", "--epochs", "1")
        arguments, locked = ["--resume", "runs/mine"], undrawn / "runs" / "mine" / inside
    locked.chmod(stat.S_IREAD | stat.S_IEXEC)
    command = [sys.executable, str(SCRIPT), *arguments]
    if os.geteuid() == 0:  # root may write anywhere; the capability to do so can be dropped
        if shutil.which("setpriv") is None:
            pytest.skip("running as root, without setpriv to become somebody else")
        command = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", *command]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True)
    named = "runs/test_resnet_eca-digits" if inside is None else locked.relative_to(undrawn)
    assert result.stderr == f"train.py: cannot write to '{named}' (Permission denied)\n"
    assert (result.returncode, result.stdout) == (2, "")


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_checkpoint_whole(elsewhere):
    """A limit on file size: the kernel refuses to write any more of a file, as it does on a full disk."""
    run("--name", "full", "--epochs", "1")
    size = (elsewhere / "runs" / "full" / "checkpoints" / "last.ckpt").stat().st_size
    result = subprocess.run(
        [sys.executable, str(SCRIPT), "--resume", "runs/full", "--epochs", "3"],
        env=environment(), capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2)),
    )  # fmt: skip
    assert result.returncode == 1
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert "could not write 'runs/full/checkpoints/" in result.stderr
    assert checkpoint(elsewhere / "runs" / "full")["epoch"] == 0
    assert checkpoint(elsewhere / "runs" / "full", "best")["epoch"] == 0
    assert not list((elsewhere / "runs").rglob("*partial*"))


@pytest.mark.usefixtures("undrawn")
def test_what_was_found_and_what_stays_random_is_said(tmp_path, capsys):
    for name in ("cat", "dog"):
        write_images(tmp_path / "photos" / name, 5)
    folder = ("--data", "folder", "--root", tmp_path / "photos", "--batch-size", 4, "--workers", 0)
    said = run(*folder, "--name", "frozen", "--freeze-backbone", capsys=capsys).out
    assert "on folder: 2 classes, " in said
    assert "8 training images, 2 validation images\n" in said
    assert "note: --freeze-backbone without --pretrained: the backbone keeps its random weights\n" in said
    assert "random" not in run(*folder, "--name", "free", capsys=capsys).out


@pytest.fixture
def full_disk():
    """As good as: no file may become longer than ten bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("full_disk")
def test_weights_on_a_full_disk(tmp_path):
    with pytest.raises(OSError, match=r"could not write '.*model\.safetensors' \(.*File too large"):
        write_model(tmp_path, {"weight": torch.zeros(1000)}, {"model": {"name": "resnet18"}})
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("full_disk")
def test_a_thread_that_cannot_write_says_so_once(tmp_path):
    """Unless it keeps silent itself, pytest warns."""
    with pytest.raises(OSError, match="File too large"), said_once():
        EventFileWriter(str(tmp_path))


@pytest.mark.parametrize(("name", "gains"), [("test_resnet_se", {True}), ("resnet18_sk", set())])
def test_a_resumed_model_starts_as_the_one_in_the_checkpoint(name, gains):
    """It began with pretrained weights; these are not needed any more, but the gains that came with them are."""
    settings = Settings(model=name, pretrained=True)
    source = create_source(settings)
    model = create_model(name, init="identity" if gains else None, num_classes=len(source.classes))
    again = create_classifier(settings, source, describe(model)).model
    assert {each.gain is not None for each in attachments(again).values()} == gains
    assert again.state_dict().keys() == model.state_dict().keys()


def test_pretrained_weights_without_a_network_are_explained(capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    said = run("--pretrained", code=2, capsys=capsys)
    assert "the pretrained weights of 'test_resnet' could not be loaded" in said.err
    assert len(said.err.strip().splitlines()) == 1


@pytest.mark.usefixtures("undrawn")
def test_the_progress_bar_shows_loss_accuracy_speed_and_time_left(monkeypatch):
    from rich.console import Console

    from visattn.training import progress

    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=screen, force_terminal=True, width=120))
    run("--trainer.limit_train_batches", "12", "--epochs", "1")
    shown = screen.getvalue()
    for word in ("epoch 1/1", "loss", "accuracy", "images/s", "left", "val accuracy"):
        assert word in shown, word

"""What careless and hostile users tried: odd combinations, values at the edges, runs that were tampered with."""

import os
import pickle
import shutil
import struct
import tempfile
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tests.bad_input.case import Command
from visattn.cli import main

SHORT = "--epochs 1 --trainer.limit_train_batches 1 --trainer.limit_val_batches 1 --film-every 0"
RUN = f"train --model test_resnet --batch-size 4 --workers 0 --trainer.accelerator cpu {SHORT}"
FOLDER = f"{RUN} --data folder --root photos"
PREDICT = "predict --weights model --image"
EXISTING = tempfile.TemporaryDirectory()  # of a run that is made once


class Evil:
    def __reduce__(self):
        return os.system, ("touch executed",)


@cache
def existing():
    """A finished run on photos/, trained once."""
    for kind in ("cat", "dog"):
        folder = Path(EXISTING.name, "photos", kind)
        folder.mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (8, 8), (number * 9, 50 if kind == "cat" else 90, 0)).save(folder / f"{number}.png")
    photos, out = Path(EXISTING.name, "photos"), Path(EXISTING.name, "runs")
    made = main([*RUN.split()[:1], "--data", "folder", "--root", str(photos), "--out", str(out), "--name", "mine",
                 *RUN.split()[1:], "--image-size", "32"])  # fmt: skip
    assert made == 0
    return out / "mine"


def resumed(says, change, line="train --resume runs/mine --root photos --epochs 2", code=2):
    """A run whose folder was changed by somebody."""

    def prepare(folder):
        shutil.copytree(existing(), folder / "runs" / "mine")
        change(folder)

    return Command(line, says, code, prepare)


def edited(name, text):
    return lambda folder: (folder / "runs" / "mine" / name).write_text(text)


SAME = "train --resume runs/mine --root photos"  # which has nothing to train
ROW = "epoch,step,train_loss,train_top1,val_loss,val_top1,val_top5,lr,images_per_second,seconds\n1,1,1,1,1,1,1,1,1,1\n"


def state(says, change, name="last"):
    """A run whose checkpoint was changed by somebody."""

    def edit(folder):
        file = folder / "runs" / "mine" / "checkpoints" / f"{name}.ckpt"
        content = torch.load(file, weights_only=True)
        change(content)
        file.unlink()  # last and best may be one file
        torch.save(content, file)

    return resumed(says, edit)


def optimizer(says, change):
    return state(says, lambda content: change(content["optimizer_states"][0]))


def replaced(says, content, name="last"):
    def edit(folder):
        file = folder / "runs" / "mine" / "checkpoints" / f"{name}.ckpt"
        file.unlink()
        file.write_bytes(content)

    return resumed(says, edit)


def run(options, says):
    return Command(f"{RUN} {options}", says)


def other_run(folder):
    (folder / "old" / "checkpoints").mkdir(parents=True)
    (folder / "old" / "checkpoints" / "last.ckpt").touch()


def photos(says, change, options=""):
    """A data folder with something odd in it."""
    return Command(f"{FOLDER} {options}", says, 2, lambda folder: change(folder / "photos"))


def image(says, content, name="x.png"):
    return Command(f"{PREDICT} {name}", says, 2, lambda folder: (folder / name).write_bytes(content))


def header(width, height):
    """A PNG that says it is so large, with next to nothing in it."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + size + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


def model(says, *lines):
    """A plugin with a model that cannot be used; the name of the file is new each time."""
    name = f"odd_model_{zlib.crc32(''.join(lines).encode())}"
    text = "\n    ".join([f"def {name}(pretrained=False, num_classes=10, **kwargs):", *lines])

    def prepare(folder):
        content = f"import timm, torch\nfrom torch import nn\n@timm.models.register_model\n{text}\n"
        (folder / f"{name}.py").write_text(content)

    return Command(f"{RUN} --model {name} --plugin {name}.py", says, 2, prepare)


TRAINER = [
    run("--devices 0", "--devices '0' must be a number, a list"),
    run("--devices 1.5", "--devices '1.5' must be a number, a list"),
    run("--devices '[0, 0]'", "a number, a list"),
    run("--devices '[]'", "a number, a list"),
    run("--devices '[-1]'", "a number, a list"),
    run("--devices None", "a number, a list"),
    run("--devices True", "a number, a list"),
    run("--devices '{}'", "a number, a list"),
    run("--devices -1", "should be an int > 0"),
    run("--devices '[1000]'", "should be an int > 0"),
    run("--devices \"__import__('os')\"", "a number, a list"),
    run("--strategy foo", "invalid strategy name"),
    run("--strategy xla", "Lightning's Trainer cannot be set up with these arguments: Requirement 'torch_xla"),
    run("--strategy ddp_spawn --devices 2", "--strategy ddp_spawn would fork a running process"),
    run("--strategy ddp_notebook", "--strategy ddp_notebook would fork a running process"),
    run("--trainer.strategy fsdp", "use --strategy fsdp"),
    run("--trainer.accelerator foo", "invalid accelerator name"),
    run("--trainer.accelerator tpu", "Lightning's Trainer cannot be set up with these"),
    run("--precision foo", "Precision 'foo' is invalid"),
    run("--precision transformer-engine", "Requirement 'transformer_engine"),
    run("--trainer.max_epochs 3", "'--trainer.max_epochs' cannot be set here: use --epochs"),
    run("--trainer.precision 16", "cannot be set here: use --precision"),
    run("--trainer.devices 2", "cannot be set here: use --devices"),
    run("--trainer.accumulate_grad_batches 0", "cannot be set here: use --accumulate"),
    run("--trainer.barebones true", "'--trainer.barebones' cannot be set here"),
    run("--trainer.max_steps 0", "no epoch was completed, so there is nothing to save"),
    run("--trainer.max_time 00:00:00:00", "no epoch was completed, so there is nothing to save"),
    run("--trainer.max_time soon", "not a valid duration"),
    run("--trainer.limit_train_batches 0", "--trainer.limit_train_batches must be above 0"),
    run("--trainer.limit_train_batches 1.5", "invalid value 1.5 for limit_train_batches"),
    run("--trainer.val_check_interval 0", "--trainer.val_check_interval must be above 0"),
    run("--trainer.check_val_every_n_epoch 0", "--trainer.check_val_every_n_epoch must be above 0"),
    run("--trainer.check_val_every_n_epoch -1", "--trainer.check_val_every_n_epoch must be above 0"),
    run("--trainer.profiler foo", "it can only be one of"),
    run("--trainer.callbacks EarlyStopping", "EarlyStopping: the following arguments are required: monitor"),
    run("--trainer.callbacks '[EarlyStopping]'", "EarlyStopping: the following arguments are required: monitor"),
    run("--trainer.callbacks '[{class_path: EarlyStopping, init_args: {monitor: a, xyz: 1}}]'",
        "trainer.callbacks: EarlyStopping has no argument 'xyz': known: check_finite, "),
    run("--trainer.callbacks '{class_path: EarlyStopping, init_args: {monitro: a}}'",
        "trainer.callbacks: EarlyStopping has no argument 'monitro': did you mean 'monitor'"),
    run("--trainer.profiler '{class_path: SimpleProfiler, init_args: {nope: 1}}'",
        "trainer.profiler: SimpleProfiler has no argument 'nope': known: dirpath, extended, filename"),
    run("--trainer.profiler '{class_path: SimpleProfiler, init_args: {extended: 3}}'", "SimpleProfiler: extended: "),
    run("--trainer.strategy '{class_path: DDPStrategy, init_args: {nope: 1}}'", "DDPStrategy has no argument 'nope': "),
    run("--trainer.plugins '[{class_path: AsyncCheckpointIO, init_args: {nope: 1}}]'",
        "AsyncCheckpointIO has no argument 'nope': known: checkpoint_io"),
    run("--trainer.logger '[{class_path: CSVLogger}]'", "CSVLogger: the following arguments are required: save_dir"),
    run("--trainer.logger '[{class_path: CSVLogger, init_args: {save_dir: ., nope: 1}}]'",
        "CSVLogger has no argument 'nope': did you mean 'name'"),
    run("--trainer.callbacks LearningRateFinder", "Lightning's Trainer failed with these arguments: AttributeError"),
    run("--trainer.callbacks BackboneFinetuning", "Lightning's Trainer failed with these arguments: AttributeError"),
    run("--trainer.callbacks TQDMProgressBar", "multiple progress bar callbacks"),
    run("--ema 0.9 --trainer.callbacks WeightAveraging", "--ema already averages the weights: leave out WeightAverag"),
    run("--ema 0.9 --trainer.callbacks EMAWeightAveraging", "--ema already averages the weights: leave out EMAWeight"),
    run("--ema 0.9 --trainer.callbacks '{class_path: StochasticWeightAveraging, init_args: {swa_lrs: 1, device: cpu}}'",
        "--ema already averages the weights: leave out StochasticWeightAveraging"),
    run("--trainer.callbacks '{class_path: StochasticWeightAveraging, init_args: {swa_lrs: 1}}'",
        "StochasticWeightAveraging replaces the learning-rate schedule, and the run could not be resumed: use --ema"),
    run("--trainer.callbacks+=WeightAveraging --trainer.callbacks+=EMAWeightAveraging",
        "WeightAveraging already averages the weights: leave out EMAWeightAveraging"),
    run("--trainer.callbacks '{class_path: EarlyStopping, init_args: {monitor: a, patience: x}}'",
        "EarlyStopping: patience: expected int. Got value: x"),
    run("--name a --trainer.logger '{class_path: CSVLogger, init_args: {save_dir: runs, name: a, version: \"\"}}'",
        "CSVLogger would write to runs/a, where the run's own files are: give it another folder"),
    run("--name a --trainer.logger '{class_path: TensorBoardLogger, init_args: {save_dir: runs/../runs, name: a, "
        "version: tensorboard}}'", "TensorBoardLogger would write to runs/../runs/a/tensorboard, where the run's"),
    run("--name a --trainer.callbacks '{class_path: ModelCheckpoint, init_args: {dirpath: runs/a/checkpoints}}'",
        "runs/a/checkpoints, where the run's own files are: give it another folder"),
    run("--name a --trainer.callbacks '{class_path: ModelCheckpoint, init_args: {dirpath: runs, filename: "
        "a/checkpoints/best}}'", "runs/a/checkpoints, where the run's own files are: give it another folder"),
    run("--name a --trainer.logger false --trainer.callbacks ModelCheckpoint", "would write to runs/a/checkpoints, "),
    run("--name a --trainer.callbacks '{class_path: OnExceptionCheckpoint, init_args: {dirpath: runs/a/checkpoints, "
        "filename: last}}'", "OnExceptionCheckpoint would write to runs/a/checkpoints, where the run's own files"),
    Command(f"{RUN} --trainer.logger '{{class_path: CSVLogger, init_args: {{save_dir: ., name: old, version: \"\"}}}}'",
            "CSVLogger would write to old, where the files of another run are: give it another folder", 2, other_run),
    run("--trainer.logger CSVLogger", "CSVLogger: the following arguments are required: save_dir"),
    Command("train --config odd.yaml", "'trainer.max_epochs' in odd.yaml cannot be set there", 2,
            lambda folder: (folder / "odd.yaml").write_text("trainer:\n  max_epochs: 3\n")),
]  # fmt: skip

OPTIONS = [
    run("--model-options ''", "model_options: expected dict[str, Any], nothing; got nothing at all"),
    run("--model-options 5", "model_options: expected dict[str, Any], nothing; got 5"),
    run("--model-options '{1: 2}'", "keywords must be strings"),
    run("--model-options '{drop_path_rate: 2}'", "drop_path_rate must be between 0 and 1, got 2"),
    run("--model-options '{drop_rate: -1}'", "drop_rate must be between 0 and 1, got -1"),
    run("--model-options '{device: meta}'", "cannot set 'device'"),
    run("--model-options '{dtype: float16}'", "cannot set 'dtype': use --precision"),
    run("--model-options '{act_layer: os.system}'", "cannot be built with"),
    run("--new-lr-factor nan", "new_lr_factor: expected a finite number, got nan"),
    run("--attn se --attn-options '{rd_ratio: 1e30}'", "needs rd_ratio to be at most 1048576, got 1e+30"),
    run("--attn se --attn-options '{channels: 3}'", "block 'se' has no argument 'channels'"),
    run("--attn-options '{a: 1}'", "names no attention"),
    run("--difficulty hard", "difficulty: expected ['centered', 'translated', 'cluttered']. Got value: hard"),
    run("--optimizer foo", "unknown optimizer 'foo': known: adabelief"),
    run("--optimizer fusedadam", "--optimizer fusedadam cannot be used here"),
    run("--epochs 1.0", "epochs: expected int"),
    run("--lr 1,5", "lr: expected float"),
    run("--name 'a/../../b'", "must be a folder inside --out"),
    Command(f"{RUN} --name '" + "a" * 300 + "'", "File name too long"),
    Command(f"{RUN} --out a.png", "Not a directory"),
    run("--data digits --subset imagenette", "--subset selects classes of --data imagenet"),
    Command("train --model резнет", "unknown model 'резнет'"),
    Command("train -- --epochs 3", "unknown flag '--'"),
    Command("train model=resnet18", "unrecognized arguments: model=resnet18"),
    Command("train --epochs 1 2", "unrecognized arguments: 2"),
    Command("train --resume ''", "--resume is empty"),
    Command("train --name 'a\0b'", "contains a null byte"),
    Command("blocks " + "a" * 2000, "no block matches 'aaa"),
    Command("blocks '['", "no block matches '['"),
    Command("blocks --family ''", "--family is empty"),
]

RESUMED = [
    resumed("are gone or renamed, such as 'dog/", lambda folder: (folder / "photos/dog").rename("photos/aaa")),
    resumed("are gone or renamed, such as 'dog/", lambda folder: (folder / "photos/dog").rename("photos/emu")),
    resumed("classes: 'emu' is new", lambda folder: shutil.copytree(folder / "photos/dog", folder / "photos/emu")),
    resumed("is not a settings file", lambda folder: (folder / "runs/mine/config.yaml").write_text("")),
    resumed("--root 'photos': the digits are bundled", lambda folder: (folder / "runs/mine/config.yaml").unlink()),
    resumed("File exists", lambda folder: (shutil.rmtree(folder / "runs/mine/tensorboard"),
                                           (folder / "runs/mine/tensorboard").write_text("")), code=1),
    resumed("is not a confusion matrix of 2 classes: delete it", edited("confusion.csv", "truth,a\n\na,x"), SAME),
    resumed("is not a confusion matrix of 2 classes: delete it", edited("confusion.csv", ""), SAME),
    resumed("is not a confusion matrix of 2 classes: delete it", edited("confusion.csv", "a,b\na,1\nb,1,2"), SAME),
    resumed("lacks the best epoch, 1", edited("metrics.csv", ""), SAME),
    resumed("is not a table of epochs", edited("metrics.csv", "epoch,step\n1,2\n"), SAME),
    resumed("is not a table of epochs", edited("metrics.csv", ROW.replace("1,1,", "9,1,")), SAME),
    resumed("is not a table of epochs", edited("metrics.csv", ROW.replace("1,1,", ",,")), SAME),
    resumed("lacks the best epoch, 1", edited("metrics.csv", ROW.splitlines()[0]), SAME),
    replaced("is not a whole checkpoint: it ends too early", b""),
    replaced("is not a whole checkpoint: PytorchStreamReader", b"PK\x03\x04" + bytes(100)),
    replaced("refused to load", pickle.dumps(Evil())),
    replaced("best.ckpt' is not a whole checkpoint", b"", "best"),
    replaced("refused to load", pickle.dumps(Evil()), "best"),
    state("epoch is missing or malformed", lambda content: content.pop("epoch")),
    state("optimizer_states is missing or malformed", lambda content: content.pop("optimizer_states")),
    state("its state is malformed", lambda content: content.update(epoch=-5)),
    state("step and epoch counts do not agree", lambda content: content.update(epoch=10**30)),
    state("its state is malformed", lambda content: content.update(optimizer_states=[])),
    state("its state is malformed", lambda content: content.update(optimizer_states=[{}])),
    state("its state is malformed", lambda content: content.update(lr_schedulers=[])),
    state("step and epoch counts do not agree", lambda content: content.update(lr_schedulers=[{}])),
    state("its state is malformed", lambda content: content.update(loops={"fit_loop": {}})),
    state("its state is malformed", lambda content: content.update(loops={"fit_loop": 3})),
    state("its state is malformed", lambda content: content["loops"]["fit_loop"].update({"epoch_loop.state_dict": 7})),
    state("does not contain the state of a run", lambda content: content.pop("pytorch-lightning_version")),
    state("does not contain the state", lambda content: content.update({"pytorch-lightning_version": "0.1"})),
    state("started with other classes", lambda content: content["card"].update(classes=["a", "b"])),
    state("this model needs --plugin os", lambda content: content["card"].update(
        plugins=[{"name": "os", "registers": ["x"]}])),
    state("does not contain the state", lambda content: content["state_dict"].update(extra=torch.zeros(1))),
    state("is not of the model", lambda content: content["state_dict"].update(
        {"model.fc.bias": torch.zeros(2, dtype=torch.int64)})),
    state("is not of the model", lambda content: content["state_dict"].update(
        {"model.fc.bias": torch.zeros(2, dtype=torch.complex64)})),
    state("does not contain the state", lambda content: content["state_dict"].update(
        {"model.fc.bias": torch.zeros(2, device="meta")})),
    state("is not of the model", lambda content: content["state_dict"].update(
        {"model.fc.bias": torch.zeros(3)}), "best"),
    optimizer("the optimiser state", lambda saved: saved.update(param_groups=[])),
    optimizer("the optimiser state", lambda saved: saved["param_groups"][0].update(betas=3)),
    optimizer("the optimiser state", lambda saved: saved["state"][0].update(exp_avg=torch.zeros(3))),
    optimizer("the optimiser state", lambda saved: saved["state"][0].update(exp_avg="x")),
    optimizer("the optimiser state", lambda saved: saved["state"].update({0: 3})),
]  # fmt: skip

DATA = [
    Command(f"{FOLDER} --optimizer sgd --lr 1000000", "the loss is no longer finite", 1),
    Command(f"{FOLDER} --batch-size 1 --image-size 8", "raise --batch-size (it is 1) or --image-size"),
    Command(f"{FOLDER} --out photos", "--out 'photos' is inside 'photos', where the images are"),
    Command(f"{FOLDER} --out photos/cat", "--out 'photos/cat' is inside 'photos'"),
    Command(f"{RUN} --data folder --root .", "--out 'runs' is inside '.'"),
    Command(f"{RUN} --data Folder --root photos", "did you mean 'folder'"),
    photos("more than the 134 million", lambda root: (root / "cat/x.png").write_bytes(header(10**9, 10**9))),
    photos("damaged or truncated", lambda root: (root / "cat/x.png").write_bytes(header(0, 0))),
    photos("not an image in a supported format", lambda root: (root / "cat/x.PNG").write_bytes(b"hello")),
    photos("has only one image", lambda root: [file.unlink() for file in sorted((root / "cat").iterdir())[1:]]),
    photos("class 'cat' is empty", lambda root: [file.unlink() for file in (root / "cat").iterdir()]),
    photos("the data has only one class", lambda root: (root / "cat").rename(root / ".cat")),
    photos("has train/ but no val/", lambda root: (root / "train").mkdir()),
    image("more than the 134 million", header(10**9, 10**9)),
    image("not an image in a supported format", pickle.dumps(Evil()), "x.npy"),
    Command(f"{PREDICT} /proc/self/mem", "/proc/self/mem"),
    Command(f"{PREDICT} 'a\0b'", "no such file or folder"),
    Command(f"{PREDICT} a.png --device meta", "device 'meta' cannot be used"),
    Command(f"{PREDICT} a.png --device foo", "device 'foo' cannot be used"),
    Command(f"{PREDICT} a.png --model resnet50", "is of test_resnet, not of 'resnet50'"),
    Command("predict --model test_resnet --weights x.npz --image a.png", "is not a whole checkpoint", 2,
            lambda folder: np.savez(folder / "x.npz", a=np.array([Evil()], dtype=object))),
    Command("predict --model test_resnet --weights x.pth --image a.png", "refused to load", 2,
            lambda folder: torch.save(torch.nn.Linear(1, 1), folder / "x.pth")),
]  # fmt: skip

PLUGINS = [
    model("cannot be built", "return None"),
    model("(KeyError: 'x')", "raise KeyError('x')"),
    model("(SystemExit: 0)", "raise SystemExit(0)"),
    model("is not a classifier", "return nn.Identity()"),
    model("does not take images", "return nn.Sequential(nn.Flatten(), nn.Linear(5, num_classes))"),
    model("has weights without values",
          "return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, num_classes, device='meta'))"),
]  # fmt: skip

CASES = [*TRAINER, *OPTIONS, *RESUMED, *DATA, *PLUGINS]

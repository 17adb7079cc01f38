"""Settings of a run that cannot be meant."""

import shutil
from pathlib import Path

from tests.bad_input.case import Command

RUN = "train --model test_resnet --epochs 1 --trainer.accelerator cpu"


def dangling(folder: Path) -> None:
    (folder / "o").symlink_to("nowhere")


def run_of_ours(folder: Path) -> None:
    """What a resumed run reads first."""
    (folder / "mine" / "checkpoints").mkdir(parents=True)
    (folder / "mine" / "checkpoints" / "last.ckpt").write_bytes(b"")
    (folder / "mine" / "config.yaml").write_text("model: test_resnet\nname: mine\nout: elsewhere\n")
    (folder / "other.yaml").write_text("name: other\n")
    (folder / "plain.yaml").write_text("name: null\nout: runs\n")  # as bundled settings have it


def no_run(folder: Path) -> None:
    """A folder of somebody else's, where a run is looked for, and a checkpoint in it."""
    for name in ("runs/paper", "dl"):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.yaml").write_text("model: theirs\n")
        (folder / name / "metrics.csv").write_text("precious")
    (folder / "dl" / "config.yaml").unlink()
    (folder / "dl" / "last.ckpt").touch()


def without_config(folder: Path) -> None:
    run_of_ours(folder)
    (folder / "mine" / "config.yaml").unlink()


def linked_lock(folder: Path) -> None:
    run_of_ours(folder)
    (folder / "mine" / ".lock").symlink_to("../executed")  # which must not come into being


def unreadable(folder: Path) -> None:
    for path in (folder / "photos" / "cat").iterdir():
        path.write_bytes(b"no image")


def unreadable_in_validation(folder: Path) -> None:
    for split in ("train", "val"):
        shutil.copytree(folder / "photos", folder / "split" / split)
    for path in (folder / "split" / "val" / "cat").iterdir():
        path.write_bytes(b"no image")


CASES = [
    Command(
        "train --resume mine --config plain.yaml", "is not a whole checkpoint: it ends too early", prepare=run_of_ours
    ),
    Command(f"{RUN} --data folder --root photos --out o", "cannot write to 'o' (File exists)", prepare=dangling),
    Command(f"{RUN} --out /proc/runs", "cannot write to '/proc/runs' (No such file or directory)"),
    Command(f"{RUN} --optimizer adahessian", "--optimizer adahessian needs second derivatives"),
    Command(f"{RUN} --out new/{'x' * 300}", "(File name too long)"),
    Command(f"{RUN} --name paper --resume", "'runs/paper' is not the folder of a run", prepare=no_run),
    Command(f"{RUN} --resume dl/last.ckpt", "'dl' is not the folder of a run, and its files", prepare=no_run),
    Command("train --resume mine", "cannot write to 'mine/.lock' (Too many levels", prepare=linked_lock),
    Command("train --resume mine", "'mine' has lost its config.yaml, the settings of the", prepare=without_config),
    Command("train --resume mine --name new", "--name 'new': a resumed run stays in its folder", prepare=run_of_ours),
    Command("train --resume mine --out o", "--out 'o': a resumed run stays in its folder", prepare=run_of_ours),
    Command("train --resume mine --config other.yaml", "--name 'other': a resumed run", prepare=run_of_ours),
    Command(f"{RUN} --data folder --root photos --difficulty centered", "--difficulty is about the digits"),
    Command(f"{RUN} --root nowhere", "--root 'nowhere': the digits are bundled"),
    Command(f"{RUN} --data folder --root ph\udcff", "is not UTF-8, and cannot be written to config.yaml"),
    Command(
        f"{RUN} --data folder --root photos --image-size 32 --batch-size 4 --workers 0 --on-bad-image skip",
        "no training image of class 'cat' can be read",
        prepare=unreadable,
    ),
    Command(
        f"{RUN} --data folder --root split --image-size 32 --batch-size 4 --workers 0 --on-bad-image skip",
        "no validation image of class 'cat' can be read",
        code=1,  # after the first epoch
        prepare=unreadable_in_validation,
    ),
    Command(
        f"{RUN} --model-options '{{drop_rate: 0.1, extra: {{pretrained_cfg: {{url: x}}}}}}'",
        "--model-options: 'extra' holds 'pretrained_cfg', which says where weights come from: it can only stand at",
    ),
    Command(f"{RUN} --model-options '{{extra: [[{{cache_dir: x}}]]}}'", "--model-options: 'extra' holds 'cache_dir'"),
    Command(f"{RUN} --model-options '{{num_classes: 5}}'", "cannot set 'num_classes': it follows from the data"),
    Command(f"{RUN} --model-options '{{pretrained: true}}'", "cannot set 'pretrained': use --pretrained"),
    Command(f"{RUN} --model-options '{{img_size: 5}}'", "cannot set 'img_size': use --image-size"),
    Command(f"{RUN} --model-options '{{nonsense: 5}}'", "unexpected keyword argument 'nonsense'"),
    Command(f"{RUN} --model-options '{{in_chans: many}}'", "in_chans is a whole number from 1 up, got 'many'"),
    Command(f"{RUN} --model-options '{{in_chans: 7}}'", "only one (grey) or three (RGB) are supported"),
    Command(f"{RUN} --model-options '{{global_pool: \"\"}}'", "'test_resnet' does not take images of"),
    Command(f"{RUN} --model test_vit --image-size 100", "does not take images of 3 x 100 x 100"),
    Command(f"{RUN} --image-size 1000000", "--image-size must be at most 8192, got 1000000"),
    Command(f"{RUN} --batch-size 1000000000", "--batch-size must be at most 65536"),
    Command(f"{RUN} --epochs 1000000000", "--epochs must be at most 1000000"),
    Command(f"{RUN} --workers 100000", "--workers must be at most 1024"),
    Command(f"{RUN} --lr .inf", "--lr must be at most 1000000, got inf"),
    Command(f"{RUN} --lr .nan", "--lr must be above 0, got nan"),
    Command(f"{RUN} --new-lr-factor nan", "new_lr_factor: expected a finite number, got nan"),
    Command(f"{RUN} --clip-grad=-Infinity", "clip_grad: expected a finite number, got -Infinity"),
    Command(f"{RUN} --epochs inf", "epochs: expected a finite number, got inf"),
    Command(f"{RUN} --mixup .inf", "--mixup must be at most 1000, got inf"),
    Command(f"{RUN} --new-lr-factor .nan", "--new-lr-factor must be above 0, got nan"),
    Command(f"{RUN} --seed 1000000000000000000000000000000", "--seed must be at most 4294967295"),
    Command(f"{RUN} --devices 1000000", "--devices must be at most 1024"),
    Command(f"{RUN} --name .", "--name '.' must be a folder inside --out"),
    Command(f"{RUN} --out ''", "--out is empty"),
    Command(f"{RUN} --num-classes 3", "--num-classes 3, but the data has 10 classes"),
]

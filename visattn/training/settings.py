"""All settings of a training run, with defaults and one line of help each."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from visattn.constants import ORIGIN
from visattn.registry import suggest

ALONE = "last"  # the value of a bare --resume

# config.yaml, the settings of a run: how it begins, how many letters of the command follow, and its most bytes.
COMMAND, LONGEST_COMMAND, LARGEST_CONFIG = "# python train.py", 1000, 100_000

# Limits of a number: their key, their meaning, and their wording.
LIMITS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "least": (operator.ge, "at least"),
    "above": (operator.gt, "above"),
    "most": (operator.le, "at most"),
    "below": (operator.lt, "below"),
}

# Arguments of timm.create_model that a run sets itself, and what to do instead.
MANAGED = {
    "model_name": "use --model",
    "name": "use --model",
    "attn": "use --attn",
    "attn_options": "use --attn-options",
    "pretrained": "use --pretrained",
    "init": "blocks start as the identity with --pretrained, and as in their paper without it",
    "device": "use --trainer.accelerator",
    "dtype": "use --precision",
    "num_classes": "it follows from the data",
    "img_size": "use --image-size",
    "features_only": "a run trains a classifier",
    "scriptable": "a run trains models as they are",
    "exportable": "a run trains models as they are",
    "checkpoint_path": "use --pretrained",
}


def _option(default: Any, text: str, **limits: float) -> Any:
    """Define a setting with its help text; every number has two limits, the upper one far above sensible values."""
    return field(default=default, metadata={"help": text, "limits": limits})


def origin_in(options: Any) -> str | None:
    """A key, at any depth, that says where weights come from."""
    inner = list(options.values()) if isinstance(options, dict) else options if isinstance(options, list) else []
    here = [key for key in ORIGIN if isinstance(options, dict) and key in options]
    return next((found for found in (*here, *map(origin_in, inner)) if found is not None), None)


@dataclass(frozen=True)
class Settings:
    """Settings of one training run; the defaults train a small model on the bundled digits."""

    # the model
    model: str = _option(
        "resnet_cbam", "a visattn or timm model: resnet50_cbam, convnext_tiny_se, vit_small_patch16_224"
    )
    attn: str | None = _option(None, "attention block for a model whose name has none: cbam, se, nonlocal, ...")
    attn_options: dict[str, Any] | None = _option(None, "options of the attention block: '{rd_ratio: 0.125}'")
    model_options: dict[str, Any] | None = _option(None, "options of timm.create_model: '{drop_path_rate: 0.1}'")
    pretrained: bool = _option(False, "start from the backbone's pretrained weights")
    freeze_backbone: bool = _option(False, "train only the attention and the classifier")
    channels_last: bool = _option(False, "use channels-last memory format (faster on GPUs)")
    compile: bool = _option(False, "compile the model with torch.compile")

    # the data
    data: str = _option(
        "digits",
        "digits, mnist, fashion_mnist, imagenette, imagewoof, imagenet, folder, or timm's hfds/…, wds/…, tfds/…",
    )
    root: str | None = _option(None, "folder of the data")
    subset: str | None = _option(None, "classes of imagenet: imagenette, imagewoof, imagenet100 or a file of class ids")
    difficulty: Literal["centered", "translated", "cluttered"] = _option("cluttered", "difficulty of the digits")
    val_fraction: float = _option(
        0.1, "fraction of images held out for validation if a folder has no train/ and val/", above=0, below=1
    )
    num_classes: int | None = _option(None, "needed only if the data does not say (shards)", least=2, most=10**6)
    image_size: int | None = _option(
        None, "side of the model's square input [that of the data or the model]", least=1, most=8192
    )
    augment: str | None = _option(
        None, "none, crop, colour, cutout, rand or strong [none for digits and MNIST, crop for photographs]"
    )
    mixup: float = _option(0.0, "mixup alpha, 0 for none", least=0, most=1000)
    cutmix: float = _option(0.0, "cutmix alpha, 0 for none", least=0, most=1000)
    batch_size: int = _option(16, "images per process and step", least=1, most=2**16)
    workers: int | None = _option(
        None, "loader processes per training process [by number of cores; 0 for digits and MNIST]", least=0, most=1024
    )
    on_bad_image: Literal["fail", "skip"] = _option("fail", "what to do about an unreadable image")

    # the recipe
    epochs: int = _option(6, "passes over the training images", least=1, most=10**6)
    optimizer: str = _option("adamw", "adamw, sgd, lamb or any other timm optimiser")
    lr: float = _option(2e-3, "peak learning rate", above=0, most=10**6)
    weight_decay: float = _option(0.05, "weight decay; norms, biases and gains have none", least=0, most=1000)
    momentum: float = _option(0.9, "momentum of SGD", least=0, below=1)
    warmup_epochs: float = _option(0.5, "epochs of linear warm-up, before the cosine decay", least=0, most=10**6)
    layer_decay: float | None = _option(None, "learning-rate factor per layer below the last", above=0, most=1)
    new_lr_factor: float | None = _option(
        None,
        "learning-rate factor of the new parts with --pretrained: attention and classifier",
        above=0,
        most=10**6,
    )
    label_smoothing: float = _option(0.1, "fraction of the target spread over all classes", least=0, below=1)
    ema: float | None = _option(
        None, "validate and keep an exponential moving average of the weights with this decay", above=0, below=1
    )
    clip_grad: float | None = _option(None, "clip the gradient to this norm", least=0, most=10**6)
    accumulate: int = _option(1, "batches per optimiser step", least=1, most=10**6)
    patience: int | None = _option(None, "stop after this many epochs without better validation", least=1, most=10**6)

    # the machine
    devices: str | int = _option("auto", "number of GPUs or processes: auto, 4, or a list '[0, 2]'")
    num_nodes: int = _option(1, "number of machines", least=1, most=10**5)
    strategy: str = _option("auto", "auto, ddp, fsdp (sharded weights), or another of Lightning's")
    precision: str | int = _option("32-true", "32-true, bf16-mixed, 16-mixed, ...")
    matmul_precision: Literal["highest", "high", "medium"] = _option(
        "high", "float32 matrix products on a GPU: highest, high (TF32, much faster) or medium (bfloat16)"
    )
    seed: int = _option(0, "the same seed gives the same run", least=0, most=2**32 - 1)

    # the run
    name: str | None = _option(None, "folder inside --out [model and data]")
    out: str = _option("runs", "folder for runs")
    resume: str | None = _option(
        None, "resume a run: its folder or checkpoint; without a value, the last run of this name, or begin it"
    )
    film_every: int | None = _option(
        None, "epochs between two frames of the film, 0 for none [about twelve frames]", least=0, most=10**6
    )

    def __post_init__(self) -> None:
        for key, allowed in get_type_hints(Settings).items():
            choices = get_args(allowed)
            if choices and all(isinstance(choice, str) for choice in choices) and getattr(self, key) not in choices:
                raise ValueError(f"unknown {key} {getattr(self, key)!r}: {suggest(getattr(self, key), choices)}")
        for each in fields(self):
            flag, value, limits = f"--{each.name.replace('_', '-')}", getattr(self, each.name), each.metadata["limits"]
            if value == "":
                raise ValueError(f"{flag} is empty")
            if isinstance(value, str) and "\0" in value:
                raise ValueError(f"{flag} {value!r} contains a null byte")
            if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
                raise ValueError(f"{flag} {value!r} is not UTF-8, and cannot be written to config.yaml")
            for kind, limit in limits.items():
                holds, said = LIMITS[kind]
                if value is not None and not holds(value, limit):
                    raise ValueError(f"{flag} must be {said} {limit}, got {value}")
        for key in ("name", "out"):  # of folders that are made
            if not (getattr(self, key) or "run").isprintable():
                raise ValueError(f"--{key} {getattr(self, key)!r} has letters in it that cannot be printed")
        parts = Path(self.name or "run").parts
        if not parts or ".." in parts or Path(*parts).is_absolute():
            raise ValueError(f"--name {self.name!r} must be a folder inside --out")
        if self.data != "digits" and self.difficulty != Settings.difficulty:
            raise ValueError(f"--difficulty is about the digits, not about --data {self.data}")
        if self.data == "digits" and self.root is not None:
            raise ValueError(f"--root {self.root!r}: the digits are bundled; for a folder of images use --data folder")
        if self.batch_size % 2 and (self.mixup > 0 or self.cutmix > 0):
            raise ValueError(
                f"mixup and cutmix pair the images of a batch: --batch-size {self.batch_size} must be even"
            )
        if self.ema is not None and self.strategy == "fsdp":
            raise ValueError("--ema does not work with --strategy fsdp: the averaged weights cannot be sharded")
        for option, value in (self.model_options or {}).items():
            if str(option).endswith("_rate") and isinstance(value, int | float) and not 0 <= value <= 1:
                raise ValueError(f"--model-options: {option} must be between 0 and 1, got {value}")
            if option not in ORIGIN and (named := origin_in(value)) is not None:  # no config.yaml could hold it
                raise ValueError(
                    f"--model-options: {option!r} holds {named!r}, which says where weights come from: it can only "
                    "stand at the top"
                )
        for option, instead in MANAGED.items():
            if option in (self.model_options or {}):
                raise ValueError(f"--model-options cannot set {option!r}: {instead}")

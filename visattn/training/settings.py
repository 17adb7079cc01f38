"""Everything a training run can be told, with its default and one line of help."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from visattn.registry import suggest

# How a limit of a number is written down, what it means, and how it is said.
LIMITS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "least": (operator.ge, "at least"),
    "above": (operator.gt, "above"),
    "most": (operator.le, "at most"),
    "below": (operator.lt, "below"),
}

# Arguments of timm.create_model that a run chooses itself, and what to do instead.
MANAGED = {
    "model_name": "give --model",
    "name": "give --model",
    "attn": "give --attn",
    "attn_options": "give --attn-options",
    "pretrained": "give --pretrained",
    "init": "blocks start as the identity with --pretrained, and as in their paper without",
    "device": "give --trainer.accelerator",
    "dtype": "give --precision",
    "num_classes": "the data says how many there are",
    "img_size": "give --image-size",
    "features_only": "a run trains a classifier",
    "scriptable": "a run trains models as they are",
    "exportable": "a run trains models as they are",
}


def _option(default: Any, text: str, **limits: float) -> Any:
    """A setting with its help; every number has two limits, the upper one far above what makes sense."""
    return field(default=default, metadata={"help": text, "limits": limits})


@dataclass(frozen=True)
class Settings:
    """One training run; the defaults train the newcomer's model on the bundled digits."""

    # the model
    model: str = _option(
        "resnet_cbam", "a visattn or timm model: resnet50_cbam, convnext_tiny_se, vit_small_patch16_224"
    )
    attn: str | None = _option(None, "attention for a model whose name has none: cbam, se, nonlocal, ...")
    attn_options: dict[str, Any] | None = _option(None, "for the attention block: '{rd_ratio: 0.125}'")
    model_options: dict[str, Any] | None = _option(None, "for timm.create_model: '{drop_path_rate: 0.1}'")
    pretrained: bool = _option(False, "start from the backbone's pretrained weights")
    freeze_backbone: bool = _option(False, "train only the attention and the classifier")
    channels_last: bool = _option(False, "keep tensors in channels-last order (faster on GPUs)")
    compile: bool = _option(False, "compile the model with torch.compile")

    # the data
    data: str = _option(
        "digits",
        "digits, mnist, fashion_mnist, imagenette, imagewoof, imagenet, folder, or timm's hfds/…, wds/…, tfds/…",
    )
    root: str | None = _option(None, "the folder of the data")
    subset: str | None = _option(None, "classes of imagenet: imagenette, imagewoof, imagenet100 or a file of class ids")
    difficulty: Literal["centered", "translated", "cluttered"] = _option("cluttered", "of the digits")
    val_fraction: float = _option(
        0.1, "share of the images to validate on when a folder has no train/ and val/", above=0, below=1
    )
    num_classes: int | None = _option(None, "needed only where the data cannot tell (shards)", least=2, most=10**6)
    image_size: int | None = _option(
        None, "side of the square the model sees [the data's or the model's own]", least=1, most=8192
    )
    augment: str | None = _option(
        None, "none, crop, colour, cutout, rand or strong [none for digits and MNIST, crop for photographs]"
    )
    mixup: float = _option(0.0, "alpha of mixup, 0 for none", least=0, most=1000)
    cutmix: float = _option(0.0, "alpha of cutmix, 0 for none", least=0, most=1000)
    batch_size: int = _option(16, "images per process and step", least=1, most=2**16)
    workers: int | None = _option(
        None, "processes that load images [one per core; 0 for digits and MNIST]", least=0, most=1024
    )
    on_bad_image: Literal["fail", "skip"] = _option("fail", "what an image that cannot be read does to the run")

    # the recipe
    epochs: int = _option(6, "passes over the training images", least=1, most=10**6)
    optimizer: str = _option("adamw", "adamw, sgd, lamb or any other of timm's optimisers")
    lr: float = _option(2e-3, "peak learning rate", above=0, most=10**6)
    weight_decay: float = _option(0.05, "for weights; norms, biases and gains have none", least=0, most=1000)
    momentum: float = _option(0.9, "of SGD", least=0, below=1)
    warmup_epochs: float = _option(
        0.5, "the learning rate rises for so long, then falls as a cosine", least=0, most=10**6
    )
    layer_decay: float | None = _option(None, "factor on the learning rate per layer below the last", above=0, most=1)
    new_lr_factor: float | None = _option(
        None,
        "factor on the learning rate of what is new with --pretrained: attention and classifier",
        above=0,
        most=10**6,
    )
    label_smoothing: float = _option(0.1, "share of the target spread over all classes", least=0, below=1)
    ema: float | None = _option(
        None, "validate and keep an exponential average of the weights with this decay", above=0, below=1
    )
    clip_grad: float | None = _option(None, "largest norm of the gradient", least=0, most=10**6)
    accumulate: int = _option(1, "batches per optimiser step", least=1, most=10**6)
    patience: int | None = _option(
        None, "stop when validation has not improved for so many epochs", least=1, most=10**6
    )

    # the machine
    devices: str = _option("auto", "how many GPUs or processes: auto, 4, or a list '[0, 2]'")
    num_nodes: int = _option(1, "machines", least=1, most=10**5)
    strategy: str = _option("auto", "auto, ddp, fsdp (sharded weights), or another of Lightning's")
    precision: str = _option("32-true", "32-true, bf16-mixed, 16-mixed, ...")
    matmul_precision: Literal["highest", "high", "medium"] = _option(
        "high", "of float32 matrix products on a GPU: highest, high (TF32, much faster) or medium (bfloat16)"
    )
    seed: int = _option(0, "the same seed gives the same run", least=0, most=2**32 - 1)

    # the run
    name: str | None = _option(None, "folder below --out [model and data]")
    out: str = _option("runs", "where runs are written")
    resume: str | None = _option(
        None, "resume a run: its folder or checkpoint; without a value, the last run of this name"
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
                raise ValueError(f"{flag} {value!r} has a zero byte in it")
            for kind, limit in limits.items():
                holds, said = LIMITS[kind]
                if value is not None and not holds(value, limit):
                    raise ValueError(f"{flag} must be {said} {limit}, got {value}")
        for key in ("name", "out"):  # of folders that are made
            if not (getattr(self, key) or "run").isprintable():
                raise ValueError(f"--{key} {getattr(self, key)!r} has letters in it that cannot be printed")
        parts = Path(self.name or "run").parts
        if not parts or ".." in parts or Path(*parts).is_absolute():
            raise ValueError(f"--name {self.name!r} must be a folder below --out")
        if self.batch_size % 2 and (self.mixup > 0 or self.cutmix > 0):
            raise ValueError(
                f"mixup and cutmix pair the images of a batch: --batch-size {self.batch_size} must be even"
            )
        if self.ema is not None and self.strategy == "fsdp":
            raise ValueError("--ema does not work with --strategy fsdp: the averaged weights cannot be sharded")
        for option, value in (self.model_options or {}).items():
            if str(option).endswith("_rate") and isinstance(value, int | float) and not 0 <= value <= 1:
                raise ValueError(f"--model-options: {option} must be from 0 to 1, got {value}")
        for option, instead in MANAGED.items():
            if option in (self.model_options or {}):
                raise ValueError(f"--model-options cannot set {option!r}: {instead}")

"""Everything a training run can be told, with its default and one line of help."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from visattn.registry import suggest

LOWEST = {
    "batch_size": 1, "epochs": 1, "accumulate": 1, "num_nodes": 1, "image_size": 1, "num_classes": 2, "patience": 1,
    "workers": 0, "film_every": 0, "seed": 0, "mixup": 0, "cutmix": 0, "label_smoothing": 0, "weight_decay": 0,
    "warmup_epochs": 0, "clip_grad": 0,
}  # fmt: skip


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Settings:
    """One training run; the defaults train the newcomer's model on the embedded digits."""

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
    val_fraction: float = _option(0.1, "share of the images to validate on when a folder has no train/ and val/")
    num_classes: int | None = _option(None, "needed only where the data cannot tell (shards)")
    image_size: int | None = _option(None, "side of the square the model sees [the data's or the model's own]")
    augment: str | None = _option(
        None, "none, crop, colour, cutout, rand or strong [none for digits and MNIST, crop for photographs]"
    )
    mixup: float = _option(0.0, "alpha of mixup, 0 for none")
    cutmix: float = _option(0.0, "alpha of cutmix, 0 for none")
    batch_size: int = _option(16, "images per process and step")
    workers: int | None = _option(None, "processes that load images [one per core; 0 for digits and MNIST]")
    on_bad_image: Literal["fail", "skip"] = _option("fail", "what an image that cannot be read does to the run")

    # the recipe
    epochs: int = _option(6, "passes over the training images")
    optimizer: str = _option("adamw", "adamw, sgd, lamb or any other of timm's optimisers")
    lr: float = _option(2e-3, "peak learning rate")
    weight_decay: float = _option(0.05, "for weights; norms, biases and gains have none")
    momentum: float = _option(0.9, "of SGD")
    warmup_epochs: float = _option(0.5, "the learning rate rises for so long, then falls as a cosine")
    layer_decay: float | None = _option(None, "factor on the learning rate per layer below the last")
    new_lr_factor: float | None = _option(
        None, "factor on the learning rate of what is new with --pretrained: attention and classifier"
    )
    label_smoothing: float = _option(0.1, "share of the target spread over all classes")
    ema: float | None = _option(None, "validate and keep an exponential average of the weights with this decay")
    clip_grad: float | None = _option(None, "largest norm of the gradient")
    accumulate: int = _option(1, "batches per optimiser step")
    patience: int | None = _option(None, "stop when validation has not improved for so many epochs")

    # the machine
    devices: str = _option("auto", "how many GPUs or processes: auto, 4, or a list '[0, 2]'")
    num_nodes: int = _option(1, "machines")
    strategy: str = _option("auto", "auto, ddp, fsdp (sharded weights), or another of Lightning's")
    precision: str = _option("32-true", "32-true, bf16-mixed, 16-mixed, ...")
    matmul_precision: Literal["highest", "high", "medium"] = _option(
        "high", "of float32 matrix products on a GPU: highest, high (TF32, much faster) or medium (bfloat16)"
    )
    seed: int = _option(0, "the same seed gives the same run")

    # the run
    name: str | None = _option(None, "folder below --out [model and data]")
    out: str = _option("runs", "where runs are written")
    resume: str | None = _option(None, "go on with a run: its folder or checkpoint; alone, the last one of this name")
    film_every: int | None = _option(None, "epochs between two frames of the film, 0 for none [about twelve frames]")

    def __post_init__(self) -> None:
        for key, allowed in get_type_hints(Settings).items():
            choices = get_args(allowed)
            if choices and all(isinstance(choice, str) for choice in choices) and getattr(self, key) not in choices:
                raise ValueError(f"unknown {key} {getattr(self, key)!r}: {suggest(str(getattr(self, key)), choices)}")
        for key, lowest in LOWEST.items():
            if getattr(self, key) is not None and getattr(self, key) < lowest:
                raise ValueError(f"--{key.replace('_', '-')} must be at least {lowest}, got {getattr(self, key)}")
        if self.name is not None and (Path(self.name).is_absolute() or ".." in Path(self.name).parts):
            raise ValueError(f"--name {self.name!r} must be a folder below --out")
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            raise ValueError(f"--layer-decay is a factor above 0 and up to 1, got {self.layer_decay}")
        if self.new_lr_factor is not None and not self.new_lr_factor > 0:
            raise ValueError(f"--new-lr-factor must be above zero, got {self.new_lr_factor}")
        if self.label_smoothing >= 1:
            raise ValueError(f"--label-smoothing is a share below 1, got {self.label_smoothing}")
        if self.batch_size % 2 and (self.mixup > 0 or self.cutmix > 0):
            raise ValueError(
                f"mixup and cutmix pair the images of a batch: --batch-size {self.batch_size} must be even"
            )
        if not self.lr > 0:
            raise ValueError(f"--lr must be above zero, got {self.lr}")
        if not 0 < self.val_fraction < 1:
            raise ValueError(f"--val-fraction must be between 0 and 1, got {self.val_fraction}")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"--ema is a decay between 0 and 1, such as 0.999; got {self.ema}")
        if self.ema is not None and self.strategy == "fsdp":
            raise ValueError("--ema does not work with --strategy fsdp: the averaged weights cannot be sharded")

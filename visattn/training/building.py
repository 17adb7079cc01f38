"""From settings to a model, its data and its card."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import lightning
from lightning.pytorch import seed_everything
from timm.data import resolve_model_data_config
from torch import nn

import visattn
from visattn.data.datamodule import ImageData
from visattn.data.preparation import Preparation
from visattn.data.sources import Anything, open_source
from visattn.models import create_model
from visattn.models.attach import Init
from visattn.models.description import describe
from visattn.models.names import model_config
from visattn.training.classifier import Classifier, ShardedClassifier
from visattn.training.optimisation import check_optimizer
from visattn.training.settings import Settings
from visattn.training.trainer import SHARDED


def create_source(settings: Settings) -> Anything:
    """The data that the settings name."""
    return open_source(
        settings.data,
        root=settings.root,
        subset=settings.subset,
        difficulty=settings.difficulty,
        val_fraction=settings.val_fraction,
        num_classes=settings.num_classes,
        seed=settings.seed,
    )


def input_size(settings: Settings, source: Anything) -> tuple[int, dict[str, Any]]:
    """Side of the model's input, and what timm must be told about it.

    A convolutional network takes the images as they are; a vision transformer is made for one size, and is built anew
    for another one only if that is asked for. A model that takes glimpses sees images of any size.
    """
    config = model_config(settings.model)
    native, fixed = (config.input_size[-1], config.fixed_input_size) if config else (224, False)
    size = settings.image_size or (source.size if source.size is not None and not fixed else native)
    return size, {"img_size": size} if fixed and size != native else {}


def model_arguments(settings: Settings, source: Anything) -> dict[str, Any]:
    """All that :func:`visattn.create_model` needs to build the model again."""
    _, extra = input_size(settings, source)
    return {
        "name": settings.model,
        "attn": settings.attn,
        "attn_options": settings.attn_options,
        "num_classes": len(source.classes),
        **extra,
        **(settings.model_options or {}),
    }


def create_classifier(settings: Settings, source: Anything, *, resumed: bool = False) -> Classifier:
    """The model in its training harness; the same weights for the same seed.

    Args:
        settings: of the run.
        source: whose classes are told apart.
        resumed: a checkpoint will fill the model, so that pretrained weights are not needed.
    """
    check_optimizer(settings.optimizer)
    seed_everything(settings.seed, verbose=False)
    arguments = model_arguments(settings, source)
    init: Init = "identity" if settings.pretrained else "paper"
    try:  # every process may ask for the weights at once: the hub's cache locks each file and moves it into place whole
        model = create_model(**arguments, pretrained=settings.pretrained and not resumed, init=init)
    except ValueError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        if settings.pretrained and not resumed:
            raise ValueError(
                f"the pretrained weights of {settings.model!r} could not be loaded; they come from the Hugging Face "
                f"hub, which needs a network or a filled cache ({reason})"
            ) from error
        raise ValueError(f"{settings.model!r} cannot be built with {arguments} ({reason})") from error
    if settings.compile:
        model.compile()
    kind = ShardedClassifier if settings.strategy == SHARDED else Classifier
    return kind(model, settings, len(source.classes))


def create_data(settings: Settings, source: Anything, model: nn.Module) -> ImageData:
    """Batches for a model, prepared as it expects."""
    size = input_size(settings, source)[0]
    own = resolve_model_data_config(model)["input_size"][0]
    known: dict[str, Any] = {"size": ((settings.model_options or {}).get("in_chans", own), size, size)}
    if source.size is not None:
        known["crop_pct"] = 1.0  # all of it: there is nothing around the object
    return ImageData(
        source,
        Preparation.of(model, known),
        batch_size=settings.batch_size,
        augment=settings.augment,
        workers=settings.workers,
        seed=settings.seed,
        on_bad_image=settings.on_bad_image,
        channels_last=settings.channels_last,
    )


def card(settings: Settings, source: Anything, data: ImageData, model: nn.Module) -> dict[str, Any]:
    """What somebody who finds ``model.safetensors`` has to know."""
    return {
        "name": "_".join(filter(None, (settings.model, settings.attn))),
        **describe(model),
        "classes": list(source.classes),
        "class_names": list(source.names),
        "input": {
            **asdict(data.preparation),
            "range": f"{'grey' if data.preparation.size[0] == 1 else 'RGB'} in 0..1, then (x - mean) / std",
        },
        "data": settings.data,
        "versions": {"visattn": visattn.__version__, "lightning": lightning.__version__},
    }

"""From settings to a model, its data and its card."""

from __future__ import annotations

from typing import Any

import lightning
from lightning.pytorch import seed_everything
from timm.data import resolve_model_data_config
from torch import nn

import visattn
from visattn.data.datamodule import ImageData
from visattn.data.preparation import normalisation
from visattn.data.sources import Anything, open_source
from visattn.models import create_model
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


def create_classifier(settings: Settings, source: Anything) -> Classifier:
    """The model in its training harness; the same weights for the same seed."""
    check_optimizer(settings.optimizer)
    seed_everything(settings.seed, verbose=False)
    arguments = model_arguments(settings, source)
    try:  # every process may ask for the weights at once: the hub's cache locks each file and moves it into place whole
        model = create_model(**arguments, pretrained=settings.pretrained)
    except ValueError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        if settings.pretrained:
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
    """Batches for a model, normalised as it expects."""
    config = resolve_model_data_config(model)
    mean, std = normalisation(config, (settings.model_options or {}).get("in_chans", config["input_size"][0]))
    return ImageData(
        source,
        size=input_size(settings, source)[0],
        mean=mean,
        std=std,
        crop_pct=config["crop_pct"],
        batch_size=settings.batch_size,
        augment=settings.augment,
        workers=settings.workers,
        seed=settings.seed,
        on_bad_image=settings.on_bad_image,
        channels_last=settings.channels_last,
    )


def card(settings: Settings, source: Anything, data: ImageData) -> dict[str, Any]:
    """What somebody who finds ``model.safetensors`` has to know."""
    return {
        "model": model_arguments(settings, source),
        "classes": list(source.classes),
        "class_names": list(source.names),
        "input": {
            "size": [data.channels, data.size, data.size],
            "range": f"{'grey' if data.channels == 1 else 'RGB'} in 0..1, then (x - mean) / std",
            "mean": list(data.mean),
            "std": list(data.std),
            "crop_pct": data.crop_pct,
        },
        "data": settings.data,
        "versions": {"visattn": visattn.__version__, "lightning": lightning.__version__},
    }

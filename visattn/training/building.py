"""From settings to a model, its data and its model card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch import seed_everything
from timm.data import resolve_model_data_config
from torch import Tensor, nn

import visattn
from visattn.data.datamodule import ImageData
from visattn.data.preparation import Preparation
from visattn.data.readers import Split
from visattn.data.sources import AnySource, open_source
from visattn.listing import shown, times
from visattn.models import create_model
from visattn.models.names import model_config, split_name
from visattn.models.refusals import failed_block
from visattn.models.saving.card import CARD, check_card
from visattn.models.saving.description import describe
from visattn.models.survey import dry_run
from visattn.training.classifier import Classifier, ShardedClassifier
from visattn.training.optimisation import check_optimizer
from visattn.training.settings import Settings
from visattn.training.trainer import SHARDED


def create_source(settings: Settings, split: Split | None = None) -> AnySource:
    """Open the data that the settings name; ``split`` is that of a run to resume."""
    if settings.data == "folder" and settings.root is not None:
        root, out = Path(settings.root), Path(settings.out).resolve()
        for folder in (root / "train", root / "val") if (root / "train").is_dir() else (root,):
            if out.is_relative_to(folder.resolve()):
                raise ValueError(
                    f"--out {settings.out!r} is inside {str(folder)!r}, where the images are, so runs would become "
                    "classes; choose another --out"
                )
    source = open_source(
        settings.data,
        root=settings.root,
        subset=settings.subset,
        difficulty=settings.difficulty,
        val_fraction=settings.val_fraction,
        num_classes=settings.num_classes,
        seed=settings.seed,
        skip_bad=settings.on_bad_image == "skip",
        split=split,
    )
    if settings.num_classes not in (None, len(source.classes)):
        raise ValueError(
            f"--num-classes {settings.num_classes}, but the data has {len(source.classes)} classes: omit the flag"
        )
    return source


def input_size(settings: Settings, source: AnySource) -> tuple[int, dict[str, Any]]:
    """Side of the model's input, and what timm must be told about it.

    A convolutional network takes images as they are. A vision transformer has a fixed size, and is built for another
    one only on request. A model that takes glimpses accepts images of any size.
    """
    config = model_config(settings.model)
    native, fixed = (config.input_size[-1], config.fixed_input_size) if config else (224, False)
    size = settings.image_size or (source.size if source.size is not None and not fixed else native)
    return size, {"img_size": size} if fixed and size != native else {}


def model_arguments(settings: Settings, source: AnySource) -> dict[str, Any]:
    """Arguments from which :func:`visattn.create_model` can rebuild the model."""
    _, extra = input_size(settings, source)
    return {
        "name": settings.model,
        "attn": settings.attn,
        "attn_options": settings.attn_options,
        "num_classes": len(source.classes),
        **extra,
        **(settings.model_options or {}),
    }


def create_classifier(settings: Settings, source: AnySource, known: Mapping[str, Any] | None = None) -> Classifier:
    """Create the model inside its Lightning module; the same seed gives the same weights.

    Args:
        settings: settings of the run.
        source: data whose classes the model predicts.
        known: the card of a checkpoint that will be loaded: the model starts as there, without pretrained weights.
    """
    check_optimizer(settings.optimizer)
    seed_everything(settings.seed, verbose=False)
    arguments = model_arguments(settings, source)
    if known:  # the settings may come from a stranger's folder: take weights from nowhere else
        arguments = {key: value for key, value in arguments.items() if key not in ("checkpoint_path", "cache_dir")}
        attention = settings.attn or split_name(settings.model)[1]
        starts = {each.get("block"): each.get("init") for each in known.get("attachments", ())}
        arguments |= {"init": starts[attention]} if attention in starts else {}
    try:  # every process may ask for the weights at once: the hub's cache locks its files and writes them atomically
        model = create_model(**arguments, pretrained=settings.pretrained and not known)
    except ValueError:
        raise
    except (Exception, SystemExit) as error:  # a plugin's model can raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split("Exception raised from")[0].split())[:200]
        if settings.pretrained and not known:
            raise ValueError(
                f"the pretrained weights of {settings.model!r} could not be loaded; they come from the Hugging Face "
                f"hub, which needs a network or a cached copy ({reason})"
            ) from error
        given = {key: value for key, value in arguments.items() if key != "name" and value is not None}
        raise ValueError(f"{settings.model!r} cannot be built with {shown(given)} ({reason})") from error
    _check_fits(model, settings, source)
    if settings.compile:
        model.compile()
    kind = ShardedClassifier if settings.strategy == SHARDED else Classifier
    return kind(model, settings, len(source.classes))


def _check_fits(model: nn.Module, settings: Settings, source: AnySource) -> None:
    """Raise if a model does not turn images of the run's size into one logit per class."""
    if any(each.is_meta for each in model.parameters()):
        raise ValueError(f"{settings.model!r} has weights without values: it was built on the meta device")
    size = _input_shape(settings, source, model)
    try:
        with torch.no_grad():
            output: Any = dry_run(model, (2, *size), lambda copy, images: copy(images))
    except (Exception, SystemExit) as error:  # a network can raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        if (block := failed_block(error)) is not None:
            where = f"in {settings.model!r} on images of {times(size)}"
            raise ValueError(f"block {block!r} fails {where}: {reason}") from error
        raise ValueError(f"{settings.model!r} does not take images of {times(size)}: {reason}") from error
    if not isinstance(output, Tensor) or tuple(output.shape) != (2, len(source.classes)):
        given = times(output.shape[1:]) if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise ValueError(
            f"{settings.model!r} is not a classifier as built here: for an image of {times(size)} it returns {given}, "
            f"not one number for each of {len(source.classes)} classes (see --model-options)"
        )


def _input_shape(settings: Settings, source: AnySource, model: nn.Module) -> tuple[int, int, int]:
    size = input_size(settings, source)[0]
    channels = (settings.model_options or {}).get("in_chans", resolve_model_data_config(model)["input_size"][0])
    return channels, size, size


def create_data(
    settings: Settings, source: AnySource, model: nn.Module, known: Mapping[str, Any] | None = None
) -> ImageData:
    """Create the data module, which prepares images as the model expects.

    Args:
        settings: settings of the run.
        source: where the images come from.
        model: the network.
        known: the card of a run to resume, which goes on with images as it has prepared them.
    """
    how: dict[str, Any] = {} if source.size is None else {"crop_pct": 1.0}  # nothing is around the object
    how |= (known or {}).get("input", {})
    return ImageData(
        source,
        Preparation.of(model, {**how, "size": _input_shape(settings, source, model)}),
        batch_size=settings.batch_size,
        augment=settings.augment,
        workers=settings.workers,
        seed=settings.seed,
        on_bad_image=settings.on_bad_image,
        channels_last=settings.channels_last,
    )


def card(settings: Settings, source: AnySource, data: ImageData, model: nn.Module) -> dict[str, Any]:
    """Model card: what a user of ``model.safetensors`` needs to know."""
    said = {
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
    return check_card(said, CARD)

"""What a run prints before it starts."""

from __future__ import annotations

from lightning.pytorch import Trainer
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from visattn.counting import count_parameters
from visattn.data.datamodule import ImageData
from visattn.data.readers import Source
from visattn.files import say
from visattn.listing import times
from visattn.training.classifier import Classifier
from visattn.training.runs import Run


def announce(run: Run, classifier: Classifier, data: ImageData, trainer: Trainer, complete: str | None = None) -> None:
    """Print what is about to happen; with a run that is complete, for this reason, nothing but its pictures."""
    settings, source = classifier.settings, data.source
    name = settings.model if settings.attn is None else f"{settings.model} with {settings.attn}"
    trained = count_parameters(classifier.model)
    total = sum(parameter.numel() for parameter in classifier.model.parameters())
    parameters = f"{total:,} parameters" if trained == total else f"{trained:,} of {total:,} parameters"
    processes = f" in {trainer.world_size} processes" if trainer.world_size > 1 else ""
    pixels = times(data.preparation.size[1:])
    say(f"{name}, {parameters}, on {settings.data}: {len(source.classes)} classes, {pixels} pixels")
    if isinstance(source, Source):
        say(f"{len(source.train):,} training images, {len(source.val):,} validation images")
        for note in source.notes:
            say(f"note: {note}")
    if settings.freeze_backbone and not settings.pretrained and run.checkpoint is None:
        say("note: --freeze-backbone without --pretrained: the backbone keeps its random weights")
    if settings.warmup_epochs >= settings.epochs:
        say(f"note: the warm-up of {settings.warmup_epochs:g} epochs is as long as the run, or longer")
    say(f"{trainer.accelerator.__class__.__name__.removesuffix('Accelerator')}{processes}, writing to {run.folder}/")
    if run.checkpoint is not None:
        say(f"resuming from {run.checkpoint}")
        if complete is not None:
            say(f"note: {complete}")
    elif settings.resume is not None:
        say(f"nothing to resume in {run.folder}/ yet: starting from scratch")
    if trainer.world_size > 1 and trainer.accelerator.name() == "cpu" and _has_batch_norm(classifier.model):
        say("note: SyncBatchNorm needs GPUs; each process normalises its own batches")


def _has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) for module in model.modules())

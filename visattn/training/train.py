"""The story of a training run, from its settings to the last picture."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from visattn.data.datamodule import recorded_split
from visattn.data.readers import Source
from visattn.files import say
from visattn.models import load_model
from visattn.models.plugins import changed_plugins, check_plugins
from visattn.models.saving.saved import write_model
from visattn.models.saving.weights import card_of, model_weights
from visattn.training.averaging import what_changes
from visattn.training.banner import announce
from visattn.training.building import card, create_classifier, create_data, create_source
from visattn.training.checkpoints import (
    check_batch_size,
    check_resumable,
    cut_short,
    epochs_done,
    load_checkpoint,
    why_complete,
)
from visattn.training.fitting import fit, under_way
from visattn.training.optimisation import check_optimizer_state
from visattn.training.pictures import create_film, draw_outcome
from visattn.training.ranks import end_together, is_first, on_first_process
from visattn.training.record import continues, read_rows, recorded
from visattn.training.runs import Run, claimed, find_run, start
from visattn.training.settings import Settings
from visattn.training.signals import Signals
from visattn.training.trainer import create_trainer

UNRECORDED = (
    "note: the run does not say which images it validated on (an earlier version began it, or the folder had train/ "
    "and val/): images that were added or removed since may have moved validation images into training"
)

CUT_SHORT = (
    "note: epoch {} was ended before its last batch (by --trainer.max_steps or max_time); the rest of it is left out, "
    "and training goes on with the next epoch"
)


def train(settings: Settings, arguments: Mapping[str, Any], config: str, signals: Signals) -> None:
    """Run one training from beginning to end.

    Args:
        settings: settings of the run.
        arguments: arguments of Lightning's Trainer.
        config: both of these as the text of a ``config.yaml``.
        signals: signals that end the run early.
    """
    # A new folder, or that of the run to resume: no other process trains in it meanwhile.
    with claimed(settings, config) if is_first() else nullcontext(find_run(settings, config)) as run:
        train_in(run, settings, arguments, config, signals)


def train_in(run: Run, settings: Settings, arguments: Mapping[str, Any], config: str, signals: Signals) -> None:
    """Train in the folder of a run."""
    began = time.perf_counter()

    # Images, a model for them, and the images prepared for this model, as before if the run is resumed.
    state, known = read_state(run)
    split = None if state is None else recorded_split(state)
    source = create_source(settings, split)
    if state is not None and split is None and isinstance(source, Source) and source.split is not None:
        on_first_process(say, UNRECORDED)
    classifier = create_classifier(settings, source, known)
    if state is not None:  # before anything is written
        check_resumable(state, known, classifier.model, settings, source.classes)
        check_batch_size(state, settings.batch_size)
        check_optimizer_state(state, classifier.model, settings)
        if run.best.is_file():  # it is read only at the end, which may be days away
            best_state = load_checkpoint(run.best)
            check_resumable(best_state, known, classifier.model, settings, source.classes)
            if continues(recorded(state["callbacks"]), recorded(best_state["callbacks"])):
                run = replace(run, best_epoch=epochs_done(best_state))  # or else the next epoch is the best so far
            del best_state
    data = create_data(settings, source, classifier.model, known)
    classifier.card = card(settings, source, data, classifier.model)
    complete = None if state is None else why_complete(state, settings, arguments)
    if state is not None and complete is None and cut_short(state):
        on_first_process(say, CUT_SHORT.format(epochs_done(state)))
    steps = 0 if state is None else state["global_step"]
    film = create_film(run.folder, settings, classifier.model, data)
    trainer = create_trainer(settings, run, arguments, signals, film)
    if state is not None and complete is None:
        for change in what_changes(state, trainer.callbacks):  # type: ignore[attr-defined]  # Lightning sets it
            on_first_process(say, change)
    del state  # Lightning reads it again
    if complete is None:
        on_first_process(start, run, config)
    on_first_process(announce, run, classifier, data, trainer, complete)

    with under_way(trainer, steps):
        fit(trainer, classifier, data, run, arguments)

        # The results: weights with a model card, and pictures.
        data.report_bad_images()
        if is_first():
            rows, kept = read_rows(run), load_checkpoint(run.best)
            if len(rows) <= kept["epoch"]:
                raise ValueError(f"{str(run.folder / 'metrics.csv')!r} lacks the best epoch, {kept['epoch'] + 1}")
            best = rows[kept["epoch"]]
            said = {key: value if value is None or math.isfinite(value) else None for key, value in best.items()}
            write_model(run.folder, model_weights(kept), {**classifier.card, "best": said})
            model, _ = load_model(run.folder)
            draw_outcome(run.folder, model, data, rows)
            say(f"\n{run.summary(best, time.perf_counter() - began)}")
    end_together()


def read_state(run: Run) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Read the checkpoint of a run to resume, and its model card; raises if a plugin that it needs is missing."""
    if run.checkpoint is None:
        return None, {}
    state = load_checkpoint(run.checkpoint)
    known = card_of(state, run.checkpoint)
    if known is None:
        raise ValueError(f"{str(run.checkpoint)!r} is not a checkpoint of train.py: it has no model card")
    check_plugins(known, run.checkpoint)
    for plugin in changed_plugins(known):
        on_first_process(say, f"note: {plugin} has changed since the run began")
    return state, known

"""``python train.py`` and ``visattn train``: the story of a training run, from the command line to the last picture."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from visattn.cli.pictures import create_film, draw_outcome
from visattn.models import load_model
from visattn.models.plugins import changed_plugins, check_plugins, loaded
from visattn.models.saved import write_model
from visattn.models.weights import card_of, model_weights
from visattn.training import slurm
from visattn.training.building import card, create_classifier, create_data, create_source
from visattn.training.checkpoints import check_resumable, load_checkpoint
from visattn.training.fitting import fit
from visattn.training.optimisation import check_optimizer_state
from visattn.training.parsing import parse
from visattn.training.processes import (
    NO_MEMORY,
    PROBLEMS,
    announce,
    is_first,
    on_first_process,
    one_line,
    part,
)
from visattn.training.record import read_rows
from visattn.training.runs import Run, claimed, find_run, start
from visattn.training.signals import TOO_EARLY, Interrupted, Signals
from visattn.training.trainer import create_trainer


def main(argv: Sequence[str] | None = None, prog: str = "train.py") -> int:
    """Train a model; the exit code is 0 if all went well, 130 after Ctrl-C, 143 after SIGTERM."""
    with Signals() as signals:
        try:
            return train(list(sys.argv[1:] if argv is None else argv), prog, signals)
        except Interrupted as stopped:
            on_first_process(say_goodbye, stopped, requeue=stopped.number == signals.requeue)
            part()
            return 128 + stopped.number
        except PROBLEMS as error:
            print(f"{prog}: {one_line(error)}", file=sys.stderr)
            return 1
        except RuntimeError as error:
            if NO_MEMORY not in str(error):
                raise
            print(f"{prog}: {one_line(MemoryError(str(error).partition(NO_MEMORY)[2]))}", file=sys.stderr)
            return 1


def say_goodbye(stopped: Interrupted, *, requeue: bool) -> None:
    """Say how to go on with a run that was stopped, or have SLURM do that."""
    if stopped.folder is None:
        print(TOO_EARLY, file=sys.stderr)
    else:
        plugins = "".join(f" --plugin {plugin.name}" for plugin in loaded.values())
        print(f"stopped and saved; go on with: python train.py --resume {stopped.folder}{plugins}", flush=True)
    if requeue:
        print(slurm.requeue(), flush=True)


def read_state(run: Run) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The checkpoint of a run to go on with, and its card; raises if the model needs a plugin that is not there."""
    if run.checkpoint is None:
        return None, {}
    state = load_checkpoint(run.checkpoint)
    known = card_of(state, run.checkpoint) or {}
    check_plugins(known, run.checkpoint)
    for plugin in changed_plugins(known):
        on_first_process(print, f"note: {plugin} is not the file that the run was begun with")
    return state, known


def train(argv: Sequence[str], prog: str, signals: Signals) -> int:
    """One run."""
    began = time.perf_counter()
    request = parse(argv, prog)
    settings = request.settings

    # A folder of its own, or that of the run to go on with.
    config = request.to_yaml(argv)
    with claimed(settings, config) if is_first() else nullcontext(find_run(settings, config)) as run:
        # Images, a model for them, and the images again as this model wants them.
        source = create_source(settings)
        state, known = read_state(run)
        classifier = create_classifier(settings, source, resumed=run.checkpoint is not None)
        data = create_data(settings, source, classifier.model)
        classifier.card = card(settings, source, data, classifier.model)
        if state is not None:  # before anything is written
            check_resumable(state, known, classifier.model, settings, source.classes)
            check_optimizer_state(state, classifier.model, settings)
            if run.best.is_file():  # is read when all is done, and that may be days
                check_resumable(load_checkpoint(run.best), known, classifier.model, settings, source.classes)
        del state  # Lightning reads it again
        film = create_film(run.folder, settings, classifier.model, data)
        trainer = create_trainer(settings, run, request.trainer, signals, film)
        on_first_process(start, run, config)
    on_first_process(announce, run, classifier, data, trainer)

    fit(trainer, classifier, data, run, request)

    # What is left: weights with a card, and pictures.
    data.report_bad_images()
    if is_first():
        rows, kept = read_rows(run), load_checkpoint(run.best)
        best = next(row for row in rows if row["epoch"] == kept["epoch"] + 1)
        said = {key: value if value is None or math.isfinite(value) else None for key, value in best.items()}
        write_model(run.folder, model_weights(kept), {**classifier.card, "best": said})
        model, _ = load_model(run.folder)
        draw_outcome(run.folder, model, data, rows)
        print(f"\n{run.summary(best, time.perf_counter() - began)}")
    part()
    return 0

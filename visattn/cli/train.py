"""``python train.py`` and ``visattn train``: the story of a training run, from the command line to the last picture."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from visattn.cli.pictures import create_film, draw_outcome
from visattn.models import load_model
from visattn.models.saved import write_model
from visattn.models.weights import model_weights
from visattn.training import slurm
from visattn.training.building import card, create_classifier, create_data, create_source
from visattn.training.checkpoints import check_resumable, load_checkpoint
from visattn.training.parsing import parse
from visattn.training.processes import PROBLEMS, announce, is_first, on_first_process, one_line, part
from visattn.training.record import read_rows
from visattn.training.runs import find_run, start
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


def say_goodbye(stopped: Interrupted, *, requeue: bool) -> None:
    """Say how to go on with a run that was stopped, or have SLURM do that."""
    if stopped.folder is None:
        print(TOO_EARLY, file=sys.stderr)
    else:
        print(f"stopped and saved; go on with: python train.py --resume {stopped.folder}", flush=True)
    if requeue:
        print(slurm.requeue(), flush=True)


def train(argv: Sequence[str], prog: str, signals: Signals) -> int:
    """One run."""
    began = time.perf_counter()
    request = parse(argv, prog)
    settings = request.settings

    # A folder of its own, or that of the run to go on with.
    config = request.to_yaml(argv)
    run = find_run(settings, config)

    # Images, a model for them, and the images again as this model wants them.
    source = create_source(settings)
    classifier = create_classifier(settings, source, resumed=run.checkpoint is not None)
    data = create_data(settings, source, classifier.model)
    classifier.card = card(settings, source, data, classifier.model)
    if run.checkpoint is not None:
        check_resumable(load_checkpoint(run.checkpoint), classifier.model, settings)  # before anything is written
    film = create_film(run.folder, settings, classifier.model, data)
    trainer = create_trainer(settings, run, request.trainer, signals, film)
    on_first_process(start, run, config)
    on_first_process(announce, run, classifier, data, trainer)

    trainer.fit(classifier, data, ckpt_path=run.checkpoint, weights_only=True)

    # What is left: weights with a card, and pictures.
    data.report_bad_images()
    if is_first():
        rows = read_rows(run)
        best = max(rows, key=lambda row: row["val_top1"] or 0)
        write_model(run.folder, model_weights(load_checkpoint(run.best)), {**classifier.card, "best": best})
        model, _ = load_model(run.folder)
        draw_outcome(run.folder, model, data, rows)
        print(f"\n{run.summary(best, time.perf_counter() - began)}")
    part()
    return 0

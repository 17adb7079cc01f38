"""A training run as the command line has it: complete the settings, train, report the outcome."""

from __future__ import annotations

from visattn.cli.parsing import parse
from visattn.cli.streams import printed
from visattn.constants import NO_MEMORY, TOO_EARLY
from visattn.files import say
from visattn.missing import saying_what_to_install
from visattn.models.plugins import loaded
from visattn.training import slurm
from visattn.training.errors import PROBLEMS, USAGE, one_line
from visattn.training.ranks import end_together, on_first_process
from visattn.training.signals import Interrupted, Signals
from visattn.training.train import train


def run(argv: list[str], prog: str) -> int:
    """Train a model and return the exit code."""
    with Signals() as signals:
        try:
            with saying_what_to_install(), printed():
                command = parse(argv, prog)
                train(command.settings, command.trainer, command.to_yaml(argv), signals)
            return 0
        except Interrupted as stopped:
            on_first_process(say_goodbye, stopped, requeue=stopped.number == signals.requeue)
            end_together()
            return 128 + stopped.number
        except PROBLEMS as error:
            say(f"{prog}: {one_line(error)}", error=True)
            return 2 if isinstance(error, USAGE) else 1
        except RuntimeError as error:
            if NO_MEMORY not in str(error):
                raise
            say(f"{prog}: {one_line(MemoryError(str(error).partition(NO_MEMORY)[2]))}", error=True)
            return 1


def say_goodbye(stopped: Interrupted, *, requeue: bool) -> None:
    """Tell the user how to resume a stopped run, or have SLURM requeue it."""
    if stopped.folder is None:
        say(TOO_EARLY, error=True)
    else:
        plugins = "".join(f" --plugin {plugin.name}" for plugin in loaded.values())
        say(f"stopped and saved; resume with: python train.py --resume {stopped.folder}{plugins}", flush=True)
    if requeue:
        say(slurm.requeue(), flush=True)

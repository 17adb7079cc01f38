"""Lightning's Trainer, set up for a run."""

from __future__ import annotations

import ast
import logging
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    LearningRateMonitor,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.strategies.launchers.multiprocessing import _MultiProcessingLauncher
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, OptimStateKeyType
from typing_extensions import override

from visattn.listing import shown
from visattn.training.averaging import Averaging
from visattn.training.checkpoints import SafeCheckpointIO, load_checkpoint
from visattn.training.interruption import Interruption, take_over
from visattn.training.progress import TrainingProgress
from visattn.training.record import Record
from visattn.training.runs import FOLDERS, Run
from visattn.training.settings import Settings
from visattn.training.signals import Signals

SHARDED = "fsdp"
MOST_DEVICES = 1024  # per machine


class Sharding(ModelParallelStrategy):
    """FSDP2 over all processes of all machines, without tensor parallelism."""

    def setup_environment(self) -> None:
        """Set the shape of the device mesh."""
        self._data_parallel_size, self._tensor_parallel_size = self.num_nodes * self.num_processes, 1
        super().setup_environment()

    @override
    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a full checkpoint as data, and let torch shard it, which knows the names of wrapped modules."""
        assert self.model is not None
        state = load_checkpoint(self.broadcast(checkpoint_path))
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(self.model, state.pop("state_dict"), options=options)
        for optimizer, saved in zip(self.optimizers, state["optimizer_states"], strict=True):
            by_name = FullyShardedDataParallel.rekey_optim_state_dict(saved, OptimStateKeyType.PARAM_NAME, self.model)
            set_optimizer_state_dict(self.model, optimizer, by_name, options=options)
        return state


def create_trainer(
    settings: Settings, run: Run, extra: Mapping[str, Any], signals: Signals, callbacks: Sequence[Callback] = ()
) -> Trainer:
    """Create the Trainer of a run.

    Args:
        settings: settings of the run.
        run: its folder.
        extra: Lightning's own arguments, which override the settings; callbacks and loggers are added to ours.
        signals: signals that end the run.
        callbacks: additional callbacks.
    """
    quiet()
    extra = dict(extra)
    loggers = extra.pop("logger", None)
    progress = TrainingProgress()
    own: list[Callback] = [
        *([progress] if extra.get("enable_progress_bar", True) else []),
        *([] if loggers is False else [LearningRateMonitor("step")]),
        *([] if settings.ema is None else [Averaging(settings.ema)]),
        *callbacks,
        Interruption(run, signals),
        Record(run, progress.finish_epoch, settings.patience),
    ]
    theirs = _others(extra.pop("callbacks", None))
    _check_averaging([*own, *theirs])
    plugins = extra.pop("plugins", None)
    if isinstance(extra.get("strategy"), str):
        raise ValueError(f"'--trainer.strategy' takes a class: use --strategy {extra['strategy']}")
    gpu = extra.get("accelerator", "auto") in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    if gpu:
        torch.set_float32_matmul_precision(settings.matmul_precision)
    arguments = {
        "max_epochs": settings.epochs,
        "devices": devices(settings.devices),
        "num_nodes": settings.num_nodes,
        "strategy": settings.strategy,
        "precision": settings.precision,
        "accumulate_grad_batches": settings.accumulate,
        "gradient_clip_val": settings.clip_grad,
        "sync_batchnorm": gpu,
        "benchmark": True if gpu and not extra.get("deterministic") else None,  # all batches have the same size
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 10,
        "use_distributed_sampler": False,  # visattn.data splits the images itself
        "enable_model_summary": False,
        "default_root_dir": str(run.folder),
        **extra,
    }
    if arguments["strategy"] == SHARDED:
        arguments["strategy"] = Sharding(save_distributed_checkpoint=False)  # any number of processes can load it
    try:
        trainer = Trainer(
            callbacks=[*own, *theirs],
            logger=loggers is not False
            and [TensorBoardLogger(run.folder, name="tensorboard", version=""), *_others(loggers)],
            plugins=[SafeCheckpointIO(), *_others(plugins)],
            **arguments,
        )
    except (TypeError, ImportError, RuntimeError) as error:  # not available on this machine
        raise ValueError(f"Lightning's Trainer cannot be set up with these arguments: {error}") from error
    if isinstance(trainer.strategy.launcher, _MultiProcessingLauncher):
        raise ValueError(f"--strategy {settings.strategy} would fork a running process, which fails: use ddp")
    _check_places(run, trainer, [*theirs, *([] if loggers is False else _others(loggers))])
    take_over(trainer, signals)
    return trainer


def devices(given: str | int) -> Any:
    """Parse a number or list of devices; Lightning itself would start any number of processes.

    >>> devices("auto"), devices("2"), devices("[0, 2]")
    ('auto', 2, [0, 2])
    """
    value: Any = given
    if isinstance(given, str) and given != "auto":
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            value = ast.literal_eval(given)
    if type(value) is int and value > MOST_DEVICES:
        raise ValueError(f"--devices must be at most {MOST_DEVICES}, got {value}")
    if value == "auto" or (type(value) is int and (value > 0 or value == -1)):
        return value
    numbers = isinstance(value, list) and value and all(type(each) is int and each >= 0 for each in value)
    if numbers and len(set(value)) == len(value):
        return value
    raise ValueError(f"--devices {shown(given)} must be a number, a list such as '[0, 2]', or auto")


def _others(given: Any) -> list[Any]:
    """Additional objects given by the user as a list: none, one or several."""
    if given is None or given is True:
        return []
    return given if isinstance(given, list) else [given]


def _check_averaging(callbacks: Sequence[Callback]) -> None:
    """Raise if two callbacks average the weights, each of which would save the other's, or one in a way of its own."""
    found = [each for each in callbacks if isinstance(each, WeightAveraging | StochasticWeightAveraging)]
    names = ["--ema" if isinstance(each, Averaging) else type(each).__name__ for each in found]
    if len(names) > 1:
        raise ValueError(f"{names[0]} already averages the weights: leave out {', '.join(names[1:])}")
    if found and isinstance(found[0], StochasticWeightAveraging):
        raise ValueError(f"{names[0]} replaces the learning-rate schedule, and the run could not be resumed: use --ema")


def _check_places(run: Run, trainer: Trainer, others: Sequence[Callback | Logger]) -> None:
    """Raise if a callback or logger would write among the files of the run itself, or of another run."""
    for each in others:
        place = _place(each, trainer)
        if place is None:
            continue
        found = place.resolve()
        folder = found.parent if found.name in FOLDERS else found
        if folder == run.folder.resolve() or Run(folder).last.is_file():
            whose = "the run's own files" if folder == run.folder.resolve() else "the files of another run"
            raise ValueError(f"{type(each).__name__} would write to {place}, where {whose} are: give it another folder")


def _place(writer: Callback | Logger, trainer: Trainer) -> Path | None:
    """Folder that a callback or logger writes to, as far as it is known."""
    if isinstance(writer, Logger):
        return None if writer.log_dir is None else Path(writer.log_dir)
    if not isinstance(writer, ModelCheckpoint | OnExceptionCheckpoint):
        return None
    if writer.dirpath is None:  # in the folder of the first logger, which is ours
        return None if trainer.loggers else Path(trainer.default_root_dir, "checkpoints")
    return Path(writer.dirpath, writer.filename or "last").parent  # the name may have folders in it


def quiet() -> None:
    """Silence Lightning's tips and hints, which are not about the user's run."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*module\\(s\\) in eval mode.*",  # the frozen backbone
        ".*is smaller than the logging interval.*",
        ".*GPU available but not used.*",
        ".*callbacks used to create the checkpoint need to be.*",  # `what_changes` says so
        ".*checkpoint was not created with WeightAveraging.*",
        ".*isinstance\\(treespec, LeafSpec\\).*",  # Lightning's own use of torch
    ):
        warnings.filterwarnings("ignore", message)

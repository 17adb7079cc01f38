"""Checkpoints that are written atomically and run no code when they are loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from visattn.data.datamodule import ImageData
from visattn.files import replacing
from visattn.listing import shown
from visattn.models.saving.description import describe
from visattn.models.saving.weights import model_weights, read_tensors
from visattn.training.metrics import SUMS_KEY, are_sums
from visattn.training.record import recorded
from visattn.training.settings import Settings

# Entries that a run needs to resume.
PARTS = {
    "state_dict": dict, "epoch": int, "global_step": int, "loops": dict, "callbacks": dict,
    "optimizer_states": list, "lr_schedulers": list,
}  # fmt: skip
MOST_VALUES = 2_000_000  # in a checkpoint: tensors, numbers, and what they are in
PROGRESS = {"epoch_progress", "epoch_loop.batch_progress", "epoch_loop.automatic_optimization.optim_progress"}


class SafeCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoints, written atomically and read as data only."""

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write next to the old file, then replace it."""
        with replacing(path) as partial, partial.open("wb") as stream:  # torch's own writer does not say why it fails
            try:
                torch.save(checkpoint, stream)
            except RuntimeError as error:  # raised on closing, after the actual reason
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise OSError(None, str(error).splitlines()[0]) from error

    @override
    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Callable[..., Any] | None = None,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read only tensors and plain values, whatever the caller asks for."""
        return load_checkpoint(path, map_location=map_location or "cpu")


def load_checkpoint(path: str | Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Read a Lightning checkpoint as data; a file that would run code is rejected."""
    state = read_tensors(path, map_location=map_location)
    if not isinstance(state, dict):
        raise ValueError(f"{str(path)!r} is not a checkpoint of train.py: it contains a {type(state).__name__}")
    for key, kind in PARTS.items():
        if not isinstance(state.get(key), kind):
            raise ValueError(f"{str(path)!r} is not a checkpoint of train.py: {key} is missing or malformed")
    if not _is_plain([state[key] for key in PARTS if key != "state_dict"]):  # weights are compared with the model's
        raise ValueError(f"{str(path)!r} was edited: it would grow when it is used, which train.py's do not")
    if not _is_whole(state):
        raise ValueError(f"{str(path)!r} is not a checkpoint of train.py: its state is malformed")
    if not _agrees(state):
        raise ValueError(f"{str(path)!r} is damaged or was edited: its step and epoch counts do not agree")
    return state


def _is_plain(values: list[Any]) -> bool:
    """Whether a checkpoint is as large as it seems: no expanded or sparse tensors, no lists that share lists."""
    todo, seen = values, 0
    while todo and seen + len(todo) <= MOST_VALUES:
        each = todo.pop()
        seen += 1
        if isinstance(each, dict):
            todo += each.values()
        elif isinstance(each, list | tuple):
            todo += each
        elif isinstance(each, Tensor) and (
            each.layout != torch.strided or each.nbytes > each.untyped_storage().nbytes()
        ):
            return False
    return not todo


def _is_whole(state: Mapping[str, Any]) -> bool:
    """Whether a checkpoint looks like that of a run with one optimiser and one schedule."""
    optimizers, schedulers, loop = state["optimizer_states"], state["lr_schedulers"], state["loops"].get("fit_loop")
    nested = [*optimizers, *schedulers, *state["callbacks"].values(), loop]
    return (
        all(isinstance(each, dict) for each in nested)
        and len(optimizers) == len(schedulers) == 1
        and isinstance(optimizers[0].get("param_groups"), list)
        and isinstance(optimizers[0].get("state"), dict)
        and loop.keys() >= PROGRESS
        and all(isinstance(each, dict) for each in loop.values())
        and not any(callable(getattr(LambdaLR, key, None)) or key == "optimizer" for key in schedulers[0])
        and state["epoch"] >= 0
        and (SUMS_KEY not in state or are_sums(state[SUMS_KEY]))
    )


def _agrees(state: Mapping[str, Any]) -> bool:
    """Whether the counters of a checkpoint, which are kept in several places, say the same."""
    loop = state["loops"]["fit_loop"]
    numbers = [number for key in loop if key.endswith("progress") for number in tree_leaves(loop[key])]
    if not all(type(number) in (int, bool) and number >= 0 for number in numbers):
        return False
    try:
        steps = loop["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]["total"]["completed"]
        epochs = epochs_done(state)
    except (KeyError, TypeError):
        return False
    rows = recorded(state["callbacks"])
    return (
        state["global_step"] == state["lr_schedulers"][0].get("last_epoch") == steps
        and state["epoch"] in (epochs, epochs - 1)  # after some steps of an epoch, or at its end
        and [row["epoch"] for row in rows] == list(range(1, epochs + 1))
    )


def epochs_done(state: Mapping[str, Any]) -> int:
    """How many epochs a run has completed."""
    return int(state["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"])


def cut_short(state: Mapping[str, Any]) -> bool:
    """Whether the last epoch counts as complete, but was ended before its last batch."""
    is_last = state["loops"]["fit_loop"]["epoch_loop.batch_progress"].get("is_last_batch", True)
    return epochs_done(state) > state["epoch"] and not is_last


def why_complete(state: Mapping[str, Any], settings: Settings, arguments: Mapping[str, Any]) -> str | None:
    """Why there is nothing left to train, if so; raises if the last epoch ended early and no longer has to."""
    most = arguments.get("max_steps", -1)
    if 0 <= most <= state["global_step"]:
        return f"--trainer.max_steps {most} is reached: raise it to train on"
    if epochs_done(state) < settings.epochs:
        return None
    if cut_short(state) and arguments.get("max_time") is None:
        raise ValueError(
            f"epoch {settings.epochs}, the last one, was ended early (by --trainer.max_steps, say) and cannot be "
            "continued: give more --epochs to train on"
        )
    return f"all {settings.epochs} epochs of the run are done: give more --epochs to train on"


def _is_broken(weight: Tensor) -> bool:
    return not weight.is_meta and not bool(weight.isfinite().all())


def _kind(weight: Tensor) -> tuple[torch.Size, bool]:
    return weight.shape, weight.is_floating_point()  # in any precision


def check_resumable(
    state: Mapping[str, Any], known: Mapping[str, Any], model: nn.Module, settings: Settings, classes: Sequence[str]
) -> None:
    """Raise, before anything is written, if a checkpoint cannot be resumed with these settings."""
    if not known.get("classes"):
        raise ValueError("the checkpoint does not say which classes its model knows: it is damaged or was edited")
    if (change := _change(known["classes"], classes)) is not None:
        raise ValueError(
            f"the run started with other classes: {change} in the data; resume it with the data it started with"
        )
    weights, own = model_weights(state), model.state_dict()
    described = describe(model)
    differs = any(described[key] != known.get(key) for key in ("model", "attachments"))
    kinds = [{key: _kind(value) for key, value in each.items()} for each in (weights, own)]
    if differs or kinds[0] != kinds[1]:
        raise ValueError(
            f"the checkpoint is not of the model {settings.model!r}: resume it with the model and data it "
            "started with (--resume FOLDER alone takes them from the folder's config.yaml)"
        )
    if sparse := [key for key, weight in weights.items() if weight.layout != torch.strided]:
        raise ValueError(f"the checkpoint has sparse weights ({sparse[0]}), which the model has not: it was edited")
    parameters = {key for key, _ in model.named_parameters()}
    if broken := [key for key in weights if key in parameters and _is_broken(weights[key])]:
        raise ValueError(
            f"the checkpoint has weights that are not finite numbers ({broken[0]}): resume from an earlier one, or "
            "begin again with a lower --lr"
        )
    if state["epoch"] + 1 > settings.epochs:
        raise ValueError(
            f"the run is already in epoch {state['epoch'] + 1}: --epochs {settings.epochs} is less than that"
        )


def check_batch_size(state: Mapping[str, Any], batch_size: int) -> None:
    """Raise if a checkpoint is of the middle of an epoch that began with batches of another size."""
    said = state.get(ImageData.__qualname__)
    before = said.get("batch_size") if isinstance(said, dict) else None
    if before not in (None, batch_size) and state["epoch"] == epochs_done(state):
        raise ValueError(
            f"the run was stopped within an epoch: with --batch-size {batch_size} it is unclear which images are left, "
            f"so resume it with {shown(before)}, at least to the end of the epoch"
        )


def _change(before: Sequence[str], now: Sequence[str]) -> str | None:
    """One difference between two lists of classes, in words."""
    for text, names, others in (("is new", now, before), ("is gone", before, now)):
        if len(names) > len(others):
            return f"{shown(next((name for name in names if name not in others), names[-1]))} {text}"
    pairs = zip(before, now, strict=True)
    return next((f"{shown(old)} is now {shown(new)}" for old, new in pairs if old != new), None)

"""Load weights of a plain backbone into a model with attached blocks, and the other way round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from visattn.listing import first_few
from visattn.models.replaced import names_replaced
from visattn.models.saving.weights import INSIDE
from visattn.models.wrapper import NAME
from visattn.modules import underlying

PREFIXES = ("module.", "_orig_mod.", "model.")  # of DistributedDataParallel, torch.compile, Lightning


@dataclass(frozen=True)
class LoadReport:
    """What was loaded from a checkpoint, and its missing and unexpected keys (those of attached blocks only)."""

    loaded: int
    new: list[str]
    ignored: list[str]
    stripped: str = ""  # the prefix of all keys in the checkpoint

    def __str__(self) -> str:
        lines = [f"loaded {self.loaded} tensors"]
        if self.new:
            lines.append(f"new in the model, kept as they are: {_listed(self.new)}")
        if self.ignored:
            lines.append(f"in the checkpoint only, ignored: {_listed(self.ignored)}")
        if self.stripped:
            lines.append(f"without {self.stripped!r} before their names")
        return "; ".join(lines)


def _listed(keys: list[str]) -> str:
    return f"{len(keys)} ({first_few(keys, 4)})"


def _places(state: Mapping[str, Tensor]) -> dict[str, set[str]]:
    """The names of the weights of every attached block, by place."""
    places: dict[str, set[str]] = {}
    for key in state:
        parts = key.split(".")
        if NAME in parts:
            end = parts.index(NAME) + 2
            places.setdefault(".".join(parts[:end]), set()).add(".".join(parts[end:]))
    return places


def _replaced(model: nn.Module, own: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[str, ...]:
    """How the keys of replaced modules begin, where the checkpoint still has these."""
    shared = own.keys() & state.keys()
    found = names_replaced(model).items()
    return tuple(
        f"{each}." for name, all_names in found if not _below(name, shared) for each in all_names if _below(each, state)
    )


def _below(name: str, keys: Iterable[str]) -> bool:
    return any(key.startswith(f"{name}.") for key in keys)


def load_state_dict(model: nn.Module, state_dict: Mapping[str, Any]) -> LoadReport:
    """Load a checkpoint of the plain backbone into a model with blocks, or the other way round.

    Whole attached blocks may be missing or left over, and convolutions may be left over that blocks have replaced; a
    place that has another block in the checkpoint than in the model, and anything else that does not fit, raises, and
    then no weight has changed. Weights below ``state_dict``, ``model`` and the like, and keys that begin with
    ``module.``, ``model.`` or ``_orig_mod.``, are understood.
    """
    model = underlying(model)
    own = model.state_dict()
    if any(isinstance(value, Tensor) and value.is_meta for value in own.values()):
        raise ValueError("the model is on the meta device, where weights have no values: model.to_empty(device=...)")
    state, stripped = plain_state(state_dict, own)
    ours, theirs = _places(own), _places(state)
    for place in ours.keys() & theirs.keys():
        if ours[place] != theirs[place]:
            differing = ", ".join(sorted(ours[place] ^ theirs[place])[:4])
            raise ValueError(f"the checkpoint has another block at {place!r} (they differ in {differing})")
    replaced = _replaced(model, own, state)
    new = [key for key in own if key not in state and (NAME in key.split(".") or key.startswith(replaced))]
    ignored = [key for key in state if key not in own and (NAME in key.split(".") or key.startswith(replaced))]
    fitting = {key: value for key, value in state.items() if key not in ignored}
    _check_fits(fitting, {key: value for key, value in own.items() if key not in new})
    model.load_state_dict({**fitting, **{key: own[key] for key in new}})
    return LoadReport(len(fitting), new, ignored, stripped)


def plain_state(state: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The weights in a checkpoint by the names that the model has for them, and what stood before these names."""
    if not isinstance(state, Mapping):
        raise TypeError(f"a state dict is a dictionary of tensors by name, got {type(state).__name__}")
    for _ in INSIDE:  # each at most once: a dictionary can contain itself
        nested = next((each for each in INSIDE if isinstance(state.get(each), Mapping)), None)
        state = state if nested is None else state[nested]
    if not state:
        raise ValueError("this is no state dict, a dictionary of tensors by name: it is empty")
    for key, value in state.items():
        if not isinstance(key, str) or (key not in own and not isinstance(value, Tensor)):
            raise ValueError(
                f"this is no state dict, a dictionary of tensors by name: {key!r} is a {type(value).__name__}"
            )
    plain, stripped = dict(state), ""
    while not plain.keys() & own.keys():
        prefix = next((each for each in PREFIXES if all(key.startswith(each) for key in plain)), None)
        if prefix is None:
            break
        plain, stripped = {key.removeprefix(prefix): value for key, value in plain.items()}, stripped + prefix
    return plain, stripped


def _check_fits(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise before anything is loaded, if a weight is missing, unexpected, or of another shape or kind."""
    shapes = [
        f"{key} ({tuple(state[key].shape)}, not {tuple(value.shape)})"
        for key, value in own.items()
        if isinstance(value, Tensor) and isinstance(state.get(key), Tensor) and state[key].shape != value.shape
    ]
    troubles = {
        "missing": [key for key in own if key not in state],
        "unexpected": [key for key in state if key not in own],
        "of another shape": shapes,
        "of another kind": [
            f"{key} ({state[key].dtype}, not {value.dtype})"
            for key, value in own.items()
            if isinstance(value, Tensor) and isinstance(state.get(key), Tensor) and _loses(state[key], value)
        ],
        "too large for the type of the model": [
            f"{key} ({value.dtype})"
            for key, value in own.items()
            if isinstance(value, Tensor) and isinstance(state.get(key), Tensor) and _overflows(state[key], value)
        ],
        "without numbers (sparse, or on the meta device)": [
            key
            for key, value in state.items()
            if isinstance(value, Tensor) and (value.is_meta or value.layout is not torch.strided)
        ],
        "no tensors": [
            key
            for key, value in own.items()
            if isinstance(value, Tensor) and key in state and not isinstance(state[key], Tensor)
        ],
    }
    if any(troubles.values()):
        said = "; ".join(f"{what}: {_listed(keys)}" for what, keys in troubles.items() if keys)
        raise ValueError(f"the checkpoint does not fit the model, which stays as it was: {said}")


def _overflows(given: Tensor, wanted: Tensor) -> bool:
    """Whether finite numbers would become infinite, as large ones do in half precision."""
    if given.dtype == wanted.dtype or not (given.is_floating_point() and wanted.is_floating_point()):
        return False
    if given.is_meta or given.layout is not torch.strided:
        return False
    return bool((given.isfinite() & ~given.to(wanted.dtype).isfinite()).any())


def _loses(given: Tensor, wanted: Tensor) -> bool:
    """Whether numbers would change their meaning: quantised, Boolean or complex weights."""
    whole_numbers = wanted.is_floating_point() and not given.is_floating_point()
    return whole_numbers or given.is_quantized or given.is_complex() != wanted.is_complex()

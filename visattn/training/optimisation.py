"""Optimiser and learning-rate schedule of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from timm.optim import (
    create_optimizer_v2,
    get_optimizer_info,
    list_optimizers,
    param_groups_layer_decay,
    param_groups_weight_decay,
)
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from visattn.models.replaced import replacements
from visattn.models.wrapper import NAME, plain_name
from visattn.policy import DecisionModule
from visattn.registry import suggest
from visattn.training.settings import Settings

AVERAGES = {"exp_avg", "exp_avg_sq", "momentum_buffer"}  # in the state of many optimisers

# One kernel for the whole step, three times as fast on a CPU. SGD's does not support sharded weights, and none of them
# supports gradient clipping under fp16 loss scaling.
FUSED = ("adam", "adamw")
FIXED = {"alpha", "amsgrad", "betas", "eps", "maximize", "nesterov"}  # what no setting changes
RECIPE = ("initial_lr", "weight_decay", "momentum")  # what the settings determine in a parameter group


def gains(model: nn.Module) -> Iterator[str]:
    """Names of the parameters that scale or shift, whatever their shape: (C, 1, 1) is a vector too.

    >>> from visattn.blocks import create_block
    >>> list(gains(create_block("gct", 8)))
    ['alpha', 'gamma', 'beta']
    """
    for prefix, module in model.named_modules():
        if isinstance(module, nn.Linear | _ConvNd):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if sum(size > 1 for size in parameter.shape) <= 1:
                yield plain_name(f"{prefix}.{name}" if prefix else name)


def new_parts(model: nn.Module) -> Iterator[nn.Module]:
    """Modules without pretrained weights: the classifier, attached or replacing attention and decision modules."""
    if callable(get := getattr(model, "get_classifier", None)):
        classifier = get()
        yield from classifier if isinstance(classifier, tuple) else (classifier,)
    else:  # a network of the user's own
        number = getattr(model, "num_classes", None)
        linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
        yield from [module for module in linear if module.out_features == number][-1:]
    yield from replacements(model).values()
    for module in model.modules():
        if NAME in module._modules:
            yield module.get_submodule(NAME)
        if isinstance(module, DecisionModule):
            yield module


class _PlainlyNamed:
    """View of a model whose parameters are named as without attached blocks, which is how timm knows them."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters with their plain names."""
        return ((plain_name(name), parameter) for name, parameter in self.model.named_parameters())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def check_optimizer(name: str) -> None:
    """Raise if timm has no such optimiser."""
    known = [str(each) for each in list_optimizers() if not get_optimizer_info(str(each)).second_order]
    if name.lower() in list_optimizers() and name.lower() not in known:
        raise ValueError(f"--optimizer {name} needs second derivatives, which a run does not compute")
    if name.lower() not in known:
        raise ValueError(f"unknown optimizer {name!r}: {suggest(name, known)}")


def create_optimizer(model: nn.Module, settings: Settings) -> Optimizer:
    """Create timm's optimiser; norms, biases, gains and whatever the model itself names have no weight decay."""
    check_optimizer(settings.optimizer)
    spared = set(gains(model))
    if callable(own := getattr(model, "no_weight_decay", None)):
        spared |= set(map(plain_name, own()))
    named: Any = _PlainlyNamed(model)
    groups: list[dict[str, Any]]
    if settings.layer_decay is None:
        groups = param_groups_weight_decay(named, settings.weight_decay, no_weight_decay_list=spared)
    else:
        groups = param_groups_layer_decay(
            named, settings.weight_decay, no_weight_decay_list=spared, layer_decay=settings.layer_decay
        )
    for group in groups:
        group["lr"] = settings.lr * group.pop("lr_scale", 1.0)
    if settings.new_lr_factor is not None:
        groups = list(_faster(groups, new_parts(model), settings.new_lr_factor))
    if not groups:
        raise ValueError("there is nothing to train: every parameter of the model is frozen")
    fused = settings.optimizer.lower() in FUSED and not str(settings.precision).startswith("16")
    extra: dict[str, Any] = {"fused": True} if fused else {}
    try:
        return create_optimizer_v2(
            groups, settings.optimizer, settings.lr, settings.weight_decay, settings.momentum, **extra
        )
    except (AssertionError, ImportError, RuntimeError) as error:  # some need a GPU, or another package
        raise ValueError(f"--optimizer {settings.optimizer} cannot be used here: {error}") from error


def recipe(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Values that the settings determine, for every parameter group."""
    return [{key: group[key] for key in RECIPE if key in group} for group in optimizer.param_groups]


def apply_recipe(recipes: Sequence[Mapping[str, Any]], optimizer: Optimizer, schedule: Any) -> None:
    """Apply a recipe from now on, at the current point of the schedule."""
    schedule.base_lrs = [each["initial_lr"] for each in recipes]
    for group, each, factor in zip(optimizer.param_groups, recipes, schedule.lr_lambdas, strict=True):
        group.update(each)
        group["lr"] = each["initial_lr"] * factor(schedule.last_epoch)


def _agree(saved: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether a saved parameter group has the same arguments, with equal values where no setting changes them."""
    return saved.keys() >= own.keys() and all(saved[key] == own[key] for key in FIXED & own.keys())


def _fits(saved: Any, parameter: nn.Parameter | None) -> bool:
    """Whether a saved state fits a parameter: averages of its gradient have its shape."""
    if not isinstance(saved, dict) or any(isinstance(value, str) for value in saved.values()):
        return False
    averages = [saved[key] for key in AVERAGES & saved.keys() if saved[key] is not None]
    return parameter is None or all(isinstance(each, Tensor) and each.shape == parameter.shape for each in averages)


def check_optimizer_state(state: Mapping[str, Any], model: nn.Module, settings: Settings) -> None:
    """Raise if a checkpoint's optimiser state does not match the optimiser and parameters of these settings."""
    try:
        _check_state(state, model, settings)
    except (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"the optimiser state in the checkpoint is malformed ({type(error).__name__}): it is damaged or was "
            "edited; resume from an earlier one"
        ) from error


def _check_state(state: Mapping[str, Any], model: nn.Module, settings: Settings) -> None:
    kept, saved = state["optimizer_states"][0]["state"], state["optimizer_states"][0]["param_groups"]
    own = create_optimizer(model, settings).param_groups
    sizes = [[len(group["params"]) for group in groups] for groups in (saved, own)]
    # Checkpoints number their parameters differently: sharded runs use the model's order.
    numbers = [number for group in saved for number in group["params"]]
    parameters = dict(zip(numbers, (each for group in own for each in group["params"]), strict=False))
    if (
        sizes[0] != sizes[1]
        or not kept.keys() <= set(numbers)
        or not all(_agree(old, new) for old, new in zip(saved, own, strict=True))
        or not all(_fits(each, parameters.get(key)) for key, each in kept.items())
    ):
        raise ValueError(
            "the optimiser state in the checkpoint does not match these settings: resume with the "
            "--optimizer, --layer-decay, --new-lr-factor and --freeze-backbone that the run started with"
        )
    if _has_stepped(state) and _keeps_state(settings, saved[0]) and not (kept and all(kept.values())):
        raise ValueError(
            f"the checkpoint is of step {state['global_step']}, but the state of its optimiser is empty: it is damaged "
            "or was edited; resume from an earlier one"
        )
    if any(_is_broken(value) for each in kept.values() for value in each.values()):
        raise ValueError(
            "the checkpoint has an optimiser state that is not of finite numbers: resume from an earlier one, or begin "
            "again with a lower --lr"
        )


def _has_stepped(state: Mapping[str, Any]) -> bool:
    """Whether the optimiser has changed the weights: loss scaling in float16 may have skipped all steps so far."""
    scaler = state.get("MixedPrecision") or {}
    return state["global_step"] > 0 and scaler.get("_growth_tracker", 1) > 0


def _keeps_state(settings: Settings, group: Mapping[str, Any]) -> bool:
    """Whether an optimiser with the arguments of this group remembers anything from one step to the next."""
    trial = nn.Linear(2, 2)
    optimizer = create_optimizer(trial, replace(settings, layer_decay=None))  # there is only one layer
    for each in optimizer.param_groups:
        each.update({key: value for key, value in group.items() if key != "params"})
    trial(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return bool(optimizer.state_dict()["state"])


def _is_broken(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and not bool(value.isfinite().all())


def _faster(groups: Sequence[dict[str, Any]], parts: Iterable[nn.Module], factor: float) -> Iterator[dict[str, Any]]:
    """Split the parameters of some modules off into groups with a scaled learning rate."""
    chosen = {id(parameter) for part in parts for parameter in part.parameters()}
    for group in groups:
        for inside, rate in ((False, group["lr"]), (True, factor * group["lr"])):
            parameters = [each for each in group["params"] if (id(each) in chosen) is inside]
            if parameters:
                yield {**group, "params": parameters, "lr": rate}


def cosine_with_warmup(optimizer: Optimizer, *, steps: int, warmup: int) -> LambdaLR:
    """Linear warm-up, then half a cosine down to zero, with one value per optimiser step."""
    warmup = min(warmup, steps - 1)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return 0.5 * (1 + math.cos(math.pi * min(1, (step - warmup) / max(1, steps - warmup))))

    return LambdaLR(optimizer, factor)

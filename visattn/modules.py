"""Safe use of networks that others are using too: modes, copies, per-thread hooks, and how networks fail.

A network may be in use in another thread. Whatever inspects it therefore works on a copy: its own modules, so that
modes, hooks and anything cached in a forward pass are private, around the same tensors (:func:`sharing_copy`) or around
placeholders without storage (:func:`weightless_copy`). The network itself is only read.
"""

from __future__ import annotations

import copy
import re
import sys
import textwrap
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

NO_TASK = -1
NOT_DENSE = "a tensor that is not dense"
CLOSE_TO_ZERO = 0.01  # a layer scale may begin with less
# How torch, and an older one, says that a network was exported for another number of images.
FIXED_BATCH = re.compile(r"Guard failed: \w+\.size\(\)\[0\] == (\d+)|\.shape\[0\] to be equal to (\d+)")


def in_backward() -> bool:
    """Whether a gradient is being computed: a module that runs now only recomputes what was not stored."""
    return backward_task() != NO_TASK


def backward_task() -> int:
    """The number of the backward pass that is running in this thread, the innermost one; ``NO_TASK`` if none is."""
    return torch._C._current_graph_task_id()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode, and restore every module's own mode afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def timm_config(model: object) -> Mapping[str, Any]:
    """What timm's models know of themselves in ``pretrained_cfg``; empty for other models."""
    config = getattr(model, "pretrained_cfg", None)
    return config if isinstance(config, Mapping) else {}


def own_size(model: nn.Module) -> tuple[int, int, int]:
    """Channels, height and width of the images that a model was built for, as far as timm's configuration and it say.

    >>> import timm
    >>> own_size(timm.create_model("test_vit", img_size=64, in_chans=1))
    (1, 64, 64)
    """
    channels, *native = input_size(model)
    height, width = embedded_size(model) or native
    convolutions = (module.in_channels for module in model.modules() if isinstance(module, nn.Conv2d))
    return getattr(model, "in_chans", None) or next(convolutions, channels), height, width


def input_size(model: nn.Module) -> Sequence[int]:
    """Channels, height and width according to timm's configuration; timm's usual ones if there is none."""
    size = timm_config(model).get("input_size") or (3, 224, 224)
    if not isinstance(size, Sequence) or len(size) != 3:
        raise ValueError(f"input_size in the model's pretrained_cfg must be (channels, height, width), got {size!r}")
    return size


def embedded_size(model: nn.Module) -> Sequence[int] | None:
    """Height and width of the images that a model cuts into patches, if it says so; one number stands for both."""
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    size = (size, size) if isinstance(size, int) else size
    if size is not None and (not isinstance(size, Sequence) or len(size) != 2):
        raise ValueError(f"img_size of the model's patch_embed must be (height, width), got {size!r}")
    return size


def floating_like(model: nn.Module) -> Tensor:
    """A tensor of the type and on the device of a model's images: a parameter, as long as it is no whole number."""
    return next((each for each in model.parameters() if each.is_floating_point()), torch.empty(()))


def has_numbers(tensor: Tensor) -> bool:
    """Whether there is something in a tensor, unlike on the meta device and under ``FakeTensorMode``."""
    return not tensor.is_meta and not isinstance(tensor, FakeTensor)


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor has all its numbers in one place, unlike sparse, nested and MKL-DNN's tensors."""
    return tensor.layout is torch.strided and not tensor.is_nested


def check_default_device() -> None:
    """Raise if new tensors have no numbers by default."""
    if torch.get_default_device().type == "meta":
        raise ValueError(
            "torch's default device is 'meta', where tensors have no numbers: call this outside torch.device('meta'), "
            "or after torch.set_default_device('cpu')"
        )


def why_refused(error: BaseException) -> str:
    """Condense the error of a network that could not run, which can be anything, into one short line."""
    if fixed := fixed_batch(error):
        return f"it {fixed}"
    said = textwrap.shorten(str(error), 160, placeholder=" ...")
    if said and isinstance(error, AssertionError | RuntimeError | TypeError | ValueError):
        return said
    raised = traceback.extract_tb(error.__traceback__)[-1:]
    place = "".join(f" in {Path(each.filename).name}, line {each.lineno}" for each in raised)
    return f"{type(error).__name__} {said}".strip() + place


def fixed_batch(error: BaseException) -> str | None:
    """What a network does that was exported for another number of images than it got; None if that is not the error."""
    fixed = FIXED_BATCH.search(str(error))
    if not fixed:
        return None
    count = int(fixed[1] or fixed[2])
    return (
        f"takes {count} image{'s' if count > 1 else ''} at a time, no more and no fewer: it was exported with a fixed "
        "batch (torch.export takes dynamic_shapes)"
    )


def is_of_others(error: Exception) -> bool:
    """Whether neither torch nor we have raised an error, but a hook, say, or a module of the user's."""
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(modules) and modules[-1].partition(".")[0] not in ("torch", "visattn")


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Run a compiled module uncompiled, so that its hooks are called."""
    compiled, model._compiled_call_impl = model._compiled_call_impl, None
    try:
        with eagerly():
            yield
    finally:
        model._compiled_call_impl = compiled


def _do_nothing(*_: Any) -> None:
    """What is left of a hook of a thread in a copy."""


class HookOfThread:
    """A hook on a shared network that acts only in the thread that created it, and that copies leave out.

    Args:
        act: the hook.
    """

    def __init__(self, act: Callable[..., Any]) -> None:
        self.act = act
        self.thread = threading.get_ident()

    def __call__(self, *args: Any) -> Any:
        """Run the hook, except in other threads."""
        return self.act(*args) if threading.get_ident() == self.thread else None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of the network, or a pickle, has nobody who is looking."""
        return HookOfThread, (_do_nothing,)


def lasting_hooks(hooks: dict[int, Any]) -> dict[int, Any]:
    """Hooks in one of a module's tables that belong to the network itself, not to a temporary observer."""
    return hooks and {key: hook for key, hook in list(hooks.items()) if not isinstance(hook, HookOfThread)}


class Remembered:
    """What a module keeps as an attribute but does not compute with: the copies made here share it."""


SHARED = (Remembered, type(threading.Lock()), type(threading.RLock()))  # nor can locks be copied


def sharing_copy(model: nn.Module) -> nn.Module:
    """Copy a network's modules in evaluation mode, sharing its tensors: nothing large is copied."""
    return _copy(model, lambda tensor: tensor)


def separate_copy(model: nn.Module) -> nn.Module:
    """Copy a network in evaluation mode, with tensors of its own."""
    return _copy(model, copy.deepcopy)


def weightless_copy(model: nn.Module) -> nn.Module:
    """Copy a network in evaluation mode, with placeholders without storage for all parameters and buffers."""
    return _copy(model, _stand_in)


def zeros_copy(model: nn.Module) -> nn.Module:
    """Copy a network in evaluation mode, with zeros on the CPU for all parameters and buffers."""
    return _copy(model, lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype))


def revealing_copy(model: nn.Module) -> nn.Module:
    """Copy a network in evaluation mode, with random numbers for parameters close to zero, behind which nothing shows.

    The numbers depend on the shape of a parameter alone; all other tensors are shared.
    """
    return _copy(model, _not_zero)


def _not_zero(tensor: Tensor) -> Tensor:
    learned = isinstance(tensor, nn.Parameter) and tensor.is_floating_point()
    if not learned or (tensor.abs() > CLOSE_TO_ZERO).any():
        return tensor
    inputs = tensor.numel() / max((1, *tensor.shape[:1]))
    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)) / (2 * inputs**0.5)
    return torch.empty_like(tensor, requires_grad=False).copy_(noise)


def _stand_in(tensor: Tensor) -> Tensor:
    learned = isinstance(tensor, nn.Parameter) and tensor.is_floating_point()  # batch norm refuses it of its statistics
    return torch.empty_like(tensor, device="meta", requires_grad=learned)


def _copy(model: nn.Module, instead: Callable[[Tensor], Tensor]) -> nn.Module:
    memo: dict[int, Any] = {id(each): instead(each) for each in (*model.parameters(), *model.buffers())}
    tables: list[tuple[OrderedDict[int, Any], dict[int, Any]]] = []
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if "_hooks" in name and isinstance(value, dict):
                own: OrderedDict[int, Any] = OrderedDict()
                memo[id(value)] = own
                if hooks := lasting_hooks(value):
                    tables.append((own, hooks))
            elif isinstance(value, SHARED):
                memo[id(value)] = value
    with _Detaching():
        copied = copy.deepcopy(model, memo)
        for table, hooks in tables:  # which may be methods of modules
            table.update(copy.deepcopy(hooks, memo))
    for module in copied.modules():
        module._compiled_call_impl = None
    return copied.eval()


class _Eager:
    """Number of callers inside :func:`eagerly`, in all threads."""

    lock = threading.Lock()
    number = 0
    stance: Any = None


@contextmanager
def eagerly() -> Iterator[None]:
    """Run compiled code uncompiled.

    The compiler has a single stance for all threads: the first caller sets it, and the last one restores it.
    """
    if "torch._dynamo" not in sys.modules:  # nothing can be compiled yet, and loading it takes a second
        yield
        return
    with _Eager.lock:
        _Eager.number += 1
        if _Eager.number == 1:
            _Eager.stance = torch.compiler.set_stance("force_eager")
    try:
        yield
    finally:
        with _Eager.lock:
            _Eager.number -= 1
            if _Eager.number == 0:
                _Eager.stance.__exit__(None, None, None)


class _Detaching(TorchFunctionMode):
    """Allow copying non-leaf tensors, such as a map that a module keeps: torch itself copies only leaves."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            result, memo = args
            return memo.setdefault(id(result), result.detach().clone())
        return func(*args, **(kwargs or {}))


def underlying(model: nn.Module) -> nn.Module:
    """The network itself, inside whatever ``torch.compile`` and the wrappers for several devices put around it."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"a network is needed, got {type(model).__name__}")
    while True:
        if "_orig_mod" in model._modules:  # asking for the type would import the compiler
            model = model.get_submodule("_orig_mod")
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        else:
            return model

"""Memory of a step: its peak, what it keeps for the backward pass, and a forecast that allocates nothing.

On a CPU the peak is exact: torch's profiler notes every allocation and every release of torch's allocator, also those
inside an operator, which a counter of tensors would not see. What a library takes by itself, as oneDNN does for its
rearranged weights, goes past that allocator. On CUDA it is what the caching allocator reports.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.autograd.profiler import profile
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from visattn.cost.timing import Step, without_garbage_collection


def peak_bytes(step: Step, device: torch.device) -> int:
    """The most memory that a step held at a time, beyond what was held before it.

    >>> x = torch.rand(1000)
    >>> peak_bytes(lambda: x.exp().exp(), torch.device("cpu"))
    8000
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it writes to stderr whenever it starts and stops
    with without_garbage_collection(), profile(profile_memory=True) as watched:
        step()
    assert watched.kineto_results is not None
    changes = [event for event in watched.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        held += change.nbytes()
        peak = max(peak, held)
    return peak


def kept_bytes(forward: Callable[[], Any], module: nn.Module) -> int:
    """What a forward pass keeps for its backward pass, the input included, but not the module's own tensors.

    Every storage counts once and whole, however many tensors share it.

    >>> x = torch.rand(1000, requires_grad=True)
    >>> kept_bytes(lambda: x * torch.sigmoid(x), nn.Identity())
    8000
    """
    own = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}  # held, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor.detach()

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(storage.nbytes() for storage in kept.values())


def foreseen_bytes(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, *, train: bool) -> int:
    """About what a module, its input and a step need, found out without allocating it.

    The module may be on the meta device. The step runs in single precision on tensors without storage, and the result
    is scaled to the dtype. Memory inside of operators is not seen, and some of autograd's buffers are released late:
    this is close, not exact.

    >>> foreseen_bytes(nn.Sigmoid(), (8, 64, 1000, 1000), torch.float32, train=False)  # the input and the output
    4096000000
    """
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, _Live() as live:
        tensors: dict[str, Tensor] = {
            name: torch.empty_like(tensor, device="cpu", requires_grad=tensor.requires_grad)
            if tensor.is_meta
            else fake.from_tensor(tensor)
            for name, tensor in own.items()
        }
        live.held = live.peak = sum(tensor.nbytes for tensor in tensors.values())
        x = torch.empty(shape).requires_grad_(train)
        with torch.set_grad_enabled(train):
            y = functional_call(module, tensors, x)
        if train:
            y.backward(torch.empty_like(y))
    return live.peak * dtype.itemsize // 4


class _Live(TorchDispatchMode):
    """Counts the bytes of all tensors that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.held = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage())._cdata not in self._known:
                self._known.add(storage._cdata)
                self.held += storage.nbytes()
                self.peak = max(self.peak, self.held)
                weakref.finalize(storage, self._released, storage._cdata, storage.nbytes())
        return result

    def _released(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.held -= size


def free_bytes(device: torch.device) -> int | None:
    """Memory that is free, as far as the device or Linux says: of the machine, and of the group that one runs in."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    found = [int(kilobytes) * 1024 for kilobytes in _numbers("/proc/meminfo", r"MemAvailable:\s+(\d+) kB")]
    limit, used = (_numbers(f"/sys/fs/cgroup/memory.{name}", r"^(\d+)$") for name in ("max", "current"))
    found += [int(most) - int(now) for most, now in zip(limit, used, strict=False)]
    return min(found, default=None)


def _numbers(path: str, pattern: str) -> list[str]:
    try:
        return re.findall(pattern, Path(path).read_text(), re.MULTILINE)
    except OSError:
        return []

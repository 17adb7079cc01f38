"""A GPU that is not there: its tensors are on a device of their own, and whatever would make the host wait is noted.

The numbers are kept in main memory and computed by the CPU. For everything above that (autograd, modules, optimisers,
Lightning) they are elsewhere: a tensor made without ``device=`` is not there, and one from there must be brought back.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("lazy", 0)  # a device that torch knows, nobody uses, and autograd runs on the CPU's thread
# The result, or its shape, depends on numbers that the host must read first.
LOOKS = frozenset({
    "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "bincount", "_unique", "_unique2",
    "unique_dim", "unique_consecutive", "repeat_interleave",
})  # fmt: skip
INDEXING = frozenset({"index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_"})
COPIES = frozenset({"_to_copy", "copy_", "copy"})


class Remote(Tensor):
    """A tensor on the device."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> Remote:
        return torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=DEVICE,
        )  # fmt: skip

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def tolist(self) -> Any:
        return self.cpu().tolist()  # torch's own wants a plain tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("a tensor of the pretended device outlived it")


class PretendGPU(TorchDispatchMode):
    """While it is entered there is a device; ``waits`` says what made the host wait, and where."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self._fused = patch("torch.optim.optimizer._get_fused_kernels_supported_devices", lambda: [DEVICE.type])

    def __enter__(self) -> PretendGPU:
        self._lifted = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=) is a copy like any other
        self._fused.start()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._fused.stop()
        torch._C._set_only_lift_cpu_tensors(self._lifted)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        here, there = [], []
        for each in tree_leaves((args, kwargs)):
            if isinstance(each, Tensor):
                (there if isinstance(each, Remote) else here).append(each)
        device = kwargs.get("device")
        result_there = bool(there) if device is None else torch.device(device).type == DEVICE.type
        if there or result_there:
            self._note(func._schema.name.split("::")[1], args, kwargs, here, there, result_there)
        if device is not None:
            kwargs["device"] = torch.device("cpu")
        # What an operation changes in place stays the tensor that it was.
        same: dict[int, Tensor] = {id(each.held): each for each in there} | {id(each): each for each in here}
        held_args, held_kwargs = tree_map_only(Remote, lambda each: each.held, (args, kwargs))
        result = func(*held_args, **held_kwargs)
        if not result_there:
            return result
        return tree_map_only(Tensor, lambda each: same[id(each)] if id(each) in same else Remote(each), result)

    def _note(self, name: str, args: Any, kwargs: Any, here: Any, there: Any, result_there: bool) -> None:
        if name in COPIES:
            to_device = isinstance(args[0], Remote) if name == "copy_" else result_there
            from_device = bool(there) if name != "copy_" else isinstance(args[1], Remote)
            non_blocking = kwargs.get("non_blocking", len(args) > 2 and args[2])
            if to_device != from_device and not (to_device and non_blocking):
                self._wait(f"{name} {'to' if to_device else 'from'} the device")
        elif name in INDEXING:
            indices = [each for each in args[1] if each is not None]
            if any(not isinstance(each, Remote) for each in indices):
                self._wait(f"{name} by numbers that are not on the device")
            fills = name != "index" and args[2].numel() == 1  # which is done without looking
            if not fills and any(each.dtype in (torch.bool, torch.uint8) for each in indices):
                self._wait(f"{name} by a mask")
        elif name in LOOKS:
            self._wait(name)
        elif there and any(each.ndim > 0 for each in here):
            raise RuntimeError(f"{name}: expected all tensors to be on the same device {_place()}")

    def _wait(self, what: str) -> None:
        self.waits.append(f"{what} {_place()}")


def _place() -> str:
    """The innermost lines that called, of ours and of all but torch's."""
    frame: Any = sys._getframe(2)
    lines: list[str] = []
    while frame is not None and len(lines) < 3:
        path = Path(frame.f_code.co_filename)
        if "torch" not in path.parts and path != Path(__file__):
            lines.append(f"{path.parent.name}/{path.name}:{frame.f_lineno}")
        frame = frame.f_back
    return f"({' < '.join(lines)})"


class Accelerator(CPUAccelerator):
    """Lightning's accelerator for it: there is nothing to set up."""

    def setup_device(self, device: torch.device) -> None:
        """Any device will do."""


def strategy() -> SingleDeviceStrategy:
    """Lightning's strategy for it."""
    return SingleDeviceStrategy(device=DEVICE, accelerator=Accelerator())

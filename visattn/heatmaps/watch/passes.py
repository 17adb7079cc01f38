"""Which modules of a model are running, and which uses of attention belong to one forward pass.

A pass begins with a call of the model. Its parts may also be called from outside, by a method of the model such as
``forward_features`` or one by one: then a pass continues until a layer that has reported attention reports it again in
another such call. Within one call, of a method too, a layer may run any number of times. What gradient checkpointing
recomputes in a backward pass belongs to no forward pass.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn

from visattn.models.wrapper import plain_name
from visattn.modules import NO_TASK, HookOfThread, backward_task

CALLING = nn.Module.__call__.__code__.co_filename  # the code that calls a module's forward and its hooks
COMPILED = re.compile(r"^_orig_mod(\.|$)")  # what torch.compile puts before the names of modules
# What modules that compute attention have: heads, or projections to queries, keys and values.
HEADS = ("num_heads", "n_heads", "heads")
PROJECTION = re.compile(r"(to_|in_)?(qkv|kv|q|query|wq)(_?(proj|conv|projection))?")


class MissedAttention(RuntimeError):  # noqa: N818 - read as prose: except MissedAttention
    """A layer with attention ran, but its weights could not be seen."""


def layer_names(model: nn.Module) -> dict[nn.Module, str]:
    """The names of all modules, without what wrappers and compilers add."""
    return {module: plain_name(COMPILED.sub("", name)) for name, module in model.named_modules()}


def computes_attention(module: nn.Module) -> bool:
    """Whether a module appears to compute attention between tokens."""
    has_heads = any(isinstance(getattr(module, name, None), int) for name in HEADS)
    projects = any(PROJECTION.fullmatch(name) for name, _ in module.named_children())
    return projects or (has_heads and any(True for _ in module.parameters()))


class Passes:
    """The state of a model that is watched.

    Args:
        model: that is watched.
        enter: called for every call from outside, with whether it is a call of the model itself.
        begin: called when a pass begins, with the number of earlier reports that belong to it.
    """

    def __init__(self, model: nn.Module, enter: Callable[[bool], None], begin: Callable[[int], None]) -> None:
        self.names = layer_names(model)
        self._enter, self._begin = enter, begin
        self._running: list[str] = []  # innermost last
        self._call = 0  # calls from outside, numbered,
        self._frame: FrameType | None = None  # and where the last of them is
        self._ran: dict[str, tuple[nn.Module, int]] = {}  # what came to its end, and in which of these calls
        self._seen: dict[str, int] = {}  # layers that reported attention, and in which call
        self._hidden: dict[str, str] = {}  # what layers did that hides their weights
        self._reports: list[int] = []
        self._tasks = (NO_TASK, backward_task())  # a hook on a gradient may watch passes of its own

    def _recomputes(self) -> bool:
        """Whether a gradient is being computed: what runs now only recomputes what was not stored."""
        return backward_task() not in self._tasks

    def hooks(self, module: nn.Module) -> list[Any]:
        """Follow a module; handles to remove."""
        name = self.names[module]
        if isinstance(module, torch.jit.ScriptModule):
            what = f"{name!r} is scripted or traced, and" if name else "a scripted or traced network"
            raise ValueError(f"{what} cannot be looked into: give the network from before torch.jit")

        def enter(_module: nn.Module, _args: Any) -> None:
            if not self._running and not self._recomputes():
                self._called_from_outside(itself=not name)
            self._running.append(name)

        def finish(module: nn.Module, _args: Any, _output: Any) -> None:
            if not self._recomputes():
                self._ran[name] = module, self._call
            if not name and len(self._running) == 1:
                self.check()

        def leave(_module: nn.Module, _args: Any, _output: Any) -> None:
            self._running.pop()

        return [
            module.register_forward_pre_hook(HookOfThread(enter)),
            module.register_forward_hook(HookOfThread(finish)),
            module.register_forward_hook(HookOfThread(leave), always_call=True),  # also after an error
        ]

    def layer(self) -> str | None:
        """The name of the module that is running; None if what is running is no part of the model."""
        if self._recomputes():
            return None
        another = False  # some module that is no part of the model
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            module = _self(frame)
            if isinstance(module, nn.Module) and module not in self.names:
                if not self._running:
                    return None
                another = True
            elif isinstance(module, nn.Module):
                if not self._running:  # one of its methods, called from outside
                    self._called_from_outside(itself=False)
                    return self.names[module]
                in_hook = frame.f_code.co_filename == CALLING
                return None if another and in_hook else self._running[-1]
            frame = frame.f_back
        return self._running[-1] if self._running else None

    def report(self, name: str) -> None:
        """Note that a layer has reported attention."""
        if self._seen.get(name, self._call) != self._call:
            self.check(before=self._call)
            self._seen = {each: call for each, call in self._seen.items() if call == self._call}
            self._reports = [call for call in self._reports if call == self._call]
            self._begin(len(self._reports))
        self._seen[name] = self._call
        self._reports.append(self._call)

    def hide(self, name: str, what: str) -> None:
        """Note that a layer did something that hides its weights."""
        self._hidden.setdefault(name, what)

    def check(self, before: int = sys.maxsize) -> None:
        """Raise if a layer with attention ran and reported nothing; only in calls before that one."""
        ran = {name: each for name, each in self._ran.items() if each[1] < before}
        self._ran = {name: each for name, each in self._ran.items() if name not in ran}
        hidden, self._hidden = self._hidden, {}
        for name, what in hidden.items():
            raise MissedAttention(f"{name!r} {what}")
        for name, (module, call) in ran.items():
            seen = [each for each in self._seen if self._seen[each] == call]
            inside = any(each == name or each.startswith(f"{name}.") for each in seen) or not name
            if not inside and computes_attention(module):
                raise MissedAttention(
                    f"{name!r} ({type(module).__name__}) ran, but its attention weights were not seen: it has no "
                    "softmax that is multiplied by values, or hides it from torch functions"
                )

    def close(self) -> None:
        """Release references to the callers' frames."""
        self._frame = None

    def _called_from_outside(self, *, itself: bool) -> None:
        frame = None if itself else self._outermost()
        if frame is not None and frame is self._frame:
            return
        if itself:
            self.check()
            self._seen.clear()
            self._reports.clear()
            self._begin(0)
        self._call += 1
        self._frame = frame  # kept, so that it cannot be mistaken for a later one at the same address
        self._enter(itself)

    def _outermost(self) -> FrameType | None:
        """The outermost call of a method of the model, or of one of its modules, that is under way."""
        frame: FrameType | None = sys._getframe(1)
        found = None
        while frame is not None:
            if isinstance(module := _self(frame), nn.Module) and module in self.names:
                found = frame
            frame = frame.f_back
        return found


def _self(frame: FrameType) -> Any:
    """The object whose method is running."""
    return frame.f_locals.get("self") if frame.f_code.co_varnames[:1] == ("self",) else None

"""What :func:`visattn.attach` puts into a network: the blocks, and the hooks that call them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from visattn.models.layout import Layout

log = logging.getLogger("visattn")

NAME = "visattn"  # the child under which a network keeps its attached blocks


class Attached(nn.Module):
    """One block behind one place.

    Args:
        block: maps (B, C, H, W) to (B, C, H, W).
        layout: the arrangement of the feature map at that place.
        gain: blends the block in, x + gain (block(x) - x); None replaces x by block(x).
    """

    gain: nn.Parameter | None

    def __init__(self, block: nn.Module, layout: Layout, gain: Tensor | None) -> None:
        super().__init__()
        self.block = block
        self.layout = layout
        self.gain = None if gain is None else nn.Parameter(gain)

    def forward(self, x: Tensor, image: tuple[int, int] | None = None) -> Tensor:
        """The tensor as it was arranged, with its pixels changed and its prefix tokens untouched."""
        feature = self.layout.to_map(x, image)
        changed = self.block(feature)
        if self.gain is not None:
            # In the arrangement of x, so that strides, and with them the bits of what follows, stay the same.
            return x + self.layout.from_map(self.gain * (changed - feature), torch.zeros_like(x))
        return self.layout.from_map(changed, x).contiguous()

    def attention(self, x: Tensor, image: tuple[int, int] | None = None) -> Tensor:
        """What the block attends to in a tensor of this place."""
        return self.block.attention(self.layout.to_map(x, image))  # type: ignore[operator]

    def extra_repr(self) -> str:
        """Layout, for print(model)."""
        return str(self.layout)


class Attachments(nn.Module):
    """All attached blocks of a network, by place (dots written as double underscores).

    It is a child of the network for the sake of parameters, devices and checkpoints: the first one, so that what
    people do with the last child of a network still finds its head. The blocks are called by hooks; called itself, as
    nn.Sequential calls its children, it hands through what it is given.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(_keep_when_absent)

    def forward(self, x: Any) -> Any:
        """The identity."""
        return x

    def add(self, place: str, attached: Attached) -> None:
        """Enter a block; a second one at the same place gets a number."""
        name, number = place.replace(".", "__"), 1
        while name in self._modules:
            number += 1
            name = f"{place.replace('.', '__')}__{number}"
        self.add_module(name, attached)


def _keep_when_absent(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let a checkpoint of the plain backbone load strictly: blocks that it does not mention stay as they are."""
    if not any(key.startswith(prefix) for key in state):
        number = len(module._modules)
        log.warning("the checkpoint has no attached blocks: the %d in the model keep their weights", number)
        state.update({prefix + key: value for key, value in module.state_dict().items()})


class ImageSize:
    """A hook that notes height and width of the image a network is given, for the shape of token maps."""

    def __init__(self) -> None:
        self.value: tuple[int, int] | None = None

    def __call__(self, _module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note the size of a batch of images."""
        if args and isinstance(args[0], Tensor) and args[0].ndim == 4:
            self.value = (args[0].shape[2], args[0].shape[3])


def replace_slot(output: Any, index: int | None, change: Callable[[Tensor], Tensor]) -> Any:
    """A module's output with the tensor changed, or the one at that index if it is a tuple or list."""
    if index is None:
        return change(output)
    values = list(output)
    values[index] = change(values[index])
    return tuple(values) if isinstance(output, tuple) else values


class Call:
    """A hook that sends a module's output through an attached block."""

    def __init__(self, attached: Attached, image: ImageSize, index: int | None) -> None:
        self.attached = attached
        self.image = image
        self.index = index

    def __call__(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        """The output with the block applied."""
        return replace_slot(output, self.index, lambda x: self.attached(x, self.image.value))


def add_attachments(model: nn.Module) -> Attachments:
    """Give a network a place for blocks, in front of its other children."""
    if NAME in model._modules or NAME in vars(model):
        raise ValueError(f"the model has something of its own called {NAME!r}, where attached blocks are kept")
    others = dict(model._modules)
    model._modules.clear()
    model.add_module(NAME, Attachments())
    model._modules.update(others)
    return model._modules[NAME]  # type: ignore[return-value]


def attachments(model: nn.Module) -> Attachments | None:
    """The attached blocks of a model, if it has any."""
    child = model._modules.get(NAME)
    return child if isinstance(child, Attachments) else None


def calls(model: nn.Module) -> Iterator[tuple[str, Call]]:
    """Every place with an attached block."""
    for name, module in model.named_modules():
        for hook in module._forward_hooks.values():
            if isinstance(hook, Call):
                yield name, hook


def remove(model: nn.Module) -> None:
    """Take out every hook and every block."""
    for module in model.modules():
        for hooks, kind in ((module._forward_hooks, Call), (module._forward_pre_hooks, ImageSize)):
            for key in [key for key, hook in hooks.items() if isinstance(hook, kind)]:
                del hooks[key]
    model._modules.pop(NAME, None)

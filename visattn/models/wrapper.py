"""The wrapper that :func:`visattn.attach` puts around a module, so that its output goes through blocks.

The wrapper replaces the module as a child of its parent, so that whatever copies, replicates, converts or shards a
network takes the blocks along: there is no hook to lose. To everything else it looks like the module it wraps:
attributes, items and the keys of ``state_dict`` are the module's own. The keys of the blocks are under ``visattn``:
``layer1.0.bn2.weight`` is as before, ``layer1.0.bn2.visattn.0.gain`` is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from visattn.blocks.primitives import blend
from visattn.models.image_shape import ImageShape
from visattn.models.layout import Place, in_format_of

torch.fx.wrap("in_format_of")  # one step for torch.fx: it decides by the shapes and strides of real tensors

NAME = "visattn"  # the child of a wrapper that holds the blocks, and of patch attention
WRAPPED = "_checkpoint_wrapped_module"  # a name that torch's distributed checkpoints leave out of keys


class Attached(nn.Module):
    """One block attached at one place.

    Args:
        block: maps (B, C, H, W) to (B, C, H, W).
        place: where its feature map comes from.
        gain: blends the block in, x + gain (block(x) - x), of shape (1,); None replaces x by block(x).
        image: the shape of the network's images.
        name: of the block in the registry, if it has one,
        options: and the options that it was built with.
    """

    gain: nn.Parameter | None

    def __init__(
        self,
        block: nn.Module,
        place: Place,
        gain: Tensor | None,
        *,
        image: ImageShape | None = None,
        name: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.block = block
        self.place = place
        self.gain = None if gain is None else nn.Parameter(gain)
        self.image = ImageShape() if image is None else image
        self.name = name
        self.options = dict(options or {})
        self.register_forward_pre_hook(_is_called)

    def forward(self, output: Any) -> Any:
        """The output of a module, with the pixels of its feature map changed and its prefix tokens untouched."""
        return replace_slot(output, self.place.index, self._change)

    def _change(self, x: Tensor) -> Tensor:
        layout = self.place.layout
        size = self.image.grid(x.shape[1] - layout.prefix, self.place) if layout.kind == "tokens" else None
        feature = layout.to_map(x, size)
        changed = self.block(feature)
        if self.gain is not None:
            changed = blend(feature, changed, self.gain)
            if layout.prefix:
                # In the arrangement of x, so that strides, and with them the bits of what follows, stay the same.
                return x + layout.from_map(changed - feature, torch.zeros_like(x))
            return layout.from_map(changed, x)
        return in_format_of(x, layout.from_map(changed, x))

    def extra_repr(self) -> str:
        """Layout, for print(model)."""
        return str(self.place.layout)


def _is_called(_attached: nn.Module, _args: Any) -> None:
    """Do nothing: torch's encoder layers call their parts, instead of reading the weights, if a part has a hook."""


def replace_slot(output: Any, index: int | None, change: Callable[[Tensor], Tensor]) -> Any:
    """A module's output with the tensor changed, or the one at that index if it is a tuple or list."""
    if index is None:
        return change(output)
    values = list(output)
    values[index] = change(values[index])
    if hasattr(output, "_fields"):  # a named tuple
        return type(output)(*values)
    return type(output)(values)


class WithAttention(nn.Module):
    """A module of a network, and the blocks that its output goes through.

    Args:
        module: what is wrapped.
    """

    _image: ImageShape | None  # notes the shape of what the module is given, if that is the image

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._modules[WRAPPED] = module
        self._modules[NAME] = nn.ModuleList()
        self._image = None
        self.training = module.training
        exchange_hooks(self, module)  # they are meant for what the parent calls
        self.register_load_state_dict_post_hook(report_plain_keys)

    @property
    def _wrapped(self) -> Any:
        return self._modules[WRAPPED]

    @property
    def _blocks(self) -> list[Attached]:
        return list(cast(nn.ModuleList, self._modules[NAME]))  # type: ignore[arg-type]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module, then the blocks."""
        if self._image is not None:
            self._image.note(args[0] if args else next(iter(kwargs.values())))
        output = self._wrapped(*args, **kwargs)
        for attached in self._blocks:
            output = attached(output)
        return output

    # In everything else the wrapper looks like the module.

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("_modules", {}):
            return self._modules[name]
        if name.startswith("__") or name in REBUILDING or WRAPPED not in self.__dict__.get("_modules", {}):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if _is_own(self, name):
            super().__setattr__(name, value)
        if not _is_own(self, name) or (name == "training" and WRAPPED in self.__dict__.get("_modules", {})):
            setattr(self._wrapped, name, value)

    def __delattr__(self, name: str) -> None:
        if _is_own(self, name):
            super().__delattr__(name)
        else:
            delattr(self._wrapped, name)

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """Add a child to the module; those of the wrapper may be replaced."""
        if name in self._modules:
            super().add_module(name, module)
        else:
            self._wrapped.add_module(name, module)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a buffer to the module."""
        self._wrapped.register_buffer(name, tensor, persistent)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Add a parameter to the module."""
        self._wrapped.register_parameter(name, param)

    def __bool__(self) -> bool:
        return bool(self._wrapped)

    def __len__(self) -> int:
        return len(self._wrapped) + len(self._blocks)

    def __iter__(self) -> Iterator[nn.Module]:
        """The layers of a sequence, and the blocks behind them: called one after the other, they are all called."""
        yield from self._wrapped
        yield from self._blocks

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            raise TypeError("a part of a module with attention behind it would lose the attention: detach it first")
        if isinstance(index, int) and index >= len(self._wrapped):
            return self._blocks[index - len(self._wrapped)]
        return self._wrapped[index]

    # The keys of state_dict are those of the module.

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own, with the blocks under ``visattn``."""
        state = super().state_dict(*args, **kwargs)
        prefix = kwargs.get("prefix", args[1] if len(args) > 1 else "")
        path = f"{prefix}{WRAPPED}"
        for table in (state, getattr(state, "_metadata", {})):
            for key in [key for key in table if f"{key}.".startswith(f"{path}.")]:
                table[(prefix.removesuffix(".") + key.removeprefix(path)).removeprefix(".")] = table.pop(key)
        return state

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        own = (f"{prefix}{WRAPPED}.", *(f"{prefix}{NAME}.{number}." for number in range(len(self._blocks))))
        for key in [key for key in state_dict if key.startswith(prefix) and not key.startswith(own)]:
            state_dict[f"{prefix}{WRAPPED}.{key.removeprefix(prefix)}"] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args)


# Methods with which a module returns its replacement: a module with a block must not appear to have them.
REBUILDING = ("fuse", "reparameterize", "switch_to_deploy")


# What torch sets on any module: the tables of every module, and the marks of a replica.
OWN = frozenset((*vars(nn.Module()), "_image", "_is_replica", "_former_parameters", NAME, WRAPPED))
CALLS = tuple(name for name in vars(nn.Module()) if name.startswith(("_forward_", "_backward_", "_is_full_backward")))


def _is_own(wrapper: WithAttention, name: str) -> bool:
    return name in OWN or hasattr(type(wrapper), name)


def exchange_hooks(one: nn.Module, other: nn.Module) -> None:
    """Exchange the hooks on the calls of two modules: the tables themselves, from which handles remove their hooks."""
    for name in CALLS:
        vars(one)[name], vars(other)[name] = vars(other)[name], vars(one)[name]


def report_plain_keys(_wrapper: nn.Module, incompatible: Any) -> None:
    """Name missing keys as the checkpoint would."""
    for keys in incompatible:
        keys[:] = map(plain_name, keys)


def plain_name(name: str) -> str:
    """The name of a module or parameter as it would be without wrappers.

    >>> plain_name("layer1.0._checkpoint_wrapped_module.conv1")
    'layer1.0.conv1'
    """
    return ".".join(part for part in name.split(".") if part != WRAPPED)

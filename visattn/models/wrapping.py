"""What :func:`visattn.attach` puts into a network: a module is wrapped, and its output goes through blocks.

The wrapper stands in the place of the module, as a child of the module's parent, so that whatever copies, replicates,
converts or shards a network takes the blocks along: there is no hook that could be dropped. To the rest of the world it
passes for the module it wraps: attributes, items and the keys of ``state_dict`` are the module's own. The keys of the
blocks are below ``visattn``: ``layer1.0.bn2.weight`` is as before, ``layer1.0.bn2.visattn.0.gain`` is new.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from visattn.models.layout import Place, in_format_of, scaled_grid
from visattn.modules import underlying

log = logging.getLogger("visattn")

for _name in ("scaled_grid", "in_format_of"):
    torch.fx.wrap(_name)  # one step for torch.fx: they decide by the shapes and strides of real tensors

NAME = "visattn"  # the child of a wrapper that holds the blocks, and of patch attention
WRAPPED = "_checkpoint_wrapped_module"  # a name that torch's distributed checkpoints know not to be part of a key


class ImageShape:
    """Height and width of the image that a network was given, for the shape of token maps; known to one thread.

    Gradient checkpointing runs a block again in the backward pass, perhaps after another image and in another thread:
    there the shape of the map is looked up by its number of tokens, and refused if that is not enough to know it.
    """

    def __init__(self) -> None:
        self._here = threading.local()
        self._seen: dict[int, set[tuple[int, int]]] = {}

    def note(self, image: Tensor) -> None:
        """Remember the shape of a batch of images."""
        self._here.size = (image.shape[-2], image.shape[-1])

    def grid(self, tokens: int, place: Place) -> tuple[int, int]:
        """Rows and columns of the map of that many tokens at a place; one that does not fit the image raises."""
        image = place.image if self.value is None else self.value
        if torch.compiler.is_compiling():
            return scaled_grid(tokens, image, place)
        if torch._C._current_graph_task_id() == -1:  # not in a backward pass
            size = scaled_grid(tokens, image, place)
            if isinstance(tokens, int) and torch.is_grad_enabled():  # not a stand-in of torch.fx
                self._seen.setdefault(tokens, set()).add(size)
            return size
        sizes = self._seen.get(tokens) or {scaled_grid(tokens, image, place)}
        if len(sizes) > 1:
            raise RuntimeError(
                f"gradient checkpointing runs a block again on {tokens} tokens, which were maps of "
                f"{' and '.join(f'{height} x {width}' for height, width in sorted(sizes))}: it cannot tell which one; "
                "use images of one shape, or switch gradient checkpointing off"
            )
        return next(iter(sizes))

    @property
    def value(self) -> tuple[int, int] | None:
        """Of the last image in this thread; None if there was none."""
        return getattr(self._here, "size", None)

    def __reduce__(self) -> tuple[type[ImageShape], tuple[()]]:
        return ImageShape, ()  # a copy or a pickle is of another network, which has seen nothing


class Attached(nn.Module):
    """One block behind one place.

    Args:
        block: maps (B, C, H, W) to (B, C, H, W).
        place: where its feature map comes from.
        gain: blends the block in, x + gain (block(x) - x), of shape (1,); None replaces x by block(x).
        image: the shape of the network's images.
        name: of the block in the registry, if it has one,
        options: and what it was built with.
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

    def forward(self, output: Any) -> Any:
        """What a module returned, with the pixels of its feature map changed and its prefix tokens untouched."""
        return replace_slot(output, self.place.index, self._change)

    def _change(self, x: Tensor) -> Tensor:
        layout = self.place.layout
        size = self.image.grid(x.shape[1] - layout.prefix, self.place) if layout.kind == "tokens" else None
        feature = layout.to_map(x, size)
        changed = self.block(feature)
        if self.gain is not None:
            # In the arrangement of x, so that strides, and with them the bits of what follows, stay the same.
            return x + layout.from_map(self.gain * (changed - feature), torch.zeros_like(x))
        return in_format_of(x, layout.from_map(changed, x))

    def extra_repr(self) -> str:
        """Layout, for print(model)."""
        return str(self.place.layout)


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
        self.register_load_state_dict_post_hook(_report_plain_keys)

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

    # In everything else the wrapper passes for the module.

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
        """As of the module, with the blocks below ``visattn``."""
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


# Methods by which a module gives its successor: a module with a block must not be taken for one that has them.
REBUILDING = ("fuse", "reparameterize", "switch_to_deploy")


def _is_own(wrapper: WithAttention, name: str) -> bool:
    return name.startswith("_") or name in (NAME, "training") or hasattr(type(wrapper), name)


def _report_plain_keys(_wrapper: nn.Module, incompatible: Any) -> None:
    """Name missing keys as the checkpoint would."""
    for keys in incompatible:
        keys[:] = map(plain_name, keys)


def plain_name(name: str) -> str:
    """The name of a module or parameter as it would be without wrappers.

    >>> plain_name("layer1.0._checkpoint_wrapped_module.conv1")
    'layer1.0.conv1'
    """
    return ".".join(part for part in name.split(".") if part != WRAPPED)


def unwrapped(module: nn.Module) -> nn.Module:
    """A module without its blocks, if it has any."""
    return module._wrapped if isinstance(module, WithAttention) else module


def wrappers(model: nn.Module) -> dict[str, WithAttention]:
    """Every wrapper in a network, by the name of what it wraps."""
    return {plain_name(name): module for name, module in model.named_modules() if isinstance(module, WithAttention)}


def attachments(model: nn.Module) -> dict[str, Attached]:
    """The attached blocks of a network in its own order, by place; a second one at a place has ``#2`` behind it."""
    model = underlying(model)
    found = {
        name if number == 0 else f"{name}#{number + 1}": attached
        for name, wrapper in wrappers(model).items()
        for number, attached in enumerate(wrapper._blocks)
    }
    known = {id(attached) for attached in found.values()}
    others = {name: module for name, module in model.named_modules() if isinstance(module, Attached)}
    return found | {plain_name(name): module for name, module in others.items() if id(module) not in known}


def put_behind(model: nn.Module, place: str, attached: Attached) -> None:
    """Let the output of a module go through one more block."""
    _wrap(model, place)._modules[NAME].append(attached)  # type: ignore[union-attr, operator]
    if not _plain_loaders(model):
        model.register_load_state_dict_pre_hook(_keep_when_absent)


def _keep_when_absent(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let a checkpoint of the plain backbone load strictly: blocks that it does not mention stay as they are."""
    own = {
        f"{prefix}{name}.{NAME}.{key}": value
        for name, wrapper in wrappers(model).items()
        for key, value in wrapper._modules[NAME].state_dict().items()  # type: ignore[union-attr]
    }
    if own and not own.keys() & state.keys():
        number = len(attachments(model))
        log.warning("the checkpoint has no attached blocks: the %d in the model keep their weights", number)
        state.update(own)


def _plain_loaders(module: nn.Module) -> list[int]:
    hooks = module._load_state_dict_pre_hooks
    return [key for key, hook in hooks.items() if getattr(hook, "hook", None) is _keep_when_absent]


def take_away(model: nn.Module, place: str) -> None:
    """Take the last block of a place out again."""
    wrapper = wrappers(model)[place]
    del wrapper._modules[NAME][-1]  # type: ignore[union-attr, operator]
    if not wrapper._blocks and wrapper._image is None:
        _put_back(model, wrapper)


def _put_back(model: nn.Module, wrapper: WithAttention) -> None:
    for parent in list(model.modules()):
        for child in [child for child, each in parent._modules.items() if each is wrapper]:
            parent._modules[child] = wrapper._wrapped


def watched_image(model: nn.Module, entry: str) -> ImageShape:
    """The shape of the images that a network is given, noted by the module that they go into."""
    wrapper = _wrap(model, entry)
    if wrapper._image is None:
        wrapper._image = ImageShape()
    return wrapper._image


def entry_of(model: nn.Module, attached: Attached) -> str | None:
    """Name of the module that notes the shape of the images for a block; None if the block does not need it."""
    return next((name for name, wrapper in wrappers(model).items() if wrapper._image is attached.image), None)


def _wrap(model: nn.Module, name: str) -> WithAttention:
    """The wrapper of a module, wherever in the network the module stands."""
    module = model.get_submodule(name)
    if isinstance(module, WithAttention):
        return module
    wrapper = WithAttention(module)
    for parent in list(model.modules()):
        for child in [child for child, each in parent._modules.items() if each is module]:
            parent._modules[child] = wrapper
    return wrapper


def unwrap(model: nn.Module) -> bool:
    """Put every wrapped module back in its place; whether there was any."""
    found = False
    for parent in list(model.modules()):
        for child, module in parent._modules.items():
            if isinstance(module, WithAttention):
                parent._modules[child], found = module._wrapped, True
        for key in _plain_loaders(parent):
            del parent._load_state_dict_pre_hooks[key]
    return found

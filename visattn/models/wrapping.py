"""Wrap modules of a network to attach blocks (:mod:`visattn.models.wrapper`), find the blocks, and unwrap them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from visattn.models.image_shape import ImageShape
from visattn.models.wrapper import NAME, Attached, WithAttention, exchange_hooks, plain_name, report_plain_keys
from visattn.modules import lasting_hooks, underlying

log = logging.getLogger("visattn")


def unwrapped(module: nn.Module) -> nn.Module:
    """A module without its blocks, if it has any."""
    return module._wrapped if isinstance(module, WithAttention) else module


def wrappers(model: nn.Module) -> dict[str, WithAttention]:
    """Every wrapper in a network, by the name of the module it wraps."""
    return {plain_name(name): module for name, module in model.named_modules() if isinstance(module, WithAttention)}


def attachments(model: nn.Module) -> dict[str, Attached]:
    """The attached blocks of a network, in order and by place; the name of a second one at a place ends in ``#2``."""
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
    """Attach one more block to the output of a module."""
    _wrap(model, place)._modules[NAME].append(attached)  # type: ignore[union-attr, operator]
    if not _plain_loaders(model):
        model.register_load_state_dict_pre_hook(_keep_when_absent)


def _keep_when_absent(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let a checkpoint of the plain backbone load strictly: blocks that it lacks keep their weights."""
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


@contextmanager
def all_or_nothing(model: nn.Module, places: Iterable[str]) -> Iterator[None]:
    """If what follows fails, remove the last block at each of these places, and all that was needed for it."""
    try:
        yield
    except BaseException:
        found = wrappers(model)
        for place in places:
            del found[place]._modules[NAME][-1]  # type: ignore[union-attr, operator]
        used = {id(vars(module)["image"]) for module in model.modules() if "image" in vars(module)}
        for wrapper in found.values():
            if not wrapper._blocks and id(wrapper._image) not in used:
                exchange(model, wrapper, _bare(wrapper))
        for key in _plain_loaders(model) if not attachments(model) else ():
            del model._load_state_dict_pre_hooks[key]
        raise


def exchange(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module in the place of another, wherever in the network that stands."""
    for parent in list(model.modules()):
        for child in [child for child, each in parent._modules.items() if each is old]:
            parent._modules[child] = new


def image_shape(model: nn.Module, entry: str) -> ImageShape:
    """The shape of the images that a network is given, which :func:`watch_image` has the module note they go into."""
    module = model.get_submodule(entry)
    noted = module._image if isinstance(module, WithAttention) else None
    return ImageShape() if noted is None else noted


def watch_image(model: nn.Module, entry: str, image: ImageShape) -> None:
    """Have the module that the images go into note their shape."""
    _wrap(model, entry)._image = image


def entry_of(model: nn.Module, attached: Attached) -> str | None:
    """Name of the module that notes the shape of the images for a block; None if the block does not need it."""
    return next((name for name, wrapper in wrappers(model).items() if wrapper._image is attached.image), None)


def _wrap(model: nn.Module, name: str) -> WithAttention:
    """The wrapper of a module, wherever in the network the module stands."""
    module = model.get_submodule(name)
    if isinstance(module, WithAttention):
        return module
    wrapper = WithAttention(module)
    exchange(model, module, wrapper)
    return wrapper


def unwrap(model: nn.Module) -> bool:
    """Put every wrapped module back in its place, and say whether there was any."""
    found = False
    for parent in list(model.modules()):
        for child, module in parent._modules.items():
            if isinstance(module, WithAttention):
                parent._modules[child], found = _bare(module), True
        for key in _plain_loaders(parent):
            del parent._load_state_dict_pre_hooks[key]
    return found


def _bare(wrapper: WithAttention) -> nn.Module:
    """What a wrapper wraps, with the hooks that were put on the wrapper."""
    module = wrapper._wrapped
    exchange_hooks(wrapper, module)
    tables = {name: table for name, table in vars(wrapper).items() if "_hooks" in name}
    every = {key: hook for table in tables.values() for key, hook in table.items() if callable(hook)}
    passing = every.keys() - lasting_hooks(every).keys()  # of observers, who look at the module itself too
    for name, table in tables.items():
        for key in [key for key in table if key in passing or table[key] is report_plain_keys]:
            del table[key]
        if own := vars(module)[name]:
            own.update(table)
        else:  # the table itself, from which handles remove their hooks
            vars(module)[name] = table
    if wrapper._is_full_backward_hook is not None:
        module._is_full_backward_hook = wrapper._is_full_backward_hook
    return module

"""The feature map that a network's head reads: what global pooling averages, or a class token looks at last.

It is found without a table of families, in autograd's graph of one forward pass without storage: the last map through
which everything goes that the output knows of the image, and which the output still depends on place by place. Inside
a residual block a shortcut leads around every map; so the map is that behind the last block, normalisation or
convolution before the places are put together. With a class token that is the input of the last block, since of
its output only the token is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from visattn.models.layout import Place, recognise
from visattn.models.places import reaching_output
from visattn.models.survey import Survey, dry_run
from visattn.modules import HookOfThread


def pooled_place(model: nn.Module, found: Survey) -> Place | None:
    """The place of that map; None if there is none, such as in a network that returns maps.

    Args:
        model: in evaluation mode.
        found: what is known of its places.
    """
    names = dry_run(model, found.input_shape, lambda copy, images: _unavoidable(copy, images, found))
    places = found.places()
    return next((places[name] for name in names if reaching_output(model, found, [places[name]])), None)


def _unavoidable(model: nn.Module, images: Tensor, found: Survey) -> Iterator[str]:
    """Places through which every path from the image to the output leads, the last one first."""
    leaf = images.requires_grad_()
    places = found.places()
    height, width = images.shape[-2:]
    prefix = getattr(model, "num_prefix_tokens", 0)
    behind: dict[str, Any] = {}  # the node of autograd's graph that made the output of a place
    calls: dict[str, int] = {}
    heads: list[str] = []  # modules that turn a map into something else

    def is_map(value: Any) -> bool:
        return isinstance(value, Tensor) and recognise(value.shape, (height, width), prefix) is not None

    def note(name: str) -> Any:
        def hook(_module: nn.Module, args: Any, output: Any) -> None:
            calls[name] = calls.get(name, 0) + 1
            if name in places:
                index = places[name].index
                behind[name] = (output if index is None else output[index]).grad_fn
            elif args and is_map(args[0]) and args[0].shape[-2:] != images.shape[-2:]:
                heads.append(f"{name}.")

        return hook

    for name, module in model.named_modules():
        if name and not isinstance(module, torch.jit.ScriptModule):  # which take no hooks
            module.register_forward_hook(HookOfThread(note(name)))  # copies that run meanwhile leave it out
    with torch.enable_grad():
        given = leaf.clone()
        ends = list(_tensors(model(given)))
    if any(is_map(each) for each in ends):
        return iter(())
    once = [name for name in behind if calls[name] == 1 and not any(name.startswith(head) for head in heads)]
    stages = set(found.stages())
    by_node: dict[Any, list[str]] = {}
    for name in once:
        by_node.setdefault(behind[name], []).append(name)
    # One map can have many names: that of a stage says most, else the outermost.
    named = {
        node: min(names, key=lambda name: (name not in stages, name.count("."))) for node, names in by_node.items()
    }
    roots = [each.grad_fn for each in ends]
    return (name for node, name in reversed(named.items()) if not _reaches(roots, given.grad_fn, avoiding=node))


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from _tensors(list(output.values()))
    elif isinstance(output, tuple | list):
        for each in output:
            yield from _tensors(each)


def _reaches(roots: list[Any], goal: Any, avoiding: Any) -> bool:
    """Whether a path leads from the output back to the image that does not go through a node."""
    todo, seen = list(roots), {avoiding, None}
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        if node is goal:
            return True
        seen.add(node)
        todo += [after for after, _ in node.next_functions]
    return False

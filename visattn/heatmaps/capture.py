"""Capture every attention matrix of a forward pass."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from visattn.core.arguments import one_or_several, whole
from visattn.heatmaps.watch.calls import Call, Unfused
from visattn.heatmaps.watch.exactness import full_precision
from visattn.heatmaps.watch.interception import intercepting
from visattn.heatmaps.watch.passes import computes_attention, layer_names
from visattn.listing import shown
from visattn.registry import matching, suggest


class Maps(Mapping[str, Tensor]):
    """Attention weights by the name of their module, in the order of the forward pass.

    Each is (..., queries, keys) as the layer has it: (B, heads, N, N) in a plain transformer, with windows beside the
    batch or the heads in others. A module that attends more than once has names with numbers: ``attn``, ``attn#2``.
    They are detached from the model's graph; :meth:`gradients` gives derivatives with respect to them.
    """

    def __init__(self, wanted: LayerChoice) -> None:
        self._wanted = wanted
        self._names: list[str] = []  # of all layers, requested or not
        self._calls: dict[str, Call] = {}
        self._weights: dict[str, Tensor] = {}

    def _add(self, call: Call) -> None:
        name, times = call.name, 1
        while name in self._names:
            times += 1
            name = f"{call.name}#{times}"
        self._names.append(name)
        number = len(self._names) - 1
        sure = self._wanted.chooses(name, number)
        if sure or self._wanted.last:
            self._calls[name] = call
        if sure or (self._wanted.last and isinstance(call, Unfused)):  # whose weights the model may overwrite
            self._form(name)
        if self._wanted.last and number >= self._wanted.last:
            old = self._names[number - self._wanted.last]
            if not self._wanted.chooses(old, number - self._wanted.last):
                self._calls.pop(old, None)
                self._weights.pop(old, None)

    def _form(self, name: str) -> Tensor:
        if name not in self._weights:
            call = self._calls[name]
            with full_precision(call.output.device):
                weights = call.weights()
            own = weights.untyped_storage()._cdata != call.leaf().untyped_storage()._cdata
            self._weights[name] = weights if own else weights.detach().clone()
        return self._weights[name]

    def _begin(self, reported: int) -> None:
        """Drop everything but the last reports."""
        self._names = self._names[len(self._names) - reported :]
        self._keep(self._names)

    def _end(self) -> None:
        """Drop layers that turned out not to be requested; raise if a requested one did not occur."""
        self._keep(self._shown())
        self._wanted.check(self._names)

    def _keep(self, names: list[str]) -> None:
        for table in (self._calls, self._weights):
            for name in table.keys() - {*names}:
                del table[name]

    def _shown(self) -> list[str]:
        total = len(self._names)
        return [name for i, name in enumerate(self._names) if self._wanted.chooses(name, i, total)]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._shown():
            raise KeyError(f"no map {name!r}: {suggest(name, self._shown())}")
        return self._form(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shown())

    def __len__(self) -> int:
        return len(self._shown())

    def __repr__(self) -> str:
        shapes = (f"{name} {tuple(weights.shape)}" for name, weights in self.items())
        return f"Maps({', '.join(shapes)})"

    def gradients(self, score: Tensor) -> dict[str, Tensor]:
        """The derivative of a scalar with respect to every map, by name.

        It is exact for fused attention too, where the maps are not part of the model's graph. A scalar that depends on
        none of them, such as one of an earlier pass, raises.
        """
        calls = {name: self._calls[name] for name in self}
        leaves = [call.leaf() for call in calls.values()]
        for name, leaf in zip(calls, leaves, strict=True):
            if not leaf.requires_grad:
                raise ValueError(
                    f"the map of {name!r} was made without gradients: run the model outside torch.no_grad(), with "
                    "images or weights that require gradients, and without reentrant checkpointing"
                )
        found = torch.autograd.grad(score, leaves, retain_graph=True, allow_unused=True)
        if found and all(gradient is None for gradient in found):
            raise ValueError(
                "the score depends on none of the maps, which are those of the last forward pass: compute it from "
                "that pass, or capture each pass in a block of its own"
            )
        with full_precision(score.device):
            return {
                name: torch.zeros_like(self[name]) if gradient is None else call.gradient(gradient)
                for (name, call), gradient in zip(calls.items(), found, strict=True)
            }


class LayerChoice:
    """Which layers to keep; all by default.

    Args:
        layers: names, patterns or numbers.
        model: whose layers they are; a name or pattern that matches none of its modules raises.
    """

    def __init__(self, layers: str | int | Sequence[str | int] | None, model: nn.Module) -> None:
        self.layers = None if layers is None else [_plain(each) for each in one_or_several("layers", layers)]
        self.last = 0  # how many of the last layers may be requested by a negative number
        modules = layer_names(model)
        self.exact = set(modules.values())  # names, even if they look like patterns
        for each in self.layers or []:
            if isinstance(each, bool) or not isinstance(each, str | int):
                raise TypeError(f"layers are names, patterns or numbers, got {shown(each)}")
            if isinstance(each, int):
                self.last = max(self.last, -each)
            else:
                plain = re.sub(r"#\d+$", "", each)
                if not matching(plain, modules.values()):
                    likely = [name for module, name in modules.items() if computes_attention(module)]
                    raise ValueError(f"unknown attention layer {each!r}: {suggest(plain, likely or modules.values())}")

    def chooses(self, name: str, number: int, total: int | None = None) -> bool:
        """Whether to keep a layer, given its number in the pass; a negative request also needs the total."""
        if self.layers is None:
            return True
        return any(self._matches(each, name, number, total) for each in self.layers)

    def check(self, names: Sequence[str]) -> None:
        """Raise if a requested layer did not occur in a pass through these layers."""
        for each in self.layers or []:
            if any(self._matches(each, name, number, len(names)) for number, name in enumerate(names)):
                continue
            if isinstance(each, int):
                raise ValueError(f"the model has {len(names)} attention layers, numbered from 0; there is no {each}")
            raise ValueError(f"there was no attention in {each!r}: {suggest(each, names)}")

    def _matches(self, wanted: str | int, name: str, number: int, total: int | None) -> bool:
        if isinstance(wanted, str):
            return name == wanted or (wanted not in self.exact and fnmatchcase(name, wanted))
        return number == wanted or (total is not None and number - total == wanted)


def _plain(layer: str | int) -> str | int:
    number = whole(layer)
    return layer if number is None else number


def capture(model: nn.Module, layers: str | int | Sequence[str | int] | None = None) -> Capture:
    """Keep every attention matrix of the last forward pass inside the block.

    The output does not change, fused attention stays on, and nothing of the model is touched; passes of other threads
    through the same model are neither seen nor disturbed. A layer with attention that ran but could not be seen raises
    :class:`MissedAttention`. A compiled model runs as it was written.

    One kernel shows no weights: that of torch's own ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` in
    evaluation mode without gradients. Inside the block they compute as with gradients, which differs by rounding.

    A pass begins with a call of the model. Instead of the model, a method of it (``model.forward_features(x)``) or some
    of its modules may be called (``model.blocks[0](x)``); such calls together make one pass, until a layer attends that
    has already attended in an earlier one of them: with it a new pass begins. A layer that is used several times within
    one call is kept several times. What was missed is found at the end of a call of the model, and otherwise when the
    next pass begins or the block ends. What gradient checkpointing runs again in a backward pass is left out, and so is
    the attention of other models.

    Args:
        model: to watch.
        layers: keep only these: a name, a pattern (``"blocks.*.attn"``), a number in the order of the pass (-1 is the
            last), or a list of them. The weights of the others are not computed. One that is not there raises.

    >>> import timm
    >>> model = timm.create_model("test_vit").eval()
    >>> with capture(model) as maps:
    ...     logits = model(torch.rand(2, 3, 160, 160))
    >>> len(maps), maps["blocks.0.attn"].shape
    (6, torch.Size([2, 2, 101, 101]))
    >>> with capture(model, layers=[0, -1]) as maps:
    ...     logits = model(torch.rand(2, 3, 160, 160))
    >>> list(maps)
    ['blocks.0.attn', 'blocks.5.attn']
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"capture watches a model, an nn.Module, got {type(model).__name__}")
    return Capture(model, layers)


class Capture(AbstractContextManager[Maps]):
    """What :func:`capture` returns: for any number of ``with`` statements, each with maps of its own."""

    def __init__(self, model: nn.Module, layers: str | int | Sequence[str | int] | None) -> None:
        self._arguments = (model, layers)
        self._open: list[AbstractContextManager[Maps]] = []

    def __enter__(self) -> Maps:
        self._open.append(_watching(*self._arguments))
        return self._open[-1].__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        if not self._open:
            raise RuntimeError("capture is left without having been entered: use it in a with statement")
        return self._open.pop().__exit__(*error)


@contextmanager
def _watching(model: nn.Module, layers: str | int | Sequence[str | int] | None) -> Iterator[Maps]:
    maps = Maps(LayerChoice(layers, model))
    ran = False

    def begin(reported: int) -> None:
        nonlocal ran
        ran = True
        maps._begin(reported)

    with intercepting(model, maps._add, begin):
        yield maps
    if ran or maps._names:
        maps._end()

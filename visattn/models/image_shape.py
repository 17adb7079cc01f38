"""The shape of the image that a network was given, for parts of it that see only tokens."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from visattn.models.layout import Place, scaled_grid

torch.fx.wrap("scaled_grid")  # one step for torch.fx: it decides by the shapes and strides of real tensors


class ImageShape:
    """Height and width of the image that a network was given, per thread, for the shape of token maps.

    Gradient checkpointing recomputes a block in the backward pass, perhaps after another image and in another thread:
    there the shape of the map is looked up by its number of tokens, and ambiguity raises.
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
        """The shape of the last image in this thread; None if there was none."""
        return getattr(self._here, "size", None)

    def __reduce__(self) -> tuple[type[ImageShape], tuple[()]]:
        return ImageShape, ()  # a copy or a pickle belongs to another network, which has seen nothing

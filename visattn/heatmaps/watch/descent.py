"""What is known of a tensor that descends from a distribution (:mod:`visattn.heatmaps.watch.lineage`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor
from torch.utils.weak import TensorWeakRef

from visattn.heatmaps.watch.products import Product


@dataclass(eq=False)
class Step:
    """One tensor of a lineage, without the tensor.

    Args:
        parent: what it was made of.
        reported: whether it was reported as a map.
    """

    parent: Step | None = None
    reported: bool = False

    def shown(self) -> bool:
        """Whether it, or something that it descends from, was reported."""
        return self.reported or (self.parent is not None and self.parent.shown())


@dataclass(eq=False, kw_only=True)
class Root(Step):
    """Where a lineage begins.

    Args:
        size: the number of weights.
        distribution: as it was computed; None if these are exponentials that have not been divided yet,
        axis: and the axis along which it sums to one, from behind.
        logarithm: whether it is the logarithm of a distribution.
    """

    size: int
    distribution: Tensor | TensorWeakRef | None = None
    axis: int | None = None
    logarithm: bool = False

    def used(self) -> Tensor | None:
        """The distribution, if it is still there; from now on it is kept only as long as the model itself keeps it."""
        held = self.distribution
        if isinstance(held, Tensor):
            self.distribution = TensorWeakRef(held)
            return held
        return None if held is None else held()


@dataclass(frozen=True)
class Weights:
    """A descendant, and the axis of the keys in it, from behind, if that is known."""

    root: Root
    axis: int | None
    step: Step


@dataclass(frozen=True)
class Total:
    """A descendant summed along an axis; one divided by it, if inverse."""

    root: Root
    axis: int
    inverse: bool = False


@dataclass(frozen=True)
class LogTotal:
    """The logarithm of the sum of the exponentials of energies."""

    energies: Tensor
    axis: int


@dataclass(frozen=True)
class Pair:
    """A descendant times something larger, not yet summed."""

    weights: Weights
    operands: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Raw:
    """Exponentials times values, not yet divided."""

    use: Use


@dataclass(frozen=True)
class Use:
    """A distribution that was multiplied by values.

    Args:
        weights: what is known of the weights in the product.
        product: of weights and values.
        divided: the normalised product, if that was normalised instead of the weights.
    """

    weights: Weights
    product: Product
    divided: Tensor | None = None


Known: TypeAlias = Weights | Total | LogTotal | Pair | Raw

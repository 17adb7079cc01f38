"""What a method found out about one image of a batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from visattn.heatmaps.explanation import Explanation


@dataclass(frozen=True)
class One:
    """A row of what a method found about several images, and in words whether it is true."""

    found: Explanation
    row: int
    judged: str

    @property
    def heatmap(self) -> Tensor:
        """(H, W)."""
        return self.found.heatmap[self.row]

    def note(self, *, balanced: bool) -> str:
        """A remark of a few words about where the heatmap comes from; ``balanced`` if its gradients are."""
        of = {"log_probability": "of log p", "probability": "of p"}.get(self.found.of, "")
        return ", ".join(filter(None, (self._source(), of, "balanced" if balanced else "")))

    def _source(self) -> str:
        layers = self.found.layers
        if self.found.method == "gates" and self.found.raw[0].numel() == 1:
            return "weighs channels, not places"
        if self.found.method == "gates" and float(self.found.heatmap.max()) == 0:
            return "the same at every place"
        return f"{len(layers)} layers" if len(layers) > 1 else "".join(layers)

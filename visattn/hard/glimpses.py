"""Turn any backbone into a model for large images that sees a few crops at full resolution, and never the rest.

A :class:`~visattn.hard.scout.Scout` chooses the crops from a small copy of the image, the backbone answers for each of
them, and the answers are averaged. So the cost grows with the number of crops, not with the size of the image.

>>> import timm, torch
>>> model = GlimpseNetwork(timm.create_model("test_resnet", num_classes=10), Scout(size=64, glimpses=3)).eval()
>>> images = torch.rand(2, 3, 256, 320)
>>> model(images).shape, model.fixations(images)[0].shape
(torch.Size([2, 10]), torch.Size([2, 3, 2]))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from visattn.hard.ram import RAM
from visattn.hard.scout import GLIMPSES, Scout, smallest
from visattn.hard.sensor import glimpse

PREFIX = "glimpse_"  # prefix of the names of such models
IMAGE = 448  # default side of their images, unless the backbone's own exceed half of it


class GlimpseNetwork(nn.Module):
    """Look at G crops of an image at once and average the backbone's logits.

    Args:
        backbone: a timm model, with or without attention.
        scout: chooses the crops and their size.
    """

    def __init__(self, backbone: nn.Module, scout: Scout) -> None:
        super().__init__()
        self.scout = scout
        self.backbone: Any = backbone
        if isinstance(backbone, RAM | GlimpseNetwork):
            raise ValueError(f"{type(backbone).__name__} takes glimpses itself, so it cannot be the backbone")
        number = getattr(backbone, "num_classes", 0)
        if number < 2:
            raise ValueError(f"glimpses need a backbone with two or more classes, got {number}")
        config: Any = backbone.pretrained_cfg
        changes = glimpse_config(config, size=scout.size, glimpses=scout.glimpses)
        self.pretrained_cfg = self.default_cfg = {**config, **changes}

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.backbone.num_classes

    @property
    def num_features(self) -> int:
        """Width of the backbone's last features."""
        return self.backbone.num_features

    def get_classifier(self) -> Any:
        """Classification layer of the backbone."""
        return self.backbone.get_classifier()

    def reset_classifier(self, num_classes: int, *args: Any, **kwargs: Any) -> None:
        """Replace the classifier for another number of classes."""
        self.backbone.reset_classifier(num_classes, *args, **kwargs)

    def no_weight_decay(self) -> set[str]:
        """Parameters of the backbone that it exempts from weight decay."""
        own = getattr(self.backbone, "no_weight_decay", set)
        return {f"backbone.{name}" for name in own()}

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, classes)."""
        locations = self.scout(images)  # (B, G, 2)
        crops = glimpse(images, locations, size=self.scout.size).flatten(0, 2)  # (B * G, C, S, S)
        return self.backbone(crops).unflatten(0, locations.shape[:2]).mean(1)

    def fixations(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return where it looks without sampling, (B, G, 2) as (x, y), best first, and a crop's (height, width)."""
        return self.scout.locations(images, sample=False), (self.scout.size, self.scout.size)


def glimpse_config(config: Mapping[str, Any], *, size: int | None = None, glimpses: int = GLIMPSES) -> dict[str, Any]:
    """Changes that a glimpse network makes to timm's configuration of its backbone.

    Args:
        config: configuration of the backbone.
        size: side of a crop; by default that of the backbone's own images.
        glimpses: number of crops per image.

    >>> changes = glimpse_config({"architecture": "resnet50", "input_size": (3, 224, 224), "classifier": "fc"})
    >>> changes["architecture"], changes["input_size"], changes["classifier"]
    ('glimpse_resnet50', (3, 448, 448), 'backbone.fc')
    """
    channels, *sides = config["input_size"]
    side = max(IMAGE, 2 * max(sides))
    least = smallest(sides[-1] if size is None else size, glimpses)
    return {
        "architecture": f"{PREFIX}{config['architecture']}",
        "input_size": (channels, side, side),
        "fixed_input_size": False,
        "test_input_size": None,
        "min_input_size": (channels, least, least),
        "pool_size": None,
        "classifier": _in_backbone(config.get("classifier")),
        "first_conv": _in_backbone(config.get("first_conv")),
    }


def _in_backbone(names: Any) -> Any:
    if isinstance(names, tuple | list):
        return tuple(_in_backbone(name) for name in names)
    return f"backbone.{names}" if names else names

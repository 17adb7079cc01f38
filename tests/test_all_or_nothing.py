"""What attach and replace refuse leaves the network as it was, to the last hook."""

import pytest
import timm
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import visattn


class OnlyOnce(nn.Module):
    """A block that can be tried alone, but does not run in a network."""

    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels, 1, 1))
        self.ran = False

    def forward(self, x):
        """The map, the first time."""
        if self.ran:
            raise RuntimeError("once is enough")
        self.ran = True
        return x * self.weight


class Listed(nn.Module):
    """Calls one of its layers by another way than its name."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.listed = [self.first]

    def forward(self, x):
        """Features."""
        return self.second(self.listed[0](x))


def with_a_block():
    return visattn.attach(timm.create_model("test_vit"), "se", at="blocks.0")


def vit():
    return timm.create_model("test_vit")


def resnet():
    return timm.create_model("test_resnet")


def content(model):
    """Every module and its hooks."""
    return [
        (name, id(module), {table: list(hooks) for table, hooks in vars(module).items() if "_hooks" in table and hooks})
        for name, module in model.named_modules()
    ]


REFUSED = {
    "an option": (vit, lambda m: visattn.attach(m, "se", nothing=1)),
    "another width": (vit, lambda m: visattn.attach(m, lambda channels: nn.Conv2d(channels, channels + 1, 1))),
    "a block in tokens": (vit, lambda m: visattn.attach(m, OnlyOnce)),
    "a block in maps": (resnet, lambda m: visattn.attach(m, OnlyOnce)),
    "a block beside another": (with_a_block, lambda m: visattn.attach(m, OnlyOnce, at="blocks.1")),
    "a block behind another": (with_a_block, lambda m: visattn.attach(m, OnlyOnce, at="blocks.0", stack=True)),
    "a score": (vit, lambda m: visattn.attach(m, "patch", scope="local_2d", score="nothing")),
    "a radius": (vit, lambda m: visattn.attach(m, "patch", scope="local_2d", radius=-1)),
    "a hidden layer": (
        Listed,
        lambda m: visattn.attach(m, "se", at=["first", "second"], example=torch.rand(1, 3, 32, 32)),
    ),
    "a replacement": (resnet, lambda m: visattn.replace(m, "sk", at=["layer3.*.conv2", "fc"])),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_changes_nothing(what):
    build, change = REFUSED[what]
    model = build()
    before = content(model)
    with pytest.raises((ValueError, TypeError)):
        change(model)
    assert content(model) == before


def test_a_convolution_without_numbers_is_put_back():
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = resnet()
        before = content(model)
        visattn.replace(model, "mhsa", at="layer4.*.conv2")
        visattn.detach(model)
    assert content(model) == before

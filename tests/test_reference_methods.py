"""Slow methods that serve as references: on a linear model their maps are known."""

from functools import partial

import pytest
import torch
from torch import nn

import visattn
from visattn.heatmaps.methods import averaged, covering
from visattn.heatmaps.request import Request


class Linear(nn.Module):
    """Two classes; every pixel has a weight of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(2, 3, 8, 12))

    def forward(self, x):
        return torch.einsum("bchw,kchw->bk", x, self.weight)


@pytest.fixture
def linear():
    torch.manual_seed(1)
    return Linear().eval(), torch.randn(3, 3, 8, 12)


def contributions(model, images, target):
    return (images * model.weight[target]).sum(1).detach()


def test_integrated_gradients_of_a_linear_model(linear):
    model, images = linear
    found = averaged.integrated_gradients(Request(model, images, torch.ones(3, dtype=torch.long)), steps=3).maps
    torch.testing.assert_close(found, contributions(model, images, 1))


def test_integrated_gradients_add_up_to_what_the_score_gains():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(4 * 36, 2)).double().eval()
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    request = Request(model, images, torch.tensor([0, 1]))
    found = averaged.integrated_gradients(request, steps=100).maps
    gained = model(images) - model(torch.zeros_like(images))
    torch.testing.assert_close(found.sum((1, 2)), gained.detach()[[0, 1], [0, 1]], rtol=1e-3, atol=1e-4)


def test_smoothgrad_of_a_linear_model(linear):
    model, images = linear
    found = averaged.smoothgrad(Request(model, images, torch.zeros(3, dtype=torch.long)), samples=2).maps
    torch.testing.assert_close(found, model.weight[0].abs().amax(0).detach().expand(3, -1, -1))


def test_occlusion_of_a_linear_model(linear):
    model, images = linear
    found = covering.occlusion(Request(model, images, torch.tensor([0, 1, 1])), cells=4).maps
    assert found.shape == (3, 4, 6)
    for image, target in enumerate((0, 1, 1)):
        cells = contributions(model, images, target)[image].unflatten(0, (4, 2)).unflatten(2, (6, 2)).sum((1, 3))
        torch.testing.assert_close(found[image], cells, rtol=1e-3, atol=1e-4)


def test_rise_finds_the_pixels_that_count(linear):
    model, images = linear
    with torch.no_grad():
        model.weight.zero_()
        model.weight[1, :, :3, :3] = 1  # above, on the left
    found = covering.rise(Request(model, images.abs(), torch.ones(3, dtype=torch.long)), masks=400, cells=4).maps
    assert found.shape == (3, 8, 12)
    for each in found:
        row, column = divmod(int(each.argmax()), 12)
        assert row < 4
        assert column < 4
    again = covering.rise(Request(model, images.abs(), torch.ones(3, dtype=torch.long)), masks=400, cells=4).maps
    assert torch.equal(found, again)


def test_masks_are_made_some_at_a_time(linear, monkeypatch):
    model, images = linear
    request = partial(Request, model, images, torch.zeros(3, dtype=torch.long))
    whole = covering.occlusion(request(), cells=4).maps
    monkeypatch.setattr(covering, "AT_ONCE", 5)
    torch.testing.assert_close(covering.occlusion(request(), cells=4).maps, whole)
    sizes = [len(some) for some in covering._random_masks(12, 4, 0.5, images.shape[-2:], 0)]
    assert sizes == [5, 5, 2]


def test_the_class_predicted_for_the_clean_image_is_explained(linear):
    model, images = linear
    expected = tuple(model(images).argmax(1).tolist())
    for method in ("integrated_gradients", "smoothgrad", "occlusion", "rise"):
        assert visattn.explain(model, images, method).target == expected


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("integrated_gradients", {"steps": 0}, "steps"),
        ("smoothgrad", {"noise": -1.0}, "noise is a share"),
        ("occlusion", {"cells": 0}, "cells"),
        ("rise", {"share": 1.0}, "between 0 and 1"),
        ("rise", {"seed": 2**70}, "64 bits"),
    ],
)
def test_bad_options(linear, method, options, message):
    with pytest.raises(ValueError, match=message):
        visattn.explain(*linear, method, **options)

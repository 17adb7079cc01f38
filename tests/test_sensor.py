"""The glimpse sensor against a plain crop and resize."""

import numpy as np
import pytest
import torch

from tests.reference import hard as oracle
from visattn.hard import glimpse

PLACES = [(0.0, 0.0), (0.31, -0.47), (-1.0, -1.0), (1.0, 1.0), (-1.0, 0.6), (0.95, -0.2), (0.0, 1.0)]


@pytest.mark.parametrize(("size", "scales"), [(4, 1), (3, 2), (4, 3), (1, 2)])
@pytest.mark.parametrize(("height", "width"), [(12, 12), (9, 14), (15, 6)])
def test_equals_crop_and_resize(height, width, size, scales):
    images = torch.randn(2, 3, height, width, dtype=torch.float64)
    locations = torch.tensor(PLACES, dtype=torch.float64).repeat(2, 1, 1)
    locations[1] = locations[1].flip(0)
    seen = glimpse(images, locations, size=size, scales=scales)
    assert seen.shape == (2, len(PLACES), scales, 3, size, size)
    for image, places, patches in zip(images.numpy(), locations.numpy(), seen.numpy(), strict=True):
        for (x, y), patch in zip(places, patches, strict=True):
            np.testing.assert_allclose(patch, oracle.glimpse(image, x, y, size, scales), atol=1e-10)


@pytest.mark.parametrize(("left", "top"), [(0, 0), (5, 2), (-2, 3), (7, -1), (8, 6)])
def test_on_whole_pixels_it_is_a_copy(left, top):
    """Also where the patch hangs over the border: what is outside is zero."""
    image = torch.randn(1, 2, 8, 10)
    location = torch.tensor([[[(left + 2) * 2 / 10 - 1, (top + 2) * 2 / 8 - 1]]])
    seen = glimpse(image, location, size=4)[0, 0, 0]
    np.testing.assert_allclose(seen, oracle.crop(image[0].numpy(), left, top, 4), atol=1e-5)


def test_x_is_across_and_y_is_down():
    """One bright pixel in the upper right corner of a wide image."""
    image = torch.zeros(1, 1, 10, 20)
    image[..., 0, 19] = 1
    corners = torch.tensor([[[0.95, -0.9], [-0.9, 0.95], [0.95, 0.9], [-0.95, -0.9]]])
    assert glimpse(image, corners, size=1).flatten().tolist() == pytest.approx([1, 0, 0, 0], abs=1e-5)


def test_half_precision_still_finds_the_pixels_of_a_large_image():
    image = torch.zeros(1, 1, 2048, 2048, dtype=torch.bfloat16)
    image[..., 1000, 1301] = 1
    location = torch.tensor([[[1301.5 / 1024 - 1, 1000.5 / 1024 - 1]]])
    seen = glimpse(image, location, size=3).view(3, 3)
    assert seen.dtype == torch.bfloat16
    assert seen.tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]


def test_bad_settings_are_explained():
    for bad in ({"size": 0}, {"size": 2, "scales": 0}):
        with pytest.raises(ValueError, match="at least one"):
            glimpse(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 2), **bad)


def test_is_one_batched_grid_sample(monkeypatch):
    calls = []
    sample = torch.nn.functional.grid_sample
    monkeypatch.setattr(torch.nn.functional, "grid_sample", lambda *a, **k: calls.append(a[0].shape) or sample(*a, **k))
    glimpse(torch.randn(5, 1, 16, 16), torch.zeros(5, 7, 2), size=2, scales=3)
    assert calls == [(5, 1, 16, 16)]  # every image once, however many glimpses

"""Heatmaps in pieces equal those in one piece; what we compute ourselves is exact under autocast too."""

import pytest
import torch

import visattn
from tests.models import model_and_images
from tests.reference.heatmaps import rollout
from visattn.heatmaps.watch import exactness

SIZES = {
    "test_vit": {},
    "swin_tiny_patch4_window7_224": {"depths": (2,), "num_heads": (2,), "embed_dim": 16, "img_size": 56},  # shifted
}


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *(("test_vit", each) for each in ("attention", "rollout", "chefer", "grad_rollout", "legrad")),
        *(("swin_tiny_patch4_window7_224", each) for each in ("attention", "rollout", "chefer", "grad_rollout")),
    ],
)
def test_pieces_change_nothing(name, method, monkeypatch):
    model, images = model_and_images(name, number=1, **SIZES[name])
    images = images[..., : SIZES[name].get("img_size"), : SIZES[name].get("img_size")]
    monkeypatch.setattr(exactness, "PIECE", 2**40)
    whole = visattn.explain(model, images, method).raw
    monkeypatch.setattr(exactness, "PIECE", 1000)  # some rows
    torch.testing.assert_close(visattn.explain(model, images, method).raw, whole, rtol=1e-5, atol=1e-8)


def test_rollout_under_autocast_is_that_of_the_maps_under_autocast():
    model, images = model_and_images("test_vit", number=1)
    with torch.autocast("cpu", torch.bfloat16):
        e = visattn.explain(model, images, "rollout")
        with torch.no_grad(), visattn.capture(model) as maps:
            model(images)
    R = rollout.rollout([each[0].double().numpy() for each in maps.values()], prefix=1)
    expected = torch.from_numpy(rollout.readout(R, [0], 1)).float()
    torch.testing.assert_close(e.raw[0].flatten(), expected, rtol=1e-4, atol=1e-7)

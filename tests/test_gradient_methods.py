"""Methods on gradients of images and maps, with the usual backward pass and with a balanced one."""

import numpy as np
import pytest
import timm
import torch

import visattn
from tests.models import model_and_images
from tests.reference.heatmaps.fullgrad import fullgrad
from tests.tiers import mostly_slow
from visattn.heatmaps import METHODS
from visattn.heatmaps.balanced import balanced
from visattn.heatmaps.methods import cam
from visattn.heatmaps.methods import fullgrad as ours
from visattn.heatmaps.request import Request
from visattn.heatmaps.watch.inspection import inspection_copy

BALANCED = [name for name in METHODS if "balanced" in METHODS[name].options()]


def small_vit(**options):
    torch.manual_seed(0)
    model = timm.models.VisionTransformer(
        img_size=8, patch_size=4, embed_dim=4, depth=2, num_heads=2, mlp_ratio=2, num_classes=3, **options
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model.double(), torch.randn(1, 3, 8, 8, dtype=torch.float64)


def test_fullgrad_equals_the_oracle():
    model, image = small_vit(class_token=False, global_pool="avg")
    parameters = {name: p.detach().numpy() for name, p in model.named_parameters()}
    expected = fullgrad(image[0].numpy(), parameters, depth=2, heads=2)
    with inspection_copy(model) as own:
        found = ours.fullgrad(Request(own, image, torch.tensor([0])))
    assert found.layers == ("blocks.0", "blocks.1")
    np.testing.assert_allclose(found.maps[0].flatten().numpy(), expected, rtol=1e-6)


def test_maps_of_other_resolutions_keep_their_sums():
    coarse, fine = torch.rand(2, 3, 3), torch.rand(2, 12, 12)
    total = ours.added_up([coarse, fine])
    assert total.shape == fine.shape
    torch.testing.assert_close(total.sum((1, 2)), coarse.sum((1, 2)) + fine.sum((1, 2)), rtol=0.02, atol=0)


def test_image_times_gradient():
    model, image = small_vit()
    image = image.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(image)[0, 1], image)
    e = visattn.explain(model, image, "input_x_gradient", target=1)
    torch.testing.assert_close(e.raw, (image * gradient).sum(1).detach().clamp(min=0))


def test_every_method_on_gradients_may_be_balanced():
    by_gradients = {"input_gradient", "input_x_gradient", "chefer", "grad_rollout", "legrad", "attcat"}
    by_gradients |= {"tokentm", *cam.BY_GRADIENTS}
    assert by_gradients <= {*BALANCED}


@pytest.mark.parametrize(
    ("method", "name"),
    mostly_slow(
        [
            *((method, "test_vit") for method in BALANCED),
            ("chefer", "cait_xxs24_224"),
        ],  # talking heads behind the softmax
        *(("chefer", "test_vit"), ("gradcam", "test_vit"), ("attcat", "test_vit"), ("input_x_gradient", "test_vit")),
    ),
)
def test_balanced_gradients_are_used(method, name, monkeypatch):
    model, images = model_and_images(name, 1)
    runs = []
    monkeypatch.setattr(visattn.heatmaps.request, "balanced", lambda *a, **k: runs.append(a) or balanced(*a, **k))
    usual = visattn.explain(model, images, method, target=3)
    assert not runs
    changed = visattn.explain(model, images, method, target=3, balanced=True)
    assert runs
    assert changed.raw.max() > 0
    assert not torch.allclose(changed.raw, usual.raw, rtol=1e-3, atol=0)
    assert changed.probability == usual.probability


@pytest.mark.parametrize("method", ["gradcam", "sharp_gradcam", "attcat", "chefer", "legrad", "input_x_gradient"])
def test_a_probability_can_be_explained_with_balanced_gradients(method):
    """Its softmax is not attention: of two classes, the gradient of one is that of the logits times p (1 - p)."""
    model, images = model_and_images("test_vit", 1)
    model.reset_classifier(2)
    with torch.no_grad():
        p = visattn.explain(model, images, method, 0, of="probability", balanced=True)
        logits = visattn.explain(model, images, method, 0, versus=1, balanced=True)
    assert p.raw.max() > 0
    if method not in ("chefer", "legrad"):  # which are not linear in the gradient
        torch.testing.assert_close(p.heatmap, logits.heatmap, rtol=1e-3, atol=2e-3)


def test_what_hirescam_looks_at_is_not_orthogonal_to_its_gradient():
    model, image = small_vit()
    at_block = visattn.explain(model, image, "hirescam", layer="blocks.0").raw
    e = visattn.explain(model, image, "hirescam")
    assert e.layers == ("blocks.1.norm1",)
    assert at_block.max() < 1e-4 * e.raw.max()
    repaired = visattn.explain(model, image, "hirescam", balanced=True)
    assert repaired.layers == ("blocks.0",)
    assert repaired.raw.max() > 100 * at_block.max()
    with_mean = timm.create_model("test_resnet", num_classes=3)
    assert cam.look_at(with_mean, torch.rand(1, 3, 160, 160), "hirescam").name == "layer4"

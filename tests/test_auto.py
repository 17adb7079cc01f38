"""The method that is used if nobody names one."""

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

import visattn
from benchmarks.truth_table import winners
from tests.reference.heatmaps.sharp_gradcam import sharp_gradcam
from visattn.heatmaps import METHODS, look_at
from visattn.heatmaps.auto import CHOICES, KINDS, kind_of

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "truth.json"


@pytest.fixture(scope="module")
def models():
    def create(name, **options):
        torch.manual_seed(0)
        return timm.create_model(name, num_classes=5, **options).eval()

    swin = create(
        "swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=12, depths=(1, 1), num_heads=(2, 2)
    )
    return {
        "vision transformers": (create("test_vit"), torch.rand(2, 3, 160, 160)),
        "transformers with windows or stages": (swin, torch.rand(2, 3, 32, 32)),
        "convolutional networks": (create("test_resnet"), torch.rand(2, 3, 64, 64)),
        "models that take glimpses": (visattn.create_model("ram", num_classes=5, size=8), torch.rand(2, 1, 32, 32)),
    }  # fmt: skip


@pytest.mark.parametrize("kind", CHOICES)
def test_every_kind_of_model_gets_its_method(models, kind):
    model, x = models[kind]
    assert kind_of(model, x) == kind
    choice = CHOICES[kind][0]
    e = visattn.explain(model, x)
    assert (e.method, e.reason) == (choice.method, f"the best for {kind}, see docs/truth.md")
    named = visattn.explain(model, x, choice.method, of=choice.of, **choice.options)
    assert torch.equal(e.raw, named.raw)
    assert (e.of, e.target, named.reason) == (named.of, named.target, "")


def test_the_method_of_every_kind_is_the_winner_of_the_table():
    best = winners(json.loads(RESULTS.read_text()))
    assert [*CHOICES] == [kind for kind, _ in KINDS]
    assert {*best} == {*CHOICES} - {"models that take glimpses"}
    for kind, (name, _) in best.items():
        choice = CHOICES[kind][0]
        assert name == str(choice), kind
        assert not METHODS[choice.method].slow


def test_the_winner_is_best_on_the_mean_of_all_models_of_its_kind():
    def found(kind, **overall):
        rows = [{"name": name, "slow": name == "c", "overall": value} for name, value in overall.items()]
        return {"kind": kind, "rows": rows}

    models = {"1": found("x", a=0.5, b=0.4, c=0.9), "2": found("x", a=0.1, b=0.3, d=0.8), "3": found("y", a=0.2)}
    assert {kind: name for kind, (name, _) in winners({"models": models}).items()} == {"x": "b", "y": "a"}


def test_what_is_explained_may_still_be_chosen(models):
    model, x = models["convolutional networks"]
    assert visattn.explain(model, x, of="probability").of == "probability"
    assert visattn.explain(model, x, target=lambda out: out[:, 0]).of == "function"
    e = visattn.explain(model, x, target=3, versus=1)
    assert (e.target, e.versus) == ((3, 3), (1, 1))


def test_options_go_to_the_chosen_method(models):
    model, x = models["convolutional networks"]
    assert visattn.explain(model, x, layer="layer2").layers == ("layer2",)
    with pytest.raises(TypeError, match=r"method 'sharp_gradcam' has no option 'fusion'"):
        visattn.explain(model, x, fusion="max")


@pytest.mark.parametrize(("name", "size", "method"), [("test_vit", 160, "rollout"), ("test_resnet", 64, "eigencam")])
def test_models_without_classes(name, size, method):
    encoder = timm.create_model(name, num_classes=0)
    e = visattn.explain(encoder, torch.rand(1, 3, size, size))
    assert (e.method, e.target) == (method, None)
    assert e.reason == "the best for models without classes, see docs/truth.md"
    function = visattn.explain(encoder, torch.rand(1, 3, size, size), target=lambda features: features[:, 0])
    assert METHODS[function.method].of_class


def test_a_model_that_no_method_fits():
    flat = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    assert visattn.explain(flat, torch.rand(1, 3, 2, 2)).method == "input_x_gradient"
    encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 4), torch.nn.Unflatten(1, (2, 2)))
    with pytest.raises(ValueError, match=r"no method fits this Sequential \(rollout: .*; eigencam: "):
        visattn.explain(encoder, torch.rand(1, 3, 2, 2))


def test_auto_is_scored_and_written_like_any_other(models, tmp_path):
    model, x = models["convolutional networks"]
    found = visattn.evaluate(model, x, ["auto"], "srg", steps=2)
    assert found.methods[0] == "auto"
    named = visattn.evaluate(
        model, x, {"mine": {"method": "sharp_gradcam", "of": "log_probability", "balanced": True}}, "srg", steps=2
    )
    np.testing.assert_array_equal(found.values["srg"]["auto"], named.values["srg"]["mine"])
    visattn.explain(model, x).save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["method"], manifest["reason"][:8]) == ("sharp_gradcam", "the best")


def test_sharp_gradcam_equals_the_oracle(models):
    model, x = models["convolutional networks"]
    model, image = model.double(), x[:1].double().requires_grad_()
    e = visattn.explain(model, image, "sharp_gradcam", target=2)
    place = look_at(model, image)
    seen = {}
    handle = model.get_submodule(place.name).register_forward_hook(lambda _m, _a, out: seen.update(map=out))
    score = model(image)[0, 2]
    handle.remove()
    gradients = torch.autograd.grad(score, [seen["map"], image])
    arrays = [each[0].detach().numpy() for each in (seen["map"], gradients[0], image, gradients[1])]
    expected = sharp_gradcam(*arrays)
    assert expected.max() > 0
    np.testing.assert_allclose(e.raw[0].numpy(), expected, rtol=1e-4, atol=1e-6 * expected.max())
    assert e.layers == (place.name,)


def test_balanced_may_be_asked_for_where_it_always_is(models):
    model, x = models["vision transformers"]
    assert torch.equal(visattn.explain(model, x, balanced=True).raw, visattn.explain(model, x).raw)
    with pytest.raises(TypeError, match="has no option 'balanced'"):
        visattn.explain(model, x, balanced=False)


def test_the_method_that_auto_stands_for_is_shown_once(models):
    model, _ = models["convolutional networks"]
    found = visattn.examine(model, np.zeros((64, 64, 3), np.uint8), ["sharp_gradcam", "auto"])
    [heatmaps] = [each.heatmaps for each in found.findings]
    alone = visattn.examine(model, np.zeros((64, 64, 3), np.uint8))
    np.testing.assert_array_equal(heatmaps["sharp_gradcam"], alone.findings[0].heatmaps["sharp_gradcam"])
    assert not found.left_out


def test_attention_without_weights_is_no_obstacle():
    torch.manual_seed(0)
    linear = timm.create_model("efficientvit_b0", num_classes=5).eval()
    assert visattn.explain(linear, torch.rand(1, 3, 64, 64)).method == "sharp_gradcam"

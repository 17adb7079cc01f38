"""What a heatmap explains: a class, a number of it, a comparison, a function of the output, a direction of features."""

import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

import visattn
from tests.models import model_and_images
from visattn.cli import main
from visattn.data.preparation import Preparation
from visattn.heatmaps import METHODS
from visattn.heatmaps.aim import Aim
from visattn.opening import own_preparation

GRADIENTS = ("gradcam", "scorecam", "ablationcam", "fullgrad", "input_gradient", "chefer", "legrad")


@pytest.fixture(scope="module")
def vit():
    return model_and_images("test_vit")


def gradient(model, images, number):
    images = images.clone().requires_grad_()
    return torch.autograd.grad(number(model(images)).sum(), images)[0]


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({"target": 3}, lambda z: z[:, 3]),
        ({"target": 3, "of": "log_probability"}, lambda z: z.log_softmax(1)[:, 3]),
        ({"target": [3, 4], "of": "probability"}, lambda z: z.softmax(1)[[0, 1], [3, 4]]),
        ({"target": 3, "versus": 5}, lambda z: z[:, 3] - z[:, 5]),
        ({"target": 3, "versus": [5, 6], "of": "log_probability"}, lambda z: z[:, 3] - z[[0, 1], [5, 6]]),
        ({"target": 3, "versus": 5, "of": "probability"}, lambda z: z.softmax(1)[:, 3] - z.softmax(1)[:, 5]),
        ({"target": lambda z: z.square().sum(1)}, lambda z: z.square().sum(1)),
        ({"target": torch.arange(10.0)}, lambda z: torch.cosine_similarity(z, torch.arange(10.0)[None], 1)),
    ],
)
def test_the_number_that_is_differentiated(vit, options, number):
    model, images = vit
    e = visattn.explain(model, images, "input_gradient", **options)
    expected = gradient(model, images, number).abs().amax(1)
    torch.testing.assert_close(e.raw, expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("of", ["log_probability", "probability"])
@pytest.mark.parametrize("ahead", [1.0, 19.0, 40.0])
def test_a_class_that_is_certain_still_has_a_gradient(of, ahead):
    """Nothing is left of one minus a probability that is rounded to one."""
    scores = torch.tensor([[ahead, 0.0, -0.7], [0.3, ahead, -1.0]])
    target = torch.tensor([0, 1])
    single, double = (scores.to(dtype).requires_grad_() for dtype in (torch.float32, torch.float64))
    [found] = torch.autograd.grad(Aim(of).numbers(single, target).sum(), single)
    others = double.scatter(1, target[:, None], -torch.inf).logsumexp(1)
    own = double.gather(1, target[:, None])[:, 0]
    number = -torch.log1p(torch.exp(others - own))
    [expected] = torch.autograd.grad((number if of == "log_probability" else number.exp()).sum(), double)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)


def test_a_certain_model_has_a_heatmap():
    model, x = timm.create_model("test_resnet", num_classes=3).eval(), torch.rand(1, 3, 64, 64)
    plain = visattn.explain(model, x, of="log_probability").heatmap
    with torch.no_grad():
        scale = 30 / model(x)[0].topk(2).values.diff().abs()
        model.fc.weight *= scale
        model.fc.bias *= scale
    certain = visattn.explain(model, x)
    assert certain.probability == (1.0,)
    assert certain.heatmap.amax() == 1
    assert torch.corrcoef(torch.stack([certain.heatmap.flatten(), plain.flatten()]))[0, 1] > 0.5


def test_a_model_with_one_logit():
    model, images = model_and_images("test_resnet", 1)
    model.reset_classifier(1)
    e = visattn.explain(model, images, "input_gradient", of="probability")
    torch.testing.assert_close(e.raw, gradient(model, images, torch.sigmoid).abs().amax(1), rtol=1e-4, atol=1e-9)


class Detector(nn.Module):
    """Returns a dictionary for every image."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, stride=2)
        self.head = nn.Conv2d(4, 5, 1)

    def forward(self, x):
        found = self.head(self.stem(x).relu()).flatten(2).mT  # (B, places, 5)
        return [{"boxes": each[:, :4], "scores": each[:, 4].sigmoid()} for each in found]


def best(output):
    return torch.stack([each["scores"].max() for each in output])


def test_a_function_of_what_a_detector_returns():
    torch.manual_seed(0)
    model, images = Detector().eval(), torch.rand(2, 3, 32, 32)
    for method in ("input_gradient", "gradcam", "fullgrad"):
        e = visattn.explain(model, images, method, target=best)
        assert (e.of, e.target, e.probability, e.classes) == ("function", None, None, None)
        assert e.heatmap.amax() == 1
    images.requires_grad_()
    (expected,) = torch.autograd.grad(best(model(images)).sum(), images)
    e = visattn.explain(model, images.detach(), "input_gradient", target=best)
    torch.testing.assert_close(e.raw, expected.abs().amax(1))


@pytest.mark.parametrize("length", [1e-30, 1e30])
def test_only_the_direction_of_a_vector_matters(length):
    model, images = model_and_images("test_vit", 1)
    model.reset_classifier(0)
    vector = torch.rand(model.num_features)
    e, other = (visattn.explain(model, images, "gradcam", target=each) for each in (vector, vector * length))
    assert e.heatmap.max() > 0
    torch.testing.assert_close(other.heatmap, e.heatmap, rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", GRADIENTS)
def test_every_method_explains_features(method):
    model, images = model_and_images("test_vit", 1)
    model.reset_classifier(0)
    vector = torch.randn(model.num_features, generator=torch.Generator().manual_seed(1))
    e = visattn.explain(model, images, method, target=vector)
    assert (e.of, e.target) == ("cosine", None)
    opposite = visattn.explain(model, images, method, target=(-vector).numpy())
    if method in ("input_gradient", "ablationcam"):  # which take absolute values, and ratios
        torch.testing.assert_close(e.raw, opposite.raw)
    else:
        assert not torch.allclose(e.raw, opposite.raw)


def test_a_model_without_classes_needs_none_for_rollout():
    model = timm.create_model("vit_small_patch14_reg4_dinov2", num_classes=0, img_size=56, depth=2)
    assert visattn.explain(model, torch.rand(1, 3, 56, 56), "rollout").heatmap.amax() == 1
    with pytest.raises(ValueError, match="a function as the target"):
        visattn.explain(model, torch.rand(1, 3, 56, 56), "chefer")


def test_score_and_ablation_cam_compare_numbers_that_are_explained(vit):
    model, images = vit
    for method in ("scorecam", "ablationcam"):
        plain, compared = (visattn.explain(model, images[:1], method, 3, **o).raw for o in ({}, {"versus": 4}))
        assert not torch.allclose(plain, compared)
        by_function = visattn.explain(model, images[:1], method, lambda z: z[:, 3] - z[:, 4]).raw
        torch.testing.assert_close(compared, by_function, rtol=1e-3, atol=1e-6)


def bad(**options):
    model, images = model_and_images("test_resnet", 2, size=(64, 64))
    return lambda: visattn.explain(model, images, "gradcam", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"of": "logits"}, "did you mean 'logit'"),
        ({"target": 3, "versus": 3}, "image 0 would be compared with the class that it explains"),
        ({"target": lambda z: z}, r"one number per image, a tensor \(B,\), got torch.float32 \(2, 10\)"),
        ({"target": lambda z: z.mean()}, r"got torch.float32 \(\)"),
        ({"target": lambda z: z[:1, 0]}, "1 numbers to explain for 2 images"),
        ({"target": lambda z: z[:, 0], "versus": 1}, "of and versus are about classes"),
        ({"target": torch.rand(7)}, r"compared with features \(B, 7\), but the model returns \(2, 10\)"),
        ({"target": torch.rand(3, 10)}, "3 target vectors for 2 images"),
        ({"target": torch.zeros(10)}, "has no direction"),
        ({"target": lambda z: z.detach()[:, 0]}, "without gradients"),
    ],
)
def test_bad_targets(options, message):
    with pytest.raises(ValueError, match=message):
        bad(**options)()


def test_on_the_command_line(tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), "uint8")).save(tmp_path / "a.png")
    model = timm.create_model("test_vit", num_classes=3)
    visattn.save_model(model, tmp_path / "model", classes=["cat", "dog", "cow"])
    flags = ["--weights", str(tmp_path / "model"), "--image", str(tmp_path / "a.png"), "--out", str(tmp_path / "out")]
    asked = ["--method", "chefer,rollout", "--target", "dog", "--versus", "cow", "--of", "log_probability"]
    assert main(["heatmap", *flags, *asked]) == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    (image,) = manifest["images"]
    assert (image["target"], image["versus"]) == (1, 2)
    assert "dog" in (tmp_path / "out" / "index.html").read_text()
    assert "rather than cow" in (tmp_path / "out" / "index.html").read_text()


@pytest.mark.parametrize(
    "method", [name for name in METHODS if METHODS[name].signed and name not in ("rise", "attcat")]
)
def test_signed_maps_keep_their_sign(method):
    model, images = model_and_images("test_resnet", 1)
    e = visattn.explain(model, images, method, 3, versus=4, signed=True)
    turned = visattn.explain(model, images, method, 4, versus=3, signed=True)
    torch.testing.assert_close(e.heatmap, -turned.heatmap, rtol=1e-3, atol=1e-3)
    assert e.raw.min() < 0 < e.raw.max()
    assert e.heatmap.abs().max() == 1
    unsigned = visattn.explain(model, images, method, 3, versus=4)
    torch.testing.assert_close(unsigned.raw, e.raw.clamp(min=0))
    picture, worst = np.asarray(e.overlay(1.0)[0]), int(e.heatmap[0].argmin())
    red, _, blue = picture.reshape(-1, 3)[worst]
    assert (blue > red) == (e.heatmap.min() < 0)


def test_a_map_without_sign_is_refused(vit):
    with pytest.raises(ValueError, match="'rollout' have no sign: choose one of attcat, fullgrad"):
        visattn.explain(*vit, "rollout", signed=True)


def test_all_class_methods_are_covered():
    assert {*GRADIENTS} <= {name for name in METHODS if METHODS[name].of_class}


def compared_folder(folder):
    """Images of which a network says different things, and what it says."""
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=3).eval()
    images = [np.random.default_rng(n).integers(0, 60 * (n + 1), (40, 40, 3)).astype(np.uint8) for n in range(4)]
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number}.png")
    with torch.no_grad():  # on average no class is likelier, so that none is the likeliest for all
        model.fc.bias -= model(own_preparation(model).batch(images)).mean(0)
    visattn.save_model(model, folder / "m", classes=["cat", "dog", "cow"])
    return [each.labels[0] for each in visattn.predict(folder / "m", [folder / f"{n}.png" for n in range(4)])]


def test_an_image_of_the_compared_class_costs_the_others_nothing(elsewhere, capsys):
    answers = compared_folder(elsewhere)
    assert len(set(answers)) > 1
    rarest = min(set(answers), key=answers.count)
    command = ["heatmap", "--weights", "m", "--image", *(f"{number}.png" for number in range(4)), "--out", "out"]
    assert main([*command, "--method", "gradcam,layercam,eigencam", "--versus", rarest]) == 1
    said = capsys.readouterr().err
    for number, answer in enumerate(answers):
        assert (elsewhere / "out" / f"{number}_gradcam.png").is_file() == (answer != rarest)
        assert (elsewhere / "out" / f"{number}_eigencam.png").is_file()  # is not about a class
        assert (f"{number}.png, layercam: it would be compared with the class that it explains" in said) == (
            answer == rarest
        )
    manifest = json.loads((elsewhere / "out" / "manifest.json").read_text())
    assert len(manifest["images"]) == 4
    assert len(manifest["left_out"]) == 2 * answers.count(rarest)


def test_an_image_without_any_heatmap_is_left_out(elsewhere, capsys):
    answers = compared_folder(elsewhere)
    command = ["heatmap", "--weights", "m", "--image", *(f"{number}.png" for number in range(4)), "--method", "gradcam"]
    assert main([*command, "--versus", answers[0], "--out", "out"]) == 1
    manifest = json.loads((elsewhere / "out" / "manifest.json").read_text())
    assert len(manifest["images"]) == 4 - answers.count(answers[0])
    assert main([*command, "--target", "cat", "--versus", "cat", "--out", "none"]) == 2
    assert "gradcam: it would be compared with the class that it explains" in capsys.readouterr().err
    assert not (elsewhere / "none").exists()


def test_what_one_image_does_to_a_method_does_not_concern_the_others():
    class Fragile(nn.Module):
        """Its gradient is infinite for dark images."""

        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, 2)
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(self.conv(x).mean((2, 3))) + x.abs().mean((1, 2, 3)).sqrt()[:, None]

    images = [np.full((32, 32, 3), value, np.uint8) for value in (0, 100, 200)]
    prepared = Preparation((3, 32, 32), mean=(0, 0, 0), std=(1, 1, 1))
    found = visattn.examine(Fragile(), images, ["input_gradient", "center"], preparation=prepared)
    assert [sorted(each.heatmaps) for each in found.findings] == [["center"], *[["center", "input_gradient"]] * 2]
    ((what, why),) = found.left_out
    assert what == "image 0, input_gradient"
    assert "not finite" in why


def test_numbers_in_a_list_are_a_vector():
    model, x = timm.create_model("test_resnet", num_classes=0).eval(), torch.rand(1, 3, 64, 64)
    vector = torch.linspace(-1, 1, model.num_features)
    named, listed = (visattn.explain(model, x, "gradcam", target=each) for each in (vector, vector.tolist()))
    assert listed.of == "cosine"
    torch.testing.assert_close(listed.raw, named.raw)


def test_a_method_without_classes_compares_none(vit):
    model, x = vit
    e = visattn.explain(model, x, "rollout", target=1, versus=2)
    assert e.versus is None


class Foreign(torch.Tensor):
    """Images of another library."""


@pytest.mark.parametrize("method", ["auto", "fullgrad", "rollout"])
def test_images_of_another_library(vit, method):
    model, x = vit
    e = visattn.explain(model, x.as_subclass(Foreign), method)
    assert torch.equal(e.raw, visattn.explain(model, x, method).raw)
    assert type(e.heatmap) is torch.Tensor

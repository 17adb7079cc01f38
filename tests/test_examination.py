"""``visattn.examine``: what the command does, in one line of Python."""

import dataclasses
import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import visattn
import visattn.report.folder
from visattn.cli import main
from visattn.heatmaps import attention_heads, fitting_methods
from visattn.models.saving.saved import Trained
from visattn.opening import own_preparation


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return timm.create_model("test_vit", num_classes=2)


def pixels(seed=0):
    return np.random.default_rng(seed).integers(0, 256, (40, 60, 3), np.uint8)


def test_heatmaps_and_answers_of_every_image(model):
    found = visattn.examine(
        model, [pixels(0), Image.fromarray(pixels(1))], ["rollout", "chefer"], classes=["cat", "dog"]
    )
    assert (found.number, found.left_out, found.page) == (2, (), None)
    first, second = found.findings
    assert list(first.heatmaps) == ["rollout", "chefer"]
    assert first.heatmaps["rollout"].shape == (160, 160)
    assert first.said["class"] == ["cat", "dog"][first.said["predicted"]]
    answer = f"{first.said['class']} {first.said['probability']:.0%}"
    assert [view.target for view in first.subject.views] == ["", answer]  # rollout is of no class
    assert not np.array_equal(first.heatmaps["rollout"], second.heatmaps["rollout"])


def test_the_same_as_explain(model):
    x = own_preparation(model).batch([pixels()])
    expected = visattn.explain(model, x, "chefer", 1).heatmap[0].numpy()
    (finding,) = visattn.examine(model, pixels(), "chefer", target=1).findings
    np.testing.assert_array_equal(finding.heatmaps["chefer"], expected)


def test_balanced_and_signed_as_explain(model):
    x = own_preparation(model).batch([pixels()])
    found = visattn.examine(model, pixels(), ["attcat", "rollout"], target=1, balanced=True, signed=True)
    (finding,) = found.findings
    expected = visattn.explain(model, x, "attcat", 1, balanced=True, signed=True).heatmap[0].numpy()
    np.testing.assert_array_equal(finding.heatmaps["attcat"], expected)
    assert [view.signed for view in finding.subject.views] == [True, False]
    with pytest.raises(ValueError, match="the maps of 'rollout' and 'chefer' have no sign"):
        visattn.examine(model, pixels(), ["rollout", "chefer"], signed=True)
    assert finding.subject.views[0].heatmap.min() < 0


@pytest.mark.slow
def test_the_same_as_the_command(model, elsewhere, capsys):
    visattn.save_model(model, "model", classes=["cat", "dog"])
    for number in range(3):
        Image.fromarray(pixels(number)).save(f"{number}.png")
    options = ["--method", "rollout", "--target", "dog", "--layers", "0,1", "--out", "command"]
    assert main(["heatmap", "--weights", "model", "--image", "0.png", "1.png", "2.png", *options]) == 0
    capsys.readouterr()
    found = visattn.examine(
        "model", ["0.png", "1.png", "2.png"], "rollout", target="dog", layers=[0, 1], out="function", batch_size=2
    )
    assert found.page == elsewhere.joinpath("function/index.html").relative_to(elsewhere)
    assert found.number == 3
    names = sorted(path.name for path in elsewhere.joinpath("command").iterdir())
    assert names == sorted(path.name for path in elsewhere.joinpath("function").iterdir())
    manifests = [json.loads(elsewhere.joinpath(out, "manifest.json").read_text()) for out in ("command", "function")]
    assert [each["files"] for each in manifests[0]["images"]] == [each["files"] for each in manifests[1]["images"]]
    maps = [np.load(elsewhere / out / "1_rollout.npy") for out in ("command", "function")]
    np.testing.assert_allclose(*maps, atol=1e-6)


def test_the_model_is_left_as_it_was(model):
    model.train()
    model.blocks[1].eval()
    before = {name: module.training for name, module in model.named_modules()}
    try:
        visattn.examine(model, pixels(), "gradcam")
        assert {name: module.training for name, module in model.named_modules()} == before
    finally:
        model.train()


def test_what_is_left_out_is_said_and_kept(model, elsewhere):
    elsewhere.joinpath("broken.png").write_bytes(b"no image")
    Image.fromarray(pixels()).save("good.png")
    told = []
    found = visattn.examine(
        model, ["broken.png", "good.png", "missing.png"], ["rollout", "gates"], note=lambda *each: told.append(each)
    )
    assert tuple(told) == found.left_out
    assert [what for what, _ in found.left_out] == ["missing.png", "gates", "broken.png"]
    assert found.number == 1


def test_progress_can_be_shown(model):
    seen = []

    def track(images):
        for image in images:
            seen.append(image.shape)
            yield image

    visattn.examine(model, [pixels(), pixels(1)], "rollout", track=track)
    assert seen == [(40, 60, 3)] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": "rolout"}, "did you mean 'rollout'"),
        ({"out": ""}, "the name of the folder is empty"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"device": "cpu"}, "move this model yourself"),
        ({"target": "cow"}, "cannot be found by name"),
        ({"layers": [9]}, "has 6 attention layers"),
        ({"model": 5}, "the model must be a network"),
        ({"model": "nowhere"}, "there is no file and no folder 'nowhere'"),
        ({"images": 5}, "an image must be a file"),
        ({"model": Trained(torch.nn.Linear(2, 2), "linear", "none")}, "does not state its preprocessing"),
    ],
)
def test_bad_input(model, change, message):
    arguments = {"model": model, "images": pixels(), "methods": "rollout", **change}
    with pytest.raises((ValueError, TypeError), match=message):
        visattn.examine(**arguments)


@pytest.mark.usefixtures("elsewhere")
def test_images_are_prepared_as_they_are_told_to_be(model):
    own = own_preparation(model)
    darker = dataclasses.replace(own, mean=(0.9, 0.9, 0.9))
    visattn.save_model(model, "model", classes=["cat", "dog"])
    maps = {}
    for name, preparation in (("own", own), ("darker", darker)):
        expected = visattn.explain(model, preparation.batch([pixels()]), "chefer", 1).heatmap[0].numpy()
        for source in (model, "model"):
            (finding,) = visattn.examine(source, pixels(), "chefer", target=1, preparation=preparation).findings
            np.testing.assert_array_equal(finding.heatmaps["chefer"], expected)
        maps[name] = expected
    assert np.abs(maps["own"] - maps["darker"]).max() > 0.01


def test_every_image_has_its_own_gates():
    torch.manual_seed(0)
    attached = visattn.attach(timm.create_model("test_resnet", num_classes=2), "se", at="layer2", init="paper")
    found = visattn.examine(attached, [pixels(0), pixels(1)], "gates").findings
    x = own_preparation(attached).batch([pixels(0), pixels(1)])
    expected = visattn.explain(attached, x, "gates").extra["channels"]["layer2"].numpy()
    for finding, weights in zip(found, expected, strict=True):
        (channels,) = finding.subject.channels
        np.testing.assert_allclose(channels.weights, weights, rtol=1e-5)
    assert not np.allclose(*expected)


def test_only_a_few_images_have_the_relations_of_their_patches(model, monkeypatch):
    monkeypatch.setattr(visattn.examination, "WITH_PATCHES", 2)
    monkeypatch.setattr(visattn.heatmaps.findings, "LAYERS", 3)
    for number, layers in ((2, ["blocks.0.attn", "blocks.2.attn", "blocks.5.attn"]), (3, [])):
        for finding in visattn.examine(model, [pixels(seed) for seed in range(number)], "rollout").findings:
            assert [relation.name for relation in finding.subject.relations] == layers


def test_the_page_shows_the_first_images_and_the_folder_has_all(model, elsewhere, monkeypatch):
    monkeypatch.setattr(visattn.report.folder, "ON_SHEETS", 1)
    for number in range(3):
        Image.fromarray(pixels(number)).save(f"{number}.png")
    found = visattn.examine(model, ["0.png", "1.png", "2.png"], "rollout", out="out")
    assert (found.number, [finding.subject.name for finding in found.findings]) == (3, ["0.png"])
    manifest = json.loads(elsewhere.joinpath("out/manifest.json").read_text())
    assert [image["file"] for image in manifest["images"]] == ["0.png", "1.png", "2.png"]
    assert manifest["methods"]["rollout"]["layers"] == [f"blocks.{number}.attn" for number in range(6)]


def test_one_layer_and_one_head_need_no_list(model):
    for layers, heads in (("blocks.0.attn", 1), (["blocks.0.attn"], [1])):
        (finding,) = visattn.examine(model, pixels(), {"rollout"}, layers=layers, heads=heads).findings
        assert list(finding.heatmaps) == ["rollout"]
        one = attention_heads(model, torch.zeros(1, 3, 160, 160), layers, heads)
        assert list(one) == [("blocks.0.attn", 1)]
    assert fitting_methods(model, None, "rollout") == ["rollout"]


def test_one_class_has_no_probability():
    (finding,) = visattn.examine(timm.create_model("test_resnet", num_classes=1), pixels(), "eigencam").findings
    assert (finding.said["target"], finding.said["probability"], finding.said["predicted_probability"]) == (
        0, None, None,
    )  # fmt: skip


@pytest.mark.usefixtures("elsewhere")
def test_a_folder_that_was_never_finished_can_be_written_to_again(model):
    (finding,) = visattn.examine(model, pixels(), "rollout").findings
    visattn.report.folder.HeatmapFolder("out", ["rollout"]).add("a.png", finding)  # and then the process was killed
    found = visattn.examine(model, pixels(), "rollout", out="out")
    assert found.page is not None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_models_of_other_precisions(dtype):
    model = timm.create_model("test_resnet", num_classes=2).to(dtype)
    found = visattn.examine(model, np.zeros((64, 64, 3), np.uint8), "gradcam")
    assert list(found.findings[0].heatmaps) == ["gradcam"]

"""``visattn.evaluate`` and ``visattn evaluate``: tables, files, the page, and what is left out."""

import csv
import dataclasses
import json
import re

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

import visattn
from visattn.cli import main
from visattn.data.preparation import Preparation
from visattn.scoring import evaluate
from visattn.scoring.metrics import METRICS, chosen_metrics
from visattn.scoring.sanity import Cost, Meter, randomisation, similarity
from visattn.scoring.statistics import bootstrap


class Spots(nn.Module):
    """Says where there is most light: left or right; its gradient is the truth."""

    num_classes = 2

    def __init__(self):
        super().__init__()
        side = torch.linspace(-1, 1, 16).expand(1, 1, 16, 16)
        self.weight = nn.Parameter(torch.cat([-side, side]).repeat(1, 3, 1, 1))

    def forward(self, x):
        return torch.nn.functional.conv2d(x, self.weight)[..., 0, 0]


def spots(number=12):
    """A bright disk somewhere on the left or on the right, and its mask."""
    random = np.random.default_rng(0)
    images, masks = np.zeros((number, 3, 16, 16), np.float32), np.zeros((number, 16, 16), bool)
    for i in range(number):
        row, column = random.integers(2, 11), random.integers(1, 4) + 8 * (i % 2)
        masks[i, row : row + 3, column : column + 3] = True
        images[i, :, masks[i]] = 1
    return torch.from_numpy(images), torch.from_numpy(masks)


@pytest.fixture(scope="module")
def found():
    images, masks = spots()
    return evaluate(
        Spots(),
        images,
        ["input_gradient"],
        "all",
        masks=masks,
        steps=4,
        preparation=Preparation((3, 16, 16), (0.0,) * 3, (1.0,) * 3),
    )


def test_edges_in_another_default_precision():
    model, images = timm.create_model("test_resnet").eval(), torch.rand(1, 3, 32, 32)
    expected = visattn.explain(model, images, "edge").heatmap
    try:
        torch.set_default_dtype(torch.float64)
        found = visattn.explain(model, images, "edge").heatmap
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, expected)


def test_every_score_is_there(found):
    assert list(found.values) == list(METRICS)
    for name, values in found.values.items():
        assert set(values) == {"input_gradient", "random", "center", "edge"}
        for each in values.values():
            assert np.isfinite(each).all(), name
            assert each.shape == (12,)
    assert found.agreement.shape == (4, 4)
    np.testing.assert_allclose(np.diag(found.agreement), 1, atol=1e-5)
    assert found.left_out == ()


def test_the_edge_of_the_only_spot_is_found(found):
    """Here the baseline that sees the image is right, and the gradient, which is the same everywhere, is not."""
    assert found.interval("energy", "edge").mean > 0.35 > 0.1 > found.interval("energy", "random").mean
    assert found.better("energy", "edge") is False  # it is what others are compared with
    assert found.interval("srg", "edge").mean > found.interval("srg", "random").mean
    assert found.interval("randomisation", "edge").mean == pytest.approx(1, abs=1e-5)  # knows nothing of the weights
    assert found.interval("other_class", "random").mean == pytest.approx(1, abs=1e-5)
    assert found.interval("passes", "edge").mean < found.interval("passes", "input_gradient").mean + 1


def test_differences_are_paired_and_signed(found):
    own, other = found.values["drop"]["edge"], found.values["drop"]["random"]
    assert found.against("drop", "edge", "random") == bootstrap(other - own)  # less drop is better
    own, other = found.values["srg"]["edge"], found.values["srg"]["random"]
    assert found.against("srg", "edge", "random") == bootstrap(own - other)


def test_bootstrap():
    values = np.random.default_rng(0).normal(2, 3, 400)
    interval = bootstrap(values)
    error = values.std() / 20
    assert interval.mean == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - 1.96 * error, abs=0.2 * error)
    assert interval.high == pytest.approx(values.mean() + 1.96 * error, abs=0.2 * error)
    assert bootstrap(np.full(5, 0.25)) == (0.25, 0.25, 0.25)


def test_no_curves_of_an_earlier_evaluation_stay(found, tmp_path):
    found.save(tmp_path / "out")
    dataclasses.replace(found, curves={}).save(tmp_path / "out")
    assert not (tmp_path / "out" / "curves.png").exists()


def test_files(found, tmp_path):
    page = found.save(tmp_path / "out")
    assert page == tmp_path / "out" / "index.html"
    content = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert content["made_by"] == "visattn evaluate"
    assert content["settings"]["fill"] == "blur"
    np.testing.assert_allclose(content["values"]["srg"]["edge"], found.values["srg"]["edge"], rtol=1e-6)
    with (tmp_path / "out" / "scores.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 4 * len(METRICS)
    row = next(row for row in rows if (row["method"], row["metric"]) == ("edge", "srg"))
    assert float(row["mean"]) == pytest.approx(found.interval("srg", "edge").mean)
    assert float(row["over_random_low"]) == pytest.approx(found.against("srg", "edge", "random").low)
    assert row["over_edge_mean"] == ""
    with Image.open(tmp_path / "out" / "curves.png") as picture:
        assert min(picture.size) > 200
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)[1])
    assert [row["method"] for row in data["rows"]] == found.ranked
    assert len(data["rows"][0]["best"]) == 3
    best = float(data["rows"][0]["best"][0]["said"].split()[-1])
    worst = float(data["rows"][0]["worst"][0]["said"].split()[-1])
    assert best == pytest.approx(found.values["srg"][found.ranked[0]].max(), abs=1e-3)
    assert worst == pytest.approx(found.values["srg"][found.ranked[0]].min(), abs=1e-3)
    found.save(tmp_path / "out")  # again
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="visattn evaluate did not write"):
        found.save(tmp_path / "other")


def test_the_table_in_words(found):
    lines = str(found).splitlines()
    assert lines[0].split()[:2] == ["method", "srg↑"]
    assert lines[1].split()[0] == found.best("srg")
    assert "images 12" in lines[-1]


def test_the_same_again(found):
    images, masks = spots()
    again = evaluate(Spots(), images, "input_gradient", ["srg", "energy"], masks=masks, steps=4)
    for name in ("srg", "energy"):
        for method, values in again.values[name].items():
            np.testing.assert_array_equal(values, found.values[name][method])


def test_what_cannot_be_done_is_left_out_and_said():
    said = []
    found = evaluate(Spots(), spots()[0], ["rollout", "edge", "input_gradient"], "all", steps=2,
                     note=lambda what, why: said.append((what, why)))  # fmt: skip
    assert found.methods == ("input_gradient", "random", "center", "edge")
    assert found.left_out == tuple(said)
    reasons = dict(said)
    assert "no attention between tokens" in reasons["rollout"]
    assert "what black is" in reasons["positive, negative"]
    assert "where the objects are" in reasons["pointing, energy, mass, rank, iou"]
    assert "pointing" not in found.values


def test_what_was_left_out_stands_below_the_table():
    found = evaluate(Spots(), spots()[0], ["rollout", "input_gradient"], "srg", steps=2)
    assert "left out: rollout (does not fit: " in str(found)


def test_one_image_proves_nothing(tmp_path):
    found = evaluate(Spots(), spots(1)[0], "input_gradient", "srg", steps=2)
    assert not found.better("srg", "input_gradient")
    assert str(found).endswith("too few images to say what is better than chance")
    assert "*" not in str(found)
    assert str(found.interval("srg", "input_gradient")).endswith("(one image)")
    found.save(tmp_path / "scores")
    rows = json.loads((tmp_path / "scores" / "scores.json").read_text())["scores"]
    assert {row["low"] for row in rows} == {None}


def test_what_could_not_be_scored_is_not_compared_with():
    found = evaluate(Spots(), 1e30 * spots()[0], "input_gradient", "srg", steps=2)
    assert "edge" not in found.methods
    assert "* better than random, center (" in str(found)


def test_random_weights_can_be_differentiated_in_inference_mode():
    model, images = Spots(), spots(2)[0]
    with torch.inference_mode():
        found = evaluate(model, images, "input_gradient", "randomisation")
    assert found.values["randomisation"]["input_gradient"].shape == (2,)


def test_the_bundled_digits_come_before_a_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    model = timm.create_model("test_resnet", num_classes=10)
    found = evaluate(model, "digits", "edge", "pointing", number=2)
    assert found.names == ("digit 0", "digit 1")
    with pytest.raises(ValueError, match="no images to score"):
        evaluate(model, "./digits", "edge", "srg")


def test_metrics_by_kind():
    assert chosen_metrics("localisation")[0] == "pointing"
    assert chosen_metrics(["all"]) == list(METRICS)


@pytest.mark.parametrize("metrics", [["gridpg", "pointing", "srg"], ["localisation", "srg"]])
def test_metrics_that_cannot_be_computed_are_left_out_however_they_were_named(metrics):
    told = []
    model = timm.create_model("test_resnet", num_classes=10)
    images = torch.rand(2, 3, 64, 64)
    found = evaluate(model, images, "edge", metrics, note=lambda what, why: told.append(f"{what}: {why}"))
    assert set(found.values) == {"srg"}
    assert any(line.startswith("pointing") and "where the objects are" in line for line in told)
    assert any(line.startswith("gridpg: no mosaics") for line in told)


def test_the_live_model_is_not_touched_by_random_weights():
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=4).eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    images, target = torch.rand(2, 3, 64, 64), torch.tensor([0, 1])
    seen = []

    def explainer(given, x, y):
        seen.append(given)
        return visattn.explain(given, x, "gradcam", y).raw

    found = randomisation(model, images, target, explainer, stages=3)
    assert found.shape == (3, 2)
    assert (found < 0.99).any()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    ruined = seen[-1].state_dict()
    assert not any(torch.equal(before[key], ruined[key]) for key in before if key.endswith("conv1.weight"))


def test_rank_correlation_is_that_of_scipy():
    from scipy.stats import spearmanr

    random = np.random.default_rng(0)
    first, second = random.integers(0, 5, (3, 6, 7)), random.integers(0, 50, (3, 6, 7))
    found = similarity(torch.from_numpy(first).float(), torch.from_numpy(second).float())
    wanted = [spearmanr(a.ravel(), b.ravel()).statistic for a, b in zip(first, second, strict=True)]
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize(("method", "least", "most"), [("edge", 1, 2), ("gradcam", 1.5, 2), ("ablationcam", 20, 400)])
def test_passes_are_counted_in_the_copies_too(method, least, most):
    model, cost = timm.create_model("test_resnet", num_classes=4), Cost()
    with Meter(model) as meter, meter.measuring(cost, 2):
        visattn.explain(meter.model, torch.rand(2, 3, 64, 64), method)
    assert least <= cost.passes / 2 <= most
    assert not model._forward_pre_hooks
    assert not meter.model._forward_pre_hooks


# ---- files, masks and the command


@pytest.fixture
def photographs(tmp_path, monkeypatch):
    """Images of two classes, masks of most of them, and a model."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    visattn.save_model(timm.create_model("test_resnet", num_classes=2), "model", classes=["left", "right"])
    for folder in ("photographs", "masks"):
        (tmp_path / folder).mkdir()
    random = np.random.default_rng(0)
    for number in range(4):
        Image.fromarray(random.integers(0, 256, (90, 70, 3), np.uint8)).save(f"photographs/{number}.png")
        if number < 3:
            mask = np.zeros((90, 70), np.uint8)
            mask[20 + 10 * number : 60, 30:50] = 255
            Image.fromarray(mask).save(f"masks/{number}.png")
    return tmp_path


def test_command(photographs, capsys):
    line = "evaluate --weights model --data photographs --masks masks --methods gradcam --metrics srg,energy --steps 2"
    assert main([*line.split(), "--out", "out"]) == 1  # one image has no mask
    said = capsys.readouterr()
    assert "3.png: there is no mask of its name" in said.err
    assert said.out.splitlines()[-1] == str(photographs.relative_to(photographs) / "out" / "index.html")
    content = json.loads((photographs / "out" / "scores.json").read_text())
    assert [each["name"] for each in content["images"]] == [f"photographs/{number}.png" for number in range(3)]
    assert set(content["values"]) == {"srg", "energy"}
    assert set(content["methods"]) == {"gradcam", "random", "center", "edge"}


def test_the_same_from_python(photographs):
    line = "evaluate --weights model --data photographs --methods gradcam --metrics srg --steps 2 --number 2 --out out"
    assert main(line.split()) == 0
    content = json.loads((photographs / "out" / "scores.json").read_text())
    found = visattn.evaluate("model", "photographs", "gradcam", "srg", steps=2, number=2)
    np.testing.assert_allclose(content["values"]["srg"]["gradcam"], found.values["srg"]["gradcam"], rtol=1e-6)
    assert [each["name"] for each in content["images"]] == ["photographs/0.png", "photographs/3.png"]


def test_an_image_that_is_named_twice_counts_once(photographs):
    (photographs / "again").symlink_to("photographs")
    (photographs / "hard.png").hardlink_to(photographs / "photographs" / "0.png")
    data = ["photographs", "photographs", "again", "photographs/1.png", "hard.png"]
    found = visattn.evaluate("model", data, "gradcam", "srg", steps=2)
    assert found.names == tuple(f"photographs/{number}.png" for number in range(4))
    assert len(visattn.examine("model", ["photographs/0.png", "hard.png"], "gradcam").findings) == 1
    assert len(visattn.predict("model", ["photographs/0.png", "hard.png"])) == 2  # an answer for everything in a list


@pytest.mark.slow
def test_balanced_gradients_are_scored(photographs):
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=2)
    visattn.save_model(model, "vit")
    line = "evaluate --weights vit --data photographs --methods input_x_gradient --metrics srg --steps 2 --out out"
    assert main([*line.split(), "--balanced"]) == 0
    assert json.loads((photographs / "out" / "scores.json").read_text())["settings"]["balanced"]
    image = torch.rand(1, 3, 160, 160)
    usual, balanced = (
        visattn.evaluate(model, image, ["chefer", "rollout"], "srg", steps=1, balanced=each) for each in (False, True)
    )
    assert not np.array_equal(usual.heatmaps["chefer"], balanced.heatmaps["chefer"])
    np.testing.assert_array_equal(usual.heatmaps["rollout"], balanced.heatmaps["rollout"])


def test_scores_within_the_images_are_not_read_as_images(photographs):
    line = "evaluate --weights model --data photographs --methods edge --metrics srg --steps 1 --out photographs/scores"
    for _ in range(2):
        assert main(line.split()) == 0
    content = json.loads((photographs / "photographs" / "scores" / "scores.json").read_text())
    assert len(content["images"]) == 4


def test_digits_have_masks():
    torch.manual_seed(0)
    found = evaluate(timm.create_model("test_resnet", num_classes=10), "digits", "gradcam", "pointing", number=3)
    assert found.values["pointing"]["gradcam"].shape == (3,)
    assert found.names == ("digit 0", "digit 1", "digit 2")


# ---- one picture


def test_one_picture_in_words():
    """A true heatmap of a spot: without it the answer is a coin toss; without as much elsewhere it stays."""
    images, masks = spots(4)
    model, share = Spots(), float(masks[0].float().mean())
    explanation = visattn.explain(model, images, "edge")
    true = dataclasses.replace(explanation, raw=masks.float())
    found = visattn.score(true, model, images, share=share, fill="mean")
    assert true.score(model, images, share=share, fill="mean") == found
    for each in found:
        assert each.before > 0.95
        assert each.without_brightest == pytest.approx(0.5)
        assert each.without_random > 0.9
        assert each.srg > 0.1
        assert str(each) == (
            f"removing the brightest 3.5 % lowers the answer from {each.before:.0%} to 50 %; ".replace("% to", " % to")
            + f"a random 3.5 %: {100 * each.without_random:.0f} %"
        )
    for each in visattn.score(dataclasses.replace(explanation, raw=-masks.float()), model, images, fill="mean"):
        assert each.without_brightest == pytest.approx(each.before)
        assert "leaves the answer at" in str(each)
        assert each.srg < 0


def test_at_least_one_cell_is_removed():
    images, _ = spots(2)
    coarse = dataclasses.replace(visattn.explain(Spots(), images, "edge"), raw=torch.rand(2, 2, 2))
    assert visattn.score(coarse, Spots(), images)[0].share == 0.25


def test_heatmap_score(photographs):
    line = "heatmap --weights model --image photographs/0.png photographs/1.png --method gradcam,edge --score --out out"
    assert main(line.split()) == 0
    manifest = json.loads((photographs / "out" / "manifest.json").read_text())
    for image in manifest["images"]:
        assert set(image["scores"]) == {"gradcam", "edge"}
        for text in image["scores"].values():
            assert re.match(r"removing the brightest [\d.]+ % (lowers|raises|leaves) the answer", text)
    page = (photographs / "out" / "index.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert data["subjects"][0]["views"]["edge"]["score"] == manifest["images"][0]["scores"]["edge"]
    found = visattn.examine("model", "photographs/0.png", "edge", score=True)
    assert found.findings[0].subject.views[0].score == manifest["images"][0]["scores"]["edge"]


# ---- Quantus


def test_an_explain_func_for_quantus():
    images, _ = spots(3)
    explain_func = visattn.scoring.for_quantus("input_gradient")
    found = explain_func(Spots(), images.numpy().astype(np.float64), np.array([0, 1, 1]), device="cpu", xai_lib="")
    wanted = visattn.explain(Spots(), images, "input_gradient", [0, 1, 1]).heatmap
    np.testing.assert_array_equal(found, wanted[:, None])


@pytest.mark.filterwarnings("ignore")
def test_the_pointing_game_of_quantus_agrees():
    """Where definitions agree: no tolerance, no ties."""
    quantus = pytest.importorskip("quantus", reason="pip install 'visattn[quantus]'")
    images, masks = spots(6)
    metric = quantus.PointingGame(disable_warnings=True, display_progressbar=False)
    theirs = metric(
        model=Spots(), x_batch=images.numpy(), y_batch=np.arange(6) % 2, s_batch=masks[:, None].numpy().astype(int),
        explain_func=visattn.scoring.for_quantus("random"), device="cpu",
    )  # fmt: skip
    maps = visattn.explain(Spots(), images, "random").heatmap
    ours = masks.flatten(1).gather(1, maps.flatten(1).argmax(1, keepdim=True))[:, 0]
    assert [bool(each) for each in theirs] == ours.tolist()


def test_methods_of_many_passes_must_be_named():
    model, images = timm.create_model("test_resnet", num_classes=2), torch.rand(1, 3, 64, 64)
    found = evaluate(model, images, metrics="cost")
    assert not {"rise", "occlusion", "smoothgrad", "scorecam"} & set(found.methods)
    assert found.methods[0] == "auto"
    assert "; auto is sharp_gradcam, of log p, balanced;" in str(found)
    assert "occlusion" in evaluate(model, images, "occlusion", "cost").methods

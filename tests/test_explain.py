"""One call for every method: arguments, results, files, and which methods fit which model."""

import copy
import json

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from torch import nn

import visattn
from tests.models import model_and_images
from tests.reference.heatmaps import rollout
from tests.tiers import mostly_slow
from visattn.heatmaps import METHODS
from visattn.heatmaps.scaling import to_heatmap


@pytest.fixture(scope="module")
def vit():
    return model_and_images("test_vit", number=2)


@pytest.fixture(scope="module")
def cnn():
    torch.manual_seed(0)
    model = visattn.attach(timm.create_model("test_resnet", num_classes=10).eval(), "cbam", init="paper")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model, torch.rand(2, 3, 64, 96)


@pytest.fixture(scope="module", params=["vit", "cnn"])
def kind(request):
    """A model, images, and the methods for them."""
    model, images = request.getfixturevalue(request.param)
    return model, images, visattn.list_methods(model, images)


def test_every_method_fits_or_has_a_reason(kind):
    _, _, possible = kind
    assert {*possible} | {*possible.reasons} == {*METHODS}


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_gives_heatmaps_or_a_reason(method, kind):
    model, images, possible = kind
    if method not in possible:
        with pytest.raises(ValueError, match=f"^{method.replace('+', '.')} does not work on this .*: "):
            visattn.explain(model, images, method)
        return
    e = visattn.explain(model, images, method)
    assert e.method == method
    assert e.heatmap.shape == (2, *images.shape[-2:])
    assert e.heatmap.dtype == torch.float32
    assert (e.heatmap.amin((1, 2)) == 0).all()
    assert (e.heatmap.amax((1, 2)) == 1).all()
    assert e.raw.shape[0] == 2
    assert (e.raw >= 0).all()
    assert e.target == tuple(model(images).argmax(1).tolist())
    assert not e.heatmap.requires_grad


def test_which_methods_fit():
    assert set(METHODS) == {
        *("attention", "rollout", "grad_rollout", "chefer", "legrad", "gates", "glimpses"),
        *("attcat", "tokentm", "attention_flow"),
        *("gradcam", "gradcam++", "hirescam", "xgradcam", "layercam", "eigencam", "scorecam", "ablationcam"),
        *("random", "center", "input_gradient", "edge", "input_x_gradient", "fullgrad", "sharp_gradcam"),
        *("integrated_gradients", "smoothgrad", "occlusion", "rise"),
    }
    methods = visattn.list_methods(timm.create_model("test_resnet"))
    assert "gradcam" in methods
    assert "rollout" not in methods
    assert methods.reasons["rollout"] == "the model has no attention between tokens"
    assert "not gates: it has no visattn block" in str(methods)
    own = visattn.attach(timm.create_model("test_resnet"), lambda _: nn.Identity(), at="layer1")
    assert visattn.list_methods(own).reasons["gates"].startswith("its blocks do not say what they attend to")
    small = timm.create_model("coat_tiny", img_size=64, serial_depths=(1, 1, 1, 1), parallel_depth=1)
    coat = visattn.list_methods(small, torch.rand(1, 3, 64, 64))
    assert "attention" in coat
    assert "no known place in the image" in coat.reasons["rollout"]


def test_one_image_or_a_batch(vit):
    model, images = vit
    one, batch = visattn.explain(model, images[0]), visattn.explain(model, images)
    assert one.heatmap.shape == (1, 160, 160)
    torch.testing.assert_close(one.heatmap[0], batch.heatmap[0], atol=1e-5, rtol=0)


def test_targets_by_index_name_and_list(vit):
    model, images = vit
    names = [f"class {letter}, synonym {letter}" for letter in "abcdefghij"]
    expected = visattn.explain(model, images, "chefer", target=[3, 7])
    for target in (["class d", "synonym h"], torch.tensor([3, 7]), [3, "7"], ("Class_D", names[7])):
        e = visattn.explain(model, images, "chefer", target=target, classes=names)
        assert e.target == (3, 7)
        assert e.names == [names[3], names[7]]
        assert torch.equal(e.heatmap, expected.heatmap)
    one = visattn.explain(model, images, "chefer", target=3)
    assert one.target == (3, 3)
    assert torch.equal(one.heatmap[0], expected.heatmap[0])
    assert not torch.equal(one.heatmap[1], expected.heatmap[1])
    assert e.probability == pytest.approx(model(images).softmax(1)[[0, 1], [3, 7]].tolist())


def test_imagenet_names_are_known():
    model, images = timm.create_model("test_resnet"), torch.rand(1, 3, 64, 64)
    assert visattn.explain(model, images, "gradcam", target="tabby").target == (281,)
    with pytest.raises(ValueError, match="'crane' is the name of classes 134 and 517: give the number"):
        visattn.explain(model, images, "gradcam", target="crane")
    with pytest.raises(ValueError, match="unknown class 'tabbby': did you mean 'tabby'"):
        visattn.explain(model, images, "gradcam", target="tabbby")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"method": "rolout"}, ValueError, "unknown method 'rolout': did you mean 'rollout'"),
        ({"target": 10}, ValueError, "class 10 is out of range: the model has classes 0 to 9"),
        ({"target": -1}, ValueError, "out of range"),
        ({"target": [1]}, ValueError, "1 targets for 2 images"),
        ({"target": 1.5}, TypeError, "number or the name of a class, got 1.5"),
        ({"target": True}, TypeError, "number or the name of a class, got True"),
        ({"target": "", "classes": list("abcdefghij")}, ValueError, "the name of the class is empty"),
        ({"classes": ["a", "b"]}, ValueError, "2 names for the 10 classes"),
        ({"method": ["rollout"]}, TypeError, r"one name, got \['rollout'\]"),
        ({"x": torch.rand(1, 3, 200, 200)}, ValueError, r"does not take images of 3 x 200 x 200 \("),
        ({"x": torch.rand(1, 3, 200, 200), "method": "gradcam"}, ValueError, "does not take images of 3 x 200 x 200"),
        ({"x": torch.full((1, 3, 160, 160), torch.nan)}, ValueError, "not finite"),
        ({"target": "dog"}, ValueError, "give its number, or the names of all classes in order"),
        ({"x": torch.zeros(0, 3, 160, 160)}, ValueError, "empty batch"),
        ({"x": torch.zeros(2, 3, 160, 160, dtype=torch.uint8)}, TypeError, r"got torch.uint8 \(2, 3, 160, 160\)"),
        ({"x": torch.zeros(160, 160)}, TypeError, r"got torch.float32 \(160, 160\)"),
        ({"x": "cat.jpg"}, TypeError, "got str"),
        ({"model": "vit"}, TypeError, "a network is needed, got str"),
        ({"layer": "blocks.0"}, TypeError, "has no option 'layer'"),
    ],
)
def test_wrong_arguments(vit, change, error, message):
    model, images = vit
    with pytest.raises(error, match=message):
        visattn.explain(**{"model": model, "x": images, **change})


def test_files(vit, tmp_path):
    model, images = vit
    e = visattn.explain(model, images, "gradcam", target=[1, 2], classes=list("abcdefghij"))
    assert e.save(tmp_path / "deep" / "dir") == tmp_path / "deep" / "dir"
    manifest = json.loads((tmp_path / "deep" / "dir" / "manifest.json").read_text())
    assert manifest["method"] == "gradcam"
    assert manifest["layers"] == ["blocks.4"]
    assert [entry["class"] for entry in manifest["images"]] == ["b", "c"]
    for number, entry in enumerate(manifest["images"]):
        np.testing.assert_array_equal(np.load(tmp_path / "deep" / "dir" / entry["heatmap"]), e.heatmap[number])
        with Image.open(tmp_path / "deep" / "dir" / entry["picture"]) as picture:
            assert picture.size == (160, 160)
    (first, _) = e.overlay()
    assert first.mode == "RGB"


def test_overlays_show_the_image_where_there_is_nothing_and_the_map_elsewhere(vit):
    model, images = vit
    plain, strong = (visattn.explain(model, images[0], "center").overlay(opacity=o)[0] for o in (0.0, 1.0))
    grey = np.asarray(plain).astype(float).mean(-1)
    shown = visattn.explain(model, images[0], "center").pixels()[0].mean(-1)
    np.testing.assert_allclose(grey, shown, atol=1)
    middle, corner = np.asarray(strong)[80, 80].astype(int), np.asarray(strong)[0, 0].astype(int)
    assert middle.sum() > 500 > 100 > corner.sum()


def test_normalised_images_are_shown_as_they_were():
    model = timm.create_model("test_resnet")
    mean, std = (torch.tensor(model.pretrained_cfg[key])[:, None, None] for key in ("mean", "std"))
    images = torch.rand(1, 3, 64, 64)
    e = visattn.explain(model, (images - mean) / std, "gradcam")
    torch.testing.assert_close(e.images, images)


def test_scaling():
    maps = torch.tensor([[[1.0, 3.0], [2.0, 2.0]], [[0.2, 0.2], [0.2, 0.2]], [[0.0, 0.0], [0.0, 0.0]]])
    assert to_heatmap(maps, (2, 2)).tolist() == [[[0, 1], [0.5, 0.5]], [[0, 0], [0, 0]], [[0, 0], [0, 0]]]
    assert to_heatmap(maps, (4, 6)).shape == (3, 4, 6)


def test_gates_are_the_maps_that_blocks_apply(cnn):
    model, images = cnn
    inputs = {}
    for name, module in visattn.attachments(model).items():
        module.block.register_forward_pre_hook(lambda _m, args, name=name: inputs.__setitem__(name, args[0]))
    e = visattn.explain(model, images, "gates")
    (layer,) = e.layers
    expected = visattn.attachments(model)[layer].block.attention(inputs[layer]).detach()
    torch.testing.assert_close(e.raw, expected.mean(1))
    torch.testing.assert_close(e.extra["channels"][layer], expected.mean((2, 3)))
    other = visattn.explain(model, images, "gates", layer=next(iter(e.extra["channels"])))
    assert other.layers != e.layers
    with pytest.raises(ValueError, match="unknown block with a spatial map"):
        visattn.explain(model, images, "gates", layer="layer9")


def test_channel_gates_have_no_place():
    model = visattn.attach(timm.create_model("test_resnet").eval(), "se", init="paper")
    e = visattn.explain(model, torch.rand(2, 3, 64, 64), "gates")
    assert e.heatmap.max() == 0
    assert len(e.extra["channels"]) == len(e.layers) > 1
    assert all(weights.shape[0] == 2 and weights.ndim == 2 for weights in e.extra["channels"].values())


def test_a_memory_has_no_places():
    """64 slots look like the places of a pooled 16x16 map."""
    model = visattn.attach(timm.create_model("test_resnet").eval(), "external", at="layer2")
    assert "a learned memory" in visattn.list_methods(model).reasons["gates"]
    visattn.attach(model, "cbam", at="layer1")
    e = visattn.explain(model, torch.rand(1, 3, 128, 128), "gates")
    assert e.layers == ("layer1",)
    assert not e.extra["relations"]


@pytest.mark.parametrize("stride", [1, 2])
def test_keys_and_queries_at_fewer_places(stride):
    own = nn.Sequential(nn.Conv2d(3, 16, 4, stride=4), visattn.create_block("halo", 16, stride=stride)).eval()
    relation = visattn.explain(own, torch.rand(2, 3, 48, 36), "gates").extra["relations"]["1"]
    assert (relation.query_grid, relation.key_grid) == ((12 // stride, -(-9 // stride)), (12, 9))


class Own(nn.Module):
    """A network of somebody's own with blocks as layers."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 4, stride=4)
        self.relate = visattn.create_block("nonlocal", 16)
        self.scale = visattn.create_block("coord", 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.scale(self.relate(self.stem(x))).mean((2, 3)))


def test_blocks_in_somebodys_own_network():
    model, images = Own().eval(), torch.rand(2, 3, 48, 32)
    e = visattn.explain(model, images, "gates")
    assert e.layers == ("scale",)  # the last of them
    relation = e.extra["relations"]["relate"]
    assert (relation.query_grid, relation.key_grid) == ((12, 8), (12, 8))
    features = model.stem(images)
    torch.testing.assert_close(relation.weights, model.relate.attention(features)[:, 0])
    followed = visattn.explain(model, images, "rollout")
    assert followed.raw.shape == (2, 12, 8)
    assert followed.layers == ("relate.attend",)


def test_torchvisions_transformer():
    """torch's own attention layer, and a class token that is not called so."""
    torch.manual_seed(0)
    model = torchvision.models.VisionTransformer(64, 16, 3, 2, 32, 64, num_classes=5).eval()
    nn.init.normal_(model.heads.head.weight)
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad(), visattn.capture(model) as maps:
        model(images)
    assert [weights.shape for weights in maps.values()] == [(2, 2, 17, 17)] * 3
    e = visattn.explain(model, images, "rollout")
    for number, raw in enumerate(e.raw):
        R = rollout.rollout([weights[number].double().numpy() for weights in maps.values()])
        np.testing.assert_allclose(raw.flatten(), rollout.readout(R, [0], 1), atol=1e-6)
    for method in ("attention", "chefer", "grad_rollout", "gradcam"):
        assert visattn.explain(model, images, method, target=1).heatmap.amax((1, 2)).tolist() == [1, 1], method


def test_relations_of_windows_are_put_in_their_places():
    model, images = model_and_images("swin_tiny_patch4_window7_224", number=1)
    relations = visattn.heatmaps.relate(model, images)
    assert "layers.0.blocks.0.attn" not in relations  # 3136 x 3136
    weights = relations["layers.1.blocks.0.attn"].weights[0]
    assert weights.shape == (784, 784)
    torch.testing.assert_close(weights.sum(1), torch.ones(784), atol=1e-4, rtol=0)
    rows, columns = (torch.arange(784) // 28) // 7, (torch.arange(784) % 28) // 7
    same = (rows[:, None] == rows) & (columns[:, None] == columns)
    assert (weights[~same] == 0).all()
    assert (weights[same] > 0).all()


class Looking(nn.Module):
    """A model that always looks at the same two places."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(x.mean((2, 3)))

    def fixations(self, images):
        points = torch.tensor([[-0.5, 0.5], [0.75, -1.0]])  # (x, y)
        return points.expand(len(images), -1, -1), (8, 4)


def test_glimpses_are_where_the_model_looked():
    e = visattn.explain(Looking(), torch.rand(2, 3, 40, 80), "glimpses")
    seen = torch.zeros(40, 80)
    seen[26:34, 18:22] = 1  # centre (20, 30), 4 wide and 8 high
    seen[0:4, 68:72] = 1  # centre (70, 0), cut off at the upper edge
    torch.testing.assert_close(e.raw, seen.expand(2, -1, -1))
    assert e.extra["fixations"].shape == (2, 2, 2)


def test_baselines_are_what_they_say(vit):
    model, images = vit
    one, same = (visattn.explain(model, images, "random", seed=3) for _ in range(2))
    assert torch.equal(one.heatmap, same.heatmap)
    assert not torch.equal(one.heatmap, visattn.explain(model, images, "random", seed=4).heatmap)
    assert not torch.equal(one.heatmap[0], one.heatmap[1])
    centre = visattn.explain(model, images, "center").heatmap[0]
    assert (centre.argmax() // 160 - 80).abs() <= 1
    step = torch.zeros(1, 3, 160, 160)
    step[..., 100:] = 1
    columns = visattn.explain(model, step, "edge").raw[0].amax(0).nonzero().flatten().tolist()
    assert columns == [99, 100]
    watched = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(watched)[:, 4].sum(), watched)
    e = visattn.explain(model, images, "input_gradient", target=4)
    torch.testing.assert_close(e.raw, gradient.abs().amax(1), atol=1e-6, rtol=1e-3)


TOKENS_AND_CAMS = ["rollout", "chefer", "grad_rollout", "legrad", "gradcam", "input_gradient", "attention"]


@pytest.mark.parametrize("method", mostly_slow(TOKENS_AND_CAMS, "rollout", "chefer", "gradcam"))
def test_frozen_models_and_inference_mode(vit, method):
    """Neither frozen parameters nor what the caller is in the middle of changes the result."""
    model, images = copy.deepcopy(vit[0]), vit[1]
    expected = visattn.explain(vit[0], images, method, target=2).heatmap
    model.requires_grad_(False)
    torch.testing.assert_close(visattn.explain(model, images, method, target=2).heatmap, expected)
    model.head.requires_grad_(True)
    torch.testing.assert_close(visattn.explain(model, images, method, target=2).heatmap, expected)
    fresh = copy.deepcopy(model)
    with torch.inference_mode():
        inside = visattn.explain(fresh, images.clone(), method, target=2).heatmap
        assert method in visattn.list_methods(fresh, images.clone())
    torch.testing.assert_close(inside, expected)
    with torch.no_grad():
        torch.testing.assert_close(visattn.explain(fresh, images, method, target=2).heatmap, expected)


def test_targets_from_numpy(vit):
    model, images = vit
    assert visattn.explain(model, images, "random", target=np.int64(5)).target == (5, 5)
    assert visattn.explain(model, images, "random", target=np.array([5, 6])).target == (5, 6)


def test_a_model_whose_size_is_not_known():
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Conv2d(3, 8, 8, stride=8)
            self.position = nn.Parameter(torch.zeros(1, 8, 4, 4))
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            return self.head((self.embed(x) + self.position).mean((2, 3)))

    with pytest.raises(ValueError, match=r"does not take images of 3 x 224 x 224 .*: give example="):
        visattn.list_methods(Fixed())
    assert "gradcam" in visattn.list_methods(Fixed(), torch.rand(1, 3, 32, 32))


class Segmenter(nn.Module):
    """Says how many classes it has, and returns a dict with a map."""

    def __init__(self):
        super().__init__()
        self.backbone = timm.create_model("test_resnet", num_classes=0, global_pool="")
        self.head = nn.Conv2d(self.backbone.num_features, 5, 1)
        self.num_classes = 5

    def forward(self, x):
        return {"out": nn.functional.interpolate(self.head(self.backbone(x)), x.shape[-2:])}


ANY = {"random", "center", "edge", "eigencam"}
TOKENS = {"attention", "rollout", "attention_flow"}
WITHOUT_CLASSES = {
    "encoder": (lambda: timm.create_model("test_vit", num_classes=0), ANY | TOKENS),
    "tokens": (lambda: timm.create_model("test_vit", num_classes=0, global_pool=""), ANY | TOKENS),
    "features": (lambda: timm.create_model("test_vit", features_only=True), ANY | TOKENS),
    "map": (lambda: timm.create_model("test_resnet", num_classes=0, global_pool=""), ANY),
    "gated": (lambda: visattn.attach(timm.create_model("test_resnet", num_classes=0), "cbam"), ANY | {"gates"}),
    "segmenter": (Segmenter, ANY),
}


@pytest.mark.parametrize("kind", WITHOUT_CLASSES)
def test_models_without_classes_have_heatmaps_and_nothing_is_invented(kind, tmp_path):
    build, fitting = WITHOUT_CLASSES[kind]
    model, images = build().eval(), torch.rand(2, 3, 160, 160)
    methods = visattn.list_methods(model, images)
    assert {*methods} == fitting
    assert "has none" in methods.reasons["gradcam"]
    for method in methods:
        e = visattn.explain(model, images, method)
        assert e.heatmap.shape == (2, 160, 160)
        assert (e.target, e.probability, e.classes, e.names) == (None, None, None, [])
        assert "no classes" in repr(e)
    manifest = json.loads((e.save(tmp_path) / "manifest.json").read_text())
    assert [(one["target"], one["class"], one["probability"]) for one in manifest["images"]] == [(None, None, None)] * 2
    with pytest.raises(
        ValueError, match=r"gradcam does not work on this .*: it explains a class, and the model has none"
    ):
        visattn.explain(model, images, "gradcam")


def test_a_manifest_of_somebody_else_is_left_alone(vit, tmp_path):
    e = visattn.explain(*vit, "center")
    e.save(e.save(tmp_path / "own"))
    (tmp_path / "manifest.json").write_text('{"name": "a web application"}')
    with pytest.raises(ValueError, match="was written by something else"):
        e.save(tmp_path)
    with pytest.raises(ValueError, match="the name of the folder is empty"):
        e.save("")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "own"]


def test_one_class_has_no_probability():
    e = visattn.explain(timm.create_model("test_resnet", num_classes=1), torch.rand(1, 3, 64, 64), "gradcam")
    assert (e.target, e.probability) == ((0,), None)


@pytest.mark.parametrize("opacity", [-0.1, 1.1, "half"])
def test_wrong_opacity(vit, opacity):
    with pytest.raises(ValueError, match="from 0 to 1"):
        visattn.explain(*vit, "center").overlay(opacity)


def test_reduced_precision(vit):
    model, images = vit
    half = copy.deepcopy(model).bfloat16()
    for method in ("rollout", "chefer", "gradcam", "input_gradient", "attention"):
        exact, rounded = (visattn.explain(each, images, method, target=3).heatmap for each in (model, half))
        torch.testing.assert_close(rounded, exact, rtol=0, atol=0.1)  # up to 0.02 was seen; also float32


class Normalising(torch.nn.Module):
    """A network that changes the images it is given, in one way or another."""

    def __init__(self, model, way):
        super().__init__()
        self.model, self.way = model, way

    def forward(self, images):
        """As the model inside, of images that are darker."""
        self.way(images)
        return self.model(images)


@pytest.mark.parametrize(
    "way",
    [
        lambda x: x.mul_(0.5),
        lambda x: x.data.sub_(0.1),
        lambda x: x[:, 0].zero_(),
        lambda x: torch.mul(x, 0.5, out=x),
        lambda x: torch._foreach_mul_([x], 0.5),
        lambda x: x.numpy().fill(0.5),
    ],
    ids=["in place", "behind autograd's back", "a view", "out=", "a list", "numpy"],
)
def test_images_stay_as_they_are(way):
    images = torch.rand(1, 3, 32, 32)
    before = images.clone()
    model = Normalising(timm.create_model("test_vit", img_size=32, num_classes=3), way)
    for _ in range(2):
        visattn.explain(model, images, "attention")
    assert torch.equal(images, before)


def test_what_is_known_of_a_model_changes_with_its_settings():
    """A head of another width, or another way to pool, need not be another module."""
    torch.manual_seed(0)
    model, images = timm.create_model("test_vit", num_classes=3).eval(), torch.rand(1, 3, 160, 160)
    first = visattn.explain(model, images, "rollout")
    model.head.weight = nn.Parameter(torch.randn(7, model.head.in_features))
    model.head.bias = nn.Parameter(torch.zeros(7))
    assert visattn.explain(model, images, "gradcam", target=6).target == (6,)
    model.global_pool = "avg"
    pooled = visattn.explain(model, images, "rollout")
    torch.testing.assert_close(pooled.raw, visattn.explain(copy.deepcopy(model), images, "rollout").raw)
    assert not torch.allclose(pooled.raw, first.raw)


def test_modules_at_an_old_address_are_other_modules():
    model, images = timm.create_model("test_resnet", num_classes=3), torch.rand(1, 3, 64, 64)
    for number in range(4, 12):
        model.fc = nn.Linear(model.num_features, number)
        assert visattn.explain(model, images, "edge", target=number - 1).target == (number - 1,)


@pytest.mark.parametrize("method", ["rollout", "chefer", "gradcam"])
def test_explain_in_a_hook_on_a_gradient(vit, method):
    model, images = copy.deepcopy(vit[0]), vit[1]
    expected = visattn.explain(vit[0], images, method, target=2).raw
    found = []
    logits = model(images)
    logits.register_hook(lambda _: found.append(visattn.explain(model, images, method, target=2).raw))
    logits.sum().backward()
    found.append(visattn.explain(model, images, method, target=2).raw)
    for each in found:
        torch.testing.assert_close(each, expected)


def test_one_number_for_the_size_of_images():
    model = timm.create_model("test_vit", num_classes=3).eval()
    model.patch_embed.img_size = 160
    assert "rollout" in visattn.list_methods(model)
    model.pretrained_cfg = {**model.pretrained_cfg, "mean": 0.5, "std": 0.5}
    assert visattn.explain(model, torch.randn(1, 3, 160, 160), "rollout").images.shape == (1, 3, 160, 160)

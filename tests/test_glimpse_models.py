"""Backbones that look at a few crops of a large image: ``glimpse_<backbone>``, and their names in timm."""

import copy
import itertools
import json

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.data import resolve_model_data_config
from torch import nn

import visattn
from tests.training import TINY
from visattn.cli.train import main
from visattn.counting import count_macs, count_parameters
from visattn.hard.scout import Scout, shares, small_size, starts
from visattn.hard.sensor import glimpse
from visattn.models import load_model, split_name
from visattn.models.names import model_config
from visattn.models.saving.saved import number_of_classes, open_trained
from visattn.policy import policy_loss, policy_term, take_decisions
from visattn.training.building import input_size, model_arguments
from visattn.training.classifier import Classifier
from visattn.training.settings import Settings

SIZES = [(224, 224), (448, 640), (1024, 1024), (300, 2048)]


def build(name="glimpse_test_resnet", **options):
    torch.manual_seed(0)
    return visattn.create_model(name, **{"num_classes": 5, "glimpse_size": 64, **options}).eval()


def corners(points, size, shape):
    """First rows and columns of crops with these centres, as whole numbers."""
    height, width = shape
    exact = torch.stack([(points[..., 1] + 1) / 2 * height, (points[..., 0] + 1) / 2 * width], -1) - size / 2
    torch.testing.assert_close(exact, exact.round(), rtol=0, atol=1e-3)
    return exact.round().long()


# What the scout chooses from


@pytest.mark.parametrize(("length", "size"), [(224, 224), (225, 224), (448, 224), (1000, 224), (64, 1), (65, 33)])
def test_crops_reach_every_pixel_and_are_all_different(length, size):
    begins = starts(length, size).tolist()
    assert begins[0] == 0
    assert begins[-1] == length - size
    steps = [after - before for before, after in itertools.pairwise(begins)]
    assert all(0 < step <= max(size // 2, 1) for step in steps)
    assert max(steps, default=0) - min(steps, default=0) <= 1  # evenly spread


def test_a_crop_is_worth_the_mean_of_what_it_shows():
    """Against counting, pixel by pixel."""
    torch.manual_seed(1)
    length, cells, size = 60, 6, 23
    energies = torch.randn(cells, dtype=torch.float64)
    begins = starts(length, size)
    expected = torch.stack([energies.repeat_interleave(length // cells)[b : b + size].mean() for b in begins])
    weights = shares(begins.double(), size, length, cells)
    torch.testing.assert_close(weights @ energies, expected)


@pytest.mark.parametrize("shape", [*SIZES, (28, 28), (2048, 64)])
def test_the_small_copy_keeps_the_aspect_ratio(shape):
    small = small_size(*shape, 96)
    scale = min(1, 96 / max(shape))
    pairs = zip(small, shape, strict=True)
    assert all(side % 8 == 0 and (abs(side - scale * full) <= 4 or side == 8) for side, full in pairs)


def aimed(size, glimpses):
    """A scout whose energy is the brightness of its small copy."""
    scout = Scout(1, size=size, glimpses=glimpses).eval()
    scout.features = nn.Sequential(nn.AvgPool2d(8))
    scout.score = nn.Identity()
    return scout


@pytest.mark.parametrize(("row", "column"), [(0, 0), (30, 100), (191, 255), (96, 10), (150, 128)])
def test_it_looks_at_what_it_finds_interesting(row, column):
    """x runs to the right and y down, and the crop holds the bright square whole."""
    image = torch.zeros(1, 1, 192, 256)
    row, column = min(row, 192 - 16), min(column, 256 - 16)
    image[..., row : row + 16, column : column + 16] = 1
    top, left = corners(aimed(64, 1)(image)[0, 0], 64, (192, 256)).tolist()
    assert top <= row
    assert row + 16 <= top + 64
    assert left <= column
    assert column + 16 <= left + 64


def test_the_small_copy_misses_nothing():
    """Single bright pixels, which picking every eighth would not meet."""
    image = torch.zeros(1, 1, 768, 768)
    image[..., 516::8, 516::8] = 1
    torch.testing.assert_close(aimed(256, 1)(image), torch.full((1, 1, 2), 2 / 3))


def test_the_best_comes_first():
    image = torch.zeros(1, 1, 256, 256)
    image[..., :64, :64] = 0.5
    image[..., -64:, -64:] = 1
    scout = aimed(64, 2)
    assert scout(image).tolist()[0][0] == [0.75, 0.75]
    scout.glimpses = 49  # all there are
    assert len({tuple(each) for each in scout(image)[0].tolist()}) == 49


@pytest.mark.parametrize("policy", ["learned", "random"])
def test_draws_follow_the_seed(policy):
    images = torch.rand(8, 3, 256, 256)
    scout = Scout(size=64, glimpses=3, policy=policy).train()
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(scout(images))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    scout.eval()
    assert torch.equal(scout(images), scout(images))
    assert (scout.decision is None) == (policy == "random")


def test_random_glimpses_go_everywhere_and_learn_nothing():
    scout = Scout(size=64, glimpses=2, policy="random")
    assert count_parameters(scout) == 0
    for training in (True, False):
        points = scout.train(training)(torch.rand(400, 3, 128, 128))
        cells, counts = points.flatten(0, 1).unique(dim=0, return_counts=True)
        assert len(cells) == 9
        assert counts.min() > 50  # of 89 expected
        assert (points[:, 0] != points[:, 1]).any(1).all()


# The whole network


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("name", ["glimpse_test_resnet", "glimpse_test_convnext", "glimpse_test_vit_se"])
def test_shapes(name, shape):
    model = build(name)
    assert model(torch.rand(2, 3, *shape)).shape == (2, 5)
    assert model.train()(torch.rand(2, 3, *shape)).shape == (2, 5)


def test_the_native_size_is_the_default():
    model = visattn.create_model("glimpse_test_vit")
    assert model.scout.size == 160
    assert model.eval()(torch.rand(1, 3, 224, 224)).shape == (1, 1000)


@pytest.mark.parametrize("size", [64, 63])
@pytest.mark.parametrize("shape", SIZES)
def test_crops_are_copies(shape, size):
    images = torch.rand(2, 3, *shape)
    model = build(glimpse_size=size)
    points, crop = model.fixations(images)
    assert crop == (size, size)
    crops = glimpse(images, points, size=size)
    for b, each in enumerate(corners(points, size, shape).tolist()):
        assert len({tuple(corner) for corner in each}) == 4
        for g, (top, left) in enumerate(each):
            plain = images[b, :, top : top + size, left : left + size]
            torch.testing.assert_close(crops[b, g, 0], plain, rtol=0, atol=1e-4)


def test_the_answer_is_the_mean_over_slices():
    images = torch.rand(2, 3, 200, 300)
    model = build("glimpse_test_resnet_se")
    places = corners(model.fixations(images)[0], 64, (200, 300)).tolist()
    slices = [images[b, :, top : top + 64, left : left + 64] for b in range(2) for top, left in places[b]]
    with torch.no_grad():
        expected = torch.stack([model.backbone(each[None])[0] for each in slices]).view(2, 4, 5).mean(1)
        torch.testing.assert_close(model(images), expected, rtol=1e-3, atol=1e-3)


def test_the_rest_is_never_seen():
    images = torch.rand(2, 3, 256, 256)
    model = build()
    points, _ = model.fixations(images)
    model.scout.forward = lambda _: points
    seen = torch.zeros(2, 1, 256, 256)
    for b, each in enumerate(corners(points, 64, (256, 256)).tolist()):
        for top, left in each:
            seen[b, :, top : top + 64, left : left + 64] = 1
    assert 0.06 < seen.mean() < 0.26
    noise = torch.rand_like(images)
    answer = model(images)
    torch.testing.assert_close(model(images * seen + noise * (1 - seen)), answer, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(model(images * (1 - seen) + noise * seen), answer, rtol=1e-3, atol=1e-3)


def test_the_cost_does_not_grow_with_the_image():
    model = build("glimpse_resnet18", glimpse_size=224, num_classes=1000)
    costs = {side: count_macs(model, 1, 3, side, side) for side in (448, 1024, 2048)}
    assert len(set(costs.values())) == 1
    backbone = 4 * count_macs(model.backbone, 1, 3, 224, 224)
    assert costs[448] == backbone + count_macs(model.scout, 1, 3, 448, 448)
    assert count_macs(build("glimpse_resnet18", glimpses=8), 1, 3, 448, 448) < 2 * costs[448]
    assert count_macs(model, 1, 3, 448, 1024) <= costs[448]


def test_the_scout_is_cheap():
    scout = Scout(size=224)
    one_crop = count_macs(timm.create_model("resnet50"), 1, 3, 224, 224)
    assert count_macs(scout, 1, 3, 1024, 1024) < one_crop / 200
    assert count_parameters(scout) < 100_000


def test_cross_entropy_trains_the_backbone_and_the_policy_the_scout():
    model = build("glimpse_test_resnet_cbam").train()
    scout, backbone = list(model.scout.parameters()), list(model.backbone.parameters())
    logits = model(torch.rand(4, 3, 200, 200))
    nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 3])).backward()
    assert all(p.grad is None for p in scout)
    assert all(p.grad is not None for p in backbone)
    model.zero_grad()
    (decision,) = take_decisions(model)
    assert decision.log_prob.shape == decision.baseline.shape == (4, 4)
    policy_loss(decision, torch.tensor([1.0, 0.0, 1.0, 0.0])).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in scout)
    assert all(p.grad is None for p in backbone)


def test_the_baseline_leaves_the_features_alone():
    model = build().train()
    model(torch.rand(2, 3, 200, 200))
    (decision,) = take_decisions(model)
    decision.baseline.sum().backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == {
        "scout.baseline.weight",
        "scout.baseline.bias",
    }


@pytest.mark.slow
def test_the_policy_learns_where_the_answer_is():
    """One of nine crops gives a reward; it is the bright one, and its place changes."""
    torch.manual_seed(0)
    scout = Scout(1, size=32, glimpses=1).train()
    optimizer = torch.optim.Adam(scout.parameters(), 3e-3)

    def batch():
        cell = torch.randint(9, (32,))
        images = 0.3 * torch.rand(32, 1, 64, 64)
        for image, row, column in zip(images, cell // 3, cell % 3, strict=True):
            image[0, 16 * row + 10 : 16 * row + 22, 16 * column + 10 : 16 * column + 22] = 1
        return images, torch.stack([cell % 3, cell // 3], 1) * 16 / 32 - 0.5

    def hits(images, centres):
        return (scout(images)[:, 0] - centres).abs().amax(1).lt(1e-3).float()

    for _ in range(150):
        images, centres = batch()
        reward = hits(images, centres)
        loss = sum(policy_loss(decision, reward) for decision in take_decisions(scout))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert hits(*batch()).mean() > 0.4  # drawn; one in nine by chance
    scout.eval()
    assert hits(*batch()).mean() > 0.8


def test_images_do_not_influence_each_other():
    images = torch.rand(3, 3, 200, 260)
    model = build()
    together = model(images)
    for index in range(3):
        torch.testing.assert_close(model(images[index : index + 1])[0], together[index], rtol=1e-4, atol=1e-4)
    assert torch.equal(model(images), together)


def test_it_shows_where_it_looks():
    images = torch.rand(2, 3, 200, 260)
    model = build().train()
    result = visattn.explain(model, images, "glimpses")
    assert result.heatmap.shape == (2, 200, 260)
    assert torch.equal(result.raw.sum((1, 2)), torch.full((2,), 4 * 64 * 64.0))
    expected, _ = model.fixations(images)
    assert torch.equal(result.extra["fixations"], expected)
    assert model.training
    assert model.scout.decision is None  # looking is not training
    methods = visattn.list_methods(model, images)
    assert sorted(methods) == [
        *("center", "edge", "glimpses", "input_gradient", "input_x_gradient", "integrated_gradients", "occlusion"),
        *("random", "rise", "smoothgrad"),
    ]
    assert set(methods.reasons.values()) == {
        "its layers see crops and never the whole image: explain model.backbone on a crop"
    }
    with pytest.raises(ValueError, match=r"model\.backbone"):
        visattn.explain(model, images, "gradcam")
    with pytest.raises(ValueError, match="no stages"):  # instead of the scout's own maps
        visattn.attach(model, "se", at="stages")


def test_bfloat16_autocast():
    images = torch.rand(2, 3, 1000, 1000)
    model = build()
    plain = model(images)
    with torch.autocast("cpu", torch.bfloat16):
        points, _ = model.fixations(images)
        answer = model(images)
        model.train()(images)
        (decision,) = take_decisions(model)
    corners(points, 64, (1000, 1000))  # still whole pixels
    assert decision.log_prob.dtype == decision.entropy.dtype == torch.float32
    assert answer.shape == plain.shape
    assert answer.isfinite().all()


def test_whole_model_in_bfloat16():
    model = build().bfloat16()
    points, _ = model.fixations(torch.rand(1, 3, 1000, 1000).bfloat16())
    corners(points, 64, (1000, 1000))
    assert model(torch.rand(1, 3, 256, 256).bfloat16()).dtype == torch.bfloat16


@pytest.mark.slow
def test_compiled():
    images = torch.rand(2, 3, 200, 260)
    model = build()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), model(images))
    model.train()
    torch._dynamo.reset()
    assert torch.compile(model, backend="eager", fullgraph=True)(images).shape == (2, 5)
    assert len(list(take_decisions(model))) == 1


@pytest.mark.parametrize("baseline", ["learned", "moving_average"])
def test_a_backbone_that_decides_for_every_crop(baseline):
    """Scout and block are both trained by one reward per image."""
    options = {"signal": "reinforce", "baseline": baseline, "glimpses": 2}
    model = visattn.create_model(
        "glimpse_test_resnet", attn="hard", attn_options=options, glimpses=3, glimpse_size=64, num_classes=5
    ).train()
    images, right = torch.rand(4, 3, 200, 260), torch.tensor([True, False, True, True])
    model(images)
    assert [tuple(decision.log_prob.shape) for decision in take_decisions(model)] == [(4, 3), (12, 2)]
    model(images)
    policy_term(model, reward=right).backward()
    (attached,) = visattn.attachments(model.backbone).values()
    assert attached.block.fc2.weight.grad.abs().sum() > 0
    assert model.scout.score.weight.grad.abs().sum() > 0


def test_copies_after_a_training_step():
    images = torch.rand(2, 3, 200, 260)
    model = build().train()
    model(images)
    twin = copy.deepcopy(model)
    assert twin.scout.decision is None
    assert torch.equal(twin.eval()(images), model.eval()(images))


# Names, settings and files


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("glimpse_resnet50", ("glimpse_resnet50", None)),
        ("glimpse_resnet50_cbam.a1_in1k", ("glimpse_resnet50.a1_in1k", "cbam")),
        ("glimpse_resnet_se", ("glimpse_resnet18", "se")),
        ("glimpse_vit_tiny_patch16_224", ("glimpse_vit_tiny_patch16_224", None)),
        ("ram", ("ram", None)),
    ],
)
def test_names_are_split(name, parts):
    assert split_name(name) == parts


def test_attention_goes_into_the_backbone():
    one, two = build("glimpse_test_resnet_eca"), build(attn="eca", attn_options={"kernel_size": 5})
    assert list(visattn.attachments(one)) == list(visattn.attachments(two))
    assert {block.block.conv.kernel_size for block in visattn.attachments(two).values()} == {(5,)}
    assert one.pretrained_cfg["architecture"] == two.pretrained_cfg["architecture"] == "glimpse_test_resnet_eca"


def test_options():
    model = build(glimpses=2, overview=40, policy="random", policy_weight=0.5, entropy_weight=0.1, drop_rate=0.3)
    scout = model.scout
    assert (scout.glimpses, scout.overview, scout.policy) == (2, 40, "random")
    assert (scout.policy_weight, scout.entropy_weight, model.backbone.drop_rate) == (0.5, 0.1, 0.3)
    assert build(glimpses=None, overview=None).scout.glimpses == 4
    assert timm.create_model("glimpse_resnet18", glimpses=None, num_classes=None).num_classes == 1000
    grey = build(in_chans=1)
    assert grey(torch.rand(1, 1, 200, 200)).shape == (1, 5)


@pytest.mark.parametrize("create", [visattn.create_model, timm.create_model])
def test_pretrained_weights_are_the_backbones(create, tmp_path):
    torch.manual_seed(3)
    plain = timm.create_model("resnet18").eval()
    save_file(plain.state_dict(), tmp_path / "model.safetensors")
    overlay = {"file": str(tmp_path / "model.safetensors")}
    model = create("glimpse_resnet18.a1_in1k", pretrained=True, pretrained_cfg_overlay=overlay, glimpse_size=64).eval()
    x = torch.rand(1, 3, 64, 64)
    assert torch.equal(model.backbone(x), plain(x))


def test_timm_knows_the_names():
    names = {
        "glimpse_resnet18", "glimpse_resnet50", "glimpse_convnext_tiny", "glimpse_efficientnet_b0",
        "glimpse_vit_small_patch16_224", "ram",
    }  # fmt: skip
    assert names <= set(timm.list_models(module="visattn"))
    config = timm.get_pretrained_cfg("glimpse_resnet50.a1_in1k")
    assert (config.architecture, config.input_size) == ("glimpse_resnet50", (3, 448, 448))
    assert config.hf_hub_id == "timm/resnet50.a1_in1k"
    assert not timm.models.is_model_pretrained("ram")
    for name in names:
        assert model_config(name).input_size == timm.get_pretrained_cfg(name).input_size


def test_the_data_are_prepared_as_for_the_backbone():
    ours, theirs = (
        resolve_model_data_config(timm.create_model(name)) for name in ("glimpse_efficientnet_b0", "efficientnet_b0")
    )
    assert ours.pop("input_size") == (3, 448, 448)
    assert theirs.pop("input_size") == (3, 224, 224)
    assert ours == theirs


def test_the_classifier():
    model = build()
    assert model.get_classifier() is model.backbone.fc
    assert model.pretrained_cfg["classifier"] == "backbone.fc"
    assert number_of_classes("glimpse_test_resnet_se", model.state_dict()) == 5
    model.reset_classifier(7)
    assert model.num_classes == 7
    assert model(torch.rand(1, 3, 200, 200)).shape == (1, 7)
    assert model.num_features == model.backbone.num_features


class Data:
    """What a model must know of its data."""

    classes = tuple("abcd")

    def __init__(self, size):
        self.size = size


@pytest.mark.parametrize(
    ("name", "size", "data", "expected"),
    [
        ("glimpse_test_resnet", None, None, 448),
        ("glimpse_vit_tiny_patch16_224", None, None, 448),
        ("glimpse_vit_tiny_patch16_224_se", None, 300, 300),
        ("glimpse_resnet18", 512, 300, 512),
        ("glimpse_vit_small_patch16_384", None, None, 768),
        ("ram", None, None, 28),
        ("ram", None, 64, 64),
    ],
)
def test_size_of_the_images(name, size, data, expected):
    settings = Settings(model=name, image_size=size)
    assert input_size(settings, Data(data)) == (expected, {})


def test_a_transformer_is_made_for_its_glimpses():
    settings = Settings(model="glimpse_vit_tiny_patch16_224", model_options={"glimpse_size": 96})
    model = visattn.create_model(**model_arguments(settings, Data(300)))
    assert model.backbone.patch_embed.img_size == (96, 96)
    assert model(torch.rand(1, 3, 300, 300)).shape == (1, 4)


def test_saved_and_loaded(tmp_path):
    model = build("glimpse_test_vit_se", glimpses=3)
    visattn.save_model(model, tmp_path)
    loaded, _ = load_model(tmp_path)
    images = torch.rand(2, 3, 200, 200)
    assert torch.equal(loaded(images), model(images))
    trained = open_trained("glimpse_test_vit_se", str(tmp_path))
    assert torch.equal(trained.model(images), model(images))
    with pytest.raises(ValueError, match="is of glimpse_test_vit_se, not of 'test_vit_se'"):
        open_trained("test_vit_se", str(tmp_path))


def test_freezing_keeps_the_scout_the_attention_and_the_classifier():
    model = build("glimpse_test_resnet_se")
    classifier = Classifier(model, Settings(freeze_backbone=True), 5)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    parts = ("scout.", ".visattn.", "backbone.fc.")
    assert trained == {name for name, _ in model.named_parameters() if any(part in name for part in parts)}
    assert all(any(part in name for name in trained) for part in parts)
    classifier.train()
    assert model.scout.training
    assert not model.backbone.layer1.training
    assert all(block.training for block in visattn.attachments(model).values())


def test_nothing_decays_that_the_backbone_spares():
    assert "backbone.pos_embed" in build("glimpse_test_vit").no_weight_decay()
    assert build().no_weight_decay() == set()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: build(glimpses=0), ValueError, "needs glimpses of at least one, got 0"),
        (lambda: build(glimpse_size=0), ValueError, "needs glimpse_size of at least one, got 0"),
        (lambda: build(overview=-1), ValueError, "needs overview of at least one, got -1"),
        (lambda: build(policy="lerned"), ValueError, "unknown policy 'lerned': did you mean 'learned'"),
        (lambda: build(num_classes=1), ValueError, "two or more classes, got 1"),
        (lambda: build(num_classes=0), ValueError, "two or more classes, got 0"),
        (lambda: build(img_size=96), ValueError, "give glimpse_size instead of img_size=96"),
        (lambda: build(glimpse=3), TypeError, "unexpected keyword argument 'glimpse': did you mean 'glimpses'"),
        (lambda: visattn.create_model("test_resnet", glimpses=3), TypeError, "'glimpses': only models such as"),
        (lambda: build("glimpse_resnt50"), ValueError, "unknown model 'resnt50': did you mean"),
        (lambda: build("glimpse_resnet18_cbm"), ValueError, "unknown attention 'cbm'.* did you mean 'cbam'"),
        (lambda: build("glimpse_test_resnet_se", attn="se"), ValueError, "already says 'se'"),
        (
            lambda: build()(torch.rand(1, 3, 60, 200)),
            ValueError,
            "a glimpse of 64 x 64 pixels does not fit into an image of 60 x 200",
        ),
        (
            lambda: build()(torch.rand(1, 3, 64, 80)),
            ValueError,
            "4 glimpses are more than the 2 that an image of 64 x 80 pixels has room for at 64 x 64",
        ),
        (lambda: visattn.create_model("ram", pretrained=True), ValueError, "ram has no pretrained weights"),
        (lambda: timm.create_model("ram", pretrained=True), ValueError, "ram has no pretrained weights"),
        (lambda: visattn.create_model("ram", attn="cbam"), ValueError, "ram has no feature map that 'cbam'"),
        (lambda: visattn.create_model("ram", glimpse=3), ValueError, "did you mean 'glimpses'"),
        (lambda: timm.create_model("ram", num_classes=1), ValueError, "two or more classes"),
    ],
)
def test_mistakes_are_explained(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("create", [visattn.create_model, timm.create_model])
def test_ram_by_name(create):
    model = create("ram", num_classes=7, glimpses=3, size=6, hidden=None).eval()
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 7)
    assert model.glimpses == 3
    config = resolve_model_data_config(model)
    assert (config["input_size"], config["mean"], config["std"]) == ((1, 28, 28), (0.0,), (1.0,))
    assert config["crop_pct"] == 1
    assert number_of_classes("ram", model.state_dict()) == 7
    colour = resolve_model_data_config(create("ram", in_chans=3))
    assert (colour["input_size"], colour["mean"], colour["std"]) == ((3, 28, 28), 3 * (0.0,), 3 * (1.0,))


# A run

WHAT = {
    "glimpse_test_resnet": "{glimpses: 2, glimpse_size: 32}",
    "ram": "{glimpses: 3, size: 12}",
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*", "ignore:.*pynvml.*")
@pytest.mark.usefixtures("_few_pictures")
@pytest.mark.parametrize("name", WHAT)
def test_a_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = torch.get_rng_state()
    arguments = TINY[4:] if name == "ram" else ["--attn", "eca", *TINY[4:]]
    assert main([*arguments, "--model", name, "--model-options", WHAT[name], "--name", "it"]) == 0
    torch.set_rng_state(state)
    folder = tmp_path / "runs" / "it"
    card = json.loads((folder / "model.json").read_text())
    side, channels = card["input"]["size"][-1], card["input"]["size"][0]
    model, _ = load_model(folder)
    x = torch.rand(2, channels, side, side)
    points, _ = model.fixations(x)
    assert points.shape[:2] == (2, model.scout.glimpses if name != "ram" else 3)
    for weights in (folder, folder / "checkpoints" / "best.ckpt"):
        torch.testing.assert_close(open_trained(None, str(weights)).model(x), model(x))
    (folder / "model.json").unlink()  # as of a run that was killed: config.yaml says it all
    stopped = open_trained(None, str(folder / "checkpoints" / "best.ckpt"))
    torch.testing.assert_close(stopped.model(x), model(x))
    assert list(stopped.input["size"]) == card["input"]["size"]

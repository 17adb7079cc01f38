"""Scores that take parts of images away: equal to their definitions, and able to tell true from false."""

from typing import ClassVar

import numpy as np
import pytest
import timm
import torch
from torch import nn

from tests.reference.scoring import curves, fills
from visattn.scoring.engine import Engine
from visattn.scoring.faithfulness import FAITHFULNESS, drop_and_increase
from visattn.scoring.fills import FILLS, blur, linear, neighbours
from visattn.scoring.ranking import Ranking, Removal, least_first, most_first

BLACK = (-2.0, -1.5)
STEPS = 5


class Linear(nn.Module):
    """Three logits that are linear in the pixels: then the true relevance is known."""

    def __init__(self, channels=2, side=20, classes=3):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.randn(classes, channels, side, side, generator=generator) / 12)

    def forward(self, x):
        return torch.einsum("bchw,kchw->bk", x, self.weight)


@pytest.fixture(scope="module")
def model():
    return Linear().double()


@pytest.fixture(scope="module")
def images():
    return torch.randn(3, 2, 20, 20, generator=torch.Generator().manual_seed(2)).double()


@pytest.fixture(scope="module")
def maps():
    return torch.rand(3, 10, 5, generator=torch.Generator().manual_seed(3))


def asking(model):
    def ask(image):
        with torch.no_grad():
            return model(torch.from_numpy(image)[None]).softmax(1)[0].numpy()

    return ask


def filling(name, image):
    """Fills without noise, from the definitions."""
    if name in ("linear", "neighbours"):
        return getattr(fills, name)
    blank = {"mean": np.zeros_like(image), "black": np.ones_like(image) * np.array(BLACK)[:, None, None]}
    background = fills.blur(image) if name == "blur" else blank[name]
    return lambda image, removed: np.where(removed, background, image)


def expected(name, ask, image, heatmap, target):
    fill = filling(FAITHFULNESS[name].fill or "blur", image)
    shares = [k / STEPS for k in range(STEPS + 1)]
    most, least = (curves.curve(ask, image, heatmap, target, fill, shares, most=most) for most in (True, False))
    return {
        "morf": lambda: curves.rise(most),
        "lerf": lambda: curves.rise(least),
        "srg": lambda: curves.rise(least) - curves.rise(most),
        "deletion": lambda: curves.rise(most),
        "insertion": lambda: curves.insertion(ask, image, heatmap, target, fill, STEPS),
        "positive": lambda: curves.chefer(ask, image, heatmap, target, fill, most=True),
        "negative": lambda: curves.chefer(ask, image, heatmap, target, fill, most=False),
        "road": lambda: curves.road(ask, image, heatmap, target, fill),
        "saco": lambda: curves.saco(ask, image, heatmap, target, fill),
    }[name]()


@pytest.mark.parametrize("name", FAITHFULNESS)
def test_scores_equal_their_definitions(name, model, images, maps, monkeypatch):
    monkeypatch.setattr("visattn.scoring.fills.ACCURACY", 1e-9)
    monkeypatch.setattr("visattn.scoring.fills.NOISE", 0.0)
    engine = Engine(model, images, black=BLACK, batch_size=7)
    found = FAITHFULNESS[name](engine, Ranking(maps), "blur", STEPS)
    ask = asking(model)
    wanted = [expected(name, ask, images[i].numpy(), maps[i].double().numpy(), int(engine.target[i])) for i in range(3)]
    assert found.shape == (3,)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


def test_drop_and_increase_by_hand():
    model = Linear(1, 2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[[[1.0, 2.0], [0.0, -1.0]]], [[[0.0, 0.0], [0.0, 0.0]]]]))
    image = torch.ones(1, 1, 2, 2)  # logits 2 and 0
    engine = Engine(model, image)
    clean = 1 / (1 + np.exp(-2.0))
    for heatmap, logit in (
        ([[0.0, 1.0], [0.0, 0.0]], 2.0),
        ([[0.0, 0.5], [1.0, 0.0]], 1.0),
        ([[4.0, 4.0], [2.0, 0.0]], 3.0),
    ):
        drop, increase = drop_and_increase(engine, Ranking(torch.tensor([heatmap])))
        after = 1 / (1 + np.exp(-logit))
        assert drop.item() == pytest.approx(100 * max(clean - after, 0) / clean, abs=1e-4)
        assert increase.item() == 100 * (after > clean)


@pytest.mark.parametrize("target", [None, 1])
def test_a_true_heatmap_wins_and_an_inverted_one_loses(model, images, target):
    engine = Engine(model, images, target, black=BLACK)
    evidence = (images * model.weight[engine.target]).sum(1).detach()
    random = torch.rand(evidence.shape, generator=torch.Generator().manual_seed(0))
    for name in FAITHFULNESS:
        fill = "mean"
        true, chance, false = (
            FAITHFULNESS[name](engine, Ranking(each), fill, 10).mean() for each in (evidence, random, -evidence)
        )
        assert (true > chance > false) == FAITHFULNESS[name].higher, name
        assert (true < chance < false) != FAITHFULNESS[name].higher, name


# ---- fills


def removed_parts(size, seed=0):
    """Scattered pixels, patches, all but one pixel."""
    random = np.random.default_rng(seed)
    patches = np.kron(random.random((size[0] // 2, size[1] // 2)) < 0.6, np.ones((2, 2))) > 0
    lonely = np.ones(size, bool)
    lonely[3, 5] = False
    return [random.random(size) < 0.5, patches, lonely]


@pytest.mark.parametrize("name", ["linear", "neighbours"])
@pytest.mark.parametrize("size", [(12, 10), (8, 26)])
def test_inpainting(name, size):
    image = np.random.default_rng(1).normal(size=(2, *size))
    masks = removed_parts(size)
    ours = {"linear": linear, "neighbours": neighbours}[name]
    found = ours(torch.from_numpy(np.stack([image] * 3)), torch.from_numpy(np.stack(masks))[:, None])
    for each, mask in zip(found.numpy(), masks, strict=True):
        np.testing.assert_allclose(each, getattr(fills, name)(image, mask), atol=1e-3)
        np.testing.assert_array_equal(each[:, ~mask], image[:, ~mask])


def test_nothing_but_zeros_around_is_no_division_by_zero():
    image = torch.zeros(1, 1, 32, 32)
    image[..., 8, 8] = 1
    removed = torch.ones(1, 1, 32, 32, dtype=torch.bool)
    removed[..., 8:10, 8:10] = removed[..., 20:, 20:] = False
    removed[..., 7, 7:9] = removed[..., 7:9, 7] = False
    found = linear(image, removed)
    assert found.isfinite().all()
    np.testing.assert_allclose(
        found[0].double(), fills.linear(image[0].double().numpy(), removed[0, 0].numpy()), atol=1e-3
    )


@pytest.mark.parametrize("name", ["linear", "neighbours"])
def test_nothing_is_left_to_inpaint_from(name):
    images = torch.randn(1, 3, 9, 7)
    found = {"linear": linear, "neighbours": neighbours}[name](images, torch.ones(1, 1, 9, 7, dtype=torch.bool))
    assert torch.equal(found, torch.zeros_like(images))


# numpy deprecates how grad-cam asks tensors for places
OLD_NUMPY = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")


@OLD_NUMPY
def test_the_linear_fill_is_that_of_the_grad_cam_package():
    from pytorch_grad_cam.metrics.road import NoisyLinearImputer

    image = torch.randn(3, 24, 18, generator=torch.Generator().manual_seed(0))
    for mask in removed_parts((24, 18)):
        kept = torch.from_numpy(~mask).float()
        theirs = NoisyLinearImputer(noise=0.0)(image, kept)
        ours = linear(image[None], torch.from_numpy(mask)[None, None])[0]
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=0)


def test_blur():
    image = np.random.default_rng(0).normal(size=(2, 9, 14))
    np.testing.assert_allclose(blur(torch.from_numpy(image)[None])[0], fills.blur(image), atol=1e-6)


def test_black_is_not_zero():
    model = Linear(1, 2, 2)
    engine = Engine(model, torch.ones(1, 1, 2, 2), black=(-3.0,))
    nothing = Removal(Ranking(torch.rand(1, 2, 2)), 0, 4)
    (found,) = engine.without([nothing], "black")
    with torch.no_grad():
        wanted = model(torch.full((1, 1, 2, 2), -3.0)).softmax(1)[0, engine.target[0]]
    assert found.probability.item() == pytest.approx(wanted.item())


def test_noise_is_that_of_the_image_whatever_the_chunks(images):
    model = Linear().double()
    ranking = Ranking(torch.rand(3, 5, 5))
    removals = most_first(ranking, [0.2, 0.4, 0.6])
    found = [Engine(model, images, batch_size=size).without(removals, "linear") for size in (2, 64)]
    for few, many in zip(*found, strict=True):
        torch.testing.assert_close(few.probability, many.probability)
    other = Engine(model, images, seed=1).without(removals, "linear")
    assert not torch.equal(found[0][0].probability, other[0].probability)


# ---- ranks


def test_equal_cells_are_removed_in_exact_numbers_and_a_random_order():
    flat = torch.zeros(200, 4, 4)
    ranking = Ranking(flat)
    for count in range(17):
        assert (Removal(ranking, 0, count).masks(torch.arange(200), (4, 4)).sum((1, 2, 3)) == count).all()
    first = Removal(ranking, 0, 4).masks(torch.arange(200), (4, 4)).float().mean(0)
    assert first.min() > 0.1  # not in raster order
    assert first.max() < 0.4
    assert torch.equal(ranking.ranks, Ranking(flat).ranks)
    assert not torch.equal(ranking.ranks, Ranking(flat, seed=1).ranks)


def test_larger_cells_come_first_though_others_are_equal():
    ranks = Ranking(torch.tensor([[[0.0, 2.0, 0.0], [1.0, 0.0, -1.0]]])).ranks
    assert ranks[0, 0, 1] == 0
    assert ranks[0, 1, 0] == 1
    assert ranks[0, 1, 2] == 5


def test_cells_are_enlarged_to_whole_patches():
    masks = Removal(Ranking(torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])), 0, 1).masks(torch.arange(1), (6, 4))
    assert masks[0, 0, :3, :2].all()
    assert masks.sum() == 6


def test_removing_the_least_first_is_the_mirror():
    ranking = Ranking(torch.rand(1, 3, 3))
    for share in (0.0, 0.3, 0.5, 1.0):
        (most,), (least,) = most_first(ranking, [share]), least_first(ranking, [share])
        assert most.last - most.first == least.last - least.first


# ---- the engine


def test_nothing_is_asked_twice(model, images, maps):
    engine = Engine(model, images, black=BLACK)
    assert engine.passes == 3  # the clean images
    ranking = Ranking(maps)
    FAITHFULNESS["srg"](engine, ranking, "blur", STEPS)
    assert engine.passes == 3 * (1 + 2 * (STEPS - 1) + 1)
    for name in ("morf", "lerf", "insertion"):
        FAITHFULNESS[name](engine, ranking, "blur", STEPS)
    assert engine.passes == 3 * (1 + 2 * (STEPS - 1) + 1)
    FAITHFULNESS["srg"](engine, Ranking(-maps), "blur", STEPS)
    assert engine.passes == 3 * (1 + 4 * (STEPS - 1) + 1)  # the empty image is shared


@pytest.mark.parametrize("fill", FILLS)
def test_chunks_do_not_matter(model, images, maps, fill):
    found = [
        FAITHFULNESS["srg"](Engine(model, images, black=BLACK, batch_size=size), Ranking(maps), fill, STEPS)
        for size in (1, 5, 64)
    ]
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


def test_the_model_is_left_as_it_was():
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=4).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    engine = Engine(model, torch.rand(2, 3, 64, 64))
    FAITHFULNESS["srg"](engine, Ranking(torch.rand(2, 4, 4)), "blur", 3)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("fill", FILLS)
def test_under_autocast(fill):
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=4)
    images, maps = torch.rand(2, 3, 160, 160), torch.rand(2, 10, 10)
    plain = FAITHFULNESS["srg"](Engine(model, images, black=(-1.0,) * 3), Ranking(maps), fill, 2)
    with torch.autocast("cpu", torch.bfloat16):
        cast = FAITHFULNESS["srg"](Engine(model, images, black=(-1.0,) * 3), Ranking(maps), fill, 2)
    assert cast.dtype == torch.float32
    torch.testing.assert_close(cast, plain, atol=0.02, rtol=0)


class OneLayout(nn.Module):
    """A user's own network, which can read images in one layout only, or in any."""

    seen: ClassVar[list[bool]] = []  # of all copies

    def __init__(self, *, picky):
        super().__init__()
        self.convolution, self.head, self.picky = nn.Conv2d(3, 4, 3), nn.Linear(4 * 6 * 6, 5), picky

    def forward(self, x):
        self.seen.append(x.is_contiguous(memory_format=torch.channels_last))
        features = self.convolution(x)
        return self.head(features.view(len(x), -1) if self.picky else features.flatten(1))


@pytest.mark.parametrize(("picky", "layouts"), [(False, [True, True]), (True, [True, False, False])])
def test_channels_come_last_where_the_network_allows_it(picky, layouts):
    model, images, maps = OneLayout(picky=picky).eval(), torch.rand(2, 3, 8, 8), torch.rand(2, 4, 4)
    OneLayout.seen.clear()
    engine = Engine(model, images)
    [answer] = engine.without(most_first(Ranking(maps), [1.0]), "mean")
    assert engine.passes == 4
    assert OneLayout.seen == layouts
    expected = model(torch.zeros_like(images)).softmax(1).gather(1, engine.target[:, None])[:, 0]
    torch.testing.assert_close(answer.probability, expected.detach())


def test_progress_sees_every_chunk(model, images, maps):
    seen = []

    def track(chunks):
        seen.append(len(chunks))
        return chunks

    engine = Engine(model, images, batch_size=4, track=track)
    engine.without(most_first(Ranking(maps), [0.2, 0.4]), "mean")
    assert seen == [2]


@OLD_NUMPY
def test_agreement_with_the_grad_cam_package(images, monkeypatch):
    """Where definitions agree: probabilities, pixels without ties. Its drop is not relative to what was there."""
    from pytorch_grad_cam.metrics.cam_mult_image import DropInConfidence, IncreaseInConfidence
    from pytorch_grad_cam.metrics.road import NoisyLinearImputer, ROADCombined
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputSoftmaxTarget

    model, images = Linear().eval(), images.float()
    maps = torch.rand(3, 20, 20, generator=torch.Generator().manual_seed(5))
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    maps = (maps - low) / (high - low)
    engine = Engine(model, images)
    targets = [ClassifierOutputSoftmaxTarget(int(each)) for each in engine.target]
    drop, increase = drop_and_increase(engine, Ranking(maps))
    theirs = DropInConfidence()(images, maps.numpy(), targets, model)
    np.testing.assert_allclose(drop / 100 * engine.clean.probability, theirs, atol=1e-5)
    np.testing.assert_allclose(increase / 100, IncreaseInConfidence()(images, maps.numpy(), targets, model))
    monkeypatch.setattr(
        NoisyLinearImputer.__init__, "__defaults__", (0.0, *NoisyLinearImputer.__init__.__defaults__[1:])
    )
    monkeypatch.setattr("visattn.scoring.fills.NOISE", 0.0)
    road = FAITHFULNESS["road"](engine, Ranking(maps), "blur", 10)
    np.testing.assert_allclose(road, ROADCombined()(images, maps.numpy(), targets, model), atol=2e-4)

"""Where a block can go in a network, and what every block does there."""

import subprocess
import sys
import threading
from contextlib import nullcontext

import pytest
import timm
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import visattn
from tests.training import ROOT, environment
from visattn.cli import main
from visattn.counting import count_macs, count_parameters
from visattn.models import attachments, blocks_for
from visattn.models.places import choose, survey_places


def by_at(rows, at):
    return [row.name for row in rows if at in row.at]


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "test_efficientnet"])
def test_the_words_of_at_select_what_attach_changes(name):
    rows = visattn.places(name)
    model = timm.create_model(name)
    assert list(rows) == list(visattn.places(model))
    for at in ("blocks", "stages"):
        if chosen := by_at(rows, at):
            assert sorted(attachments(visattn.attach(model, "se", at=at))) == sorted(chosen)
            visattn.detach(model)


def test_every_place_says_what_is_there():
    rows = {row.name: row for row in visattn.places("test_resnet")}
    found = survey_places(timm.create_model("test_resnet"))
    assert list(rows) == list(found.places())
    row = rows["layer2.0.bn2"]
    assert (row.layout, row.channels, row.height, row.width, row.module, row.at, row.read) == (
        "NCHW", 48, 20, 20, "BatchNorm2d", (), True,
    )  # fmt: skip
    assert [row.height for row in visattn.places("test_resnet", image_size=96) if row.name == "layer2.0.bn2"] == [12]


def test_the_caption_says_which_images_the_sizes_belong_to():
    own = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU())
    assert "1 x 224 x 224" in str(visattn.places(own))
    assert "1 x 32 x 32" in str(visattn.places(own, image_size=32))


def test_what_the_output_does_not_read_is_marked_and_refused():
    model = timm.create_model("test_vit")
    rows = visattn.places(model)
    unread = [row.name for row in rows if not row.read]
    last = f"blocks.{len(model.blocks) - 1}"
    assert last in unread
    assert not [row for row in rows if row.at and not row.read]
    with pytest.raises(ValueError, match="does not reach the output"):
        visattn.attach(model, "se", at=last)
    assert "nothing: the output does not read it" in str(rows)


@pytest.mark.parametrize(
    ("name", "without"), [("test_vit", torch.device("meta")), ("coat_lite_tiny", FakeTensorMode())]
)
def test_what_a_network_without_numbers_reads(name, without):
    expected = visattn.places(timm.create_model(name))
    with without:
        model = timm.create_model(name)
    with without if isinstance(without, FakeTensorMode) else nullcontext():
        assert visattn.places(model) == expected
    assert not all(row.read for row in expected)


def test_places_print_as_a_table():
    lines = repr(visattn.places("test_resnet")).splitlines()
    assert lines[0].split() == ["name", "module", "layout", "at=", "channels", "size"]
    assert lines[-1].startswith("66 places")
    assert len(lines) == 68


class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def test_a_network_of_ones_own_keeps_its_weights_and_its_mode():
    model = Mine()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert [row.name for row in visattn.places(model, image_size=32)] == ["body.0", "body.1", "body"]
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "block"),
    [
        ("resnet18", "cbam"),
        ("resnet18", "eca"),
        ("resnet18", "ge_theta"),
        ("resnet50", "mhsa"),
        ("resnet18", "sk"),
        ("test_vit", "coord"),
        ("test_vit", "mhsa"),
    ],
)
def test_the_cost_is_that_of_the_network_with_the_block(network, block):
    rows = blocks_for(network, block)
    (row,) = rows
    plain, with_block = timm.create_model(network), visattn.create_model(f"{network}_{block}")
    shape = (1, *plain.pretrained_cfg["input_size"])
    assert sorted(row.places) == sorted([*attachments(with_block), *visattn.replacements(with_block)])
    assert rows.parameters == count_parameters(plain)
    assert row.parameters == count_parameters(with_block) - count_parameters(plain)
    assert rows.macs == count_macs(plain, *shape)
    assert row.macs == count_macs(with_block, *shape) - count_macs(plain, *shape)


@pytest.mark.parametrize(
    ("network", "block", "where"),
    [
        ("resnet50", "se", "residual branch, behind bn3"),
        ("resnet50", "simam", "residual branch, behind conv2"),
        ("resnet50", "scsa", "residual branch, behind act2"),
        ("resnet50", "mhsa", "in the place of conv2 in layer4"),
        ("resnet50", "halo", "in the place of conv2"),
        ("resnet50", "bam", "behind layer1.2, layer2.3, layer3.5"),
        ("resnet50", "hard", "behind layer4.2"),
        ("test_convnext", "se", "behind every residual block"),
        ("test_convnext", "nonlocal", "behind every stage"),
        ("vgg11", "se", "behind every stage"),
    ],
)
def test_where_a_block_goes_is_said_in_words(network, block, where):
    (row,) = blocks_for(network, block)
    assert (row.where, row.problem) == (where, None)


def test_a_block_whose_paper_has_no_resnet_says_what_it_has():
    rows = blocks_for("resnet18", "[as]*")
    said = {row.block: row.placed for row in rows}
    assert said["attention_gate"] == (
        "residual branch, behind bn2 (8 places); its paper: the skip connections of a U-Net"
    )
    assert said["se"] == "residual branch, behind bn2 (8 places)"
    assert "its paper: the skip connections of a U-Net" in str(rows)


def test_a_block_that_does_not_fit_says_why():
    narrow = nn.Sequential(nn.Conv2d(3, 5, 3, 2, 1), nn.ReLU(), nn.Flatten(2))
    rows = {row.block: row for row in blocks_for(narrow, "s*", image_size=32)}
    assert rows["splat"].problem == "does not fit: splat: 5 channels cannot be divided into 2 splits x 1 groups"
    assert rows["splat"].problem in str(blocks_for(narrow, "splat", image_size=32))
    assert rows["se"].problem is None


def test_what_a_class_token_leaves_is_computed_once_for_all_blocks(monkeypatch):
    asked = []
    monkeypatch.setattr("visattn.models.advice.choose", lambda *given: asked.append(given[2]) or choose(*given))
    assert len(blocks_for("test_vit")) == len(visattn.list_blocks())
    assert len(asked) == len(set(asked))


def test_the_commands(capsys):
    assert main(["places", "test_resnet"]) == 0
    printed = capsys.readouterr().out
    assert all(row.name in printed for row in visattn.places("test_resnet"))
    assert main(["blocks", "--for", "test_resnet", "--family", "hard"]) == 0
    printed = capsys.readouterr().out
    assert "hard_topk" in printed
    assert "a few places" in printed
    assert "cbam" not in printed


@pytest.mark.slow
def test_nothing_is_downloaded_and_nothing_computed_for_a_large_network():
    code = (
        "import socket, visattn; socket.socket = None; "
        "assert len(visattn.places('convnext_xxlarge')) > 100; "
        "print(visattn.models.blocks_for('convnext_xxlarge', 'se')[0].parameters)"
    )
    ended = subprocess.run([sys.executable, "-c", code], env=environment(), cwd=ROOT, capture_output=True, text=True)
    assert ended.stdout.strip().isdecimal(), ended.stderr


@pytest.mark.parametrize("size", [160, 480])
def test_what_the_output_reads_is_not_computed_at_the_size_of_large_images(size):
    model = timm.create_model("test_vit").eval()
    seen = []
    model.patch_embed.register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    rows = visattn.places(model, image_size=size)
    computed = [each.shape[-1] for each in seen if not each.is_meta]
    assert computed
    assert max(computed) == 160
    assert [row.name for row in rows if not row.read] == [row.name for row in visattn.places(model) if not row.read]


class Odd(nn.Module):
    """A network that holds what cannot be copied, or has weights of whole numbers."""

    def __init__(self):
        super().__init__()
        self.steps = nn.Parameter(torch.ones(3, dtype=torch.int64), requires_grad=False)
        self.lock = threading.Lock()
        self.inner = timm.create_model("test_vit", num_classes=3)
        self.kept = self.inner.pos_embed * 2

    def forward(self, x):
        return self.inner(x)


def test_networks_that_python_cannot_copy():
    model, images = Odd().eval(), torch.rand(1, 3, 160, 160)
    assert "inner.blocks.5" in [row.name for row in visattn.places(model, image_size=160) if not row.read]
    assert count_macs(model, *images.shape) == count_macs(model.inner, *images.shape)
    assert list(visattn.evaluate(model, images, "gradcam", "randomisation").values) == ["randomisation"]
    assert attachments(visattn.attach(model, "se", at="blocks", example=images))


@pytest.mark.parametrize("shape", [(32, 32), (33, 33), (40, 40), (48, 48), (224, 32), (16, 96)], ids=str)
@pytest.mark.parametrize("name", ["resnet18", "test_convnext", "test_efficientnet"])
def test_the_places_do_not_depend_on_the_size_of_the_image(name, shape):
    model = timm.create_model(name).eval()
    if name == "test_convnext" and min(shape) < 32:
        pytest.skip("its convolutions take no smaller images")
    usual, small = survey_places(model), survey_places(model, torch.rand(1, 3, *shape))
    assert list(small.places()) == list(usual.places())
    assert small.blocks() == usual.blocks()
    assert small.stages() == usual.stages()
    assert [place.layout for place in small.places().values()] == [place.layout for place in usual.places().values()]


@pytest.mark.parametrize("block", ["shsa", "se", "bam", "simam", "gsop", "nonlocal", "cbam", "sk"])
def test_blocks_for_small_images_are_those_that_create_model_builds(block):
    (row,) = blocks_for("resnet18", block, image_size=32)
    (usual,) = blocks_for("resnet18", block)
    assert row.problem is None
    assert (row.where, row.places, row.parameters) == (usual.where, usual.places, usual.parameters)


def test_a_network_that_takes_small_images_only_may_have_maps_of_one_pixel():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 8, 2, 2), nn.Flatten(), nn.Linear(8, 2))
    images = torch.rand(1, 3, 4, 4)
    assert list(survey_places(model, images).places()) == ["0"]
    with pytest.raises(ValueError, match="output of '1' may be a map of one pixel for images of 4 x 4, or what was"):
        visattn.attach(model, "se", at="1", example=images)


@pytest.mark.parametrize(("name", "at"), [("resnet18", "global_pool.pool"), ("seresnet50", "layer1.0.se.fc1")])
def test_what_was_pooled_is_called_no_map_where_the_images_show_it(name, at):
    with pytest.raises(ValueError, match=f"the output of '{at}' is not a feature map"):
        visattn.attach(timm.create_model(name), "se", at=at)


class PyramidPooling(nn.Module):
    """A network with small maps for images of every size, that runs without values or looks at them."""

    def __init__(self, looks):
        super().__init__()
        self.looks = looks
        self.stem = nn.Conv2d(3, 8, 8, 8)
        self.pools = nn.ModuleList([nn.AdaptiveAvgPool2d(size) for size in (1, 2, 3)])

    def forward(self, x):
        if self.looks and x.isnan().any():
            raise ValueError("no numbers")
        x = self.stem(x)
        return sum(pool(x).mean((2, 3)) for pool in self.pools)


def survey_of_computed(model, size):
    seen = []
    model.register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    found = survey_places(model, torch.rand(1, 3, size, size))
    return found, [images.shape[-1] for images in seen if not images.is_meta]


@pytest.mark.parametrize(
    ("looks", "size", "expected"), [(False, 64, []), (True, 64, [64, 128]), (True, 224, [224]), (True, 300, [300])]
)
def test_maps_that_never_grow_are_not_computed_for_ever_larger_images(looks, size, expected):
    found, computed = survey_of_computed(PyramidPooling(looks), size)
    assert "stem" in found.places()
    assert computed == expected


def test_channels_are_told_from_rows_in_a_network_that_looks_at_values():
    model = PyramidPooling(looks=True)
    model.stem = nn.Sequential(nn.Conv2d(3, 8, 28, 28), nn.ReLU())
    model.pools = nn.ModuleList()
    found, computed = survey_of_computed(model, 224)
    assert str(found.places()["stem.1"].layout) == "NCHW"
    assert computed == [224, 448]

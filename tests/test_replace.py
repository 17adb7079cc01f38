"""Blocks in the place of convolutions: what a network becomes, that it can be undone, saved and trained."""

import copy
import math
import pickle
import re

import pytest
import timm
import torch
import torch.fx
from torch import nn
from torch._subclasses import FakeTensorMode

import visattn
from visattn.models.replaced import record_of
from visattn.models.replacing import replacing_blocks
from visattn.models.resnet import REPLACING
from visattn.training.classifier import Classifier
from visattn.training.optimisation import new_parts
from visattn.training.settings import Settings

BLOCKS = ["acmix", "aug", "cot", "halo", "involution", "lambda", "lka", "mhsa", "psa", "sasa", "sk", "splat"]
every_block = pytest.mark.parametrize("block", BLOCKS)


def network(**options) -> nn.Module:
    """A ResNet with bottlenecks, whose residual branches count."""
    torch.manual_seed(0)
    options = {"num_classes": 5, "layers": (1, 1, 2, 2), "channels": (16, 32, 32, 64), **options}
    model = timm.models.resnet.ResNet(timm.models.resnet.Bottleneck, zero_init_last=False, **options)
    model(torch.rand(2, 3, 64, 64))
    return model.eval()


def images(side=64):
    return torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(1))


@every_block
def test_torch_fx_traces_a_block_for_maps_of_every_size(block):
    layer = visattn.create_block(block, 16, stride=2).eval()
    traced = torch.fx.symbolic_trace(layer)
    for size in ((7, 5), (12, 9), (1, 1)):
        x = torch.randn(2, 16, *size)
        torch.testing.assert_close(traced(x), layer(x))
        x = x.contiguous(memory_format=torch.channels_last)
        assert traced(x).stride() == layer(x).stride()


def test_which_blocks_can_replace():
    assert set(BLOCKS) <= set(replacing_blocks())
    assert REPLACING.keys() == set(BLOCKS) - {"lka"}


@every_block
@pytest.mark.parametrize(("at", "stride"), [("layer3.1.conv2", 1), ("layer3.0.conv2", 2)])
def test_the_map_keeps_its_shape(block, at, stride):
    model = network()
    old = model.get_submodule(at)
    assert old.stride == (stride, stride)
    visattn.replace(model, block, at=at)
    for size in ((9, 7), (8, 12)):
        x = torch.randn(2, old.in_channels, *size)
        assert model.get_submodule(at)(x).shape == old(x).shape
    assert model(images()).shape == (2, 5)


@pytest.mark.parametrize("block", sorted(set(BLOCKS) - {"lka"}))
def test_another_width_goes_out_than_comes_in(block):
    model = timm.create_model("resnet18")
    visattn.replace(model, block, at="layer2.0.conv1")
    assert model.layer2[0].conv1(torch.randn(2, 64, 9, 6)).shape == (2, 128, 5, 3)


def test_a_large_kernel_has_one_width():
    with pytest.raises(ValueError, match=r"lka multiplies its input.*64 channels.*128"):
        visattn.replace(timm.create_model("resnet18"), "lka", at="layer2.0.conv1")


def test_a_large_kernel_is_averaged():
    block, strided = (visattn.create_block("lka", 8, stride=stride) for stride in (1, 2))
    strided.load_state_dict(block.state_dict())
    x = torch.randn(2, 8, 5, 4)
    assert torch.equal(strided(x)[:, :, :2], nn.functional.avg_pool2d(block(x), 2))


GROUPED = {  # the convolutions that have the groups of the one that was replaced
    **dict.fromkeys(("acmix", "halo", "mhsa", "sasa"), ("qkv",)),
    "aug": ("conv",),
    "cot": ("static.0", "value.0"),
    "lambda": ("value",),
    "lka": ("mix",),
    "psa": ("branches.0", "branches.1", "branches.2", "branches.3"),
    "sk": ("branches.0.0", "branches.1.0"),
    "splat": ("conv",),
}
every_grouped = pytest.mark.parametrize("block", sorted(GROUPED))


def grouped_network() -> nn.Module:
    return network(cardinality=4, base_width=64)


@every_grouped
def test_groups_are_kept(block):
    model = timm.create_model("resnext50_32x4d", device="meta").eval()
    with torch.device("meta"):
        image = torch.empty(1, 3, 64, 64)
    before = model(image).shape
    for options, groups in (({}, 32), ({"groups": 2}, 2)):
        expected = {
            "cot": {math.lcm(groups, 4), groups},
            "psa": {math.lcm(groups, own) for own in (1, 4, 8, 16)},
            "splat": {2 * groups},
        }
        visattn.replace(model, block, at="layer?.2.conv2", **options)
        assert len(visattn.replacements(model)) == 4
        for new in visattn.replacements(model).values():
            assert {new.get_submodule(part).groups for part in GROUPED[block]} == expected.get(block, {groups})
        assert model(image).shape == before
        visattn.detach(model)


def test_blocks_that_can_have_groups():
    assert set(BLOCKS) - GROUPED.keys() == {"involution"}


@pytest.mark.parametrize("block", ["halo", "mhsa", "sasa"])
@pytest.mark.parametrize("groups", [2, 16])
def test_a_head_reads_its_groups_only(block, groups):
    layer = visattn.create_block(block, 32, out_channels=64, groups=groups, heads=4).eval()
    x = torch.randn(1, 32, 6, 5, requires_grad=True)
    apart = min(groups, 4)  # a head of several groups reads all of these
    for number, part in enumerate(layer(x).chunk(apart, dim=1)):
        (read,) = torch.autograd.grad(part.square().sum(), x, retain_graph=True)
        seen = [bool(each.any()) for each in read.chunk(apart, dim=1)]
        assert seen == [other == number for other in range(apart)]


def test_a_block_without_groups_refuses_them():
    model = grouped_network()
    before = list(model.modules())
    with pytest.raises(ValueError, match=r"'layer4.0.conv2': block 'involution' cannot have 4 groups; groups=1 puts"):
        visattn.replace(model, "involution", at="layer4.*.conv2")
    assert list(model.modules()) == before
    visattn.replace(model, "involution", at="layer4.*.conv2", groups=1)
    assert model(images()).shape == (2, 5)
    plain = network()
    with pytest.raises(ValueError, match="block 'involution' cannot have 2 groups"):
        visattn.replace(plain, "involution", at="layer4.*.conv2", groups=2)


@every_grouped
def test_a_grouped_network_is_saved_and_undone(block, tmp_path):
    arguments = {"layers": (1, 1, 1, 1), "channels": (16, 32, 32, 64), "cardinality": 4, "base_width": 64}
    model = timm.create_model("resnet50", **arguments).eval()
    before = model(images())
    visattn.replace(model, block, at="layer[234].0.conv2")
    again, _ = visattn.load_model(visattn.save_model(model, tmp_path, arguments={"name": "resnet50", **arguments}))
    assert torch.equal(again(images()), model(images()))
    assert torch.equal(visattn.detach(model)(images()), before)


def test_the_rest_keeps_its_weights_and_names():
    model = network()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert visattn.replace(model, "mhsa", at=["layer4.?.conv2", "layer1.0.conv2"], heads=2) is model
    assert list(visattn.replacements(model)) == ["layer1.0.conv2", "layer4.0.conv2", "layer4.1.conv2"]
    gone = {f"{place}.weight" for place in visattn.replacements(model)}
    after = model.state_dict()
    assert before.keys() - after.keys() == gone
    assert all(torch.equal(after[key], value) for key, value in before.items() if key not in gone)
    assert all(key.startswith(("layer1.0.conv2.", "layer4.")) for key in after.keys() - before.keys())
    block = model.layer4[0].conv2
    assert block.heads == 2
    assert not block.training
    assert record_of(block).options == {"heads": 2}


@every_block
def test_undo_is_exact(block):
    model = network()
    before, modules, state = model(images()), list(model.modules()), copy.deepcopy(model.state_dict())
    visattn.replace(model, block, at="layer?.?.conv2")
    assert len(visattn.replacements(model)) == 6
    assert not torch.equal(model(images()), before)
    assert visattn.detach(model) is model
    assert all(one is other for one, other in zip(model.modules(), modules, strict=True))
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert torch.equal(model(images()), before)
    assert visattn.replacements(model) == {}
    with pytest.raises(ValueError, match="nothing is attached"):
        visattn.detach(model)


def test_undo_after_training_and_another_precision():
    model = network()
    kept = model.layer4[0].conv2.weight.detach().clone()
    visattn.replace(model, "sk", at="layer4.*.conv2")
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = model.layer4[0].conv2.select.weight.detach().clone()
    for _ in range(2):
        optimizer.zero_grad()
        model(images()).square().mean().backward()
        optimizer.step()
    assert not torch.equal(model.layer4[0].conv2.select.weight, first)
    assert all(parameter.grad is not None for parameter in model.parameters())
    visattn.detach(model.double().eval())
    assert torch.equal(model.layer4[0].conv2.weight, kept.double())
    assert model.layer4[0].bn2.weight.dtype == torch.float64
    assert model(images().double()).dtype == torch.float64


def test_the_record_is_no_part_of_the_network():
    model = network()
    old = model.layer4[0].conv2
    visattn.replace(model, "mhsa", at="layer4.0.conv2")
    assert old not in set(model.modules())
    assert not any(parameter is old.weight for parameter in model.parameters())
    assert not any("replaced" in key for key in model.state_dict())


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_stands_on_its_own(duplicate):
    plain = network()
    expected = plain(images())
    model = visattn.replace(plain, "sk", at="layer4.*.conv2")
    again = duplicate(model)
    assert torch.equal(again(images()), model(images()))
    visattn.detach(again)
    assert torch.equal(again(images()), expected)
    assert list(visattn.replacements(model)) == ["layer4.0.conv2", "layer4.1.conv2"]
    with torch.no_grad():
        again.layer4[0].conv2.weight.zero_()
        again.layer4[0].bn2.weight.zero_()
    visattn.detach(model)
    assert torch.equal(model(images()), expected)


def test_channels_last():
    model = visattn.replace(network(), "mhsa", at="layer?.?.conv2").to(memory_format=torch.channels_last)
    x = images().to(memory_format=torch.channels_last)
    seen = []
    for block in visattn.replacements(model).values():
        block.register_forward_hook(lambda _module, _args, output: seen.append(output))
    model(x)
    assert all(y.is_contiguous(memory_format=torch.channels_last) for y in seen)


def test_attached_blocks_and_replaced_convolutions_together():
    model = network()
    before = model(images())
    visattn.attach(model, "se", at=["layer4.0.conv2", "layer4.0.bn2"])
    visattn.replace(model, "sk", at="layer4.*.conv2")
    visattn.attach(model, "simam", at="layer4.1.conv2")
    assert list(visattn.replacements(model)) == ["layer4.0.conv2", "layer4.1.conv2"]
    assert list(visattn.attachments(model)) == ["layer4.0.conv2", "layer4.0.bn2", "layer4.1.conv2"]
    copied = copy.deepcopy(model)
    assert torch.equal(copied(images()), model(images()))
    for each in (model, copied):
        assert torch.equal(visattn.detach(each)(images()), before)


def test_blocks_go_behind_a_block_but_not_into_it():
    model = visattn.replace(network(), "sk", at="layer4.*.conv2")
    visattn.attach(model, "se", at="layer4.*.conv2*")
    assert list(visattn.attachments(model)) == ["layer4.0.conv2", "layer4.1.conv2"]


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("resnet50_mhsa", [f"layer4.{unit}.conv2" for unit in range(3)]),
        ("resnet18_sk", [f"layer{stage}.{unit}.conv1" for stage in (1, 2, 3, 4) for unit in (0, 1)]),
        ("resnet18_aug", [f"layer{stage}.{unit}.conv1" for stage in (2, 3, 4) for unit in (0, 1)]),
    ],
)
def test_where_the_papers_replace(name, places):
    with torch.device("meta"):
        model = visattn.create_model(name)
    assert list(visattn.replacements(model)) == places
    assert visattn.attachments(model) == {}


def test_tables_of_positions_fit_the_map():
    with torch.device("meta"):
        model = visattn.create_model("resnet50_mhsa")
        small = visattn.create_model("resnet50_mhsa", attn_options={"size": 5})
    assert [len(block.rel_h) for block in visattn.replacements(model).values()] == [2 * 14 - 1, 2 * 7 - 1, 2 * 7 - 1]
    assert [len(block.rel_h) for block in visattn.replacements(small).values()] == [9, 9, 9]


def test_elsewhere_the_names_attach():
    with torch.device("meta"):
        model = visattn.create_model("test_convnext", attn="sk")
    assert visattn.replacements(model) == {}
    assert visattn.attachments(model)


@every_block
def test_saved_and_loaded_again(block, tmp_path):
    model = timm.create_model("test_resnet", num_classes=3)
    visattn.replace(model, block, at="layer?.*.conv2", **({"heads": 2} if block == "mhsa" else {}))
    visattn.attach(model, "se", at="layer2")
    model.train()(images())
    model.eval()
    again, card = visattn.load_model(visattn.save_model(model, tmp_path, classes=["a", "b", "c"]))
    assert torch.equal(again(images(96)), model(images(96)))
    assert list(visattn.replacements(again)) == list(visattn.replacements(model))
    assert card["attachments"][0] == {
        "at": next(iter(visattn.replacements(model))),
        "replace": block,
        "options": {"heads": 2} if block == "mhsa" else {},
    }
    with pytest.raises(ValueError, match="cannot be put back: its weights are not saved with a model"):
        visattn.detach(again)
    assert torch.equal(again(images(96)), model(images(96)))


def test_a_model_by_name_is_saved_and_loaded_again(tmp_path):
    model = visattn.create_model("resnet18_sk", num_classes=2).eval()
    again, card = visattn.load_model(visattn.save_model(model, tmp_path))
    assert card["model"] == {"name": "resnet18", "num_classes": 2}
    assert torch.equal(again(images()), model(images()))


@pytest.mark.parametrize("block", ["sk", "mhsa"])
def test_weights_of_the_plain_network(block):
    plain, model = network(), visattn.replace(network(), block, at="layer4.*.conv2")
    with torch.no_grad():
        plain.fc.weight.add_(1)
    own = {key: value.clone() for key, value in model.state_dict().items() if key.startswith("layer4.0.conv2.")}
    report = visattn.load_state_dict(model, plain.state_dict())
    assert torch.equal(model.fc.weight, plain.fc.weight)
    assert own.keys() <= set(report.new)
    assert {"layer4.0.conv2.weight", "layer4.1.conv2.weight"} <= set(report.ignored)
    assert ("layer4.0.bn2.weight" in report.ignored) == (block == "sk")
    assert all(torch.equal(model.state_dict()[key], value) for key, value in own.items())
    report = visattn.load_state_dict(model, model.state_dict())
    assert (report.new, report.ignored) == ([], [])
    with pytest.raises(ValueError, match="does not fit the model"):
        visattn.load_state_dict(plain, model.state_dict())


def test_new_parts_of_a_run():
    model = visattn.replace(network(), "sk", at="layer4.*.conv2")
    assert list(new_parts(model)) == [model.fc, *visattn.replacements(model).values()]


def test_a_frozen_backbone_trains_its_blocks():
    model = visattn.replace(network(), "sk", at="layer4.*.conv2")
    Classifier(model, Settings(freeze_backbone=True), 5).train()
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if re.match(r"fc\.|layer4\..\.conv2\.", name)}
    assert model.layer4[0].conv2.bn.training
    assert not any(module.training for module in (model.layer4[0], model.layer4[0].bn1, model.layer3))


def test_temporary_copies_do_not_copy_what_is_only_remembered():
    model = visattn.replace(network(), "sk", at="layer4.*.conv2")
    record = record_of(model.layer4[0].conv2)
    shared = visattn.modules.sharing_copy(model)
    assert record_of(shared.layer4[0].conv2) is record


def test_a_heatmap_of_a_replacing_block():
    model = visattn.replace(network(), "mhsa", at="layer4.1.conv2")
    explanation = visattn.explain(model, images(), "gates")
    assert explanation.layers == ("layer4.1.conv2",)


class Odd(nn.Module):
    """Convolutions that no block can stand for, and others."""

    def __init__(self):
        super().__init__()
        self.good = nn.Conv2d(8, 8, 3, padding="same")
        self.point = nn.Conv2d(8, 8, 1)
        self.wide = nn.Conv2d(8, 8, 3, padding=2, dilation=2)
        self.flat = nn.Conv2d(8, 8, 3, padding=1, stride=(2, 1))
        self.bare = nn.Conv2d(8, 8, 3)
        self.mirror = nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")
        self.up = nn.ConvTranspose2d(8, 8, 3)


@pytest.mark.parametrize(
    ("block", "at", "options", "message"),
    [
        ("sk", "point", {}, "'point' cannot be replaced: it is a 1x1 convolution"),
        ("sk", "wide", {}, r"'wide' cannot be replaced: it has a dilation of \(2, 2\)"),
        ("sk", "flat", {}, r"'flat' cannot be replaced: it has a stride of \(2, 1\)"),
        ("sk", "bare", {}, r"'bare' cannot be replaced: it has a padding of \(0, 0\)"),
        (
            "sk",
            "mirror",
            {},
            "'mirror' cannot be replaced: it continues the map by 'reflect'",
        ),
        ("sk", "up", {}, "'up' is a ConvTranspose2d, not a 2-D convolution"),
        ("sk", "goood", {}, "no convolution matches 'goood': did you mean 'good'.* larger than 1x1: good"),
        ("sk", ["good", "none*"], {}, r"no convolution matches 'none\*'"),
        ("sk", [], {}, "at is empty"),
        ("sk", "", {}, "at is empty"),
        ("sk", 3, {}, "at is a name, or a list of names"),
        ("se", "good", {}, "block 'se' cannot take the place of a convolution, only .*sk, splat"),
        ("skk", "good", {}, "unknown block 'skk': did you mean 'sk'"),
        (nn.Identity, "good", {}, "replace takes the name of a block"),
        ("sk", "good", {"stride": 2}, "a block has the stride of the convolution that it replaces"),
        ("sk", "good", {"device": "cpu"}, "a block has the device of the convolution that it replaces"),
        ("sk", "good", {"heads": 2}, "block 'sk' has no argument 'heads'"),
    ],
)
def test_what_cannot_be_replaced(block, at, options, message):
    model = Odd()
    before = list(model.modules())
    with pytest.raises((ValueError, TypeError), match=message):
        visattn.replace(model, block, at=at, **options)
    assert list(model.modules()) == before


def test_no_place_is_replaced_twice():
    model = visattn.replace(network(), "sk", at="layer4.0.conv2")
    for at in ("layer4.*.conv2", "layer4.0.conv2"):
        with pytest.raises(ValueError, match=r"'layer4.0.conv2' has been replaced by 'sk' already"):
            visattn.replace(model, "mhsa", at=at)
    with pytest.raises(ValueError, match=r"'layer4.0.conv2.branches.0.0' is part of a block"):
        visattn.replace(model, "mhsa", at="layer4.0.conv2.branches.0.0")


def test_replace_takes_a_network():
    with pytest.raises(TypeError, match="replace takes a network, got str"):
        visattn.replace("resnet50", "sk", at="layer4.0.conv2")


def test_a_convolution_that_is_used_twice():
    model = nn.Sequential(shared := nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), shared)
    visattn.replace(model, "sk", at="0")
    assert model[0] is model[2]
    assert model[0] is not shared
    visattn.detach(model)
    assert model[0] is model[2] is shared


def test_on_a_device_of_its_own():
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, dtype=torch.float16))
    visattn.replace(model, "sk", at="0")
    assert {(each.device.type, each.dtype) for each in model.parameters()} == {("meta", torch.float16)}
    visattn.detach(model)


def test_replacing_calls_no_hooks():
    model, called = timm.create_model("test_resnet"), []
    model.layer4[0].conv2.register_forward_hook(lambda *_: called.append(True))
    visattn.replace(model, "mhsa", at="layer4.*.conv2")
    assert not called


def test_replace_without_numbers():
    with FakeTensorMode():
        model = visattn.replace(timm.create_model("test_resnet"), "mhsa", at="layer4.*.conv2")
        assert model(torch.rand(2, 3, 64, 64)).shape == (2, 1000)

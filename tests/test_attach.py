"""attach and detach: any block into any network, without changing what it computes."""

import copy
import inspect
import io
import pickle

import onnxruntime
import pytest
import timm
import torch
import torch.multiprocessing
from torch import nn
from torch._subclasses import FakeTensorMode

import visattn
from tests import families
from tests.blocks import OF_EVERY_FAMILY
from tests.models import model_and_images
from tests.survival import SMALL_SWIN
from tests.tiers import mostly_slow
from visattn.blocks import block_info
from visattn.models.image_shape import ImageShape
from visattn.models.layout import Layout, Place, grid, recognise
from visattn.models.places import choose, survey_places
from visattn.models.wrapper import Attached

# A network of every kind, shallower than timm builds it where that changes nothing but the time; and its images' side.
KINDS = {
    "test_resnet": ({}, 64),
    "test_convnext": ({}, 64),
    "test_vit": ({}, 160),
    "test_efficientnet": ({}, 64),
    "test_byobnet": ({}, 64),
    "test_nfnet": ({}, 96),
    "test_mambaout": ({}, 64),
    "vit_tiny_patch16_224": ({"depth": 3}, 224),
    "deit_tiny_distilled_patch16_224": ({"depth": 3}, 224),
    "swin_tiny_patch4_window7_224": (SMALL_SWIN, 112),
    "levit_128s": ({}, 224),
    "densenet121": ({"block_config": (2, 2, 2, 2)}, 64),
    "vit_dwee_patch16_reg1_gap_256": ({"depth": 3}, 256),
}


class SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()),
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


@pytest.mark.parametrize(
    "name",
    mostly_slow(KINDS, "test_resnet", "test_convnext", "test_vit", "swin_tiny_patch4_window7_224", "densenet121"),
)
def test_a_model_of_every_kind(name):
    """Bit for bit the same, trainable, and gone after detach; the sweep does this for every timm module."""
    options, side = KINDS[name]
    model, x = model_and_images(name, size=(side, side), **options)
    assert families.check(model, x, "stages") > 0
    if survey_places(model).blocks():
        assert families.check(model, x, "blocks") > 0


@pytest.mark.sweep
@pytest.mark.parametrize("family", [name for name in timm.list_modules() if name != "visattn"])
def test_every_family(family):
    assert families.row(family, families.smallest(family)).result == "ok"


def test_the_table_of_families_is_complete():
    """A release of timm may bring families that the table does not have yet: they are tried here."""
    rows = [line for line in families.TABLE.read_text().splitlines() if line.startswith("| ") and "`" in line]
    listed = [line.split(" | ")[0].removeprefix("| ") for line in rows]
    assert f"all {len(listed)} of timm's model families" in (families.TABLE.parent.parent / "README.md").read_text()
    for family in set(timm.list_modules()) - {"visattn", *listed}:
        assert families.row(family, families.smallest(family)).result == "ok"


LAYOUTS = {"NCHW": "test_resnet", "tokens": "test_vit", "NHWC": "test_mambaout"}
PAIRS = [f"{block} in {layout}" for layout in LAYOUTS for block in visattn.list_blocks()]
QUICK = [pair for pair in PAIRS if pair.endswith("NCHW") or pair.partition(" ")[0] in OF_EVERY_FAMILY]


@pytest.mark.parametrize("pair", mostly_slow(PAIRS, *QUICK))
def test_every_block_starts_as_the_identity_and_learns(pair):
    block, _, layout = pair.partition(" in ")
    name = LAYOUTS[layout]
    side = 160 if name == "test_vit" else 96
    model, x = model_and_images(name, size=(side, side))
    before = model(x)
    narrow = "rd_ratio" in inspect.signature(block_info(block).factory).parameters
    visattn.attach(model, block, at="stages", **({"rd_ratio": 1 / 2} if narrow else {}))  # no unit dead by chance
    blocks = nn.ModuleList(visattn.attachments(model).values())
    if block_info(block).family == "hard":
        blocks.train()  # the best windows are the best, whatever their energies
    assert torch.equal(model(x), before)
    reached = {name: 0.0 for name, _ in blocks.named_parameters()}
    optimiser = torch.optim.SGD(blocks.parameters(), lr=1)
    for _ in range(4):
        optimiser.zero_grad()
        model(x).square().mean().backward()
        for name, parameter in blocks.named_parameters():
            reached[name] += parameter.grad.abs().sum().item()
        optimiser.step()
    for place, attached in blocks.named_children():
        assert reached[f"{place}.gain"] > 0
        own = [reached[f"{place}.block.{name}"] for name, _ in attached.block.named_parameters()]
        assert not own or max(own) > 0, f"{place} does not learn"


def test_identity_is_a_gain_of_zero_and_paper_has_none():
    model, x = model_and_images("test_resnet")
    before = model(x)
    visattn.attach(model, "cbam")
    assert all(one.gain.item() == 0 for one in visattn.attachments(model).values())
    visattn.detach(model)
    visattn.attach(model, "cbam", init="paper")
    assert all(one.gain is None for one in visattn.attachments(model).values())
    assert not torch.equal(model(x), before)
    assert torch.equal(visattn.attachments(model)["layer1.0"].block.spatial.gate.bn.weight, torch.zeros(1))


def test_checkpoints_cross_the_line_both_ways():
    plain, x = model_and_images("test_resnet")
    attached = visattn.attach(copy.deepcopy(plain), "cbam")
    for parameter in attached.parameters():
        nn.init.normal_(parameter, std=0.1)
    assert [key for key in attached.state_dict() if ".visattn." not in key] == list(plain.state_dict())

    report = visattn.load_state_dict(attached, plain.state_dict())
    assert report.loaded == len(plain.state_dict())
    assert report.new
    assert all(".visattn." in key for key in report.new)
    assert "new in the model" in str(report)
    assert torch.equal(attached.fc.weight, plain.fc.weight)

    with torch.no_grad():
        attached.fc.weight += 1
    report = visattn.load_state_dict(plain, attached.state_dict())
    assert report.ignored
    assert "ignored" in str(report)
    assert torch.equal(attached.fc.weight, plain.fc.weight)

    state = plain.state_dict()
    del state["fc.weight"]
    with pytest.raises(ValueError, match=r"missing: 1 \(fc\.weight\)"):
        visattn.load_state_dict(attached, state)
    attached.eval()
    other = visattn.attach(copy.deepcopy(plain), "cbam").eval()
    assert visattn.load_state_dict(other, attached.state_dict()) == visattn.models.LoadReport(
        len(attached.state_dict()), [], []
    )
    assert torch.equal(other(x), attached(x))


def test_a_plain_checkpoint_loads_strictly(caplog):
    plain, x = model_and_images("test_resnet")
    attached = visattn.attach(timm.create_model("test_resnet", num_classes=10).eval(), "se")
    attached.load_state_dict(plain.state_dict())
    assert torch.equal(attached(x), plain(x))
    assert "the checkpoint has no attached blocks" in caplog.text
    state = attached.state_dict()
    del state["layer1.0.visattn.0.gain"]
    with pytest.raises(RuntimeError, match="Missing key"):
        attached.load_state_dict(state)


def seen(height, width):
    image = ImageShape()
    image.note(torch.empty(1, 3, height, width))
    return image


@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_prefix_tokens_pass_untouched(prefix):
    layout = Layout("tokens", 4, prefix)
    x = torch.randn(2, prefix + 15, 4)
    attached = Attached(
        visattn.create_block("spatial", 4).eval(),
        Place("", layout, (3, 5), (24, 40)),
        torch.ones(1),
        image=seen(30, 50),
    )
    y = attached(x)
    assert torch.equal(y[:, :prefix], x[:, :prefix])
    torch.testing.assert_close(y[:, prefix:], x[:, prefix:] / 2)  # CBAM's spatial gate starts at one half


@pytest.mark.parametrize("layout", [Layout("NCHW", 4), Layout("NHWC", 4), Layout("tokens", 4, 2)], ids=str)
def test_layouts_agree(layout):
    """The same block on the same pixels, however they are arranged, on a map that is not square."""
    block = visattn.create_block("cbam", 4, kernel_size=3).eval()
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    feature = torch.randn(2, 4, 3, 5)
    x = layout.from_map(feature, torch.randn(2, 2 + 15, 4))
    assert torch.equal(layout.to_map(x, (3, 5)), feature)
    for gain in (None, torch.tensor([0.3])):
        y = Attached(block, Place("", layout, (3, 5), (24, 40)), gain, image=seen(24, 40))(x)
        expected = block(feature) if gain is None else feature + 0.3 * (block(feature) - feature)
        torch.testing.assert_close(layout.to_map(y, (3, 5)), expected)


@pytest.mark.parametrize("size", [(48, 80), (32, 96), (64, 128), (160, 224), (256, 128)])
def test_networks_built_for_images_that_are_not_square(size):
    model, _ = model_and_images("vit_tiny_patch16_224", img_size=size)
    x = torch.rand(1, 3, *size)
    before = model(x)
    visattn.attach(model, "se")
    assert {(str(one.place.layout), one.place.layout.channels) for one in visattn.attachments(model).values()} == {
        ("tokens + 1", 192)
    }
    assert len(visattn.attachments(model)) == 11
    assert torch.equal(model(x), before)


def test_the_grid_is_known_however_the_network_is_called():
    """timm's other doors do not pass through the network's own forward."""
    model, _ = model_and_images("test_vit", dynamic_img_size=True)
    visattn.attach(model, "se", at="blocks.0")
    seen = []
    visattn.attachments(model)["blocks.0"].block.register_forward_hook(
        lambda m, args, y: seen.append(tuple(args[0].shape[2:]))
    )
    model(torch.rand(1, 3, 160, 96))
    model.forward_features(torch.rand(1, 3, 96, 160))
    model.forward_intermediates(torch.rand(1, 3, 160, 64))
    assert seen == [(10, 6), (6, 10), (10, 4)]


def test_the_head_is_still_the_last_child():
    model, x = model_and_images("test_resnet")
    visattn.attach(model, "se", init="paper")
    assert list(model.children())[-1] is model.fc
    trunk = nn.Sequential(*list(model.children())[:-1])
    assert trunk(x).shape[:2] == (2, 96)
    kept = [name for name, _ in trunk.named_parameters() if name.endswith("fc1.weight")]
    assert len(kept) == len(visattn.attachments(model)) > 0


def test_stages_of_a_plain_cnn_are_behind_the_activation():
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 2))
    assert survey_places(model, torch.rand(1, 3, 32, 32)).stages() == ["2", "6"]


def test_the_last_stage_is_not_lost():
    """feature_info may name an Identity behind it, or the activation: maps are maps."""
    stages = survey_places(timm.create_model("test_byobnet")).stages()
    assert stages == ["stem", "stages.0", "stages.1", "stages.2", "final_conv"]


def test_stacking_does_not_attach_to_the_blocks_themselves():
    model, _ = model_and_images("test_resnet")
    visattn.attach(model, "se", at="blocks")
    visattn.attach(model, "se", at="blocks", stack=True)
    assert len(visattn.attachments(model)) == 6


def test_other_blocks_at_the_same_place_do_not_load():
    se, _ = model_and_images("test_resnet")
    cbam, _ = model_and_images("test_resnet")
    visattn.attach(se, "se")
    visattn.attach(cbam, "cbam")
    with pytest.raises(ValueError, match=r"the checkpoint has another block at 'layer\d\.0\.visattn\.0'"):
        visattn.load_state_dict(se, cbam.state_dict())


def test_wrong_kinds_are_explained():
    model, _ = model_and_images("test_resnet")
    with pytest.raises(TypeError, match="give a name or a class"):
        visattn.attach(model, visattn.create_block("se", 32), at="layer1")
    with pytest.raises(TypeError, match="attach takes a network, got str"):
        visattn.attach("resnet18", "se")


@pytest.mark.parametrize(
    ("shape", "prefix", "layout"),
    [
        ((2, 64, 14, 14), 0, Layout("NCHW", 64)),
        ((2, 14, 14, 64), 0, Layout("NHWC", 64)),
        ((2, 197, 64), 1, Layout("tokens", 64, 1)),
        ((2, 198, 64), 2, Layout("tokens", 64, 2)),
        ((2, 196, 64), 1, Layout("tokens", 64, 0)),  # CaiT adds its class token late
        ((2, 201, 64), 0, Layout("tokens", 64, 5)),
        ((2, 1000), 0, None),
        ((2, 1, 64), 0, None),
        ((2, 64, 1, 1), 0, None),
    ],
)
def test_layouts_are_recognised(shape, prefix, layout):
    assert recognise(shape, (224, 224), prefix) == layout


def test_grids():
    assert grid(6, (20, 30)) == (2, 3)
    assert grid(7, (10, 10)) == (1, 7)


@pytest.mark.parametrize(
    ("name", "size", "kwargs"),
    [
        ("test_resnet", (96, 160), {}),
        ("test_vit", (160, 96), {"dynamic_img_size": True}),
        ("deit_tiny_distilled_patch16_224", (96, 160), {"dynamic_img_size": True}),
        ("test_mambaout", (96, 160), {}),
    ],
)
def test_images_that_are_not_square(name, size, kwargs):
    model, _ = model_and_images(name, **kwargs)
    x = torch.rand(2, 3, *size)
    before = model(x)
    seen = []
    visattn.attach(model, "cbam", at="blocks")
    for one in visattn.attachments(model).values():
        one.block.register_forward_hook(lambda m, args, y: seen.append(tuple(args[0].shape[2:])))
    assert torch.equal(model(x), before)
    assert all(height * size[1] == width * size[0] for height, width in seen)


def test_your_own_cnn():
    model = SmallCNN().eval()
    x = torch.rand(2, 3, 32, 32)
    before = model(x)
    visattn.attach(model, "eca", at=["features.1", "features.3"])
    assert list(visattn.attachments(model)) == ["features.1", "features.3"]
    assert torch.equal(model(x), before)
    visattn.detach(model)
    visattn.attach(model, "eca", at="features.[13]")
    assert list(visattn.attachments(model)) == ["features.1", "features.3"]


def test_a_sequential_still_runs():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    x = torch.rand(2, 3, 16, 16)
    before = model(x)
    visattn.attach(model, "cbam", at="1", example=x)
    assert torch.equal(model(x), before)
    visattn.detach(model)
    assert len(model) == 5


def test_your_own_block():
    def build(channels, gain=2.0):
        layer = nn.Conv2d(channels, channels, 1, groups=channels, bias=False)
        nn.init.constant_(layer.weight, gain)
        return layer

    model = SmallCNN().eval()
    visattn.attach(model, build, at="features.3", init="paper", gain=3.0)
    x = torch.rand(1, 3, 8, 8)
    torch.testing.assert_close(model(x), model.head(3 * model.features[:3](x).relu().mean((2, 3))))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": "layer9"}, "no 'layer9' here: did you mean"),
        ({"at": ["layer1", "fc"]}, "'fc' is not a feature map: feature maps: conv1"),
        ({"at": "nothing*"}, r"no 'nothing\*' here: feature maps: conv1"),
        ({"at": []}, "at is empty"),
        ({"init": "zero"}, "init is 'identity' or 'paper', got 'zero'"),
        ({"block": "cbm"}, "unknown block 'cbm': did you mean 'cbam'"),
        ({"example": torch.rand(1, 7, 8, 8)}, "could not be run .*: example= does not fit it"),
    ],
)
def test_mistakes_are_explained(options, message):
    model, x = model_and_images("test_resnet")
    before = list(model.state_dict())
    with pytest.raises(ValueError, match=message):
        visattn.attach(model, options.pop("block", "se"), **options)
    assert list(model.state_dict()) == before
    assert model(x).shape == (2, 10)


def test_blocks_that_are_not_there_are_explained():
    with pytest.raises(ValueError, match=r"the network has no residual blocks .*; feature maps: features"):
        visattn.attach(SmallCNN(), "se", at="blocks")
    with pytest.raises(ValueError, match="nothing is attached"):
        visattn.detach(SmallCNN())


def test_places_without_effect_are_refused():
    """Behind the last block of a ViT only the class token is read: a block on the patches would do nothing."""
    model, _ = model_and_images("test_vit", global_pool="token", class_token=True)
    with pytest.raises(ValueError, match=r"blocks\.5 does not reach the output"):
        visattn.attach(model, "se", at="blocks.5")
    with pytest.raises(ValueError, match=r"blocks\.5 does not reach the output"):
        visattn.attach(model, "se", at=["blocks.*", "blocks.5"])
    with pytest.raises(ValueError, match=r"blocks\.5 does not reach the output"):
        visattn.attach(model, "se", at=["blocks.4", "blocks.[5]"])
    found = survey_places(model)
    assert [place.name for place in choose(model, found, "blocks.?")] == [f"blocks.{i}" for i in range(5)]
    assert [place.name for place in choose(model, found, "blocks")] == [f"blocks.{i}" for i in range(5)]
    assert [place.name for place in choose(model, found, "stages")] == ["blocks.4"]
    pooled, _ = model_and_images("test_vit", global_pool="avg", class_token=False)
    assert [place.name for place in choose(pooled, survey_places(pooled), "stages")] == ["blocks.5"]


def test_twice_at_one_place_only_if_asked_for():
    model, x = model_and_images("test_resnet")
    before = model(x)
    visattn.attach(model, "se", at="stages")
    with pytest.raises(ValueError, match="'layer1' already has a block attached; stack=True"):
        visattn.attach(model, "cbam", at="stages")
    visattn.attach(model, "cbam", at="layer1", stack=True)
    assert [name for name in visattn.attachments(model) if "layer1" in name] == ["layer1", "layer1#2"]
    assert torch.equal(model(x), before)


def test_nothing_but_the_blocks_changes():
    """Modes, gradients, hooks and random numbers are as before; detach leaves no trace."""
    model, x = model_and_images("test_vit")
    model.train()
    model.blocks[0].eval()
    model(x).sum().backward()
    modes = [module.training for module in model.modules()]
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    weights = copy.deepcopy(model.state_dict())
    visattn.attach(model, "simam", at="blocks")
    visattn.detach(model)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(p.grad, gradients[name]) for name, p in model.named_parameters() if p.grad is not None)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def learned(name="test_resnet", block="cbam"):
    model, x = model_and_images(name)
    visattn.attach(model, block, at="stages")
    for one in visattn.attachments(model).values():
        nn.init.constant_(one.gain, 0.3)
    return model, x


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_independent(name, duplicate):
    model, x = learned(name)
    other = duplicate(model)
    before = model(x)
    assert torch.equal(other(x), before)
    for one in visattn.attachments(other).values():
        nn.init.zeros_(one.gain)
    assert not torch.equal(other(x), before)
    assert torch.equal(model(x), before)
    visattn.detach(other)
    assert torch.equal(model(x), before)


def test_saved_weights_come_back():
    model, x = learned()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = visattn.attach(timm.create_model("test_resnet", num_classes=10).eval(), "cbam", at="stages")
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x), model(x))


@pytest.mark.parametrize("name", mostly_slow(["test_resnet", "test_convnext", "test_vit"], "test_vit"))
@pytest.mark.slow
def test_compiles_without_graph_breaks(name):
    torch._dynamo.reset()
    model, x = learned(name)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", mostly_slow(["test_resnet", "test_vit"], "test_vit"))
@pytest.mark.slow
def test_exports(name, tmp_path):
    model, x = learned(name)
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-5)
    file = tmp_path / "model.onnx"
    torch.onnx.export(model, (x,), file, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(output), model(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "test_vit"])
def test_features_only(name):
    torch.manual_seed(0)
    model = timm.create_model(name, features_only=True).eval()
    x = torch.rand(2, *model.pretrained_cfg["input_size"])
    before = model(x)
    visattn.attach(model, "cbam", at="stages")
    assert all(torch.equal(a, b) for a, b in zip(model(x), before, strict=True))
    for one in visattn.attachments(model).values():
        nn.init.constant_(one.gain, 0.5)
    assert not torch.equal(model(x)[-1], before[-1])


def _train_in_two_processes(rank, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model, batch = learned("test_vit", "se")
    replica = nn.parallel.DistributedDataParallel(model)
    optimiser = torch.optim.SGD(replica.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        replica(batch[rank : rank + 1]).square().mean().backward()
        optimiser.step()
    if rank == 0:
        torch.save(model.state_dict(), f"{folder}/weights.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_distributed_data_parallel(tmp_path):
    """Two processes with one image each end with the weights of one process with both."""
    torch.multiprocessing.spawn(_train_in_two_processes, (str(tmp_path),), nprocs=2)
    model, batch = learned("test_vit", "se")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        model(batch).square().mean().backward()
        optimiser.step()
    trained = torch.load(tmp_path / "weights.pt", weights_only=True)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trained[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_what_is_attached_in_inference_mode_can_be_trained():
    model, x = timm.create_model("test_resnet").eval(), torch.rand(1, 3, 64, 64)
    before = model(x)
    with torch.inference_mode():
        visattn.attach(model, "cbam")
    after = model(x)
    assert torch.equal(after, before)
    after.sum().backward()


def test_a_network_without_weights():
    model, x = nn.Sequential(nn.AvgPool2d(2), nn.ReLU()), torch.rand(1, 3, 8, 8)
    before = model(x)
    visattn.attach(model, "se", at="0", example=x)
    assert torch.equal(model(x), before)
    assert sum(parameter.numel() for parameter in model.parameters()) > 0


class Sized(nn.Module):
    """A block that notes the sizes of maps with numbers, and may take only one of them."""

    def __init__(self, channels, seen, only=None):
        super().__init__()
        self.seen, self.only = seen, only
        self.weight = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x):
        if self.only not in (None, x.shape[-1]):
            raise RuntimeError(f"only {self.only} pixels")
        if not x.is_meta:
            self.seen.append(x.shape[-1])
        return 2 * self.weight * x


@pytest.mark.parametrize(("only", "expected"), [(None, [32]), (224, [224])])
def test_a_block_is_tried_on_a_small_map_first(only, expected):
    seen = []
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1))
    visattn.attach(network, lambda channels: Sized(channels, seen, only), "0")
    assert seen == expected


@pytest.mark.parametrize("block", ["nonlocal", "axial"])
def test_a_large_map_is_not_computed(block):
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1))
    computed = []
    network[1].register_forward_hook(
        lambda module, args, output: None if output.is_meta else computed.append(output.shape)
    )
    visattn.attach(network, block, "2")
    assert not computed


def test_attach_without_numbers():
    with FakeTensorMode():
        model = visattn.attach(timm.create_model("test_resnet"), "cbam")
        assert model(torch.rand(2, 3, 64, 64)).shape == (2, 1000)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "at"), [("test_vit", "blocks.[0-3]"), ("test_resnet", "layer?.0.bn2")])
def test_a_block_has_the_precision_of_the_map_and_not_of_the_layer(name, at, dtype):
    """The norms of a network in half precision are often kept in single precision."""
    model, images = model_and_images(name)
    model.to(dtype)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.BatchNorm2d):
            module.float()
    images = images.to(dtype)
    before = model(images)
    visattn.attach(model, "se", at=at)
    assert torch.equal(model(images), before)
    assert {each.dtype for block in visattn.attachments(model).values() for each in block.parameters()} == {dtype}


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_blocks_go_to_the_same_places_in_inference_mode(name):
    expected = visattn.attach(timm.create_model(name), "se")
    listed = visattn.places(name)
    with torch.inference_mode():
        built = timm.create_model(name)
        assert visattn.places(name) == listed
        created = visattn.create_model(name, attn="se")
    assert not any(parameter.is_inference() for parameter in created.parameters())
    assert list(created.state_dict()) == list(visattn.create_model(name, attn="se").state_dict())
    with torch.inference_mode():
        visattn.attach(built, "se")
    assert list(built.state_dict()) == list(expected.state_dict())


def test_patch_attention_made_in_inference_mode_can_be_trained():
    model = timm.create_model("test_vit")
    with torch.inference_mode():
        visattn.attach(model, "patch", score="general")
    assert not any(parameter.is_inference() for parameter in model.parameters())


class ChannelsLast(nn.Module):
    """Maps of 8 x 8 pixels, for images of 32 x 32, with 8 channels, which come last."""

    def __init__(self, fixed=False):
        super().__init__()
        self.fixed = fixed
        self.first = nn.Conv2d(3, 8, 4, 4)
        self.last = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))

    def forward(self, x):
        """(B, 8)."""
        if self.fixed and x.shape[-1] != 32:
            raise ValueError("images of 32 x 32")
        return self.last(self.first(x).permute(0, 2, 3, 1)).mean((1, 2))


def test_channels_are_told_from_rows_and_columns():
    found = {row.name: row.layout for row in visattn.places(ChannelsLast(), image_size=32)}
    assert found == {"first": "NCHW", "last.0": "NHWC", "last.1": "NHWC", "last": "NHWC"}
    found = {row.name: row.layout for row in visattn.places(ChannelsLast(fixed=True), image_size=32)}
    assert found == {"first": "NCHW", "last.0": "NHWC", "last.1": "NHWC"}


def test_a_name_with_brackets_is_a_name():
    model, x = nn.Sequential(), torch.rand(1, 3, 32, 32)
    for name, channels in (("a[0]", 3), ("a0", 8)):
        model.add_module(name, nn.Conv2d(channels, 8, 3, padding=1))
    visattn.attach(model, "se", at="a[0]", example=x)
    assert list(visattn.attachments(model)) == ["a[0]"]
    visattn.detach(model)
    visattn.replace(model, "mhsa", at="a[0]")
    assert isinstance(model.get_submodule("a0"), nn.Conv2d)
    assert not isinstance(model.get_submodule("a[0]"), nn.Conv2d)


def test_a_network_with_a_part_of_our_name():
    model = nn.Sequential(nn.Sequential(), nn.Conv2d(8, 8, 1))
    model[0].visattn = nn.Conv2d(3, 8, 3, padding=1)
    x = torch.rand(1, 3, 32, 32)
    before = model(x)
    visattn.attach(model, "se", at=["0.visattn", "1"], example=x)
    assert torch.equal(model(x), before)
    state = {key: value + 1 for key, value in model.state_dict().items()}
    assert model.load_state_dict(state)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    visattn.detach(model)
    with pytest.raises(ValueError, match="'0' has a part called 'visattn', where its blocks would be kept: rename"):
        visattn.attach(model, "se", at="0", example=x)

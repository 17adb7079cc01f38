import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from torch import nn

import visattn
from visattn.blocks import FAMILIES, base, block_info
from visattn.core import Attention
from visattn.hard import RAM
from visattn.registry import Registry
from visattn.training.building import create_classifier, create_source
from visattn.training.settings import Settings

README = (Path(__file__).parent.parent / "README.md").read_text()
FIRST_24 = [
    *("se", "ese", "cse", "eca", "ge", "gc", "srm", "fca", "gct", "sk", "splat"),
    *("spatial", "sse", "residual", "lka"),
    *("scse", "bam", "cbam", "coord", "simam", "triplet"),
    *("nonlocal", "mhsa", "double"),
]


@pytest.fixture
def _scratch_registry(monkeypatch):
    """Names that a test registers are gone afterwards."""
    monkeypatch.setattr(base, "BLOCKS", Registry("block", {name: block_info(name) for name in base.BLOCKS}))


def test_the_first_24_blocks_are_there():
    assert len(FIRST_24) == 24
    assert set(FIRST_24) <= set(visattn.list_blocks())


def test_names_are_sorted_and_can_be_filtered():
    names = visattn.list_blocks()
    assert names == sorted(names)
    assert visattn.list_blocks("*se") == ["cse", "ese", "scse", "se", "sse"]
    assert visattn.list_blocks("s*e", family="spatial") == ["sge", "sse"]
    assert sorted(name for family in FAMILIES for name in visattn.list_blocks(family=family)) == names
    assert visattn.list_blocks("nothing*") == []


def test_classes_can_be_imported_by_name():
    from visattn.blocks import CBAM, NonLocal, SqueezeExcite

    assert isinstance(visattn.create_block("cbam", 16), CBAM)
    assert isinstance(visattn.create_block("se", 16), SqueezeExcite)
    assert isinstance(visattn.create_block("nonlocal", 16), NonLocal)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: visattn.create_block("cbm", 16), ValueError, "unknown block 'cbm': did you mean 'cbam'"),
        (lambda: visattn.create_block("qqqq", 16), ValueError, "unknown block 'qqqq': known: .*bam, "),
        (lambda: visattn.create_block("se", 16, rd_ration=2), TypeError, "no argument 'rd_ration': did you mean 'rd_r"),
        (lambda: visattn.create_block("se", 16, zzz=2), TypeError, "valid: rd_ratio, bias, device, dtype"),
        (lambda: visattn.create_block("se", 0), ValueError, "positive number of channels, got 0"),
        (lambda: visattn.create_block("se", 16.5), ValueError, "positive number of channels, got 16.5"),
        (lambda: visattn.list_blocks(family="chanel"), ValueError, "family 'chanel': did you mean 'channel'"),
        (lambda: visattn.register_block("x", family="odd", paper="p"), ValueError, "unknown block family 'odd'"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.usefixtures("_scratch_registry")
def test_users_add_their_own():
    @visattn.register_block("mine", family="channel", paper="unpublished")
    class Mine(nn.Module):
        def __init__(self, channels, *, gain=2.0):
            super().__init__()
            self.channels = channels
            self.gain = gain

        def forward(self, x):
            return x * self.gain

    x = torch.ones(1, 3, 2, 2)
    assert torch.equal(visattn.create_block("mine", 3, gain=3.0)(x), 3 * x)
    assert "mine" in visattn.list_blocks(family="channel")
    assert block_info("mine").paper == "unpublished"
    with pytest.raises(ValueError, match="block 'mine' is already registered"):
        visattn.register_block("mine", family="spatial", paper="p")(Mine)


@pytest.mark.usefixtures("_scratch_registry")
def test_a_factory_with_kwargs_takes_anything():
    visattn.register_block("loose", family="channel", paper="p")(lambda channels, **kw: nn.Identity(channels, **kw))
    assert isinstance(visattn.create_block("loose", 3, anything=1), nn.Identity)


def test_a_taken_name_is_refused():
    with pytest.raises(ValueError, match="block 'se' is already registered"):
        visattn.register_block("se", family="channel", paper="p")(nn.Identity)


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint16, torch.tensor], ids=lambda kind: kind.__name__)
def test_any_integer_is_a_number_of_channels(kind):
    assert visattn.create_block("se", kind(16)).fc1.in_channels == 16
    block = visattn.create_block("eca", kind(16), kernel_size=kind(5))
    assert type(block.conv.kernel_size[0]) is int
    assert visattn.create_block("ge_theta", 16, size=(kind(7), kind(5))).size == (7, 5)
    assert Attention(kind(16), heads=kind(4)).heads == 4
    assert RAM(glimpses=kind(3)).glimpses == 3


def test_other_floats_are_numbers_too():
    assert visattn.create_block("hard", 16, glimpses=np.float32(0.25)).glimpses == 0.25
    assert visattn.create_block("se", 16, rd_ratio=np.float16(0.5)).fc1.out_channels == 8


HALVE = re.search(r"(@visattn.register_block.*?)\n```", README, re.DOTALL)[1]


@pytest.fixture
def halve(_scratch_registry):
    """The block of the README, which takes neither device nor dtype."""
    exec(HALVE, {"visattn": visattn, "nn": nn, "torch": torch})


@pytest.mark.usefixtures("halve")
def test_the_readmes_block_goes_where_ours_go(tmp_path):
    block = visattn.create_block("halve", 4, device="meta", dtype=torch.float64)
    assert block.gain.device.type == "meta"
    assert block.gain.dtype == torch.float64
    assert visattn.create_block("halve", 4, dtype=torch.float16).gain.dtype == torch.float16
    x = torch.rand(2, 3, 64, 64)
    model = visattn.create_model("test_resnet_halve", num_classes=3).eval()
    assert visattn.create_model("test_resnet", attn="halve", attn_options={"gain": 0.25})(x).shape == (2, 1000)
    visattn.attach(model, "halve", at="layer1", gain=np.float32(0.75), stack=True)
    visattn.save_model(model, tmp_path / "model", classes=["a", "b", "c"])
    again, card = visattn.load_model(tmp_path / "model")
    assert torch.equal(again(x), model(x))
    assert {each["block"] for each in card["attachments"]} == {"halve"}
    half = timm.create_model("test_resnet").half()
    assert visattn.attachments(visattn.attach(half, "halve", at="layer1"))["layer1"].block.gain.dtype == torch.float16


@pytest.mark.usefixtures("halve")
def test_the_readmes_block_is_trained():
    settings = Settings(model="test_resnet", attn="halve", attn_options={"gain": 0.25})
    model = create_classifier(settings, create_source(settings)).model
    assert {type(each.block).__name__ for each in visattn.attachments(model).values()} == {"Halve"}
    model(torch.rand(2, 3, 64, 64)).sum().backward()
    assert all(each.block.gain.grad is not None for each in visattn.attachments(model).values())


@pytest.mark.usefixtures("_scratch_registry")
def test_a_factory_that_builds_nothing_is_explained():
    visattn.register_block("nothing", family="channel", paper="p")(lambda channels: None)
    with pytest.raises(TypeError, match="block 'nothing' is not a module but NoneType"):
        visattn.create_block("nothing", 8)

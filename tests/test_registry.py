import pytest
import torch
from torch import nn

import visattn
from visattn.blocks import FAMILIES, base, block_info
from visattn.registry import Registry

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
    assert visattn.list_blocks("s*", family="spatial") == ["spatial", "sse"]
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
        (lambda: visattn.create_block("qqqq", 16), ValueError, "unknown block 'qqqq': known: bam, cbam"),
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

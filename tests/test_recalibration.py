"""What only some of the blocks of tests/blocks/recalibration.py do: counts, narrow maps, maps without variance."""

import pytest
import timm
import torch

import visattn
from tests.reference.blocks import ecam
from visattn.blocks.ecam import hidden_width
from visattn.counting import count_parameters

BLOCKS = ["ceca", "ecam", "lct", "gct_gaussian", "gsop", "fcattention", "nam", "sge", "shuffle", "polarized_parallel",
          "polarized_sequential", "parnet", "psa", "ela", "gam"]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "narrow", "wide"),
    [
        ("ceca", 3, 5),
        ("ecam", 41, 225),
        ("lct", 128, 512),
        ("gct_gaussian", 0, 0),
        ("gsop", 107_712, 230_784),
        ("fcattention", 4_164, 65_798),
        ("nam", 128, 512),
        ("sge", 128, 128),
        ("shuffle", 6, 12),
        ("polarized_parallel", 8_256, 131_328),
        ("polarized_sequential", 7_064, 111_200),
        ("parnet", 45_440, 722_432),
        ("psa", 27_121, 433_732),
        ("ela", 576, 2_304),
        ("gam", 25_872, 410_688),
    ],
)
def test_counts(name, narrow, wide):
    """Parameters at 64 and 256 channels."""
    assert [count_parameters(visattn.create_block(name, c)) for c in (64, 256)] == [narrow, wide]


def test_widths_of_timm():
    """Kernels and hidden widths, for every number of channels."""
    for channels in range(1, 4097):
        assert hidden_width(channels) == timm.layers.make_divisible(channels / 8, 8)
    for channels in (1, 2, 16, 100, 128, 512, 2048):
        circular, mlp = (visattn.create_block(name, channels) for name in ("ceca", "ecam"))
        assert circular.conv.kernel_size == mlp.conv.kernel_size == (ecam.kernel_size(channels),)
        theirs = timm.layers.CecaModule(channels), timm.layers.EcaModule(channels, use_mlp=True)
        assert [count_parameters(m) for m in (circular, mlp)] == [count_parameters(m) for m in theirs]


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6, 17])
def test_narrow_maps(name, channels):
    """They work, on a single pixel too, or the definition forbids it."""
    if (name == "shuffle" and channels % 2) or (name == "psa" and channels % 4):
        with pytest.raises(ValueError, match=rf"(even|multiple).*{channels}"):
            visattn.create_block(name, channels)
        return
    block = visattn.create_block(name, channels).eval()
    for size in ((1, 1), (1, 6), (5, 3)):
        x = torch.randn(1, channels, *size)
        assert block(x).shape == x.shape
        assert block(x).isfinite().all()


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_gradients_of_constant_maps(name, value):
    """Where nothing varies, variances are zero and roots have no derivative."""
    block = visattn.create_block(name, 16)
    x = torch.full((2, 16, 4, 4), value, requires_grad=True)
    block(x).sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in block.parameters())


def test_nam_without_scales():
    block = visattn.create_block("nam", 16)
    torch.nn.init.zeros_(block.bn.weight)
    x = torch.randn(2, 16, 5, 5)
    torch.testing.assert_close(block(x), x / 2)


def test_nam_learns_through_the_norm_only():
    """The share of a scale is taken as given, as in the authors' code."""
    block = visattn.create_block("nam", 2).eval()
    x = torch.tensor([1.0, 0.0]).view(1, 2, 1, 1)
    block(x).sum().backward()
    slope = torch.tensor(0.5).sigmoid() * (1 - torch.tensor(0.5).sigmoid()) / 2  # of x * sigmoid(share * gamma * x)
    torch.testing.assert_close(block.bn.weight.grad, torch.stack([slope, torch.zeros(())]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ceca", {"kernel_size": 4}, "odd"),
        ("ceca", {"kernel_size": 35}, "around 16 channels"),
        ("ecam", {"kernel_size": 4}, "odd"),
        ("fcattention", {"kernel_size": 4}, "odd"),
        ("lct", {"groups": 3}, "3 groups do not divide 16"),
        ("lct", {"groups": 16}, "one channel each"),
        ("gct_gaussian", {"width": 0}, "width"),
        ("gsop", {"dim": 0}, "dim"),
        ("gsop", {"dim": 5000}, "dim"),
        ("sge", {"groups": 5}, "5 groups do not divide 16"),
        ("shuffle", {"groups": 16}, "16 groups of two halves"),
        ("psa", {"rd_ratio": 0}, "rd_ratio"),
        ("ela", {"kernel_size": 2}, "odd"),
        ("ela", {"group_width": 5}, "groups of 5"),
        ("ela", {"group_width": 0}, "group_width"),
        ("ela", {"norm_groups": 3}, "3 groups of the norm"),
        ("gam", {"rd_ratio": -1}, "rd_ratio"),
    ],
)
def test_bad_settings_are_explained(name, options, message):
    with pytest.raises(ValueError, match=message):
        visattn.create_block(name, 16, **options)

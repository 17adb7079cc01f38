"""Parameter counts and MACs of whole networks, exactly as published."""

import pytest
import timm
import torch
from torch import nn

import visattn
from visattn.counting import count_macs, count_parameters

# Units per stage and channels at the end of each stage.
RESNETS = {
    18: ([2, 2, 2, 2], [64, 128, 256, 512]),
    34: ([3, 4, 6, 3], [64, 128, 256, 512]),
    50: ([3, 4, 6, 3], [256, 512, 1024, 2048]),
    101: ([3, 4, 23, 3], [256, 512, 1024, 2048]),
}
BASE = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160}

# A ResNet with one block in every unit. Sources: the authors' code, see each block's docstring.
PUBLISHED = {
    ("se",): {18: 11_778_592, 34: 21_958_868, 50: 28_088_024, 101: 49_326_872},
    ("se", ("bias", False)): {18: 11_776_552, 34: 21_954_856, 50: 28_071_976, 101: 49_292_328},
    ("fca",): {18: 11_776_552, 34: 21_954_856, 50: 28_071_976, 101: 49_292_328},
    ("cbam",): {18: 11_779_392, 34: 21_960_468, 50: 28_089_624, 101: 49_330_172},
    ("srm",): {18: 11_697_192, 34: 21_812_776, 50: 25_617_448, 101: 44_679_208},
    ("triplet",): {18: 11_691_912, 34: 21_802_472, 50: 25_561_832, 101: 44_559_060},
    ("coord",): {18: 11_764_248, 34: 21_933_168, 50: 27_474_864, 101: 48_174_608},
    ("gc",): {18: 11_780_760, 34: 21_963_132, 50: 28_105_032, 101: 49_363_481},
    ("simam",): BASE,
    ("ge",): BASE,
    ("eca",): {18: BASE[18] + 36, 34: BASE[34] + 74, 50: BASE[50] + 86, 101: BASE[101] + 171},
}
ROWS = [(key, depth, count) for key, counts in PUBLISHED.items() for depth, count in counts.items()]


def added(name, depth, **options):
    units, widths = RESNETS[depth]
    return sum(
        n * count_parameters(visattn.create_block(name, c, **options)) for n, c in zip(units, widths, strict=True)
    )


@pytest.mark.parametrize("depth", RESNETS)
def test_plain_resnets(depth):
    with torch.device("meta"):
        model = timm.create_model(f"resnet{depth}")
    assert count_parameters(model) == BASE[depth]


@pytest.mark.parametrize(("key", "depth", "count"), ROWS, ids=str)
def test_resnet_with_a_block_in_every_unit(key, depth, count):
    name, *options = key
    assert BASE[depth] + added(name, depth, **dict(options)) == count


@pytest.mark.parametrize(("depth", "count"), [(18, 11_712_503), (34, 21_820_663), (50, 25_915_099), (101, 44_907_227)])
def test_resnet_with_bam_after_three_stages(depth, count):
    blocks = [count_parameters(visattn.create_block("bam", c)) for c in RESNETS[depth][1][:3]]
    assert BASE[depth] + sum(blocks) == count


@pytest.mark.parametrize(
    ("depth", "kernels", "count"),
    [(18, "3577", 44), (34, "3357", 72), (50, "3557", 80), (101, "3357", 157)],
)
def test_eca_with_the_released_kernels(depth, kernels, count):
    units, widths = RESNETS[depth]
    blocks = [visattn.create_block("eca", c, kernel_size=int(k)) for c, k in zip(widths, kernels, strict=True)]
    assert sum(n * count_parameters(b) for n, b in zip(units, blocks, strict=True)) == count


@pytest.mark.parametrize(
    ("name", "depth", "count"),
    [
        ("ge_theta", 50, 31_106_600),
        ("ge_theta", 101, 53_545_512),
        ("ge_theta_plus", 50, 33_637_592),
        ("ge_theta_plus", 101, 58_323_224),
    ],
)
def test_gather_excite_with_global_kernels(name, depth, count):
    units, widths = RESNETS[depth]
    rows = zip(units, widths, (56, 28, 14, 7), strict=True)
    blocks = [n * count_parameters(visattn.create_block(name, c, size=size)) for n, c, size in rows]
    assert BASE[depth] + sum(blocks) == count


def replace_each(model, kind, build):
    """Put our block in the place of each of timm's."""
    places = [(name, module) for name, module in model.named_modules() if isinstance(module, kind)]
    for name, module in places:
        model.set_submodule(name, build(module))
    return len(places)


def test_resnest50():
    model = timm.create_model("resnest50d")
    number = replace_each(
        model, timm.layers.SplitAttn, lambda m: visattn.create_block("splat", m.conv.in_channels, radix=m.radix)
    )
    assert number == 16
    assert count_parameters(model) == 27_483_240


def test_sknet50():
    """Strided units keep timm's block, as ours has no stride; they have the same parameters."""
    model = timm.create_model("skresnext50_32x4d")
    number = replace_each(
        model, timm.layers.SelectiveKernel, lambda m: visattn.create_block("sk", m.in_channels, groups=32)
    )
    assert number == 16
    assert count_parameters(model) == 27_479_784


@pytest.mark.parametrize(
    ("name", "size", "macs"),
    [
        ("resnet18", 224, 1_814_073_344),
        ("resnet50", 224, 4_089_184_256),
        ("vit_base_patch16_224", 224, 17_563_828_224),
        ("swin_tiny_patch4_window7_224", 224, 4_490_566_656),
    ],
)
def test_macs_of_known_networks(name, size, macs):
    with torch.device("meta"):
        model = timm.create_model(name)
    assert count_macs(model, 1, 3, size, size) == macs


def test_counting_leaves_the_module_alone():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    mean = module[1].running_mean.clone()
    assert count_macs(module, 2, 3, 5, 5) == 2 * 4 * 3 * 9 * 9
    assert module.training
    assert module[0].weight.device.type == "cpu"
    assert torch.equal(module[1].running_mean, mean)

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
    ("sge",): {18: 11_690_536, 50: 25_559_080},
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


# At 64 and 256 channels. Sources: counted in the authors' code, see each block's docstring.
CONVOLUTIONAL = {
    ("ema",): (48, 672),
    ("mlca",): (6, 10),
    ("lska",): (5_952, 72_960),
    ("lska", ("kernel_size", 7)): (5_184, 69_888),
    ("deformable_lka",): (396_372, 1_634_196),
    ("caa",): (9_856, 137_728),
    ("cpca",): (11_780, 102_416),
    ("cpca", ("rd_ratio", 1 / 4)): (13_328, 127_040),
    ("scsa",): (1_024, 4_096),
    ("lsk",): (11_334, 118_470),
    ("strip",): (8_384, 82_688),
    ("msca",): (11_200, 93_952),
    ("danet",): (5_202, 82_242),
    ("mhca",): (71_920, 1_147_840),
    ("mhca", ("rd_ratio", 2)): (574_016, 9_177_344),
    ("attention_gate",): (14_593, 230_401),
    ("attention_gate", ("rd_ratio", 1)): (24_897, 394_497),
}


@pytest.mark.parametrize(("key", "counts"), CONVOLUTIONAL.items(), ids=str)
def test_gates_of_large_kernels(key, counts):
    name, *options = key
    blocks = [visattn.create_block(name, channels, device="meta", **dict(options)) for channels in (64, 256)]
    assert tuple(count_parameters(block) for block in blocks) == counts


def test_resnet_with_scsa_on_the_inner_channels():
    assert count_parameters(visattn.create_model("resnet50", attn="scsa")) == 25_617_448


def test_gsop_in_the_last_unit_of_every_stage():
    with torch.device("meta"):
        model = visattn.create_model("resnet50_gsop")
    assert list(visattn.attachments(model)) == ["layer1.2.bn3", "layer2.3.bn3", "layer3.5.bn3", "layer4.2.bn3"]
    assert count_parameters(model) == 28_285_224


@pytest.mark.parametrize(("depth", "count"), [(50, 22_561_715), (101, 38_900_279)])
def test_epsanet(depth, count):
    """A pyramid in the place of every 3x3 convolution: 22.56 M and 38.90 M."""
    with torch.device("meta"):
        assert count_parameters(visattn.create_model(f"resnet{depth}_psa")) == count


@pytest.mark.parametrize(
    ("name", "published", "count"),
    [
        ("resnext50_32x4d_sk", 27.5, 27_479_784),  # SKNet-50; timm's skresnext50_32x4d to the last digit
        ("resnext101_32x4d_sk", None, 48_736_040),  # SKNet-101: 48.9 M, of which 0.16 M are not reproduced
        ("resnet50d_splat", 27.5, 27_483_240),  # ResNeSt-50; timm's resnest50d to the last digit
        ("resnet50_mhsa", 20.8, 20_852_008),  # BoTNet-50
        ("resnet50_sasa", 18.0, 18_015_504),
        ("resnet50_aug", 25.8, 25_821_936),
        ("resnet101_aug", 45.4, 45_409_472),
        ("resnet50_lambda", 15.0, 14_995_592),
        ("resnet50_cot", 22.2, 22_222_416),  # CoTNet-50
        ("resnet50_involution", 15.5, 15_530_356),  # RedNet-50 has 15.54 M, 10,450 of them more in its stem
        ("resnet50_acmix", None, 18_333_976),
        ("resnet50_halo", None, 18_032_024),
    ],
)
def test_networks_whose_convolutions_are_replaced(name, published, count):
    with torch.device("meta"):
        model = visattn.create_model(name)
    assert count_parameters(model) == count
    assert published is None or abs(count / 1e6 - published) < 0.06


# Counted by hand from the authors' code or the definition, at 64 and 256 channels.
COUNTED = {
    ("sasa",): (12_344, 196_832),
    ("halo",): (12_624, 197_952),
    ("axial", ("size", 7)): (17_920, 268_000),
    ("axial", ("size", 56)): (21_056, 280_544),
    ("criss_cross",): (5_201, 82_241),
    ("external",): (16_576, 164_608),
    ("efficient",): (8_352, 131_712),
    ("efficient", ("rd_ratio", 1.0)): (16_640, 263_168),
    ("linear",): (16_640, 263_168),
    ("performer",): (16_384, 262_144),
    ("focused_linear", ("size", 1)): (16_976, 264_512),
    ("lambda",): (14_768, 45_584),
    ("aug", ("size", 56)): (58_144, 628_208),
    ("cot",): (26_744, 417_248),
    ("acmix",): (17_822, 218_414),
}


@pytest.mark.parametrize(("key", "counts"), COUNTED.items(), ids=str)
def test_parameters_of_a_block(key, counts):
    name, *options = key
    assert tuple(count_parameters(visattn.create_block(name, c, **dict(options))) for c in (64, 256)) == counts


@pytest.mark.parametrize(
    ("name", "size", "macs"),
    [
        ("resnet18", 224, 1_814_073_344),
        ("resnet50", 224, 4_089_184_256),
        ("vit_base_patch16_224", 224, 17_563_828_224),
        ("swin_tiny_patch4_window7_224", 224, 4_490_566_656),
        ("resnext50_32x4d_sk", 224, 4_462_710_784),  # SKNet-50: 4.47 G; timm's skresnext50_32x4d to the last digit
        ("resnext101_32x4d_sk", 224, 8_448_724_992),  # SKNet-101: 8.46 G
        ("resnet50d_splat", 224, 5_371_160_576),  # timm's resnest50d to the last digit
    ],
)
def test_macs_of_known_networks(name, size, macs):
    with torch.device("meta"):
        model = visattn.create_model(name)
    assert count_macs(model, 1, 3, size, size) == macs


class Latents(nn.Module):
    """A view of a parameter goes into a child, as in a perceiver."""

    def __init__(self):
        super().__init__()
        self.latents = nn.Parameter(torch.zeros(4, 8))
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(self.latents.expand(len(x), -1, -1))


def test_counting_where_a_parameter_is_an_input():
    assert count_macs(Latents(), 2, 3) == 2 * 4 * 8 * 8


def test_counting_leaves_the_module_alone():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    mean = module[1].running_mean.clone()
    assert count_macs(module, 2, 3, 5, 5) == 2 * 4 * 3 * 9 * 9
    assert module.training
    assert module[0].weight.requires_grad
    assert module[0].weight.device.type == "cpu"
    assert torch.equal(module[1].running_mean, mean)

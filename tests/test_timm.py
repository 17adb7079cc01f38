"""timm's own blocks: the same output for the same weights where the definitions agree, a named difference elsewhere."""

import pytest
import timm.layers
import timm.layers.coord_attn
import torch
from torch import nn

import visattn
from tests.blocks import randomise
from visattn.counting import count_parameters


def copied(source, target):
    """Both modules with the same random weights; they register them in the same order."""
    randomise(source)
    assert [p.shape.numel() for p in source.parameters()] == [p.shape.numel() for p in target.parameters()]
    with torch.no_grad():
        for ours, theirs in zip(target.parameters(), source.parameters(), strict=True):
            ours.copy_(theirs.view_as(ours))
        for ours, theirs in zip(target.buffers(), source.buffers(), strict=True):
            ours.copy_(theirs)
    return source.double().eval(), target.double().eval()


@pytest.fixture
def x():
    return torch.randn(2, 128, 9, 7, dtype=torch.float64)


def test_squeeze_excite(x):
    theirs, ours = copied(timm.layers.SEModule(128, rd_ratio=1 / 16), visattn.create_block("se", 128))
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-12, atol=1e-12)


def test_squeeze_excite_rounds_in_timm():
    """timm rounds the bottleneck to a multiple of eight: 8 where the paper (and the published count) has 4."""
    assert timm.layers.SEModule(64, rd_ratio=1 / 16).fc1.out_channels == 8
    assert visattn.create_block("se", 64).fc1.out_channels == 4


@pytest.mark.parametrize("channels", [64, 128, 256, 512, 1024, 2048])
def test_efficient_channel(channels):
    theirs, ours = copied(timm.layers.EcaModule(channels), visattn.create_block("eca", channels))
    x = torch.randn(2, channels, 3, 2, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-12, atol=1e-12)


def test_selective_kernel(x):
    theirs = timm.layers.SelectiveKernel(128, groups=32, rd_channels=32, split_input=False)
    theirs, ours = copied(theirs, visattn.create_block("sk", 128))
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-12, atol=1e-12)


def test_selective_kernel_splits_its_input_in_timm():
    """timm's default gives each branch half of the channels; in the paper both see all of them."""
    assert timm.layers.SelectiveKernel(128, groups=32).paths[0].conv.in_channels == 64
    assert visattn.create_block("sk", 128).branches[0][0].in_channels == 128


@pytest.mark.parametrize(("radix", "groups"), [(1, 1), (2, 1), (2, 2), (4, 1)])
def test_split_attention(x, radix, groups):
    theirs = timm.layers.SplitAttn(128, radix=radix, groups=groups, norm_layer=nn.BatchNorm2d)
    theirs, ours = copied(theirs, visattn.create_block("splat", 128, radix=radix, groups=groups))
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-12, atol=1e-12)


def test_global_context_multiplies_in_timm(x):
    """The paper adds; timm's default 'gc' multiplies by a sigmoid. Its fusion by addition is the paper's block."""
    paper = timm.layers.GlobalContext(128, fuse_add=True, fuse_scale=False, rd_ratio=1 / 16, rd_divisor=1)
    theirs, ours = copied(paper, visattn.create_block("gc", 128))
    theirs.mlp_add.norm.eps = ours.norm.eps  # 1e-6 in timm, PyTorch's 1e-5 in the authors' code
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-12, atol=1e-12)
    default = timm.layers.GlobalContext(128).double().eval()
    ratio = default(x) / x
    torch.testing.assert_close(ratio, ratio[..., :1, :1].expand_as(x))


def test_non_local_scales_by_the_wrong_width_in_timm():
    """timm divides by sqrt(C) although its keys have fewer channels; ours by sqrt of the keys' width."""
    theirs = timm.layers.NonLocalAttn(256)
    ours = visattn.create_block("nonlocal", 256)
    assert theirs.scale == 256**-0.5
    query, key = torch.ones(1, 1, 128), torch.ones(1, 2, 128)
    assert ours.attend.score(query, key)[0, 0, 0].item() == pytest.approx(128 * 128**-0.5)


def test_coordinate_attention_has_another_width_in_timm():
    assert count_parameters(visattn.create_block("coord", 320)) == 10_270
    assert count_parameters(timm.layers.coord_attn.CoordAttn(320)) == 15_392


SIZES = [(64, 64), (96, 96), (128, 128), (160, 160), (224, 224), (288, 288), (128, 192), (320, 240)]
NAMES = timm.list_models(module="visattn")


def runs_where_it_says(name):
    """At the sizes that its configuration allows, and at no other."""
    model = timm.create_model(name).eval().to("meta")
    config = model.pretrained_cfg
    channels, *native = config["input_size"]
    smallest = config.get("min_input_size")
    assert smallest == timm.get_pretrained_cfg(name).min_input_size
    for size in SIZES:
        allowed = tuple(native) == size if config.get("fixed_input_size") else True
        if smallest is not None:
            allowed = all(side >= least for side, least in zip(size, smallest[1:], strict=True))
        image = torch.empty(1, channels, *size, device="meta")
        if allowed:
            assert model(image).shape == (1, model.num_classes)
        else:
            with pytest.raises((ValueError, AssertionError)) as error:  # timm asserts
                model(image)
            assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        *("resnet18_ge_theta", "resnet18_ge_theta_plus", "resnet18_fca", "resnet18_mhsa", "resnet18_hard"),
        *("vit_tiny_patch16_224_cosine", "glimpse_resnet18"),
    ],
)
def test_a_name_runs_at_the_sizes_that_its_configuration_states(name):
    runs_where_it_says(name)


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"ram"}))
def test_every_name_runs_at_the_sizes_that_its_configuration_states(name):
    runs_where_it_says(name)


def test_ram_runs_at_any_size():
    model = timm.create_model("ram").eval()
    for size in [*SIZES, (5, 9)]:
        assert model(torch.rand(1, 1, *size)).shape == (1, 10)


def test_gather_excite_runs_at_any_size_when_it_is_told_to():
    model = visattn.create_model("resnet18", attn="ge_theta", attn_options={"size": None}).eval()
    assert model.pretrained_cfg.get("min_input_size") is None
    assert model(torch.rand(1, 3, 64, 96)).shape == (1, 1000)


def test_fewer_glimpses_need_less_room():
    model = visattn.create_model("glimpse_resnet18", glimpses=1, glimpse_size=64).eval()
    assert model.pretrained_cfg["min_input_size"] == (3, 64, 64)
    assert model(torch.rand(1, 3, 64, 64)).shape == (1, 1000)

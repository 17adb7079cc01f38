"""What only some of the blocks of tests/blocks/transformers.py do: counts, narrow maps, and what they are equal to."""

import pytest
import timm.models.volo
import torch

import visattn
from tests.blocks import Case
from tests.blocks.transformers import OUTPUT
from visattn.counting import count_parameters


@pytest.mark.parametrize(
    ("name", "options", "narrow", "wide"),
    [
        ("outlook", {}, 18_786, 297_864),
        ("aft", {}, 24_512, 294_656),
        ("emsa", {}, 17_480, 266_312),
        ("bra", {}, 18_304, 269_824),
        ("deformable", {}, 20_018, 272_840),
        ("deformable", {"size": 7}, 18_898, 268_360),
        ("cga", {}, 9_604, 93_316),
        ("cas", {}, 23_424, 339_456),
        ("irmb", {}, 48_384, 685_056),
        ("dilated", {}, 16_640, 263_168),
        ("hilo", {}, 14_592, 248_832),
        ("hilo", {"heads": 8, "alpha": 0.5}, 14_592, 230_400),
        ("agent", {}, 24_826, 295_912),
        ("agent", {"size": 7}, 23_454, 290_424),
        ("shsa", {}, 4_925, 70_972),
        ("generalized", {}, 20_673, 328_449),
        ("generalized", {"heads": 9}, 20_351, 323_321),
        ("generalized", {"terms": "0010"}, 12_417, 197_121),
        ("perceiver", {}, 54_784, 808_960),
    ],
)
def test_counts(name, options, narrow, wide):
    """Parameters at 64 and 256 channels: those of the authors' code, of aft and perceiver by arithmetic."""
    blocks = [visattn.create_block(name, channels, device="meta", **options) for channels in (64, 256)]
    assert [count_parameters(block) for block in blocks] == [narrow, wide]


@pytest.mark.parametrize("name", OUTPUT)
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6, 7, 17, 36])
def test_narrow_maps(name, channels):
    """They work, on a single pixel too, and in training, or the definition forbids it."""
    if name == "generalized" and channels % 4:
        with pytest.raises(ValueError, match=f"multiple of four channels, got {channels}"):
            visattn.create_block(name, channels)
        return
    block = visattn.create_block(name, channels)
    for batch, height, width in ((1, 1, 1), (1, 1, 6), (1, 9, 1), (2, 5, 3)):
        x = torch.randn(batch, channels, height, width, requires_grad=True)
        block.train(batch > 1)
        y = block(x)
        assert y.shape == x.shape
        y.square().sum().backward()
        assert x.grad.isfinite().all()
        assert block.attention(x).isfinite().all()


@pytest.mark.parametrize("name", ["cga", "cas", "irmb", "shsa"])
def test_a_single_number_cannot_be_normalised_in_training(name):
    with pytest.raises(ValueError, match="one number per channel, so it cannot be trained on a single image"):
        visattn.create_block(name, 16)(torch.randn(1, 16, 1, 1))


@pytest.mark.parametrize("training", [False, True])
def test_emsa_of_a_single_pixel(training):
    """Less its mean, a single weight is zero."""
    block = Case("emsa").build().train(training)
    x = torch.randn(2, 16, 1, 1, dtype=torch.float64)
    torch.testing.assert_close(block(x), block.out.bias[:, None, None].expand_as(x))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("emsa", {}),
        ("aft", {}),
        ("bra", {"regions": 2}),
        ("deformable", {}),
        ("cga", {}),
        ("hilo", {}),
        ("irmb", {"window": 4}),
        ("agent", {}),
        ("shsa", {}),
        ("generalized", {}),
        ("perceiver", {}),
    ],
)
def test_weights_are_distributions(name, options):
    """On maps made of whole windows."""
    block = Case(name, options).build()
    weights = block.attention(torch.randn(2, 16, 4, 4, dtype=torch.float64))
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_outlook_of_timm():
    theirs = timm.models.volo.OutlookAttention(64, num_heads=2, stride=2, qkv_bias=False).eval()
    ours = visattn.create_block("outlook", 64)
    with torch.no_grad():
        for mine, other in ((ours.value, theirs.v), (ours.energies, theirs.attn), (ours.out, theirs.proj)):
            mine.weight.copy_(other.weight[:, :, None, None])
            if other.bias is not None:
                mine.bias.copy_(other.bias)
    x = torch.randn(2, 64, 9, 6)
    torch.testing.assert_close(ours(x), theirs(x.movedim(1, -1)).movedim(-1, 1), rtol=1e-4, atol=1e-5)


def test_the_perceiver_knows_no_positions():
    block = Case("perceiver").build()
    x, order = torch.randn(2, 16, 7, 5, dtype=torch.float64), torch.randperm(35)

    def shuffle(t):
        return t.flatten(2)[..., order].view_as(t)

    torch.testing.assert_close(block(shuffle(x)), shuffle(block(x)))


def test_attention_to_all_regions_is_attention():
    """With every region chosen, routing changes nothing."""
    some, one = (Case("bra", {"regions": n, "topk": n * n}).build() for n in (3, 1))
    x = torch.randn(2, 16, 6, 9, dtype=torch.float64)
    torch.testing.assert_close(some(x), one(x))


@pytest.mark.parametrize(
    ("channels", "heads", "dilations"),
    [(72, 3, 3), (96, 3, 3), (144, 6, 3), (192, 6, 3), (64, 4, 4), (256, 8, 4), (16, 4, 4), (100, 4, 4), (10, 2, 2),
     (7, 1, 1), (6, 3, 3)],
)  # fmt: skip
def test_heads_and_dilations(channels, heads, dilations):
    block = visattn.create_block("dilated", channels)
    assert (block.heads, block.dilations) == (heads, tuple(range(1, dilations + 1)))


@pytest.mark.parametrize(("heads", "dilations"), [(6, 3), (8, 4), (2, 2), (1, 1), (12, 3)])
def test_dilations_of_given_heads(heads, dilations):
    assert len(visattn.create_block("dilated", 48, heads=heads).dilations) == dilations


def test_points_of_deformable_attention():
    """Without offsets they are the centres of the pixels, and they never move further than asked."""
    block = Case("deformable", {"heads": 4, "groups": 2, "reach": 1.5}).build()
    x = 100 * torch.randn(2, 16, 5, 4, dtype=torch.float64)
    moved = block.points(x)
    with torch.no_grad():
        block.offset.out.weight.zero_()
    still = block.points(x)
    assert moved.shape == (2, 2, 20, 2)
    torch.testing.assert_close(still[0, 0, :, 0].view(5, 4)[:, 0], torch.tensor([-0.8, -0.4, 0, 0.4, 0.8]).double())
    distance = (moved - still).abs() * torch.tensor([5, 4])
    assert 1 < distance.max() <= 1.5
    assert not torch.allclose(moved[:, 0], moved[:, 1])

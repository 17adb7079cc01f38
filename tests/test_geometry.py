"""What rows and columns of attention maps stand for, checked by changing one patch of the image."""

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

import visattn
from tests.models import model_and_images
from visattn.heatmaps.propagation import without_padding
from visattn.heatmaps.watch.calls import Fused
from visattn.heatmaps.watch.geometry import geometry
from visattn.heatmaps.watch.interception import intercepting
from visattn.heatmaps.watch.layers import Grid, Tokens


def first_calls(model, images, number=1):
    calls = []
    with torch.no_grad(), intercepting(model, lambda call: calls.append(call)):
        model(images)
    return calls[:number]


# Models whose first attention works on patches that do not overlap.
PATCHES = {
    "test_vit": 16,
    "swin_tiny_patch4_window7_224": 4,
    "nest_tiny": 4,
    "twins_svt_small": 4,
    "samvit_base_patch16_224": 16,
    "deit_tiny_distilled_patch16_224": 16,
    "crossvit_tiny_240": 12,
    "vit_small_patch14_reg4_dinov2": 14,
    "cait_xxs24_224": 16,
}
# The first layers are enough, and those behind them take time.
SHALLOW = {
    "samvit_base_patch16_224": {"depth": 2},
    "deit_tiny_distilled_patch16_224": {"depth": 2},
    "cait_xxs24_224": {"depth": 2},
    "vit_small_patch14_reg4_dinov2": {"depth": 2, "img_size": 224},
    "twins_svt_small": {"depths": (1, 1, 1, 1)},
    "swin_tiny_patch4_window7_224": {"depths": (2, 2), "num_heads": (3, 6)},
    "davit_tiny": {"depths": (1, 1, 1, 1)},
}


@pytest.mark.parametrize("name", PATCHES)
def test_a_changed_patch_changes_the_tokens_that_stand_for_it(name):
    """The only thing that is assumed is that a token of the first layer depends on its own patch alone."""
    options = SHALLOW.get(name, {})
    model, _ = model_and_images(name, number=0, **options)
    side = options.get("img_size", model.pretrained_cfg["input_size"][-1])
    patch = PATCHES[name]
    images = torch.rand(2, 3, side, side)
    layer = geometry(model, images).layers[0]
    row, column = (side // patch) // 3, (side // patch) * 2 // 3
    changed = images.clone()
    changed[1, :, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch] += 0.5
    before, after = first_calls(model, images)[0], first_calls(model, changed)[0]
    values = layer.arrange((before.value != after.value).float())  # (B, windows, heads, N, d)
    touched = values.flatten(2, 2).amax((2, 4)).bool() if values.ndim == 5 else None
    assert not touched[0].any()  # the other image of the batch
    grid = layer.keys.grid
    assert grid.size == (side // patch, side // patch)
    assert (layer.keys.index[touched[1]] == row * grid.size[1] + column).all()
    assert touched[1].sum() == 1
    centre = patch * row + (patch - 1) / 2, patch * column + (patch - 1) / 2
    assert (grid.rows[row], grid.columns[column]) == pytest.approx(centre)


def test_images_that_are_not_square():
    model, _ = model_and_images("test_vit", number=0, img_size=(96, 160))
    layer = geometry(model, torch.rand(1, 3, 96, 160)).layers[0]
    assert layer.keys.grid.size == (6, 10)
    assert layer.keys.index[0].tolist() == [-2, *range(60)]


def shifted_windows(side, window, shift):
    """(windows, tokens): the patches of each window after a cyclic shift, as Swin's paper describes it."""
    index = [[r * side + c for c in range(side)] for r in range(side)]
    moved = [[index[(r + shift) % side][(c + shift) % side] for c in range(side)] for r in range(side)]
    return [
        [moved[r][c] for r in range(top, top + window) for c in range(left, left + window)]
        for top in range(0, side, window)
        for left in range(0, side, window)
    ]


def test_shifted_windows():
    model = timm.create_model("swin_tiny_patch4_window7_224", depths=(2, 2), num_heads=(3, 6)).eval()
    layers = geometry(model, torch.rand(1, 3, 224, 224)).layers
    for layer, side, shift in zip(layers[:4], (56, 56, 28, 28), (0, 3, 0, 3), strict=True):
        assert layer.queries.index.tolist() == shifted_windows(side, 7, shift)
        assert layer.keys is layer.queries


def test_block_and_grid_windows():
    model = timm.create_model("maxvit_pico_rw_256").eval()
    block, grid = geometry(model, torch.rand(1, 3, 256, 256)).layers[:2]
    assert block.queries.index.tolist() == shifted_windows(64, 8, 0)
    spread = [[(8 * r + i) * 64 + 8 * c + j for r in range(8) for c in range(8)] for i in range(8) for j in range(8)]
    assert grid.queries.index.tolist() == spread


def test_fewer_keys_and_pooled_queries():
    pvt = geometry(timm.create_model("pvt_v2_b0").eval(), torch.rand(1, 3, 224, 224)).layers[0]
    assert (pvt.queries.grid.size, pvt.keys.grid.size, pvt.kind) == ((56, 56), (7, 7), "global, fewer keys")
    levit = geometry(timm.create_model("levit_128s").eval(), torch.rand(1, 3, 224, 224)).layers
    down = next(layer for layer in levit if "downsample" in layer.name)
    assert (down.queries.grid.size, down.keys.grid.size) == ((7, 7), (14, 14))
    assert down.queries.grid.rows == down.keys.grid.rows[::2]


@pytest.mark.slow
def test_class_and_channel_attention():
    images = torch.rand(1, 3, 224, 224)
    cait, davit = (timm.create_model(name, **SHALLOW[name]).eval() for name in ("cait_xxs24_224", "davit_tiny"))
    assert [layer.kind for layer in geometry(cait, images).layers] == ["global"] * 2 + ["class attention"] * 2
    assert [layer.kind for layer in geometry(davit, images).layers[1::2]] == ["not spatial"] * 4
    model = timm.create_model("edgenext_xx_small").eval()
    with pytest.raises(ValueError, match=r"rollout does not work on this EdgeNeXt: .* between channels"):
        visattn.explain(model, torch.rand(1, 3, 256, 256), "rollout")
    with pytest.raises(ValueError, match=r"'stages\.0\.blocks\.0\.1\.attn' is not spatial"):
        visattn.explain(davit, images, "attention", layer="stages.0.blocks.0.1.attn")


@pytest.mark.slow
def test_heads_in_the_batch_and_windows_beside_them():
    """SAM flattens heads into the batch, Hiera has windows behind the heads, Twins before them."""
    for name, windows, heads in (
        ("samvit_base_patch16_224", 1, 12),
        ("hiera_tiny_224", 49, 1),
        ("twins_svt_small", 64, 2),
    ):
        model, images = model_and_images(name, number=3, **SHALLOW.get(name, {}))
        layer = geometry(model, images).layers[0]
        assert (layer.windows, layer.heads) == (windows, heads)
        (together,) = first_calls(model, images)
        (alone,) = first_calls(model, images[2:])
        torch.testing.assert_close(
            layer.arrange(together.weights())[2:], layer.arrange(alone.weights()), atol=1e-5, rtol=1e-4
        )


def test_geometry_is_found_once_and_again_when_the_model_changes():
    model, images = model_and_images("test_vit", number=1)
    assert geometry(model, images) is geometry(model, images)
    before = geometry(model, images)
    visattn.attach(model, "nonlocal", at=["blocks.2"])
    assert len(geometry(model, images).layers) == 7
    visattn.detach(model)
    assert len(geometry(model, images).layers) == 6
    assert len(before.layers) == 6
    calls = first_calls(model, images, number=6)
    assert all(isinstance(call, Fused) for call in calls)


def test_what_the_output_reads():
    """The class token, or the patches that are pooled; found by what influences the output."""
    images = torch.rand(1, 3, 160, 160)
    token, _ = model_and_images("test_vit", number=0)
    last = geometry(token, images).layers[-1]
    assert last.read[0].nonzero().flatten().tolist() == [0]
    pooled, _ = model_and_images("test_vit", number=0, global_pool="avg", class_token=False)
    assert geometry(pooled, images).layers[-1].read.all()
    latent, _ = model_and_images("test_vit", number=0, global_pool="map", class_token=False)
    layers = geometry(latent, images).layers
    assert layers[-1].kind == "class attention"
    assert layers[-1].read.all()
    assert not layers[-2].read.any()  # patches reach the output through the pooling attention only


def test_a_mean_of_all_patches_is_a_token_without_a_place():
    """CLIP's attention pooling puts the mean in front of the patches and reads it alone."""
    model = nn.Sequential(nn.Conv2d(3, 16, 8, stride=8), timm.layers.AttentionPool2d(16, 8, 4, num_heads=4))
    images = torch.rand(2, 3, 64, 64)
    (layer,) = geometry(model, images).layers
    assert layer.keys.grid.size == (8, 8)
    assert layer.queries.index[0].tolist() == [-2, *range(64)]
    assert layer.read[0].nonzero().flatten().tolist() == [0]
    with visattn.capture(model) as maps, torch.no_grad():
        model(images)
    e = visattn.explain(model, images, "rollout")
    torch.testing.assert_close(e.raw.flatten(1), maps["1"].mean(1)[:, 0, 1:] / 2)


class HeadsFirst(nn.Module):
    """Attention with the heads before the batch."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 8, stride=8)
        self.qkv = nn.Linear(8, 24)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        tokens = self.embed(x).flatten(2).mT
        q, k, v = self.qkv(tokens).unflatten(2, (3, 4, 2)).permute(2, 3, 0, 1, 4)  # (3, heads, B, N, d)
        context = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.head((tokens + context.permute(1, 2, 0, 3).flatten(2)).mean(1))


def test_the_batch_may_stand_behind_the_heads():
    model, images = HeadsFirst(), torch.rand(3, 3, 32, 48)
    (layer,) = geometry(model, images).layers
    assert (layer.windows, layer.heads, layer.keys.grid.size) == (1, 4, (4, 6))
    with visattn.capture(model) as maps, torch.no_grad():
        model(images)
    assert maps[""].shape == (4, 3, 24, 24)
    torch.testing.assert_close(layer.arrange(maps[""])[:, 0], maps[""].transpose(0, 1))


@pytest.mark.slow
def test_queries_that_ask_for_others_stand_where_the_answers_go():
    """Outlook attention has the weights of a neighbourhood at its centre; GC ViT the same queries in all windows."""
    volo = geometry(timm.create_model("volo_d1_224").eval(), torch.rand(1, 3, 224, 224)).layers[0]
    assert volo.queries is volo.keys
    assert volo.keys.index[0].tolist() == [-1, -1, -1, -1, 0, 1, -1, 28, 29]  # the corner, with padding
    local, asked = geometry(timm.create_model("gcvit_xxtiny").eval(), torch.rand(1, 3, 224, 224)).layers[:2]
    assert asked.queries is asked.keys
    assert asked.keys is local.keys


def test_weight_on_padding_is_shared_out():
    keys = Tokens(torch.tensor([[-1, 0, 1]]), Grid((0.0,), (0.0, 1.0)), ())
    fused = torch.tensor([[[[0.5, 0.1, 0.4], [0.0, 0.7, 0.3]]]])
    shared = without_padding(fused, keys, normalised=True)
    torch.testing.assert_close(shared, torch.tensor([[[[0, 0.2, 0.8], [0, 0.7, 0.3]]]]))
    dropped = without_padding(fused, keys, normalised=False)
    torch.testing.assert_close(dropped, torch.tensor([[[[0, 0.1, 0.4], [0, 0.7, 0.3]]]]))


POOLS = {
    "one number in a list": lambda x: F.max_pool2d(x, [2]),
    "a number": lambda x: F.avg_pool2d(x, 2),
    "of this size": lambda x: F.adaptive_max_pool2d(x, (4, 6)),
}


@pytest.mark.parametrize("pool", POOLS)
def test_tokens_behind_a_pool(pool):
    class Pooled(nn.Module):
        def forward(self, x):
            tokens = POOLS[pool](x).flatten(2).mT
            return ((tokens @ tokens.mT).softmax(-1) @ tokens).mean(1)

    grid = geometry(Pooled().eval(), torch.rand(1, 3, 8, 12)).layers[0].keys.grid
    assert grid == Grid((0.5, 2.5, 4.5, 6.5), (0.5, 2.5, 4.5, 6.5, 8.5, 10.5))

"""Methods on attention weights against independent oracles, by hand, and against themselves."""

import weakref

import numpy as np
import pytest
import torch

import visattn
from tests.models import model_and_images
from tests.reference.heatmaps import by_hand, rollout, vit
from tests.test_capture import arrays, small_vit
from tests.tiers import mostly_slow
from visattn.heatmaps import propagation
from visattn.heatmaps.propagation import Propagation, discard_smallest, fuse_heads
from visattn.heatmaps.watch.calls import Fused
from visattn.heatmaps.watch.layers import Geometry, Grid, Layer, Tokens

TOKENS = Tokens(torch.tensor([[-2, 0, 1]]), Grid((0.0,), (0.0, 1.0)), ((-1, 0),))


def three_tokens(maps, read=(0,), **kwargs):
    """A class token and two patches through layers of this many heads; the matrix R of the paper."""
    rows = torch.zeros(1, 3, dtype=torch.bool)
    rows[0, list(read)] = True
    heads = maps[0].shape[0]
    layers = [Layer(str(i), 1, heads, torch.arange(heads)[None], TOKENS, TOKENS, rows) for i in range(len(maps))]
    state = Propagation(Geometry(layers), **kwargs)
    return state, layers, [torch.from_numpy(m)[None, None] for m in maps]


def go(state, layer, fused):
    """Through a layer, whose map is in one piece."""
    state.add(layer, lambda: [fused])


def matrix(state):
    (tokens, rows) = state.open
    assert tokens is TOKENS
    return rows[0, 0].numpy()


def test_rollout_by_hand():
    state, layers, maps = three_tokens(by_hand.ROLLOUT_MAPS, normalised=True)
    for layer, each in zip(layers, maps, strict=True):
        go(state, layer, fuse_heads(each))
        np.testing.assert_allclose(matrix(state).sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(matrix(state), by_hand.ROLLOUT, atol=1e-12)
    np.testing.assert_allclose(state.readout()[0, 0], by_hand.ROLLOUT_CLASS, atol=1e-12)


def test_readout_of_patches_by_hand():
    state, layers, maps = three_tokens(by_hand.ROLLOUT_MAPS, read=(1, 2), normalised=True)
    for layer, each in zip(layers, maps, strict=True):
        go(state, layer, fuse_heads(each))
    np.testing.assert_allclose(state.readout()[0, 0], by_hand.ROLLOUT_PATCHES, atol=1e-12)


@pytest.mark.parametrize(("fusion", "expected"), [("max", by_hand.FUSION_MAX), ("min", by_hand.FUSION_MIN)])
def test_fusion_by_hand(fusion, expected):
    state, layers, maps = three_tokens(by_hand.FUSION_MAPS, normalised=True)
    for layer, each in zip(layers, maps, strict=True):
        go(state, layer, fuse_heads(each, fusion))
    np.testing.assert_allclose(matrix(state), expected, atol=1e-12)


def test_discard_by_hand():
    state, layers, maps = three_tokens(by_hand.DISCARD_MAPS, normalised=True)
    for layer, each in zip(layers, maps, strict=True):
        go(state, layer, discard_smallest(fuse_heads(each), by_hand.DISCARD, TOKENS))
    np.testing.assert_allclose(matrix(state), by_hand.DISCARD_ROLLOUT, atol=1e-12)


@pytest.mark.parametrize(("normalised", "expected"), [(True, by_hand.GRAD_ROLLOUT), (False, by_hand.CHEFER)])
def test_relevance_by_hand(normalised, expected):
    state, layers, maps = three_tokens(by_hand.GRADIENT_MAPS, normalised=normalised)
    for layer, each, gradient in zip(layers, maps, by_hand.GRADIENTS, strict=True):
        go(state, layer, fuse_heads((each * torch.from_numpy(gradient)).clamp(min=0)))
    np.testing.assert_allclose(matrix(state), expected, atol=1e-12)


@pytest.fixture(scope="module")
def case():
    model = small_vit()
    torch.manual_seed(1)
    images = torch.rand(2, 3, 32, 32).double()
    maps = [vit.forward(arrays(model), image.numpy(), heads=2)[1] for image in images]
    gradients = [vit.map_gradients(arrays(model), image.numpy(), heads=2, target=1) for image in images]
    return model, images, maps, gradients


@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
@pytest.mark.parametrize("discard", [0, 0.3])
def test_rollout_equals_the_oracle(case, fusion, discard):
    model, images, maps, _ = case
    e = visattn.explain(model, images, "rollout", fusion=fusion, discard=discard)
    for raw, own in zip(e.raw, maps, strict=True):
        R = rollout.rollout(own, fusion, discard, prefix=1)
        np.testing.assert_allclose(R.sum(1), 1)
        np.testing.assert_allclose(raw.flatten(), rollout.readout(R, [0], 1), atol=1e-12)


@pytest.mark.parametrize("method", ["grad_rollout", "chefer"])
@pytest.mark.parametrize("fused", [True, False])
def test_gradient_methods_equal_the_oracle(case, method, fused):
    model, images, maps, gradients = case
    for block in model.blocks:
        block.attn.fused_attn = fused
    e = visattn.explain(model, images, method, target=1)
    for raw, own, gradient in zip(e.raw, maps, gradients, strict=True):
        R = getattr(rollout, method)(own, gradient)
        np.testing.assert_allclose(raw.flatten(), rollout.readout(R, [0], 1), atol=1e-7)


def test_legrad_equals_the_oracle(case):
    model, images, _, _ = case
    e = visattn.explain(model, images, "legrad", target=3)
    for raw, image in zip(e.raw, images, strict=True):
        gradients = vit.layer_score_gradients(arrays(model), image.numpy(), heads=2, target=3)
        np.testing.assert_allclose(raw.flatten(), rollout.legrad(gradients, 1), atol=1e-7)


@pytest.mark.parametrize("name", mostly_slow(["cait_xxs24_224", "xcit_nano_12_p8_224", "convit_tiny"], "convit_tiny"))
def test_legrad_needs_a_class_token_in_every_block(name):
    model, images = model_and_images(name, number=1)
    assert "plain transformer" in visattn.list_methods(model, images).reasons["legrad"]


def test_patches_are_read_where_they_are_pooled(case):
    _, images, _, _ = case
    model = small_vit(global_pool="avg", class_token=False)
    e = visattn.explain(model, images, "rollout")
    with visattn.capture(model) as maps, torch.no_grad():
        model(images)
    for number, raw in enumerate(e.raw):
        R = rollout.rollout([weights[number].numpy() for weights in maps.values()], prefix=0)
        np.testing.assert_allclose(raw.flatten(), rollout.readout(R, range(4), 0), atol=1e-12)


def test_two_prefix_tokens_are_both_read():
    model, images = model_and_images("deit_tiny_distilled_patch16_224", number=1, depth=3)
    e = visattn.explain(model, images, "rollout")
    with visattn.capture(model) as maps, torch.no_grad():
        model(images)
    R = rollout.rollout([weights[0].double().numpy() for weights in maps.values()], prefix=2)
    np.testing.assert_allclose(e.raw[0].flatten(), rollout.readout(R, [0, 1], 2), atol=1e-6)


def test_registers_are_not_patches():
    model, _ = model_and_images("vit_small_patch14_reg4_dinov2", number=0, img_size=70)
    e = visattn.explain(model, torch.rand(1, 3, 70, 70), "rollout")
    assert e.raw.shape == (1, 5, 5)


METHODS = ["attention", "rollout", "grad_rollout", "chefer", "legrad", "gradcam"]


@pytest.mark.parametrize("method", mostly_slow(METHODS, "rollout", "chefer"))
@pytest.mark.parametrize("name", mostly_slow(["test_vit", "swin_tiny_patch4_window7_224"], "test_vit"))
def test_results_do_not_depend_on_batch_mates(name, method):
    model, images = model_and_images(name, number=3)
    if method not in visattn.list_methods(model):
        return
    together = visattn.explain(model, images, method, target=5)
    alone = visattn.explain(model, images[1], method, target=5)
    torch.testing.assert_close(together.raw[1:2], alone.raw, rtol=1e-3, atol=1e-6)


SAMPLE = ["test_vit", "swin_tiny_patch4_window7_224", "levit_128s", "volo_d1_224", "pit_ti_224"]


@pytest.mark.parametrize("name", mostly_slow(SAMPLE, "test_vit", "levit_128s", "pit_ti_224"))
def test_rows_sum_to_one_at_every_step(name, monkeypatch):
    model, images = model_and_images(name, number=1)
    sums = []
    original = Propagation.add

    def add(self, layer, fused):
        original(self, layer, fused)
        _, rows = self.open
        sums.append(rows.sum(-1)[:, layer.queries.index != -1])

    monkeypatch.setattr(Propagation, "add", add)
    visattn.explain(model, images, "rollout")
    assert len(sums) > 5
    for each in sums:
        torch.testing.assert_close(each, torch.ones_like(each), atol=1e-4, rtol=0)


def test_rollout_keeps_one_product_and_not_all_maps(monkeypatch):
    model, images = model_and_images("test_vit", number=2)
    alive = []
    most = []
    original = Fused.weights

    def weights(self, *rows):
        most.append(sum(each() is not None for each in alive))
        result = original(self, *rows)
        alive.append(weakref.ref(result))
        return result

    monkeypatch.setattr(Fused, "weights", weights)
    visattn.explain(model, images, "rollout")
    assert len(most) == 6
    assert max(most) == 0
    with visattn.capture(model):
        model(images)
        assert most[-1] == 5  # the measure can fail: capture keeps all


def test_depth_frames_end_with_the_rollout():
    model, images = model_and_images("test_vit", number=2)
    e = visattn.explain(model, images, "rollout", frames=True)
    assert len(e.frames) == 6
    torch.testing.assert_close(e.frames[-1], e.heatmap)
    assert not torch.allclose(e.frames[0], e.heatmap, atol=0.01)


def test_a_single_layer_and_head():
    model, images = model_and_images("test_vit", number=2)
    with visattn.capture(model) as maps, torch.no_grad():
        model(images)
    last = visattn.explain(model, images, "attention")
    torch.testing.assert_close(last.raw.flatten(1), maps["blocks.5.attn"][:, :, 0, 1:].mean(1))
    one = visattn.explain(model, images, "attention", layer="blocks.5.attn", head=1)
    torch.testing.assert_close(one.raw.flatten(1), maps["blocks.5.attn"][:, 1, 0, 1:])
    first = visattn.explain(model, images, "attention", layer=0)  # nobody reads the class token of the first layer only
    assert first.layers == ("blocks.0.attn",)
    heads = visattn.heatmaps.attention_heads(model, images, layers=[5], heads=[1])
    torch.testing.assert_close(heads["blocks.5.attn", 1], one.heatmap)


@pytest.mark.parametrize(
    ("method", "options", "error", "message"),
    [
        ("attention", {"layer": 6}, ValueError, "6 attention layers, numbered from 0; there is no 6"),
        ("attention", {"layer": "blocks.0.atn"}, ValueError, r"unknown attention layer .* 'blocks.0.attn'"),
        ("attention", {"head": 2}, ValueError, "2 heads, numbered from 0; there is no head 2"),
        ("rollout", {"fusion": "men"}, ValueError, "did you mean 'mean'"),
        ("rollout", {"discard": 1.0}, ValueError, "share below 1"),
        ("rollout", {"fuson": "mean"}, TypeError, "has no option 'fuson': did you mean 'fusion'"),
        ("chefer", {"fusion": "mean"}, TypeError, "has no option 'fusion': known: balanced"),
        ("fullgrad", {"fusion": "mean"}, TypeError, "it has none"),
    ],
)
def test_wrong_options(method, options, error, message):
    model, images = model_and_images("test_vit", number=1)
    with pytest.raises(error, match=message):
        visattn.explain(model, images, method, **options)


def test_halves_of_the_sources_one_after_the_other(monkeypatch):
    expected, layers, maps = three_tokens(by_hand.ROLLOUT_MAPS, normalised=True)
    halved, _, _ = three_tokens(by_hand.ROLLOUT_MAPS, normalised=True)
    for layer, each in zip(layers, maps, strict=True):
        go(expected, layer, fuse_heads(each))
        with monkeypatch.context() as patch:
            patch.setattr(propagation, "AT_ONCE", 0)
            halved.add(layer, lambda each=each: fuse_heads(each).split(2, 2))
    np.testing.assert_allclose(matrix(halved), matrix(expected), atol=1e-12)

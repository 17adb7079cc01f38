"""AttCAT, TokenTM and attention flow against independent oracles."""

import numpy as np
import pytest
import torch

import visattn
from tests.models import model_and_images
from tests.reference.heatmaps import attcat, attention_flow, rollout, tokentm, vit
from tests.test_capture import arrays, small_vit
from tests.tiers import mostly_slow
from visattn.heatmaps import propagation
from visattn.heatmaps.methods import tokentm as own_tokentm

TARGET = 1
POOLED = {"global_pool": "avg", "class_token": False}


def case(**options):
    """A model, its images, and how many prefix tokens it has."""
    model = small_vit(**options)
    torch.manual_seed(1)
    return model, torch.rand(2, 3, 32, 32).double(), 0 if options else 1


def stations(model, image):
    """Tokens before, between the halves of, and behind every block, with their gradients, module by module."""
    x = model.patch_embed(image[None])
    x = model.norm_pre(model._pos_embed(x))
    blocks = []
    for block in model.blocks:
        between = x + block.attn(block.norm1(x))
        after = between + block.mlp(block.norm2(between))
        blocks.append((x, between, after))
        x = after
    score = model.forward_head(model.norm(x))[0, TARGET]
    gradients = torch.autograd.grad(score, [after for _, _, after in blocks])
    return [[each[0].detach().numpy() for each in block] for block in blocks], [g[0].numpy() for g in gradients]


def maps_and_gradients(model, image):
    with visattn.capture(model) as maps:
        logits = model(image[None])
    gradients = maps.gradients(logits[0, TARGET])
    return [m[0].detach().numpy() for m in maps.values()], [g[0].numpy() for g in gradients.values()]


@pytest.mark.parametrize("options", [{}, POOLED])
@pytest.mark.parametrize("fused", [True, False])
def test_attcat_equals_the_oracle(options, fused):
    model, images, prefix = case(**options)
    for block in model.blocks:
        block.attn.fused_attn = fused
    found = visattn.explain(model, images, "attcat", target=TARGET, signed=True).raw
    for one, image in zip(found, images, strict=True):
        tokens, gradients = stations(model, image)
        weights, _ = maps_and_gradients(model, image)
        expected = attcat.attcat([after for _, _, after in tokens], gradients, weights)[prefix:]
        np.testing.assert_allclose(one.flatten(), expected, rtol=1e-9, atol=1e-15)


def test_attcat_keeps_what_speaks_against_if_asked():
    model, images, _ = case(**POOLED)
    both = visattn.explain(model, images, "attcat", target=TARGET, signed=True).raw
    assert both.min() < 0 < both.max()
    torch.testing.assert_close(visattn.explain(model, images, "attcat", target=TARGET).raw, both.clamp(min=0))


def test_attcat_in_windows_is_about_the_queries_of_the_window():
    model, images = model_and_images("swin_tiny_patch4_window7_224", number=1)
    for stage in model.layers:
        for block in stage.blocks:
            torch.nn.init.zeros_(block.attn.qkv.weight)  # everybody attends to everybody,
            torch.nn.init.zeros_(block.attn.relative_position_bias_table)
            block.shift_size = (0, 0)
            block.attn_mask = None
    e = visattn.explain(model, images, "attcat", target=3, signed=True)
    features = []
    handles = [
        block.register_forward_hook(lambda _m, _a, out: features.append(out))
        for s in model.layers
        for block in s.blocks
    ]
    score = model(images)[0, 3]
    for handle in handles:
        handle.remove()
    gradients = torch.autograd.grad(score, features)
    total = sum((f * g).sum() for f, g in zip(features, gradients, strict=True))
    torch.testing.assert_close(e.raw.sum(), total.detach() / 49, rtol=1e-3, atol=0)  # to a window of 7 x 7
    assert e.raw.shape == (1, 56, 56)
    assert len(e.layers) == 12


@pytest.mark.parametrize("options", [{}, POOLED])
@pytest.mark.parametrize("fused", [True, False])
def test_tokentm_equals_the_oracle(options, fused):
    model, images, prefix = case(**options)
    for block in model.blocks:
        block.attn.fused_attn = fused
    e = visattn.explain(model, images, "tokentm", target=TARGET)
    for raw, image in zip(e.raw, images, strict=True):
        tokens, _ = stations(model, image)
        before, between, after = zip(*tokens, strict=True)
        weights, gradients = maps_and_gradients(model, image)
        C = tokentm.tokentm(weights, gradients, before, between, between, after, return_map=True)
        readers = [0] if prefix else range(4)
        np.testing.assert_allclose(raw.flatten(), rollout.readout(C, readers, prefix), rtol=1e-9)


def test_tokentm_of_a_network_in_numpy():
    """The same with maps and gradients of which torch knows nothing."""
    model, images, _ = case()
    e = visattn.explain(model, images, "tokentm", target=TARGET)
    image = images[0]
    tokens, _ = stations(model, image)
    before, between, after = zip(*tokens, strict=True)
    weights = vit.forward(arrays(model), image.numpy(), heads=2)[1]
    gradients = vit.map_gradients(arrays(model), image.numpy(), heads=2, target=TARGET)
    expected = tokentm.tokentm(weights, gradients, before, between, between, after)[1:]
    np.testing.assert_allclose(e.raw[0].flatten(), expected, atol=1e-6)


def test_merged_sources_have_their_mean_length(monkeypatch):
    model, images, _ = case()
    monkeypatch.setattr(propagation, "MOST_SOURCES", 1)
    e = visattn.explain(model, images, "tokentm", target=TARGET)
    assert e.raw.shape == (2, 1, 1)
    assert (e.raw > 0).all()


@pytest.mark.parametrize(
    "name", mostly_slow(["eva02_tiny_patch14_224", "beit_base_patch16_224"], "eva02_tiny_patch14_224")
)
def test_tokens_between_the_halves_of_other_blocks(name):
    model, images = model_and_images(name, number=1)
    block = model.blocks[0]
    assert visattn.explain(model, images, "tokentm").raw.shape[0] == 1
    with own_tokentm._streams(model, ["blocks.0"]) as kept, torch.no_grad():
        model(images)
    before, between, after = kept["blocks.0"]
    gamma = block.gamma_2 if block.gamma_2 is not None else 1
    torch.testing.assert_close(after, between + gamma * block.mlp(block.norm2(between)), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(before, between)
    assert not block._forward_pre_hooks


def test_attention_flow_equals_the_oracle():
    model, images, _ = case()
    e = visattn.explain(model, images, "attention_flow")
    for raw, image in zip(e.raw, images, strict=True):
        weights, _ = maps_and_gradients(model, image)
        flow = attention_flow.attention_flow(weights, 0)[1:]
        np.testing.assert_allclose(raw.flatten(), flow, atol=1e-7)
        assert (flow >= rollout.readout(rollout.rollout(weights), [0], 1) - 1e-9).all()


def test_an_output_that_reads_several_tokens_is_a_layer_more():
    model, images, _ = case(**POOLED)
    e = visattn.explain(model, images, "attention_flow")
    for raw, image in zip(e.raw, images, strict=True):
        weights, _ = maps_and_gradients(model, image)
        layers, n = len(weights), 4
        capacity = np.zeros(((layers + 1) * n + 1,) * 2)
        capacity[-1, layers * n : -1] = 1 / n
        for layer, heads in enumerate(weights, 1):
            above, below = slice(layer * n, (layer + 1) * n), slice((layer - 1) * n, layer * n)
            capacity[above, below] = (heads.mean(0) + np.eye(n)) / 2
        flow = [attention_flow.max_flow(capacity, len(capacity) - 1, sink) for sink in range(n)]
        np.testing.assert_allclose(raw.flatten(), flow, atol=1e-7)


def test_attention_flow_through_class_attention():
    """Patches that do not ask stay what they are: two layers of class attention and none before."""
    model, images = model_and_images("cait_xxs24_224", number=1, size=(64, 64), img_size=64)
    model.blocks = torch.nn.Sequential()
    model = model.double()
    e = visattn.explain(model, images.double(), "attention_flow")
    with visattn.capture(model) as maps, torch.no_grad():
        model(images.double())
    first, second = (each[0].mean(0)[0].numpy() for each in maps.values())  # of the class token
    into = first[1:] / 2  # from the class token of the first layer,
    expected = second[1:] / 2 + np.minimum((second[0] + 1) / 2, into)  # or from that of the second directly
    np.testing.assert_allclose(e.raw.flatten(), expected, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "reasons"),
    mostly_slow(
        [
            ("swin_tiny_patch4_window7_224", {"attention_flow": "pooled or merged", "tokentm": "plain transformer"}),
            ("xcit_nano_12_p8_224", {"attcat": "none of its layers of attention", "tokentm": "plain transformer"}),
            ("test_resnet", dict.fromkeys(("attcat", "tokentm", "attention_flow"), "no attention between tokens")),
        ],
        "test_resnet",
        key=lambda value: value[0],
    ),
)
def test_where_they_do_not_work(name, reasons):
    model, images = model_and_images(name, number=1)
    found = visattn.list_methods(model, images).reasons
    for method, reason in reasons.items():
        assert reason in found[method]
        assert "\n" not in found[method]

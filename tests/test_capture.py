"""Every attention matrix is seen, right, and nothing is changed by looking."""

import copy

import numpy as np
import pytest
import timm
import torch
from timm.layers import attention as timm_attention
from torch import nn

import visattn
from tests.models import model_and_images
from tests.reference.heatmaps import vit
from tests.tiers import mostly_slow
from visattn.heatmaps import MissedAttention
from visattn.heatmaps.watch.passes import computes_attention


def small_vit(**kwargs):
    """Five tokens, two heads, three layers, in double precision."""
    options = {"img_size": 32, "embed_dim": 8, "depth": 3, "num_heads": 2, "num_classes": 4, **kwargs}
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", **options).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def arrays(model):
    return {name: value.numpy() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("fused", [True, False])
def test_equal_to_the_oracle(fused):
    model = small_vit()
    for block in model.blocks:
        block.attn.fused_attn = fused
    images = torch.rand(2, 3, 32, 32).double()
    with visattn.capture(model) as maps:
        model(images)
    assert list(maps) == ["blocks.0.attn", "blocks.1.attn", "blocks.2.attn"]
    for number, image in enumerate(images):
        _, expected = vit.forward(arrays(model), image.numpy(), heads=2)
        for seen, true in zip(maps.values(), expected, strict=True):
            np.testing.assert_allclose(seen[number].detach(), true, atol=1e-12)


@pytest.mark.parametrize("fused", [True, False])
def test_gradients_of_the_maps_equal_the_oracle(fused):
    model = small_vit()
    for block in model.blocks:
        block.attn.fused_attn = fused
    image = torch.rand(3, 32, 32).double()
    with visattn.capture(model) as maps:
        logits = model(image[None])
    gradients = maps.gradients(logits[0, 2])
    assert list(gradients) == list(maps)
    expected = vit.map_gradients(arrays(model), image.numpy(), heads=2, target=2)
    for seen, true in zip(gradients.values(), expected, strict=True):
        np.testing.assert_allclose(seen[0], true, atol=1e-7)


# One of each way to arrange attention; tests.attention_families has all of timm.
SAMPLE = {
    "test_vit": 6,
    "swin_tiny_patch4_window7_224": 12,  # softmax as a module, windows in the batch
    "cait_xxs24_224": 26,  # mixed heads, class attention
    "convit_tiny": 12,  # two softmaxes in one map
    "xcit_nano_12_p8_224": 14,  # between channels
    "volo_d1_224": 20,  # outlook attention
    "levit_128s": 11,
    "efficientvit_m0": 24,  # weights on the right-hand side of the product
    "twins_svt_small": 18,
    "mobilevit_xxs": 9,
}


QUICK = ("test_vit", "convit_tiny", "xcit_nano_12_p8_224", "levit_128s", "efficientvit_m0", "mobilevit_xxs")


@pytest.mark.parametrize("name", mostly_slow(SAMPLE, *QUICK))
def test_all_layers_of_a_model_are_seen_and_the_output_is_the_same(name):
    model, images = model_and_images(name, number=1)
    with torch.no_grad():
        plain = model(images)
        with visattn.capture(model) as maps:
            watched = model(images)
    assert torch.equal(plain, watched)
    assert len(maps) == SAMPLE[name]
    for weights in maps.values():
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]), atol=1e-4, rtol=0)
        assert (weights >= 0).all()


def test_both_softmaxes_of_convit_are_in_the_map_that_is_used():
    model, images = model_and_images("convit_tiny", number=1)
    used = []
    handle = model.blocks[0].attn.attn_drop.register_forward_hook(lambda _m, _a, output: used.append(output))
    with torch.no_grad(), visattn.capture(model) as maps:
        model(images)
    handle.remove()
    torch.testing.assert_close(maps["blocks.0.attn"], used[0])


def test_softmaxes_that_are_not_attention_are_left_alone():
    model, images = model_and_images("skresnet18", number=1)
    with torch.no_grad(), visattn.capture(model) as maps:
        model(images[..., :64, :64])
    assert len(maps) == 0


class Selected(nn.Module):
    """A softmax over two branches, and a product of what came of it."""

    def forward(self, x):
        gate = x.mean((2, 3), keepdim=True).expand(-1, -1, 2, 1).softmax(2)
        mixed = x * gate.sum(2, keepdim=True)
        return mixed @ mixed.mT


def test_what_a_gate_was_applied_to_is_no_map():
    model = Selected()
    with visattn.capture(model) as maps:
        model(torch.rand(1, 3, 4, 4))
    assert len(maps) == 0


class Twice(nn.Module):
    """One module that attends two times, once with grouped queries, once causally with a mask."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 8)

    def forward(self, x):
        x = self.qkv(x)
        q = x.unflatten(-1, (4, 2)).transpose(1, 2)
        kv = q[:, :2]
        x = nn.functional.scaled_dot_product_attention(q, kv, kv, enable_gqa=True)
        mask = torch.zeros(5, 5).masked_fill(torch.eye(5).bool(), -torch.inf)
        return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask, scale=0.3)


def test_masks_scales_grouped_queries_and_repeated_use():
    torch.manual_seed(0)
    model = Twice()
    x = torch.rand(2, 5, 8)
    with visattn.capture(model) as maps:
        model(x)
    assert list(maps) == ["", "#2"]
    heads = model.qkv(x).unflatten(-1, (4, 2)).transpose(1, 2)
    keys = heads[:, [0, 0, 1, 1]]
    first = (heads @ keys.mT / 2**0.5).softmax(-1)
    torch.testing.assert_close(maps[""], first)
    context = first @ keys
    energies = (0.3 * context @ context.mT).masked_fill(torch.eye(5).bool(), -torch.inf)
    torch.testing.assert_close(maps["#2"], energies.softmax(-1))


def test_torchs_own_attention_layer():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0).eval()
    x = torch.rand(3, 5, 8)
    with torch.no_grad(), visattn.capture(layer) as maps:
        layer(x)
    attention = layer.self_attn
    expected = attention(x, x, x, need_weights=True, average_attn_weights=False)[1]
    torch.testing.assert_close(maps["self_attn"], expected)


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("encoder", [False, True])
def test_torchs_own_layer_computes_as_with_gradients(without, encoder):
    torch.manual_seed(0)
    kind = (
        nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        if encoder
        else nn.MultiheadAttention(32, 4, batch_first=True)
    )
    layer, x = kind.eval(), torch.rand(3, 9, 32)
    inputs = (x,) if encoder else (x, x, x)

    def run():
        output = layer(*inputs)
        return output if encoder else output[0]

    expected = run()
    with visattn.capture(layer):
        assert torch.equal(run(), expected)
    with without():
        fast = run()
        with visattn.capture(layer):
            watched = run()
        assert torch.equal(run(), fast)
    assert torch.equal(watched, expected)
    torch.testing.assert_close(watched, fast)


@pytest.mark.parametrize("wanted", [{"need_weights": False}, {}, {"average_attn_weights": False}])
@pytest.mark.parametrize("gradients", [True, False])
def test_torchs_own_attention_layer_returns_what_was_asked(wanted, gradients):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, batch_first=True)  # in training mode there is no second kernel to differ from
    x = torch.rand(3, 5, 8)
    with torch.set_grad_enabled(gradients):
        plain, weights = layer(x, x, x, **wanted)
        with visattn.capture(layer) as maps:
            watched, seen = layer(x, x, x, **wanted)
    torch.testing.assert_close(watched, plain)
    assert (seen is None) == (weights is None)
    if weights is not None:
        torch.testing.assert_close(seen, weights)
    assert maps[""].shape == (3, 2, 5, 5)
    if gradients:
        assert maps.gradients(watched.square().sum())[""].abs().max() > 0


@pytest.mark.parametrize("distribution", ["sparsemax", "entmax15", "softmax", "sigmoid"])
def test_other_distributions(distribution):
    model, images = model_and_images("test_vit", number=1)
    visattn.attach(model, "patch", distribution=distribution)
    seen = []
    module = model.blocks[2].attn
    handle = module.register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    with torch.no_grad(), visattn.capture(model) as maps:
        model(images)
        expected = module.attention(seen[0])
    handle.remove()
    torch.testing.assert_close(maps["blocks.2.attn"], expected)


def test_reduced_precision():
    model, images = model_and_images("test_vit")
    model, images = model.bfloat16(), images.bfloat16()
    with torch.no_grad():
        plain = model(images)
        with visattn.capture(model) as maps:
            assert torch.equal(model(images), plain)
    for weights in maps.values():
        assert weights.dtype == torch.float32
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("way", ["returned", "in place"])
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:torch.*")
def test_a_compiled_model_runs_as_it_was_written(way):
    torch._dynamo.reset()
    model, images = model_and_images("test_vit")
    expected = [f"blocks.{i}.attn" for i in range(6)]
    if way == "returned":
        model = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
    with torch.no_grad():
        model(images)
        with visattn.capture(model) as maps:
            model(images)
    assert list(maps) == expected
    assert visattn.explain(model, images, "rollout").layers == tuple(expected)
    torch._dynamo.reset()


def state(model):
    return {
        "modes": [module.training for module in model.modules()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in model.modules()],
        "fused": [module.fused_attn for module in model.modules() if hasattr(module, "fused_attn")],
        "classes": [type(module) for module in model.modules()],
        "flags": [parameter.requires_grad for parameter in model.parameters()],
        "random": torch.get_rng_state().tolist(),
    }


@pytest.fixture
def used_model():
    """A model in mixed modes with gradients, and a check that it is left as it was."""
    model, images = model_and_images("test_vit")
    model.train()
    model.blocks[1].eval()
    model.blocks[2].requires_grad_(False)
    model(images).sum().backward()
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    objects = [p.grad for p in model.parameters()]
    weights = copy.deepcopy(model.state_dict())
    before = state(model)
    yield model, images
    assert state(model) == before
    for parameter, gradient, it in zip(model.parameters(), gradients, objects, strict=True):
        assert parameter.grad is it
        assert gradient is None or torch.equal(parameter.grad, gradient)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


def test_capture_leaves_the_model_alone(used_model):
    model, images = used_model
    with visattn.capture(model) as maps:
        model(images)
    assert len(maps) == 6


def test_capture_leaves_the_model_alone_after_an_exception(used_model):
    model, images = used_model
    with pytest.raises(RuntimeError, match="to have 3 channels, but got 1"), visattn.capture(model):
        model(images[:, :1])
    with pytest.raises(KeyError), visattn.capture(model):
        raise KeyError


@pytest.mark.parametrize(
    "method",
    mostly_slow(
        sorted({*visattn.heatmaps.METHODS} - {"gates", "glimpses"}),
        *("rollout", "chefer", "fullgrad", "sharp_gradcam", "scorecam", "attcat", "input_gradient", "rise"),
    ),
)
def test_explain_leaves_the_model_alone(used_model, method):
    model, images = used_model
    visattn.explain(model, images[:1], method)
    with pytest.raises(ValueError, match="out of range"):
        visattn.explain(model, images[:1], method, target=99)


def test_explain_leaves_the_model_alone_after_an_exception(used_model, monkeypatch):
    model, images = used_model
    for method in ("rollout", "chefer", "legrad", "gradcam", "input_gradient"):
        visattn.explain(model, images, method)
    calls = []

    def fail(self, x):
        calls.append((self, x))
        raise FloatingPointError

    monkeypatch.setattr(type(model.blocks[4].mlp), "forward", fail)
    for method in ("rollout", "chefer", "legrad", "gradcam", "input_gradient"):
        with pytest.raises(ValueError, match=r"does not take images .*FloatingPointError"):
            visattn.explain(model, images, method)
    assert calls


def hidden(self, x, *args, **kwargs):
    with torch._C.DisableTorchFunction():
        return timm_attention.Attention.forward(self, x, *args, **kwargs)


def test_a_planted_layer_that_is_missed_raises():
    model, images = model_and_images("test_vit")
    model.blocks[3].attn.forward = hidden.__get__(model.blocks[3].attn)
    with pytest.raises(MissedAttention, match=r"'blocks\.3\.attn'"), visattn.capture(model):
        model(images)
    with pytest.raises(ValueError, match=r"rollout does not work .* 'blocks\.3\.attn'"):
        visattn.explain(model, images, "rollout")
    assert "blocks.3.attn" in visattn.list_methods(model).reasons["rollout"]
    assert visattn.explain(model, images, "gradcam").heatmap.max() == 1


def test_what_counts_as_attention():
    kinds = {type(m).__name__ for m in timm.create_model("test_vit").modules() if computes_attention(m)}
    assert kinds == {"Attention"}
    assert not any(computes_attention(m) for m in timm.create_model("resnet18").modules())
    assert any(computes_attention(m) for m in timm.create_model("efficientvit_b0").modules())  # linear attention


class Rescaled(nn.Module):
    """Attention whose weights are multiplied by a number before they are used."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))
        self.drop = nn.Dropout(0.9)

    def forward(self, x):
        return self.drop((x @ x.mT).softmax(-1) * self.factor) @ x


def test_what_is_a_map_is_found_out_again_when_weights_or_the_mode_change():
    model, x = Rescaled().eval(), torch.rand(2, 5, 4)
    distribution = (x @ x.mT).softmax(-1)

    def seen():
        with visattn.capture(model) as maps:
            model(x)
        (weights,) = maps.values()
        return weights

    for factor, expected in ((1.0, distribution), (1.0001, 1.0001 * distribution), (3.0, distribution)):
        with torch.no_grad():
            model.factor.fill_(factor)
        torch.testing.assert_close(seen(), expected, rtol=0, atol=0)
    with torch.no_grad():
        model.factor.fill_(1.0001)
    torch.testing.assert_close(seen(), 1.0001 * distribution, rtol=0, atol=0)
    model.train()
    torch.testing.assert_close(seen(), distribution, rtol=0, atol=0)  # what dropout leaves is none


def test_a_capture_can_be_used_again():
    model, images = small_vit(), torch.rand(2, 3, 32, 32).double()
    watch = visattn.capture(model)
    with watch as first:
        model(images)
    with watch as outer, watch as inner:
        model(images)
    for maps in (outer, inner):
        assert list(maps) == list(first)
        assert all(torch.equal(maps[name], first[name]) for name in maps)


def test_gradients_of_an_earlier_pass_are_refused():
    model, images = model_and_images("test_vit")
    with visattn.capture(model) as maps:
        earlier = model(images)
        model(images)
    with pytest.raises(ValueError, match="depends on none of the maps, which are those of the last forward pass"):
        maps.gradients(earlier.sum())


def test_a_layer_with_brackets_in_its_name():
    model = nn.Sequential()
    for name in ("a[0]", "a0"):
        model.add_module(name, timm.layers.Attention(16, 2))
    with visattn.capture(model, "a[0]") as maps:
        model(torch.rand(1, 9, 16))
    assert list(maps) == ["a[0]"]

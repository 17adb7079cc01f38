"""Functions of torch's that compute attention as a whole: seen inside, or computed again; others are missed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import visattn
from tests.test_attention_forms import rewrite
from tests.test_capture import small_vit
from visattn.heatmaps import MissedAttention
from visattn.heatmaps.watch.interception import intercepting

TOKENS, KEYS, WIDTH = 5, 7, 8
LAYERS = {
    "plain": {},
    "batch first": {"batch_first": True},
    "bias": {"add_bias_kv": True},
    "zero": {"add_zero_attn": True},
    "widths": {"kdim": 6, "vdim": 4},
    "everything": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 6, "vdim": 4, "batch_first": True},
}


def boolean(*shape):
    mask = torch.rand(*shape) < 0.3
    mask[..., 0] = False  # everybody sees something
    return mask


MASKS = {
    "none": dict,
    "two": lambda: {"attn_mask": boolean(TOKENS, KEYS)},
    "two, numbers": lambda: {"attn_mask": torch.randn(TOKENS, KEYS)},
    "three": lambda: {"attn_mask": boolean(6, TOKENS, KEYS)},
    "three, numbers": lambda: {"attn_mask": torch.randn(6, TOKENS, KEYS)},
    "padding": lambda: {"key_padding_mask": boolean(3, KEYS)},
    "padding, numbers": lambda: {"key_padding_mask": torch.randn(3, KEYS)},
    "both": lambda: {"key_padding_mask": boolean(3, KEYS), "attn_mask": boolean(TOKENS, KEYS)},
    "causal": lambda: {"attn_mask": torch.ones(TOKENS, KEYS).triu(1).bool(), "is_causal": True},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("gradients", [True, False])
def test_torchs_own_layer(kind, mask, gradients):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(WIDTH, 2, **LAYERS[kind]).eval()
    x = torch.rand(3, TOKENS, WIDTH), torch.rand(3, KEYS, layer.kdim), torch.rand(3, KEYS, layer.vdim)
    x = x if layer.batch_first else tuple(each.transpose(0, 1) for each in x)
    options = MASKS[mask]()
    expected = layer(*x, **options, average_attn_weights=False)[1]
    joined = layer.bias_k is not None or layer.add_zero_attn
    for need_weights in (
        (True,) if mask == "causal" and joined else (True, False)
    ):  # where torch itself gives two results
        with torch.set_grad_enabled(gradients), visattn.capture(layer) as maps:
            context, _ = layer(*x, **options, need_weights=need_weights)
        assert list(maps) == [""]
        torch.testing.assert_close(maps[""], expected.detach())
        torch.testing.assert_close(context, layer(*x, **options)[0], atol=1e-6, rtol=1e-5)
    if gradients:
        with visattn.capture(layer) as maps:
            context, weights = layer(*x, **options, average_attn_weights=False)
        (true,) = torch.autograd.grad(context.square().sum(), weights._base, retain_graph=True)
        found = maps.gradients(context.square().sum())[""]
        torch.testing.assert_close(found, true.view_as(found))


@pytest.mark.parametrize("need_weights", [True, False])
def test_torchs_own_layer_without_a_batch(need_weights):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(WIDTH, 2)
    x = torch.rand(TOKENS, WIDTH)
    expected = layer(x, x, x, average_attn_weights=False)[1]
    with visattn.capture(layer) as maps:
        layer(x, x, x, need_weights=need_weights)
    torch.testing.assert_close(maps[""], expected[None].detach())


def test_the_function_of_torchs_own_layer():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(WIDTH, 2)

    class Functional(nn.Module):
        def forward(self, x):
            own = (layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0, layer.out_proj.weight)
            return F.multi_head_attention_forward(x, x, x, WIDTH, 2, *own, layer.out_proj.bias)[0]

    x = torch.rand(TOKENS, 3, WIDTH)
    model = Functional()
    with visattn.capture(model) as maps:
        model(x)
    torch.testing.assert_close(maps[""], layer(x, x, x, average_attn_weights=False)[1].detach())


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
def test_torchs_own_encoder(norm_first, gradients):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x, padding = torch.rand(3, TOKENS, WIDTH), torch.zeros(3, TOKENS).bool()
    padding[1, 3:] = True
    with torch.set_grad_enabled(gradients):
        plain = model(x, src_key_padding_mask=padding)
        with visattn.capture(model) as maps:
            watched = model(x, src_key_padding_mask=padding)
    torch.testing.assert_close(plain[~padding], watched[~padding], atol=1e-5, rtol=1e-5)
    assert list(maps) == ["layers.0.self_attn", "layers.1.self_attn"]
    for weights in maps.values():
        assert (weights[1, ..., 3:] == 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, TOKENS))


def test_a_query_that_sees_nothing_gets_nothing():
    class Blind(nn.Module):
        def forward(self, x):
            mask = torch.ones(TOKENS, TOKENS).bool()
            mask[1] = False
            return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    model, x = Blind(), torch.rand(2, TOKENS, WIDTH)
    with visattn.capture(model) as maps:
        output = model(x)
    torch.testing.assert_close(maps[""] @ x, output)
    assert (maps[""][:, 1] == 0).all()


class Flexible(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v):
        return flex_attention(q, k, v, **self.options)


BIAS = torch.randn(4, TOKENS, KEYS)
FLEX = {
    "plain": {},
    "scale": {"scale": 0.3},
    "bias": {"score_mod": lambda score, b, h, i, j: score + BIAS[h, i, j] * (b + 1)},
    "mask": {"block_mask": create_block_mask(lambda b, h, i, j: i >= j, None, None, TOKENS, KEYS, "cpu")},
    "both": {
        "score_mod": lambda score, b, h, i, j: torch.tanh(score) + 0.1 * (i - j),
        "block_mask": create_block_mask(lambda b, h, i, j: (i + h) % 3 != j % 2, 3, 4, TOKENS, KEYS, "cpu"),
    },
}


@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
@pytest.mark.parametrize("heads", [4, 2, 1])
@pytest.mark.parametrize("kind", FLEX)
def test_flexible_attention(kind, heads):
    torch.manual_seed(0)
    q, k, v = torch.rand(3, 4, TOKENS, 16), *torch.rand(2, 3, heads, KEYS, 16)
    model = Flexible(**FLEX[kind], enable_gqa=heads < 4)
    with visattn.capture(model) as maps:
        output = model(q, k, v)
    assert maps[""].shape == (3, 4, TOKENS, KEYS)
    torch.testing.assert_close(maps[""] @ v.repeat_interleave(4 // heads, 1), output)


@torch.library.custom_op("visattn_tests::memory_efficient_attention", mutates_args=())
def opaque(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """(B, N, heads, d), as the kernels of others have it."""
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2).contiguous()


opaque.register_autograd(lambda _context, gradient: (gradient, gradient, gradient))


class Plain(nn.Module):
    """Nothing in its names says that this is attention."""

    def __init__(self, function):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH))
        self.function = function

    def forward(self, x):
        x = self.inner(x).unflatten(-1, (2, -1))
        return self.function(x, x, x).flatten(2)


@pytest.mark.parametrize(
    "function",
    [
        opaque,
        torch.ops.visattn_tests.memory_efficient_attention.default,
        torch.ops.visattn_tests.memory_efficient_attention,
    ],
)
def test_an_operator_that_hides_everything_is_missed(function):
    model = nn.ModuleDict({"layer": Plain(function)})
    with pytest.raises(MissedAttention, match="'layer' calls memory_efficient_attention"), visattn.capture(model):
        model["layer"](torch.rand(2, TOKENS, WIDTH))


@pytest.mark.slow
def test_a_transformer_with_an_operator_that_hides_everything():
    model = rewrite(small_vit(), lambda q, k, v: opaque(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2))
    images = torch.rand(1, 3, 32, 32).double()
    with torch.no_grad(), pytest.raises(MissedAttention, match=r"'blocks\.0\.attn' calls"), visattn.capture(model):
        model(images)
    assert "memory_efficient_attention" in visattn.list_methods(model, images).reasons["rollout"]


@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
def test_rollout_of_flexible_attention():
    """torch has no gradients of it on the CPU; rollout needs none."""
    images = torch.rand(1, 3, 32, 32).double()
    model = rewrite(small_vit(), lambda q, k, v: flex_attention(q, k, v, scale=1.0))
    expected = visattn.explain(small_vit(), images, "rollout").raw
    torch.testing.assert_close(visattn.explain(model, images, "rollout").raw, expected, atol=1e-8, rtol=0)


@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
@pytest.mark.parametrize("kind", FLEX)
def test_some_rows_of_flexible_attention(kind):
    q, k, v = torch.rand(3, 4, TOKENS, 16), *torch.rand(2, 3, 4, KEYS, 16)
    model, calls = Flexible(**FLEX[kind]), []
    with intercepting(model, calls.append):
        model(q, k, v)
    pieces = [calls[0].weights(rows) for rows in (slice(0, 2), slice(2, 3), slice(3, None))]
    torch.testing.assert_close(torch.cat(pieces, -2), calls[0].weights())


def test_torchs_own_encoder_with_nested_tensors():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()
    x, padding = torch.rand(3, TOKENS, WIDTH), torch.zeros(3, TOKENS).bool()
    padding[1, 3:] = True
    with torch.no_grad(), visattn.capture(model) as maps:
        model(x, src_key_padding_mask=padding)
    assert list(maps) == ["layers.0.self_attn", "layers.1.self_attn"]
    for weights in maps.values():
        assert (weights[1, ..., 3:] == 0).all()


def test_torchs_own_decoder():
    torch.manual_seed(0)
    model = nn.Transformer(WIDTH, 2, 1, 1, 16, batch_first=True).eval()
    source, target = torch.rand(3, KEYS, WIDTH), torch.rand(3, TOKENS, WIDTH)
    with visattn.capture(model) as maps:
        model(source, target)
    shapes = {name: tuple(weights.shape[-2:]) for name, weights in maps.items()}
    assert shapes == {
        "encoder.layers.0.self_attn": (KEYS, KEYS),
        "decoder.layers.0.self_attn": (TOKENS, TOKENS),
        "decoder.layers.0.multihead_attn": (TOKENS, KEYS),
    }
    cross = model.decoder.layers[0].multihead_attn
    seen = []
    handle = cross.register_forward_pre_hook(lambda _m, args: seen.append(args))
    with torch.no_grad():
        model(source, target)
    handle.remove()
    expected = cross(*seen[0], average_attn_weights=False)[1]
    torch.testing.assert_close(maps["decoder.layers.0.multihead_attn"], expected.detach(), atol=1e-5, rtol=1e-5)

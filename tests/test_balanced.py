"""The balanced backward pass: contributions and constants add up to the explained number, on every kind of network."""

import math

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

import visattn
from tests.reference.heatmaps import balanced as reference
from tests.tiers import mostly_slow
from visattn.core import Attention
from visattn.heatmaps.balanced import balanced, operators
from visattn.heatmaps.watch.inspection import inspection_copy

SMALL = {"img_size": 64}
# A kind of network, and how it is made small.
NETWORKS = {
    "test_vit": {},
    "deit3_small_patch16_224": {"depth": 2, **SMALL},  # LayerScale
    "eva02_tiny_patch14_224": {"depth": 2, "img_size": 56},  # SwiGLU, rotary positions
    "beit_base_patch16_224": {"depth": 2, **SMALL},
    "swin_tiny_patch4_window7_224": {"depths": (1, 1, 2, 1), "window_size": 4, **SMALL},
    "swinv2_tiny_window8_256": {"depths": (1, 1, 2, 1), **SMALL},  # cosine attention
    "test_convnext2": {},
    "convnextv2_atto": {"depths": (1, 1, 1, 1)},  # global response normalisation
    "mixer_s16_224": SMALL,
    "resnet18_cbam": {},
    "test_efficientnet": {},  # squeeze-and-excite
    "test_efficientnet_evos": {},  # EvoNorm, written out
    "test_nfnet": {},
    "mobilenetv3_small_050": {},  # hard sigmoids and swishes
    "coatnet_pico_rw_224": SMALL,
    "cait_xxs24_224": {},  # talking heads
    "xcit_nano_12_p16_224": {},  # attention between channels
    "efficientvit_b0": {},  # linear attention
    "convit_tiny": {},  # gated positional attention
    "gmlp_s16_224": SMALL,  # spatial gates
    "test_mambaout": {},  # gated convolutions
    "poolformer_s12": {},
    "vit_base_patch16_siglip_224": {"depth": 2, "img_size": 64},  # pooled by attention
    "volo_d1_224": {},
    "resnetv2_50x1_bit": {},  # group normalisation
}
QUICK = (
    *("test_vit", "deit3_small_patch16_224", "eva02_tiny_patch14_224", "swin_tiny_patch4_window7_224"),
    *("test_convnext2", "resnet18_cbam", "test_efficientnet"),
)


def network(name, options):
    torch.manual_seed(0)
    create = visattn.create_model if "cbam" in name else timm.create_model
    model = create(name, num_classes=10, **options).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    return model


def accounted(model, x, target=3):
    """The output, the gradient, and the sum of image times gradient and of all constants."""
    constants = []
    x = x.clone().requires_grad_()
    with inspection_copy(model) as own:
        with balanced(own, lambda gradient, constant: constants.append((gradient * constant).sum())) as mode:
            output = own(x)
        (gradient,) = torch.autograd.grad(output[:, target].sum(), x)
    assert not mode.unknown
    return output.detach(), gradient, (gradient * x.detach()).sum() + sum(constants)


@pytest.mark.parametrize("name", mostly_slow(NETWORKS, *QUICK))
def test_contributions_add_up(name):
    model = network(name, NETWORKS[name])
    side = NETWORKS[name].get("img_size") or min(model.pretrained_cfg["input_size"][-1], 224)
    x = torch.randn(2, 3, side, side, dtype=torch.float64)
    # Whose gradient is wanted decides how torch.matmul adds up: compare with an ordinary gradient of the image.
    plain = model.requires_grad_(False)(x.clone().requires_grad_()).detach()
    output, _, total = accounted(model, x)
    assert torch.equal(output, plain)
    explained = plain[:, 3].sum()
    assert abs(total - explained) < 1e-8 * max(1, abs(explained))


class Transformer(nn.Module):
    """A pre-norm block with a gated MLP; how attention is written is up to a function."""

    def __init__(self, attend, channels=6):
        super().__init__()
        self.attend = attend
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(2 * channels, channels)
        self.head = nn.Linear(channels, 1)

    def forward(self, x):
        x = x + self.proj(self.attend(*self.qkv(self.norm1(x)).chunk(3, -1)))
        gate, value = self.up(self.norm2(x)).chunk(2, -1)
        x = x + self.down(F.silu(gate) * F.gelu(value))
        return self.head(x[:, 0])


def energies(q, k):
    return q @ k.mT / math.sqrt(q.shape[-1])


def by_division(q, k, v):
    weights = energies(q, k).exp()
    return (weights @ v) / weights.sum(-1, keepdim=True)


def in_place(q, k, v):
    weights = energies(q, k).softmax(-1)
    weights.mul_(1.0)
    return weights @ v


ATTENTION = {
    "fused": F.scaled_dot_product_attention,
    "fused by name": lambda q, k, v: F.scaled_dot_product_attention(query=q, key=k, value=v),
    "softmax": lambda q, k, v: F.softmax(energies(q, k), dim=-1) @ v,
    "einsum": lambda q, k, v: torch.einsum("bij,bjc->bic", energies(q, k).softmax(-1), v),
    "sum": lambda q, k, v: (energies(q, k).softmax(-1)[..., None] * v[:, None]).sum(2),
    "division": by_division,
    "in place": in_place,
}


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("form", ATTENTION)
def test_transformer_equals_the_oracle(form, weights):
    torch.manual_seed(0)
    model = Transformer(ATTENTION[form]).double()
    x = torch.randn(1, 4, 6, dtype=torch.float64)
    parameters = {name: p.detach().numpy() for name, p in model.named_parameters()}
    value, expected = reference.slopes(lambda frozen, x: reference.transformer(frozen, x, parameters), x[0].numpy())
    images = x.clone().requires_grad_()
    with balanced(model, weights=weights):
        output = model(images)
    (gradient,) = torch.autograd.grad(output.sum(), images)
    assert abs(float(output.detach()) - value) < 1e-12
    np.testing.assert_allclose(gradient[0].numpy(), expected, atol=1e-10)


class Layer(nn.Module):
    """torch's own layer of attention, with the parameters of a transformer."""

    def __init__(self, model):
        super().__init__()
        self.inner = nn.MultiheadAttention(6, 1, batch_first=True).double()
        self.inner.load_state_dict(
            {
                "in_proj_weight": model.qkv.weight,
                "in_proj_bias": model.qkv.bias,
                "out_proj.weight": model.proj.weight,
                "out_proj.bias": model.proj.bias,
            }
        )

    def forward(self, y, need_weights):
        return self.inner(y, y, y, need_weights=need_weights)[0]


@pytest.mark.parametrize("need_weights", [False, True])
def test_torchs_own_layer_is_treated_like_one_that_is_written_out(need_weights):
    torch.manual_seed(0)
    written = Transformer(F.scaled_dot_product_attention).double()
    own = Layer(written)
    x = torch.randn(2, 4, 6, dtype=torch.float64).requires_grad_()
    with balanced(written):
        expected = written.proj(written.attend(*written.qkv(x).chunk(3, -1)))
    with balanced(own):
        output = own(x, need_weights)
    torch.testing.assert_close(output, expected)
    seed = torch.randn_like(output)
    (found,), (wanted,) = (torch.autograd.grad(each, x, seed) for each in (output, expected))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("distribution", ["softmax", "sparsemax", "entmax15", "sigmoid"])
def test_weights_of_every_distribution_are_constants(distribution):
    torch.manual_seed(0)
    model = Attention(8, distribution=distribution).double()
    query, key, value = (torch.randn(2, 5, 8, dtype=torch.float64).requires_grad_() for _ in range(3))
    with balanced(model):
        output, weights = model(query, key, value, return_weights=True)
    seed = torch.randn_like(output)
    found = torch.autograd.grad(output, [query, key, value], seed, allow_unused=True)
    assert found[:2] == (None, None)
    torch.testing.assert_close(found[2], weights[:, 0].mT @ seed)


def test_squeeze_and_excite_equals_the_oracle():
    torch.manual_seed(0)
    fc = nn.Linear(3, 3).double()
    read = torch.randn(3, 2, 2, dtype=torch.float64)
    x = torch.randn(1, 3, 2, 2, dtype=torch.float64)
    p = {"fc.weight": fc.weight.detach().numpy(), "fc.bias": fc.bias.detach().numpy(), "read": read.numpy()}
    value, expected = reference.slopes(lambda frozen, x: reference.squeeze_and_excite(frozen, x, p), x[0].numpy())
    images = x.clone().requires_grad_()
    with balanced(fc):
        output = (images * fc(images.mean((2, 3))).sigmoid()[:, :, None, None] * read).sum()
    assert abs(float(output.detach()) - value) < 1e-12
    np.testing.assert_allclose(torch.autograd.grad(output, images)[0][0].numpy(), expected, atol=1e-10)


class OwnSwish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return gradient * (s + x * s * (1 - s))


class OwnDerivative(nn.Module):
    def forward(self, x):
        return OwnSwish.apply(x)


def of_module(module):
    return lambda x: module(x.clone())


ROOT = math.sqrt(2)
GATED = {
    "gelu": (F.gelu, lambda x: 0.5 * (1 + torch.erf(x / ROOT))),
    "gelu, written out": (
        lambda x: 0.5 * x * (1 + torch.erf(x / ROOT)),
        lambda x: 0.5 * (1 + torch.erf(x / ROOT)),
    ),
    "gelu, other order": (
        lambda x: x * (torch.erf(x * (1 / ROOT)) + 1) / 2,
        lambda x: 0.5 * (1 + torch.erf(x / ROOT)),
    ),
    "gelu, tanh": (lambda x: F.gelu(x, approximate="tanh"), lambda x: F.gelu(x, approximate="tanh") / x),
    "gelu, tanh written out": (
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3)))),
        lambda x: F.gelu(x, approximate="tanh") / x,
    ),
    "quick gelu": (lambda x: x * torch.sigmoid(1.702 * x), lambda x: torch.sigmoid(1.702 * x)),
    "silu": (F.silu, torch.sigmoid),
    "silu in place": (of_module(nn.SiLU(inplace=True)), torch.sigmoid),
    "silu, by its own name in place": (lambda x: (lambda y: y.mul_(y.sigmoid()))(x * 1.0), torch.sigmoid),
    "hardswish": (F.hardswish, lambda x: F.relu6(x + 3) / 6),
    "hardswish, written out": (lambda x: x * F.relu6(x + 3.0) / 6.0, lambda x: F.relu6(x + 3) / 6),
    "mish": (F.mish, lambda x: torch.tanh(F.softplus(x))),
    "mish, written out": (lambda x: x * torch.tanh(F.softplus(x)), lambda x: torch.tanh(F.softplus(x))),
    "relu": (F.relu, lambda x: (x > 0).to(x.dtype)),
    "relu6": (F.relu6, lambda x: F.relu6(x) / x),
    "tanh": (torch.tanh, lambda x: torch.tanh(x) / x),
    "own derivative": (OwnDerivative(), torch.sigmoid),
}


@pytest.mark.parametrize("form", GATED)
def test_the_gate_of_an_activation_is_a_constant(form):
    function, gate = GATED[form]
    model = nn.Sequential(function) if isinstance(function, nn.Module) else nn.Identity()
    x = torch.tensor([-9, -2, -0.5, -1e-9, 1e-9, 0.5, 2, 7], dtype=torch.float64).requires_grad_()
    plain = function(x.detach())
    with balanced(model):
        output = model(x) if isinstance(function, nn.Module) else function(x)
    assert torch.equal(output, plain)
    (gradient,) = torch.autograd.grad(output.sum(), x)
    torch.testing.assert_close(gradient, gate(x.detach()), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_activation_has_a_slope_at_zero(dtype):
    x = torch.zeros(3, dtype=dtype).requires_grad_()
    for function, slope in ((F.gelu, 0.5), (torch.sigmoid, 0.25), (torch.tanh, 1.0), (F.hardsigmoid, 1 / 6)):
        with balanced(nn.Identity()):
            output = function(x)
        torch.testing.assert_close(torch.autograd.grad(output.sum(), x)[0], torch.full_like(x, slope))


def unit(x):
    return F.normalize(x, dim=-1)


def copied_into(y, x):
    y[:, 0].copy_(x[:, 0])
    return y


def filled(y, x):
    y[:, 0].copy_(x[:, 0])
    y[:, 1:, 1].fill_(2)
    return y


def added_to_views(y, x):
    y[:, 1, ::2].add_(x[:, 1, ::2])
    y.flatten(2)[:, 2:, 4].mul_(x[:, 2:, 1, 1])
    return y


# Functions of x (2, 4, 3, 3) whose contributions, with the constants, must be the result.
FORMS = {
    "class token": lambda x: torch.cat([torch.ones(2, 1, 3, 3, dtype=x.dtype), x], 1),
    "stack": lambda x: torch.stack([x, torch.ones_like(x)]),
    "one minus": lambda x: 1 - x,
    "minus one": lambda x: x.sub(1, alpha=2),
    "in place addition": lambda x: (2 * x).add_(torch.arange(3.0)),
    "padding": lambda x: F.pad(x, (1, 1, 1, 1), value=3.0),
    "padding for a maximum": lambda x: F.max_pool2d(F.pad(x, (1, 1, 1, 1), value=-torch.inf), 2),
    "mask": lambda x: x.masked_fill(x.detach() > 0, 5.0),
    "where": lambda x: torch.where(x.detach() > 0, x, 2.0 * torch.ones_like(x)),
    "written into": lambda x: written_into(x, 7.0),
    "written into zeros": lambda x: written_over(x),
    "copied": lambda x: torch.ones_like(x).copy_(2 * x),
    "copied into zeros": lambda x: copied_into(torch.zeros_like(x), x),
    "copied into ones": lambda x: copied_into(torch.ones_like(x), x),
    "copied into channels last": lambda x: copied_into(torch.ones(2, 3, 3, 4, dtype=x.dtype).permute(0, 3, 1, 2), x),
    "added to parts of ones": lambda x: added_to_views(torch.ones_like(x), x),
    "filled in part": lambda x: filled(torch.ones_like(x), x),
    "copied over": lambda x: (3 * x).copy_(torch.arange(3.0)) + x,
    "clamp": lambda x: x.clamp(0.1, 0.3),
    "clamp between tensors": lambda x: x.clamp(torch.full_like(x, 0.1), torch.full_like(x, 0.3)),
    "the larger": lambda x: torch.maximum(x, torch.full_like(x, 0.2)),
    "glu": lambda x: F.glu(x, 1),
    "square": lambda x: x**2 + x.square() + x * x,
    "root": lambda x: x.abs().sqrt(),
    "generalised mean": lambda x: x.abs().pow(3).mean((2, 3)).pow(1 / 3),
    "three factors": lambda x: torch.einsum("bchw,bchw,bchw->bc", x, 2 * x, x + 1),
    "product with an addend": lambda x: torch.addcmul(torch.ones_like(x), x, x.sigmoid()),
    "baddbmm": lambda x: torch.baddbmm(torch.ones(2, 4, 4, dtype=x.dtype), x.flatten(2), x.flatten(2).mT, beta=2),
    "dynamic convolution": lambda x: F.conv2d(x, x[:1, :, :2, :2].sigmoid(), torch.ones(1, dtype=x.dtype)),
    "convolution": lambda x: F.conv_transpose2d(x, torch.ones(4, 2, 2, 2, dtype=x.dtype), torch.ones(2, dtype=x.dtype)),
    "unit length": lambda x: unit(x) * unit(x).mean(),
    "rms norm": lambda x: F.rms_norm(x, (3,), torch.arange(3, dtype=x.dtype)),
    "rms norm, written out": lambda x: x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6),
    "layer norm, written out": lambda x: (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-6).sqrt(),
    "var_mean": lambda x: (lambda v, m: (x - m) * torch.rsqrt(v + 1e-6))(*torch.var_mean(x, 1, keepdim=True)),
    "group norm": lambda x: F.group_norm(x, 2, torch.arange(4, dtype=x.dtype), torch.ones(4, dtype=x.dtype)),
    "instance norm": lambda x: F.instance_norm(x, weight=torch.arange(4, dtype=x.dtype), bias=torch.ones(4).to(x)),
    "batch norm": lambda x: F.batch_norm(
        x, torch.arange(4, dtype=x.dtype), torch.ones(4).to(x), torch.arange(4).to(x), torch.ones(4).to(x)
    ),
    "batch norm of the batch": lambda x: F.batch_norm(x, None, None, torch.arange(4).to(x), None, training=True),
    "largest": lambda x: F.max_pool2d(x, 2) + x.amax((2, 3), keepdim=True),
    "sampling": lambda x: F.grid_sample(x, x.permute(0, 2, 3, 1)[..., :2].tanh(), align_corners=False),
    "sine": lambda x: x.sin() + x.cos(),
    "gate of a gate": lambda x: x * (x.mean((2, 3), keepdim=True) * x.amax((2, 3), keepdim=True).sigmoid()).tanh(),
}


def written_into(x, value):
    y = 2 * x
    y[:, 1] = value
    y[:, 2] *= 3
    return y


def written_over(x):
    y = torch.ones(2, 5, 3, 3, dtype=x.dtype)
    y[:, :4] = x
    return y


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_linear_plus_a_constant(form, weights):
    torch.manual_seed(0)
    x = torch.randn(2, 4, 3, 3, dtype=torch.float64)
    plain = FORMS[form](x)
    images, constants = x.clone().requires_grad_(), []
    note = lambda gradient, constant: constants.append((gradient * constant).sum())  # noqa: E731
    with balanced(nn.Identity(), note, weights=weights) as mode:
        output = FORMS[form](images)
    assert torch.equal(output, plain)
    assert not mode.unknown
    seed = torch.randn_like(output)
    (gradient,) = torch.autograd.grad(output, images, seed)
    torch.testing.assert_close((gradient * x).sum() + sum(constants), (seed * plain).sum(), rtol=1e-6, atol=1e-8)


def test_batch_norm_of_one_image_whose_gradient_comes_from_tokens():
    norm = nn.BatchNorm2d(4).eval()
    nn.init.uniform_(norm.weight)
    x = torch.randn(1, 4, 3, 3).requires_grad_()
    with balanced(norm):
        output = norm(x)
    seed = torch.randn(1, 9, 4).mT.unflatten(2, (3, 3))
    (gradient,) = torch.autograd.grad(output, x, seed)
    torch.testing.assert_close(gradient, seed * norm.weight.detach()[:, None, None] / math.sqrt(1 + norm.eps))


def test_a_product_keeps_the_order_in_memory():
    """On which the last bits of a convolution depend."""
    x = torch.randn(1, 3, 3, 4).permute(0, 3, 1, 2)[:, ::2].requires_grad_()
    with balanced(nn.Identity()):
        output = x * x.mean()
    assert output.stride() == (x.detach() * x.detach().mean()).stride()


def test_a_function_without_a_rule_is_named():
    x = torch.rand(3).requires_grad_()
    with balanced(nn.Identity()) as mode:
        x.log()
    assert mode.unknown == {"log"}


def test_weights_may_be_differentiated_and_are_still_constants():
    q, k, v = torch.randn(3, 1, 4, 6, dtype=torch.float64).unbind()
    q, v = q.requires_grad_(), v.requires_grad_()
    with balanced(nn.Identity(), weights=True):
        weights = energies(q, k).softmax(-1)
        output = (weights.transpose(0, 1).transpose(0, 1) @ v).square().sum()
    for_weights, for_values, for_queries = torch.autograd.grad(output, [weights, v, q], allow_unused=True)
    context = weights.detach() @ v.detach()
    torch.testing.assert_close(for_weights, context @ v.detach().mT)  # the square is of degree two: half of 2 c
    torch.testing.assert_close(for_values, weights.detach().mT @ context)
    assert for_queries is None


def test_every_name_is_one_of_torch():
    homes = (torch, torch.Tensor, F, torch.nn.functional, torch._C._nn, torch.fft, torch.linalg, torch.special)
    ours = {"rdiv", "rmatmul", "rpow", "rsub"}  # of operators
    names = operators.HOMOGENEOUS | operators.ELEMENTWISE | operators.CONSTANT | operators.PRODUCTS | operators.AFFINE
    for name in {*names, *operators.BIASED, *operators.ADDED_PRODUCTS} - ours:
        stripped = name.removeprefix("fft_").removeprefix("linalg_").removeprefix("special_")
        found = any(hasattr(home, each) for home in homes for each in (name, stripped, f"{name}_"))
        assert found or name == "__get__", name


def test_the_model_is_left_as_it_was():
    model = timm.create_model("test_vit").train()
    parameters = {name: (p, p.requires_grad) for name, p in model.named_parameters()}
    hooks = [len(module._forward_hooks) for module in model.modules()]
    with balanced(model):
        assert not any(p.requires_grad for p in model.parameters())
    with pytest.raises(KeyError), balanced(model):
        raise KeyError
    assert {name: (p, p.requires_grad) for name, p in model.named_parameters()} == parameters
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert all(p.grad is None for p in model.parameters())
    assert model.training

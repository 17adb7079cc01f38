"""One transformer, its attention written in every way that people write it: the same maps, gradients and heatmaps."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import visattn
from tests.test_capture import small_vit

# Each takes queries (scaled), keys and values, (B, heads, N, d), and returns (B, heads, N, d).
FORMS = {}


def form(function):
    FORMS[function.__name__] = function
    return function


def energies(q, k):
    return q @ k.mT


@form
def matmul(q, k, v):
    return energies(q, k).softmax(-1) @ v


@form
def einsum(q, k, v):
    return torch.einsum("bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v)


@form
def einsum_with_spaces_and_heads_behind_tokens(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = torch.einsum("b i h d, b j h d -> b h i j", q, k).softmax(-1)
    return torch.einsum("b h i j, b j h d -> b i h d", weights, v).transpose(1, 2)


@form
def einsum_with_heads_last(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = torch.einsum("bihd,bjhd->bijh", q, k).softmax(dim=2)
    return torch.einsum("bijh,bjhd->bihd", weights, v).transpose(1, 2)


@form
def einsum_with_keys_before_queries(q, k, v):
    weights = torch.einsum("bhid,bhjd->bhji", q, k).softmax(dim=-2)
    return torch.einsum("bhji,bhjd->bhid", weights, v)


@form
def einsum_with_dots(q, k, v):
    return torch.einsum("...ij,...jd->...id", torch.einsum("...id,...jd->...ij", q, k).softmax(-1), v)


@form
def einsum_of_a_list(q, k, v):
    return torch.einsum("bhij,bhjd->bhid", [energies(q, k).softmax(-1), v])


@form
def einsum_with_numbers(q, k, v):
    return torch.einsum(energies(q, k).softmax(-1), [0, 1, 2, 3], v, [0, 1, 3, 4], [0, 1, 2, 4])


@form
def einsum_with_numbers_and_dots(q, k, v):
    return torch.einsum(energies(q, k).softmax(-1), [..., 2, 3], v, [..., 3, 4], [..., 2, 4])


@form
def einsum_with_weights_second(q, k, v):
    return torch.einsum("bhjd,bhij->bhid", v, energies(q, k).softmax(-1))


@form
def einsum_to_heads_and_channels_joined(q, k, v):
    weights = energies(q, k).softmax(-1)
    return torch.einsum("bhij,bhjd->bihd", weights, v).transpose(1, 2)


@form
def einsum_with_heads_before_the_batch(q, k, v):
    weights = energies(q, k).softmax(-1).transpose(0, 1)
    return torch.einsum("hbij,bhjd->bhid", weights, v)


@form
def einsum_of_three(q, k, v):
    identity = torch.eye(v.shape[-1], dtype=v.dtype, device=v.device)
    return torch.einsum("bhij,bhjd,de->bhie", energies(q, k).softmax(-1), v, identity)


@form
def bmm_with_names(q, k, v):
    weights, v = energies(q, k).softmax(-1).flatten(0, 1), v.flatten(0, 1)
    return torch.bmm(mat2=v, input=weights).unflatten(0, (-1, 2))


@form
def baddbmm(q, k, v):
    weights, v = energies(q, k).softmax(-1).flatten(0, 1), v.flatten(0, 1)
    return torch.baddbmm(torch.zeros_like(v), weights, v, beta=2, alpha=1).unflatten(0, (-1, 2))


@form
def weights_on_the_right(q, k, v):
    return (v.mT @ energies(q, k).softmax(-1).mT).mT


@form
def module(q, k, v):
    return nn.Softmax(dim=-1)(energies(q, k)) @ v


@form
def exponentials(q, k, v):
    e = energies(q, k).exp()
    return (e / e.sum(-1, keepdim=True)) @ v


@form
def exponentials_less_the_maximum(q, k, v):
    s = energies(q, k)
    e = torch.exp(s - s.amax(-1, keepdim=True).detach())
    return torch.matmul(torch.div(e, torch.sum(e, dim=-1).unsqueeze(-1)), v)


@form
def exponentials_in_place(q, k, v):
    e = energies(q, k).exp_()
    return (e / (e.sum(dim=(-1,), keepdim=True) + 1e-12)) @ v


@form
def exponentials_times_the_inverse(q, k, v):
    e = energies(q, k).exp()
    return (e * e.sum(-1, keepdim=True).reciprocal()) @ v


@form
def exponentials_times_one_over_the_sum(q, k, v):
    e = energies(q, k).exp()
    return ((1 / e.sum(-1, keepdim=True)) * e) @ v


@form
def divided_after_the_product(q, k, v):
    e = energies(q, k).exp()
    return (e @ v) / e.sum(-1, keepdim=True)


@form
def divided_after_einsum(q, k, v):
    e = energies(q, k).exp()
    context = torch.einsum("bhij,bhjd->bihd", e, v)
    return (context / e.sum(-1).transpose(1, 2)[..., None]).transpose(1, 2)


@form
def log_softmax(q, k, v):
    return F.log_softmax(energies(q, k), dim=-1).exp() @ v


@form
def logsumexp(q, k, v):
    s = energies(q, k)
    return torch.exp(s - torch.logsumexp(s, dim=-1, keepdim=True)) @ v


@form
def broadcast_product(q, k, v):
    weights = energies(q, k).softmax(-1)
    return (weights[..., None] * v[:, :, None]).sum(-2)


@form
def broadcast_product_of_exponentials(q, k, v):
    e = energies(q, k).exp()
    return (v[:, :, None] * e[..., None]).sum(dim=3) / e.sum(-1, keepdim=True)


@form
def in_double_precision(q, k, v):
    return energies(q, k).softmax(-1, dtype=torch.float64).to(v.dtype) @ v


@form
def written_into_a_slice(q, k, v):
    weights = torch.empty_like(energies(q, k))
    weights[:] = energies(q, k).softmax(-1)
    return weights @ v


def rewrite(model, function):
    """Let all attention of a timm transformer go through a form."""

    def forward(self, x, *_args, **_kwargs):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(function(q * self.scale, k, v).transpose(1, 2).flatten(2))

    for block in model.blocks:
        block.attn.forward = forward.__get__(block.attn)
    return model


@pytest.fixture(scope="module")
def images():
    torch.manual_seed(1)
    return torch.rand(2, 3, 32, 32).double()


@pytest.fixture(scope="module")
def expected(images):
    """Maps, gradients and heatmaps of the fused kernel."""
    return everything(small_vit(), images)


def everything(model, images, methods=("rollout", "chefer", "legrad")):
    with visattn.capture(model) as maps:
        logits = model(images)
    gradients = maps.gradients(logits[:, 2].sum())
    return logits, maps, gradients, [visattn.explain(model, images, each, target=1).raw for each in methods]


# How a form's maps lie in memory, if not as (B, heads, N, N).
MOVED = {"einsum_with_heads_before_the_batch": lambda x: x.transpose(0, 1)}
FLAT = {"bmm_with_names", "baddbmm"}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same(name, images, expected):
    model = rewrite(small_vit(), FORMS[name])
    logits, maps, gradients, heatmaps = everything(model, images)
    torch.testing.assert_close(logits, expected[0], atol=1e-10, rtol=0)
    assert list(maps) == [f"blocks.{i}.attn" for i in range(3)]
    move = MOVED.get(name, lambda x: x.unflatten(0, (-1, 2)) if name in FLAT else x)
    for found, true in ((maps, expected[1]), (gradients, expected[2])):
        for layer in found:
            torch.testing.assert_close(move(found[layer]), true[layer], atol=1e-8, rtol=0)
    for found, true in zip(heatmaps, expected[3], strict=True):
        torch.testing.assert_close(found, true, atol=1e-8, rtol=0)


class Function(nn.Module):
    """A module without any parts that computes what it is told."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def seen(function, *args):
    model = Function(function)
    with torch.no_grad(), visattn.capture(model) as maps:
        model(*args)
    return [*maps.values()]


S = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))  # (B, heads, Nq, Nk)
V = torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(1))

# Energies to maps, where queries and keys are not equally many.
OTHERS = {
    "values without heads": lambda: torch.einsum("bhij,bjd->bhid", S.softmax(-1), V[:, 0]),
    "heads added up": lambda: torch.einsum("bhij,bhjd->bid", S.softmax(-1), V),
    "no arrow": lambda: torch.einsum("ij,jd", S[0, 0].softmax(-1), V[0, 0]),
    "mm": lambda: torch.mm(S[0, 0].softmax(-1), V[0, 0]),
    "one vector of values": lambda: S.softmax(-1) @ V[0, 0, :, 0],
    "one matrix of values": lambda: S.softmax(-1) @ V[0, 0],
    "dropout": lambda: F.dropout(S.softmax(-1), 0.5) @ V,
    "dropout before einsum": lambda: torch.einsum("bhij,bhjd->bihd", F.dropout(S.softmax(-1), 0.5), V),
    "dropout, heads last": lambda: torch.einsum("bijh,bhjd->bihd", F.dropout(S.permute(0, 2, 3, 1).softmax(2), 0.5), V),
    "talking heads": lambda: torch.einsum(
        "bgij,bgjd->bgid", torch.einsum("bhij,hg->bgij", S.softmax(-1), torch.randn(3, 3)), V
    ),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("inference", [True, False])
def test_others(name, inference):
    with torch.inference_mode(inference):
        (found,) = seen(OTHERS[name])
    expected = S.softmax(-1)
    expected = expected[0, 0] if name in ("no arrow", "mm") else expected
    torch.testing.assert_close(found, expected)


def test_keys_in_rows_and_columns():
    (found,) = seen(lambda s, v: torch.einsum("bhixy,bxyd->bhid", s.softmax(-1).unflatten(-1, (2, 3)), v),
                    torch.rand(2, 3, 4, 6), torch.rand(2, 2, 3, 8))  # fmt: skip
    assert found.shape == (2, 3, 4, 6)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 3, 4))


def test_a_softmax_over_queries_that_is_divided_by_its_sum_over_keys():
    (found,) = seen(lambda: (a := S.softmax(-2), (a / a.sum(-1, keepdim=True)) @ V))
    torch.testing.assert_close(found, F.normalize(S.softmax(-2), p=1, dim=-1))


def test_pooling_with_einsum():
    (found,) = seen(lambda: torch.einsum("bn,bnd->bd", S[:, 0, 0].softmax(-1), V[:, 0]))
    torch.testing.assert_close(found, S[:, 0, 0].softmax(-1)[:, None])


X = torch.rand(2, 3, 8, 7, 7)  # three branches of a network
GATE = torch.rand(2, 3, 8)
NOT_ATTENTION = {
    "selected branches": lambda: (X * GATE.softmax(1)[..., None, None]).sum(1),
    "selected branches with einsum": lambda: torch.einsum("bkc,bkchw->bchw", GATE.softmax(1), X),
    "one weight per branch": lambda: torch.einsum("bk,bkchw->bchw", GATE[..., 0].softmax(1), X),
    "a classifier": lambda: F.log_softmax(GATE, -1).exp().sum(),
    "soft arg-max": lambda: (GATE.flatten(2).softmax(-1) * torch.arange(8.0)).sum(-1),
    "exponentials alone": lambda: GATE.exp() @ GATE.mT,
    "heads are mixed": lambda: torch.einsum("bhij,hg->bgij", S.softmax(-1), torch.rand(3, 3)),
    "a gate": lambda: GATE.softmax(1)[..., None, None] * X,
}


@pytest.mark.parametrize("name", NOT_ATTENTION)
def test_what_is_no_attention(name):
    assert seen(NOT_ATTENTION[name]) == []

"""The unified attention module, its scopes and its forms."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import gradcheck

from tests.blocks import array
from tests.reference.core import attention as oracle
from tests.reference.core import distributions as distribution_oracle
from tests.reference.core import forms as forms_oracle
from tests.reference.core import scopes as scope_oracle
from tests.tensors import LargestTensor
from visattn.core import (
    DISTRIBUTIONS,
    SCOPES,
    SCORES,
    AlternatingCoAttention,
    Attention,
    AttentionPool,
    HierarchicalAttention,
    MultiDimensionalAttention,
    MultiHeadAttention,
    ParallelCoAttention,
    attention,
    scopes,
)
from visattn.core.scores import Location


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def close(actual, expected):
    np.testing.assert_allclose(array(actual), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (scopes.causal(4, 6), scope_oracle.causal(4, 6)),
        (scopes.causal(6, 4), scope_oracle.causal(6, 4)),
        (scopes.local(5, 8, 2), scope_oracle.local(5, 8, 2)),
        (scopes.local(8, 5, 1), scope_oracle.local(8, 5, 1)),
        (scopes.near(torch.tensor([0, 2, 9]), torch.arange(-3, 7), 2), scope_oracle.near([0, 2, 9], range(-3, 7), 2)),
        (scopes.local_2d(4, 6, 1), scope_oracle.local_2d(4, 6, 1)),
        (scopes.window_2d(5, 7, 3), scope_oracle.window_2d(5, 7, 3)),
    ],
)
def test_masks(actual, expected):
    assert np.array_equal(actual.numpy(), expected)


def test_predicted_window():
    scope = scopes.LocalPredictive(3, radius=4, dtype=torch.float64)
    query = normal(6, 3)
    mask, gain = scope(query, 20)
    expected_mask, expected_gain = scope_oracle.local_predictive(
        array(query), 20, array(scope.w.weight), array(scope.v.weight)[0], 4
    )
    assert np.array_equal(mask.numpy(), expected_mask)
    close(gain, expected_gain)


@pytest.mark.parametrize("distribution", ["softmax", "sigmoid", "sparsemax", "entmax15"])
@pytest.mark.parametrize("scope", SCOPES)
def test_context_and_weights(distribution, scope):
    module = Attention(3, distribution=distribution, scope=scope).double()
    q, k, v = normal(9, 3), normal(9, 3), normal(9, 4)
    mask, gain = module.scope(q, 9)
    context, weights = oracle.attend(
        *(array(t) for t in (q, k, v, module.score(q, k))),
        getattr(distribution_oracle, distribution),
        None if mask is None else mask.numpy(),
        None if gain is None else array(gain),
    )
    close(module(q, k, v), context)
    close(module.weights(q, k)[0], weights)
    for ours, expected in zip(module(q, k, v, return_weights=True), (context, weights), strict=True):
        close(ours.squeeze(0), expected)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_heads(heads):
    q, k, v = normal(5, 8), normal(7, 8), normal(7, 12)
    context, weights = oracle.multi_head(array(q), array(k), array(v), heads)
    ours, our_weights = Attention(8, heads=heads)(q, k, v, return_weights=True)
    close(ours, context)
    close(our_weights, weights)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("scope", SCOPES)
def test_every_combination(score, distribution, scope):
    """Runs, batched and with heads; the fused path equals the explicit one."""
    named = Location(4, num_keys=9) if score == "location" else score
    module = Attention(8, score=named, distribution=distribution, scope=scope, heads=2).double().eval()
    q, k, v = normal(2, 9, 8), normal(2, 9, 8), normal(2, 9, 8)
    context, weights = module(q, k, v, return_weights=True)
    assert context.shape == (2, 9, 8)
    assert weights.shape == (2, 2, 9, 9)
    torch.testing.assert_close(module(q, k, v), context)
    torch.testing.assert_close(module.weights(q, k), weights)


def count_fused(monkeypatch):
    calls = []
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **kw: calls.append(1) or fused(*a, **kw))
    return calls


@pytest.mark.parametrize("score", ["dot", "scaled_dot", "cosine", "general", "biased_general"])
@pytest.mark.parametrize("scope", ["global", "causal", "local_2d"])
def test_dot_products_run_on_the_fused_kernel(score, scope, monkeypatch):
    calls = count_fused(monkeypatch)
    module = Attention(8, score=score, scope=scope)
    x = torch.randn(2, 9, 8)
    module(x)
    assert calls
    calls.clear()
    module(x, return_weights=True)
    assert not calls


@pytest.mark.parametrize(
    "options", [{"score": "additive"}, {"distribution": "sparsemax"}, {"scope": "local_predictive"}]
)
def test_other_combinations_do_not(options, monkeypatch):
    calls = count_fused(monkeypatch)
    Attention(8, **options)(torch.randn(2, 9, 8))
    assert not calls


@pytest.mark.parametrize(("key_width", "value_width"), [(8, 8), (8, 5), (5, 8)])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_fused_kernel_is_reached_whatever_the_layout(key_width, value_width, transposed):
    def tokens(width):
        return normal(2, 1, width, 50).mT if transposed else normal(2, 1, 50, width)

    q, k, v = tokens(key_width), tokens(key_width), tokens(value_width)
    with LargestTensor() as largest:
        context = attention.fused_attention(q, k, v, scale=0.3)
    torch.testing.assert_close(context, torch.softmax(q @ k.mT * 0.3, -1) @ v)
    assert largest.elements < 2 * 50 * 50


def test_self_attention_is_the_default():
    x = normal(2, 5, 8)
    module = Attention(8, heads=2)
    torch.testing.assert_close(module(x), module(x, x, x))


def test_hard_attention_returns_one_value_per_query():
    v = normal(7, 3)
    context = Attention(3, distribution="hard").eval()(normal(5, 3), normal(7, 3), v)
    assert all(any(torch.equal(row, value) for value in v) for row in context)


def test_multi_head_attention_is_pytorchs():
    ours, theirs = MultiHeadAttention(8, heads=2).double(), nn.MultiheadAttention(8, 2, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key.bias, ours.value.bias]))
        theirs.out_proj.weight.copy_(ours.out.weight)
        theirs.out_proj.bias.copy_(ours.out.bias)
    x, context = normal(2, 5, 8), normal(2, 7, 8)
    for other in (x, context):
        expected, weights = theirs(x, other, other, average_attn_weights=False)
        torch.testing.assert_close(ours(x, other), expected)
        torch.testing.assert_close(ours.attention(x, other), weights)


def test_distinctive_attention_takes_two_widths():
    module = MultiHeadAttention(8, context_dim=6, heads=4, score="general")
    assert module(torch.randn(2, 5, 8), torch.randn(2, 7, 6)).shape == (2, 5, 8)
    assert module.attention(torch.randn(2, 5, 8), torch.randn(2, 7, 6)).shape == (2, 4, 5, 7)


def additive_parts(attention):
    score = attention.score
    return array(score.w), array(score.u), array(score.b), array(score.v)


def test_multi_dimensional():
    module = MultiDimensionalAttention(3, 5, dtype=torch.float64)
    q, k, v = normal(4, 3), normal(6, 5), normal(6, 5)
    s = module.score
    context, weights = oracle.multi_dimensional(*(array(t) for t in (q, k, v, s.w, s.u, s.b, s.v)))
    close(module(q, k, v), context)
    close(module.attention(q, k), weights)


def test_hierarchical():
    module = HierarchicalAttention(4, dtype=torch.float64)
    x = normal(2, 3, 5, 4)
    levels = [(array(p.query)[0], *additive_parts(p.attend)) for p in (module.inner, module.outer)]
    inner, outer = module.attention(x)
    for i in range(2):
        context, inner_weights, outer_weights = forms_oracle.hierarchical(array(x[i]), *levels)
        close(module(x)[i], context)
        close(inner[i], inner_weights)
        close(outer[i], outer_weights)


def test_fine_parallel_coattention():
    module = ParallelCoAttention(4, 3, hidden=5, dtype=torch.float64)
    a, b = normal(6, 4), normal(7, 3)
    f = module.affinity
    expected = forms_oracle.parallel_coattention(
        array(a), array(b), array(f.w_c), array(f.w_a.weight), array(f.w_b.weight),
        array(f.v_a.weight)[0], array(f.v_b.weight)[0],
    )  # fmt: skip
    for ours, theirs in zip(module(a, b), expected, strict=True):
        close(ours, theirs)


def test_coarse_parallel_coattention():
    module = ParallelCoAttention(4, 3, grain="coarse", hidden=5, dtype=torch.float64)
    a, b = normal(6, 4), normal(7, 3)
    expected = forms_oracle.coarse_parallel_coattention(
        array(a), array(b), additive_parts(module.over_a), additive_parts(module.over_b)
    )
    for ours, theirs in zip(module(a, b), expected, strict=True):
        close(ours, theirs)


def test_coarse_alternating_coattention():
    module = AlternatingCoAttention(4, 3, hidden=5, dtype=torch.float64)
    a, b = normal(6, 4), normal(7, 3)
    steps = [additive_parts(step) for step in (module.summary, module.over_b, module.over_a)]
    for ours, theirs in zip(
        module(a, b), forms_oracle.alternating_coattention(array(a), array(b), *steps), strict=True
    ):
        close(ours, theirs)


def test_fine_alternating_coattention_is_one_coarse_look_per_element():
    """Every element of a guides by itself: the same as handing over the elements one by one."""
    module = AlternatingCoAttention(4, 3, grain="fine", dtype=torch.float64)
    a, b = normal(6, 4), normal(7, 3)
    out = module(a, b)
    for i in range(6):
        context_b, _ = module.over_b(a[i : i + 1], b, return_weights=True)
        torch.testing.assert_close(out.b[i], context_b[0])
        torch.testing.assert_close(out.a[i], module.over_a(context_b, a)[0])
    torch.testing.assert_close(out.weights_a.sum(-1), torch.ones(6, dtype=torch.float64))
    assert out.weights_b.shape == (6, 7)


@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("kind", [ParallelCoAttention, AlternatingCoAttention])
def test_coattention_in_batches(kind, grain):
    module = kind(4, 3, grain=grain, dtype=torch.float64)
    a, b = normal(2, 6, 4), normal(2, 7, 3)
    alone = [torch.stack(parts) for parts in zip(*(module(a[i], b[i]) for i in range(2)), strict=True)]
    for together, single in zip(module(a, b), alone, strict=True):
        torch.testing.assert_close(together, single)


@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("kind", [ParallelCoAttention, AlternatingCoAttention])
@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (0, 0)])
def test_coattention_with_nothing_is_finite(kind, grain, sizes):
    out = kind(4, 3, grain=grain)(torch.randn(2, sizes[0], 4), torch.randn(2, sizes[1], 3))
    assert all(each.isfinite().all() for each in out)
    if grain == "coarse":
        assert [each.shape for each in out] == [(2, 4), (2, 3), (2, sizes[0]), (2, sizes[1])]


@pytest.mark.parametrize(
    "module",
    [
        Attention(4, score="additive", scope="local_predictive"),
        MultiHeadAttention(4, heads=2, score="cosine"),
        AttentionPool(4),
        MultiDimensionalAttention(4),
    ],
    ids=lambda m: type(m).__name__,
)
def test_gradients(module):
    module = module.double()
    x = normal(1, 5, 4).requires_grad_()
    parameters = dict(module.named_parameters())

    def run(x, *values):
        return torch.func.functional_call(module, dict(zip(parameters, values, strict=True)), (x,))

    assert gradcheck(run, (x, *parameters.values()))


def test_bad_settings_are_explained():
    with pytest.raises(ValueError, match="unknown distribution 'sofmax': did you mean 'softmax'"):
        Attention(4, distribution="sofmax")
    with pytest.raises(ValueError, match="unknown scope 'globl': did you mean 'global'"):
        Attention(4, scope="globl")
    with pytest.raises(ValueError, match="every key needs a value, got 7 keys and 6 values"):
        Attention(4)(torch.randn(3, 4), torch.randn(7, 4), torch.randn(6, 4))
    with pytest.raises(ValueError, match="built for queries of 4 and keys of 4 features, got 8 and 8"):
        Attention(4)(torch.randn(3, 8))
    with pytest.raises(ValueError, match="3 heads do not divide"):
        Attention(4, heads=3)
    with pytest.raises(ValueError, match="2x2 grid, got 5 queries and 5 keys: give grid"):
        Attention(4, scope="local_2d")(torch.randn(5, 4))
    with pytest.raises(ValueError, match="grain is 'coarse' or 'fine'"):
        ParallelCoAttention(4, grain="medium")


def test_split_and_merge_are_inverse():
    x = torch.randn(2, 5, 8)
    assert torch.equal(attention.merge_heads(attention.split_heads(x, 4)), x)

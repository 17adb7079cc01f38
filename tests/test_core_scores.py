"""Score functions against the papers."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from tests.blocks import array
from tests.reference.core import scores as oracle
from visattn.core import SCORES, Attention, energies, kernels
from visattn.core.scores import DotScore

Q, K, DQ, DK = 4, 6, 3, 5


def keys_for(name):
    """Scores that compare vectors of one length get keys as long as queries."""
    return DQ if name in ("dot", "scaled_dot", "cosine", "gaussian", "boxcar", "triangular", "epanechnikov") else DK


def build(name):
    options = {"num_keys": K} if name == "location" else {}
    return SCORES[name](DQ, keys_for(name), dtype=torch.float64, **options)


def kernel_energies(kernel):
    def energies(score, q, k):
        distance = np.linalg.norm(q[:, None] - k[None], axis=-1) / score.width
        with np.errstate(divide="ignore"):
            return np.log(np.vectorize(kernel)(distance))

    return energies


EXPECTED = {
    "dot": lambda s, q, k: oracle.dot(q, k),
    "scaled_dot": lambda s, q, k: oracle.scaled_dot(q, k),
    "cosine": lambda s, q, k: oracle.cosine(q, k, temperature=s.log_scale.neg().exp().item()),
    "general": lambda s, q, k: oracle.general(q, k, array(s.w)),
    "biased_general": lambda s, q, k: oracle.biased_general(q, k, array(s.w), array(s.b)),
    "additive": lambda s, q, k: oracle.additive(q, k, array(s.w), array(s.u), array(s.v), array(s.b)),
    "concat": lambda s, q, k: oracle.concat(q, k, array(s.w), array(s.b), array(s.v)),
    "location": lambda s, q, k: oracle.location(q, array(s.w), array(s.b)),
    "gaussian": kernel_energies(oracle.gaussian_kernel),
    "boxcar": kernel_energies(oracle.boxcar_kernel),
    "triangular": kernel_energies(oracle.triangular_kernel),
    "epanechnikov": kernel_energies(oracle.epanechnikov_kernel),
}


def test_every_score_has_an_oracle():
    assert sorted(EXPECTED) == list(SCORES)


@pytest.mark.parametrize("name", SCORES)
def test_agrees_with_the_paper(name):
    score = build(name)
    q = torch.randn(2, Q, DQ, dtype=torch.float64) * 0.6
    k = torch.randn(2, K, keys_for(name), dtype=torch.float64) * 0.6
    energies = array(score(q, k))
    assert energies.shape == (2, Q, K)
    for i in range(2):
        np.testing.assert_allclose(energies[i], EXPECTED[name](score, array(q[i]), array(k[i])), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", SCORES)
def test_gradients(name):
    score = build(name)
    q = torch.randn(Q, DQ, dtype=torch.float64, requires_grad=True)
    k = torch.randn(K, keys_for(name), dtype=torch.float64, requires_grad=True)

    def run(q, k, *_):
        return score(q, k).masked_fill(score(q, k) == -torch.inf, 0)

    if name == "boxcar":
        assert not run(q, k).isnan().any()  # constant wherever it has a derivative
    else:
        assert gradcheck(run, (q, k, *score.parameters()))


@pytest.mark.parametrize("name", ["triangular", "epanechnikov", "gaussian"])
def test_kernels_have_finite_gradients_where_query_and_key_coincide(name):
    q = torch.zeros(1, 2, requires_grad=True)
    SCORES[name](2)(q, torch.zeros(1, 2)).sum().backward()
    assert torch.equal(q.grad, torch.zeros(1, 2))


@pytest.mark.parametrize("norm", [1e-3, 1, 240, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_equal_vectors_have_no_distance(norm, dtype):
    x = torch.nn.functional.normalize(torch.randn(2, 7, 64), dim=-1)
    q = (min(norm, 1e4 if dtype == torch.float16 else norm) * x).to(dtype)
    for function in (energies.distance, energies.squared_distance):
        assert function(q, q).diagonal(dim1=1, dim2=2).eq(0).all()
        assert function(q.clone().requires_grad_(), q.clone()).diagonal(dim1=1, dim2=2).eq(0).all()
    energy = SCORES["gaussian"](64)(q, q)
    assert energy.diagonal(dim1=1, dim2=2).eq(0).all()
    assert energy.le(0).all()


def test_small_distances_between_large_vectors():
    q = 240 * torch.nn.functional.normalize(torch.randn(5, 64, dtype=torch.float64), dim=-1)
    q, k = q.float(), (q + 1e-3 * torch.randn(5, 64, dtype=torch.float64)).float()
    expected = (q.double()[:, None] - k.double()).norm(dim=-1)
    torch.testing.assert_close(energies.distance(q, k).double(), expected, rtol=1e-5, atol=0)
    a = q.clone().requires_grad_()
    near = energies.squared_distance(a, k).diagonal()
    (gradient,) = torch.autograd.grad(near.sum(), a)
    torch.testing.assert_close(gradient.double(), 2 * (q.double() - k.double()), rtol=0, atol=1e-3)


def test_distances_can_be_differentiated_twice():
    q, k = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 5))
    for function in (energies.distance, energies.squared_distance):
        assert gradcheck(function, (q, k))
        assert gradgradcheck(function, (q, k))


def test_distances_hold_no_differences():
    """Memory for pairs, not for pairs times features."""
    q, k = (torch.randn(n, 256, requires_grad=True) for n in (64, 65))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        energies.distance(q, k)
    assert max(saved) <= max(64 * 65, 65 * 256)


def test_distances_are_exported():
    class Distance(torch.nn.Module):
        def forward(self, q, k):
            return energies.distance(q, k)

    q, k = torch.randn(2, 5, 4), torch.randn(2, 6, 4)
    exported = torch.export.export(Distance(), (q, k)).module()(q, k)
    torch.testing.assert_close(exported, energies.distance(q, k))
    compiled = torch.compile(Distance(), fullgraph=True, backend="eager")(q, k)
    torch.testing.assert_close(compiled, energies.distance(q, k))


def test_the_functions_are_the_modules():
    q, k = torch.randn(Q, DQ), torch.randn(K, DK)
    general, additive = SCORES["general"](DQ, DK), SCORES["additive"](DQ, DK)
    torch.testing.assert_close(general(q, k), energies.general(q, k, general.w))
    torch.testing.assert_close(additive(q, k), energies.additive(q, k, additive.w, additive.u, additive.b, additive.v))
    biased = SCORES["biased_general"](DQ, DK)
    torch.testing.assert_close(biased(q, k), energies.biased_general(q, k, biased.w, biased.b))
    torch.testing.assert_close(SCORES["scaled_dot"](DQ)(q, q), energies.scaled_dot(q, q))
    torch.testing.assert_close(SCORES["cosine"](DQ)(q, q), energies.cosine(q, q, 0.1))


def test_concat_equals_additive_with_its_halves():
    concat = SCORES["concat"](DQ, DK)
    q, k = torch.randn(Q, DQ), torch.randn(K, DK)
    w, u = concat.w.split([DQ, DK], dim=1)
    torch.testing.assert_close(concat(q, k), energies.additive(q, k, w, u, concat.b, concat.v))


@pytest.mark.parametrize("kernel", ["gaussian", "boxcar", "triangular", "epanechnikov"])
@pytest.mark.parametrize("width", [0.3, 1.0])
def test_softmax_over_a_kernel_is_nadaraya_watson(kernel, width):
    x = torch.sort(torch.rand(50, dtype=torch.float64) * 4).values
    y = 2 * torch.sin(x) + x
    query = torch.linspace(-3, 7, 41, dtype=torch.float64)  # far outside, where compact kernels see nothing
    attention = Attention(1, score=SCORES[kernel](1, width=width))
    estimate = attention(query[:, None], x[:, None], y[:, None])[:, 0]
    function = getattr(oracle, f"{kernel}_kernel")
    near = (query > -1) & (query < 5) if kernel == "gaussian" else slice(None)
    expected = oracle.nadaraya_watson(array(query[near]), array(x), array(y), function, width)
    np.testing.assert_allclose(array(estimate[near]), expected, rtol=1e-9, atol=1e-9)
    assert estimate.isfinite().all()


def test_the_triangular_kernel_is_not_epanechnikov():
    u = torch.tensor([0.0, 0.5, 1.0, 1.5])
    torch.testing.assert_close(kernels.triangular_kernel(u), torch.tensor([1.0, 0.5, 0.0, 0.0]))
    torch.testing.assert_close(kernels.epanechnikov_kernel(u), torch.tensor([0.75, 0.5625, 0.0, 0.0]))


@pytest.mark.parametrize("name", SCORES)
def test_dot_form_is_the_score(name):
    score = build(name)
    q, k = (
        torch.randn(Q, DQ, dtype=torch.float64),
        torch.randn(K, keys_for(name), dtype=torch.float64),
    )
    if isinstance(score, DotScore):
        mapped_q, mapped_k, scale = score.dot_form(q, k)
        torch.testing.assert_close(mapped_q @ mapped_k.mT * scale, score(q, k))


def test_bad_settings_are_explained():
    with pytest.raises(ValueError, match="unknown score 'cosin': did you mean 'cosine'"):
        Attention(4, score="cosin")
    with pytest.raises(ValueError, match="queries of 3 and keys of 5 features: use 'general'"):
        SCORES["dot"](3, 5)
    with pytest.raises(ValueError, match="built for 6 keys and got 4"):
        build("location")(torch.randn(Q, DQ), torch.randn(4, DK))
    with pytest.raises(ValueError, match="width above zero"):
        SCORES["gaussian"](1, width=0)

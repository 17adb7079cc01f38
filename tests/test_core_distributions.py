"""Distributions against the papers, the published golden values, and their own definitions."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from tests.blocks import array
from tests.reference.core import distributions as oracle
from visattn.core import DISTRIBUTIONS, distributions

SMOOTH = ["softmax", "sigmoid", "sparsemax", "entmax15"]
COMPETING = ["softmax", "sparsemax", "entmax15"]


def function(name):
    return getattr(distributions, name)


def test_every_distribution_is_tested():
    assert sorted([*SMOOTH, "hard"]) == list(DISTRIBUTIONS)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("scale", [0.1, 1, 30])
def test_agrees_with_the_paper(name, scale):
    energies = torch.randn(20, 9, dtype=torch.float64) * scale
    energies[3, 2] = energies[3, 5]  # a tie
    energies[7, :4] = -torch.inf
    expected = [getattr(oracle, name)(row) for row in array(energies)]
    np.testing.assert_allclose(array(function(name)(energies)), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("softmax", [0.0486, 0.3592, 0.5922]),
        ("sparsemax", [0, 0.25, 0.75]),
        ("entmax15", [0, 0.3260, 0.6740]),
        ("hard", [0, 0, 1]),
    ],
)
def test_golden_values(name, weights):
    energies = torch.tensor([-2, 0, 0.5])
    torch.testing.assert_close(function(name)(energies), torch.tensor(weights), rtol=0, atol=5e-5, check_dtype=False)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_any_axis(name, dim):
    energies = torch.randn(4, 5, 6, dtype=torch.float64)
    expected = function(name)(energies.movedim(dim, -1)).movedim(-1, dim)
    torch.testing.assert_close(function(name)(energies, dim), expected)


@pytest.mark.parametrize("name", COMPETING)
def test_sums_to_one_and_ignores_a_constant(name):
    energies = torch.randn(50, 12, dtype=torch.float64) * 3
    weights = function(name)(energies)
    torch.testing.assert_close(weights.sum(-1), torch.ones(50, dtype=torch.float64))
    torch.testing.assert_close(function(name)(energies + 1000), weights)


def test_sparser_and_sparser():
    energies = torch.randn(200, 12)
    zeros = [(function(name)(energies) == 0).float().mean() for name in ("softmax", "entmax15", "sparsemax", "hard")]
    assert zeros == sorted(zeros)
    assert zeros[0] == 0 < zeros[1] < zeros[2] < zeros[3]


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients(name):
    energies = torch.randn(6, 7, dtype=torch.float64)
    energies[0, 0] = -torch.inf
    mask = energies == -torch.inf
    energies = energies.masked_fill(mask, 0).requires_grad_()
    assert gradcheck(lambda e: function(name)(e.masked_fill(mask, -torch.inf)), (energies,))


@pytest.mark.parametrize("name", [*SMOOTH, "hard"])
def test_a_query_that_sees_nothing_gets_zeros_and_a_finite_gradient(name):
    energies = torch.randn(2, 4, requires_grad=True)
    masked = torch.where(torch.tensor([[True], [False]]), energies, -torch.inf)
    weights = function(name)(masked)
    assert torch.equal(weights[1], torch.zeros(4))
    (weights * torch.randn(2, 4)).sum().backward()
    assert energies.grad.isfinite().all()


def test_hard_draws_from_the_softmax():
    energies = torch.tensor([[-1.0, 0.0, 1.0]]).expand(20_000, 3)
    drawn = distributions.hard(energies, sample=True)
    assert torch.equal(drawn.sum(-1), torch.ones(20_000))
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(drawn.mean(0), torch.softmax(energies[0], 0), atol=0.015, rtol=0)


@pytest.mark.parametrize("sample", [False, True])
def test_hard_has_the_gradient_of_the_softmax(sample):
    energies = torch.randn(5, 6, requires_grad=True)
    upstream = torch.randn(5, 6)
    (expected,) = torch.autograd.grad((distributions.softmax(energies) * upstream).sum(), energies)
    (actual,) = torch.autograd.grad((distributions.hard(energies, sample=sample) * upstream).sum(), energies)
    torch.testing.assert_close(actual, expected)


def test_the_hard_layer_samples_only_while_training():
    layer = distributions.Hard()
    energies = torch.zeros(1000, 4)
    assert torch.equal(layer.eval()(energies), distributions.hard(energies))
    assert (layer.train()(energies).mean(0) - 0.25).abs().max() < 0.1

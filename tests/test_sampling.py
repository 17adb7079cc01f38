"""Drawing K of N, against enumeration and quadrature."""

import itertools

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tests.reference import hard as oracle
from visattn.core.sampling import draw_log_prob, entropy, k_hot, perturbed_top_k, straight_through_top_k, top_k

ENERGIES = torch.tensor([0.3, -1.2, 0.9, 0.1, -0.4], dtype=torch.float64)


def test_draws_are_those_of_a_draw_without_replacement():
    draws = 40_000
    chosen = top_k(ENERGIES.expand(draws, -1), 2, sample=True)
    for pair in itertools.permutations(range(5), 2):
        p = np.exp(oracle.plackett_luce_log_prob(ENERGIES.numpy(), np.array(pair)))
        share = (chosen == torch.tensor(pair)).all(1).double().mean()
        assert abs(share - p) < 4 * (p * (1 - p) / draws) ** 0.5, pair


def test_without_a_draw_the_largest_are_taken_in_order():
    assert top_k(ENERGIES[None], 3).tolist() == [[2, 0, 3]]


@pytest.mark.parametrize("k", [1, 3, 5])
def test_log_probability_of_every_draw(k):
    for chosen in itertools.permutations(range(5), k):
        steps = draw_log_prob(ENERGIES[None], torch.tensor([chosen]))
        assert steps.shape == (1, k)
        assert steps.sum().item() == pytest.approx(oracle.plackett_luce_log_prob(ENERGIES.numpy(), np.array(chosen)))
        first = np.exp(steps[0, 0].item())
        assert first == pytest.approx(ENERGIES.softmax(0)[chosen[0]].item())


def test_gradients_of_the_log_probability_stay_finite_when_all_are_drawn():
    energies = ENERGIES[None].clone().requires_grad_()
    draw_log_prob(energies, torch.tensor([[4, 2, 0, 1, 3]])).sum().backward()
    assert energies.grad.isfinite().all()
    assert torch.autograd.gradcheck(lambda e: draw_log_prob(e, torch.tensor([[4, 2, 0]])), (energies,))


def test_entropy():
    torch.testing.assert_close(entropy(ENERGIES[None]).item(), oracle.entropy(ENERGIES.numpy()))
    assert entropy(torch.tensor([[0.0, -1e4, -1e4]])).item() == 0


def test_k_hot():
    assert k_hot(torch.tensor([[[1, 3]], [[0, 2]]]), 4).tolist() == [[[0, 1, 0, 1]], [[1, 0, 1, 0]]]


def test_straight_through_is_hard_forwards_and_soft_backwards():
    energies = ENERGIES.repeat(500, 1).requires_grad_()
    torch.manual_seed(3)
    chosen = straight_through_top_k(energies, 2)
    torch.testing.assert_close(chosen.detach().round(), chosen.detach())
    assert (chosen.detach().sum(1) - 2).abs().max() < 1e-12
    weights = torch.randn(5, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((chosen * weights).sum(), energies)
    torch.manual_seed(3)
    noisy = energies.detach() - torch.empty_like(energies).exponential_().log()
    p = noisy.softmax(1)
    torch.testing.assert_close(gradient, 2 * p * (weights - (p * weights).sum(1, keepdim=True)))


@pytest.mark.parametrize(("k", "sigma"), [(1, 0.5), (2, 0.5), (3, 0.2)])
def test_perturbed_top_k_and_its_gradient(k, sigma):
    """Mean over many draws against quadrature, within four standard errors."""
    draws = 200_000
    energies = ENERGIES[None].clone().requires_grad_()
    chosen = perturbed_top_k(energies, k, sigma=sigma, samples=draws)
    exact = torch.from_numpy(oracle.perturbed_topk(ENERGIES.numpy(), k, sigma))
    error = (exact * (1 - exact) / draws).sqrt()
    assert ((chosen[0] - exact).abs() <= 4 * error + 1e-12).all()
    jacobian = torch.stack([torch.autograd.grad(each, energies, retain_graph=True)[0][0] for each in chosen[0]])
    exact_jacobian = torch.from_numpy(oracle.perturbed_topk_jacobian(ENERGIES.numpy(), k, sigma))
    assert ((jacobian - exact_jacobian).abs() < 4 / (sigma * draws**0.5)).all()
    cosine = torch.cosine_similarity(jacobian.flatten(), exact_jacobian.flatten(), 0)
    assert cosine > 0.995  # a widely copied implementation reaches 0.970


def test_the_gradient_of_perturbed_top_k_is_the_mean_of_the_products():
    """E[T_i z_j] / sigma, written out for the same draws."""
    energies = torch.randn(3, 20, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(5)
    chosen = perturbed_top_k(energies, 4, sigma=0.3, samples=11)
    torch.manual_seed(5)
    noise = torch.randn(3, 11, 20, dtype=torch.float64)
    ones = k_hot((energies.detach()[:, None] + 0.3 * noise).topk(4).indices, 20).double()
    jacobian = torch.einsum("bsi,bsj->bij", ones, noise) / (0.3 * 11)
    weights = torch.randn(3, 20, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((chosen * weights).sum(), energies)
    torch.testing.assert_close(gradient, torch.einsum("bij,bi->bj", jacobian, weights))
    torch.testing.assert_close(chosen.detach(), ones.mean(1))


def test_perturbed_top_k_never_writes_its_jacobian_out():
    batch, samples, count = 2, 3, 300
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            largest = max([largest, *(t.numel() for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor))])
            return out

    energies = torch.randn(batch, count, requires_grad=True)
    with Watch():
        perturbed_top_k(energies, 5, sigma=0.1, samples=samples).square().sum().backward()
    assert largest == batch * samples * count

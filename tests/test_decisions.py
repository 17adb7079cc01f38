"""REINFORCE: unbiased, with less variance behind a baseline, and taken up by whoever trains."""

import copy
import pickle
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import visattn
from tests.reference import hard as oracle
from visattn.core.sampling import draw_log_prob, entropy, top_k
from visattn.hard.ram import log_normal
from visattn.policy import Decision, DecisionModule, policy_loss, policy_term, take_decisions

ENERGIES = torch.tensor([0.3, -1.2, 0.9, 0.1, -0.4], dtype=torch.float64)
WORTH = torch.tensor([0.2, 1.0, -0.5, 0.8, 0.1], dtype=torch.float64)
DRAWS = 40_000


def reward(chosen):
    """Depends on the order too."""
    return float(WORTH[chosen[0]] + 0.3 * WORTH[chosen[1]] + 2)


def estimates(baseline):
    """The REINFORCE gradient in the energies for every one of many draws, (draws, N): uphill."""
    torch.manual_seed(0)
    energies = ENERGIES.repeat(DRAWS, 1).requires_grad_()
    chosen = top_k(energies.detach(), 2, sample=True)
    rewards = WORTH[chosen[:, 0]] + 0.3 * WORTH[chosen[:, 1]] + 2
    log_prob = draw_log_prob(energies, chosen)
    decision = Decision(log_prob, torch.full_like(log_prob.detach(), baseline), entropy(energies).detach())
    (gradient,) = torch.autograd.grad(policy_loss(decision, rewards), energies)
    return -DRAWS * gradient


def exact():
    value, gradient = oracle.exact_policy_gradient(ENERGIES.numpy(), 2, reward)
    return value, torch.from_numpy(gradient)


def test_the_mean_of_the_estimate_is_the_exact_gradient():
    each = estimates(baseline=0.0)
    error = each.std(0) / DRAWS**0.5
    assert ((each.mean(0) - exact()[1]).abs() < 4 * error).all()
    assert (exact()[1].abs() > 20 * error).any()  # so that zero would not pass


def test_a_baseline_leaves_the_mean_unchanged():
    value, gradient = exact()
    each = estimates(baseline=value)
    error = each.std(0) / DRAWS**0.5
    assert ((each.mean(0) - gradient).abs() < 4 * error).all()
    assert (gradient.abs() > 20 * error).sum() >= 2


def test_a_baseline_lowers_the_variance():
    value, _ = exact()
    assert (estimates(baseline=value).var(0) < estimates(baseline=0.0).var(0) / 5).all()


def test_a_gaussian_policy():
    """E[-(l - c)²] has the gradient 2 (c - mean) in the mean."""
    sigma, target = 0.3, torch.tensor([0.4, -0.2], dtype=torch.float64)
    mean = torch.tensor([0.1, 0.3], dtype=torch.float64).repeat(DRAWS, 1).requires_grad_()
    location = mean.detach() + sigma * torch.randn(DRAWS, 2, dtype=torch.float64)
    log_prob = log_normal(location, mean, sigma)[:, None]
    rewards = -(location - target).square().sum(1)
    decision = Decision(log_prob, rewards.mean().expand(DRAWS, 1), torch.zeros(DRAWS, 1))
    (gradient,) = torch.autograd.grad(policy_loss(decision, rewards), mean)
    each = -DRAWS * gradient
    expected = 2 * (target - mean[0].detach())
    assert ((each.mean(0) - expected).abs() < 4 * each.std(0) / DRAWS**0.5).all()


def test_the_terms_of_the_loss():
    log_prob = torch.tensor([[-1.0, -2.0], [-0.5, -0.1]], requires_grad=True)
    guess = torch.tensor([[0.2, 0.4], [0.6, 0.8]], requires_grad=True)
    spread = torch.tensor([[0.7], [0.9]], requires_grad=True)
    loss = policy_loss(Decision(log_prob, guess, spread, weight=0.1, entropy_weight=0.5), torch.tensor([1.0, 0.0]))
    policy = -0.1 * ((-1.0 * 0.8 - 2.0 * 0.6) + (0.5 * 0.6 + 0.1 * 0.8)) / 2
    regression = (0.8**2 + 0.6**2 + 0.6**2 + 0.8**2) / 4
    assert loss.item() == pytest.approx(policy + regression - 0.5 * 0.8)
    loss.backward()
    torch.testing.assert_close(guess.grad, torch.tensor([[-0.4, -0.3], [0.3, 0.4]]))  # the regression only
    torch.testing.assert_close(log_prob.grad, torch.tensor([[-0.04, -0.03], [0.03, 0.04]]))
    assert spread.grad.tolist() == [[-0.25], [-0.25]]


def test_an_average_is_not_learned_by_regression():
    log_prob = torch.zeros(2, 1, requires_grad=True)
    loss = policy_loss(Decision(log_prob, torch.full((2, 1), 0.5), torch.zeros(2, 1)), torch.tensor([1.0, 0.0]))
    assert loss.item() == 0


class Coin(DecisionModule):
    """Decides once per image, with a learned probability."""

    def __init__(self):
        super().__init__()
        self.energies = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        if not self.training:
            return x
        energies = self.energies.expand(len(x), 2)
        chosen = top_k(energies.detach(), 1, sample=True)
        self.decision = Decision(draw_log_prob(energies, chosen), torch.zeros(len(x), 1), entropy(energies))
        return x * chosen


def test_decisions_are_found_anywhere_and_taken_once():
    model = nn.Sequential(nn.Sequential(Coin(), nn.Identity()), Coin())
    model(torch.ones(3, 1))
    assert len(list(take_decisions(model))) == 2
    assert list(take_decisions(model)) == []
    model.eval()(torch.ones(3, 1))
    assert list(take_decisions(model)) == []


class Twice(nn.Module):
    """Runs one module on two inputs in one pass, and may fail on the way."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.fail = False

    def forward(self, x):
        first = self.module(x)
        if self.fail:
            raise RuntimeError("half way")
        return first, self.module(torch.cat([x, x]))


def sizes(model):
    return [len(decision.log_prob) for decision in take_decisions(model)]


def test_all_decisions_of_a_pass_are_kept_in_order():
    model = nn.Sequential(Twice(Coin()))
    model(torch.ones(3, 1))
    assert sizes(model) == [3, 6]
    assert sizes(model) == []


def test_a_pass_starts_anew():
    """After a pass that nobody asked about, in whatever way it ended."""
    model = Twice(Coin())
    model(torch.ones(3, 1))
    model.fail = True
    with pytest.raises(RuntimeError, match="half way"):
        model(torch.ones(4, 1))
    model.fail = False
    model(torch.ones(5, 1))
    assert sizes(model) == [5, 10]
    for batch in (1, 2, 3):
        model.module.forward(torch.ones(batch, 1))  # no pass of a model
    assert sizes(model) == [3]


def test_what_cannot_be_learned_from_is_not_kept():
    """An evaluation, or a pass without gradient, between a pass and its loss changes nothing."""
    model = Twice(Coin())
    model(torch.ones(3, 1))
    model.eval()(torch.ones(4, 1))
    model.train()
    with torch.no_grad():
        model(torch.ones(5, 1))
    assert sizes(model) == [3, 6]
    with torch.no_grad():
        model(torch.ones(5, 1))
    assert sizes(model) == []


def test_two_passes_for_one_loss():
    model = nn.Sequential(Coin())
    decisions = []
    for batch in (3, 3):
        model(torch.ones(batch, 1))
        decisions += take_decisions(model)
    sum(policy_loss(decision, torch.ones(3)) for decision in decisions).backward()
    assert len(decisions) == 2
    assert model[0].energies.grad.abs().sum() > 0


def test_a_checkpoint_that_runs_a_module_again_decides_nothing_new():
    coin = Coin()

    class Saving(nn.Module):
        def forward(self, x):
            return checkpoint(coin, x, use_reentrant=False)

    x = torch.ones(3, 1, requires_grad=True)
    y = Saving()(x)
    (decision,) = take_decisions(coin)
    (y.square().sum() + policy_loss(decision, torch.ones(3))).backward()
    assert coin.energies.grad.abs().sum() > 0
    assert x.grad is not None  # so it did run again
    assert coin.decision is None


def test_decisions_hold_on_to_nothing_else_of_a_pass():
    coin = nn.Sequential(Coin())
    images = torch.ones(3, 1)
    coin(images)
    gone = weakref.ref(images)
    del images
    assert gone() is None


def test_every_thread_has_its_own_pass():
    """Two models at the same time; a pass is a call on one stack."""
    models = [Twice(Coin()) for _ in range(4)]
    threads = [threading.Thread(target=model, args=(torch.ones(2 + n, 1),)) for n, model in enumerate(models)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sizes(model) for model in models] == [[2, 4], [3, 6], [4, 8], [5, 10]]


def test_a_compiled_model_keeps_all_decisions():
    torch._dynamo.reset()
    model = Twice(Coin())
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        compiled(torch.ones(3, 1))
        assert sizes(model) == [3, 6]


def test_a_decision_is_a_decision():
    with pytest.raises(TypeError, match=r"Coin\.decision must be a Decision, got Tensor"):
        Coin().decision = torch.zeros(3, 1)


def test_crops_of_an_image_earn_its_reward():
    """As if every image were decided about in six steps instead of two of each of three crops."""
    log_prob, guess, spread = (torch.randn(4 * 3, n, requires_grad=True) for n in (2, 2, 1))
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0])
    coin = Coin()
    coin.decision = Decision(log_prob, guess, spread, 0.5, 0.1)
    steps = Decision(log_prob.view(4, 6), guess.view(4, 6), spread.view(4, 3), 0.5, 0.1)
    torch.testing.assert_close(policy_term(coin, rewards), policy_loss(steps, rewards))
    advantage = rewards.repeat_interleave(3)[:, None] - guess
    coin.decision = Decision(log_prob, guess.detach(), spread)
    torch.testing.assert_close(policy_term(coin, rewards), -(log_prob * advantage.detach()).sum() / 4)


def test_rewards_that_fit_nothing_are_explained():
    coin = Coin()
    coin(torch.ones(5, 1))
    for number in (1, 2, 10):  # as many as divide the five, or do not
        with pytest.raises(ValueError, match=f"one number per image: {number} for 5 images"):
            policy_term(coin, torch.ones(number))
    with pytest.raises(ValueError, match=r"the reward must be \(B,\)"):
        policy_term(coin, torch.ones(2, 1))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_model_can_be_copied_in_the_middle_of_a_step(duplicate):
    coin = Coin()
    coin(torch.ones(3, 1))
    other = duplicate(coin)
    assert other.decision is None
    assert coin.decision is not None


def test_a_policy_learns_what_pays():
    """Two hundred steps of a two-armed bandit."""
    coin = Coin().train()
    optimiser = torch.optim.Adam(coin.parameters(), lr=0.05)
    for _ in range(200):
        rewards = coin(torch.ones(16, 1))[:, 0]  # one for the second side
        loss = sum(policy_loss(decision, rewards) for decision in take_decisions(coin))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert coin.energies.softmax(0)[1] > 0.95


def test_the_term_is_that_of_all_decisions_and_everybody_is_told():
    hard = visattn.create_block("hard", 1, signal="reinforce", baseline="moving_average")
    model = nn.Sequential(Coin(), nn.Unflatten(1, (1, 1, 1)), hard)
    right = torch.tensor([True, False, True])
    torch.manual_seed(1)
    model(torch.ones(3, 1))
    expected = sum(policy_loss(decision, right.float()) for decision in take_decisions(model))
    torch.manual_seed(1)
    model(torch.ones(3, 1))
    torch.testing.assert_close(policy_term(model, right), expected)
    assert hard.expected.item() == pytest.approx(0.1 * 2 / 3)
    assert policy_term(model.eval(), right).item() == 0
    policy_term(nn.Sequential(hard), right, mean=torch.tensor(0.0))
    assert hard.expected.item() == pytest.approx(0.9 * 0.19 * 2 / 3, abs=1e-6)  # after two steps of 2/3 and one of 0
    before = hard.expected.clone()
    policy_term(nn.Sequential(hard), right, mean=0.9)
    torch.testing.assert_close(hard.expected, 0.9 * before + 0.1 * 0.9)


@pytest.mark.parametrize(
    ("log_prob", "baseline", "entropy", "reward"),
    [
        ((8,), (8, 1), (8, 1), (8,)),
        ((8,), (8,), (8,), (8,)),
        ((8, 2), (8, 1), (8, 1), (8,)),
        ((8, 2), (8, 2), (8,), (8,)),
        ((8, 2), (8, 2), (1, 2), (8,)),
        ((8, 2), (8, 2), (8, 2), (1,)),
        ((8, 2), (8, 2), (8, 2), (8, 1)),
        ((8, 2), (8, 2), (8, 2), ()),
    ],
)
def test_shapes_that_do_not_fit_are_explained(log_prob, baseline, entropy, reward):
    decision = Decision(torch.zeros(log_prob), torch.zeros(baseline), torch.zeros(entropy))
    with pytest.raises(ValueError, match=r"must be \(B, T\)"):
        policy_loss(decision, torch.zeros(reward))


def test_decides_is_public():
    assert visattn.hard.DecisionModule is DecisionModule

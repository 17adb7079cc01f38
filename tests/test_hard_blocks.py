"""``hard`` and ``hard_topk``: what they do in training, where the oracles of evaluation do not reach."""

import numpy as np
import pytest
import torch

import visattn
from tests.blocks import Case, array
from tests.blocks.classics import hard_parts
from tests.reference import hard as draws
from tests.reference.blocks import hard as oracle
from visattn.blocks.hard import cover
from visattn.policy import policy_loss, take_decisions

BOTH = pytest.mark.parametrize("name", ["hard", "hard_topk"])
SIGNALS = pytest.mark.parametrize("signal", ["straight_through", "reinforce"])


def built(name="hard", **options):
    return Case(name, options).build()


@pytest.fixture
def x():
    return torch.randn(2, 16, 7, 5, dtype=torch.float64)


@BOTH
def test_probabilities_are_those_of_the_windows(name, x):
    block = built(name, glimpses=2, window=3)
    for mode in (True, False):
        probabilities = block.train(mode).attention(x).probabilities
        np.testing.assert_allclose(array(probabilities), oracle.hard_probabilities(array(x), *hard_parts(block)))


@SIGNALS
def test_training_draws_whole_windows(x, signal):
    """Every mask is ones and zeros, made of K windows, and they differ from draw to draw."""
    block = built(glimpses=2, window=3, signal=signal).train()
    masks = torch.stack([block.attention(x).mask.detach().round(decimals=9) for _ in range(50)])
    assert set(masks.unique().tolist()) == {0.0, 1.0}
    counts = masks.sum((2, 3, 4))
    assert counts.min() > 9  # two different windows
    assert counts.max() <= 18
    assert len(masks[:, 0].flatten(1).unique(dim=0)) > 10


@SIGNALS
def test_windows_are_drawn_as_often_as_their_probabilities_say(signal):
    block = Case("hard", {"glimpses": 1, "signal": signal}, channels=4).build().train()
    x = torch.randn(1, 4, 2, 3, dtype=torch.float64).repeat(20_000, 1, 1, 1)
    mask, probabilities = block.attention(x)
    p = probabilities[0].detach()
    assert ((mask.detach().mean(0) - p).abs() < 4 * (p * (1 - p) / len(x)).sqrt()).all()


def test_the_log_probability_is_that_of_what_was_drawn(x):
    """One glimpse: the mask says which."""
    block = built(glimpses=1, signal="reinforce").train()
    output = block(x)
    (decision,) = take_decisions(block)
    energies = oracle.window_energies(array(x), *hard_parts(block)[:4], 1)
    for i in range(2):
        (chosen,) = np.flatnonzero(array(output)[i, 0])
        expected = draws.plackett_luce_log_prob(energies[i].ravel(), np.array([chosen]))
        assert decision.log_prob[i].item() == pytest.approx(expected)
        assert decision.entropy[i].item() == pytest.approx(draws.entropy(energies[i].ravel()))


def test_reinforce_trains_the_head_and_not_the_features(x):
    block = built(signal="reinforce").train()
    x.requires_grad_()
    block(x)
    (decision,) = take_decisions(block)
    assert decision.log_prob.shape == decision.baseline.shape == (2, 9)  # a quarter of 35 windows
    policy_loss(decision, torch.tensor([1.0, 0.0])).backward()
    assert x.grad is None
    assert all(p.grad.abs().sum() > 0 for name, p in block.named_parameters() if name != "fc2.bias")


def test_the_moving_average():
    """b <- 0.9 b + 0.1 reward, as in Show, Attend and Tell."""
    block = visattn.create_block("hard", 16, signal="reinforce", baseline="moving_average").train()
    for mean in (1.0, 0.5):
        block.observe(torch.tensor(mean))
    block(torch.randn(2, 16, 7, 5))
    (decision,) = take_decisions(block)
    assert decision.baseline.unique().tolist() == pytest.approx([0.9 * 0.1 + 0.1 * 0.5])
    assert not decision.baseline.requires_grad
    assert block.state_dict()["expected"].item() == pytest.approx(0.14)


def test_straight_through_needs_no_policy_term(x):
    block = built().train()
    block(x)
    assert list(take_decisions(block)) == []


def test_perturbed_training_is_between_zero_and_one_and_sums_to_k():
    block = built("hard_topk", glimpses=3, sigma=0.5).train()
    mask = block.attention(torch.randn(2, 16, 7, 5, dtype=torch.float64)).mask.detach()
    assert ((mask > 0.01) & (mask < 0.99)).any()
    torch.testing.assert_close(mask.sum((1, 2, 3)), torch.full((2,), 3.0, dtype=torch.float64))


def test_little_noise_leaves_the_best(x):
    block = built("hard_topk", glimpses=3, sigma=1e-7)
    best = block.attention(x).mask
    torch.testing.assert_close(block.train().attention(x).mask, best)


def test_the_noise_is_measured_by_the_spread_of_the_energies(x):
    """They are brought to between zero and one: other units do not change the choice."""
    block = built("hard_topk", glimpses=3, sigma=0.1).train()
    masks = []
    for factor in (1.0, 100.0):
        torch.nn.init.constant_(block.fc2.bias, factor)
        block.fc2.weight.data *= factor
        torch.manual_seed(0)
        masks.append(block.attention(x).mask)
    torch.testing.assert_close(*masks, rtol=0, atol=0.02)


def test_a_place_is_covered_once_and_belongs_to_all_of_its_windows():
    chosen = torch.zeros(1, 1, 3, 3)
    chosen[..., 0, 0] = chosen[..., 0, 1] = 1
    chosen.requires_grad_()
    mask = cover(chosen, 2)
    assert mask[0, 0].tolist() == [[1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    mask[0, 0, 0, 1].backward()
    assert chosen.grad[0, 0].tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 0]]


@BOTH
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"glimpses": 0}, "at least one glimpse, got 0"),
        ({"glimpses": 1.5}, "share of all windows must be above 0 and up to 1, got 1.5"),
        ({"window": 0}, "window of at least one place"),
        ({"fill": "means"}, "did you mean 'mean'"),
    ],
)
def test_bad_settings_are_explained(name, options, message):
    with pytest.raises(ValueError, match=message):
        visattn.create_block(name, 16, **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hard", {"signal": "reinforced"}, "did you mean 'reinforce'"),
        ("hard", {"signal": "reinforce", "baseline": "average"}, "moving_average"),
        ("hard_topk", {"sigma": 0}, "sigma above zero"),
        ("hard_topk", {"samples": 0}, "samples"),
    ],
)
def test_bad_signals_are_explained(name, options, message):
    with pytest.raises(ValueError, match=message):
        visattn.create_block(name, 16, **options)


@BOTH
def test_maps_that_are_too_small_are_explained(name, x):
    with pytest.raises(ValueError, match="36 glimpses are more than there are windows on the map, 35"):
        built(name, glimpses=36)(x)
    with pytest.raises(ValueError, match="a window of 6 x 6 does not fit into a map of 7 x 5"):
        built(name, window=6)(x)


@pytest.mark.parametrize(
    ("name", "options"),
    [("hard", {}), ("hard", {"signal": "reinforce"}), ("hard_topk", {})],
)
def test_training_compiles_without_graph_breaks(name, options):
    torch._dynamo.reset()
    block = Case(name, {"glimpses": 3, "window": 2, **options}).build(dtype=torch.float32).train()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 16, 7, 5)
    torch.manual_seed(0)
    expected = block(x)
    decisions = list(take_decisions(block))
    torch.manual_seed(0)
    torch.testing.assert_close(compiled(x), expected)
    for ours, theirs in zip(take_decisions(block), decisions, strict=True):
        torch.testing.assert_close(ours.log_prob, theirs.log_prob)


def test_a_heatmap_shows_the_windows():
    model = visattn.create_model("test_resnet", attn="hard", attn_options={"glimpses": 2, "window": 2}).eval()
    found = visattn.explain(model, torch.randn(1, 3, 160, 160), "gates")
    assert set(found.raw.unique().tolist()) == {0.0, 1.0}
    assert 4 < found.raw.sum() <= 8

"""The recurrent attention model against an oracle, and its manners."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.reference import hard as oracle
from visattn.hard import RAM
from visattn.policy import policy_loss, take_decisions

KEYS = {
    "glimpse.what": "what",
    "glimpse.where": "where",
    "glimpse.from_what": "what_out",
    "glimpse.from_where": "where_out",
    "core.state": "recur",
    "core.input": "update",
    "location": "locator",
    "classes": "head",
    "baseline": "baseline",
}
RETINA = {"size": 4, "scales": 2}


def built(**options):
    torch.manual_seed(1)
    return RAM(num_classes=5, in_chans=2, glimpses=3, **RETINA, **options).double()


def weights(model):
    state = model.state_dict()
    return {
        f"{theirs}.{kind}": state[f"{ours}.{kind}"].numpy()
        for theirs, ours in KEYS.items()
        for kind in ("weight", "bias")
    }


@pytest.fixture
def images():
    return torch.randn(3, 2, 11, 17, dtype=torch.float64)


def test_agrees_with_the_paper(images):
    model = built().eval()
    with torch.no_grad():
        logits, (path, size) = model(images), model.fixations(images)
    assert size == (4, 4)
    for image, answer, places in zip(images, logits, path, strict=True):
        expected, locations = oracle.ram_at_means(image.numpy(), weights(model), 3, **RETINA)
        np.testing.assert_allclose(places, locations, atol=1e-10)
        np.testing.assert_allclose(answer, expected, atol=1e-10)


def test_any_path_can_be_followed(images):
    model = built().eval()
    path = 2 * torch.rand(3, 5, 2, dtype=torch.float64) - 1
    answers = model.along(images, path).detach()
    for image, answer, places in zip(images.numpy(), answers, path.numpy(), strict=True):
        np.testing.assert_allclose(answer, oracle.ram_logits(image, weights(model), places, **RETINA), atol=1e-10)


def test_other_channels_are_explained(images):
    with pytest.raises(ValueError, match=r"built for images \(B, 2, H, W\), got \(3, 1, 11, 17\): see in_chans"):
        built()(images[:, :1])
    with pytest.raises(ValueError, match="got"):
        built()(images[0])


def test_decisions_agree_with_the_paper(images):
    """Log-probabilities, baselines and logits on a path that was drawn."""
    model = built(sigma=0.2).train()
    torch.nn.init.constant_(model.locator.bias, 1.5)  # near the corner, so that some draws lie outside of the image
    torch.manual_seed(5)
    logits = model(images)
    (decision,) = take_decisions(model)
    torch.manual_seed(5)
    noise = 0.2 * torch.randn(3, 3, 2)
    for i, image in enumerate(images.numpy()):
        drawn = np.zeros((0, 2))
        for step in range(3):  # the mean of a location depends on those before it
            seen = drawn.clip(-1, 1)
            mean = oracle.ram_next_location(
                oracle.ram_states(image, weights(model), seen, **RETINA)[-1], weights(model)
            )
            drawn = np.vstack([drawn, mean + noise[i, step].numpy()])
            expected = oracle.gaussian_log_prob(drawn[-1], mean, 0.2)
            assert decision.log_prob[i, step].item() == pytest.approx(expected, abs=1e-10)
        baselines = oracle.ram_baselines(image, weights(model), drawn.clip(-1, 1), **RETINA)
        np.testing.assert_allclose(decision.baseline[i].detach(), baselines, atol=1e-10)
        assert (abs(drawn) > 1).any()
        answer = oracle.ram_logits(image, weights(model), drawn.clip(-1, 1), **RETINA)
        np.testing.assert_allclose(logits[i].detach(), answer, atol=1e-10)


def test_published_size():
    """The recipe on MNIST: six glimpses of 8 x 8, one scale."""
    assert sum(p.numel() for p in RAM(num_classes=10, glimpses=6, size=8).parameters()) == 209_677


def test_each_network_learns_from_its_own_loss(images):
    """Cross-entropy trains all but the locator and the baseline; the policy term trains only these."""
    model = built().train()
    F.cross_entropy(model(images), torch.tensor([0, 1, 2])).backward()
    reached = {name.partition(".")[0] for name, p in model.named_parameters() if p.grad is not None}
    assert reached == {"what", "where", "what_out", "where_out", "recur", "update", "head"}
    model.zero_grad()
    model(images)
    (decision,) = take_decisions(model)
    policy_loss(decision, torch.tensor([1.0, 0.0, 1.0])).backward()
    reached = {name.partition(".")[0] for name, p in model.named_parameters() if p.grad is not None}
    assert reached == {"locator", "baseline"}
    assert all(p.grad.abs().sum() > 0 for p in model.locator.parameters())


def test_evaluation_repeats_itself_and_training_does_not(images):
    model = built(samples=4)
    assert not torch.equal(model(images), model(images))
    model.eval()
    state = torch.get_rng_state()
    assert torch.equal(model(images), model(images))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    first = model.train()(images)
    torch.manual_seed(2)
    assert torch.equal(model(images), first)


def test_several_samples_average_the_answers(images):
    """With hardly any noise all paths are the same, and the average is the answer without noise."""
    one, many = built(sigma=1e-9).eval(), built(sigma=1e-9, samples=5).eval()
    many.load_state_dict(one.state_dict())
    torch.testing.assert_close(many(images), one(images).log_softmax(1), atol=1e-5, rtol=1e-5)
    noisy = built(sigma=0.3, samples=5).eval()
    noisy.load_state_dict(one.state_dict())
    assert not torch.allclose(noisy(images), one(images).log_softmax(1), atol=1e-4)
    torch.testing.assert_close(noisy(images).exp().sum(1), torch.ones(3, dtype=torch.float64))


def test_one_image_does_not_change_another(images):
    model = built().eval()
    together = model(images)
    alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(together, alone)


def test_looks_at_its_glimpses_only(images):
    model = built().eval()
    path, _ = model.fixations(images)
    column, row = ((path[0] + 1) / 2 * torch.tensor([17, 11])).unbind(-1)
    widest = 4 * 2 + 1  # of the larger scale, and one for the interpolation
    seen = torch.zeros(11, 17, dtype=torch.bool)
    for x, y in zip(column, row, strict=True):
        far = ((torch.arange(17) + 0.5 - x).abs() > widest / 2), ((torch.arange(11) + 0.5 - y).abs() > widest / 2)
        seen |= ~far[1][:, None] & ~far[0]
    assert 0 < seen.sum() < seen.numel()
    changed = images[:1].clone()
    changed[..., ~seen] = 99
    torch.testing.assert_close(model(changed), model(images[:1]))


def test_a_random_policy_looks_anywhere(images):
    model = built(policy="random")
    many = images[:1].repeat(300, 1, 1, 1)
    path, _ = model.eval().fixations(many)
    assert torch.equal(path, model.fixations(many)[0])
    assert path.abs().max() <= 1
    for quadrant in (-1, 1):
        assert (path.sign() == quadrant).float().mean() == pytest.approx(0.5, abs=0.05)
    model.train()(images)
    assert list(take_decisions(model)) == []


def test_copies_in_the_middle_of_a_step(images):
    model = built()
    model(images)
    other = copy.deepcopy(model).eval()
    assert torch.equal(other(images), model.eval()(images))


def test_other_numbers_of_classes(images):
    model = built().eval()
    model.reset_classifier(7)
    assert model(images).shape == (3, 7)
    assert model.get_classifier().out_features == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"glimpses": 0}, "glimpses of at least one, got 0"),
        ({"size": 0}, "size of at least one"),
        ({"scales": 0}, "scales of at least one"),
        ({"samples": 0}, "samples of at least one"),
        ({"num_classes": 1}, "two or more classes, got 1"),
        ({"sigma": 0.0}, "sigma above zero"),
        ({"policy": "randon"}, "did you mean 'random'"),
    ],
)
def test_bad_settings_are_explained(options, message):
    with pytest.raises(ValueError, match=message):
        RAM(**options)


def test_half_precision_and_autocast(images):
    model = RAM(num_classes=5, in_chans=2, glimpses=3, **RETINA)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(images.float())
    (decision,) = take_decisions(model)
    assert decision.log_prob.dtype == decision.baseline.dtype == torch.float32
    (F.cross_entropy(logits, torch.tensor([0, 1, 2])) + policy_loss(decision, torch.ones(3))).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    expected = model.eval()(images.float())
    rounded = copy.deepcopy(model).bfloat16()(images.bfloat16())
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), expected, rtol=0, atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
def test_compiles_without_graph_breaks(images, training):
    torch._dynamo.reset()
    model = RAM(num_classes=5, in_chans=2, glimpses=3, **RETINA).train(training)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.manual_seed(3)
    expected = model(images.float())
    decisions = list(take_decisions(model))
    torch.manual_seed(3)
    torch.testing.assert_close(compiled(images.float()), expected)
    for ours, theirs in zip(take_decisions(model), decisions, strict=True):
        torch.testing.assert_close(ours.log_prob, theirs.log_prob)
        torch.testing.assert_close(ours.baseline, theirs.baseline)

"""The class-specific residual attention head: against its oracle, its identities, and on a timm network."""

import math
from itertools import pairwise

import numpy as np
import pytest
import timm
import torch

import visattn
from tests.blocks import array
from tests.reference.blocks import csra
from visattn.blocks import ClassResidualHead
from visattn.blocks.csra import TEMPERATURES, focus


def head(channels=16, classes=10, **options):
    return ClassResidualHead(channels, classes, dtype=torch.float64, **options)


def agrees(module, x):
    """Compare with the oracle."""
    weights = np.split(array(module.classifier.weight), module.heads)
    expected = csra.csra(array(x), list(zip(weights, TEMPERATURES[module.heads], strict=True)), lam=module.lam)
    return np.allclose(array(module(x)), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("heads", TEMPERATURES)
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (33, 17)], ids=str)
def test_agrees_with_the_paper(heads, size):
    assert agrees(head(heads=heads, lam=0.4), torch.randn(2, 16, *size, dtype=torch.float64))


@pytest.mark.parametrize(
    ("place", "mistake"),
    [
        ("unit", lambda weight: weight),  # classifiers that are not normalised
        ("focus", lambda scores, temperature: torch.softmax(scores, -1)),  # one temperature for all
        ("focus", lambda scores, temperature: torch.softmax(temperature * scores, -2)),  # over classes
    ],
)
def test_a_mistake_turns_the_oracle_test_red(place, mistake, monkeypatch):
    monkeypatch.setattr(f"visattn.blocks.csra.{place}", mistake)
    assert not agrees(head(heads=2), torch.randn(2, 16, 7, 5, dtype=torch.float64))


def test_gradients():
    module = head(8, 3, heads=4, lam=0.3)
    x = torch.randn(2, 8, 3, 2, dtype=torch.float64, requires_grad=True)

    def run(x, weight):
        return torch.func.functional_call(module, {"classifier.weight": weight}, (x,))

    assert torch.autograd.gradcheck(run, (x, module.classifier.weight), fast_mode=True)


def test_a_map_that_is_the_same_everywhere():
    module = head(lam=0.3)
    x = torch.randn(2, 16, 1, 1, dtype=torch.float64).expand(-1, -1, 7, 5)
    torch.testing.assert_close(module(x), 1.3 * module.scores(x)[:, 0, :, 0])


def test_without_attention_it_is_average_pooling_and_a_normalised_classifier():
    module = head(lam=0)
    x = torch.randn(2, 16, 7, 5, dtype=torch.float64)
    weight = torch.nn.functional.normalize(module.classifier.weight)
    torch.testing.assert_close(module(x), x.mean((2, 3)) @ weight.T)


def test_a_higher_temperature_looks_closer():
    scores = torch.randn(2, 10, 35, dtype=torch.float64)
    attended = [(focus(scores, t) * scores).sum(-1) for t in (0, 1, 2, 4, math.inf)]
    torch.testing.assert_close(attended[0], scores.mean(-1))
    torch.testing.assert_close(attended[-1], scores.amax(-1))
    assert all((lower < higher).all() for lower, higher in pairwise(attended))


def test_where_it_looks():
    weights = head(heads=2).attention(torch.randn(3, 16, 7, 5, dtype=torch.float64))
    assert weights.shape == (3, 2, 10, 7, 5)
    torch.testing.assert_close(weights.sum((3, 4)), torch.ones(3, 2, 10, dtype=torch.float64))
    assert weights[:, 1].amax((2, 3)).eq(1).all()


@pytest.mark.parametrize("channels", [64, 256])
def test_count(channels):
    assert sum(p.numel() for p in ClassResidualHead(channels, 1000).parameters()) == 1000 * channels


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    module, x = head(heads=4, lam=0.4).to(dtype), 30 * torch.randn(2, 16, 7, 7).to(dtype)
    logits = module(x)
    assert logits.dtype == dtype
    torch.testing.assert_close(logits.double(), module.double()(x.double()), rtol=0.02, atol=0.2)


@pytest.mark.slow
def test_compiles_and_exports():
    module, x = head(heads=2).float().eval(), torch.randn(2, 16, 7, 5)
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="aot_eager")(x), module(x))
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: batch},), strict=False)
    other = torch.randn(5, 16, 7, 5)
    torch.testing.assert_close(program.module()(other), module(other))


def test_takes_the_place_of_pooling_and_classifier():
    model = timm.create_model("test_resnet", num_classes=7).eval()
    images = torch.rand(2, 3, 64, 64)
    features = model.forward_features(images)
    model.reset_classifier(0, global_pool="")
    model.fc, model.num_classes = ClassResidualHead(model.num_features, 7), 7
    torch.testing.assert_close(model(images), model.fc(features))
    heatmap = visattn.explain(model, images, "gradcam", target=3).heatmap
    assert heatmap.shape == (2, 64, 64)
    assert heatmap.isfinite().all()


def test_learns_two_labels_on_a_timm_network():
    torch.manual_seed(1)
    model = timm.create_model("test_resnet", num_classes=0, global_pool="")
    model = torch.nn.Sequential(model, ClassResidualHead(model.num_features, 5, heads=2))
    images, labels = torch.rand(4, 3, 32, 32), torch.eye(5)[:4] + torch.eye(5)[1:]
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(10):
        losses.append(torch.nn.functional.binary_cross_entropy_with_logits(model(images), labels))
        optimiser.zero_grad()
        losses[-1].backward()
        optimiser.step()
    assert losses[-1] < losses[0]


def test_is_not_a_block():
    assert "csra" not in visattn.list_blocks()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ClassResidualHead(16, 10, heads=3), "needs 1, 2, 4, 6, 8 heads, got 3"),
        (lambda: ClassResidualHead(16, 10, lam=-1), "needs lam of at least zero, got -1"),
        (lambda: ClassResidualHead(16, 0), "needs num_classes above zero, got 0"),
        (lambda: ClassResidualHead(16.5, 10), "needs channels to be a whole number, got 16.5"),
        (lambda: ClassResidualHead(16, 10)(torch.rand(2, 16)), r"maps \(B, 16, H, W\), got a tensor \(2, 16\)"),
    ],
)
def test_mistakes_are_explained(build, message):
    with pytest.raises(ValueError, match=message):
        build()

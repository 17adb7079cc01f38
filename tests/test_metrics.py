"""Our metrics against those of torchmetrics, whose updates make a GPU wait."""

import pytest
import torch
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from visattn.data.loader import IGNORE
from visattn.training.metrics import Accuracy, Confusion, Mean, are_sums


def batches(classes, *, ties=False, ignored=0.3, count=4, size=13):
    """Logits and labels, some of which do not count; the last batch has none that does."""
    for number in range(count):
        logits = torch.randint(0, 3, (size, classes)).float() if ties else torch.randn(size, classes)
        share = 1.0 if number == count - 1 else ignored
        yield logits, torch.randint(0, classes, (size,)).masked_fill(torch.rand(size) < share, IGNORE)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 5, 6, 40])
@pytest.mark.parametrize("k", [1, 5])
def test_accuracy(classes, k, ties):
    k = min(k, classes)
    ours = Accuracy(k)
    theirs = MulticlassAccuracy(classes, top_k=k, average="micro", ignore_index=IGNORE, validate_args=False)
    for logits, label in batches(classes, ties=ties):
        ours.update(logits, label)
        theirs.update(logits, label)
    assert ours.compute() == theirs.compute()
    assert 0 < ours.counted < 4 * 13


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("classes", [2, 7])
def test_confusion(classes, ties):
    ours = Confusion(classes)
    theirs = MulticlassConfusionMatrix(classes, ignore_index=IGNORE, validate_args=False)
    for logits, label in batches(classes, ties=ties):
        ours.update(logits, label)
        theirs.update(logits, label)
    assert torch.equal(ours.compute(), theirs.compute())
    assert ours.compute().sum() > 0


def test_mean():
    ours, theirs = Mean(), MeanMetric(nan_strategy="ignore")
    for value in (*torch.randn(20), torch.tensor(torch.nan), torch.tensor(2.5).bfloat16()):
        weight = int(torch.randint(1, 9, ()))
        ours.update(value, torch.tensor(weight))
        theirs.update(value, weight)
    assert ours.compute() == theirs.compute()
    ours.update(torch.tensor(torch.nan), torch.tensor(0))  # the loss of a batch that does not count
    assert ours.compute() == theirs.compute()


def test_an_infinite_loss_shows():
    ours = Mean()
    ours.update(torch.tensor(torch.inf), 3)
    ours.update(torch.tensor(1.0), 3)
    assert ours.compute() == torch.inf


def test_nothing_at_all():
    nothing = torch.zeros(0, 5), torch.zeros(0, dtype=torch.long)
    accuracy, confusion = Accuracy(), Confusion(5)
    accuracy.update(*nothing)
    confusion.update(*nothing)
    assert accuracy.compute() == 0
    assert confusion.compute().sum() == 0


def test_a_reset_begins_anew():
    for metric, update in ((Mean(), (torch.tensor(1.0), 2)), (Confusion(3), (torch.eye(3), torch.arange(3)))):
        metric.update(*update)
        first = metric.compute().clone()
        metric.reset()
        metric.update(*update)
        assert torch.equal(metric.compute(), first)


@pytest.mark.parametrize("total", [0.0, 3.5, 1e30, float("inf")])  # infinite: a step in 16 bits that was skipped
def test_sums_of_an_epoch(total):
    counted = {"right": 3, "counted": 2**53}
    assert are_sums({"train_loss": {"total": total, "weight": 8.0}, "train_top1": counted})
    Mean().total.fill_(total)


@pytest.mark.parametrize("name", ["total", "weight", "right", "counted"])
@pytest.mark.parametrize("value", [-1, -float("inf"), float("nan"), pytest.param(10**400, id="huge"), 1e300, True, "1"])
def test_what_no_metric_can_hold_is_no_sum(name, value):
    loss, top1 = {"total": 3.5, "weight": 8.0}, {"right": 3, "counted": 8}
    (loss if name in loss else top1)[name] = value
    assert not are_sums({"train_loss": loss, "train_top1": top1})


@pytest.mark.parametrize("name", ["weight", "right", "counted"])
def test_only_the_loss_can_be_infinite(name):
    loss, top1 = {"total": 3.5, "weight": 8.0}, {"right": 3, "counted": 8}
    (loss if name in loss else top1)[name] = float("inf")
    assert not are_sums({"train_loss": loss, "train_top1": top1})

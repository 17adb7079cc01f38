"""What makes the host wait for a GPU: nothing in a step of training or validation, and nothing per layer in rollout.

There is no GPU here, so one is pretended (tests/pretend.py); tests/test_gpu.py asks a real one.
"""

import io

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Callback
from rich.console import Console

import visattn
from tests.pretend import DEVICE, PretendGPU, strategy
from tests.tiers import mostly_slow
from visattn.heatmaps.methods.attention import attention
from visattn.heatmaps.methods.relevance import chefer
from visattn.heatmaps.methods.rollout import rollout
from visattn.heatmaps.request import Request
from visattn.training import progress
from visattn.training.building import create_classifier, create_data, create_source
from visattn.training.classifier import Classifier
from visattn.training.runs import find_run
from visattn.training.settings import Settings
from visattn.training.signals import Signals
from visattn.training.trainer import create_trainer

pytestmark = [
    pytest.mark.usefixtures("elsewhere"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*", "ignore:.*pynvml.*"),
]
HAND_OVER = "datamodule.py"
# What happens in these steps happens in every one; in step 0 the loss is looked at, and in step 4 by the progress bar.
STEPS = (2, 3)

RUNS = {
    "convolutions": {"model": "test_resnet", "attn": "cbam", "channels_last": True},
    "transformer": {"model": "test_vit", "attn": "se", "image_size": 32, "label_smoothing": 0.0},
    "mixing": {"model": "test_resnet", "attn": "eca", "mixup": 0.2, "cutmix": 1.0},
    "recipe": {"model": "test_resnet", "optimizer": "sgd", "ema": 0.9, "clip_grad": 1.0, "accumulate": 2},
    "frozen": {"model": "test_resnet", "attn": "eca", "freeze_backbone": True},
    "glimpses": {"model": "glimpse_test_resnet", "model_options": {"glimpse_size": 32, "glimpses": 2}},
    "random glimpses": {
        "model": "glimpse_test_resnet",
        "model_options": {"glimpse_size": 32, "glimpses": 2, "policy": "random"},
    },
    "ram": {"model": "ram"},
    "random ram": {"model": "ram", "model_options": {"policy": "random", "samples": 2}},
    "hard": {"model": "test_resnet", "attn": "hard", "attn_options": {"signal": "reinforce"}},
}


class Waits(Callback):
    """What made the host wait, from the beginning of a step to that of the next, by stage and step."""

    def __init__(self, gpu):
        self.gpu = gpu
        self.by_step = {}
        self._now = None

    def _begin(self, *now):
        if self._now is not None:
            self.by_step[self._now] = list(self.gpu.waits)
        self.gpu.waits.clear()
        self._now = now

    def on_train_batch_start(self, _trainer, module, batch, batch_idx):
        assert {each.device for each in (*module.parameters(), *batch.values())} == {DEVICE}
        self._begin("train", batch_idx)

    def on_validation_batch_start(self, _trainer, _module, _batch, batch_idx, _dataloader_idx=0):
        self._begin("validate", batch_idx)

    def found(self, *stages):
        return [wait for stage in stages for step in STEPS for wait in self.by_step[stage, step]]


def fit(**settings):
    """What makes the host wait in a short run."""
    settings = Settings(**{"batch_size": 4, "epochs": 1, "film_every": 0, **settings})
    source = create_source(settings)
    classifier = create_classifier(settings, source)
    data = create_data(settings, source, classifier.model)
    with PretendGPU() as gpu:
        waits = Waits(gpu)
        extra = {"limit_train_batches": 5, "limit_val_batches": 5, "strategy": strategy(), "callbacks": [waits]}
        create_trainer(settings, find_run(settings, ""), extra, Signals()).fit(classifier, data)
    return waits


@pytest.fixture
def terminal(monkeypatch):
    """One that the progress bar is drawn on."""
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=screen, force_terminal=True, width=120))
    return screen


@pytest.mark.parametrize("name", mostly_slow(RUNS, "convolutions", "recipe", "random glimpses", "hard"))
def test_no_step_waits_for_the_device(name, terminal):
    waits = fit(**RUNS[name])
    found = [wait for wait in waits.found("train", "validate") if HAND_OVER not in wait]
    assert not found, "\n".join(found)
    assert any("classifier.py" in wait for wait in waits.by_step["train", 0])  # the loss, on purpose
    assert "epoch 1/1" in terminal.getvalue()


def test_no_batch_waits_for_the_device_as_it_is_handed_over():
    found = [wait for wait in fit(**RUNS["convolutions"]).found("train", "validate") if HAND_OVER in wait]
    assert not found, "\n".join(found)


ROLLOUTS = {
    "fused": "test_vit",
    "written out": "levit_128s",
    "windows": "swin_tiny_patch4_window7_224",
    "pooled keys": "pvt_v2_b0",
    "class attention": "cait_xxs24_224",
    "padded windows": "volo_d1_224",
}
METHODS = (rollout, attention, chefer)


@pytest.mark.parametrize("name", mostly_slow(ROLLOUTS, "fused", "pooled keys"))
def test_nothing_waits_per_layer_after_the_first_call(name):
    model = visattn.create_model(ROLLOUTS[name], num_classes=5).eval()
    images = torch.rand(2, *model.pretrained_cfg["input_size"])
    expected = {method: method(Request(model, images)).maps for method in METHODS}
    with PretendGPU() as gpu:
        model.to(DEVICE)
        for method in METHODS:
            method(Request(model, images.to(DEVICE)))
            request = Request(model, torch.rand_like(images).to(DEVICE))
            gpu.waits.clear()
            method(request)
            assert not gpu.waits, "\n".join(gpu.waits)
            again = method(Request(model, images.to(DEVICE))).maps
            torch.testing.assert_close(again.cpu(), expected[method])


MISTAKES = {
    "item": lambda loss, label: loss.item(),
    "condition": lambda loss, label: bool(loss > 0),
    "mask": lambda loss, label: label[label != 3],
    "where": lambda loss, label: torch.where(label != 3),
    "bincount": lambda loss, label: torch.bincount(label, minlength=10),
    "unique": lambda loss, label: label.unique(),
    "equal": lambda loss, label: torch.equal(label, label + 1),
    "masked_select": lambda loss, label: label.masked_select(label > 3),
    "repeats": lambda loss, label: label.repeat_interleave(label),
    "one_hot": lambda loss, label: F.one_hot(label),
    "back": lambda loss, label: loss.cpu(),
    "list": lambda loss, label: label.tolist(),
    "there": lambda loss, label: torch.tensor([0.5, 0.5], device=label.device),
    "new": lambda loss, label: loss.new_tensor([0.5, 0.5]),
    "foreign_index": lambda loss, label: label[torch.tensor([0, 1])],
}


@pytest.mark.parametrize("name", MISTAKES)
def test_whatever_waits_is_found(name):
    with PretendGPU() as gpu:
        loss, label = torch.rand((), device=DEVICE), torch.arange(4, device=DEVICE)
        assert gpu.waits == []
        MISTAKES[name](loss, label)
    assert gpu.waits
    assert "test_waits.py" in gpu.waits[0]


def test_a_training_step_that_waits_is_found(monkeypatch):
    before = Classifier._watch

    def watch(self, loss, batch_idx):
        before(self, loss, batch_idx)
        loss.item()

    monkeypatch.setattr(Classifier, "_watch", watch)
    found = [wait for wait in fit(model="test_resnet").found("train") if HAND_OVER not in wait]
    assert len(found) == len(STEPS)
    assert all("test_waits.py" in wait for wait in found)


def test_the_pretended_device_computes_what_the_cpu_does():
    image, label = torch.rand(2, 3, 8, 8), torch.tensor([0, 1])
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten())
    F.cross_entropy(model(image), label).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with PretendGPU() as gpu:
        model.to(DEVICE)
        gpu.waits.clear()
        F.cross_entropy(model(image.to(DEVICE, non_blocking=True)), label.to(DEVICE, non_blocking=True)).backward()
        assert gpu.waits == []
        torch.testing.assert_close([each.grad.cpu() for each in model.parameters()], expected, rtol=0, atol=0)
        assert len(gpu.waits) == len(expected)
        with pytest.raises(RuntimeError, match="expected all tensors to be on the same device"):
            torch.rand(3).to(DEVICE) + torch.rand(3)

"""Models that decide at random, trained by the same command as any other."""

import signal
import time

import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn
from torch.utils.data import DataLoader

from tests.tiers import mostly_slow
from tests.training import ROOT, assert_same_weights, checkpoint, start, train, wait_for
from visattn.cli.train import main
from visattn.policy import Decision, DecisionModule
from visattn.training.building import create_classifier, create_source
from visattn.training.settings import Settings

# TensorBoard's and Lightning's own
pytestmark = [
    pytest.mark.usefixtures("elsewhere", "_few_pictures"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*", "ignore:.*pynvml.*"),
]

STEPS = [
    "--config", str(ROOT / "configs" / "hard_digits.yaml"), "--epochs", "2", "--film-every", "0", "--batch-size", "16",
    "--trainer.limit_train_batches", "4", "--trainer.limit_val_batches", "2", "--trainer.accelerator", "cpu",
]  # fmt: skip
BLOCK = ["--model", "test_resnet", "--model-options", "null", "--attn", "hard", "--attn-options"]
MODELS = {
    "ram": [],
    "ram_random": ["--model-options", "{glimpses: 3, size: 12, policy: random}"],
    "straight_through": [*BLOCK, "{glimpses: 2}"],
    "learned_baseline": [*BLOCK, "{signal: reinforce}"],
    "moving_average": [*BLOCK, "{signal: reinforce, baseline: moving_average}"],
    "perturbed": [*BLOCK[:-2], "hard_topk", "--attn-options", "{glimpses: 1, window: 2}"],
    "soft_labels": [*BLOCK, "{signal: reinforce}", "--mixup", "0.5"],
    "half_precision": ["--precision", "bf16-mixed"],
    "averaged": ["--ema", "0.9"],
}


def weights(folder, name):
    return checkpoint(folder / "runs" / name)["state_dict"]


@pytest.mark.parametrize("name", mostly_slow(MODELS, "ram", "learned_baseline"))
@pytest.mark.slow
def test_every_kind_trains_goes_on_and_repeats_itself(elsewhere, name):
    assert main([*STEPS, *MODELS[name], "--name", "one"]) == 0
    assert main([*STEPS, *MODELS[name], "--name", "two"]) == 0
    assert_same_weights(elsewhere / "runs" / "one", elsewhere / "runs" / "two")
    assert main(["--resume", "runs/one", "--epochs", "3"]) == 0
    assert (elsewhere / "runs" / "one" / "heatmaps.png").is_file()
    assert (elsewhere / "runs" / "one" / "fixations.png").is_file() == ("test_resnet" not in MODELS[name])


def test_another_seed_decides_differently(undrawn):
    for seed in ("0", "1"):
        assert main([*STEPS, "--seed", seed, "--name", seed]) == 0
    ours, theirs = (weights(undrawn, seed)["model.locator.bias"] for seed in ("0", "1"))
    assert not torch.equal(ours, theirs)


def test_the_policy_is_trained_by_the_policy_term_only(undrawn):
    """With a weight of zero the locator keeps its weights; everything else learns."""
    still = ["--model-options", "{glimpses: 3, size: 12, policy_weight: 0.0}"]
    moving = ["--model-options", "{glimpses: 3, size: 12}"]
    settings = Settings(model="ram", model_options={"glimpses": 3, "size": 12})
    begin = create_classifier(settings, create_source(settings)).model.state_dict()
    for name, options, expected in (("still", still, True), ("moving", moving, False)):
        assert main([*STEPS, *options, "--name", name]) == 0
        end = weights(undrawn, name)
        assert torch.equal(end["model.locator.weight"], begin["locator.weight"]) == expected
        assert not torch.equal(end["model.baseline.weight"], begin["baseline.weight"])
        assert not torch.equal(end["model.head.weight"], begin["head.weight"])


def test_the_moving_average_follows_the_reward(undrawn):
    """After eight steps b = sum of 0.1 * 0.9^(8 - i) * accuracy of step i: between zero and 1 - 0.9^8."""
    assert main([*STEPS, *MODELS["moving_average"], "--name", "average"]) == 0
    (expected,) = (value for key, value in weights(undrawn, "average").items() if key.endswith(".expected"))
    assert 0 < expected <= 1 - 0.9**8


class Shy(DecisionModule):
    """A module that somebody else wrote: decides whether to pass an image on."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Parameter(torch.zeros(()))
        self.rewards = []

    def forward(self, x):
        if not self.training:
            return x
        p = torch.distributions.Bernoulli(logits=self.energy.expand(len(x), 1))
        passed = p.sample()
        self.decision = Decision(p.log_prob(passed), torch.zeros_like(passed), p.entropy())
        return x * passed[..., None, None]

    def observe(self, reward):
        self.rewards.append(reward.item())


def test_anybodys_module_is_trained_too(monkeypatch, tmp_path):
    """The harness knows the protocol, not the blocks."""
    from visattn.training import building

    shy = Shy()
    create = building.create_model

    def create_shy(**options):
        model = create(**options)
        model.global_pool = nn.Sequential(shy, model.global_pool)
        return model

    monkeypatch.setattr(building, "create_model", create_shy)
    settings = Settings(model="test_resnet", label_smoothing=0.0)
    classifier = building.create_classifier(settings, create_source(settings))
    batch = {"image": torch.randn(8, 3, 64, 64), "label": torch.arange(8)}
    before = shy.energy.item()
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(classifier, DataLoader([batch], batch_size=None), DataLoader([batch], batch_size=None))
    assert shy.energy.item() != before
    assert shy.decision is None
    assert shy.rewards == [pytest.approx(float(trainer.callback_metrics["train_top1"]))]


BAD = {
    "no glimpses": (["--model-options", "{glimpses: 0}"], "ram needs glimpses of at least one, got 0"),
    "too many": ([*BLOCK, "{glimpses: 50}"], "50 glimpses are more than there are windows on the map, 4"),
    "too large": ([*BLOCK, "{window: 3}"], "a window of 3 x 3 does not fit into a map of 2 x 2"),
    "unknown option": (["--model-options", "{glimpse: 3}"], "ram has no option 'glimpse': did you mean 'glimpses'"),
    "attention": (["--attn", "cbam"], "ram has no feature map that 'cbam' could be put behind"),
    "freezing": (["--freeze-backbone"], "RAM has no backbone to freeze"),
    "twice": (["--model", "glimpse_ram", "--model-options", "null"], "RAM takes glimpses itself"),
    "size": (["--model", "glimpse_test_resnet", "--model-options", "{size: 32}"], "give glimpse_size=32"),
    "small": (["--model", "glimpse_test_resnet", "--model-options", "null"], "use a smaller glimpse_size"),
    "one class": (["--data", "wds/x", "--root", ".", "--num-classes", "1"], "--num-classes must be at least 2"),
    "pretrained": (["--pretrained"], "ram"),
    "no files": (["--data", "mnist", "--root", "nowhere"], "train-images-idx3-ubyte"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_settings_end_in_one_line(what, capsys, monkeypatch):
    arguments, message = BAD[what]
    monkeypatch.setattr("torchvision.datasets.MNIST", _offline)
    assert main([*STEPS, *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def _offline(*_, **__):
    raise RuntimeError("no network")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", ["ram", "moving_average"])
def test_two_processes(elsewhere, name, strategy):
    """Each draws for its own images; together they repeat themselves."""
    two = [*MODELS[name], "--devices", "2", "--strategy", strategy, "--batch-size", "8"]
    for run in ("one", "two"):
        train(*STEPS, *two, "--name", run, cwd=elsewhere)
    assert_same_weights(elsewhere / "runs" / "one", elsewhere / "runs" / "two")


@pytest.mark.slow
def test_a_compiled_model_learns_its_policy_too(elsewhere):
    train(*STEPS, "--compile", "--name", "compiled", cwd=elsewhere, timeout=600)
    train(*STEPS, "--compile", "--name", "again", cwd=elsewhere, timeout=600)
    assert_same_weights(elsewhere / "runs" / "compiled", elsewhere / "runs" / "again")
    settings = Settings(model="ram", model_options={"glimpses": 6, "size": 12})
    begin = create_classifier(settings, create_source(settings)).model.state_dict()
    assert not torch.equal(weights(elsewhere, "compiled")["model.locator.weight"], begin["locator.weight"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ram", "moving_average"])
def test_a_killed_run_ends_like_one_left_alone(elsewhere, name):
    long = [*STEPS, *MODELS[name], "--epochs", "6", "--trainer.limit_train_batches", "8"]
    train(*long, "--name", "whole", cwd=elsewhere)
    process = start(*long, "--name", "killed", cwd=elsewhere)
    wait_for(process, "epoch 3/6")
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    train(*long, "--name", "killed", "--resume", cwd=elsewhere)
    assert_same_weights(elsewhere / "runs" / "killed", elsewhere / "runs" / "whole")

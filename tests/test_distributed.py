"""Several processes on one CPU, with gloo: they must learn what one process with a batch as large as theirs learns."""

import copy
import csv
import subprocess
import sys

import numpy as np
import pytest
import timm
import torch
import torch.multiprocessing
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.modules.batchnorm import _BatchNorm

import visattn
from tests.training import assert_same_weights, checkpoint, environment, train
from visattn.training.classifier import shard

pytestmark = pytest.mark.slow(minutes=1)

# No BatchNorm (it would see half a batch), and SGD, whose steps are proportional to the gradient.
STEPS = [
    "--model", "test_vit", "--attn", "se", "--image-size", "64", "--optimizer", "sgd", "--lr", "0.05", "--epochs", "1",
    "--film-every", "0", "--trainer.limit_train_batches", "3", "--trainer.accelerator", "cpu",
]  # fmt: skip
TWO = ["--devices", "2", "--batch-size", "8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where all runs are written; the first one is that of a single process."""
    folder = tmp_path_factory.mktemp("runs")
    train(*STEPS, "--batch-size", "16", "--name", "one", cwd=folder)
    return folder


def setting(name):
    """A network with attention, none of its weights zero, batch norm in evaluation, and eight images."""
    torch.manual_seed(0)
    model = visattn.create_model(name, num_classes=10)
    with torch.no_grad():
        for parameter in model.parameters():  # some of them start at zero
            parameter += 0.05 * torch.randn_like(parameter)
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.eval()
    return model, torch.rand(8, 3, *((160, 160) if "vit" in name else (64, 64)))


def learn(model, images):
    """Two steps; the blocks that got no gradient in one of them, or have parameters outside of the graph."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    without = []
    for _ in range(2):
        optimiser.zero_grad()
        model(images).square().mean().backward()
        for place, attached in visattn.attachments(model).items():
            gradients = [parameter.grad for parameter in attached.parameters()]
            if any(each is None for each in gradients) or not any(float(each.abs().sum()) for each in gradients):
                without.append(place)
        optimiser.step()
    return without


def learn_in_two_processes(rank, name, sharded, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model, images = setting(name)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # as Lightning does on GPUs
    assert visattn.attachments(model)
    if sharded:
        shard(model, init_device_mesh("cpu", (2,)))
        replica = model
    else:
        # It refuses SyncBatchNorm on a CPU; in evaluation that is no different from any other batch norm.
        nn.parallel.DistributedDataParallel._passing_sync_batchnorm_handle = lambda *_: None
        replica = nn.parallel.DistributedDataParallel(model)
    assert not learn(replica, images[rank::2])
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        torch.save(weights, f"{folder}/weights.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("sharded", [False, True], ids=["ddp", "fsdp2"])
@pytest.mark.parametrize("name", ["resnet18_cbam", "test_vit_se", "test_convnext_se"])
def test_blocks_learn_in_two_processes_what_they_learn_in_one(name, sharded, tmp_path):
    """Behind SyncBatchNorm's conversion, with gradients for every block."""
    torch.multiprocessing.spawn(learn_in_two_processes, (name, sharded, str(tmp_path)), nprocs=2)
    model, images = setting(name)
    before = copy.deepcopy(model.state_dict())
    assert not learn(model, images)
    trained = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert trained.keys() == before.keys()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(trained[key], value, rtol=1e-4, atol=1e-6, msg=key)


def metrics(run):
    with (run / "metrics.csv").open() as stream:
        (row,) = csv.DictReader(stream)
    return {key: float(row[key]) for key in ("train_loss", "train_top1", "val_loss", "val_top1", "val_top5")}


LAUNCHERS = {
    "lightning": (["--strategy", "ddp"], ()),
    "torchrun": (["--strategy", "ddp"], ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")),
    "sharded": (["--strategy", "fsdp"], ()),
}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_two_processes_learn_the_same_as_one_with_twice_the_batch(folder, name):
    arguments, launcher = LAUNCHERS[name]
    result = train(*STEPS, *TWO, *arguments, "--name", name, cwd=folder, launcher=launcher)
    assert result.stdout.count(f"writing to runs/{name}/") == 1  # only the first process speaks
    assert "CPU in 2 processes" in result.stdout
    assert_same_weights(folder / "runs" / name, folder / "runs" / "one", 1e-5)
    state = checkpoint(folder / "runs" / name)["state_dict"]
    assert state["model.head.weight"].any()
    assert any(".visattn." in key for key in state)
    assert metrics(folder / "runs" / name) == pytest.approx(metrics(folder / "runs" / "one"), abs=1e-5)
    files = sorted(path.name for path in (folder / "runs" / name).iterdir())
    assert files == sorted(path.name for path in (folder / "runs" / "one").iterdir())


@pytest.mark.parametrize("processes", [1, 2])
def test_a_sharded_checkpoint_goes_on(folder, processes):
    """Shared out as before, or in one process; momentum and all."""
    name = f"sharded-then-{processes}"
    train(*STEPS, *TWO, "--strategy", "fsdp", "--name", name, cwd=folder)
    how = ["--strategy", "auto", "--devices", "1"] if processes == 1 else []
    train("--resume", f"runs/{name}", *how, "--epochs", "2", cwd=folder)
    state = checkpoint(folder / "runs" / name)
    assert state["epoch"] == 1
    assert state["global_step"] == 6
    momentum = state["optimizer_states"][0]["state"]
    assert len(momentum) == sum(1 for key in state["state_dict"] if key.startswith("model.") and "num_" not in key)
    exported = load_file(folder / "runs" / name / "model.safetensors")
    assert all(torch.isfinite(value).all() for value in exported.values() if value.is_floating_point())


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_pretrained_with_a_block_in_two_processes_resumed_loaded_and_seen(folder, strategy):
    """All at once, as people do it; the pretrained weights are gone after the first epoch."""
    name = f"whole-{strategy}"
    torch.manual_seed(5)
    weights = folder / f"{name}.safetensors"
    save_file(timm.create_model("test_resnet").state_dict(), weights)
    train(
        *("--model", "test_resnet", "--attn", "cbam", "--pretrained", "--channels-last", "--new-lr-factor", "5"),
        *("--model-options", f"{{pretrained_cfg_overlay: {{file: {weights.name}}}}}", "--strategy", strategy, *TWO),
        *("--image-size", "64", "--film-every", "0", "--epochs", "1", "--trainer.limit_train_batches", "3"),
        *("--trainer.limit_val_batches", "2", "--trainer.accelerator", "cpu", "--name", name),
        cwd=folder,
    )
    weights.unlink()
    train("--resume", f"runs/{name}", "--epochs", "2", cwd=folder)
    run = folder / "runs" / name
    assert checkpoint(run)["global_step"] == 6
    model, card = visattn.load_model(run)
    assert len(card["attachments"]) == len(visattn.attachments(model)) == 4
    best = checkpoint(run, "best")["state_dict"]
    assert all(torch.equal(value, best[f"model.{key}"]) for key, value in model.state_dict().items())
    gains = [attached.gain.item() for attached in visattn.attachments(model).values()]
    assert all(gains), "a gain has not moved"
    Image.new("RGB", (80, 70), "red").save(folder / "red.png")
    command = ["-m", "visattn", "heatmap", "--weights", f"runs/{name}", "--method", "auto,gates", "--image", "red.png"]
    command += ["--out", f"out-{strategy}"]
    subprocess.run([sys.executable, *command], cwd=folder, env=environment(), check=True, capture_output=True)
    for method in ("sharp_gradcam", "gates"):
        assert (folder / f"out-{strategy}" / f"red_{method}.png").is_file()


def test_batch_normalisation_of_one_process_is_announced(folder):
    said = train(
        "--model", "test_resnet", "--epochs", "1", "--film-every", "1", "--trainer.limit_train_batches", "2",
        "--trainer.limit_val_batches", "1", "--trainer.accelerator", "cpu", "--name", "norm", *TWO, "--strategy", "ddp",
        cwd=folder,
    ).stdout  # fmt: skip
    assert "SyncBatchNorm needs GPUs" in said
    assert (folder / "runs" / "norm" / "film.png").is_file()


@pytest.mark.parametrize("model", ["test_resnet", "test_vit"])
def test_a_sharded_run_is_filmed(folder, model):
    """What is known about the network was found out before it was sharded: it cannot be copied any more."""
    train(
        "--model", model, "--attn", "se", "--epochs", "2", "--film-every", "1", "--trainer.limit_train_batches", "2",
        "--trainer.limit_val_batches", "1", "--trainer.accelerator", "cpu", "--name", f"film-{model}", *TWO,
        "--strategy", "fsdp", cwd=folder,
    )  # fmt: skip
    run = folder / "runs" / f"film-{model}"
    assert np.load(run / "film" / "epoch_0002.npy").max() == 1
    assert (run / "heatmaps.png").is_file()


def test_an_error_in_several_processes_ends_all_of_them(folder):
    result = train(
        *STEPS, *TWO, "--strategy", "ddp", "--optimizer", "sgd", "--lr", "1e6", "--name", "nan", cwd=folder, check=False
    )
    assert result.returncode != 0
    assert "the loss is no longer finite" in result.stderr

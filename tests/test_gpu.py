"""The whole way on a GPU: ``pytest -m gpu`` where there is one.

Elsewhere most of it runs on the CPU and on a pretended device, so that what is written here is known to work.
"""

import copy

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

import visattn
from tests.pretend import DEVICE, PretendGPU, strategy
from tests.tiers import mostly_slow
from tests.training import train
from visattn.training.building import create_classifier, create_data, create_source
from visattn.training.record import read_rows
from visattn.training.runs import find_run
from visattn.training.settings import Settings
from visattn.training.signals import Signals
from visattn.training.trainer import create_trainer

pytestmark = [
    pytest.mark.usefixtures("elsewhere"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*", "ignore:.*pynvml.*"),
]
GPU = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.fixture
def device(request):
    """A device, on which float32 is float32."""
    if request.param == "pretended":
        with PretendGPU():
            yield DEVICE
    else:
        _needed(request.param)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            yield torch.device(request.param)


def _needed(device, count=1):
    if device == "cuda" and torch.cuda.device_count() < count:
        pytest.skip(f"needs {count} CUDA device{'s' * (count > 1)}, and there are {torch.cuda.device_count()}")


everywhere = pytest.mark.parametrize("device", ["cpu", "pretended", GPU], indirect=True)
real = pytest.mark.parametrize("device", ["cpu", GPU], indirect=True)


def resnet():
    """A convolutional network with attention, and images for it."""
    model = trained(visattn.create_model("resnet18_cbam", num_classes=5))
    model(torch.rand(8, 3, 64, 64))
    return model.eval(), torch.rand(2, 3, 64, 64)


def vit():
    return trained(visattn.create_model("test_vit", attn="se", num_classes=5)).eval(), torch.rand(2, 3, 160, 160)


def trained(model):
    """Not as it was born, when attached blocks and the last norms of residual branches change nothing."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def there(model, device):
    """A copy on the device."""
    return copy.deepcopy(model).to(device)


def assert_close(actual, expected):
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-3, atol=1e-4)


class NoWaits(Callback):
    """A step that makes the host wait raises; the first one looks at the loss on purpose, and cudnn searches in it."""

    def on_train_batch_start(self, _trainer, _module, _batch, batch_idx):
        torch.cuda.set_sync_debug_mode("error" if batch_idx in (2, 3) else "default")

    def on_train_batch_end(self, _trainer, _module, _outputs, _batch, _batch_idx):
        torch.cuda.set_sync_debug_mode("default")


def fit(device, *callbacks, **settings):
    """A short run; its only row, and the weights before and after."""
    settings = Settings(**{"model": "test_resnet", "attn": "cbam", "batch_size": 8, "epochs": 1, **settings})
    source = create_source(settings)
    classifier = create_classifier(settings, source)
    before = copy.deepcopy(classifier.model.state_dict())
    where = {"strategy": strategy()} if device == DEVICE else {"accelerator": device.type, "devices": 1}
    run = find_run(settings, "")
    extra = {"limit_train_batches": 5, "limit_val_batches": 2, **where}
    trainer = create_trainer(settings, run, extra, Signals(), callbacks)
    trainer.fit(classifier, create_data(settings, source, classifier.model))
    (row,) = read_rows(run)
    return row, before, classifier.model.state_dict()


def check_training(device, record_property, *callbacks, **settings):
    row, before, after = fit(device, *callbacks, **settings)
    assert 0 < row["train_loss"] < 10
    assert row["step"] == 5
    changed = [key for key in before if not torch.equal(before[key], after[key].cpu())]
    assert any("visattn" in key for key in changed)
    assert any("layer1" in key for key in changed)
    assert row["images_per_second"] > 0
    record_property("images_per_second", row["images_per_second"])


@everywhere
def test_a_run(device, record_property):
    check_training(device, record_property, channels_last=True, mixup=0.2, ema=0.9)


@real
def test_a_run_in_bfloat16(device, record_property):
    check_training(device, record_property, precision="bf16-mixed", channels_last=True)


@pytest.mark.parametrize("device", [GPU], indirect=True)
def test_a_run_in_float16(device, record_property):
    check_training(device, record_property, precision="16-mixed", channels_last=True)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])  # fp16 has to look whether a gradient overflowed
@pytest.mark.parametrize("device", [GPU], indirect=True)
def test_no_step_waits_for_the_device(device, record_property, precision):
    check_training(device, record_property, NoWaits(), precision=precision, mixup=0.2, ema=0.9)


@pytest.mark.parametrize("model", ["ram", "glimpse_test_resnet"])
@pytest.mark.parametrize("device", [GPU], indirect=True)
def test_no_step_of_a_model_that_looks_around_waits(device, model):
    options = {"glimpse_size": 32, "glimpses": 2} if model.startswith("glimpse") else None
    assert fit(device, NoWaits(), model=model, attn=None, model_options=options)[0]["train_loss"] > 0


@everywhere
@pytest.mark.parametrize("create", [resnet, vit])
def test_the_answer_is_that_of_the_cpu(device, create):
    model, images = create()
    with torch.no_grad():
        assert_close(there(model, device)(images.to(device)), model(images))


@everywhere
def test_channels_last(device):
    model, images = resnet()
    last = there(model, device).to(memory_format=torch.channels_last).train()
    answer = last(images.to(device, memory_format=torch.channels_last))
    assert_close(answer, model.train()(images))
    answer.square().sum().backward()
    assert all(parameter.grad is not None for parameter in last.parameters())


@everywhere
def test_synchronised_batch_norm(device):
    """What Lightning does to a model for several GPUs."""
    model, images = resnet()
    expected = model(images)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(there(model, device))
    assert any(isinstance(module, nn.SyncBatchNorm) for module in converted.modules())
    with torch.no_grad():
        assert_close(converted(images.to(device)), expected)


@everywhere
def test_capture(device):
    model, images = vit()
    with visattn.capture(model) as expected:
        model(images)
    remote = there(model, device)
    with visattn.capture(remote) as maps:
        remote(images.to(device))
    assert list(maps) == list(expected)
    for name, weights in maps.items():
        assert weights.device.type == device.type
        assert_close(weights, expected[name])


@everywhere
@pytest.mark.parametrize(
    ("create", "method"),
    mostly_slow(
        [(vit, "rollout"), (vit, "chefer"), (vit, "attention"), (resnet, "gradcam"), (resnet, "gates")],
        *("rollout", "gradcam"),
        key=lambda value: value[1],
    ),
)
def test_heatmaps(device, create, method):
    model, images = create()
    expected = visattn.explain(model, images, method, target=1)
    actual = visattn.explain(there(model, device), images.to(device), method, target=1)
    assert_close(actual.raw, expected.raw)


@pytest.mark.slow
@real
@pytest.mark.parametrize("create", [resnet, vit])
def test_export(device, create):
    model, images = create()
    remote = there(model, device)
    program = torch.export.export(remote, (images.to(device),))
    with torch.no_grad():
        assert_close(program.module()(images.to(device)), model(images))


@real
@pytest.mark.slow
def test_onnx(device, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, images = resnet()
    file = tmp_path / "model.onnx"
    torch.onnx.export(there(model, device), (images.to(device),), file, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (answer,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    assert_close(torch.from_numpy(answer), model(images))


@real
def test_blocks_are_measured(device):
    """How fast they are is for ``python -m benchmarks.speed`` to say."""
    blocks = "all" if device.type == "cuda" else "se,cbam,mhsa"
    found = visattn.cost.bench_blocks(blocks, "2x32x8x8", layout="nchw,nhwc", against="timm", device=device, repeats=1)
    assert not found.left_out
    assert all(row.cost.forward.median > 0 and row.cost.peak_bytes > 0 for row in found.rows)


@pytest.mark.gpu
def test_two_gpus(tmp_path, monkeypatch):
    _needed("cuda", 2)
    monkeypatch.setattr("tests.training.HIDDEN", {})
    result = train(
        "--model", "resnet18_cbam", "--devices", "2", "--strategy", "ddp", "--batch-size", "8", "--epochs", "1",
        "--film-every", "0", "--trainer.limit_train_batches", "3", "--trainer.limit_val_batches", "2",
        "--trainer.accelerator", "cuda", "--name", "two", cwd=tmp_path,
    )  # fmt: skip
    assert "CUDA in 2 processes" in result.stdout
    assert (tmp_path / "runs" / "two" / "heatmaps.png").is_file()

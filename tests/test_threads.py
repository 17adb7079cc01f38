"""A model can be explained while other threads use it: they get the same answers, and so does who explains."""

import copy
import sys
import threading
import time
from contextlib import contextmanager

import pytest
import torch
import torch.distributed
from torch import nn

import visattn
from tests.models import model_and_images
from tests.tiers import mostly_slow
from visattn.heatmaps import attention_heads, relate
from visattn.models.places import survey_places
from visattn.modules import eagerly, sharing_copy, weightless_copy

A_PASS_PER_CHANNEL = {"scorecam", "ablationcam"}
MANY_PASSES = A_PASS_PER_CHANNEL | {"integrated_gradients", "smoothgrad", "occlusion", "rise"}


def vit():
    model, images = model_and_images("test_vit")
    visattn.attach(model, "cbam", at="blocks.1")
    return model, images


def resnet():
    model, images = model_and_images("test_resnet")
    return visattn.attach(model, "se", init="paper"), images[..., :64, :64]


MODELS = {"vit": vit, "resnet": resnet}


def everything(model, images):
    """All that can be found out about a model, by name, but for what takes very long."""
    methods = {*visattn.list_methods(model, images)} - MANY_PASSES
    found = {method: visattn.explain(model, images, method).raw for method in sorted(methods)}
    if "rollout" in methods:
        found |= {f"head {key}": each for key, each in attention_heads(model, images).items()}
        found |= {f"relation {key}": each.weights for key, each in relate(model, images).items()}
        with torch.no_grad(), visattn.capture(model) as maps:
            found["captured"] = model(images)
        found |= {f"map {key}": each for key, each in maps.items()}
    found["places"] = sorted(survey_places(model, images).places())
    return found


def assert_same(seen, expected):
    assert seen.keys() == expected.keys()
    for name, value in expected.items():
        same = torch.equal(seen[name], value) if isinstance(value, torch.Tensor) else seen[name] == value
        assert same, name


@contextmanager
def beside(work):
    """Repeat something in another thread meanwhile, at least three times; what went wrong there is raised."""
    done, errors, times = threading.Event(), [], []

    def run():
        try:
            while not done.is_set() or len(times) < 3:
                work()
                times.append(1)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # let threads meet in the middle of things
    thread.start()
    try:
        yield times
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]


def serve(model, images):
    """Answers that must be the same, bit for bit, every time."""
    with torch.no_grad():
        expected = model(images)

    def work():
        with torch.no_grad():
            assert torch.equal(model(images), expected)

    return work


@pytest.mark.parametrize("name", mostly_slow(MODELS, "resnet"))
def test_explaining_a_model_that_serves(name):
    model, images = MODELS[name]()
    alone = everything(copy.deepcopy(model), images)
    with beside(serve(model, images)) as times:
        assert_same(everything(model, images), alone)
    assert len(times) > 5


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(A_PASS_PER_CHANNEL))
@pytest.mark.parametrize("name", MODELS)
def test_long_methods_on_a_model_that_serves(name, method):
    model, images = MODELS[name]()
    alone = visattn.explain(copy.deepcopy(model), images[:1], method).raw
    with beside(serve(model, images[:1])):
        assert torch.equal(visattn.explain(model, images[:1], method).raw, alone)


@pytest.mark.slow
def test_two_who_explain():
    model, images = vit()
    expected = {m: visattn.explain(copy.deepcopy(model), images, m).raw for m in ("rollout", "chefer", "gradcam")}

    def work():
        for method, raw in expected.items():
            assert torch.equal(visattn.explain(model, images, method).raw, raw)

    stderr = sys.stderr
    with beside(work):
        for _ in range(3):
            work()
    assert sys.stderr is stderr


def state(model):
    """What others could see of a model."""
    modules = list(model.modules())
    return (
        [module.training for module in modules],
        [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules],
        [id(parameter) for parameter in model.parameters()],
        [id(buffer) for buffer in model.buffers()],
        [module._compiled_call_impl for module in modules],
    )


@pytest.mark.parametrize("name", mostly_slow(MODELS, "resnet"))
def test_nothing_can_be_seen_from_outside(name):
    model, images = MODELS[name]()
    model.train()
    next(model.children()).eval()
    before = state(model)

    def watch():
        assert state(model) == before
        time.sleep(1e-3)

    with beside(watch):
        for method in {*visattn.list_methods(model, images)} - MANY_PASSES:
            visattn.explain(model, images[:1], method)
        survey_places(model, images)


def test_capture_is_of_one_thread():
    model, images = vit()
    other = torch.rand_like(images)
    own = copy.deepcopy(model)
    with torch.no_grad(), visattn.capture(own) as expected:
        own(images)
    with beside(serve(model, other)):
        for _ in range(5):
            with torch.no_grad(), visattn.capture(model) as maps:
                model(images)
            assert list(maps) == list(expected)
            assert all(torch.equal(maps[key], expected[key]) for key in expected)


def test_an_explanation_inside_of_capture_is_no_pass_of_the_model():
    model, images = vit()
    with torch.no_grad(), visattn.capture(model) as maps:
        model(images)
        before = dict(maps)
        visattn.explain(model, torch.rand_like(images), "rollout")
        visattn.explain(model, torch.rand_like(images), "gradcam")
    assert list(maps) == list(before)
    assert all(maps[key] is before[key] for key in before)


def test_the_compilers_stance_is_as_before_when_all_are_done():
    import torch._dynamo.eval_frame as compiler

    first, second = eagerly(), eagerly()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert compiler._stance.stance == "force_eager"
    second.__exit__(None, None, None)
    assert compiler._stance.stance == "default"


def test_what_was_found_out_is_kept_with_the_model(monkeypatch):
    from visattn.heatmaps.watch import geometry, interception

    model, images = vit()
    model.blocks[0].attn.fused_attn = False
    visattn.explain(model, images, "rollout")
    monkeypatch.setattr(geometry, "trace", None)
    monkeypatch.setattr(interception, "_sums_to_one", None)
    visattn.explain(model, images, "rollout")


class Odd(nn.Module):
    """Whatever a network may hold beside parameters and buffers."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 16, 16)
        self.tied = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8)
        self.head.weight = self.tied.weight
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.register_buffer("whole", torch.rand(4, 8))
        self.register_buffer("part", self.whole[:2], persistent=False)
        self.shift = torch.rand(8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.last = None
        self.frozen.register_forward_hook(self.doubled)
        self.forward = self.other_forward

    def doubled(self, _module, _args, output):
        return 2 * output

    def other_forward(self, x):
        x = self.embed(x).mean((2, 3)) + self.shift + self.part.sum(0)
        self.last = self.head(self.frozen(self.normed(self.tied(x))))
        return self.last


def test_copies_of_odd_networks():
    model, images = Odd(), torch.rand(2, 3, 32, 32)
    expected = model(images)  # which it keeps, as part of a graph
    shared, empty = sharing_copy(model), weightless_copy(model)
    assert torch.equal(shared(images), expected)
    assert model.last is expected
    for one, other in zip(model.parameters(), shared.parameters(), strict=True):
        assert one is other
    assert all(tensor.is_meta for tensor in (*empty.parameters(), *empty.buffers()))
    assert empty.head.weight is empty.tied.weight
    assert [p.requires_grad for p in model.parameters()].count(False) == 2
    assert visattn.explain(model, images, "input_gradient").heatmap.shape == (2, 32, 32)
    assert model.last is expected


@pytest.mark.parametrize("lock", [threading.Lock, threading.RLock])
def test_copies_share_a_lock(lock):
    model, images = model_and_images("test_resnet")
    model.train()
    model.lock = lock()
    assert sharing_copy(model).lock is model.lock
    assert visattn.explain(model, images, "input_gradient").heatmap.shape == (2, 160, 160)
    assert all(module.training for module in model.modules())


@pytest.mark.filterwarnings("ignore:.*quantiz:")
def test_quantised_and_wrapped_networks(tmp_path):
    model, images = model_and_images("test_vit")
    expected = visattn.explain(model, images, "rollout")
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model)
        assert torch.equal(visattn.explain(wrapped, images, "rollout").raw, expected.raw)
    finally:
        torch.distributed.destroy_process_group()
    assert torch.equal(visattn.explain(nn.DataParallel(model), images, "rollout").raw, expected.raw)
    small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)
    with torch.no_grad():
        assert torch.equal(sharing_copy(small)(images), small.eval()(images))

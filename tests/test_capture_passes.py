"""Maps are those of the last pass through the model that is watched, whichever part of it is called."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import visattn
from tests.models import model_and_images
from tests.test_capture import hidden
from visattn.heatmaps import MissedAttention

SIX = [f"blocks.{i}.attn" for i in range(6)]


@pytest.fixture
def vit():
    return model_and_images("test_vit")


def hide(model, number=3):
    attention = model.blocks[number].attn
    attention.forward = hidden.__get__(attention)


ENTRIES = {
    "model": lambda model, x: model(x),
    "forward": lambda model, x: model.forward(x),
    "forward_features": lambda model, x: model.forward_features(x),
    "forward_intermediates": lambda model, x: model.forward_intermediates(x),
    "features and head": lambda model, x: model.forward_head(model.forward_features(x)),
    "blocks": lambda model, x: model.blocks(model.norm_pre(model._pos_embed(model.patch_embed(x)))),
    "one by one": lambda model, x: one_by_one(model, x),
}


def one_by_one(model, x):
    x = model._pos_embed(model.patch_embed(x))
    for block in model.blocks:
        x = block(x)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("gradients", [True, False])
def test_the_last_pass_by_every_entry(vit, entry, gradients):
    model, images = vit
    with visattn.capture(model) as expected:
        model(images[:1])
    with torch.set_grad_enabled(gradients), visattn.capture(model) as maps:
        ENTRIES[entry](model, torch.rand_like(images))
        assert list(maps) == SIX
        ENTRIES[entry](model, images[:1])
        assert list(maps) == SIX
    assert list(maps) == SIX
    for name in SIX:
        torch.testing.assert_close(maps[name], expected[name])


@pytest.mark.parametrize("first", ENTRIES)
@pytest.mark.parametrize("second", ENTRIES)
def test_two_different_entries(vit, first, second):
    model, images = vit
    with torch.no_grad(), visattn.capture(model) as maps:
        ENTRIES[first](model, images)
        ENTRIES[second](model, images[:1])
    assert list(maps) == SIX
    assert {len(weights) for weights in maps.values()} == {1}


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_missed_layer_by_every_entry(vit, entry):
    model, images = vit
    hide(model)
    with pytest.raises(MissedAttention, match=r"'blocks\.3\.attn'"), visattn.capture(model):
        ENTRIES[entry](model, images)
    begun = []
    with pytest.raises(MissedAttention, match=r"'blocks\.3\.attn'"), visattn.capture(model):
        begun += [ENTRIES[entry](model, images) for _ in range(2)]
    assert not begun  # the second pass did not come to its end


def test_a_submodule_by_itself(vit):
    model, images = vit
    tokens = torch.rand(2, 101, 64)
    with torch.no_grad(), visattn.capture(model) as maps:
        model(images)
        model.blocks[1](tokens)
        assert list(maps) == ["blocks.1.attn"]
        model.blocks[1](tokens)
        assert list(maps) == ["blocks.1.attn"]
        model.blocks[2](tokens)
        assert list(maps) == ["blocks.1.attn", "blocks.2.attn"]
        model(images)
        assert list(maps) == SIX
    with torch.no_grad(), visattn.capture(model.blocks[2]) as maps:
        model(images)
    assert list(maps) == ["attn"]


def test_another_exception_is_not_replaced(vit):
    model, images = vit
    hide(model)
    with pytest.raises(KeyError), visattn.capture(model):
        {}[model.forward_features(images)]


def test_a_pass_that_broke_off(vit):
    model, images = vit
    with torch.no_grad(), visattn.capture(model) as maps:
        for broken in (model, model.forward_features, model.blocks):
            with pytest.raises(RuntimeError):
                broken(images[:, :1])
        for _ in range(2):
            model.forward_features(images)
    assert list(maps) == SIX


class Recurrent(nn.Module):
    """The same layer three times, called by a method."""

    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, batch_first=True)

    def refine(self, x):
        for _ in range(3):
            x = self.layer(x, x, x)[0]
        return x

    def forward(self, x):
        return self.refine(x)


@pytest.mark.parametrize("entry", ["__call__", "refine", "forward"])
def test_a_layer_that_is_used_several_times(entry):
    model = Recurrent()
    with visattn.capture(model) as maps:
        for _ in range(2):
            getattr(model, entry)(torch.rand(2, 5, 8))
    assert list(maps) == ["layer", "layer#2", "layer#3"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_run_again_in_a_backward_pass_is_left_out(vit, reentrant):
    model, images = vit

    def run():
        tokens = model._pos_embed(model.patch_embed(images))
        for block in model.blocks:
            tokens = checkpoint(block, tokens, use_reentrant=reentrant)
        return tokens.square().sum()

    with visattn.capture(model) as maps:
        run().backward()
        assert list(maps) == SIX
        model.set_grad_checkpointing()
        score = model(images).square().sum()
        before = dict(maps)
        score.backward()
        assert list(maps) == SIX
        assert all(maps[name] is before[name] for name in SIX)


def test_gradients_with_checkpointing(vit):
    model, images = vit
    with visattn.capture(model) as maps:
        expected = maps.gradients(model(images).square().sum())
    model.set_grad_checkpointing()
    model.train()  # it checkpoints in no other mode
    with visattn.capture(model) as maps:
        found = maps.gradients(model(images).square().sum())
    for name in SIX:
        torch.testing.assert_close(found[name], expected[name])


class Teacher(nn.Module):
    """Attention outside any submodule; another model runs beside it."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 8)

    def attend(self, x):
        x = self.embed(x)
        return nn.functional.scaled_dot_product_attention(x, x, x)

    def forward(self, x):
        return self.attend(x)


@pytest.mark.parametrize("kind", ["fused", "written out", "functions only"])
def test_another_model_is_not_reported(vit, kind):
    model, images = vit
    other = model_and_images("test_vit3" if kind == "fused" else "swin_tiny_patch4_window7_224", number=1)[0]
    mine = Teacher()
    run = {
        "functions only": lambda: nn.functional.scaled_dot_product_attention(*3 * [torch.rand(2, 5, 8)]),
    }.get(kind, lambda: other(torch.rand(1, *other.pretrained_cfg["input_size"])))
    with torch.no_grad(), visattn.capture(model) as maps:
        run()
        assert list(maps) == []
        model(images)
        run()
    assert list(maps) == SIX
    for method in (mine, mine.forward, mine.attend):
        with torch.no_grad(), visattn.capture(mine) as maps:
            run()
            method(torch.rand(2, 5, 8))
            run()
        assert list(maps) == [""]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("blocks.1.attn", [1]),
        (["blocks.1.attn", "blocks.4.attn"], [1, 4]),
        ("blocks.[02].*", [0, 2]),
        ("*", range(6)),
        (2, [2]),
        (-1, [5]),
        ([-6, 1, -2], [0, 1, 4]),
        (["blocks.0.attn", 0, -6], [0]),
        (("blocks.3.attn", -1), [3, 5]),
        (np.int64(2), [2]),
        ([np.int64(-1)], [5]),
    ],
)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("entry", ["model", "forward_features", "one by one"])
def test_only_the_layers_that_are_asked_for(vit, layers, expected, fused, entry, monkeypatch):
    model, images = vit
    for block in model.blocks:
        block.attn.fused_attn = fused
    with visattn.capture(model) as every:
        model(images)
    formed = []
    kind = visattn.heatmaps.watch.calls.Fused
    original = kind.weights
    monkeypatch.setattr(kind, "weights", lambda self: (formed.append(self.name), original(self))[1])
    with visattn.capture(model, layers=layers) as maps:
        ENTRIES[entry](model, images)
        output = ENTRIES["model"](model, images)
    names = [f"blocks.{i}.attn" for i in expected]
    assert list(maps) == names
    assert len(maps) == len(names)
    assert list(maps.gradients(output.square().sum())) == names
    for name in names:
        torch.testing.assert_close(maps[name], every[name])
    if fused:
        assert {*formed} == {*names}
    assert {call.name for call in maps._calls.values()} == {*names}  # nothing of the others is kept
    with pytest.raises(KeyError):
        maps["blocks.9.attn"]


def test_repeated_use_by_name_and_number():
    model = Recurrent()
    for layers, expected in (("layer#2", ["layer#2"]), ("layer", ["layer"]), ("layer*", 3), (1, ["layer#2"])):
        with visattn.capture(model, layers=layers) as maps:
            model(torch.rand(2, 5, 8))
        assert list(maps) == (expected if isinstance(expected, list) else ["layer", "layer#2", "layer#3"])


class Buffered(nn.Module):
    """Two layers that write their weights into the same memory."""

    def forward(self, x):
        buffer = torch.empty(2, 5, 5)
        for factor in (1, 2):
            torch.softmax(factor * x @ x.mT, -1, out=buffer)
            x = buffer @ x
        return x


@pytest.mark.parametrize("layers", [None, -2, 0])
def test_maps_are_not_written_over(layers):
    x = torch.rand(2, 5, 8)
    with torch.no_grad(), visattn.capture(Buffered(), layers) as maps:
        pass
    model = Buffered()
    with torch.no_grad(), visattn.capture(model, layers) as maps:
        model(x)
    torch.testing.assert_close(maps[""], (x @ x.mT).softmax(-1))


@pytest.mark.parametrize("place", ["", "blocks.2.attn", "blocks.5"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_another_model_inside_a_hook(vit, place, when):
    model, images = vit
    other = model_and_images("test_vit2")[0]
    with torch.no_grad(), visattn.capture(model) as expected:
        model(images)
    module = model.get_submodule(place)
    register = module.register_forward_pre_hook if when == "before" else module.register_forward_hook
    handle = register(lambda *_: (other(images), None)[1])
    try:
        with torch.no_grad(), visattn.capture(model) as maps:
            model(images)
    finally:
        handle.remove()
    assert list(maps) == list(expected)
    for name, weights in maps.items():
        assert torch.equal(weights, expected[name])


class Listed(nn.Module):
    """A network that keeps its attention where nobody finds it."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.layers = [nn.MultiheadAttention(8, 2, batch_first=True)]

    def forward(self, x):
        """Attention among tokens."""
        x = self.project(x)
        return self.layers[0](x, x, x, need_weights=False)[0]


def test_modules_that_are_not_registered():
    model = Listed().eval()
    with torch.no_grad(), visattn.capture(model) as maps:
        model(torch.rand(1, 5, 8))
    assert [tuple(weights.shape) for weights in maps.values()] == [(1, 2, 5, 5)]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_that_is_made_meanwhile(vit, copied):
    model, images = vit
    with torch.no_grad(), visattn.capture(model) as maps:
        model(images)
        copied(model)(images)
    assert list(maps) == SIX

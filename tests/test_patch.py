"""Patch attention in vision transformers."""

import copy
import pickle

import pytest
import timm
import timm.layers
import torch
from torch import nn

import visattn
from tests.models import model_and_images
from tests.reference.heatmaps import rollout
from tests.tiers import mostly_slow
from visattn.models import PatchAttention
from visattn.models.names import PATCH_ATTENTION
from visattn.models.patch import Patch

MODELS = [
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "test_vit",
    "eva02_tiny_patch14_224",
    "test_vit2",
    "vit_small_patch16_rope_224",
    "beit_base_patch16_224",
]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("fused", [True, False])
def test_scaled_dot_and_softmax_are_timms(name, fused):
    timm.layers.set_fused_attn(fused)
    try:
        model, x = model_and_images(name, 1, depth=2)
    finally:
        timm.layers.set_fused_attn(True)
    before = model(x)
    keys = list(model.state_dict())
    visattn.attach(model, "patch")
    assert any(isinstance(module, Patch) for module in model.modules())
    assert list(model.state_dict()) == keys
    torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-6)
    visattn.detach(model)
    assert torch.equal(model(x), before)
    assert not any(isinstance(module, Patch) for module in model.modules())


@pytest.mark.parametrize("attn", PATCH_ATTENTION)
def test_every_name(attn):
    torch.manual_seed(0)
    plain = timm.create_model("test_vit", num_classes=3)
    torch.manual_seed(0)
    model = visattn.create_model("test_vit", attn=attn, num_classes=3)
    x = torch.rand(2, 3, 160, 160)
    output = model(x)
    output.square().mean().backward()
    assert output.shape == (2, 3)
    assert all(p.grad is not None for name, p in model.named_parameters())
    assert torch.equal(model.blocks[0].attn.qkv.weight, plain.blocks[0].attn.qkv.weight)
    if attn != "patch":
        assert not torch.allclose(model.eval()(x), plain.eval()(x), atol=1e-5)


@pytest.mark.parametrize(
    "attn", mostly_slow(sorted({*PATCH_ATTENTION} - {"additive"}), "cosine", "window")
)  # whose pairs have no place: refused
def test_rollout_follows_every_name(attn):
    """Whatever the energies are computed with, rows are queries and columns are keys."""
    torch.manual_seed(0)
    model = visattn.create_model("test_vit", attn=attn, num_classes=3).eval()
    images = torch.rand(1, 3, 160, 160)
    with torch.no_grad(), visattn.capture(model) as maps:
        model(images)
    R = rollout.rollout([weights[0].double().numpy() for weights in maps.values()], prefix=1)
    expected = torch.from_numpy(rollout.readout(R, [0], 1)).float()
    found = visattn.explain(model, images, "rollout").raw[0].flatten()
    torch.testing.assert_close(found / found.sum(), expected / expected.sum(), rtol=1e-4, atol=1e-7)


def test_the_module_is_a_drop_in():
    torch.manual_seed(0)
    ours = PatchAttention(64, 4, qkv_bias=True).eval()
    theirs = timm.layers.Attention(64, 4, qkv_bias=True).eval()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 10, 64)
    torch.testing.assert_close(ours(x), theirs(x))
    weights = ours.attention(x)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 10))
    mask = torch.ones(10, 10, dtype=torch.bool).tril()
    expected = theirs(x, attn_mask=mask)
    torch.testing.assert_close(ours(x, attn_mask=mask), expected)
    torch.testing.assert_close(ours(x, is_causal=True), expected)
    additive = torch.zeros(10, 10).masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(ours(x, attn_mask=additive), expected)


def test_dropout_of_weights_still_happens():
    ours = PatchAttention(64, 4, attn_drop=0.5).train()
    x = torch.randn(2, 10, 64)
    assert not torch.equal(ours(x), ours(x))
    assert torch.equal(ours.eval()(x), ours(x))


@pytest.mark.parametrize("scope", ["local_2d", "window_2d"])
def test_windows_are_windows_of_patches(scope):
    """A patch sees its neighbours and the class token; the class token sees everything; also when not square."""
    model, _ = model_and_images("test_vit", dynamic_img_size=True)
    options = {"radius": 1} if scope == "local_2d" else {"size": 2}
    visattn.attach(model, "patch", scope=scope, **options)
    seen = []
    attn = model.blocks[0].attn
    attn.register_forward_hook(lambda module, args, output: seen.append(module.attention(args[0])))
    model(torch.rand(1, 3, 64, 96))  # 4 x 6 patches of 16 pixels
    visible = seen[0][0, 0] > 0
    assert visible[0].all()
    assert visible[:, 0].all()
    patches = visible[1:, 1:].view(4, 6, 4, 6)
    if scope == "local_2d":
        assert patches[2, 2].nonzero().tolist() == [[y, x] for y in (1, 2, 3) for x in (1, 2, 3)]
    else:
        assert patches[2, 2].nonzero().tolist() == [[y, x] for y in (2, 3) for x in (2, 3)]


@pytest.mark.parametrize("at", ["blocks.0", "blocks.0.attn", ["blocks.[0]"]])
def test_some_layers_only(at):
    model, _ = model_and_images("test_vit")
    visattn.attach(model, "patch", at=at, score="cosine")
    assert [isinstance(block.attn, Patch) for block in model.blocks] == [True] + [False] * 5
    visattn.detach(model)


def test_weights_cross_over():
    model, _ = model_and_images("test_vit")
    plain = copy.deepcopy(model)
    visattn.attach(model, "patch", score="general")
    report = visattn.load_state_dict(model, plain.state_dict())
    assert len(report.new) == 6
    report = visattn.load_state_dict(plain, model.state_dict())
    assert len(report.ignored) == 6


def test_copies():
    model, x = model_and_images("test_vit")
    visattn.attach(model, "patch", score="cosine", scope="local_2d")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))


OPTIONS = [{}, {"score": "cosine"}, {"distribution": "entmax15"}, {"scope": "local_2d"}]


@pytest.mark.parametrize("options", mostly_slow(OPTIONS, "{}", key=str), ids=str)
def test_compiles_without_graph_breaks(options):
    torch._dynamo.reset()
    model, x = model_and_images("test_vit")
    visattn.attach(model, "patch", **options)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_mistakes_are_explained():
    model, _ = model_and_images("test_vit")
    with pytest.raises(ValueError, match="unknown score 'cosin'"):
        visattn.attach(model, "patch", score="cosin")
    assert not any(isinstance(module, Patch) for module in model.modules())
    with pytest.raises(TypeError, match="scope 'global' has no option 'radius'"):
        visattn.attach(model, "patch", radius=3)
    with pytest.raises(TypeError, match="no option 'scor': did you mean 'score'"):
        visattn.attach(model, "patch", scor="cosine")
    with pytest.raises(TypeError, match="takes at= and its own options"):
        visattn.attach(model, "patch", init="paper")
    with pytest.raises(ValueError, match=r"no attention matches 'nonsense'; there are: blocks\.0\.attn"):
        visattn.attach(model, "patch", at="nonsense")
    visattn.attach(model, "patch")
    with pytest.raises(ValueError, match="already has patch attention"):
        visattn.attach(model, "patch")
    with pytest.raises(ValueError, match="has no attention that patch attention can replace"):
        visattn.attach(timm.create_model("test_resnet"), "patch")


class Shifted(nn.Module):
    """A layer in the place of another, as LoRA's: the weight alone does not say what it computes."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.shift = layer, nn.Parameter(torch.full((layer.out_features,), 0.5))

    def forward(self, x):
        """The layer, and more."""
        return self.layer(x) * self.shift


@pytest.mark.parametrize("name", ["test_vit", "beit_base_patch16_224", "eva02_tiny_patch14_224"])
def test_the_projection_is_called(name):
    model, x = model_and_images(name, 1, depth=1)
    visattn.attach(model, "patch")
    before, calls = model(x), []
    projection = model.blocks[0].attn.qkv or model.blocks[0].attn.q_proj
    projection.register_forward_hook(lambda *_: calls.append(1))
    model(x)
    assert calls == [1]
    part = "qkv" if model.blocks[0].attn.qkv is not None else "v_proj"
    setattr(model.blocks[0].attn, part, Shifted(getattr(model.blocks[0].attn, part)))
    assert not torch.allclose(model(x), before)


@pytest.mark.parametrize("name", ["test_vit", "beit_base_patch16_224", "eva02_tiny_patch14_224"])
def test_attention_returns_the_weights_of_the_forward_pass(name):
    model, x = model_and_images(name, 1, depth=1)
    visattn.attach(model, "patch", score="cosine")
    attn, seen = model.blocks[0].attn, []
    if name.startswith("beit"):
        torch.nn.init.normal_(attn.relative_position_bias_table)
        torch.nn.init.normal_(attn.q_bias)

    def note(module, args, kwargs, _output):
        seen.append(module.attention(*args, **kwargs))

    attn.register_forward_hook(note, with_kwargs=True)
    with torch.no_grad(), visattn.capture(model) as maps:
        model(x)
    torch.testing.assert_close(seen[0], next(iter(maps.values())))


def test_masks_are_part_of_the_weights():
    ours, x = PatchAttention(64, 4), torch.randn(2, 10, 64)
    assert ours.attention(x, is_causal=True).triu(1).eq(0).all()


@pytest.mark.filterwarnings("ignore:.*quantiz.*")
def test_quantised_layers_stay_in_use():
    model, x = model_and_images("test_vit", 1)
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    before = quantised(x)
    torch.testing.assert_close(visattn.attach(quantised, "patch")(x), before)

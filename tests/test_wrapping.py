"""A module with attention behind it passes for the module: attributes, items, keys; and what it refuses."""

import copy
from collections import namedtuple

import pytest
import timm
import torch
import torchvision
from timm.utils import reparameterize_model
from torch import nn
from torch.func import functional_call

import visattn
from tests.models import model_and_images
from tests.tiers import mostly_slow
from visattn.models.wrapper import WRAPPED, WithAttention, plain_name
from visattn.training.optimisation import create_optimizer
from visattn.training.settings import Settings


def test_the_wrapper_shows_what_it_wraps():
    model, _ = model_and_images("test_resnet")
    norm, unit = model.layer1[0].bn2, model.layer2[0]
    visattn.attach(model, "se", at=["layer1.0.bn2", "layer2"])
    assert model.layer1[0].bn2.weight is norm.weight
    assert model.layer1[0].bn2.num_features == norm.num_features
    assert model.layer2[0] is unit
    assert model.layer2[-1] is unit
    assert model.get_submodule("layer2.0.conv1") is unit.conv1
    convnext, _ = model_and_images("test_convnext")
    layers = convnext.stages[0].blocks
    assert visattn.attach(convnext, "se", at="stages.0").stages[0].blocks is layers
    assert model.get_parameter("layer1.0.bn2.weight") is norm.weight
    model.layer1[0].bn2.momentum = 0.5
    assert norm.momentum == 0.5
    with pytest.raises(AttributeError, match="'BatchNorm2d' object has no attribute 'colour'"):
        _ = model.layer1[0].bn2.colour
    assert "WithAttention" in repr(model)


def test_a_sequence_is_followed_by_its_blocks():
    """Gradient checkpointing and feature extractors call the layers of a stage one by one."""
    model, _ = model_and_images("test_resnet")
    visattn.attach(model, "se", at="layer2", init="paper")
    stage, feature = model.layer2, torch.rand(2, 32, 40, 40)
    one_by_one = feature
    for layer in stage:
        one_by_one = layer(one_by_one)
    assert torch.equal(one_by_one, stage(feature))
    by_number = feature
    for number in range(len(stage)):
        by_number = stage[number](by_number)
    assert torch.equal(by_number, stage(feature))
    with pytest.raises(TypeError, match="would lose the attention"):
        stage[:1]
    assert bool(stage)
    with pytest.raises(TypeError):
        len(visattn.attach(model, "se", at="layer1.0.bn2").layer1[0].bn2)


def test_keys_and_names():
    """state_dict is the backbone's; parameters can be swapped by their own names."""
    plain, x = model_and_images("test_resnet")
    model = visattn.attach(copy.deepcopy(plain), "se", at=["layer1.0.bn2", "layer2"])
    visattn.attach(model, "eca", at="layer2", stack=True)
    keys = list(model.state_dict())
    assert [key for key in keys if ".visattn." not in key] == list(plain.state_dict())
    assert not any(WRAPPED in key for key in keys)
    assert {"layer1.0.bn2.visattn.0.gain", "layer2.visattn.0.gain", "layer2.visattn.1.gain"} <= set(keys)
    assert model.state_dict()._metadata["layer1.0.bn2"] == plain.state_dict()._metadata["layer1.0.bn2"]
    assert list(model.layer2.state_dict())[-1].startswith("0.")
    swapped = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    assert not functional_call(model, swapped, x).any()
    state = model.state_dict()
    del state["layer1.0.bn2.weight"]
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "layer1\.0\.bn2\.weight"'):
        model.load_state_dict(state)
    state = {**model.state_dict(), "layer1.0.bn2.extra": torch.zeros(1)}
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "layer1\.0\.bn2\.extra"'):
        model.load_state_dict(state)


def test_keys_of_wrappers_in_wrappers():
    plain, x = model_and_images("test_vit")
    whole = nn.Sequential(nn.Sequential(plain))
    keys, before = list(whole.state_dict()), whole(x)
    visattn.attach(whole, "se", at="0.0.blocks.1", example=x)  # the image goes into "0", which notes its shape
    assert [key for key in whole.state_dict() if ".visattn." not in key] == keys
    whole.load_state_dict(whole.state_dict())
    assert torch.equal(whole(x), before)
    assert next(iter(whole[0].state_dict())) == keys[0].removeprefix("0.")


def test_patch_attention_with_a_block_behind_it():
    model, x = model_and_images("test_vit")
    visattn.attach(model, "patch", score="general")
    before = model(x)
    visattn.attach(model, "se", at="blocks.0.attn")
    assert torch.equal(model(x), before)
    other, _ = model_and_images("test_vit")
    visattn.attach(visattn.attach(other, "se", at="blocks.0.attn"), "patch", score="general")
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), before)


@pytest.mark.parametrize(
    ("name", "at"),
    mostly_slow(
        [
            ("levit_128s", ["stages.0", "stages.1.blocks.0.mlp.ln1"]),
            ("repvit_m0_9", ["stages.?", "stages.0.blocks.0.token_mixer"]),
            ("fastvit_t8", ["stages.?"]),
            ("mobileone_s0", ["stages.?", "stages.1.0"]),
        ],
        "mobileone_s0",
        key=lambda value: value[0],
    ),
)
@torch.no_grad()
def test_reparameterisation_keeps_the_blocks(name, at):
    """Behind modules that give their place to a fused successor, and in networks full of them."""
    model, x = model_and_images(name)
    visattn.attach(model, "se", at=at, init="paper")
    before = model(x)
    after = reparameterize_model(model)
    assert list(visattn.attachments(after)) == list(visattn.attachments(model))
    torch.testing.assert_close(after(x), before, rtol=1e-3, atol=1e-3)
    assert sum(1 for _ in after.parameters()) < sum(1 for _ in model.parameters())
    fused = after(x)
    for attached in visattn.attachments(after).values():
        weights = copy.deepcopy(attached.block.fc2.state_dict())
        nn.init.zeros_(attached.block.fc2.weight)
        assert not torch.equal(after(x), fused)
        attached.block.fc2.load_state_dict(weights)


def test_what_fuses_its_own_children_refuses_a_block_between_them():
    model, _ = model_and_images("fastvit_t8")
    visattn.attach(model, "se", at="stages.0.blocks.0.token_mixer.mixer")
    with pytest.raises(AttributeError, match="'WithAttention' object has no attribute"):
        reparameterize_model(model)


def test_converted_and_detached():
    model, x = model_and_images("test_resnet")
    before = model(x)
    visattn.attach(model, "cbam", at=["layer?.?.bn2", "layer?"], init="paper")
    converted = visattn.detach(nn.SyncBatchNorm.convert_sync_batchnorm(model))
    assert torch.equal(converted(x), before)
    assert not any(isinstance(module, WithAttention) for module in converted.modules())


def test_a_module_that_is_called_for_several_widths():
    """torchvision's units have one relu for all their maps."""
    model = torchvision.models.resnet50().eval()
    x = torch.rand(2, 3, 64, 64)
    with pytest.raises(ValueError, match=r"'layer1\.1\.relu' is called for maps of 64 and 256 channels"):
        visattn.attach(model, "se", at="layer1.1.relu", example=x)
    before = model(x)
    visattn.attach(model, "se", at="*relu", example=x)
    assert torch.equal(model(x), before)
    assert list(visattn.attachments(model)) == ["relu"]


Two = namedtuple("Two", ["label", "map"])


class GivesTwo(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.conv, self.kind = nn.Conv2d(3, 8, 3, padding=1), kind

    def forward(self, x):
        return self.kind("a map", self.conv(x)) if self.kind is Two else self.kind(["a map", self.conv(x)])


class Whole(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.inner = GivesTwo(kind)

    def forward(self, x):
        output = self.inner(x)
        assert type(output) is self.inner.kind
        return (output.map if self.inner.kind is Two else output[1]).mean((2, 3))


@pytest.mark.parametrize("kind", [Two, tuple, list])
def test_several_outputs_keep_their_kind(kind):
    model, x = Whole(kind).eval(), torch.rand(2, 3, 16, 16)
    before = model(x)
    visattn.attach(model, "se", at="inner", example=x)
    assert torch.equal(model(x), before)
    nn.init.constant_(visattn.attachments(model)["inner"].gain, 1)
    assert not torch.equal(model(x), before)


def test_a_module_kept_in_a_plain_list_is_refused():
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
            self.order = [self.one, self.two]

        def forward(self, x):
            for layer in self.order:
                x = layer(x)
            return x.mean((2, 3))

    with pytest.raises(ValueError, match="does not call 'two' as its own child"):
        visattn.attach(Listed(), "se", at="two", example=torch.rand(2, 3, 16, 16))


def test_one_module_at_two_places():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Conv2d(3, 3, 3, padding=1)
            self.also = self.one

        def forward(self, x):
            return self.also(self.one(x)).mean((2, 3))

    model, x = Shared().eval(), torch.rand(2, 3, 16, 16)
    visattn.attach(model, "se", at="one", example=x, init="paper")
    assert model.also is model.one
    seen = []
    visattn.attachments(model)["one"].register_forward_hook(lambda *_: seen.append(1))
    model(x)
    assert len(seen) == 2
    visattn.detach(model)
    assert isinstance(model.also, nn.Conv2d)


def shapes(model, *sizes):
    return sum(model(torch.linspace(0, 1, 3 * h * w).view(1, 3, h, w)).square().sum() for h, w in sizes)


def test_checkpointing_knows_the_shape_of_the_map_or_refuses():
    """Blocks are run again in the backward pass, when another image may have been seen since."""
    model, _ = model_and_images("test_vit", dynamic_img_size=True)
    visattn.attach(model, "cbam", at="blocks.[0-4]", init="paper")
    other = copy.deepcopy(model)
    other.set_grad_checkpointing(True)
    for each in (model, other):
        shapes(each.train(), (96, 160), (64, 64)).backward()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="60 tokens, which were maps of 6 x 10 and 10 x 6"):
        shapes(other, (96, 160), (160, 96)).backward()


@pytest.mark.parametrize("attention", [name for name in visattn.models.attentions() if name != "patch"])
def test_no_weight_is_a_mere_number(attention):
    """FSDP2 shares out tensors, and refuses one without a dimension."""
    if attention in visattn.list_blocks():
        model = visattn.attach(timm.create_model("test_resnet"), attention)
    else:
        model = visattn.create_model("test_vit", attn=attention)
    assert not [name for name, parameter in model.named_parameters() if parameter.ndim == 0]


def test_children_may_be_cut_off_and_put_elsewhere():
    """What people do to get a trunk."""
    model, x = model_and_images("test_resnet")
    visattn.attach(model, "se", at=["layer?.?.bn2", "layer4"], init="paper")
    trunk = nn.Sequential(*list(model.children())[:-2])
    assert torch.equal(trunk(x), model.forward_features(x))
    assert len(visattn.attachments(trunk)) == len(visattn.attachments(model))


def rates(model, **settings):
    """Learning rate and weight decay of every parameter."""
    names = {id(parameter): plain_name(name) for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (group["lr"], group["weight_decay"])
        for group in create_optimizer(model, Settings(lr=1.0, **settings)).param_groups
        for parameter in group["params"]
    }


def test_layer_decay_knows_the_layers():
    """A stage with a block behind it keeps its learning rate."""
    plain = timm.create_model("test_convnext")
    attached = rates(visattn.attach(timm.create_model("test_convnext"), "se", at="stages"), layer_decay=0.5)
    for name, rate in rates(plain, layer_decay=0.5).items():
        assert attached[name] == rate, name


@pytest.mark.parametrize("decay", [None, 0.5])
@pytest.mark.parametrize("name", ["test_resnet_cbam", "test_vit_se", "test_vit_general", "glimpse_test_resnet_se"])
def test_what_is_new_learns_faster(name, decay):
    """Blocks, gains, scouts and the classifier; with weight decay as before."""
    model = visattn.create_model(name, init=None if name == "test_vit_general" else "identity", num_classes=3)
    before, after = rates(model, layer_decay=decay), rates(model, layer_decay=decay, new_lr_factor=10)
    assert before.keys() == after.keys() == {plain_name(name) for name, _ in model.named_parameters()}
    new = (".visattn.", "scout.", "fc.", "head.")
    assert any(".visattn." in parameter for parameter in before)
    for parameter, (rate, weight_decay) in before.items():
        factor = 10 if any(f".{part.lstrip('.')}" in f".{parameter}" for part in new) else 1
        assert after[parameter] == (pytest.approx(factor * rate), weight_decay), parameter


def test_a_factor_below_zero_is_refused():
    with pytest.raises(ValueError, match="--new-lr-factor must be above 0, got -1"):
        Settings(new_lr_factor=-1)


def test_a_module_that_copies_itself_keeps_its_block():
    """Parametrised modules bring their own way to be copied."""
    model, x = model_and_images("test_resnet")
    nn.utils.parametrizations.weight_norm(model.layer1[0].conv1)
    visattn.attach(model, "se", at="layer1.0.conv1", init="paper")
    other = copy.deepcopy(model)
    assert list(visattn.attachments(other)) == ["layer1.0.conv1"]
    assert torch.equal(other(x), model(x))


class Normalises(nn.Module):
    """No module is given the image itself."""

    def __init__(self, model):
        super().__init__()
        self.vit = model

    def forward(self, x):
        return self.vit((x - 0.5) / 0.5)


def map_sizes(model, *images):
    seen = []
    for attached in visattn.attachments(model).values():
        attached.block.register_forward_pre_hook(lambda _m, args: seen.append(tuple(args[0].shape[2:])))
    for size in images:
        model(torch.rand(1, 3, *size))
    return seen


def test_an_image_that_is_changed_on_its_way_in():
    vit, _ = model_and_images("test_vit", dynamic_img_size=True)
    model = visattn.attach(Normalises(vit), "se", at="vit.blocks.0", example=torch.rand(1, 3, 160, 160))
    assert map_sizes(model, (32, 160), (160, 32)) == [(2, 10), (10, 2)]


def test_images_that_are_padded():
    model, _ = model_and_images("test_vit", dynamic_img_size=True, dynamic_img_pad=True)
    visattn.attach(model, "se", at="blocks.0")
    assert map_sizes(model, (17, 160), (33, 50), (100, 30)) == [(2, 10), (3, 4), (7, 2)]


@pytest.mark.parametrize("size", [40, 48, 80])
def test_a_place_in_a_small_image_is_found_in_larger_ones(size):
    model = timm.create_model("pvt_v2_b0").eval()
    visattn.attach(model, "se", at=["stages.2.blocks.0", "stages.3.blocks.0"], example=torch.rand(1, 3, size, size))
    seen = map_sizes(model, (224, 224), (160, 224), (448, 96))
    assert seen == [(14, 14), (7, 7), (10, 14), (5, 7), (28, 6), (14, 3)]


def test_tokens_that_are_no_map_are_refused():
    """Patches dropped at random, or more of them than the image has."""
    model, x = model_and_images("test_vit", patch_drop_rate=0.5)
    visattn.attach(model, "se", at="blocks.0")
    assert model(x).shape == (2, 10)
    with pytest.raises(ValueError, match=r"50 tokens behind 'blocks\.0' are not the map of an image of 160 x 160"):
        model.train()(x)
    with pytest.raises(ValueError, match="20 tokens behind"):
        copy.deepcopy(model.eval().blocks[0])(torch.rand(1, 21, 64))


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_for_several_shapes(dynamic):
    torch._dynamo.reset()
    model, _ = model_and_images("test_vit", dynamic_img_size=True)
    visattn.attach(model, "cbam", at="blocks.0", init="paper")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for size in ((96, 160), (160, 96), (64, 64)):
        x = torch.rand(1, 3, *size)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_classifier_that_starts_at_zero():
    """It lets no gradient through, and still everything before it counts."""
    model, _ = model_and_images("test_vit")
    nn.init.zeros_(model.head.weight)
    assert len(visattn.attachments(visattn.attach(model, "se", at="blocks"))) == 5


def test_children_modes_and_layers_of_a_sequence():
    model, _ = model_and_images("test_resnet")
    norm = model.layer1[0].bn2
    visattn.attach(model, "se", at=["layer1.0.bn2", "layer2"])
    model.layer1[0].bn2.training = True
    assert norm.training
    model.layer2.add_module("extra", nn.Identity())
    assert "layer2.extra" in {plain_name(name) for name, _ in model.named_modules()}
    assert len(visattn.attachments(nn.Sequential(*model.layer2))) == 1
    model.load_state_dict(dict(model.named_parameters()), strict=False)
    missing = model.load_state_dict(dict(model.named_parameters()), strict=False).missing_keys
    assert not [key for key in missing if "running" not in key and "num_batches" not in key]


@pytest.mark.parametrize("kept", ["pairs", "method", "attribute"])
def test_modules_called_behind_the_back_of_the_network(kept):
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Conv2d(3, 8, 3)
            if kept == "pairs":
                self.steps = [(self.one, torch.relu)]
            elif kept == "method":
                self.step = self.one.__call__
            else:
                self.__dict__["alias"] = self.one

        def forward(self, x):
            call = {"pairs": lambda: self.steps[0][0], "method": lambda: self.step, "attribute": lambda: self.alias}
            return call[kept]()(x).mean((2, 3))

    model = Hidden()
    with pytest.raises(ValueError, match="does not call 'one' as its own child"):
        visattn.attach(model, "se", at="one", example=torch.rand(1, 3, 16, 16))
    assert not visattn.attachments(model)
    assert isinstance(model.one, nn.Conv2d)


class Overflowing(nn.Module):
    """A block whose output is infinite where a pixel is large, and NaN where it is larger."""

    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x):
        grown = x * self.weight * torch.where(x > 10, torch.inf, 2.0)
        return grown - torch.where(x > 20, torch.inf, 0.0)


def test_a_gain_of_zero_is_stronger_than_an_overflow():
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1))
    x = 30 * torch.randn(2, 3, 8, 8)
    before = network(x)
    assert network[0](x).max() > 20
    visattn.attach(network, Overflowing, "0", example=x / 100)
    after = network(x)
    assert torch.equal(after, before)
    after.sum().backward()
    gain = next(iter(visattn.attachments(network).values())).gain
    assert gain.grad.isfinite()
    assert gain.grad != 0
    with torch.no_grad():
        gain.fill_(0.5)
    assert network(x).isnan().any()  # a block that is blended in does not hide it


def test_large_kernels_in_float16_start_as_the_backbone():
    network = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)).half()
    x = 5000 * torch.randn(1, 3, 16, 16).half()
    before = network(x)
    assert torch.equal(visattn.attach(network, "lka", "0", example=x)(x), before)


def test_what_was_put_on_an_attached_layer_stays_there():
    model, images = model_and_images("test_resnet")
    layer, seen = model.layer1, []
    visattn.attach(model, "se", at="layer1")
    before = model.layer1.register_forward_pre_hook(lambda *_: seen.append("before"))
    model.layer1.register_forward_hook(lambda *_, **__: seen.append("behind"), with_kwargs=True)
    model.layer1.register_forward_hook(lambda *_: seen.append("always"), always_call=True)
    model.layer1.register_full_backward_hook(lambda *_: seen.append("backward"))
    model.layer1.register_state_dict_post_hook(lambda *_: seen.append("state"))
    model.layer1.register_buffer("mask", torch.ones(3))
    model.layer1.register_parameter("scale", nn.Parameter(torch.ones(2)))
    keys = [key for key in model.state_dict() if ".visattn." not in key]
    visattn.detach(model)
    assert model.layer1 is layer
    seen.clear()
    model(images).sum().backward()
    assert seen == ["before", "behind", "always", "backward"]
    assert sorted(model.state_dict()) == sorted(keys)
    assert {"layer1.mask", "layer1.scale"} <= set(keys)
    assert seen[-1] == "state"
    before.remove()
    seen.clear()
    model(images)
    assert seen == ["behind", "always"]


def test_hooks_of_before_and_of_after_attaching_are_both_kept():
    model, images = model_and_images("test_resnet")
    seen = []
    first = model.layer1.register_forward_hook(lambda *_: seen.append("first"))
    visattn.attach(model, "se", at="layer1")
    model.layer1.register_forward_hook(lambda *_: seen.append("second"))
    visattn.detach(model)
    seen.clear()
    model(images)
    first.remove()
    model(images)
    assert seen == ["first", "second", "second"]
    assert not layer_hooks(visattn.detach(visattn.attach(model, "se", at="layer2")).layer2)


def layer_hooks(module):
    return [hook for name, table in vars(module).items() if "_hooks" in name for hook in table]


def test_private_attributes_are_those_of_the_layer():
    model, _ = model_and_images("test_resnet")
    layer = model.layer1
    layer._limit = 1
    visattn.attach(model, "se", at="layer1")
    model.layer1._limit, model.layer1._new = 2, 3
    assert (layer._limit, layer._new, model.layer1._limit, model.layer1._new) == (2, 3, 2, 3)
    del model.layer1._new
    assert not hasattr(layer, "_new")
    replica = model.layer1._replicate_for_data_parallel()
    assert replica._is_replica
    assert not hasattr(layer, "_is_replica")


def test_handles_remove_hooks_of_before_and_of_after_attaching():
    model, images = model_and_images("test_resnet")
    seen = []
    before = model.layer1.register_forward_hook(lambda *_: seen.append("before"))
    visattn.attach(model, "se", at="layer1")
    after = model.layer1.register_forward_hook(lambda *_: seen.append("after"))
    visattn.detach(model)
    seen.clear()
    after.remove()
    model(images)
    before.remove()
    model(images)
    assert seen == ["before"]


def test_detaching_while_somebody_looks_leaves_no_hooks():
    model, images = model_and_images("test_vit")
    visattn.attach(model, "se", at="blocks.1")
    with visattn.capture(model):
        model(images)
        visattn.detach(model)
    assert not any(layer_hooks(module) for module in model.modules())


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_hooked_features_are_those_behind_the_block(name):
    model = timm.create_model(name, features_only=True, feature_cls="hook").eval()
    images = torch.rand(1, *model.pretrained_cfg["input_size"])
    places = [place for place, module in model.named_modules() if module._forward_hooks]
    before = model(images)
    visattn.attach(model, "se", at=places[-1], init="paper")
    after = model(images)
    assert [torch.equal(*pair) for pair in zip(after, before, strict=True)] == [True] * (len(before) - 1) + [False]


class Encoder(nn.Module):
    """Patches and a layer of torch, which computes in evaluation without calling its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.layer = nn.TransformerEncoderLayer(16, 2, batch_first=True)

    def forward(self, x):
        """Tokens."""
        return self.layer(self.patches(x).flatten(2).mT)


class Scale(nn.Module):
    """A block of the user's own."""

    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(channels, 1, 1))

    def forward(self, x):
        """Every channel times a number."""
        return x * self.scale


@pytest.mark.parametrize("at", ["layer.linear1", "layer.norm2", "layer.self_attn", "layer"])
def test_the_fast_path_of_torch_does_not_skip_a_block(at):
    model, images = Encoder().eval(), torch.rand(2, 3, 32, 32)
    before = model(images)
    visattn.attach(model, Scale, at=at, init="paper", example=images)
    with torch.no_grad():
        fast = model(images)
    torch.testing.assert_close(fast, model(images))
    assert not torch.allclose(fast, before)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_a_scripted_layer_is_left_alone():
    traced = torch.jit.trace(nn.Conv2d(3, 8, 3, padding=1), torch.rand(1, 3, 32, 32))
    model, images = nn.Sequential(traced, nn.Conv2d(8, 8, 3, padding=1)), torch.rand(1, 3, 32, 32)
    before = model(images)
    visattn.attach(model, "se", example=images, init="paper")
    assert list(visattn.attachments(model)) == ["1"]
    assert not torch.equal(model(images), before)

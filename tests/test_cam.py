"""Class activation maps: right for every layout, and the model is left as it was found."""

import numpy as np
import pytest
import pytorch_grad_cam
import timm
import torch
import torchvision
from pytorch_grad_cam import GradCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

import visattn
from tests.survival import SMALL_SWIN
from tests.tiers import mostly_slow
from visattn.heatmaps import look_at
from visattn.heatmaps.methods.cam import PACKAGE


def reshape(prefix):
    return lambda x: x[:, prefix:].mT.unflatten(2, (int((x.shape[1] - prefix) ** 0.5),) * 2)


# model, its options, the size of its images, and how the grad-cam package must be told to read it
MODELS = {
    "test_resnet": ({}, 96, None),
    "test_vit": ({}, 160, reshape(1)),
    "test_convnext": ({}, 160, None),
    "swin_tiny_patch4_window7_224": (SMALL_SWIN, 112, lambda x: x.permute(0, 3, 1, 2)),
}


@pytest.mark.parametrize("name", MODELS)
def test_equals_the_grad_cam_package(name):
    torch.manual_seed(0)
    options, size, transform = MODELS[name]
    model = timm.create_model(name, num_classes=7, **options).eval()
    images = torch.rand(1, 3, size, size).repeat(7, 1, 1, 1)
    target = torch.arange(7)
    place = look_at(model, images)
    assert min(place.size) >= 4
    ours = visattn.explain(model, images, "gradcam", target).heatmap
    assert ours.shape == (7, size, size)
    assert 0 <= ours.min() <= ours.max() <= 1
    with GradCAM(model, [model.get_submodule(place.name)], reshape_transform=transform) as package:
        theirs = package(images, [ClassifierOutputTarget(int(each)) for each in target])
    seen = 0
    for one, other in zip(ours.numpy(), theirs, strict=True):
        if one.max() > 0:  # an untrained network has nothing to show for some classes
            seen += 1
            rescaled = (one - one.min()) / (one.max() - one.min())  # as the package does it
            np.testing.assert_allclose(rescaled, other, rtol=0, atol=5e-6)
    assert seen >= 3


@pytest.mark.parametrize("method", PACKAGE)
@pytest.mark.parametrize("name", mostly_slow(["test_resnet", "test_vit"], "test_resnet"))
def test_every_method_equals_the_grad_cam_package(name, method, capsys):
    """The package is told by hand what the adapter finds out by itself."""
    torch.manual_seed(0)
    options, size, transform = MODELS[name]
    model = timm.create_model(name, num_classes=7, **options).eval()
    images = torch.rand(2, 3, size, size)
    if name == "test_vit" and method == "ablationcam":
        return  # the package sets signed channels to minus ten million, the adapter to zero as the paper does
    ours = visattn.explain(model, images, method, target=[1, 4])
    layer = model.get_submodule(look_at(model, images, method).name)
    with getattr(pytorch_grad_cam, PACKAGE[method])(model, [layer], reshape_transform=transform) as package:
        theirs = package(images, [ClassifierOutputTarget(each) for each in (1, 4)])
    assert ours.layers == (look_at(model, images, method).name,)
    assert ours.heatmap.max() == 1  # there is something to compare
    for one, other in zip(ours.heatmap.numpy(), theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)
    capsys.readouterr()  # the package's progress bars


def test_no_progress_bars(capsys):
    model = timm.create_model("test_resnet").eval()
    for method in ("scorecam", "ablationcam"):
        visattn.explain(model, torch.rand(1, 3, 64, 64), method)
    assert capsys.readouterr().err == ""


def test_ablation_is_the_drop_of_the_score_when_a_channel_is_zero():
    torch.manual_seed(0)
    model = timm.create_model("test_vit", num_classes=5).eval()
    images = torch.rand(1, 3, 160, 160)
    place = look_at(model, images)
    kept = []

    def zero(channel):
        def hook(_module, _args, output):
            kept.append(output)
            changed = output.clone()
            changed[:, 1:, channel] = 0  # patches only: the class token is no part of the map
            return changed

        return hook

    module = model.get_submodule(place.name)
    with torch.no_grad():
        score = model(images)[0, 2]
        scores = []
        for channel in range(place.layout.channels):
            handle = module.register_forward_hook(zero(channel))
            scores.append(model(images)[0, 2])
            handle.remove()
    weights = (score - torch.stack(scores)) / score
    expected = torch.einsum("c,nc->n", weights, kept[0][0, 1:]).clamp(min=0)
    found = visattn.explain(model, images, "ablationcam", target=2).raw
    torch.testing.assert_close(found.flatten(), expected, atol=1e-4, rtol=1e-3)


def test_another_layer_by_name():
    model = timm.create_model("test_resnet").eval()
    e = visattn.explain(model, torch.rand(1, 3, 96, 64), "gradcam", layer="layer1")
    assert e.layers == ("layer1",)
    assert e.raw.shape == (1, 24, 16)
    with pytest.raises(ValueError, match="no 'layer9' here"):
        visattn.explain(model, torch.rand(1, 3, 96, 64), "gradcam", layer="layer9")
    with pytest.raises(ValueError, match="name one"):
        visattn.explain(model, torch.rand(1, 3, 96, 64), "gradcam", layer="layer?")


def test_the_place_of_a_class_token_model_has_a_say_in_the_output():
    model = timm.create_model("test_vit").eval()
    images = torch.rand(1, 3, 160, 160)
    assert look_at(model, images).name == "blocks.4"  # behind the last one, block 5, only the class token is read
    assert visattn.explain(model, images, "gradcam").heatmap.max() == 1


# At its usual size: the map that the head reads, and the end of the last stage, which is not always the same.
READ = {
    "resnet18": ("layer4", "layer4"),
    "mobilenetv2_100": ("bn2", "blocks.6"),
    "convnext_atto": ("stages.3", "stages.3"),
    "swin_tiny_patch4_window7_224": ("norm", "layers.3"),
    "densenet121": ("features.norm5", "features.norm5"),
    "vgg11": ("features.20", "features.20"),
    "mixer_s16_224": ("norm", "blocks.7"),
    "cait_xxs24_224": ("blocks.23", "blocks.23"),
    "crossvit_tiny_240": ("blocks.2.blocks.1.3", "blocks.2.blocks.1.3"),  # two maps are read: the end of a stage
}


QUICK = ("resnet18", "mobilenetv2_100", "convnext_atto", "swin_tiny_patch4_window7_224", "crossvit_tiny_240")


@pytest.mark.parametrize("name", mostly_slow(READ, *QUICK))
def test_methods_look_at_the_map_that_the_head_reads_or_at_the_end_of_a_stage(name):
    model = timm.create_model(name).eval()
    images = torch.rand(1, *model.pretrained_cfg["input_size"])
    assert (look_at(model, images).name, look_at(model, images, "layercam").name) == READ[name]


@pytest.mark.parametrize("pool", ["avg", "token"])
def test_the_map_that_the_head_reads_has_a_gradient_at_every_place(pool):
    torch.manual_seed(0)
    model = timm.create_model("test_vit", global_pool=pool, num_classes=5).eval()
    images = torch.rand(1, 3, 160, 160)
    place = look_at(model, images)
    assert place.name == {"avg": "blocks.5", "token": "blocks.4"}[pool]
    kept = []
    model.get_submodule(place.name).register_forward_hook(lambda _m, _a, output: kept.append(output))
    (gradient,) = torch.autograd.grad(model(images)[0, 1], kept)
    assert (gradient[0, place.layout.prefix :].abs().sum(1) > 0).all()


def test_a_head_of_its_own_convolutions_reads_the_map_before_them():
    """What turns a map into classes is the head, whatever it does inside."""
    model = torchvision.models.squeezenet1_1().eval()
    assert look_at(model, torch.rand(1, 3, 224, 224)).name == "features"


def test_small_maps_are_not_looked_at():
    model = timm.create_model("resnet18").eval()
    chosen = {size: look_at(model, torch.rand(1, 3, size, size)).name for size in (64, 96, 128, 224)}
    assert chosen == {64: "layer2", 96: "layer2", 128: "layer4", 224: "layer4"}  # layer4 is 2, 3, 4 and 7 wide


def test_xgradcam_finds_the_evidence_behind_a_linear_bottleneck():
    """On signed channels its weights, shares of a sum near zero, mean nothing: it is Grad-CAM only where it belongs."""
    torch.manual_seed(0)
    model = timm.create_model("mobilenetv2_100", num_classes=5).eval()
    images = torch.rand(2, 3, 224, 224)
    one, other = (visattn.explain(model, images, method, target=2).raw for method in ("gradcam", "xgradcam"))
    torch.testing.assert_close(one / one.amax(), other / other.amax(), atol=1e-4, rtol=1e-3)


def test_the_model_is_left_as_it_was_found():
    model = visattn.attach(timm.create_model("test_resnet"), "cbam").train()
    model.layer1.eval()
    modes = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) for module in model.modules()]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    images = torch.rand(2, 3, 96, 96)
    with torch.no_grad():
        visattn.explain(model, images, "gradcam")
    assert [module.training for module in model.modules()] == modes
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert not images.requires_grad


def test_a_frozen_model_has_maps_too():
    model = timm.create_model("test_resnet").eval().requires_grad_(False)
    images = torch.rand(2, 3, 96, 96)
    assert visattn.explain(model, images, "gradcam").heatmap.amax((1, 2)).tolist() == [1, 1]


def test_maps_do_not_depend_on_batch_mates():
    model = timm.create_model("test_resnet").eval()
    images = torch.rand(3, 3, 96, 96)
    together, alone = (visattn.explain(model, each, "gradcam").heatmap for each in (images, images[1:2]))
    torch.testing.assert_close(together[1:2], alone, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scorecam_of_a_model_in_half_precision(dtype):
    torch.manual_seed(0)
    model, x = timm.create_model("test_resnet", num_classes=3), torch.rand(1, 3, 64, 64)
    exact = visattn.explain(model, x, "scorecam", 1).heatmap
    half = visattn.explain(model.to(dtype), x, "scorecam", 1).heatmap
    assert (half - exact).abs().mean() < 0.02

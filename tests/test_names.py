"""Models by name: ours, and in timm's registry."""

import pytest
import timm
import torch
from safetensors.torch import save_file

import visattn
from visattn.counting import count_parameters
from visattn.models import split_name

# Whole networks as published; see tests/test_published.py for the blocks alone.
COUNTS = {
    "resnet18_se": 11_778_592,
    "resnet34_se": 21_958_868,
    "resnet50_se": 28_088_024,
    "resnet18_cbam": 11_779_392,
    "resnet34_cbam": 21_960_468,
    "resnet50_cbam": 28_089_624,
    "resnet101_cbam": 49_330_172,
    "resnet18_bam": 11_712_503,
    "resnet50_bam": 25_915_099,
    "resnet50_srm": 25_617_448,
    "resnet50_triplet": 25_561_832,
    "resnet50_coord": 27_474_864,
    "resnet50_gc": 28_105_032,
    "resnet50_simam": 25_557_032,
    "resnet50_ge": 25_557_032,
    "resnet50_ge_theta": 31_106_600,
    "resnet50_ge_theta_plus": 33_637_592,
    "resnet50_fca": 28_071_976,
    "resnet18_eca": 11_689_512 + 44,
    "resnet34_eca": 21_797_672 + 72,
    "resnet50_eca": 25_557_032 + 80,
    "resnet101_eca": 44_549_160 + 157,
}


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_published_counts(name, count):
    with torch.device("meta"):  # no numbers are needed
        assert count_parameters(visattn.create_model(name)) == count


def test_mobilenetv2_with_coordinate_attention():
    """Behind every expanded depthwise convolution, as in the authors' MobileNetV2."""
    model = timm.create_model("mobilenetv2_100")
    visattn.attach(model, "coord", at="blocks.[1-6].?.bn2", init="paper")
    assert count_parameters(model) == 3_950_648


@pytest.mark.parametrize(
    ("name", "attn", "options", "count"),
    [
        ("resnet50", "eca", {"kernel_size": None}, 25_557_032 + 86),
        ("resnet18", "eca", {"kernel_size": None}, 11_689_512 + 36),
        ("resnet50", "se", {"bias": False}, 28_071_976),
    ],
)
def test_options_override_the_paper(name, attn, options, count):
    assert count_parameters(visattn.create_model(name, attn=attn, attn_options=options)) == count


@pytest.mark.parametrize(
    ("block", "places"),
    [
        ("cbam", ["layer1.0.bn2", "layer1.1.bn2", "layer2.0.bn2"]),
        ("bam", ["layer1.1", "layer2.1", "layer3.1"]),
        ("simam", ["layer1.0.conv2", "layer1.1.conv2"]),
        ("nonlocal", ["layer2.0", "layer2.1", "layer3.0", "layer3.1"]),
        ("generalized", ["layer3.0.act1", "layer3.1.act1", "layer4.0.act1", "layer4.1.act1"]),
        ("efficient", ["layer2.0", "layer2.1"]),
        ("scsa", ["layer1.0.act1", "layer1.1.act1"]),
        ("danet", ["layer4.1"]),
        ("criss_cross", ["layer4.1"]),
    ],
)
def test_where_the_papers_put_it(block, places):
    model = visattn.create_model("resnet18", attn=block)
    assert list(visattn.attachments(model))[: len(places)] == places


def test_the_block_acts_on_the_residual_branch():
    """A gate that is shut leaves a unit with nothing but its shortcut."""
    model = visattn.create_model("resnet18_se").eval()
    gate = visattn.attachments(model)["layer1.1.bn2"].block
    torch.nn.init.zeros_(gate.fc2.weight)
    torch.nn.init.constant_(gate.fc2.bias, -1e4)
    x = torch.rand(1, 64, 8, 8)
    torch.testing.assert_close(model.layer1[1](x), x)


@pytest.mark.parametrize("block", visattn.list_blocks())
def test_every_block_in_a_resnet(block):
    model = visattn.create_model(f"resnet18_{block}", num_classes=3).train()
    assert model(torch.rand(2, 3, 224, 224)).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("resnet50_cbam", ("resnet50", "cbam")),
        ("resnet50_cbam.a1_in1k", ("resnet50.a1_in1k", "cbam")),
        ("resnet_cbam", ("resnet18", "cbam")),
        ("resnet_ge_theta_plus", ("resnet18", "ge_theta_plus")),
        ("convnext_tiny_nonlocal_dot", ("convnext_tiny", "nonlocal_dot")),
        ("vit_tiny_patch16_224_cosine", ("vit_tiny_patch16_224", "cosine")),
        ("resnet50", ("resnet50", None)),
        ("resnet", ("resnet18", None)),
        ("resnet50_gn", ("resnet50_gn", None)),  # timm's own
    ],
)
def test_names_are_split(name, parts):
    assert split_name(name) == parts


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: visattn.create_model("resnet50_cbm"),
            "unknown attention 'cbm' in 'resnet50_cbm': did you mean 'cbam'",
        ),
        (lambda: visattn.create_model("resnt50"), "unknown model 'resnt50': did you mean 'resnet50'"),
        (lambda: visattn.create_model("resnet50", attn="cbm"), "unknown attention 'cbm': did you mean 'cbam'"),
        (lambda: visattn.create_model("test_vit", attn="cosin"), "unknown attention 'cosin': did you mean 'cosine'"),
        (lambda: visattn.create_model("resnet18_se", attn="cbam"), "'resnet18_se' already says 'se'"),
        (lambda: visattn.create_model("resnet18", attn_options={"a": 1}), "names no attention"),
        (lambda: visattn.create_model("foo"), r"unknown model 'foo': see timm\.list_models\(\)"),
        (lambda: visattn.create_model("resnt50", attn="se"), "unknown model 'resnt50': did you mean"),
        (lambda: visattn.create_model("resnet18", attn="cosine"), "ResNet has no attention that patch attention can"),
    ],
)
def test_mistakes_are_explained(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_any_other_combination():
    model = visattn.create_model("test_convnext", attn="coord", num_classes=4)
    assert model(torch.rand(2, 3, 160, 160)).shape == (2, 4)
    assert len(visattn.attachments(model)) == 9
    assert type(visattn.create_model("test_resnet")).__name__ == "ResNet"


@pytest.fixture
def weights(tmp_path):
    """A file as timm would download it."""
    torch.manual_seed(3)
    plain = timm.create_model("resnet18").eval()
    save_file(plain.state_dict(), tmp_path / "model.safetensors")
    return plain, {"file": str(tmp_path / "model.safetensors")}


@pytest.mark.parametrize("create", [visattn.create_model, timm.create_model])
@pytest.mark.parametrize("name", ["resnet18_cbam", "resnet18_nonlocal.a1_in1k"])
def test_pretrained_weights_load_and_the_output_is_the_backbones(create, name, weights):
    plain, overlay = weights
    model = create(name, pretrained=True, pretrained_cfg_overlay=overlay).eval()
    x = torch.rand(1, 3, 224, 224)
    assert torch.equal(model(x), plain(x))
    assert all(one.gain is not None for one in visattn.attachments(model).values())
    assert model.pretrained_cfg["architecture"] == name.partition(".")[0]


def test_timm_knows_the_names():
    names = timm.list_models("*_cbam")
    assert {"resnet18_cbam", "resnet50_cbam", "convnext_tiny_cbam", "vit_tiny_patch16_224_cbam"} <= set(names)
    for depth in (18, 34, 50, 101):
        assert {f"resnet{depth}_{block}" for block in visattn.list_blocks()} <= set(timm.list_models(module="visattn"))
    config = timm.get_pretrained_cfg("resnet50_cbam.a1_in1k")
    assert config.architecture == "resnet50_cbam"
    assert config.hf_hub_id == "timm/resnet50.a1_in1k"
    assert timm.models.is_model_pretrained("resnet50_cbam")
    assert timm.get_pretrained_cfg("resnet50_cbam").tag == timm.get_pretrained_cfg("resnet50").tag


def test_timms_options_work():
    model = timm.create_model("resnet50_cbam", num_classes=7, in_chans=1)
    assert model(torch.rand(2, 1, 64, 64)).shape == (2, 7)
    model.reset_classifier(3)
    assert model(torch.rand(2, 1, 64, 64)).shape == (2, 3)
    features = timm.create_model("resnet50_cbam", features_only=True, out_indices=(2, 4))
    assert [tuple(f.shape) for f in features(torch.rand(1, 3, 64, 64))] == [(1, 512, 8, 8), (1, 2048, 2, 2)]
    assert timm.create_model("vit_tiny_patch16_224_cosine", img_size=32)(torch.rand(1, 3, 32, 32)).shape == (1, 1000)

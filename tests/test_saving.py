"""Whatever can be built is written, listed on its card, and comes back bit for bit."""

import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import visattn
from tests.training import TINY
from visattn.cli import main as visattn_main
from visattn.cli.train import main
from visattn.models.saving.description import describe
from visattn.models.saving.saved import open_trained
from visattn.models.saving.weights import model_weights
from visattn.training.checkpoints import load_checkpoint


def shuffled(model):
    """No weight is what it was first, so that a weight that is not loaded shows."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model.eval()


def custom_places():
    model = timm.create_model("test_resnet", num_classes=5)
    visattn.attach(model, "se", at=["layer1.0.bn2", "layer3"], rd_ratio=1 / 4)
    return visattn.attach(model, "eca", at="layer3", init="paper", stack=True, kernel_size=5)


def patched(**options):
    return visattn.attach(timm.create_model("test_vit", num_classes=5), "patch", **options)


def reset():
    model = visattn.create_model("test_resnet_se")
    model.reset_classifier(7)
    return model


def mixed(model):
    """Half precision, but for the norms."""
    for module in model.bfloat16().modules():
        if isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
            module.float()
    return model


MODELS = {
    "by name": lambda: visattn.create_model("test_resnet_cbam", num_classes=5),
    "by name in timm": lambda: timm.create_model("resnet18_se", num_classes=5),
    "paper's options": lambda: visattn.create_model("test_resnet_ge_theta", num_classes=5),
    "blended in": lambda: visattn.create_model("test_resnet_cbam", init="identity", num_classes=5),
    "plain": lambda: timm.create_model("test_resnet", num_classes=5),
    "places of one's own, stacked": custom_places,
    "tokens": lambda: visattn.attach(timm.create_model("test_vit", dynamic_img_size=True), "cbam", at="blocks.[02]"),
    "patch attention": lambda: patched(score="cosine", distribution="sparsemax"),
    "patch attention in windows, some": lambda: patched(at="blocks.[13]", scope="window_2d", size=5),
    "patch attention and a block": lambda: visattn.attach(patched(score="general"), "se", at="blocks.0.attn"),
    "a name of patch attention": lambda: visattn.create_model("test_vit_local", num_classes=5),
    "glimpses": lambda: visattn.create_model("glimpse_test_vit_se", num_classes=5, glimpses=2, glimpse_size=64),
    "glimpses with patch attention": lambda: visattn.create_model("glimpse_test_vit_window", num_classes=5),
    "hard attention": lambda: visattn.create_model("test_resnet_hard", num_classes=5),
    "ram": lambda: visattn.create_model("ram"),
    "one channel": lambda: visattn.attach(timm.create_model("test_resnet", in_chans=1), "se"),
    "another size": lambda: visattn.attach(timm.create_model("test_vit", img_size=96), "se"),
    "feature maps": lambda: visattn.create_model("test_resnet_se", features_only=True),
    "another classifier": reset,
    "half precision": lambda: visattn.create_model("test_resnet_se", num_classes=5).bfloat16(),
    "mixed precision": lambda: visattn.attach(mixed(timm.create_model("test_resnet", num_classes=5)), "se"),
    "mixed precision, tokens": lambda: mixed(visattn.create_model("test_vit_local", num_classes=5)),
    "channels-last": lambda: visattn.create_model("test_resnet_se").to(memory_format=torch.channels_last),
    "synchronised batch norm": lambda: nn.SyncBatchNorm.convert_sync_batchnorm(visattn.create_model("test_resnet_se")),
}


@pytest.mark.parametrize("name", MODELS)
def test_saved_models_come_back(name, tmp_path):
    model = shuffled(MODELS[name]())
    model.train()
    folder = visattn.save_model(model, tmp_path / "mine", classes=None)
    assert model.training
    model.eval()
    loaded, card = visattn.load_model(folder)
    size = card["input"]["size"]
    x = torch.rand(2, *size, dtype=next(model.parameters()).dtype)
    with torch.no_grad():
        ours, theirs = model(x), loaded(x)
    if name == "channels-last":
        torch.testing.assert_close(theirs, ours)
    elif isinstance(ours, list):
        assert all(map(torch.equal, ours, theirs))
    else:
        assert torch.equal(ours, theirs)
    assert list(visattn.attachments(loaded)) == list(visattn.attachments(model))
    kinds = {key: value.dtype for key, value in model.state_dict().items()}
    assert {key: value.dtype for key, value in loaded.state_dict().items()} == kinds
    assert list(loaded.state_dict()) == list(kinds)
    written = [entry["at"] for entry in card["attachments"] if "block" in entry]
    assert written == [place.partition("#")[0] for place in visattn.attachments(model)]
    again, _ = visattn.load_model(visattn.save_model(loaded, tmp_path / "again"))
    assert list(again.state_dict()) == list(model.state_dict())


def test_tokens_keep_the_proportions_of_the_image(tmp_path):
    model = shuffled(MODELS["tokens"]())
    loaded, _ = visattn.load_model(visattn.save_model(model, tmp_path))
    for size in ((96, 160), (160, 96)):
        x = torch.rand(1, 3, *size)
        assert torch.equal(loaded(x), model(x))


def test_a_loaded_model_knows_its_classes_and_images(tmp_path):
    model = shuffled(visattn.create_model("test_resnet_se", num_classes=2))
    loaded, card = visattn.load_model(visattn.save_model(model, tmp_path, classes=["cat", "dog"]))
    assert set(visattn.predict(loaded, torch.rand(3, 64, 64))[0].labels) == {"cat", "dog"}
    assert visattn.explain(loaded, torch.rand(3, 64, 64), "gradcam", "dog").classes == ("cat", "dog")
    assert card["input"]["crop_pct"] == 0.95


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.conv(x).mean((2, 3)))


def widened():
    model = timm.create_model("test_resnet")
    model.conv1 = nn.Conv2d(3, 8, 3)
    return model


def other_activation():
    model = visattn.create_model("test_resnet_se")
    model.layer1[0].act1 = nn.Sigmoid()
    return model


def other_classifier():
    model = timm.create_model("test_resnet", num_classes=3)
    model.fc = nn.Linear(model.fc.in_features, 9, bias=False)
    return model


def with_option(value):
    model = visattn.attach(timm.create_model("test_resnet"), "se")
    for attached in visattn.attachments(model).values():
        attached.options["anything"] = value
    return model


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (Own, "this Own cannot be described: it is not one of timm's models"),
        (lambda: visattn.attach(timm.create_model("test_resnet"), nn.InstanceNorm2d), "has no name by which it could"),
        (widened, "'the model' does not fit 'test_resnet.*2 unexpected.*give the former with arguments="),
        (other_activation, "computes something else"),
        (lambda: timm.create_model("test_resnet", global_pool="max"), "computes something else.*arguments="),
        (lambda: visattn.create_model("test_resnet_se", act_layer=nn.SiLU), "cannot be written to a card"),
        (other_classifier, "1 of another shape .fc.weight: 9 x 96 instead of 3 x 96.*give the former with arguments="),
        (lambda: with_option(torch.ones(3)), "cannot be written to a card: tensor.* is not a number, a text, a list"),
        (lambda: with_option(b"a"), "cannot be written to a card: b'a' is not a number, a text, a list or a table"),
    ],
)
def test_what_could_not_be_built_again_is_refused(build, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        visattn.save_model(shuffled(build()), tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_what_cannot_be_saved_leaves_an_earlier_model_as_it_is(tmp_path):
    before, other = (shuffled(timm.create_model("test_resnet", num_classes=3)) for _ in range(2))
    visattn.save_model(before, tmp_path, classes=["a", "b", "c"])
    with pytest.raises(ValueError, match="cannot be saved, since its card could not be read back: classes"):
        visattn.save_model(other, tmp_path, classes=["x", "y", "z" * 1001])
    loaded, card = visattn.load_model(tmp_path)
    assert card["classes"] == ["a", "b", "c"]
    assert torch.equal(loaded.fc.weight, before.fc.weight)


def by_hand(name, change):
    model = visattn.create_model(name)
    change(model)
    return model


CHANGES = {
    "an activation": ("test_resnet", lambda model: setattr(model.layer1[0], "act1", nn.GELU())),
    "padding": ("test_resnet", lambda model: setattr(model.layer1[0].conv1, "padding_mode", "reflect")),
    "before a layer scale": ("test_convnext", lambda model: setattr(model.stages[0].blocks[0].mlp, "act", nn.ReLU())),
    "in a block": ("test_resnet", lambda m: setattr(visattn.attach(m, "ge").layer1[0].visattn[0].block, "extent", 2)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_hides_behind_zeros_is_refused(name, dtype, tmp_path):
    """Fresh residual branches end in a norm of weight zero, so that nothing of what is in them reaches the output."""
    model = by_hand(*CHANGES[name]).to(dtype)
    kept = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="computes something else"):
        visattn.save_model(model, tmp_path / "mine")
    assert all(torch.equal(value, kept[key]) for key, value in model.state_dict().items())


NOT_OURS = "model.json' is not the card of a model, and would be overwritten: name another folder"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("model.json", "{}", NOT_OURS),
        ("model.json", "[1]", NOT_OURS),
        ("model.json", "my notes", NOT_OURS),
        ("model.safetensors", "x", r"model.safetensors' has no model.json beside it, and would be overwritten"),
    ],
)
def test_files_of_others_are_not_overwritten(file, content, message, tmp_path):
    (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=message):
        visattn.save_model(visattn.create_model("test_resnet_se"), tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(file, content)]


def test_arguments_that_cannot_be_seen_are_given(tmp_path):
    model = shuffled(timm.create_model("test_resnet", global_pool="max"))
    loaded, _ = visattn.load_model(visattn.save_model(model, tmp_path, arguments={"global_pool": "max"}))
    x = torch.rand(1, 3, 64, 64)
    assert torch.equal(loaded(x), model(x))


def test_weights_of_a_model_that_was_blended_in(tmp_path):
    """A state dict without a card shows by its gains how its blocks were blended in."""
    model = shuffled(visattn.create_model("test_resnet_cbam", init="identity", num_classes=3))
    save_file(model.state_dict(), tmp_path / "mine.safetensors")
    x = torch.rand(1, 3, 64, 64)
    assert torch.equal(open_trained("test_resnet_cbam", str(tmp_path / "mine.safetensors")).model(x), model(x))


def test_weights_of_mixed_precision_without_a_card_run_in_single_precision(tmp_path):
    model = shuffled(timm.create_model("test_resnet", num_classes=3))
    state = {key: value.half() if key.endswith("conv1.weight") else value for key, value in model.state_dict().items()}
    save_file(state, tmp_path / "mine.safetensors")
    x = torch.rand(1, 3, 64, 64)
    opened = open_trained("test_resnet", str(tmp_path / "mine.safetensors")).model
    torch.testing.assert_close(opened(x), model(x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("input", None),
        ("input", 3),
        ("classes", 3),
        ("class_names", {"a": 1}),
        ("attachments", [{"at": "layer1"}]),
        ("attachments", 5),
        ("model", {"name": "test_resnet", "pretrained": True}),
        *(("input", {"size": value}) for value in (None, -1, [3, 64], [3, 0, 64], "abc")),
        *(("input", {"mean": value}) for value in (None, [1, 2], ["a"])),
        *(("input", {"std": value}) for value in (-1, [3, -5, 5], [0])),
        *(("input", {"crop_pct": value}) for value in (None, [1], 1e-9)),
    ],
)
def test_a_card_that_says_nonsense_is_named(key, value, tmp_path):
    visattn.save_model(visattn.create_model("test_resnet_se", num_classes=2), tmp_path)
    card = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps({**card, key: value}))
    for load in (visattn.load_model, lambda folder: open_trained(None, str(folder))):
        with pytest.raises(ValueError, match=r"model\.json' cannot be understood"):
            load(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "model.json"])
def test_files_of_a_saved_model_stand_for_it(name, tmp_path):
    model = shuffled(visattn.create_model("test_resnet_se", num_classes=2))
    loaded, _ = visattn.load_model(visattn.save_model(model, tmp_path) / name)
    assert all(map(torch.equal, loaded.state_dict().values(), model.state_dict().values()))


def test_a_checkpoint_is_loaded_with_its_own_card(tmp_path):
    model, other = (shuffled(visattn.create_model("test_resnet_se", num_classes=2)) for _ in range(2))
    visattn.save_model(other, tmp_path)
    state = {f"model.{key}": value for key, value in model.state_dict().items()}
    card = {**describe(model), "classes": ["a", "b"]}
    torch.save({"pytorch-lightning_version": "2", "state_dict": state, "card": card}, tmp_path / "best.ckpt")
    loaded, card = visattn.load_model(tmp_path / "best.ckpt")
    assert card["classes"] == ["a", "b"]
    assert all(map(torch.equal, loaded.state_dict().values(), model.state_dict().values()))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("zeros.safetensors", "does not say what model it is of"),
        ("zeros.pth", "does not say what model it is of"),
        ("broken.safetensors", "cannot be read as safetensors"),
        ("metrics.csv", "is not a"),
        ("confusion.png", "is not a"),
    ],
)
@pytest.mark.parametrize("beside", ["a card", "nothing"])
def test_another_file_in_a_folder_does_not_stand_for_its_model(name, says, beside, tmp_path):
    if beside == "a card":
        visattn.save_model(visattn.create_model("test_resnet_se", num_classes=2), tmp_path)
    zeros = {"fc.weight": torch.zeros(2, 3)}
    if name == "zeros.safetensors":
        save_file(zeros, tmp_path / name)
    elif name == "zeros.pth":
        torch.save(zeros, tmp_path / name)
    else:
        (tmp_path / name).write_bytes(b"a,")
    for load in (visattn.load_model, lambda file: open_trained(None, str(file))):
        with pytest.raises(ValueError, match=says) as error:
            load(tmp_path / name)
        assert name in str(error.value)


def test_no_file_and_no_folder_is_said_with_its_name(tmp_path):
    with pytest.raises(ValueError, match=r"there is no file and no folder .*nowhere"):
        visattn.load_model(tmp_path / "nowhere")


def test_a_bottomless_card(tmp_path):
    visattn.save_model(visattn.create_model("test_resnet_se", num_classes=2), tmp_path)
    (tmp_path / "model.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="cannot be understood"):
        visattn.load_model(tmp_path)


@pytest.mark.parametrize("classes", ["ab", {"a", "b"}, {"a": 0, "b": 1}, ["a"]])
def test_classes_are_names_in_order(classes, tmp_path):
    with pytest.raises((TypeError, ValueError), match="names"):
        visattn.save_model(visattn.create_model("test_resnet_se", num_classes=2), tmp_path, classes=classes)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*", "ignore:.*pynvml.*")
@pytest.mark.slow
def test_another_attention_of_the_same_shapes_does_not_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["--model", "test_vit", "--image-size", "64", *TINY[4:], "--epochs", "1", "--name", "it"]
    assert main([*arguments, "--attn", "sparsemax"]) == 0
    assert main(["--resume", "runs/it", "--attn", "entmax15", "--epochs", "2"]) == 2
    assert "the checkpoint is not of the model" in capsys.readouterr().err


# The headline: pretrained weights, a block, a run, its files, going on, pictures.

RUNS = {
    "cbam": ("test_resnet", ["--attn", "cbam"]),
    "frozen": ("test_resnet", ["--attn", "se", "--freeze-backbone"]),
    "tokens, frozen": ("test_vit", ["--attn", "se", "--freeze-backbone"]),
    "patch attention": ("test_vit", ["--attn", "cosine", "--new-lr-factor", "10"]),
    "self-attention, averaged": ("test_convnext", ["--attn", "nonlocal", "--ema", "0.9"]),
    "channels-last, options": (
        "test_resnet",
        ["--attn", "se", "--attn-options", "{rd_ratio: 0.25}", "--channels-last", "--layer-decay", "0.7"],
    ),
    "hard": ("test_resnet", ["--attn", "hard", "--attn-options", "{signal: reinforce}"]),
    "plain": ("test_vit", []),
    "glimpses": ("test_resnet", ["--attn", "se"]),
}
QUICK = ("cbam", "tokens, frozen")


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """A file with weights of timm's plain model, as the hub would have it."""
    monkeypatch.chdir(tmp_path)

    def write(name):
        torch.manual_seed(5)
        save_file(timm.create_model(name).state_dict(), tmp_path / "pretrained.safetensors")
        return timm.create_model(name, pretrained=True, pretrained_cfg_overlay={"file": "pretrained.safetensors"})

    return write


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*", "ignore:.*pynvml.*")
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in RUNS])
def test_a_run_with_pretrained_weights_and_a_block(name, weights, tmp_path, capsys):
    base, flags = RUNS[name]
    plain = weights(base)
    model = f"glimpse_{base}" if name == "glimpses" else base
    glimpses = ", glimpse_size: 32, glimpses: 2" if name == "glimpses" else ""
    overlay = f"{{pretrained_cfg_overlay: {{file: pretrained.safetensors}}{glimpses}}}"
    size = ["--image-size", "160"] if "vit" in base else ["--image-size", "64"]
    tiny = [*TINY[4:], *size]
    assert main(["--model", model, "--pretrained", "--model-options", overlay, *flags, *tiny, "--name", "it"]) == 0, (
        capsys.readouterr().err
    )
    folder = tmp_path / "runs" / "it"
    card = json.loads((folder / "model.json").read_text())
    assert "pretrained.safetensors" not in json.dumps(card)
    attention = dict(zip(flags[::2], flags[1::2], strict=False)).get("--attn")
    assert all(entry.get("block", "cosine") == attention for entry in card["attachments"])
    assert bool(card["attachments"]) == (attention is not None)
    assert {entry["init"] for entry in card["attachments"] if "block" in entry} <= {"identity"}

    # Every file comes back as the same network, and without the pretrained weights.
    (tmp_path / "pretrained.safetensors").unlink()
    loaded, _ = visattn.load_model(folder)
    checkpoint = load_checkpoint(folder / "checkpoints" / "best.ckpt")
    expected = model_weights(checkpoint)
    assert list(loaded.state_dict()) == list(expected)
    assert all(torch.equal(value, expected[key]) for key, value in loaded.state_dict().items())
    x = torch.rand(2, *card["input"]["size"])
    for file in ("", "model.safetensors", "checkpoints/best.ckpt"):
        assert torch.equal(open_trained(None, str(folder / file)).model(x), loaded(x))

    # What was trained, and from where.
    key = next(key for key in plain.state_dict() if key.endswith("weight"))
    trained = expected[f"backbone.{key}" if name == "glimpses" else key]
    assert torch.equal(trained, plain.state_dict()[key]) == ("--freeze-backbone" in flags)
    assert (trained - plain.state_dict()[key]).abs().max() < 0.1

    # Going on needs no pretrained weights either; and a picture of what came of it.
    assert main(["--resume", "runs/it", "--epochs", "3"]) == 0, capsys.readouterr().err
    assert load_checkpoint(folder / "checkpoints" / "last.ckpt")["epoch"] == 2
    picture = tmp_path / "image.png"
    Image.new("RGB", (80, 70), "red").save(picture)
    assert visattn_main(["heatmap", "--weights", "runs/it", "--image", str(picture), "--out", "out"]) == 0
    assert visattn_main(["predict", "--weights", "runs/it", "--image", str(picture), "--json"]) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_loaded_in_inference_mode_can_be_trained(tmp_path, dtype):
    visattn.save_model(timm.create_model("test_resnet", num_classes=2).to(dtype), tmp_path)
    with torch.inference_mode():
        model, _ = visattn.load_model(tmp_path)
    model(torch.rand(1, 3, 64, 64, dtype=dtype)).sum().backward()


def test_weights_that_are_not_numbers_are_saved_as_they_are(tmp_path):
    model = timm.create_model("test_resnet", num_classes=2)
    torch.nn.init.constant_(model.fc.weight, torch.nan)
    again, _ = visattn.load_model(visattn.save_model(model, tmp_path / "broken"))
    assert again.fc.weight.isnan().all()


def test_numbers_of_numpy_are_numbers(tmp_path):
    model = timm.create_model("test_vit", num_classes=np.int64(4))
    card = json.loads((visattn.save_model(model, tmp_path / "a") / "model.json").read_text())
    assert card["model"]["num_classes"] == 4
    model = visattn.create_model("test_vit", img_size=np.int64(64), drop_rate=np.float32(0.5), in_chans=np.int8(1))
    card = json.loads((visattn.save_model(model, tmp_path / "b") / "model.json").read_text())
    assert card["model"] == {"name": "test_vit", "img_size": 64, "drop_rate": 0.5, "in_chans": 1, "num_classes": 1000}
    again, _ = visattn.load_model(tmp_path / "b")
    assert again.patch_embed.img_size == (64, 64)

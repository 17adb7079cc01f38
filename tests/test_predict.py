"""``visattn.predict`` and ``visattn predict``: the numbers of the run, whatever the images come as."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from skimage import data as photographs
from torch import nn

import visattn
from tests.training import train
from visattn.cli import main
from visattn.data.decode import BadImage, read_image
from visattn.data.preparation import Preparation
from visattn.models.saving.saved import write_model
from visattn.prediction import Prediction
from visattn.training.building import card, create_classifier, create_data, create_source
from visattn.training.settings import Settings

CLASSES = ("cat, Felis", "dog", "12")


@pytest.fixture
def network():
    """Untrained, but sure of itself; the classes of real photographs differ."""
    torch.manual_seed(3)
    model = timm.create_model("test_resnet", num_classes=3).eval()
    with torch.no_grad():
        model.get_classifier().weight.mul_(30)
    return model


@pytest.fixture
def run(tmp_path, network):
    """What a training run leaves, with a preparation of its own."""
    seen = {"size": [3, 64, 64], "mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7], "crop_pct": 0.8,
            "crop_mode": "squash", "interpolation": "bicubic"}  # fmt: skip
    card = {"model": {"name": "test_resnet", "num_classes": 3}, "class_names": CLASSES, "input": seen}
    write_model(tmp_path / "runs" / "mine", network.state_dict(), card)
    return tmp_path / "runs" / "mine"


@pytest.fixture
def files(tmp_path):
    """Photographs of several shapes and kinds."""
    folder = tmp_path / "photographs"
    folder.mkdir()
    for name, end in (("chelsea", "jpg"), ("coffee", "png"), ("rocket", "webp"), ("astronaut", "jpg")):
        picture = Image.fromarray(getattr(photographs, name)())
        picture.resize((picture.width // 3, picture.height // 3)).save(folder / f"{name}.{end}")
    return sorted(folder.iterdir())


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs ``visattn predict``: exit code, what it prints, lines on stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = main(["predict", *map(str, arguments)])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err.splitlines()

    return call


def expected(model, x):
    with torch.no_grad():
        return model.eval()(x).softmax(1)


# ---- in Python


def test_the_run_prepares_its_own_images(run, files, network):
    """Not as timm would for this model: the card says another size, crop, mean and interpolation."""
    found = visattn.predict(run, run.parent.parent / "photographs", top=3)
    card = json.loads((run / "model.json").read_text())["input"]
    x = Preparation.of(network, card).batch([read_image(path) for path in files])
    assert x.shape == (4, 3, 64, 64)
    assert [each.file for each in found] == [str(path) for path in files]
    for prediction, row in zip(found, expected(network, x), strict=True):
        order = row.argsort(descending=True).tolist()
        assert prediction.indices == tuple(order)
        assert prediction.labels == tuple(CLASSES[index] for index in order)
        assert prediction.probabilities == pytest.approx([row[index].item() for index in order], rel=1e-5)
        assert (prediction.label, prediction.probability) == (prediction.labels[0], prediction.probabilities[0])
    assert len({each.probabilities for each in found}) == 4


def test_whatever_an_image_comes_as(run, files):
    png = next(path for path in files if path.suffix == ".png")
    array = read_image(png)
    (from_file,) = visattn.predict(str(run), str(png))
    card = json.loads((run / "model.json").read_text())["input"]
    tensor = Preparation.of(timm.create_model("test_resnet"), card).batch([array])
    for images in (png, [png], array, array[::-1][::-1], Image.fromarray(array), tensor, tensor[0], [array], (tensor,)):
        (found,) = visattn.predict(run, images)
        assert (found.labels, found.probabilities) == (from_file.labels, from_file.probabilities)
    both = visattn.predict(run, [png, array, Image.fromarray(array), tensor[0], png, torch.cat([tensor, tensor])])
    assert len(both) == 7
    assert [each.file for each in both] == [str(png), None, None, None, str(png), None, None]
    assert len({each.labels for each in both}) == 1


def test_grey_arrays_and_pictures(run):
    grey = photographs.camera()[::4, ::4]
    (plain,) = visattn.predict(run, grey)
    layer = Image.fromarray(grey).convert("RGBA")
    deep = Image.fromarray(grey.astype(np.uint16) * 257)
    for image in (np.stack([grey] * 3, -1), Image.fromarray(grey), layer, deep):
        assert visattn.predict(run, image) == [plain]
    turned = Image.fromarray(grey).transpose(Image.Transpose.ROTATE_90)
    turned.getexif()[0x0112] = 6
    assert visattn.predict(run, turned) == [plain]
    assert turned.getexif()[0x0112] == 6  # the picture stays as it is


def test_batches_do_not_matter(run, files):
    one, all_ = (visattn.predict(run, files, batch_size=size) for size in (1, 3))
    for single, other in zip(one, all_, strict=True):
        assert (single.labels, single.file) == (other.labels, other.file)
        assert single.probabilities == pytest.approx(other.probabilities, rel=1e-4)


def test_a_model_is_left_as_it_was_found(network, files):
    network.train()
    network.layer2.eval()
    network.layer1[0].conv1.weight.requires_grad_(False)
    modes = {name: module.training for name, module in network.named_modules()}
    state = {key: value.clone() for key, value in network.state_dict().items()}
    random = torch.get_rng_state()
    (found,) = visattn.predict(network, files[0], classes=CLASSES)
    assert {name: module.training for name, module in network.named_modules()} == modes
    assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    x = Preparation.of(network).batch([read_image(files[0])])
    assert found.probability == pytest.approx(expected(network, x).max().item(), rel=1e-5)
    with pytest.raises(ValueError, match="does not take images of 1 x 9 x 9"):
        visattn.predict(network.train(), torch.zeros(1, 9, 9))
    assert network.training


def test_models_in_half_precision(network, files):
    (single,) = visattn.predict(network, files[0], classes=CLASSES)
    (half,) = visattn.predict(network.bfloat16(), files[0], classes=CLASSES)
    assert half.label == single.label
    assert half.probability == pytest.approx(single.probability, abs=0.05)


def test_names_of_imagenet_are_known():
    (found,) = visattn.predict(timm.create_model("test_vit"), torch.zeros(3, 160, 160), top=1000)
    assert found.labels[found.indices.index(281)] == "tabby, tabby cat"
    assert len(found.labels) == 1000
    assert sum(found.probabilities) == pytest.approx(1, abs=1e-4)
    (found,) = visattn.predict(timm.create_model("test_vit", num_classes=4), torch.zeros(3, 160, 160))
    assert sorted(found.labels) == ["0", "1", "2", "3"]


def test_of_equal_classes_the_first_comes_first():
    """As argmax has it, by which a run counts; even where probabilities are equal and energies are not."""

    class Fixed(torch.nn.Module):
        def forward(self, x):
            return torch.tensor([[0.0, 200.0, 200.0, 201.0, -300.0, -200.0]]).expand(len(x), -1)

    (found,) = visattn.predict(Fixed(), torch.zeros(3, 8, 8), top=6)
    assert found.indices == (3, 1, 2, 0, 5, 4)


def test_a_prediction_reads_well():
    assert repr(Prediction(("cat", "dog"), (0.931, 0.069), (3, 5), "a.jpg")) == "Prediction(a.jpg: cat 93.1%, dog 6.9%)"
    assert repr(Prediction(("cat",), (1.0,), (3,))) == "Prediction(cat 100.0%)"


# ---- what cannot be done


class Says(torch.nn.Module):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, x):
        return self.answer(x)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Says(lambda x: {"logits": x}), "a classifier returns .* two classes or more, not a dict"),
        (Says(lambda x: (x, x)), "a classifier returns .*, not a tuple"),
        (Says(lambda x: x), r"a classifier returns .*, not a tensor \(1, 3, 8, 8\)"),
        (Says(lambda x: x[:, :1, 0, 0]), r"a classifier returns .*, not a tensor \(1, 1\)"),
        (Says(lambda x: x[:, :, 0, 0] + float("nan")), "is not finite"),
        (Says(lambda x: x.new_tensor([[1.0, 2.0]])), "3 names for the 2 classes"),
        (timm.create_model("test_resnet", num_classes=0), r"has no classes \(num_classes=0\): give it a classifier"),
        (timm.create_model("test_vit"), r"does not take images of 3 x 8 x 8 \(Input height \(8\)"),
    ],
)
def test_models_that_cannot_predict_say_why(model, message):
    with pytest.raises(ValueError, match=message):
        visattn.predict(model, torch.zeros(1, 3, 8, 8), classes=("a", "b", "c"))


def test_images_that_cannot_be_used_are_explained(run, files, network, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no")
    (tmp_path / "nothing").mkdir()
    for images, error, message in [
        (tmp_path / "bad.png", BadImage, "bad.png: not an image in a supported format"),
        (tmp_path / "not there.png", ValueError, "not there.png: no such file or folder"),
        ([files[0], tmp_path / "nothing"], ValueError, "nothing: no images in this folder"),
        ([], ValueError, "there are no images to classify"),
        (torch.zeros(0, 3, 8, 8), ValueError, "there are no images to classify"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), TypeError, "a tensor must be normalised .* got torch.uint8"),
        (torch.zeros(8, 8), TypeError, r"got torch.float32 \(8, 8\)"),
        (np.zeros((8, 8, 3)), TypeError, r"must be uint8 of shape \(H, W, 3\) or \(H, W\), got float64"),
        (np.zeros((8, 8, 4), np.uint8), TypeError, r"got uint8 \(8, 8, 4\)"),
        (np.zeros((0, 8, 3), np.uint8), TypeError, r"got uint8 \(0, 8, 3\)"),
        (np.zeros(8, np.uint8), TypeError, r"got uint8 \(8,\)"),
        (7, TypeError, "an image must be a file, a folder, .* got int"),
        ({"a.jpg"}, TypeError, "an image must be a file, a folder, .* got set"),
        ([torch.zeros(3, 8, 8), torch.zeros(3, 9, 8)], ValueError, r"different shapes: \(3, 8, 8\), \(3, 9, 8\)"),
    ]:
        with pytest.raises(error, match=message):
            visattn.predict(run, images)
    with pytest.raises(ValueError, match=r"Says does not state its preprocessing \(timm's pretrained_cfg\)"):
        visattn.predict(Says(lambda x: x[:, :, 0, 0]), files[0])
    (found,) = visattn.predict(Says(lambda x: x[:, :, 0, 0]), files[0], preparation=Preparation.of(network))
    assert len(found.labels) == 3


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"top": 0}, ValueError, "top must be at least 1, got 0"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"device": "gpu"}, ValueError, "device 'gpu' cannot be used"),
        ({"model": "runs/none"}, ValueError, "there is no file and no folder 'runs/none'"),
        ({"model": 7}, TypeError, "the model must be a network, a run folder or a checkpoint, got int"),
        ({"model": torch.nn.Flatten(), "device": "cpu"}, ValueError, "move this model yourself"),
    ],
)
def test_wrong_usage_is_explained(run, arguments, error, message):
    model = arguments.pop("model", run)
    with pytest.raises(error, match=message):
        visattn.predict(model, torch.zeros(3, 64, 64), **arguments)


# ---- on the command line


@pytest.mark.usefixtures("files")
def test_json_for_programs(command, run):
    code, out, errors = command("--weights", run, "--image", "photographs", "--json", "--top", "2")
    assert (code, errors) == (0, [])
    said = json.loads(out)
    assert (said["model"], said["left_out"]) == ("test_resnet", [])
    for entry, found in zip(said["images"], visattn.predict(run, Path("photographs"), top=2), strict=True):
        assert entry["file"] == found.file
        assert [each["class"] for each in entry["predictions"]] == list(found.labels)
        assert [each["index"] for each in entry["predictions"]] == list(found.indices)
        assert [each["probability"] for each in entry["predictions"]] == list(found.probabilities)


def test_a_table_for_people(command, run, files):
    long = files[0].rename(files[0].with_name("a [red]name[red] that is " + "very " * 30 + "long.jpg"))
    code, out, errors = command("--weights", run, "--image", *files[1:], long)
    assert (code, errors) == (0, [])
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert len(rows) == 12
    found = visattn.predict(run, [*files[1:], long])
    for number, prediction in enumerate(found):
        mine = rows[3 * number : 3 * number + 3]
        assert [row[0] for row in mine] == [prediction.file, "", ""]
        assert [row[1] for row in mine] == list(prediction.labels)
        assert [row[2] for row in mine] == [f"{share:.1%}" for share in prediction.probabilities]


def test_a_terminal_is_told_nothing_by_names(command, run, files):
    card = run / "model.json"
    card.write_text(card.read_text().replace('"dog"', '"\\u001b[31m\\ud800"'))
    name = files[0].rename(files[0].with_name("\x1b]0;title\x07.png"))
    code, out, _ = command("--weights", run, "--image", name)
    assert code == 0
    assert "\ufffd]0;title\ufffd.png" in out
    assert "\ufffd[31m\ufffd" in out
    assert "\x1b" not in out


def test_no_memory_is_said_in_a_line(command, run, files, monkeypatch):
    def read(_):
        raise MemoryError("so many bytes")

    monkeypatch.setattr("visattn.data.images.read_image", read)
    code, _, errors = command("--weights", run, "--image", files[0])
    assert (code, errors) == (1, ["visattn: out of memory: lower --batch-size (so many bytes)"])


def test_models_that_are_wrapped_know_their_images(network):
    image = photographs.coffee()
    for wrapped in (torch.compile(network, backend="eager"), torch.nn.DataParallel(network)):
        assert visattn.predict(wrapped, image) == visattn.predict(network, image)


def test_a_model_that_others_train_meanwhile(network):
    """Who looks at its mode in another thread sees that it is training, all the time."""
    network.train()
    modes, done = set(), threading.Event()

    def look():
        while not done.is_set():
            modes.add(network.training)

    other = threading.Thread(target=look)
    other.start()
    try:
        for _ in range(10):
            visattn.predict(network, torch.zeros(4, 3, 64, 64))
    finally:
        done.set()
        other.join()
    assert modes == {True}


def test_whole_numbers_are_no_scores(network):
    class Votes(torch.nn.Module):
        def forward(self, x):
            return network(x).round().long()

    with pytest.raises(ValueError, match=r"not a tensor .* of torch\.int64"):
        visattn.predict(Votes(), torch.zeros(3, 64, 64))


@pytest.mark.usefixtures("files")
def test_bad_images_are_named_and_the_others_done(command, run, tmp_path):
    (tmp_path / "photographs" / "broken.jpg").write_bytes(b"")
    strange = tmp_path / "photographs" / os.fsdecode(b"\xff\n.png")
    Image.fromarray(photographs.coffee()).save(strange)
    for flag in ([], ["--json"]):
        code, out, errors = command("--weights", run, "--image", "photographs", "none.png", "--batch-size", "2", *flag)
        assert code == 1
        assert errors == [
            "visattn: none.png: no such file or folder",
            "visattn: photographs/broken.jpg: the file is empty",
        ]
        out.encode()  # can be printed
    said = json.loads(out)
    assert len(said["images"]) == 5
    assert [each["what"] for each in said["left_out"]] == ["none.png", "photographs/broken.jpg"]
    assert command("--weights", run, "--image", "photographs/broken.jpg")[:2] == (2, "")
    assert command("--weights", run, "--image", "none.png")[:2] == (2, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--top", "0"], "--top must be at least 1, got 0"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--device", "gpu"], "device 'gpu' cannot be used"),
        (["--weights", "runs/none"], "there is no file and no folder 'runs/none'"),
        (["--model", "test_vit"], "is of test_resnet, not of 'test_vit'"),
    ],
)
def test_mistakes_are_one_line(command, run, files, arguments, message):
    code, out, errors = command("--weights", run, "--image", files[0], *arguments)
    assert (code, out, len(errors)) == (2, "", 1)
    assert message in errors[0]


# ---- the numbers of the run


def write_classes(root, split, count):
    """Parts of a photograph, darker or brighter, JPEG and PNG, none of them square; not easy to tell apart."""
    rng = np.random.default_rng(len(split))
    picture = photographs.chelsea()
    for name, change in (("dark", -45.0), ("middle", 0.0), ("light", 45.0)):
        folder = root / split / name
        folder.mkdir(parents=True)
        for index in range(count):
            height, width = rng.integers(70, 140, 2)
            top, left = rng.integers(0, 150), rng.integers(0, 300)
            part = picture[top : top + height, left : left + width + (height == width)]
            part = part + (change + rng.normal(0, 15)) + rng.normal(0, 10, part.shape)
            image = Image.fromarray(part.clip(0, 255).astype(np.uint8))
            image.save(folder / f"{index}.{('jpg', 'png')[index % 2]}")


@pytest.mark.parametrize("model", ["test_vit", "test_resnet"])
@pytest.mark.parametrize("options", [{}, {"model_options": {"in_chans": 1}}, {"channels_last": True}], ids=str)
def test_validation_sees_what_the_command_line_sees(tmp_path, model, options):
    """The tensors of a run's validation batches, and those made from its card for the same files, bit for bit."""
    for split in ("train", "val"):
        write_classes(tmp_path, split, 4)
    settings = Settings(model=model, data="folder", root=str(tmp_path), batch_size=5, workers=0, **options)
    source = create_source(settings)
    network = create_classifier(settings, source).model
    data = create_data(settings, source, network)
    batches = [data.on_after_batch_transfer(batch, 0)["image"] for batch in data.val_dataloader()]
    stated = json.loads(json.dumps(card(settings, source, data, network)))["input"]
    assert stated.keys() == {"size", "mean", "std", "crop_pct", "crop_mode", "interpolation", "range"}
    again = Preparation.of(torch.nn.Identity(), stated)  # nothing is left to the model
    assert again == data.preparation
    images = [read_image(path) for path in source.val.paths]
    assert len({image.shape for image in images}) > 6
    assert torch.equal(torch.cat(batches), again.batch(images))
    assert batches[0].shape[1] == (1 if "model_options" in options else 3)
    shown = data.examples(4)
    assert all(any(np.array_equal(each, again.pixels(image)) for image in images) for each in shown.images)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--model-options", "{in_chans: 1}"]], ids=["rgb", "grey"])
def test_accuracy_from_the_command_line_is_that_of_the_run(tmp_path, options):
    for split, count in (("train", 12), ("val", 40)):
        write_classes(tmp_path / "data", split, count)
    train(
        "--model", "test_resnet", "--data", "folder", "--root", "data", "--epochs", "6", "--batch-size", "12",
        "--film-every", "0", "--name", "mine", "--lr", "2e-3", "--trainer.accelerator", "cpu", "--workers", "0",
        *options, cwd=tmp_path,
    )  # fmt: skip
    best = json.loads((tmp_path / "runs" / "mine" / "model.json").read_text())["best"]
    command = [sys.executable, "-m", "visattn", "predict", "--weights", "runs/mine", "--image", "data/val", "--json"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    right, share = [], []
    for entry in json.loads(result.stdout)["images"]:
        truth, said = Path(entry["file"]).parent.name, entry["predictions"]
        right.append(said[0]["class"] == truth)
        share.append(next(each["probability"] for each in said if each["class"] == truth))
    assert len(right) == 120
    assert 0.4 < best["val_top1"] < 1  # otherwise it would prove little
    assert np.float32(np.mean(right)) == np.float32(best["val_top1"])
    assert -np.log(share).mean() == pytest.approx(best["val_loss"], rel=1e-4)


@pytest.mark.parametrize(("name", "options"), [("test_resnet", {"in_chans": 1}), ("test_vit", {"img_size": 64})])
def test_a_network_sees_what_it_was_built_for(name, options):
    model = timm.create_model(name, num_classes=2, **options)
    picture = np.zeros((50, 60, 3), np.uint8)
    assert len(visattn.predict(model, picture)) == 1
    assert visattn.examine(model, picture, "edge").number == 1


def test_a_network_in_a_wrapper_for_several_devices(network):
    """Names and the number of classes are those of the network inside."""
    network.pretrained_cfg = {**network.pretrained_cfg, "label_names": list(CLASSES)}
    wrapped = nn.DataParallel(network)
    images = torch.rand(1, 3, 64, 64)
    assert visattn.predict(wrapped, images) == visattn.predict(network, images)
    found = [visattn.examine(each, np.zeros((64, 64, 3), np.uint8), "edge") for each in (network, wrapped)]
    assert len({each.findings[0].subject.answer for each in found}) == 1
    with pytest.raises(ValueError, match="the model has no classes"):
        visattn.predict(nn.DataParallel(timm.create_model("test_resnet", num_classes=0)), images)

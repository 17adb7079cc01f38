"""``visattn heatmap`` on real files with small real networks, whose weights lie on disk."""

import base64
import json
import os
import re
import struct
import zlib

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from skimage import data

import visattn
from tests.test_page import browser, decoded, embedded, local, ready  # noqa: F401 - a fixture
from tests.tiers import mostly_slow
from visattn.cli import main
from visattn.data.preparation import Preparation
from visattn.heatmaps.auto import CHOICES
from visattn.models.saving.description import describe
from visattn.models.saving.saved import Trained, write_model
from visattn.report.folder import _grid, mark, short_layers
from visattn.report.sheets import draw_grid


def photo(height=120, width=180):
    """A cat, the whole of it."""
    return np.asarray(Image.fromarray(data.chelsea()).resize((width, height), Image.Resampling.BICUBIC))


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Files of weights by model."""
    folder = tmp_path_factory.mktemp("weights")

    def saved(name, **options):
        torch.manual_seed(0)
        path = folder / f"{name}{''.join(f'-{value}' for value in options.values())}.safetensors"
        if not path.exists():
            save_file(visattn.create_model(name, **options).state_dict(), path)
        return path

    return saved


@pytest.fixture
def heatmap(weights, tmp_path, monkeypatch, capsys):
    """Runs the command in a folder of its own: exit code, manifest, lines on stderr."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments, model="test_vit", file=None, out="out"):
        names = [] if model is None else ["--model", model, "--weights", str(file or weights(model))]
        code = main(["heatmap", *names, "--out", out, *map(str, arguments)])
        captured = capsys.readouterr()
        manifest = tmp_path / out / "manifest.json"
        found = json.loads(manifest.read_text()) if manifest.is_file() else None
        assert "Traceback" not in captured.err
        command.said = captured.out
        return code, found, captured.err.splitlines()

    return command


def pixels(path):
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


def write(path, image=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(photo() if image is None else image).save(path, **options)
    return path


# ---- what is made


def test_the_command_of_the_issue(heatmap, tmp_path):
    write(tmp_path / "a.jpg")
    write(tmp_path / "b.png", photo(300, 200))
    write(tmp_path / "folder" / "c.webp", photo(90, 90))
    code, manifest, errors = heatmap(
        "--image", "a.jpg", "b.png", "folder/", "--method", "rollout,gradcam", "--target", "auto"
    )
    assert (code, errors) == (0, [])
    assert heatmap.said == "3 images: out/index.html\n"
    assert [entry["file"] for entry in manifest["images"]] == ["a.jpg", "b.png", "folder/c.webp"]
    assert (manifest["model"], manifest["left_out"]) == ("test_vit", [])
    chosen = {"of": "logit", "signed": False, "reason": ""}
    layers = [f"blocks.{i}.attn" for i in range(6)]
    assert manifest["methods"]["rollout"] == {"of_class": False, "layers": layers, **chosen}
    assert manifest["methods"]["gradcam"]["of_class"]
    for entry, stem in zip(manifest["images"], "abc", strict=True):
        assert entry["files"] == [f"{stem}_rollout.png", f"{stem}_rollout.npy", f"{stem}_gradcam.png",
                                  f"{stem}_gradcam.npy", f"{stem}_depth.png"]  # fmt: skip
        assert entry["target"] == entry["predicted"]
        assert entry["probability"] == entry["predicted_probability"]
    files = {name for entry in manifest["images"] for name in entry["files"]}
    files |= {"comparison.png", "index.html", "manifest.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == files
    page = embedded(tmp_path / "out" / "index.html")
    assert page["methods"] == ["rollout", "gradcam"]
    assert [subject["name"] for subject in page["subjects"]] == ["a.jpg", "b.png", "c.webp"]


def test_heatmaps_are_those_of_the_library(heatmap, tmp_path, weights):
    write(tmp_path / "a.png")
    _, manifest, _ = heatmap("--image", "a.png", "--method", "rollout,gradcam", "--target", "281")
    model = timm.create_model("test_vit")
    model.load_state_dict(load_file(weights("test_vit")))
    (x,) = Preparation.of(model).batch([photo()])
    for method in ("rollout", "gradcam"):
        stored = np.load(tmp_path / "out" / f"a_{method}.npy")
        expected = visattn.explain(model, x, method, 281)
        assert (stored.shape, stored.dtype) == ((160, 160), np.float32)
        np.testing.assert_allclose(stored, expected.heatmap[0], atol=1e-5)
    (entry,) = manifest["images"]
    with torch.no_grad():
        probabilities = model.eval()(x[None]).softmax(1)[0]
    assert (entry["target"], entry["class"]) == (281, "tabby")
    assert entry["probability"] == pytest.approx(probabilities[281].item(), rel=1e-4)
    assert entry["predicted"] == probabilities.argmax()
    assert entry["predicted_probability"] == pytest.approx(probabilities.max().item(), rel=1e-4)


@pytest.mark.slow
def test_balanced_gradients_and_signs(heatmap, tmp_path, weights):
    write(tmp_path / "a.png")
    methods = {"attcat": {"balanced": True, "signed": True}, "fullgrad": {"signed": True}, "chefer": {"balanced": True}}
    code, manifest, errors = heatmap(
        "--image", "a.png", "--method", "attcat,fullgrad,chefer,rollout", "--target", "281", "--balanced", "--signed"
    )
    assert (code, errors) == (0, [])  # nothing is said of methods without the one or the other
    model = timm.create_model("test_vit")
    model.load_state_dict(load_file(weights("test_vit")))
    (x,) = Preparation.of(model).batch([photo()])
    (shown,) = embedded(tmp_path / "out" / "index.html")["subjects"]
    for method, options in {**methods, "rollout": {}}.items():
        stored = np.load(tmp_path / "out" / f"a_{method}.npy")
        expected = visattn.explain(model, x, method, 281, **options)
        np.testing.assert_allclose(stored, expected.heatmap[0], atol=1e-4)
        assert (stored.min() < 0) == ("signed" in options)
        said = {name: manifest["methods"][method].get(name, False) for name in ("balanced", "signed")}
        assert said == {"balanced": False, "signed": False} | options
        assert shown["views"][method]["signed"] == ("signed" in options)
        assert ("balanced" in shown["views"][method]["note"]) == ("balanced" in options)
        picture = pixels(tmp_path / "out" / f"a_{method}.png")
        assert (picture[..., 2].max() > 200) == ("signed" in options)  # blue is against


def test_everything_is_shown_of_what_is_squashed():
    squashed = Preparation((3, 80, 80), (0.5,) * 3, (0.5,) * 3, crop_mode="squash")
    assert squashed.box(300, 100) == (0, 0, 300, 100)
    assert squashed.shown(photo(100, 300)).shape == (200, 600, 3)


def test_pictures_show_what_the_model_saw():
    """A bright quarter of the part that is seen, at the same place in the tensor and in the picture."""
    preparation = Preparation((3, 80, 80), (0.0,) * 3, (1.0,) * 3, crop_pct=0.5)
    image = np.zeros((400, 900, 3), np.uint8)
    image[50:200, 450:600] = 255  # seen: rows 100 to 300, columns 350 to 550
    tensor, shown = preparation.batch([image])[0].numpy(), preparation.shown(image)
    assert tensor[0, :39, 41:].min() > 0.99
    assert tensor[0, 41:].max() < 0.01
    assert shown.shape == (400, 400, 3)  # pixels twice as large
    assert shown[:200, 200:].min() == 255
    assert shown[200:].max() == shown[:, :200].max() == 0
    assert preparation.shown(np.zeros((3000, 4000, 3), np.uint8)).shape == (640, 640, 3)
    assert preparation.shown(np.zeros((1, 5000, 3), np.uint8)).shape == (320, 320, 3)


def test_overlays_have_the_size_of_the_picture(heatmap, tmp_path):
    write(tmp_path / "large.png", photo(1000, 1500))
    write(tmp_path / "small.png", photo(40, 40))
    heatmap("--image", "large.png", "small.png", "--method", "center")
    assert pixels(tmp_path / "out" / "large_center.png").shape == (640, 640, 3)
    small = pixels(tmp_path / "out" / "small_center.png")
    assert small.shape == (9 * 38, 9 * 38, 3)  # 95 % of 40 pixels
    overlay = small.astype(int).sum(-1)
    assert overlay[150:190, 150:190].mean() > overlay[:40, :40].mean() + 100  # bright in the middle


@pytest.mark.parametrize(
    ("model", "kind"), [("test_vit_cosine", "vision transformers"), ("test_resnet_cbam", "convolutional networks")]
)
def test_without_a_method_the_best(heatmap, tmp_path, model, kind):
    write(tmp_path / "a.png")
    code, manifest, errors = heatmap("--image", "a.png", model=model)
    assert (code, errors) == (0, [])
    ((method, said),) = manifest["methods"].items()
    choice = CHOICES[kind][0]
    assert (method, said["of"], said["reason"]) == (choice.method, choice.of, f"the best for {kind}, see docs/truth.md")
    assert {name: said[name] for name in choice.options} == choice.options
    relations = embedded(tmp_path / "out" / "index.html")["subjects"][0]["relations"]
    assert bool(relations) == ("vit" in model)


def test_channel_gates_alone(heatmap, tmp_path):
    write(tmp_path / "a.png")
    code, manifest, _ = heatmap("--image", "a.png", "--method", "gates", model="test_resnet_se")
    assert code == 0
    assert manifest["images"][0]["files"][-1] == "a_channels.png"
    view = embedded(tmp_path / "out" / "index.html")["subjects"][0]["views"]["gates"]
    assert view["note"] == "weighs channels, not places"


class Glimpsing(torch.nn.Module):
    """A classifier that looks at two places, of which the second is in the lower right corner."""

    def __init__(self):
        super().__init__()
        self.inner = timm.create_model("test_resnet", num_classes=4)
        self.pretrained_cfg, self.num_classes = self.inner.pretrained_cfg, 4

    def forward(self, images):
        return self.inner(images)

    def fixations(self, images):
        return torch.tensor([[0.0, 0.0], [0.75, 0.5]]).expand(len(images), -1, -1), (40, 20)


def test_glimpses(heatmap, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "visattn.models.saving.saved.open_trained", lambda *_: Trained(Glimpsing().eval(), "glimpsing", "none")
    )
    drawn = []
    monkeypatch.setattr("visattn.report.folder.draw_fixations", lambda *arguments: drawn.append(arguments))
    write(tmp_path / "a.png", photo(168, 168))
    code, manifest, errors = heatmap("--image", "a.png", "--model", "glimpsing", model=None)
    assert (code, errors) == (0, [])
    assert list(manifest["methods"]) == ["glimpses"]
    ((path, image, fixations, _),) = drawn
    assert path.name == "a_fixations.png"
    np.testing.assert_array_equal(fixations.points, [[0, 0], [0.75, 0.5]])
    assert image.shape == (320, 320, 3)  # twice what is seen, 160 pixels of 168
    assert fixations.size == (40, 80)  # width, height
    assert np.load(tmp_path / "out" / "a_glimpses.npy")[120, 139] == 1


@pytest.mark.parametrize(
    ("options", "cells"),
    mostly_slow(
        [(["--layers", "0,5", "--heads", "0,1"], (2, 2)), (["--layers", "all"], (6, 2)), (["--heads", "1"], (6, 1)),
         (["--layers", "blocks.2.attn", "--heads", "all"], (1, 2)), (["--layers=-1"], (1, 2))],
        (6, 1), (2, 2), key=lambda value: value[1],
    ),
)  # fmt: skip
def test_grid_of_heads(heatmap, tmp_path, monkeypatch, options, cells):
    drawn = []
    monkeypatch.setattr("visattn.report.folder.draw_grid", lambda *arguments: drawn.append(arguments))
    write(tmp_path / "a.png")
    code, manifest, errors = heatmap("--image", "a.png", "--method", "rollout", *options)
    assert (code, errors) == (0, [])
    ((path, image, maps, _, columns),) = drawn
    assert path.name == "a_grid.png"
    assert "a_grid.png" in manifest["images"][0]["files"]
    assert (len(maps) // columns, columns) == cells
    assert all(each.shape == image.shape[:2] for each in maps.values())
    assert len({each.tobytes() for each in maps.values()}) == len(maps)


def test_layers_with_different_numbers_of_heads_keep_their_rows(tmp_path):
    ones = np.ones((30, 40), np.float32)
    maps, columns = _grid({("a.attn", 0): ones, ("b.attn", 0): ones, ("b.attn", 1): ones, ("b.attn", 2): ones})
    assert columns == 3
    assert [label for label, each in maps.items() if each is not None] == [
        "a · 0", "b · 0", "b · 1", "b · 2",
    ]  # fmt: skip
    assert list(maps).index("b · 0") == 3
    draw_grid(tmp_path / "grid.png", np.full((30, 40, 3), 99, np.uint8), maps, "grid", columns)
    picture = pixels(tmp_path / "grid.png")
    assert (picture[60:150, picture.shape[1] // 2 : -120] > 250).all()  # nothing right of the only head of the first


def test_long_names_of_layers_stay_different():
    assert short_layers(["layers.0.blocks.1.attn", "layers.1.blocks.0.attn"]) == ["layers 0.1", "layers 1.0"]
    same = ["stages.0.blocks.0.attn_block.attn", "stages.0.blocks.0.attn_grid.attn"]
    assert short_layers(same) == [name.removesuffix(".attn") for name in same]


def test_grid_alone(heatmap, tmp_path):
    write(tmp_path / "a.png")
    code, manifest, errors = heatmap("--image", "a.png", "--method", "gates", "--layers", "0")
    assert (code, len(errors)) == (1, 1)
    assert manifest["images"][0]["files"] == ["a_grid.png"]
    assert manifest["methods"] == {}
    assert embedded(tmp_path / "out" / "index.html")["subjects"][0]["relations"]


def test_strip_of_depth(heatmap, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("visattn.report.folder.draw_strip", lambda *arguments: drawn.append(arguments))
    write(tmp_path / "a.png")
    heatmap("--image", "a.png", "--method", "rollout")
    ((path, _, frames, _),) = drawn
    assert path.name == "a_depth.png"
    assert list(frames) == [f"blocks.{i}" for i in range(6)]
    last = embedded(tmp_path / "out" / "index.html")["subjects"][0]["views"]["rollout"]
    assert not last["empty"]
    assert len({frame.tobytes() for frame in frames.values()}) == 6


@pytest.mark.slow
def test_batches_do_not_matter(heatmap, tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.png", np.roll(photo(), 40 * number, 1))
    arguments = ["--image", "0.png", "1.png", "2.png", "--method", "chefer"]
    heatmap(*arguments, "--batch-size", "1", out="one")
    heatmap(*arguments, "--batch-size", "2", out="two")
    for number in range(3):
        one, two = (np.load(tmp_path / out / f"{number}_chefer.npy") for out in ("one", "two"))
        np.testing.assert_allclose(one, two, atol=1e-4)
    pages = [embedded(tmp_path / out / "index.html")["subjects"] for out in ("one", "two")]
    for one, two in zip(*pages, strict=True):
        for draw in (
            lambda subject: np.asarray(decoded(subject["views"]["chefer"]["heatmap"])).astype(int),
            lambda subject: np.frombuffer(base64.b64decode(subject["relations"][-1]["weights"]), np.uint8).astype(int),
        ):
            assert np.abs(draw(one) - draw(two)).max() <= 2
            assert one is pages[0][0] or np.abs(draw(one) - draw(pages[0][0])).max() > 10


# ---- which images


def test_folders_are_searched_and_equal_names_kept_apart(heatmap, tmp_path):
    for name in ("x/cat.png", "x/deep/er/cat.jpg", "y/cat.png", "x/.hidden/no.png", "x/.no.png"):
        write(tmp_path / name)
    (tmp_path / "x" / "notes.txt").write_text("no image")
    code, manifest, errors = heatmap("--image", "x", "y", "x/cat.png", "--method", "edge")
    assert (code, errors) == (0, [])
    assert [entry["file"] for entry in manifest["images"]] == ["x/cat.png", "x/deep/er/cat.jpg", "y/cat.png"]
    assert [entry["files"][0] for entry in manifest["images"]] == ["cat_edge.png", "cat-2_edge.png", "cat-3_edge.png"]


def test_results_are_not_taken_for_images(heatmap, tmp_path):
    write(tmp_path / "a.png")
    for out in ("one", "two"):
        _, manifest, _ = heatmap("--image", ".", "--method", "edge", out=out)
        assert [entry["file"] for entry in manifest["images"]] == ["a.png"]


def kinds(folder):
    """The same photograph as files of many kinds; grey, and so darker or lighter, where colours are lost."""
    image = Image.fromarray(photo())
    folder.mkdir()
    image.save(folder / "rgb.png")
    image.convert("L").save(folder / "grey.png")
    layer = image.copy()
    layer.putalpha(255)
    layer.save(folder / "alpha.png")
    image.convert("CMYK").save(folder / "cmyk.jpg", quality=95)
    Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257).save(folder / "deep.png")
    image.convert("P").save(folder / "palette.gif")
    exif = Image.Exif()
    exif[0x0112] = 6  # taken with the camera on its side: turn it clockwise to see it upright
    image.transpose(Image.Transpose.ROTATE_90).save(folder / "turned.jpg", exif=exif, quality=95)
    return ["alpha", "cmyk", "deep", "grey", "palette", "rgb", "turned"]


def test_every_kind_of_file(heatmap, tmp_path):
    names = kinds(tmp_path / "kinds")
    code, manifest, errors = heatmap("--image", "kinds", "--method", "gradcam,edge", model="test_resnet")
    assert (code, errors) == (0, [])
    assert [entry["files"][0] for entry in manifest["images"]] == [f"{name}_gradcam.png" for name in names]
    upright = np.load(tmp_path / "out" / "rgb_edge.npy")
    for name in names:
        edges = np.load(tmp_path / "out" / f"{name}_edge.npy")
        assert edges.shape == (160, 160)
        assert np.corrcoef(edges.ravel(), upright.ravel())[0, 1] > 0.8, name
        assert pixels(tmp_path / "out" / f"{name}_edge.png").shape == (342, 342, 3)  # three times 95 % of 120


# ---- bad images: the others are made, and the exit code tells


def huge_png():
    """The beginning of a picture of 100,000 x 100,000 pixels."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">2I5B", 100_000, 100_000, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


BAD = {
    "text.jpg": (b"this is not an image", "not an image in a supported format"),
    "empty.png": (b"", "the file is empty"),
    "huge.png": (huge_png(), "100000 x 100000 pixels, more than the 134 million allowed; shrink it first"),
    "cut.jpg": (None, "damaged or truncated"),
    "cut.png": (None, "damaged or truncated"),
}


def test_bad_images(heatmap, tmp_path):
    for name, (content, _) in BAD.items():
        if content is None:
            whole = write(tmp_path / f"whole{name[-4:]}").read_bytes()
            content = whole[: len(whole) // 2]
        (tmp_path / name).write_bytes(content)
    write(tmp_path / "good.png")
    write(tmp_path / "z.png")
    code, manifest, errors = heatmap("--image", "good.png", *BAD, "z.png", "--method", "edge", "--batch-size", "2")
    assert code == 1
    assert len(errors) == len(BAD)
    for (name, (_, message)), error, left_out in zip(BAD.items(), errors, manifest["left_out"], strict=True):
        assert error.startswith(f"visattn: {name}: {message}")
        assert left_out == {"what": name, "why": error.removeprefix(f"visattn: {name}: ")}
    assert [entry["file"] for entry in manifest["images"]] == ["good.png", "z.png"]
    assert heatmap.said == "2 images: out/index.html\n"


def test_what_is_not_there(heatmap, tmp_path):
    write(tmp_path / "a.png")
    (tmp_path / "nothing").mkdir()
    code, manifest, errors = heatmap("--image", "a.png", "b.png", "nothing", "--method", "edge")
    assert code == 1
    assert errors[0] == "visattn: b.png: no such file or folder"
    assert errors[1].startswith("visattn: nothing: no images in this folder (.avif, .bmp, ")
    assert len(manifest["images"]) == 1
    code, _, errors = heatmap("--image", "b.png", out="other")
    assert (code, len(errors)) == (2, 1)
    assert not (tmp_path / "other").exists()


def test_no_image_at_all_can_be_read(heatmap, tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    code, manifest, errors = heatmap("--image", "a.png", "--method", "edge")
    assert (code, manifest, errors) == (2, None, ["visattn: a.png: the file is empty"])


def test_hostile_names(heatmap, tmp_path):
    names = [
        "$x_{1}$ <script>window.harm=1<%2e>.png",
        "-rf.png",
        "new\nline.png",
        "ä" * 120 + ".png",
        "ä" * 121 + ".png",
    ]
    names.append(os.fsdecode(b"\xff\xfe.png"))
    for name in names:
        write(tmp_path / "in" / name)
    (tmp_path / "in" / "bad\nname.png").write_bytes(b"")
    code, manifest, errors = heatmap("--image", "in", "--method", "edge,rollout")
    assert code == 1
    assert errors == ["visattn: in/bad name.png: the file is empty"]
    assert len(manifest["images"]) == len(names)
    files = [file for entry in manifest["images"] for file in entry["files"]]
    assert len(set(files)) == len(files) == 5 * len(names)
    assert all((tmp_path / "out" / file).is_file() for file in files)
    assert not any(re.search(r"[<>$\n/%]|^[-.]", file) for file in files)


# ---- wrong usage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "rolout"], "unknown method 'rolout': did you mean 'rollout'"),
        (["--method", ","], "--method is empty"),
        (["--target", "1000"], "class 1000 is out of range: the model has classes 0 to 999"),
        (["--target=-1"], "unknown class '-1'"),
        (["--target", "taby"], "unknown class 'taby': did you mean"),
        (["--layers", "0,6"], "the model has 6 attention layers, numbered from 0; there is no 6"),
        (["--layers", "blocks.9.attn"], "unknown attention layer 'blocks.9.attn'"),
        (["--heads", "7"], "has 2 heads, numbered from 0; there is no head 7"),
        (["--heads", "first"], "--heads must be numbers or all, got 'first'"),
        (["--batch-size", "0"], "--batch-size must be at least 1"),
        (["--device", "gpu"], "device 'gpu' cannot be used"),
    ],
)
def test_mistakes_are_said_before_anything_is_made(heatmap, tmp_path, arguments, message):
    write(tmp_path / "a.png")
    code, manifest, errors = heatmap("--image", "a.png", *arguments)
    assert (code, manifest, len(errors)) == (2, None, 1)
    assert message in errors[0]
    assert not list(tmp_path.glob("out/*"))


def test_a_method_that_does_not_fit_is_left_out(heatmap, tmp_path):
    write(tmp_path / "a.png")
    arguments = ["--image", "a.png", "--layers", "all"]
    code, manifest, errors = heatmap(*arguments, "--method", "rollout,gradcam", model="test_resnet")
    assert code == 1
    assert errors == [
        "visattn: rollout: does not apply to test_resnet: the model has no attention between tokens",
        "visattn: layers and heads: do not apply to test_resnet: the model has no attention between tokens",
    ]
    assert list(manifest["methods"]) == ["gradcam"]
    assert [each["what"] for each in manifest["left_out"]] == ["rollout", "layers and heads"]
    code, manifest, errors = heatmap("--image", "a.png", "--method", "rollout", model="test_resnet", out="other")
    assert (code, manifest, len(errors)) == (2, None, 1)


def test_a_folder_that_cannot_be_written_to(heatmap, tmp_path):
    write(tmp_path / "a.png")
    (tmp_path / "file").write_text("")
    for out in ("file", "file/inside", "/proc/heatmaps"):
        code, manifest, errors = heatmap("--image", "a.png", out=out)
        assert (code, manifest, len(errors)) == (2, None, 1)
        assert f"cannot write to {out!r}" in errors[0]


# ---- which model


def test_weights_decide_about_the_number_of_classes(heatmap, tmp_path, weights):
    write(tmp_path / "a.png")
    file = weights("test_resnet", num_classes=7)
    code, manifest, _ = heatmap(
        "--image", "a.png", "--target", "6", "--method", "gradcam", file=file, model="test_resnet"
    )
    assert code == 0
    assert manifest["images"][0]["class"] == "6"
    assert embedded(tmp_path / "out" / "index.html")["subjects"][0]["views"]["gradcam"]["target"].startswith("class 6 ")
    code, _, errors = heatmap("--image", "a.png", "--target", "7", file=file, model="test_resnet")
    assert code == 2
    assert "the model has classes 0 to 6" in errors[0]


def test_state_dicts_of_torch(heatmap, tmp_path):
    write(tmp_path / "a.png")
    state = timm.create_model("test_resnet", num_classes=3).state_dict()
    torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}, "epoch": 3}, "a.pth")
    assert heatmap("--image", "a.png", model="test_resnet", file="a.pth")[0] == 0
    torch.save({"weights": [1, 2]}, "b.pth")
    torch.save(timm.create_model("test_resnet"), "c.pth")
    (tmp_path / "d.pth").write_bytes((tmp_path / "a.pth").read_bytes()[:1000])
    (tmp_path / "e.safetensors").write_bytes(b"no")
    for name, message in (
        ("b.pth", "holds no state dict"),
        ("c.pth", "could run code"),
        ("d.pth", "not a whole checkpoint"),
        ("e.safetensors", "cannot be read as safetensors"),
        ("f.pth", "there is no file and no folder"),
    ):
        code, _, errors = heatmap("--image", "a.png", model="test_resnet", file=name, out="bad")
        assert (code, len(errors)) == (2, 1), name
        assert message in errors[0]


def test_weights_that_do_not_fit(heatmap, tmp_path, weights):
    write(tmp_path / "a.png")
    code, _, errors = heatmap("--image", "a.png", model="test_vit", file=weights("test_resnet"))
    assert (code, len(errors)) == (2, 1)
    assert re.search(r"does not fit 'test_vit': \d+ missing \(.* more\); \d+ unexpected \(.* more\)", errors[0])
    code, _, errors = heatmap("--image", "a.png", model="test_vit2", file=weights("test_vit"))
    assert (code, len(errors)) == (2, 1)
    assert re.search(r"does not fit 'test_vit2': \d+ missing \(reg_token, ", errors[0])
    code, _, errors = heatmap("--image", "a.png", model="test_resnet_cbam", file=weights("test_resnet"))
    assert (code, len(errors)) == (2, 1)  # untrained attention would give a picture of nothing


@pytest.fixture
def run(tmp_path):
    """What a training run leaves: a card, weights, and a checkpoint that has the card too."""
    folder = tmp_path / "runs" / "mine"
    model = visattn.create_model("test_resnet", attn="eca", num_classes=3)
    seen = {"size": [3, 64, 64], "mean": [0.1, 0.2, 0.3], "std": [1, 1, 1], "crop_pct": 1.0}
    classes = {"classes": ["n1", "n2", "n3"], "class_names": ["cat, Felis", "dog, with comma", "12"]}
    card = {**describe(model), **classes, "input": seen}
    write_model(folder, model.state_dict(), card)
    (folder / "checkpoints").mkdir()
    state = {f"model.{key}": value for key, value in model.state_dict().items()}
    checkpoint = {"state_dict": state, "pytorch-lightning_version": "2.6", "epoch": 1, "card": card}
    torch.save(checkpoint, folder / "checkpoints/best.ckpt")
    return folder


@pytest.mark.parametrize("place", ["", "model.safetensors", "checkpoints/best.ckpt"])
def test_weights_of_a_run(heatmap, tmp_path, run, place):
    write(tmp_path / "a.png", photo(64, 64))
    asked = ("--image", "a.png", "--target", "cat", "--method", "gradcam")
    code, manifest, errors = heatmap("--weights", run / place, *asked, model=None)
    assert (code, errors) == (0, [])
    assert manifest["model"] == "test_resnet_eca"
    expected = {"size": [3, 64, 64], "mean": [0.1, 0.2, 0.3], "std": [1, 1, 1], "crop_pct": 1.0}
    assert manifest["input"] == {**expected, "interpolation": "bilinear", "crop_mode": "center"}
    assert (manifest["images"][0]["target"], manifest["images"][0]["class"]) == (0, "cat")
    assert np.load(tmp_path / "out" / "a_gradcam.npy").shape == (64, 64)


@pytest.mark.parametrize(("target", "index"), [("dog, with comma", 1), ("12", 2), ("1", 1)])
def test_classes_have_names_or_numbers(heatmap, tmp_path, run, target, index):
    write(tmp_path / "a.png")
    arguments = ["--image", "a.png", "--method", "edge", "--target", target]
    _, manifest, _ = heatmap("--weights", run, *arguments, model=None)
    assert manifest["images"][0]["target"] == index


def test_a_run_that_has_not_ended(heatmap, tmp_path, run):
    write(tmp_path / "a.png", photo(64, 64))
    (run / "model.json").unlink()
    (run / "model.safetensors").unlink()
    for place in (run, run / "checkpoints" / "best.ckpt"):
        code, manifest, _ = heatmap("--weights", place, "--image", "a.png", model=None)
        assert (code, manifest["model"], manifest["input"]["size"]) == (0, "test_resnet_eca", [3, 64, 64])
        assert manifest["images"][0]["class"] in ("cat", "dog", "12")
    checkpoint = run / "checkpoints" / "best.ckpt"
    content = torch.load(checkpoint, weights_only=True)
    del content["card"]
    torch.save(content, checkpoint)
    code, _, errors = heatmap("--weights", checkpoint, "--image", "a.png", model=None)
    assert (code, len(errors)) == (2, 1)
    assert "does not say what model it is of: name the model as well" in errors[0]
    code, manifest, _ = heatmap("--image", "a.png", model="test_resnet_eca", file=checkpoint)
    assert (code, manifest["input"]["size"]) == (0, [3, 160, 160])


def test_a_run_of_another_model(heatmap, tmp_path, run):
    write(tmp_path / "a.png")
    assert heatmap("--image", "a.png", model="test_resnet_eca", file=run)[0] == 0
    code, _, errors = heatmap("--image", "a.png", model="test_vit", file=run)
    assert (code, len(errors)) == (2, 1)
    assert "is of test_resnet_eca, not of 'test_vit'" in errors[0]


def test_a_run_that_says_nonsense(heatmap, tmp_path, run):
    write(tmp_path / "a.png")
    for text in ("{}", "{", "[1]"):
        (run / "model.json").write_text(text)
        code, _, errors = heatmap("--weights", run, "--image", "a.png", model=None)
        assert (code, len(errors)) == (2, 1)


def test_no_model(heatmap, tmp_path):
    write(tmp_path / "a.png")
    code, _, errors = heatmap("--image", "a.png", model=None)
    assert (code, errors) == (2, ["visattn: which model? give --model, or --weights with the folder of a run"])
    assert main(["heatmap", "--image", "a.png", "--model", "resnet999"]) == 2


def test_pretrained_weights_without_a_network(elsewhere, monkeypatch, capsys):
    write(elsewhere / "a.png")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(elsewhere / "cache"))
    assert main(["heatmap", "--model", "test_vit", "--image", "a.png"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "pretrained weights of 'test_vit' could not be fetched" in said.err
    assert "give --weights" in said.err


# ---- in a browser


def test_the_page_answers_clicks(heatmap, tmp_path, browser):  # noqa: F811
    write(tmp_path / "a <b>.png")
    write(tmp_path / "b.png", photo(200, 150))
    heatmap("--image", "a <b>.png", "b.png", "--method", "rollout,gradcam", "--target", "tabby")
    troubles = []
    page = browser.new_page()
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: None if local(request.url) else troubles.append(request.url))
    page.goto((tmp_path / "out" / "index.html").as_uri())
    ready(page)
    assert page.title() == "What test_vit looks at"
    assert page.text_content("#subject").startswith("a <b>.png  ·  ")
    assert page.text_content("#about") == "rollout  ·  6 layers"
    page.click('[data-method="gradcam"]')
    assert re.fullmatch(r"gradcam  ·  tabby \d+%  ·  blocks\.\d", page.text_content("#about"))
    page.click('[data-mode="patches"]')
    assert page.locator("#layer option").all_text_contents() == [f"blocks.{i}.attn" for i in range(6)]
    box = page.locator("#view").bounding_box()
    page.click("#view", position={"x": 0.95 * box["width"], "y": 0.55 * box["height"]})
    assert "the patch in row 6, column 10 attends to in blocks.0.attn" in page.text_content("#about")
    page.close()
    assert troubles == []


def test_a_model_without_classes(heatmap, tmp_path):
    write(tmp_path / "a.png")
    for model, expected in (("test_vit", ["rollout"]), ("test_resnet", ["eigencam"])):
        visattn.save_model(timm.create_model(model, num_classes=0), tmp_path / "encoder" / model)
        code, manifest, errors = heatmap("--image", "a.png", "--weights", f"encoder/{model}", model=None, out=model)
        assert (code, errors, list(manifest["methods"])) == (0, [], expected)
        (entry,) = manifest["images"]
        said = {"target", "class", "probability", "predicted", "predicted_class", "predicted_probability"}
        assert {entry[key] for key in said} == {None}
        assert "%" not in embedded(tmp_path / model / "index.html")["subjects"][0]["title"]


def test_a_folder_of_its_own_is_written_to_again_even_after_a_kill(heatmap, tmp_path):
    write(tmp_path / "a.png")
    assert heatmap("--image", "a.png", "--method", "edge")[0] == 0
    assert heatmap("--image", "a.png", "--method", "center")[0] == 0
    mark(tmp_path / "killed")
    (tmp_path / "killed" / "a_edge.png").write_bytes(b"")
    (tmp_path / "killed" / "b_edge.png").write_bytes(b"")
    code, _, said = heatmap("--image", "a.png", "--method", "edge", out="killed")
    assert code == 0
    assert said == ["visattn: note: killed also has files that are not of this run: b_edge.png"]
    assert heatmap("--image", "a.png", "--method", "edge")[2] == []


def test_a_foreign_folder_is_left_alone(heatmap, tmp_path):
    write(tmp_path / "a.png")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("mine")
    code, _, errors = heatmap("--image", "a.png", "--method", "edge", out="site")
    assert code == 2
    assert "did not write ('index.html')" in errors[0]
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["index.html"]
    assert (tmp_path / "site" / "index.html").read_text() == "mine"


@pytest.mark.slow
def test_heatmaps_of_an_earlier_run_are_removed_and_nothing_else(heatmap, tmp_path):
    write(tmp_path / "a.png")
    write(tmp_path / "b.png")
    code, before, _ = heatmap("--image", "a.png", "b.png", "--method", "rollout,center")
    assert code == 0
    (tmp_path / "out" / "notes.txt").write_text("mine")
    (tmp_path / "out" / "c_rollout.png").write_text("mine")
    listed = {name for image in before["images"] for name in image["files"]}
    assert "b_center.npy" in listed
    code, after, _ = heatmap("--image", "a.png", "--method", "rollout")
    assert code == 0
    kept = {name for image in after["images"] for name in image["files"]}
    there = {path.name for path in (tmp_path / "out").iterdir()}
    assert there == kept | {"notes.txt", "c_rollout.png", "comparison.png", "index.html", "manifest.json"}


@pytest.mark.slow
@pytest.mark.parametrize("files", [["../a.png", "/a.png", "..", ".", "", "x\0y", 5, None], "a.png", None, [["a.png"]]])
def test_a_manifest_removes_nothing_elsewhere(heatmap, tmp_path, files):
    write(tmp_path / "a.png")
    assert heatmap("--image", "a.png", "--method", "center")[0] == 0
    manifest = tmp_path / "out" / "manifest.json"
    said = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**said, "images": [{"files": files}, 3], "sheets": files, "page": files}))
    assert heatmap("--image", "a.png", "--method", "center")[0] == 0
    assert (tmp_path / "a.png").is_file()

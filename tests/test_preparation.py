"""One way an image becomes a tensor: timm's evaluation, the same for everybody, and back from a card."""

import json
import pickle
from dataclasses import asdict, replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from skimage import data
from timm.data import create_dataset, create_loader, create_transform, resolve_model_data_config

from visattn.data.preparation import RATIO, Preparation

PHOTOGRAPHS = ("chelsea", "coffee", "rocket", "astronaut")  # 300 x 451, 400 x 600, 427 x 640, 512 x 512
WAYS = [
    {},
    {"crop_pct": 0.875, "interpolation": "bicubic"},
    {"crop_pct": 0.9, "crop_mode": "squash", "interpolation": "bicubic"},
    {"crop_pct": 1.0, "crop_mode": "squash"},
    {"crop_pct": 1.0, "crop_mode": "border", "interpolation": "bicubic"},
    {"crop_pct": 0.94, "crop_mode": "border"},
    {"crop_pct": 1.15, "interpolation": "bicubic"},  # VOLO: more than there is
]

SHIFTS = [(0, 0), (2, 0), (-2, 0), (2, 1), (-2, 1)]


def preparation(side=96, channels=3, **options):
    normal = {"mean": (0.55, 0.43, 0.36), "std": (0.21, 0.24, 0.25)}
    if channels == 1:
        normal = {"mean": (0.45,), "std": (0.23,)}
    return Preparation((channels, side, side), **normal, **options)


def as_timm(prepared):
    return {"input_size": prepared.size, "mean": prepared.mean, "std": prepared.std, "crop_pct": prepared.crop_pct,
            "interpolation": prepared.interpolation, "crop_mode": prepared.crop_mode}  # fmt: skip


# ---- the first stage: pixels


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_pixels_are_those_of_timm(options):
    prepared = preparation(**options)
    transform = create_transform(**as_timm(prepared), is_training=False, use_prefetcher=True)
    for name in PHOTOGRAPHS:
        photograph = getattr(data, name)()
        for image in (photograph, np.rot90(photograph), photograph[::5, ::5]):
            expected = transform(Image.fromarray(image)).permute(1, 2, 0).numpy()
            assert np.array_equal(prepared.pixels(image), expected)


@pytest.mark.parametrize("name", ["test_vit", "resnet50", "vit_base_patch16_clip_224.openai", "volo_d4_448"])
def test_a_model_of_timm_is_evaluated_as_timm_does(name):
    config = timm.get_pretrained_cfg(name).to_dict()
    model = torch.nn.Identity()
    model.pretrained_cfg = config
    prepared = Preparation.of(model)
    transform = create_transform(**resolve_model_data_config(model), is_training=False, use_prefetcher=True)
    image = data.coffee()
    assert torch.equal(torch.from_numpy(prepared.pixels(image)).permute(2, 0, 1), transform(Image.fromarray(image)))


# timm leaves it to the garbage collector to close its files
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("options", WAYS[:5], ids=str)
def test_tensors_are_those_of_timms_loader(tmp_path, options):
    """From files to normalised batches, bit for bit."""
    (tmp_path / "class").mkdir()
    for name in PHOTOGRAPHS:
        Image.fromarray(getattr(data, name)()).save(tmp_path / "class" / f"{name}.png")
    prepared = preparation(**options)
    loader = create_loader(
        create_dataset("", root=str(tmp_path)), batch_size=4, num_workers=0, is_training=False, pin_memory=False,
        device=torch.device("cpu"), **as_timm(prepared),
    )  # fmt: skip
    ((batch, _),) = loader
    assert torch.equal(prepared.batch([getattr(data, name)() for name in sorted(PHOTOGRAPHS)]), batch)


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
def test_an_image_that_fits_costs_nothing(mode):
    image = data.astronaut()[:96, :96]
    assert preparation(crop_mode=mode).pixels(image) is image
    assert preparation(crop_mode=mode, crop_pct=0.9).pixels(image) is not image
    transform = create_transform(**as_timm(preparation(crop_mode=mode)), is_training=False, use_prefetcher=True)
    assert np.array_equal(transform(Image.fromarray(image)).permute(1, 2, 0).numpy(), image)


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize("shape", [(1, 5000), (5000, 1), (1, 1_000_000), (3, 2)])
def test_images_of_any_shape_are_prepared(mode, shape):
    """As long as timm could do it, a thread of a million pixels would be scaled to 96 million."""
    image = np.full((*shape, 3), 200, np.uint8)
    assert preparation(28, crop_mode=mode).pixels(image).shape == (28, 28, 3)
    assert min(preparation(28, crop_mode=mode).shown(image).shape[:2]) > 0


def test_another_default_precision_changes_nothing_later():
    image, prepared = data.astronaut(), replace(preparation(64), mean=(0.111, 0.222, 0.333))
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        prepared.batch([image])
    finally:
        torch.set_default_dtype(before)
    pixels = torch.from_numpy(prepared.pixels(image)).permute(2, 0, 1) / 255
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (prepared.mean, prepared.std))
    torch.testing.assert_close(prepared.batch([image])[0], (pixels - mean) / std)


def test_what_is_not_very_long_is_not_cut():
    image = np.random.default_rng(0).integers(0, 256, (20, 20 * RATIO, 3), dtype=np.uint8)
    prepared = preparation(crop_mode="border")
    transform = create_transform(**as_timm(prepared), is_training=False, use_prefetcher=True)
    assert np.array_equal(prepared.pixels(image), transform(Image.fromarray(image)).permute(1, 2, 0).numpy())


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_masks_go_where_the_image_goes(options):
    """The mask of a bright disc is where the disc is seen, and it has no frame."""
    rows, columns = np.ogrid[:200, :340]
    disc = (rows - 90) ** 2 + (columns - 150) ** 2 < 40**2
    image = np.repeat(disc[..., None] * np.uint8(255), 3, 2)
    prepared = replace(preparation(**options), mean=(0.1, 0.1, 0.1))
    mask, seen = prepared.mask(disc), prepared.pixels(image)[..., 0]
    assert (mask.shape, mask.dtype) == ((96, 96), np.bool_)
    assert (mask != (seen > 127)).mean() < 0.01
    assert mask.any()
    assert not mask[0].any()


# ---- the same part for a person


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("shape", [(240, 400), (400, 240), (300, 300)])
def test_the_box_is_where_the_pixels_come_from(options, shape):
    """An image whose colours are its coordinates: each pixel tells where it was."""
    height, width = shape
    down, across = np.mgrid[:height, :width]
    image = np.stack([across * 250 / width, down * 250 / height, np.full(shape, 255)], -1).round().astype(np.uint8)
    prepared = replace(preparation(80, **options), mean=(0.0, 0.0, 0.0))
    left, top, right, bottom = prepared.box(width, height)
    seen = prepared.pixels(image).astype(float)
    inside = seen[..., 2] == 255
    middles = (np.arange(80) + 0.5) / 80
    columns, rows = left + middles * (right - left), top + middles * (bottom - top)
    pixel = max(right - left, bottom - top) / 80
    for expected, found, length in (
        (np.broadcast_to(columns, (80, 80)), seen[..., 0], width),
        (np.broadcast_to(rows[:, None], (80, 80)), seen[..., 1], height),
    ):
        place = found / 250 * length + 0.5
        well_inside = inside & (expected > 2 * pixel) & (expected < length - 2 * pixel)
        assert well_inside.sum() > 1000
        assert np.abs(place - expected)[well_inside].max() < 1.1 * pixel + length / 250
    beyond = (columns < -pixel) | (columns > width + pixel)
    assert not inside[:, beyond].any()


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("name", ["chelsea", "rocket"])
def test_a_person_sees_the_same_picture(options, name):
    photograph = getattr(data, name)()
    tiny = np.asarray(Image.fromarray(photograph).resize((110, 70), Image.Resampling.BOX))
    for image in (photograph, np.rot90(photograph), tiny):
        prepared = preparation(**options)
        seen, shown = prepared.pixels(image), prepared.shown(image)
        small = np.asarray(Image.fromarray(shown).resize((96, 96), Image.Resampling.BICUBIC))
        assert 320 <= max(shown.shape) <= 640
        off = [np.abs(np.roll(small, shift, axis).astype(int) - seen).mean() for shift, axis in SHIFTS]
        assert min(off) == off[0] < 12  # timm cuts at whole pixels of its own, up to half of one beside the middle


# ---- the second stage: numbers


@pytest.mark.parametrize("channels", [1, 3])
def test_normalisation_is_the_same_in_every_layout_and_batch(channels):
    prepared = preparation(48, channels)
    pixels = torch.from_numpy(np.stack([data.coffee()[i : i + 48, i : i + 48] for i in range(8)])).permute(0, 3, 1, 2)
    before = pixels.clone()
    expected = prepared.normalise(pixels)
    assert expected.shape == (8, channels, 48, 48)
    assert expected.is_contiguous()
    last = prepared.normalise(pixels, torch.channels_last)
    assert channels == 1 or not last.is_contiguous()
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last, expected)
    assert torch.equal(torch.cat([prepared.normalise(each[None].contiguous()) for each in pixels]), expected)
    assert torch.equal(pixels, before)
    exact = pixels.double() / 255
    if channels == 1:
        exact = (exact * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)
    exact = (exact - torch.tensor(prepared.mean).view(-1, 1, 1)) / torch.tensor(prepared.std).view(-1, 1, 1)
    tolerance = 1e-6 if channels == 3 else 0.51 / 255 / 0.23  # grey is a whole number
    torch.testing.assert_close(expected.double(), exact, rtol=0, atol=tolerance)


def test_normalising_makes_no_tensor_from_python_numbers(monkeypatch):
    """On a GPU each would make the host wait; they are made once for a device."""
    prepared, pixels = preparation(8), torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    expected = prepared.normalise(pixels)

    def never(*_args, **_kwargs):
        raise AssertionError("a tensor per batch")

    for maker in ("tensor", "as_tensor", "full", "from_numpy"):
        monkeypatch.setattr(torch, maker, never)
    assert torch.equal(prepared.normalise(pixels), expected)
    with pytest.raises(AssertionError, match="a tensor per batch"):
        replace(prepared, mean=(0.1, 0.2, 0.3)).normalise(pixels)


def test_numbers_made_in_inference_mode_serve_training_too():
    prepared = replace(preparation(8), mean=(0.11, 0.22, 0.33))
    pixels = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    with torch.inference_mode():
        prepared.normalise(pixels)
    scale = torch.ones(3, 1, 1, requires_grad=True)
    (prepared.normalise(pixels) * scale).sum().backward()
    assert scale.grad is not None


def test_what_is_normalised_already_is_refused():
    with pytest.raises(TypeError, match=r"pixels must be integers from 0 to 255 \(uint8\), got torch.float32"):
        preparation(8).normalise(torch.zeros(1, 3, 8, 8))


# ---- on a card


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_card_gives_the_preparation_back(options, channels):
    prepared = replace(preparation(64, channels, **options), std=(1 / 3,) * channels)
    card = json.loads(json.dumps(asdict(prepared)))
    model = timm.create_model("test_vit")  # another size, mean, crop and interpolation
    assert Preparation.of(model, card) == prepared
    assert pickle.loads(pickle.dumps(prepared)) == prepared


def test_old_cards_are_completed_by_the_model():
    model = timm.create_model("test_vit")
    own = Preparation.of(model)
    old = {"size": [3, 64, 64], "range": "RGB", "mean": [0.1, 0.2, 0.3], "std": [1, 1, 1], "crop_pct": 1.0}
    expected = replace(own, size=(3, 64, 64), mean=(0.1, 0.2, 0.3), std=(1, 1, 1), crop_pct=1.0)
    assert Preparation.of(model, old) == expected
    assert (own.interpolation, own.crop_mode) == (expected.interpolation, expected.crop_mode) == ("bicubic", "center")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"interpolation": "bicubik"}, "unknown interpolation 'bicubik': did you mean 'bicubic'"),
        ({"crop_mode": "centre"}, "unknown crop_mode 'centre': did you mean 'center'"),
        ({"crop_pct": 0}, "crop_pct must be between 0 and 2, got 0"),
        ({"crop_pct": 0.001}, "would resize images to 160000 x 160000 pixels"),
        ({"crop_pct": 87.5}, "crop_pct must be between 0 and 2, got 87.5"),
        ({"size": [64, 64]}, r"must be \(channels, height, width\), got \(64, 64\)"),
        ({"size": [4, 64, 64]}, "the model's input has 4 channels"),
    ],
)
def test_nonsense_on_a_card_is_explained(wrong, message):
    with pytest.raises(ValueError, match=message):
        Preparation.of(timm.create_model("test_vit"), wrong)

"""The embedded data: real handwriting, a true mask, the same images everywhere."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from visattn.data import digits
from visattn.data.digits import Digits

DIFFICULTIES = ["centered", "translated", "cluttered"]


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_an_image_is_a_function_of_seed_and_index(difficulty):
    first, again = Digits("train", difficulty, seed=3), Digits("train", difficulty, seed=3)
    for index in (0, 1, 12_345):
        for one, other in zip(first.sample(index), again.sample(index), strict=True):
            np.testing.assert_array_equal(one, other)
    image, _, _ = first.sample(0)
    assert not np.array_equal(image, first.sample(1)[0])
    assert not np.array_equal(image, Digits("train", difficulty, seed=4).sample(0)[0])
    assert not np.array_equal(image, Digits("val", difficulty, seed=3).sample(0)[0])


def test_training_and_validation_share_no_handwriting():
    train, train_labels = digits._handwriting("train")
    val, val_labels = digits._handwriting("val")
    assert len(train) + len(val) == len(load_digits().target) == 1797
    assert not {image.tobytes() for image in train} & {image.tobytes() for image in val}
    assert set(train_labels) == set(val_labels) == set(range(10))


@pytest.mark.parametrize("split", ["train", "val"])
def test_every_pixel_comes_from_handwriting_of_its_own_split(split, monkeypatch):
    """Digits of the other split are painted over: nothing changes."""
    expected = [Digits(split).sample(index)[0] for index in range(5)]
    real, other = digits._handwriting, {"train": "val", "val": "train"}[split]
    monkeypatch.setattr(
        digits, "_handwriting", lambda name: (np.zeros((9, 8, 8), np.uint8), None) if name == other else real(name)
    )
    for index, image in enumerate(expected):
        np.testing.assert_array_equal(Digits(split).sample(index)[0], image)


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_the_mask_is_the_ink_of_the_true_digit(difficulty):
    for index in range(50):
        image, label, mask = Digits("val", difficulty).sample(index)
        assert image.shape == mask.shape == (64, 64)
        assert image.dtype == np.uint8
        assert 0 <= label <= 9
        assert 0.03 < mask.mean() < 0.5
        assert image[mask].min() > digits.INK
        if difficulty != "cluttered":
            assert image[~mask].max() <= digits.INK


def test_difficulties_differ_as_they_say():
    def centres(difficulty):
        masks = [Digits("val", difficulty).sample(index)[2] for index in range(100)]
        return np.array([np.argwhere(mask).mean(0) for mask in masks])

    assert centres("centered").std(0).max() < 3 < centres("translated").std(0).min()
    outside = [
        (image > digits.INK)[~mask].any() for image, _, mask in map(Digits("val", "cluttered").sample, range(100))
    ]
    assert np.mean(outside) > 0.9


def test_all_digits_occur_equally_often():
    counts = np.bincount([Digits("train").sample(index)[1] for index in range(1000)], minlength=10)
    assert counts.min() > 60


def test_a_wrong_difficulty_is_explained():
    with pytest.raises(ValueError, match=r"unknown difficulty 'cluterd': did you mean 'cluttered'"):
        Digits("train", "cluterd")

"""Whether the heat is on the object: scores, masks of files, and mosaics."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from tests.reference.scoring import localisation as reference
from visattn.data.annotations import find_annotations, read_annotation, read_boxes
from visattn.scoring.engine import Engine
from visattn.scoring.localisation import LOCALISATION, check_masks
from visattn.scoring.mosaics import Mosaics, make_mosaics
from visattn.scoring.ranking import Ranking

SIZE = (40, 30)


@pytest.fixture(scope="module")
def masks():
    """A disk, a frame, and a lonely pixel."""
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]]
    disk = (rows - 15) ** 2 + (columns - 12) ** 2 < 60
    frame = (rows < 3) | (columns > 25)
    pixel = (rows == 39) & (columns == 0)
    return torch.from_numpy(np.stack([disk, frame, pixel]))


def test_scores_equal_their_definitions(masks):
    maps = torch.randn(3, *SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    maps[2, 38, 1] = 9.0  # near the lonely pixel: the tolerance is 1.2 pixels, this is 1.4 away
    maps[1, 3, 4] = 9.0  # just outside of the frame, but within the tolerance
    ranking = Ranking(maps)
    for name in LOCALISATION:
        found = LOCALISATION[name](ranking, masks)
        for number in range(3):
            relevance, mask = maps[number].numpy(), masks[number].numpy()
            heat = reference.shown(relevance)
            wanted = {
                "pointing": reference.pointing(heat, mask, 0.03 * 40),
                "energy": reference.share(heat, mask),
                "mass": reference.share(np.maximum(relevance, 0), mask),
                "rank": reference.rank(heat, mask),
                "iou": reference.iou(heat, mask),
            }[name]
            assert found[number].item() == pytest.approx(wanted, abs=1e-5), name
    assert LOCALISATION["pointing"](ranking, masks)[1:].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("name", LOCALISATION)
def test_the_mask_itself_is_perfect_and_its_inverse_is_not(name, masks):
    exact, inverse = Ranking(masks.float()), Ranking(1 - masks.float())
    assert (LOCALISATION[name](exact, masks) == 1).all()
    assert (LOCALISATION[name](inverse, masks) < 0.2).all()


def test_a_heatmap_without_heat_finds_nothing(masks):
    empty = Ranking(torch.zeros(3, 7, 7))
    for name in ("energy", "mass"):
        assert (LOCALISATION[name](empty, masks) == 0).all()
    near = LOCALISATION["pointing"](empty, masks)
    assert masks[0].float().mean() < near[0] < 0.5  # by chance


# ---- files

VOC = """<annotation><size><width>30</width><height>40</height></size>
<object><name>dog</name><bndbox><xmin>3</xmin><ymin>5</ymin><xmax>10</xmax><ymax>8</ymax></bndbox>
<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>30</xmax><ymax>40</ymax></bndbox></part></object>
<object><name>cat</name><bndbox><ymin>20</ymin><xmin>30</xmin><ymax>40</ymax><xmax>30.0</xmax></bndbox></object>
</annotation>"""


def test_boxes_of_pascal_voc(tmp_path):
    (tmp_path / "a.xml").write_text(VOC)
    boxes = [(3, 5, 10, 8), (30, 20, 30, 40)]  # parts are no objects
    assert read_boxes(tmp_path / "a.xml") == (boxes, (40, 30))
    mask = read_annotation(tmp_path / "a.xml", SIZE)
    assert mask.sum() == 8 * 4 + 21
    assert mask[4, 2]
    assert mask[39, 29]


def test_masks_in_pictures(tmp_path):
    mask = np.zeros((*SIZE, 3), np.uint8)
    mask[5:7, 3:9] = (0, 0, 1)
    Image.fromarray(mask).save(tmp_path / "a.b.png")
    (tmp_path / "notes.txt").write_text("not a mask")
    found = find_annotations(tmp_path)
    assert list(found) == ["a.b"]
    assert read_annotation(found["a.b"], SIZE).sum() == 12


def test_masks_of_sixteen_bits_keep_small_numbers(tmp_path):
    mask = np.zeros(SIZE, np.uint16)
    mask[5:7, 3:9], mask[20, 20] = 1, 1000
    Image.fromarray(mask).save(tmp_path / "a.png")
    assert read_annotation(tmp_path / "a.png", SIZE).sum() == 13


LAUGHS = '<!DOCTYPE a [<!ENTITY b "ha"><!ENTITY c "&b;&b;&b;">]><annotation><object>&c;</object></annotation>'
OUTSIDE = '<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation/>'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LAUGHS, "declares a document type"),
        (LAUGHS.encode("utf-16"), "declares a document type"),
        (OUTSIDE, "declares a document type"),
        ("<annotation>", "is not XML"),
        ("", "is not XML"),
        (VOC.replace("<xmin>3</xmin>", ""), "without a box of four numbers"),
        (VOC.replace(">3<", ">nan<"), "without a box of four numbers"),
        (VOC.replace(">3<", ">inf<"), "without a box of four numbers"),
        (VOC.replace(">3<", ">31<"), "is not in an image of 30 x 40 pixels"),
        (VOC.replace(">3<", ">0<"), "is not in an image of 30 x 40 pixels"),
    ],
)
def test_bad_boxes(tmp_path, content, message):
    path = tmp_path / "a.xml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        read_annotation(path, SIZE)


def test_a_mask_of_another_size(tmp_path):
    Image.new("RGB", (31, 40)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="is 31 x 40, but its image is 30 x 40 pixels"):
        read_annotation(tmp_path / "a.png", SIZE)


def test_two_masks_of_one_image(tmp_path):
    for name in ("a.png", "a.xml"):
        (tmp_path / name).write_text("")
    with pytest.raises(ValueError, match=r"two files for 'a': 'a.png' and 'a.xml'"):
        find_annotations(tmp_path)


@pytest.mark.parametrize("share", [0, 1])
def test_masks_that_tell_nothing(share):
    with pytest.raises(ValueError, match="the mask of image 1 is"):
        check_masks(torch.stack([torch.eye(4) > 0, torch.full((4, 4), bool(share))]), 2, (4, 4))


# ---- mosaics


class Colours(nn.Module):
    """Sees which of three colours there is most of, at any size unless it is told one."""

    def __init__(self, size=None):
        super().__init__()
        self.size = size
        self.scale = nn.Parameter(torch.tensor(30.0))

    def forward(self, x):
        assert self.size in (None, x.shape[-1]), "wrong size"
        return self.scale * x.mean((2, 3))


def colours(number=12, side=8):
    images = torch.zeros(number, 3, side, side)
    for i in range(number):
        images[i, i % 3] = 1
    return images


@pytest.mark.parametrize("size", [None, 8])
def test_the_colour_itself_finds_its_place(size):
    images = colours()
    mosaics = make_mosaics(Colours(size), Engine(Colours(size), images), most=10)
    assert mosaics.images.shape == (10, 3, *((16, 16) if size is None else (8, 8)))
    evidence = mosaics.images[torch.arange(10), mosaics.target]
    assert (mosaics.score(Ranking(evidence)) == 1).all()
    assert (mosaics.score(Ranking(1 - evidence)) == 0).all()
    torch.testing.assert_close(mosaics.score(Ranking(torch.ones(10, 7, 7))), torch.full((10,), 0.25))
    assert len(mosaics.place.unique()) > 1
    other = make_mosaics(Colours(size), Engine(Colours(size), images), most=10)
    assert torch.equal(mosaics.images, other.images)


def test_places_are_counted_row_by_row():
    maps = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]).repeat(4, 1, 1)
    mosaics = Mosaics(torch.zeros(4, 3, 6, 6), torch.zeros(4), torch.arange(4), torch.arange(4))
    torch.testing.assert_close(mosaics.score(Ranking(maps)), torch.tensor([0.1, 0.2, 0.3, 0.4]))


def test_two_classes_are_enough():
    images = colours()[[0, 1, 3, 4]]
    mosaics = make_mosaics(Colours(), Engine(Colours(), images), most=4)
    evidence = mosaics.images[torch.arange(4), mosaics.target]
    assert (mosaics.score(Ranking(evidence)) == 1).all()


def test_no_confident_image():
    unsure = Colours()
    nn.init.constant_(unsure.scale, 0.1)
    with pytest.raises(ValueError, match=r"it is sure of 0 of 12 images, of 0 classes"):
        make_mosaics(unsure, Engine(unsure, colours()), most=4)

import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image

from visattn.report.curves import draw_confusion, read_confusion
from visattn.report.figures import DPI, overlay
from visattn.report.fonts import drawable, fonts_for
from visattn.report.heatmaps import Answer
from visattn.report.paths import draw_fixations, draw_paths
from visattn.report.sheets import Sheet, _captions, draw_channels, draw_comparison, draw_grid, draw_strip
from visattn.report.views import Channels, Fixations, Relation, Subject, View
from visattn.training.record import _write_rows

BLUE = (0, 0, 255)  # neither in a heatmap over a grey image nor in the text
SHAPES = {"wide": (60, 120), "tall": (150, 50), "square": (80, 80), "large": (1500, 2000)}


def picture(shape):
    """Grey, with a blue square of a third of the shorter side in the upper left quarter."""
    image = np.full((*shape, 3), 128, np.uint8)
    image[square(shape)] = BLUE
    return image


def square(shape):
    side = min(shape) // 3
    return slice(shape[0] // 10, shape[0] // 10 + side), slice(shape[1] // 10, shape[1] // 10 + side)


def spot(shape, value=1.0):
    """A heatmap that is `value` in the lower right quarter."""
    heatmap = np.zeros(shape, np.float32)
    heatmap[shape[0] // 2 :, shape[1] // 2 :] = value
    return heatmap


def subject(name, shape, methods=("rollout", "grad-cam")):
    return Subject(name, picture(shape), "tabby", 0.71, tuple(View(method, spot(shape)) for method in methods))


def read(path):
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def blue(sheet):
    return (sheet[..., 2] > 160) & (sheet[..., 0] < 90) & (sheet[..., 1] < 90)


def extent(mask):
    """First row, first column, height and width of what is marked."""
    rows, columns = np.nonzero(mask.any(1))[0], np.nonzero(mask.any(0))[0]
    return rows[0], columns[0], rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1


def near(sheet, colour, tolerance=12):
    return (np.abs(sheet - np.array(colour)) <= tolerance).all(-1)


HOT = overlay(np.full((1, 1, 3), 128, np.uint8), np.ones((1, 1), np.float32))[0, 0]
COLD = overlay(np.full((1, 1, 3), 128, np.uint8), np.zeros((1, 1), np.float32))[0, 0]


def test_squares_stay_square_in_a_comparison(tmp_path):
    for name, shape in SHAPES.items():
        (path,) = draw_comparison(tmp_path / f"{name}.png", [subject(name, shape)], "title")
        _, _, height, width = extent(blue(read(path)))
        assert height == pytest.approx(width, abs=2)
        assert height > 15


def test_images_of_all_shapes_on_one_sheet(tmp_path):
    (path,) = draw_comparison(tmp_path / "all.png", [subject(*item) for item in SHAPES.items()], "title")
    sheet = read(path)
    rows = np.nonzero(np.diff(blue(sheet).any(1).astype(int)) == 1)[0]
    assert len(rows) == len(SHAPES)
    for start, end in zip(rows, [*rows[1:], len(sheet)], strict=True):
        _, _, height, width = extent(blue(sheet[start:end]))
        assert height == pytest.approx(width, abs=2)


def test_heatmaps_lie_where_they_say(tmp_path):
    (path,) = draw_comparison(tmp_path / "c.png", [subject("a", (60, 120), ("rollout",))], "title")
    sheet = read(path)
    top, left, height, width = extent(near(sheet, HOT, 3) & (np.arange(sheet.shape[1]) < 4.3 * DPI))  # not in the bar
    assert (height, width) == pytest.approx((0.5 * DPI, DPI), abs=2)  # half of an image that is two inches wide
    whole = near(sheet, HOT) | near(sheet, COLD)
    whole[:, int(4.3 * DPI) :] = False
    first, start, all_rows, all_columns = extent(whole)
    assert (top + height, left + width) == pytest.approx((first + all_rows, start + all_columns), abs=2)


def test_a_sheet_for_every_twelve_images(tmp_path):
    many = [subject(f"{number}.png", (20, 40), ("rollout",)) for number in range(25)]
    paths = draw_comparison(tmp_path / "comparison.png", many, "title")
    assert [path.name for path in paths] == ["comparison.png", "comparison-2.png", "comparison-3.png"]
    counts = [int((np.diff(blue(read(path)).any(1).astype(int)) == 1).sum()) for path in paths]
    assert counts == [12, 12, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths)


def test_empty_heatmap_says_so(tmp_path):
    shape = (80, 80)
    found = Subject("a", picture(shape), "b", 0.5, (View("m", spot(shape, 0.001)),))
    nothing = Subject("a", picture(shape), "b", 0.5, (View("m", spot(shape, 0)),))
    (with_map,) = draw_comparison(tmp_path / "with.png", [found], "title")
    (without,) = draw_comparison(tmp_path / "without.png", [nothing], "title")
    letters = np.abs(read(without) - read(with_map)).sum(-1) > 100
    _, left, height, width = extent(letters)
    assert 0.4 * DPI < width < 1.5 * DPI
    assert height < 0.2 * DPI
    assert left > 2.2 * DPI  # on the heatmap, not on the image


def test_missing_method_leaves_its_cell_empty(tmp_path):
    both = [subject("a", (60, 60)), subject("b", (60, 60), ("grad-cam",)), subject("c", (60, 60), ("other",))]
    (path,) = draw_comparison(tmp_path / "c.png", both, "title")
    empty = near(read(path), (242, 242, 242), 1)
    column = int(0.15 * DPI), int(2.25 * DPI), int(4.35 * DPI), int(6.45 * DPI)
    share = [[empty[top : top + 200, left : left + 220].mean() for left in column] for top in row_tops(path)]
    expected = [[0, 0, 0, 1], [0, 1, 0, 1], [0, 1, 1, 0]]
    assert (np.array(share).round(1) > 0.5).astype(int).tolist() == expected


def row_tops(path):
    return np.nonzero(np.diff(blue(read(path)).any(1).astype(int)) == 1)[0]


def test_heatmaps_with_a_sign_have_their_own_colours_and_bar(tmp_path):
    shape = (100, 100)
    both = spot(shape) - np.flipud(spot(shape))
    views = (View("plain", spot(shape)), View("signed", both, signed=True))
    (path,) = draw_comparison(tmp_path / "both.png", [Subject("a", picture(shape), "b", 0.5, views)], "title")
    (plain,) = draw_comparison(tmp_path / "plain.png", [subject("a", shape, ("plain", "signed"))], "title")
    assert read(path).shape[1] == pytest.approx(read(plain).shape[1] + 0.9 * DPI, abs=2)  # a second bar
    bar = read(path)[:, -int(0.9 * DPI) :].reshape(-1, 3)
    for end in (0, 255):
        assert (np.abs(bar - 255 * np.array(colormaps["coolwarm"](end)[:3])).max(-1) < 12).any()  # but for the frame
    with pytest.raises(ValueError, match="not within -1 to 1"):
        View("cam", 2 * both, signed=True)


def test_masks_are_outlined(tmp_path):
    shape = (100, 100)
    mask = np.zeros(shape, bool)
    mask[20:40, 50:90] = True
    (plain,) = draw_comparison(tmp_path / "plain.png", [subject("a", shape)], "title")
    (outlined,) = draw_comparison(tmp_path / "outlined.png", [subject("a", shape)], "title", [mask])
    draw_comparison(tmp_path / "blank.png", [subject("a", shape)] * 2, "title", [np.zeros_like(mask), None])
    changed = np.abs(read(outlined) - read(plain)).sum(-1) > 60
    _, left, height, width = extent(changed[:, : int(4.3 * DPI)])
    assert (height, width) == pytest.approx((0.4 * DPI, 0.8 * DPI), abs=5)
    assert left == pytest.approx((2.25 + 1) * DPI, abs=4)


def test_long_and_strange_names(tmp_path):
    name = "$x_{1$ \n\x1b[31m" + 300 * "long " + "\udcff.png"
    image = picture((30, 40))
    strange = Subject(name, image, name, 0.5, (View(name, spot((30, 40)), note=name, target=name),))
    (path,) = draw_comparison(tmp_path / "c.png", [strange], name)
    assert (read(path)[:, -8:] == 255).all()  # nothing runs out of the picture
    draw_grid(tmp_path / "g.png", image, {name: spot((30, 40))}, name)
    draw_channels(tmp_path / "h.png", [Channels(name, np.ones(16, np.float32))], name)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("count", "columns"), [(1, None), (7, None), (12, 3), (20, 4)])
def test_grid(tmp_path, shape, count, columns):
    maps = {f"map {number}": spot(shape, number / count) for number in range(count)}
    draw_grid(tmp_path / "grid.png", picture(shape), maps, "title", columns)
    sheet = read(tmp_path / "grid.png")
    _, _, height, width = extent(blue(sheet))
    assert height == pytest.approx(width, abs=2)
    if count > 1 and columns is None:
        assert 0.3 < sheet.shape[0] / sheet.shape[1] < 2


def test_grid_is_filled_row_by_row(tmp_path):
    shape = (60, 60)
    maps = {str(number): spot(shape, float(number == 3)) for number in range(6)}
    draw_grid(tmp_path / "grid.png", picture(shape), maps, "title", columns=4)
    sheet = read(tmp_path / "grid.png")
    sheet[:, int(5 * 1.8 * DPI) :] = 0  # the colour bar
    top, left, _, _ = extent(near(sheet, HOT))
    assert top < sheet.shape[0] / 2  # the fourth is the last of the first row
    assert left > 4 * 1.75 * DPI


def test_strip_wraps_after_thirteen_cells(tmp_path):
    sizes = {}
    for count in (3, 12, 13, 24, 25):
        frames = {str(number): spot((50, 50)) for number in range(1, count + 1)}
        draw_strip(tmp_path / "strip.png", picture((50, 50)), frames, "title")
        height, width, _ = read(tmp_path / "strip.png").shape
        sizes[count] = width, height
    assert sizes[3][0] < sizes[12][0] == sizes[13][0] == sizes[25][0]
    assert sizes[3][1] > sizes[12][1] < sizes[13][1] == sizes[24][1] < sizes[25][1]


@pytest.mark.parametrize("count", [16, 300, 2048])
def test_channels_are_in_order(tmp_path, count):
    weights = np.full(count, 0.05, np.float32)
    weights[: count // 4] = 0.9
    draw_channels(tmp_path / "c.png", [Channels("block", weights)], "title")
    sheet = read(tmp_path / "c.png")
    coloured = (sheet[..., 0] > sheet[..., 1] + 60) & (sheet[..., 0] > sheet[..., 2] + 20)
    _, left, height, width = extent(coloured)
    assert left == pytest.approx(0.55 * DPI, abs=0.2 * 8.6 * DPI / count + 2)
    assert width == pytest.approx(8.6 * DPI, abs=0.4 * 8.6 * DPI / count + 2)
    assert height == pytest.approx(0.9 * 0.85 * DPI, abs=2)
    tall = coloured.sum(0) > 0.5 * 0.85 * DPI
    assert np.nonzero(tall)[0][-1] < left + width / 4 + 2
    assert tall.sum() > width / 8


def test_channels_above_one_are_shown_whole(tmp_path):
    sheets = []
    for largest in (1, 4):
        draw_channels(tmp_path / "c.png", [Channels("block", np.array([1, largest] * 8, np.float32))], "title")
        sheets.append(read(tmp_path / "c.png"))
    coloured = [(sheet[..., 0] > sheet[..., 1] + 60).sum() for sheet in sheets]
    assert coloured[1] == pytest.approx(coloured[0] * (1 / 4 + 1) / 2, rel=0.05)


@pytest.mark.slow
def test_only_sixteen_blocks_are_shown(tmp_path):
    heights = []
    for count in (1, 16, 17, 40):
        draw_channels(tmp_path / "c.png", [Channels("block", np.ones(16, np.float32))] * count, "title")
        heights.append(read(tmp_path / "c.png").shape[0])
    assert heights[0] < heights[1] == heights[2] == heights[3]


def test_fixations_are_where_the_model_looked(tmp_path):
    image = np.full((100, 200, 3), 200, np.uint8)
    fixations = Fixations(np.array([(0.5, -0.6)], np.float32), (40, 20))  # x to the right, y down
    draw_fixations(tmp_path / "f.png", image, fixations, "title")
    sheet = read(tmp_path / "f.png")[int(0.64 * DPI) :]  # below the text
    scale = 4.4 * DPI / 200  # pixels of the sheet per pixel of the image
    middle = sheet.shape[1] // 2
    panel_top, panel_left, height, width = extent(near(sheet[:, middle:], (50, 50, 50), 3))  # what was not seen
    assert (height, width) == pytest.approx((100 * scale, 200 * scale), abs=2)
    seen = extent(near(sheet[:, middle:], (200, 200, 200), 3)[panel_top : panel_top + height])
    expected = (10 * scale, panel_left + 130 * scale, 20 * scale, 40 * scale)
    assert seen == pytest.approx(expected, abs=4)  # edges are smoothed

    box = (sheet[:, :middle, 2] > sheet[:, :middle, 1] + 80)[panel_top : panel_top + height]  # dark violet
    first, start, rows, columns = extent(box)
    assert (first, rows, columns) == pytest.approx((10 * scale, 20 * scale, 40 * scale), abs=5)
    assert start == pytest.approx(panel_left + middle - width - 0.15 * DPI + 130 * scale, abs=5)


def test_fixations_go_from_dark_to_bright(tmp_path):
    image = np.full((90, 90, 3), 128, np.uint8)
    points = np.array([(-0.6, -0.6), (0, 0), (0.6, 0.6), (0.6, 0.6)], np.float32)
    draw_fixations(tmp_path / "f.png", image, Fixations(points, (20, 20)), "title")
    sheet = read(tmp_path / "f.png")[:, : int(4.6 * DPI)]
    violet = (sheet[..., 2] > sheet[..., 1] + 80) & (sheet[..., 2] > sheet[..., 0] + 40)
    yellow = (sheet[..., 1] > 200) & (sheet[..., 2] < 80)
    assert extent(violet)[0] < extent(yellow)[0]
    assert extent(violet)[1] < extent(yellow)[1]


def test_fixations_keep_the_aspect_ratio(tmp_path):
    for shape in SHAPES.values():
        corner = Fixations(np.full((1, 2), 0.8, np.float32), (9, 9))
        draw_fixations(tmp_path / "f.png", picture(shape), corner, "title")
        sheet = read(tmp_path / "f.png")
        _, _, height, width = extent(blue(sheet)[: sheet.shape[0] * 3 // 4])
        assert height == pytest.approx(width, abs=2)


def test_paths_of_two_models_are_drawn_on_the_same_images(tmp_path):
    """Two images and two models: a box on the right of the first row, one above in the second; answers in colour."""
    images = np.full((2, 60, 60, 3), 128, np.uint8)
    right, above = (Fixations(np.array([point], np.float32), (20, 20)) for point in ((0.9, 0), (0, -0.6)))
    yes, no = Answer("3", "3", 0.9), Answer("3", "8", 0.6)
    looked = {"one": [(right, yes), (right, yes)], "other": [(above, no), (above, no)]}
    draw_paths(tmp_path / "p.png", images, looked, title="title", masks=np.zeros((2, 60, 60), bool))
    sheet = read(tmp_path / "p.png").astype(int)
    upper, lower = np.array_split(sheet[:, : sheet.shape[1] // 2], 2)
    boxes = {}
    for half, name in ((upper, "right"), (lower, "above")):
        grey = near(half, (128, 128, 128), 3)
        rows, columns = (np.flatnonzero(grey.sum(axis) > 40) for axis in (1, 0))  # not the edges of letters
        violet = (half[..., 2] > half[..., 1] + 80) & (half[..., 2] > half[..., 0] + 40)
        top, left, height, width = extent(violet)
        side = columns[-1] - columns[0] + 1
        boxes[name] = [(top - rows[0]) / side, (left - columns[0]) / side, height / side, width / side]
    assert boxes["right"] == pytest.approx([1 / 3, 0.95 - 1 / 6, 1 / 3, 0.05 + 1 / 6], abs=0.05)  # cut off at the edge
    assert boxes["above"] == pytest.approx([0.2 - 1 / 6, 1 / 3, 1 / 3, 1 / 3], abs=0.05)
    for half, colour in ((upper, (26, 127, 55)), (lower, (193, 18, 31))):
        assert near(half, colour, 40).sum() > 20


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: View("cam", np.full((2, 2), 1.5, np.float32)), "'cam' ranges from 1.5 to 1.5"),
        (lambda: View("cam", np.full((2, 2), np.nan, np.float32)), "'cam' ranges from nan"),
        (lambda: Relation("layer", np.ones((6, 6), np.float32), (2, 3), (2, 2)), r"have shape \(6, 6\)"),
        (lambda: Subject("a", picture((9, 9)), "b", 0, (View("cam", spot((9, 8))),)), r"of 'cam' has \(9, 8\)"),
        (lambda: subject("a", (9, 9), ("cam", "cam")), "two views of the same method"),
    ],
)
def test_data_that_cannot_be_drawn(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_letters_that_the_usual_font_lacks_come_from_another_one():
    families, missing = fonts_for("a\u2900")  # an arrow that DejaVu Serif has, which comes with matplotlib too
    assert len(families) == 2
    assert not missing
    assert fonts_for("plain é ж") == (["DejaVu Sans"], set())


def test_letters_that_no_font_has_are_said_and_not_drawn_as_boxes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("visattn.report.fonts._others", dict)
    monkeypatch.setattr("visattn.report.fonts._said", set())
    names = ["\u732b", "\u72ac", "bird"]
    draw_confusion(tmp_path / "a.png", np.eye(3, dtype=np.int64), names, "\u732b, validation images")
    (line,) = capsys.readouterr().err.splitlines()
    assert "no installed font has the characters \u72ac\u732b" in line
    assert drawable(names, "class") == ["class 0", "class 1", "bird"]
    shape = (30, 40)
    subject = Subject("\u72ac.png", picture(shape), "\u732b\u732b", 0.5, (View("m", spot(shape)),))
    draw_comparison(tmp_path / "b.png", [subject], "title")


def test_a_subject_without_classes_has_only_its_name(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Sheet, "text", lambda self, x, y, text, *args, **options: drawn.append(text))
    draw_comparison(
        tmp_path / "a.png", [Subject("a.png", picture((30, 40)), "", None, (View("m", spot((30, 40))),))], "t"
    )
    assert "a.png" in drawn
    assert not any("%" in text for text in drawn)


def test_confusion_is_read_as_it_is_written(tmp_path):
    names = ["a, b", 'quoted "c"']
    _write_rows(tmp_path / "confusion.csv", [["truth", *names], [names[0], 3, 1], [names[1], 0, 4]])
    assert read_confusion(tmp_path / "confusion.csv", 2).tolist() == [[3, 1], [0, 4]]


def test_captions_are_whole_lines():
    score = "removing the brightest 10 % raises the answer from 95 % to 96 %; a random 10 %: 96 %"
    view = View("m", spot((8, 8)), note="layer2, of log p, balanced", target="class 2 95%", score=score)
    lines = _captions(view, 27)
    assert lines[:2] == ["class 2 95%", "layer2, of log p, balanced"]
    assert all(len(line) <= 27 and not line.startswith("%") for line in lines)
    assert " ".join(lines[2:]).replace("\N{NO-BREAK SPACE}", " ") == score
    assert _captions(View("m", spot((8, 8)), note="layer2", target="cat 9%"), 27) == ["cat 9%; layer2"]

import base64
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image

from visattn import report
from visattn.report.page import pooled, write_page
from visattn.report.scores import ScoredImage, ScoreRow, write_scores_page
from visattn.report.views import Relation, Subject, View

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
QUERIES, KEYS = (2, 3), (4, 5)  # rows and columns, all different
PEAKS = {"early": [1, 5, 12, 19, 7, 15], "late": [4, 0, 18, 6, 11, 13]}  # the key each of the six queries looks at
HOSTILE = ["</script><script>window.harm=1</script>.png", '"><img src=x onerror="window.harm=1">', "<!--\udcff $&\n"]


def photo(height, width):
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)


def block(height, width, rows, columns):
    """A heatmap that is 1 in a rectangle and 0.5 elsewhere."""
    heatmap = np.full((height, width), 0.5, np.float32)
    heatmap[rows, columns] = 1
    return heatmap


def relation(name):
    weights = np.full((6, 20), 0.01, np.float32)
    weights[range(6), PEAKS[name]] = 0.3
    return Relation(name, weights, QUERIES, KEYS)


def subjects():
    wide = (
        View("rollout", block(60, 90, slice(0, 15), slice(60, 90)), note="all layers"),
        View("grad-cam", block(60, 90, slice(30, 60), slice(0, 30)), target="tabby 71%"),
    )
    tall = (View("rollout", np.zeros((80, 40), np.float32)),)
    return [
        Subject("wide.png", photo(60, 90), "tabby", 0.71, wide, (relation("early"), relation("late"))),
        Subject("tall.png", photo(80, 40), "missile", 0.44, tall),
    ]


def embedded(path):
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)[1])


def decoded(address):
    return Image.open(io.BytesIO(base64.b64decode(address.split(",")[1])))


# ---- without a browser


def test_page_holds_everything_it_shows(tmp_path):
    path = tmp_path / "index.html"
    write_page(path, subjects(), "report")
    text = path.read_text(encoding="utf-8")
    assert "{{" not in text
    assert not re.findall(r"https?://|//\w+\.\w+|@import|url\(", text)
    assert not re.findall(r"<(?:link|img|iframe|object|script[^>]*\ssrc)", text)


def test_large_images_are_embedded_smaller_and_keep_their_shape(tmp_path):
    smooth = np.tile(np.linspace(0, 255, 3000, dtype=np.uint8)[None, :, None], (1000, 1, 3))
    noise = np.random.default_rng(0).normal(0, 9, smooth.shape)
    heatmap = np.tile(np.linspace(0, 1, 3000, dtype=np.float32), (1000, 1))
    image = np.clip(smooth + noise, 0, 255).astype(np.uint8)
    write_page(tmp_path / "index.html", [Subject("large", image, "a", 0.5, (View("m", heatmap),))], "report")
    (subject,) = embedded(tmp_path / "index.html")["subjects"]
    assert decoded(subject["image"]).size == (1280, 427)
    assert decoded(subject["image"]).format == "JPEG"
    grey = decoded(subject["views"]["m"]["heatmap"])
    assert (grey.mode, grey.size) == ("L", (512, 171))


def test_drawings_are_embedded_without_loss(tmp_path):
    drawing = np.zeros((100, 100, 3), np.uint8)
    drawing[30:50, 20:80] = 200, 10, 30
    write_page(tmp_path / "index.html", [Subject("drawing", drawing, "a", 0.5, ())], "report")
    (subject,) = embedded(tmp_path / "index.html")["subjects"]
    np.testing.assert_array_equal(np.asarray(decoded(subject["image"])), drawing)


def test_weights_survive_as_bytes(tmp_path):
    weights = np.random.default_rng(0).random((6, 20), dtype=np.float32) * np.arange(6, dtype=np.float32)[:, None]
    subject = Subject("a", photo(20, 30), "a", 0.5, (), (Relation("layer", weights, QUERIES, KEYS),))
    write_page(tmp_path / "index.html", [subject], "report")
    (stored,) = embedded(tmp_path / "index.html")["subjects"][0]["relations"]
    largest = np.frombuffer(base64.b64decode(stored["largest"]), "<f4")[:, None]
    scaled = np.frombuffer(base64.b64decode(stored["weights"]), np.uint8).reshape(6, 20) / 255
    np.testing.assert_array_equal(largest[:, 0], weights.max(1))
    np.testing.assert_allclose(scaled * largest, weights, atol=weights.max() / 500)


def test_large_relations_are_averaged_over_blocks():
    weights = np.random.default_rng(0).random((24 * 60, 32 * 48), dtype=np.float32)
    small, queries, keys, factor = pooled(Relation("layer", weights, (24, 60), (32, 48)))
    blocks = weights.reshape(12, 2, 30, 2, 16, 2, 24, 2).mean((1, 3, 5, 7)).reshape(360, 384)
    assert (queries, keys, factor) == ((12, 30), (16, 24), 2)
    np.testing.assert_allclose(small, blocks, rtol=1e-5)


def test_averaging_a_grid_that_does_not_divide_keeps_places():
    weights = np.zeros((45 * 33, 45 * 33), np.float32)
    weights[:, 40 * 33 + 8] = 1  # row 40 of 45, column 8 of 33
    small, queries, keys, _ = pooled(Relation("layer", weights, (45, 33), (45, 33)))
    assert queries == keys == (23, 17)
    row, column = np.unravel_index(small[5].argmax(), keys)
    assert row == int(40.5 / 45 * 23)
    assert column == int(8.5 / 33 * 17)
    even, *_ = pooled(Relation("layer", np.full((45 * 33, 45 * 33), 0.25, np.float32), (45, 33), (45, 33)))
    np.testing.assert_allclose(even, 0.25, rtol=1e-5)


# ---- in a browser


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("/usr/bin/chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def visit(browser, tmp_path):
    """Opens a page of subjects; in the end there must have been no error, and no request to a network."""
    troubles, contexts = [], []

    def opened(shown, width=1100):
        write_page(tmp_path / "index.html", shown, "a <b>report</b>")
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}))
        page = contexts[-1].new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: troubles.append(dialog.message))
        page.on("request", lambda request: None if local(request.url) else troubles.append(request.url))
        page.goto((tmp_path / "index.html").as_uri())
        ready(page)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert troubles == []


def local(address):
    return address.startswith(("file:", "data:"))


def ready(page):
    page.wait_for_selector('#view[aria-busy="false"]')


def pixels(page):
    return np.asarray(decoded(page.evaluate("document.getElementById('view').toDataURL()")).convert("RGB")).astype(int)


def centres(page, rows, columns):
    """The pixels in the middle of the patches, (rows, columns, 3)."""
    shown = pixels(page)
    height, width = shown.shape[:2]
    down = [int((row + 0.5) / rows * height) for row in range(rows)]
    across = [int((column + 0.5) / columns * width) for column in range(columns)]
    return shown[np.ix_(down, across)]


def brightest_key(page):
    return int(centres(page, *KEYS).sum(-1).argmax())


def click_patch(page, row, column):
    box = page.locator("#view").bounding_box()
    place = {"x": (column + 0.3) / QUERIES[1] * box["width"], "y": (row + 0.6) / QUERIES[0] * box["height"]}
    page.click("#view", position=place)


def colour(name, value):
    return np.rint(255 * np.array(colormaps[name](value)[:3]))


def test_opacity(visit):
    page = visit(subjects())
    page.click('[data-mode="image"]')
    image = pixels(page)
    page.click('[data-method="rollout"]')
    page.locator("#opacity").fill("0")
    np.testing.assert_array_equal(pixels(page), image)
    page.locator("#opacity").fill("50")
    half = pixels(page)
    assert np.abs(half - image).mean() > 10
    page.locator("#opacity").fill("100")
    assert np.abs(pixels(page) - half).mean() > 10


def test_image_is_shown_as_it_is(visit):
    page = visit(subjects())
    page.click('[data-mode="image"]')
    difference = np.abs(centres(page, 60, 90) - photo(60, 90))
    assert difference.max() <= 1


def test_heatmap_lies_on_its_image(visit):
    page = visit(subjects())
    page.locator("#opacity").fill("100")
    for method, view in zip(("rollout", "grad-cam"), subjects()[0].views, strict=True):
        page.click(f'[data-method="{method}"]')
        shown = centres(page, 60, 90)
        expected = np.where(view.heatmap[..., None] == 1, colour("inferno", 255), colour("inferno", 128))
        np.testing.assert_allclose(shown, expected, atol=1)


def test_methods_and_what_is_said_of_them(visit):
    page = visit(subjects())
    assert page.text_content("#subject") == "wide.png  ·  tabby 71%"
    assert page.text_content("#about") == "rollout  ·  all layers"
    before = pixels(page)
    page.click('[data-method="grad-cam"]')
    assert page.text_content("#about") == "grad-cam  ·  tabby 71%"
    assert np.abs(pixels(page) - before).mean() > 10


@pytest.mark.parametrize("name", ["viridis", "magma", "cividis"])
def test_colour_maps(visit, name):
    page = visit(subjects())
    page.locator("#opacity").fill("100")
    page.select_option("#map", name)
    np.testing.assert_allclose(pixels(page)[0, -1], colour(name, 255), atol=1)
    assert "rgb({}, {}, {})".format(*colour(name, 0).astype(int)) in page.locator("#bar").get_attribute("style")


def test_a_heatmap_with_a_sign_has_its_own_colours_and_legend(visit):
    both = np.zeros((60, 90), np.float32)
    both[:30, :30], both[30:, 60:] = 1, -1
    views = (View("signed", both, signed=True), View("plain", block(60, 90, slice(0, 15), slice(60, 90))))
    page = visit([Subject("a.png", photo(60, 90), "tabby", 0.71, views, (relation("early"),))])
    page.locator("#opacity").fill("100")
    shown = centres(page, 60, 90)
    for place, value in (((5, 5), 255), ((50, 80), 0), ((5, 80), 128)):
        np.testing.assert_allclose(shown[place], colour("coolwarm", value), atol=1)
    assert [page.text_content(f"#{name}") for name in ("least", "most")] == ["speaks against", "speaks for"]
    assert "rgb({}, {}, {})".format(*colour("coolwarm", 0).astype(int)) in page.locator("#bar").get_attribute("style")
    assert page.locator("#map").is_disabled()
    page.click('[data-method="plain"]')
    assert [page.text_content(f"#{name}") for name in ("least", "most")] == ["smallest", "largest"]
    assert "rgb({}, {}, {})".format(*colour("inferno", 0).astype(int)) in page.locator("#bar").get_attribute("style")
    assert page.locator("#map").is_enabled()
    page.click('[data-method="signed"]')
    click_patch(page, 1, 1)  # what a patch attends to has no sign
    assert [page.text_content(f"#{name}") for name in ("least", "most")] == ["0", "largest"]
    assert page.locator("#map").is_enabled()


def test_both_pages_share_one_head(tmp_path):
    write_page(tmp_path / "page.html", subjects(), "a")
    write_scores_page(tmp_path / "scores.html", "a", "", {}, [])
    head = Path(report.__file__).with_name("head.html").read_text(encoding="utf-8")
    assert "Content-Security-Policy" in head
    for name in ("page.html", "scores.html"):
        assert head in (tmp_path / name).read_text(encoding="utf-8")
        assert "--ground:" not in Path(report.__file__).with_name(name).read_text(encoding="utf-8")


def test_patches(visit):
    page = visit(subjects())
    page.locator("#opacity").fill("100")
    assert page.locator("#layer").is_hidden()
    page.click('[data-mode="patches"]')
    for layer in ("late", "early"):
        page.select_option("#layer", layer)
        for query in range(6):
            row, column = divmod(query, QUERIES[1])
            click_patch(page, row, column)
            assert brightest_key(page) == PEAKS[layer][query]
            text = page.text_content("#about")
            assert f"row {row + 1}, column {column + 1} attends to in {layer}" in text
            assert "largest weight 0.30" in text
    page.select_option("#layer", "late")
    assert brightest_key(page) == PEAKS["late"][5]


def test_outline_of_the_patch(visit):
    page = visit(subjects())
    page.click('[data-mode="patches"]')
    click_patch(page, 1, 0)
    shown = pixels(page)
    height, width = shown.shape[:2]
    white = (shown >= 250).all(-1)
    assert white[height // 2, 20 : width // 3 - 5].all()  # the upper edge of the lower left patch
    assert white[height // 2 + 5 : -5, width // 3].all()  # its right edge
    assert not white[: height // 2 - 20].all(1).any()


def test_keyboard(visit):
    page = visit(subjects())
    page.focus("#opacity")
    page.keyboard.press("End")
    assert page.input_value("#opacity") == "100"
    page.focus('[data-method="rollout"] input')
    page.keyboard.press("ArrowRight")
    assert page.locator('[data-method="grad-cam"]').is_checked()
    assert "grad-cam" in page.text_content("#about")
    page.keyboard.press("ArrowRight")
    assert page.locator('[data-mode="patches"]').is_checked()
    page.keyboard.press("Shift+Tab")  # backwards from the methods: the way back, and the image
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.id") == "view"
    click_patch(page, 0, 0)
    place = 0
    for key, step in (("ArrowRight", 1), ("ArrowDown", 3), ("ArrowLeft", -1), ("ArrowDown", 0), ("ArrowUp", -3)):
        page.keyboard.press(key)
        place += step
        assert brightest_key(page) == PEAKS["early"][place]


def wait_for_subject(page, name):
    """Until the page shows an image (a condition in JavaScript would be polled with eval, which the page forbids)."""
    page.locator("#subject", has_text=re.compile(f"^{re.escape(name)}")).wait_for()


def test_subjects(visit):
    page = visit(subjects())
    wide = pixels(page)
    assert wide.shape[0] * 90 == wide.shape[1] * 60
    page.focus("#subject-1")
    page.keyboard.press("Enter")
    wait_for_subject(page, "tall.png")
    ready(page)
    tall = pixels(page)
    assert tall.shape[0] * 40 == tall.shape[1] * 80
    assert page.text_content("#about") == "rollout  ·  nothing found"
    assert page.get_attribute("#subject-1", "aria-current") == "true"
    for absent in ('[data-method="grad-cam"]', '[data-mode="patches"]'):
        assert page.locator(f"{absent} input").is_disabled()
    page.click("#subject-0")
    wait_for_subject(page, "wide.png")
    page.click('[data-method="grad-cam"]')
    page.click("#subject-1")
    wait_for_subject(page, "tall.png")
    assert page.text_content("#about") == "grad-cam: not available for this image"


@pytest.mark.parametrize("width", [400, 1600])
def test_widths(visit, width):
    page = visit(subjects(), width)
    for number in (0, 1):
        page.click(f"#subject-{number}")
        name = ("wide", "tall")[number]
        wait_for_subject(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        box = page.locator("#view").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert box["width"] / box["height"] == pytest.approx((90 / 60, 40 / 80)[number], rel=0.01)
        assert max(box["width"], box["height"]) > 300


def test_patches_of_a_narrow_page(visit):
    page = visit(subjects(), 400)
    page.locator("#opacity").fill("100")
    page.click('[data-mode="patches"]')
    click_patch(page, 1, 2)
    assert brightest_key(page) == PEAKS["early"][5]


def test_hostile_names(visit):
    bad, worse, _ = HOSTILE
    views = tuple(View(name, np.ones((30, 20), np.float32), note=worse, target=bad) for name in (bad, "toString"))
    hostile = Relation(bad, np.ones((6, 20), np.float32), QUERIES, KEYS)
    shown = [Subject(name, photo(30, 20), worse, 0.5, views, (hostile,)) for name in HOSTILE]
    page = visit([*shown, Subject("plain.png", photo(30, 20), "a", 0.5, ())])
    for number, name in enumerate(HOSTILE):
        page.click(f"#subject-{number}")
        ready(page)
        assert page.text_content("#subject").startswith(name)
    page.click('[data-mode="patches"]')
    assert page.locator("#layer option").first.text_content() == bad
    page.click('[data-method="toString"]')
    page.click("#subject-3")
    wait_for_subject(page, "plain")
    assert page.locator('[data-method="toString"] input').is_disabled()
    assert page.text_content("#about") == "toString: not available for this image"
    assert page.title() == "a <b>report</b>"
    assert page.evaluate("window.harm") is None
    assert page.locator("img[src=x]").count() == 0


def test_a_click_shows_at_once_what_the_patch_attends_to_and_one_can_go_back(visit):
    page = visit(subjects())
    page.click('[data-method="grad-cam"]')
    shown = pixels(page)
    assert page.inner_text("#how") == "click a patch to see what it attends to"
    click_patch(page, 1, 0)
    assert "row 2, column 1" in page.inner_text("#about")
    assert page.locator('[data-mode="patches"] input').is_checked()
    page.locator("#opacity").fill("100")
    assert brightest_key(page) == PEAKS["early"][3]
    page.locator("#opacity").fill("60")
    assert page.inner_text("#back") == "back to grad-cam"
    page.click("#back")
    np.testing.assert_array_equal(pixels(page), shown)
    assert page.locator('[data-method="grad-cam"] input').is_checked()
    assert page.locator("#back").is_hidden()
    click_patch(page, 0, 2)
    page.keyboard.press("Escape")
    np.testing.assert_array_equal(pixels(page), shown)
    page.keyboard.press("ArrowLeft")  # the patch from before
    assert "row 1, column 3" in page.inner_text("#about")


def test_an_image_without_relations_does_not_react(visit):
    page = visit(subjects())
    page.click("#subject-1")
    ready(page)
    shown = pixels(page)
    page.click("#view")
    np.testing.assert_array_equal(pixels(page), shown)
    assert page.locator("#hint").is_hidden()


def test_without_classes_there_is_only_the_name(visit):
    view = View("rollout", block(60, 90, slice(0, 15), slice(60, 90)))
    page = visit([Subject(f"{letter}.png", photo(60, 90), "", None, (view,)) for letter in "ab"])
    assert page.inner_text("#subject") == "a.png"
    assert "%" not in page.inner_text("figure")
    assert page.inner_text("#subject-1").strip() == "b.png"


def test_layers_are_in_the_order_of_the_network(visit):
    names = [f"blocks.{number}.attn" for number in range(12)]
    weights = np.full((6, 20), 0.05, np.float32)
    relations = tuple(Relation(name, weights, QUERIES, KEYS) for name in names)
    page = visit([Subject("a.png", photo(60, 90), "a", 0.5, (), relations)])
    assert page.locator("#layer option").all_inner_texts() == names


# ---- the page of scores


@pytest.mark.slow
def test_a_click_on_a_method_shows_its_images_and_curves(browser, tmp_path):
    def scored(said):
        return ScoredImage(said, photo(20, 30), np.zeros((20, 30), np.uint8))

    curves = np.array([[1.0, 0.5, 0.0], [1.0, 1.0, 0.0]], np.float32)
    rows = [
        ScoreRow(
            "fine", False, {"srg": "0.500*"}, {"srg": "0.5 [0.4, 0.6]"}, curves, [scored("good")], [scored("bad")]
        ),
        ScoreRow(HOSTILE[0], True, {"srg": "0.000"}, {"srg": "0"}, None, [scored(HOSTILE[1])], []),
    ]
    write_scores_page(tmp_path / "index.html", "title " + HOSTILE[0], "note", {"srg": "meaning"}, rows)
    troubles = []
    page = browser.new_page()
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto((tmp_path / "index.html").as_uri())
    assert page.locator("tbody tr").count() == 2
    assert page.locator("#curves").is_visible()
    assert page.locator("#curves polyline.most").get_attribute("points").split()[1] == "160,100"
    assert page.locator("#best figcaption").all_text_contents() == ["good"]
    assert page.locator("#worst figcaption").all_text_contents() == ["bad"]
    page.locator("tbody tr").nth(1).click()
    assert not page.locator("#curves").is_visible()
    assert page.locator("#best figcaption").all_text_contents() == [HOSTILE[1]]
    assert page.locator("#worst figure").count() == 0
    assert page.evaluate("window.harm") is None
    assert troubles == []
    page.close()

"""What a run draws at its end: curves of its epochs, and the right images, answers and figures of its model."""

import numpy as np
import pytest
import torch

from visattn.heatmaps import explain
from visattn.modules import evaluating
from visattn.report import curves, heatmaps, paths
from visattn.report.heatmaps import RIGHT, WRONG
from visattn.training import pictures
from visattn.training.building import create_classifier, create_data, create_source
from visattn.training.settings import Settings

ROWS = [
    {"epoch": 1, "train_loss": 2.0, "val_loss": 1.5, "train_top1": 0.2, "val_top1": 0.3, "lr": 0.1},
    {"epoch": 2, "train_loss": 1.0, "val_loss": None, "train_top1": 0.6, "val_top1": None, "lr": 0.05},
    {"epoch": 3, "train_loss": 0.5, "val_loss": 0.7, "train_top1": 0.9, "val_top1": 0.25, "lr": 0.0},
]


@pytest.fixture
def drawn(monkeypatch):
    """Figures by the name of the file that they would be written to."""
    figures = {}
    for module in (curves, heatmaps, paths):
        monkeypatch.setattr(module, "save", lambda figure, path: figures.update({path.name: figure}))
    return figures


def prepared(**options):
    settings = Settings(data="digits", batch_size=8, seed=3, **options)
    source = create_source(settings)
    model = create_classifier(settings, source).model
    return model.train(), create_data(settings, source, model)


def test_curves_show_what_was_measured(drawn, tmp_path):
    curves.draw_curves(tmp_path / "curves.png", ROWS, "mine")
    loss, accuracy, rate = drawn["curves.png"].axes
    shown = {axes: [list(zip(*line.get_data(), strict=True)) for line in axes.lines] for axes in (loss, accuracy, rate)}
    assert shown[loss] == [[(1, 2.0), (2, 1.0), (3, 0.5)], [(1, 1.5), (3, 0.7)]]  # training, and where it was validated
    assert shown[accuracy] == [[(1, 0.2), (2, 0.6), (3, 0.9)], [(1, 0.3), (3, 0.25)]]
    assert shown[rate] == [[(1, 0.1), (2, 0.05), (3, 0.0)]]
    (best,) = accuracy.texts
    assert (best.get_text(), best.xy) == ("best 30.0%", (1, 0.3))


def inputs_of(data, number):
    examples = data.examples(number)
    return examples, data.preparation.normalise(torch.from_numpy(np.stack(examples.images)).permute(0, 3, 1, 2))


def test_the_outcome_tells_what_the_model_said_and_how_much_of_it_was_on_the_digit(drawn, tmp_path):
    model, data = prepared(model="test_resnet", attn="eca")
    pictures.draw_outcome(tmp_path / "mine", model, data, ROWS)
    examples, inputs = inputs_of(data, 12)
    masks = np.stack(examples.masks)
    maps = explain(model, inputs).heatmap.numpy()
    figure = drawn["heatmaps.png"]
    share = f"{(maps * masks).sum() / maps.sum():.0%} of it on the outlined digit, which covers {masks.mean():.0%}"
    assert f"What mine looks at (sharp_gradcam of log p, best epoch): {share}" in figure.get_suptitle()
    with evaluating(model), torch.no_grad():
        probabilities, answers = model(inputs).softmax(1).max(1)
    titles = [axes.title for axes in figure.axes if axes.get_title().strip()]
    assert len(titles) == 12
    for title, label, answer, p in zip(titles, examples.labels, answers.tolist(), probabilities.tolist(), strict=True):
        wrong = f"{label} taken for {answer} {p:.0%}"
        assert title.get_text() == (f"{answer} {p:.0%}" if label == answer else wrong)
        assert title.get_color() == (RIGHT if label == answer else WRONG)
    assert len({title.get_text() for title in titles}) > 3
    assert "fixations.png" not in drawn
    assert model.training


def test_the_outcome_of_a_model_with_glimpses_tells_where_it_looked(drawn, tmp_path):
    model, data = prepared(model="ram", model_options={"glimpses": 3, "size": 12}, difficulty="translated")
    model.eval()
    pictures.draw_outcome(tmp_path / "mine", model, data, ROWS)
    examples, inputs = inputs_of(data, 12)
    masks = np.stack(examples.masks)
    with torch.no_grad():
        points, _ = model.fixations(inputs)
    height, width = masks.shape[1:]

    def share(masks):
        hit = [
            mask[min(int((y + 1) / 2 * height), height - 1), min(int((x + 1) / 2 * width), width - 1)]
            for mask, path in zip(masks, points.tolist(), strict=True)
            for x, y in path
        ]
        return f"{np.mean(hit):.0%}"

    others = [masks[number - 1] for number in range(12)]
    assert share(masks) != share(others)
    expected = f"{share(masks)} of the fixations on the outlined digit, {share(others)} on its place in another image"
    assert drawn["fixations.png"].get_suptitle().endswith(expected)
    assert "(glimpses, best epoch)" in drawn["heatmaps.png"].get_suptitle()


@pytest.mark.parametrize(("epochs", "asked", "every"), [(120, None, 10), (5, None, 1), (120, 7, 7)])
def test_how_often_the_film_is_exposed(epochs, asked, every, tmp_path):
    model, data = prepared(model="test_resnet", epochs=epochs, film_every=asked)
    (film,) = pictures.create_film(tmp_path, Settings(epochs=epochs, film_every=asked), model, data)
    assert (film.every, len(film.images), len(film.inputs)) == (every, 6, 6)
    assert pictures.create_film(tmp_path, Settings(epochs=epochs, film_every=0), model, data) == []

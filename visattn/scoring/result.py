"""The scores of methods, as tables, files and a page."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from visattn.files import printable, replacing, write_json
from visattn.registry import entry_named
from visattn.scoring.metrics import METRICS
from visattn.scoring.statistics import Interval, bootstrap

if TYPE_CHECKING:
    from visattn.report.scores import ScoreRow

BASELINES = ("random", "center", "edge")  # they know nothing of the model
RESULT = "scores.json"
MAKER = "visattn evaluate"  # as it says
FEWEST = 5  # images, below which nothing is called better
EXTREMES = 3  # images on the page, the best and the worst of every method


@dataclass(frozen=True)
class Evaluation:
    """The scores of methods on a model and images.

    Args:
        model: its name.
        methods: that were scored; the last three know nothing of the model.
        values: by score and method, one number per image.
        curves: by method (2, steps + 1, images), the probability while the most, the least relevant are removed first.
        agreement: (methods, methods), rank correlation of the heatmaps; None unless sanity was asked for.
        names: of the images,
        target: the classes that are explained,
        probability: and what the model gave to them.
        images: (B, H, W, 3), what the model saw.
        heatmaps: by method (B, H, W) in 0..255.
        settings: fill, steps, seed, number of images, ...
        left_out: what could not be done, each with the reason.
    """

    model: str
    methods: tuple[str, ...]
    values: Mapping[str, Mapping[str, NDArray[np.float32]]]
    curves: Mapping[str, NDArray[np.float32]]
    agreement: NDArray[np.float32] | None
    names: tuple[str, ...]
    target: tuple[int, ...]
    probability: tuple[float, ...]
    images: NDArray[np.uint8]
    heatmaps: Mapping[str, NDArray[np.uint8]]
    settings: Mapping[str, Any]
    left_out: tuple[tuple[str, str], ...] = ()

    def interval(self, metric: str, method: str) -> Interval:
        """The mean of a score over the images, with its bootstrap interval."""
        return self._scored(metric, method)[0]

    def against(self, metric: str, method: str, baseline: str) -> Interval:
        """How much better than a baseline a method is, image by image: above zero is better, whatever the score."""
        return entry_named(baseline, self._scored(metric, method)[1], "baseline")

    def better(self, metric: str, method: str) -> bool:
        """Whether a method is better than what knows nothing of the model, beyond the doubt that few images leave."""
        versus = self._scored(metric, method)[1]
        asked = METRICS[metric].kind != "cost" and method not in BASELINES and len(versus) > 0
        enough = len(self.values[metric][method]) >= FEWEST
        return asked and enough and all(each.low > 0 for each in versus.values())

    def _scored(self, metric: str, method: str) -> tuple[Interval, dict[str, Interval]]:
        return entry_named(method, entry_named(metric, self._table, "score"), "method")

    def best(self, metric: str = "srg") -> str:
        """The method with the best mean."""
        sign = 1 if METRICS[metric].higher else -1
        return max(self.values[metric], key=lambda method: sign * self.interval(metric, method).mean)

    @cached_property
    def _table(self) -> dict[str, dict[str, tuple[Interval, dict[str, Interval]]]]:
        found: dict[str, dict[str, tuple[Interval, dict[str, Interval]]]] = {}
        for metric, values in self.values.items():
            sign = 1 if METRICS[metric].higher else -1
            for method, own in values.items():
                versus = {
                    name: bootstrap(sign * (own - values[name]))
                    for name in BASELINES
                    if name in values and name != method
                }
                found.setdefault(metric, {})[method] = (bootstrap(own), versus)
        return found

    @property
    def headline(self) -> str:
        """The score by which methods are put in order."""
        return "srg" if "srg" in self.values else next(iter(self.values))

    @property
    def ranked(self) -> list[str]:
        """The methods, the best first."""
        sign = -1 if METRICS[self.headline].higher else 1
        return sorted(self.methods, key=lambda method: sign * self.interval(self.headline, method).mean)

    def __str__(self) -> str:
        """A row per method, the best first; a star where it is better than all that know nothing of the model."""
        header = ["method", *(f"{name}{'↑' if METRICS[name].higher else '↓'}" for name in self.values)]
        rows = [header, *([method, *(self._cell(name, method) for name in self.values)] for method in self.ranked)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        left_out = [printable(f"left out: {what} ({why})") for what, why in self.left_out]
        return "\n".join([*lines, *left_out, self._legend])

    @property
    def _legend(self) -> str:
        said = ", ".join(f"{key} {value}" for key, value in self.settings.items() if key not in ("auto", "weights"))
        if "auto" in self.settings:
            said += f"; auto is {self.settings['auto']}"
        if self.settings["images"] < FEWEST:
            return f"{said}; too few images to say what is better than chance"
        known = ", ".join(name for name in BASELINES if name in self.methods)
        return f"{said}; * better than {known} (95 % of 2000 bootstrap samples)"

    def _cell(self, metric: str, method: str) -> str:
        mean = round(self.interval(metric, method).mean, 3) + 0.0  # no minus before a zero
        text = f"{mean:.0f}" if abs(mean) >= 100 else f"{mean:.1f}" if abs(mean) >= 10 else f"{mean:.3f}"
        return text + ("*" if self.better(metric, method) else "")

    def rows(self) -> list[dict[str, Any]]:
        """What stands in ``scores.csv``: a row per method and score."""
        found = []
        scored = ((metric, method) for metric, methods in self._table.items() for method in methods)
        for metric, method in scored:
            own, versus = self._table[metric][method]
            row: dict[str, Any] = {
                "method": method, "metric": metric, "higher_is_better": METRICS[metric].higher, **_plain(own),
                "images": len(self.values[metric][method]), "better_than_baselines": self.better(metric, method),
            }  # fmt: skip
            for name in BASELINES:
                difference = versus.get(name)
                for key in Interval._fields:
                    row[f"over_{name}_{key}"] = None if difference is None else _plain(difference)[key]
            found.append(row)
        return found

    def save(self, folder: str | PathLike[str]) -> Path:
        """Write tables, curves and a page; returns the page.

        ``scores.csv`` (means, intervals, differences to the baselines), ``scores.json`` (the same and the numbers of
        every image), ``curves.png``, and ``index.html``, where a click on a method shows its best and its worst images.
        """
        from visattn.report.folder import make_folder
        from visattn.report.scores import draw_score_curves, write_scores_page

        if str(folder) == "":
            raise ValueError("the name of the folder is empty")
        path = Path(folder)
        make_folder(path, RESULT, MAKER)
        rows = self.rows()
        write_json(path / RESULT, self._content(rows))
        with replacing(path / "scores.csv") as partial, partial.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        (path / "curves.png").unlink(missing_ok=True)  # of an earlier evaluation; this one may have none
        title = f"Are the heatmaps of {self.model} true?"
        if self.curves:
            draw_score_curves(path / "curves.png", {method: self.curves[method] for method in self.ranked}, title)
        header = {name: METRICS[name].meaning for name in self.values}
        write_scores_page(path / "index.html", title, self._legend, header, self._page_rows())
        return path / "index.html"

    def _content(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "made_by": MAKER,
            "model": self.model,
            "settings": dict(self.settings),
            "scores": rows,
            "images": [
                {"name": name, "target": target, "probability": probability}
                for name, target, probability in zip(self.names, self.target, self.probability, strict=True)
            ],
            "values": {
                metric: {method: each.tolist() for method, each in values.items()}
                for metric, values in self.values.items()
            },
            "curves": {method: each.mean(2).tolist() for method, each in self.curves.items()},
            "agreement": None if self.agreement is None else self.agreement.tolist(),
            "methods": list(self.methods),
            "left_out": [{"what": what, "why": why} for what, why in self.left_out],
        }

    def _page_rows(self) -> list[ScoreRow]:
        from visattn.report.scores import ScoredImage, ScoreRow

        sign = 1 if METRICS[self.headline].higher else -1

        def picture(method: str, number: int) -> ScoredImage:
            value = float(self.values[self.headline][method][number])
            said = f"{self.names[number]}, {self.headline} {value:.3f}"
            return ScoredImage(said, self.images[number], self.heatmaps[method][number])

        rows = []
        for method in self.ranked:
            own = sign * self.values[self.headline][method]
            order = np.argsort(-own, kind="stable")[: len(self.names)].tolist() if len(own) == len(self.names) else []
            best, worst = order[:EXTREMES], order[EXTREMES:][::-1][:EXTREMES]
            rows.append(
                ScoreRow(
                    method,
                    method in BASELINES,
                    {name: self._cell(name, method) for name in self.values},
                    {name: str(self.interval(name, method)) for name in self.values},
                    None if method not in self.curves else self.curves[method].mean(2),
                    [picture(method, number) for number in best],
                    [picture(method, number) for number in worst],
                )
            )
        return rows


def _plain(interval: Interval) -> dict[str, float | None]:
    """For files: nothing in place of what is infinite."""
    return {key: value if np.isfinite(value) else None for key, value in interval._asdict().items()}

"""A single HTML file for switching between methods and clicking patches to see what they attend to."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray
from PIL import Image

from visattn.files import replacing, to_json
from visattn.report.figures import SIGNED_MAP, shrunk
from visattn.report.views import Relation, Subject, methods_of

MAPS = ("inferno", "viridis", "magma", "cividis")  # perceptually uniform
PHOTO, HEATMAP = 1280, 512  # pixels of the longer side, at most
LOSSLESS = 50_000  # base64 characters up to which a PNG is used even if a JPEG is smaller
WEIGHTS = 1_000_000  # per layer, at most

_TEMPLATE, _HEAD = (Path(__file__).with_name(name) for name in ("page.html", "head.html"))


def write_page(path: Path, subjects: Sequence[Subject], title: str) -> None:
    """Write a self-contained page that works offline.

    Args:
        path: of the HTML file.
        subjects: the images; photographs are embedded with at most 1280 pixels a side, heatmaps with 512.
        title: of the page.
    """
    data = {
        "title": title,
        "methods": methods_of(subjects),
        "maps": {name: _colours(name) for name in MAPS},
        "signed": _colours(SIGNED_MAP),
        "subjects": [_subject(subject) for subject in subjects],
    }
    write_filled(path, _TEMPLATE, data)


def write_filled(path: Path, template: Path, data: Any) -> None:
    """Write a page with its data inside, and the head that all pages share."""
    page, head = (each.read_text(encoding="utf-8") for each in (template, _HEAD))
    # Only "<" could end or change a script element, so it is escaped; json escapes everything else.
    page = page.replace("{{ head }}", head).replace("{{ data }}", to_json(data).replace("<", r"\u003c"))
    with replacing(path) as partial:
        partial.write_text(page, encoding="utf-8")


def _subject(subject: Subject) -> dict[str, Any]:
    views = {
        view.method: {
            "target": view.target,
            "note": view.note,
            "score": view.score,
            "empty": not view.heatmap.any(),
            "signed": view.signed,
            "heatmap": embedded_picture(_grey(shrunk(view.heatmap, HEATMAP), view.signed), "png"),
        }
        for view in subject.views
    }
    photo = shrunk(subject.image, PHOTO)
    jpeg, png = embedded_picture(photo, "jpeg"), embedded_picture(photo, "png")
    return {
        "name": subject.name,
        "said": subject.said,
        "title": subject.title,
        "image": png if len(png) < max(len(jpeg), LOSSLESS) else jpeg,
        "views": views,
        "relations": [_relation(relation) for relation in subject.relations],
    }


def _relation(relation: Relation) -> dict[str, Any]:
    weights, query_grid, key_grid, factor = pooled(relation)
    weights = np.maximum(weights, 0)
    largest = weights.max(1, keepdims=True)
    scaled = 255 * weights / np.where(largest > 0, largest, 1)
    return {
        "name": relation.name,
        "queries": query_grid,
        "keys": key_grid,
        "pooled": factor,
        "weights": _text(scaled.round()),
        "largest": base64.b64encode(largest.astype("<f4").tobytes()).decode(),
    }


def pooled(relation: Relation) -> tuple[NDArray[np.float32], tuple[int, int], tuple[int, int], int]:
    """Average patches so that at most a million weights remain; returns the weights, both grids, and the factor."""
    grids = [*relation.query_grid, *relation.key_grid]
    factor = 1
    while np.prod([-(-side // factor) for side in grids]) > WEIGHTS:
        factor += 1
    if factor == 1:
        return relation.weights, relation.query_grid, relation.key_grid, 1
    means = [_means(side, -(-side // factor)) for side in grids]
    weights = np.einsum("ijkl,ai,bj,ck,dl->abcd", relation.weights.reshape(grids), *means, optimize=True)
    a, b, c, d = weights.shape
    return weights.reshape(a * b, c * d), (a, b), (c, d), factor


def _means(count: int, cells: int) -> NDArray[np.float32]:
    """Matrix (cells, count) that averages `count` patches over `cells` equal cells, which may cut through patches.

    >>> _means(4, 2)
    array([[0.5, 0.5, 0. , 0. ],
           [0. , 0. , 0.5, 0.5]], dtype=float32)
    """
    edges = np.arange(cells + 1)[:, None] * count / cells
    covered = np.clip(edges - np.arange(count), 0, 1)  # fraction of each patch before each edge
    return (np.diff(covered, axis=0) * cells / count).astype(np.float32)


def _grey(heatmap: NDArray[np.float32], signed: bool) -> NDArray[np.uint8]:
    """From 0 to 255; the zero of a signed heatmap is in the middle."""
    return (255 * ((heatmap + 1) / 2 if signed else heatmap)).round().astype(np.uint8)


def _colours(name: str) -> str:
    """The 256 colours of a map."""
    return _text((255 * colormaps[name](range(256))[:, :3]).round())


def _text(numbers: NDArray[Any]) -> str:
    """Encode integers from 0 to 255 as base64."""
    return base64.b64encode(numbers.astype(np.uint8).tobytes()).decode()


def embedded_picture(pixels: NDArray[np.uint8], kind: str) -> str:
    """Encode an image as a data URL."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind, quality=90)
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"

"""A folder of heatmaps: the files of every image, the sheets and the page for all of them, and a manifest."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from visattn.constants import ON_SHEETS
from visattn.files import check_writable, made_by, read_manifest, replacing, unwritable, write_json
from visattn.report.figures import overlay, save_pixels
from visattn.report.page import write_page
from visattn.report.paths import draw_fixations
from visattn.report.sheets import draw_channels, draw_comparison, draw_grid, draw_strip
from visattn.report.stems import Stems
from visattn.report.views import Finding

LETTERS = 12  # of a layer's name above a small picture
KINDS = ("channels", "fixations", "grid", "depth")  # of pictures beside those of the methods


MANIFEST = "manifest.json"
PAGE = "index.html"
MAKER = "visattn heatmap"  # as the manifest says it


class HeatmapFolder:
    """A folder that is written image by image.

    It is created if necessary, and must not contain files from elsewhere; otherwise ValueError.

    Args:
        path: of the folder.
        methods: names of the methods that may be written.
    """

    def __init__(self, path: str | Path, methods: Iterable[str]) -> None:
        if path == "":
            raise ValueError("the name of the folder is empty")
        self.path = Path(path)
        self.entries: list[dict[str, Any]] = []
        self.findings: list[Finding] = []  # on the sheets
        self.layers: dict[str, list[str]] = {}
        self._stems = Stems([*methods, *KINDS])
        make_folder(self.path, MANIFEST, MAKER)

    def add(self, name: str, finding: Finding) -> None:
        """Write the files of one image; ``name`` is its path, or what it is called."""
        if not self.entries:
            remove_earlier(self.path)
            mark(self.path)
        files = write_finding(self.path, self._stems.of(Path(name)), finding)
        self.entries.append({"file": name, **finding.said, "files": files})
        self.layers |= {method: list(names) for method, names in finding.layers.items()}
        if len(self.findings) < ON_SHEETS:
            self.findings.append(finding)

    def finish(self, model: str, facts: Mapping[str, Any]) -> Path:
        """Write the sheets, the page and the manifest; returns the path of the page."""
        title = f"What {model} looks at"
        subjects = [finding.subject for finding in self.findings]
        sheets = draw_comparison(self.path / "comparison.png", subjects, title)
        write_page(self.path / PAGE, subjects, title)
        together = {"images": self.entries, "sheets": [sheet.name for sheet in sheets], "page": PAGE}
        write_manifest(self.path, {"model": model, **facts, **together})
        return self.path / PAGE


def make_folder(path: Path, manifest: str, maker: str) -> None:
    """Create a folder, and check that it is writable and contains no files from elsewhere.

    Args:
        path: the folder.
        manifest: name of the file that says who wrote the folder.
        maker: who may write to it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        check_writable(path)
        foreign = sorted(entry.name for entry in path.iterdir()) if made_by(path / manifest) != maker else []
    except OSError as error:
        raise unwritable(path, error) from error
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise ValueError(
            f"{str(path)!r} has files that {maker} did not write ({foreign[0]!r}{more}): choose a new folder"
        )


def remove_earlier(folder: Path) -> None:
    """Remove the files that the manifest of an earlier run lists, and nothing else."""
    for name in _listed(folder):
        if name == Path(name).name and "\0" not in name:  # not in another folder
            with suppress(OSError):
                (folder / name).unlink(missing_ok=True)


def unlisted(folder: Path) -> list[str]:
    """The files of a folder that its manifest does not list, such as those of a run that was killed."""
    return sorted({entry.name for entry in folder.iterdir()} - {MANIFEST, *_listed(folder)})


def _listed(folder: Path) -> list[str]:
    """The files that the manifest of a folder lists, if it is one of ours."""
    said = read_manifest(folder / MANIFEST)
    if said.get("made_by") != MAKER:
        return []
    images = said.get("images")
    lists = [said.get("sheets"), [said.get("page")], *(each.get("files") for each in _dictionaries(images))]
    return [name for names in lists if isinstance(names, list) for name in names if isinstance(name, str)]


def _dictionaries(values: Any) -> list[dict[str, Any]]:
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []


def mark(folder: Path) -> None:
    """Mark a folder as ours while it is empty, so that a command that was killed can be run again."""
    write_manifest(folder, {"images": []})


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Write the manifest: the contents of the folder, and that we may write to it again."""
    write_json(folder / MANIFEST, {"made_by": MAKER, **content})


def write_finding(folder: Path, stem: str, finding: Finding) -> list[str]:
    """Write all pictures and arrays of one image; returns the file names."""
    subject = finding.subject
    files = {kind: folder / f"{stem}_{kind}.png" for kind in (*finding.heatmaps, *KINDS)}
    written = []
    for view in subject.views:
        save_pixels(overlay(subject.image, view.heatmap, signed=view.signed), files[view.method])
        array = files[view.method].with_suffix(".npy")
        content = io.BytesIO()  # into a file, np.save does not say why it fails
        np.save(content, finding.heatmaps[view.method])
        with replacing(array) as partial:
            partial.write_bytes(content.getvalue())
        written += [files[view.method], array]
    title = subject.title
    if subject.channels:
        draw_channels(files["channels"], subject.channels, f"Channel gates for {title}")
        written.append(files["channels"])
    if subject.fixations is not None:
        draw_fixations(files["fixations"], subject.image, subject.fixations, title)
        written.append(files["fixations"])
    if finding.heads:
        labels, columns = _grid(finding.heads)
        draw_grid(files["grid"], subject.image, labels, f"Attention by layer and head, {title}", columns)
        written.append(files["grid"])
    if finding.depth:
        frames = dict(zip(short_layers(list(finding.depth)), finding.depth.values(), strict=True))
        draw_strip(files["depth"], subject.image, frames, f"Rollout up to each layer, {title}")
        written.append(files["depth"])
    return [file.name for file in written]


def short_layers(names: Sequence[str]) -> list[str]:
    """Shorten layer names to fit above a small picture, as long as they stay distinct.

    >>> short_layers(["blocks.0.attn", "blocks.1.attn"]), short_layers(["layers.0.blocks.1.attn"])
    (['blocks.0', 'blocks.1'], ['layers 0.1'])
    """
    plain = [name.removesuffix(".attn") for name in names]
    if max(map(len, plain), default=0) <= LETTERS:
        return plain
    short = [f"{name.split('.')[0]} {'.'.join(re.findall(r'[0-9]+', name))}" for name in plain]
    return short if len(set(short)) == len(plain) else plain


def _grid(
    heads: Mapping[tuple[str, int], NDArray[np.float32]],
) -> tuple[dict[str, NDArray[np.float32] | None], int]:
    """Arrange a row per layer and a column per head, with labels; layers may differ in their number of heads."""
    layers = list(dict.fromkeys(layer for layer, _ in heads))
    rows = [[head for name, head in heads if name == layer] for layer in layers]
    columns = max(map(len, rows))
    labels: dict[str, NDArray[np.float32] | None] = {}
    for layer, short, row in zip(layers, short_layers(layers), rows, strict=True):
        labels |= {f"{short} · {head}": heads[layer, head] for head in row}
        labels |= {f"{short} · none {empty}": None for empty in range(columns - len(row))}
    return labels, columns

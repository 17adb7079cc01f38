"""Where objects are in images, as people note it: pictures of masks, or boxes in Pascal VOC's XML."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from visattn.data.decode import BadImage, read_image
from visattn.data.files import EXTENSIONS
from visattn.files import read_bytes, reason
from visattn.listing import times

LARGEST_XML = 16_000_000  # bytes
DEEPEST = 4  # annotation/object/bndbox/xmin

SIDES = ("xmin", "ymin", "xmax", "ymax")

Box = tuple[int, int, int, int]


def find_annotations(folder: str | Path) -> dict[str, Path]:
    """The files of a folder that can tell where objects are, by the name of the image without its extension."""
    if not os.path.isdir(folder):
        raise ValueError(f"there is no folder {str(folder)!r} of masks")
    names = sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith("."))
    found: dict[str, Path] = {}
    for name in names:
        stem, extension = os.path.splitext(name)
        if extension.lower() == ".xml" or extension.lower() in EXTENSIONS:
            if stem in found:
                raise ValueError(f"{str(folder)!r} has two files for {stem!r}: {found[stem].name!r} and {name!r}")
            found[stem] = Path(folder) / name
    if not found:
        raise ValueError(f"{str(folder)!r} holds no masks: pictures or Pascal VOC's .xml, named as the images are")
    return found


def read_annotation(path: Path, size: tuple[int, int]) -> NDArray[np.bool_]:
    """(H, W): where the objects of an image of this size are.

    Args:
        path: a picture of the same size, where whatever is not black is an object; or boxes in Pascal VOC's XML. JPEG,
            WebP and AVIF are refused, since they leave what is not black around every object.
        size: height and width of the image.
    """
    if path.suffix.lower() == ".xml":
        mask = np.zeros(size, bool)
        boxes, stated = read_boxes(path)
        if stated is not None and stated != size:
            raise ValueError(
                f"{str(path)!r} is about an image of {_pixels(stated)}, but its image is {_pixels(size)} pixels"
            )
        for left, top, right, bottom in boxes:
            if not (1 <= left <= right <= size[1] and 1 <= top <= bottom <= size[0]):
                box = (left, top, right, bottom)
                raise ValueError(f"{str(path)!r}: the box {box} is not in an image of {_pixels(size)} pixels")
            mask[top - 1 : bottom, left - 1 : right] = True
        return mask
    try:
        picture = read_image(path)
    except BadImage as error:
        raise ValueError(f"{error.path}: {error.reason}") from None
    if picture.shape[:2] != size:
        raise ValueError(f"{str(path)!r} is {_pixels(picture.shape[:2])}, but its image is {_pixels(size)} pixels")
    with Image.open(path) as grey:
        if grey.format in ("JPEG", "WEBP", "AVIF"):
            raise ValueError(f"{str(path)!r} is a {grey.format}, which blurs a mask: save it as PNG")
        if grey.mode.startswith("I"):  # 16 bits: a small number would be black in 8
            return np.asarray(grey) != 0
    return np.any(picture, axis=2)


def read_boxes(path: Path) -> tuple[list[Box], tuple[int, int] | None]:
    """Left, top, right and bottom of the objects in a file of Pascal VOC's; the first pixel is 1, the last is inside.

    With them height and width of the image, if the file states them. Nothing in the file is expanded or fetched: a
    document type, which could define entities, is refused.
    """
    boxes: list[dict[str, list[str]]] = []  # a text is told in pieces, a line each
    size: dict[str, list[str]] = {}
    where: list[str] = []

    def start(name: str, _attributes: Any) -> None:
        where.append(name)
        if len(where) == 2 and name == "object":
            boxes.append({})

    def text(content: str) -> None:
        if len(where) > DEEPEST:
            return
        inside = {"object/bndbox": boxes[-1] if boxes else {}, "size": size}.get("/".join(where[1:-1]))
        if inside is not None:
            inside.setdefault(where[-1], []).append(content)

    def refuse(*_declaration: Any) -> None:
        raise ValueError(f"{str(path)!r} declares a document type, which is not read")

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _name: where.pop()
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(read_bytes(path, LARGEST_XML), True)
    except OSError as error:
        raise ValueError(f"{str(path)!r} cannot be read: {reason(error)}") from None
    except expat.ExpatError as error:
        raise ValueError(f"{str(path)!r} is not XML: {error}") from None
    if not boxes:
        raise ValueError(f"{str(path)!r} names no object, as Pascal VOC's annotations do")
    return [_box(_joined(box), path) for box in boxes], _size(_joined(size))


def _joined(texts: dict[str, list[str]]) -> dict[str, str]:
    return {key: "".join(pieces) for key, pieces in texts.items()}


def _pixels(size: Sequence[int]) -> str:
    """Width and height, as people say it, and as boxes have it."""
    return times(size[::-1])


def _size(stated: dict[str, str]) -> tuple[int, int] | None:
    """Height and width; None where a tool left them at zero, or out."""
    try:
        height, width = int(stated["height"]), int(stated["width"])
    except (KeyError, ValueError):
        return None
    return (height, width) if height > 0 and width > 0 else None


def _box(box: dict[str, str], path: Path) -> Box:
    try:
        left, top, right, bottom = (round(float(box[key])) for key in SIDES)
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"{str(path)!r} has an object without a box of four numbers ({', '.join(SIDES)})") from None
    return left, top, right, bottom

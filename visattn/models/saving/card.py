"""The schema of a model card, ``model.json``.

A card travels with weights made by strangers, so it is data: every key is known, every value has a type and a range,
and nothing on it can name a file, a URL or code. Whatever writes a card goes through the same schema.

>>> check_card({"model": {"name": "resnet18", "num_classes": 2}}, "model.json")
{'model': {'name': 'resnet18', 'num_classes': 2}}
>>> check_card({"model": {"name": "resnet18", "cache_dir": "/tmp"}}, "model.json")
Traceback (most recent call last):
ValueError: the card 'model.json' cannot be understood: model.cache_dir says where weights come from; a card may not
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from visattn.files import read_text
from visattn.listing import shown
from visattn.models.arguments import PLACEMENT
from visattn.models.saving.checks import (
    Check,
    check_object,
    each,
    flag,
    number,
    one_of,
    optional,
    options,
    plain,
    record,
    table,
    text,
    whole,
)

CARD = "model.json"
LARGEST = 16_000_000  # bytes of a card: tens of thousands of classes with two names each
MOST_VALUES = 2_000_000  # of a card, and keys
DEEPEST = 20  # levels, more than any card has
MOST_PIXELS = 2**27  # as for an image that is read
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")
CROP_MODES = ("center", "squash", "border")
MODEL_NAME = re.compile(r"\w[\w.-]*", re.ASCII)  # no address, no folder
MODULE = re.compile(r"[\w. -]*")
DIGEST = re.compile(r"[0-9a-f]{64}")
SIDE = whole(1, 16_384)
SIZE = each(SIDE, 2, 2)
ARGUMENTS: dict[str, Check] = {
    "name": text(MODEL_NAME),
    "attn": optional(text(MODEL_NAME)),
    "attn_options": optional(options),
    "init": one_of("identity", "paper"),
    "num_classes": whole(0, 1_000_000),
    "in_chans": whole(1, 1024),
    "img_size": lambda value, path: (SIZE if isinstance(value, list | tuple) else SIDE)(value, path),
    "features_only": flag,
}


def model(value: Any, path: str) -> None:
    """Arguments of :func:`visattn.create_model`: what a network is, and not where its weights come from."""
    check_object(value, path)
    for key in PLACEMENT:
        if key in value:
            raise ValueError(f"{path}.{key} belongs to the machine that uses the model, not to its card")
    plain(value, path)
    if "name" not in value:
        raise ValueError(f"{path}.name is missing")
    for key in value.keys() & ARGUMENTS.keys():
        ARGUMENTS[key](value[key], f"{path}.{key}")


PATCH = record({"at": text(MODULE), "patch": options})
REPLACE = record({"at": text(MODULE), "replace": text(MODEL_NAME), "options": options})
BLOCK = record(
    {
        "at": text(MODULE),
        "block": text(MODEL_NAME),
        "options": options,
        "init": one_of("identity", "paper"),
        "layout": record(
            {"kind": one_of("NCHW", "NHWC", "tokens"), "channels": whole(1, 2**20)}, {"prefix": whole(0, 1024)}
        ),
        "size": SIZE,
        "image": SIZE,
        "index": optional(whole(0, 1000)),
        "entry": optional(text(MODULE)),
    }
)


def attachment(value: Any, path: str) -> None:
    """A block and its place, other attention inside a transformer, or a block in the place of a convolution."""
    if isinstance(value, dict) and "patch" in value:
        return PATCH(value, path)
    if isinstance(value, dict) and "replace" in value:
        return REPLACE(value, path)
    BLOCK(value, path)
    (height, width), (rows, columns) = value["size"], value["image"]
    if height > rows or width > columns or height * width * value["layout"]["channels"] > 2**27:
        raise ValueError(f"{path}.size is {height} x {width}, which is no feature map of {rows} x {columns} pixels")
    return None


INPUT = record(
    {},
    {
        "size": each(SIDE, 3, 3),
        "mean": each(number(-1e3, 1e3), 1, 1024),
        "std": each(number(0, 1e3, above=True), 1, 1024),
        "crop_pct": number(0.01, 2, above=True),
        "interpolation": one_of(*INTERPOLATIONS),
        "crop_mode": one_of(*CROP_MODES),
        "range": text(),
    },
)


def model_input(value: Any, path: str) -> None:
    """How an image becomes the network's input."""
    INPUT(value, path)
    channels, height, width = value.get("size", (3, 1, 1))
    share = value.get("crop_pct", 1)
    if height * width / min(share, 1) ** 2 > MOST_PIXELS:  # of the image that the middle is cut out of
        raise ValueError(f"{path}.size is {height} x {width}, with a crop_pct of {share} more pixels than can be made")
    for key in ("mean", "std"):
        # timm's are for RGB, whatever the number of channels
        if key in value and len(value[key]) not in ((3,) if channels == 3 else (channels, 3)):
            raise ValueError(f"{path}.{key} has {len(value[key])} numbers for {channels} channels")


PLUGIN = record(
    {"name": text(longest=1000), "registers": each(text(MODEL_NAME))}, {"package": text(), "sha256": text(DIGEST)}
)
NAMES = each(text(longest=1000))
KNOWN = record(
    {"model": model},
    {
        "name": text(),
        "attachments": each(attachment, most=10_000),
        "classes": NAMES,
        "class_names": NAMES,
        "input": model_input,
        "data": text(longest=1000),
        "plugins": each(PLUGIN, most=100),
        "best": table(optional(number(-1e300, 1e300))),
        "versions": table(text()),
    },
)


def check_card(card: Any, source: str | Path) -> dict[str, Any]:
    """Return a card as JSON gives it if it follows the schema; otherwise raise, with the name of its file.

    Args:
        card: anything.
        source: where it comes from.
    """
    try:
        return checked(card)
    except ValueError as error:
        raise ValueError(f"the card {str(source)!r} cannot be understood: {error}") from None


def checked(card: Any) -> dict[str, Any]:
    """A card as JSON gives it; what does not follow the schema raises."""
    _check_amount(card)
    KNOWN(card, "")
    _check_numbers(card)
    return json.loads(json.dumps(card, allow_nan=False))


def _check_amount(card: Any) -> None:
    """Raise if a card would be larger than its file may be: in a checkpoint, lists can be the same ones many times."""
    todo, values, letters = [(card, 0)], 0, 0
    while todo:
        each, depth = todo.pop()
        values += 1
        if depth > DEEPEST:
            raise ValueError("it is nested too deeply")
        if isinstance(each, Mapping):
            todo += [(inner, depth + 1) for inner in (*each.keys(), *each.values())]
        elif isinstance(each, list | tuple):
            todo += [(inner, depth + 1) for inner in each]
        elif isinstance(each, str):
            letters += len(each)
        if values + len(todo) > MOST_VALUES or letters > LARGEST:
            raise ValueError(f"it holds more than {MOST_VALUES:,} values, or more than {LARGEST:,} letters")


def read_card(path: str | Path) -> dict[str, Any]:
    """Read the card in a file."""
    content = read_text(path, LARGEST)
    try:
        card = json.loads(content, object_pairs_hook=_unique_keys, parse_constant=_refuse)
    except RecursionError:
        raise ValueError(f"the card {str(path)!r} cannot be understood: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the card {str(path)!r} cannot be understood: it is not JSON ({error})") from None
    return check_card(card, path)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{shown(key)} stands there twice")
        found[key] = value
    return found


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _check_numbers(card: Mapping[str, Any]) -> None:
    """Raise unless there are as many names as classes."""
    count = card["model"].get("num_classes")
    for key in ("classes", "class_names"):
        if card.get(key) and count and len(card[key]) != count:
            raise ValueError(f"{key} has {len(card[key])} names for {count} classes")

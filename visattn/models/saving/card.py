"""The card of a model: what may stand on it, and nothing else.

A card travels with weights that strangers made, so it is data: every key is known, every value has a type and a range,
and nothing on it can name a file, an address or code. Whatever writes a card goes through the same definition.

>>> check_card({"model": {"name": "resnet18", "num_classes": 2}}, "model.json")
{'model': {'name': 'resnet18', 'num_classes': 2}}
>>> check_card({"model": {"name": "resnet18", "cache_dir": "/tmp"}}, "model.json")
Traceback (most recent call last):
ValueError: the card 'model.json' cannot be understood: model.cache_dir says where weights come from; a card may not
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from visattn.files import read_text
from visattn.registry import suggest

CARD = "model.json"
LARGEST = 16_000_000  # bytes of a card: tens of thousands of classes with two names each
MOST_PIXELS = 2**27  # as of an image that is read
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")
CROP_MODES = ("center", "squash", "border")

# Arguments of timm.create_model that say where weights come from or go to, not what a network is.
ORIGIN = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_strict", "checkpoint_path", "cache_dir")
PLACEMENT = ("device", "dtype")

MODEL_NAME = re.compile(r"\w[\w.-]*", re.ASCII)  # no address, no folder
WORD = re.compile(r"[\w.,+ ()-]*", re.ASCII)
KEY = re.compile(r"[A-Za-z_]\w*", re.ASCII)
MODULE = re.compile(r"[\w. -]*")
DIGEST = re.compile(r"[0-9a-f]{64}")

Check: TypeAlias = "Callable[[Any, str], None]"  # of a value and the path to it


def whole(low: int, high: int) -> Check:
    """A whole number within a range."""

    def check(value: Any, path: str) -> None:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"{path} is {shown(value)}, not a whole number from {low} to {high}")

    return check


def number(low: float, high: float, *, above: bool = False) -> Check:
    """A finite number within a range; above its lower end, if that is asked for."""

    def check(value: Any, path: str) -> None:
        if type(value) not in (int, float) or not low <= value <= high or (above and value == low):
            start = f"above {low:g} and up to" if above else f"from {low:g} to"
            raise ValueError(f"{path} is {shown(value)}, not a number {start} {high:g}")

    return check


def text(pattern: re.Pattern[str] | None = None, longest: int = 200) -> Check:
    """Letters, all of them allowed by the pattern."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, str):
            raise ValueError(f"{path} is {shown(value)}, not a text")
        if len(value) > longest:
            raise ValueError(f"{path} has {len(value):,} letters, which is more than {longest}")
        if pattern is not None and not pattern.fullmatch(value):
            raise ValueError(f"{path} is {shown(value)}, which no name here looks like")

    return check


def one_of(*words: str) -> Check:
    """One of a few words."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, str) or value not in words:
            raise ValueError(f"{path} is {shown(value)}, not one of {', '.join(words)}")

    return check


def each(item: Check, least: int = 0, most: int = 1_000_000) -> Check:
    """A list, each of whose items passes a check."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{path} is {shown(value)}, not a list")
        if not least <= len(value) <= most:
            wanted = str(least) if least == most else f"{least} to {most:,}"
            raise ValueError(f"{path} has {len(value):,} entries instead of {wanted}")
        for index, entry in enumerate(value):
            item(entry, f"{path}[{index}]")

    return check


def record(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """An object with these keys and no others."""
    known = {**required, **(optional or {})}

    def check(value: Any, path: str) -> None:
        _check_object(value, path)
        for key in required:
            if key not in value:
                raise ValueError(f"{_inside(path, key)} is missing")
        for key, entry in value.items():
            if key not in known:
                raise ValueError(f"{_inside(path, key)} is unknown: {suggest(key, known)}")
            known[key](entry, _inside(path, key))

    return check


def table(entry: Check, most: int = 100) -> Check:
    """An object with any keys, each of whose values passes a check."""

    def check(value: Any, path: str) -> None:
        _check_object(value, path)
        if len(value) > most:
            raise ValueError(f"{path} has {len(value):,} entries, which is more than {most}")
        for key, item in value.items():
            text(KEY, 100)(key, f"a key of {path}")
            entry(item, _inside(path, key))

    return check


def optional(check: Check) -> Check:
    """Nothing, or what passes the check."""
    return lambda value, path: None if value is None else check(value, path)


def plain(value: Any, path: str, depth: int = 4) -> None:
    """Small values that JSON has, in lists and objects that are not deep."""
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, int | float):
        number(-1e6, 1e6)(value, path)
    elif isinstance(value, str):
        text(WORD)(value, path)
    elif depth == 0:
        raise ValueError(f"{path} is nested too deeply")
    elif isinstance(value, dict):
        _check_origin(value, path)
        table(lambda entry, inner: plain(entry, inner, depth - 1))(value, path)
    elif isinstance(value, list | tuple):
        each(lambda entry, inner: plain(entry, inner, depth - 1), most=1000)(value, path)
    else:
        raise ValueError(f"{path} is a {type(value).__name__}, which a card cannot hold")


def options(value: Any, path: str) -> None:
    """Keyword arguments of a block or a network."""
    _check_object(value, path)
    plain(value, path)


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
    "features_only": lambda value, path: _check_flag(value, path),
}


def model(value: Any, path: str) -> None:
    """Arguments of :func:`visattn.create_model`: what a network is, and not where its weights come from."""
    _check_object(value, path)
    for key in PLACEMENT:
        if key in value:
            raise ValueError(f"{path}.{key} belongs to the machine that uses the model, not to its card")
    plain(value, path)
    if "name" not in value:
        raise ValueError(f"{path}.name is missing")
    for key in value.keys() & ARGUMENTS.keys():
        ARGUMENTS[key](value[key], f"{path}.{key}")


PATCH = record({"at": text(MODULE), "patch": options})
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
    """A block and its place, or other attention inside a transformer."""
    if isinstance(value, dict) and "patch" in value:
        return PATCH(value, path)
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


def seen(value: Any, path: str) -> None:
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


PLUGIN = record({"name": text(longest=1000), "registers": each(text(MODEL_NAME))}, {"sha256": text(DIGEST)})
NAMES = each(text(longest=1000))
KNOWN = record(
    {"model": model},
    {
        "name": text(),
        "attachments": each(attachment, most=10_000),
        "classes": NAMES,
        "class_names": NAMES,
        "input": seen,
        "data": text(longest=1000),
        "plugins": each(PLUGIN, most=100),
        "best": table(optional(number(-1e300, 1e300))),
        "versions": table(text()),
    },
)


def check_card(card: Any, source: str | Path) -> dict[str, Any]:
    """A card as JSON gives it, if all that stands on it is as it should be; otherwise raise, with the name of its file.

    Args:
        card: anything.
        source: where it comes from.
    """
    try:
        KNOWN(card, "")
        _check_numbers(card)
        return json.loads(json.dumps(card, allow_nan=False))
    except ValueError as error:
        raise ValueError(f"the card {str(source)!r} cannot be understood: {error}") from None


def read_card(path: str | Path) -> dict[str, Any]:
    """The card in a file."""
    content = read_text(path, LARGEST)
    try:
        card = json.loads(content, object_pairs_hook=_once, parse_constant=_refuse)
    except RecursionError:
        raise ValueError(f"the card {str(path)!r} cannot be understood: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the card {str(path)!r} cannot be understood: it is not JSON ({error})") from None
    return check_card(card, path)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{shown(key)} stands there twice")
        found[key] = value
    return found


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _check_numbers(card: Mapping[str, Any]) -> None:
    """As many names as classes."""
    count = card["model"].get("num_classes")
    for key in ("classes", "class_names"):
        if card.get(key) and count and len(card[key]) != count:
            raise ValueError(f"{key} has {len(card[key])} names for {count} classes")


def _check_object(value: Any, path: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{path or 'it'} is {shown(value)}, not an object with keys")


def _check_origin(value: Mapping[str, Any], path: str) -> None:
    for key in ORIGIN:
        if key in value:
            raise ValueError(f"{path}.{key} says where weights come from; a card may not")


def _check_flag(value: Any, path: str) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{path} is {shown(value)}, not true or false")


def _inside(path: str, key: Any) -> str:
    return f"{path}.{key}" if path and isinstance(key, str) else key if isinstance(key, str) else shown(key)


def shown(value: Any) -> str:
    """A value in a message, not too long of it."""
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = brief.maxlong = 60
    try:
        return brief.repr(value)
    except ValueError:  # Python's limit of digits
        return "a huge number"

"""Decode image files to RGB arrays.

OpenCV decodes JPEG, PNG and opaque WebP; Pillow decodes transparent images, CMYK and rarer formats. Both are lenient
with damaged files in their own ways, so size and completeness are checked first. Nothing in a file is ever executed:
formats that are programs, such as EPS, are not supported.
"""

from __future__ import annotations

import io
import re
import struct
import warnings
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.Jpeg2KImagePlugin import Jpeg2KImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import BITSPERSAMPLE, PLANAR_CONFIGURATION, TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from visattn.data.files import MAX_BYTES
from visattn.files import read_bytes, reason

MAX_PIXELS = 2**27
DAMAGED = "damaged or truncated"
TOO_MANY = f", more than the {MAX_PIXELS // 10**6} million allowed; shrink it first"

# Signatures of the files that Pillow opens. (Image.open would warn about sizes that are fine here.)
KINDS: dict[bytes, type[ImageFile]] = {
    rb"RIFF....WEBP": WebPImageFile,
    rb"GIF8[79]a": GifImageFile,
    rb"BM": BmpImageFile,
    rb"II[*+]\0|MM\0[*+]": TiffImageFile,
    rb"P[1-6]\s": PpmImageFile,
    rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51": Jpeg2KImageFile,
    rb"....ftypavi[fs]": AvifImageFile,
}

JPEG_START = b"\xff\xd8"
JPEG_SEGMENT = re.compile(rb"\xff([\x02-\xcf\xda-\xfe])(..)", re.DOTALL)  # marker and length
JPEG_FRAMES = frozenset(bytes([i]) for i in range(0xC0, 0xD0)) - {b"\xc4", b"\xc8", b"\xcc"}  # these hold the size
JPEG_SCAN = b"\xda"
JPEG_END = b"\xff\xd9"

PNG_START = b"\x89PNG\r\n\x1a\n"
PNG_CHUNKS = frozenset({b"IHDR", b"PLTE", b"tRNS", b"eXIf", b"IDAT", b"IEND"})
PNG_ALPHA = (4, 6)  # colour types


class BadImage(ValueError):  # noqa: N818 - read as prose: except BadImage
    """A file that cannot be used as an image.

    Args:
        path: where it came from.
        reason: what is wrong with it. A DataLoader re-raises a worker's error with the whole message as `path`.
    """

    def __init__(self, path: str, reason: str = "") -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.reason else self.path


def read_image(path: str | Path) -> NDArray[np.uint8]:
    """Decode a file; see `decode`."""
    try:
        data = read_bytes(path, MAX_BYTES)
    except OSError as error:
        raise BadImage(str(path), reason(error)) from error
    return decode(data, str(path))


def decode(data: bytes, path: str = "image") -> NDArray[np.uint8]:
    """Decode the contents of an image file to RGB (H, W, 3).

    The image is rotated as its EXIF data says, transparent pixels are composited over white, 16 bits are scaled to 8,
    and an animation yields its first frame. Colour profiles are ignored. CMYK in a JPEG is assumed to be inverted, with
    or without an Adobe marker, as in browsers.

    Args:
        data: the contents of the file.
        path: what to call it in error messages.

    Raises:
        BadImage: it is not an image, is damaged or truncated, or has more than `MAX_PIXELS` pixels.
    """
    if not data:
        raise BadImage(path, "the file is empty")
    if data.startswith(JPEG_START):
        return _jpeg(data, path)
    if data.startswith(PNG_START):
        return _png(data, path)
    return _other(data, path)


def _jpeg(data: bytes, path: str) -> NDArray[np.uint8]:
    """Check the size, the first scan and the end marker: decoders silently fill in what is missing."""
    width, height, channels, at = 0, 0, 0, len(JPEG_START)
    while segment := JPEG_SEGMENT.search(data, at):
        at = segment.end()
        if segment[1] == JPEG_SCAN:
            break
        if segment[1] in JPEG_FRAMES:
            height, width = (int.from_bytes(data[i : i + 2], "big") for i in (at + 1, at + 3))
            channels = int.from_bytes(data[at + 5 : at + 6], "big")
        at += int.from_bytes(segment[2], "big") - 2
    if data.rfind(JPEG_END, at) < 0:
        raise BadImage(path, DAMAGED)
    _check_size(width, height, path)
    if channels == 4:  # ink, of which OpenCV makes other colours
        return from_pillow(_open(JpegImageFile, data, path), path)
    return _by_opencv(data, path)


def _png(data: bytes, path: str) -> NDArray[np.uint8]:
    """Keep only the chunks that pixels come from: libpng prints warnings about many colour profiles."""
    chunks, kind, at = [PNG_START], b"", len(PNG_START)
    while kind != b"IEND":
        if at + 12 > len(data):
            raise BadImage(path, DAMAGED)
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind in PNG_CHUNKS:
            chunks.append(data[at : at + 12 + length])
        at += 12 + length
    if chunks[1][4:8] != b"IHDR":
        raise BadImage(path, DAMAGED)
    data = b"".join(chunks)
    width, height, _, colour = struct.unpack_from(">2I2B", data, 16)
    _check_size(width, height, path)
    if colour in PNG_ALPHA or any(chunk[4:8] == b"tRNS" for chunk in chunks):
        return from_pillow(_open(PngImageFile, data, path), path)
    return _by_opencv(data, path)


def _other(data: bytes, path: str) -> NDArray[np.uint8]:
    """Let Pillow read the header, and the pixels too where OpenCV is no better."""
    kind = next((kind for start, kind in KINDS.items() if re.match(start, data, re.DOTALL)), None)
    if kind is None:
        raise BadImage(path, "not an image in a supported format")
    if kind is Jpeg2KImageFile and JPEG_END not in data:  # the one check that Pillow leaves out
        raise BadImage(path, DAMAGED)
    image = _open(kind, data, path)
    _check_size(*image.size, path)
    if isinstance(image, WebPImageFile) and image.mode == "RGB":
        return _by_opencv(data, path)
    if isinstance(image, TiffImageFile) and image.tag_v2.get(BITSPERSAMPLE, ())[1:2] == (16,):
        return _deep_tiff(image, data, path)
    return from_pillow(image, path)


def _deep_tiff(image: TiffImageFile, data: bytes, path: str) -> NDArray[np.uint8]:
    """16-bit colours: Pillow drops the lower bytes, and neither library reads separate planes correctly."""
    if image.tag_v2.get(PLANAR_CONFIGURATION, 1) != 1:
        raise BadImage(path, "16-bit colours in separate planes, which decoders get wrong; save it as PNG")
    if image.mode != "RGB":
        return from_pillow(image, path)
    bgr = _by_opencv(data, path, cv2.IMREAD_COLOR)  # OpenCV 5.0 treats IMREAD_COLOR_RGB as BGR here
    return np.ascontiguousarray(bgr[..., ::-1])


def _check_size(width: int, height: int, path: str) -> None:
    if width * height > MAX_PIXELS:
        raise BadImage(path, f"{width} x {height} pixels{TOO_MANY}")


def _by_opencv(data: bytes, path: str, colour: int = cv2.IMREAD_COLOR_RGB) -> NDArray[np.uint8]:
    level = cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), colour | cv2.IMREAD_ANYDEPTH)
    except cv2.error as error:  # a side of more than a million pixels
        raise BadImage(path, f"OpenCV cannot decode it ({error.err})") from error
    finally:
        cv2.utils.logging.setLogLevel(level)
    if pixels is None:
        raise BadImage(path, DAMAGED)
    return _to_8_bits(pixels)


def _open(kind: type[ImageFile], data: bytes, path: str) -> ImageFile:
    try:
        return kind(io.BytesIO(data))
    except Image.DecompressionBombError as error:
        raise BadImage(path, f"too many pixels{TOO_MANY}") from error
    except Exception as error:  # Pillow raises whatever it stumbles over
        raise BadImage(path, f"{DAMAGED} ({error})") from error


def from_pillow(image: Image.Image, path: str = "image") -> NDArray[np.uint8]:
    """Convert a Pillow image to RGB (H, W, 3) as `decode` does, leaving the image itself unchanged."""
    if image.mode == "F" or (image.mode == "I" and not isinstance(image, PpmImageFile)):  # whose 16 bits are in 32
        raise BadImage(path, "32 bits per channel; save it with 8 or 16")
    if 0 in image.size:
        raise BadImage(path, "it has no pixels")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image.load()
        image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I"):
            return np.stack([_to_8_bits(np.asarray(image))] * 3, axis=-1)
        if not image.has_transparency_data:
            return np.array(image.convert("RGB"))
        layer = image.convert("RGBA")
        paper = Image.new("RGB", layer.size, "white")
        paper.paste(layer, mask=layer)
        return np.array(paper)
    except Exception as error:  # Pillow raises whatever it stumbles over
        raise BadImage(path, f"{DAMAGED} ({error})") from error


def _to_8_bits(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Scale 65535 to 255 and round; 8 bits stay as they are."""
    if pixels.dtype == np.uint8:
        return pixels
    return ((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8)

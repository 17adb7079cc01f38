"""Image files against what was put into them."""

import io
import pickle
import re
import struct
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image
from torch._utils import ExceptionWrapper

from visattn.data import decode as module
from visattn.data.decode import BadImage, decode, read_image

H, W = 30, 40
RNG = np.random.default_rng(0)


def smooth(channels, dtype=np.uint8):
    """What survives JPEG well; (H, W, channels)."""
    coarse = RNG.uniform(0, np.iinfo(dtype).max, (3, 4, channels)).astype(dtype)
    return cv2.resize(coarse, (W, H), interpolation=cv2.INTER_LINEAR)


RGB = smooth(3)
ALPHA = np.tile(np.linspace(0, 255, W).astype(np.uint8), (H, 1))
COLOUR = Image.fromarray(RGB)
GREY = COLOUR.convert("L")
GLASS = Image.fromarray(np.dstack([RGB, ALPHA]))
PALETTE = COLOUR.quantize(32)
FINE = {"quality": 100, "subsampling": 0}


def encode(image, kind, **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def rgb(image):
    return np.asarray(image.convert("RGB"))


def distance(a, b):
    assert a.shape == b.shape
    return np.abs(a.astype(int) - b.astype(int)).max()


def over_white(rgba):
    colour, alpha = rgba[..., :3].astype(float), rgba[..., 3:] / 255
    return np.rint(colour * alpha + 255 * (1 - alpha))


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def orientation(value):
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


WHOLE = {
    "jpeg": encode(COLOUR, "JPEG", **FINE),
    "progressive": encode(COLOUR, "JPEG", progressive=True, **FINE),
    "grey jpeg": encode(GREY, "JPEG", **FINE),
    "png": encode(COLOUR, "PNG"),
    "transparent png": encode(GLASS, "PNG"),
    "webp": encode(COLOUR, "WEBP", lossless=True),
    "transparent webp": encode(GLASS, "WEBP", lossless=True, exact=True),
    "gif": encode(PALETTE, "GIF"),
    "bmp": encode(COLOUR, "BMP"),
    "tiff": encode(COLOUR, "TIFF"),
    "lzw tiff": encode(COLOUR, "TIFF", compression="tiff_lzw"),
    "16-bit tiff": cv2.imencode(".tiff", RGB.astype(np.uint16))[1].tobytes(),
    "ppm": encode(COLOUR, "PPM"),
    "jpeg 2000": encode(COLOUR, "JPEG2000"),
    "avif": encode(COLOUR, "AVIF"),
}


# EXIF orientation -> how to turn the stored image upright.
UPRIGHT = {
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: x[::-1, ::-1].swapaxes(0, 1),
    8: np.rot90,
}


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000"])
def test_lossless_formats_are_exact(tmp_path, kind):
    path = tmp_path / "image"
    COLOUR.save(path, kind, **({"lossless": True} if kind == "WEBP" else {}))
    assert np.array_equal(read_image(path), RGB)
    assert np.array_equal(read_image(str(path)), RGB)


@pytest.mark.parametrize("name", WHOLE)
def test_arrays_are_fit_for_torch(name):
    image = decode(WHOLE[name])
    assert image.shape == (H, W, 3)
    assert image.dtype == np.uint8
    assert image.flags.c_contiguous
    assert image.flags.writeable


MODES = {"PNG": ["1", "L", "P"], "GIF": ["L", "P"], "TIFF": ["1", "L", "P", "CMYK", "YCbCr"]}


@pytest.mark.parametrize(("kind", "mode"), [(kind, mode) for kind, modes in MODES.items() for mode in modes])
def test_modes_are_exact(kind, mode):
    image = PALETTE if mode == "P" else COLOUR.convert(mode)
    assert np.array_equal(decode(encode(image, kind)), rgb(image))


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 30}, {"keep_rgb": True}])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_jpeg_agrees_with_pillow(mode, options):
    data = encode(COLOUR.convert(mode), "JPEG", **options)
    assert distance(decode(data), rgb(Image.open(io.BytesIO(data)))) <= 2


def test_avif_agrees_with_pillow():
    assert distance(decode(WHOLE["avif"]), rgb(Image.open(io.BytesIO(WHOLE["avif"])))) == 0


@pytest.mark.parametrize("name", ["jpeg", "progressive", "grey jpeg", "png"])
def test_ordinary_files_do_not_need_pillow(monkeypatch, name):
    monkeypatch.delattr(module, "_open")
    monkeypatch.delattr(module, "from_pillow")
    assert decode(WHOLE[name]).shape == (H, W, 3)


# Ink, stored the way Photoshop does: inverted.

INK = smooth(4)
PRINTED = np.rint((255 - INK[..., :3].astype(float)) * (255 - INK[..., 3:]) / 255)


def cmyk_jpeg(ink):
    return encode(Image.frombytes("CMYK", (W, H), ink.tobytes()), "JPEG", **FINE)


def test_cmyk_jpeg():
    assert distance(decode(cmyk_jpeg(INK)), PRINTED) <= 4


def test_cmyk_jpeg_without_adobe_marker():
    data = cmyk_jpeg(INK)
    start = data.index(b"\xff\xee\x00\x0eAdobe")
    assert distance(decode(data[:start] + data[start + 16 :]), PRINTED) <= 4


def test_ycck_jpeg():
    luma, red, blue = cv2.split(cv2.cvtColor(INK[..., :3], cv2.COLOR_RGB2YCrCb))
    data = cmyk_jpeg(np.dstack([255 - luma, 255 - blue, 255 - red, INK[..., 3]]))
    transform = data.index(b"Adobe") + 11
    assert distance(decode(data[:transform] + b"\2" + data[transform + 1 :]), PRINTED) <= 6


# An image is the same in a file and in memory.

NOISE = RNG.integers(0, 256, (H, W, 4), np.uint8)
INSIDE = {
    **{mode: Image.fromarray(NOISE[..., :3]).convert(mode) for mode in ("1", "L", "RGB", "CMYK", "YCbCr", "HSV")},
    **{mode: Image.fromarray(NOISE).convert(mode) for mode in ("RGBA", "RGBa", "RGBX")},
    **{mode: Image.fromarray(NOISE).convert("LA").convert(mode) for mode in ("LA", "PA")},
    "LAB": Image.frombytes("LAB", (W, H), NOISE[..., :3].tobytes()),
    "P": PALETTE,
    "P with alpha": GLASS.quantize(32),
    "I;16": Image.fromarray(NOISE[..., 0].astype(np.uint16) * 200 + 7),
    "I": Image.fromarray(NOISE[..., 0].astype(np.int32) * 200),
    "F": Image.fromarray(NOISE[..., 0].astype(np.float32)),
}
KINDS = {"JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP", "PPM", "JPEG2000", "AVIF"}


def same_in_memory(data):
    image = Image.open(io.BytesIO(data))
    try:
        expected = decode(data)
    except BadImage:
        with pytest.raises(BadImage):
            module.from_pillow(image)
    else:
        assert np.array_equal(module.from_pillow(image), expected)


@pytest.mark.parametrize("mode", INSIDE)
def test_every_mode_is_the_same_in_memory(mode):
    written = 0
    for kind in KINDS:
        for options in ({}, {"transparency": 3}) if mode == "P" else ({},):
            try:
                data = encode(INSIDE[mode], kind, **options)
            except (OSError, KeyError, ValueError):  # the format has no such mode
                continue
            same_in_memory(data)
            written += 1
    assert written


def test_ycck_and_ink_without_a_marker_are_the_same_in_memory():
    data = cmyk_jpeg(NOISE)
    start, transform = data.index(b"\xff\xee\x00\x0eAdobe"), data.index(b"Adobe") + 11
    same_in_memory(data[:start] + data[start + 16 :])
    same_in_memory(data[:transform] + b"\2" + data[transform + 1 :])


# 16 bits.


@pytest.mark.parametrize(
    ("kind", "channels"), [(".png", 1), (".png", 3), (".tiff", 1), (".tiff", 3), (".pgm", 1), (".ppm", 3)]
)
def test_16_bits_are_scaled_to_8(kind, channels):
    deep = RNG.integers(0, 2**16, (H, W, channels), dtype=np.uint16)
    image = decode(cv2.imencode(kind, deep[..., ::-1])[1].tobytes())
    # Pillow gives only the upper bytes of a PPM.
    assert distance(image, np.rint(np.broadcast_to(deep, (H, W, 3)) / 257)) <= (kind == ".ppm")


@pytest.mark.parametrize("kind", [".png", ".tiff"])
def test_16_bits_with_transparency(kind):
    deep = np.dstack([RGB[..., ::-1], ALPHA]).astype(np.uint16) * 257
    assert distance(decode(cv2.imencode(kind, deep)[1].tobytes()), over_white(np.asarray(GLASS))) <= 1


def deep_tiff(image=RGB, orientation=1, planes=1):
    height, width, _ = image.shape
    pixels = (image.astype("<u2") * 257).tobytes()
    start = 14 + 2 + 11 * 12 + 4
    tags = [  # number, type, count, value
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, 3, 8),  # where it says 16, 16, 16 bits
        (259, 3, 1, 1),  # not compressed
        (262, 3, 1, 2),  # RGB
        (273, 4, 1, start),
        (274, 3, 1, orientation),
        (277, 3, 1, 3),  # channels
        (278, 4, 1, height),
        (279, 4, 1, len(pixels)),
        (284, 3, 1, planes),
    ]
    entries = b"".join(struct.pack("<2H2I", *tag) for tag in tags)
    return b"II*\0" + struct.pack("<I3HH", 14, 16, 16, 16, len(tags)) + entries + bytes(4) + pixels


@pytest.mark.parametrize("value", UPRIGHT)
def test_rotation_of_16_bit_tiff(value):
    assert np.array_equal(decode(deep_tiff(orientation=value)), UPRIGHT[value](RGB))


@pytest.mark.parametrize("missing", [1, 100, 5000])
def test_16_bit_tiff_cut_off_behind_its_header(missing):
    with pytest.raises(BadImage, match="damaged or truncated"):
        decode(deep_tiff()[:-missing])


def test_16_bits_in_planes_are_refused():
    with pytest.raises(BadImage, match="separate planes"):
        decode(deep_tiff(planes=2))


def test_sides_that_opencv_does_not_like():
    with pytest.raises(BadImage, match="OpenCV cannot decode it"):
        decode(deep_tiff(np.zeros((1, 2**20 + 1, 3), np.uint8)))


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_32_bits_are_refused(dtype):
    with pytest.raises(BadImage, match="32 bits per channel"):
        decode(encode(Image.fromarray(RGB[..., 0].astype(dtype)), "TIFF"))


# Transparency.


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP", "JPEG2000"])
def test_transparent_pixels_are_laid_over_white(kind, mode):
    image = GLASS.convert(mode)
    data = encode(image, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {}))
    assert distance(decode(data), over_white(np.asarray(image.convert("RGBA")))) == 0


@pytest.mark.parametrize(
    ("image", "kind"),
    [(COLOUR, "PNG"), (GREY, "PNG"), (PALETTE, "PNG"), (PALETTE, "GIF")],
    ids=["colour", "grey", "palette", "gif"],
)
def test_a_transparent_colour_becomes_white(image, kind):
    colour = image.getpixel((5, 3))
    expected = rgb(image).copy()
    expected[(np.asarray(image) == colour).reshape(H, W, -1).all(-1)] = 255
    assert (expected[3, 5] == 255).all()
    assert np.array_equal(decode(encode(image, kind, transparency=colour)), expected)


def test_palette_of_half_transparent_colours():
    image = GLASS.quantize(32)
    assert image.palette.mode == "RGBA"
    assert distance(decode(encode(image, "PNG")), over_white(np.asarray(image.convert("RGBA")))) == 0


# EXIF.


@pytest.mark.parametrize("value", UPRIGHT)
@pytest.mark.parametrize(
    ("image", "kind", "options"),
    [
        (COLOUR, "JPEG", FINE),
        (COLOUR, "PNG", {}),
        (GLASS, "PNG", {}),
        (COLOUR, "WEBP", {"lossless": True}),
        (GLASS, "WEBP", {"lossless": True, "exact": True}),
        (COLOUR, "TIFF", {}),
        (COLOUR.convert("CMYK"), "JPEG", FINE),
    ],
    ids=["jpeg", "png", "transparent png", "webp", "transparent webp", "tiff", "cmyk jpeg"],
)
def test_exif_rotation(image, kind, options, value):
    expected = UPRIGHT[value](over_white(np.asarray(image.convert("RGBA"))))
    data = encode(image, kind, exif=orientation(value), **options)
    assert distance(decode(data), expected) <= (4 if kind == "JPEG" else 0)


@pytest.mark.parametrize("name", ["png", "transparent png"])
def test_exif_behind_the_pixels(name):
    data = WHOLE[name]
    data = data[:-12] + chunk(b"eXIf", orientation(6).tobytes().removeprefix(b"Exif\0\0")) + data[-12:]
    assert np.array_equal(decode(data), np.rot90(decode(WHOLE[name]), -1))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animation_gives_its_first_frame(kind):
    frames = [Image.fromarray(np.full((H, W, 3), value, np.uint8)) for value in (10, 100, 200)]
    data = encode(frames[0], kind, save_all=True, append_images=frames[1:], duration=100)
    assert Image.open(io.BytesIO(data)).n_frames == 3
    assert (decode(data) == 10).all()


# Too large.


def huge(name, width, height):
    """A small file that says it is large."""
    data = bytearray(WHOLE[name])
    if name in ("jpeg", "progressive"):
        at = re.search(rb"\xff[\xc0\xc2]\x00\x11", data).start() + 5
        data[at : at + 4] = struct.pack(">2H", height, width)
    elif name in ("png", "transparent png"):
        data[8:33] = chunk(b"IHDR", struct.pack(">2I", width, height) + data[24:29])
    elif name == "gif":
        data[6:10] = struct.pack("<2H", width, height)
    elif name == "bmp":
        data[18:26] = struct.pack("<2i", width, height)
    elif name == "ppm":
        data[:] = data.replace(b"40 30", f"{width} {height}".encode(), 1)
    return bytes(data)


@pytest.mark.parametrize("name", ["jpeg", "progressive", "png", "transparent png", "gif", "bmp", "ppm"])
def test_bombs_are_refused_before_decoding(name):
    with pytest.raises(BadImage) as info:
        decode(huge(name, 30_000, 20_000), "a.b")
    assert str(info.value) == ("a.b: 30000 x 20000 pixels, more than the 134 million allowed; shrink it first")


def test_bomb_with_a_chunk_before_its_size():
    data = huge("png", 30_000, 20_000)
    with pytest.raises(BadImage, match="30000 x 20000"):
        decode(data[:8] + chunk(b"tEXt", b"a" * 13) + data[8:])


def test_bomb_that_pillow_refuses_itself():
    data = bytearray(encode(GLASS, "WEBP", exif=orientation(1)))
    assert data[12:16] == b"VP8X"
    data[24:30] = (16382).to_bytes(3, "little") * 2
    with pytest.raises(BadImage, match="too many pixels, more than the 134 million"):
        decode(bytes(data))


@pytest.mark.parametrize("name", ["jpeg", "png", "transparent png", "webp", "tiff", "bmp"])
def test_the_limit_itself_is_read(monkeypatch, name):
    monkeypatch.setattr(module, "MAX_PIXELS", H * W)
    assert decode(WHOLE[name]).shape == (H, W, 3)
    monkeypatch.setattr(module, "MAX_PIXELS", H * W - 1)
    with pytest.raises(BadImage, match=f"^image: {W} x {H} pixels"):
        decode(WHOLE[name])


@pytest.mark.parametrize("name", WHOLE)
def test_pillow_does_not_warn_about_large_images(monkeypatch, name):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", H * W - 1)
    assert decode(WHOLE[name]).shape == (H, W, 3)


# Damaged.


@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("name", WHOLE)
def test_cut_off(name, part):
    data = WHOLE[name]
    with pytest.raises(BadImage, match="damaged or truncated"):
        decode(data[: int(part * len(data))])


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "gif"])
def test_the_last_byte_is_missing(name):
    with pytest.raises(BadImage, match="damaged or truncated"):
        decode(WHOLE[name][:-1])


@pytest.mark.parametrize("name", ["jpeg", "progressive", "grey jpeg", "png", "webp"])
def test_cut_off_is_not_left_to_opencv(monkeypatch, name):
    """It depends on the version whether OpenCV notices."""
    monkeypatch.setattr(module, "_by_opencv", lambda data, path: RGB)
    data = WHOLE[name]
    assert decode(data) is RGB
    for end in (50, len(data) // 2, len(data) - 1):
        with pytest.raises(BadImage, match="damaged or truncated"):
            decode(data[:end])


def test_jpeg_2000_without_any_tile():
    data = WHOLE["jpeg 2000"]
    with pytest.raises(BadImage, match="damaged or truncated"):
        decode(data[: data.index(b"\xff\x90") + 2])


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_cut_off_jpeg_with_a_whole_one_inside(monkeypatch, options):
    thumbnail = encode(COLOUR.resize((8, 6)), "JPEG")
    data = encode(COLOUR, "JPEG", comment=thumbnail, **FINE, **options)
    assert thumbnail in data
    assert distance(decode(data), RGB) <= 4
    monkeypatch.setattr(module, "_by_opencv", lambda data, path: RGB)
    for end in (data.index(thumbnail) + len(thumbnail), len(data) - 100, len(data) - 2):
        with pytest.raises(BadImage, match="damaged or truncated"):
            decode(data[:end])


@pytest.mark.parametrize("name", WHOLE)
def test_what_comes_after_the_image_is_ignored(name):
    trailer = b"\xff\xda a film that the telephone took"
    assert np.array_equal(decode(WHOLE[name] + trailer), decode(WHOLE[name]))


@pytest.mark.parametrize(
    "start", [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\xff\0\0\0WEBP", b"GIF89a", b"II*\0", b"BM"]
)
@pytest.mark.parametrize(
    "rest", [b"", b"\0" * 300, b"IHDR" * 75, RNG.bytes(300)], ids=["nothing", "zeros", "text", "noise"]
)
def test_only_the_beginning_is_right(start, rest):
    with pytest.raises(BadImage, match="damaged or truncated"):
        decode(start + rest)


@pytest.mark.parametrize("name", ["png", "transparent png"])
@pytest.mark.parametrize("at", [23, 30, 60])
def test_wrong_bytes_in_a_png(name, at):
    data = bytearray(WHOLE[name])
    data[at] ^= 1
    with pytest.raises(BadImage, match="damaged or truncated"):
        decode(bytes(data))


def test_png_without_header():
    with pytest.raises(BadImage, match="damaged or truncated"):
        decode(WHOLE["png"][:8] + WHOLE["png"][-12:])


@pytest.mark.parametrize(
    "data",
    [b"\0", b"hello", RNG.bytes(100), pickle.dumps([1]), encode(COLOUR, "EPS"), encode(COLOUR, "ICO")],
    ids=["one byte", "text", "noise", "pickle", "eps", "ico"],
)
def test_unknown_formats(data):
    with pytest.raises(BadImage, match=r"^image: not an image in a supported format$"):
        decode(data)


def test_files_that_cannot_be_read(tmp_path):
    empty = tmp_path / "empty.jpg"
    empty.touch()
    with pytest.raises(BadImage, match=re.escape(f"{empty}: the file is empty")):
        read_image(empty)
    with pytest.raises(BadImage, match=re.escape(f"{tmp_path / 'no.jpg'}: No such file")):
        read_image(tmp_path / "no.jpg")
    with pytest.raises(BadImage, match=re.escape(f"{tmp_path}: ")):
        read_image(tmp_path)


# The error itself, and silence.


def test_the_error_survives_pickling():
    error = pickle.loads(pickle.dumps(BadImage("a.jpg", "the file is empty")))
    assert type(error) is BadImage
    assert (error.path, error.reason, str(error)) == ("a.jpg", "the file is empty", "a.jpg: the file is empty")


def test_the_error_survives_a_data_loader():
    try:
        decode(b"", "a.jpg")
    except BadImage:
        wrapper = ExceptionWrapper(where="in DataLoader worker process 0")
    with pytest.raises(BadImage, match=r"in DataLoader worker process 0(.|\n)*BadImage: a.jpg: the file is empty"):
        wrapper.reraise()


@pytest.mark.parametrize(
    ("data", "good"),
    [
        (encode(COLOUR, "PNG", icc_profile=bytes(200)), True),  # libpng would comment
        (WHOLE["png"][:33] + WHOLE["png"][-12:], False),  # OpenCV would log
    ],
    ids=["profile", "no pixels"],
)
def test_nothing_is_printed(capfd, data, good):
    level = cv2.utils.logging.getLogLevel()
    cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert capfd.readouterr().err  # so there is something to keep quiet
    if good:
        assert np.array_equal(decode(data), RGB)
    else:
        with pytest.raises(BadImage):
            decode(data)
    assert capfd.readouterr() == ("", "")
    assert cv2.utils.logging.getLogLevel() == level

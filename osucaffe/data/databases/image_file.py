"""Image files and encoded records decoded to pixels, upright by their EXIF orientation."""

from __future__ import annotations

import importlib
import io
import os
import warnings
from typing import Any

import numpy as np
import simplejpeg

_JPEG, _EXIF = b"\xff\xd8\xff", b"Exif\0\0"
_HEAD = 1 << 16  # bytes of a JPEG that its first segments may take
_ORIENTATION = 0x0112  # the tag of EXIF
_UPRIGHT = {
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.swapaxes(0, 1),
    6: lambda image: image.swapaxes(0, 1)[:, ::-1],
    7: lambda image: image.swapaxes(0, 1)[::-1, ::-1],
    8: lambda image: image.swapaxes(0, 1)[::-1],
}
"""What makes an image of each orientation but 1, which is upright, upright (EXIF 2.3, 4.6.4)."""
IGNORE_EXIF = "OSUCAFFE_IGNORE_EXIF"
"""The environment variable that leaves pixels as they are stored; reader processes inherit it."""


def decode_image(
    data: memoryview,
    colour: bool | None = None,
    out: np.ndarray | None = None,
    *,
    red_first: bool = False,
) -> np.ndarray:
    """A JPEG (or PNG and others, through Pillow) as uint8 (height, width, channels), upright by its
    EXIF, blue first.

    out: row-major memory to decode into, if the image is a JPEG of its shape that lies upright.
    """
    if bytes(data[:3]) != _JPEG:
        return _decode_other(data, colour, red_first)
    height, width, space, _ = simplejpeg.decode_jpeg_header(data)
    if height * width > _MAX_PIXELS:
        raise ValueError(f"its image has {width} x {height} pixels: more than {_MAX_PIXELS}")
    if space in ("CMYK", "YCCK"):
        return _decode_other(data, colour, red_first)
    if colour is None:
        colour = space != "Gray"
    order, channels = ("RGB" if red_first else "BGR", 3) if colour else ("GRAY", 1)
    turn = jpeg_orientation(data)
    if out is not None and (out.shape != (height, width, channels) or turn != 1):
        out = None
    image: np.ndarray
    try:
        image = simplejpeg.decode_jpeg(data, colorspace=order, buffer=out)
    except ValueError as error:
        # Stray bytes between the segments do no harm, and large collections have such files.
        if "extraneous bytes" not in str(error):
            raise
        image = simplejpeg.decode_jpeg(data, colorspace=order, buffer=out, strict=False)
    return _upright(image, turn)


def decode_thumbnail(data: memoryview, extent: int) -> np.ndarray:
    """An image as grey uint8 (height, width, 1), upright, in the smallest scale at which a JPEG's
    decoder gives at least `extent` pixels to each side; of another kind, in its own."""
    if bytes(data[:3]) == _JPEG:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data)
        if height * width <= _MAX_PIXELS and space not in ("CMYK", "YCCK"):
            scaled = {"min_height": extent, "min_width": extent, "strict": False}
            grey = simplejpeg.decode_jpeg(data, colorspace="GRAY", **scaled)
            return _upright(grey, jpeg_orientation(data))
    return decode_image(data, False)


def jpeg_orientation(data: memoryview) -> int:
    """The EXIF orientation of a JPEG; 1, upright, if it has none that can be read."""
    if bytes(data[:_HEAD]).find(_EXIF) < 0:
        return 1
    from PIL import Image

    try:
        return _orientation(Image.open(io.BytesIO(data), formats=["JPEG"]))
    except Exception:  # whatever damaged EXIF makes of Pillow: the pixels are good
        return 1


def _orientation(image: Any) -> int:
    """The EXIF orientation of an image of Pillow's, which has turned TIFFs already."""
    try:
        return 1 if os.environ.get(IGNORE_EXIF) else int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # as above
        return 1


def _upright(image: np.ndarray, orientation: int) -> np.ndarray:
    return np.ascontiguousarray(_UPRIGHT[orientation](image)) if orientation in _UPRIGHT else image


_MAX_PIXELS = 178_956_970
"""Of an image: Pillow's limit, as a few bytes can claim 12 GB."""
warnings.filterwarnings("ignore", "Image size .* exceeds limit")  # Pillow's, from half of it on
_LARGE, _PIXELS_A_BYTE = 1 << 24, 10_000
"""A blank page may have as many pixels, and a compressed one as many per byte."""
_FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "SUN", "TIFF", "WEBP")
"""Of images: those OpenCV reads. Pillow would run other programs for some further ones."""


def _formats(data: memoryview) -> tuple[str, ...]:
    """The formats of Pillow's that are tried. Modules that read phones' formats are loaded for
    these only. ModuleNotFoundError for HEIC without pillow-heif."""
    from PIL import Image

    if bytes(data[4:8]) != b"ftyp":
        return _FORMATS
    brands = bytes(data[8:64])
    if b"hei" in brands or b"hev" in brands:
        importlib.import_module("pillow_heif").register_heif_opener()
        return ("HEIF",)
    Image.init()
    return ("AVIF",) if "AVIF" in Image.OPEN else _FORMATS


_SIXTEEN = (("I", "PNG"), ("I", "PPM"))
"""What Pillow makes of some images of 16 bits per pixel."""


def _decode_other(data: memoryview, colour: bool | None, red_first: bool) -> np.ndarray:
    from PIL import Image, UnidentifiedImageError

    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=_formats(data))
        if image.width * image.height > _LARGE + len(data) * _PIXELS_A_BYTE:
            size = f"{image.width} x {image.height} pixels in {len(data)} bytes"
            raise ValueError(f"its image has {size}: it is damaged")
        image.load()
        turn = _orientation(image)
    except UnidentifiedImageError as error:
        raise ValueError("not an image of a known format") from error
    except ModuleNotFoundError as error:
        raise ValueError("it is a HEIC image: pip install pillow-heif to read it") from error
    except MemoryError:
        raise
    except Exception as error:  # whatever a damaged image makes of Pillow, its limit of pixels too
        raise ValueError(f"its image cannot be decoded ({error})") from error
    if image.mode.startswith("I;16") or (image.mode, image.format) in _SIXTEEN:
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))  # as OpenCV reads it
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"its image has more than 8 bits per channel (mode {image.mode})")
    if colour is None:
        mode = {"1": "L", "L": "L", "LA": "RGBA", "PA": "RGBA", "RGBA": "RGBA"}
        target = mode.get(image.mode, "RGB")
        if image.mode in ("P", "RGB") and "transparency" in image.info:
            target = "RGBA"  # as OpenCV reads it
    else:
        target = "L" if not colour and image.mode in ("1", "L", "LA") else "RGB"
    array = np.asarray(image.convert(target))
    if array.ndim == 2:
        array = array[:, :, None]
    elif colour is False:
        array = _gray(array, image.format == "PNG")
    elif not red_first:
        array = array[:, :, [2, 1, 0, 3][: array.shape[2]]]
    return _upright(array, turn)


def _gray(colours: np.ndarray, is_png: bool) -> np.ndarray:
    """What OpenCV makes of red, green and blue: its own rounding, or libpng's, which cuts off."""
    weights, half, bits = (
        ((9797, 19234, 3737), 0, 15) if is_png else ((4899, 9617, 1868), 1 << 13, 14)
    )
    total = colours @ np.array(weights, np.int32) + half
    return (total >> bits).astype(np.uint8)[:, :, None]

"""Owns the coding of one record: a Datum's bytes to its fields and pixels, and back.

A Datum is parsed by hand where possible, because the records stay in the mapped file: protobuf
would copy the pixels twice. Unusual ones are left to protobuf.
"""

from __future__ import annotations

import io
import warnings
from typing import Literal, NamedTuple

import numpy as np
import simplejpeg

from ...backends.tensor import Shape
from ...proto import caffe_pb2

# Tags of Datum's fields: field number * 8 + wire type (0 varint, 2 bytes).
_CHANNELS, _HEIGHT, _WIDTH, _DATA, LABEL_TAG, _ENCODED = 0x08, 0x10, 0x18, 0x22, 0x28, 0x38
_JPEG = b"\xff\xd8\xff"


class Datum(NamedTuple):
    """A parsed Datum. `data` views the bytes that were parsed; `values` is its float_data."""

    shape: Shape
    label: int
    data: memoryview
    offset: int
    encoded: bool
    values: np.ndarray | None


def parse_datum(value: memoryview) -> Datum:
    """The fields of a serialized Datum. Raises ValueError when it is none."""
    fields = {_CHANNELS: 0, _HEIGHT: 0, _WIDTH: 0, LABEL_TAG: 0, _ENCODED: 0}
    data, offset = value[:0], 0
    at, end = 0, len(value)
    try:
        while at < end:
            tag = value[at]
            number = value[at + 1]
            at += 2
            if number > 0x7F:
                number &= 0x7F
                shift = 7
                while (byte := value[at]) > 0x7F:
                    number |= (byte & 0x7F) << shift
                    shift += 7
                    at += 1
                number |= byte << shift
                at += 1
            if tag in fields:
                fields[tag] = number
            elif tag == _DATA:
                data, offset = value[at : at + number], at
                at += number
            else:
                return _parse_rare(value)
    except IndexError:
        at = -1
    if at != end:
        raise ValueError("it is not a Datum, or it is cut short")
    label = fields[LABEL_TAG]
    return Datum(
        (fields[_CHANNELS], fields[_HEIGHT], fields[_WIDTH]),
        label if label < 1 << 31 else label - (1 << 64),
        data,
        offset,
        bool(fields[_ENCODED]),
        None,
    )


def _parse_rare(value: memoryview) -> Datum:
    message = caffe_pb2.Datum()
    try:
        message.ParseFromString(bytes(value))
    except Exception as error:  # google.protobuf.message.DecodeError
        raise ValueError("it is not a Datum") from error
    return Datum(
        (message.channels, message.height, message.width),
        message.label,
        memoryview(message.data),
        0,
        message.encoded,
        np.array(message.float_data, np.float32) if message.float_data else None,
    )


def pixels(datum: Datum, colour: bool | None = None, out: np.ndarray | None = None) -> np.ndarray:
    """The values of a Datum as (channels, height, width): uint8 (a view if raw), or float32.

    colour: decode an encoded image to 3 channels (True), to 1 (False), or to what it has (None).
    out: as for decode_image. The channels of an encoded image come in OpenCV's order, blue first,
    as Caffe reads them.
    Raises ValueError when the record contradicts itself or its image is damaged.
    """
    if datum.encoded:
        image = decode_image(datum.data, colour, out)
        return image.transpose(2, 0, 1)
    flat = np.frombuffer(datum.data, np.uint8) if datum.values is None else datum.values
    channels, height, width = datum.shape
    if flat.size != channels * height * width or not flat.size:
        raise ValueError(
            f"it has {flat.size} values, but says channels {channels} x height {height} "
            f"x width {width}"
        )
    return flat.reshape(datum.shape)


def decode_image(
    data: memoryview,
    colour: bool | None = None,
    out: np.ndarray | None = None,
    *,
    red_first: bool = False,
) -> np.ndarray:
    """A JPEG (or PNG and others, through Pillow) as uint8 (height, width, channels), blue first.

    out: row-major memory to decode into, if the image is a JPEG of its shape.
    """
    if bytes(data[:3]) != _JPEG:
        return _decode_other(data, colour, red_first)
    height, width, space, _ = simplejpeg.decode_jpeg_header(data)
    if height * width > _MOST_PIXELS:
        raise ValueError(f"its image has {width} x {height} pixels: more than {_MOST_PIXELS}")
    if space in ("CMYK", "YCCK"):
        return _decode_other(data, colour, red_first)
    if colour is None:
        colour = space != "Gray"
    order, channels = ("RGB" if red_first else "BGR", 3) if colour else ("GRAY", 1)
    if out is not None and out.shape != (height, width, channels):
        out = None
    image: np.ndarray
    try:
        image = simplejpeg.decode_jpeg(data, colorspace=order, buffer=out)
    except ValueError as error:
        # Stray bytes between the segments do no harm, and large collections have such files.
        if "extraneous bytes" not in str(error):
            raise
        image = simplejpeg.decode_jpeg(data, colorspace=order, buffer=out, strict=False)
    return image


_MOST_PIXELS = 178_956_970
"""Of an image: Pillow's limit, as a few bytes can claim 12 GB."""
warnings.filterwarnings("ignore", "Image size .* exceeds limit")  # Pillow's, from half of it on
_LARGE, _PIXELS_A_BYTE = 1 << 24, 10_000
"""A blank page may have as many pixels, and a compressed one as many per byte."""
_FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "SUN", "TIFF", "WEBP")
"""Of images: those OpenCV reads. Pillow would run other programs for some further ones."""

_SIXTEEN = (("I", "PNG"), ("I", "PPM"))
"""What Pillow makes of some images of 16 bits a pixel."""


def _decode_other(data: memoryview, colour: bool | None, red_first: bool) -> np.ndarray:
    from PIL import Image, UnidentifiedImageError

    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=_FORMATS)
        if image.width * image.height > _LARGE + len(data) * _PIXELS_A_BYTE:
            size = f"{image.width} x {image.height} pixels in {len(data)} bytes"
            raise ValueError(f"its image has {size}: it is damaged")
        image.load()
    except UnidentifiedImageError as error:
        raise ValueError("it is no image of a known format") from error
    except MemoryError:
        raise
    except Exception as error:  # whatever a damaged image makes of Pillow, its limit of pixels too
        raise ValueError(f"its image cannot be decoded ({error})") from error
    if image.mode.startswith("I;16") or (image.mode, image.format) in _SIXTEEN:
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))  # as OpenCV reads it
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"its image has more than 8 bits a channel (mode {image.mode})")
    if colour is None:
        mode = {"1": "L", "L": "L", "LA": "RGBA", "PA": "RGBA", "RGBA": "RGBA"}
        target = mode.get(image.mode, "RGB")
        if image.mode in ("P", "RGB") and "transparency" in image.info:
            target = "RGBA"  # as OpenCV reads it
    else:
        target = "L" if not colour and image.mode in ("1", "L", "LA") else "RGB"
    array = np.asarray(image.convert(target))
    if array.ndim == 2:
        return array[:, :, None]
    if colour is False:
        return _gray(array, image.format == "PNG")
    return array if red_first else array[:, :, [2, 1, 0, 3][: array.shape[2]]]


def _gray(colours: np.ndarray, is_png: bool) -> np.ndarray:
    """What OpenCV makes of red, green and blue: its own rounding, or libpng's, which cuts off."""
    weights, half, bits = (
        ((9797, 19234, 3737), 0, 15) if is_png else ((4899, 9617, 1868), 1 << 13, 14)
    )
    total = colours @ np.array(weights, np.int32) + half
    return (total >> bits).astype(np.uint8)[:, :, None]


def make_datum(image: np.ndarray, label: int, *, encoded: Literal[False] | None = None) -> bytes:
    """A raw Datum, serialized: image is uint8 (channels, height, width).

    encoded: False to state that it is raw, as Caffe's convert_imageset does, None not to.
    """
    channels, height, width = image.shape
    datum = caffe_pb2.Datum(
        channels=channels, height=height, width=width, data=image.tobytes(), label=label
    )
    if encoded is not None:
        datum.encoded = encoded
    return datum.SerializeToString()

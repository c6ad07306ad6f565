"""The coding of one record: a Datum's bytes to its fields and pixels, and back.

A Datum is parsed by hand where possible, because the records stay in the mapped file: protobuf
would copy the pixels twice. Unusual ones are left to protobuf.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from ...backends.tensor import Shape
from ...proto import caffe_pb2
from .image_file import decode_image

# Tags of Datum's fields: field number * 8 + wire type (0 varint, 2 bytes).
_CHANNELS, _HEIGHT, _WIDTH, _DATA, LABEL_TAG, _ENCODED = 0x08, 0x10, 0x18, 0x22, 0x28, 0x38


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

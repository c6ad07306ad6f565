"""Owns Datum, one labelled image of a data set, as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from osucaffe.errors import UserError
from osucaffe.proto.caffe_pb2 import Datum


def parse_datum(content: bytes | memoryview, where: str = "datum") -> Datum:
    """The Datum in these bytes; `where` (the data set and key) names it in a UserError."""
    try:
        return Datum.FromString(content)  # type: ignore[arg-type]  # any buffer will do
    except DecodeError:
        raise UserError(f"{where}: not a Datum, or damaged") from None


def datum_to_array(datum: Datum, where: str = "datum") -> NDArray[np.uint8] | NDArray[np.float32]:
    """The pixels, channels x height x width: uint8 (read-only, not copied) or float32.

    Raises UserError for an encoded image, whose `data` is a file to decode, and when the number
    of values is not that of the shape.
    """
    if datum.encoded:
        raise UserError(f"{where}: holds an encoded image: decode it first")
    data = datum.data
    values = np.frombuffer(data, np.uint8) if data else np.array(datum.float_data, np.float32)
    shape = (datum.channels, datum.height, datum.width)
    if values.size != shape[0] * shape[1] * shape[2]:
        raise UserError(
            f"{where}: {shape[0]}x{shape[1]}x{shape[2]} pixels are stated, {values.size} found"
        )
    return values.reshape(shape)


def array_to_datum(array: NDArray[Any], label: int = 0) -> Datum:
    """A Datum of an image, channels x height x width: uint8 as raw pixels, else as floats."""
    channels, height, width = array.shape
    datum = Datum(channels=channels, height=height, width=width, label=label)
    if array.dtype == np.uint8:
        datum.data = array.tobytes()
    else:
        datum.float_data.extend(np.asarray(array, np.float32).ravel())
    return datum


def encoded_datum(file: bytes, label: int = 0) -> Datum:
    """A Datum of an image file (JPEG, PNG): its size is known only when it is decoded."""
    return Datum(data=file, label=label, encoded=True)

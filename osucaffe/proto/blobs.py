"""Owns the way between a BlobProto and an array: shapes old and new, floats and doubles."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from osucaffe.errors import UserError
from osucaffe.proto.caffe_pb2 import BlobProto, BlobShape

_LEGACY_EXTENTS = ("num", "channels", "height", "width")
_FIELDS = {
    ("data", np.dtype(np.float32)): BlobProto.DATA_FIELD_NUMBER,
    ("diff", np.dtype(np.float32)): BlobProto.DIFF_FIELD_NUMBER,
    ("data", np.dtype(np.float64)): BlobProto.DOUBLE_DATA_FIELD_NUMBER,
    ("diff", np.dtype(np.float64)): BlobProto.DOUBLE_DIFF_FIELD_NUMBER,
}
_LENGTH_DELIMITED = 2  # a wire type: protobuf.dev/programming-guides/encoding


def blob_shape(blob: BlobProto) -> tuple[int, ...]:
    """The shape that the blob states; four extents if it states them in the old way."""
    if not blob.HasField("shape") and any(blob.HasField(name) for name in _LEGACY_EXTENTS):
        return (blob.num, blob.channels, blob.height, blob.width)
    return tuple(blob.shape.dim)


def blob_fits(blob: BlobProto, shape: tuple[int, ...]) -> bool:
    """Whether the blob holds an array of this shape.

    Old files give every array four axes, with leading ones: (1, 1, 500, 800) fits (500, 800).
    """
    stated = blob_shape(blob)
    if not blob.HasField("shape") and len(shape) < 4:
        shape = (1,) * (4 - len(shape)) + shape
    return stated == shape


def has_values(blob: BlobProto) -> bool:
    """Whether the blob holds data: a parameter that another layer owns may be saved without."""
    return len(blob.data) > 0 or len(blob.double_data) > 0


def blob_to_array(blob: BlobProto, field: Literal["data", "diff"] = "data") -> NDArray:
    """A copy of the blob's values (or gradients) in its shape, float32 or float64 as stored.

    Raises UserError when the number of values is not that of the shape.
    """
    doubles = blob.double_data if field == "data" else blob.double_diff
    floats = blob.data if field == "data" else blob.diff
    values = np.array(doubles, np.float64) if len(doubles) else np.array(floats, np.float32)
    shape = blob_shape(blob)
    if values.size != math.prod(shape):
        raise UserError(
            f"a blob of shape {'x'.join(map(str, shape)) or '()'} needs {math.prod(shape)} values "
            f"but has {values.size} in its {field}: the file is damaged"
        )
    return values.reshape(shape)


def array_to_blob(array: NDArray, diff: NDArray | None = None) -> BlobProto:
    """A blob of the array's shape with a copy of its values: float64 as doubles, else float32."""
    blob = BlobProto()
    fill_blob(blob, array, diff)
    return blob


def fill_blob(blob: BlobProto, array: NDArray, diff: NDArray | None = None) -> None:
    """Make this blob (of a layer, say) hold the array and perhaps gradients of the same shape.

    The values go in as serialized bytes, which is ten times as fast as to append them.
    """
    blob.Clear()
    blob.shape.CopyFrom(BlobShape(dim=array.shape))
    for field, values in (("data", array), ("diff", diff)):
        if values is None:
            continue
        dtype = np.dtype(np.float64 if values.dtype == np.float64 else np.float32)
        content = np.ascontiguousarray(values, dtype.newbyteorder("<")).tobytes()
        tag = _varint(_FIELDS[field, dtype] << 3 | _LENGTH_DELIMITED)
        blob.MergeFromString(b"".join((tag, _varint(len(content)), content)))


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first, the top bit set in all but the last."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)

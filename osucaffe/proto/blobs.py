"""The way between a BlobProto and an array: shapes old and new, floats and doubles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from google.protobuf.internal.decoder import _DecodeVarint  # type: ignore[attr-defined]
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[attr-defined]
from numpy.typing import NDArray

from ..errors import UserError
from .caffe_pb2 import DOUBLE, FLOAT, FLOAT16, BlobProto, BlobShape

MAX_VALUES = 2**31 - 1
"""Of a blob: as in Caffe, they are counted by an int."""
_LEGACY_EXTENTS = ("num", "channels", "height", "width")
_FIELDS = {
    ("data", np.dtype(np.float32)): BlobProto.DATA_FIELD_NUMBER,
    ("diff", np.dtype(np.float32)): BlobProto.DIFF_FIELD_NUMBER,
    ("data", np.dtype(np.float64)): BlobProto.DOUBLE_DATA_FIELD_NUMBER,
    ("diff", np.dtype(np.float64)): BlobProto.DOUBLE_DIFF_FIELD_NUMBER,
}
# Of the values of the enumeration Type.
_RAW_TYPES: dict[int, str] = {DOUBLE: "<f8", FLOAT: "<f4", FLOAT16: "<f2"}
# Wire types: https://protobuf.dev/programming-guides/encoding
_VARINT = 0
_LENGTH_DELIMITED = 2
_FIXED_BYTES = {1: 8, 5: 4}


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


def unpack_raw(blob: BlobProto) -> None:
    """Give a blob of NVIDIA Caffe, whose values lie in it as raw bytes, Caffe's form.

    Half-precision values become float32, as all others but doubles do.
    """
    if not blob.HasField("raw_data_type"):
        return
    shape = blob_shape(blob)
    data = _raw_values(blob.raw_data, blob.raw_data_type)
    diff = None
    if blob.HasField("raw_diff_type"):
        diff = _raw_values(blob.raw_diff, blob.raw_diff_type)
    fill_blob(blob, data, diff if diff is not None and diff.size else None)
    blob.shape.CopyFrom(BlobShape(dim=shape))


def _raw_values(content: bytes, kind: int) -> NDArray[Any]:
    dtype = np.dtype(_RAW_TYPES[kind])
    values = np.frombuffer(content, dtype, len(content) // dtype.itemsize)
    return values if dtype.itemsize == 8 else values.astype(np.float32)


def check_blob(blob: BlobProto) -> None:
    """Raise UserError unless the blob has as many values as its shape asks for."""
    found = len(blob.double_data) or len(blob.data)
    shape = blob_shape(blob)
    told = "x".join(map(str, shape)) or "()"
    if not all(0 <= extent <= MAX_VALUES for extent in shape):
        raise UserError(f"a blob has shape {told}: the file is damaged")
    if found != math.prod(shape):
        raise UserError(
            f"a blob of shape {told} has {found} values instead of {math.prod(shape)}: the file is "
            "damaged"
        )


def blob_to_array(blob: BlobProto, field: Literal["data", "diff"] = "data") -> NDArray[Any]:
    """The blob's values (or gradients) in its shape, read-only, float32 or float64 as stored.

    Raises UserError when the number of values is not that of the shape.
    """
    check_blob(blob)
    dtype = np.dtype(np.float64 if len(blob.double_data) else np.float32)
    return _packed_values(blob, _FIELDS[field, dtype], dtype).reshape(blob_shape(blob))


def array_to_blob(array: NDArray[Any], diff: NDArray[Any] | None = None) -> BlobProto:
    """A blob of the array's shape with a copy of its values: float64 as doubles, else float32."""
    blob = BlobProto()
    fill_blob(blob, array, diff)
    return blob


def fill_blob(blob: BlobProto, array: NDArray[Any], diff: NDArray[Any] | None = None) -> None:
    """Make this blob (of a layer, say) hold the array and perhaps gradients of the same shape.

    The values go in as serialized bytes, which is ten times as fast as appending them.
    """
    blob.Clear()
    blob.shape.CopyFrom(BlobShape(dim=array.shape))
    for field, values in (("data", array), ("diff", diff)):
        if values is None:
            continue
        dtype = np.dtype(np.float64 if values.dtype == np.float64 else np.float32)
        content = np.ascontiguousarray(values, dtype.newbyteorder("<"))
        tag = _VarintBytes(_FIELDS[field, dtype] << 3 | _LENGTH_DELIMITED)
        header = tag + _VarintBytes(content.nbytes)
        blob.MergeFromString(b"".join((header, content.reshape(-1).view(np.uint8).data)))


def _packed_values(blob: BlobProto, number: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The values of a packed field, out of the serialized blob.

    Older protobufs turn a field into an array number by number; this is 25 times as fast.
    """
    content = blob.SerializeToString()
    for tag, _, begin, end in fields(content):
        if tag == number << 3 | _LENGTH_DELIMITED:
            count = (end - begin) // dtype.itemsize
            return np.frombuffer(content, dtype.newbyteorder("<"), count, begin)
    return np.empty(0, dtype)


def fields(content: bytes) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a serialized message: tag, where it begins, and where its value begins and ends
    (in one that is cut short: after its end).

    IndexError, KeyError or DecodeError for bytes that are none.
    """
    at = 0
    while at < len(content):
        start = at
        tag, at = _DecodeVarint(content, at)
        if tag & 7 == _VARINT:
            _, end = _DecodeVarint(content, at)
        elif tag & 7 == _LENGTH_DELIMITED:
            size, at = _DecodeVarint(content, at)
            end = at + size
        else:
            end = at + _FIXED_BYTES[tag & 7]
        yield tag, start, at, end
        at = end

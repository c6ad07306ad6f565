"""Checks the way between blobs and arrays against protobuf's own, slow one."""

import numpy as np
import pytest

from osucaffe.errors import UserError
from osucaffe.proto import (
    BlobProto,
    array_to_blob,
    blob_fits,
    blob_shape,
    blob_to_array,
    fill_blob,
    has_values,
)
from osucaffe.proto.blobs import check_blob


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", ">f4"])
@pytest.mark.parametrize("shape", [(), (1,), (300,), (2, 3, 4, 5), (0, 3), (3, 1, 70, 2, 5)])
def test_there_and_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).normal(0, 10, shape).astype(dtype)
    blob = array_to_blob(array)
    double = dtype == "float64"
    assert list(blob.double_data if double else blob.data) == array.ravel().tolist()
    assert not (blob.data if double else blob.double_data)
    assert list(blob.shape.dim) == list(shape)
    back = blob_to_array(blob)
    assert back.dtype == (np.float64 if double and array.size else np.float32)
    assert back.shape == shape
    assert np.array_equal(back, array)


def test_gradients_ride_along_and_filling_replaces_what_was_there() -> None:
    values = np.arange(24.0).reshape(4, 6)[::2, ::3]  # not contiguous
    for dtype in (np.float32, np.float64):
        blob = array_to_blob(values.astype(dtype), -values.astype(dtype))
        assert np.array_equal(blob_to_array(blob, "diff"), -values)
        assert np.array_equal(blob_to_array(blob), values)
        fill_blob(blob, np.ones(2, np.float32))
        assert blob == array_to_blob(np.ones(2, np.float32))


def test_fields_that_the_schema_does_not_know_are_stepped_over() -> None:
    """Varint, 64-bit, bytes and 32-bit fields of numbers 100 to 103, before and after."""
    unknown = b"\xa0\x06\x05" + b"\xa9\x06" + b"8" * 8 + b"\xb2\x06\x02hi" + b"\xbd\x06" + b"4" * 4
    content = array_to_blob(np.arange(3, dtype=np.float32)).SerializeToString()
    blob = BlobProto.FromString(unknown + content + unknown)
    assert blob_to_array(blob).tolist() == [0, 1, 2]


def test_old_blobs_have_four_extents_and_new_ones_fit_their_shape_only() -> None:
    blob = BlobProto(num=1, channels=1, height=2, width=3, data=range(6))
    assert blob_shape(blob) == blob_to_array(blob).shape == (1, 1, 2, 3)
    shapes = (2, 3), (1, 2, 3), (1, 1, 2, 3), (6,), (1, 1, 1, 2, 3)
    assert [blob_fits(blob, shape) for shape in shapes] == [True, True, True, False, False]
    blob = array_to_blob(np.zeros((1, 1, 2, 3), np.float32))
    assert [blob_fits(blob, shape) for shape in shapes] == [False, False, True, False, False]


def test_a_wrong_number_of_values() -> None:
    blob = BlobProto(data=[1, 2, 3])
    blob.shape.dim.extend([2, 2])
    message = "a blob of shape 2x2 has 3 values instead of 4"
    with pytest.raises(UserError, match=message):
        blob_to_array(blob)
    with pytest.raises(UserError, match=message):
        check_blob(blob)


def test_a_blob_without_values() -> None:
    given = {}, {"data": [0]}, {"double_data": [0]}
    assert [has_values(BlobProto(**fields)) for fields in given] == [False, True, True]

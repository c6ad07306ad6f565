"""Sums and conversions of the 16-bit floats in host memory."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.comm.communicator import Serial, check
from osucaffe.comm.host import HostMath, widen


def bfloat16(values: np.ndarray) -> np.ndarray:
    bits = np.empty(values.size, np.uint16)
    HostMath().narrow(values.astype(np.float32), bits)
    return bits


def test_bfloat16_rounds_to_the_nearest_and_ties_to_even() -> None:
    # 1 + 2^-8 lies between 1 and 1 + 2^-7; 1 + 3 * 2^-8 between 1 + 2^-7 and 1 + 2^-6.
    given = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-12, -(1 + 2**-8), 3e38])
    wide = np.empty(given.size, np.float32)
    widen(bfloat16(given), wide)
    np.testing.assert_array_equal(wide[:5], [1, 1, 1 + 2**-6, 1 + 2**-7, -1])
    assert abs(wide[5] / 3e38 - 1) < 2**-8


def test_bfloat16_keeps_nan_and_infinity() -> None:
    odd = np.array([0x7F800001, 0xFFFFFFFF, 0x7F800000, 0xFF800000], np.uint32).view(np.float32)
    wide, bits = np.empty(4, np.float32), np.empty(4, np.uint16)
    with np.errstate(invalid="ignore"):  # a signalling NaN among them
        HostMath().narrow(odd, bits)
    widen(bits, wide)
    assert np.isnan(wide[:2]).all()
    np.testing.assert_array_equal(wide[2:], [np.inf, -np.inf])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_long_arrays_are_half_precision(dtype: str) -> None:
    values = np.random.default_rng(0).standard_normal(100_001).astype(np.float32)
    narrow = np.empty(values.size, np.float16 if dtype == "float16" else np.uint16)
    HostMath().narrow(values, narrow)
    wide = np.empty_like(values)
    widen(narrow, wide)
    relative = 2**-8 if dtype == "bfloat16" else 2**-11
    np.testing.assert_allclose(wide, values, rtol=relative, atol=2**-25)  # float16 underflows


def test_sums_of_bfloat16_are_rounded_once() -> None:
    a, b = bfloat16(np.full(70_000, 1.0)), bfloat16(np.full(70_000, 2.0**-8))
    HostMath().add(a, b)
    wide = np.empty(a.size, np.float32)
    widen(a, wide)
    np.testing.assert_array_equal(wide, 1)


def test_arrays_that_cannot_be_reduced_are_refused() -> None:
    with pytest.raises(ValueError, match="flat contiguous"):
        check(np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match="flat contiguous"):
        check(np.zeros(4, np.float32)[::2])
    with pytest.raises(ValueError, match="not int64"):
        check(np.zeros(4, np.int64))


def test_a_single_rank_is_done_at_once() -> None:
    comm, array = Serial(), np.arange(3, dtype=np.float32)
    comm.all_reduce(array).wait()
    comm.broadcast(array).wait()
    np.testing.assert_array_equal(array, [0, 1, 2])
    with pytest.raises(ValueError, match="no rank 1"):
        comm.reduce(array, 1)

"""Owns what HDF5's messages say of a data set: its shape, the type of its values, what those are
that nobody wrote."""

from __future__ import annotations

import numpy as np

from .format import Cursor, UnknownForm

_FIXED, _FLOAT, _STRING, _ENUM, _LONG_STRING = 0, 1, 3, 8, 9
_IEEE = {
    2: (0, 16, 10, 5, 0, 10, 15),
    4: (0, 32, 23, 8, 0, 23, 127),
    8: (0, 64, 52, 11, 0, 52, 1023),
}
"""By bytes: first bit, bits, the exponent's, the mantissa's, and the exponent's bias."""
_ONE_IS_IMPLIED = 2 << 4


def shape_of(fields: Cursor) -> tuple[int, ...]:
    """The extents that a dataspace states."""
    version, rank, _ = fields.numbers(1, 1, 1)
    kind = fields.number(1)
    if version == 1:
        fields.take(4)
    elif version != 2 or kind > 1:
        raise ValueError("it holds nothing, or its shape is damaged")
    if rank > 32:
        raise ValueError(f"it has {rank} axes")
    return tuple(fields.length() for _ in range(rank))


def dtype_of(fields: Cursor) -> np.dtype:
    """The type of numbers or strings of fixed length; UnknownForm for others."""
    first, bits, size = fields.numbers(1, 3, 4)
    kind = first & 15
    order = ">" if bits & 1 else "<"
    if kind == _FIXED and size in (1, 2, 4, 8) and fields.numbers(2, 2) == [0, 8 * size]:
        return np.dtype(f"{order}{'i' if bits & 8 else 'u'}{size}")
    if kind == _FLOAT and size in _IEEE:
        told = tuple(fields.numbers(2, 2, 1, 1, 1, 1, 4))
        if told == _IEEE[size] and bits & ~0xF == _ONE_IS_IMPLIED | (8 * size - 1) << 8:
            return np.dtype(f"{order}f{size}")
    if kind == _STRING and size:
        return np.dtype(f"S{size}")
    if kind == _ENUM and (base := dtype_of(fields)).kind in "iu":
        return base
    if kind in (_FIXED, _FLOAT, _LONG_STRING):
        raise UnknownForm("its values are of an unusual type")
    raise ValueError("its values are no numbers")


def fill_of(dtype: np.dtype, fields: Cursor | None, *, is_old: bool) -> np.ndarray:
    """One value: what those are that nobody wrote, which is zero if no message says so."""
    size = 0
    if fields is not None and is_old:
        size = fields.number(4)
    elif fields is not None:
        version = fields.number(1)
        if version > 3:
            raise ValueError("its fill value is damaged")
        flags = fields.number(1) if version == 3 else fields.number(3) >> 16 and 32
        if flags & 32:
            size = fields.number(4)
    if fields is None or not size:
        return np.zeros((), dtype)
    return np.frombuffer(fields.take(size), dtype, 1).reshape(())

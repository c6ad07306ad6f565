"""The primitives that put pixels where they were, or between others."""

from __future__ import annotations

from ...backends.primitives.recording import Primitive, Read, Write


class Unpooling(Primitive):
    """y (N, C, H, W) = zeros, and each element of x (N, C, *) where its index says: the index
    in its channel of y, row by row. Of several that go to one place the last one stays.

    index: floats that hold whole numbers, of x's shape. One that is out of range makes the
    first element of its channel NaN.
    """

    x: Read
    index: Read
    y: Write


class UnpoolingBackward(Primitive):
    """dx = dy where the index says (0 where it is out of range)."""

    dy: Read
    index: Read
    dx: Write


class ResizeBilinear(Primitive):
    """y (N, C, *out) = x (N, C, H, W) between its pixels, with align_corners: row i of y lies at
    i * (H - 1) / (rows of y - 1) of x, a single row at 0; columns likewise."""

    x: Read
    y: Write


class ResizeBilinearBackward(Primitive):
    """dx = the gradient of `resize_bilinear` to x."""

    dy: Read
    dx: Write

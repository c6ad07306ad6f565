"""Owns the declarations of the primitives that move data and bring it in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..tensor import Tensor
from .recording import (
    FusedReads,
    Gradient,
    Primitive,
    Read,
    Reads,
    ReadWrite,
    Write,
    Writes,
    primitive,
)


@primitive
class Fill(Primitive):
    """Set every element of y to value."""

    y: Write
    value: float


@primitive
class Copy(Primitive):
    """y = x, of the same shape (the layouts may differ)."""

    x: Read
    y: Write


def _starts(parts: Sequence[Tensor | None], whole: Tensor, axis: int) -> list[int]:
    """Where each of the parts begins in the whole, along axis; a None takes what is left."""
    known = sum(part.shape[axis] for part in parts if part is not None)
    missing = sum(part is None for part in parts)
    left = (whole.shape[axis] - known) // missing if missing else 0
    return [0, *accumulate(left if part is None else part.shape[axis] for part in parts)][:-1]


@primitive
class Concat(Primitive):
    """Put xs behind one another along axis."""

    xs: Reads
    y: Write
    axis: int

    @property
    def starts(self) -> list[int]:
        """Where each of xs begins in y, along axis."""
        return _starts(self.xs, self.y, self.axis)


@primitive
class Split(Primitive):
    """Cut x along axis into ys: concat backwards. A None in ys skips that part.

    relu_output: for each part (or None) as of `convolution_backward_data`.
    """

    x: Read
    ys: Writes
    axis: int
    relu_output: FusedReads | None = None

    @property
    def starts(self) -> list[int]:
        """Where each of ys begins in x, along axis."""
        return _starts(self.ys, self.x, self.axis)


@primitive
class Permute(Primitive):
    """y = x with its axes in another order: axis i of y is axis axes[i] of x."""

    x: Read
    y: Write
    axes: Sequence[int]


@primitive
class Crop(Primitive):
    """y = the box of x that begins at offsets and has y's extents."""

    x: Read
    y: Write
    offsets: Sequence[int]


@primitive
class CropBackward(Primitive):
    """dx = dy in that box, zero outside it."""

    dy: Read
    dx: Write
    offsets: Sequence[int]


@primitive
class Gather(Primitive):
    """y[i] = x[index[i]]: pick along the first axis of x; y is (*index's shape, *rest of x's).

    index: floats that hold whole numbers. Where one is out of range, y[i] is NaN.
    """

    x: Read
    index: Read
    y: Write


@primitive
class GatherBackward(Primitive):
    """dx[index[i]] = the sum of those dy[i], zero where nothing was picked."""

    dy: Read
    index: Read
    dx: Write


@primitive
class GatherGradient(Primitive):
    """`gather_backward` for a parameter."""

    dy: Read
    index: Read
    dw: Gradient


@primitive
class Positions(Primitive):
    """y = 0, 1, 2, ... in row-major order."""

    y: Write


@primitive
class Host(Primitive):
    """Run a Python function on the host: function(reads, writes), lists of NumPy arrays.

    It changes the arrays of writes, which hold the tensors' values, in place.
    feed: it brings input: called without arguments, it calls `tensor.place` (row-major) on
    each of writes with the host memory of the next batch, instead of filling the memory that
    they have. uploads: False where it brings them to the backend's memory by itself, and
    places them there before they are first read.
    """

    reads: Reads
    writes: Writes
    function: Callable[..., None]
    feed: bool = False
    uploads: bool = True


@dataclass(kw_only=True)
class Transformation(Primitive):
    """What a record is multiplied with, and whether its channels come last."""

    scale: float
    interleaved: bool = False


@primitive
class Transform(Transformation):
    """y[n] = (a crop of x[n] - mean) * scale, mirrored perhaps: see `records.transform_record`.

    x: uint8 (N, C, *in), or interleaved (N, *in, C). table: int32 (N, 3), for each record the
    first row and column of the crop, and 1 where it is mirrored. mean: (C, 1, 1), or (C, *in)
    and cropped likewise.
    """

    x: Read
    table: Read
    mean: Read | None
    y: Write


@primitive
class NextRow(Primitive):
    """row = table[cursor], then cursor += 1; behind the last row comes the first.

    So what differs from step to step is written for many of them ahead (a learning rate, which
    records make a batch), and nothing is copied to the device between them.
    table: float32 or int32 (K, *row's shape), as row is. cursor: int32 (1,).
    """

    table: Read
    cursor: ReadWrite
    row: Write


@primitive
class CachedBatch(Transformation):
    """y[n] = what `transform` makes of records[rows[n, 0]], and labels[n] = rows[n, 4].

    records: uint8 (M, C, *in), or interleaved (M, *in, C): more than a batch. rows: int32
    (N, 5): the number of the record, what `transform`'s table says of it, and its label.
    addresses: int64 (R,): where R parts of the records lie, one of which is `records`: that of
    number n is the (n // R)-th of part n % R.
    """

    records: Read
    rows: Read
    mean: Read | None
    y: Write
    labels: Write | None = None
    addresses: Read | None = None


@primitive
class CachedRows(Primitive):
    """y[n] = records[rows[n]]. records: float32 (M, *rest of y's); rows: int32 (N, 1)."""

    records: Read
    rows: Read
    y: Write
